//! Queued operations.
//!
//! Due operations are searched in all shards at once. The oldest are read, and each
//! is granted if it is unchanged since, so that two gateways never get the same one.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::future::join_all;
use onceward_core::clock::Timestamp;
use onceward_core::record::{Fence, Record};
use onceward_core::store::{Claim, ClaimRequest, Due, Enqueued, PAGE_MAX, Queue, StoreError};
use redis::{Value, cmd};

use super::change::{Attachment, ListPosition, RecordChange};
use super::error::{Error, Result};
use super::layout::{self, NO_TOKEN, ReplySource, StoredRecord, WriteKind};
use super::response::{self, Recorded, WriteOutcome};
use super::script::{DUE, ENQUEUE};
use super::{RedisStore, TRIES_MAX, new_record};
use crate::checksum::{seal, unseal};
use crate::lookup::Lookup;

/// The fields of operations that are due, by shard.
type DueFields = BTreeMap<usize, Vec<Vec<u8>>>;

/// A queued operation as it was read.
struct QueuedOperation {
    stored: StoredRecord,
    request: Bytes,
}

impl RedisStore {
    async fn enqueue_step(
        &self,
        ask: &ClaimRequest,
        request: &[u8],
        after: Duration,
    ) -> Result<Enqueued> {
        let lookup = Lookup::Digest(ask.digest);
        for _ in 0..TRIES_MAX {
            let mut step = self.call(&ENQUEUE, lookup);
            step.arg(layout::encode_rest(&new_record(ask), NO_TOKEN))
                .arg(layout::span_ms(after))
                .arg(seal(request));
            let found = match self.record(lookup, step).await? {
                Recorded::Done(_) => return Ok(Enqueued::Accepted(ask.id)),
                Recorded::Known(found) => found,
            };
            let before = found.stored.ok_or(Error::Response("a record"))?;
            if let Some(claim) = Claim::on(&before.record, ask, found.now) {
                return Ok(Enqueued::Known(claim));
            }
            self.check_eviction(lookup).await?;
            let mut record = ask.to_record_after(Some(&before.record), found.now);
            record.enqueue(found.now.plus(after));
            let change = RecordChange {
                request: Attachment::Put(request),
                ..RecordChange::whole(&before.record, &record, ListPosition::Moves)
            };
            if let WriteOutcome::Done(_) = self.write(&before, &change).await? {
                return Ok(Enqueued::Accepted(record.id));
            }
        }
        Err(Error::Contended)
    }

    async fn due_step(&self, limit: usize) -> Result<Vec<Due>> {
        let limit = limit.min(PAGE_MAX);
        let (now, waiting) = self.waiting(limit).await?;
        let ready = self.ready(&waiting, now).await?;
        self.deliver(ready, now).await
    }

    /// The oldest due operations.
    async fn waiting(&self, limit: usize) -> Result<(Timestamp, DueFields)> {
        let questions = self.shards.all().iter().map(|shard| {
            let mut question = DUE.on(&shard.keys);
            question.arg(&*self.clock.argument()).arg(limit);
            question
        });
        let answers = self.connections.run_all(questions.collect()).await?;
        let mut now = Timestamp::default();
        let mut due = Vec::new();
        for (shard, answer) in answers.into_iter().enumerate() {
            let mut parts = response::array(answer)?.into_iter();
            let shard_ms = response::number(parts.next().unwrap_or_default())?;
            now = now.max(Timestamp::from_unix_ms(shard_ms));
            let fields = response::scored(parts.next().unwrap_or_default())?;
            due.extend(fields.into_iter().map(|(field, at)| (at, shard, field)));
        }
        due.sort_unstable();
        let mut waiting = DueFields::new();
        for (_, shard, field) in due.into_iter().take(limit) {
            waiting.entry(shard).or_default().push(field);
        }
        Ok((now, waiting))
    }

    /// The due operations with their requests, oldest first.
    async fn ready(&self, waiting: &DueFields, now: Timestamp) -> Result<Vec<QueuedOperation>> {
        let questions = waiting.iter().map(|(shard, fields)| {
            let mut question = cmd("HMGET");
            question.arg(self.shards.all()[*shard].operations());
            for field in fields {
                question.arg(field).arg([field, &b":q"[..]].concat());
            }
            question
        });
        let answers = self.connections.run_all(questions.collect()).await?;
        let mut ready = Vec::new();
        for ((shard, fields), answer) in waiting.iter().zip(answers) {
            let mut values = response::array(answer)?.into_iter();
            for field in fields {
                let (record, request) = (values.next(), values.next());
                match read(record, request) {
                    Ok(Some(found)) if found.stored.record.is_due(now) => ready.push(found),
                    Ok(_) => {}
                    Err(error) if error.is_damage() => {
                        tracing::error!(%error, "queued operation is damaged; it is not delivered");
                        self.set_aside(*shard, field).await?;
                    }
                    Err(error) => return Err(error),
                }
            }
        }
        ready.sort_by_key(|ready| (ready.stored.record.until, ready.stored.record.digest));
        Ok(ready)
    }

    /// Removes a damaged operation from the queue, so that it is not tried for ever;
    /// its key stays claimed.
    async fn set_aside(&self, shard: usize, field: &[u8]) -> Result<()> {
        let mut step = cmd("ZREM");
        step.arg(self.shards.all()[shard].queue()).arg(field);
        self.connections.run(step).await.map(drop)
    }

    /// Grants each operation that no other process was granted meanwhile. If one
    /// cannot be granted, the others are returned nevertheless: they are granted and
    /// run.
    async fn deliver(&self, ready: Vec<QueuedOperation>, now: Timestamp) -> Result<Vec<Due>> {
        let granted = ready.into_iter().map(|ready| self.deliver_one(ready, now));
        let mut delivered = Vec::new();
        let mut refused = None;
        for granted in join_all(granted).await {
            match granted {
                Ok(due) => delivered.extend(due),
                Err(error) => refused = Some(error),
            }
        }
        match refused {
            Some(error) if delivered.is_empty() => Err(error),
            Some(error) => {
                tracing::warn!(%error, "some due operations could not be granted");
                Ok(delivered)
            }
            None => Ok(delivered),
        }
    }

    async fn deliver_one(&self, ready: QueuedOperation, now: Timestamp) -> Result<Option<Due>> {
        let mut record = Record::clone(&ready.stored.record);
        let change = RecordChange {
            how: WriteKind::Delivered,
            at: now,
            ..RecordChange::whole(&record, &record, ListPosition::Moves)
        };
        let lookup = Lookup::Digest(record.digest);
        let step = self.write_step(&ready.stored, &change);
        let answer = match self.run_step(lookup, step.clone()).await {
            // It may be granted, and would be lost until its lease ends. Repeating
            // the step returns the same grant.
            Err(_) => self.run_step(lookup, step).await?,
            Ok(answer) => answer,
        };
        let WriteOutcome::Done(stamp) = response::written(answer)? else {
            return Ok(None);
        };
        record.grant(Fence(stamp), record.attempt, now);
        Ok(Some(Due {
            grant: record.as_grant(),
            record: Arc::new(record),
            request: ready.request,
        }))
    }

    async fn next_due_step(&self) -> Result<Option<Timestamp>> {
        let questions = self.shards.all().iter().map(|shard| {
            let mut question = cmd("ZRANGE");
            question.arg(shard.queue()).arg(0).arg(0).arg("WITHSCORES");
            question
        });
        let answers = self.connections.run_all(questions.collect()).await?;
        let mut next = None;
        for answer in answers {
            let first = response::scored(answer)?.into_iter().next();
            let due = first.map(|(_, due)| Timestamp::from_unix_ms(due));
            next = next.into_iter().chain(due).min();
        }
        Ok(next)
    }
}

/// A queued operation, if it still exists.
fn read(record: Option<Value>, request: Option<Value>) -> Result<Option<QueuedOperation>> {
    let Some(record) = response::bytes(record.unwrap_or_default())? else {
        return Ok(None);
    };
    let stored = layout::decode(&record, ReplySource::NotFetched)?;
    let request = response::bytes(request.unwrap_or_default())?;
    let request = unseal(request.ok_or(Error::NoRequest)?)?;
    Ok(Some(QueuedOperation { stored, request }))
}

#[async_trait]
impl Queue for RedisStore {
    async fn enqueue(
        &self,
        ask: &ClaimRequest,
        request: Bytes,
        after: Duration,
    ) -> Result<Enqueued, StoreError> {
        Ok(self.enqueue_step(ask, &request, after).await?)
    }

    async fn due(&self, limit: usize) -> Result<Vec<Due>, StoreError> {
        Ok(self.due_step(limit).await?)
    }

    async fn next_due(&self) -> Result<Option<Timestamp>, StoreError> {
        Ok(self.next_due_step().await?)
    }
}
