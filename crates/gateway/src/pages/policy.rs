//! The policy of every route, as JSON.
//!
//! An entry describes the methods of a route that share a policy. A route without a
//! configured policy treats its methods differently and has several entries, so that
//! a client finds exactly one for its method and path.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use http::Method;
use onceward_core::class::{Class, InFlight, OnError};
use onceward_core::identity::Endpoint;
use onceward_http::rules::DuplicateCreate;
use serde::{Serialize, Serializer};

use super::article::{Article, ProblemSummary};
use crate::config::{Config, DerivedKey, EndpointName, KeyFormat, KeyPart, Policy, Route};
use crate::webhooks::ingest::WEBHOOKS;

/// The valid keys. `t-` is the prefix of namespaced keys, which the gateway makes.
const KEY_PATTERN: &str = "^(?!t-)[A-Za-z0-9._~-]{1,255}$";

/// The whole document.
#[derive(Serialize)]
pub(super) struct PolicyDocument {
    header: &'static str,
    pub(super) key_pattern: &'static str,
    pub(super) routes: Vec<RouteEntry>,
    /// The URLs of an operation by its id.
    pub(super) operations: OperationUrls,
    problems: Vec<ProblemSummary>,
}

/// The methods of a route that share a policy.
#[derive(Serialize)]
pub(super) struct RouteEntry {
    pub(super) endpoint: String,
    pub(super) methods: Vec<String>,
    pub(super) path: String,
    /// `None`: the request is forwarded unprotected.
    #[serde(serialize_with = "policy_word")]
    pub(super) policy: Option<Policy>,
    /// Only for protected requests.
    #[serde(flatten)]
    pub(super) terms: Option<Terms>,
}

/// How requests are protected.
#[derive(Serialize)]
pub(super) struct Terms {
    pub(super) class: String,
    pub(super) retention_seconds: u64,
    pub(super) remember_seconds: u64,
    #[serde(serialize_with = "in_flight_word")]
    pub(super) in_flight: InFlight,
    pub(super) wait_seconds: u64,
    pub(super) key_format: &'static str,
    pub(super) key_space: &'static str,
    pub(super) derived_key: Option<Derived>,
    /// What a retry gets after an answered 500 or another 5xx.
    #[serde(serialize_with = "on_error_word")]
    pub(super) on_error: OnError,
    pub(super) keep_statuses: BTreeSet<u16>,
    pub(super) release_statuses: BTreeSet<u16>,
    pub(super) duplicate_create: u16,
    /// The URLs of an operation by its key, if clients can recover it.
    pub(super) recovery: Option<OperationUrls>,
}

/// How the gateway derives a key for a request without one.
#[derive(Serialize)]
pub(super) struct Derived {
    pub(super) parts: Vec<String>,
    pub(super) window_seconds: u64,
}

/// The URLs of an operation.
#[derive(Serialize)]
pub(super) struct OperationUrls {
    pub(super) reply: String,
    pub(super) output: String,
    pub(super) status: String,
}

impl OperationUrls {
    fn beneath(reply: String) -> Self {
        Self {
            output: format!("{reply}/output"),
            status: format!("{reply}/status"),
            reply,
        }
    }
}

impl PolicyDocument {
    pub(super) fn new(
        config: &Config,
        classes: &BTreeMap<Arc<str>, Arc<Class>>,
        site: &str,
    ) -> Self {
        let routes = config.routes.iter();
        Self {
            header: "Idempotency-Key",
            key_pattern: KEY_PATTERN,
            routes: routes
                .flat_map(|route| entries(route, classes.get(&route.class), site))
                .chain([webhooks(config, classes, site)])
                .collect(),
            operations: OperationUrls::beneath(format!(
                "{site}/api/v1/operations/{{operation_id}}"
            )),
            problems: Article::all()
                .map(|article| article.summary(site))
                .collect(),
        }
    }
}

/// The entry of the webhooks. The providers' event ids are the keys.
fn webhooks(config: &Config, classes: &BTreeMap<Arc<str>, Arc<Class>>, site: &str) -> RouteEntry {
    let naming = EndpointName::Fixed(Endpoint::new("webhooks.{provider}"));
    let path = format!("{WEBHOOKS}{{provider}}/{{webhook_id}}");
    let route = Route::new(naming, &path, "");
    let class = classes.get(&config.webhooks.class);
    let terms = class.map(|class| Terms {
        // An event cannot be recovered by its key, because a provider is not a caller.
        recovery: None,
        ..Terms::new(&route, class, site)
    });
    RouteEntry {
        endpoint: "webhooks.{provider}".to_owned(),
        methods: vec![Method::POST.to_string()],
        path,
        policy: Some(Policy::RequiredB),
        terms,
    }
}

/// The entries of a route, one per policy, the protected ones first.
fn entries(route: &Route, class: Option<&Arc<Class>>, site: &str) -> Vec<RouteEntry> {
    let mut groups: Vec<(Option<Policy>, Vec<&Method>)> = Vec::new();
    for method in route.served_methods() {
        let policy = route.policy_for(method);
        match groups.iter_mut().find(|(other, _)| *other == policy) {
            Some((_, group)) => group.push(method),
            None => groups.push((policy, vec![method])),
        }
    }
    groups.sort_by_key(|(policy, _)| policy.is_none());
    let entry = |(policy, methods): (Option<Policy>, Vec<&Method>)| RouteEntry {
        endpoint: match &route.endpoint {
            EndpointName::Fixed(endpoint) => endpoint.to_string(),
            EndpointName::ByPath => "{METHOD} {path}".to_owned(),
        },
        methods: methods.into_iter().map(Method::to_string).collect(),
        path: route.path.clone(),
        policy,
        terms: match policy {
            Some(Policy::RequiredA | Policy::RequiredB | Policy::Accepted) => {
                class.map(|class| Terms::new(route, class, site))
            }
            Some(Policy::HandlerInternalC | Policy::Prohibited) | None => None,
        },
    };
    groups.into_iter().map(entry).collect()
}

impl Terms {
    fn new(route: &Route, class: &Class, site: &str) -> Self {
        let path = route.path.trim_end_matches('/');
        Self {
            class: class.name.to_string(),
            retention_seconds: seconds(class.retention),
            remember_seconds: seconds(class.remember.max(class.retention)),
            in_flight: class.in_flight,
            wait_seconds: seconds(class.wait),
            key_format: match route.key_format {
                KeyFormat::Any => "any",
                KeyFormat::Uuid => "uuid",
                KeyFormat::Ulid => "ulid",
            },
            key_space: route.key_space.as_str(),
            derived_key: route.derived_key.as_ref().map(Derived::new),
            on_error: match route.joined {
                // An error means that the application committed nothing.
                true => OnError::Release,
                false => class.on_error,
            },
            keep_statuses: route.keep_statuses.clone(),
            release_statuses: route.release_statuses.clone(),
            duplicate_create: match route.duplicate_create {
                DuplicateCreate::Same => 201,
                DuplicateCreate::Ok => 200,
            },
            recovery: Some(OperationUrls::beneath(format!(
                "{site}{path}/by-idempotency-key/{{key}}"
            ))),
        }
    }
}

impl Derived {
    fn new(key: &DerivedKey) -> Self {
        let word = |part: &KeyPart| match part {
            KeyPart::Caller => "caller".to_owned(),
            KeyPart::Endpoint => "endpoint".to_owned(),
            KeyPart::Pointer(pointer) => pointer.clone(),
            KeyPart::Header(name) => format!("header:{name}"),
            KeyPart::Query(name) => format!("query:{name}"),
            KeyPart::Body => "body".to_owned(),
        };
        Self {
            parts: key.parts.iter().map(word).collect(),
            window_seconds: seconds(key.window),
        }
    }
}

fn policy_word<S: Serializer>(policy: &Option<Policy>, to: S) -> Result<S::Ok, S::Error> {
    policy.map(Policy::as_str).serialize(to)
}

fn in_flight_word<S: Serializer>(in_flight: &InFlight, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(in_flight.as_str())
}

fn on_error_word<S: Serializer>(on_error: &OnError, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(on_error.as_str())
}

/// Whole seconds, rounded down, so that no more is promised than holds.
fn seconds(duration: Duration) -> u64 {
    duration.as_secs()
}
