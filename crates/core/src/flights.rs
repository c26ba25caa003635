//! Operations under way in this process, and those who wait for them.
//!
//! Everyone who is about to claim an operation takes a seat in its flight
//! first. So whoever is told *busy* has been listening since before the claim,
//! and cannot miss the answer of a leader in the same process: not even a
//! released one, which no store keeps.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use crate::identity::Digest;
use crate::record::Reply;

const SHARDS: usize = 64;

/// All flights of a process.
pub(crate) struct Flights {
    shards: Vec<Mutex<HashMap<Digest, Arc<Flight>>>>,
    waiters: AtomicUsize,
}

/// One operation under way.
struct Flight {
    /// How many are seated; changed only under the shard's lock.
    seats: AtomicUsize,
    stage: Mutex<Stage>,
    landed: Notify,
    waiters: AtomicUsize,
}

impl Flight {
    fn stage(&self) -> MutexGuard<'_, Stage> {
        self.stage.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How far a flight is.
#[derive(Clone, Debug)]
pub(crate) enum Stage {
    /// Nobody in this process was granted, so far.
    Boarding,
    /// Somebody in this process runs it and will tell.
    Led,
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
                    landed: Notify::new(),
                    waiters: AtomicUsize::new(0),
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
    /// Takes the lead. A flight that has landed is over: the new run is another.
    pub(crate) fn lead(self) -> Self {
        let over = matches!(*self.flight.stage(), Stage::Landed(_));
        let seat = if over {
            self.flights.board(&self.digest)
        } else {
            self
        };
        *seat.flight.stage() = Stage::Led;
        seat
    }

    /// Tells all who wait what came of it, and closes the flight: who comes now
    /// boards another, and cannot take this answer for one of a later run.
    pub(crate) fn land(self, landed: Landed) {
        let mut shard = self.flights.shard(&self.digest);
        if shard
            .get(&self.digest)
            .is_some_and(|flight| Arc::ptr_eq(flight, &self.flight))
        {
            shard.remove(&self.digest);
        }
        drop(shard);
        *self.flight.stage() = Stage::Landed(landed);
        self.flight.landed.notify_waiters();
    }

    /// Whether somebody in this process leads.
    pub(crate) fn is_led(&self) -> bool {
        !matches!(*self.flight.stage(), Stage::Boarding)
    }

    /// Waits for the leader's word.
    pub(crate) async fn landed(&self) -> Landed {
        loop {
            let told = self.flight.landed.notified();
            tokio::pin!(told);
            // Listening before looking: no word falls in between.
            told.as_mut().enable();
            if let Stage::Landed(landed) = &*self.flight.stage() {
                return landed.clone();
            }
            told.await;
        }
    }

    /// Counts this seat as waiting, unless there are too many already.
    pub(crate) fn wait_within(&self, per_key: usize, in_all: usize) -> Option<Waiter<'_>> {
        let waiter = Waiter(self);
        let here = self.flight.waiters.fetch_add(1, Ordering::Relaxed);
        let all = self.flights.waiters.fetch_add(1, Ordering::Relaxed);
        (here < per_key && all < in_all).then_some(waiter)
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

/// A seat that is counted as waiting.
pub(crate) struct Waiter<'a>(&'a Seat);

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        self.0.flight.waiters.fetch_sub(1, Ordering::Relaxed);
        self.0.flights.waiters.fetch_sub(1, Ordering::Relaxed);
    }
}
