//! The configuration, as the file has it and as the program uses it.
//!
//! The file is read twice: `raw` is what it says, `check` makes the types of
//! this module from it and reports every mistake at once. Values of these types
//! are valid, so the rest of the gateway does not check them again.
//!
//! The steps: `source` reads the text and the environment into a tree with the
//! location of each value, `schema` validates the tree against the JSON Schema of
//! `raw`, `check` checks the values one by one, `check::consistency` checks them
//! against each other, and `warnings` reports settings that work but are probably
//! not intended. `words` has the enums that `raw` and this module share.

mod check;
pub mod class;
pub mod mistake;
mod raw;
mod schema;
mod source;
mod store;
pub mod units;
mod url;
mod warnings;
mod webhooks;
mod words;

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderName, HeaderValue, Method};
use ipnet::IpNet;
use onceward_core::caller::SubjectKind;
use onceward_core::class::Class;
use onceward_core::fingerprint::Selection;
use onceward_core::identity::{Endpoint, KeySpace};
use onceward_http::rules::DuplicateCreate;
use onceward_stores::Settings;
use secrecy::{ExposeSecret as _, SecretString};

pub use crate::listen::tls::{ClientAuth, TlsFiles as ServerTls};

pub use self::check::{Loaded, load, parse};
pub(crate) use self::class::find_short_lease;
pub use self::class::{ClassSettings, build_class};
pub use self::mistake::{Location, Mistake, Warning};
pub(crate) use self::schema::nearest;
pub use self::schema::schema;
pub use self::store::StoreKind;
pub use self::webhooks::Webhooks;
pub(crate) use self::webhooks::path_problem;
pub use self::words::{
    Choice, Deliver, ForwardKey, KeyFormat, KnownBy, LoggedKeys, Policy, Role, SameBytes, Scope,
    Word,
};

/// A checked configuration.
#[derive(Clone, Debug)]
pub struct Config {
    /// The listeners, and settings for every request.
    pub server: Server,
    /// Where operations are kept.
    pub store: Settings,
    /// The gateway's own secret, and the service that holds other secrets.
    pub secrets: Secrets,
    /// Authentication of callers.
    pub auth: Auth,
    /// Retention classes by name; the three built-in ones are always there.
    pub classes: BTreeMap<Arc<str>, Class>,
    /// Upstreams, by name.
    pub upstreams: BTreeMap<Arc<str>, Upstream>,
    /// The routes, in the order of the file.
    pub routes: Vec<Route>,
    /// Webhooks of providers.
    pub webhooks: Webhooks,
    /// Limits.
    pub limits: Limits,
    /// Logs and traces.
    pub telemetry: Telemetry,
}

impl Config {
    /// The kind of the store; `None` for a URL that names no store.
    pub fn store_kind(&self) -> Option<StoreKind> {
        StoreKind::of(&self.store.url).ok()
    }

    /// The configuration of a gateway that protects one upstream, without a file.
    pub fn unconfigured(upstream: &str) -> Self {
        let classes = [Class::interactive(), Class::webhook(), Class::financial()];
        Self {
            server: Server::default(),
            store: Settings::at("embedded:./onceward-data"),
            secrets: Secrets::default(),
            auth: Auth::default(),
            classes: classes.map(|class| (class.name.clone(), class)).into(),
            upstreams: [("default".into(), Upstream::new(upstream))].into(),
            routes: vec![Route::new(EndpointName::ByPath, "/{*rest}", "default")],
            webhooks: Webhooks {
                upstream: Some("default".into()),
                ..Webhooks::default()
            },
            limits: Limits::default(),
            telemetry: Telemetry::default(),
        }
    }
}

/// The listeners, and settings for every request.
#[derive(Clone, Debug)]
pub struct Server {
    /// The address for requests.
    pub listen: String,
    /// The address for operators.
    pub admin: String,
    /// The tokens for the admin API; empty only on loopback.
    pub admin_tokens: Vec<AdminToken>,
    /// The URL at which clients reach this gateway, without a trailing slash.
    pub public_url: Option<String>,
    /// The largest body of a protected request, in bytes.
    pub body_limit: usize,
    /// The largest reply that is kept, in bytes.
    pub reply_limit: usize,
    /// TLS for requests.
    pub tls: Option<ServerTls>,
    /// Proxies whose `X-Forwarded-*` headers are trusted.
    pub trusted_proxies: Vec<IpNet>,
    /// Whether trusted proxies send the PROXY protocol.
    pub proxy_protocol: bool,
    /// The time limit for a request's head, and for an idle connection.
    pub head_deadline: Duration,
    /// The time limit for the body of a protected request, and for a pause in a
    /// body that streams.
    pub body_deadline: Duration,
    /// The time limit for a client that does not read its response.
    pub write_deadline: Duration,
    /// How long the gateway waits for running operations when it stops.
    pub drain: Duration,
    /// The number of threads that serve requests; `None` is one per core.
    pub threads: Option<NonZeroUsize>,
}

impl Default for Server {
    fn default() -> Self {
        Self {
            listen: "127.0.0.1:8080".to_owned(),
            admin: "127.0.0.1:8081".to_owned(),
            admin_tokens: Vec::new(),
            public_url: None,
            body_limit: 1 << 20,
            reply_limit: 1 << 20,
            tls: None,
            trusted_proxies: Vec::new(),
            proxy_protocol: false,
            head_deadline: Duration::from_secs(30),
            body_deadline: Duration::from_secs(30),
            write_deadline: Duration::from_secs(30),
            drain: Duration::from_secs(30),
            threads: None,
        }
    }
}

/// A token for the admin API.
#[derive(Clone, Debug)]
pub struct AdminToken {
    /// The operator's name in the audit log.
    pub name: String,
    /// The operator's role.
    pub role: Role,
    /// The token.
    pub token: SecretValue,
}

/// A secret, or its location.
#[derive(Clone, Debug)]
pub enum SecretValue {
    /// The secret itself, from the configuration, the environment or a separate file.
    Given(SecretString),
    /// A field of a secret in OpenBao.
    OpenBao {
        /// The secret's path below the mount.
        path: String,
        /// The field of the secret.
        field: String,
    },
}

/// Not in constant time: only values of one configuration file are compared.
impl PartialEq for SecretValue {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Given(one), Self::Given(other)) => one.expose_secret() == other.expose_secret(),
            (
                Self::OpenBao { path, field },
                Self::OpenBao {
                    path: other,
                    field: of,
                },
            ) => (path, field) == (other, of),
            _ => false,
        }
    }
}

impl Eq for SecretValue {}

/// The gateway's own secret, and the service that holds other secrets.
#[derive(Clone, Debug, Default)]
pub struct Secrets {
    /// Keys hashes and fingerprints, and seals stored secrets. Generated at the
    /// first start with an embedded store.
    pub key: Option<SecretString>,
    /// The service that holds secrets that the file only names.
    pub openbao: Option<OpenBao>,
}

/// OpenBao or Vault, with a KV store of version 2.
#[derive(Clone, Debug)]
pub struct OpenBao {
    /// Its URL.
    pub address: String,
    /// The login.
    pub login: BaoLogin,
    /// The mount of the KV store.
    pub mount: String,
    /// The namespace.
    pub namespace: Option<String>,
    /// The path of webhooks' secrets: `webhooks/{tenant}/{project}/{provider}`.
    pub path: String,
}

/// The login to OpenBao.
#[derive(Clone, Debug)]
pub enum BaoLogin {
    /// A token.
    Token(SecretString),
    /// An AppRole.
    AppRole {
        /// Its id.
        role_id: String,
        /// Its secret id.
        secret_id: SecretString,
    },
}

/// Authentication of callers. Without any, every client may call, as one caller.
#[derive(Clone, Debug, Default)]
pub struct Auth {
    /// API keys of this gateway.
    pub api_keys: Option<ApiKeys>,
    /// JWTs of these issuers.
    pub jwt: Vec<Jwt>,
    /// API keys of Unkey.
    pub unkey: Option<Unkey>,
    /// A scheduler that signs its requests.
    pub scheduler: Option<Scheduler>,
}

impl Auth {
    /// Whether callers are authenticated. Otherwise every client is the same caller.
    pub fn knows_callers(&self) -> bool {
        self.api_keys.is_some()
            || !self.jwt.is_empty()
            || self.unkey.is_some()
            || self.scheduler.is_some()
    }
}

/// API keys of this gateway. There are no settings yet.
#[derive(Clone, Debug, Default)]
pub struct ApiKeys {}

/// JWTs of one issuer.
#[derive(Clone, Debug)]
pub struct Jwt {
    /// The value of `iss`.
    pub issuer: String,
    /// The values of `aud`, of which one must match.
    pub audience: Vec<String>,
    /// The issuer's keys.
    pub keys: JwksSource,
    /// The allowed signature algorithms; all of them asymmetric.
    pub algorithms: Vec<jsonwebtoken::Algorithm>,
    /// The source of the tenant.
    pub tenant: ClaimSource,
    /// The source of the project; tokens without one may only use routes with a wider scope.
    pub project: Option<ClaimSource>,
    /// The source of the subject's id.
    pub subject: ClaimSource,
    /// The subject's type.
    pub subject_type: SubjectKind,
    /// The pointer to the scopes: a list, or a string with spaces.
    pub scopes: Option<String>,
    /// The tolerated difference to the issuer's clock.
    pub leeway: Duration,
}

/// The source of an issuer's keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JwksSource {
    /// A URL.
    Url(String),
    /// A file.
    File(PathBuf),
}

/// The source of a caller's name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClaimSource {
    /// A JSON Pointer into the claims.
    Pointer(String),
    /// A fixed name for all tokens.
    Fixed(String),
}

/// API keys of Unkey.
#[derive(Clone, Debug)]
pub struct Unkey {
    /// Its URL.
    pub url: String,
    /// The root key that verifies callers' keys.
    pub root_key: SecretValue,
    /// The root key that verifies webhook ids.
    pub webhook_root_key: Option<SecretValue>,
    /// How long an answer is cached; under a minute.
    pub cache: Duration,
    /// The time limit for a request.
    pub deadline: Duration,
}

/// A scheduler that signs its requests.
#[derive(Clone, Debug)]
pub struct Scheduler {
    /// Its secrets; several during a rotation.
    pub secrets: Vec<SecretValue>,
    /// The tolerated difference to its clock, in both directions.
    pub tolerance: Duration,
}

/// An upstream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Upstream {
    /// `http://`, `https://` or `h2c://`, with host and port.
    pub url: String,
    /// The time limit for a response.
    pub timeout: Duration,
    /// The time limit for a new connection.
    pub connect_timeout: Duration,
    /// How long an idle connection is kept.
    pub idle_timeout: Duration,
    /// The largest number of idle connections.
    pub idle_max: usize,
    /// The largest number of connections.
    pub connections_max: usize,
    /// The Host header to send; `None` sends the client's own.
    pub host: Option<HeaderValue>,
    /// TLS settings.
    pub tls: crate::upstream::Tls,
    /// The secret that signs events delivered to it, `whsec_…`; `None` derives one
    /// from the gateway's key.
    pub signing_secret: Option<SecretValue>,
}

impl Upstream {
    /// An upstream at this URL, with default settings.
    pub fn new(url: &str) -> Self {
        let usual = crate::upstream::UpstreamLimits::default();
        Self {
            url: url.to_owned(),
            timeout: Duration::from_secs(30),
            connect_timeout: usual.connect_timeout,
            idle_timeout: usual.idle_timeout,
            idle_max: usual.idle_max,
            connections_max: 4096,
            host: None,
            tls: crate::upstream::Tls::default(),
            signing_secret: None,
        }
    }
}

/// The methods that a route may name. Requests with another method are served
/// only by routes that name none.
pub(crate) static METHODS: [Method; 7] = [
    Method::GET,
    Method::HEAD,
    Method::POST,
    Method::PUT,
    Method::PATCH,
    Method::DELETE,
    Method::OPTIONS,
];

/// A route.
#[derive(Clone, Debug)]
pub struct Route {
    /// The name of its operations.
    pub endpoint: EndpointName,
    /// The methods; all where empty.
    pub methods: Vec<Method>,
    /// Its path: `{name}` is one segment, `{*rest}` the remainder.
    pub path: String,
    /// The upstream of its requests.
    pub upstream: Arc<str>,
    /// What a key means here; decided by the method where `None`.
    pub policy: Option<Policy>,
    /// The retention class.
    pub class: Arc<str>,
    /// Whose keys its keys are.
    pub scope: Scope,
    /// The callers that may call.
    pub access: Access,
    /// The format of keys.
    pub key_format: KeyFormat,
    /// How a key is derived for a request without one.
    pub derived_key: Option<DerivedKey>,
    /// Where a key is unique.
    pub key_space: KeySpace,
    /// The key that the upstream receives.
    pub forward_key: ForwardKey,
    /// The parts of a request that are compared.
    pub fingerprint: Arc<Selection>,
    /// Statuses that are kept, instead of the default.
    pub keep_statuses: BTreeSet<u16>,
    /// Statuses that release the key, instead of the default.
    pub release_statuses: BTreeSet<u16>,
    /// The status of a replayed 201.
    pub duplicate_create: DuplicateCreate,
    /// The upstream commits the outcome itself, in one transaction with its rows.
    pub joined: bool,
    /// The largest request body, where it is not the server's.
    pub body_limit: Option<usize>,
    /// The largest kept reply, where it is not the server's.
    pub reply_limit: Option<usize>,
    /// The time limit for a response, where it is not the upstream's.
    pub timeout: Option<Duration>,
    /// CORS.
    pub cors: Option<Arc<Cors>>,
    /// Changes to the headers of requests.
    pub request_headers: HeaderRules,
    /// Changes to the headers of responses.
    pub response_headers: HeaderRules,
}

impl Route {
    /// A route with default settings.
    pub fn new(endpoint: EndpointName, path: &str, upstream: &str) -> Self {
        Self {
            endpoint,
            methods: Vec::new(),
            path: path.to_owned(),
            upstream: upstream.into(),
            policy: None,
            class: "interactive".into(),
            scope: Scope::Project,
            access: Access::callers(),
            key_format: KeyFormat::Any,
            derived_key: None,
            key_space: KeySpace::Endpoint,
            forward_key: ForwardKey::Namespaced,
            fingerprint: Arc::default(),
            keep_statuses: BTreeSet::new(),
            release_statuses: BTreeSet::new(),
            duplicate_create: DuplicateCreate::Same,
            joined: false,
            body_limit: None,
            reply_limit: None,
            timeout: None,
            cors: None,
            request_headers: HeaderRules::default(),
            response_headers: HeaderRules::default(),
        }
    }

    /// The methods that it names, or all that a route may name.
    pub(crate) fn served_methods(&self) -> &[Method] {
        match self.methods.as_slice() {
            [] => &METHODS,
            methods => methods,
        }
    }

    /// The policy for a request with this method. A route with a wider scope than a
    /// project protects no request by default: administrators confirm rather than
    /// retry.
    pub fn policy_for(&self, method: &Method) -> Option<Policy> {
        match self.policy {
            Some(policy) => Some(policy),
            None if self.scope != Scope::Project => Some(Policy::Prohibited),
            None if method.is_safe() => None,
            None if matches!(*method, Method::POST | Method::PATCH) => Some(Policy::Accepted),
            None => None,
        }
    }
}

/// The name of a route's operations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EndpointName {
    /// A fixed name.
    Fixed(Endpoint),
    /// Method and path, without a configuration file.
    ByPath,
}

/// The callers that may call a route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Access {
    /// Every client, as one caller; its credentials are part of the fingerprint.
    Anyone,
    /// Authenticated callers that fulfil all of this.
    Callers {
        /// The allowed methods; all where empty.
        by: Vec<KnownBy>,
        /// The allowed subjects; all where empty.
        subjects: Vec<SubjectPattern>,
        /// The required scopes.
        scopes: Vec<String>,
    },
}

impl Access {
    /// All authenticated callers.
    pub fn callers() -> Self {
        Self::Callers {
            by: Vec::new(),
            subjects: Vec::new(),
            scopes: Vec::new(),
        }
    }
}

/// A pattern of subjects: `user:*`, or `service:billing`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubjectPattern {
    /// The type.
    pub kind: SubjectKind,
    /// The id; any where `None`.
    pub id: Option<String>,
}

/// A key derived from parts of the request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DerivedKey {
    /// The parts, of which at least one is of the request.
    pub parts: Vec<KeyPart>,
    /// How long requests with the same parts are the same operation.
    pub window: Duration,
}

/// A part of a derived key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeyPart {
    /// The caller.
    Caller,
    /// The endpoint.
    Endpoint,
    /// A value of the JSON body.
    Pointer(String),
    /// A header.
    Header(HeaderName),
    /// A parameter of the query.
    Query(String),
    /// The whole body.
    Body,
}

/// Pages of other sites that may call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cors {
    /// The allowed origins.
    pub origins: Origins,
    /// Headers that pages may send, besides the gateway's own.
    pub headers: Vec<HeaderName>,
    /// Headers that pages may read, besides the gateway's own.
    pub expose: Vec<HeaderName>,
    /// Whether cookies are allowed.
    pub credentials: bool,
    /// How long a browser may cache the answer.
    pub max_age: Duration,
}

/// The allowed origins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origins {
    /// All.
    Any,
    /// These.
    These(Vec<String>),
}

/// Changes to headers. The gateway's own headers and framing headers are excluded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HeaderRules {
    /// Removed first.
    pub remove: Vec<HeaderName>,
    /// Set, replacing existing ones.
    pub set: Vec<(HeaderName, HeaderValue)>,
}

/// Limits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Client connections.
    pub connections: usize,
    /// Concurrent requests on one HTTP/2 connection.
    pub streams: u32,
    /// Waiting requests per operation.
    pub waiters_per_key: usize,
    /// Waiting requests per tenant.
    pub waiters_per_tenant: usize,
    /// Waiting requests in total.
    pub waiters: usize,
    /// Running operations.
    pub in_flight: usize,
    /// Running operations per tenant.
    pub in_flight_per_tenant: usize,
    /// The request rate of one tenant.
    pub requests_per_tenant: Option<Rate>,
    /// Buffered bytes of request bodies.
    pub buffered_bytes: usize,
    /// Tenants and projects with their own metrics labels; the rest are `other`.
    pub label_values: usize,
    /// The time limit for one step of the store.
    pub store_deadline: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        let engine = onceward_core::engine::Limits::default();
        Self {
            connections: 20_000,
            streams: 256,
            waiters_per_key: engine.waiters_per_key,
            waiters_per_tenant: engine.waiters_per_tenant,
            waiters: engine.waiters,
            in_flight: 50_000,
            in_flight_per_tenant: 10_000,
            requests_per_tenant: None,
            buffered_bytes: 1 << 30,
            label_values: 100,
            store_deadline: engine.store_deadline,
        }
    }
}

/// A request rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// The sustained rate.
    pub per_second: u32,
    /// The largest burst.
    pub burst: u32,
}

/// Logs and traces.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Telemetry {
    /// How keys are logged.
    pub keys: LoggedKeys,
    /// The collector of traces.
    pub otlp: Option<Otlp>,
}

/// The collector of traces.
#[derive(Clone, Debug, PartialEq)]
pub struct Otlp {
    /// The collector's URL, OTLP over HTTP.
    pub endpoint: String,
    /// The name of this service in traces.
    pub service: String,
    /// The sampled fraction of traces that begin here, from 0 to 1.
    pub sample: f64,
}
