//! Checks routes: names, paths, policies, callers, keys, headers.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use http::header::{self, HeaderName};
use http::{HeaderValue, Method};
use onceward_core::caller::{Subject, SubjectKind};
use onceward_core::fingerprint::{Part, Selection};
use onceward_core::identity::Endpoint;
use onceward_http::fields;

use super::checker::{Checker, SOME_TIME};
use super::server::find_repeated;
use crate::config::source::join;
use crate::config::url;
use crate::config::{
    Access, Cors, DerivedKey, EndpointName, HeaderRules, KeyPart, METHODS, Origins, Policy, Route,
    SubjectPattern, raw,
};

/// The longest name of an endpoint.
const ENDPOINT_LENGTH_MAX: usize = 128;
/// The longest path of a route.
const PATH_LENGTH_MAX: usize = 1024;
/// How many parts a derived key may have.
const KEY_PARTS_MAX: usize = 32;

/// Checks every route. A wrong one stays in the list, so that the others keep their
/// indices.
pub(super) fn check_routes(
    raw: &[raw::Route],
    all: Option<&raw::Cors>,
    checker: &mut Checker<'_>,
) -> Vec<Route> {
    let all = all.map(|raw| Arc::new(check_cors("cors", raw, checker)));
    let routes = raw.iter().enumerate();
    routes
        .map(|(at, raw)| check_route(&format!("routes[{at}]"), raw, all.as_ref(), checker))
        .collect()
}

fn check_route(
    key: &str,
    raw: &raw::Route,
    all: Option<&Arc<Cors>>,
    checker: &mut Checker<'_>,
) -> Route {
    let at = |name: &str| format!("{key}.{name}");
    let endpoint = check_endpoint(&at("endpoint"), raw.endpoint.as_ref(), checker);
    let path = raw.path.clone().unwrap_or_default();
    let path = match raw.path.is_some() && !check_path(&at("path"), &path, checker) {
        true => String::new(),
        false => path,
    };
    let (keep, release) = (
        statuses(&raw.keep_statuses),
        statuses(&raw.release_statuses),
    );
    if let Some(both) = keep.intersection(&release).next() {
        let problem = format!("{both} is in keep_statuses and in release_statuses");
        checker.report(
            &at("release_statuses"),
            problem,
            "write it in one of the two lists",
        );
    }
    let limit = |name: &str, raw: Option<&_>, checker: &mut Checker<'_>| {
        raw.map(|raw| checker.check_size(&at(name), Some(raw), 1))
    };
    let timeout = raw.timeout.as_ref().map(|raw| {
        checker.check_time(
            &at("timeout"),
            Some(raw),
            Duration::from_millis(1),
            &SOME_TIME,
        )
    });
    let usual = Route::new(endpoint, &path, "");
    Route {
        methods: check_methods(&at("method"), raw.method.as_ref(), checker),
        upstream: raw.upstream.as_deref().unwrap_or_default().into(),
        policy: check_policy(&at("policy"), raw.policy, checker),
        class: raw.class.as_deref().unwrap_or(&usual.class).into(),
        scope: raw.scope.unwrap_or(usual.scope),
        access: check_access(key, raw, checker),
        key_format: raw.key_format.unwrap_or(usual.key_format),
        derived_key: check_derived_key(key, raw, checker),
        key_space: raw.key_space.map_or(usual.key_space, |word| word.0),
        forward_key: raw.forward_key.unwrap_or(usual.forward_key),
        fingerprint: check_fingerprint(&at("fingerprint"), raw.fingerprint.as_ref(), checker),
        keep_statuses: keep,
        release_statuses: release,
        duplicate_create: raw
            .duplicate_create
            .map_or(usual.duplicate_create, |word| word.0),
        joined: raw.joined.unwrap_or(usual.joined),
        body_limit: limit("body_limit", raw.body_limit.as_ref(), checker),
        reply_limit: limit("reply_limit", raw.reply_limit.as_ref(), checker),
        timeout,
        cors: match &raw.cors {
            Some(own) => Some(Arc::new(check_cors(&at("cors"), own, checker))),
            None => all.cloned(),
        },
        request_headers: check_header_rules(&at("request_headers"), &raw.request_headers, checker),
        response_headers: check_header_rules(
            &at("response_headers"),
            &raw.response_headers,
            checker,
        ),
        ..usual
    }
}

fn check_endpoint(key: &str, raw: Option<&String>, checker: &mut Checker<'_>) -> EndpointName {
    let Some(name) = raw else {
        return EndpointName::ByPath;
    };
    let letter = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
    let good = |part: &str| !part.is_empty() && part.chars().all(letter);
    let whole =
        name.len() <= ENDPOINT_LENGTH_MAX && name.contains('.') && name.split('.').all(good);
    if !whole {
        let problem = format!(
            "{} is not of the form service.handler",
            checker.shown(key, name)
        );
        let right = "write for example \"payments.create\", with the characters A-Z a-z 0-9 _ -";
        checker.report(key, problem, right);
        return EndpointName::ByPath;
    }
    EndpointName::Fixed(Endpoint::new(name))
}

fn check_methods(
    key: &str,
    raw: Option<&raw::OneOrMany>,
    checker: &mut Checker<'_>,
) -> Vec<Method> {
    let Some(raw) = raw else {
        return Vec::new();
    };
    let right = "write GET, HEAD, POST, PUT, PATCH, DELETE or OPTIONS";
    if raw.all().is_empty() {
        checker.report(
            key,
            "is empty",
            "write the methods, or remove the key for all",
        );
    }
    let mut methods: Vec<Method> = Vec::new();
    for text in raw.all() {
        let shown = checker.shown(key, text);
        match METHODS.iter().find(|method| method.as_str() == text) {
            Some(method) if methods.contains(method) => {
                checker.report(key, format!("{shown} is listed twice"), "write it once");
            }
            Some(method) => methods.push(method.clone()),
            None => checker.report(key, format!("{shown} is not a supported method"), right),
        }
    }
    methods
}

/// Checks a path: whole segments, unique names, `{*rest}` last.
fn check_path(key: &str, path: &str, checker: &mut Checker<'_>) -> bool {
    let problem = find_path_problem(path);
    if let Some(problem) = problem {
        let problem = format!("{} {problem}", checker.shown(key, path));
        let right =
            "write \"/api/v1/payments/{id}\", for example; {*rest} is allowed only at the end";
        checker.report(key, problem, right);
    }
    problem.is_none()
}

fn find_path_problem(path: &str) -> Option<&'static str> {
    let Some(inside) = path.strip_prefix('/') else {
        return Some("does not begin with /");
    };
    if path.len() > PATH_LENGTH_MAX {
        return Some("is longer than 1024 characters");
    }
    let mut names = BTreeSet::new();
    let count = inside.split('/').count();
    for (at, segment) in inside.split('/').enumerate() {
        let last = at + 1 == count;
        let name = segment
            .strip_prefix('{')
            .and_then(|rest| rest.strip_suffix('}'));
        match name {
            Some(name) => {
                let remainder = name.starts_with('*');
                let name = name.strip_prefix('*').unwrap_or(name);
                let letter = |c: char| c.is_ascii_alphanumeric() || c == '_';
                if name.is_empty() || !name.chars().all(letter) {
                    return Some("has an invalid name in braces");
                }
                if remainder && !last {
                    return Some("continues after {*rest}");
                }
                if !names.insert(name) {
                    return Some("has the same name twice");
                }
            }
            None if segment.contains(['{', '}']) => {
                return Some("has a {name} that is not a whole segment");
            }
            None if segment.is_empty() && !last => return Some("has an empty segment"),
            None if matches!(segment, "." | "..") => return Some("has a . or .. segment"),
            None if !segment.bytes().all(is_plain) => {
                return Some("has a character that is not allowed unescaped in a path");
            }
            None => {}
        }
    }
    None
}

/// Whether RFC 3986 allows a byte in a segment without an escape.
fn is_plain(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-._~!$&'()*+,;=:@".contains(&byte)
}

/// Checks the policy. REQUIRED_B is that of webhooks, which have no route.
fn check_policy(key: &str, raw: Option<Policy>, checker: &mut Checker<'_>) -> Option<Policy> {
    if raw == Some(Policy::RequiredB) {
        checker.report(
            key,
            "REQUIRED_B is the policy of webhooks, which are received at /api/v1/webhooks/{provider}/{webhook_id} without a route",
            "create a webhook with `onceward webhooks create`; for this route write \"REQUIRED_A\", or derived_key with an id from the request",
        );
        return None;
    }
    raw
}

fn check_access(key: &str, raw: &raw::Route, checker: &mut Checker<'_>) -> Access {
    let auth = format!("{key}.auth");
    let by = match &raw.auth {
        Some(raw::RouteAuth::Open(raw::OpenRoute::None)) => {
            for (name, said) in [("subjects", &raw.subjects), ("scopes", &raw.scopes)] {
                if !said.is_empty() {
                    let right = "remove it, or remove auth = \"none\"";
                    checker.report(
                        &format!("{key}.{name}"),
                        "has no effect, because callers of this route are not authenticated",
                        right,
                    );
                }
            }
            return Access::Anyone;
        }
        Some(raw::RouteAuth::By(by)) => by.as_slice(),
        None => &[],
    };
    if matches!(raw.auth, Some(raw::RouteAuth::By(_))) && by.is_empty() {
        let right = "write \"none\" to let every client call, or remove the key to let all authenticated callers call";
        checker.report(&auth, "is empty, so no request could be authorised", right);
    }
    let mut patterns = Vec::new();
    for (at, text) in raw.subjects.iter().enumerate() {
        let key = format!("{key}.subjects[{at}]");
        match parse_subject_pattern(text) {
            Some(pattern) => patterns.push(pattern),
            None => {
                let problem = format!("{} is not a subject", checker.shown(&key, text));
                let right = "write \"user:*\" or \"service:billing\"; the types are user, service, tenant_member and client";
                checker.report(&key, problem, right);
            }
        }
    }
    for (at, scope) in raw.scopes.iter().enumerate() {
        if scope.is_empty() || scope.contains(char::is_whitespace) {
            let key = format!("{key}.scopes[{at}]");
            let problem = format!("{} is not a scope", checker.shown(&key, scope));
            checker.report(&key, problem, "write one word per scope");
        }
    }
    Access::Callers {
        by: by.to_vec(),
        subjects: patterns,
        scopes: raw.scopes.clone(),
    }
}

fn parse_subject_pattern(text: &str) -> Option<SubjectPattern> {
    let (kind, id) = text.split_once(':')?;
    if id == "*" {
        // Only the type matters; it is parsed with an id that is always valid.
        let kind: SubjectKind = Subject::parse(&format!("{kind}:any")).ok()?.kind();
        return Some(SubjectPattern { kind, id: None });
    }
    let subject = Subject::parse(text).ok()?;
    Some(SubjectPattern {
        kind: subject.kind(),
        id: Some(subject.id().to_owned()),
    })
}

fn check_derived_key(
    route: &str,
    raw: &raw::Route,
    checker: &mut Checker<'_>,
) -> Option<DerivedKey> {
    let derived = raw.derived_key.as_ref()?;
    let key = format!("{route}.derived_key");
    if let Some(Policy::Prohibited | Policy::HandlerInternalC) = raw.policy {
        let right = "write policy = \"ACCEPTED\" or \"REQUIRED_A\", or remove derived_key";
        checker.report(&key, "the policy of this route ignores keys", right);
    }
    let window = format!("{key}.window");
    let window = checker.check_time(
        &window,
        derived.window.as_ref(),
        Duration::from_secs(60),
        &(Duration::from_secs(1)..=*SOME_TIME.end()),
    );
    let from = derived.from.as_deref()?;
    let key = format!("{key}.from");
    let mut parts = Vec::new();
    for (at, text) in from.iter().enumerate() {
        parts.extend(check_key_part(&format!("{key}[{at}]"), text, checker));
    }
    for at in find_repeated(from) {
        checker.report(&format!("{key}[{at}]"), "is listed twice", "write it once");
    }
    let of_request = |part: &KeyPart| !matches!(part, KeyPart::Caller | KeyPart::Endpoint);
    if parts.len() == from.len() && !parts.iter().any(of_request) {
        checker.report(
            &key,
            "contains no part of the request, so all requests of a caller would be one operation",
            "add a part that identifies the operation, such as \"/order/id\"",
        );
    }
    if from.len() > KEY_PARTS_MAX {
        checker.report(
            &key,
            "has more than 32 parts",
            "name only those that identify the operation",
        );
    }
    Some(DerivedKey { parts, window })
}

fn check_key_part(key: &str, text: &str, checker: &mut Checker<'_>) -> Option<KeyPart> {
    match text.split_once(':') {
        _ if text.starts_with('/') => checker.check_pointer(key, text).map(KeyPart::Pointer),
        None if text == "caller" => Some(KeyPart::Caller),
        None if text == "endpoint" => Some(KeyPart::Endpoint),
        None if text == "body" => Some(KeyPart::Body),
        Some(("header", name)) => checker.check_header(key, name).map(KeyPart::Header),
        Some(("query", name)) if !name.is_empty() => Some(KeyPart::Query(name.to_owned())),
        _ => {
            let problem = format!("{} is not a part of a request", checker.shown(key, text));
            let right = "write \"caller\", \"endpoint\", \"/order/id\", \"header:X-Order\", \"query:order\" or \"body\"";
            checker.report(key, problem, right);
            None
        }
    }
}

fn check_fingerprint(
    key: &str,
    raw: Option<&raw::Fingerprint>,
    checker: &mut Checker<'_>,
) -> Arc<Selection> {
    let Some(raw) = raw else {
        return Arc::default();
    };
    let mut parts = |name: &str, texts: &[String]| {
        let mut parts = Vec::new();
        for (at, text) in texts.iter().enumerate() {
            let key = format!("{key}.{name}[{at}]");
            match Part::parse(text) {
                Ok(Part::Header(_)) if name == "ignore" => {
                    let right = "remove it";
                    checker.report(&key, "headers are compared only if included", right);
                }
                Ok(part) => parts.push(part),
                Err(_) => {
                    let problem =
                        format!("{} is not a part of a request", checker.shown(&key, text));
                    let right = "write \"/order/id\", \"query:trace\" or \"header:X-Currency\"";
                    checker.report(&key, problem, right);
                }
            }
        }
        parts
    };
    let ignore = parts("ignore", &raw.ignore);
    let include = parts("include", &raw.include);
    if let Some(both) = include.iter().find(|part| ignore.contains(part)) {
        let problem = format!("{both} is in both ignore and include");
        checker.report(
            &format!("{key}.include"),
            problem,
            "write it in one of the two lists",
        );
    }
    Arc::new(Selection::new(ignore, include))
}

fn check_cors(key: &str, raw: &raw::Cors, checker: &mut Checker<'_>) -> Cors {
    let origins = raw.origins.clone().unwrap_or_default();
    let origins_key = format!("{key}.origins");
    let any = origins.iter().any(|origin| origin == "*");
    if raw.origins.is_some() && origins.is_empty() {
        let right = "list the origins, or remove cors";
        checker.report(&origins_key, "is empty, so no site could call", right);
    }
    if any && origins.len() > 1 {
        checker.report(
            &origins_key,
            "has origins besides \"*\"",
            "write one or the other",
        );
    }
    let credentials = raw.credentials.unwrap_or(false);
    if any && credentials {
        checker.report(
            &format!("{key}.credentials"),
            "browsers do not allow cookies for every origin",
            "list the origins, or write credentials = false",
        );
    }
    for (at, origin) in origins
        .iter()
        .enumerate()
        .filter(|(_, origin)| *origin != "*")
    {
        let good = url::origin(origin, &["http", "https"]).is_ok() && !origin.ends_with('/');
        if !good || origin.chars().any(|c| c.is_ascii_uppercase()) {
            let key = format!("{origins_key}[{at}]");
            let problem = format!("{} is not an origin", checker.shown(&key, origin));
            let right = "write scheme and host in lower case without a trailing slash: \"https://app.example.com\"";
            checker.report(&key, problem, right);
        }
    }
    let mut names = |name: &str, texts: &[String]| {
        let texts = texts.iter().enumerate();
        let names = texts
            .filter_map(|(at, text)| checker.check_header(&format!("{key}.{name}[{at}]"), text));
        names.collect::<Vec<_>>()
    };
    let headers = names("headers", &raw.headers);
    let expose = names("expose", &raw.expose);
    Cors {
        origins: match any {
            true => Origins::Any,
            false => Origins::These(origins),
        },
        headers,
        expose,
        credentials,
        max_age: checker.check_time(
            &format!("{key}.max_age"),
            raw.max_age.as_ref(),
            Duration::from_secs(600),
            &(Duration::ZERO..=Duration::from_secs(24 * 60 * 60)),
        ),
    }
}

fn check_header_rules(key: &str, raw: &raw::HeaderRules, checker: &mut Checker<'_>) -> HeaderRules {
    let mut rules = HeaderRules::default();
    for (at, text) in raw.remove.iter().enumerate() {
        rules.remove.extend(check_changeable_header(
            &format!("{key}.remove[{at}]"),
            text,
            checker,
        ));
    }
    for (text, value) in &raw.set {
        let key = join(&format!("{key}.set"), text);
        let name = check_changeable_header(&key, text, checker);
        let value: Option<HeaderValue> = checker.check_value(&key, value);
        let (Some(name), Some(value)) = (name, value) else {
            continue;
        };
        if rules.set.iter().any(|(other, _)| *other == name) {
            checker.report(&key, "is already set in another case", "write it once");
        }
        rules.set.push((name, value));
    }
    rules
}

/// Checks that a rule may change a header.
fn check_changeable_header(key: &str, text: &str, checker: &mut Checker<'_>) -> Option<HeaderName> {
    let name = checker.check_header(key, text)?;
    let (problem, right) = match classify_header(&name) {
        Forbidden::No => return Some(name),
        Forbidden::Host => (
            "cannot be changed by a route",
            "set host in the upstream instead",
        ),
        Forbidden::Framing => (
            "belongs to the connection and is managed by the gateway",
            "remove it",
        ),
        Forbidden::Ours => ("is set by the gateway itself", "remove it"),
    };
    checker.report(key, format!("{name} {problem}"), right);
    None
}

enum Forbidden {
    No,
    Host,
    Framing,
    Ours,
}

fn classify_header(name: &HeaderName) -> Forbidden {
    const FRAMING: [HeaderName; 8] = [
        header::CONNECTION,
        header::CONTENT_LENGTH,
        header::EXPECT,
        header::TE,
        header::TRAILER,
        header::TRANSFER_ENCODING,
        header::UPGRADE,
        header::PROXY_AUTHENTICATE,
    ];
    let text = name.as_str();
    let ours = fields::is_from_gateway_only(name)
        || text.starts_with("idempotency-")
        || text.starts_with("idempotent-")
        || text.starts_with("x-forwarded-")
        || text == "forwarded";
    match name {
        name if *name == header::HOST => Forbidden::Host,
        name if FRAMING.contains(name) => Forbidden::Framing,
        _ if matches!(text, "keep-alive" | "proxy-connection") => Forbidden::Framing,
        _ if ours => Forbidden::Ours,
        _ => Forbidden::No,
    }
}

fn statuses(raw: &[u16]) -> BTreeSet<u16> {
    raw.iter().copied().collect()
}
