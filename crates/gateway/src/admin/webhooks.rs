//! `/admin/v1/webhooks`: webhooks are listed, shown, created, rotated and deleted.
//! Secrets are write-only; only the answer to a creation or rotation contains the
//! secret, if the gateway generated it.

use std::time::Duration;

use axum::extract::State;
use axum::http::StatusCode;
use axum::{Extension, Json};
use onceward_core::deadline::store_within;
use schemars::JsonSchema;
use secrecy::{ExposeSecret, SecretString};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Value, json};

use super::extract::{JsonBody, PathParam, QueryParams, RequestBody, parse_why};
use super::operators::Operator;
use super::page::paginate;
use super::problem::Problem;
use super::{Action, AdminState, Applied, Change};
use crate::config::units::Time;
use crate::config::{Config, Deliver, SameBytes};
use crate::webhooks::registry::{
    Deleted, EffectiveSettings, NewDestination, NewSecrets, NewWebhook, Rotated, SecretsView,
    Updated, WebhookView, WebhooksError,
};

/// The time limit for a change; it may need OpenBao.
const DEADLINE: Duration = Duration::from_secs(10);

/// Which webhooks, and which page of them.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct WebhooksQuery {
    /// The tenant.
    tenant: Option<String>,
    /// The project.
    project: Option<String>,
    /// The provider.
    provider: Option<String>,
    /// The largest number of webhooks, from 1 to 1000. Default: 100.
    limit: Option<usize>,
    /// The cursor from the previous page: its `next`.
    after: Option<String>,
}

/// A page of webhooks.
#[derive(Serialize, JsonSchema)]
pub(super) struct WebhooksPage {
    /// The webhooks, the oldest first, without those whose ids are in Unkey.
    webhooks: Vec<WebhookSummary>,
    /// The cursor of the next page; null on the last page.
    next: Option<String>,
}

/// A webhook, without its secrets.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Webhook")]
pub(super) struct WebhookSummary {
    /// The id; part of the URL.
    webhook_id: String,
    /// The URL that the provider sends events to.
    url: String,
    /// The tenant of its events.
    tenant: String,
    /// The project of its events.
    project: String,
    /// The provider.
    provider: String,
    /// The signature scheme, if one was chosen.
    scheme: Option<String>,
    /// The upstream that receives the events.
    upstream: Option<String>,
    /// The path at the upstream.
    path: Option<String>,
    /// When events are forwarded: `async`, after they were acknowledged; or `sync`, within the provider's request.
    deliver: Option<&'static str>,
    /// What happens to an event with the bytes of an earlier one and a new id that is not signed: `deliver` or `refuse`.
    same_bytes: &'static str,
    /// The secrets that verify events.
    secrets: WebhookSecrets,
    /// Why it cannot be served with the current configuration; null if it can.
    problem: Option<String>,
    /// When it was created.
    created_at: String,
}

/// The secrets of a webhook, without their values.
#[derive(Serialize, JsonSchema)]
struct WebhookSecrets {
    /// Where they are: `sealed` in the gateway's own store, or in `openbao`.
    kept: &'static str,
    /// The path in OpenBao.
    path: Option<String>,
    /// Those that are valid now, the oldest first; null where they are in OpenBao.
    valid: Option<Vec<ValidSecret>>,
}

/// A valid secret, without its value.
#[derive(Serialize, JsonSchema)]
struct ValidSecret {
    /// When it was added.
    created_at: String,
    /// When it becomes invalid; null for a current one.
    until: Option<String>,
}

/// Creates a webhook.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct CreateWebhook {
    /// The tenant of its events.
    tenant: String,
    /// The project of its events.
    project: String,
    /// The provider: a built-in provider, or one of the configuration.
    provider: String,
    /// The provider's secret, or several during a rotation, 5 at most. Without any, the secrets are those in OpenBao, if it is configured; otherwise no event is accepted until a rotation adds one.
    #[serde(default, deserialize_with = "secret_texts")]
    #[schemars(with = "Option<Vec<String>>")]
    secrets: Option<Vec<SecretString>>,
    /// Generates a secret, for a provider that accepts one. Default: false.
    #[serde(default)]
    generate: bool,
    /// The signature scheme, where the provider has several. Default: its usual one.
    scheme: Option<String>,
    /// The upstream that receives the events. Default: as configured.
    upstream: Option<String>,
    /// The path at the upstream. Default: as configured.
    path: Option<String>,
    /// When events are forwarded. Default: async, but sync for twilio.
    deliver: Option<Deliver>,
    /// What happens to an event with the bytes of an earlier one and a new id that is not signed. Default: as configured.
    same_bytes: Option<SameBytes>,
    /// The reason; the audit log keeps it.
    #[serde(default = "created")]
    why: String,
}

/// The default reason of a creation.
fn created() -> String {
    "created through the admin API".to_owned()
}

/// A new destination of a webhook's events.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct UpdateWebhook {
    /// The upstream. Default: unchanged.
    upstream: Option<String>,
    /// The path at the upstream. Default: unchanged.
    path: Option<String>,
    /// The reason; the audit log keeps it.
    why: String,
}

/// Gives a webhook a new secret.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RotateWebhook {
    /// The new secret.
    #[serde(default, deserialize_with = "secret_text")]
    #[schemars(with = "Option<String>")]
    secret: Option<SecretString>,
    /// Generates the secret, for a provider that accepts one. Default: false.
    #[serde(default)]
    generate: bool,
    /// How long the old secrets stay valid, such as 24h. Default: as configured.
    overlap: Option<Time>,
    /// The reason; the audit log keeps it.
    why: String,
}

/// Deletes a webhook.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct DeleteWebhook {
    /// The reason; the audit log keeps it.
    why: String,
}

impl RequestBody for CreateWebhook {}
impl RequestBody for UpdateWebhook {}
impl RequestBody for RotateWebhook {}
impl RequestBody for DeleteWebhook {}

/// A created or rotated webhook.
#[derive(Serialize, JsonSchema)]
pub(super) struct MadeWebhook {
    /// The id.
    webhook_id: String,
    /// The URL to give to the provider.
    url: String,
    /// The secret to give to the provider, if it was generated. No other answer shows it.
    #[serde(skip_serializing_if = "Option::is_none")]
    secret: Option<String>,
    /// The secret that signs deliveries to the upstream, as in Standard Webhooks; null if the upstream has its own `signing_secret`.
    signing_secret: Option<String>,
    /// The webhook, without its secrets.
    webhook: WebhookSummary,
}

/// A deleted webhook.
#[derive(Serialize, JsonSchema)]
pub(super) struct DeletedWebhook {
    /// The id.
    webhook_id: String,
}

pub(super) async fn list(
    State(admin): State<AdminState>,
    QueryParams(query): QueryParams<WebhooksQuery>,
) -> Result<Json<WebhooksPage>, Problem> {
    let all = admin.webhooks.list();
    let is = |want: &Option<String>, got: &str| want.as_ref().is_none_or(|want| want == got);
    let wanted = |shown: &WebhookView| {
        let record = &shown.registration;
        is(&query.tenant, record.caller.tenant())
            && is(&query.project, record.caller.project())
            && is(&query.provider, &record.provider)
    };
    let (limit, after) = (query.limit, query.after.as_deref());
    let page = paginate(&all, |shown| &shown.registration.id, wanted, limit, after)?;
    let config = (admin.config)();
    let webhooks = page
        .items
        .into_iter()
        .map(|shown| WebhookSummary::of(shown, &admin, &config));
    Ok(Json(WebhooksPage {
        webhooks: webhooks.collect(),
        next: page.next,
    }))
}

pub(super) async fn show(
    State(admin): State<AdminState>,
    PathParam(id): PathParam,
) -> Result<Json<WebhookSummary>, Problem> {
    let shown = admin.webhooks.show(&id).ok_or_else(no_webhook)?;
    Ok(Json(WebhookSummary::of(&shown, &admin, &(admin.config)())))
}

pub(super) async fn create(
    State(admin): State<AdminState>,
    Extension(operator): Extension<Operator>,
    JsonBody(request): JsonBody<CreateWebhook>,
) -> Result<(StatusCode, Json<MadeWebhook>), Problem> {
    let reason = parse_why(&request.why)?;
    let (secrets, origin) = match (request.secrets, request.generate) {
        (Some(_), true) => {
            return Err(Problem::bad_request(
                "Send `secrets` or `generate`, not both.",
            ));
        }
        (Some(given), false) => {
            let origin = format!("{} given", given.len());
            (NewSecrets::Given(given), origin)
        }
        (None, true) => (NewSecrets::Generated, "generated".to_owned()),
        (None, false) => (NewSecrets::Omitted, "none given".to_owned()),
    };
    let change = Change::by(&operator, Action::CreateWebhook, &reason).with_request(json!({
        "tenant": request.tenant,
        "project": request.project,
        "provider": request.provider,
        "scheme": request.scheme,
        "upstream": request.upstream,
        "path": request.path,
        "deliver": request.deliver.map(Deliver::as_str),
        "same_bytes": request.same_bytes.map(SameBytes::as_str),
        "secrets": origin,
    }));
    let new = NewWebhook {
        tenant: request.tenant,
        project: request.project,
        provider: request.provider,
        scheme: request.scheme,
        upstream: request.upstream,
        path: request.path,
        deliver: request.deliver,
        same_bytes: request.same_bytes,
        secrets,
    };
    let (webhooks, config) = (admin.webhooks.clone(), (admin.config)());
    let at = admin.clone();
    let work = async move {
        let created = Box::pin(changed(webhooks.create(&config, new))).await?;
        let answer = made(&at, &config, &created.shown, created.secret);
        Ok(Applied {
            result: json!({ "webhook_id": answer.webhook_id }),
            answer,
        })
    };
    let created = admin.change(change, work).await?;
    Ok((StatusCode::CREATED, Json(created)))
}

pub(super) async fn rotate(
    State(admin): State<AdminState>,
    Extension(operator): Extension<Operator>,
    PathParam(id): PathParam,
    JsonBody(request): JsonBody<RotateWebhook>,
) -> Result<Json<MadeWebhook>, Problem> {
    let reason = parse_why(&request.why)?;
    let origin = match (&request.secret, request.generate) {
        (Some(_), false) => "given",
        (None, true) => "generated",
        (Some(_), true) | (None, false) => {
            let detail =
                "Send the new `secret`, or `generate` if the provider accepts a generated one.";
            return Err(Problem::bad_request(detail));
        }
    };
    let overlap = request.overlap.as_ref().map(|time| {
        let wrong =
            |error| Problem::bad_request(format!("`overlap` {error}; write 24h, for example."));
        time.parse().map_err(wrong)
    });
    let overlap = overlap.transpose()?;
    let change = Change::by(&operator, Action::RotateWebhook, &reason)
        .on(id.clone())
        .with_request(json!({ "secret": origin, "overlap": request.overlap.map(|time| time.0) }));
    let (webhooks, config) = (admin.webhooks.clone(), (admin.config)());
    let at = admin.clone();
    let work = async move {
        let rotated = changed(webhooks.rotate(&config, &id, request.secret, overlap)).await?;
        let Rotated::Done(rotated) = rotated else {
            return Err(no_webhook());
        };
        let answer = made(&at, &config, &rotated.shown, rotated.secret);
        let valid = answer.webhook.secrets.valid.as_ref().map(Vec::len);
        Ok(Applied {
            result: json!({ "valid_secrets": valid }),
            answer,
        })
    };
    admin.change(change, work).await.map(Json)
}

pub(super) async fn update(
    State(admin): State<AdminState>,
    Extension(operator): Extension<Operator>,
    PathParam(id): PathParam,
    JsonBody(request): JsonBody<UpdateWebhook>,
) -> Result<Json<WebhookSummary>, Problem> {
    let why = parse_why(&request.why)?;
    if request.upstream.is_none() && request.path.is_none() {
        return Err(Problem::bad_request(
            "Give the new `upstream`, the new `path`, or both.",
        ));
    }
    let parameters = json!({ "upstream": request.upstream, "path": request.path });
    let change = Change::by(&operator, Action::UpdateWebhook, &why)
        .on(id.clone())
        .with_request(parameters);
    let destination = NewDestination {
        upstream: request.upstream,
        path: request.path,
    };
    let (webhooks, config) = (admin.webhooks.clone(), (admin.config)());
    let at = admin.clone();
    let work = async move {
        match changed(webhooks.update(&config, &id, destination)).await? {
            Updated::Absent => Err(no_webhook()),
            Updated::Done(shown) => {
                let webhook = WebhookSummary::of(&shown, &at, &config);
                Ok(Applied {
                    result: json!({ "upstream": webhook.upstream, "path": webhook.path }),
                    answer: webhook,
                })
            }
        }
    };
    admin.change(change, work).await.map(Json)
}

pub(super) async fn delete(
    State(admin): State<AdminState>,
    Extension(operator): Extension<Operator>,
    PathParam(id): PathParam,
    JsonBody(request): JsonBody<DeleteWebhook>,
) -> Result<Json<DeletedWebhook>, Problem> {
    let change =
        Change::by(&operator, Action::DeleteWebhook, &parse_why(&request.why)?).on(id.clone());
    let webhooks = admin.webhooks.clone();
    let work = async move {
        match changed(webhooks.delete(&id)).await? {
            Deleted::Absent => Err(no_webhook()),
            Deleted::Done => Ok(Applied {
                result: Value::Null,
                answer: DeletedWebhook { webhook_id: id },
            }),
        }
    };
    admin.change(change, work).await.map(Json)
}

fn made(
    admin: &AdminState,
    config: &Config,
    shown: &WebhookView,
    secret: Option<SecretString>,
) -> MadeWebhook {
    let webhook = WebhookSummary::of(shown, admin, config);
    let upstream = webhook.upstream.as_deref();
    let signing = upstream.and_then(|name| admin.webhooks.derived_signing_secret(config, name));
    let shown_once = |secret: SecretString| secret.expose_secret().to_owned();
    MadeWebhook {
        webhook_id: webhook.webhook_id.clone(),
        url: webhook.url.clone(),
        secret: secret.map(shown_once),
        signing_secret: signing.map(shown_once),
        webhook,
    }
}

fn no_webhook() -> Problem {
    Problem::not_found("No webhook in this gateway's registry has this id.")
}

async fn changed<T>(change: impl Future<Output = Result<T, WebhooksError>>) -> Result<T, Problem> {
    let changed = store_within(DEADLINE, change).await;
    changed.map_err(|error| refusal(&error))
}

fn refusal(error: &WebhooksError) -> Problem {
    let detail = format!("Nothing was changed: {error}.").replace("?.", "?");
    match error {
        WebhooksError::Mistaken(_) => Problem::bad_request(detail),
        WebhooksError::TooMany
        | WebhooksError::Overfull
        | WebhooksError::TooManySecrets
        | WebhooksError::InOpenBao { .. }
        | WebhooksError::Unfit { .. }
        | WebhooksError::NoSecret { .. }
        | WebhooksError::Signing { .. }
        | WebhooksError::Damaged { .. } => Problem::conflict(detail),
        WebhooksError::Store(error) => Problem::store_write(error),
        WebhooksError::Secret(_)
        | WebhooksError::Unkey
        | WebhooksError::UnkeySetup(_)
        | WebhooksError::Wire(_)
        | WebhooksError::Random(_)
        | WebhooksError::NoFreeId => {
            tracing::error!(%error, "webhook not changed");
            Problem::store_unavailable(detail)
        }
    }
}

impl WebhookSummary {
    fn of(shown: &WebhookView, admin: &AdminState, config: &Config) -> Self {
        let record = &shown.registration;
        let EffectiveSettings {
            upstream,
            path,
            deliver,
            secrets_path,
            problem,
        } = shown.effective(config);
        let (kept, valid) = match &shown.secrets {
            SecretsView::OpenBao => ("openbao", None),
            SecretsView::Sealed(valid) => {
                let valid = valid.iter().map(|secret| ValidSecret {
                    created_at: secret.created_at.to_string(),
                    until: secret.until.map(|until| until.to_string()),
                });
                ("sealed", Some(valid.collect()))
            }
        };
        let same_bytes = record.same_bytes.unwrap_or(config.webhooks.same_bytes);
        Self {
            webhook_id: record.id.to_string(),
            url: url(admin, config, &record.provider, &record.id),
            tenant: record.caller.tenant().to_owned(),
            project: record.caller.project().to_owned(),
            provider: record.provider.to_string(),
            scheme: record.scheme.as_ref().map(ToString::to_string),
            upstream,
            path,
            deliver: deliver.map(Deliver::as_str),
            same_bytes: same_bytes.as_str(),
            secrets: WebhookSecrets {
                kept,
                path: secrets_path,
                valid,
            },
            problem: problem.map(|mistake| mistake.to_string()),
            created_at: record.created_at.to_string(),
        }
    }
}

/// The URL that a provider sends events to.
fn url(admin: &AdminState, config: &Config, provider: &str, id: &str) -> String {
    let base = config.server.public_url.clone().unwrap_or_else(|| {
        let scheme = match config.server.tls {
            Some(_) => "https",
            None => "http",
        };
        format!("{scheme}://{}", admin.listen)
    });
    format!("{base}/api/v1/webhooks/{provider}/{id}")
}

/// Deserializes a secret. An error must not contain its value.
fn secret_text<'de, D: Deserializer<'de>>(from: D) -> Result<Option<SecretString>, D::Error> {
    match Value::deserialize(from)? {
        Value::Null => Ok(None),
        Value::String(text) => Ok(Some(text.into())),
        _ => Err(serde::de::Error::custom("`secret` must be a string")),
    }
}

/// Deserializes a list of secrets, likewise.
fn secret_texts<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Vec<SecretString>>, D::Error> {
    let wrong = || serde::de::Error::custom("`secrets` must be a list of strings");
    match Value::deserialize(from)? {
        Value::Null => Ok(None),
        Value::Array(texts) => {
            let texts = texts.into_iter().map(|text| match text {
                Value::String(text) => Ok(SecretString::from(text)),
                _ => Err(wrong()),
            });
            texts.collect::<Result<Vec<_>, _>>().map(Some)
        }
        _ => Err(wrong()),
    }
}
