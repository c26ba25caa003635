//! Sample records, and the rules on them by subject.

mod operating;
mod passing;
mod settling;

use super::*;
use crate::caller::Caller;
use crate::class::{AfterLoss, Expiry, TtlBasis};
use crate::fingerprint::Algorithm;
use crate::identity::{Endpoint, KeySpace};
use crate::key::Key;

/// When sample records were written.
pub(crate) const START: Timestamp = Timestamp::from_unix_ms(1_700_000_000_000);
pub(crate) const LEASE: Duration = Duration::from_secs(60);
pub(crate) const RETENTION: Duration = Duration::from_secs(3_600);
pub(crate) const REMEMBER: Duration = Duration::from_secs(7_200);

/// The least span of time.
const MOMENT: Duration = Duration::from_millis(1);
/// How long traces are kept, where they are.
const TRACE: Duration = Duration::from_secs(600);
const HELD: Fence = Fence(7);

pub(crate) fn fingerprint(number: u8) -> Fingerprint {
    Fingerprint {
        algorithm: Algorithm::Json1,
        digest: [number; 32],
        sender: [0; 16],
    }
}

/// A record that came into this state at [`START`].
pub(crate) fn record(state: State, after_loss: AfterLoss) -> Record {
    let identity = Identity {
        caller: Caller::local(),
        endpoint: Endpoint::new("payments.create"),
        key: Key::parse("k").expect("a good key"),
        space: KeySpace::Endpoint,
    };
    let digest = identity.digest();
    let finished = matches!(state, State::Completed | State::Failed);
    Record {
        id: OperationId::new(&digest, 1),
        digest,
        identity,
        fingerprint: fingerprint(1),
        terms: Terms {
            class: "interactive".into(),
            lease: LEASE,
            retention: RETENTION,
            remember: REMEMBER,
            after_loss,
            ttl_basis: TtlBasis::Completion,
            expiry: Expiry::Strict,
            keep_expired: Duration::ZERO,
        },
        state,
        fence: HELD,
        attempt: Attempt(1),
        attempts: 1,
        delivered: false,
        created_at: START,
        until: START.plus(LEASE),
        completed_at: finished.then_some(START),
        touched_at: None,
        answer: finished.then(|| kept(200)),
        rendered: Rendered::default(),
    }
}

fn kept(status: u16) -> Answer {
    Answer::Kept(Arc::new(Reply {
        status,
        headers: Vec::new(),
        body: Bytes::new(),
        trailers: Vec::new(),
    }))
}

fn settlements() -> [Settlement; 7] {
    [
        Settlement::Completed(kept(201)),
        Settlement::Failed(kept(422)),
        Settlement::Released,
        Settlement::Requeued { after: LEASE * 2 },
        Settlement::Deferred { after: LEASE * 3 },
        Settlement::Lost,
        Settlement::Paused,
    ]
}

/// The state after each of the [`settlements`]; a dash where it is stale.
fn outcomes(record: &Record, fence: Fence, now: Timestamp) -> String {
    let outcome = |word: &Settlement| {
        let mut after = record.clone();
        match after.settle(fence, word, now) {
            Settled::Finished(completion) => {
                assert!(matches!(after.state, State::Completed | State::Failed));
                assert_eq!(after.completion(), Some(completion), "{word:?}");
                format!("{:?}", after.state)
            }
            Settled::Done => format!("{:?}", after.state),
            Settled::Stale => {
                assert_eq!(
                    after, *record,
                    "a stale settlement changed something: {word:?}"
                );
                "-".to_owned()
            }
        }
    };
    settlements().each_ref().map(outcome).join(" ")
}
