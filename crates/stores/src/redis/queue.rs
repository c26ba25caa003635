//! Work that the gateway delivers itself.
//!
//! What is due is found in all shards at once, the oldest of it is read, and each
//! piece is granted if it is still as it was read: what two ask for at once goes
//! to one of them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use onceward_core::clock::Timestamp;
use onceward_core::record::{Fence, Record};
use onceward_core::store::{Ask, Due, Enqueued, PAGE_MAX, Queue, StoreError};
use redis::{Value, cmd};

use super::answer::{self, Recorded, Written};
use super::change::{Change, Place};
use super::fault::{Fault, Step};
use super::layout::{self, Beside, How, Kept};
use super::script::{DUE, ENQUEUE};
use super::shard::{Name, Shard};
use super::{RedisStore, TRIES_MAX, known, new_record};

/// A queued operation that is due.
struct Waiting {
    shard: usize,
    field: Vec<u8>,
}

/// A queued operation as it was read.
struct Ready {
    kept: Kept,
    request: Bytes,
}

impl RedisStore {
    async fn enqueue_step(&self, ask: &Ask, request: &Bytes, after: Duration) -> Step<Enqueued> {
        let name = Name::Digest(ask.digest);
        for _ in 0..TRIES_MAX {
            let mut step = self.call(&ENQUEUE, 4, name);
            step.arg(layout::encode_rest(&new_record(ask)))
                .arg(layout::span_ms(after))
                .arg(layout::seal(request));
            let found = match answer::recorded(self.take(name, step).await?)? {
                Recorded::Done(_) => return Ok(Enqueued::Accepted(ask.id)),
                Recorded::Known(found) => found,
            };
            let Some(kept) = found.kept else {
                return Err(Fault::Answer("a record"));
            };
            if let Some(claim) = known(&kept, ask, found.now) {
                return Ok(Enqueued::Known(claim));
            }
            // It is free: what is left of it goes, and it is recorded anew with
            // what a new operation takes over.
            let mut record = ask.to_record_after(Some(&kept.record), found.now);
            record.enqueue(found.now.plus(after));
            if let Some(id) = self.enqueue_over(&kept, &record, request).await? {
                return Ok(Enqueued::Accepted(id));
            }
        }
        Err(Fault::Contended)
    }
}
