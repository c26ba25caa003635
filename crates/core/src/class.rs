//! Retention classes: what a route chooses about time, duplicates and doubt.

use std::sync::Arc;
use std::time::Duration;

/// What a duplicate gets while the first still runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InFlight {
    /// Wait for the reply, up to [`Class::wait`].
    Wait,
    /// Refuse at once.
    Reject,
    /// Answer 202 with the place to ask later.
    Accept,
}

/// What a different request under the same key gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnMismatch {
    /// 422.
    Unprocessable,
    /// 409.
    Conflict,
    /// The stored reply all the same.
    Replay,
}

/// What becomes of an operation that may have run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnUnknown {
    /// It stays unknown until somebody resolves it.
    Hold,
    /// The next request runs it again under a new fence.
    Retry,
}

/// What happens to requests while the store is away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnStoreFailure {
    /// They are refused with 503; nothing is forwarded.
    Reject,
    /// They are forwarded unprotected, and the answer says so.
    Bypass,
}

/// A retention class.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Class {
    /// Its name.
    pub name: Arc<str>,
    /// How long a reply is kept after completion.
    pub retention: Duration,
    /// How long the key is remembered after completion; not less than `retention`.
    pub remember: Duration,
    /// How long a claim lasts without renewal.
    pub lease: Duration,
    /// What a duplicate in flight gets.
    pub in_flight: InFlight,
    /// The longest wait of a duplicate in flight.
    pub wait: Duration,
    /// What a different request under the same key gets.
    pub mismatch: OnMismatch,
    /// What becomes of an operation that may have run.
    pub on_unknown: OnUnknown,
    /// What happens while the store is away.
    pub on_store_failure: OnStoreFailure,
}

impl Class {
    /// The default class.
    pub fn interactive() -> Self {
        let day = Duration::from_secs(24 * 60 * 60);
        Self {
            name: "interactive".into(),
            retention: day,
            remember: day,
            lease: Duration::from_secs(60),
            in_flight: InFlight::Wait,
            wait: Duration::from_secs(30),
            mismatch: OnMismatch::Unprocessable,
            on_unknown: OnUnknown::Hold,
            on_store_failure: OnStoreFailure::Reject,
        }
    }

    /// The class for money: replies for a week, keys for a month.
    pub fn financial() -> Self {
        let day = Duration::from_secs(24 * 60 * 60);
        Self {
            name: "financial".into(),
            retention: 7 * day,
            remember: 30 * day,
            lease: Duration::from_secs(120),
            ..Self::interactive()
        }
    }

    /// What a record freezes of its class at the claim.
    pub fn terms(&self) -> Terms {
        Terms {
            class: self.name.clone(),
            lease: self.lease,
            retention: self.retention,
            remember: self.remember.max(self.retention),
            after_loss: match self.on_unknown {
                OnUnknown::Hold => AfterLoss::Hold,
                OnUnknown::Retry => AfterLoss::Free,
            },
        }
    }
}

/// What becomes of a claim whose holder is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AfterLoss {
    /// The operation is unknown: it may have run.
    Hold,
    /// The key is free again: running twice was declared safe.
    Free,
}

/// The part of a class that lives in a record, so that changing the class
/// leaves what is there alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Terms {
    /// The class's name.
    pub class: Arc<str>,
    /// How long a claim lasts without renewal.
    pub lease: Duration,
    /// How long the reply is kept after completion.
    pub retention: Duration,
    /// How long the key is remembered after completion.
    pub remember: Duration,
    /// What a lease that runs out means.
    pub after_loss: AfterLoss,
}
