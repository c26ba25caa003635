//! The store on PostgreSQL, which several processes share.
//!
//! The steps of every request (claim, settle, renew, get) are one statement each.
//! Rare steps read the record under a lock, apply the rules of `core`, and write the
//! result.

mod change;
mod inspect;
mod queue;
mod registry;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use onceward_core::clock::Timestamp;
use onceward_core::identity::{Digest, OperationId};
use onceward_core::namespace::Namespace;
use onceward_core::notifier::Notifier;
use onceward_core::record::{Answer, Attempt, Fence, Record, Settled, Settlement, State};
use onceward_core::store::{Claim, ClaimRequest, Grant, Store, StoreError};
use tokio::runtime::Handle;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use self::change::RuleOutcome;
use super::address::{Address, Pooler};
use super::batch::{BatchKind, BatchStep, Batcher, Executor, Query};
use super::driver::{Cells, Driver as _, Statement, Value};
use super::error::Error;
use super::listen::listen;
use super::row::{
    ClaimRows, RowReader, answer_values, ask_values, fence_value, moment_ms, span_ms, state_word,
};
use super::start::{PostgresOpenError, check};
use super::statements::{BatchStatement, Statements};
use super::table::Table;
use crate::lookup::Lookup;
use crate::open::Settings;
use crate::recent_replies::RecentReplies;
use crate::time::Time;

/// How often a claim is repeated that other transactions prevent.
const TURNS_MAX: u32 = 8;
/// The pause in between, times the number of the attempt.
const TURN_PAUSE: Duration = Duration::from_millis(5);

/// How long a waiter that could not be marked listens before it looks again.
const HELD_PAUSE: Duration = Duration::from_millis(50);

/// A store on PostgreSQL.
pub struct PostgresStore {
    executor: Arc<Executor>,
    grants: Batcher,
    settlements: Batcher,
    namespace: Namespace,
    statements: Statements,
    time: Time,
    notifier: Arc<Notifier>,
    recent: RecentReplies,
    listener: Option<JoinHandle<()>>,
}

impl Time {
    /// The time parameter of statements: null for the server's clock.
    fn value(&self) -> Value {
        match self {
            Self::Server => Value::Null,
            Self::Given(clock) => moment_ms(clock.now()).into(),
        }
    }
}

/// `$2` to `$4` of the statements about one record: the bounds of its digest,
/// and its id if only that is known.
fn lookup_values(lookup: Lookup) -> [Value; 3] {
    match lookup {
        Lookup::Digest(digest) => {
            let digest = Value::bytes(digest.as_bytes());
            [digest.clone(), digest, Value::Null]
        }
        Lookup::Id(id) => {
            let (low, high) = id.digests();
            [
                Value::bytes(low.as_bytes()),
                Value::bytes(high.as_bytes()),
                Value::bytes(id.as_bytes()),
            ]
        }
    }
}

/// The result of a claim or an enqueueing.
enum ClaimOutcome {
    Granted(Grant),
    Known(Claim),
}

impl PostgresStore {
    /// Checks the server and opens the store. Its connections are driven by the runtime
    /// that opens it, and may be used from any other.
    pub async fn open(settings: &Settings) -> Result<Self, PostgresOpenError> {
        Self::open_with_time(settings, Time::Server).await
    }

    /// The same with another clock, for tests.
    pub async fn open_with_time(
        settings: &Settings,
        time: Time,
    ) -> Result<Self, PostgresOpenError> {
        let table = Table::parse(&settings.table)?;
        let address = Address::parse(&settings.url)?.within(settings.deadline);
        check(&address, &table).await?;
        let notifier = Arc::<Notifier>::default();
        let ears = match (&settings.listen_url, address.pooler()) {
            (Some(url), _) => Some(Address::parse(url)?),
            (None, Pooler::None) => Some(address.clone()),
            // A pooler does not forward notifications.
            (None, Pooler::Transactions) => None,
        };
        let listener = ears.map(|address| {
            let channel = table.name().to_owned();
            let namespace = settings.namespace.to_string();
            tokio::spawn(listen(address, channel, namespace, notifier.clone()))
        });
        let runtime = Handle::current();
        let pool = address.pool(settings.connections, settings.deadline, &runtime);
        let executor = Arc::new(Executor::new(pool, address.pooler(), runtime));
        let statements = Statements::new(&table);
        let batches = |steps: &Arc<BatchStatement>| {
            let (namespace, time) = (settings.namespace.clone(), time.clone());
            let kind = BatchKind {
                steps: steps.clone(),
                first: Box::new(move || vec![namespace.as_str().into(), time.value()]),
            };
            Batcher::new(kind, &executor, settings.deadline)
        };
        Ok(Self {
            grants: batches(&statements.grant),
            settlements: batches(&statements.settle),
            executor,
            namespace: settings.namespace.clone(),
            statements,
            time,
            notifier,
            recent: RecentReplies::new(settings.reply_memory),
            listener,
        })
    }

    /// One statement, committed by itself.
    async fn rows(&self, statement: &Statement, values: &[Value]) -> Result<Vec<Cells>, Error> {
        self.executor.session().await?.rows(statement, values).await
    }

    fn namespace(&self) -> Value {
        self.namespace.as_str().into()
    }

    /// `$1` to `$5` of the statements about one record.
    fn about(&self, which: Lookup) -> Vec<Value> {
        let [low, high, id] = lookup_values(which);
        vec![self.namespace(), low, high, id, self.time.value()]
    }

    /// Grants a new key, or returns the record of a known one.
    async fn grant(&self, ask: &ClaimRequest) -> Result<Claim, Error> {
        let asked_at = self.recent.asked_now();
        if let Some(claim) = self.recent.answer(ask, &self.time, asked_at.at) {
            return Ok(claim);
        }
        let mut values = vec![Value::bytes(ask.digest.as_bytes())];
        values.extend(ask_values(ask));
        let step = BatchStep {
            values,
            mark: Some(Value::bytes(&ask.attempt.0.to_be_bytes())),
            otherwise: Some(self.withdrawal(&ask.digest, ask.attempt)),
        };
        let known = match self.grants.row(step).await? {
            Some(row) => {
                let mut row = RowReader::new(row);
                row.skip(1);
                if let Some(fence) = row.optional_fence()? {
                    return Ok(Claim::Granted(Grant {
                        digest: ask.digest,
                        id: ask.id,
                        fence,
                    }));
                }
                row.skip(1);
                let now = row.moment("now_ms")?;
                let record = RowReader::new(row.list("record")?).record()?;
                Some((Arc::new(record), now))
            }
            // It was claimed at the same moment, and most likely runs.
            None => {
                let about = self.about(Lookup::Digest(ask.digest));
                let rows = self.rows(&self.statements.get, &about).await?;
                rows.into_iter().next().map(read_known).transpose()?
            }
        };
        if let Some((record, now)) = known
            && let Some(claim) = Claim::on(&record, ask, now)
        {
            self.recent.keep(&record, now, asked_at);
            return Ok(claim);
        }
        Ok(match self.enter(ask, None, None).await? {
            ClaimOutcome::Granted(grant) => Claim::Granted(grant),
            ClaimOutcome::Known(claim) => claim,
        })
    }

    /// Claims or queues a free key, or returns the record of a known one.
    async fn enter(
        &self,
        ask: &ClaimRequest,
        request: Option<Bytes>,
        after: Option<Duration>,
    ) -> Result<ClaimOutcome, Error> {
        let mut lost = None;
        let mut last = None;
        for turn in 0..TURNS_MAX {
            let mut values = self.claim_values(ask);
            values.push(request.clone().into());
            values.push(Value::Null);
            values.push(lost.map_or(Value::Null, fence_value));
            values.push(after.map(span_ms).into());
            let said = Query {
                statement: self.statements.claim.clone(),
                values,
            };
            let withdrawal = self.withdrawal(&ask.digest, ask.attempt);
            let rows = self.executor.run_or_undo(said, withdrawal).await?;
            let found = ClaimRows::read(rows)?;
            if let Some((id, fence)) = found.granted {
                let digest = ask.digest;
                return Ok(ClaimOutcome::Granted(Grant { digest, id, fence }));
            }
            // If there is no record either, another transaction has claimed the key,
            // and is not visible yet.
            if let Some((record, now)) = found.known {
                if let Some(claim) = Claim::on(&record, ask, now) {
                    return Ok(ClaimOutcome::Known(claim));
                }
                // It is free by a rule that the statement does not know, or another
                // transaction has locked it.
                lost = Some(record.fence);
                last = Some(record);
            }
            tokio::time::sleep(TURN_PAUSE * turn).await;
        }
        // Another transaction holds it, which is equivalent to running.
        let record = last.ok_or(Error::Contended)?;
        let mut record = Arc::unwrap_or_clone(record);
        record.state = State::Running;
        Ok(ClaimOutcome::Known(Claim::Busy(Arc::new(record))))
    }

    fn withdrawal(&self, digest: &Digest, attempt: Attempt) -> Query {
        let values = vec![
            self.namespace(),
            Value::bytes(digest.as_bytes()),
            self.time.value(),
            Value::bytes(&attempt.0.to_be_bytes()),
        ];
        Query {
            statement: self.statements.withdraw.clone(),
            values,
        }
    }

    /// `$1` to `$22` of the statements that claim.
    fn claim_values(&self, ask: &ClaimRequest) -> Vec<Value> {
        let mut values = vec![self.namespace(), Value::bytes(ask.digest.as_bytes())];
        values.push(self.time.value());
        values.extend(ask_values(ask));
        values
    }

    async fn seen(
        &self,
        which: Lookup,
        see: impl FnOnce(Arc<Record>, Timestamp) -> Option<Arc<Record>>,
    ) -> Result<Option<Arc<Record>>, StoreError> {
        let rows = self.rows(&self.statements.get, &self.about(which)).await?;
        let Some(row) = rows.into_iter().next() else {
            return Ok(None);
        };
        let (record, now) = read_known(row)?;
        Ok(see(record, now))
    }

    /// Records an outcome by one statement; `None` where that did not count.
    async fn finish(
        &self,
        digest: &Digest,
        fence: Fence,
        state: State,
        answer: &Answer,
    ) -> Result<Option<Settled>, Error> {
        let mut values = vec![
            Value::bytes(digest.as_bytes()),
            fence_value(fence),
            state_word(state).into(),
        ];
        values.extend(answer_values(Some(answer)));
        let step = BatchStep {
            values,
            mark: None,
            otherwise: None,
        };
        let Some(row) = self.settlements.row(step).await? else {
            return Ok(None);
        };
        let mut row = RowReader::new(row);
        row.skip(1); // the step's place in its batch
        Ok(Some(Settled::Finished(row.completion()?)))
    }

    /// Ends a claim without an outcome, by one statement; `None` where that did
    /// not count.
    async fn free(
        &self,
        digest: &Digest,
        fence: Fence,
        state: State,
    ) -> Result<Option<Settled>, Error> {
        let mut values = self.about(Lookup::Digest(*digest));
        values.push(fence_value(fence));
        values.push(state_word(state).into());
        let settled = self
            .executor
            .run_without_waiting(&self.statements.free, &values)
            .await?;
        Ok(settled
            .filter(|rows| !rows.is_empty())
            .map(|_| Settled::Done))
    }
}

impl fmt::Debug for PostgresStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresStore")
            .field("namespace", &self.namespace)
            .field("time", &self.time)
            .finish_non_exhaustive()
    }
}

impl Drop for PostgresStore {
    fn drop(&mut self) {
        if let Some(listener) = &self.listener {
            listener.abort();
        }
    }
}

fn read_known(row: Cells) -> Result<(Arc<Record>, Timestamp), Error> {
    known(&mut RowReader::new(row))
}

fn known(row: &mut RowReader) -> Result<(Arc<Record>, Timestamp), Error> {
    let now = row.moment("now_ms")?;
    Ok((Arc::new(row.record()?), now))
}

#[async_trait]
impl Store for PostgresStore {
    async fn claim(&self, ask: &ClaimRequest) -> Result<Claim, StoreError> {
        Ok(self.grant(ask).await?)
    }

    fn recall(&self, ask: &ClaimRequest) -> Option<Claim> {
        self.recent.answer(ask, &self.time, Instant::now())
    }

    async fn withdraw(&self, digest: &Digest, attempt: Attempt) -> Result<(), StoreError> {
        let said = self.withdrawal(digest, attempt);
        let _turn = self.executor.turn().await;
        let freed = self.rows(&said.statement, &said.values).await?;
        if !freed.is_empty() {
            self.notifier.notify(digest);
        }
        Ok(())
    }

    async fn renew(&self, digest: &Digest, fence: Fence) -> Result<Settled, StoreError> {
        let values = [
            self.namespace(),
            Value::bytes(digest.as_bytes()),
            self.time.value(),
            fence_value(fence),
        ];
        let renewed = self
            .executor
            .run_without_waiting(&self.statements.renew, &values)
            .await?;
        match renewed {
            None => Err(Error::Locked.into()),
            Some(renewed) if renewed.is_empty() => Ok(Settled::Stale),
            Some(_) => Ok(Settled::Done),
        }
    }

    async fn settle(
        &self,
        digest: &Digest,
        fence: Fence,
        settlement: Settlement,
    ) -> Result<Settled, StoreError> {
        let settled = match &settlement {
            Settlement::Completed(answer) => {
                self.finish(digest, fence, State::Completed, answer).await?
            }
            Settlement::Failed(answer) => self.finish(digest, fence, State::Failed, answer).await?,
            Settlement::Released => self.free(digest, fence, State::Released).await?,
            Settlement::Lost => self.free(digest, fence, State::Unknown).await?,
            Settlement::Requeued { .. } | Settlement::Deferred { .. } | Settlement::Paused => None,
        };
        let Some(settled) = settled else {
            return Ok(self.settle_by_rule(digest, fence, &settlement).await?);
        };
        self.notifier.notify(digest);
        Ok(settled)
    }

    async fn get(&self, digest: &Digest) -> Result<Option<Arc<Record>>, StoreError> {
        self.seen(Lookup::Digest(*digest), |record, now| record.seen_at(now))
            .await
    }

    async fn find(&self, id: OperationId) -> Result<Option<Arc<Record>>, StoreError> {
        self.seen(Lookup::Id(id), |record, now| record.seen_at(now))
            .await
    }

    async fn touch(&self, digest: &Digest) -> Result<(), StoreError> {
        self.change(Lookup::Digest(*digest), |record, now| {
            if !record.wants_touch(now) {
                return RuleOutcome::Leave(());
            }
            let mut record = Record::clone(record);
            record.touch(now);
            RuleOutcome::Write(Box::new(record), ())
        })
        .await?;
        Ok(())
    }

    async fn wait(&self, digest: &Digest, limit: Duration) -> Result<(), StoreError> {
        // Listen before looking, so that no settlement is missed in between.
        let subscription = self.notifier.listen(digest);
        let values = [
            self.namespace(),
            Value::bytes(digest.as_bytes()),
            self.time.value(),
        ];
        let rows = self.rows(&self.statements.await_, &values).await?;
        let Some(row) = rows.into_iter().next() else {
            return Ok(());
        };
        let marked = RowReader::new(row).text("mark").map_err(StoreError::from)? == "marked";
        let limit = if marked { limit } else { limit.min(HELD_PAUSE) };
        subscription.notified_within(limit).await;
        Ok(())
    }
}

fn count(number: usize) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
