//! Replies that were read from a shared store within the last second, in memory: a key
//! that is claimed again and again does not cost a round trip each time.
//!
//! Other processes may change a record meanwhile. So a record is kept only if an
//! operator alone can change it before it expires, and every change of an operator is
//! answered only when all that was read before it is too old to be given
//! ([`RecentReplies::outlast`]). These steps change finished records:
//!
//! - *purge* and *redeliver*: they wait.
//! - *resolve* and *resume* change unknown and paused operations, which are never
//!   kept. They wait as well: within the second the key may have been purged and
//!   claimed again.
//! - *settle* makes a reply unknown that was marked as not kept, when its stream breaks
//!   off. Such a record is not kept here.
//! - *touch* moves the expiry of a reply whose retention counts from replays. Such a
//!   record is not kept here either.
//! - *claim*, *enqueue* and *sweep*, and the library's claim and `purge_expired`, take
//!   over or remove a record after its expiry. No reply is given from here by then.
//! - The library settles in transactions of the application by the same rules as
//!   *settle*; the resource that an operation refers to is not part of its record.
//!
//! The age of a record counts from before the question was sent, by two clocks: the
//! runtime's, which stands still while the machine is suspended, and the time since boot,
//! which does not. The period must be the same in all processes that share the store.

use std::collections::HashMap;
use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use onceward_core::class::TtlBasis;
use onceward_core::clock::Timestamp;
use onceward_core::identity::Digest;
use onceward_core::record::{Answer, Record, State};
use onceward_core::store::{Claim, ClaimRequest};
use tokio::time::{Instant, sleep};

use crate::record_size::size_in_memory;
use crate::time::Time;

/// Callers on different cores seldom want the same lock.
const SHARDS: usize = 16;
/// The most bytes and records of a generation: 16 MiB and 16,384 records in all.
const GENERATION_BYTES: usize = 512 * 1_024;
const GENERATION_RECORDS: usize = 512;
/// The store's clock counts in milliseconds.
const TICK: Duration = Duration::from_millis(1);

/// Finished records that were read within the last period.
pub(crate) struct RecentReplies {
    /// How long an operator's change waits; zero keeps nothing.
    period: Duration,
    /// How long a record is given. It is shorter than the period, because the clocks
    /// of two machines do not run at exactly the same speed.
    given_for: Duration,
    /// The time since boot, with the time in which the machine was suspended.
    since_boot: fn() -> Duration,
    shards: [Mutex<Generations>; SHARDS],
}

/// The moment before a question is sent to the store.
#[derive(Clone, Copy)]
pub(crate) struct AskedAt {
    pub(crate) at: Instant,
    since_boot: Duration,
}

/// The records of a shard, by the time at which they came. The older generation is
/// dropped as a whole.
#[derive(Default)]
struct Generations {
    begun: Option<Instant>,
    young: Generation,
    old: Generation,
}

#[derive(Default)]
struct Generation {
    records: HashMap<Digest, RecentRecord>,
    bytes: usize,
}

/// A record, and when it was read.
struct RecentRecord {
    record: Arc<Record>,
    asked_at: AskedAt,
    /// The store's time when it answered, which is later.
    now: Timestamp,
}

impl RecentReplies {
    pub(crate) fn new(period: Duration) -> Self {
        Self {
            period,
            given_for: period * 9 / 10,
            since_boot,
            shards: Default::default(),
        }
    }

    /// To be called before a question whose answer goes to [`RecentReplies::keep`].
    pub(crate) fn asked_now(&self) -> AskedAt {
        AskedAt {
            at: Instant::now(),
            since_boot: (self.since_boot)(),
        }
    }

    /// The answer to a claim that is made at `at`, if its record was read just before.
    pub(crate) fn answer(&self, ask: &ClaimRequest, time: &Time, at: Instant) -> Option<Claim> {
        if self.period.is_zero() {
            return None;
        }
        let (record, asked_at, now) = {
            let mut shard = self.shard(&ask.digest);
            let recent = shard.get(&ask.digest, at, self.given_for)?;
            // Not earlier than the store's time: the question was sent before it
            // was answered.
            let elapsed = at.saturating_duration_since(recent.asked_at.at) + TICK;
            let now = recent.now.plus(elapsed);
            (recent.record.clone(), recent.asked_at, now)
        };
        // Read only where there is a record: most claims find none.
        if (self.since_boot)().saturating_sub(asked_at.since_boot) >= self.given_for {
            return None;
        }
        let now = match time {
            Time::Server => now,
            Time::Given(clock) => clock.now(),
        };
        // From its expiry on, the store decides.
        let expires = record.expires_at()?;
        if now >= expires {
            return None;
        }
        Claim::on(&record, ask, now)
    }

    /// Keeps a record that was asked for at `asked_at` and read at the store's time
    /// `now`.
    pub(crate) fn keep(&self, record: &Arc<Record>, now: Timestamp, asked_at: AskedAt) {
        if self.period.is_zero() || !stays_the_same(record) {
            return;
        }
        let bytes = size_in_memory(record);
        if bytes > GENERATION_BYTES {
            return;
        }
        let recent = RecentRecord {
            record: record.clone(),
            asked_at,
            now,
        };
        self.shard(&record.digest)
            .put(recent, bytes, self.given_for);
    }

    /// Waits after an operator's change until no process gives what it read before. One
    /// that changed nothing waits as well: it may repeat a change whose answer was lost.
    pub(crate) async fn outlast(&self) {
        if !self.period.is_zero() {
            sleep(self.period).await;
        }
    }

    fn shard(&self, digest: &Digest) -> MutexGuard<'_, Generations> {
        let number = usize::from(digest.as_bytes()[0]) % SHARDS;
        let shard = self.shards[number].lock();
        shard.unwrap_or_else(PoisonError::into_inner)
    }
}

impl Generations {
    fn get(&mut self, digest: &Digest, at: Instant, given_for: Duration) -> Option<&RecentRecord> {
        self.drop_old(at, given_for);
        let kept = [&self.young, &self.old].into_iter();
        let recent = kept.flat_map(|kept| kept.records.get(digest)).next()?;
        (at.saturating_duration_since(recent.asked_at.at) < given_for).then_some(recent)
    }

    fn put(&mut self, recent: RecentRecord, bytes: usize, given_for: Duration) {
        let at = recent.asked_at.at;
        self.drop_old(at, given_for);
        let full = self.young.records.len() >= GENERATION_RECORDS
            || self.young.bytes + bytes > GENERATION_BYTES;
        if full {
            self.turn(at);
        }
        self.begun.get_or_insert(at);
        self.young.bytes += bytes;
        self.young.records.insert(recent.record.digest, recent);
    }

    /// Drops what is not given any more.
    fn drop_old(&mut self, at: Instant, given_for: Duration) {
        let Some(begun) = self.begun else {
            return;
        };
        let age = at.saturating_duration_since(begun);
        if age >= given_for * 2 {
            *self = Self::default();
        } else if age >= given_for {
            self.turn(at);
        }
    }

    fn turn(&mut self, at: Instant) {
        self.old = mem::take(&mut self.young);
        self.begun = Some(at);
    }
}

/// Whether only time or an operator changes the record.
fn stays_the_same(record: &Record) -> bool {
    matches!(record.state, State::Completed | State::Failed)
        && matches!(record.answer, Some(Answer::Kept(_)))
        && record.terms.ttl_basis != TtlBasis::Access
}

#[cfg(target_os = "linux")]
fn since_boot() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    Duration::try_from(now).unwrap_or_default()
}

/// Elsewhere the runtime's clock alone counts.
#[cfg(not(target_os = "linux"))]
fn since_boot() -> Duration {
    Duration::ZERO
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use bytes::Bytes;
    use onceward_core::caller::Caller;
    use onceward_core::class::{Class, Terms};
    use onceward_core::clock::ManualClock;
    use onceward_core::fingerprint::{Algorithm, Fingerprint};
    use onceward_core::identity::{Endpoint, Identity, KeySpace, OperationId};
    use onceward_core::key::Key;
    use onceward_core::record::{Attempt, Fence, Reply, Settlement};
    use tokio::time::advance;

    use super::*;

    const NOW: Timestamp = Timestamp::from_unix_ms(1_700_000_000_000);
    const PERIOD: Duration = Duration::from_secs(1);

    thread_local! {
        /// For how long the machine was suspended.
        static SUSPENDED: Cell<Duration> = const { Cell::new(Duration::ZERO) };
    }

    /// With a clock that stands still but for suspensions.
    fn recent_replies(period: Duration) -> RecentReplies {
        RecentReplies {
            since_boot: || SUSPENDED.get(),
            ..RecentReplies::new(period)
        }
    }

    fn ask_with(number: usize, terms: Terms) -> ClaimRequest {
        let identity = Identity {
            caller: Caller::local(),
            endpoint: Endpoint::new("payments.create"),
            key: Key::parse(&format!("key-{number}")).expect("a good key"),
            space: KeySpace::Endpoint,
        };
        let digest = identity.digest();
        ClaimRequest {
            digest,
            identity,
            fingerprint: Fingerprint {
                algorithm: Algorithm::Json1,
                digest: [1; 32],
                sender: [2; 16],
            },
            terms,
            attempt: Attempt(3),
            id: OperationId::new(&digest, 4),
        }
    }

    fn ask() -> ClaimRequest {
        ask_with(0, Class::interactive().terms())
    }

    fn kept(body: usize) -> Settlement {
        Settlement::Completed(Answer::Kept(Arc::new(Reply {
            status: 201,
            headers: Vec::new(),
            body: Bytes::from(vec![b'x'; body]),
            trailers: Vec::new(),
        })))
    }

    fn settled(ask: &ClaimRequest, settlement: &Settlement) -> Arc<Record> {
        let mut record = ask.to_record_after(None, NOW);
        record.grant(Fence(1), ask.attempt, NOW);
        record.settle(Fence(1), settlement, NOW);
        Arc::new(record)
    }

    fn claim(recent: &RecentReplies, ask: &ClaimRequest) -> &'static str {
        match recent.answer(ask, &Time::Server, Instant::now()) {
            None => "asks the store",
            Some(Claim::Finished(_)) => "finished",
            Some(Claim::Mismatch) => "mismatch",
            Some(_) => "something else",
        }
    }

    #[tokio::test(start_paused = true)]
    async fn reply_is_given_for_less_than_a_period_from_the_question() {
        let recent = recent_replies(PERIOD);
        let asked_at = recent.asked_now();
        advance(PERIOD / 2).await;
        recent.keep(&settled(&ask(), &kept(1)), NOW, asked_at);
        assert_eq!(claim(&recent, &ask()), "finished");
        let mut other = ask();
        other.fingerprint.digest = [9; 32];
        assert_eq!(claim(&recent, &other), "mismatch");
        advance(PERIOD / 2 - Duration::from_millis(50)).await;
        assert_eq!(claim(&recent, &ask()), "asks the store");
    }

    /// Before or after the store answered.
    #[tokio::test(start_paused = true)]
    async fn reply_is_not_given_after_the_machine_was_suspended() {
        for (before, after, want) in [(0, 899, "finished"), (0, 900, "asks"), (900, 0, "asks")] {
            let recent = recent_replies(PERIOD);
            let suspend = |ms| SUSPENDED.set(SUSPENDED.get() + Duration::from_millis(ms));
            let asked_at = recent.asked_now();
            suspend(before);
            recent.keep(&settled(&ask(), &kept(1)), NOW, asked_at);
            suspend(after);
            let claimed = claim(&recent, &ask());
            assert!(claimed.starts_with(want), "{before}, {after}: {claimed}");
        }
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn time_since_boot_is_read() {
        assert!(since_boot() > Duration::ZERO);
    }

    #[tokio::test(start_paused = true)]
    async fn change_is_answered_when_the_period_is_over() {
        for period in [PERIOD, Duration::ZERO] {
            let begun = Instant::now();
            recent_replies(period).outlast().await;
            assert_eq!(begun.elapsed(), period);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn reply_is_never_given_after_its_expiry() {
        let terms = Class::interactive().terms().with(|terms| {
            terms.retention = Duration::from_millis(300);
            terms.expiry = onceward_core::class::Expiry::Lazy;
        });
        let ask = ask_with(0, terms);
        let recent = recent_replies(PERIOD);
        let read_at = NOW.plus(Duration::from_millis(100));
        recent.keep(&settled(&ask, &kept(1)), read_at, recent.asked_now());
        advance(Duration::from_millis(198)).await;
        assert_eq!(claim(&recent, &ask), "finished");
        advance(Duration::from_millis(1)).await;
        assert_eq!(claim(&recent, &ask), "asks the store");
        // A given clock counts by itself.
        let clock = Arc::new(ManualClock::new(NOW));
        let time = Time::Given(clock.clone());
        let answer = || recent.answer(&ask, &time, Instant::now());
        assert!(matches!(answer(), Some(Claim::Finished(_))));
        clock.advance(Duration::from_millis(300));
        assert!(answer().is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn records_that_others_may_change_are_not_kept() {
        let by_access = Class::interactive()
            .terms()
            .with(|terms| terms.ttl_basis = TtlBasis::Access);
        let not_kept = Settlement::Completed(Answer::NotKept { status: 200 });
        let cases = [
            (ask(), not_kept),
            (ask(), Settlement::Released),
            (ask(), Settlement::Lost),
            (ask(), Settlement::Paused),
            (ask_with(0, by_access), kept(1)),
            (ask(), kept(GENERATION_BYTES)),
        ];
        for (ask, settlement) in cases {
            let recent = recent_replies(PERIOD);
            recent.keep(&settled(&ask, &settlement), NOW, recent.asked_now());
            assert_eq!(claim(&recent, &ask), "asks the store", "{settlement:?}");
        }
        let nothing = recent_replies(Duration::ZERO);
        nothing.keep(&settled(&ask(), &kept(1)), NOW, nothing.asked_now());
        assert_eq!(claim(&nothing, &ask()), "asks the store");
    }

    #[tokio::test(start_paused = true)]
    async fn memory_is_bounded_and_is_given_back() {
        let recent = recent_replies(PERIOD);
        let held = |recent: &RecentReplies| {
            let shards = recent.shards.iter();
            let shards = shards.map(|shard| shard.lock().expect("nothing panicked"));
            let held = shards.map(|shard| shard.young.bytes + shard.old.bytes);
            held.sum::<usize>()
        };
        for number in 0..2_000 {
            let ask = ask_with(number, Class::interactive().terms());
            recent.keep(&settled(&ask, &kept(32 * 1_024)), NOW, recent.asked_now());
            assert_eq!(claim(&recent, &ask), "finished");
        }
        assert!(held(&recent) <= 2 * SHARDS * GENERATION_BYTES);
        advance(2 * PERIOD).await;
        for number in 0..256 {
            let ask = ask_with(number, Class::interactive().terms());
            assert_eq!(claim(&recent, &ask), "asks the store");
        }
        assert_eq!(held(&recent), 0);
    }
}
