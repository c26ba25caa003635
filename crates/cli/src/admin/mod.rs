//! The operator's commands reach a running gateway here: its admin API by HTTP,
//! the token from the environment, and its refusals as sentences.
//!
//! A token is never an argument: those are in every list of processes.

pub(crate) mod moment;
pub(crate) mod table;

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

/// The environment's name for the token.
const TOKEN: &str = "ONCEWARD_ADMIN_TOKEN";
/// The bounds of a question: listings and bulk work may take a while, and a
/// reply's body may be large.
const LIMITS: FetchLimits = FetchLimits {
    deadline: Duration::from_secs(120),
    answer_bytes_max: 256 << 20,
};

/// Where the gateway is, and how to tell its answers.
#[derive(clap::Args, Clone)]
pub(crate) struct Reach {
    /// The gateway's admin listener; its token is in ONCEWARD_ADMIN_TOKEN.
    #[arg(
        long,
        global = true,
        value_name = "URL",
        env = "ONCEWARD_ADMIN",
        hide_env_values = true,
        default_value = "http://127.0.0.1:8081"
    )]
    admin: String,
    /// Prints the API's own answer, for programs.
    #[arg(long, global = true)]
    pub(crate) json: bool,
}

/// What a token must at least be allowed.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Needs {
    Read,
    Operate,
    Admin,
}

impl Needs {
    fn as_str(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Operate => "operate",
            Self::Admin => "admin",
        }
    }
}

/// A gateway to ask.
pub(crate) struct Client {
    url: String,
    fetch: Fetch,
    token: Option<HeaderValue>,
    json: bool,
}

/// What a gateway answered.
pub(crate) enum Told {
    /// It is done.
    Done(Answer),
    /// It is refused, for this reason.
    Refused(Answer, String),
}

/// An answer as it came, and what it says.
pub(crate) struct Answer {
    raw: Bytes,
    pub(crate) value: Value,
}

impl Client {
    pub(crate) fn new(reach: &Reach) -> anyhow::Result<Self> {
        let url = reach.admin.trim_end_matches('/').to_owned();
        let fetch = Fetch::new(&url, LIMITS)
            .with_context(|| format!("--admin {} cannot be asked", table::plain(&url)))?;
        let token = match std::env::var(TOKEN) {
            Ok(token) if token.is_empty() => None,
            Ok(token) => Some(bearer(token.trim())?),
            Err(std::env::VarError::NotPresent) => None,
            Err(_) => bail!("{TOKEN} is not text"),
        };
        if token.is_some() && is_exposed(&url) {
            eprintln!("Warning: the token goes unencrypted to {url}; use https://");
        }
        Ok(Self {
            url,
            fetch,
            token,
            json: reach.json,
        })
    }

    pub(crate) async fn get(&self, needs: Needs, path: &str) -> anyhow::Result<Told> {
        let answer = self.fetch.get(Some(path), self.headers()).await;
        self.told(needs, answer.map_err(|error| self.unreached(error))?)
    }

    pub(crate) async fn post(
        &self,
        needs: Needs,
        path: &str,
        body: &Value,
    ) -> anyhow::Result<Told> {
        let mut headers = self.headers();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        let body = Bytes::from(body.to_string());
        let answer = self.fetch.post(Some(path), headers, body).await;
        self.told(needs, answer.map_err(|error| self.unreached(error))?)
    }

    /// Shows what came of it: the API's own words for programs, `show` for people.
    pub(crate) fn tell(
        &self,
        told: &Told,
        show: impl FnOnce(&Value) -> String,
    ) -> anyhow::Result<ExitCode> {
        match told {
            Told::Done(answer) if self.json => println!("{}", answer.text()),
            Told::Done(answer) => print!("{}", show(&answer.value)),
            Told::Refused(answer, why) => {
                if self.json {
                    println!("{}", answer.text());
                }
                bail!("{why}");
            }
        }
        Ok(ExitCode::SUCCESS)
    }

    /// Whether the caller wants the API's own words.
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

    fn unreached(&self, error: impl Into<anyhow::Error>) -> anyhow::Error {
        let url = table::plain(&self.url);
        error.into().context(format!(
            "the gateway at {url} cannot be reached (is it running there? --admin or ONCEWARD_ADMIN says where)"
        ))
    }

    fn told(&self, needs: Needs, fetched: Fetched) -> anyhow::Result<Told> {
        let url = table::plain(&self.url);
        let value = serde_json::from_slice(&fetched.body).map_err(|_| {
            anyhow!(
                "what answers at {url} is not the admin listener of a gateway: status {}",
                fetched.status
            )
        })?;
        let answer = Answer {
            raw: fetched.body,
            value,
        };
        if fetched.status.is_success() {
            return Ok(Told::Done(answer));
        }
        let detail = match answer.value["detail"].as_str() {
            Some(detail) => table::plain(detail),
            None => bail!(
                "what answers at {url} is not the admin listener of a gateway: status {}",
                fetched.status
            ),
        };
        let why = match (fetched.status.as_u16(), &self.token) {
            (401, None) => format!("the gateway wants a token: put one into {TOKEN}"),
            (401, Some(_)) => format!("the gateway does not know the token in {TOKEN}"),
            (403, Some(_)) => format!(
                "the role of the token in {TOKEN} is too small: this needs `{}`",
                needs.as_str()
            ),
            _ => detail,
        };
        Ok(Told::Refused(answer, why))
    }
}

impl Answer {
    fn text(&self) -> String {
        String::from_utf8_lossy(self.raw.trim_ascii()).into_owned()
    }
}

impl Told {
    /// What it says, where it is done.
    pub(crate) fn done(self) -> anyhow::Result<Value> {
        match self {
            Self::Done(answer) => Ok(answer.value),
            Self::Refused(_, why) => bail!("{why}"),
        }
    }
}

fn bearer(token: &str) -> anyhow::Result<HeaderValue> {
    let value = HeaderValue::from_str(&format!("Bearer {token}"));
    let mut value = value.map_err(|_| anyhow!("{TOKEN} holds characters that no token has"))?;
    value.set_sensitive(true);
    Ok(value)
}

/// Whether others could read along.
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

/// A path of the API with a name in it that may hold anything.
pub(crate) fn path(before: &str, name: &str, after: &str) -> String {
    format!(
        "{before}{}{after}",
        utf8_percent_encode(name, NON_ALPHANUMERIC)
    )
}

/// A path with a query of what is there.
pub(crate) fn query(path: &str, parts: &[(&str, Option<String>)]) -> String {
    let mut url = path.to_owned();
    for (name, value) in parts {
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
        let parts = [
            ("a", Some("b&c".to_owned())),
            ("d", None),
            ("e", Some("é".to_owned())),
        ];
        assert_eq!(query("/p", &parts), "/p?a=b%26c&e=%C3%A9");
    }

    #[test]
    fn only_this_machine_is_safe_without_encryption() {
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
