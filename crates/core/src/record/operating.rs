//! Changes of a record by operators: resolve, resume, redeliver.

use super::{Answer, Fence, Record, State};
use crate::clock::Timestamp;
use crate::store::{Changed, Resolution};

impl Record {
    /// Settles an unknown operation. The new fence makes the old holder stale.
    pub fn resolve(&mut self, fence: Fence, word: &Resolution, now: Timestamp) {
        self.fence = fence;
        match word {
            Resolution::Ran(reply) => {
                let state = State::of_status(reply.status);
                self.finish(state, Answer::Kept(reply.clone()), now);
            }
            Resolution::NotRun => self.free(now),
        }
    }

    /// Lets a paused operation go on, with all its attempts left.
    pub fn resume(&mut self, now: Timestamp) {
        self.attempts = 0;
        self.free(now);
    }

    /// Queues enqueued work again that has ended, is unknown or is paused. It
    /// is due at once, with all its attempts left; its outcome is forgotten,
    /// and the new fence makes the old holder stale. Refused, without any
    /// change, while it is still to be delivered, and where there is no
    /// request, because it was never enqueued or has expired.
    pub fn redeliver(&mut self, fence: Fence, now: Timestamp) -> Changed {
        match self.shown_state_at(now) {
            None => Changed::Absent,
            Some(State::Completed | State::Failed | State::Unknown | State::Paused)
                if self.delivered =>
            {
                self.fence = fence;
                self.attempts = 0;
                self.drop_answer();
                self.enqueue(now);
                Changed::Done
            }
            Some(state) => Changed::Refused(state),
        }
    }

    /// Queued again at once where the gateway delivers it, else released.
    fn free(&mut self, now: Timestamp) {
        if self.delivered {
            self.enqueue(now);
        } else {
            self.state = State::Released;
            self.until = now.plus(self.terms.lease);
        }
    }
}
