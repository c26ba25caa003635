//! The scheduler's signature, and the requests that it refuses.

use std::io::Write;
use std::process::{Command, Stdio};
use std::time::Duration;

use hmac::{Hmac, KeyInit, Mac};
use onceward_core::key::KeyError;
use rstest::rstest;
use sha2::{Digest as _, Sha256};

use super::{NOW_S, TestClock, callers, headers, parts, quick_timing};
use crate::callers::scheduler::schedule_key;
use crate::callers::{AuthError, Authentication, Callers, Refusal, VerifiedCaller};
use crate::config::{self, KnownBy, Scope, SecretValue};

const SECRET: &str = "a-secret-of-the-scheduler";
const ENDPOINT: &str = "reports.run";
const KEY: &str = "sched:nightly:1700000000000";
const BODY: &[u8] = br#"{"day":1}"#;
const NOW_MS: u64 = NOW_S * 1000;
/// The example for senders, as it is published.
const PAGE: &str = include_str!("../../../../../docs/callers.md");

fn auth(secrets: &[&str]) -> config::Auth {
    let given = |secret: &&str| SecretValue::Given((*secret).into());
    config::Auth {
        scheduler: Some(config::Scheduler {
            secrets: secrets.iter().map(given).collect(),
            tolerance: Duration::from_secs(300),
        }),
        ..config::Auth::default()
    }
}

/// The signature as the documentation describes it, made without the code under
/// test.
fn sign(secret: &str, tenant: &str, project: &str, time: u64) -> String {
    let body = data_encoding::HEXLOWER.encode(&Sha256::digest(BODY));
    let text =
        format!("onceward.schedule.v1\n{tenant}\n{project}\n{ENDPOINT}\n{KEY}\n{time}\n{body}");
    let mut mac = <Hmac<Sha256> as KeyInit>::new_from_slice(secret.as_bytes()).expect("any length");
    mac.update(text.as_bytes());
    data_encoding::HEXLOWER.encode(&mac.finalize().into_bytes())
}

fn line(tenant: &str, project: &str, time: u64) -> String {
    let v1 = sign(SECRET, tenant, project, time);
    format!(r#"tenant="{tenant}", project="{project}", time={time}, v1="{v1}""#)
}

async fn verified(callers: &Callers, line: &str) -> Result<VerifiedCaller, AuthError> {
    verified_as(callers, line, ENDPOINT, KEY, BODY).await
}

async fn verified_as(
    callers: &Callers,
    line: &str,
    endpoint: &str,
    key: &str,
    body: &[u8],
) -> Result<VerifiedCaller, AuthError> {
    let headers = headers(&[("x-schedule-signature", line)]);
    match callers.authenticate(&headers).await? {
        Authentication::Signed(call) => call.verify(endpoint, key, body),
        Authentication::Verified(_) => panic!("known before the body was read"),
    }
}

#[tokio::test]
async fn a_signed_call_is_the_schedulers() {
    let callers = callers(&auth(&[SECRET])).await;
    let known = verified(&callers, &line("acme", "shop", NOW_MS)).await;
    let known = known.expect("known");
    assert_eq!(known.by(), KnownBy::Scheduler);
    let caller = known.caller(Scope::Project).expect("a caller");
    assert_eq!(caller.tenant(), "acme");
    assert_eq!(caller.project(), "shop");
    assert_eq!(caller.subject().to_string(), "service:scheduler");
}

#[tokio::test]
async fn a_signature_for_another_request_is_refused() {
    let callers = callers(&auth(&[SECRET])).await;
    let line = line("acme", "shop", NOW_MS);
    for (endpoint, key, body) in [
        ("reports.delete", KEY, BODY),
        (ENDPOINT, "sched:nightly:1700000000001", BODY),
        (ENDPOINT, "", BODY),
        (ENDPOINT, KEY, b"{}".as_slice()),
        (ENDPOINT, KEY, b"".as_slice()),
        // Lines moved from one part to the next give the same text.
        ("reports.run\nsched:nightly:1700000000000", "", BODY),
    ] {
        let error = verified_as(&callers, &line, endpoint, key, body).await;
        assert_eq!(error, Err(Refusal::Signature.into()), "{endpoint} {key}");
    }
}

#[tokio::test]
async fn a_changed_header_is_refused() {
    let callers = callers(&auth(&[SECRET])).await;
    let line = line("acme", "shop", NOW_MS);
    let later = (NOW_MS + 1).to_string();
    for (from, to) in [
        ("\"acme\"", "\"evil\""),
        ("\"shop\"", "\"vault\""),
        (NOW_MS.to_string().as_str(), later.as_str()),
    ] {
        let error = verified(&callers, &line.replacen(from, to, 1)).await;
        assert_eq!(error, Err(Refusal::Signature.into()), "{to}");
    }
}

#[rstest]
#[case::in_time(NOW_MS - 300_000, Ok(()))]
#[case::ahead_in_time(NOW_MS + 300_000, Ok(()))]
#[case::too_late(NOW_MS - 300_001, Err(Refusal::Time))]
#[case::too_early(NOW_MS + 300_001, Err(Refusal::Time))]
#[case::seconds_for_milliseconds(NOW_S, Err(Refusal::Time))]
#[case::the_epoch(0, Err(Refusal::Time))]
#[tokio::test]
async fn the_tolerance_is_enforced(#[case] time: u64, #[case] want: Result<(), Refusal>) {
    let callers = callers(&auth(&[SECRET])).await;
    let got = verified(&callers, &line("acme", "shop", time)).await;
    assert_eq!(got.map(|_| ()), want.map_err(AuthError::from));
}

#[rstest]
#[case::nothing("")]
#[case::not_a_dictionary("abc def")]
#[case::no_time(r#"tenant="a", project="b", v1="00""#)]
#[case::no_signature(r#"tenant="a", project="b", time=1700000000000"#)]
#[case::short_signature(r#"tenant="a", project="b", time=1700000000000, v1="00""#)]
#[case::time_below_zero(r#"tenant="a", project="b", time=-1, v1="00""#)]
#[case::time_in_words(r#"tenant="a", project="b", time="1700000000000", v1="00""#)]
#[case::tokens_for_strings(r#"tenant=a, project=b, time=1700000000000, v1="00""#)]
#[case::a_list(r#"tenant=("a" "b"), project="b", time=1700000000000, v1="00""#)]
#[case::newline(r#"tenant=%"a%0ab", project="b", time=1700000000000, v1="00""#)]
#[tokio::test]
async fn a_malformed_header_is_refused(#[case] line: &str) {
    let callers = callers(&auth(&[SECRET])).await;
    let error = verified(&callers, line).await.expect_err("malformed");
    assert!(matches!(
        error,
        AuthError::Refused(Refusal::Malformed(_) | Refusal::Caller(_))
    ));
}

#[rstest]
#[case("_local", "shop")]
#[case("acme", "_tenant")]
#[case("acme", "_platform")]
#[case("", "shop")]
#[case("acme", "")]
#[tokio::test]
async fn reserved_and_empty_names_are_refused(#[case] tenant: &str, #[case] project: &str) {
    let callers = callers(&auth(&[SECRET])).await;
    let error = verified(&callers, &line(tenant, project, NOW_MS)).await;
    let error = error.expect_err("reserved");
    assert!(matches!(error, AuthError::Refused(Refusal::Caller(_))));
}

#[tokio::test]
async fn names_beyond_ascii_are_written_as_display_strings() {
    let callers = callers(&auth(&[SECRET])).await;
    let v1 = sign(SECRET, "Zürich", "shop", NOW_MS);
    let line = format!(r#"tenant=%"Z%c3%bcrich", project="shop", time={NOW_MS}, v1="{v1}""#);
    let known = verified(&callers, &line).await.expect("known");
    assert_eq!(known.tenant(), "Zürich");
}

#[tokio::test]
async fn each_secret_is_valid_during_a_rotation() {
    let both = callers(&auth(&["the-new-secret-of-it", SECRET])).await;
    let line = line("acme", "shop", NOW_MS);
    verified(&both, &line).await.expect("known");
    let after = callers(&auth(&["the-new-secret-of-it"])).await;
    let error = verified(&after, &line).await;
    assert_eq!(error, Err(Refusal::Signature.into()));
}

#[tokio::test]
async fn a_short_secret_is_not_used() {
    let callers = callers(&auth(&["", "short"])).await;
    let v1 = sign("", "acme", "shop", NOW_MS);
    let line = format!(r#"tenant="acme", project="shop", time={NOW_MS}, v1="{v1}""#);
    assert_eq!(verified(&callers, &line).await, Err(AuthError::Unavailable));
}

#[tokio::test]
async fn an_unreadable_secret_makes_a_wrong_signature_unverifiable() {
    let mut auth = auth(&[SECRET]);
    let scheduler = auth.scheduler.as_mut().expect("configured");
    scheduler.secrets.push(SecretValue::OpenBao {
        path: "scheduler".to_owned(),
        field: "next".to_owned(),
    });
    let callers = callers(&auth).await;
    verified(&callers, &line("acme", "shop", NOW_MS))
        .await
        .expect("known by the other");
    let v1 = sign("the-next-secret-of-it", "acme", "shop", NOW_MS);
    let line = format!(r#"tenant="acme", project="shop", time={NOW_MS}, v1="{v1}""#);
    assert_eq!(verified(&callers, &line).await, Err(AuthError::Unavailable));
}

#[tokio::test]
async fn without_a_scheduler_signed_requests_are_refused() {
    let callers = callers(&config::Auth::default()).await;
    let error = verified(&callers, &line("acme", "shop", NOW_MS)).await;
    assert_eq!(error, Err(Refusal::NotTaken("schedules").into()));
}

/// The documentation's example, run as users would run it.
#[tokio::test]
async fn the_published_example_is_accepted() {
    let example = PAGE
        .split("```python\n")
        .nth(1)
        .and_then(|rest| rest.split("```").next())
        .expect("an example in Python");
    let python = Command::new("python3")
        .arg("-")
        .env("SCHEDULER_SECRET", SECRET)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn();
    // Without Python, the other tests still sign the same text in Rust.
    let Ok(mut python) = python else {
        return;
    };
    let mut input = python.stdin.take().expect("piped");
    input.write_all(example.as_bytes()).expect("written");
    drop(input);
    let output = python.wait_with_output().expect("ended");
    assert!(output.status.success());
    let printed = String::from_utf8(output.stdout).expect("text");
    let line = printed.lines().next().expect("a line");
    let line = line
        .strip_prefix("X-Schedule-Signature: ")
        .expect("a header");
    // The example signs for the current time.
    let mut parts = parts(&TestClock::new());
    parts.clock = crate::callers::WallClock::system();
    let callers = Callers::open_with_timing(&auth(&[SECRET]), parts, quick_timing()).await;
    let callers = callers.expect("callers");
    verified(&callers, line).await.expect("known");
}

#[rstest]
#[case("sched:nightly:1700000000000", Ok(()))]
#[case("sched:a.b_c~d-e:0", Ok(()))]
#[case("", Err(KeyError::Empty))]
#[case("nightly", Err(KeyError::Format))]
#[case("sched:", Err(KeyError::Format))]
#[case("sched::1", Err(KeyError::Format))]
#[case("sched:a:", Err(KeyError::Format))]
#[case("sched:a:-1", Err(KeyError::Format))]
#[case("sched:a:1:2", Err(KeyError::Format))]
#[case("sched:a b:1", Err(KeyError::Charset))]
#[case("sched:a/b:1", Err(KeyError::Charset))]
#[case("Sched:a:1", Err(KeyError::Format))]
fn the_schedulers_keys(#[case] raw: &str, #[case] want: Result<(), KeyError>) {
    let got = schedule_key(raw);
    assert_eq!(got.as_ref().map(|_| ()).map_err(|error| *error), want);
    if let Ok(key) = got {
        assert_eq!(key.as_str(), raw);
    }
}

#[test]
fn the_schedulers_keys_are_bounded() {
    let id = "a".repeat(255 - "sched::1".len());
    assert!(schedule_key(&format!("sched:{id}:1")).is_ok());
    let long = schedule_key(&format!("sched:{id}:12"));
    assert_eq!(long, Err(KeyError::TooLong));
}
