//! Checks the listeners, secrets, upstreams, limits and telemetry.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use http::uri::Authority;
use ipnet::IpNet;
use onceward_webhooks::Provider;
use secrecy::ExposeSecret as _;

use super::checker::{Checker, SOME_TIME};
use crate::config::source::join;
use crate::config::url;
use crate::config::{
    AdminToken, BaoLogin, Limits, OpenBao, Otlp, Rate, Role, SecretValue, Secrets, Server,
    ServerTls, Telemetry, Upstream, raw,
};
use crate::upstream::Tls;

/// The shortest secret.
pub(super) const SECRET_LENGTH_MIN: usize = 16;

pub(super) fn check_server(raw: &raw::Server, checker: &mut Checker<'_>) -> Server {
    let usual = Server::default();
    let listen = check_address("server.listen", raw.listen.as_ref(), &usual.listen, checker);
    let admin = check_address("server.admin", raw.admin.as_ref(), &usual.admin, checker);
    if listen == admin && !listen.ends_with(":0") {
        let right = "use another port";
        checker.report(
            "server.admin",
            "is the same address as server.listen",
            right,
        );
    }
    let mut time = |key: &str, raw, usual| {
        checker.check_time(&format!("server.{key}"), raw, usual, &SOME_TIME)
    };
    let head_deadline = time(
        "head_deadline",
        raw.head_deadline.as_ref(),
        usual.head_deadline,
    );
    let body_deadline = time(
        "body_deadline",
        raw.body_deadline.as_ref(),
        usual.body_deadline,
    );
    let write_deadline = time(
        "write_deadline",
        raw.write_deadline.as_ref(),
        usual.write_deadline,
    );
    let drain = time("drain", raw.drain.as_ref(), usual.drain);
    let admin_tokens = check_admin_tokens(raw, checker);
    let said = checker.locations.says("server.admin_token")
        || checker.locations.says("server.admin_tokens[0]");
    if !url::is_loopback(host_of(&admin)) && admin_tokens.is_empty() && !said {
        checker.report(
            "server.admin",
            "is reachable by other machines without a token",
            "add admin_token = \"${ONCEWARD_ADMIN_TOKEN}\", or use 127.0.0.1",
        );
    }
    let proxies = check_trusted_proxies(&raw.trusted_proxies, checker);
    let proxy_protocol = raw.proxy_protocol.unwrap_or(usual.proxy_protocol);
    if proxy_protocol && !checker.locations.says("server.trusted_proxies[0]") {
        checker.report(
            "server.proxy_protocol",
            "requires trusted proxies",
            "list their addresses in trusted_proxies",
        );
    }
    Server {
        listen,
        admin,
        admin_tokens,
        public_url: check_public_url(raw.public_url.as_ref(), checker),
        body_limit: checker.check_size(
            "server.body_limit",
            raw.body_limit.as_ref(),
            usual.body_limit,
        ),
        reply_limit: checker.check_size(
            "server.reply_limit",
            raw.reply_limit.as_ref(),
            usual.reply_limit,
        ),
        tls: raw
            .tls
            .as_ref()
            .and_then(|tls| check_server_tls(tls, checker)),
        trusted_proxies: proxies,
        proxy_protocol,
        head_deadline,
        body_deadline,
        write_deadline,
        drain,
        threads: raw
            .threads
            .and_then(|threads| NonZeroUsize::new(count_or(Some(threads), 0))),
    }
}

/// Checks `host:port`, where the host is a name or an address.
fn check_address(
    key: &str,
    raw: Option<&String>,
    usual: &str,
    checker: &mut Checker<'_>,
) -> String {
    let Some(text) = raw else {
        return usual.to_owned();
    };
    let (host, port) = text.rsplit_once(':').unwrap_or((text, ""));
    let bracketed = host.starts_with('[') && host.ends_with(']');
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
    let host_is_good = match bracketed {
        true => host.trim_matches(['[', ']']).parse::<IpAddr>().is_ok(),
        false => !host.is_empty() && host.chars().all(plain),
    };
    if !host_is_good || port.parse::<u16>().is_err() {
        let problem = format!("{} is not an address with a port", checker.shown(key, text));
        checker.report(
            key,
            problem,
            format!("write \"{usual}\" or \"[::1]:8080\", for example"),
        );
        return usual.to_owned();
    }
    text.clone()
}

fn host_of(address: &str) -> &str {
    address.rsplit_once(':').map_or(address, |(host, _)| host)
}

fn check_admin_tokens(raw: &raw::Server, checker: &mut Checker<'_>) -> Vec<AdminToken> {
    let mut tokens: Vec<AdminToken> = Vec::new();
    if let Some(token) = &raw.admin_token {
        tokens.extend(
            checker
                .check_secret("server.admin_token", token, 1)
                .map(|token| AdminToken {
                    name: "admin".to_owned(),
                    role: Role::Admin,
                    token,
                }),
        );
    }
    for (at, raw) in raw.admin_tokens.iter().enumerate() {
        let key = format!("server.admin_tokens[{at}]");
        let name = raw.name.clone().unwrap_or_default();
        if raw.name.is_some() {
            checker.check_name(&format!("{key}.name"), &name);
        }
        if !name.is_empty() && tokens.iter().any(|other| other.name == name) {
            let problem = format!("{name:?} already has a token");
            let right = "give each token its own name: the audit log identifies operators by it";
            checker.report(&format!("{key}.name"), problem, right);
        }
        let token_key = format!("{key}.token");
        let token = raw
            .token
            .as_ref()
            .and_then(|token| checker.check_secret(&token_key, token, 1));
        let Some(token) = token else { continue };
        if let Some(other) = tokens.iter().find(|other| other.token == token) {
            let problem = format!("is also the token of {:?}", other.name);
            checker.report(&token_key, problem, "use another random token");
        }
        tokens.push(AdminToken {
            name,
            role: raw.role.unwrap_or(Role::Read),
            token,
        });
    }
    tokens
}

fn check_public_url(raw: Option<&String>, checker: &mut Checker<'_>) -> Option<String> {
    let key = "server.public_url";
    let text = raw?;
    checker.check_url(key, url::web(text))?;
    if text.contains(['?', '#']) {
        let right = "write where clients find this gateway, such as https://api.example.com";
        checker.report(key, "has a query or a fragment", right);
        return None;
    }
    Some(text.trim_end_matches('/').to_owned())
}

fn check_server_tls(raw: &raw::ServerTls, checker: &mut Checker<'_>) -> Option<ServerTls> {
    let cert = checker.check_file("server.tls.cert", raw.cert.as_ref());
    let key = checker.check_file("server.tls.key", raw.key.as_ref());
    let client_ca = checker.check_file("server.tls.client_ca", raw.client_ca.as_ref());
    if raw.client_auth.is_some() && !checker.locations.says("server.tls.client_ca") {
        checker.report(
            "server.tls.client_auth",
            "requires client_ca, the authority of client certificates",
            "add client_ca = \"…\", or remove client_auth",
        );
    }
    Some(ServerTls {
        cert: cert?,
        key: key?,
        client_ca,
        client_auth: raw.client_auth.unwrap_or_default(),
    })
}

fn check_trusted_proxies(raw: &[String], checker: &mut Checker<'_>) -> Vec<IpNet> {
    let mut networks = Vec::new();
    for (at, text) in raw.iter().enumerate() {
        let network = text
            .parse::<IpNet>()
            .or_else(|_| text.parse::<IpAddr>().map(IpNet::from));
        match network {
            Ok(network) => networks.push(network),
            Err(_) => {
                let key = format!("server.trusted_proxies[{at}]");
                let problem = format!(
                    "{} is not an address or a network",
                    checker.shown(&key, text)
                );
                checker.report(
                    &key,
                    problem,
                    "write \"10.0.0.7\" or \"10.0.0.0/8\", for example",
                );
            }
        }
    }
    networks
}

pub(super) fn check_secrets(raw: &raw::Secrets, checker: &mut Checker<'_>) -> Secrets {
    let key = raw
        .key
        .as_ref()
        .and_then(|key| checker.check_local_secret("secrets.key", key, SECRET_LENGTH_MIN));
    let openbao = raw
        .openbao
        .as_ref()
        .and_then(|raw| check_openbao(raw, checker));
    Secrets { key, openbao }
}

fn check_openbao(raw: &raw::OpenBao, checker: &mut Checker<'_>) -> Option<OpenBao> {
    let address = raw.address.as_ref().and_then(|address| {
        let judged = url::guarded(address).and_then(|_| url::origin(address, &["http", "https"]));
        checker.check_url("secrets.openbao.address", judged)?;
        Some(address.trim_end_matches('/').to_owned())
    });
    let login = check_login(raw, checker);
    let beneath = |key: &str, raw: Option<&String>, usual: &str, checker: &mut Checker<'_>| {
        let key = format!("secrets.openbao.{key}");
        let path = checker
            .check_text(&key, raw)
            .unwrap_or_else(|| usual.to_owned());
        let segments = path.split('/');
        if segments
            .clone()
            .any(|segment| matches!(segment, "" | "." | ".."))
        {
            let problem = format!("{} is not a path", checker.shown(&key, &path));
            checker.report(&key, problem, format!("write a path such as \"{usual}\""));
        }
        path
    };
    let mount = beneath("mount", raw.mount.as_ref(), "secret", checker);
    let usual = "webhooks/{tenant}/{project}/{provider}";
    let path = beneath("path", raw.path.as_ref(), usual, checker);
    let bare = ["{tenant}", "{project}", "{provider}"]
        .iter()
        .fold(path.clone(), |path, name| path.replace(name, ""));
    if bare.contains(['{', '}']) {
        let right = "use only {tenant}, {project} and {provider}";
        checker.report(
            "secrets.openbao.path",
            "contains an unknown placeholder",
            right,
        );
    } else if !separates_names(&path) {
        let right = "separate them by / or :, which names never contain unescaped";
        let problem =
            "has two placeholders without a separator, so that two tenants could share a secret";
        checker.report("secrets.openbao.path", problem, right);
    }
    Some(OpenBao {
        address: address?,
        login: login?,
        mount,
        namespace: checker.check_text("secrets.openbao.namespace", raw.namespace.as_ref()),
        path,
    })
}

/// Whether each two placeholders are separated by a character that no name contains:
/// names have everything but letters, digits and `-._~` percent-encoded.
fn separates_names(template: &str) -> bool {
    let in_names = |c: char| c.is_ascii_alphanumeric() || "-._~%".contains(c);
    let mut between = template.split('}').map(|part| part.split('{').next());
    // Before the first placeholder and after the last one anything is allowed.
    between.next();
    let names = template.matches('{').count();
    let mut between = between.take(names.saturating_sub(1)).flatten();
    between.all(|text| text.chars().any(|c| !in_names(c)))
}

fn check_login(raw: &raw::OpenBao, checker: &mut Checker<'_>) -> Option<BaoLogin> {
    let says = |key: &str| checker.locations.says(&format!("secrets.openbao.{key}"));
    let right = "write token = \"${BAO_TOKEN}\", or role_id and secret_id";
    match (says("token"), says("role_id"), says("secret_id")) {
        (true, false, false) => {
            let token = raw.token.as_ref()?;
            let token = checker.check_local_secret("secrets.openbao.token", token, 1)?;
            Some(BaoLogin::Token(token))
        }
        (false, true, true) => {
            let role_id = checker.check_text("secrets.openbao.role_id", raw.role_id.as_ref());
            let secret_id = raw.secret_id.as_ref().and_then(|secret| {
                checker.check_local_secret("secrets.openbao.secret_id", secret, 1)
            });
            Some(BaoLogin::AppRole {
                role_id: role_id?,
                secret_id: secret_id?,
            })
        }
        (true, ..) => {
            checker.report(
                "secrets.openbao.token",
                "is given together with role_id or secret_id",
                right,
            );
            None
        }
        (false, ..) => {
            checker.report("secrets.openbao", "has no login", right);
            None
        }
    }
}

pub(super) fn check_upstreams(
    raw: &BTreeMap<String, raw::Upstream>,
    checker: &mut Checker<'_>,
) -> BTreeMap<Arc<str>, Upstream> {
    let upstreams = raw.iter().map(|(name, raw)| {
        let key = join("upstreams", name);
        checker.check_name(&key, name);
        (name.as_str().into(), check_upstream(&key, raw, checker))
    });
    upstreams.collect()
}

fn check_upstream(key: &str, raw: &raw::Upstream, checker: &mut Checker<'_>) -> Upstream {
    let url_key = format!("{key}.url");
    let url = raw.url.clone().unwrap_or_default();
    if raw.url.is_some()
        && let Err(error) = url::origin(&url, &["http", "https", "h2c"])
    {
        let right = match error {
            url::UrlError::Scheme => {
                "begin with http://, https://, or h2c:// for HTTP/2 without TLS"
            }
            url::UrlError::Path => "write only scheme, host and port: requests keep their own path",
            other => other.right(),
        };
        checker.report(&url_key, error.to_string(), right);
    }
    let usual = Upstream::new(&url);
    let mut time = |name: &str, raw, usual| {
        checker.check_time(&format!("{key}.{name}"), raw, usual, &SOME_TIME)
    };
    let timeout = time("timeout", raw.timeout.as_ref(), usual.timeout);
    let connect_timeout = time(
        "connect_timeout",
        raw.connect_timeout.as_ref(),
        usual.connect_timeout,
    );
    let idle_timeout = time(
        "idle_timeout",
        raw.idle_timeout.as_ref(),
        usual.idle_timeout,
    );
    let host_key = format!("{key}.host");
    let host = raw
        .host
        .as_ref()
        .and_then(|host| match host.parse::<Authority>() {
            Ok(authority) if !host.contains('@') => {
                checker.check_value(&host_key, authority.as_str())
            }
            _ => {
                let problem = format!("{} is not a host", checker.shown(&host_key, host));
                checker.report(
                    &host_key,
                    problem,
                    "write \"api.example.com\", with a port if need be",
                );
                None
            }
        });
    Upstream {
        timeout,
        connect_timeout,
        idle_timeout,
        idle_max: count_or(raw.idle_max, usual.idle_max),
        connections_max: count_or(raw.connections_max, usual.connections_max),
        host,
        tls: check_upstream_tls(key, raw, checker),
        signing_secret: check_signing_secret(key, raw, checker),
        url,
    }
}

fn check_upstream_tls(key: &str, raw: &raw::Upstream, checker: &mut Checker<'_>) -> Tls {
    let Some(tls) = &raw.tls else {
        return Tls::default();
    };
    let key = format!("{key}.tls");
    let by_tls = |url: &String| url.starts_with("https://");
    if raw.url.as_ref().is_some_and(|url| !by_tls(url)) {
        let right = "write an https:// URL, or remove tls";
        checker.report(&key, "the upstream does not use TLS", right);
    }
    let says = |name: &str| checker.locations.says(&format!("{key}.{name}"));
    if says("cert") != says("key") {
        let right = "write both, or neither";
        checker.report(&key, "cert and key must be given together", right);
    }
    Tls {
        ca: checker.check_file(&format!("{key}.ca"), tls.ca.as_ref()),
        cert: checker.check_file(&format!("{key}.cert"), tls.cert.as_ref()),
        key: checker.check_file(&format!("{key}.key"), tls.key.as_ref()),
        server_name: checker.check_text(&format!("{key}.server_name"), tls.server_name.as_ref()),
    }
}

/// Checks a secret as in Standard Webhooks; one in OpenBao is checked when it is read.
fn check_signing_secret(
    key: &str,
    raw: &raw::Upstream,
    checker: &mut Checker<'_>,
) -> Option<SecretValue> {
    let key = format!("{key}.signing_secret");
    let secret = checker.check_secret(&key, raw.signing_secret.as_ref()?, SECRET_LENGTH_MIN)?;
    if let SecretValue::Given(text) = &secret
        && let Err(error) = Provider::StandardWebhooks.key(text.expose_secret())
    {
        let right = "write whsec_ and base64, such as `openssl rand -base64 32` gives";
        checker.report(&key, error.to_string(), right);
        return None;
    }
    Some(secret)
}

pub(super) fn check_limits(raw: &raw::Limits, checker: &mut Checker<'_>) -> Limits {
    let usual = Limits::default();
    let deadline = Duration::from_millis(1)..=Duration::from_secs(60);
    let deadline = checker.check_time(
        "limits.store_deadline",
        raw.store_deadline.as_ref(),
        usual.store_deadline,
        &deadline,
    );
    Limits {
        connections: count_or(raw.connections, usual.connections),
        streams: raw.streams.unwrap_or(usual.streams),
        waiters_per_key: count_or(raw.waiters_per_key, usual.waiters_per_key),
        waiters_per_tenant: count_or(raw.waiters_per_tenant, usual.waiters_per_tenant),
        waiters: count_or(raw.waiters, usual.waiters),
        in_flight: count_or(raw.in_flight, usual.in_flight),
        in_flight_per_tenant: count_or(raw.in_flight_per_tenant, usual.in_flight_per_tenant),
        requests_per_tenant: raw.requests_per_tenant.as_ref().map(|rate| {
            let per_second = rate.per_second.unwrap_or(1);
            Rate {
                per_second,
                burst: rate.burst.unwrap_or(per_second),
            }
        }),
        buffered_bytes: checker.check_size(
            "limits.buffered_bytes",
            raw.buffered_bytes.as_ref(),
            usual.buffered_bytes,
        ),
        label_values: count_or(raw.label_values, usual.label_values),
        store_deadline: deadline,
    }
}

pub(super) fn check_telemetry(raw: &raw::Telemetry, checker: &mut Checker<'_>) -> Telemetry {
    let otlp = raw.otlp.as_ref().and_then(|raw| {
        let service = checker.check_text("telemetry.otlp.service", raw.service.as_ref());
        let endpoint = raw.endpoint.as_ref()?;
        checker.check_url("telemetry.otlp.endpoint", url::web(endpoint))?;
        Some(Otlp {
            endpoint: endpoint.clone(),
            service: service.unwrap_or_else(|| "onceward".to_owned()),
            sample: raw.sample.unwrap_or(1.0),
        })
    });
    Telemetry {
        keys: raw.keys.unwrap_or_default(),
        otlp,
    }
}

/// The configured count, or the default. The schema has checked its range.
pub(super) fn count_or(raw: Option<u32>, usual: usize) -> usize {
    raw.map_or(usual, |raw| usize::try_from(raw).unwrap_or(usize::MAX))
}

/// The indices of items that repeat an earlier one.
pub(super) fn find_repeated<T: Ord>(items: impl IntoIterator<Item = T>) -> Vec<usize> {
    let mut seen = BTreeSet::new();
    let items = items.into_iter().enumerate();
    items
        .filter_map(|(at, item)| (!seen.insert(item)).then_some(at))
        .collect()
}
