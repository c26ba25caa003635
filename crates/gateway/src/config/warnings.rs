//! Warnings: settings that work but are probably not intended.
//!
//! Each rule comes with a better setting. Rules are about safety and about settings
//! without effect, never about taste: warnings that are often wrong are ignored.

use std::collections::BTreeSet;
use std::iter;
use std::time::Duration;

use http::Method;
use onceward_core::class::{
    Class, Expiry, InFlight, OnError, OnMismatch, OnStoreFailure, OnUnknown,
};
use onceward_core::classify::{Meaning, classify};
use onceward_webhooks::Tolerance;
use secrecy::ExposeSecret as _;

use super::check::consistency::{methods, token_key};
use super::mistake::{Location, Warning};
use super::source::{Locations, join};
use super::units::Time;
use super::{
    Access, ClaimSource, Config, EndpointName, KeyPart, KnownBy, Policy, Route, Scope, SecretValue,
    StoreKind, url,
};

const DAY: Duration = Duration::from_secs(24 * 60 * 60);
/// How long interactive clients retry.
const INTERACTIVE_WINDOW: Duration = DAY;
/// How long the most persistent webhook provider retries.
const WEBHOOK_WINDOW: Duration = DAY.saturating_mul(3);
/// How long the settlement of a payment takes.
const SETTLEMENT_WINDOW: Duration = DAY.saturating_mul(30);
/// The timeout of most clients.
const CLIENT_TIMEOUT: Duration = Duration::from_secs(60);
/// A shorter token can be guessed.
const TOKEN_LENGTH_MIN: usize = 16;
/// The prefixes of names of routes that move money.
const MONEY: [&str; 13] = [
    "payment",
    "charge",
    "transfer",
    "refund",
    "payout",
    "withdraw",
    "deposit",
    "invoice",
    "checkout",
    "purchase",
    "subscription",
    "billing",
    "order",
];
/// Whole words in names of routes that move money. They are not prefixes: `pay` would
/// match `payload` too.
const MONEY_WORDS: [&str; 3] = ["pay", "pays", "buy"];

/// Returns every warning about a configuration, by line.
pub(super) fn find(config: &Config, locations: &Locations) -> Vec<Warning> {
    let mut warnings = WarningCollector {
        config,
        locations,
        found: Vec::new(),
    };
    warnings.warn_about_server();
    warnings.warn_about_callers();
    warnings.warn_about_classes();
    warnings.warn_about_upstreams();
    warnings.warn_about_routes();
    warnings.warn_about_webhooks();
    let mut found = warnings.found;
    found.sort_by_key(|warning| {
        let variable = warning.location.variable().map(ToOwned::to_owned);
        (
            variable,
            warning.location.line_and_column(),
            warning.key.clone(),
        )
    });
    found
}

struct WarningCollector<'a> {
    config: &'a Config,
    locations: &'a Locations,
    found: Vec<Warning>,
}

impl WarningCollector<'_> {
    fn warn(&mut self, key: &str, problem: impl Into<String>, better: impl Into<String>) {
        let location: Location = self.locations.of(key);
        self.found.push(Warning {
            location,
            key: key.to_owned(),
            problem: problem.into(),
            better: better.into(),
        });
    }

    fn warn_about_server(&mut self) {
        let config = self.config;
        for (at, token) in config.server.admin_tokens.iter().enumerate() {
            let SecretValue::Given(secret) = &token.token else {
                continue;
            };
            let length = secret.expose_secret().chars().count();
            if length < TOKEN_LENGTH_MIN {
                let key = token_key(self.locations, at);
                let problem = format!("a token of {length} characters can be guessed");
                self.warn(
                    &key,
                    problem,
                    "use 16 or more random characters: openssl rand -hex 32",
                );
            }
        }
        if config.store_kind() == Some(StoreKind::Memory) {
            self.warn(
                "store.url",
                "a restart loses every key, so retries of earlier requests run again",
                "embedded:./onceward-data survives a restart",
            );
        }
    }

    fn warn_about_callers(&mut self) {
        let auth = &self.config.auth;
        if is_open(self.config) {
            self.warn(
                "auth",
                "callers are not authenticated: all of them are one caller, distinguished only by the credentials they send",
                "add [auth.api_keys], or [[auth.jwt]] for the tokens of your issuer",
            );
        }
        let mut seen = BTreeSet::new();
        for (at, jwt) in auth.jwt.iter().enumerate() {
            let (ClaimSource::Fixed(tenant), project) = (&jwt.tenant, &jwt.project) else {
                continue;
            };
            let project = match project {
                Some(ClaimSource::Fixed(project)) => Some(project),
                Some(ClaimSource::Pointer(_)) => continue,
                None => None,
            };
            if !seen.insert((tenant, project, jwt.subject_type.as_str())) {
                self.warn(
                    &format!("auth.jwt[{at}].tenant"),
                    "another issuer has the same tenant and project, so the same subject id of both is one caller",
                    "give each issuer its own tenant or project",
                );
            }
        }
    }

    fn warn_about_classes(&mut self) {
        let config = self.config;
        for class in config.classes.values() {
            let key = join("classes", &class.name);
            let at = |name: &str| format!("{key}.{name}");
            let used = config.routes.iter().any(|route| route.class == class.name);
            // Webhooks use a class without a route.
            let of_webhooks = class.name == config.webhooks.class;
            if !used && self.locations.says(&key) && !of_webhooks {
                self.warn(
                    &key,
                    "no route uses this class",
                    "name it in a route, or remove it",
                );
            }
            let protects = |route: &Route| route.class == class.name && takes_keys(route);
            let protects = config.routes.iter().any(protects);
            let (retries, window) = match of_webhooks {
                true => (
                    "providers of webhooks retry for up to 3 days",
                    WEBHOOK_WINDOW,
                ),
                false => ("callers are assumed to retry for 24h", INTERACTIVE_WINDOW),
            };
            if class.retention < window && (protects || of_webhooks) {
                let problem = format!(
                    "{retries}, but a reply is kept for {}",
                    Time::of(class.retention).0
                );
                let better = format!("write {} or longer", Time::of(window).0);
                self.warn(&at("retention"), problem, better);
            }
            if !protects {
                continue;
            }
            if class.mismatch == OnMismatch::Replay {
                self.warn(
                    &at("mismatch"),
                    "a different request with the same key receives a reply that is not its own",
                    "mismatch = \"422\" tells the client of its mistake",
                );
            }
            if class.in_flight == InFlight::Wait && class.wait > CLIENT_TIMEOUT {
                let problem = format!(
                    "most clients give up after 60s, but a duplicate waits {}",
                    Time::of(class.wait).0
                );
                self.warn(&at("wait"), problem, "write 30s, or in_flight = \"accept\"");
            }
            if class.expiry == Expiry::Lazy && !class.keep_expired.is_zero() {
                self.warn(
                    &at("expiry"),
                    "has no effect together with keep_expired, which makes expiry strict",
                    "remove one of the two",
                );
            }
            if class.reconcile_url.is_some() && class.on_unknown != OnUnknown::Reconcile {
                self.warn(
                    &at("reconcile_url"),
                    "is never used",
                    "write on_unknown = \"reconcile\", or remove the URL",
                );
            }
        }
    }

    fn warn_about_upstreams(&mut self) {
        let config = self.config;
        // JWTs, and the credentials of unauthenticated callers, are forwarded.
        let tokens_pass = !config.auth.jwt.is_empty() || is_open(config);
        for (name, upstream) in &config.upstreams {
            let key = join("upstreams", name);
            // A webhook names its upstream when it is created.
            let by_webhooks = self.locations.says("webhooks");
            let used = config.routes.iter().any(|route| route.upstream == *name);
            if !used && !by_webhooks {
                let better = "name it in a route, or remove it";
                self.warn(&key, "no route uses this upstream", better);
            }
            if tokens_pass && is_plain(&upstream.url) {
                let better = "write https://, so that callers' tokens cannot be read in transit";
                self.warn(&format!("{key}.url"), UNENCRYPTED, better);
            }
        }
    }

    fn warn_about_webhooks(&mut self) {
        let config = self.config;
        if config.webhooks.tolerance == Tolerance::Off {
            self.warn(
                "webhooks.tolerance",
                "a captured event is accepted again once its id is forgotten",
                "write the tolerated clock difference, such as 5m",
            );
        }
        for (name, provider) in &config.webhooks.providers {
            if provider.binds_url() && config.server.public_url.is_none() {
                self.warn(
                    &format!("{}.signed", join("webhooks.providers", name)),
                    "the URL is signed, but server.public_url is missing: no webhook of this provider can be created",
                    "set server.public_url to the URL that the provider uses",
                );
            }
        }
        let (all, share) = (
            config.webhooks.deliveries,
            config.webhooks.deliveries_per_upstream,
        );
        if config.upstreams.len() > 1 && share.saturating_mul(2) >= all {
            let more = format!("deliveries = {} or more", share.saturating_mul(2) + 1);
            self.warn(
                "webhooks.deliveries_per_upstream",
                format!(
                    "as many again can wait, so one slow upstream could occupy all {all} deliveries"
                ),
                match all.saturating_sub(1) / 2 {
                    0 => format!("write {more}"),
                    less => format!("write {less}, or {more}"),
                },
            );
        }
        let Some(openbao) = &config.secrets.openbao else {
            return;
        };
        for placeholder in ["{tenant}", "{project}", "{provider}"] {
            if !openbao.path.contains(placeholder) {
                self.warn(
                    "secrets.openbao.path",
                    format!(
                        "{placeholder} is not in it, so webhooks that differ in it share their secrets"
                    ),
                    "write webhooks/{tenant}/{project}/{provider}, for example",
                );
            }
        }
    }

    fn warn_about_routes(&mut self) {
        let config = self.config;
        if config.routes.is_empty() && !self.locations.says("webhooks") {
            let better = "add [[routes]] with endpoint, method, path and upstream";
            self.warn(
                "routes",
                "there are no routes: every request receives 404",
                better,
            );
        }
        for (at, route) in config.routes.iter().enumerate() {
            let key = format!("routes[{at}]");
            self.warn_about_unreachable(at, route, &key);
            if !takes_keys(route) {
                continue;
            }
            self.warn_about_idempotent_method(route, &key);
            if route.access == Access::Anyone {
                self.warn(
                    &format!("{key}.auth"),
                    "callers of this route are not authenticated: all of them are one caller, distinguished only by the credentials they send",
                    "remove auth, so that keys belong to authenticated callers",
                );
            }
            let Some(class) = config.classes.get(&route.class) else {
                continue;
            };
            self.warn_about_derived_key(route, class, &key);
            self.warn_about_joined(route, class, &key);
            self.warn_about_money(route, class, &key);
        }
    }

    /// Warns of a required key where the method is idempotent anyway.
    fn warn_about_idempotent_method(&mut self, route: &Route, key: &str) {
        if route.policy != Some(Policy::RequiredA) {
            return;
        }
        let harmless = ["GET", "HEAD", "PUT", "DELETE", "OPTIONS"];
        let found: Vec<_> = methods(route)
            .filter(|one| harmless.contains(one))
            .collect();
        if !found.is_empty() {
            let problem = format!(
                "a key is required for {}, which can be retried without one",
                found.join(", ")
            );
            let better =
                "name the methods that create or add, such as POST; or write policy = \"ACCEPTED\"";
            self.warn(&format!("{key}.policy"), problem, better);
        }
    }

    fn warn_about_derived_key(&mut self, route: &Route, class: &Class, key: &str) {
        let Some(derived) = &route.derived_key else {
            return;
        };
        if derived.parts.contains(&KeyPart::Body) {
            self.warn(
                &format!("{key}.derived_key.from"),
                "two equal orders look like one operation, and a retry with a new timestamp like two",
                "name the fields that identify the operation, such as \"/order/id\"",
            );
        }
        if derived.window > class.retention {
            let problem = format!(
                "within {} the same parts are one operation, but class {} keeps its reply for {}",
                Time::of(derived.window).0,
                class.name,
                Time::of(class.retention).0
            );
            let better = "write a shorter window, or a class with a longer retention";
            self.warn(&format!("{key}.derived_key.window"), problem, better);
        }
    }

    /// Warns of settings of a class that have no effect on a joined route.
    fn warn_about_joined(&mut self, route: &Route, class: &Class, key: &str) {
        if !route.joined {
            return;
        }
        let key = format!("{key}.joined");
        if class.on_unknown == OnUnknown::Reconcile {
            let problem = format!(
                "class {} reconciles unknown operations, but a joined route has none: what is not committed has not run",
                class.name
            );
            let better = "name a class with on_unknown = \"hold\"";
            self.warn(&key, problem, better);
        }
        if class.on_store_failure == OnStoreFailure::Bypass {
            let problem = format!(
                "class {} bypasses an unavailable store, but a joined route cannot: there would be no record to commit to",
                class.name
            );
            let better = "name a class with on_store_failure = \"reject\"";
            self.warn(&key, problem, better);
        }
    }

    /// Warns of settings that could lose or double a payment.
    fn warn_about_money(&mut self, route: &Route, class: &Class, route_key: &str) {
        if !moves_money(route) {
            return;
        }
        let key = format!("{route_key}.class");
        if class.remember < SETTLEMENT_WINDOW {
            let problem = format!(
                "this route looks like money, but class {} remembers a key for {}",
                class.name,
                Time::of(class.remember).0
            );
            let better = match &*class.name {
                "financial" => {
                    "write remember = \"30d\" in [classes.financial]: settlement takes as long"
                }
                _ => {
                    "write class = \"financial\", which remembers for 30d: settlement takes as long"
                }
            };
            self.warn(&key, problem, better);
        }
        // Where the application commits the outcome, an error means that it did not.
        let released = released_errors(route, class);
        if !released.is_empty() && !route.joined {
            let problem = format!(
                "this route looks like money, but it runs again after a {}, though it may have been charged before the error",
                released.join(" or ")
            );
            let better = format!(
                "remove {} from release_statuses, so that its class decides",
                released.join(" and ")
            );
            let key = format!("{route_key}.release_statuses");
            self.warn(&key, problem, better);
        }
        let runs_again = class.on_error == OnError::Release
            && !route.joined
            && !route.release_statuses.contains(&500);
        if runs_again && !route.keep_statuses.contains(&500) {
            let problem = format!(
                "this route looks like money, but class {} runs it again after a 500, though it may have been charged before the error",
                class.name
            );
            let better = match &*class.name {
                "financial" => "write on_error = \"unknown\" in [classes.financial]",
                _ => "write class = \"financial\", or on_error = \"unknown\" in its class",
            };
            self.warn(&key, problem, better);
        }
        if class.on_store_failure == OnStoreFailure::Bypass && !route.joined {
            let problem = format!(
                "this route looks like money, but class {} forwards it unprotected while the store is unavailable",
                class.name
            );
            let better = "write on_store_failure = \"reject\" in its class: a retry is safer than a second charge";
            self.warn(&key, problem, better);
        }
        if class.on_unknown == OnUnknown::Retry && !route.joined {
            let problem = format!(
                "this route looks like money, but class {} runs an operation again that may have run",
                class.name
            );
            let better = "write on_unknown = \"hold\" or \"reconcile\" in its class";
            self.warn(&key, problem, better);
        }
    }

    /// Warns of a route that no request can reach.
    fn warn_about_unreachable(&mut self, at: usize, route: &Route, key: &str) {
        self.warn_about_shadowed(at, route, key);
        let Access::Callers { by, scopes, .. } = &route.access else {
            return;
        };
        let auth = &self.config.auth;
        let possible: Vec<KnownBy> = [
            (KnownBy::ApiKey, auth.api_keys.is_some()),
            (KnownBy::Jwt, !auth.jwt.is_empty()),
            (KnownBy::Unkey, auth.unkey.is_some()),
            (KnownBy::Scheduler, auth.scheduler.is_some()),
        ]
        .into_iter()
        .filter(|(one, there)| *there && (by.is_empty() || by.contains(one)))
        .map(|(one, _)| one)
        .collect();
        if possible.is_empty() {
            // Without any [auth] every client may call, unless the route names a method.
            if !by.is_empty() {
                let better = "add one of them to [auth], or remove auth";
                let problem = "none of these authentication methods is configured, so no request can be authorised";
                self.warn(&format!("{key}.auth"), problem, better);
            }
            return;
        }
        let tokens_alone = possible == [KnownBy::Jwt];
        let scheduler_alone = possible == [KnownBy::Scheduler];
        let no_scopes = tokens_alone && auth.jwt.iter().all(|jwt| jwt.scopes.is_none());
        if !scopes.is_empty() && (no_scopes || scheduler_alone) {
            self.warn(
                &format!("{key}.scopes"),
                "no caller can have a scope, so no request can be authorised",
                "write scopes = \"/scope\" in [[auth.jwt]], or remove the scopes of the route",
            );
        }
        let no_projects = tokens_alone && auth.jwt.iter().all(|jwt| jwt.project.is_none());
        if route.scope == Scope::Project && no_projects {
            self.warn(
                &format!("{key}.scope"),
                "no token has a project, but this route requires one, so no request can be authorised",
                "write project = \"/project_id\" in [[auth.jwt]], or scope = \"tenant\" here",
            );
        }
    }

    /// Warns of a route that an earlier one hides: `{*rest}` also matches an empty
    /// remainder.
    fn warn_about_shadowed(&mut self, at: usize, route: &Route, key: &str) {
        let before = self.config.routes.iter().take(at).enumerate();
        let earlier = before.filter_map(|(other, earlier)| {
            let whole = earlier.path.find("{*")?;
            let same = earlier.path[..whole] == route.path;
            same.then_some((other, earlier))
        });
        let hidden = earlier.into_iter().find(|(_, earlier)| {
            let theirs: BTreeSet<_> = methods(earlier).collect();
            methods(route).all(|method| theirs.contains(method))
        });
        if let Some((other, earlier)) = hidden {
            let problem = format!(
                "routes[{other}] with {} matches first, so no request reaches this route",
                earlier.path
            );
            self.warn(&format!("{key}.path"), problem, "move this route before it");
        }
    }
}

const UNENCRYPTED: &str = "is sent unencrypted over a network";

fn is_open(config: &Config) -> bool {
    let auth = &config.auth;
    auth.api_keys.is_none()
        && auth.jwt.is_empty()
        && auth.unkey.is_none()
        && auth.scheduler.is_none()
}

/// Whether requests to the address can be read in transit.
fn is_plain(address: &str) -> bool {
    !address.starts_with("https://")
        && address
            .parse()
            .is_ok_and(|address| !url::is_loopback(url::host(&address)))
}

/// Whether a request to the route may be protected by a key.
pub(super) fn takes_keys(route: &Route) -> bool {
    let by_method = methods(route).any(|method| {
        let method = Method::from_bytes(method.as_bytes()).unwrap_or_default();
        matches!(
            route.policy_for(&method),
            Some(Policy::RequiredA | Policy::RequiredB | Policy::Accepted)
        )
    });
    by_method || route.derived_key.is_some()
}

/// The server errors that the route itself releases: 500, and each that its class would not
/// release.
fn released_errors(route: &Route, class: &Class) -> Vec<String> {
    let errors = route.release_statuses.range(500..=599);
    let by_route =
        |status: u16| status == 500 || classify(status, None, class.on_error) != Meaning::Release;
    errors
        .filter(|status| by_route(**status))
        .map(ToString::to_string)
        .collect()
}

fn moves_money(route: &Route) -> bool {
    let name = match &route.endpoint {
        EndpointName::Fixed(endpoint) => endpoint.as_str(),
        EndpointName::ByPath => "",
    };
    let words = name.split(['.', '-', '_']);
    let words = words.chain(route.path.split(['/', '-', '_', '.']));
    // Whole words too: `checkOut` is one.
    let words = words.flat_map(|word| iter::once(word).chain(split_at_case(word)));
    let like_money = |word: &str| {
        let word = word.to_ascii_lowercase();
        MONEY_WORDS.contains(&word.as_str()) || MONEY.iter().any(|money| word.starts_with(money))
    };
    &*route.class == "financial" || words.into_iter().any(like_money)
}

/// The parts of a word in camelCase: `create` and `Payment`, `ACH` and `Transfer`. The name of a
/// path's parameter is not split: `{lastOrderId}` does not say what the route does.
fn split_at_case(word: &str) -> Vec<&str> {
    if word.starts_with('{') {
        return Vec::new();
    }
    let letters = word.as_bytes();
    let begins = |at: usize| {
        let after_lower = !letters[at - 1].is_ascii_uppercase();
        let before_lower = letters.get(at + 1).is_some_and(u8::is_ascii_lowercase);
        letters[at].is_ascii_uppercase() && (after_lower || before_lower)
    };
    let mut parts = Vec::new();
    let mut start = 0;
    for at in (1..letters.len()).filter(|at| begins(*at)) {
        parts.push(&word[start..at]);
        start = at;
    }
    parts.push(&word[start..]);
    parts
}
