//! Operations under way in this process, and those who wait for them.
//!
//! Everyone who is about to claim an operation takes a seat in its flight
//! first. So whoever is told *busy* has been listening since before the claim,
//! and cannot miss the answer of a leader in the same process: not even a
//! released one, which no store keeps.
//!
//! A key that was released is free for any request, so a flight may be led by
//! another one than a seat waits for: what a leader tells is for those alone
//! who asked the same.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use tokio::sync::{Notify, watch};

use crate::engine::Limits;
use crate::fingerprint::Fingerprint;
use crate::identity::Digest;
use crate::record::{Record, Reply};

const SHARDS: usize = 64;

/// All flights of a process.
pub(crate) struct Flights {
    shards: Vec<Mutex<HashMap<Digest, Arc<Flight>>>>,
    waiters: AtomicUsize,
    /// How many wait, by tenant; only those of whom somebody waits.
    tenants: Mutex<HashMap<Arc<str>, usize>>,
}

/// One operation under way.
struct Flight {
    /// How many are seated; changed only under the shard's lock.
    seats: AtomicUsize,
    stage: Mutex<Stage>,
    /// What its leader was asked for; set before it counts as led.
    leader: OnceLock<Fingerprint>,
    /// Rung when a leader has landed or was overtaken.
    changed: Notify,
    waiters: AtomicUsize,
    looks: Looks,
}

/// How those who wait for a leader elsewhere look at the store: one at a time,
/// and what it sees all others hear.
struct Looks {
    /// Whoever has it looks.
    turn: tokio::sync::Mutex<()>,
    /// How many have begun to look.
    begun: AtomicU64,
    seen: watch::Sender<Look>,
}

/// What somebody saw.
struct Look {
    number: u64,
    record: Option<Arc<Record>>,
}

impl Flight {
    fn stage(&self) -> MutexGuard<'_, Stage> {
        self.stage.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How far it is for who asked for this: as if nobody led, where the leader
    /// was asked for something else.
    fn stage_for(&self, asked: &Fingerprint) -> Stage {
        let stage = self.stage().clone();
        match self.leader.get() {
            Some(leader) if leader == asked => stage,
            _ => Stage::Boarding,
        }
    }
}

/// How far a flight is.
#[derive(Clone, Debug)]
pub(crate) enum Stage {
    /// Nobody in this process was granted, so far.
    Boarding,
    /// Somebody in this process runs it and will tell.
    Led,
    /// What counts, the store knows. Somebody else was granted while it was led:
    /// after a purge by force, the end of a lease, or a release that the leader
    /// is about to tell; the leader will still tell what came of its own run. Or
    /// the leader put it back into the queue, and there is nothing to tell.
    Overtaken,
    /// The leader is done, and this came of it.
    Landed(Landed),
}

/// What a leader tells those who wait.
#[derive(Clone, Debug)]
pub(crate) enum Landed {
    /// The store has it.
    Recorded,
    /// It was released with this answer, which no store keeps.
    Released(Arc<Reply>),
    /// It was answered, and the store would not take it.
    NotRecorded(Arc<Reply>),
    /// It may have run.
    Lost,
    /// Nothing was done, and there is no answer to pass on.
    Nothing,
}

impl Flights {
    pub(crate) fn new() -> Self {
        Self {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            waiters: AtomicUsize::new(0),
            tenants: Mutex::default(),
        }
    }

    /// Takes a seat: whatever a leader tells from now on is heard.
    pub(crate) fn board(self: &Arc<Self>, digest: &Digest) -> Seat {
        let mut shard = self.shard(digest);
        let flight = shard
            .entry(*digest)
            .or_insert_with(|| {
                Arc::new(Flight {
                    seats: AtomicUsize::new(0),
                    stage: Mutex::new(Stage::Boarding),
                    leader: OnceLock::new(),
                    changed: Notify::new(),
                    waiters: AtomicUsize::new(0),
                    looks: Looks {
                        turn: tokio::sync::Mutex::default(),
                        begun: AtomicU64::new(0),
                        seen: watch::Sender::new(Look {
                            number: 0,
                            record: None,
                        }),
                    },
                })
            })
            .clone();
        flight.seats.fetch_add(1, Ordering::Relaxed);
        drop(shard);
        Seat {
            flights: self.clone(),
            flight,
            digest: *digest,
        }
    }

    /// How many wait, in all.
    pub(crate) fn waiters(&self) -> usize {
        self.waiters.load(Ordering::Relaxed)
    }

    /// Counts one more waiter of a tenant; tells how many there were.
    fn add_waiter(&self, tenant: &str) -> (Arc<str>, usize) {
        let mut tenants = self.tenants();
        let name = match tenants.get_key_value(tenant) {
            Some((name, _)) => name.clone(),
            None => tenant.into(),
        };
        let count = tenants.entry(name.clone()).or_default();
        let before = *count;
        *count += 1;
        (name, before)
    }

    fn remove_waiter(&self, tenant: &Arc<str>) {
        if let Entry::Occupied(mut count) = self.tenants().entry(tenant.clone()) {
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
            }
        }
    }

    fn tenants(&self) -> MutexGuard<'_, HashMap<Arc<str>, usize>> {
        self.tenants.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn shard(&self, digest: &Digest) -> MutexGuard<'_, HashMap<Digest, Arc<Flight>>> {
        let [first, ..] = digest.as_bytes();
        self.shards[*first as usize % SHARDS]
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

/// One seat in a flight.
pub(crate) struct Seat {
    flights: Arc<Flights>,
    flight: Arc<Flight>,
    digest: Digest,
}

impl Seat {
    /// Takes the lead for who asks this. A flight that has landed, or has a leader, is of an
    /// earlier run: the new one has a flight of its own, so that who waits for
    /// it is not told what came of the other.
    pub(crate) fn lead(self, asked: Fingerprint) -> Self {
        let mut seat = self;
        loop {
            let mut stage = seat.flight.stage();
            match *stage {
                Stage::Boarding => {
                    let first = seat.flight.leader.set(asked).is_ok();
                    debug_assert!(first, "who boards has no leader");
                    *stage = Stage::Led;
                    drop(stage);
                    return seat;
                }
                Stage::Led => {
                    *stage = Stage::Overtaken;
                    seat.flight.changed.notify_waiters();
                }
                Stage::Overtaken | Stage::Landed(_) => {}
            }
            drop(stage);
            seat.close();
            seat = seat.flights.board(&seat.digest);
        }
    }

    /// Tells all who wait what came of it, and closes the flight: who comes now
    /// boards another, and cannot take this answer for one of a later run.
    pub(crate) fn land(self, landed: Landed) {
        self.close();
        *self.flight.stage() = Stage::Landed(landed);
        self.flight.changed.notify_waiters();
    }

    /// Lets all who wait look for what comes of it in the store: it is not over,
    /// and whoever leads it next has a flight of its own.
    pub(crate) fn pass_on(self) {
        self.close();
        *self.flight.stage() = Stage::Overtaken;
        self.flight.changed.notify_waiters();
    }

    /// Lets nobody else board this flight.
    fn close(&self) {
        let mut shard = self.flights.shard(&self.digest);
        let current = shard.get(&self.digest);
        if current.is_some_and(|flight| Arc::ptr_eq(flight, &self.flight)) {
            shard.remove(&self.digest);
        }
    }

    /// Whether somebody in this process leads what was asked, or has led it, and
    /// tells more than the store knows.
    pub(crate) fn is_led(&self, asked: &Fingerprint) -> bool {
        matches!(self.flight.stage_for(asked), Stage::Led | Stage::Landed(_))
    }

    /// The word of a leader of what was asked, waiting for it while the leader
    /// knows more than the store. `None` when nobody leads, or no longer does:
    /// then the store is to be asked.
    pub(crate) async fn word(&self, asked: &Fingerprint) -> Option<Landed> {
        loop {
            let changed = self.flight.changed.notified();
            tokio::pin!(changed);
            // Listening before looking: no word falls in between.
            changed.as_mut().enable();
            match self.flight.stage_for(asked) {
                Stage::Led => changed.await,
                Stage::Landed(landed) => return Some(landed),
                Stage::Boarding | Stage::Overtaken => return None,
            }
        }
    }

    /// Waits for the word of a leader of what was asked, though there be none.
    pub(crate) async fn landed(&self, asked: &Fingerprint) -> Landed {
        loop {
            let changed = self.flight.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            if let Stage::Landed(landed) = self.flight.stage_for(asked) {
                return landed;
            }
            changed.await;
        }
    }

    /// Looks at the store with the others from now on.
    pub(crate) fn lookout(&self) -> Lookout<'_> {
        let looks = &self.flight.looks;
        Lookout {
            looks,
            heard: looks.seen.subscribe(),
            since: looks.begun.load(Ordering::Acquire),
        }
    }

    /// Counts this seat as waiting, unless there are too many already.
    pub(crate) fn wait_within(&self, limits: &Limits, tenant: &str) -> Option<Waiter<'_>> {
        let here = self.flight.waiters.fetch_add(1, Ordering::Relaxed);
        let all = self.flights.waiters.fetch_add(1, Ordering::Relaxed);
        let (tenant, own) = self.flights.add_waiter(tenant);
        let waiter = Waiter { seat: self, tenant };
        let fits = here < limits.waiters_per_key
            && own < limits.waiters_per_tenant
            && all < limits.waiters;
        fits.then_some(waiter)
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut shard = self.flights.shard(&self.digest);
        let current = shard.get(&self.digest);
        let ours = current.is_some_and(|flight| Arc::ptr_eq(flight, &self.flight));
        let last = self.flight.seats.fetch_sub(1, Ordering::Relaxed) == 1;
        if ours && last {
            shard.remove(&self.digest);
        }
    }
}

/// One of those who wait for a leader elsewhere.
pub(crate) struct Lookout<'a> {
    looks: &'a Looks,
    heard: watch::Receiver<Look>,
    /// Whoever began to look before may have seen what was before.
    since: u64,
}

/// What comes first.
pub(crate) enum Next<'a> {
    /// One's own turn to look.
    Turn(Turn<'a>),
    /// Somebody else saw that something has changed.
    Seen(Option<Arc<Record>>),
}

impl<'a> Lookout<'a> {
    pub(crate) async fn next(&mut self) -> Next<'a> {
        loop {
            tokio::select! {
                biased;
                // The flight has the sender, and outlives this.
                Ok(()) = self.heard.changed() => {
                    let look = self.heard.borrow_and_update();
                    if look.number > self.since {
                        return Next::Seen(look.record.clone());
                    }
                }
                guard = self.looks.turn.lock() => {
                    return Next::Turn(Turn {
                        looks: self.looks,
                        number: self.looks.begun.fetch_add(1, Ordering::AcqRel) + 1,
                        _guard: guard,
                    });
                }
            }
        }
    }
}

/// The turn to look; whoever drops it leaves it to the next.
pub(crate) struct Turn<'a> {
    looks: &'a Looks,
    number: u64,
    _guard: tokio::sync::MutexGuard<'a, ()>,
}

impl Turn<'_> {
    /// Tells the others what was seen, if it is something new.
    pub(crate) fn tell(self, record: Option<Arc<Record>>) {
        let gist = |record: &Option<Arc<Record>>| {
            let record = record.as_ref();
            record.map(|record| (record.fence, record.state))
        };
        let number = self.number;
        self.looks.seen.send_if_modified(|look| {
            let news = look.number == 0 || gist(&look.record) != gist(&record);
            if news {
                *look = Look { number, record };
            }
            news
        });
    }
}

/// A seat that is counted as waiting.
pub(crate) struct Waiter<'a> {
    seat: &'a Seat,
    tenant: Arc<str>,
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        let Seat {
            flight, flights, ..
        } = self.seat;
        flight.waiters.fetch_sub(1, Ordering::Relaxed);
        flights.waiters.fetch_sub(1, Ordering::Relaxed);
        flights.remove_waiter(&self.tenant);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use rstest::rstest;
    use tokio::time::timeout;

    use super::*;
    use crate::record::tests::fingerprint as asked;

    /// Three wait: two of `a` on one key, one of `b` on another. Then one more comes.
    #[rstest]
    #[case::room_for_all(9, 9, 9, true)]
    #[case::key_is_full(2, 9, 9, false)]
    #[case::tenant_is_full(9, 2, 9, false)]
    #[case::all_is_full(9, 9, 3, false)]
    #[case::just_enough(3, 3, 4, true)]
    fn waiters_are_bounded(
        #[case] waiters_per_key: usize,
        #[case] waiters_per_tenant: usize,
        #[case] waiters: usize,
        #[case] fits: bool,
    ) {
        let wide = Limits::default();
        let limits = Limits {
            waiters_per_key,
            waiters_per_tenant,
            waiters,
            ..wide
        };
        let flights = Arc::new(Flights::new());
        let [one, other] = [1, 2].map(|n| flights.board(&Digest::from_bytes([n; 32])));
        let waiting = [
            one.wait_within(&wide, "a"),
            one.wait_within(&wide, "a"),
            other.wait_within(&wide, "b"),
        ];
        assert!(waiting.iter().all(Option::is_some));
        for _ in 0..2 {
            let last = one.wait_within(&limits, "a");
            assert_eq!(last.is_some(), fits, "and refused ones count for nothing");
        }
        assert_eq!(flights.waiters(), 3);
        drop(waiting);
        assert_eq!((flights.waiters(), flights.tenants().len()), (0, 0));
    }

    #[tokio::test]
    async fn a_second_leader_has_a_flight_of_its_own() {
        let flights = Arc::new(Flights::new());
        let digest = Digest::from_bytes([1; 32]);
        let board = || flights.board(&digest);
        let (old, early) = (board().lead(asked(1)), board());
        let new = board().lead(asked(1));
        let late = board();
        assert!(
            !early.is_led(&asked(1)),
            "the store knows more than the old leader"
        );
        old.land(Landed::Nothing);
        assert!(matches!(early.landed(&asked(1)).await, Landed::Nothing));
        assert!(late.is_led(&asked(1)) && !matches!(*late.flight.stage(), Stage::Landed(_)));
        new.land(Landed::Lost);
        assert!(matches!(late.landed(&asked(1)).await, Landed::Lost));
        drop((early, late));
        assert!(flights.shard(&digest).is_empty());
    }

    #[tokio::test]
    async fn who_leads_after_a_landing_does_not_share_with_the_next() {
        let flights = Arc::new(Flights::new());
        let digest = Digest::from_bytes([1; 32]);
        let board = || flights.board(&digest);
        let (first, second) = (board().lead(asked(1)), board());
        first.land(Landed::Recorded);
        let (third, waiter) = (board().lead(asked(1)), board());
        let second = second.lead(asked(1));
        third.land(Landed::Nothing);
        assert!(matches!(waiter.landed(&asked(1)).await, Landed::Nothing));
        assert!(matches!(*second.flight.stage(), Stage::Led));
    }

    #[tokio::test]
    async fn a_leader_tells_only_those_who_asked_the_same() {
        let flights = Arc::new(Flights::new());
        let board = || flights.board(&Digest::from_bytes([1; 32]));
        let waiter = board();
        let leader = board().lead(asked(1));
        assert!(waiter.is_led(&asked(1)) && !waiter.is_led(&asked(2)));
        assert!(waiter.word(&asked(2)).await.is_none());
        leader.land(Landed::Lost);
        assert!(matches!(waiter.word(&asked(1)).await, Some(Landed::Lost)));
        assert!(waiter.word(&asked(2)).await.is_none());
        assert!(!waiter.is_led(&asked(2)));
        let ours = asked(2);
        let word = timeout(Duration::ZERO, waiter.landed(&ours)).await;
        assert!(
            word.is_err(),
            "whoever asked something else is told nothing"
        );
    }

    #[tokio::test]
    async fn who_listens_to_a_leader_hears_that_it_was_overtaken() {
        let flights = Arc::new(Flights::new());
        let board = || flights.board(&Digest::from_bytes([1; 32]));
        let (old, waiter) = (board().lead(asked(1)), board());
        let ours = asked(1);
        let mut listening = std::pin::pin!(waiter.word(&ours));
        let early = timeout(Duration::ZERO, listening.as_mut()).await;
        assert!(early.is_err(), "the leader has not told");
        let new = board().lead(asked(2));
        assert!(listening.await.is_none());
        drop((old, new));
    }

    #[test]
    fn one_tenant_leaves_room_for_another() {
        let limits = Limits {
            waiters_per_tenant: 1,
            ..Limits::default()
        };
        let flights = Arc::new(Flights::new());
        let seat = flights.board(&Digest::from_bytes([1; 32]));
        let own = seat.wait_within(&limits, "a");
        assert!(own.is_some());
        assert!(seat.wait_within(&limits, "a").is_none());
        assert!(seat.wait_within(&limits, "b").is_some());
    }
}
