//! Flights: operations under way in this process, and the requests that wait for
//! them.
//!
//! A request takes a seat in the operation's flight before it claims the
//! operation. Where the claim is answered *busy*, the request has been listening
//! since before the claim, and cannot miss the answer of a leader in the same
//! process: not even a released one, which no store keeps.
//!
//! A released key is free for any request, so the leader of a flight may run a
//! different request than a seat waits for. A leader's answer reaches only the
//! seats with its own fingerprint.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use tokio::sync::{Notify, watch};

use super::Limits;
use crate::fingerprint::Fingerprint;
use crate::identity::Digest;
use crate::record::{Record, Reply};

const SHARDS: usize = 64;

/// All flights of a process.
pub(crate) struct Flights {
    shards: Vec<Mutex<HashMap<Digest, Arc<Flight>>>>,
    waiters: AtomicUsize,
    /// How many requests wait, by tenant; only tenants with at least one.
    tenants: Mutex<HashMap<Arc<str>, usize>>,
}

/// One operation under way.
struct Flight {
    /// How many seats are taken; changed only under the shard's lock.
    seats: AtomicUsize,
    stage: Mutex<Stage>,
    /// The fingerprint of its leader's request; set before the flight is led.
    leader: OnceLock<Fingerprint>,
    /// Notified when the leader has landed or was overtaken.
    changed: Notify,
    waiters: AtomicUsize,
    /// Made by the first waiter; most flights never have one.
    looks: OnceLock<Looks>,
}

/// How waiters look at the store for a leader elsewhere: one at a time, and the
/// others share what it saw.
struct Looks {
    /// Held by the waiter that looks.
    turn: tokio::sync::Mutex<()>,
    /// How many looks have begun.
    begun: AtomicU64,
    seen: watch::Sender<Look>,
}

impl Looks {
    fn new() -> Self {
        let nothing = Look {
            number: 0,
            record: None,
        };
        Self {
            turn: tokio::sync::Mutex::default(),
            begun: AtomicU64::new(0),
            seen: watch::Sender::new(nothing),
        }
    }
}

/// What one look at the store returned.
struct Look {
    number: u64,
    record: Option<Arc<Record>>,
}

impl Flight {
    fn stage(&self) -> MutexGuard<'_, Stage> {
        self.stage.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The stage for a request with this fingerprint: without a leader, where the
    /// leader runs a different request.
    fn stage_for(&self, fingerprint: &Fingerprint) -> Stage {
        let stage = self.stage().clone();
        match self.leader.get() {
            Some(leader) if leader == fingerprint => stage,
            _ => Stage::Boarding,
        }
    }
}

/// The stage of a flight.
#[derive(Clone, Debug)]
pub(crate) enum Stage {
    /// No claim of this process was granted so far.
    Boarding,
    /// A leader in this process runs it and will announce the outcome.
    Led,
    /// The store is authoritative. Either another claim was granted while this
    /// one was led (after a purge by force, the end of a lease, or a release that
    /// the leader is about to announce), and the leader will still announce the
    /// outcome of its own run; or the leader put the operation back into the
    /// queue, and there is no outcome yet.
    Overtaken,
    /// The leader has ended with this outcome.
    Landed(Landed),
}

/// The outcome that a leader announces to its waiters.
#[derive(Clone, Debug)]
pub(crate) enum Landed {
    /// The store has the outcome.
    Recorded,
    /// It was released with this answer, which no store keeps.
    Released(Arc<Reply>),
    /// It was answered, and the store did not take the outcome.
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

    /// Takes a seat: the leader's outcome reaches it from now on.
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
                    looks: OnceLock::new(),
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

    /// How many requests wait, in all.
    pub(crate) fn waiters(&self) -> usize {
        self.waiters.load(Ordering::Relaxed)
    }

    /// Counts one more waiter of a tenant; returns how many there were.
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
    /// Takes the lead for a request with this fingerprint. A flight that has
    /// landed, or has a leader, belongs to an earlier run: the new run gets a
    /// flight of its own, so that its waiters do not get the outcome of the other.
    pub(crate) fn lead(self, fingerprint: Fingerprint) -> Self {
        let mut seat = self;
        loop {
            let mut stage = seat.flight.stage();
            match *stage {
                Stage::Boarding => {
                    let first = seat.flight.leader.set(fingerprint).is_ok();
                    debug_assert!(first, "a flight that boards has no leader");
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

    /// Announces the outcome to all waiters and closes the flight: later requests
    /// board another one, and cannot take this outcome for that of a later run.
    pub(crate) fn land(self, landed: Landed) {
        self.close();
        *self.flight.stage() = Stage::Landed(landed);
        self.flight.changed.notify_waiters();
    }

    /// Leaves all waiters to the store: the operation is not over, and its next
    /// leader gets a flight of its own.
    pub(crate) fn pass_on(self) {
        self.close();
        *self.flight.stage() = Stage::Overtaken;
        self.flight.changed.notify_waiters();
    }

    /// Closes the flight to further requests.
    fn close(&self) {
        let mut shard = self.flights.shard(&self.digest);
        let current = shard.get(&self.digest);
        if current.is_some_and(|flight| Arc::ptr_eq(flight, &self.flight)) {
            shard.remove(&self.digest);
        }
    }

    /// Whether a leader in this process runs the request with this fingerprint,
    /// or has run it, and knows more than the store.
    pub(crate) fn is_led(&self, fingerprint: &Fingerprint) -> bool {
        let stage = self.flight.stage_for(fingerprint);
        matches!(stage, Stage::Led | Stage::Landed(_))
    }

    /// The outcome that the leader of this request announces. Waits while there is
    /// such a leader; `None` where there is none, or no longer: then the store is
    /// authoritative.
    pub(crate) async fn announced(&self, fingerprint: &Fingerprint) -> Option<Landed> {
        loop {
            let changed = self.flight.changed.notified();
            tokio::pin!(changed);
            // Listening begins before looking, so that no change is missed.
            changed.as_mut().enable();
            match self.flight.stage_for(fingerprint) {
                Stage::Led => changed.await,
                Stage::Landed(landed) => return Some(landed),
                Stage::Boarding | Stage::Overtaken => return None,
            }
        }
    }

    /// Waits for the outcome of a leader of this request, even without one.
    pub(crate) async fn landed(&self, fingerprint: &Fingerprint) -> Landed {
        loop {
            let changed = self.flight.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            if let Stage::Landed(landed) = self.flight.stage_for(fingerprint) {
                return landed;
            }
            changed.await;
        }
    }

    /// Joins the waiters that look at the store in turn.
    pub(crate) fn lookout(&self) -> Lookout<'_> {
        let looks = self.flight.looks.get_or_init(Looks::new);
        Lookout {
            looks,
            shared: looks.seen.subscribe(),
            since: looks.begun.load(Ordering::Acquire),
        }
    }

    /// Counts this seat as waiting, unless too many wait already.
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

/// A waiter's part in the shared looks at the store.
pub(crate) struct Lookout<'a> {
    looks: &'a Looks,
    shared: watch::Receiver<Look>,
    /// A look that began earlier may have seen the state before this wait.
    since: u64,
}

/// The next look of a waiter.
pub(crate) enum NextLook<'a> {
    /// Its own turn to look.
    Own(LookTurn<'a>),
    /// The record that another waiter read: the operation has changed.
    Seen(Option<Arc<Record>>),
}

impl<'a> Lookout<'a> {
    pub(crate) async fn next(&mut self) -> NextLook<'a> {
        loop {
            tokio::select! {
                biased;
                // The flight has the sender, and outlives this.
                Ok(()) = self.shared.changed() => {
                    let look = self.shared.borrow_and_update();
                    if look.number > self.since {
                        return NextLook::Seen(look.record.clone());
                    }
                }
                guard = self.looks.turn.lock() => {
                    return NextLook::Own(LookTurn {
                        looks: self.looks,
                        number: self.looks.begun.fetch_add(1, Ordering::AcqRel) + 1,
                        _guard: guard,
                    });
                }
            }
        }
    }
}

/// The turn to look; dropping it passes it on.
pub(crate) struct LookTurn<'a> {
    looks: &'a Looks,
    number: u64,
    _guard: tokio::sync::MutexGuard<'a, ()>,
}

impl LookTurn<'_> {
    /// Shares a record that the store returned with the other waiters, if it is new.
    pub(crate) fn share(self, record: Option<Arc<Record>>) {
        let summary = |record: &Option<Arc<Record>>| {
            let record = record.as_ref();
            record.map(|record| (record.fence, record.state))
        };
        let number = self.number;
        self.looks.seen.send_if_modified(|look| {
            let is_new = look.number == 0 || summary(&look.record) != summary(&record);
            if is_new {
                *look = Look { number, record };
            }
            is_new
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
    use crate::record::tests::fingerprint;

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
        let (old, early) = (board().lead(fingerprint(1)), board());
        let new = board().lead(fingerprint(1));
        let late = board();
        assert!(
            !early.is_led(&fingerprint(1)),
            "the store knows more than the old leader"
        );
        old.land(Landed::Nothing);
        assert!(matches!(
            early.landed(&fingerprint(1)).await,
            Landed::Nothing
        ));
        assert!(late.is_led(&fingerprint(1)) && !matches!(*late.flight.stage(), Stage::Landed(_)));
        new.land(Landed::Lost);
        assert!(matches!(late.landed(&fingerprint(1)).await, Landed::Lost));
        drop((early, late));
        assert!(flights.shard(&digest).is_empty());
    }

    #[tokio::test]
    async fn a_leader_after_a_landing_does_not_share_a_flight_with_the_next() {
        let flights = Arc::new(Flights::new());
        let digest = Digest::from_bytes([1; 32]);
        let board = || flights.board(&digest);
        let (first, second) = (board().lead(fingerprint(1)), board());
        first.land(Landed::Recorded);
        let (third, waiter) = (board().lead(fingerprint(1)), board());
        let second = second.lead(fingerprint(1));
        third.land(Landed::Nothing);
        assert!(matches!(
            waiter.landed(&fingerprint(1)).await,
            Landed::Nothing
        ));
        assert!(matches!(*second.flight.stage(), Stage::Led));
    }

    #[tokio::test]
    async fn a_leader_announces_only_to_waiters_of_the_same_request() {
        let flights = Arc::new(Flights::new());
        let board = || flights.board(&Digest::from_bytes([1; 32]));
        let waiter = board();
        let leader = board().lead(fingerprint(1));
        assert!(waiter.is_led(&fingerprint(1)) && !waiter.is_led(&fingerprint(2)));
        assert!(waiter.announced(&fingerprint(2)).await.is_none());
        leader.land(Landed::Lost);
        assert!(matches!(
            waiter.announced(&fingerprint(1)).await,
            Some(Landed::Lost)
        ));
        assert!(waiter.announced(&fingerprint(2)).await.is_none());
        assert!(!waiter.is_led(&fingerprint(2)));
        let ours = fingerprint(2);
        let outcome = timeout(Duration::ZERO, waiter.landed(&ours)).await;
        assert!(
            outcome.is_err(),
            "a waiter of a different request gets nothing"
        );
    }

    #[tokio::test]
    async fn a_waiter_learns_that_its_leader_was_overtaken() {
        let flights = Arc::new(Flights::new());
        let board = || flights.board(&Digest::from_bytes([1; 32]));
        let (old, waiter) = (board().lead(fingerprint(1)), board());
        let ours = fingerprint(1);
        let mut listening = std::pin::pin!(waiter.announced(&ours));
        let early = timeout(Duration::ZERO, listening.as_mut()).await;
        assert!(early.is_err(), "the leader has announced nothing");
        let new = board().lead(fingerprint(2));
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
