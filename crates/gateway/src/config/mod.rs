//! What a gateway is to do, checked.
//!
//! The file is read twice: `raw` is what it says, `check` makes these types of
//! it and reports every mistake at once. Nothing here can be wrong in itself,
//! so nobody behind this door asks again.
//!
//! On the way from text to types: `source` reads the text and the environment
//! into a tree that knows where each value stands, `schema` compares the tree
//! with the schema of `raw`, `check` judges the values one by one, `check::consistency`
//! judges what must go together, and `warnings` names what works but is probably
//! not meant.

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
pub use self::class::{ClassSettings, class, fits};
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

/// All of it.
#[derive(Clone, Debug)]
pub struct Config {
    /// The listeners and what holds for every request.
    pub server: Server,
    /// Where operations are kept.
    pub store: Settings,
    /// The gateway's own secret, and where others are.
    pub secrets: Secrets,
    /// Who may call.
    pub auth: Auth,
    /// Retention classes by name; the three built-in ones are always there.
    pub classes: BTreeMap<Arc<str>, Class>,
    /// Where requests go, by name.
    pub upstreams: BTreeMap<Arc<str>, Upstream>,
    /// What is served, in the order of the file.
    pub routes: Vec<Route>,
    /// What providers send.
    pub webhooks: Webhooks,
    /// How much of everything.
    pub limits: Limits,
    /// What is told of it.
    pub telemetry: Telemetry,
}

impl Config {
    /// What kind of store it is; `None` for a URL that names none, which does
    /// not open.
    pub fn store_kind(&self) -> Option<StoreKind> {
        StoreKind::of(&self.store.url).ok()
    }

    /// A gateway that protects one upstream and was told nothing else.
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

/// The listeners and what holds for every request.
#[derive(Clone, Debug)]
pub struct Server {
    /// Where requests come in.
    pub listen: String,
    /// Where operators look.
    pub admin: String,
    /// Who may use the admin API; empty only on loopback.
    pub admin_tokens: Vec<AdminToken>,
    /// Where clients find this gateway, without a slash at the end.
    pub public_url: Option<String>,
    /// The largest body of a protected request, in bytes.
    pub body_limit: usize,
    /// The largest reply that is kept, in bytes.
    pub reply_limit: usize,
    /// The certificate, where requests come in encrypted.
    pub tls: Option<ServerTls>,
    /// Proxies whose word on the client's address counts.
    pub trusted_proxies: Vec<IpNet>,
    /// Trusted proxies begin each connection with the PROXY protocol.
    pub proxy_protocol: bool,
    /// How long a client may take for a request's head, and stay idle between two.
    pub head_deadline: Duration,
    /// How long the body of a protected request may take, and a pause in one
    /// that streams through.
    pub body_deadline: Duration,
    /// How long a client may leave a whole reply unread.
    pub write_deadline: Duration,
    /// How long running work may take to end when the gateway stops.
    pub drain: Duration,
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
        }
    }
}

/// A token for the admin API.
#[derive(Clone, Debug)]
pub struct AdminToken {
    /// Who it is, for the audit.
    pub name: String,
    /// What it may do.
    pub role: Role,
    /// The token.
    pub token: SecretValue,
}

/// A secret, or where it is.
#[derive(Clone, Debug)]
pub enum SecretValue {
    /// The secret itself: from the file, the environment, or a file of its own.
    Given(SecretString),
    /// A field of a secret in OpenBao.
    OpenBao {
        /// The secret's path beneath the mount.
        path: String,
        /// Which field of it.
        field: String,
    },
}

/// Two secrets at hand are compared as they are: there is nobody to time it.
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

/// The gateway's own secret, and where others are.
#[derive(Clone, Debug, Default)]
pub struct Secrets {
    /// Keys hashes and fingerprints and seals what is kept secret. Made at the
    /// first start with an embedded store.
    pub key: Option<SecretString>,
    /// Where secrets live that the file only names.
    pub openbao: Option<OpenBao>,
}

/// OpenBao, or Vault: a KV store of version 2.
#[derive(Clone, Debug)]
pub struct OpenBao {
    /// Its URL.
    pub address: String,
    /// How to be let in.
    pub login: BaoLogin,
    /// Where the KV store is mounted.
    pub mount: String,
    /// The namespace, where there are several.
    pub namespace: Option<String>,
    /// Where the secrets of webhooks are: `webhooks/{tenant}/{project}/{provider}`.
    pub path: String,
}

/// How to be let in to OpenBao.
#[derive(Clone, Debug)]
pub enum BaoLogin {
    /// With a token.
    Token(SecretString),
    /// As an application.
    AppRole {
        /// Which.
        role_id: String,
        /// Its password.
        secret_id: SecretString,
    },
}

/// Who may call. With none of it, everybody may, as one caller.
#[derive(Clone, Debug, Default)]
pub struct Auth {
    /// Keys that this gateway gives out.
    pub api_keys: Option<ApiKeys>,
    /// Tokens of these issuers.
    pub jwt: Vec<Jwt>,
    /// Keys that Unkey gives out.
    pub unkey: Option<Unkey>,
    /// A scheduler that signs its calls.
    pub scheduler: Option<Scheduler>,
}

impl Auth {
    /// Whether anybody is known at all. Otherwise every client is the same caller.
    pub fn knows_callers(&self) -> bool {
        self.api_keys.is_some()
            || !self.jwt.is_empty()
            || self.unkey.is_some()
            || self.scheduler.is_some()
    }
}

/// Keys that this gateway gives out. There is nothing to choose yet.
#[derive(Clone, Debug, Default)]
pub struct ApiKeys {}

/// Tokens of one issuer.
#[derive(Clone, Debug)]
pub struct Jwt {
    /// What `iss` must be.
    pub issuer: String,
    /// One of these `aud` must name.
    pub audience: Vec<String>,
    /// The issuer's keys.
    pub keys: JwksSource,
    /// What tokens may be signed with: nothing that a client could know the key of.
    pub algorithms: Vec<jsonwebtoken::Algorithm>,
    /// Where the tenant is.
    pub tenant: Claim,
    /// Where the project is; tokens without one may use only routes of a wider scope.
    pub project: Option<Claim>,
    /// Where the subject's id is.
    pub subject: Claim,
    /// What kind of subject it is.
    pub subject_type: SubjectKind,
    /// Where the scopes are: a list, or words between blanks.
    pub scopes: Option<String>,
    /// How far the issuer's clock may be off.
    pub leeway: Duration,
}

/// Where an issuer's keys are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JwksSource {
    /// Behind a URL.
    Url(String),
    /// In a file.
    File(PathBuf),
}

/// Where a caller's name comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Claim {
    /// A JSON Pointer into the claims.
    Pointer(String),
    /// The same for all.
    Fixed(String),
}

/// Keys that Unkey gives out.
#[derive(Clone, Debug)]
pub struct Unkey {
    /// Its URL.
    pub url: String,
    /// The right to verify keys.
    pub root_key: SecretValue,
    /// The right to verify the ids of webhooks.
    pub webhook_root_key: Option<SecretValue>,
    /// How long an answer is believed; under a minute.
    pub cache: Duration,
    /// How long it may take.
    pub deadline: Duration,
}

/// A scheduler that signs its calls.
#[derive(Clone, Debug)]
pub struct Scheduler {
    /// What it signs with; several while they rotate.
    pub secrets: Vec<SecretValue>,
    /// How far its clock may be off, in both directions.
    pub tolerance: Duration,
}

/// Where requests go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Upstream {
    /// `http://`, `https://` or `h2c://`, with host and port.
    pub url: String,
    /// How long it may take to answer.
    pub timeout: Duration,
    /// How long opening a connection may take.
    pub connect_timeout: Duration,
    /// How long after its last use a connection is used again.
    pub idle_timeout: Duration,
    /// How many unused connections are kept.
    pub idle_max: usize,
    /// How many connections there are at most.
    pub connections_max: usize,
    /// The Host to name; the client's own where there is none.
    pub host: Option<HeaderValue>,
    /// What is needed to speak TLS to it.
    pub tls: crate::upstream::Tls,
    /// What the events that are delivered to it are signed with, `whsec_…`; one
    /// of the gateway's own making where there is none.
    pub signing_secret: Option<SecretValue>,
}

impl Upstream {
    /// An upstream behind this URL, with the usual bounds.
    pub fn new(url: &str) -> Self {
        let usual = crate::upstream::Limits::default();
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

/// What is served, and how.
#[derive(Clone, Debug)]
pub struct Route {
    /// What its operations are called.
    pub endpoint: EndpointName,
    /// Which methods; all where there is none.
    pub methods: Vec<Method>,
    /// Its path: `{name}` is one segment, `{*rest}` the remainder.
    pub path: String,
    /// Where its requests go.
    pub upstream: Arc<str>,
    /// What a key means here; by method where there is none.
    pub policy: Option<Policy>,
    /// Its class.
    pub class: Arc<str>,
    /// Whose names its keys live under.
    pub scope: Scope,
    /// Who may call it.
    pub access: Access,
    /// What a key must look like.
    pub key_format: KeyFormat,
    /// Where a key comes from when no header brings one.
    pub derived_key: Option<DerivedKey>,
    /// How far a key is unique.
    pub key_space: KeySpace,
    /// What the upstream is told of the key.
    pub forward_key: ForwardKey,
    /// What of a request is compared.
    pub fingerprint: Arc<Selection>,
    /// Statuses that are kept, whatever the default says.
    pub keep_statuses: BTreeSet<u16>,
    /// Statuses that free the key, whatever the default says.
    pub release_statuses: BTreeSet<u16>,
    /// What a replayed 201 is.
    pub duplicate_create: DuplicateCreate,
    /// The upstream commits the outcome itself, in one transaction with its rows.
    pub joined: bool,
    /// The largest body, where it is not the server's.
    pub body_limit: Option<usize>,
    /// The largest kept reply, where it is not the server's.
    pub reply_limit: Option<usize>,
    /// How long the upstream may take, where it is not the upstream's own.
    pub timeout: Option<Duration>,
    /// Which other sites' pages may call it.
    pub cors: Option<Arc<Cors>>,
    /// What is changed in requests on their way.
    pub request_headers: HeaderRules,
    /// What is changed in answers on their way.
    pub response_headers: HeaderRules,
}

impl Route {
    /// A route as it is when nothing more is said of it.
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

    /// What a key means here for a request with this method. A route of a wider
    /// scope than a project takes none unless it says so: administrators confirm
    /// rather than retry.
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

/// What the operations of a route are called.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EndpointName {
    /// By this name.
    Fixed(Endpoint),
    /// By method and path, where nothing is configured.
    ByPath,
}

/// Who may call a route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Access {
    /// Everybody, as one caller; what they send to identify themselves is compared.
    Anyone,
    /// Known callers who also are all of this.
    Callers {
        /// Known by one of these; by any where there is none.
        by: Vec<KnownBy>,
        /// Such subjects; all where there is none.
        subjects: Vec<SubjectPattern>,
        /// With every one of these scopes.
        scopes: Vec<String>,
    },
}

impl Access {
    /// All known callers.
    pub fn callers() -> Self {
        Self::Callers {
            by: Vec::new(),
            subjects: Vec::new(),
            scopes: Vec::new(),
        }
    }
}

/// Which subjects: `user:*`, or `service:billing`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubjectPattern {
    /// Of this kind.
    pub kind: SubjectKind,
    /// With this id; any where there is none.
    pub id: Option<String>,
}

/// A key for clients that cannot send one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DerivedKey {
    /// What it is made of; something of the request is among it.
    pub parts: Vec<KeyPart>,
    /// How long such an operation is remembered.
    pub window: Duration,
}

/// A part of a request that a key is made of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeyPart {
    /// Who sends.
    Caller,
    /// Where to.
    Endpoint,
    /// A value of the JSON body.
    Pointer(String),
    /// A header.
    Header(HeaderName),
    /// A parameter of the query.
    Query(String),
    /// The whole body: never unless it is asked for.
    Body,
}

/// Which other sites' pages may call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cors {
    /// Which sites.
    pub origins: Origins,
    /// Headers that pages may send, beside ours.
    pub headers: Vec<HeaderName>,
    /// Headers that pages may read, beside ours.
    pub expose: Vec<HeaderName>,
    /// Whether cookies may come along.
    pub credentials: bool,
    /// How long a browser may remember it.
    pub max_age: Duration,
}

/// Which sites.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origins {
    /// All.
    Any,
    /// These.
    These(Vec<String>),
}

/// What is changed in headers on their way. None of them is one of ours, and
/// none frames a message.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HeaderRules {
    /// Taken out, first.
    pub remove: Vec<HeaderName>,
    /// Put in, in place of what was there.
    pub set: Vec<(HeaderName, HeaderValue)>,
}

/// How much of everything.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Connections of clients.
    pub connections: usize,
    /// Requests under way on one HTTP/2 connection.
    pub streams: u32,
    /// Requests that wait for one operation.
    pub waiters_per_key: usize,
    /// Requests of one tenant that wait.
    pub waiters_per_tenant: usize,
    /// Requests that wait, in all.
    pub waiters: usize,
    /// Operations that run at a time.
    pub in_flight: usize,
    /// Operations of one tenant that run at a time.
    pub in_flight_per_tenant: usize,
    /// How often one tenant may ask.
    pub requests_per_tenant: Option<Rate>,
    /// Bytes of request bodies held at a time.
    pub buffered_bytes: usize,
    /// Tenants and projects that have metrics of their own; the rest are `other`.
    pub label_values: usize,
    /// How long one step of the store may take.
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

/// How often.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// In the long run.
    pub per_second: u32,
    /// At once.
    pub burst: u32,
}

/// What is told of it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Telemetry {
    /// Whether keys stand in logs as they are.
    pub keys: LoggedKeys,
    /// Where traces go.
    pub otlp: Option<Otlp>,
}

/// Where traces go.
#[derive(Clone, Debug, PartialEq)]
pub struct Otlp {
    /// The collector's URL, OTLP over HTTP.
    pub endpoint: String,
    /// What this service is called there.
    pub service: String,
    /// Which part of the traces that begin here, from 0 to 1.
    pub sample: f64,
}
