//! Listing, sweeping, and changes by operators.

use std::sync::Arc;

use async_trait::async_trait;
use onceward_core::clock::Timestamp;
use onceward_core::identity::OperationId;
use onceward_core::record::{Fence, Record, State};
use onceward_core::store::{
    Changed, Cursor, Filter, Force, Inspect, PAGE_MAX, Page, PageRequest, Resolution, Stats,
    StoreError,
};

use super::super::driver::Value;
use super::super::error::Error;
use super::super::row::{RowReader, moment_ms};
use super::change::{ANEW, RuleOutcome};
use super::{PostgresStore, count};
use crate::lookup::Lookup;

/// The most reads of the table for one page of a listing.
const LIST_READS_MAX: usize = 100;

/// Whether a listing has come to its end.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    Reached,
    Perhaps,
}

impl PostgresStore {
    /// Changes a record or its trace, by id, for an operator. It is done when no
    /// process gives the earlier reply any more.
    async fn operate(
        &self,
        id: OperationId,
        rule: impl FnOnce(&Arc<Record>, State, Timestamp) -> RuleOutcome<Changed>,
    ) -> Result<Changed, StoreError> {
        let changed = self
            .change(Lookup::Id(id), |record, now| {
                match record.shown_state_at(now) {
                    Some(state) => rule(record, state, now),
                    None => RuleOutcome::Leave(Changed::Absent),
                }
            })
            .await?;
        let changed = changed.unwrap_or(Changed::Absent);
        self.recent.outlast().await;
        Ok(changed)
    }
}

#[async_trait]
impl Inspect for PostgresStore {
    async fn list(&self, filter: &Filter, page: PageRequest) -> Result<Page, StoreError> {
        let limit = page.limit.min(PAGE_MAX);
        if has_nul(filter) {
            // PostgreSQL stores no NUL in a text, so nothing matches.
            return Ok(Page {
                records: Vec::new(),
                next: None,
            });
        }
        let mut records: Vec<(u64, Arc<Record>)> = Vec::new();
        let mut after = page.after.map(|cursor| cursor.0);
        let mut end = End::Perhaps;
        let mut session = self.executor.session().await?;
        // A state that follows from the current time is filtered here, so one page
        // may take several reads.
        for _ in 0..LIST_READS_MAX {
            let wanted = limit + 1;
            let values = self.filtered(filter, after, wanted);
            let rows = session.look(&self.statements.list, &values).await?;
            let read = rows.len();
            for row in rows {
                let mut row = RowReader::new(row);
                let now = row.moment("now_ms")?;
                let changed =
                    u64::try_from(row.int("changed")?).map_err(|_| Error::Column("changed"))?;
                after = Some(changed);
                let record = match row.record() {
                    Ok(record) => Arc::new(record),
                    Err(error) => {
                        tracing::error!(%error, "damaged record left out of a listing");
                        continue;
                    }
                };
                let shown = record.shown_at(now);
                if let Some(record) = shown.filter(|record| filter.matches(record)) {
                    records.push((changed, record));
                }
            }
            if records.len() > limit {
                break;
            }
            if read < wanted {
                end = End::Reached;
                break;
            }
        }
        let next = if records.len() > limit {
            records.truncate(limit);
            records.last().map(|(changed, _)| *changed)
        } else {
            // The limit of reads was reached; there may be more.
            after.filter(|_| end == End::Perhaps)
        };
        Ok(Page {
            next: next.map(Cursor),
            records: records.into_iter().map(|(_, record)| record).collect(),
        })
    }

    async fn show(&self, id: OperationId) -> Result<Option<Arc<Record>>, StoreError> {
        self.seen(Lookup::Id(id), |record, now| record.shown_at(now))
            .await
    }

    async fn purge(&self, id: OperationId, force: Force) -> Result<Changed, StoreError> {
        self.operate(id, |_, state, _| {
            if state == State::Running && force == Force::No {
                return RuleOutcome::Leave(Changed::Refused(state));
            }
            RuleOutcome::Purge(Changed::Done)
        })
        .await
    }

    async fn resolve(
        &self,
        id: OperationId,
        meant: Option<Fence>,
        word: Resolution,
    ) -> Result<Changed, StoreError> {
        self.operate(id, |record, state, now| {
            let about_another = meant.is_some_and(|meant| meant != record.fence);
            if state != State::Unknown || about_another {
                return RuleOutcome::Leave(Changed::Refused(state));
            }
            let mut record = Record::clone(record);
            record.resolve(ANEW, &word, now);
            RuleOutcome::Write(Box::new(record), Changed::Done)
        })
        .await
    }

    async fn resume(&self, id: OperationId) -> Result<Changed, StoreError> {
        self.operate(id, |record, state, now| {
            if state != State::Paused {
                return RuleOutcome::Leave(Changed::Refused(state));
            }
            let mut record = Record::clone(record);
            record.resume(now);
            RuleOutcome::Write(Box::new(record), Changed::Done)
        })
        .await
    }

    async fn redeliver(&self, id: OperationId) -> Result<Changed, StoreError> {
        self.operate(id, |record, _, now| {
            let mut record = Record::clone(record);
            match record.redeliver(ANEW, now) {
                Changed::Done => RuleOutcome::Write(Box::new(record), Changed::Done),
                refused => RuleOutcome::Leave(refused),
            }
        })
        .await
    }

    async fn sweep(&self, limit: usize) -> Result<usize, StoreError> {
        let mut reclaimed = 0;
        // In batches, each committed by itself, so that none takes long.
        loop {
            let batch = PAGE_MAX.min(limit - reclaimed);
            let values = [self.namespace(), self.time.value(), count(batch).into()];
            let rows = self.rows(&self.statements.sweep, &values).await?;
            let mut row = RowReader::new(rows.into_iter().next().unwrap_or_default());
            let taken = usize::try_from(row.int("sweep")?).unwrap_or_default();
            reclaimed += taken;
            if taken < batch || reclaimed >= limit {
                return Ok(reclaimed);
            }
        }
    }

    async fn stats(&self) -> Result<Stats, StoreError> {
        let values = [self.namespace(), self.time.value()];
        let rows = self.rows(&self.statements.stats, &values).await?;
        let mut row = RowReader::new(rows.into_iter().next().unwrap_or_default());
        let mut next = |column| {
            row.int(column)
                .map(|n| u64::try_from(n).unwrap_or_default())
        };
        Ok(Stats {
            running: next("running")?,
            queued: next("queued")?,
            unknown: next("unknown")?,
            paused: next("paused")?,
            operations: next("operations")?,
            bytes: next("bytes")?,
        })
    }
}

impl PostgresStore {
    fn filtered(&self, filter: &Filter, after: Option<u64>, limit: usize) -> Vec<Value> {
        let text = |text: &Option<String>| Value::from(text.as_deref());
        let moment = |moment: Option<Timestamp>| Value::from(moment.map(moment_ms));
        let after = after.map(|changed| i64::try_from(changed).unwrap_or(i64::MAX));
        vec![
            self.namespace(),
            self.time.value(),
            count(limit).into(),
            after.into(),
            text(&filter.tenant),
            text(&filter.project),
            text(&filter.endpoint),
            text(&filter.key),
            moment(filter.since),
            moment(filter.before),
            filter.state.map(written_as).into(),
        ]
    }
}

fn has_nul(filter: &Filter) -> bool {
    let texts = [
        &filter.tenant,
        &filter.project,
        &filter.endpoint,
        &filter.key,
    ];
    texts.into_iter().flatten().any(|text| text.contains('\0'))
}

/// The states in which an operation may be stored that is in this state now.
fn written_as(state: State) -> &'static str {
    match state {
        State::Queued => "queued,running",
        State::Running => "running",
        State::Completed => "completed",
        State::Failed => "failed",
        State::Released => "released",
        State::Unknown => "unknown,running",
        State::Paused => "paused",
        State::Expired => "completed,failed,expired",
    }
}
