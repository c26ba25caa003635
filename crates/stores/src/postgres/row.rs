//! Records as rows, and back. A value that is checked before a write is checked
//! again after the read: an invalid column is damage, never a default.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use onceward_core::caller::{Caller, Subject, SubjectKind};
use onceward_core::class::{AfterLoss, Expiry, Terms, TtlBasis};
use onceward_core::clock::Timestamp;
use onceward_core::fingerprint::{Algorithm, Fingerprint};
use onceward_core::identity::{Digest, Endpoint, Identity, KeySpace, OperationId};
use onceward_core::key::Key;
use onceward_core::record::{Answer, Attempt, Completion, Fence, Record, State};
use onceward_core::store::ClaimRequest;
use onceward_core::wire;

use super::driver::{Cells, Value};
use super::error::Error;

/// The minimum time for which a purged or released record stays as a mark: a claim
/// that is under way meanwhile finds it and gets a higher fence.
pub(crate) const GRACE: Duration = Duration::from_secs(60);

/// The longest span in a record, in milliseconds: about three hundred years.
const SPAN_MS_MAX: i64 = 10_000_000_000_000;

/// The columns of a record, in order.
pub(crate) const COLUMNS: [(&str, &str); 31] = [
    ("digest", "bytea"),
    ("operation_id", "bytea"),
    ("tenant", "text"),
    ("project", "text"),
    ("subject", "text"),
    ("endpoint", "text"),
    ("key_value", "text"),
    ("key_space", "text"),
    ("request_hash", "bytea"),
    ("hash_algorithm", "text"),
    ("request_sender", "bytea"),
    ("class", "text"),
    ("lease_ms", "bigint"),
    ("retention_ms", "bigint"),
    ("remember_ms", "bigint"),
    ("keep_expired_ms", "bigint"),
    ("after_loss", "text"),
    ("ttl_basis", "text"),
    ("expiry", "text"),
    ("state", "text"),
    ("fence", "bigint"),
    ("attempt", "bytea"),
    ("attempts", "integer"),
    ("delivered", "boolean"),
    ("created_ms", "bigint"),
    ("until_ms", "bigint"),
    ("completed_ms", "bigint"),
    ("touched_ms", "bigint"),
    ("answer", "text"),
    ("status", "integer"),
    ("reply", "bytea"),
];

/// The rows of the claim statement.
#[derive(Default)]
pub(crate) struct ClaimRows {
    pub(crate) granted: Option<(OperationId, Fence)>,
    pub(crate) known: Option<(Arc<Record>, Timestamp)>,
    /// Another transaction has the key's lock.
    pub(crate) locked: bool,
}

impl ClaimRows {
    pub(crate) fn read(rows: Vec<Cells>) -> Result<Self, Error> {
        let mut found = Self::default();
        for row in rows {
            let mut row = RowReader::new(row);
            match row.text("found")?.as_str() {
                "granted" => {
                    // Only these two columns are filled.
                    row.skip(1 + place_of("operation_id"));
                    let id = row.operation_id()?;
                    row.skip(place_of("fence") - place_of("operation_id") - 1);
                    found.granted = Some((id, row.fence()?));
                }
                "known" => {
                    let now = row.moment("now_ms")?;
                    found.known = Some((Arc::new(row.record()?), now));
                }
                _ => found.locked = true,
            }
        }
        Ok(found)
    }
}

/// How many columns of a record come before this one.
fn place_of(column: &str) -> usize {
    let before = COLUMNS.iter().take_while(|(name, _)| *name != column);
    before.count()
}

/// Reads the columns of a row in order.
pub(crate) struct RowReader(std::vec::IntoIter<Value>);

impl RowReader {
    pub(crate) fn new(cells: Vec<Value>) -> Self {
        Self(cells.into_iter())
    }

    /// Skips columns.
    pub(crate) fn skip(&mut self, columns: usize) {
        if let Some(last) = columns.checked_sub(1) {
            self.0.nth(last);
        }
    }

    pub(crate) fn optional_int(&mut self, column: &'static str) -> Result<Option<i64>, Error> {
        match self.0.next() {
            Some(Value::Int(value)) => Ok(Some(value)),
            Some(Value::Null) => Ok(None),
            _ => Err(Error::Column(column)),
        }
    }

    pub(crate) fn int(&mut self, column: &'static str) -> Result<i64, Error> {
        self.optional_int(column)?.ok_or(Error::Column(column))
    }

    pub(crate) fn optional_text(&mut self, column: &'static str) -> Result<Option<String>, Error> {
        match self.0.next() {
            Some(Value::Text(value)) => Ok(Some(value)),
            Some(Value::Null) => Ok(None),
            _ => Err(Error::Column(column)),
        }
    }

    pub(crate) fn text(&mut self, column: &'static str) -> Result<String, Error> {
        self.optional_text(column)?.ok_or(Error::Column(column))
    }

    pub(crate) fn optional_bytes(&mut self, column: &'static str) -> Result<Option<Bytes>, Error> {
        match self.0.next() {
            Some(Value::Bytes(value)) => Ok(Some(value)),
            Some(Value::Null) => Ok(None),
            _ => Err(Error::Column(column)),
        }
    }

    pub(crate) fn bytes(&mut self, column: &'static str) -> Result<Bytes, Error> {
        self.optional_bytes(column)?.ok_or(Error::Column(column))
    }

    pub(crate) fn bool(&mut self, column: &'static str) -> Result<bool, Error> {
        match self.0.next() {
            Some(Value::Bool(value)) => Ok(value),
            _ => Err(Error::Column(column)),
        }
    }

    fn array<const N: usize>(&mut self, column: &'static str) -> Result<[u8; N], Error> {
        let bytes = self.bytes(column)?;
        <[u8; N]>::try_from(bytes.as_ref()).map_err(|_| Error::Column(column))
    }

    fn span(&mut self, column: &'static str) -> Result<Duration, Error> {
        let ms = u64::try_from(self.int(column)?).map_err(|_| Error::Column(column))?;
        Ok(Duration::from_millis(ms))
    }

    pub(crate) fn moment(&mut self, column: &'static str) -> Result<Timestamp, Error> {
        self.optional_moment(column)?.ok_or(Error::Column(column))
    }

    pub(crate) fn optional_moment(
        &mut self,
        column: &'static str,
    ) -> Result<Option<Timestamp>, Error> {
        let Some(ms) = self.optional_int(column)? else {
            return Ok(None);
        };
        let ms = u64::try_from(ms).map_err(|_| Error::Column(column))?;
        Ok(Some(Timestamp::from_unix_ms(ms)))
    }

    pub(crate) fn operation_id(&mut self) -> Result<OperationId, Error> {
        Ok(OperationId::from_bytes(self.array("operation_id")?))
    }

    pub(crate) fn fence(&mut self) -> Result<Fence, Error> {
        self.optional_fence()?.ok_or(Error::Column("fence"))
    }

    pub(crate) fn optional_fence(&mut self) -> Result<Option<Fence>, Error> {
        let Some(fence) = self.optional_int("fence")? else {
            return Ok(None);
        };
        let fence = u64::try_from(fence).map_err(|_| Error::Column("fence"))?;
        Ok(Some(Fence(fence)))
    }

    pub(crate) fn list(&mut self, column: &'static str) -> Result<Vec<Value>, Error> {
        match self.0.next() {
            Some(Value::List(values)) => Ok(values),
            _ => Err(Error::Column(column)),
        }
    }

    /// The times of an outcome, as `settle.sql` and `finish.sql` return them.
    pub(crate) fn completion(&mut self) -> Result<Completion, Error> {
        Ok(Completion {
            completed_at: self.moment("completed_ms")?,
            expires_at: self.moment("expires_ms")?,
        })
    }

    /// A record, from [`COLUMNS`].
    pub(crate) fn record(&mut self) -> Result<Record, Error> {
        let digest = Digest::from_bytes(self.array("digest")?);
        let id = self.operation_id()?;
        let identity = self.identity()?;
        let fingerprint = self.fingerprint()?;
        let terms = self.terms()?;
        Ok(Record {
            id,
            digest,
            identity,
            fingerprint,
            terms,
            state: word(&self.text("state")?, &STATES, "state")?,
            fence: self.fence()?,
            attempt: Attempt(u128::from_be_bytes(self.array("attempt")?)),
            attempts: u32::try_from(self.int("attempts")?)
                .map_err(|_| Error::Column("attempts"))?,
            delivered: self.bool("delivered")?,
            created_at: self.moment("created_ms")?,
            until: self.moment("until_ms")?,
            completed_at: self.optional_moment("completed_ms")?,
            touched_at: self.optional_moment("touched_ms")?,
            answer: self.answer()?,
            rendered: Default::default(),
        })
    }

    fn identity(&mut self) -> Result<Identity, Error> {
        let (tenant, project) = (self.text("tenant")?, self.text("project")?);
        let subject = self.text("subject")?;
        let (kind, id) = subject.split_once(':').ok_or(Error::Column("subject"))?;
        let kind = word(kind, &SUBJECTS, "subject")?;
        let subject = Subject::new(kind, id).map_err(|_| Error::Column("subject"))?;
        let caller = Caller::trusted(&tenant, &project, subject);
        Ok(Identity {
            caller: caller.map_err(|_| Error::Column("tenant"))?,
            endpoint: Endpoint::new(&self.text("endpoint")?),
            key: Key::parse_wide(&self.text("key_value")?)
                .map_err(|_| Error::Column("key_value"))?,
            space: word(&self.text("key_space")?, &SPACES, "key_space")?,
        })
    }

    fn fingerprint(&mut self) -> Result<Fingerprint, Error> {
        let digest = self.array("request_hash")?;
        let algorithm = self.text("hash_algorithm")?;
        let mut known = Algorithm::ALL.into_iter();
        Ok(Fingerprint {
            algorithm: known
                .find(|known| known.as_str() == algorithm)
                .ok_or(Error::Column("hash_algorithm"))?,
            digest,
            sender: self.array("request_sender")?,
        })
    }

    fn terms(&mut self) -> Result<Terms, Error> {
        let class = self.text("class")?;
        let (lease, retention) = (self.span("lease_ms")?, self.span("retention_ms")?);
        let mut terms = Terms::new(class, lease, retention);
        terms.remember = self.span("remember_ms")?;
        terms.keep_expired = self.span("keep_expired_ms")?;
        terms.after_loss = word(&self.text("after_loss")?, &LOSSES, "after_loss")?;
        terms.ttl_basis = word(&self.text("ttl_basis")?, &BASES, "ttl_basis")?;
        terms.expiry = word(&self.text("expiry")?, &EXPIRIES, "expiry")?;
        Ok(terms)
    }

    fn answer(&mut self) -> Result<Option<Answer>, Error> {
        let kind = self.optional_text("answer")?;
        let status = self.optional_int("status")?;
        let reply = self.optional_bytes("reply")?;
        let Some(kind) = kind else {
            return Ok(None);
        };
        let status = status.and_then(|status| u16::try_from(status).ok());
        let status = status.filter(|status| (100..=999).contains(status));
        let status = status.ok_or(Error::Column("status"))?;
        Ok(Some(match (kind.as_str(), reply) {
            ("kept", Some(reply)) => Answer::Kept(Arc::new(wire::decode_reply(&reply)?)),
            // Listings do not select the reply.
            ("kept" | "gone", None) => Answer::Gone { status },
            ("not-kept", None) => Answer::NotKept { status },
            _ => return Err(Error::Column("answer")),
        }))
    }
}

pub(crate) fn fence_value(fence: Fence) -> Value {
    // Fences come from a bigint sequence; any other number matches no grant.
    i64::try_from(fence.0).unwrap_or(-1).into()
}

/// The values of a claim, `$4` to `$22` of `claim.sql`.
pub(crate) fn ask_values(ask: &ClaimRequest) -> Vec<Value> {
    let caller = &ask.identity.caller;
    let subject = caller.subject();
    let terms = &ask.terms;
    vec![
        Value::bytes(ask.id.as_bytes()),
        caller.tenant().into(),
        caller.project().into(),
        Value::Text(format!("{}:{}", subject.kind().as_str(), subject.id())),
        ask.identity.endpoint.as_str().into(),
        ask.identity.key.as_str().into(),
        name(ask.identity.space, &SPACES).into(),
        Value::bytes(&ask.fingerprint.digest),
        ask.fingerprint.algorithm.as_str().into(),
        Value::bytes(&ask.fingerprint.sender),
        Value::text(&terms.class),
        span_ms(terms.lease).into(),
        span_ms(terms.retention).into(),
        span_ms(terms.remember).into(),
        span_ms(terms.keep_expired).into(),
        name(terms.after_loss, &LOSSES).into(),
        name(terms.ttl_basis, &BASES).into(),
        name(terms.expiry, &EXPIRIES).into(),
        Value::bytes(&ask.attempt.0.to_be_bytes()),
    ]
}

/// The word, the status and the reply of an answer: `$8` to `$10` of `finish.sql`.
pub(crate) fn answer_values(answer: Option<&Answer>) -> [Value; 3] {
    let status = answer.map(|answer| i64::from(answer.status()));
    let (kind, reply) = match answer {
        None => (Value::Null, Value::Null),
        Some(Answer::Kept(reply)) => ("kept".into(), wire::encode_reply(reply).into()),
        Some(Answer::NotKept { .. }) => ("not-kept".into(), Value::Null),
        Some(Answer::Gone { .. }) => ("gone".into(), Value::Null),
    };
    [kind, status.into(), reply]
}

/// The times that statements compare: `$13` to `$16` of `write.sql`.
pub(crate) fn times(record: &Record) -> [Value; 4] {
    let waits = |state| record.state == state;
    let is_lost_freely = record.terms.after_loss == AfterLoss::Free;
    let finished = matches!(
        record.state,
        State::Completed | State::Failed | State::Expired
    );
    let expires = record.expires_at().filter(|_| finished);
    let over = record.over_at().filter(|_| finished);
    let free = match record.state {
        State::Released => Some(Timestamp::default()),
        State::Running if is_lost_freely && !record.delivered => Some(record.until),
        _ if finished && !record.terms.is_lazy() => record.forgotten_at(),
        _ => None,
    };
    let sweep = match record.state {
        State::Released => Some(record.until.plus(GRACE)),
        // A reply is swept before its key, if the key is remembered longer.
        State::Completed | State::Failed if over > expires => expires,
        _ => over,
    };
    let due = record.due_at().filter(|_| !waits(State::Released));
    [expires, free, due, sweep].map(|moment| moment.map(moment_ms).into())
}

/// A time as the table stores it.
pub(crate) fn moment_ms(moment: Timestamp) -> i64 {
    i64::try_from(moment.unix_ms()).unwrap_or(i64::MAX)
}

/// A span as the table stores it.
pub(crate) fn span_ms(span: Duration) -> i64 {
    let ms = i64::try_from(span.as_millis()).unwrap_or(i64::MAX);
    ms.min(SPAN_MS_MAX)
}

/// The word of a state.
pub(crate) fn state_word(state: State) -> &'static str {
    state.as_str()
}

type Words<T, const N: usize> = [(T, &'static str); N];

const STATES: Words<State, 8> = [
    (State::Queued, "queued"),
    (State::Running, "running"),
    (State::Completed, "completed"),
    (State::Failed, "failed"),
    (State::Released, "released"),
    (State::Unknown, "unknown"),
    (State::Paused, "paused"),
    (State::Expired, "expired"),
];
const SUBJECTS: Words<SubjectKind, 4> = [
    (SubjectKind::User, "user"),
    (SubjectKind::Service, "service"),
    (SubjectKind::TenantMember, "tenant_member"),
    (SubjectKind::Client, "client"),
];
const SPACES: Words<KeySpace, 3> = [
    (KeySpace::Endpoint, "endpoint"),
    (KeySpace::Project, "project"),
    (KeySpace::Tenant, "tenant"),
];
const LOSSES: Words<AfterLoss, 2> = [(AfterLoss::Hold, "hold"), (AfterLoss::Free, "free")];
const BASES: Words<TtlBasis, 3> = [
    (TtlBasis::Completion, "completion"),
    (TtlBasis::Creation, "creation"),
    (TtlBasis::Access, "access"),
];
const EXPIRIES: Words<Expiry, 2> = [(Expiry::Strict, "strict"), (Expiry::Lazy, "lazy")];

fn word<T: Copy, const N: usize>(
    text: &str,
    words: &Words<T, N>,
    column: &'static str,
) -> Result<T, Error> {
    let found = words.iter().find(|(_, word)| *word == text);
    found.map(|(value, _)| *value).ok_or(Error::Column(column))
}

fn name<T: PartialEq + Copy, const N: usize>(value: T, words: &Words<T, N>) -> &'static str {
    let found = words.iter().find(|(known, _)| *known == value);
    found.map_or("", |(_, word)| *word)
}
