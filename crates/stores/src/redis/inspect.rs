//! Listing, sweeping, and changes by operators.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use async_trait::async_trait;
use onceward_core::clock::Timestamp;
use onceward_core::identity::OperationId;
use onceward_core::record::{Fence, Record, State};
use onceward_core::store::{
    Changed, Cursor, Filter, Force, Inspect, PAGE_MAX, Page, PageRequest, Resolution, Stats,
    StoreError,
};
use redis::{Cmd, cmd};

use super::change::{Attachment, ListPosition, RecordChange};
use super::error::{Error, Result};
use super::layout::{self, ReplySource, StoredRecord, WriteKind};
use super::listing::{Listing, Position};
use super::response::{self, WriteOutcome};
use super::script::{REQUEST, STATS, SWEEP};
use super::shard::{SHARDS, Shard};
use super::{RedisStore, TRIES_MAX};
use crate::checksum::unseal;
use crate::lookup::Lookup;

/// The most operations that one slice of a sweep removes from a shard, so that no
/// claim waits long behind it.
const SLICE: usize = 64;
/// How many shards are swept at once.
const SHARDS_AT_ONCE: usize = 8;
/// The most slices per group of shards in one sweep.
const ROUNDS_MAX: usize = 1_000;
/// The most operations that one listing reads. The rest is on the next page, so that
/// a filter with few matches does not read everything.
const LOOKED_MAX: usize = 10_000;
/// The most changes of operators under way at once: each reads a record with its reply.
pub(super) const CHANGES_MAX: usize = 32;
/// How many operations are read at once, at least and at most.
const READ_MIN: usize = 64;
const READ_MAX: usize = 512;

/// The effect of an operator's change on a record.
enum Decision {
    Refused,
    Forget,
    Write(WriteKind, Box<Record>),
    /// The same with a new fence, if its request exists.
    Redeliver(Box<Record>),
}

impl RedisStore {
    async fn list_step(&self, filter: &Filter, ask: PageRequest) -> Result<Page> {
        let limit = ask.limit.min(PAGE_MAX);
        let now = self.now().await?;
        let mut listing = Listing::after(ask.after, limit);
        let mut found = Vec::new();
        let mut looked = 0;
        while found.len() <= limit && looked < LOOKED_MAX {
            let wanted = (limit + 1 - found.len()).clamp(READ_MIN, READ_MAX);
            let rows = listing
                .next(&self.connections, &self.shards, wanted)
                .await?;
            if rows.is_empty() {
                return Ok(page(found, limit, None));
            }
            looked += rows.len();
            for (spot, record) in rows {
                let shown = record.shown_at(now).filter(|record| filter.matches(record));
                found.extend(shown.map(|record| (spot, record)));
            }
        }
        Ok(page(found, limit, listing.place()))
    }

    /// The store's time, where no script returns it.
    async fn now(&self) -> Result<Timestamp> {
        match self.clock.given() {
            Some(now) => Ok(now),
            None => response::time(self.connections.run(cmd("TIME")).await?),
        }
    }

    /// Changes a record or its trace, by id, for an operator. It is done when no
    /// process gives the earlier reply any more.
    async fn change(
        &self,
        id: OperationId,
        judge: impl Fn(&Record, State, Timestamp) -> Decision,
    ) -> Result<Changed> {
        let changed = {
            let _permit = self.changes.acquire().await;
            self.change_record(id, judge).await?
        };
        self.recent.outlast().await;
        Ok(changed)
    }

    async fn change_record(
        &self,
        id: OperationId,
        judge: impl Fn(&Record, State, Timestamp) -> Decision,
    ) -> Result<Changed> {
        let mut gone = Changed::Absent;
        for _ in 0..TRIES_MAX {
            let found = self.read(Lookup::Id(id)).await?;
            let Some(before) = found.stored else {
                return Ok(gone);
            };
            let Some(state) = before.record.shown_state_at(found.now) else {
                return Ok(gone);
            };
            let (how, record) = match judge(&before.record, state, found.now) {
                Decision::Refused => return Ok(Changed::Refused(state)),
                Decision::Forget => {
                    // If it is gone by the next attempt, this step may have run twice
                    // (the Cluster client repeats a step whose answer was lost), or
                    // another process removed it.
                    gone = Changed::Done;
                    if let WriteOutcome::Done(_) = self.forget(&before).await? {
                        return Ok(Changed::Done);
                    }
                    continue;
                }
                Decision::Write(how, record) => (how, record),
                Decision::Redeliver(record) => {
                    self.check_request(&record).await?;
                    (WriteKind::Raised, record)
                }
            };
            let change = RecordChange {
                how,
                ..RecordChange::whole(&before.record, &record, ListPosition::Moves)
            };
            let written = self.write(&before, &change).await?;
            if let WriteOutcome::Done(_) = written {
                return Ok(Changed::Done);
            }
        }
        Err(Error::Contended)
    }

    /// Returns an error if the request to deliver is missing or damaged.
    async fn check_request(&self, record: &Record) -> Result<()> {
        let lookup = Lookup::Digest(record.digest);
        let request = response::bytes(self.run_step(lookup, self.call(&REQUEST, lookup)).await?)?;
        unseal(request.ok_or(Error::NoRequest)?)?;
        Ok(())
    }

    async fn sweep_step(&self, limit: usize) -> Result<usize> {
        let first = self.swept.fetch_add(SHARDS_AT_ONCE, Ordering::Relaxed);
        let mut swept = 0;
        for group in (0..SHARDS).step_by(SHARDS_AT_ONCE) {
            let shards = (group..group + SHARDS_AT_ONCE)
                .map(|number| &self.shards.all()[(first + number) % SHARDS])
                .collect::<Vec<_>>();
            for _ in 0..ROUNDS_MAX {
                let room = limit.saturating_sub(swept);
                if room == 0 {
                    return Ok(swept);
                }
                let slice = room.div_ceil(SHARDS_AT_ONCE).min(SLICE);
                let taken = self.sweep_slice(&shards, slice).await?;
                swept += taken.operations;
                if taken.rest == Remaining::None {
                    break;
                }
            }
        }
        Ok(swept)
    }

    async fn sweep_slice(&self, shards: &[&Shard], slice: usize) -> Result<ShardSweep> {
        let questions = shards.iter().map(|shard| {
            let mut question = SWEEP.on(&shard.keys);
            question.arg(&*self.clock.argument()).arg(slice);
            question
        });
        let answers = self.connections.run_all(questions.collect()).await?;
        let mut swept = ShardSweep {
            operations: 0,
            rest: Remaining::None,
        };
        let mut ended = Vec::new();
        for (shard, answer) in shards.iter().zip(answers) {
            let mut parts = response::array(answer)?.into_iter();
            let mut next = || parts.next().unwrap_or_default();
            let now = Timestamp::from_unix_ms(response::number(next())?);
            let over = usize::try_from(response::number(next())?).unwrap_or_default();
            let endings = response::array(next())?;
            if over == slice || endings.len() == slice {
                swept.rest = Remaining::Some;
            }
            swept.operations += over;
            for ending in endings {
                let ending = response::bytes(ending)?.ok_or(Error::Response("an ending"))?;
                ended.push(EndedOperation { shard, ending, now });
            }
        }
        swept.operations += self.tidy(ended).await?;
        Ok(swept)
    }

    /// Removes the expired replies of operations whose keys are still remembered;
    /// returns how many operations were over entirely.
    async fn tidy(&self, ended: Vec<EndedOperation<'_>>) -> Result<usize> {
        let questions = ended.iter().map(|ended| {
            let mut question = cmd("HGET");
            question.arg(ended.shard.operations()).arg(ended.field());
            question
        });
        let answers = self.connections.run_all(questions.collect()).await?;
        let (mut steps, mut forgets) = (Vec::new(), Vec::new());
        for (ended, answer) in ended.iter().zip(answers) {
            let Some(bytes) = response::bytes(answer)? else {
                continue;
            };
            let step = match layout::decode(&bytes, ReplySource::NotFetched) {
                Ok(stored) if stored.record.is_over(ended.now) => {
                    forgets.push(steps.len());
                    self.forget_step(&stored)
                }
                Ok(stored) if has_expired(&stored.record, ended.now) => {
                    self.expire_step(&stored, ended.now)
                }
                Ok(stored) => match self.put_in_place(&stored).await? {
                    Some(step) => step,
                    None => continue,
                },
                Err(error) => {
                    tracing::error!(%error, "damaged record is not swept");
                    let mut step = cmd("ZREM");
                    step.arg(ended.shard.index()).arg(&ended.ending);
                    step
                }
            };
            steps.push((ended.shard, step));
        }
        let answers = self.connections.run_all_confirmed(steps).await?;
        let mut reclaimed = 0;
        for place in forgets {
            // A record that another process changed is in its right place already.
            let forgotten = answers.get(place).cloned().unwrap_or_default();
            reclaimed += usize::from(response::written(forgotten)? != WriteOutcome::Changed);
        }
        Ok(reclaimed)
    }

    /// The record is not over after all: writing it again corrects its position.
    async fn put_in_place(&self, stored: &StoredRecord) -> Result<Option<Cmd>> {
        let found = self.read(Lookup::Digest(stored.record.digest)).await?;
        Ok(found.stored.map(|stored| {
            let change = RecordChange::whole(&stored.record, &stored.record, ListPosition::Stays);
            self.write_step(&stored, &change)
        }))
    }

    /// Removes the reply, and the request of a delivered operation. A record that
    /// expires lazily has expired by that; any other keeps its outcome and expires by
    /// time. A delivered one is marked as expired too: otherwise its next end would
    /// be this one again.
    fn expire_step(&self, before: &StoredRecord, now: Timestamp) -> Cmd {
        let mut record = Record::clone(&before.record);
        if record.is_overdue(now) || record.delivered {
            record.expire();
        }
        let change = RecordChange {
            // The fetched record does not show whether there is a reply.
            reply: Attachment::Dropped,
            request: Attachment::Dropped,
            ..RecordChange::whole(&before.record, &record, ListPosition::Stays)
        };
        self.write_step(before, &change)
    }

    async fn stats_step(&self) -> Result<Stats> {
        let questions = self.shards.all().iter().map(|shard| {
            let mut question = STATS.on(&shard.keys);
            question.arg(&*self.clock.argument());
            question
        });
        let mut stats = Stats::default();
        for answer in self.connections.run_all(questions.collect()).await? {
            let mut counts = response::array(answer)?.into_iter();
            let mut next = || response::number(counts.next().unwrap_or_default());
            stats.operations += next()?;
            stats.running += next()?;
            stats.queued += next()?;
            stats.unknown += next()?;
            stats.paused += next()?;
            stats.bytes += next()?;
        }
        Ok(stats)
    }
}

fn has_expired(record: &Record, now: Timestamp) -> bool {
    record.expires_at().is_some_and(|expires| now >= expires)
}

/// An operation whose next end has come.
struct EndedOperation<'a> {
    shard: &'a Shard,
    /// Its name in the index: the field, and `:e`.
    ending: Vec<u8>,
    now: Timestamp,
}

impl EndedOperation<'_> {
    fn field(&self) -> &[u8] {
        let field = self.ending.strip_suffix(b":e");
        field.unwrap_or(&self.ending)
    }
}

/// The result of one slice of a sweep.
struct ShardSweep {
    operations: usize,
    rest: Remaining,
}

/// Whether a shard may have more to sweep.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Remaining {
    None,
    Some,
}

/// A page of records. If it is not full, the next one begins at `place`.
fn page(mut found: Vec<(Position, Arc<Record>)>, limit: usize, place: Option<Position>) -> Page {
    let next = if found.len() > limit {
        found.truncate(limit);
        found.last().map(|(spot, _)| *spot)
    } else {
        place
    };
    Page {
        records: found.into_iter().map(|(_, record)| record).collect(),
        next: next.map(Cursor::from),
    }
}

#[async_trait]
impl Inspect for RedisStore {
    async fn list(&self, filter: &Filter, page: PageRequest) -> Result<Page, StoreError> {
        Ok(self.list_step(filter, page).await?)
    }

    async fn show(&self, id: OperationId) -> Result<Option<Arc<Record>>, StoreError> {
        let found = self.read(Lookup::Id(id)).await?;
        Ok(found
            .stored
            .and_then(|stored| stored.record.shown_at(found.now)))
    }

    async fn purge(&self, id: OperationId, force: Force) -> Result<Changed, StoreError> {
        let changed = self.change(id, |_, state, _| {
            if state == State::Running && force == Force::No {
                Decision::Refused
            } else {
                Decision::Forget
            }
        });
        Ok(changed.await?)
    }

    async fn resolve(
        &self,
        id: OperationId,
        meant: Option<Fence>,
        word: Resolution,
    ) -> Result<Changed, StoreError> {
        let changed = self.change(id, |record, state, now| {
            let is_meant = meant.is_none_or(|meant| meant == record.fence);
            if state != State::Unknown || !is_meant {
                return Decision::Refused;
            }
            let mut record = record.clone();
            // The script assigns the fence.
            record.resolve(Fence(0), &word, now);
            Decision::Write(WriteKind::Raised, Box::new(record))
        });
        Ok(changed.await?)
    }

    async fn resume(&self, id: OperationId) -> Result<Changed, StoreError> {
        let changed = self.change(id, |record, state, now| {
            if state != State::Paused {
                return Decision::Refused;
            }
            let mut record = record.clone();
            record.resume(now);
            Decision::Write(WriteKind::Whole, Box::new(record))
        });
        Ok(changed.await?)
    }

    async fn redeliver(&self, id: OperationId) -> Result<Changed, StoreError> {
        let changed = self.change(id, |record, _, now| {
            let mut record = record.clone();
            // The script assigns the fence.
            match record.redeliver(Fence(0), now) {
                Changed::Done => Decision::Redeliver(Box::new(record)),
                Changed::Absent | Changed::Refused(_) => Decision::Refused,
            }
        });
        Ok(changed.await?)
    }

    async fn sweep(&self, limit: usize) -> Result<usize, StoreError> {
        Ok(self.sweep_step(limit).await?)
    }

    async fn stats(&self) -> Result<Stats, StoreError> {
        Ok(self.stats_step().await?)
    }
}
