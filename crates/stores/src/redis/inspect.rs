//! Looking into the store, and an operator's hand in it.

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

use super::change::{After, Change, Place};
use super::error::{Fault, Step};
use super::layout::{self, Beside, How, Kept};
use super::listing::{Listing, Spot};
use super::response::{self, Written};
use super::script::{REQUEST, STATS, SWEEP};
use super::shard::{Name, SHARDS, Shard};
use super::{RedisStore, TRIES_MAX};
use crate::checksum::unseal;

/// How many operations one look at a shard reclaims at most, so that no claim
/// waits long behind it.
const SLICE: usize = 64;
/// How many shards are swept at once.
const SHARDS_AT_ONCE: usize = 8;
/// How often the same shards are looked at in one sweep.
const ROUNDS_MAX: usize = 1_000;
/// How many operations one listing looks at; what it has not seen by then is on
/// the next page, so that a filter that matches little does not read everything.
const LOOKED_MAX: usize = 10_000;
/// How many operations are read at once, at least and at most.
const READ_MIN: usize = 64;
const READ_MAX: usize = 512;

/// What an operator's word does to a record.
enum Verdict {
    Refused,
    Forget,
    Write(How, Box<Record>),
    /// The same, raised, if its request is there.
    Redeliver(Box<Record>),
}

impl RedisStore {
    async fn list_step(&self, filter: &Filter, ask: PageRequest) -> Step<Page> {
        let limit = ask.limit.min(PAGE_MAX);
        let now = self.now().await?;
        let mut listing = Listing::after(ask.after, limit);
        let mut found = Vec::new();
        let mut looked = 0;
        while found.len() <= limit && looked < LOOKED_MAX {
            let wanted = (limit + 1 - found.len()).clamp(READ_MIN, READ_MAX);
            let rows = listing.next(&self.lines, &self.shards, wanted).await?;
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

    /// The store's time, for what no script tells it.
    async fn now(&self) -> Step<Timestamp> {
        match self.teller.given() {
            Some(now) => Ok(now),
            None => response::time(self.lines.ask(cmd("TIME")).await?),
        }
    }

    /// Lets an operator change a record, or what is left of it, by id.
    async fn change(
        &self,
        id: OperationId,
        judge: impl Fn(&Record, State, Timestamp) -> Verdict,
    ) -> Step<Changed> {
        let mut gone = Changed::Absent;
        for _ in 0..TRIES_MAX {
            let found = self.read(Name::Id(id)).await?;
            let Some(before) = found.kept else {
                return Ok(gone);
            };
            let Some(state) = before.record.shown_state_at(found.now) else {
                return Ok(gone);
            };
            let (how, record) = match judge(&before.record, state, found.now) {
                Verdict::Refused => return Ok(Changed::Refused(state)),
                Verdict::Forget => {
                    // If it is not there any more, this very step may have come
                    // twice, as the client of a Cluster takes it again when its
                    // answer is lost; or another did the same.
                    gone = Changed::Done;
                    if let Written::Done(_) = self.forget(&before).await? {
                        return Ok(Changed::Done);
                    }
                    continue;
                }
                Verdict::Write(how, record) => (how, record),
                Verdict::Redeliver(record) => {
                    self.check_request(&record).await?;
                    (How::Raised, record)
                }
            };
            let change = Change {
                how,
                ..Change::whole(&before.record, &record, Place::Moves)
            };
            let written = self.write(&before, &change).await?;
            if let Written::Done(_) = written {
                return Ok(Changed::Done);
            }
        }
        Err(Fault::Contended)
    }

    /// Makes sure that there is something to deliver.
    async fn check_request(&self, record: &Record) -> Step<()> {
        let name = Name::Digest(record.digest);
        let request = response::bytes(self.take(name, self.call(&REQUEST, name)).await?)?;
        unseal(request.ok_or(Fault::NoRequest)?)?;
        Ok(())
    }

    async fn sweep_step(&self, limit: usize) -> Step<usize> {
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
                if taken.rest == Rest::None {
                    break;
                }
            }
        }
        Ok(swept)
    }

    async fn sweep_slice(&self, shards: &[&Shard], slice: usize) -> Step<Swept> {
        let questions = shards.iter().map(|shard| {
            let mut question = SWEEP.on(&shard.keys);
            question.arg(&*self.teller.tell()).arg(slice);
            question
        });
        let answers = self.lines.ask_all(questions.collect()).await?;
        let mut swept = Swept {
            operations: 0,
            rest: Rest::None,
        };
        let mut ended = Vec::new();
        for (shard, answer) in shards.iter().zip(answers) {
            let mut parts = response::array(answer)?.into_iter();
            let mut next = || parts.next().unwrap_or_default();
            let now = Timestamp::from_unix_ms(response::number(next())?);
            let over = usize::try_from(response::number(next())?).unwrap_or_default();
            let endings = response::array(next())?;
            if over == slice || endings.len() == slice {
                swept.rest = Rest::Some;
            }
            swept.operations += over;
            for ending in endings {
                let ending = response::bytes(ending)?.ok_or(Fault::Answer("an ending"))?;
                ended.push(Ended { shard, ending, now });
            }
        }
        swept.operations += self.tidy(ended).await?;
        Ok(swept)
    }

    /// Looks at operations whose replies have expired before their keys, and
    /// tells how many were over all the same.
    async fn tidy(&self, ended: Vec<Ended<'_>>) -> Step<usize> {
        let questions = ended.iter().map(|ended| {
            let mut question = cmd("HGET");
            question.arg(ended.shard.operations()).arg(ended.field());
            question
        });
        let answers = self.lines.ask_all(questions.collect()).await?;
        let (mut steps, mut forgets) = (Vec::new(), Vec::new());
        for (ended, answer) in ended.iter().zip(answers) {
            let Some(bytes) = response::bytes(answer)? else {
                continue;
            };
            let step = match layout::decode(&bytes, Beside::Left) {
                Ok(kept) if kept.record.is_over(ended.now) => {
                    forgets.push(steps.len());
                    self.forget_step(&kept)
                }
                Ok(kept) if has_expired(&kept.record, ended.now) => {
                    self.expire_step(&kept, ended.now)
                }
                Ok(kept) => match self.put_in_place(&kept).await? {
                    Some(step) => step,
                    None => continue,
                },
                Err(fault) => {
                    tracing::error!(%fault, "a record that was to be swept is damaged; it stays");
                    let mut step = cmd("ZREM");
                    step.arg(ended.shard.index()).arg(&ended.ending);
                    step
                }
            };
            steps.push((ended.shard, step));
        }
        let answers = self.lines.take_all(steps).await?;
        let mut reclaimed = 0;
        for place in forgets {
            // Who changed a record meanwhile has put it in its place.
            let forgotten = answers.get(place).cloned().unwrap_or_default();
            reclaimed += usize::from(response::written(forgotten)? != Written::Changed);
        }
        Ok(reclaimed)
    }

    /// Its time is not over after all: written again, it is where it belongs.
    async fn put_in_place(&self, kept: &Kept) -> Step<Option<Cmd>> {
        let found = self.read(Name::Digest(kept.record.digest)).await?;
        Ok(found.kept.map(|kept| {
            let change = Change::whole(&kept.record, &kept.record, Place::Stays);
            self.write_step(&kept, &change)
        }))
    }

    /// Takes the reply, and the request of what was delivered. What expires lazily
    /// has expired by that; all else keeps its outcome, and time tells that it has
    /// expired. What was delivered has expired too: else its end would be this one
    /// again.
    fn expire_step(&self, before: &Kept, now: Timestamp) -> Cmd {
        let mut record = Record::clone(&before.record);
        if record.is_overdue(now) || record.delivered {
            record.expire();
        }
        let change = Change {
            // What was read does not show whether there is one.
            reply: After::Dropped,
            request: After::Dropped,
            ..Change::whole(&before.record, &record, Place::Stays)
        };
        self.write_step(before, &change)
    }

    async fn stats_step(&self) -> Step<Stats> {
        let questions = self.shards.all().iter().map(|shard| {
            let mut question = STATS.on(&shard.keys);
            question.arg(&*self.teller.tell());
            question
        });
        let mut stats = Stats::default();
        for answer in self.lines.ask_all(questions.collect()).await? {
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

/// An operation that must be looked at.
struct Ended<'a> {
    shard: &'a Shard,
    /// Its name in the index: the field, and `:e`.
    ending: Vec<u8>,
    now: Timestamp,
}

impl Ended<'_> {
    fn field(&self) -> &[u8] {
        let field = self.ending.strip_suffix(b":e");
        field.unwrap_or(&self.ending)
    }
}

/// What one slice of a sweep came to.
struct Swept {
    operations: usize,
    rest: Rest,
}

/// Whether a shard may have more to sweep.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Rest {
    None,
    Some,
}

/// A page of what was found. Where it is not full, the next begins at `place`.
fn page(mut found: Vec<(Spot, Arc<Record>)>, limit: usize, place: Option<Spot>) -> Page {
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
        let found = self.read(Name::Id(id)).await?;
        Ok(found.kept.and_then(|kept| kept.record.shown_at(found.now)))
    }

    async fn purge(&self, id: OperationId, force: Force) -> Result<Changed, StoreError> {
        let changed = self.change(id, |_, state, _| {
            if state == State::Running && force == Force::No {
                Verdict::Refused
            } else {
                Verdict::Forget
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
                return Verdict::Refused;
            }
            let mut record = record.clone();
            // The script gives the fence.
            record.resolve(Fence(0), &word, now);
            Verdict::Write(How::Raised, Box::new(record))
        });
        Ok(changed.await?)
    }

    async fn resume(&self, id: OperationId) -> Result<Changed, StoreError> {
        let changed = self.change(id, |record, state, now| {
            if state != State::Paused {
                return Verdict::Refused;
            }
            let mut record = record.clone();
            record.resume(now);
            Verdict::Write(How::Whole, Box::new(record))
        });
        Ok(changed.await?)
    }

    async fn redeliver(&self, id: OperationId) -> Result<Changed, StoreError> {
        let changed = self.change(id, |record, _, now| {
            let mut record = record.clone();
            // The script gives the fence.
            match record.redeliver(Fence(0), now) {
                Changed::Done => Verdict::Redeliver(Box::new(record)),
                Changed::Absent | Changed::Refused(_) => Verdict::Refused,
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
