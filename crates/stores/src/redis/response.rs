//! Responses of Redis and of scripts, as types.

use std::sync::Arc;

use onceward_core::clock::Timestamp;
use onceward_core::record::{Answer, State};
use redis::Value;

use super::error::{Error, Result};
use super::layout::{self, ReplySource, StoredRecord};

/// The result of a look-up.
pub(super) struct FoundRecord {
    /// The time of the look-up.
    pub(super) now: Timestamp,
    pub(super) stored: Option<StoredRecord>,
}

/// The result of a script that records something new.
pub(super) enum Recorded {
    /// It is recorded with this stamp.
    Done(u64),
    /// It was recorded before.
    Known(FoundRecord),
}

/// The result of a script that changes a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WriteOutcome {
    /// It is written with this stamp.
    Done(u64),
    /// Another process changed the record meanwhile.
    Changed,
}

/// `{now}`, or `{now, record, reply}`; `{now, record}` if the reply was not fetched.
pub(super) fn found(value: Value) -> Result<FoundRecord> {
    let mut parts = array(value)?.into_iter();
    let now = Timestamp::from_unix_ms(number(parts.next().unwrap_or_default())?);
    let Some(record) = parts.next() else {
        return Ok(FoundRecord { now, stored: None });
    };
    let record = bytes(record)?.ok_or(Error::Response("a record"))?;
    let reply = parts.next().map(bytes).transpose()?;
    let beside = match &reply {
        Some(reply) => ReplySource::Fetched(reply.as_deref()),
        None => ReplySource::NotFetched,
    };
    let mut stored = layout::decode(&record, beside)?;
    let record = &stored.record;
    // A record whose reply was swept has expired, even if the clock was set back
    // since.
    if matches!(beside, ReplySource::Fetched(_))
        && matches!(record.answer, Some(Answer::Gone { .. }))
        && matches!(record.state_at(now), Some(State::Completed | State::Failed))
    {
        Arc::make_mut(&mut stored.record).expire();
    }
    Ok(FoundRecord {
        now,
        stored: Some(stored),
    })
}

/// A stamp, or what was found.
pub(super) fn recorded(value: Value) -> Result<Recorded> {
    match value {
        Value::Int(_) => number(value).map(Recorded::Done),
        value => found(value).map(Recorded::Known),
    }
}

/// A stamp, or 0.
pub(super) fn written(value: Value) -> Result<WriteOutcome> {
    Ok(match number(value)? {
        0 => WriteOutcome::Changed,
        stamp => WriteOutcome::Done(stamp),
    })
}

pub(super) fn array(value: Value) -> Result<Vec<Value>> {
    match value {
        Value::Array(values) => Ok(values),
        _ => Err(Error::Response("an array")),
    }
}

pub(super) fn number(value: Value) -> Result<u64> {
    let number = match value {
        Value::Int(number) => u64::try_from(number).ok(),
        Value::BulkString(digits) => {
            let digits = std::str::from_utf8(&digits).ok();
            digits.and_then(|digits| digits.parse().ok())
        }
        // Scores are whole numbers below 2^53.
        Value::Double(score) if score >= 0.0 => Some(score as u64),
        _ => None,
    };
    number.ok_or(Error::Response("a number"))
}

/// `None` for a nil.
pub(super) fn bytes(value: Value) -> Result<Option<Vec<u8>>> {
    match value {
        Value::BulkString(bytes) => Ok(Some(bytes)),
        Value::Nil => Ok(None),
        _ => Err(Error::Response("bytes")),
    }
}

/// Members with their scores: RESP3 returns pairs, scripts a flat list.
pub(super) fn scored(value: Value) -> Result<Vec<(Vec<u8>, u64)>> {
    let mut values = array(value)?.into_iter();
    let mut members = Vec::new();
    while let Some(first) = values.next() {
        let (member, score) = match first {
            Value::Array(pair) => {
                let mut pair = pair.into_iter();
                (pair.next().unwrap_or_default(), pair.next())
            }
            member => (member, values.next()),
        };
        let member = bytes(member)?.ok_or(Error::Response("a member"))?;
        members.push((member, number(score.unwrap_or_default())?));
    }
    Ok(members)
}

/// The response to `TIME`.
pub(super) fn time(value: Value) -> Result<Timestamp> {
    let mut parts = array(value)?.into_iter();
    let mut next = || number(parts.next().unwrap_or_default());
    let (seconds, micros) = (next()?, next()?);
    Ok(Timestamp::from_unix_ms(seconds * 1_000 + micros / 1_000))
}
