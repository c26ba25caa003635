//! Changes of a record by holders: a claim is granted, renewed and settled.

use super::{Answer, Attempt, Completion, Fence, Record, Settled, Settlement, State};
use crate::class::AfterLoss;
use crate::clock::Timestamp;
use crate::store::Grant;

impl Record {
    /// Grants a claim to a new attempt.
    pub fn grant(&mut self, fence: Fence, attempt: Attempt, now: Timestamp) {
        self.state = State::Running;
        self.fence = fence;
        self.attempt = attempt;
        self.attempts = self.attempts.saturating_add(1);
        self.until = now.plus(self.terms.lease);
        self.drop_answer();
    }

    /// The last grant of this record.
    pub fn as_grant(&self) -> Grant {
        Grant {
            digest: self.digest,
            id: self.id,
            fence: self.fence,
        }
    }

    /// Whether the holder of `fence` may still act on this record: no other claim
    /// was granted since, and the operation runs or is unknown.
    pub fn is_held_by(&self, fence: Fence) -> bool {
        self.fence == fence && matches!(self.state, State::Running | State::Unknown)
    }

    /// Applies a settlement by the holder of `fence`. The same settlement again
    /// gives the same answer; a stale fence changes nothing.
    pub fn settle(&mut self, fence: Fence, settlement: &Settlement, now: Timestamp) -> Settled {
        if self.state != State::Running && self.state_at(now).is_none() {
            // A record that time has made absent does not count, swept or not.
            return Settled::Stale;
        }
        if !self.is_held_by(fence) {
            return self.settle_again(fence, settlement, now);
        }
        match settlement {
            Settlement::Completed(answer) => {
                return Settled::Finished(self.finish(State::Completed, answer.clone(), now));
            }
            Settlement::Failed(answer) => {
                return Settled::Finished(self.finish(State::Failed, answer.clone(), now));
            }
            Settlement::Requeued { after } if self.delivered => self.enqueue(now.plus(*after)),
            Settlement::Deferred { after } if self.delivered => {
                self.attempts = self.attempts.saturating_sub(1);
                self.enqueue(now.plus(*after));
            }
            // Without a request to deliver, the key is free.
            Settlement::Released | Settlement::Requeued { .. } | Settlement::Deferred { .. } => {
                self.state = State::Released;
                self.until = now.plus(self.terms.lease);
            }
            Settlement::Lost => self.lose(now),
            Settlement::Paused => self.state = State::Paused,
        }
        Settled::Done
    }

    fn settle_again(&mut self, fence: Fence, settlement: &Settlement, now: Timestamp) -> Settled {
        if self.fence != fence {
            return Settled::Stale;
        }
        match (self.state, settlement) {
            (State::Completed, Settlement::Completed(_)) | (State::Failed, Settlement::Failed(_)) => {
                self.completion().map_or(Settled::Stale, Settled::Finished)
            }
            (State::Released, Settlement::Released)
            // The record does not say which settlement put it back.
            | (State::Queued, Settlement::Requeued { .. } | Settlement::Deferred { .. })
            | (State::Paused, Settlement::Paused) => Settled::Done,
            (State::Queued, Settlement::Lost) if self.is_delivered_again() => Settled::Done,
            (State::Released, Settlement::Requeued { .. } | Settlement::Deferred { .. })
                if !self.delivered =>
            {
                Settled::Done
            }
            // The reply was marked as not kept, and its stream broke off.
            (State::Completed | State::Failed, Settlement::Lost)
                if matches!(self.answer, Some(Answer::NotKept { .. })) =>
            {
                self.drop_answer();
                self.lose(now);
                Settled::Done
            }
            _ => Settled::Stale,
        }
    }

    /// The holder does not know the outcome. Where running twice was declared
    /// safe, a delivery is due again, as at the end of its lease: no request comes
    /// that would run it, so it would stay unknown.
    fn lose(&mut self, now: Timestamp) {
        if self.is_delivered_again() {
            self.enqueue(now);
        } else {
            self.state = State::Unknown;
        }
    }

    /// Whether the gateway delivers it again by itself after a loss.
    fn is_delivered_again(&self) -> bool {
        self.delivered && self.terms.after_loss == AfterLoss::Free
    }

    pub(super) fn drop_answer(&mut self) {
        self.completed_at = None;
        self.touched_at = None;
        self.answer = None;
    }

    /// Records an outcome, and returns its times.
    pub fn finish(&mut self, state: State, answer: Answer, now: Timestamp) -> Completion {
        self.state = state;
        self.completed_at = Some(now);
        self.answer = Some(answer);
        Completion {
            completed_at: now,
            expires_at: self.basis_of(now).plus(self.terms.retention),
        }
    }

    /// Extends the lease of the holder of `fence`. An unknown operation runs
    /// again, as long as no other claim was granted since.
    pub fn renew(&mut self, fence: Fence, now: Timestamp) -> Settled {
        if !self.is_held_by(fence) {
            return Settled::Stale;
        }
        self.state = State::Running;
        self.until = now.plus(self.terms.lease);
        Settled::Done
    }

    /// The record of a running operation whose holder is certainly gone: as at
    /// the end of its lease, but now. `None` where the key is free.
    pub fn without_holder(&self, now: Timestamp) -> Option<Self> {
        let mut record = self.clone();
        match (self.terms.after_loss, self.delivered) {
            (AfterLoss::Hold, _) => record.state = State::Unknown,
            (AfterLoss::Free, true) => record.enqueue(now),
            (AfterLoss::Free, false) => return None,
        }
        Some(record)
    }

    /// Queues the operation for delivery by the gateway.
    pub fn enqueue(&mut self, due: Timestamp) {
        self.delivered = true;
        self.state = State::Queued;
        self.until = due;
    }

    /// When queued work is due; `None` for all other.
    pub fn due_at(&self) -> Option<Timestamp> {
        let lost = self.state == State::Running && self.is_delivered_again();
        (self.state == State::Queued || lost).then_some(self.until)
    }

    /// Whether queued work is due now.
    pub fn is_due(&self, now: Timestamp) -> bool {
        self.due_at().is_some_and(|due| now >= due)
    }
}
