//! Listings over all shards: the most recent change first.
//!
//! A listing merges the indexes of all shards; each is read in batches. Within a
//! shard no two changes have the same stamp, because a change takes Redis longer than
//! a microsecond.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use onceward_core::record::Record;
use onceward_core::store::Cursor;
use redis::cmd;

use super::connection::Connections;
use super::error::Result;
use super::layout::{self, ReplySource};
use super::response;
use super::shard::{SHARDS, Shards};

/// The size of a batch of one shard, at first and at most.
const BATCH_MIN: usize = 4;
const BATCH_MAX: usize = 256;
/// Scores below this are not stamps.
const STAMP_MIN: u64 = layout::END_MAX + 1;

/// A position in the order of all shards; the shard distinguishes equal stamps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Position {
    stamp: u64,
    shard: usize,
}

impl From<Position> for Cursor {
    fn from(spot: Position) -> Self {
        Self(spot.stamp * SHARDS as u64 + spot.shard as u64)
    }
}

impl From<Cursor> for Position {
    fn from(cursor: Cursor) -> Self {
        Self {
            stamp: cursor.0 / SHARDS as u64,
            shard: cursor.0 as usize % SHARDS,
        }
    }
}

/// A listing in progress.
pub(super) struct Listing {
    feeds: Vec<ShardFeed>,
    batch: usize,
    place: Option<Position>,
}

/// The entries of one shard that were read.
struct ShardFeed {
    /// Stamps and fields, descending.
    ahead: VecDeque<(u64, Vec<u8>)>,
    /// Where the next batch begins, as Redis writes it; `None` when all was read.
    after: Option<String>,
}

/// A position and the field at it.
struct ListedField {
    spot: Position,
    field: Vec<u8>,
}

impl Listing {
    /// Begins after this position, for about this many operations.
    pub(super) fn after(cursor: Option<Cursor>, about: usize) -> Self {
        let place = cursor.map(Position::from);
        let feed = |shard| ShardFeed {
            ahead: VecDeque::new(),
            after: Some(match place {
                None => "+inf".to_owned(),
                Some(place) if shard < place.shard => place.stamp.to_string(),
                Some(place) => format!("({}", place.stamp),
            }),
        };
        Self {
            feeds: (0..SHARDS).map(feed).collect(),
            batch: BATCH_MIN + 2 * about / SHARDS,
            place,
        }
    }

    /// The position of the last operation that was read.
    pub(super) fn place(&self) -> Option<Position> {
        self.place
    }

    /// The next operations with their positions; empty at the end. Records that were
    /// removed meanwhile or are damaged are left out, so there may be fewer than
    /// `count`.
    pub(super) async fn next(
        &mut self,
        connections: &Connections,
        shards: &Shards,
        count: usize,
    ) -> Result<Vec<(Position, Arc<Record>)>> {
        loop {
            let rows = self.rows(connections, shards, count).await?;
            let Some(last) = rows.last() else {
                return Ok(Vec::new());
            };
            self.place = Some(last.spot);
            let records = read(connections, shards, rows).await?;
            if !records.is_empty() {
                return Ok(records);
            }
        }
    }

    async fn rows(
        &mut self,
        connections: &Connections,
        shards: &Shards,
        count: usize,
    ) -> Result<Vec<ListedField>> {
        let mut rows = Vec::with_capacity(count);
        while rows.len() < count {
            self.read_ahead(connections, shards).await?;
            let heads = self.feeds.iter().enumerate();
            let latest = heads.filter_map(|(shard, feed)| {
                let stamp = feed.ahead.front()?.0;
                Some(Position { stamp, shard })
            });
            let Some(spot) = latest.max() else {
                break;
            };
            if let Some((_, field)) = self.feeds[spot.shard].ahead.pop_front() {
                rows.push(ListedField { spot, field });
            }
        }
        Ok(rows)
    }

    /// Reads a batch of every shard without one, so that the latest change of all
    /// shards is known.
    async fn read_ahead(&mut self, connections: &Connections, shards: &Shards) -> Result<()> {
        let batch = self.batch.min(BATCH_MAX);
        let feeds = self.feeds.iter_mut().enumerate();
        let (mut dry, mut questions) = (Vec::new(), Vec::new());
        for (shard, feed) in feeds.filter(|(_, feed)| feed.ahead.is_empty()) {
            let Some(after) = feed.after.take() else {
                continue;
            };
            let mut question = cmd("ZREVRANGEBYSCORE");
            question.arg(shards.all()[shard].index()).arg(after);
            question.arg(STAMP_MIN).arg("WITHSCORES");
            question.arg("LIMIT").arg(0).arg(batch);
            questions.push(question);
            dry.push(feed);
        }
        if questions.is_empty() {
            return Ok(());
        }
        self.batch = batch * 2;
        let answers = connections.run_all(questions).await?;
        for (feed, answer) in dry.into_iter().zip(answers) {
            let members = response::scored(answer)?.into_iter();
            feed.ahead = members.map(|(field, stamp)| (stamp, field)).collect();
            let last = feed.ahead.back().map(|(stamp, _)| *stamp);
            feed.after = last
                .filter(|_| feed.ahead.len() == batch)
                .map(|stamp| format!("({stamp}"));
        }
        Ok(())
    }
}

/// The records at these positions, in order, without their replies.
async fn read(
    connections: &Connections,
    shards: &Shards,
    rows: Vec<ListedField>,
) -> Result<Vec<(Position, Arc<Record>)>> {
    let mut by_shard = BTreeMap::<usize, Vec<ListedField>>::new();
    for row in rows {
        by_shard.entry(row.spot.shard).or_default().push(row);
    }
    let questions = by_shard.iter().map(|(shard, rows)| {
        let mut question = cmd("HMGET");
        question.arg(shards.all()[*shard].operations());
        for row in rows {
            question.arg(&row.field);
        }
        question
    });
    let answers = connections.run_all(questions.collect()).await?;
    let mut records = Vec::new();
    for (rows, answer) in by_shard.into_values().zip(answers) {
        for (row, value) in rows.into_iter().zip(response::array(answer)?) {
            let Some(bytes) = response::bytes(value)? else {
                continue;
            };
            match layout::decode(&bytes, ReplySource::NotFetched) {
                Ok(stored) => records.push((row.spot, stored.record)),
                Err(error) => tracing::error!(%error, "damaged record left out of a listing"),
            }
        }
    }
    records.sort_unstable_by_key(|(spot, _)| std::cmp::Reverse(*spot));
    Ok(records)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_and_cursors_have_the_same_order() {
        let spot = |stamp, shard| Position { stamp, shard };
        let rising = [
            spot(1_700_000_000_000_000, SHARDS - 1),
            spot(1_700_000_000_000_001, 0),
            spot(1_700_000_000_000_001, 1),
        ];
        for pair in rising.windows(2) {
            assert!(pair[0] < pair[1]);
            assert!(Cursor::from(pair[0]).0 < Cursor::from(pair[1]).0);
        }
        for place in rising {
            assert_eq!(Position::from(Cursor::from(place)), place);
        }
    }
}
