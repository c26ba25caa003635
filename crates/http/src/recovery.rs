//! Recovery: asking for the reply of an operation by its key, after the answer
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
use crate::problem::{Code, Problem};
use crate::run::{Ended, Outcome, Protection, awaited, preferred_wait, unavailable};

/// What stands between an endpoint's path and the key.
const MARK: &str = "/by-idempotency-key/";

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Want {
    /// The reply, waiting for it.
    Reply,
    /// The reply, if it is there.
    Output,
    /// How it stands.
    Status,
}

/// A recovery path, taken apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recovery<'a> {
    /// The endpoint's own path.
    pub path: &'a str,
    /// The key, if it is one.
    pub key: Result<Key, KeyError>,
    /// What is asked for.
    pub want: Want,
}

impl<'a> Recovery<'a> {
    /// Takes `{path}/by-idempotency-key/{key}[/output|/status]` apart; `None`
    /// for any other path. The key is percent-decoded once.
    pub fn parse(path: &'a str) -> Option<Self> {
        let (path, rest) = path.rsplit_once(MARK)?;
        let (key, want) = match rest.split_once('/') {
            None => (rest, Want::Reply),
            Some((key, "output")) => (key, Want::Output),
            Some((key, "status")) => (key, Want::Status),
            Some(_) => return None,
        };
        let key = match percent_decode_str(key).decode_utf8() {
            Ok(key) => Key::parse(&key),
            Err(_) => Err(KeyError::Charset),
        };
        // Beneath the root there is no second slash.
        let path = if path.is_empty() { "/" } else { path };
        Some(Self { path, key, want })
    }
}

/// Answers a recovery request. The endpoints are looked through in order. To
/// anybody but the operation's own caller it is as if it had never been.
pub async fn recover(
    protection: &Protection,
    class: &Class,
    caller: &Caller,
    endpoints: &[Endpoint],
    recovery: Recovery<'_>,
    headers: &HeaderMap,
) -> Ended {
    let key = match recovery.key {
        Ok(key) => key,
        Err(error) => return Ended::refused(Problem::invalid_key(error)),
    };
    for endpoint in endpoints {
        let identity = Identity {
            caller: caller.clone(),
            endpoint: endpoint.clone(),
            key: key.clone(),
        };
        match protection.engine.look(&identity.digest()).await {
            Ok(Some(record)) if protection.is_sender(&record, headers) => {
                return give(protection, class, &record, recovery.want, headers).await;
            }
            Ok(_) => {}
            Err(error) => return Ended::refused(unavailable(&error)),
        }
    }
    Ended::refused(Problem::new(
        Code::NoOperation,
        "There is no operation with this key.",
    ))
}

async fn give(
    protection: &Protection,
    class: &Class,
    record: &Arc<Record>,
    want: Want,
    headers: &HeaderMap,
) -> Ended {
    let runs = matches!(record.state, State::Queued | State::Running);
    match want {
        Want::Status => told(record, StatusCode::OK),
        Want::Output if runs => told(record, StatusCode::ACCEPTED),
        Want::Reply if runs => {
            let limit = preferred_wait(headers).map_or(class.wait, |wait| wait.min(class.wait));
            let follow = protection.engine.follow(record.clone());
            awaited(follow.settled(limit).await, record.id)
        }
        Want::Reply | Want::Output => Ended::from_record(record),
    }
}

fn told(record: &Record, status: StatusCode) -> Ended {
    Ended {
        outcome: Outcome::Told,
        id: Some(record.id),
        answer: Ok(answer::document(record, status)),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("/pay/by-idempotency-key/k1", Some(("/pay", Ok("k1"), Want::Reply)))]
    #[case("/by-idempotency-key/k1", Some(("/", Ok("k1"), Want::Reply)))]
    #[case("/pay/by-idempotency-key/k1/output", Some(("/pay", Ok("k1"), Want::Output)))]
    #[case("/pay/by-idempotency-key/k1/status", Some(("/pay", Ok("k1"), Want::Status)))]
    #[case("/pay/by-idempotency-key/k%2D1", Some(("/pay", Ok("k-1"), Want::Reply)))]
    #[case("/pay/by-idempotency-key/k%252Fx", Some(("/pay", Err("charset"), Want::Reply)))]
    #[case("/pay/by-idempotency-key/", Some(("/pay", Err("empty"), Want::Reply)))]
    #[case("/pay/by-idempotency-key/k1/else", None)]
    #[case("/pay/by-idempotency-key/k1/output/more", None)]
    #[case("/pay", None)]
    fn paths(#[case] path: &str, #[case] want: Option<(&str, Result<&str, &str>, Want)>) {
        let got = Recovery::parse(path);
        let got = got.as_ref().map(|recovery| {
            let key = recovery.key.as_ref().map(Key::as_str);
            (
                recovery.path,
                key.map_err(|error| error.reason()),
                recovery.want,
            )
        });
        assert_eq!(got, want);
    }

    proptest! {
        #[test]
        fn any_path_is_taken_apart_or_left_alone(path in "(/|%|by-idempotency-key|output|\\PC){0,40}") {
            if let Some(recovery) = Recovery::parse(&path) {
                prop_assert!(recovery.path.starts_with('/') || path.starts_with(recovery.path));
            }
        }
    }
}
