//! Whether the bytes of an event came before under another id.
//!
//! Asked only where the id is not signed: whoever has caught one delivery can
//! send it again under as many ids as they like. Bytes that were seen are
//! operations of their own. They are claimed before their event is recorded and
//! finished after it, so that no bytes are known whose event is not on record.

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

use super::Arriving;
use crate::config::SameBytes;
use crate::runtime::Runtime;

/// How an event is met.
pub(super) enum Met {
    /// For the first time, or under the same id as before. Where its bytes are
    /// to be remembered, this is the right to do it.
    First(Option<Lead>),
    /// Its bytes came before under another id; it is delivered, and marked.
    InOtherName,
    /// The same, and that is not wanted again.
    Before,
}

impl Met {
    /// Remembers the bytes of an event that is on record; of one that is not
    /// nothing is remembered.
    pub(super) async fn remember(self, on_record: bool) {
        let Self::First(Some(lead)) = self else {
            return;
        };
        let status = StatusCode::NO_CONTENT.as_u16();
        let seen = Settlement::Completed(Answer::NotKept { status });
        match on_record {
            // What the store does not take now is written later.
            true => drop(lead.finish(seen, None).await),
            false => drop(lead.release(None).await),
        }
    }
}

impl Runtime {
    /// Whether the bytes of this event came before under another id.
    pub(super) async fn meet(
        &self,
        arriving: &Arriving<'_>,
        event: &Event,
    ) -> Result<Met, Problem> {
        let Binding::Unsigned { bytes } = &event.binding else {
            return Ok(Met::First(None));
        };
        let key = Key::parse(&HEXLOWER.encode(bytes)).map_err(Problem::invalid_key)?;
        let identity = Identity {
            endpoint: Endpoint::new(&format!("{} bytes", arriving.endpoint)),
            ..arriving.identity(key)
        };
        let asked = Fingerprint {
            digest: Sha256::digest(&event.key).into(),
            ..key_only_fingerprint()
        };
        let terms = arriving.class.terms().with(|terms| {
            // Whoever dies over it has remembered nothing.
            terms.after_loss = AfterLoss::Free;
        });
        let (engine, digest) = (self.engine(), identity.digest());
        let entered = engine.enter(identity, asked, terms).await;
        match entered.map_err(|error| store_unavailable(&error))? {
            // Who goes before it is said has remembered nothing either.
            Entered::Lead(lead) => Ok(Met::First(Some(lead.joined()))),
            Entered::Mismatch => {
                let rule = arriving.webhook.same_bytes;
                if rule == SameBytes::Refuse {
                    let mark = engine.look(&digest).await;
                    let mark = mark.map_err(|error| store_unavailable(&error))?;
                    if mark.is_none_or(|mark| mark.completed_at.is_none()) {
                        return Err(not_yet());
                    }
                }
                let provider = arriving.webhook.provider.name();
                self.metrics().same_bytes(provider, rule);
                Ok(match rule {
                    SameBytes::Deliver => Met::InOtherName,
                    SameBytes::Refuse => Met::Before,
                })
            }
            // The same id: whether it is a duplicate, its own record tells.
            _ => Ok(Met::First(None)),
        }
    }
}

/// The same bytes are being recorded under another id; whether they were will be
/// seen.
fn not_yet() -> Problem {
    Problem::new(
        Code::InProgress,
        "The same bytes are being recorded under another id. Send the event again.",
    )
    .for_provider()
    .with_retry_after(1)
}
