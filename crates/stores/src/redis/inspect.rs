//! Looking into the store, and an operator's hand in it.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use async_trait::async_trait;
use onceward_core::clock::Timestamp;
use onceward_core::identity::OperationId;
use onceward_core::record::{Fence, Record, State};
use onceward_core::store::{
    Changed, Cursor, Filter, Force, Inspect, PAGE_MAX, Page, PageAsk, Resolution, Stats, StoreError,
};
use redis::cmd;

use super::answer::{self, Written};
use super::change::{After, Change, Place};
use super::fault::{Fault, Step};
use super::layout::{self, Beside, How, Kept};
use super::listing::Listing;
use super::script::{STATS, SWEEP};
use super::shard::{Name, SHARDS, Shard};
use super::{RedisStore, TRIES_MAX};

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
    Write(How, Record),
}

/// What looking at an operation whose reply has expired came to.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Looked {
    Reclaimed,
    Tidied,
}

impl RedisStore {
    async fn list_step(&self, filter: &Filter, ask: PageAsk) -> Step<Page> {
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
            for (stamp, record) in rows {
                let shown = record.shown_at(now).filter(|record| filter.matches(record));
                found.extend(shown.map(|record| (stamp, record)));
            }
        }
        Ok(page(found, limit, listing.place()))
    }

    /// The store's time, for what no script tells it.
    async fn now(&self) -> Step<Timestamp> {
        match self.teller.given() {
            Some(now) => Ok(now),
            None => answer::time(self.lines.ask(cmd("TIME")).await?),
        }
    }

    /// Lets an operator change a record, or what is left of it, by id.
    async fn change(
        &self,
        id: OperationId,
        judge: impl Fn(&Record, State, Timestamp) -> Verdict,
    ) -> Step<Changed> {
        for _ in 0..TRIES_MAX {
            let found = self.read(Name::Id(id)).await?;
            let Some(before) = found.kept else {
                return Ok(Changed::Absent);
            };
            let Some(state) = before.record.shown_state_at(found.now) else {
                return Ok(Changed::Absent);
            };
            let written = match judge(&before.record, state, found.now) {
                Verdict::Refused => return Ok(Changed::Refused(state)),
                Verdict::Forget => self.forget(&before).await?,
                Verdict::Write(how, record) => {
                    let change = Change {
                        how,
                        ..Change::whole(&before.record, &record, Place::Moves)
                    };
                    self.write(&before, &change).await?
                }
            };
            if let Written::Done(_) = written {
                return Ok(Changed::Done);
            }
        }
        Err(Fault::Contended)
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
            let mut question = SWEEP.on(shard.keys(3));
            question.arg(&*self.teller.tell(shard)).arg(slice);
            question
        });
        let answers = self.lines.ask_all(questions.collect()).await?;
        let mut swept = Swept {
            operations: 0,
            rest: Rest::None,
        };
        for (shard, answer) in shards.iter().zip(answers) {
            let mut parts = answer::array(answer)?.into_iter();
            let mut next = || parts.next().unwrap_or_default();
            let now = Timestamp::from_unix_ms(answer::number(next())?);
            let over = usize::try_from(answer::number(next())?).unwrap_or_default();
            let expired = answer::array(next())?;
            if over == slice || expired.len() == slice {
                swept.rest = Rest::Some;
            }
            swept.operations += over;
            for field in expired {
                let field = answer::bytes(field)?.ok_or(Fault::Answer("a field"))?;
                if self.look(shard, &field, now).await? == Looked::Reclaimed {
                    swept.operations += 1;
                }
            }
        }
        Ok(swept)
    }

    /// Looks at an operation whose reply may have expired before its key.
    async fn look(&self, shard: &Shard, field: &[u8], now: Timestamp) -> Step<Looked> {
        let mut question = cmd("HGET");
        question.arg(shard.operations()).arg(field);
        let Some(bytes) = answer::bytes(self.lines.ask(question).await?)? else {
            return Ok(Looked::Tidied);
        };
        let before = match layout::decode(&bytes, Beside::Left) {
            Ok(kept) => kept,
            Err(fault) => {
                tracing::error!(%fault, "a record that was to be swept is damaged; it stays");
                let mut step = cmd("ZREM");
                step.arg(shard.ends()).arg(field);
                self.lines.ask(step).await?;
                return Ok(Looked::Tidied);
            }
        };
        if before.record.is_over(now) {
            self.forget(&before).await?;
            return Ok(Looked::Reclaimed);
        }
        self.let_reply_go(&before, now).await?;
        Ok(Looked::Tidied)
    }

    /// Who changed the record meanwhile has put it into its right place.
    async fn let_reply_go(&self, before: &Kept, now: Timestamp) -> Step<()> {
        let has_expired = before.record.expires_at().is_some_and(|at| now >= at);
        if has_expired {
            let mut record = Record::clone(&before.record);
            record.expire();
            let change = Change {
                reply: After::Dropped,
                ..Change::whole(&before.record, &record, Place::Stays)
            };
            self.write(before, &change).await?;
            return Ok(());
        }
        // Its time is not over after all: it is put where it belongs.
        let found = self.read(Name::Digest(before.record.digest)).await?;
        if let Some(before) = found.kept {
            let change = Change::whole(&before.record, &before.record, Place::Stays);
            self.write(&before, &change).await?;
        }
        Ok(())
    }

    async fn stats_step(&self) -> Step<Stats> {
        let questions = self.shards.all().iter().map(|shard| {
            let mut question = STATS.on(shard.keys(3));
            question.arg(&*self.teller.tell(shard));
            question
        });
        let mut stats = Stats::default();
        for answer in self.lines.ask_all(questions.collect()).await? {
            let mut counts = answer::array(answer)?.into_iter();
            let mut next = || answer::number(counts.next().unwrap_or_default());
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
fn page(mut found: Vec<(u64, Arc<Record>)>, limit: usize, place: Option<u64>) -> Page {
    let next = if found.len() > limit {
        found.truncate(limit);
        found.last().map(|(stamp, _)| *stamp)
    } else {
        place
    };
    Page {
        records: found.into_iter().map(|(_, record)| record).collect(),
        next: next.map(Cursor),
    }
}

#[async_trait]
impl Inspect for RedisStore {
    async fn list(&self, filter: &Filter, page: PageAsk) -> Result<Page, StoreError> {
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
            Verdict::Write(How::Raised, record)
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
            Verdict::Write(How::Whole, record)
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
