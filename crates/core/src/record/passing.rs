//! Effects of time on a record: leases end, replies expire, keys are forgotten.

use std::sync::Arc;
use std::time::Duration;

use super::{Answer, Completion, Record, State};
use crate::class::{AfterLoss, TtlBasis};
use crate::clock::Timestamp;

/// The minimum interval between notes of replays, however short retention is.
const TOUCH_PAUSE_MIN: Duration = Duration::from_secs(1);

impl Record {
    /// The state at this moment; `None` once the record counts as absent.
    pub fn state_at(&self, now: Timestamp) -> Option<State> {
        match self.state {
            State::Running if now >= self.until => match (self.terms.after_loss, self.delivered) {
                (AfterLoss::Hold, _) => Some(State::Unknown),
                (AfterLoss::Free, true) => Some(State::Queued),
                (AfterLoss::Free, false) => None,
            },
            State::Released if now >= self.until => None,
            State::Completed | State::Failed | State::Expired => self.finished_at(now),
            state => Some(state),
        }
    }

    /// The same for an operation with an outcome.
    fn finished_at(&self, now: Timestamp) -> Option<State> {
        let has_passed = |moment: Option<Timestamp>| moment.is_some_and(|moment| now >= moment);
        if self.terms.is_lazy() {
            // The sweep takes the reply, then the record; time alone takes nothing.
            Some(self.state)
        } else if has_passed(self.forgotten_at()) {
            None
        } else if has_passed(self.expires_at()) {
            Some(State::Expired)
        } else {
            Some(self.state)
        }
    }

    /// The state to show to an operator at this moment: an operation whose key
    /// is forgotten is `expired` as long as its trace is kept.
    pub fn shown_state_at(&self, now: Timestamp) -> Option<State> {
        let trace = || {
            let is_kept = self.over_at().is_some_and(|over| now < over);
            is_kept.then_some(State::Expired)
        };
        self.state_at(now).or_else(trace)
    }

    /// The record as a caller sees it at this moment: with its current state, and
    /// without an expired reply. `None` once it counts as absent.
    pub fn seen_at(self: &Arc<Self>, now: Timestamp) -> Option<Arc<Self>> {
        self.state_at(now).map(|state| self.seen_as(state))
    }

    /// The record as an operator sees it at this moment: its trace too.
    pub fn shown_at(self: &Arc<Self>, now: Timestamp) -> Option<Arc<Self>> {
        self.shown_state_at(now).map(|state| self.seen_as(state))
    }

    fn seen_as(self: &Arc<Self>, state: State) -> Arc<Self> {
        if state == self.state {
            return self.clone();
        }
        let mut seen = Self::clone(self);
        if state == State::Expired {
            seen.expire();
        }
        seen.state = state;
        Arc::new(seen)
    }

    /// Drops the reply; its status stays.
    pub fn expire(&mut self) {
        self.state = State::Expired;
        self.answer = self.answer.take().map(|answer| Answer::Gone {
            status: answer.status(),
        });
    }

    /// From when retention is counted, once there is an outcome.
    fn basis(&self) -> Option<Timestamp> {
        self.completed_at.map(|completed| self.basis_of(completed))
    }

    /// From when the retention of an outcome of this moment is counted.
    pub(super) fn basis_of(&self, completed: Timestamp) -> Timestamp {
        match self.terms.ttl_basis {
            TtlBasis::Completion => completed,
            // It may have been unknown for long. A key that was just completed must
            // not be forgotten at once: the next retry would run it again.
            TtlBasis::Creation if completed.since(self.created_at) > self.terms.retention / 2 => {
                completed
            }
            TtlBasis::Creation => self.created_at,
            TtlBasis::Access => self.touched_at.map_or(completed, |at| at.max(completed)),
        }
    }

    /// The times of the outcome, once there is one.
    pub fn completion(&self) -> Option<Completion> {
        Some(Completion {
            completed_at: self.completed_at?,
            expires_at: self.expires_at()?,
        })
    }

    /// When the reply expires, once there is an outcome.
    pub fn expires_at(&self) -> Option<Timestamp> {
        self.basis().map(|at| at.plus(self.terms.retention))
    }

    /// When the key is forgotten, once there is an outcome.
    pub fn forgotten_at(&self) -> Option<Timestamp> {
        self.basis().map(|at| at.plus(self.terms.remember))
    }

    /// When nothing of the record is needed any more, once there is an outcome:
    /// the key is forgotten, and its trace was shown long enough.
    pub fn over_at(&self) -> Option<Timestamp> {
        let forgotten = self.forgotten_at();
        forgotten.map(|at| at.plus(self.terms.keep_expired))
    }

    /// Whether the reply has expired at this moment but is still given until it
    /// is swept.
    pub fn is_overdue(&self, now: Timestamp) -> bool {
        self.terms.is_lazy() && self.expires_at().is_some_and(|expired| now >= expired)
    }

    /// Whether the record is needed no more, neither by a caller nor by a holder
    /// nor by an operator: its space may be reclaimed. A lazily expiring record
    /// ends by this alone.
    pub fn is_over(&self, now: Timestamp) -> bool {
        match self.state {
            State::Released => now >= self.until,
            State::Completed | State::Failed | State::Expired => {
                self.over_at().is_some_and(|over| now >= over)
            }
            // A late holder may still settle it.
            State::Running | State::Queued | State::Unknown | State::Paused => false,
        }
    }

    /// Whether a replay at this moment is to be noted: retention counts from
    /// replays, and a tenth of it has passed since the last note. So a record is
    /// rewritten at most ten times per retention.
    pub fn wants_touch(&self, now: Timestamp) -> bool {
        let replayed = matches!(self.state_at(now), Some(State::Completed | State::Failed));
        let pause = (self.terms.retention / 10).max(TOUCH_PAUSE_MIN);
        self.terms.ttl_basis == TtlBasis::Access
            && replayed
            && self.basis().is_some_and(|noted| now.since(noted) >= pause)
    }

    /// Notes a replay.
    pub fn touch(&mut self, now: Timestamp) {
        self.touched_at = Some(now);
    }
}
