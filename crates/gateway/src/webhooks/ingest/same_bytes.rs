//! Detects the bytes of an event that came before under another id.
//!
//! Only for providers that do not sign the id: an attacker who captured one
//! delivery can send it again under any number of ids. Seen bytes are operations
//! of their own, claimed before their event is recorded and finished after it,
//! so that no bytes are remembered whose event is not on record.

use data_encoding::HEXLOWER;
use http::StatusCode;
use onceward_core::class::AfterLoss;
use onceward_core::engine::{Entered, Lead};
use onceward_core::fingerprint::Fingerprint;
use onceward_core::identity::{Endpoint, Identity};
use onceward_core::key::Key;
use onceward_core::record::{Answer, Settlement};
use onceward_http::problem::{Code, Problem};
use onceward_http::run::{key_only_fingerprint, store_unavailable};
use onceward_webhooks::{Binding, Event};
use sha2::{Digest as _, Sha256};

use super::IngestContext;
use crate::config::SameBytes;

/// Whether an event's bytes were seen before under another id.
pub(super) enum SameBytesCheck {
    /// They are new, or came under the same id. The lead is the right to remember
    /// them, where they are to be remembered.
    New(Option<Lead>),
    /// They were seen; the event is delivered, and marked.
    Repeated,
    /// They were seen, and the webhook refuses such events.
    Refused,
}

impl SameBytesCheck {
    /// Remembers the bytes if their event is on record, else releases them.
    pub(super) async fn remember(self, on_record: bool) {
        let Self::New(Some(lead)) = self else {
            return;
        };
        let status = StatusCode::NO_CONTENT.as_u16();
        let seen = Settlement::Completed(Answer::NotKept { status });
        match on_record {
            // The engine repeats a write that the store did not confirm.
            true => drop(lead.finish(seen, None).await),
            false => drop(lead.release(None).await),
        }
    }
}

impl IngestContext<'_> {
    /// Checks whether the bytes of this event were seen under another id.
    pub(super) async fn check_same_bytes(&self, event: &Event) -> Result<SameBytesCheck, Problem> {
        let Binding::Unsigned { bytes } = &event.binding else {
            return Ok(SameBytesCheck::New(None));
        };
        let key = Key::parse(&HEXLOWER.encode(bytes)).map_err(Problem::invalid_key)?;
        let identity = Identity {
            endpoint: Endpoint::new(&format!("{} bytes", self.endpoint)),
            ..self.identity(key)
        };
        let asked = Fingerprint {
            digest: Sha256::digest(&event.key).into(),
            ..key_only_fingerprint()
        };
        let terms = self.class.terms().with(|terms| {
            // A gateway that stops before the end has remembered nothing.
            terms.after_loss = AfterLoss::Free;
        });
        let (engine, digest) = (self.runtime.engine(), identity.digest());
        let entered = engine.enter(identity, asked, terms).await;
        match entered.map_err(|error| store_unavailable(&error))? {
            // A task that is dropped before the end has remembered nothing either.
            Entered::Lead(lead) => Ok(SameBytesCheck::New(Some(lead.begin().joined()))),
            Entered::Mismatch => {
                let rule = self.webhook.same_bytes;
                if rule == SameBytes::Refuse {
                    let mark = engine.look(&digest).await;
                    let mark = mark.map_err(|error| store_unavailable(&error))?;
                    if mark.is_none_or(|mark| mark.completed_at.is_none()) {
                        return Err(still_recording());
                    }
                }
                let provider = self.webhook.provider.name();
                self.runtime.metrics().same_bytes(provider, rule);
                Ok(match rule {
                    SameBytes::Deliver => SameBytesCheck::Repeated,
                    SameBytes::Refuse => SameBytesCheck::Refused,
                })
            }
            // The same id: the event's own record shows whether it is a duplicate.
            _ => Ok(SameBytesCheck::New(None)),
        }
    }
}

/// The same bytes are being recorded under another id at this moment.
fn still_recording() -> Problem {
    Problem::new(
        Code::InProgress,
        "The same bytes are being recorded under another id. Send the event again.",
    )
    .for_provider()
    .with_retry_after(1)
}
