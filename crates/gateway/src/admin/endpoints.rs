//! Everything that the API serves, in one list: where, by which role, in which
//! words, by which handler. The router and the OpenAPI document are made of it.

use axum::http::Method;
use axum::routing::{MethodRouter, get, post};
use schemars::{JsonSchema, Schema, SchemaGenerator};

use super::{AdminState, audit, classes, keys, openapi, operations, problem, reload, webhooks};
use crate::config::Role;

/// How a type is described.
pub(super) type Describe = fn(&mut SchemaGenerator) -> Schema;

/// One thing that is served.
pub(super) struct AdminEndpoint {
    pub(super) method: Method,
    pub(super) path: &'static str,
    /// The smallest role that may use it.
    pub(super) role: Role,
    /// Its name for programs.
    pub(super) name: &'static str,
    /// What it does, in a sentence.
    pub(super) summary: &'static str,
    /// What its query may say.
    pub(super) query: Option<Describe>,
    /// What its body says.
    pub(super) body: Option<Describe>,
    /// What it answers, under which status.
    pub(super) answer: (u16, Describe),
    pub(super) handler: MethodRouter<AdminState>,
}

/// What a problem looks like.
pub(super) const PROBLEM: Describe = describe::<problem::ProblemBody>;

fn describe<T: JsonSchema>(generator: &mut SchemaGenerator) -> Schema {
    generator.subschema_for::<T>()
}

fn look<A: JsonSchema>(
    path: &'static str,
    name: &'static str,
    summary: &'static str,
    handler: MethodRouter<AdminState>,
) -> AdminEndpoint {
    AdminEndpoint {
        method: Method::GET,
        path,
        role: Role::Read,
        name,
        summary,
        query: None,
        body: None,
        answer: (200, describe::<A>),
        handler,
    }
}

fn change<B: JsonSchema, A: JsonSchema>(
    role: Role,
    path: &'static str,
    name: &'static str,
    summary: &'static str,
    handler: MethodRouter<AdminState>,
) -> AdminEndpoint {
    AdminEndpoint {
        method: Method::POST,
        role,
        body: Some(describe::<B>),
        ..look::<A>(path, name, summary, handler)
    }
}

impl AdminEndpoint {
    fn asking<Q: JsonSchema>(self) -> Self {
        Self {
            query: Some(describe::<Q>),
            ..self
        }
    }

    fn answering(self, status: u16) -> Self {
        let answer = (status, self.answer.1);
        Self { answer, ..self }
    }
}

/// All of them.
pub(super) fn all() -> Vec<AdminEndpoint> {
    use Role::{Admin, Operate};
    vec![
        look::<operations::OperationsPage>(
            "/admin/v1/operations",
            "listOperations",
            "Operations that match, the last claimed or settled first.",
            get(operations::list),
        )
        .asking::<operations::ListQuery>(),
        look::<operations::Operation>(
            "/admin/v1/operations/{operation_id}",
            "showOperation",
            "All that is known of an operation.",
            get(operations::show),
        )
        .asking::<operations::ShowQuery>(),
        change::<operations::PurgeRequest, operations::ChangedOperation>(
            Operate,
            "/admin/v1/operations/{operation_id}/purge",
            "purgeOperation",
            "Forgets an operation; its key is free.",
            post(operations::purge),
        ),
        change::<operations::BulkPurgeRequest, operations::BulkAnswer>(
            Operate,
            "/admin/v1/operations/purge",
            "purgeOperations",
            "Forgets operations; their keys are free. With `filter` or `all`, previews the change and freezes the set of operations; with `set`, changes that set.",
            post(operations::purge_many),
        ),
        change::<operations::ResolveRequest, operations::ChangedOperation>(
            Operate,
            "/admin/v1/operations/{operation_id}/resolve",
            "resolveOperation",
            "States what happened to an unknown operation.",
            post(operations::resolve),
        ),
        change::<operations::BulkResolveRequest, operations::BulkAnswer>(
            Operate,
            "/admin/v1/operations/resolve",
            "resolveOperations",
            "States what happened to unknown operations. With `filter` or `all`, previews the change and freezes the set of operations; with `set`, changes that set.",
            post(operations::resolve_many),
        ),
        change::<operations::WhyRequest, operations::ChangedOperation>(
            Operate,
            "/admin/v1/operations/{operation_id}/resume",
            "resumeOperation",
            "Lets a paused operation continue.",
            post(operations::resume),
        ),
        change::<operations::BulkRequest, operations::BulkAnswer>(
            Operate,
            "/admin/v1/operations/resume",
            "resumeOperations",
            "Lets paused operations continue. With `filter` or `all`, previews the change and freezes the set of operations; with `set`, changes that set.",
            post(operations::resume_many),
        ),
        change::<operations::WhyRequest, operations::ChangedOperation>(
            Operate,
            "/admin/v1/operations/{operation_id}/redeliver",
            "redeliverOperation",
            "Delivers the stored event of a webhook again, under a higher fence.",
            post(operations::redeliver),
        ),
        change::<operations::BulkRequest, operations::BulkAnswer>(
            Operate,
            "/admin/v1/operations/redeliver",
            "redeliverOperations",
            "Delivers stored events of webhooks again, under higher fences. With `filter` or `all`, previews the change and freezes the set of operations; with `set`, changes that set.",
            post(operations::redeliver_many),
        ),
        look::<classes::Classes>(
            "/admin/v1/classes",
            "listClasses",
            "The retention classes in force, and where each setting comes from.",
            get(classes::list),
        ),
        look::<classes::Class>(
            "/admin/v1/classes/{name}",
            "showClass",
            "A retention class.",
            get(classes::show),
        ),
        change::<classes::Set, classes::Class>(
            Admin,
            "/admin/v1/classes/{name}",
            "setClass",
            "Changes settings of a class, or makes a new one. What is on record keeps its terms.",
            post(classes::set),
        ),
        change::<classes::Unset, classes::IsUnset>(
            Admin,
            "/admin/v1/classes/{name}/unset",
            "unsetClass",
            "Takes back all changes of a class: it is as the configuration says.",
            post(classes::unset),
        ),
        look::<keys::KeysPage>(
            "/admin/v1/keys",
            "listKeys",
            "The API keys of this gateway, without their secrets.",
            get(keys::list),
        )
        .asking::<keys::KeysQuery>(),
        change::<keys::CreateKey, keys::CreatedKey>(
            Admin,
            "/admin/v1/keys",
            "createKey",
            "Makes an API key. The answer shows it this once.",
            post(keys::create),
        )
        .answering(201),
        change::<keys::RevokeKey, keys::RevokedKey>(
            Admin,
            "/admin/v1/keys/{id}/revoke",
            "revokeKey",
            "Takes an API key back: it lets nobody in any more.",
            post(keys::revoke),
        ),
        look::<webhooks::WebhooksPage>(
            "/admin/v1/webhooks",
            "listWebhooks",
            "The webhooks of this gateway, without their secrets.",
            get(webhooks::list),
        )
        .asking::<webhooks::WebhooksQuery>(),
        look::<webhooks::Webhook>(
            "/admin/v1/webhooks/{webhook_id}",
            "showWebhook",
            "A webhook, without its secrets.",
            get(webhooks::show),
        ),
        change::<webhooks::CreateWebhook, webhooks::MadeWebhook>(
            Admin,
            "/admin/v1/webhooks",
            "createWebhook",
            "Makes a webhook: a URL for a provider. A secret that is made for it is shown this once.",
            post(webhooks::create),
        )
        .answering(201),
        change::<webhooks::UpdateWebhook, webhooks::Webhook>(
            Admin,
            "/admin/v1/webhooks/{webhook_id}/update",
            "updateWebhook",
            "Changes where a webhook's events go. Queued events follow at their next attempt.",
            post(webhooks::update),
        ),
        change::<webhooks::RotateWebhook, webhooks::MadeWebhook>(
            Admin,
            "/admin/v1/webhooks/{webhook_id}/rotate",
            "rotateWebhook",
            "Gives a webhook another secret. The old ones count for a while.",
            post(webhooks::rotate),
        ),
        change::<webhooks::DeleteWebhook, webhooks::DeletedWebhook>(
            Admin,
            "/admin/v1/webhooks/{webhook_id}/delete",
            "deleteWebhook",
            "Takes a webhook away: nothing comes in by it any more.",
            post(webhooks::delete),
        ),
        look::<audit::AuditPage>(
            "/admin/v1/audit",
            "listAudit",
            "Operator changed what, when and why; the latest first.",
            get(audit::list),
        )
        .asking::<audit::AuditQuery>(),
        change::<reload::ReloadAsk, reload::Reloaded>(
            Admin,
            "/admin/v1/reload",
            "reload",
            "Reads the configuration again. A bad one changes nothing.",
            post(reload::reload),
        ),
        look::<serde_json::Value>(
            "/admin/v1/openapi.json",
            "openapi",
            "This description.",
            get(openapi::document),
        ),
    ]
}
