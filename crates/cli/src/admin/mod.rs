//! The commands' connection to a running gateway: requests to its admin API, the token from the
//! environment, and refusals as error messages.
//!
//! The token is never an argument: arguments are visible in the list of processes.

pub(crate) mod table;
pub(crate) mod timestamps;

use std::net::IpAddr;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use bytes::Bytes;
use hyper::Uri;
use hyper::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderValue};
use onceward_gateway::upstream::fetch::{Fetch, FetchLimits, Fetched};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::Value;

use crate::output;

/// The environment variable that holds the token.
const TOKEN_VARIABLE: &str = "ONCEWARD_ADMIN_TOKEN";
/// Listings and bulk changes may take a while, and the body of a stored reply may be large.
const LIMITS: FetchLimits = FetchLimits {
    deadline: Duration::from_secs(120),
    answer_bytes_max: 256 << 20,
};

/// The arguments of every command that calls the admin API.
#[derive(clap::Args, Clone)]
pub(crate) struct AdminArgs {
    /// URL of the gateway's admin listener; the token is read from ONCEWARD_ADMIN_TOKEN.
    #[arg(
        long,
        global = true,
        value_name = "URL",
        env = "ONCEWARD_ADMIN",
        hide_env_values = true,
        default_value = "http://127.0.0.1:8081"
    )]
    admin: String,
    /// Print the API's JSON response.
    #[arg(long, global = true)]
    pub(crate) json: bool,
}

/// The least role that a token needs for a request.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Role {
    Read,
    Operate,
    Admin,
}

impl Role {
    fn as_str(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Operate => "operate",
            Self::Admin => "admin",
        }
    }
}

/// A client of one gateway's admin API.
pub(crate) struct Client {
    url: String,
    fetch: Fetch,
    token: Option<HeaderValue>,
    json: bool,
}

/// The API's answer to a request.
pub(crate) enum ApiResult {
    Done(ApiResponse),
    /// With the reason, ready to be shown.
    Refused(ApiResponse, String),
}

/// A JSON response, as received and parsed.
pub(crate) struct ApiResponse {
    raw: Bytes,
    pub(crate) value: Value,
}

/// The output of a command, without `--json`.
pub(crate) struct CommandOutput {
    /// For standard output: the result alone, so that a script can capture it.
    pub(crate) result: String,
    /// For standard error: everything else.
    pub(crate) notes: String,
}

impl Client {
    pub(crate) fn new(args: &AdminArgs) -> anyhow::Result<Self> {
        let url = args.admin.trim_end_matches('/').to_owned();
        let fetch = Fetch::new(&url, LIMITS)
            .with_context(|| format!("invalid --admin URL {}", table::escape(&url)))?;
        let token = match std::env::var(TOKEN_VARIABLE) {
            Ok(token) if token.is_empty() => None,
            Ok(token) => Some(bearer(token.trim())?),
            Err(std::env::VarError::NotPresent) => None,
            Err(_) => bail!("{TOKEN_VARIABLE} is not valid UTF-8"),
        };
        if token.is_some() && is_exposed(&url) {
            output::note(&format!(
                "Warning: the token is sent unencrypted to {}; use https://\n",
                table::escape(&url)
            ));
        }
        Ok(Self {
            url,
            fetch,
            token,
            json: args.json,
        })
    }

    pub(crate) async fn get(&self, role: Role, path: &str) -> anyhow::Result<ApiResult> {
        let fetched = self.fetch.get(Some(path), self.headers()).await;
        self.parse(role, &fetched.map_err(|error| self.unreachable(error))?)
    }

    pub(crate) async fn post(
        &self,
        role: Role,
        path: &str,
        body: &Value,
    ) -> anyhow::Result<ApiResult> {
        let mut headers = self.headers();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        let body = Bytes::from(body.to_string());
        let fetched = self.fetch.post(Some(path), headers, body).await;
        self.parse(role, &fetched.map_err(|error| self.unreachable(error))?)
    }

    /// Prints a result: the API's own JSON with `--json`, else the text that `show` makes of it.
    /// A refusal is an error.
    pub(crate) fn report(
        &self,
        result: &ApiResult,
        show: impl FnOnce(&Value) -> String,
    ) -> anyhow::Result<ExitCode> {
        self.report_with_notes(result, |value| CommandOutput {
            result: show(value),
            notes: String::new(),
        })
    }

    /// The same for a command whose result a script may capture: the rest goes to standard error.
    pub(crate) fn report_with_notes(
        &self,
        result: &ApiResult,
        show: impl FnOnce(&Value) -> CommandOutput,
    ) -> anyhow::Result<ExitCode> {
        match result {
            ApiResult::Done(response) if self.json => output::print(&response.line())?,
            ApiResult::Done(response) => {
                let report = show(&response.value);
                let printed = output::print(&report.result);
                output::note(&report.notes);
                printed?;
            }
            ApiResult::Refused(response, reason) => {
                if self.json {
                    output::print(&response.line())?;
                }
                bail!("{reason}");
            }
        }
        Ok(ExitCode::SUCCESS)
    }

    /// Whether `--json` was given.
    pub(crate) fn is_json(&self) -> bool {
        self.json
    }

    fn headers(&self) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(ACCEPT, HeaderValue::from_static("application/json"));
        if let Some(token) = &self.token {
            headers.insert(AUTHORIZATION, token.clone());
        }
        headers
    }

    fn unreachable(&self, error: impl Into<anyhow::Error>) -> anyhow::Error {
        let url = table::escape(&self.url);
        error.into().context(format!(
            "cannot reach the gateway's admin listener at {url} (set its URL with --admin or ONCEWARD_ADMIN)"
        ))
    }

    fn parse(&self, role: Role, fetched: &Fetched) -> anyhow::Result<ApiResult> {
        let not_admin = || {
            anyhow!(
                "{} is not the admin listener of a gateway: it answered with status {}",
                table::escape(&self.url),
                fetched.status
            )
        };
        let value: Value = serde_json::from_slice(&fetched.body).map_err(|_| not_admin())?;
        let detail = value["detail"].as_str().map(table::escape);
        let response = ApiResponse {
            value,
            raw: fetched.body.clone(),
        };
        if fetched.status.is_success() {
            return Ok(ApiResult::Done(response));
        }
        let detail = detail.ok_or_else(not_admin)?;
        let reason = match (fetched.status.as_u16(), &self.token) {
            (401, None) => format!("the gateway requires a token; set {TOKEN_VARIABLE}"),
            (401, Some(_)) => format!("the gateway rejected the token in {TOKEN_VARIABLE}"),
            (403, Some(_)) => format!(
                "the role of the token in {TOKEN_VARIABLE} is not sufficient; this command requires `{}`",
                role.as_str()
            ),
            _ => detail,
        };
        Ok(ApiResult::Refused(response, reason))
    }
}

impl ApiResponse {
    /// The JSON document on a line of its own.
    fn line(&self) -> String {
        format!("{}\n", String::from_utf8_lossy(self.raw.trim_ascii()))
    }
}

impl ApiResult {
    /// The parsed response; a refusal is an error.
    pub(crate) fn done(self) -> anyhow::Result<Value> {
        match self {
            Self::Done(response) => Ok(response.value),
            Self::Refused(_, reason) => bail!("{reason}"),
        }
    }
}

fn bearer(token: &str) -> anyhow::Result<HeaderValue> {
    let value = HeaderValue::from_str(&format!("Bearer {token}"));
    let mut value = value
        .map_err(|_| anyhow!("{TOKEN_VARIABLE} contains characters that a token cannot have"))?;
    value.set_sensitive(true);
    Ok(value)
}

/// Whether the token would cross a network unencrypted.
fn is_exposed(url: &str) -> bool {
    let Ok(url) = url.parse::<Uri>() else {
        return false;
    };
    let host = url.host().unwrap_or_default();
    let address = host.trim_start_matches('[').trim_end_matches(']');
    let here = match address.parse::<IpAddr>() {
        Ok(address) => address.is_loopback(),
        Err(_) => host == "localhost",
    };
    url.scheme_str() == Some("http") && !here
}

/// A path of the API that contains a name, percent-encoded.
pub(crate) fn path(before: &str, name: &str, after: &str) -> String {
    format!(
        "{before}{}{after}",
        utf8_percent_encode(name, NON_ALPHANUMERIC)
    )
}

/// A path with the parameters that have a value.
pub(crate) fn query(path: &str, parameters: &[(&str, Option<String>)]) -> String {
    let mut url = path.to_owned();
    for (name, value) in parameters {
        if let Some(value) = value {
            url.push(if url.contains('?') { '&' } else { '?' });
            url.push_str(name);
            url.push('=');
            url.extend(utf8_percent_encode(value, NON_ALPHANUMERIC));
        }
    }
    url
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_in_paths_and_queries_are_encoded() {
        assert_eq!(path("/a/", "x/y?", "/z"), "/a/x%2Fy%3F/z");
        let parameters = [
            ("a", Some("b&c".to_owned())),
            ("d", None),
            ("e", Some("é".to_owned())),
        ];
        assert_eq!(query("/p", &parameters), "/p?a=b%26c&e=%C3%A9");
    }

    #[test]
    fn only_loopback_is_safe_without_encryption() {
        for (url, exposed) in [
            ("http://127.0.0.1:8081", false),
            ("http://localhost:1", false),
            ("http://[::1]:1", false),
            ("https://admin.example", false),
            ("http://admin.example", true),
            ("http://10.0.0.1", true),
            ("http://127.0.0.1.evil.example", true),
        ] {
            assert_eq!(is_exposed(url), exposed, "{url}");
        }
    }
}
