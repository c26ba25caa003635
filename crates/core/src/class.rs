//! Retention classes: a route's settings for time, duplicates and unknown outcomes.

use std::sync::Arc;
use std::time::Duration;

/// The answer to a duplicate while the first request still runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum InFlight {
    /// Wait for the reply, up to [`Class::wait`].
    Wait,
    /// Refuse at once.
    Reject,
    /// Answer 202 with a link to the status.
    Accept,
}

/// The answer to a different request under the same key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum OnMismatch {
    /// 422.
    Unprocessable,
    /// 409.
    Conflict,
    /// The stored reply nevertheless.
    Replay,
}

/// What happens to an operation that may have run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum OnUnknown {
    /// It stays unknown until it is resolved.
    Hold,
    /// The next request runs it again under a new fence.
    Retry,
    /// The upstream is asked first; see [`Class::reconcile_url`].
    Reconcile,
}

/// What an answered 500, or another 5xx, means for the key. 501 and 503 always
/// release it, 502 and 504 are always unknown: see
/// [`classify`](crate::classify::classify).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum OnError {
    /// The service failed before it did anything: the key is free, and a retry
    /// runs again.
    Release,
    /// The service may have done its work before it failed: the operation is
    /// unknown, and [`Class::on_unknown`] decides.
    Unknown,
    /// The error is final: it is kept and replayed.
    Keep,
}

/// What happens to an operation when the gateway's own attempts are used up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum OnExhausted {
    /// It is paused until an operator resumes or purges it.
    Pause,
    /// The key is free, and the last answer is the answer.
    Kill,
}

/// From when a reply's retention is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TtlBasis {
    /// From when it was recorded.
    Completion,
    /// From when the operation was first claimed; from when it was recorded, if
    /// half of the retention was over by then.
    Creation,
    /// From when it was last replayed, to within a tenth of the retention: not
    /// every replay is written down.
    Access,
}

/// Whether a reply ends when its time is over, or when it is swept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Expiry {
    /// When its time is over, to the millisecond.
    Strict,
    /// When it is swept: until then it is replayed, and the key stays taken.
    /// Without effect where traces are kept; see [`Terms::is_lazy`].
    Lazy,
}

/// The pause between the gateway's own attempts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Backoff {
    /// Before the second attempt, at most.
    pub first: Duration,
    /// Before any attempt, at most.
    pub max: Duration,
}

impl Backoff {
    /// A pause of at most `first` before the second attempt, and never longer
    /// than `max`.
    pub const fn new(first: Duration, max: Duration) -> Self {
        Self { first, max }
    }

    /// The pause after this many attempts: it doubles each time, up to the
    /// maximum, and is jittered, so that retries do not come in lockstep. `chance`
    /// is a random number.
    pub fn after(&self, attempts: u32, chance: u64) -> Duration {
        let doubled = self
            .first
            .saturating_mul(1 << attempts.saturating_sub(1).min(30));
        let whole = doubled.min(self.max);
        // At least half, so that a failed upstream gets some time.
        let part = f64::from((chance >> 32) as u32) / f64::from(u32::MAX);
        whole.mul_f64(0.5 + part / 2.0)
    }
}

/// What happens to requests while the store is unavailable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum OnStoreFailure {
    /// They are refused with 503; nothing is forwarded.
    Reject,
    /// They are forwarded unprotected, and the answer says so.
    Bypass,
}

/// The words of the settings, the same in the configuration, in answers and in
/// stores.
macro_rules! words {
    ($($setting:ident { $($variant:ident = $word:literal),+ })+) => {$(
        impl $setting {
            /// Every choice.
            pub const ALL: &[Self] = &[$(Self::$variant),+];

            /// The word in the configuration, in answers and in stores.
            pub fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => $word),+
                }
            }
        }
    )+};
}

words! {
    InFlight { Wait = "wait", Reject = "reject", Accept = "accept" }
    OnMismatch { Unprocessable = "422", Conflict = "409", Replay = "replay" }
    OnUnknown { Hold = "hold", Retry = "retry", Reconcile = "reconcile" }
    OnError { Release = "release", Unknown = "unknown", Keep = "keep" }
    OnExhausted { Pause = "pause", Kill = "kill" }
    TtlBasis { Completion = "completion", Creation = "creation", Access = "access" }
    Expiry { Strict = "strict", Lazy = "lazy" }
    OnStoreFailure { Reject = "reject", Bypass = "bypass" }
    AfterLoss { Hold = "hold", Free = "free" }
}

/// A retention class.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Class {
    /// Its name.
    pub name: Arc<str>,
    /// How long a reply is kept after completion.
    pub retention: Duration,
    /// How long the key is remembered after completion; not less than `retention`.
    pub remember: Duration,
    /// Whether `remember` was set. Otherwise it is as long as `retention`, and
    /// follows when that is changed.
    pub remember_chosen: bool,
    /// How long a claim lasts without renewal.
    pub lease: Duration,
    /// The answer to a duplicate in flight.
    pub in_flight: InFlight,
    /// The longest wait of a duplicate in flight.
    pub wait: Duration,
    /// The answer to a different request under the same key.
    pub mismatch: OnMismatch,
    /// What happens to an operation that may have run.
    pub on_unknown: OnUnknown,
    /// Where to ask for the outcome of an unknown operation.
    pub reconcile_url: Option<Arc<str>>,
    /// How often the gateway itself runs an operation within one claim.
    pub max_attempts: u32,
    /// The pause between these runs.
    pub backoff: Backoff,
    /// What happens after the last attempt, where there are several.
    pub on_exhausted: OnExhausted,
    /// What an answered 500, or another 5xx, means for the key.
    pub on_error: OnError,
    /// What happens while the store is unavailable.
    pub on_store_failure: OnStoreFailure,
    /// From when retention is counted.
    pub ttl_basis: TtlBasis,
    /// Whether time alone ends a reply.
    pub expiry: Expiry,
    /// How long a trace of the operation is shown to operators after its key is
    /// forgotten. The key is free meanwhile; an operation that uses it again
    /// takes the place of the trace.
    pub keep_expired: Duration,
}

impl Class {
    /// The default class.
    pub fn interactive() -> Self {
        let day = Duration::from_secs(24 * 60 * 60);
        Self {
            name: "interactive".into(),
            retention: day,
            remember: day,
            remember_chosen: false,
            lease: Duration::from_secs(60),
            in_flight: InFlight::Wait,
            wait: Duration::from_secs(30),
            mismatch: OnMismatch::Unprocessable,
            on_unknown: OnUnknown::Hold,
            reconcile_url: None,
            max_attempts: 1,
            backoff: Backoff {
                first: Duration::from_millis(500),
                max: Duration::from_secs(60),
            },
            on_exhausted: OnExhausted::Pause,
            on_error: OnError::Release,
            on_store_failure: OnStoreFailure::Reject,
            ttl_basis: TtlBasis::Completion,
            expiry: Expiry::Strict,
            keep_expired: Duration::ZERO,
        }
    }

    /// The class for money: replies are kept for a week, keys are remembered for
    /// a month, and a service that charges and then answers 500 does not charge
    /// again: the outcome is unknown.
    pub fn financial() -> Self {
        let day = Duration::from_secs(24 * 60 * 60);
        Self {
            name: "financial".into(),
            retention: 7 * day,
            remember: 30 * day,
            remember_chosen: true,
            lease: Duration::from_secs(120),
            on_error: OnError::Unknown,
            ..Self::interactive()
        }
    }

    /// The class of verified webhooks, which providers send for days. The gateway
    /// has acknowledged them, so it must outlast an upstream that is away by
    /// itself: its 20 attempts, resting a second at first and an hour at most,
    /// span about six hours. Then it is paused, and nothing is lost.
    pub fn webhook() -> Self {
        let week = Duration::from_secs(7 * 24 * 60 * 60);
        Self {
            name: "webhook".into(),
            retention: week,
            remember: week,
            on_unknown: OnUnknown::Retry,
            max_attempts: 20,
            backoff: Backoff {
                first: Duration::from_secs(1),
                max: Duration::from_secs(60 * 60),
            },
            ..Self::interactive()
        }
    }

    /// The same class with changed settings:
    /// `Class::financial().with(|class| class.wait = Duration::ZERO)`.
    #[must_use]
    pub fn with(mut self, change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        self
    }

    /// The settings of the class that a record keeps.
    pub fn terms(&self) -> Terms {
        Terms {
            class: self.name.clone(),
            lease: self.lease,
            retention: self.retention,
            remember: self.remember.max(self.retention),
            after_loss: match self.on_unknown {
                OnUnknown::Hold | OnUnknown::Reconcile => AfterLoss::Hold,
                OnUnknown::Retry => AfterLoss::Free,
            },
            ttl_basis: self.ttl_basis,
            expiry: self.expiry,
            keep_expired: self.keep_expired,
        }
    }
}

/// The state of an operation whose holder was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AfterLoss {
    /// The operation is unknown: it may have run.
    Hold,
    /// The key is free again: running twice was declared safe.
    Free,
}

/// The settings of a class that a record keeps, so that a change of the class does
/// not affect existing records.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Terms {
    /// The class's name.
    pub class: Arc<str>,
    /// How long a claim lasts without renewal.
    pub lease: Duration,
    /// How long the reply is kept after completion.
    pub retention: Duration,
    /// How long the key is remembered after completion.
    pub remember: Duration,
    /// The effect of the end of a lease.
    pub after_loss: AfterLoss,
    /// From when retention is counted.
    pub ttl_basis: TtlBasis,
    /// Whether time alone ends a reply.
    pub expiry: Expiry,
    /// How long a trace is shown to operators after the key is forgotten.
    pub keep_expired: Duration,
}

impl Terms {
    /// Terms of a class with this name: the key is remembered as long as the
    /// reply is kept, a lost claim is held, and retention counts from completion.
    pub fn new(class: impl Into<Arc<str>>, lease: Duration, retention: Duration) -> Self {
        Self {
            class: class.into(),
            lease,
            retention,
            remember: retention,
            after_loss: AfterLoss::Hold,
            ttl_basis: TtlBasis::Completion,
            expiry: Expiry::Strict,
            keep_expired: Duration::ZERO,
        }
    }

    /// The same terms with changes.
    #[must_use]
    pub fn with(mut self, change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        self
    }

    /// Whether only sweeping ends a reply. A trace begins at the moment at
    /// which its key is forgotten, so where traces are kept time decides.
    pub fn is_lazy(&self) -> bool {
        self.expiry == Expiry::Lazy && self.keep_expired.is_zero()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// With the shortest and the longest random pauses.
    #[test]
    fn a_webhook_is_tried_for_hours_and_soon_at_first() {
        let Class {
            backoff,
            max_attempts,
            ..
        } = Class::webhook();
        let span = |chance| -> Duration {
            let rests = (1..max_attempts).map(|attempts| backoff.after(attempts, chance));
            rests.sum()
        };
        let hour = Duration::from_secs(60 * 60);
        assert!(span(0) > hour * 4, "{:?}", span(0));
        assert!(span(u64::MAX) < hour * 9, "{:?}", span(u64::MAX));
        assert!(backoff.after(1, u64::MAX) <= Duration::from_secs(1));
    }
}
