//! The store on PostgreSQL: what several processes share.
//!
//! What happens to every request (claim, settle, renew, get) is one statement
//! each. All that is rare reads the record under a lock, applies the rule that
//! the memory store applies, and writes what came of it.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use onceward_core::bell::Bells;
use onceward_core::clock::{Clock, Timestamp};
use onceward_core::identity::{Digest, OperationId};
use onceward_core::judge::judge;
use onceward_core::namespace::Namespace;
use onceward_core::record::{Answer, Attempt, Fence, Record, Settled, Settlement, State};
use onceward_core::store::{
    Added, Ask, Changed, Claim, Cursor, Due, Enqueued, Filter, Force, Grant, Inspect, Order,
    PAGE_MAX, Page, PageAsk, Queue, Registry, Resolution, Sheet, Stats, Store, StoreError,
};
use tokio::task::JoinHandle;

use super::batch::{Batches, Kind, Said, Step, Voice};
use super::connect::{Address, Pooler};
use super::driver::{Cells, Driver as _, Statement, Value};
use super::fault::Fault;
use super::listen::listen;
use super::row::{Reader, answered, asked, moment_ms, span_ms, state_word, times};
use super::session::Session;
use super::start::{StartError, check};
use super::statements::{Statements, Steps};
use super::table::Table;
use crate::open::Settings;

/// How often a claim is tried again that others got in the way of.
const TURNS_MAX: u32 = 8;
/// The rest in between, times the number of the turn.
const TURN_PAUSE: Duration = Duration::from_millis(5);
/// How many pages of a table are read for one page of a listing.
const LIST_READS_MAX: usize = 100;

/// Stands for a fence that the server is to draw; it never draws this one.
const ANEW: Fence = Fence(u64::MAX);
/// How long a waiter listens who could not be marked, before it looks again.
const HELD_PAUSE: Duration = Duration::from_millis(50);

/// A store on PostgreSQL.
pub struct PostgresStore {
    voice: Arc<Voice>,
    grants: Batches,
    settlements: Batches,
    namespace: Namespace,
    statements: Statements,
    time: Time,
    bells: Arc<Bells>,
    listener: Option<JoinHandle<()>>,
}

/// Whose clock judges leases and expiry.
#[derive(Clone)]
pub enum Time {
    /// The server's, the same for all who share it.
    Server,
    /// One that is handed in, for tests.
    Given(Arc<dyn Clock>),
}

impl Time {
    fn value(&self) -> Value {
        match self {
            Self::Server => Value::Null,
            Self::Given(clock) => moment_ms(clock.now()).into(),
        }
    }
}

/// Which record is meant.
#[derive(Clone, Copy)]
enum Which<'a> {
    Digest(&'a Digest),
    Id(OperationId),
}

impl Which<'_> {
    /// The bounds of its digest, and its id if that is all that is known.
    fn values(self) -> [Value; 3] {
        match self {
            Self::Digest(digest) => {
                let digest = Value::bytes(digest.as_bytes());
                [digest.clone(), digest, Value::Null]
            }
            Self::Id(id) => {
                let (low, high) = id.digests();
                [
                    Value::bytes(low.as_bytes()),
                    Value::bytes(high.as_bytes()),
                    Value::bytes(id.as_bytes()),
                ]
            }
        }
    }
}

/// What a rule makes of a record.
enum Change<T> {
    /// Nothing.
    Leave(T),
    /// Another record; one with [`ANEW`] gets a new fence.
    Write(Box<Record>, T),
    /// Nothing is left but a mark.
    Purge(T),
}

/// Whether a holder's word was written by one statement.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Counted {
    AtOnce,
    NotAtOnce,
}

/// Whether a listing has come to its end.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    Reached,
    Perhaps,
}

/// What entering came to.
enum Entered {
    Granted(Grant),
    Known(Claim),
}

impl PostgresStore {
    /// Opens the store and checks all that can be checked beforehand.
    pub async fn open(settings: &Settings) -> Result<Self, StartError> {
        Self::judged_by(settings, Time::Server).await
    }

    /// The same, judging by another clock than the server's.
    pub async fn judged_by(settings: &Settings, time: Time) -> Result<Self, StartError> {
        let table = Table::parse(&settings.table)?;
        let address = Address::parse(&settings.url)?.within(settings.deadline);
        check(&address, &table).await?;
        let bells = Arc::<Bells>::default();
        let ears = match (&settings.listen_url, address.pooler()) {
            (Some(url), _) => Some(Address::parse(url)?),
            (None, Pooler::None) => Some(address.clone()),
            // A pooler does not pass notifications on.
            (None, Pooler::Transactions) => None,
        };
        let listener = ears.map(|address| {
            let channel = table.name().to_owned();
            let namespace = settings.namespace.to_string();
            tokio::spawn(listen(address, channel, namespace, bells.clone()))
        });
        let pool = address.pool(settings.connections, settings.deadline);
        let voice = Arc::new(Voice::new(pool, address.pooler()));
        let statements = Statements::new(&table);
        let batches = |steps: &Arc<Steps>| {
            let (namespace, time) = (settings.namespace.clone(), time.clone());
            let kind = Kind {
                steps: steps.clone(),
                first: Box::new(move || vec![namespace.as_str().into(), time.value()]),
            };
            Batches::new(kind, &voice, settings.deadline)
        };
        Ok(Self {
            grants: batches(&statements.grant),
            settlements: batches(&statements.settle),
            voice,
            namespace: settings.namespace.clone(),
            statements,
            time,
            bells,
            listener,
        })
    }

    /// One statement, committed by itself.
    async fn rows(&self, statement: &Statement, values: &[Value]) -> Result<Vec<Cells>, Fault> {
        self.voice.session().await?.rows(statement, values).await
    }

    fn namespace(&self) -> Value {
        self.namespace.as_str().into()
    }

    /// `$1` to `$5` of the statements about one record.
    fn about(&self, which: Which<'_>) -> Vec<Value> {
        let [low, high, id] = which.values();
        vec![self.namespace(), low, high, id, self.time.value()]
    }

    /// Grants a new key, most likely; else tells how it stands.
    async fn grant(&self, ask: &Ask) -> Result<Claim, Fault> {
        let mut values = vec![Value::bytes(ask.digest.as_bytes())];
        values.extend(asked(ask));
        let step = Step {
            values,
            mark: Some(Value::bytes(&ask.attempt.0.to_be_bytes())),
            otherwise: Some(self.withdrawal(&ask.digest, ask.attempt)),
        };
        if let Some(row) = self.grants.row(step).await? {
            let mut row = Reader::new(row);
            row.skip(1);
            return Ok(Claim::Granted(Grant {
                digest: ask.digest,
                id: ask.id,
                fence: row.fence()?,
            }));
        }
        // It is known, and most likely finished or running: a look will do.
        let about = self.about(Which::Digest(&ask.digest));
        let rows = self.rows(&self.statements.get, &about).await?;
        if let Some(row) = rows.into_iter().next() {
            let (record, now) = read_known(row)?;
            if let Some(claim) = known(ask, &record, now) {
                return Ok(claim);
            }
        }
        Ok(match self.enter(ask, None, None).await? {
            Entered::Granted(grant) => Claim::Granted(grant),
            Entered::Known(claim) => claim,
        })
    }

    /// Takes over what is free or queues what is new, or tells how it stands.
    async fn enter(
        &self,
        ask: &Ask,
        request: Option<Bytes>,
        after: Option<Duration>,
    ) -> Result<Entered, Fault> {
        let mut lost = None;
        let mut last = None;
        for turn in 0..TURNS_MAX {
            let mut values = self.asked(ask);
            values.push(request.clone().into());
            values.push(Value::Null);
            values.push(lost.into());
            values.push(after.map(span_ms).into());
            let said = Said {
                statement: self.statements.claim.clone(),
                values,
            };
            let withdrawal = self.withdrawal(&ask.digest, ask.attempt);
            let rows = self.voice.say_or_undo(said, withdrawal).await?;
            match rows.into_iter().next().map(read_entry).transpose()? {
                Some(Entry::Granted(id, fence)) => {
                    let digest = ask.digest;
                    return Ok(Entered::Granted(Grant { digest, id, fence }));
                }
                Some(Entry::Known(record, now)) => {
                    if let Some(claim) = known(ask, &record, now) {
                        return Ok(Entered::Known(claim));
                    }
                    // It is free, but by a rule that the statement leaves to
                    // us, or somebody is working on it.
                    lost = Some(fence_value(record.fence));
                    last = Some(record);
                }
                // Somebody else was faster, and cannot be seen yet.
                None => {}
            }
            tokio::time::sleep(TURN_PAUSE * turn).await;
        }
        // A transaction holds it: as good as running.
        let record = last.ok_or(Fault::Contended)?;
        let mut record = Arc::unwrap_or_clone(record);
        record.state = State::Running;
        Ok(Entered::Known(Claim::Busy(Arc::new(record))))
    }

    fn withdrawal(&self, digest: &Digest, attempt: Attempt) -> Said {
        let values = vec![
            self.namespace(),
            Value::bytes(digest.as_bytes()),
            self.time.value(),
            Value::bytes(&attempt.0.to_be_bytes()),
        ];
        Said {
            statement: self.statements.withdraw.clone(),
            values,
        }
    }

    /// `$1` to `$22` of the statements that claim.
    fn asked(&self, ask: &Ask) -> Vec<Value> {
        let mut values = vec![self.namespace(), Value::bytes(ask.digest.as_bytes())];
        values.push(self.time.value());
        values.extend(asked(ask));
        values
    }

    async fn seen(
        &self,
        which: Which<'_>,
        see: impl FnOnce(Arc<Record>, Timestamp) -> Option<Arc<Record>>,
    ) -> Result<Option<Arc<Record>>, StoreError> {
        let rows = self.rows(&self.statements.get, &self.about(which)).await?;
        let Some(row) = rows.into_iter().next() else {
            return Ok(None);
        };
        let (record, now) = read_known(row)?;
        Ok(see(record, now))
    }

    /// Changes a record by a rule, under a lock. `None` where there is none.
    async fn change<T>(
        &self,
        which: Which<'_>,
        rule: impl FnOnce(&Arc<Record>, Timestamp) -> Change<T>,
    ) -> Result<Option<T>, Fault> {
        let mut session = self.voice.session().await?;
        session.begin().await?;
        let rows = session
            .run(&self.statements.lock, &self.about(which))
            .await?;
        let Some(row) = rows.into_iter().next() else {
            session.commit().await?;
            return Ok(None);
        };
        let (record, now) = read_known(row)?;
        let digest = record.digest;
        let told = match rule(&record, now) {
            Change::Leave(told) => told,
            Change::Write(after, told) => {
                self.write(&session, &record, &after).await?;
                told
            }
            Change::Purge(told) => {
                let digest = Value::bytes(digest.as_bytes());
                let values = [self.namespace(), digest, moment_ms(now).into()];
                session.run(&self.statements.purge, &values).await?;
                told
            }
        };
        session.commit().await?;
        self.bells.ring(&digest);
        Ok(Some(told))
    }

    async fn write(
        &self,
        session: &Session,
        before: &Record,
        record: &Record,
    ) -> Result<(), Fault> {
        let [answer, status, mut reply] = answered(record.answer.as_ref());
        if record.answer == before.answer {
            // What is there stays, and need not be sent again.
            reply = Value::Null;
        }
        let [expires, free, due, sweep] = times(record);
        let values = [
            self.namespace(),
            Value::bytes(record.digest.as_bytes()),
            state_word(record.state).into(),
            (record.fence == ANEW).into(),
            i64::from(record.attempts).into(),
            record.delivered.into(),
            moment_ms(record.until).into(),
            record.completed_at.map(moment_ms).into(),
            record.touched_at.map(moment_ms).into(),
            answer,
            status,
            reply,
            expires,
            free,
            due,
            sweep,
        ];
        session.run(&self.statements.write, &values).await?;
        Ok(())
    }

    async fn finish(
        &self,
        digest: &Digest,
        fence: Fence,
        state: State,
        answer: &Answer,
    ) -> Result<Counted, Fault> {
        let mut values = vec![
            Value::bytes(digest.as_bytes()),
            fence_value(fence).into(),
            state_word(state).into(),
        ];
        values.extend(answered(Some(answer)));
        let step = Step {
            values,
            mark: None,
            otherwise: None,
        };
        let told = self.settlements.row(step).await?;
        Ok(told.map_or(Counted::NotAtOnce, |_| Counted::AtOnce))
    }

    async fn free(&self, digest: &Digest, fence: Fence, state: State) -> Result<Counted, Fault> {
        let mut values = self.about(Which::Digest(digest));
        values.push(fence_value(fence).into());
        values.push(state_word(state).into());
        let told = self.rows(&self.statements.free, &values).await?;
        Ok(if told.is_empty() {
            Counted::NotAtOnce
        } else {
            Counted::AtOnce
        })
    }

    /// Settles by the record's own rule: what is rare, and why a word did not
    /// count at once.
    async fn settle_by_rule(
        &self,
        digest: &Digest,
        fence: Fence,
        settlement: &Settlement,
    ) -> Result<Settled, Fault> {
        let settled = self
            .change(Which::Digest(digest), |before, now| {
                let mut record = Record::clone(before);
                let settled = record.settle(fence, settlement, now);
                if record == **before {
                    Change::Leave(settled)
                } else {
                    Change::Write(Box::new(record), settled)
                }
            })
            .await?;
        Ok(settled.unwrap_or(Settled::Stale))
    }

    /// Lets an operator change a record, or what is left of it, by id.
    async fn operate(
        &self,
        id: OperationId,
        rule: impl FnOnce(&Arc<Record>, State, Timestamp) -> Change<Changed>,
    ) -> Result<Changed, StoreError> {
        let changed = self
            .change(Which::Id(id), |record, now| {
                match record.shown_state_at(now) {
                    Some(state) => rule(record, state, now),
                    None => Change::Leave(Changed::Absent),
                }
            })
            .await?;
        Ok(changed.unwrap_or(Changed::Absent))
    }

    fn document(&self, sheet: Sheet, name: &str) -> Vec<Value> {
        vec![
            self.namespace(),
            sheet.as_str().into(),
            Value::bytes(name.as_bytes()),
        ]
    }
}

impl Drop for PostgresStore {
    fn drop(&mut self) {
        if let Some(listener) = &self.listener {
            listener.abort();
        }
    }
}

/// The answer to a claim on what is there; `None` where it is free.
fn known(ask: &Ask, record: &Arc<Record>, now: Timestamp) -> Option<Claim> {
    let standing = judge(Some(record), &ask.fingerprint, ask.attempt, &ask.terms, now);
    Claim::known(standing, record.seen_at(now)?)
}

/// What a claim's statement finds.
enum Entry {
    Granted(OperationId, Fence),
    Known(Arc<Record>, Timestamp),
}

fn read_entry(row: Cells) -> Result<Entry, Fault> {
    let mut row = Reader::new(row);
    if row.text("found")? == "granted" {
        row.skip(2);
        let id = row.operation_id()?;
        row.skip(18);
        return Ok(Entry::Granted(id, row.fence()?));
    }
    let now = row.moment("now_ms")?;
    Ok(Entry::Known(Arc::new(row.record()?), now))
}

fn read_known(row: Cells) -> Result<(Arc<Record>, Timestamp), Fault> {
    let mut row = Reader::new(row);
    let now = row.moment("now_ms")?;
    Ok((Arc::new(row.record()?), now))
}

fn fence_value(fence: Fence) -> i64 {
    // Fences come from a sequence of bigint; another number is nobody's.
    i64::try_from(fence.0).unwrap_or(-1)
}

#[async_trait]
impl Store for PostgresStore {
    async fn claim(&self, ask: &Ask) -> Result<Claim, StoreError> {
        Ok(self.grant(ask).await?)
    }

    async fn withdraw(&self, digest: &Digest, attempt: Attempt) -> Result<(), StoreError> {
        let said = self.withdrawal(digest, attempt);
        let freed = self.rows(&said.statement, &said.values).await?;
        if !freed.is_empty() {
            self.bells.ring(digest);
        }
        Ok(())
    }

    async fn renew(&self, digest: &Digest, fence: Fence) -> Result<Settled, StoreError> {
        let values = [
            self.namespace(),
            Value::bytes(digest.as_bytes()),
            self.time.value(),
            fence_value(fence).into(),
        ];
        let renewed = self.rows(&self.statements.renew, &values).await?;
        Ok(if renewed.is_empty() {
            Settled::Stale
        } else {
            Settled::Done
        })
    }

    async fn settle(
        &self,
        digest: &Digest,
        fence: Fence,
        settlement: Settlement,
    ) -> Result<Settled, StoreError> {
        let counted = match &settlement {
            Settlement::Completed(answer) => {
                self.finish(digest, fence, State::Completed, answer).await?
            }
            Settlement::Failed(answer) => self.finish(digest, fence, State::Failed, answer).await?,
            Settlement::Released => self.free(digest, fence, State::Released).await?,
            Settlement::Lost => self.free(digest, fence, State::Unknown).await?,
            Settlement::Requeued { .. } | Settlement::Paused => Counted::NotAtOnce,
        };
        if counted == Counted::NotAtOnce {
            return Ok(self.settle_by_rule(digest, fence, &settlement).await?);
        }
        self.bells.ring(digest);
        Ok(Settled::Done)
    }

    async fn get(&self, digest: &Digest) -> Result<Option<Arc<Record>>, StoreError> {
        self.seen(Which::Digest(digest), |record, now| record.seen_at(now))
            .await
    }

    async fn find(&self, id: OperationId) -> Result<Option<Arc<Record>>, StoreError> {
        self.seen(Which::Id(id), |record, now| record.seen_at(now))
            .await
    }

    async fn touch(&self, digest: &Digest) -> Result<(), StoreError> {
        self.change(Which::Digest(digest), |record, now| {
            if !record.wants_touch(now) {
                return Change::Leave(());
            }
            let mut record = Record::clone(record);
            record.touch(now);
            Change::Write(Box::new(record), ())
        })
        .await?;
        Ok(())
    }

    async fn wait(&self, digest: &Digest, limit: Duration) -> Result<(), StoreError> {
        // Listening begins before looking, so that nothing falls in between.
        let bell = self.bells.listen(digest);
        let values = [
            self.namespace(),
            Value::bytes(digest.as_bytes()),
            self.time.value(),
        ];
        let rows = self.rows(&self.statements.await_, &values).await?;
        let Some(row) = rows.into_iter().next() else {
            return Ok(());
        };
        let marked = Reader::new(row).text("mark").map_err(StoreError::from)? == "marked";
        let limit = if marked { limit } else { limit.min(HELD_PAUSE) };
        bell.heard_within(limit).await;
        Ok(())
    }
}

#[async_trait]
impl Queue for PostgresStore {
    async fn enqueue(
        &self,
        ask: &Ask,
        request: Bytes,
        after: Duration,
    ) -> Result<Enqueued, StoreError> {
        Ok(match self.enter(ask, Some(request), Some(after)).await? {
            Entered::Granted(grant) => Enqueued::Accepted(grant.id),
            Entered::Known(claim) => Enqueued::Known(claim),
        })
    }

    async fn due(&self, limit: usize) -> Result<Vec<Due>, StoreError> {
        let values = [
            self.namespace(),
            self.time.value(),
            count(limit.min(PAGE_MAX)).into(),
        ];
        let mut session = self.voice.session().await?;
        let rows = session.look(&self.statements.due, &values).await?;
        rows.into_iter()
            .map(|row| {
                let mut row = Reader::new(row);
                row.skip(2);
                let request = row.optional_bytes("request")?;
                let record = Arc::new(row.record()?);
                Ok(Due {
                    grant: record.as_grant(),
                    record,
                    request: request.unwrap_or_default(),
                })
            })
            .collect::<Result<_, Fault>>()
            .map_err(StoreError::from)
    }

    async fn next_due(&self) -> Result<Option<Timestamp>, StoreError> {
        let rows = self
            .rows(&self.statements.next_due, &[self.namespace()])
            .await?;
        let mut row = Reader::new(rows.into_iter().next().unwrap_or_default());
        Ok(row.optional_moment("due_ms")?)
    }
}

#[async_trait]
impl Inspect for PostgresStore {
    async fn list(&self, filter: &Filter, page: PageAsk) -> Result<Page, StoreError> {
        let limit = page.limit.min(PAGE_MAX);
        if has_nul(filter) {
            // No text in PostgreSQL has one, so nothing matches.
            return Ok(Page {
                records: Vec::new(),
                next: None,
            });
        }
        let mut records: Vec<(u64, Arc<Record>)> = Vec::new();
        let mut after = page.after.map(|cursor| cursor.0);
        let mut end = End::Perhaps;
        let mut session = self.voice.session().await?;
        // What has its state only as of now is sorted out here, so one page may
        // take several reads.
        for _ in 0..LIST_READS_MAX {
            let wanted = limit + 1;
            let values = self.filtered(filter, after, wanted);
            let rows = session.look(&self.statements.list, &values).await?;
            let read = rows.len();
            for row in rows {
                let mut row = Reader::new(row);
                let now = row.moment("now_ms")?;
                let changed =
                    u64::try_from(row.int("changed")?).map_err(|_| Fault::Column("changed"))?;
                after = Some(changed);
                let shown = Arc::new(row.record()?).shown_at(now);
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
            // Enough was read for one page; there may be more further on.
            after.filter(|_| end == End::Perhaps)
        };
        Ok(Page {
            next: next.map(Cursor),
            records: records.into_iter().map(|(_, record)| record).collect(),
        })
    }

    async fn show(&self, id: OperationId) -> Result<Option<Arc<Record>>, StoreError> {
        self.seen(Which::Id(id), |record, now| record.shown_at(now))
            .await
    }

    async fn purge(&self, id: OperationId, force: Force) -> Result<Changed, StoreError> {
        self.operate(id, |_, state, _| {
            if state == State::Running && force == Force::No {
                return Change::Leave(Changed::Refused(state));
            }
            Change::Purge(Changed::Done)
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
                return Change::Leave(Changed::Refused(state));
            }
            let mut record = Record::clone(record);
            record.resolve(ANEW, &word, now);
            Change::Write(Box::new(record), Changed::Done)
        })
        .await
    }

    async fn resume(&self, id: OperationId) -> Result<Changed, StoreError> {
        self.operate(id, |record, state, now| {
            if state != State::Paused {
                return Change::Leave(Changed::Refused(state));
            }
            let mut record = Record::clone(record);
            record.resume(now);
            Change::Write(Box::new(record), Changed::Done)
        })
        .await
    }

    async fn sweep(&self, limit: usize) -> Result<usize, StoreError> {
        let values = [
            self.namespace(),
            self.time.value(),
            count(limit.min(PAGE_MAX)).into(),
        ];
        let rows = self.rows(&self.statements.sweep, &values).await?;
        let mut row = Reader::new(rows.into_iter().next().unwrap_or_default());
        let taken = row.int("sweep")?;
        Ok(usize::try_from(taken).unwrap_or_default())
    }

    async fn stats(&self) -> Result<Stats, StoreError> {
        let values = [self.namespace(), self.time.value()];
        let rows = self.rows(&self.statements.stats, &values).await?;
        let mut row = Reader::new(rows.into_iter().next().unwrap_or_default());
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

/// The states in which an operation may be written that stands like this now.
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

#[async_trait]
impl Registry for PostgresStore {
    async fn put(&self, sheet: Sheet, name: &str, document: Bytes) -> Result<(), StoreError> {
        let mut values = self.document(sheet, name);
        values.push(document.into());
        self.rows(&self.statements.put, &values).await?;
        Ok(())
    }

    async fn add(&self, sheet: Sheet, name: &str, document: Bytes) -> Result<Added, StoreError> {
        let mut values = self.document(sheet, name);
        values.push(document.into());
        let added = self.rows(&self.statements.add, &values).await?;
        Ok(if added.is_empty() {
            Added::Known
        } else {
            Added::Done
        })
    }

    async fn read(&self, sheet: Sheet, name: &str) -> Result<Option<Bytes>, StoreError> {
        let values = self.document(sheet, name);
        let rows = self.rows(&self.statements.read, &values).await?;
        let row = rows.into_iter().next().map(Reader::new);
        let document = row.map(|mut row| row.bytes("document"));
        Ok(document.transpose()?)
    }

    async fn remove(&self, sheet: Sheet, name: &str) -> Result<(), StoreError> {
        let values = self.document(sheet, name);
        self.rows(&self.statements.remove, &values).await?;
        Ok(())
    }

    async fn documents(
        &self,
        sheet: Sheet,
        order: Order,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<(String, Bytes)>, StoreError> {
        let values = [
            self.namespace(),
            sheet.as_str().into(),
            after.map(|name| Value::bytes(name.as_bytes())).into(),
            count(limit.min(PAGE_MAX)).into(),
        ];
        let statement = match order {
            Order::Rising => &self.statements.rising,
            Order::Falling => &self.statements.falling,
        };
        let rows = self.rows(statement, &values).await?;
        rows.into_iter()
            .map(|row| {
                let mut row = Reader::new(row);
                let name = String::from_utf8(row.bytes("name")?.into());
                let name = name.map_err(|_| Fault::Column("name"))?;
                Ok((name, row.bytes("document")?))
            })
            .collect::<Result<_, Fault>>()
            .map_err(StoreError::from)
    }
}

fn count(number: usize) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
