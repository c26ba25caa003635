//! RecoveryPath: asking for the reply of an operation by its key, after the answer
//! was lost and the request is gone.

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

/// What stands between an endpoint's path and the key.
const MARK: &str = "/by-idempotency-key/";

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecoveryTarget {
    /// The reply, waiting for it.
    Reply,
    /// The reply, if it is there.
    Output,
    /// How it stands.
    Status,
}

impl RecoveryTarget {
    /// Splits what is asked about from what is asked for: `{name}[/output|/status]`.
    pub fn split(rest: &str) -> Option<(&str, Self)> {
        match rest.split_once('/') {
            None => Some((rest, Self::Reply)),
            Some((name, "output")) => Some((name, Self::Output)),
            Some((name, "status")) => Some((name, Self::Status)),
            Some(_) => None,
        }
    }
}

/// A recovery path, taken apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecoveryPath<'a> {
    /// The endpoint's own path.
    pub path: &'a str,
    /// What stands where the key does, decoded, if it is text at all.
    pub key: Result<String, KeyError>,
    /// What is asked for.
    pub target: RecoveryTarget,
}

impl<'a> RecoveryPath<'a> {
    /// Takes `{path}/by-idempotency-key/{key}[/output|/status]` apart; `None`
    /// for any other path. The key is percent-decoded once.
    pub fn parse(path: &'a str) -> Option<Self> {
        let (path, rest) = path.rsplit_once(MARK)?;
        let (key, target) = RecoveryTarget::split(rest)?;
        let key = match percent_decode_str(key).decode_utf8() {
            Ok(key) => Ok(key.into_owned()),
            Err(_) => Err(KeyError::Charset),
        };
        // Beneath the root there is no second slash.
        let path = if path.is_empty() { "/" } else { path };
        Some(Self { path, key, target })
    }
}

/// Who asks, and what the route chose.
#[derive(Clone, Copy)]
pub struct RecoveryContext<'a> {
    /// The present caller.
    pub caller: &'a Caller,
    /// The route's class.
    pub class: &'a Class,
    /// What else the route chose.
    pub rules: &'a Rules,
    /// The headers of the request, with the `Host` that the client asked for.
    pub headers: &'a HeaderMap,
}

/// Answers a recovery request by key, beneath this path. The endpoints are
/// looked through in order. To anybody but the operation's own caller it is as if it had never
/// been.
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

/// Answers a request for an operation that was found by its id and is the
/// context's own.
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

/// A key space wider than the endpoint finds what another endpoint did; that is
/// told there, not here.
fn is_theirs(
    protection: &Protection,
    record: &Record,
    asked: &Identity,
    context: RecoveryContext<'_>,
) -> bool {
    let there = &record.identity;
    there.endpoint == asked.endpoint
        && there.caller == asked.caller
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

/// The record after whoever knows was asked what became of it.
async fn reconciled(protection: &Protection, class: &Class, record: Arc<Record>) -> Arc<Record> {
    if record.state != State::Unknown
        || protection.reconcile(&record, class).await == Reconciled::Unsure
    {
        return record;
    }
    match protection.engine.look(&record.digest).await {
        Ok(Some(settled)) if settled.fingerprint == record.fingerprint => settled,
        // Free again, or already another's: for who only asks, it is what it was.
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
    fn paths(#[case] path: &str, #[case] want: Option<(&str, Result<&str, &str>, RecoveryTarget)>) {
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
        fn any_path_is_taken_apart_or_left_alone(path in "(/|%|by-idempotency-key|output|\\PC){0,40}") {
            if let Some(recovery) = RecoveryPath::parse(&path) {
                prop_assert!(recovery.path.starts_with('/') || path.starts_with(recovery.path));
            }
        }
    }
}
