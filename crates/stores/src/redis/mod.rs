//! The store on Redis: shared by processes, in memory.
//!
//! A namespace has 64 shards (`shard`). All data of an operation is in one shard, and
//! every step is a script there (`script`, `lua/`). A claim, a settlement and a
//! renewal are one call each; a rare step reads the record, applies the rules of
//! `core`, and writes the result if the record is unchanged. Scripts note what
//! happened and when, and reading applies the rules to that (`layout`), so that there
//! is one set of rules, and one clock: that of Redis (`clock`).
//!
//! A shard has a hash of records, replies and requests; an index of the order of
//! listings and of the next change that time makes to each record; and a queue. A
//! stamp, the time in microseconds made strictly rising, is fence and position in
//! listings, so fences rise across a failover too, as far as clocks agree.
//!
//! The guarantees and their limits are in `docs/redis.md`.

mod change;
mod clock;
mod connection;
mod error;
mod eviction;
mod inspect;
mod layout;
mod listen;
mod listing;
mod pipeline;
mod queue;
mod registry;
mod response;
mod script;
mod shard;
mod start;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use async_trait::async_trait;
use onceward_core::clock::Timestamp;
use onceward_core::deadline::within;
use onceward_core::entropy::Entropy;
use onceward_core::identity::{Digest, OperationId};
use onceward_core::notifier::Notifier;
use onceward_core::record::{Answer, Attempt, Fence, Record, Settled, Settlement, State};
use onceward_core::store::{Claim, ClaimRequest, Grant, Store, StoreError};
use onceward_core::wire;
use redis::{Cmd, Value};
use tokio::sync::Semaphore;
use tokio::time::Instant;

use self::change::{Attachment, ListPosition, RecordChange};
use self::clock::ScriptClock;
use self::connection::Connections;
use self::error::{Error, Result};
use self::eviction::EvictionPolicies;
use self::layout::{HolderChange, NO_TOKEN, StoredRecord, WriteKind};
use self::listen::Listener;
use self::response::{FoundRecord, Recorded, WriteOutcome};
use self::script::{AWAIT, CLAIM, FORGET, READ, RENEW, SETTLE, Script, WRITE};
use self::shard::Shards;
pub use self::start::RedisOpenError;
use crate::Settings;
use crate::lookup::Lookup;
use crate::recent_replies::RecentReplies;
pub use crate::time::Time;

/// How often a step is repeated because others changed the record.
const TRIES_MAX: usize = 32;

/// A store on Redis, Valkey, or a Cluster of either.
pub struct RedisStore {
    connections: Connections,
    shards: Shards,
    clock: ScriptClock,
    notifier: Arc<Notifier>,
    policies: EvictionPolicies,
    recent: RecentReplies,
    /// Limits the changes of operators that are under way.
    changes: Semaphore,
    /// Makes the tokens by which repeated steps are recognised.
    entropy: Entropy,
    /// Where the next sweep begins.
    swept: AtomicUsize,
    _listener: Listener,
}

impl RedisStore {
    /// Connects, checks the server, and opens the store; leases and expiry follow the
    /// server's clock. Its connections are driven by the runtime that opens it, and may
    /// be used from any other.
    pub async fn open(settings: &Settings) -> Result<Self, RedisOpenError> {
        Self::open_with_time(settings, Time::Server).await
    }

    /// The same with another clock, for tests.
    pub async fn open_with_time(settings: &Settings, time: Time) -> Result<Self, RedisOpenError> {
        let started = start::start(settings).await?;
        let shards = Shards::of(&settings.namespace);
        let notifier = Arc::<Notifier>::default();
        let listener = Listener::start(
            started.subscribers,
            shards.pattern.clone(),
            notifier.clone(),
            settings.deadline,
        );
        Ok(Self {
            connections: Connections::new(
                started.connections,
                settings.durability,
                settings.deadline,
            ),
            clock: ScriptClock::new(time),
            policies: EvictionPolicies::just_checked(),
            recent: RecentReplies::new(settings.reply_memory),
            changes: Semaphore::new(inspect::CHANGES_MAX),
            entropy: Entropy::system().map_err(RedisOpenError::Entropy)?,
            swept: AtomicUsize::default(),
            _listener: listener.await,
            shards,
            notifier,
        })
    }

    /// A call of a script on one operation; the caller adds further arguments.
    fn call(&self, script: &Script, lookup: Lookup) -> Cmd {
        let mut call = script.on(&self.shards.with(lookup).keys);
        call.arg(&*self.clock.argument()).arg(lookup.as_bytes());
        call
    }

    /// Runs a step on one operation.
    async fn run_step(&self, lookup: Lookup, step: Cmd) -> Result<Value> {
        self.connections
            .run_confirmed(self.shards.with(lookup), step)
            .await
    }

    /// Runs a step that records something new, unless the server evicts records. An
    /// existing record is returned in any case.
    async fn record(&self, lookup: Lookup, step: Cmd) -> Result<Recorded> {
        match self.check_eviction(lookup).await {
            Ok(()) => response::recorded(self.run_step(lookup, step).await?),
            Err(error @ Error::Evicts { .. }) => match self.read(lookup).await? {
                FoundRecord { stored: None, .. } => Err(error),
                found => Ok(Recorded::Known(found)),
            },
            Err(error) => Err(error),
        }
    }

    async fn read(&self, lookup: Lookup) -> Result<FoundRecord> {
        response::found(self.run_step(lookup, self.call(&READ, lookup)).await?)
    }

    /// Writes a record, if it is unchanged since it was read.
    async fn write(
        &self,
        before: &StoredRecord,
        change: &RecordChange<'_>,
    ) -> Result<WriteOutcome> {
        let lookup = Lookup::Digest(before.record.digest);
        let step = self.write_step(before, change);
        let written = response::written(self.run_step(lookup, step).await?)?;
        if change.place == ListPosition::Moves {
            self.notifier.notify(&before.record.digest);
        }
        Ok(written)
    }

    fn write_step(&self, before: &StoredRecord, change: &RecordChange<'_>) -> Cmd {
        let mut step = self.call(&WRITE, Lookup::Digest(before.record.digest));
        step.arg(before.version.as_bytes());
        change.add_arguments(&mut step, self.entropy.next_u64());
        step
    }

    /// Removes a record, if it is unchanged since it was read.
    async fn forget(&self, before: &StoredRecord) -> Result<WriteOutcome> {
        let lookup = Lookup::Digest(before.record.digest);
        let forgotten = self.run_step(lookup, self.forget_step(before)).await?;
        self.notifier.notify(&before.record.digest);
        response::written(forgotten)
    }

    fn forget_step(&self, before: &StoredRecord) -> Cmd {
        let mut step = self.call(&FORGET, Lookup::Digest(before.record.digest));
        step.arg(before.version.as_bytes());
        step
    }

    async fn claim_step(&self, ask: &ClaimRequest) -> Result<Claim> {
        let lookup = Lookup::Digest(ask.digest);
        let asked_at = self.recent.asked_now();
        if let Some(claim) = self.recent.answer(ask, self.clock.time(), asked_at.at) {
            return Ok(claim);
        }
        for _ in 0..TRIES_MAX {
            let mut step = self.call(&CLAIM, lookup);
            let record = new_record(ask);
            step.arg(layout::encode_rest(&record, NO_TOKEN))
                .arg(layout::end_after_grant(&record));
            let found = match self.record(lookup, step).await? {
                Recorded::Done(stamp) => return Ok(Claim::Granted(grant_of(ask.id, ask, stamp))),
                Recorded::Known(found) => found,
            };
            let stored = found.stored.ok_or(Error::Response("a record"))?;
            if let Some(claim) = Claim::on(&stored.record, ask, found.now) {
                self.recent.keep(&stored.record, found.now, asked_at);
                return Ok(claim);
            }
            self.check_eviction(lookup).await?;
            let record = ask.to_record_after(Some(&stored.record), found.now);
            let change = RecordChange {
                how: WriteKind::Granted,
                at: found.now,
                request: Attachment::Dropped,
                ..RecordChange::whole(&stored.record, &record, ListPosition::Moves)
            };
            if let WriteOutcome::Done(stamp) = self.write(&stored, &change).await? {
                return Ok(Claim::Granted(grant_of(record.id, ask, stamp)));
            }
        }
        Err(Error::Contended)
    }

    async fn withdraw_step(&self, digest: Digest, attempt: Attempt) -> Result<()> {
        let found = self.read(Lookup::Digest(digest)).await?;
        let held = found
            .stored
            .filter(|stored| stored.record.attempt == attempt && !stored.record.delivered);
        if let Some(stored) = held {
            self.settle_step(digest, stored.record.fence, &Settlement::Released)
                .await?;
        }
        Ok(())
    }

    async fn renew_step(&self, digest: Digest, fence: Fence) -> Result<Settled> {
        let mut step = self.call(&RENEW, Lookup::Digest(digest));
        step.arg(&layout::held_by(fence));
        if let Some(settled) = self.held_step(digest, step).await? {
            return Ok(settled);
        }
        self.change_held(digest, ListPosition::Stays, |record, now| {
            record.renew(fence, now)
        })
        .await
    }

    async fn settle_step(
        &self,
        digest: Digest,
        fence: Fence,
        settlement: &Settlement,
    ) -> Result<Settled> {
        if let Some(said) = HolderChange::by(settlement) {
            let mut step = self.call(&SETTLE, Lookup::Digest(digest));
            step.arg(&layout::held_by(fence))
                .arg(&said.word())
                .arg(&said.answer())
                .arg(said.check())
                .arg(said.ends());
            if let Settlement::Completed(Answer::Kept(reply))
            | Settlement::Failed(Answer::Kept(reply)) = settlement
            {
                step.arg(wire::encode_reply(reply));
            }
            if let Some(settled) = self.held_step(digest, step).await? {
                self.notifier.notify(&digest);
                return Ok(settled);
            }
        }
        self.change_held(digest, ListPosition::Moves, |record, now| {
            record.settle(fence, settlement, now)
        })
        .await
    }

    /// Runs a step that a script decides in the simple case; `None` leaves the
    /// decision to the rules.
    async fn held_step(&self, digest: Digest, step: Cmd) -> Result<Option<Settled>> {
        let answer = self.run_step(Lookup::Digest(digest), step).await?;
        if let Value::Array(_) = answer {
            let finished = response::found(answer)?.stored;
            let completion = finished.and_then(|stored| stored.record.completion());
            let completion = completion.ok_or(Error::Response("a finished record"))?;
            return Ok(Some(Settled::Finished(completion)));
        }
        match response::number(answer)? {
            0 => Ok(Some(Settled::Stale)),
            1 => Ok(Some(Settled::Done)),
            _ => Ok(None),
        }
    }

    /// Changes a record by the rules, for its holder.
    async fn change_held(
        &self,
        digest: Digest,
        place: ListPosition,
        act: impl Fn(&mut Record, Timestamp) -> Settled,
    ) -> Result<Settled> {
        for _ in 0..TRIES_MAX {
            let found = self.read(Lookup::Digest(digest)).await?;
            let Some(before) = found.stored else {
                return Ok(Settled::Stale);
            };
            let mut record = Record::clone(&before.record);
            let settled = act(&mut record, found.now);
            // A repeated settlement changes nothing, not even the position in
            // listings.
            if record == *before.record {
                return Ok(settled);
            }
            let change = RecordChange::whole(&before.record, &record, place);
            if let WriteOutcome::Done(_) = self.write(&before, &change).await? {
                return Ok(settled);
            }
        }
        Err(Error::Contended)
    }

    async fn touch_step(&self, digest: Digest) -> Result<()> {
        for _ in 0..TRIES_MAX {
            let found = self.read(Lookup::Digest(digest)).await?;
            let Some(before) = found
                .stored
                .filter(|stored| stored.record.wants_touch(found.now))
            else {
                return Ok(());
            };
            let mut record = Record::clone(&before.record);
            record.touch(found.now);
            let change = RecordChange::whole(&before.record, &record, ListPosition::Moves);
            if let WriteOutcome::Done(_) = self.write(&before, &change).await? {
                return Ok(());
            }
        }
        Err(Error::Contended)
    }

    /// The operation's state; marks it, so that its settlement is published.
    async fn mark(&self, digest: Digest) -> Result<Option<State>> {
        let lookup = Lookup::Digest(digest);
        let marked = self.connections.run(self.call(&AWAIT, lookup)).await;
        let found = match marked {
            // The mark is only a hint, and a full server still reads.
            Err(Error::Full(_)) => self.read(lookup).await?,
            marked => response::found(marked?)?,
        };
        Ok(found
            .stored
            .and_then(|stored| stored.record.state_at(found.now)))
    }
}

/// A new record without its creation time, which the script determines.
fn new_record(ask: &ClaimRequest) -> Record {
    ask.to_record_after(None, Timestamp::default())
}

fn grant_of(id: OperationId, ask: &ClaimRequest, stamp: u64) -> Grant {
    Grant {
        digest: ask.digest,
        id,
        fence: Fence(stamp),
    }
}

impl fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisStore").finish_non_exhaustive()
    }
}

#[async_trait]
impl Store for RedisStore {
    async fn claim(&self, ask: &ClaimRequest) -> Result<Claim, StoreError> {
        Ok(self.claim_step(ask).await?)
    }

    fn recall(&self, ask: &ClaimRequest) -> Option<Claim> {
        self.recent.answer(ask, self.clock.time(), Instant::now())
    }

    async fn withdraw(&self, digest: &Digest, attempt: Attempt) -> Result<(), StoreError> {
        Ok(self.withdraw_step(*digest, attempt).await?)
    }

    async fn renew(&self, digest: &Digest, fence: Fence) -> Result<Settled, StoreError> {
        Ok(self.renew_step(*digest, fence).await?)
    }

    async fn settle(
        &self,
        digest: &Digest,
        fence: Fence,
        settlement: Settlement,
    ) -> Result<Settled, StoreError> {
        Ok(self.settle_step(*digest, fence, &settlement).await?)
    }

    async fn get(&self, digest: &Digest) -> Result<Option<Arc<Record>>, StoreError> {
        let found = self.read(Lookup::Digest(*digest)).await?;
        Ok(found
            .stored
            .and_then(|stored| stored.record.seen_at(found.now)))
    }

    async fn find(&self, id: OperationId) -> Result<Option<Arc<Record>>, StoreError> {
        let found = self.read(Lookup::Id(id)).await?;
        Ok(found
            .stored
            .and_then(|stored| stored.record.seen_at(found.now)))
    }

    async fn touch(&self, digest: &Digest) -> Result<(), StoreError> {
        Ok(self.touch_step(*digest).await?)
    }

    async fn wait(&self, digest: &Digest, limit: Duration) -> Result<(), StoreError> {
        let subscription = self.notifier.listen(digest);
        let begun = tokio::time::Instant::now();
        // The time limit may end before the mark is set.
        let Ok(marked) = within(limit, self.mark(*digest)).await else {
            return Ok(());
        };
        if let Some(State::Running | State::Queued) = marked? {
            subscription
                .notified_within(limit.saturating_sub(begun.elapsed()))
                .await;
        }
        Ok(())
    }
}
