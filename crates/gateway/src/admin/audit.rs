//! The audit: who changed what, on what, why, when, from where, and what came
//! of it.
//!
//! An entry is durable before the change begins, as `begun`, and is written
//! again with its outcome. So no change is without an entry; one that still says
//! `begun` belongs to a change that nobody saw the end of. Entries are named by
//! time, so that the latest are found first.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use bytes::Bytes;
use onceward_core::clock::Clock;
use onceward_core::entropy::Entropy;
use onceward_core::store::{Order, Registry, Sheet, StoreError};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::time::{sleep, timeout};

use super::operators::{Who, role_word};

/// The version of the documents.
const VERSION: u8 = 1;
/// How long one step of the store may take.
const STORE_DEADLINE: Duration = Duration::from_secs(2);
/// How often an outcome that the store refused is written again.
const AGAIN_MAX: u32 = 60;
/// How long to rest in between.
const AGAIN_PAUSE: Duration = Duration::from_secs(5);

/// What kind of change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    Purge,
    Resolve,
    Resume,
    SetClass,
    UnsetClass,
    CreateKey,
    RevokeKey,
    CreateWebhook,
    RotateWebhook,
    DeleteWebhook,
    Redeliver,
    Reload,
}

impl Action {
    /// The word in entries and logs.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Purge => "operations.purge",
            Self::Resolve => "operations.resolve",
            Self::Resume => "operations.resume",
            Self::SetClass => "classes.set",
            Self::UnsetClass => "classes.unset",
            Self::CreateKey => "keys.create",
            Self::RevokeKey => "keys.revoke",
            Self::CreateWebhook => "webhooks.create",
            Self::RotateWebhook => "webhooks.rotate",
            Self::DeleteWebhook => "webhooks.delete",
            Self::Redeliver => "operations.redeliver",
            Self::Reload => "configuration.reload",
        }
    }
}

/// A change that somebody is about to make. Nothing in it is secret.
#[derive(Clone, Debug)]
pub(crate) struct Deed {
    /// Who: the name of a token, or what in the gateway does it by itself.
    pub(crate) who: Arc<str>,
    /// By which role.
    pub(crate) role: Option<&'static str>,
    /// From where.
    pub(crate) from: Option<IpAddr>,
    /// What.
    pub(crate) action: Action,
    /// On what.
    pub(crate) target: Option<String>,
    /// Why.
    pub(crate) why: Option<String>,
    /// How it was asked for.
    pub(crate) asked: Value,
}

impl Deed {
    /// An operator's.
    pub(crate) fn of(who: &Who, action: Action, why: &Why) -> Self {
        Self {
            who: who.name.clone(),
            role: Some(role_word(who.role)),
            from: Some(who.from),
            action,
            target: None,
            why: Some(why.0.clone()),
            asked: Value::Null,
        }
    }

    /// The gateway's own, such as a reload because the file changed.
    pub(crate) fn of_gateway(who: &str, action: Action) -> Self {
        Self {
            who: who.into(),
            role: None,
            from: None,
            action,
            target: None,
            why: None,
            asked: Value::Null,
        }
    }

    pub(crate) fn on(mut self, target: impl Into<String>) -> Self {
        self.target = Some(target.into());
        self
    }

    pub(crate) fn asking(mut self, asked: Value) -> Self {
        self.asked = asked;
        self
    }
}

/// A reason, checked: something, not too long, on one line.
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

/// What came of a change.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Outcome {
    /// It is made.
    Done(Value),
    /// It was not made, and this is why.
    Refused(String),
    /// Something failed, and it may have been made in part.
    Failed(String),
}

/// An entry as it is kept and shown.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "AuditEntry")]
pub(crate) struct Entry {
    /// The version of this document.
    version: u8,
    /// Its name; rises with time.
    id: String,
    /// When it began.
    at: String,
    /// Who: the name of a token, `local` where there are no tokens, or the
    /// gateway itself.
    who: String,
    /// By which role.
    #[serde(skip_serializing_if = "Option::is_none")]
    role: Option<String>,
    /// From which address.
    #[serde(skip_serializing_if = "Option::is_none")]
    from: Option<String>,
    /// What.
    action: String,
    /// On what: an operation, a class, a key.
    #[serde(skip_serializing_if = "Option::is_none")]
    target: Option<String>,
    /// Why.
    #[serde(skip_serializing_if = "Option::is_none")]
    why: Option<String>,
    /// How it was asked for.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    asked: Value,
    /// `begun`, `done`, `refused` or `failed`.
    outcome: String,
    /// When it ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    ended_at: Option<String>,
    /// What was done.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    result: Value,
    /// Why it was refused or failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    detail: Option<String>,
}

/// The book of changes.
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

    /// Writes that a change begins. Without this entry it must not.
    pub(crate) async fn begin(&self, deed: Deed) -> Result<Entry, StoreError> {
        let now = self.clock.now();
        // Within a millisecond and a process by count, and never twice the same.
        let count = self.drawn.fetch_add(1, Ordering::Relaxed);
        let chance = self.entropy.next_u64() as u32;
        let entry = Entry {
            version: VERSION,
            id: format!("{:015}-{count:08x}{chance:08x}", now.unix_ms()),
            at: now.to_string(),
            who: deed.who.as_ref().to_owned(),
            role: deed.role.map(ToOwned::to_owned),
            from: deed.from.map(|from| from.to_string()),
            action: deed.action.as_str().to_owned(),
            target: deed.target,
            why: deed.why,
            asked: deed.asked,
            outcome: "begun".to_owned(),
            ended_at: None,
            result: Value::Null,
            detail: None,
        };
        self.write(&entry).await?;
        Ok(entry)
    }

    /// Writes what came of it. Where the store refuses, the entry says `begun`
    /// until it is written [again](Self::end_later).
    pub(crate) async fn end(&self, entry: &mut Entry, outcome: Outcome) -> Result<(), StoreError> {
        entry.ended_at = Some(self.clock.now().to_string());
        let (word, result, detail) = match outcome {
            Outcome::Done(result) => ("done", result, None),
            Outcome::Refused(why) => ("refused", Value::Null, Some(why)),
            Outcome::Failed(why) => ("failed", Value::Null, Some(why)),
        };
        entry.outcome = word.to_owned();
        entry.result = result;
        entry.detail = detail;
        entry.log();
        self.write(entry).await
    }

    /// Writes an outcome that the store refused, for as long as it refuses and
    /// there is hope.
    pub(crate) async fn end_later(&self, entry: &Entry) {
        for _ in 0..AGAIN_MAX {
            sleep(AGAIN_PAUSE).await;
            if self.write(entry).await.is_ok() {
                return;
            }
        }
        tracing::error!(
            entry = entry.id,
            "gave up writing an outcome into the audit"
        );
    }

    /// Writes a change that the gateway has made, or refused, by itself.
    pub(crate) async fn note(&self, deed: Deed, outcome: Outcome) -> Result<(), StoreError> {
        let mut entry = self.begin(deed).await?;
        self.end(&mut entry, outcome).await
    }

    /// Entries, the latest first, beginning after the one of this name.
    pub(crate) async fn entries(
        &self,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<Entry>, StoreError> {
        let documents = self
            .registry
            .documents(Sheet::Audit, Order::Falling, after, limit);
        let documents = within_deadline(documents).await?;
        let entries = documents.into_iter().map(|(_, document)| {
            serde_json::from_slice(&document).map_err(|error| StoreError::Damaged(Box::new(error)))
        });
        entries.collect()
    }

    async fn write(&self, entry: &Entry) -> Result<(), StoreError> {
        let document =
            serde_json::to_vec(entry).map_err(|error| StoreError::Unavailable(Box::new(error)))?;
        let put = self
            .registry
            .put(Sheet::Audit, &entry.id, Bytes::from(document));
        within_deadline(put).await
    }
}

impl Entry {
    /// The entry's name.
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
            "an operator's change"
        );
    }
}

async fn within_deadline<T>(
    step: impl Future<Output = Result<T, StoreError>>,
) -> Result<T, StoreError> {
    match timeout(STORE_DEADLINE, step).await {
        Ok(answer) => answer,
        Err(late) => Err(StoreError::Unavailable(Box::new(late))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_is_something_on_one_line() {
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
