//! The bytes of a record in Redis.
//!
//! The rules are in Rust and the clock is in Redis, and yet a claim is one script. So
//! a script notes only that something happened, and when: *granted at*, *completed
//! at*. Reading applies the rules of `core` to that. A record consists of
//!
//! - a head of two blocks, written by scripts: how the record was written, and what
//!   happened to it since, each with its own check;
//! - the terms that scripts need, written once;
//! - the record of [`wire`], with its version and checksum, which scripts never
//!   look into.
//!
//! The reply and the request are stored separately, so that listings do not load
//! them. `lua/record.lua` has the offsets of all fields.

use std::sync::Arc;
use std::time::Duration;

use bytes::BufMut;
use onceward_core::class::AfterLoss;
use onceward_core::clock::Timestamp;
use onceward_core::record::{Answer, Fence, Record, Reply, Settled, Settlement, State};
use onceward_core::wire::{self, WireError};

use super::error::{Error, Result};

/// The version of this layout that is written.
const VERSION: u8 = 1;
/// How many bytes a head has: the mark, the version and the two blocks.
const HEAD: usize = 47;
/// Where the second block begins.
const WORD: usize = 27;
/// Where the record of `core` begins.
const WIRE: usize = 65;
/// Makes a block of zeros invalid.
const SEED: u64 = 24_301;
/// A score is the number of a band times this, plus a time in milliseconds.
const BAND: u64 = 1 << 44;
/// The highest of these scores. Every stamp since 1974 is above it.
pub(super) const END_MAX: u64 = 8 * BAND - 1;
/// The longest span (278 years), so that no time leaves its band.
const SPAN_MAX: u64 = 1 << 43;

/// How a record was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WriteKind {
    /// The stored record is complete.
    Whole = 0,
    /// It was granted to its claimer.
    Granted = 1,
    /// It was granted to the gateway that delivers it.
    Delivered = 2,
    /// The stored record is complete, except for its fence.
    Raised = 3,
    /// It was queued.
    Recorded = 4,
}

/// What happened to a record since it was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ChangeKind {
    Nothing = 0,
    Renewed = 1,
    Completed = 2,
    Failed = 3,
    Released = 4,
    Lost = 5,
    Paused = 6,
    Queued = 7,
}

/// The part of the index in which a record is, by the next change that time makes to
/// it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Band {
    /// It is removed.
    Over = 0,
    /// Its reply expires before its key: the sweep must look at it.
    Expiring = 1,
    /// It runs, and is unknown afterwards.
    Held = 2,
    /// It runs, and is free afterwards.
    Free = 3,
    /// It runs, and is due again afterwards.
    Redelivered = 4,
    Queued = 5,
    Unknown = 6,
    Paused = 7,
}

/// A holder's settlement as a script takes it, without its reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct HolderChange {
    word: ChangeKind,
    answer: u8,
    status: u16,
}

const NO_ANSWER: u8 = 0;
const KEPT: u8 = 1;
const NOT_KEPT: u8 = 2;

impl HolderChange {
    /// Its kind, as a byte.
    pub(super) fn word(&self) -> [u8; 1] {
        [self.word as u8]
    }

    /// Its answer and status, as bytes.
    pub(super) fn answer(&self) -> [u8; 3] {
        let [high, low] = self.status.to_be_bytes();
        [self.answer, high, low]
    }

    /// Its check sum without the time.
    pub(super) fn check(&self) -> u64 {
        word_check(self.word as u8, 0, self.answer, self.status)
    }

    /// After what it ends, as `lua/settle.lua` expects it.
    pub(super) fn ends(&self) -> String {
        match self.word {
            ChangeKind::Completed | ChangeKind::Failed => "span".to_owned(),
            ChangeKind::Released => "lease".to_owned(),
            ChangeKind::Paused => (Band::Paused as u8).to_string(),
            ChangeKind::Lost | ChangeKind::Nothing | ChangeKind::Renewed | ChangeKind::Queued => {
                (Band::Unknown as u8).to_string()
            }
        }
    }

    /// The settlement of an operation that was not queued.
    pub(super) fn by(settlement: &Settlement) -> Option<Self> {
        let (word, answer) = match settlement {
            Settlement::Completed(answer) => (ChangeKind::Completed, Some(answer)),
            Settlement::Failed(answer) => (ChangeKind::Failed, Some(answer)),
            Settlement::Released | Settlement::Requeued { .. } | Settlement::Deferred { .. } => {
                (ChangeKind::Released, None)
            }
            Settlement::Lost => (ChangeKind::Lost, None),
            Settlement::Paused => (ChangeKind::Paused, None),
        };
        let (answer, status) = match answer {
            None => (NO_ANSWER, 0),
            Some(Answer::Kept(reply)) => (KEPT, reply.status),
            Some(Answer::NotKept { status }) => (NOT_KEPT, *status),
            // A reply is gone by expiry, never by a settlement.
            Some(Answer::Gone { .. }) => return None,
        };
        Some(Self {
            word,
            answer,
            status,
        })
    }
}

/// A record as it was read.
#[derive(Clone, Debug)]
pub(super) struct StoredRecord {
    pub(super) record: Arc<Record>,
    /// The part that must be unchanged when it is written again.
    pub(super) version: RecordVersion,
}

/// The part of a record that every change changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RecordVersion([u8; HEAD - 1]);

impl RecordVersion {
    pub(super) fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

/// Whether a record's reply was fetched.
#[derive(Clone, Copy, Debug)]
pub(super) enum ReplySource<'a> {
    /// It was fetched, if there is one.
    Fetched(Option<&'a [u8]>),
    /// It was not fetched: only its status is known.
    NotFetched,
}

/// Stands for no token, where a repeated step is recognised by other means.
pub(super) const NO_TOKEN: u64 = 0;

/// The record from its 28th byte on, as scripts take it. As long as nothing has
/// happened to it, the time in the second block is the token of this step.
pub(super) fn encode_rest(record: &Record, token: u64) -> Vec<u8> {
    let kept = match &record.answer {
        Some(Answer::Kept(_)) => KEPT,
        _ => NO_ANSWER,
    };
    let wire = wire::encode_record(record);
    let mut rest = Vec::with_capacity(WIRE - WORD + wire.len());
    put_word(&mut rest, ChangeKind::Nothing, token, kept, 0);
    put_terms(&mut rest, record);
    rest.extend_from_slice(&wire);
    rest
}

fn put_word(out: &mut Vec<u8>, word: ChangeKind, at: u64, answer: u8, status: u16) {
    out.put_u8(word as u8);
    out.put_u64(at);
    out.put_u8(answer);
    out.put_u16(status);
    out.put_u64(word_check(word as u8, at, answer, status));
}

fn word_check(word: u8, at: u64, answer: u8, status: u16) -> u64 {
    let said = u64::from(status) + 65_536 * (u64::from(answer) + 256 * u64::from(word));
    at.wrapping_mul(3)
        .wrapping_add(65_599 * said)
        .wrapping_add(SEED)
}

fn how_check(how: u8, fence: u64, at: u64) -> u64 {
    at.wrapping_mul(3)
        .wrapping_add(fence)
        .wrapping_add(u64::from(how))
        .wrapping_add(SEED)
}

/// The terms that scripts need: the lease, the time to the first end of a finished
/// record, the band while it runs, and the band when it is finished.
fn put_terms(out: &mut Vec<u8>, record: &Record) {
    let terms = &record.terms;
    let whole = terms.remember.saturating_add(terms.keep_expired);
    let (span, ended) = if terms.retention < whole {
        (terms.retention, Band::Expiring)
    } else {
        (whole, Band::Over)
    };
    out.put_u64(span_ms(terms.lease));
    out.put_u64(span_ms(span));
    out.put_u8(running_band(record) as u8);
    out.put_u8(ended as u8);
}

/// A span in milliseconds, limited for Redis.
pub(super) fn span_ms(span: Duration) -> u64 {
    u64::try_from(span.as_millis())
        .unwrap_or(u64::MAX)
        .min(SPAN_MAX)
}

/// The score of the end of a grant of this record, without the current time.
pub(super) fn end_after_grant(record: &Record) -> u64 {
    running_band(record) as u64 * BAND + span_ms(record.terms.lease)
}

/// The first bytes of a record that was granted to its claimer under this fence.
pub(super) fn held_by(fence: Fence) -> [u8; 10] {
    let mut held = [0; 10];
    held[0] = VERSION;
    held[1] = WriteKind::Granted as u8;
    held[2..].copy_from_slice(&fence.0.to_be_bytes());
    held
}

/// The score of a record's next end in the index.
pub(super) fn end_of(record: &Record) -> u64 {
    let (band, at) = match record.state {
        State::Completed | State::Failed | State::Expired => finished_end(record),
        State::Released => (Band::Over, record.until),
        State::Running => (running_band(record), record.until),
        State::Queued => (Band::Queued, record.until),
        State::Unknown => (Band::Unknown, record.until),
        State::Paused => (Band::Paused, record.until),
    };
    band as u64 * BAND + at.unix_ms().min(BAND - 1)
}

fn running_band(record: &Record) -> Band {
    match (record.terms.after_loss, record.delivered) {
        (AfterLoss::Free, false) => Band::Free,
        (AfterLoss::Free, true) => Band::Redelivered,
        // `hold`, the default.
        _ => Band::Held,
    }
}

fn finished_end(record: &Record) -> (Band, Timestamp) {
    let over = record.over_at().unwrap_or_default();
    let expires = record.expires_at().unwrap_or_default();
    // The request of a delivered operation is removed with its reply.
    let may_expire = record.terms.is_lazy()
        || record.delivered
        || matches!(record.answer, Some(Answer::Kept(_)));
    if record.state != State::Expired && may_expire && expires < over {
        (Band::Expiring, expires)
    } else {
        (Band::Over, over)
    }
}

/// Reads a record.
pub(super) fn decode(bytes: &[u8], beside: ReplySource<'_>) -> Result<StoredRecord> {
    let head: &[u8; HEAD] = bytes.first_chunk().ok_or(Error::Head)?;
    match head {
        [b'0' | b'1', VERSION, ..] => {}
        [b'0' | b'1', newer, ..] if *newer > VERSION => return Err(Error::Newer(*newer)),
        _ => return Err(Error::Head),
    }
    let mut version = [0; HEAD - 1];
    version.copy_from_slice(&head[1..]);
    let written = WriteBlock::read(head)?;
    let said = ChangeBlock::read(head)?;
    let wire = bytes.get(WIRE..).ok_or(Error::Head)?;
    let mut record = wire::decode_record(wire, || said.wire_reply(beside))?;
    if bytes.get(HEAD..WIRE) != Some(&terms_of(&record)[..]) {
        return Err(Error::Head);
    }
    written.apply(&mut record);
    said.apply(&mut record, beside)?;
    Ok(StoredRecord {
        record: Arc::new(record),
        version: RecordVersion(version),
    })
}

fn terms_of(record: &Record) -> Vec<u8> {
    let mut terms = Vec::with_capacity(WIRE - HEAD);
    put_terms(&mut terms, record);
    terms
}

fn u64_at(head: &[u8; HEAD], place: usize) -> u64 {
    let mut bytes = [0; 8];
    bytes.copy_from_slice(&head[place..place + 8]);
    u64::from_be_bytes(bytes)
}

/// The first block: how a record was written.
struct WriteBlock {
    how: WriteKind,
    fence: Fence,
    at: Timestamp,
}

impl WriteBlock {
    fn read(head: &[u8; HEAD]) -> Result<Self> {
        let (how, fence, at) = (head[2], u64_at(head, 3), u64_at(head, 11));
        if u64_at(head, 19) != how_check(how, fence, at) {
            return Err(Error::Head);
        }
        let how = [
            WriteKind::Whole,
            WriteKind::Granted,
            WriteKind::Delivered,
            WriteKind::Raised,
            WriteKind::Recorded,
        ]
        .into_iter()
        .find(|known| *known as u8 == how)
        .ok_or(Error::Head)?;
        Ok(Self {
            how,
            fence: Fence(fence),
            at: Timestamp::from_unix_ms(at),
        })
    }

    /// A first claim or enqueueing is stored without its creation time: the script
    /// adds it.
    fn apply(&self, record: &mut Record) {
        if record.created_at == Timestamp::default() {
            record.created_at = self.at;
        }
        match self.how {
            WriteKind::Whole | WriteKind::Recorded => {}
            WriteKind::Granted | WriteKind::Delivered => {
                record.grant(self.fence, record.attempt, self.at);
            }
            WriteKind::Raised => record.fence = self.fence,
        }
    }
}

/// The second block: what happened since.
struct ChangeBlock {
    said: HolderChange,
    at: Timestamp,
}

impl ChangeBlock {
    fn read(head: &[u8; HEAD]) -> Result<Self> {
        let (word, at, answer) = (head[WORD], u64_at(head, WORD + 1), head[WORD + 9]);
        let status = u16::from_be_bytes([head[WORD + 10], head[WORD + 11]]);
        if u64_at(head, WORD + 12) != word_check(word, at, answer, status) {
            return Err(Error::Head);
        }
        let word = [
            ChangeKind::Nothing,
            ChangeKind::Renewed,
            ChangeKind::Completed,
            ChangeKind::Failed,
            ChangeKind::Released,
            ChangeKind::Lost,
            ChangeKind::Paused,
            ChangeKind::Queued,
        ]
        .into_iter()
        .find(|known| *known as u8 == word)
        .ok_or(Error::Head)?;
        Ok(Self {
            said: HolderChange {
                word,
                answer,
                status,
            },
            at: Timestamp::from_unix_ms(at),
        })
    }

    /// The reply of a complete record.
    fn wire_reply(&self, beside: ReplySource<'_>) -> Result<Option<Arc<Reply>>, WireError> {
        match beside {
            ReplySource::NotFetched => Ok(None),
            ReplySource::Fetched(None) => Err(WireError::Field("reply")),
            ReplySource::Fetched(Some(bytes)) => {
                wire::decode_reply(bytes).map(|r| Some(Arc::new(r)))
            }
        }
    }

    fn apply(&self, record: &mut Record, beside: ReplySource<'_>) -> Result<()> {
        let fence = record.fence;
        let settlement = match self.said.word {
            ChangeKind::Nothing => return Ok(()),
            ChangeKind::Queued => {
                record.enqueue(self.at);
                return Ok(());
            }
            ChangeKind::Renewed => return held(record.renew(fence, self.at)),
            ChangeKind::Completed => Settlement::Completed(self.answer(beside)?),
            ChangeKind::Failed => Settlement::Failed(self.answer(beside)?),
            ChangeKind::Released => Settlement::Released,
            ChangeKind::Lost => Settlement::Lost,
            ChangeKind::Paused => Settlement::Paused,
        };
        held(record.settle(fence, &settlement, self.at))
    }

    fn answer(&self, beside: ReplySource<'_>) -> Result<Answer> {
        let status = self.said.status;
        match (self.said.answer, beside) {
            (KEPT, ReplySource::NotFetched) => Ok(Answer::Gone { status }),
            (KEPT, ReplySource::Fetched(Some(bytes))) => {
                let reply = wire::decode_reply(bytes)?;
                if reply.status != status {
                    return Err(Error::Head);
                }
                Ok(Answer::Kept(Arc::new(reply)))
            }
            (KEPT, ReplySource::Fetched(None)) => Err(Error::NoReply),
            (NOT_KEPT, _) => Ok(Answer::NotKept { status }),
            _ => Err(Error::Head),
        }
    }
}

/// Scripts write only what the rules allow.
fn held(settled: Settled) -> Result<()> {
    match settled {
        Settled::Finished(_) | Settled::Done => Ok(()),
        Settled::Stale => Err(Error::Head),
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use onceward_core::caller::Caller;
    use onceward_core::class::Class;
    use onceward_core::fingerprint::{Algorithm, Fingerprint};
    use onceward_core::identity::{Endpoint, Identity, KeySpace, OperationId};
    use onceward_core::key::Key;
    use onceward_core::record::Attempt;
    use onceward_core::store::ClaimRequest;

    use super::*;

    const NOW: Timestamp = Timestamp::from_unix_ms(1_700_000_000_000);
    const STAMP: u64 = 1_700_000_000_000_123;

    fn ask() -> ClaimRequest {
        let identity = Identity {
            caller: Caller::local(),
            endpoint: Endpoint::new("payments.create"),
            key: Key::parse("k").expect("a good key"),
            space: KeySpace::Endpoint,
        };
        let digest = identity.digest();
        ClaimRequest {
            digest,
            identity,
            fingerprint: Fingerprint {
                algorithm: Algorithm::Json1,
                digest: [1; 32],
                sender: [2; 16],
            },
            terms: Class::interactive().terms(),
            attempt: Attempt(3),
            id: OperationId::new(&digest, 4),
        }
    }

    fn reply() -> Arc<Reply> {
        Arc::new(Reply {
            status: 201,
            headers: Vec::new(),
            body: Bytes::from_static(b"paid"),
            trailers: Vec::new(),
        })
    }

    /// The bytes that a script writes before the rest of a record.
    fn head(how: WriteKind, at: Timestamp) -> Vec<u8> {
        let mut head = vec![b'0', VERSION, how as u8];
        head.put_u64(STAMP);
        head.put_u64(at.unix_ms());
        head.put_u64(how_check(how as u8, STAMP, at.unix_ms()));
        head
    }

    fn stored(how: WriteKind, at: Timestamp, record: &Record) -> Vec<u8> {
        let token = match how {
            WriteKind::Granted => NO_TOKEN,
            _ => u64::MAX,
        };
        let mut stored = head(how, at);
        stored.extend(encode_rest(record, token));
        stored
    }

    /// As `lua/claim.lua` leaves it.
    fn claimed() -> Vec<u8> {
        let record = ask().to_record_after(None, Timestamp::default());
        stored(WriteKind::Granted, NOW, &record)
    }

    /// As `lua/settle.lua` leaves it.
    fn settled(word: ChangeKind, at: Timestamp, answer: u8, status: u16) -> Vec<u8> {
        let mut stored = claimed();
        let mut block = Vec::new();
        put_word(&mut block, word, at.unix_ms(), answer, status);
        stored[WORD..HEAD].copy_from_slice(&block);
        stored
    }

    fn record_of(bytes: &[u8], beside: ReplySource<'_>) -> Record {
        let stored = decode(bytes, beside).expect("it can be read");
        Record::clone(&stored.record)
    }

    #[test]
    fn a_claim_reads_as_the_rules_would_have_made_it() {
        let mut want = ask().to_record_after(None, NOW);
        want.grant(Fence(STAMP), Attempt(3), NOW);
        assert_eq!(record_of(&claimed(), ReplySource::Fetched(None)), want);
    }

    #[test]
    fn settlements_read_as_the_rules_would_have_made_them() {
        let later = NOW.plus(Duration::from_secs(5));
        let sealed = wire::encode_reply(&reply());
        let beside = ReplySource::Fetched(Some(&sealed));
        let granted = record_of(&claimed(), ReplySource::NotFetched);
        let cases = [
            Settlement::Completed(Answer::Kept(reply())),
            Settlement::Failed(Answer::NotKept { status: 422 }),
            Settlement::Released,
            Settlement::Lost,
            Settlement::Paused,
        ];
        for settlement in cases {
            let said = HolderChange::by(&settlement).expect("a holder may say it");
            let bytes = settled(said.word, later, said.answer, said.status);
            let mut want = granted.clone();
            want.settle(Fence(STAMP), &settlement, later);
            assert_eq!(record_of(&bytes, beside), want, "{settlement:?}");
        }
        let mut want = granted;
        want.renew(Fence(STAMP), later);
        let renewed = settled(ChangeKind::Renewed, later, NO_ANSWER, 0);
        assert_eq!(record_of(&renewed, beside), want);
    }

    #[test]
    fn a_complete_record_reads_back() {
        let mut record = record_of(&claimed(), ReplySource::NotFetched);
        record.settle(Fence(STAMP), &Settlement::Lost, NOW);
        let sealed = wire::encode_reply(&reply());
        let bytes = stored(WriteKind::Whole, Timestamp::default(), &record);
        assert_eq!(record_of(&bytes, ReplySource::Fetched(None)), record);
        record.finish(State::Completed, Answer::Kept(reply()), NOW);
        let bytes = stored(WriteKind::Whole, Timestamp::default(), &record);
        assert_eq!(
            record_of(&bytes, ReplySource::Fetched(Some(&sealed))),
            record
        );
        assert!(matches!(
            decode(&bytes, ReplySource::Fetched(None)),
            Err(Error::Bytes(_))
        ));
        record.fence = Fence(7);
        let bytes = stored(WriteKind::Raised, Timestamp::default(), &record);
        let raised = record_of(&bytes, ReplySource::Fetched(Some(&sealed)));
        assert_eq!(raised.fence, Fence(STAMP));
    }

    #[test]
    fn any_changed_bit_is_detected() {
        for bytes in [claimed(), settled(ChangeKind::Completed, NOW, KEPT, 201)] {
            // The first byte marks that a process waits.
            for place in 1..bytes.len() {
                for bit in 0..8 {
                    let mut flipped = bytes.clone();
                    flipped[place] ^= 1 << bit;
                    let read = decode(&flipped, ReplySource::NotFetched);
                    assert!(read.is_err_and(|error| error.is_damage()), "{place}.{bit}");
                }
            }
        }
    }

    #[test]
    fn band_and_time_determine_the_next_change() {
        let granted = record_of(&claimed(), ReplySource::NotFetched);
        let settle = |settlement: Settlement| {
            let mut record = granted.clone();
            record.settle(Fence(STAMP), &settlement, NOW);
            record
        };
        let mut long = settle(Settlement::Completed(Answer::Kept(reply())));
        long.terms.remember = long.terms.retention * 2;
        let mut expired = long.clone();
        expired.expire();
        let terms = &granted.terms;
        let cases = [
            (granted.clone(), Band::Held, terms.lease),
            (settle(Settlement::Released), Band::Over, terms.lease),
            (settle(Settlement::Lost), Band::Unknown, terms.lease),
            (long.clone(), Band::Expiring, long.terms.retention),
            (expired, Band::Over, long.terms.remember),
        ];
        for (record, band, after) in cases {
            let want = band as u64 * BAND + NOW.plus(after).unix_ms();
            assert_eq!(end_of(&record), want, "{band:?}");
        }
    }
}
