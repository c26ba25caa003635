//! The order of all shards in one: the most recent change first.
//!
//! Stamps of all shards are comparable and no two are alike, so a listing is a
//! merge of 256 sorted sets, of which each is read a batch at a time, and a place
//! in it is a stamp.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use onceward_core::record::Record;
use onceward_core::store::Cursor;
use redis::cmd;

use super::answer;
use super::fault::Step;
use super::layout::{self, Beside};
use super::line::Lines;
use super::shard::{SHARDS, Shards};

/// How many places of a shard are read at once, at first and at most.
const BATCH_MIN: usize = 4;
const BATCH_MAX: usize = 256;

/// A walk through a listing.
pub(super) struct Listing {
    feeds: Vec<Feed>,
    batch: usize,
    place: Option<u64>,
}

/// What is known of one shard.
struct Feed {
    /// Stamps and fields, falling.
    ahead: VecDeque<(u64, Vec<u8>)>,
    /// Where the next batch begins; `None` when all was read.
    after: Option<String>,
}

/// A place in the listing.
struct Row {
    stamp: u64,
    shard: usize,
    field: Vec<u8>,
}

impl Listing {
    /// From behind this place on, for about this many operations.
    pub(super) fn after(cursor: Option<Cursor>, about: usize) -> Self {
        let after = cursor.map_or("+inf".to_owned(), |cursor| format!("({}", cursor.0));
        let feed = || Feed {
            ahead: VecDeque::new(),
            after: Some(after.clone()),
        };
        Self {
            feeds: (0..SHARDS).map(|_| feed()).collect(),
            batch: BATCH_MIN + 2 * about / SHARDS,
            place: cursor.map(|cursor| cursor.0),
        }
    }

    /// Where the last operation that was given stands.
    pub(super) fn place(&self) -> Option<u64> {
        self.place
    }

    /// The next operations, with their stamps; nothing at the end. What went
    /// meanwhile, and what is damaged, is left out, so these may be fewer.
    pub(super) async fn next(
        &mut self,
        lines: &Lines,
        shards: &Shards,
        count: usize,
    ) -> Step<Vec<(u64, Arc<Record>)>> {
        loop {
            let rows = self.rows(lines, shards, count).await?;
            let Some(last) = rows.last() else {
                return Ok(Vec::new());
            };
            self.place = Some(last.stamp);
            let records = read(lines, shards, rows).await?;
            if !records.is_empty() {
                return Ok(records);
            }
        }
    }

    async fn rows(&mut self, lines: &Lines, shards: &Shards, count: usize) -> Step<Vec<Row>> {
        let mut rows = Vec::with_capacity(count);
        while rows.len() < count {
            self.read_ahead(lines, shards).await?;
            let heads = self.feeds.iter().enumerate();
            let latest = heads
                .filter_map(|(shard, feed)| Some((feed.ahead.front()?.0, shard)))
                .max();
            let Some((stamp, shard)) = latest else {
                break;
            };
            if let Some((_, field)) = self.feeds[shard].ahead.pop_front() {
                rows.push(Row {
                    stamp,
                    shard,
                    field,
                });
            }
        }
        Ok(rows)
    }

    /// Reads of every shard of which nothing is known, so that the latest of
    /// all is known.
    async fn read_ahead(&mut self, lines: &Lines, shards: &Shards) -> Step<()> {
        let batch = self.batch.min(BATCH_MAX);
        let feeds = self.feeds.iter_mut().enumerate();
        let (mut dry, mut questions) = (Vec::new(), Vec::new());
        for (shard, feed) in feeds.filter(|(_, feed)| feed.ahead.is_empty()) {
            let Some(after) = feed.after.take() else {
                continue;
            };
            let mut question = cmd("ZREVRANGEBYSCORE");
            question.arg(shards.all()[shard].changed()).arg(after);
            question.arg("-inf").arg("WITHSCORES");
            question.arg("LIMIT").arg(0).arg(batch);
            questions.push(question);
            dry.push(feed);
        }
        if questions.is_empty() {
            return Ok(());
        }
        self.batch = batch * 2;
        let answers = lines.ask_all(questions).await?;
        for (feed, answer) in dry.into_iter().zip(answers) {
            let members = answer::scored(answer)?.into_iter();
            feed.ahead = members.map(|(field, stamp)| (stamp, field)).collect();
            let last = feed.ahead.back().map(|(stamp, _)| *stamp);
            feed.after = last
                .filter(|_| feed.ahead.len() == batch)
                .map(|stamp| format!("({stamp}"));
        }
        Ok(())
    }
}

/// The records of these places, in their order, without their replies.
async fn read(lines: &Lines, shards: &Shards, rows: Vec<Row>) -> Step<Vec<(u64, Arc<Record>)>> {
    let mut by_shard = BTreeMap::<usize, Vec<Row>>::new();
    for row in rows {
        by_shard.entry(row.shard).or_default().push(row);
    }
    let questions = by_shard.iter().map(|(shard, rows)| {
        let mut question = cmd("HMGET");
        question.arg(shards.all()[*shard].operations());
        for row in rows {
            question.arg(&row.field);
        }
        question
    });
    let answers = lines.ask_all(questions.collect()).await?;
    let mut records = Vec::new();
    for (rows, answer) in by_shard.into_values().zip(answers) {
        for (row, value) in rows.into_iter().zip(answer::array(answer)?) {
            let Some(bytes) = answer::bytes(value)? else {
                continue;
            };
            match layout::decode(&bytes, Beside::Left) {
                Ok(kept) => records.push((row.stamp, kept.record)),
                Err(fault) => tracing::error!(%fault, "a listing left out a damaged record"),
            }
        }
    }
    records.sort_unstable_by_key(|(stamp, _)| std::cmp::Reverse(*stamp));
    Ok(records)
}
