//! What the file says, word by word.
//!
//! Every field may be absent: what must be there carries `required`, so that
//! the schema says it and `schema` reports it together with everything else.
//! The sentences above the fields are the schema's descriptions.

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
pub(super) struct Raw {
    /// The listeners, and what holds for every request.
    pub(super) server: Server,
    /// Where operations are kept.
    pub(super) store: Store,
    /// The gateway's own secret, and where others are.
    pub(super) secrets: Secrets,
    /// Who may call. Without any of it everybody may, as one caller.
    pub(super) auth: Auth,
    /// Retention classes by name; interactive, webhook and financial are built in and can be changed.
    pub(super) classes: BTreeMap<String, ClassSettings>,
    /// Where requests go, by name.
    pub(super) upstreams: BTreeMap<String, Upstream>,
    /// What is served.
    pub(super) routes: Vec<Route>,
    /// What providers send, and where it goes.
    pub(super) webhooks: Webhooks,
    /// Which other sites' pages may call, on every route that says nothing else.
    pub(super) cors: Option<Cors>,
    /// How much of everything.
    pub(super) limits: Limits,
    /// What is told of it.
    pub(super) telemetry: Telemetry,
}

/// The listeners, and what holds for every request.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Server {
    /// Where requests come in. Default: 127.0.0.1:8080.
    pub(super) listen: Option<String>,
    /// Where operators look: health, metrics, the admin API. Default: 127.0.0.1:8081.
    pub(super) admin: Option<String>,
    /// A token for the admin API that may do everything; needed when admin is not a loopback address.
    pub(super) admin_token: Option<Secret>,
    /// Tokens for the admin API, each with a name for the audit and a role.
    pub(super) admin_tokens: Vec<AdminToken>,
    /// Where clients find this gateway; the links in problems begin with it. Default: what the client asked for.
    pub(super) public_url: Option<String>,
    /// The largest body of a request on a protected route; others stream. Default: 1MiB.
    pub(super) body_limit: Option<Size>,
    /// The largest reply that is kept. Default: 1MiB.
    pub(super) reply_limit: Option<Size>,
    /// The certificate, where requests come in encrypted.
    pub(super) tls: Option<ServerTls>,
    /// Proxies whose word on the client's address counts: addresses or networks.
    pub(super) trusted_proxies: Vec<String>,
    /// Whether trusted proxies begin each connection with the PROXY protocol. Default: false.
    pub(super) proxy_protocol: Option<bool>,
    /// How long a client may take for a request's head, and stay idle between two. Default: 30s.
    pub(super) head_deadline: Option<Time>,
    /// How long the body of a protected request may take, and a pause in one that streams through. Default: 30s.
    pub(super) body_deadline: Option<Time>,
    /// How long a client may leave a whole reply unread. Default: 30s.
    pub(super) write_deadline: Option<Time>,
    /// How long running work may take to end when the gateway stops. Default: 30s.
    pub(super) drain: Option<Time>,
}

/// A token for the admin API.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct AdminToken {
    /// Who it is, for the audit.
    #[schemars(required)]
    pub(super) name: Option<String>,
    /// What it may do.
    #[schemars(required)]
    pub(super) role: Option<Role>,
    /// The token.
    #[schemars(required)]
    pub(super) token: Option<Secret>,
}

/// The certificate of the listener.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ServerTls {
    /// The file with the certificate and its chain, PEM.
    #[schemars(required)]
    pub(super) cert: Option<String>,
    /// The file with the private key, PEM.
    #[schemars(required)]
    pub(super) key: Option<String>,
    /// The file with those who sign the certificates of clients, PEM.
    pub(super) client_ca: Option<String>,
    /// Whether clients must show a certificate. Default: required, where there is a client_ca.
    pub(super) client_auth: Option<ClientAuth>,
}

/// A secret, or where it is.
#[derive(Clone, Deserialize, JsonSchema)]
#[serde(untagged)]
pub(super) enum Secret {
    /// The secret itself, best as "${NAME}" from the environment.
    Given(String),
    /// In a file of its own; a line break at its end does not count.
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
    /// The secret's path beneath the mount.
    #[schemars(required)]
    pub(super) openbao: Option<String>,
    /// Which field of it.
    #[schemars(required)]
    pub(super) field: Option<String>,
}

/// Where operations are kept.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Store {
    /// embedded:DIR, where DIR is relative to the directory in which the gateway is started; postgres://… or redis://…, which several gateways can share; or memory:. Default: embedded:./onceward-data.
    pub(super) url: Option<String>,
    /// postgres:// and redis://: whose operations these are, where several share a database or a server. Default: edge.
    pub(super) namespace: Option<String>,
    /// postgres://: the table, with its schema if that is not on the search path. Default: idempotency_record.
    pub(super) table: Option<String>,
    /// postgres:// behind a pooler in transaction mode: where notifications are listened for, past the pooler. Default: nowhere.
    pub(super) listen_url: Option<String>,
    /// postgres:// and redis://: how many connections may be open at once. Default: 16.
    #[schemars(range(min = 1, max = 1_000))]
    pub(super) connections: Option<u32>,
    /// redis://: whom a write must have reached before it is acknowledged; none, or wait:N for N replicas. Default: none.
    pub(super) durability: Option<String>,
}

/// The gateway's own secret, and where others are.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Secrets {
    /// Seals what is kept secret, and keys hashes and fingerprints; 16 characters or more, the same for all gateways that share a store, which must have one. Default: made at the first start and kept beside an embedded store.
    pub(super) key: Option<Secret>,
    /// OpenBao or Vault, a KV store of version 2.
    pub(super) openbao: Option<OpenBao>,
}

/// OpenBao or Vault, a KV store of version 2.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct OpenBao {
    /// Its URL.
    #[schemars(required)]
    pub(super) address: Option<String>,
    /// The token to come in with; or role_id and secret_id.
    pub(super) token: Option<Secret>,
    /// The application to come in as.
    pub(super) role_id: Option<String>,
    /// The application's password.
    pub(super) secret_id: Option<Secret>,
    /// Where the KV store is mounted. Default: secret.
    pub(super) mount: Option<String>,
    /// The namespace, where there are several.
    pub(super) namespace: Option<String>,
    /// Where the secrets of webhooks are. Default: webhooks/{tenant}/{project}/{provider}.
    pub(super) path: Option<String>,
}

/// Who may call.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Auth {
    /// Keys that this gateway gives out: `onceward keys create`. There is nothing to choose yet.
    pub(super) api_keys: Option<ApiKeys>,
    /// Tokens, one entry for each issuer.
    pub(super) jwt: Vec<Jwt>,
    /// Keys that Unkey gives out.
    pub(super) unkey: Option<Unkey>,
    /// A scheduler that signs its calls.
    pub(super) scheduler: Option<Scheduler>,
}

/// Keys that this gateway gives out.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ApiKeys {}

/// Tokens of one issuer.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Jwt {
    /// What `iss` must be.
    #[schemars(required)]
    pub(super) issuer: Option<String>,
    /// What `aud` must name: a text, or a list of which one is enough.
    #[schemars(required)]
    pub(super) audience: Option<OneOrMany>,
    /// The issuer's keys, by https://. Or jwks_file.
    pub(super) jwks_url: Option<String>,
    /// The issuer's keys in a file. Or jwks_url.
    pub(super) jwks_file: Option<String>,
    /// What tokens may be signed with. Default: RS256 and ES256.
    pub(super) algorithms: Option<Vec<String>>,
    /// Where the tenant is: a JSON Pointer into the claims, or { value = "acme" } for all.
    #[schemars(required)]
    pub(super) tenant: Option<Claim>,
    /// Where the project is. Without it tokens may use only routes of a wider scope.
    pub(super) project: Option<Claim>,
    /// Where the subject's id is. Default: /sub.
    pub(super) subject: Option<Claim>,
    /// What kind of subject it is. Default: user.
    pub(super) subject_type: Option<Word<SubjectKind>>,
    /// Where the scopes are: a JSON Pointer to a list, or to words between blanks.
    pub(super) scopes: Option<String>,
    /// How far the issuer's clock may be off, 60s at most. Default: 30s.
    pub(super) leeway: Option<Time>,
}

/// One text or several.
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

/// Where a caller's name comes from.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(untagged)]
pub(super) enum Claim {
    /// A JSON Pointer into the claims.
    Pointer(String),
    /// The same for all.
    Fixed(Fixed),
}

/// The same for all.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Fixed {
    /// The name.
    #[schemars(required)]
    pub(super) value: Option<String>,
}

/// Keys that Unkey gives out.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Unkey {
    /// Its URL. Default: https://api.unkey.com.
    pub(super) url: Option<String>,
    /// The root key that may verify keys.
    #[schemars(required)]
    pub(super) root_key: Option<Secret>,
    /// The root key that may verify the ids of webhooks.
    pub(super) webhook_root_key: Option<Secret>,
    /// How long an answer is believed, under a minute: so long a revoked key still opens. Default: 10s.
    pub(super) cache: Option<Time>,
    /// How long Unkey may take. Default: 2s.
    pub(super) deadline: Option<Time>,
}

/// A scheduler that signs its calls.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Scheduler {
    /// What it signs with, 16 characters or more. Or secrets.
    pub(super) secret: Option<Secret>,
    /// What it signs with while secrets rotate: each of them counts.
    pub(super) secrets: Vec<Secret>,
    /// How far its clock may be off, in both directions. Default: 5m.
    pub(super) tolerance: Option<Time>,
}

/// Where requests go.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Upstream {
    /// http://, https:// or h2c:// with host and port, and no path.
    #[schemars(required)]
    pub(super) url: Option<String>,
    /// How long it may take to answer. Default: 30s.
    pub(super) timeout: Option<Time>,
    /// How long opening a connection may take. Default: 5s.
    pub(super) connect_timeout: Option<Time>,
    /// How long after its last use a connection is used again; less than the upstream's own limit. Default: 4s.
    pub(super) idle_timeout: Option<Time>,
    /// How many unused connections are kept. Default: 512.
    #[schemars(range(max = 1_000_000))]
    pub(super) idle_max: Option<u32>,
    /// How many connections there are at most. Default: 4096.
    #[schemars(range(min = 1, max = 1_000_000))]
    pub(super) connections_max: Option<u32>,
    /// The Host that the upstream is told. Default: what the client asked for.
    pub(super) host: Option<String>,
    /// What is needed to speak TLS to it, for https://.
    pub(super) tls: Option<UpstreamTls>,
    /// What the events that are delivered to it are signed with, whsec_… as Standard Webhooks has it. Default: made of the gateway's own key; `onceward webhooks create` shows it.
    pub(super) signing_secret: Option<Secret>,
}

/// What is needed to speak TLS to an upstream.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct UpstreamTls {
    /// The file with those who sign its certificate, PEM. Default: those that the system trusts.
    pub(super) ca: Option<String>,
    /// The file with the certificate to show, PEM; with key.
    pub(super) cert: Option<String>,
    /// The file with its private key, PEM; with cert.
    pub(super) key: Option<String>,
    /// The name that its certificate must have. Default: the host of its URL.
    pub(super) server_name: Option<String>,
}

/// What is served, and how.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Route {
    /// The name of its operations, service.handler; a part of their identity, so it never changes.
    #[schemars(required)]
    pub(super) endpoint: Option<String>,
    /// Which methods: one, or a list. Default: all.
    pub(super) method: Option<OneOrMany>,
    /// Its path; {name} matches one segment, {*rest} the remainder.
    #[schemars(required)]
    pub(super) path: Option<String>,
    /// Which upstream its requests go to.
    #[schemars(required)]
    pub(super) upstream: Option<String>,
    /// What a key means here. Default: POST and PATCH are ACCEPTED, other methods are forwarded.
    pub(super) policy: Option<Policy>,
    /// Its retention class. Default: interactive.
    pub(super) class: Option<String>,
    /// Whose names its keys live under. Default: project.
    pub(super) scope: Option<Scope>,
    /// Who may call it: "none" for everybody, or a list of the ways in which callers are known. Default: every known caller.
    pub(super) auth: Option<RouteAuth>,
    /// Which subjects may call it: "user:*", "service:billing". Default: all.
    #[serde(default)]
    pub(super) subjects: Vec<String>,
    /// Scopes that a caller must have, all of them. Default: none.
    #[serde(default)]
    pub(super) scopes: Vec<String>,
    /// What a key must look like. Default: any.
    pub(super) key_format: Option<KeyFormat>,
    /// Makes a key of parts of the request when clients cannot send one.
    pub(super) derived_key: Option<DerivedKey>,
    /// How far a key is unique. Default: endpoint.
    pub(super) key_space: Option<Word<KeySpace>>,
    /// What the upstream is told of the key. Default: namespaced.
    pub(super) forward_key: Option<ForwardKey>,
    /// Which parts of a request are compared when a key comes again. Default: method, path, query, content type and body.
    pub(super) fingerprint: Option<Fingerprint>,
    /// Statuses that are kept, whatever the default says.
    #[schemars(inner(range(min = 200, max = 599)))]
    #[serde(default)]
    pub(super) keep_statuses: Vec<u16>,
    /// Statuses that free the key, whatever the default says.
    #[schemars(inner(range(min = 200, max = 599)))]
    #[serde(default)]
    pub(super) release_statuses: Vec<u16>,
    /// What a replayed 201 is. Default: same.
    pub(super) duplicate_create: Option<Word<DuplicateCreate>>,
    /// Whether the upstream commits the outcome itself, in one transaction with its own rows; it needs a store at postgres://. Default: false.
    pub(super) joined: Option<bool>,
    /// The largest body here. Default: the server's.
    pub(super) body_limit: Option<Size>,
    /// The largest kept reply here. Default: the server's.
    pub(super) reply_limit: Option<Size>,
    /// How long the upstream may take here. Default: the upstream's own.
    pub(super) timeout: Option<Time>,
    /// Which other sites' pages may call it; replaces [cors] whole.
    pub(super) cors: Option<Cors>,
    /// What is changed in requests on their way.
    #[serde(default)]
    pub(super) request_headers: HeaderRules,
    /// What is changed in answers on their way.
    #[serde(default)]
    pub(super) response_headers: HeaderRules,
}

/// Who may call a route.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(untagged)]
pub(super) enum RouteAuth {
    /// Everybody.
    Open(OpenRoute),
    /// Callers known in one of these ways.
    By(Vec<KnownBy>),
}

/// A route without authentication.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(super) enum OpenRoute {
    /// Everybody may call, as one caller.
    None,
}

/// A key for clients that cannot send one.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct DerivedKey {
    /// What it is made of: "caller", "endpoint", a JSON Pointer into the body such as "/order/id", "header:X-Order", "query:order", or "body" for all of it.
    #[schemars(required)]
    pub(super) from: Option<Vec<String>>,
    /// For how long the same parts mean the same operation.
    #[schemars(required)]
    pub(super) window: Option<Time>,
}

/// Which parts of a request are compared: all but some, or some alone.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Fingerprint {
    /// Parts that may differ: a JSON Pointer into the body, or "query:name".
    pub(super) ignore: Vec<String>,
    /// The only parts of the body or the query that count; and headers that count too: "header:X-Currency".
    pub(super) include: Vec<String>,
}

/// Which other sites' pages may call.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Cors {
    /// Which sites: "https://app.example.com", or "*" for all.
    #[schemars(required)]
    pub(super) origins: Option<Vec<String>>,
    /// Headers that pages may send, beside Idempotency-Key and the usual ones.
    #[serde(default)]
    pub(super) headers: Vec<String>,
    /// Headers that pages may read, beside ours.
    #[serde(default)]
    pub(super) expose: Vec<String>,
    /// Whether cookies may come along; not with "*". Default: false.
    pub(super) credentials: Option<bool>,
    /// How long a browser may remember it. Default: 10m.
    pub(super) max_age: Option<Time>,
}

/// What is changed in headers on their way.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct HeaderRules {
    /// Put in, in place of what was there.
    pub(super) set: BTreeMap<String, String>,
    /// Taken out, first.
    pub(super) remove: Vec<String>,
}

/// What providers send, and where it goes. Each webhook may say otherwise: `onceward webhooks create`.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Webhooks {
    /// Where events go. Default: nowhere, and each webhook says it.
    pub(super) upstream: Option<String>,
    /// Under which path of the upstream; {provider} is the provider's name. Default: /webhooks/{provider}.
    pub(super) path: Option<String>,
    /// Their retention class. Default: webhook.
    pub(super) class: Option<String>,
    /// How far a provider's clock may be off, in both directions; or "off", and no time is looked at. Default: 5m.
    pub(super) tolerance: Option<Tolerance>,
    /// What becomes of bytes that came before, under an id that is new and not signed. Default: deliver.
    pub(super) same_bytes: Option<SameBytes>,
    /// How long an old secret counts after a rotation. Default: 24h.
    pub(super) overlap: Option<Time>,
    /// How many deliveries are under way at once. Default: 256.
    #[schemars(range(min = 1, max = 100_000))]
    pub(super) deliveries: Option<u32>,
    /// How many of them to one upstream. Default: 64.
    #[schemars(range(min = 1, max = 100_000))]
    pub(super) deliveries_per_upstream: Option<u32>,
    /// Providers that are not built in, by name: a-z, 0-9 and hyphens.
    pub(super) providers: BTreeMap<String, WebhookProvider>,
}

/// A provider that signs with an HMAC in a header.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct WebhookProvider {
    /// The header that the signature is in.
    #[schemars(required)]
    pub(super) signature_header: Option<String>,
    /// What stands before a signature. Default: nothing.
    pub(super) prefix: Option<String>,
    /// What stands between several signatures. Default: there is one.
    pub(super) separator: Option<String>,
    /// The hash. Default: sha256.
    #[schemars(extend("enum" = ["sha1", "sha256", "sha512"]))]
    pub(super) algorithm: Option<String>,
    /// How a signature is written. Default: hex.
    #[schemars(extend("enum" = ["hex", "base64", "base64url"]))]
    pub(super) encoding: Option<String>,
    /// How a secret is written. Default: text.
    #[schemars(extend("enum" = ["text", "base64", "hex"]))]
    pub(super) secret: Option<String>,
    /// What is signed: a text with {body} once, and {timestamp}, {url} and {header:NAME} as they are needed. Default: {body}.
    pub(super) signed: Option<String>,
    /// Where the signed time is. Default: none is signed.
    pub(super) timestamp: Option<WebhookTimestamp>,
    /// Where an event's id is: "json:/id", a JSON Pointer into the body; "header:X-Event-Id"; or "form:id".
    #[schemars(required)]
    pub(super) id: Option<String>,
}

/// Where the signed time is.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct WebhookTimestamp {
    /// The header that it is in.
    #[schemars(required)]
    pub(super) header: Option<String>,
    /// Seconds or milliseconds since 1970. Default: s.
    #[schemars(extend("enum" = ["s", "ms"]))]
    pub(super) unit: Option<String>,
}

/// How much of everything.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Limits {
    /// Connections of clients. Default: 20000.
    #[schemars(range(min = 1, max = 1_000_000))]
    pub(super) connections: Option<u32>,
    /// Requests under way on one HTTP/2 connection. Default: 256.
    #[schemars(range(min = 1, max = 100_000))]
    pub(super) streams: Option<u32>,
    /// Requests that wait for one operation. Default: 10000.
    #[schemars(range(min = 1, max = 10_000_000))]
    pub(super) waiters_per_key: Option<u32>,
    /// Requests of one tenant that wait. Default: 20000.
    #[schemars(range(min = 1, max = 10_000_000))]
    pub(super) waiters_per_tenant: Option<u32>,
    /// Requests that wait, in all. Default: 100000.
    #[schemars(range(min = 1, max = 10_000_000))]
    pub(super) waiters: Option<u32>,
    /// Operations that run at a time. Default: 50000.
    #[schemars(range(min = 1, max = 10_000_000))]
    pub(super) in_flight: Option<u32>,
    /// Operations of one tenant that run at a time. Default: 10000.
    #[schemars(range(min = 1, max = 10_000_000))]
    pub(super) in_flight_per_tenant: Option<u32>,
    /// How often one tenant may ask. Default: as often as it likes.
    pub(super) requests_per_tenant: Option<Rate>,
    /// Bytes of request bodies held at a time. Default: 1GiB.
    pub(super) buffered_bytes: Option<Size>,
    /// Tenants and projects that have metrics of their own; the rest are `other`. Default: 100.
    #[schemars(range(max = 100_000))]
    pub(super) label_values: Option<u32>,
    /// How long one step of the store may take. Default: 2s.
    pub(super) store_deadline: Option<Time>,
}

/// How often.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Rate {
    /// Requests per second, in the long run.
    #[schemars(required, range(min = 1, max = 10_000_000))]
    pub(super) per_second: Option<u32>,
    /// Requests at once. Default: as many as per second.
    #[schemars(range(min = 1, max = 10_000_000))]
    pub(super) burst: Option<u32>,
}

/// What is told of it.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Telemetry {
    /// How keys stand in logs. Default: hashed.
    pub(super) keys: Option<LoggedKeys>,
    /// Where traces go. Default: nowhere.
    pub(super) otlp: Option<Otlp>,
}

/// Where traces go.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Otlp {
    /// The collector's URL, OTLP over HTTP.
    #[schemars(required)]
    pub(super) endpoint: Option<String>,
    /// What this service is called there. Default: onceward.
    pub(super) service: Option<String>,
    /// Which part of the traces that begin here is told, from 0 to 1. Default: 1.
    #[schemars(range(min = 0.0, max = 1.0))]
    pub(super) sample: Option<f64>,
}
