//! The configuration as it is in the file.
//!
//! Every field is optional here. A field that must be present carries `required`,
//! so that the JSON Schema says it and the validation reports it together with
//! every other mistake. The doc comments are the schema's descriptions.

use std::collections::BTreeMap;

use onceward_core::caller::SubjectKind;
use onceward_core::identity::KeySpace;
use onceward_http::rules::DuplicateCreate;
use schemars::JsonSchema;
use serde::Deserialize;

use super::class::ClassSettings;
use super::units::{Size, Time, Tolerance};
use super::words::{
    ForwardKey, KeyFormat, KnownBy, LoggedKeys, Policy, Role, SameBytes, Scope, Word,
};
use crate::listen::tls::ClientAuth;

/// The configuration of a gateway.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
#[schemars(title = "onceward.toml")]
pub(super) struct Config {
    /// The listeners, and settings for every request.
    pub(super) server: Server,
    /// Where operations are kept.
    pub(super) store: Store,
    /// The gateway's own secret, and the service that holds other secrets.
    pub(super) secrets: Secrets,
    /// Authentication of callers. Without it, every client may call, as one caller.
    pub(super) auth: Auth,
    /// Retention classes by name; interactive, webhook and financial are built in and can be changed.
    pub(super) classes: BTreeMap<String, ClassSettings>,
    /// Upstreams, by name.
    pub(super) upstreams: BTreeMap<String, Upstream>,
    /// The routes.
    pub(super) routes: Vec<Route>,
    /// Webhooks of providers.
    pub(super) webhooks: Webhooks,
    /// CORS: pages of other sites that may call, for every route without its own cors.
    pub(super) cors: Option<Cors>,
    /// Limits.
    pub(super) limits: Limits,
    /// Logs and traces.
    pub(super) telemetry: Telemetry,
}

/// The listeners, and settings for every request.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Server {
    /// The address for requests. Default: 127.0.0.1:8080.
    pub(super) listen: Option<String>,
    /// The address for operators: health, metrics, the admin API. Default: 127.0.0.1:8081.
    pub(super) admin: Option<String>,
    /// A token for the admin API with the role admin; one is required where admin is not a loopback address.
    pub(super) admin_token: Option<Secret>,
    /// Tokens for the admin API, each with a name for the audit log and a role.
    pub(super) admin_tokens: Vec<AdminToken>,
    /// The URL at which clients reach this gateway; links in problems begin with it. Default: scheme and host of the request.
    pub(super) public_url: Option<String>,
    /// The largest request body on a protected route; other routes stream. Default: 1MiB.
    pub(super) body_limit: Option<Size>,
    /// The largest reply that is kept. Default: 1MiB.
    pub(super) reply_limit: Option<Size>,
    /// TLS for requests.
    pub(super) tls: Option<ServerTls>,
    /// Proxies whose X-Forwarded-* headers are trusted: addresses or networks.
    pub(super) trusted_proxies: Vec<String>,
    /// Whether trusted proxies send the PROXY protocol at the start of each connection. Default: false.
    pub(super) proxy_protocol: Option<bool>,
    /// The time limit for a request's head, and for an idle connection between requests. Default: 30s.
    pub(super) head_deadline: Option<Time>,
    /// The time limit for the body of a protected request, and for a pause in a body that streams. Default: 30s.
    pub(super) body_deadline: Option<Time>,
    /// The time limit for a client that does not read its response. Default: 30s.
    pub(super) write_deadline: Option<Time>,
    /// How long the gateway waits for running operations when it stops. Default: 30s.
    pub(super) drain: Option<Time>,
    /// The number of threads that serve requests. Default: one per core.
    #[schemars(range(min = 1, max = 1024))]
    pub(super) threads: Option<u32>,
}

/// A token for the admin API.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct AdminToken {
    /// The name in the audit log.
    #[schemars(required)]
    pub(super) name: Option<String>,
    /// The role.
    #[schemars(required)]
    pub(super) role: Option<Role>,
    /// The token.
    #[schemars(required)]
    pub(super) token: Option<Secret>,
}

/// TLS for requests.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ServerTls {
    /// The file with the certificate and its chain, PEM.
    #[schemars(required)]
    pub(super) cert: Option<String>,
    /// The file with the private key, PEM.
    #[schemars(required)]
    pub(super) key: Option<String>,
    /// The file with the authority of client certificates, PEM.
    pub(super) client_ca: Option<String>,
    /// Whether clients must present a certificate. Default: required, where there is a client_ca.
    pub(super) client_auth: Option<ClientAuth>,
}

/// A secret, or its location.
#[derive(Clone, Deserialize, JsonSchema)]
#[serde(untagged)]
pub(super) enum Secret {
    /// The secret itself, best as "${NAME}" from the environment.
    Given(String),
    /// In a file; a line break at its end is ignored.
    File(SecretFile),
    /// In OpenBao or Vault.
    OpenBao(SecretInOpenBao),
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret(…)")
    }
}

/// A secret in a file.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct SecretFile {
    /// The file.
    #[schemars(required)]
    pub(super) file: Option<String>,
}

/// A secret in OpenBao or Vault.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct SecretInOpenBao {
    /// The secret's path below the mount.
    #[schemars(required)]
    pub(super) openbao: Option<String>,
    /// The field of the secret.
    #[schemars(required)]
    pub(super) field: Option<String>,
}

/// Where operations are kept.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Store {
    /// embedded:DIR, where DIR is relative to the gateway's working directory; postgres://… or redis://…, which several gateways can share; or memory:. Default: embedded:./onceward-data.
    pub(super) url: Option<String>,
    /// postgres:// and redis://: separates the users of one database or server. Default: edge.
    pub(super) namespace: Option<String>,
    /// postgres://: the table, with its schema if it is not on the search path. Default: idempotency_record.
    pub(super) table: Option<String>,
    /// postgres:// behind a pooler in transaction mode: the server's own URL, for notifications. Default: none.
    pub(super) listen_url: Option<String>,
    /// postgres:// and redis://: the largest number of open connections. Default: 16.
    #[schemars(range(min = 1, max = 1_000))]
    pub(super) connections: Option<u32>,
    /// redis://: when a write is acknowledged; none, when the server has it, or wait:N, when N replicas have it as well. Default: none.
    pub(super) durability: Option<String>,
}

/// The gateway's own secret, and the service that holds other secrets.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Secrets {
    /// Seals stored secrets, and keys hashes and fingerprints; 16 characters or more, the same for all gateways that share a store, which require it. Default: generated at the first start and stored beside an embedded store.
    pub(super) key: Option<Secret>,
    /// OpenBao or Vault, with a KV store of version 2.
    pub(super) openbao: Option<OpenBao>,
}

/// OpenBao or Vault, with a KV store of version 2.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct OpenBao {
    /// Its URL.
    #[schemars(required)]
    pub(super) address: Option<String>,
    /// The token; or role_id and secret_id.
    pub(super) token: Option<Secret>,
    /// The id of the AppRole.
    pub(super) role_id: Option<String>,
    /// The secret id of the AppRole.
    pub(super) secret_id: Option<Secret>,
    /// The mount of the KV store. Default: secret.
    pub(super) mount: Option<String>,
    /// The namespace. Default: none.
    pub(super) namespace: Option<String>,
    /// The path of webhooks' secrets. Default: webhooks/{tenant}/{project}/{provider}.
    pub(super) path: Option<String>,
}

/// Authentication of callers.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Auth {
    /// API keys of this gateway: `onceward keys create`. The section has no settings yet.
    pub(super) api_keys: Option<ApiKeys>,
    /// JWTs, one entry per issuer.
    pub(super) jwt: Vec<Jwt>,
    /// API keys of Unkey.
    pub(super) unkey: Option<Unkey>,
    /// A scheduler that signs its requests.
    pub(super) scheduler: Option<Scheduler>,
}

/// API keys of this gateway.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ApiKeys {}

/// JWTs of one issuer.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Jwt {
    /// The value of `iss`.
    #[schemars(required)]
    pub(super) issuer: Option<String>,
    /// The value of `aud`: a string, or a list of which one must match.
    #[schemars(required)]
    pub(super) audience: Option<OneOrMany>,
    /// The URL of the issuer's keys, with https://. Or jwks_file.
    pub(super) jwks_url: Option<String>,
    /// The file of the issuer's keys. Or jwks_url.
    pub(super) jwks_file: Option<String>,
    /// The allowed signature algorithms. Default: RS256 and ES256.
    pub(super) algorithms: Option<Vec<String>>,
    /// The tenant: a JSON Pointer into the claims, or { value = "acme" } for all tokens.
    #[schemars(required)]
    pub(super) tenant: Option<ClaimSource>,
    /// The project. Without it, tokens may only use routes with scope tenant or platform.
    pub(super) project: Option<ClaimSource>,
    /// The subject's id. Default: /sub.
    pub(super) subject: Option<ClaimSource>,
    /// The subject's type. Default: user.
    pub(super) subject_type: Option<Word<SubjectKind>>,
    /// The scopes: a JSON Pointer to a list, or to one string with spaces between them.
    pub(super) scopes: Option<String>,
    /// The tolerated difference to the issuer's clock, up to 60s. Default: 30s.
    pub(super) leeway: Option<Time>,
}

/// A string, or a list of strings.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(untagged)]
pub(super) enum OneOrMany {
    /// One.
    One(String),
    /// Several.
    Many(Vec<String>),
}

impl OneOrMany {
    /// All of them.
    pub(super) fn all(&self) -> &[String] {
        match self {
            Self::One(one) => std::slice::from_ref(one),
            Self::Many(many) => many,
        }
    }
}

/// The source of a caller's name.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(untagged)]
#[schemars(rename = "Claim")]
pub(super) enum ClaimSource {
    /// A JSON Pointer into the claims.
    Pointer(String),
    /// A fixed name for all tokens.
    Fixed(Fixed),
}

/// A fixed name for all tokens.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Fixed {
    /// The name.
    #[schemars(required)]
    pub(super) value: Option<String>,
}

/// API keys of Unkey.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Unkey {
    /// Its URL. Default: https://api.unkey.com.
    pub(super) url: Option<String>,
    /// The root key that verifies callers' keys.
    #[schemars(required)]
    pub(super) root_key: Option<Secret>,
    /// The root key that verifies webhook ids. Default: none.
    pub(super) webhook_root_key: Option<Secret>,
    /// How long an answer is cached, under 1m; a revoked key works that much longer. Default: 10s.
    pub(super) cache: Option<Time>,
    /// The time limit for a request to Unkey. Default: 2s.
    pub(super) deadline: Option<Time>,
}

/// A scheduler that signs its requests.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Scheduler {
    /// Its secret, 16 characters or more. Or secrets.
    pub(super) secret: Option<Secret>,
    /// Its secrets during a rotation; each of them is valid.
    pub(super) secrets: Vec<Secret>,
    /// The tolerated difference to its clock, in both directions. Default: 5m.
    pub(super) tolerance: Option<Time>,
}

/// An upstream.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Upstream {
    /// http://, https:// or h2c://, with host and port and without a path.
    #[schemars(required)]
    pub(super) url: Option<String>,
    /// The time limit for a response. Default: 30s.
    pub(super) timeout: Option<Time>,
    /// The time limit for a new connection. Default: 5s.
    pub(super) connect_timeout: Option<Time>,
    /// How long an idle connection is kept; shorter than the upstream's own limit. Default: 4s.
    pub(super) idle_timeout: Option<Time>,
    /// The largest number of idle connections. Default: 2048.
    #[schemars(range(max = 1_000_000))]
    pub(super) idle_max: Option<u32>,
    /// The largest number of connections. Default: 4096.
    #[schemars(range(min = 1, max = 1_000_000))]
    pub(super) connections_max: Option<u32>,
    /// The Host header that the upstream receives. Default: the client's own.
    pub(super) host: Option<String>,
    /// TLS settings for an https:// upstream.
    pub(super) tls: Option<UpstreamTls>,
    /// The secret that signs webhook events delivered to it, whsec_… as in Standard Webhooks. Default: derived from the gateway's own key; `onceward webhooks create` shows it.
    pub(super) signing_secret: Option<Secret>,
}

/// TLS settings for an upstream.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct UpstreamTls {
    /// The file with the authority of its certificate, PEM. Default: the system's authorities.
    pub(super) ca: Option<String>,
    /// The file with the client certificate, PEM; with key.
    pub(super) cert: Option<String>,
    /// The file with its private key, PEM; with cert.
    pub(super) key: Option<String>,
    /// The name in its certificate. Default: the host of its URL.
    pub(super) server_name: Option<String>,
}

/// A route.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Route {
    /// The name of its operations, service.handler; part of their identity, so do not change it.
    #[schemars(required)]
    pub(super) endpoint: Option<String>,
    /// The method, or a list of methods. Default: all.
    pub(super) method: Option<OneOrMany>,
    /// The path; {name} matches one segment, {*rest} the remainder.
    #[schemars(required)]
    pub(super) path: Option<String>,
    /// The upstream of its requests.
    #[schemars(required)]
    pub(super) upstream: Option<String>,
    /// What a key means here. Default: POST and PATCH are ACCEPTED, other methods are forwarded.
    pub(super) policy: Option<Policy>,
    /// The retention class. Default: interactive.
    pub(super) class: Option<String>,
    /// Whose keys its keys are. Default: project.
    pub(super) scope: Option<Scope>,
    /// The allowed authentication methods, or "none" to let every client call. Default: all of [auth].
    pub(super) auth: Option<RouteAuth>,
    /// The subjects that may call: "user:*", "service:billing". Default: all.
    #[serde(default)]
    pub(super) subjects: Vec<String>,
    /// The scopes that a caller must have. Default: none.
    #[serde(default)]
    pub(super) scopes: Vec<String>,
    /// The format of keys. Default: any.
    pub(super) key_format: Option<KeyFormat>,
    /// Derives a key from parts of the request where clients cannot send one.
    pub(super) derived_key: Option<DerivedKey>,
    /// Where a key is unique. Default: endpoint.
    pub(super) key_space: Option<Word<KeySpace>>,
    /// The key that the upstream receives. Default: namespaced.
    pub(super) forward_key: Option<ForwardKey>,
    /// The parts of a request that are compared when a key is used again. Default: method, path, query, content type and body; and the Host, where the upstream receives the client's own.
    pub(super) fingerprint: Option<Fingerprint>,
    /// Statuses that are kept, instead of the default.
    #[schemars(inner(range(min = 200, max = 599)))]
    #[serde(default)]
    pub(super) keep_statuses: Vec<u16>,
    /// Statuses that release the key, instead of the default.
    #[schemars(inner(range(min = 200, max = 599)))]
    #[serde(default)]
    pub(super) release_statuses: Vec<u16>,
    /// The status of a replayed 201. Default: same.
    pub(super) duplicate_create: Option<Word<DuplicateCreate>>,
    /// Whether the upstream commits the outcome itself, in one transaction with its own rows; requires a postgres:// store. Default: false.
    pub(super) joined: Option<bool>,
    /// The largest request body. Default: the server's.
    pub(super) body_limit: Option<Size>,
    /// The largest reply that is kept. Default: the server's.
    pub(super) reply_limit: Option<Size>,
    /// The time limit for a response. Default: the upstream's.
    pub(super) timeout: Option<Time>,
    /// CORS for this route, in place of [cors].
    pub(super) cors: Option<Cors>,
    /// Changes to the headers of requests.
    #[serde(default)]
    pub(super) request_headers: HeaderRules,
    /// Changes to the headers of responses.
    #[serde(default)]
    pub(super) response_headers: HeaderRules,
}

/// The authentication of a route's callers.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(untagged)]
pub(super) enum RouteAuth {
    /// None: every client may call.
    Open(OpenRoute),
    /// One of these methods.
    By(Vec<KnownBy>),
}

/// A route without authentication.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(super) enum OpenRoute {
    /// Every client may call, as one caller.
    None,
}

/// A key derived from parts of the request.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct DerivedKey {
    /// Its parts: "caller", "endpoint", a JSON Pointer into the body such as "/order/id", "header:X-Order", "query:order", or "body" for the whole body.
    #[schemars(required)]
    pub(super) from: Option<Vec<String>>,
    /// How long requests with the same parts are the same operation.
    #[schemars(required)]
    pub(super) window: Option<Time>,
}

/// The parts of a request that are compared.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Fingerprint {
    /// Parts that are not compared: a JSON Pointer into the body, or "query:name".
    pub(super) ignore: Vec<String>,
    /// The only parts of body and query that are compared; and headers that are compared: "header:X-Currency".
    pub(super) include: Vec<String>,
}

/// Pages of other sites that may call.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Cors {
    /// The allowed origins: "https://app.example.com", or "*" for all.
    #[schemars(required)]
    pub(super) origins: Option<Vec<String>>,
    /// Headers that pages may send, besides Idempotency-Key and the usual ones.
    #[serde(default)]
    pub(super) headers: Vec<String>,
    /// Headers that pages may read, besides the gateway's own.
    #[serde(default)]
    pub(super) expose: Vec<String>,
    /// Whether cookies are allowed; not with "*". Default: false.
    pub(super) credentials: Option<bool>,
    /// How long a browser may cache the answer. Default: 10m.
    pub(super) max_age: Option<Time>,
}

/// Changes to headers: first remove, then set.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct HeaderRules {
    /// Headers to set, replacing existing ones.
    pub(super) set: BTreeMap<String, String>,
    /// Headers to remove.
    pub(super) remove: Vec<String>,
}

/// Webhooks of providers. The settings of each webhook have precedence: `onceward webhooks create`.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Webhooks {
    /// The upstream of webhooks that name none. Default: each webhook names its own.
    pub(super) upstream: Option<String>,
    /// The path at the upstream; {provider} is the provider's name. Default: /webhooks/{provider}.
    pub(super) path: Option<String>,
    /// The retention class. Default: webhook.
    pub(super) class: Option<String>,
    /// The tolerated difference to a provider's clock, in both directions; "off" does not check the time. Default: 5m.
    pub(super) tolerance: Option<Tolerance>,
    /// What happens to an event with the bytes of an earlier one and a new id that is not signed. Default: deliver.
    pub(super) same_bytes: Option<SameBytes>,
    /// How long an old secret is valid after a rotation. Default: 24h.
    pub(super) overlap: Option<Time>,
    /// The largest number of concurrent deliveries. Default: 256.
    #[schemars(range(min = 1, max = 100_000))]
    pub(super) deliveries: Option<u32>,
    /// The largest number of concurrent deliveries to one upstream. Default: 64.
    #[schemars(range(min = 1, max = 100_000))]
    pub(super) deliveries_per_upstream: Option<u32>,
    /// Further providers, by name: a-z, 0-9 and hyphens.
    pub(super) providers: BTreeMap<String, WebhookProvider>,
}

/// A provider that signs with an HMAC in a header.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct WebhookProvider {
    /// The header of the signature.
    #[schemars(required)]
    pub(super) signature_header: Option<String>,
    /// The prefix of a signature. Default: none.
    pub(super) prefix: Option<String>,
    /// The separator of several signatures. Default: there is only one.
    pub(super) separator: Option<String>,
    /// The hash. Default: sha256.
    #[schemars(extend("enum" = ["sha1", "sha256", "sha512"]))]
    pub(super) algorithm: Option<String>,
    /// The encoding of signatures. Default: hex.
    #[schemars(extend("enum" = ["hex", "base64", "base64url"]))]
    pub(super) encoding: Option<String>,
    /// The encoding of secrets. Default: text.
    #[schemars(extend("enum" = ["text", "base64", "hex"]))]
    pub(super) secret: Option<String>,
    /// The signed content: a template with {body} once and, as needed, {timestamp}, {url} and {header:NAME}. Default: {body}.
    pub(super) signed: Option<String>,
    /// The signed time. Default: none.
    pub(super) timestamp: Option<WebhookTimestamp>,
    /// An event's id: "json:/id", a JSON Pointer into the body; "header:X-Event-Id"; or "form:id".
    #[schemars(required)]
    pub(super) id: Option<String>,
}

/// The signed time.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct WebhookTimestamp {
    /// The header of the time.
    #[schemars(required)]
    pub(super) header: Option<String>,
    /// The unit: seconds or milliseconds since 1970. Default: s.
    #[schemars(extend("enum" = ["s", "ms"]))]
    pub(super) unit: Option<String>,
}

/// Limits.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Limits {
    /// Client connections. Default: 20000.
    #[schemars(range(min = 1, max = 1_000_000))]
    pub(super) connections: Option<u32>,
    /// Concurrent requests on one HTTP/2 connection. Default: 256.
    #[schemars(range(min = 1, max = 100_000))]
    pub(super) streams: Option<u32>,
    /// Waiting requests per operation. Default: 10000.
    #[schemars(range(min = 1, max = 10_000_000))]
    pub(super) waiters_per_key: Option<u32>,
    /// Waiting requests per tenant. Default: 20000.
    #[schemars(range(min = 1, max = 10_000_000))]
    pub(super) waiters_per_tenant: Option<u32>,
    /// Waiting requests in total. Default: 100000.
    #[schemars(range(min = 1, max = 10_000_000))]
    pub(super) waiters: Option<u32>,
    /// Running operations. Default: 50000.
    #[schemars(range(min = 1, max = 10_000_000))]
    pub(super) in_flight: Option<u32>,
    /// Running operations per tenant. Default: 10000.
    #[schemars(range(min = 1, max = 10_000_000))]
    pub(super) in_flight_per_tenant: Option<u32>,
    /// The request rate of one tenant. Default: unlimited.
    pub(super) requests_per_tenant: Option<Rate>,
    /// Buffered bytes of request bodies. Default: 1GiB.
    pub(super) buffered_bytes: Option<Size>,
    /// Tenants and projects with their own metrics labels; the rest are `other`. Default: 100.
    #[schemars(range(max = 100_000))]
    pub(super) label_values: Option<u32>,
    /// The time limit for one step of the store. Default: 2s.
    pub(super) store_deadline: Option<Time>,
}

/// A request rate.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Rate {
    /// The sustained rate, in requests per second.
    #[schemars(required, range(min = 1, max = 10_000_000))]
    pub(super) per_second: Option<u32>,
    /// The largest burst of requests. Default: per_second.
    #[schemars(range(min = 1, max = 10_000_000))]
    pub(super) burst: Option<u32>,
}

/// Logs and traces.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Telemetry {
    /// How keys are logged. Default: hashed.
    pub(super) keys: Option<LoggedKeys>,
    /// The collector of traces. Default: none.
    pub(super) otlp: Option<Otlp>,
}

/// The collector of traces.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Otlp {
    /// The collector's URL, OTLP over HTTP.
    #[schemars(required)]
    pub(super) endpoint: Option<String>,
    /// The name of this service in traces. Default: onceward.
    pub(super) service: Option<String>,
    /// The sampled fraction of traces that begin here, from 0 to 1. Default: 1.
    #[schemars(range(min = 0.0, max = 1.0))]
    pub(super) sample: Option<f64>,
}
