//! Queued operations.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use onceward_core::clock::Timestamp;
use onceward_core::store::{ClaimRequest, Due, Enqueued, PAGE_MAX, Queue, StoreError};

use super::super::driver::Cells;
use super::super::error::Error;
use super::super::row::RowReader;
use super::{ClaimOutcome, PostgresStore, count};

#[async_trait]
impl Queue for PostgresStore {
    async fn enqueue(
        &self,
        ask: &ClaimRequest,
        request: Bytes,
        after: Duration,
    ) -> Result<Enqueued, StoreError> {
        Ok(match self.enter(ask, Some(request), Some(after)).await? {
            ClaimOutcome::Granted(grant) => Enqueued::Accepted(grant.id),
            ClaimOutcome::Known(claim) => Enqueued::Known(claim),
        })
    }

    async fn due(&self, limit: usize) -> Result<Vec<Due>, StoreError> {
        let values = [
            self.namespace(),
            self.time.value(),
            count(limit.min(PAGE_MAX)).into(),
        ];
        let mut session = self.executor.session().await?;
        let rows = session.look(&self.statements.due, &values).await?;
        let mut given = Vec::with_capacity(rows.len());
        for row in rows {
            match read_due(row) {
                Ok(due) => given.push(due),
                // The others are granted already, and must not be lost with it.
                Err(error) => {
                    tracing::error!(%error, "queued operation is damaged; it is not delivered");
                }
            }
        }
        Ok(given)
    }

    async fn next_due(&self) -> Result<Option<Timestamp>, StoreError> {
        let rows = self
            .rows(&self.statements.next_due, &[self.namespace()])
            .await?;
        let mut row = RowReader::new(rows.into_iter().next().unwrap_or_default());
        Ok(row.optional_moment("due_ms")?)
    }
}

fn read_due(row: Cells) -> Result<Due, Error> {
    let mut row = RowReader::new(row);
    row.skip(2);
    let request = row.bytes("request")?;
    let record = Arc::new(row.record()?);
    Ok(Due {
        grant: record.as_grant(),
        record,
        request,
    })
}
