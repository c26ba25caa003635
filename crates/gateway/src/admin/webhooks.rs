//! Webhooks over the wire: made, listed, given other secrets, taken away. A
//! secret comes in here and goes out only where the gateway made it, once.

use std::time::Duration;

use axum::extract::State;
use axum::http::StatusCode;
use axum::{Extension, Json};
use onceward_core::store::StoreError;
use schemars::JsonSchema;
use secrecy::{ExposeSecret, SecretString};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Value, json};
use tokio::time::timeout;

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

/// How long a change may take; OpenBao may be asked for it.
const DEADLINE: Duration = Duration::from_secs(10);

/// Which webhooks.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct WebhooksQuery {
    /// Of this tenant.
    tenant: Option<String>,
    /// Of this project.
    project: Option<String>,
    /// Of this provider.
    provider: Option<String>,
    /// How many at most, from 1 to 1000. Default: 100.
    limit: Option<usize>,
    /// Where the page before ended: its `next`.
    after: Option<String>,
}

/// A page of webhooks.
#[derive(Serialize, JsonSchema)]
pub(super) struct WebhooksPage {
    /// The webhooks, the oldest first. Those of Unkey's are not among them.
    webhooks: Vec<Webhook>,
    /// Where the next page begins; null at the end.
    next: Option<String>,
}

/// A webhook, without its secrets.
#[derive(Serialize, JsonSchema)]
pub(super) struct Webhook {
    /// Its id, which is in its URL.
    webhook_id: String,
    /// Where the provider sends to.
    url: String,
    /// Whose events they are.
    tenant: String,
    /// Which project's.
    project: String,
    /// Operator sends them.
    provider: String,
    /// How they are signed, where it was said.
    scheme: Option<String>,
    /// Where they go.
    upstream: Option<String>,
    /// Under which path.
    path: Option<String>,
    /// When they go: `async`, after they were acknowledged; or `sync`, within the provider's request.
    deliver: Option<&'static str>,
    /// What becomes of the same bytes under another id that is not signed: `deliver` or `refuse`.
    same_bytes: &'static str,
    /// What they are verified with.
    secrets: Secrets,
    /// Why it cannot be served as things are configured; null where it can.
    problem: Option<String>,
    /// When it was made.
    created_at: String,
}

/// What is told of a webhook's secrets.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "WebhookSecrets")]
struct Secrets {
    /// Where they are: `sealed` in the gateway's own store, or in `openbao`.
    kept: &'static str,
    /// At which path of OpenBao.
    path: Option<String>,
    /// Those that are valid now, the oldest first; null where they are in OpenBao.
    valid: Option<Vec<ValidSecret>>,
}

/// What is told of a secret.
#[derive(Serialize, JsonSchema)]
struct ValidSecret {
    /// When it was given.
    created_at: String,
    /// When it ends; null for one that is current.
    until: Option<String>,
}

/// A webhook that is wanted.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct CreateWebhook {
    /// Whose events they are.
    tenant: String,
    /// Which project's.
    project: String,
    /// Operator sends them: a built-in provider, or one of the configuration.
    provider: String,
    /// What the provider signs with: one, or several while they rotate, 5 at most. Without them they are those in OpenBao, where that is configured; else no event is accepted until one is given by rotating.
    #[serde(default, deserialize_with = "secret_texts")]
    #[schemars(with = "Option<Vec<String>>")]
    secrets: Option<Vec<SecretString>>,
    /// Makes a secret for a provider that takes one. Default: false.
    #[serde(default)]
    generate: bool,
    /// How they are signed, where the provider has several ways. Default: its usual one.
    scheme: Option<String>,
    /// Where they go. Default: as the configuration says.
    upstream: Option<String>,
    /// Under which path. Default: as the configuration says.
    path: Option<String>,
    /// When they go. Default: async, but sync for twilio.
    deliver: Option<Deliver>,
    /// What becomes of the same bytes under another id that is not signed. Default: as the configuration says.
    same_bytes: Option<SameBytes>,
    /// Why; the audit keeps it.
    #[serde(default = "created")]
    why: String,
}

/// Operator makes a webhook need not say why.
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
    /// The reason, for the audit.
    why: String,
}

/// A wish for another secret.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RotateWebhook {
    /// The new one.
    #[serde(default, deserialize_with = "secret_text")]
    #[schemars(with = "Option<String>")]
    secret: Option<SecretString>,
    /// Makes one, for a provider that takes it. Default: false.
    #[serde(default)]
    generate: bool,
    /// How long the old ones still count, such as 24h. Default: as the configuration says.
    overlap: Option<Time>,
    /// Why; the audit keeps it.
    why: String,
}

/// A wish to take a webhook away.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct DeleteWebhook {
    /// Why; the audit keeps it.
    why: String,
}

impl RequestBody for CreateWebhook {}
impl RequestBody for UpdateWebhook {}
impl RequestBody for RotateWebhook {}
impl RequestBody for DeleteWebhook {}

/// A webhook that was made, or given another secret.
#[derive(Serialize, JsonSchema)]
pub(super) struct MadeWebhook {
    /// Its id.
    webhook_id: String,
    /// Where the provider is to send to.
    url: String,
    /// The secret to tell the provider, where it was made here. It is shown this once.
    #[serde(skip_serializing_if = "Option::is_none")]
    secret: Option<String>,
    /// What the gateway signs its deliveries to the upstream with, as Standard Webhooks has it; null where the upstream was given its own `signing_secret`.
    signing_secret: Option<String>,
    /// What is kept of it.
    webhook: Webhook,
}

/// A webhook by which nothing comes in any more.
#[derive(Serialize, JsonSchema)]
pub(super) struct DeletedWebhook {
    /// Which.
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
        .map(|shown| Webhook::of(shown, &admin, &config));
    Ok(Json(WebhooksPage {
        webhooks: webhooks.collect(),
        next: page.next,
    }))
}

pub(super) async fn show(
    State(admin): State<AdminState>,
    PathParam(id): PathParam,
) -> Result<Json<Webhook>, Problem> {
    let shown = admin.webhooks.show(&id).ok_or_else(no_webhook)?;
    Ok(Json(Webhook::of(&shown, &admin, &(admin.config)())))
}

pub(super) async fn create(
    State(admin): State<AdminState>,
    Extension(operator): Extension<Operator>,
    JsonBody(ask): JsonBody<CreateWebhook>,
) -> Result<(StatusCode, Json<MadeWebhook>), Problem> {
    let reason = parse_why(&ask.why)?;
    let (secrets, told) = match (ask.secrets, ask.generate) {
        (Some(_), true) => {
            return Err(Problem::bad_request(
                "Give `secrets` or let one `generate`, not both.",
            ));
        }
        (Some(given), false) => {
            let told = format!("{} given", given.len());
            (NewSecrets::Given(given), told)
        }
        (None, true) => (NewSecrets::Generated, "generated".to_owned()),
        (None, false) => (NewSecrets::Omitted, "none given".to_owned()),
    };
    let change = Change::by(&operator, Action::CreateWebhook, &reason).with_request(json!({
        "tenant": ask.tenant,
        "project": ask.project,
        "provider": ask.provider,
        "scheme": ask.scheme,
        "upstream": ask.upstream,
        "path": ask.path,
        "deliver": ask.deliver.map(Deliver::as_str),
        "same_bytes": ask.same_bytes.map(SameBytes::as_str),
        "secrets": told,
    }));
    let new = NewWebhook {
        tenant: ask.tenant,
        project: ask.project,
        provider: ask.provider,
        scheme: ask.scheme,
        upstream: ask.upstream,
        path: ask.path,
        deliver: ask.deliver,
        same_bytes: ask.same_bytes,
        secrets,
    };
    let (webhooks, config) = (admin.webhooks.clone(), (admin.config)());
    let at = admin.clone();
    let work = async move {
        let created = within_deadline(webhooks.create(&config, new)).await?;
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
    JsonBody(ask): JsonBody<RotateWebhook>,
) -> Result<Json<MadeWebhook>, Problem> {
    let reason = parse_why(&ask.why)?;
    let told = match (&ask.secret, ask.generate) {
        (Some(_), false) => "given",
        (None, true) => "generated",
        (Some(_), true) | (None, false) => {
            let detail =
                "Give the new `secret`, or let one `generate` where the provider takes it.";
            return Err(Problem::bad_request(detail));
        }
    };
    let overlap = ask.overlap.as_ref().map(|time| {
        let wrong =
            |error| Problem::bad_request(format!("`overlap` {error}; write 24h, for example."));
        time.parse().map_err(wrong)
    });
    let overlap = overlap.transpose()?;
    let change = Change::by(&operator, Action::RotateWebhook, &reason)
        .on(id.clone())
        .with_request(json!({ "secret": told, "overlap": ask.overlap.map(|time| time.0) }));
    let (webhooks, config) = (admin.webhooks.clone(), (admin.config)());
    let at = admin.clone();
    let work = async move {
        let rotated = within_deadline(webhooks.rotate(&config, &id, ask.secret, overlap)).await?;
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
    JsonBody(ask): JsonBody<UpdateWebhook>,
) -> Result<Json<Webhook>, Problem> {
    let why = parse_why(&ask.why)?;
    if ask.upstream.is_none() && ask.path.is_none() {
        return Err(Problem::bad_request(
            "Give the new `upstream`, the new `path`, or both.",
        ));
    }
    let request = json!({ "upstream": ask.upstream, "path": ask.path });
    let change = Change::by(&operator, Action::UpdateWebhook, &why)
        .on(id.clone())
        .with_request(request);
    let destination = NewDestination {
        upstream: ask.upstream,
        path: ask.path,
    };
    let (webhooks, config) = (admin.webhooks.clone(), (admin.config)());
    let at = admin.clone();
    let work = async move {
        match within_deadline(webhooks.update(&config, &id, destination)).await? {
            Updated::Absent => Err(no_webhook()),
            Updated::Done(shown) => {
                let webhook = Webhook::of(&shown, &at, &config);
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
    JsonBody(ask): JsonBody<DeleteWebhook>,
) -> Result<Json<DeletedWebhook>, Problem> {
    let change = Change::by(&operator, Action::DeleteWebhook, &parse_why(&ask.why)?).on(id.clone());
    let webhooks = admin.webhooks.clone();
    let work = async move {
        match within_deadline(webhooks.delete(&id)).await? {
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
    let webhook = Webhook::of(shown, admin, config);
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
    Problem::not_found("There is no webhook with this id in the gateway's own registry.")
}

async fn within_deadline<T>(
    work: impl Future<Output = Result<T, WebhooksError>>,
) -> Result<T, Problem> {
    match timeout(DEADLINE, work).await {
        Ok(answer) => answer.map_err(|error| refusal(&error)),
        Err(late) => Err(Problem::store_write(&StoreError::Unavailable(Box::new(
            late,
        )))),
    }
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
            tracing::error!(%error, "a webhook could not be changed");
            Problem::store_unavailable(detail)
        }
    }
}

impl Webhook {
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
            secrets: Secrets {
                kept,
                path: secrets_path,
                valid,
            },
            problem: problem.map(|mistake| mistake.to_string()),
            created_at: record.created_at.to_string(),
        }
    }
}

/// Where a provider sends to.
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

/// A secret on its way in. What is wrong with it is told without telling it.
fn secret_text<'de, D: Deserializer<'de>>(from: D) -> Result<Option<SecretString>, D::Error> {
    match Value::deserialize(from)? {
        Value::Null => Ok(None),
        Value::String(text) => Ok(Some(text.into())),
        _ => Err(serde::de::Error::custom("`secret` must be a string")),
    }
}

/// The same for several.
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
