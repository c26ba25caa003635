//! Records on one borrowed connection.

use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use onceward_core::application::{Binding, Claimed, Error, Fresh, Scope, Wanted};
use onceward_core::identity::{Digest, OperationId};
use onceward_core::record::{Answer, Attempt, Fence, Record, Settled, Settlement, State};
use onceward_core::store::{Claim, ClaimRequest, Grant};

use super::super::driver::{Cells, Driver as _, Statement, Value};
use super::super::error::Error as DatabaseError;
use super::super::row::{ClaimRows, RowReader, answer_values, ask_values, fence_value, state_word};
use super::connection::Connection;
use super::{RecordsShared, TableStatements};

/// How often a claim is repeated that other transactions prevent.
const TURNS_MAX: u32 = 4;
/// The pause in between, times the number of the attempt.
const TURN_PAUSE: Duration = Duration::from_millis(2);
/// How many operations are purged by one statement.
const PURGE_BATCH: i64 = 10_000;
/// The most statements of one purge, because a long transaction disturbs others. A
/// larger purge takes several calls.
const PURGE_BATCHES_MAX: u32 = 100;

/// Records on one connection. It has no destructor, so that the connection is free
/// again after the last use, not at the end of the scope.
pub struct BoundStore<'c> {
    pub(super) shared: &'c RecordsShared,
    pub(super) connection: Connection<'c>,
}

impl fmt::Debug for BoundStore<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let namespace = self.shared.scope.namespace();
        write!(f, "BoundStore({namespace} on {:?})", self.connection)
    }
}

impl BoundStore<'_> {
    fn statements(&self) -> &TableStatements {
        &self.shared.statements
    }

    async fn rows(
        &mut self,
        statement: impl FnOnce(&TableStatements) -> &Statement,
        values: &[Value],
    ) -> Result<Vec<Cells>, Error> {
        let statements: &TableStatements = &self.shared.statements;
        let rows = self.connection.rows(statement(statements), values).await;
        rows.map_err(|error| statements.error(error))
    }

    /// `$1` to `$5` of the statements about one record.
    fn about(&self, digest: &Digest) -> Vec<Value> {
        let digest = Value::bytes(digest.as_bytes());
        let namespace = self.shared.scope.namespace().as_str().into();
        vec![namespace, digest.clone(), digest, Value::Null, Value::Null]
    }

    /// `$1` to `$3` of the statements about the record of a grant.
    fn held(&self, digest: &Digest, fence: Fence) -> Vec<Value> {
        let namespace = self.shared.scope.namespace().as_str().into();
        vec![
            namespace,
            Value::bytes(digest.as_bytes()),
            fence_value(fence),
        ]
    }

    async fn ask(
        &mut self,
        ask: &ClaimRequest,
        request: &Bytes,
        lost: Option<Fence>,
    ) -> Result<ClaimRows, Error> {
        let [namespace, digest] = [
            self.shared.scope.namespace().as_str().into(),
            Value::bytes(ask.digest.as_bytes()),
        ];
        let mut values = vec![namespace, digest, Value::Null];
        values.extend(ask_values(ask));
        values.push(request.clone().into());
        values.push(lock_of(&ask.digest).into());
        values.push(lost.map_or(Value::Null, fence_value));
        values.push(Value::Null);
        let rows = self
            .rows(|statements| &statements.operations.claim, &values)
            .await?;
        ClaimRows::read(rows).map_err(|error| self.statements().error(error))
    }

    /// The result for a known key.
    async fn known(&mut self, claim: Claim, record: &Record) -> Result<Claimed, Error> {
        Ok(match claim {
            Claim::Granted(_) | Claim::Busy(_) => Claimed::Busy,
            Claim::Finished(record) => Claimed::Finished(record),
            Claim::Unknown(record) => Claimed::Unknown(record.id),
            Claim::Paused(record) => Claimed::Paused(record.id),
            Claim::Expired(record) => Claimed::Expired(record.id),
            Claim::Mismatch => Claimed::Mismatch {
                request: self.request_of(record).await?,
                fingerprint: record.fingerprint,
            },
        })
    }

    async fn request_of(&mut self, record: &Record) -> Result<Option<Bytes>, Error> {
        let values = self.held(&record.digest, record.fence);
        let rows = self.rows(|statements| &statements.request, &values).await?;
        let Some(row) = rows.into_iter().next() else {
            return Ok(None);
        };
        let request = RowReader::new(row).optional_bytes("request");
        request.map_err(|error| self.statements().error(error))
    }

    /// Why a settlement changed nothing: it was recorded before, or is stale.
    async fn said_before(
        &mut self,
        digest: &Digest,
        fence: Fence,
        settlement: &Settlement,
    ) -> Result<Settled, Error> {
        let values = self.about(digest);
        let rows = self
            .rows(|statements| &statements.operations.get, &values)
            .await?;
        let Some(row) = rows.into_iter().next() else {
            return Ok(Settled::Stale);
        };
        let read = || {
            let mut row = RowReader::new(row);
            let now = row.moment("now_ms")?;
            Ok((row.record()?, now))
        };
        let (before, now) = read().map_err(|error| self.statements().error(error))?;
        let mut record = before.clone();
        let settled = record.settle(fence, settlement, now);
        // It would change the record now, but did not then: another attempt was
        // faster.
        Ok(if record == before {
            settled
        } else {
            Settled::Stale
        })
    }
}

#[async_trait]
impl Binding for BoundStore<'_> {
    fn scope(&self) -> &Scope {
        &self.shared.scope
    }

    async fn claim(&mut self, wanted: Wanted<'_>) -> Result<Claimed, Error> {
        let digest = wanted.identity.digest();
        let entropy = &self.shared.entropy;
        let ask = ClaimRequest {
            digest,
            id: OperationId::new(&digest, entropy.next_u64()),
            attempt: Attempt(entropy.next_u128()),
            identity: wanted.identity,
            fingerprint: wanted.fingerprint,
            terms: self.shared.scope.terms().clone(),
        };
        let mut lost = None;
        for turn in 1..=TURNS_MAX {
            let found = self.ask(&ask, &wanted.request, lost).await?;
            if let Some((id, fence)) = found.granted {
                let grant = Grant { digest, id, fence };
                return Ok(Claimed::Granted(Fresh::granted(wanted.key, grant)));
            }
            if let Some((record, now)) = found.known {
                if let Some(claim) = Claim::on(&record, &ask, now) {
                    return self.known(claim, &record).await;
                }
                // It is free by a rule that the statement does not know.
                lost = Some(record.fence);
            }
            if found.locked {
                return Ok(Claimed::Busy);
            }
            // Another transaction committed while the statement ran: the next one
            // sees it.
            tokio::time::sleep(TURN_PAUSE * turn).await;
        }
        // Another transaction holds it, which is equivalent to running.
        Ok(Claimed::Busy)
    }

    async fn settle(&mut self, fresh: Fresh, settlement: Settlement) -> Result<Settled, Error> {
        let (digest, fence) = (fresh.digest(), fresh.fence());
        let mut values = self.about(&digest);
        values.push(fence_value(fence));
        let rows = match &settlement {
            Settlement::Completed(answer) | Settlement::Failed(answer) => {
                values.extend(outcome(&settlement, answer));
                let rows = self
                    .rows(|statements| &statements.operations.finish, &values)
                    .await?;
                let Some(row) = rows.into_iter().next() else {
                    return self.said_before(&digest, fence, &settlement).await;
                };
                let completion = RowReader::new(row).completion();
                let completion = completion.map_err(|error| self.statements().error(error))?;
                return Ok(Settled::Finished(completion));
            }
            // Nothing is enqueued here, so there is nothing to deliver later.
            Settlement::Released | Settlement::Requeued { .. } | Settlement::Deferred { .. } => {
                values.push("released".into());
                self.rows(|statements| &statements.operations.free, &values)
                    .await?
            }
            // Only a gateway pauses operations.
            Settlement::Lost | Settlement::Paused => {
                values.push("unknown".into());
                self.rows(|statements| &statements.operations.free, &values)
                    .await?
            }
        };
        if !rows.is_empty() {
            return Ok(Settled::Done);
        }
        self.said_before(&digest, fence, &settlement).await
    }

    async fn renew(&mut self, fresh: &Fresh) -> Result<Settled, Error> {
        let [namespace, digest] = [
            self.shared.scope.namespace().as_str().into(),
            Value::bytes(fresh.digest().as_bytes()),
        ];
        let values = [namespace, digest, Value::Null, fence_value(fresh.fence())];
        let rows = self
            .rows(|statements| &statements.operations.renew, &values)
            .await?;
        Ok(settled(&rows))
    }

    async fn purge_expired(&mut self) -> Result<u64, Error> {
        let namespace: Value = self.shared.scope.namespace().as_str().into();
        let values = [namespace, Value::Null, PURGE_BATCH.into()];
        let mut purged = 0;
        for _ in 0..PURGE_BATCHES_MAX {
            let rows = self
                .rows(|statements| &statements.operations.sweep, &values)
                .await?;
            let counted = rows
                .into_iter()
                .next()
                .map(|row| RowReader::new(row).int("sweep"));
            let taken = counted.unwrap_or(Err(DatabaseError::Column("sweep")));
            let taken = taken.map_err(|error| self.statements().error(error))?;
            purged += u64::try_from(taken).unwrap_or_default();
            if taken < PURGE_BATCH {
                break;
            }
        }
        Ok(purged)
    }

    async fn refer(&mut self, fresh: &Fresh, resource: &str, id: &str) -> Result<Settled, Error> {
        let column = resource_column(resource)?;
        let rows = self.rows(|statements| &statements.resources, &[]).await?;
        let names = rows
            .into_iter()
            .map(|row| RowReader::new(row).text("attname"));
        let names: Result<Vec<_>, DatabaseError> = names.collect();
        let names = names.map_err(|error| self.statements().error(error))?;
        if !names.contains(&column) {
            return Err(Error::NoResource {
                table: self.statements().table.to_string(),
                resource: resource.to_owned(),
            });
        }
        let statement = self.statements().refer(&column, &names);
        let mut values = self.held(&fresh.digest(), fresh.fence());
        values.push(id.into());
        let rows = self.connection.rows(&statement, &values).await;
        let rows = rows.map_err(|error| self.statements().error(error))?;
        Ok(settled(&rows))
    }
}

/// `$7` to `$10` of `finish.sql`.
pub(super) fn outcome(settlement: &Settlement, answer: &Answer) -> Vec<Value> {
    let state = match settlement {
        Settlement::Failed(_) => State::Failed,
        _ => State::Completed,
    };
    let mut values = vec![state_word(state).into()];
    values.extend(answer_values(Some(answer)));
    values
}

/// The advisory lock of a key: it is all that other transactions see of a claim
/// that is not committed.
fn lock_of(digest: &Digest) -> i64 {
    i64::from_be_bytes(digest.prefix().to_be_bytes())
}

pub(super) fn settled(rows: &[Cells]) -> Settled {
    match rows {
        [] => Settled::Stale,
        _ => Settled::Done,
    }
}

/// The column that refers to such a resource.
fn resource_column(resource: &str) -> Result<String, Error> {
    let is_plain = |c: char| matches!(c, 'a'..='z' | '0'..='9' | '_');
    let begins = resource.starts_with(|first: char| first.is_ascii_lowercase() || first == '_');
    if !begins || !resource.chars().all(is_plain) {
        return Err(Error::ResourceName(resource.to_owned()));
    }
    Ok(format!("resource_{resource}"))
}
