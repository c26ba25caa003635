//! Recovery: returns the reply of an operation by its key or id, for a client that
//! lost the answer.

use std::fmt;
use std::sync::Arc;

use http::{HeaderMap, StatusCode};
use onceward_core::caller::Caller;
use onceward_core::class::Class;
use onceward_core::identity::{Endpoint, Identity};
use onceward_core::key::{Key, KeyError};
use onceward_core::record::{Record, State};
use percent_encoding::percent_decode_str;

use crate::answer;
use crate::duplicate::{awaited, preferred_wait};
use crate::problem::Problem;
use crate::rules::Rules;
use crate::run::{
    Outcome, ProtectedResponse, Protection, Reconciled, apply_duplicate_create, host,
    store_unavailable,
};

/// The part of a recovery path between the endpoint's path and the key.
const MARK: &str = "/by-idempotency-key/";

/// The part that a recovery request asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecoveryTarget {
    /// The reply; waits until the operation has finished.
    Reply,
    /// The reply, if the operation has finished.
    Output,
    /// The status document.
    Status,
}

impl RecoveryTarget {
    /// Splits `{name}[/output|/status]` into the name and the target.
    pub fn split(rest: &str) -> Option<(&str, Self)> {
        match rest.split_once('/') {
            None => Some((rest, Self::Reply)),
            Some((name, "output")) => Some((name, Self::Output)),
            Some((name, "status")) => Some((name, Self::Status)),
            Some(_) => None,
        }
    }
}

/// A parsed recovery path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecoveryPath<'a> {
    /// The endpoint's own path.
    pub path: &'a str,
    /// The key, percent-decoded; an error if it is not UTF-8.
    pub key: Result<String, KeyError>,
    /// The requested part.
    pub target: RecoveryTarget,
}

impl<'a> RecoveryPath<'a> {
    /// Parses `{path}/by-idempotency-key/{key}[/output|/status]`; `None` for any
    /// other path. The key is percent-decoded once.
    pub fn parse(path: &'a str) -> Option<Self> {
        let (path, rest) = path.rsplit_once(MARK)?;
        let (key, target) = RecoveryTarget::split(rest)?;
        let key = match percent_decode_str(key).decode_utf8() {
            Ok(key) => Ok(key.into_owned()),
            Err(_) => Err(KeyError::Charset),
        };
        // The endpoint's path is the root, whose slash belongs to the mark.
        let path = if path.is_empty() { "/" } else { path };
        Some(Self { path, key, target })
    }
}

/// The caller of a recovery request, and the settings of its route.
#[derive(Clone, Copy)]
pub struct RecoveryContext<'a> {
    /// The caller of this request.
    pub caller: &'a Caller,
    /// The route's class.
    pub class: &'a Class,
    /// The other settings of the route.
    pub rules: &'a Rules,
    /// The headers of the request, with the `Host` that the client asked for.
    pub headers: &'a HeaderMap,
}

/// Without headers, which may hold secrets.
impl fmt::Debug for RecoveryContext<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RecoveryContext")
            .field("caller", &self.caller)
            .field("class", &self.class.name)
            .field("rules", &self.rules)
            .finish_non_exhaustive()
    }
}

/// Answers a recovery request by key for an endpoint with this path. The
/// endpoints are tried in order. Any caller but the operation's own gets the same
/// answer as for an operation that never existed.
pub async fn recover(
    protection: &Protection,
    context: RecoveryContext<'_>,
    (endpoints, path): (&[Endpoint], &str),
    key: &Key,
    target: RecoveryTarget,
) -> ProtectedResponse {
    for endpoint in endpoints {
        let identity = Identity {
            caller: context.caller.clone(),
            endpoint: endpoint.clone(),
            key: key.clone(),
            space: context.rules.space,
        };
        match protection.engine.look(&identity.digest()).await {
            Ok(Some(record))
                if is_theirs(protection, &record, &identity, context)
                    && protection.is_at(&record, context.rules, path) =>
            {
                let ended = give(protection, context, record, target).await;
                return apply_duplicate_create(ended, context.rules);
            }
            Ok(_) => {}
            Err(error) => return ProtectedResponse::refused(store_unavailable(&error)),
        }
    }
    ProtectedResponse::refused(Problem::no_operation())
}

/// Answers a recovery request for an operation that was found by its id and
/// belongs to the context's caller.
pub async fn recover_record(
    protection: &Protection,
    context: RecoveryContext<'_>,
    record: Arc<Record>,
    target: RecoveryTarget,
) -> ProtectedResponse {
    let host = host(context.headers, None);
    if !protection.is_sender(&record, context.rules, context.headers, host) {
        return ProtectedResponse::refused(Problem::no_operation());
    }
    let ended = give(protection, context, record, target).await;
    apply_duplicate_create(ended, context.rules)
}

/// Whether the record belongs to this endpoint and caller. In a key space wider
/// than the endpoint, the record may be another endpoint's, and is then recovered
/// only there.
fn is_theirs(
    protection: &Protection,
    record: &Record,
    wanted: &Identity,
    context: RecoveryContext<'_>,
) -> bool {
    let there = &record.identity;
    there.endpoint == wanted.endpoint
        && there.caller == wanted.caller
        && protection.is_sender(
            record,
            context.rules,
            context.headers,
            host(context.headers, None),
        )
}

async fn give(
    protection: &Protection,
    context: RecoveryContext<'_>,
    record: Arc<Record>,
    target: RecoveryTarget,
) -> ProtectedResponse {
    let record = reconciled(protection, context.class, record).await;
    let runs = matches!(record.state, State::Queued | State::Running);
    match target {
        RecoveryTarget::Status => status_response(&record, StatusCode::OK),
        RecoveryTarget::Output if runs => status_response(&record, StatusCode::ACCEPTED),
        RecoveryTarget::Reply if runs => {
            let wait = context.class.wait;
            let limit = preferred_wait(context.headers).map_or(wait, |own| own.min(wait));
            let follow = protection.engine.follow(record.clone());
            awaited(follow.settled(limit).await, record.id)
        }
        RecoveryTarget::Reply | RecoveryTarget::Output => {
            protection.engine.note_replay(&record);
            ProtectedResponse::from_record(&record)
        }
    }
}

/// The record after reconciliation, if its outcome was unknown.
async fn reconciled(protection: &Protection, class: &Class, record: Arc<Record>) -> Arc<Record> {
    if record.state != State::Unknown
        || protection.reconcile(&record, class).await == Reconciled::Unsure
    {
        return record;
    }
    match protection.engine.look(&record.digest).await {
        Ok(Some(settled)) if settled.fingerprint == record.fingerprint => settled,
        // The key is free or belongs to another request by now. Recovery runs
        // nothing, so it still reports the operation that was found.
        _ => record,
    }
}

fn status_response(record: &Record, status: StatusCode) -> ProtectedResponse {
    ProtectedResponse {
        outcome: Outcome::StatusRead,
        id: Some(record.id),
        response: Ok(answer::document(record, status)),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("/pay/by-idempotency-key/k1", Some(("/pay", Ok("k1"), RecoveryTarget::Reply)))]
    #[case("/by-idempotency-key/k1", Some(("/", Ok("k1"), RecoveryTarget::Reply)))]
    #[case("/pay/by-idempotency-key/k1/output", Some(("/pay", Ok("k1"), RecoveryTarget::Output)))]
    #[case("/pay/by-idempotency-key/k1/status", Some(("/pay", Ok("k1"), RecoveryTarget::Status)))]
    #[case("/pay/by-idempotency-key/k%2D1", Some(("/pay", Ok("k-1"), RecoveryTarget::Reply)))]
    #[case("/pay/by-idempotency-key/k%252Fx", Some(("/pay", Ok("k%2Fx"), RecoveryTarget::Reply)))]
    #[case("/pay/by-idempotency-key/%FF", Some(("/pay", Err("charset"), RecoveryTarget::Reply)))]
    #[case("/pay/by-idempotency-key/", Some(("/pay", Ok(""), RecoveryTarget::Reply)))]
    #[case("/pay/by-idempotency-key/k1/else", None)]
    #[case("/pay/by-idempotency-key/k1/output/more", None)]
    #[case("/pay", None)]
    fn recovery_paths_are_parsed(
        #[case] path: &str,
        #[case] want: Option<(&str, Result<&str, &str>, RecoveryTarget)>,
    ) {
        let got = RecoveryPath::parse(path);
        let got = got.as_ref().map(|recovery| {
            let key = recovery.key.as_ref().map(String::as_str);
            (
                recovery.path,
                key.map_err(|error| error.reason()),
                recovery.target,
            )
        });
        assert_eq!(got, want);
    }

    proptest! {
        #[test]
        fn any_path_is_parsed_or_no_recovery_path(path in "(/|%|by-idempotency-key|output|\\PC){0,40}") {
            if let Some(recovery) = RecoveryPath::parse(&path) {
                prop_assert!(recovery.path.starts_with('/') || path.starts_with(recovery.path));
            }
        }
    }
}
