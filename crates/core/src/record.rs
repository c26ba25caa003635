//! An operation's record and its life.
//!
//! The rules that move a record are pure functions here, so that the memory
//! and the embedded store share them to the letter and the SQL and Lua of the
//! others have a model to be compared with.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use crate::class::{AfterLoss, Terms, TtlBasis};
use crate::clock::Timestamp;
use crate::fingerprint::Fingerprint;
use crate::identity::{Digest, Identity, OperationId};
use crate::store::{Changed, Grant, Resolution};

/// Where an operation stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum State {
    /// Recorded with its request, to be delivered by the gateway.
    Queued,
    /// Claimed; an attempt runs.
    Running,
    /// The reply is kept; it was a success.
    Completed,
    /// The reply is kept; it was a failure for good.
    Failed,
    /// Free again; shown for the length of one lease.
    Released,
    /// It may have run.
    Unknown,
    /// Its attempts are used up.
    Paused,
    /// The reply is gone, the key still remembered.
    Expired,
}

impl State {
    /// Every state.
    pub const ALL: [Self; 8] = [
        Self::Queued,
        Self::Running,
        Self::Completed,
        Self::Failed,
        Self::Released,
        Self::Unknown,
        Self::Paused,
        Self::Expired,
    ];

    /// The state of an operation that was answered with this status for good.
    pub fn of_status(status: u16) -> Self {
        if status < 400 {
            Self::Completed
        } else {
            Self::Failed
        }
    }

    /// The word in answers, metrics and logs.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::Running => "running",
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Released => "released",
            Self::Unknown => "unknown",
            Self::Paused => "paused",
            Self::Expired => "expired",
        }
    }
}

/// A number that rises with every grant; it survives release, purge and restart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fence(pub u64);

/// The holder's own name for its claim, so that asking again after a lost
/// answer is recognised as the same claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Attempt(pub u128);

/// However short retention is, noting replays is not all that is done.
const TOUCH_PAUSE_MIN: Duration = Duration::from_secs(1);

/// A header or trailer line, as bytes.
pub type Field = (Bytes, Bytes);

/// What the upstream answered, whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    /// The HTTP status.
    pub status: u16,
    /// The headers that are kept, in order, several lines of one name included.
    pub headers: Vec<Field>,
    /// The body.
    pub body: Bytes,
    /// The trailers.
    pub trailers: Vec<Field>,
}

/// What a record holds of the upstream's answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// All of it.
    Kept(Arc<Reply>),
    /// Only its status: the body was too large, or a stream.
    NotKept {
        /// The HTTP status.
        status: u16,
    },
    /// Only its status: retention is over.
    Gone {
        /// The HTTP status.
        status: u16,
    },
}

impl Answer {
    /// The upstream's status.
    pub fn status(&self) -> u16 {
        match self {
            Self::Kept(reply) => reply.status,
            Self::NotKept { status } | Self::Gone { status } => *status,
        }
    }
}

/// One operation, as a store keeps it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// The public id.
    pub id: OperationId,
    /// The digest of the identity.
    pub digest: Digest,
    /// Caller, endpoint and key.
    pub identity: Identity,
    /// What was asked.
    pub fingerprint: Fingerprint,
    /// What was frozen of its class.
    pub terms: Terms,
    /// The state as last written; [`Record::state_at`] tells what time made of it.
    pub state: State,
    /// The fence of the last grant.
    pub fence: Fence,
    /// The attempt of the last grant.
    pub attempt: Attempt,
    /// How often it was granted, but for grants that were not used: see
    /// [`Settlement::Deferred`].
    pub attempts: u32,
    /// The gateway delivers it by itself: released means queued again.
    pub delivered: bool,
    /// When it was first recorded.
    pub created_at: Timestamp,
    /// Running: when the lease ends. Released: how long that is shown. Queued: when it is due.
    pub until: Timestamp,
    /// When it was completed or failed.
    pub completed_at: Option<Timestamp>,
    /// When a replay was last noted, where retention counts from that.
    pub touched_at: Option<Timestamp>,
    /// What the upstream answered; present when completed or failed.
    pub answer: Option<Answer>,
}

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

    /// The same once an outcome is recorded.
    fn finished_at(&self, now: Timestamp) -> Option<State> {
        let has_passed = |moment: Option<Timestamp>| moment.is_some_and(|moment| now >= moment);
        if self.terms.is_lazy() {
            // Whoever sweeps takes the reply, then the record; time takes nothing.
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

    /// The record as a caller sees it at this moment: the state of now, and no
    /// reply that has expired. `None` once it counts as absent.
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

    /// Lets the reply go; its status stays.
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
    fn basis_of(&self, completed: Timestamp) -> Timestamp {
        match self.terms.ttl_basis {
            TtlBasis::Completion => completed,
            // It may have been unknown for long. What has just been completed
            // must not be forgotten at once: the next retry would run it again.
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

    /// When nothing of it is needed any more, once there is an outcome: the key
    /// is forgotten, and its trace was shown long enough.
    pub fn over_at(&self) -> Option<Timestamp> {
        let forgotten = self.forgotten_at();
        forgotten.map(|at| at.plus(self.terms.keep_expired))
    }

    /// Whether the reply has expired at this moment, and only who sweeps can
    /// tell whether it is still there.
    pub fn is_overdue(&self, now: Timestamp) -> bool {
        self.terms.is_lazy() && self.expires_at().is_some_and(|expired| now >= expired)
    }

    /// Whether a replay at this moment is to be noted: retention counts from
    /// it, and a tenth of that has passed since the last note. So a reply is
    /// written again at most ten times while it would have lasted once.
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

    /// Lets a new attempt run: the step behind `Granted`.
    pub fn grant(&mut self, fence: Fence, attempt: Attempt, now: Timestamp) {
        self.state = State::Running;
        self.fence = fence;
        self.attempt = attempt;
        self.attempts = self.attempts.saturating_add(1);
        self.until = now.plus(self.terms.lease);
        self.drop_answer();
    }

    /// Whether the holder of `fence` may still act on this record: nobody was
    /// granted since, and it runs or is unknown.
    pub fn is_held_by(&self, fence: Fence) -> bool {
        self.fence == fence && matches!(self.state, State::Running | State::Unknown)
    }

    /// Applies a settlement by the holder of `fence`. The same settlement again
    /// gives the same answer; a stale fence changes nothing.
    pub fn settle(&mut self, fence: Fence, settlement: &Settlement, now: Timestamp) -> Settled {
        if self.state != State::Running && self.state_at(now).is_none() {
            // Swept or not, what time has made absent is not there.
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
            // What was never enqueued has no request to deliver: it is free.
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
            // Which word put it back the record does not tell.
            | (State::Queued, Settlement::Requeued { .. } | Settlement::Deferred { .. })
            | (State::Paused, Settlement::Paused) => Settled::Done,
            (State::Queued, Settlement::Lost) if self.is_delivered_again() => Settled::Done,
            (State::Released, Settlement::Requeued { .. } | Settlement::Deferred { .. })
                if !self.delivered =>
            {
                Settled::Done
            }
            // A reply that was marked as not kept, and then broke off.
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

    /// Nobody knows what became of it, by its holder's own word. Where running
    /// twice was declared safe a delivery is due again, as at the end of its
    /// lease: no request comes that would run it, so it would stay unknown.
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

    fn drop_answer(&mut self) {
        self.completed_at = None;
        self.touched_at = None;
        self.answer = None;
    }

    /// Extends the lease of the holder of `fence`. A holder that was thought
    /// lost, while nobody was granted since, runs again.
    pub fn renew(&mut self, fence: Fence, now: Timestamp) -> Settled {
        if !self.is_held_by(fence) {
            return Settled::Stale;
        }
        self.state = State::Running;
        self.until = now.plus(self.terms.lease);
        Settled::Done
    }

    /// Settles an unknown operation by somebody's word. The new fence makes the
    /// old holder stale.
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

    /// What becomes of a running operation when it is certain that its holder
    /// is gone: as at the end of its lease, but now. `None` where it is free.
    pub fn without_holder(&self, now: Timestamp) -> Option<Self> {
        let mut record = self.clone();
        match (self.terms.after_loss, self.delivered) {
            (AfterLoss::Hold, _) => record.state = State::Unknown,
            (AfterLoss::Free, true) => record.enqueue(now),
            (AfterLoss::Free, false) => return None,
        }
        Some(record)
    }

    /// Lets a paused operation go on, with all its attempts before it.
    pub fn resume(&mut self, now: Timestamp) {
        self.attempts = 0;
        self.free(now);
    }

    /// Sends the request of enqueued work again, by an operator's word: once it
    /// is done or given up. It is due at once, with all its attempts before it;
    /// what came of it before is forgotten, and the new fence makes whoever held
    /// it stale. Nothing changes where this is refused: while it is still to be
    /// delivered, and where there is no request, because it was never enqueued
    /// or its time is over.
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

    /// Whether nobody needs the record any more, neither a caller nor a holder
    /// nor an operator: its room may be reclaimed. Of what expires lazily this
    /// is what ends it.
    pub fn is_over(&self, now: Timestamp) -> bool {
        match self.state {
            State::Released => now >= self.until,
            State::Completed | State::Failed | State::Expired => {
                self.over_at().is_some_and(|over| now >= over)
            }
            // A holder that is late may still come.
            State::Running | State::Queued | State::Unknown | State::Paused => false,
        }
    }

    /// What the holder of this record's last grant is told.
    pub fn as_grant(&self) -> Grant {
        Grant {
            digest: self.digest,
            id: self.id,
            fence: self.fence,
        }
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
}

/// What the holder says became of its claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Settlement {
    /// It ran; this is to be replayed.
    Completed(Answer),
    /// It failed for good; this is to be replayed.
    Failed(Answer),
    /// Nothing was done, or trying again was declared safe: the key is free.
    Released,
    /// Queued work that is to be tried again later. What was never enqueued is
    /// released instead.
    Requeued {
        /// How much later.
        after: Duration,
    },
    /// Queued work that was not tried, because its turn came too early. The grant
    /// does not count among its attempts; otherwise it is requeued.
    Deferred {
        /// How much later its next turn comes.
        after: Duration,
    },
    /// It may have run, and nobody knows. Queued work is due again where running
    /// twice was declared safe.
    Lost,
    /// Its attempts are used up.
    Paused,
}

/// The answer to a settlement or a renewal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Settled {
    /// The outcome is recorded: the answer to [`Settlement::Completed`] and
    /// [`Settlement::Failed`].
    Finished(Completion),
    /// Every other settlement, and a renewal, is recorded.
    Done,
    /// The operation was granted again, resolved or purged since. Nothing changed.
    Stale,
}

impl Settled {
    /// Whether the store has recorded it.
    pub fn is_recorded(self) -> bool {
        self != Self::Stale
    }
}

/// The times of an outcome, by the store's clock. They equal those of the record
/// that [`Store::get`](crate::store::Store::get) returns afterwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// When the outcome was recorded.
    pub completed_at: Timestamp,
    /// When the reply expires.
    pub expires_at: Timestamp,
}

#[cfg(test)]
pub(crate) mod tests {
    use rstest::rstest;

    use super::*;
    use crate::caller::Caller;
    use crate::class::Expiry;
    use crate::fingerprint::Algorithm;
    use crate::identity::{Endpoint, KeySpace};
    use crate::key::Key;

    /// When sample records were written.
    pub(crate) const START: Timestamp = Timestamp::from_unix_ms(1_700_000_000_000);
    pub(crate) const LEASE: Duration = Duration::from_secs(60);
    pub(crate) const RETENTION: Duration = Duration::from_secs(3_600);
    pub(crate) const REMEMBER: Duration = Duration::from_secs(7_200);

    const MOMENT: Duration = Duration::from_millis(1);
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

    fn words() -> [Settlement; 7] {
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

    /// What each of the [`words`] leads to; a dash where it is stale.
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
                    assert_eq!(after, *record, "a stale word changed something: {word:?}");
                    "-".to_owned()
                }
            }
        };
        words().each_ref().map(outcome).join(" ")
    }

    #[rstest]
    #[case::running(
        State::Running,
        "Completed Failed Released Released Released Unknown Paused"
    )]
    #[case::unknown(
        State::Unknown,
        "Completed Failed Released Released Released Unknown Paused"
    )]
    #[case::completed(State::Completed, "Completed - - - - - -")]
    #[case::failed(State::Failed, "- Failed - - - - -")]
    #[case::released(State::Released, "- - Released Released Released - -")]
    #[case::paused(State::Paused, "- - - - - - Paused")]
    fn settling(#[case] state: State, #[case] want: &str) {
        let record = record(state, AfterLoss::Hold);
        assert_eq!(outcomes(&record, HELD, START), want);
        assert_eq!(
            outcomes(&record, Fence(6), START),
            "- - - - - - -",
            "a lower fence"
        );
        assert_eq!(
            outcomes(&record, Fence(8), START),
            "- - - - - - -",
            "a higher fence"
        );
    }

    /// Where running twice was declared safe, a lost delivery is queued; all else
    /// is the same.
    #[rstest]
    #[case::running(
        State::Running,
        "Completed Failed Released Queued Queued Unknown Paused",
        5
    )]
    #[case::unknown(
        State::Unknown,
        "Completed Failed Released Queued Queued Unknown Paused",
        5
    )]
    #[case::queued(State::Queued, "- - - Queued Queued - -", 5)]
    #[case::completed(State::Completed, "Completed - - - - - -", 7)]
    #[case::released(State::Released, "- - Released - - - -", 7)]
    #[case::paused(State::Paused, "- - - - - - Paused", 7)]
    fn settling_a_delivery(#[case] state: State, #[case] held: &str, #[case] lost: usize) {
        for after_loss in [AfterLoss::Hold, AfterLoss::Free] {
            let mut record = record(state, after_loss);
            record.delivered = true;
            let mut want: Vec<_> = held.split(' ').collect();
            if let (AfterLoss::Free, Some(word)) = (after_loss, want.get_mut(lost)) {
                *word = "Queued";
            }
            assert_eq!(outcomes(&record, HELD, START), want.join(" "));
            assert_eq!(outcomes(&record, Fence(6), START), "- - - - - - -");
        }
    }

    /// When it is due again, and how often it was tried, after one grant.
    #[rstest]
    #[case::requeued(Settlement::Requeued { after: RETENTION }, RETENTION, 1)]
    #[case::deferred(Settlement::Deferred { after: RETENTION }, RETENTION, 0)]
    #[case::lost(Settlement::Lost, Duration::ZERO, 1)]
    fn what_is_put_back_into_the_queue(
        #[case] word: Settlement,
        #[case] after: Duration,
        #[case] attempts: u32,
    ) {
        let mut record = record(State::Running, AfterLoss::Free);
        record.delivered = true;
        let now = START.plus(MOMENT);
        assert!(record.settle(HELD, &word, now).is_recorded());
        let put_back = record.clone();
        assert_eq!(record.due_at(), Some(now.plus(after)));
        assert_eq!((record.attempts, record.fence), (attempts, HELD));
        let again = record.settle(HELD, &word, now.plus(MOMENT));
        assert_eq!(
            (again, &record),
            (Settled::Done, &put_back),
            "the same word again"
        );
        assert_eq!(record.renew(HELD, now), Settled::Stale);
        assert_eq!(record, put_back);
    }

    #[test]
    fn a_grant_that_never_was_an_attempt_is_not_counted_below_none() {
        let mut record = record(State::Running, AfterLoss::Hold);
        (record.delivered, record.attempts) = (true, 0);
        let word = Settlement::Deferred { after: LEASE };
        assert!(record.settle(HELD, &word, START).is_recorded());
        assert_eq!(record.attempts, 0);
    }

    #[rstest]
    #[case::late(
        State::Running,
        LEASE,
        "Completed Failed Released Released Released Unknown Paused"
    )]
    #[case::released_and_gone(State::Released, LEASE, "- - - - - - -")]
    #[case::expired(State::Completed, RETENTION, "Completed - - - - - -")]
    #[case::forgotten(State::Completed, REMEMBER, "- - - - - - -")]
    fn settling_later(#[case] state: State, #[case] later: Duration, #[case] want: &str) {
        for after_loss in [AfterLoss::Hold, AfterLoss::Free] {
            let record = record(state, after_loss);
            assert_eq!(outcomes(&record, HELD, START.plus(later)), want);
        }
    }

    #[rstest]
    #[case::held(AfterLoss::Hold, false, State::Unknown)]
    #[case::freely(AfterLoss::Free, false, State::Unknown)]
    #[case::delivery_held(AfterLoss::Hold, true, State::Unknown)]
    #[case::delivery_freely(AfterLoss::Free, true, State::Queued)]
    fn settling_what_was_not_kept_as_lost(
        #[case] after_loss: AfterLoss,
        #[case] delivered: bool,
        #[case] want: State,
    ) {
        for state in [State::Completed, State::Failed] {
            let mut record = record(state, after_loss);
            record.delivered = delivered;
            record.answer = Some(Answer::NotKept { status: 200 });
            assert!(record.settle(HELD, &Settlement::Lost, START).is_recorded());
            assert_eq!(
                (record.state, record.answer, record.completed_at),
                (want, None, None)
            );
        }
    }

    #[test]
    fn settling_keeps_the_time_and_the_answer() {
        let mut record = record(State::Running, AfterLoss::Hold);
        let now = START.plus(MOMENT);
        record.settle(HELD, &Settlement::Failed(kept(404)), now);
        assert_eq!(
            (record.completed_at, &record.answer),
            (Some(now), &Some(kept(404)))
        );
        assert_eq!(record.expires_at(), Some(now.plus(RETENTION)));
        assert_eq!(record.forgotten_at(), Some(now.plus(REMEMBER)));
        record.settle(HELD, &Settlement::Failed(kept(400)), now.plus(LEASE));
        assert_eq!(
            (record.completed_at, record.answer),
            (Some(now), Some(kept(404)))
        );
    }

    #[rstest]
    #[case::running(State::Running, AfterLoss::Hold, LEASE - MOMENT, Some(State::Running))]
    #[case::lost(State::Running, AfterLoss::Hold, LEASE, Some(State::Unknown))]
    #[case::running_freely(State::Running, AfterLoss::Free, LEASE - MOMENT, Some(State::Running))]
    #[case::freed(State::Running, AfterLoss::Free, LEASE, None)]
    #[case::released(State::Released, AfterLoss::Hold, LEASE - MOMENT, Some(State::Released))]
    #[case::released_and_gone(State::Released, AfterLoss::Hold, LEASE, None)]
    #[case::completed(State::Completed, AfterLoss::Hold, RETENTION - MOMENT, Some(State::Completed))]
    #[case::expired(State::Completed, AfterLoss::Hold, RETENTION, Some(State::Expired))]
    #[case::failed(State::Failed, AfterLoss::Hold, RETENTION - MOMENT, Some(State::Failed))]
    #[case::failed_and_expired(State::Failed, AfterLoss::Hold, REMEMBER - MOMENT, Some(State::Expired))]
    #[case::forgotten(State::Failed, AfterLoss::Hold, REMEMBER, None)]
    #[case::unknown_for_ever(State::Unknown, AfterLoss::Hold, REMEMBER * 1_000, Some(State::Unknown))]
    #[case::paused_for_ever(State::Paused, AfterLoss::Free, REMEMBER * 1_000, Some(State::Paused))]
    #[case::queued_for_ever(State::Queued, AfterLoss::Hold, REMEMBER * 1_000, Some(State::Queued))]
    fn states_over_time(
        #[case] state: State,
        #[case] after_loss: AfterLoss,
        #[case] later: Duration,
        #[case] want: Option<State>,
    ) {
        let record = Arc::new(record(state, after_loss));
        let now = START.plus(later);
        assert_eq!(record.state_at(now), want);
        assert_eq!(record.seen_at(now).map(|seen| seen.state), want);
        let reclaimed = want.is_none() && state != State::Running;
        assert_eq!(record.is_over(now), reclaimed, "its holder may still come");
    }

    #[rstest]
    #[case::held(AfterLoss::Hold, Some(State::Unknown), None)]
    #[case::freed(AfterLoss::Free, Some(State::Queued), Some(LEASE))]
    fn delivery_after_its_lease(
        #[case] after_loss: AfterLoss,
        #[case] want: Option<State>,
        #[case] due: Option<Duration>,
    ) {
        let mut record = record(State::Running, after_loss);
        record.delivered = true;
        assert_eq!(record.state_at(START.plus(LEASE)), want);
        assert_eq!(record.due_at(), due.map(|span| START.plus(span)));
        assert_eq!(record.is_due(START.plus(LEASE)), due.is_some());
        assert!(!record.is_due(START.plus(LEASE - MOMENT)));
        let alone = record.without_holder(START).map(|record| record.state);
        assert_eq!(alone, want, "as at the end of the lease");
    }

    /// As a caller sees it, as an operator sees it, and whether it may be swept.
    fn standing(record: &Record, later: Duration) -> String {
        let now = START.plus(later);
        let word = |state: Option<State>| state.map_or("-", State::as_str);
        let seen = word(record.state_at(now));
        let shown = word(record.shown_state_at(now));
        let over = if record.is_over(now) { "over" } else { "" };
        let record = Arc::new(record.clone());
        let states = [record.seen_at(now), record.shown_at(now)].map(|r| r.map(|r| r.state));
        assert_eq!(states.map(word), [seen, shown]);
        format!("{seen} {shown} {over}").trim_end().to_owned()
    }

    const TRACE: Duration = Duration::from_secs(600);

    /// An operation created at [`START`], completed half an hour later, whose
    /// replay was noted after another half.
    #[rstest]
    #[case::completion(TtlBasis::Completion, RETENTION / 2)]
    #[case::creation(TtlBasis::Creation, Duration::ZERO)]
    #[case::access(TtlBasis::Access, RETENTION)]
    fn retention_counts_from_its_basis(#[case] ttl_basis: TtlBasis, #[case] basis: Duration) {
        let mut record = record(State::Completed, AfterLoss::Hold);
        record.completed_at = Some(START.plus(RETENTION / 2));
        record.touched_at = Some(START.plus(RETENTION));
        record.terms.ttl_basis = ttl_basis;
        record.terms.keep_expired = TRACE;
        let at = |span: Duration| Some(START.plus(basis + span));
        assert_eq!(record.expires_at(), at(RETENTION));
        assert_eq!(record.forgotten_at(), at(REMEMBER));
        assert_eq!(record.over_at(), at(REMEMBER + TRACE));
        let steps = [
            (RETENTION - MOMENT, "completed completed"),
            (RETENTION, "expired expired"),
            (REMEMBER - MOMENT, "expired expired"),
            (REMEMBER, "- expired"),
            (REMEMBER + TRACE - MOMENT, "- expired"),
            (REMEMBER + TRACE, "- - over"),
        ];
        for (span, want) in steps {
            assert_eq!(standing(&record, basis + span), want, "{span:?}");
        }
    }

    #[rstest]
    #[case::soon(MOMENT, Duration::ZERO)]
    #[case::half_way(RETENTION / 2, Duration::ZERO)]
    #[case::later(RETENTION / 2 + MOMENT, RETENTION / 2 + MOMENT)]
    #[case::too_late_to_be_replayed(RETENTION, RETENTION)]
    #[case::too_late_to_be_remembered(REMEMBER * 2, REMEMBER * 2)]
    fn what_completes_late_counts_from_then(#[case] completed: Duration, #[case] basis: Duration) {
        let mut record = record(State::Running, AfterLoss::Hold);
        record.terms.ttl_basis = TtlBasis::Creation;
        let now = START.plus(completed);
        record.settle(HELD, &Settlement::Completed(kept(201)), now);
        assert_eq!(record.expires_at(), Some(START.plus(basis + RETENTION)));
        assert_eq!(record.forgotten_at(), Some(START.plus(basis + REMEMBER)));
        assert_eq!(record.state_at(now), Some(State::Completed));
    }

    #[rstest]
    #[case::fresh(RETENTION - MOMENT, "completed completed")]
    #[case::expired(RETENTION, "completed completed")]
    #[case::forgotten(REMEMBER, "completed completed over")]
    #[case::long_ago(REMEMBER * 1_000, "completed completed over")]
    fn lazy_expiry_waits_for_the_sweep(#[case] later: Duration, #[case] want: &str) {
        let mut record = record(State::Completed, AfterLoss::Hold);
        record.terms.expiry = Expiry::Lazy;
        assert_eq!(standing(&record, later), want);
        assert_eq!(record.is_overdue(START.plus(later)), later >= RETENTION);
        record.expire();
        assert_eq!(
            standing(&record, later),
            want.replace("completed", "expired"),
            "swept"
        );
        record.terms.keep_expired = TRACE;
        assert!(!record.is_overdue(START.plus(later)), "a trace is strict");
    }

    #[rstest]
    #[case::soon(TtlBasis::Access, RETENTION / 10 - MOMENT, false)]
    #[case::in_time(TtlBasis::Access, RETENTION / 10, true)]
    #[case::just_before_its_end(TtlBasis::Access, RETENTION - MOMENT, true)]
    #[case::expired(TtlBasis::Access, RETENTION, false)]
    #[case::other_basis(TtlBasis::Completion, RETENTION / 2, false)]
    #[case::creation(TtlBasis::Creation, RETENTION / 2, false)]
    fn replays_are_noted_now_and_then(
        #[case] ttl_basis: TtlBasis,
        #[case] later: Duration,
        #[case] want: bool,
    ) {
        for state in [State::Completed, State::Failed] {
            let mut record = record(state, AfterLoss::Hold);
            record.terms.ttl_basis = ttl_basis;
            let now = START.plus(later);
            assert_eq!(record.wants_touch(now), want);
            record.touch(now);
            assert!(!record.wants_touch(now));
        }
        let mut open = record(State::Running, AfterLoss::Hold);
        open.terms.ttl_basis = ttl_basis;
        assert!(!open.wants_touch(START.plus(later)));
    }

    #[test]
    fn expired_reply_is_not_shown() {
        let record = Arc::new(record(State::Completed, AfterLoss::Hold));
        let seen = record
            .seen_at(START.plus(RETENTION))
            .expect("still remembered");
        assert_eq!(seen.answer, Some(Answer::Gone { status: 200 }));
    }

    #[rstest]
    #[case::running(State::Running, Settled::Done)]
    #[case::thought_lost(State::Unknown, Settled::Done)]
    #[case::completed(State::Completed, Settled::Stale)]
    #[case::released(State::Released, Settled::Stale)]
    #[case::paused(State::Paused, Settled::Stale)]
    #[case::queued(State::Queued, Settled::Stale)]
    fn renewing(#[case] state: State, #[case] want: Settled) {
        let mut renewed = record(state, AfterLoss::Hold);
        let now = START.plus(LEASE * 3);
        assert_eq!(renewed.renew(Fence(6), now), Settled::Stale);
        assert_eq!(renewed, record(state, AfterLoss::Hold));
        assert_eq!(renewed.renew(HELD, now), want);
        if want == Settled::Done {
            assert_eq!(
                (renewed.state, renewed.until),
                (State::Running, now.plus(LEASE))
            );
        }
    }

    #[rstest]
    #[case::ran(Resolution::Ran(Arc::new(Reply { status: 201, headers: vec![], body: Bytes::new(), trailers: vec![] })), false, State::Completed)]
    #[case::ran_and_failed(Resolution::Ran(Arc::new(Reply { status: 400, headers: vec![], body: Bytes::new(), trailers: vec![] })), false, State::Failed)]
    #[case::not_run(Resolution::NotRun, false, State::Released)]
    #[case::delivery_not_run(Resolution::NotRun, true, State::Queued)]
    fn resolving(#[case] word: Resolution, #[case] delivered: bool, #[case] want: State) {
        let mut record = record(State::Unknown, AfterLoss::Hold);
        record.delivered = delivered;
        record.resolve(Fence(8), &word, START);
        assert_eq!((record.state, record.fence), (want, Fence(8)));
        assert_eq!(
            outcomes(&record, HELD, START),
            "- - - - - - -",
            "the old holder"
        );
    }

    const NOW: Duration = Duration::ZERO;

    /// What becomes of an operation that was enqueued; one that was not is refused
    /// in every state.
    #[rstest]
    #[case::completed(State::Completed, AfterLoss::Hold, NOW, Changed::Done)]
    #[case::failed(State::Failed, AfterLoss::Free, RETENTION - MOMENT, Changed::Done)]
    #[case::unknown(State::Unknown, AfterLoss::Hold, REMEMBER * 9, Changed::Done)]
    #[case::paused(State::Paused, AfterLoss::Free, REMEMBER * 9, Changed::Done)]
    #[case::lost(State::Running, AfterLoss::Hold, LEASE, Changed::Done)]
    #[case::running(State::Running, AfterLoss::Hold, NOW, Changed::Refused(State::Running))]
    #[case::due_again(
        State::Running,
        AfterLoss::Free,
        LEASE,
        Changed::Refused(State::Queued)
    )]
    #[case::queued(State::Queued, AfterLoss::Hold, NOW, Changed::Refused(State::Queued))]
    #[case::released(
        State::Released,
        AfterLoss::Hold,
        NOW,
        Changed::Refused(State::Released)
    )]
    #[case::released_and_gone(State::Released, AfterLoss::Hold, LEASE, Changed::Absent)]
    #[case::expired(
        State::Completed,
        AfterLoss::Hold,
        RETENTION,
        Changed::Refused(State::Expired)
    )]
    #[case::trace(
        State::Completed,
        AfterLoss::Hold,
        REMEMBER,
        Changed::Refused(State::Expired)
    )]
    #[case::over(State::Failed, AfterLoss::Hold, REMEMBER + TRACE, Changed::Absent)]
    fn redelivering(
        #[case] state: State,
        #[case] after_loss: AfterLoss,
        #[case] later: Duration,
        #[case] want: Changed,
    ) {
        let mut before = record(state, after_loss);
        before.terms.keep_expired = TRACE;
        (before.delivered, before.touched_at) = (true, Some(START));
        let now = START.plus(later);
        let mut record = before.clone();
        assert_eq!(record.redeliver(Fence(8), now), want);
        if want == Changed::Done {
            let queued = Record {
                state: State::Queued,
                fence: Fence(8),
                attempts: 0,
                until: now,
                completed_at: None,
                touched_at: None,
                answer: None,
                ..before.clone()
            };
            assert_eq!(record, queued);
            assert_eq!(
                outcomes(&record, HELD, now),
                "- - - - - - -",
                "the old holder"
            );
        } else {
            assert_eq!(record, before);
        }

        before.delivered = false;
        let mut alone = before.clone();
        let refused = alone.redeliver(Fence(8), now);
        let shown = before.shown_state_at(now);
        assert_eq!(refused, shown.map_or(Changed::Absent, Changed::Refused));
        assert_eq!(alone, before);
    }
}
