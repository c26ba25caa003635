//! Finished operations that were asked for or recorded lately, with their
//! replies, in memory: a replay needs neither the file nor the writer.
//!
//! A finished record does not change, so the only way to be wrong is to keep
//! one that was purged. The writer takes it out after the purge is durable and
//! before it is answered; a reader that read the file before that and comes
//! late finds that the round has changed, and leaves its record out.

use std::sync::{Arc, PoisonError, RwLock};

use onceward_core::identity::Digest;
use onceward_core::record::{Answer, Record, Reply};
use quick_cache::Weighter;
use quick_cache::sync::Cache;

/// What a record takes besides its reply, by and large.
const RECORD_BYTES: u64 = 768;
/// What a header line takes besides its text.
const FIELD_BYTES: u64 = 64;

/// The hot records.
pub(super) struct Hot {
    records: Cache<Digest, Arc<Record>, Bytes>,
    round: RwLock<Round>,
}

/// How many records were taken out so far.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Round(u64);

impl Hot {
    /// Room for about so many bytes of records and replies.
    pub(super) fn new(bytes_max: u64) -> Self {
        let items = usize::try_from(bytes_max / (2 * RECORD_BYTES)).unwrap_or(usize::MAX);
        Self {
            records: Cache::with_weighter(items, bytes_max, Bytes),
            round: RwLock::new(Round(0)),
        }
    }

    /// The record, if it is here.
    pub(super) fn get(&self, digest: &Digest) -> Option<Arc<Record>> {
        self.records.get(digest)
    }

    /// The round to name in [`Hot::offer`]; to be asked before the read.
    pub(super) fn round(&self) -> Round {
        *self.round.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// A reader offers what it read, unless something was taken out since.
    pub(super) fn offer(&self, record: &Arc<Record>, read_in: Round) {
        let round = self.round.read().unwrap_or_else(PoisonError::into_inner);
        if *round == read_in {
            self.records.insert(record.digest, record.clone());
        }
    }

    /// The writer puts in what it made durable.
    pub(super) fn put(&self, record: Arc<Record>) {
        self.records.insert(record.digest, record);
    }

    /// The writer takes out what is no longer so.
    pub(super) fn take_out(&self, digest: &Digest) {
        let mut round = self.round.write().unwrap_or_else(PoisonError::into_inner);
        round.0 += 1;
        self.records.remove(digest);
    }
}

/// Weighs a record by the memory it takes.
#[derive(Clone)]
struct Bytes;

impl Weighter<Digest, Arc<Record>> for Bytes {
    fn weight(&self, _: &Digest, record: &Arc<Record>) -> u64 {
        match &record.answer {
            Some(Answer::Kept(reply)) => RECORD_BYTES + reply_bytes(reply),
            _ => RECORD_BYTES,
        }
    }
}

fn reply_bytes(reply: &Reply) -> u64 {
    let fields = reply.headers.iter().chain(&reply.trailers);
    let fields: u64 = fields
        .map(|(name, value)| FIELD_BYTES + (name.len() + value.len()) as u64)
        .sum();
    fields + reply.body.len() as u64
}
