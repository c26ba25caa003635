//! The audit log: which operator made which change to what, why, when, from
//! where, and with what outcome.
//!
//! An entry is durable as `begun` before the change begins, and is written again
//! with the outcome. So every change has an entry; one that stays `begun` belongs
//! to a change whose end was not recorded. Entries are named by time, so that the
//! latest are listed first.

mod list;

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use bytes::Bytes;
use onceward_core::clock::Clock;
use onceward_core::deadline::store_within;
use onceward_core::entropy::Entropy;
use onceward_core::store::{Collection, Registry, SortOrder, StoreError};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::time::sleep;

pub(super) use self::list::{AuditPage, AuditQuery, list};
use super::operators::Operator;

/// The version of the stored documents.
const VERSION: u8 = 1;
/// The time limit for one step of the store.
const STORE_DEADLINE: Duration = Duration::from_secs(2);
/// How often an outcome that the store refused is written again.
const RETRIES_MAX: u32 = 60;
/// The pause between these retries.
const RETRY_PAUSE: Duration = Duration::from_secs(5);

/// The kind of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    Purge,
    Resolve,
    Resume,
    Redeliver,
    SetClass,
    UnsetClass,
    CreateKey,
    RevokeKey,
    CreateWebhook,
    UpdateWebhook,
    RotateWebhook,
    DeleteWebhook,
    Reload,
}

impl Action {
    /// The word in entries and log lines.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Purge => "operations.purge",
            Self::Resolve => "operations.resolve",
            Self::Resume => "operations.resume",
            Self::Redeliver => "operations.redeliver",
            Self::SetClass => "classes.set",
            Self::UnsetClass => "classes.unset",
            Self::CreateKey => "keys.create",
            Self::RevokeKey => "keys.revoke",
            Self::CreateWebhook => "webhooks.create",
            Self::UpdateWebhook => "webhooks.update",
            Self::RotateWebhook => "webhooks.rotate",
            Self::DeleteWebhook => "webhooks.delete",
            Self::Reload => "configuration.reload",
        }
    }
}

/// A change that is about to be made. It contains no secret.
#[derive(Clone, Debug)]
pub(crate) struct Change {
    /// The name of the operator's token, or the part of the gateway that acts by itself.
    who: Arc<str>,
    /// The operator's role.
    role: Option<&'static str>,
    /// The operator's address.
    from: Option<IpAddr>,
    action: Action,
    /// The operation, class, key, webhook or file that is changed.
    target: Option<String>,
    /// The reason.
    why: Option<String>,
    /// The parameters of the request.
    request: Value,
}

impl Change {
    /// A change by an operator.
    pub(crate) fn by(operator: &Operator, action: Action, why: &Why) -> Self {
        Self {
            who: operator.name.clone(),
            role: Some(operator.role.as_str()),
            from: Some(operator.from),
            action,
            target: None,
            why: Some(why.0.clone()),
            request: Value::Null,
        }
    }

    /// A change by the gateway itself, such as a reload because the file changed.
    pub(crate) fn by_gateway(who: &str, action: Action) -> Self {
        Self {
            who: who.into(),
            role: None,
            from: None,
            action,
            target: None,
            why: None,
            request: Value::Null,
        }
    }

    pub(crate) fn on(mut self, target: impl Into<String>) -> Self {
        self.target = Some(target.into());
        self
    }

    pub(crate) fn with_request(mut self, request: Value) -> Self {
        self.request = request;
        self
    }
}

/// A reason: not empty, not too long, on one line.
#[derive(Clone, Debug)]
pub(crate) struct Why(String);

impl Why {
    /// The longest reason, in bytes.
    pub(crate) const BYTES_MAX: usize = 1_000;

    pub(crate) fn parse(text: &str) -> Option<Self> {
        let text = text.trim();
        let good =
            (1..=Self::BYTES_MAX).contains(&text.len()) && !text.chars().any(char::is_control);
        good.then(|| Self(text.to_owned()))
    }
}

/// The outcome of a change.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum ChangeOutcome {
    /// The change was made.
    Done(Value),
    /// The change was not made; the text gives the reason.
    Refused(String),
    /// A step failed, and the change may have been made in part.
    Failed(String),
}

/// An entry as it is stored and shown.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub(crate) struct AuditEntry {
    /// The version of this document.
    version: u8,
    /// The entry's id; later entries have higher ids.
    id: String,
    /// When the change began.
    at: String,
    /// The name of the operator's token, `local` where there are no tokens, or
    /// the part of the gateway that acted by itself.
    who: String,
    /// The operator's role.
    #[serde(skip_serializing_if = "Option::is_none")]
    role: Option<String>,
    /// The operator's address.
    #[serde(skip_serializing_if = "Option::is_none")]
    from: Option<String>,
    /// The kind of change, such as `operations.purge`.
    action: String,
    /// The operation, class, key, webhook or file that was changed.
    #[serde(skip_serializing_if = "Option::is_none")]
    target: Option<String>,
    /// The reason.
    #[serde(skip_serializing_if = "Option::is_none")]
    why: Option<String>,
    /// The parameters of the request.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    asked: Value,
    /// `begun`, `done`, `refused` or `failed`.
    outcome: String,
    /// When the change ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    ended_at: Option<String>,
    /// What the change did.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    result: Value,
    /// Why the change was refused or failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    detail: Option<String>,
}

/// The audit log.
pub(crate) struct Audit {
    registry: Arc<dyn Registry>,
    clock: Arc<dyn Clock>,
    entropy: Entropy,
    drawn: AtomicU32,
}

impl Audit {
    pub(crate) fn new(
        registry: Arc<dyn Registry>,
        clock: Arc<dyn Clock>,
        entropy: Entropy,
    ) -> Self {
        Self {
            registry,
            clock,
            entropy,
            drawn: AtomicU32::new(0),
        }
    }

    /// Writes that a change begins. The change must not begin without this entry.
    pub(crate) async fn begin(&self, change: Change) -> Result<AuditEntry, StoreError> {
        let now = self.clock.now();
        // The count orders entries of one millisecond; chance keeps the ids of
        // several gateways apart.
        let count = self.drawn.fetch_add(1, Ordering::Relaxed);
        let chance = self.entropy.next_u64() as u32;
        let entry = AuditEntry {
            version: VERSION,
            id: format!("{:015}-{count:08x}{chance:08x}", now.unix_ms()),
            at: now.to_string(),
            who: change.who.as_ref().to_owned(),
            role: change.role.map(ToOwned::to_owned),
            from: change.from.map(|from| from.to_string()),
            action: change.action.as_str().to_owned(),
            target: change.target,
            why: change.why,
            asked: change.request,
            outcome: "begun".to_owned(),
            ended_at: None,
            result: Value::Null,
            detail: None,
        };
        self.write(&entry).await?;
        Ok(entry)
    }

    /// Writes the outcome. If the store refuses it, the entry says `begun` until
    /// [`Self::end_later`] has written it.
    pub(crate) async fn end(
        &self,
        entry: &mut AuditEntry,
        outcome: ChangeOutcome,
    ) -> Result<(), StoreError> {
        entry.ended_at = Some(self.clock.now().to_string());
        let (word, result, detail) = match outcome {
            ChangeOutcome::Done(result) => ("done", result, None),
            ChangeOutcome::Refused(why) => ("refused", Value::Null, Some(why)),
            ChangeOutcome::Failed(why) => ("failed", Value::Null, Some(why)),
        };
        entry.outcome = word.to_owned();
        entry.result = result;
        entry.detail = detail;
        entry.log();
        self.write(entry).await
    }

    /// Retries to write an outcome that the store refused, a bounded number of times.
    pub(crate) async fn end_later(&self, entry: &AuditEntry) {
        for _ in 0..RETRIES_MAX {
            sleep(RETRY_PAUSE).await;
            if self.write(entry).await.is_ok() {
                return;
            }
        }
        tracing::error!(
            entry = entry.id,
            "outcome not written to the audit log; giving up"
        );
    }

    /// Records a change that the gateway has made, or refused, by itself.
    pub(crate) async fn note(
        &self,
        change: Change,
        outcome: ChangeOutcome,
    ) -> Result<(), StoreError> {
        let mut entry = self.begin(change).await?;
        self.end(&mut entry, outcome).await
    }

    /// Returns entries, the latest first, beginning after the one with this id.
    pub(crate) async fn entries(
        &self,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<AuditEntry>, StoreError> {
        let documents =
            self.registry
                .documents(Collection::Audit, SortOrder::Descending, after, limit);
        let documents = store_within(STORE_DEADLINE, documents).await?;
        let entries = documents.into_iter().map(|(_, document)| {
            serde_json::from_slice(&document).map_err(|error| StoreError::Damaged(Box::new(error)))
        });
        entries.collect()
    }

    async fn write(&self, entry: &AuditEntry) -> Result<(), StoreError> {
        let document =
            serde_json::to_vec(entry).map_err(|error| StoreError::Unavailable(Box::new(error)))?;
        let put = self
            .registry
            .put(Collection::Audit, &entry.id, Bytes::from(document));
        store_within(STORE_DEADLINE, put).await
    }
}

impl AuditEntry {
    pub(crate) fn id(&self) -> &str {
        &self.id
    }

    fn log(&self) {
        tracing::info!(
            target: "onceward::audit",
            entry = self.id,
            who = self.who,
            role = self.role,
            from = self.from,
            action = self.action,
            on = self.target,
            why = self.why,
            outcome = self.outcome,
            detail = self.detail,
            "operator change"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_is_not_empty_and_on_one_line() {
        for (text, good) in [
            ("the customer asked", true),
            (" x ", true),
            ("", false),
            ("  ", false),
            ("a\nb", false),
            ("a\u{1b}[2J", false),
        ] {
            assert_eq!(Why::parse(text).is_some(), good, "{text:?}");
        }
        assert!(Why::parse(&"x".repeat(Why::BYTES_MAX)).is_some());
        assert!(Why::parse(&"x".repeat(Why::BYTES_MAX + 1)).is_none());
    }
}
