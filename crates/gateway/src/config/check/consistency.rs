//! Checks of settings against each other: references to classes and upstreams,
//! routes that conflict, leases against timeouts.
//!
//! A value that is wrong by itself has already been reported. It is empty here and
//! conflicts with no other.

use std::collections::BTreeMap;

use http::Method;
use matchit::{InsertError, Router};

use super::Checker;
use crate::config::class::{ClassUser, find_conflict, find_slowest_user};
use crate::config::schema::nearest;
use crate::config::source::{Locations, join};
use crate::config::units::Time;
use crate::config::warnings::takes_keys;
use crate::config::{Config, EndpointName, ForwardKey, Route, SecretValue, StoreKind};

pub(super) fn check_consistency(config: &Config, checker: &mut Checker<'_>) {
    check_names(config, checker);
    check_endpoints(config, checker);
    check_paths(config, checker);
    check_leases(config, checker);
    check_secrets(config, checker);
    check_unkey(config, checker);
    check_shared_key(config, checker);
    check_joined(config, checker);
    check_bodies(config, checker);
}

/// Checks that referenced classes and upstreams exist.
fn check_names(config: &Config, checker: &mut Checker<'_>) {
    let routes = config.routes.iter().enumerate();
    let routes = routes.flat_map(|(at, route)| {
        [
            (format!("routes[{at}].class"), "classes", &route.class),
            (
                format!("routes[{at}].upstream"),
                "upstreams",
                &route.upstream,
            ),
        ]
    });
    let webhooks = &config.webhooks;
    let class = ("webhooks.class".to_owned(), "classes", &webhooks.class);
    let upstream = webhooks.upstream.iter();
    let upstream = upstream.map(|name| ("webhooks.upstream".to_owned(), "upstreams", name));
    for (key, table, name) in routes.chain([class]).chain(upstream) {
        let known: Vec<&str> = match table {
            "classes" => config.classes.keys().map(AsRef::as_ref).collect(),
            _ => config.upstreams.keys().map(AsRef::as_ref).collect(),
        };
        // A section with a mistake exists too.
        let there = checker.locations.says(&join(table, name)) || known.contains(&name.as_ref());
        if there || name.is_empty() {
            continue;
        }
        let problem = format!(
            "[{table}.{}] does not exist",
            checker.locations.written(&key, name)
        );
        let right = match nearest(name, &known) {
            (Some(close), _) => format!("did you mean {close:?}?"),
            (None, known) if known.is_empty() => "add it".to_owned(),
            (None, known) => format!("add it, or write one of {}", known.join(", ")),
        };
        checker.report(&key, problem, right);
    }
}

/// Checks that endpoints are unique. An endpoint is a part of an operation's identity: two routes that share one
/// would share their keys.
fn check_endpoints(config: &Config, checker: &mut Checker<'_>) {
    let mut first: BTreeMap<&str, usize> = BTreeMap::new();
    for (at, route) in config.routes.iter().enumerate() {
        let EndpointName::Fixed(endpoint) = &route.endpoint else {
            continue;
        };
        match first.get(endpoint.as_str()) {
            None => drop(first.insert(endpoint.as_str(), at)),
            Some(other) => {
                let problem = format!("\"{endpoint}\" is already the endpoint of routes[{other}]");
                let right = "give each route its own endpoint; one route can have several methods";
                checker.report(&format!("routes[{at}].endpoint"), problem, right);
            }
        }
    }
}

/// Checks that no two routes have the same method and path, and that no two patterns
/// are ambiguous.
fn check_paths(config: &Config, checker: &mut Checker<'_>) {
    let mut tables: BTreeMap<&str, Router<usize>> = BTreeMap::new();
    for (at, route) in config.routes.iter().enumerate() {
        if route.path.is_empty() {
            continue;
        }
        let met = methods(route).find_map(|method| {
            let table = tables.entry(method).or_default();
            let error = table.insert(route.path.as_str(), at).err()?;
            Some((method, error))
        });
        let Some((method, error)) = met else { continue };
        let key = format!("routes[{at}].path");
        let right = "remove one of the two, or give them different methods or paths";
        match error {
            InsertError::Conflict { with } => {
                let other = config.routes[..at]
                    .iter()
                    .position(|other| other.path == with);
                let other = other.unwrap_or_default();
                let problem = match with == route.path {
                    true => format!("routes[{other}] already serves {method} {with}"),
                    false => format!(
                        "conflicts with {with} of routes[{other}], which also serves {method}"
                    ),
                };
                checker.report(&key, problem, right);
            }
            error => checker.report(&key, error.to_string(), right),
        }
    }
}

/// The methods of a route; a route without methods has all of them.
pub(in crate::config) fn methods(route: &Route) -> impl Iterator<Item = &str> {
    const ALL: [&str; 7] = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"];
    let all = ALL.into_iter().filter(|_| route.methods.is_empty());
    route.methods.iter().map(Method::as_str).chain(all)
}

/// Checks that no lease is shorter than the upstream's timeout. The mistake is reported at
/// the one of the two that the file sets.
fn check_leases(config: &Config, checker: &mut Checker<'_>) {
    for class in config.classes.values() {
        let Some((user, timeout)) = find_slowest_user(class, config) else {
            continue;
        };
        if class.lease >= timeout {
            continue;
        }
        let (lease, timeout) = (Time::of(class.lease).0, Time::of(timeout).0);
        let lease_key = format!("{}.lease", join("classes", &class.name));
        if checker.locations.says(&lease_key) {
            if let Some(mistake) = find_conflict(class, config) {
                checker.report(&lease_key, mistake.problem, mistake.right);
            }
            continue;
        }
        let upstream = match user {
            ClassUser::Route(at) => config.routes.get(at).map(|route| &route.upstream),
            ClassUser::Webhooks => config.webhooks.upstream.as_ref(),
        };
        let upstream = upstream.map_or("", AsRef::as_ref);
        let own = format!("{user}.timeout");
        let key = match checker.locations.says(&own) {
            true => own,
            false => format!("{}.timeout", join("upstreams", upstream)),
        };
        let problem = format!(
            "{timeout} is longer than the lease of class {}, {lease}, so a running request could be treated as lost",
            class.name
        );
        let right = format!(
            "write {lease} or less, or lease = \"{timeout}\" in [classes.{}]",
            class.name
        );
        checker.report(&key, problem, right);
    }
}

/// Checks that OpenBao is configured if a secret is in it.
fn check_secrets(config: &Config, checker: &mut Checker<'_>) {
    if config.secrets.openbao.is_some() || checker.locations.says("secrets.openbao") {
        return;
    }
    let auth = &config.auth;
    let tokens = config.server.admin_tokens.iter().enumerate();
    let tokens = tokens.map(|(at, token)| (token_key(checker.locations, at), &token.token));
    let unkey = auth.unkey.iter().flat_map(|unkey| {
        let root = ("auth.unkey.root_key".to_owned(), &unkey.root_key);
        let webhooks = unkey.webhook_root_key.iter();
        let webhooks = webhooks.map(|key| ("auth.unkey.webhook_root_key".to_owned(), key));
        std::iter::once(root).chain(webhooks)
    });
    let scheduler = auth
        .scheduler
        .iter()
        .flat_map(|scheduler| &scheduler.secrets);
    let scheduler = scheduler.map(|secret| ("auth.scheduler".to_owned(), secret));
    let signing = config.upstreams.iter().filter_map(|(name, upstream)| {
        let key = format!("{}.signing_secret", join("upstreams", name));
        Some((key, upstream.signing_secret.as_ref()?))
    });
    let all: Vec<_> = tokens
        .chain(unkey)
        .chain(scheduler)
        .chain(signing)
        .collect();
    for (key, secret) in all {
        if matches!(secret, SecretValue::OpenBao { .. }) {
            let right = "add [secrets.openbao] with its address and a login";
            checker.report(&key, "is in OpenBao, which is not configured", right);
        }
    }
}

/// Checks that Unkey is used safely: webhook ids must not be valid as callers' keys, and their secrets are in
/// OpenBao, because Unkey stores none.
fn check_unkey(config: &Config, checker: &mut Checker<'_>) {
    let key = "auth.unkey.webhook_root_key";
    let Some(unkey) = &config.auth.unkey else {
        return;
    };
    let Some(root_key) = &unkey.webhook_root_key else {
        return;
    };
    if *root_key == unkey.root_key {
        checker.report(
            key,
            "is also the root key of callers, so a webhook id would be an API key",
            "create a root key that verifies webhook ids only",
        );
    }
    if config.secrets.openbao.is_none() && !checker.locations.says("secrets.openbao") {
        checker.report(
            key,
            "requires OpenBao, which holds the secrets of these webhooks",
            "add [secrets.openbao] with its address and a login, or remove the key",
        );
    }
}

/// Checks that a shared store has a configured secret: gateways with different secrets
/// would treat each other's retries as different requests, and refuse its API keys.
fn check_shared_key(config: &Config, checker: &mut Checker<'_>) {
    let shared = config.store_kind().is_some_and(StoreKind::is_shared);
    if shared && config.secrets.key.is_none() && !checker.locations.says("secrets.key") {
        checker.report(
            "store.url",
            "gateways that share a store need the same secrets.key, and none is given",
            "write key = \"${ONCEWARD_KEY}\" in [secrets], 16 or more random characters: openssl rand -hex 32",
        );
    }
}

/// Checks that a joined route has a store in the application's database, and requests that
/// have a record.
fn check_joined(config: &Config, checker: &mut Checker<'_>) {
    let routes = config.routes.iter().enumerate();
    for (at, route) in routes.filter(|(_, route)| route.joined) {
        let key = format!("routes[{at}].joined");
        if config.store_kind() != Some(StoreKind::Postgres) {
            checker.report(
                &key,
                "requires PostgreSQL, because the application commits to the store's database",
                "write url = \"postgres://…\" in [store], the application's own database; or remove joined",
            );
        }
        if !takes_keys(route) {
            checker.report(
                &key,
                "no request of this route has a key, so there is no record to share",
                "write policy = \"REQUIRED_A\" or \"ACCEPTED\", or remove joined",
            );
        }
        if route.forward_key == ForwardKey::None {
            let right = "remove it, or write \"namespaced\" or \"raw\"";
            let key = format!("routes[{at}].forward_key");
            checker.report(&key, "a joined application needs the key", right);
        }
    }
}

/// The key of an operator's token by its index: `admin_token` is the first, and not
/// in the list.
pub(in crate::config) fn token_key(locations: &Locations, at: usize) -> String {
    let alone = locations.says("server.admin_token");
    match at.checked_sub(usize::from(alone)) {
        None => "server.admin_token".to_owned(),
        Some(at) => format!("server.admin_tokens[{at}].token"),
    }
}

/// The largest allowed body must fit into the buffer.
fn check_bodies(config: &Config, checker: &mut Checker<'_>) {
    let room = config.limits.buffered_bytes;
    let server = ("server.body_limit".to_owned(), config.server.body_limit);
    let routes = config.routes.iter().enumerate();
    let routes = routes
        .filter_map(|(at, route)| Some((format!("routes[{at}].body_limit"), route.body_limit?)));
    for (key, limit) in std::iter::once(server).chain(routes) {
        if limit > room {
            let said = checker.locations.says(&key);
            let key = if said { &key } else { "limits.buffered_bytes" };
            let problem = "a body within body_limit is larger than limits.buffered_bytes";
            checker.report(
                key,
                problem,
                "lower body_limit, or raise limits.buffered_bytes",
            );
        }
    }
}
