//! Every endpoint of the API in one list: path, role, description and handler.
//! The router and the OpenAPI document are built from it.

use axum::http::Method;
use axum::routing::{MethodRouter, get, post};
use schemars::{JsonSchema, Schema, SchemaGenerator};

use super::{AdminState, audit, classes, keys, openapi, operations, problem, reload, webhooks};
use crate::config::Role;

/// Generates the JSON Schema of a type.
pub(super) type Describe = fn(&mut SchemaGenerator) -> Schema;

/// One endpoint: a method on a path.
pub(super) struct AdminEndpoint {
    pub(super) method: Method,
    pub(super) path: &'static str,
    /// The lowest role that may use it.
    pub(super) role: Role,
    /// Its `operationId` in the OpenAPI document.
    pub(super) name: &'static str,
    /// Its summary in the OpenAPI document.
    pub(super) summary: &'static str,
    /// The schema of its query.
    pub(super) query: Option<Describe>,
    /// The schema of its body.
    pub(super) body: Option<Describe>,
    /// The status and schema of a successful answer.
    pub(super) answer: (u16, Describe),
    pub(super) handler: MethodRouter<AdminState>,
}

/// The schema of a problem.
pub(super) const PROBLEM: Describe = describe::<problem::ProblemBody>;

fn describe<T: JsonSchema>(generator: &mut SchemaGenerator) -> Schema {
    generator.subschema_for::<T>()
}

fn read<A: JsonSchema>(
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
        ..read::<A>(path, name, summary, handler)
    }
}

impl AdminEndpoint {
    fn with_query<Q: JsonSchema>(self) -> Self {
        Self {
            query: Some(describe::<Q>),
            ..self
        }
    }

    fn with_status(self, status: u16) -> Self {
        let answer = (status, self.answer.1);
        Self { answer, ..self }
    }
}

/// Every endpoint.
pub(super) fn all() -> Vec<AdminEndpoint> {
    use Role::{Admin, Operate};
    vec![
        read::<operations::OperationsPage>(
            "/admin/v1/operations",
            "listOperations",
            "Lists operations that match a filter, the most recently claimed or settled first.",
            get(operations::list),
        )
        .with_query::<operations::ListQuery>(),
        read::<operations::Operation>(
            "/admin/v1/operations/{operation_id}",
            "showOperation",
            "Shows everything known about an operation.",
            get(operations::show),
        )
        .with_query::<operations::ShowQuery>(),
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
        read::<classes::ClassList>(
            "/admin/v1/classes",
            "listClasses",
            "Lists the retention classes in force, and the source of each setting.",
            get(classes::list),
        ),
        read::<classes::ClassDetails>(
            "/admin/v1/classes/{name}",
            "showClass",
            "Shows a retention class.",
            get(classes::show),
        ),
        change::<classes::SetClassRequest, classes::ClassDetails>(
            Admin,
            "/admin/v1/classes/{name}",
            "setClass",
            "Changes settings of a class, or creates a class. Recorded operations keep their terms.",
            post(classes::set),
        ),
        change::<classes::UnsetClassRequest, classes::UnsetClass>(
            Admin,
            "/admin/v1/classes/{name}/unset",
            "unsetClass",
            "Reverts all changes of a class: the configuration applies again.",
            post(classes::unset),
        ),
        read::<keys::KeysPage>(
            "/admin/v1/keys",
            "listKeys",
            "Lists the API keys of this gateway, without their secrets.",
            get(keys::list),
        )
        .with_query::<keys::KeysQuery>(),
        change::<keys::CreateKey, keys::CreatedKey>(
            Admin,
            "/admin/v1/keys",
            "createKey",
            "Creates an API key. Only this answer shows the key.",
            post(keys::create),
        )
        .with_status(201),
        change::<keys::RevokeKey, keys::RevokedKey>(
            Admin,
            "/admin/v1/keys/{id}/revoke",
            "revokeKey",
            "Revokes an API key.",
            post(keys::revoke),
        ),
        read::<webhooks::WebhooksPage>(
            "/admin/v1/webhooks",
            "listWebhooks",
            "Lists the webhooks of this gateway, without their secrets.",
            get(webhooks::list),
        )
        .with_query::<webhooks::WebhooksQuery>(),
        read::<webhooks::WebhookSummary>(
            "/admin/v1/webhooks/{webhook_id}",
            "showWebhook",
            "Shows a webhook, without its secrets.",
            get(webhooks::show),
        ),
        change::<webhooks::CreateWebhook, webhooks::MadeWebhook>(
            Admin,
            "/admin/v1/webhooks",
            "createWebhook",
            "Creates a webhook: a URL for a provider. Only this answer shows a generated secret.",
            post(webhooks::create),
        )
        .with_status(201),
        change::<webhooks::UpdateWebhook, webhooks::WebhookSummary>(
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
            "Gives a webhook a new secret. The old ones stay valid for a while.",
            post(webhooks::rotate),
        ),
        change::<webhooks::DeleteWebhook, webhooks::DeletedWebhook>(
            Admin,
            "/admin/v1/webhooks/{webhook_id}/delete",
            "deleteWebhook",
            "Deletes a webhook: its URL accepts no more events.",
            post(webhooks::delete),
        ),
        read::<audit::AuditPage>(
            "/admin/v1/audit",
            "listAudit",
            "Lists the audit log: who changed what, when and why; the latest entries first.",
            get(audit::list),
        )
        .with_query::<audit::AuditQuery>(),
        change::<reload::ReloadRequest, reload::Reloaded>(
            Admin,
            "/admin/v1/reload",
            "reload",
            "Reloads the configuration. A file with mistakes changes nothing.",
            post(reload::reload),
        ),
        read::<serde_json::Value>(
            "/admin/v1/openapi.json",
            "openapi",
            "This description.",
            get(openapi::document),
        ),
    ]
}
