//! Answers to a request that is not the first under its key: it waits, gets a URL
//! to ask later, or is refused because the key belongs to a different request.

use std::time::Duration;

use http::HeaderMap;
use onceward_core::class::{InFlight, OnMismatch};
use onceward_core::engine::{Awaited, Follow, Recorded};
use onceward_core::identity::{Digest, OperationId};
use onceward_core::record::Record;
use onceward_core::store::StoreError;

use crate::answer;
use crate::fields;
use crate::problem::Problem;
use crate::rules::KeySource;
use crate::run::{Call, Outcome, ProtectedResponse, Protection, host, store_unavailable};
use crate::status::IdempotencyStatus;

/// Answers a duplicate while the first request still runs.
pub(crate) async fn wait_for(call: &Call, follow: &Follow) -> ProtectedResponse {
    let id = follow.record().id;
    let wait = call.class.wait;
    let limit = match call.class.in_flight {
        InFlight::Reject => {
            return ProtectedResponse::refused(Problem::in_progress(
                id,
                IdempotencyStatus::Processing,
            ));
        }
        InFlight::Accept => {
            let response = answer::accepted(follow.record(), &status_path(call, id));
            return ProtectedResponse::answered(Outcome::Accepted, id, response);
        }
        // `wait`, the default.
        _ => wait.min(preferred_wait(call.request.headers()).unwrap_or(wait)),
    };
    awaited(follow.settled(limit).await, id)
}

/// The path of an operation's status: by its key, if the client knows the key.
pub(crate) fn status_path(call: &Call, id: OperationId) -> String {
    // A trailing slash is part of the path.
    let path = match call.request.uri().path() {
        "/" => "",
        path => path,
    };
    match call.source {
        // A location that begins with two slashes names a host.
        KeySource::Header if !path.starts_with("//") => {
            format!("{path}/by-idempotency-key/{}/status", call.key)
        }
        _ => format!("/api/v1/operations/{id}/status"),
    }
}

/// The answer after a wait.
pub(crate) fn awaited(awaited: Result<Awaited, StoreError>, id: OperationId) -> ProtectedResponse {
    match awaited {
        Ok(Awaited::Settled(record)) => ProtectedResponse::from_record(&record),
        Ok(Awaited::Answered(reply, recorded)) => {
            let word = match recorded {
                Recorded::NotYet => IdempotencyStatus::Unknown,
                Recorded::Finished(_) | Recorded::Durably | Recorded::Stale => {
                    IdempotencyStatus::Released
                }
            };
            let response = answer::again(&reply, word, id, None);
            ProtectedResponse::answered(Outcome::Shared, id, response)
        }
        Ok(Awaited::Lost) => ProtectedResponse::refused(Problem::outcome_unknown(id)),
        Ok(Awaited::Freed) => {
            ProtectedResponse::refused(Problem::in_progress(id, IdempotencyStatus::Released))
        }
        Ok(Awaited::StillRunning | Awaited::TooMany) => {
            ProtectedResponse::refused(Problem::in_progress(id, IdempotencyStatus::Processing))
        }
        Err(error) => ProtectedResponse::refused(store_unavailable(&error)),
    }
}

/// The caller's own limit, from `Prefer: wait=n`.
pub(crate) fn preferred_wait(headers: &HeaderMap) -> Option<Duration> {
    let seconds = preferences(headers).find_map(|(name, value)| {
        name.eq_ignore_ascii_case("wait")
            .then(|| value.trim_matches('"'))
    })?;
    Some(Duration::from_secs(seconds.parse().ok()?))
}

/// Whether the caller prefers to ask later: `Prefer: respond-async`.
pub(crate) fn responds_async(headers: &HeaderMap) -> bool {
    preferences(headers).any(|(name, _)| name.eq_ignore_ascii_case("respond-async"))
}

/// The preferences of a request as names and values (RFC 7240), without parameters.
fn preferences(headers: &HeaderMap) -> impl Iterator<Item = (&str, &str)> {
    let lines = headers.get_all(fields::PREFER).iter();
    let lines = lines.filter_map(|line| line.to_str().ok());
    lines.flat_map(|line| line.split(',')).map(|preference| {
        let preference = preference.split(';').next().unwrap_or_default();
        let (name, value) = preference.split_once('=').unwrap_or((preference, ""));
        (name.trim(), value.trim())
    })
}

/// Answers a request whose key belongs to a different request, as the class says.
pub(crate) async fn mismatched(
    protection: &Protection,
    call: &Call,
    digest: &Digest,
) -> ProtectedResponse {
    match call.class.mismatch {
        OnMismatch::Conflict => ProtectedResponse::refused(Problem::key_reused_conflict()),
        OnMismatch::Replay => match protection.engine.look(digest).await {
            Ok(Some(record)) if may_read(protection, call, &record) => {
                protection.engine.note_replay(&record);
                ProtectedResponse::from_record(&record)
            }
            Ok(_) => ProtectedResponse::refused(Problem::key_reused()),
            Err(error) => ProtectedResponse::refused(store_unavailable(&error)),
        },
        // `422`, the default.
        _ => ProtectedResponse::refused(Problem::key_reused()),
    }
}

/// Whether a request may read the reply of a different request under its key. The
/// route chose to ignore differences, but a reply is never given to another
/// endpoint, caller or sender, however wide the key space is.
fn may_read(protection: &Protection, call: &Call, record: &Record) -> bool {
    let there = &record.identity;
    let (headers, uri) = (call.request.headers(), call.request.uri());
    there.endpoint == call.endpoint
        && there.caller == call.caller
        && protection.is_sender(record, &call.rules, headers, host(headers, Some(uri)))
}
