//! The library on the memory store, by a clock that is moved.

use std::sync::Arc;
use std::time::Duration;

use rstest::rstest;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::content::prior;
use super::*;
use crate::class::{AfterLoss, Expiry};
use crate::clock::{ManualClock, Timestamp};
use crate::engine::{Engine, Limits};
use crate::entropy::Entropy;
use crate::memory::MemoryStore;
use crate::namespace::Namespace;
use crate::record::{Reply, State};
use crate::store::{Changed, Filter, Inspect, PageRequest, Resolution};

const LEASE: Duration = Duration::from_secs(60);
const DAY: Duration = Duration::from_secs(24 * 60 * 60);

struct Fixture {
    clock: Arc<ManualClock>,
    store: Arc<MemoryStore>,
    engine: Arc<Engine>,
    records: Records,
    key: ScopedKey,
}

fn namespace(name: &str) -> Namespace {
    Namespace::new(name).expect("a good name")
}

fn key(name: &str) -> ScopedKey {
    let key = parse_key(&namespace("mail"), Some(name));
    key.expect("a good key").expect("a key")
}

impl Fixture {
    fn new() -> Self {
        Self::with_options(RecordOptions::default())
    }

    fn with_options(options: RecordOptions) -> Self {
        let clock = Arc::new(ManualClock::new(Timestamp::from_unix_ms(1_700_000_000_000)));
        let store = Arc::new(MemoryStore::new(clock.clone()));
        let engine = Engine::new(store.clone(), Entropy::seeded(1), Limits::default());
        let records = Records::new(engine.clone(), store.clone(), namespace("mail"));
        Self {
            records: records.with_options(&options).expect("good choices"),
            clock,
            store,
            engine,
            key: key("k"),
        }
    }

    fn raw(&self) -> RawStore<Records> {
        self.records.raw()
    }

    async fn begin(&self, request: &Value) -> Result<Begun<Value, Value>, Error> {
        self.raw().begin(&self.key, request).await
    }

    async fn fresh(&self, request: &Value) -> Fresh {
        match self.begin(request).await {
            Ok(Begun::Fresh(fresh)) => fresh,
            other => panic!("not fresh: {other:?}"),
        }
    }

    async fn commit(&self, request: &Value, result: &Value) {
        let fresh = self.fresh(request).await;
        let done = self.raw().commit(fresh, result).await;
        done.expect("the claim is ours");
    }

    /// Waits for the engine's background tasks.
    async fn settle_down(&self) {
        self.engine.tasks().close();
        self.engine.tasks().wait().await;
        self.engine.tasks().reopen();
    }
}

#[tokio::test]
async fn result_is_given_again_and_never_made_again() {
    let fixture = Fixture::new();
    let request = json!({"to": "anna", "copies": 1});
    fixture.commit(&request, &json!({"id": 7})).await;
    let reordered = json!({"copies": 1.0, "to": "anna"});
    for request in [request, reordered] {
        let again = fixture.begin(&request).await.expect("an outcome");
        assert!(matches!(again, Begun::PriorResult(result) if result == json!({"id": 7})));
    }
}

#[tokio::test]
async fn error_for_good_is_given_again() {
    let fixture = Fixture::new();
    let fresh = fixture.fresh(&json!(1)).await;
    let refused = StoredError {
        cause: Some("no such card: it was cancelled".to_owned()),
        ..StoredError::new("declined", "the card was declined")
    };
    let failed = fixture.raw().fail_permanent(fresh, &refused).await;
    failed.expect("the claim is ours");
    let again = fixture.begin(&json!(1)).await.expect("an outcome");
    assert!(matches!(again, Begun::PriorError(error) if error == refused));
}

#[derive(Debug, thiserror::Error)]
#[error("no such card")]
struct Cancelled(#[source] std::io::Error);

#[derive(Debug, thiserror::Error)]
#[error("the card was declined")]
struct Declined(#[source] Cancelled);

impl Failure for Declined {
    fn class(&self) -> &str {
        "declined"
    }

    fn restore(stored: &StoredError) -> Option<Self> {
        let cause = std::io::Error::other(stored.cause.clone().unwrap_or_default());
        (stored.class == "declined").then_some(Self(Cancelled(cause)))
    }
}

#[test]
fn causes_are_kept_in_one_line() {
    let error = Declined(Cancelled(std::io::Error::other("it was cancelled")));
    let stored = StoredError::of(&error);
    assert_eq!(stored.class, "declined");
    assert_eq!(stored.message, "the card was declined");
    assert_eq!(
        stored.cause.as_deref(),
        Some("no such card: it was cancelled")
    );
    assert!(stored.restore::<Declined>().is_ok());
}

#[test]
fn an_error_of_an_unknown_class_keeps_tag_and_message() {
    let stored = StoredError::new("overdrawn", "the account is overdrawn");
    let internal = stored.clone().restore::<Declined>().expect_err("not known");
    assert_eq!(internal.0, stored);
    assert_eq!(
        internal.to_string(),
        "an error of the unknown class \"overdrawn\" was recorded: the account is overdrawn"
    );
}

#[tokio::test]
async fn a_transient_failure_lets_the_next_request_run() {
    let fixture = Fixture::new();
    let first = fixture.fresh(&json!(1)).await;
    let (id, fence) = (first.id(), first.fence());
    fixture.raw().fail_transient(first).await.expect("ours");
    // Free for any request.
    let second = fixture.fresh(&json!(2)).await;
    assert_eq!(second.id(), id);
    assert!(second.fence() > fence);
}

#[tokio::test]
async fn a_mismatch_beats_in_flight() {
    let fixture = Fixture::new();
    let fresh = fixture.fresh(&json!({"to": "anna"})).await;
    let same = fixture.begin(&json!({"to": "anna"})).await;
    assert!(matches!(same, Ok(Begun::InFlight)));
    let other = fixture.begin(&json!({"to": "otto"})).await;
    let Ok(Begun::Mismatch(mismatch)) = other else {
        panic!("not a mismatch: {other:?}");
    };
    assert!(matches!(mismatch.recorded, RecordedRequest::NotKept));
    assert_ne!(mismatch.recorded_hash, mismatch.submitted_hash);
    fixture.raw().commit(fresh, &json!(1)).await.expect("ours");
    let later = fixture.begin(&json!({"to": "otto"})).await;
    assert!(matches!(later, Ok(Begun::Mismatch(_))));
}

#[tokio::test]
async fn an_abandoned_claim_is_an_unknown_outcome() {
    let fixture = Fixture::new();
    let fresh = fixture.fresh(&json!(1)).await;
    let id = fresh.id();
    fixture.clock.advance(LEASE);
    let error = fixture
        .begin(&json!(1))
        .await
        .expect_err("the outcome is unknown");
    assert!(matches!(error, Error::UnknownOutcome { operation } if operation == id));
    assert!(error.to_string().contains(&id.to_string()));
    // The earlier holder may still come.
    fixture
        .raw()
        .commit(fresh, &json!("late"))
        .await
        .expect("ours");
    let again = fixture.begin(&json!(1)).await;
    assert!(matches!(again, Ok(Begun::PriorResult(result)) if result == "late"));
}

#[tokio::test]
async fn a_dropped_claim_is_abandoned_at_once() {
    let fixture = Fixture::new();
    drop(fixture.fresh(&json!(1)).await);
    fixture.settle_down().await;
    let error = fixture
        .begin(&json!(1))
        .await
        .expect_err("the outcome is unknown");
    assert!(matches!(error, Error::UnknownOutcome { .. }));
}

#[tokio::test]
async fn a_stale_holder_gets_an_error() {
    let fixture = Fixture::with_options(RecordOptions {
        after_loss: AfterLoss::Free,
        ..RecordOptions::default()
    });
    let first = fixture.fresh(&json!(1)).await;
    fixture.clock.advance(LEASE);
    let second = fixture.fresh(&json!(1)).await;
    let (operation, fence) = (first.id(), first.fence());
    let error = fixture.raw().renew(&first).await;
    let error = error.expect_err("it was granted again");
    assert!(matches!(error, Error::Stale { .. }), "{error:?}");
    let error = fixture.raw().commit(first, &json!("first")).await;
    let error = error.expect_err("it was granted again");
    let told =
        matches!(error, Error::Stale { operation: o, fence: f } if (o, f) == (operation, fence));
    assert!(told, "{error:?}");
    assert!(error.to_string().contains("roll back"));
    fixture
        .raw()
        .commit(second, &json!("second"))
        .await
        .expect("ours");
    let again = fixture.begin(&json!(1)).await;
    assert!(matches!(again, Ok(Begun::PriorResult(result)) if result == "second"));
}

#[tokio::test]
async fn renewed_lease_outlasts_its_length() {
    let fixture = Fixture::new();
    let fresh = fixture.fresh(&json!(1)).await;
    for _ in 0..3 {
        fixture.clock.advance(LEASE / 2);
        fixture.raw().renew(&fresh).await.expect("ours");
    }
    assert!(matches!(
        fixture.begin(&json!(1)).await,
        Ok(Begun::InFlight)
    ));
    assert_eq!(fresh.holding(async { 7 }).await, 7);
}

/// When each of three moments comes: within the window, after it, and after a
/// purge then.
#[rstest]
#[case::strict(Expiry::Strict, None, "replayed fresh fresh")]
#[case::lazy(Expiry::Lazy, None, "replayed replayed fresh")]
#[case::remembered(Expiry::Strict, Some(2 * DAY), "replayed gone gone")]
#[case::remembered_lazily(Expiry::Lazy, Some(2 * DAY), "replayed replayed gone")]
#[tokio::test]
async fn replays_end_with_their_window_or_a_purge(
    #[case] expiry: Expiry,
    #[case] remember: Option<Duration>,
    #[case] want: &str,
) {
    let options = RecordOptions {
        expiry,
        remember,
        ..RecordOptions::default()
    };
    let mut got = Vec::new();
    for moment in 0..3 {
        let fixture = Fixture::with_options(options);
        fixture.commit(&json!(1), &json!(2)).await;
        fixture
            .clock
            .advance(if moment == 0 { DAY - LEASE } else { DAY });
        if moment == 2 {
            fixture
                .raw()
                .purge_expired()
                .await
                .expect("a store that answers");
        }
        got.push(match fixture.begin(&json!(1)).await {
            Ok(Begun::PriorResult(_)) => "replayed",
            Ok(Begun::Fresh(_)) => "fresh",
            Err(Error::OutcomeGone { .. }) => "gone",
            other => panic!("{other:?}"),
        });
    }
    assert_eq!(got.join(" "), want);
}

#[tokio::test]
async fn purging_returns_the_number_of_operations() {
    let fixture = Fixture::new();
    for name in ["a", "b", "c"] {
        let Ok(Begun::Fresh(fresh)) = fixture.raw().begin(&key(name), &json!(1)).await else {
            panic!("not fresh");
        };
        fixture.raw().commit(fresh, &json!(1)).await.expect("ours");
    }
    assert_eq!(fixture.raw().purge_expired().await.expect("answers"), 0);
    fixture.clock.advance(DAY);
    assert_eq!(fixture.raw().purge_expired().await.expect("answers"), 3);
}

#[tokio::test]
async fn key_of_another_namespace_is_refused() {
    let fixture = Fixture::new();
    let stranger = Minter::new(namespace("sms")).mint(&["a"]).expect("minted");
    let error = fixture.raw().begin(&stranger, &json!(1)).await;
    assert_eq!(
        error.expect_err("not ours").to_string(),
        "the key belongs to the namespace `sms`, and these are the records of `mail`"
    );
}

#[tokio::test]
async fn namespaces_do_not_share_keys() {
    let fixture = Fixture::new();
    fixture.commit(&json!(1), &json!(1)).await;
    let inspect = fixture.store.clone();
    let elsewhere = Records::new(fixture.engine.clone(), inspect, namespace("sms"));
    let same = parse_key(&namespace("sms"), Some("k"))
        .expect("good")
        .expect("a key");
    let begun = elsewhere.raw().begin(&same, &json!(2)).await;
    assert!(matches!(begun, Ok(Begun::Fresh(_))));
}

#[tokio::test]
async fn requests_that_cannot_be_compared_or_kept_are_refused() {
    let fixture = Fixture::new();
    let deep = (0..200).fold(json!(1), |inner, _| json!([inner]));
    assert!(matches!(fixture.begin(&deep).await, Err(Error::TooDeep)));
    let large = Value::String("x".repeat(CONTENT_BYTES_MAX));
    let error = fixture.begin(&large).await.expect_err("too large");
    assert!(
        matches!(error, Error::TooLarge { what: "request", bytes } if bytes == CONTENT_BYTES_MAX + 2)
    );
    // Nothing was claimed by either.
    let fresh = fixture.fresh(&json!(1)).await;
    let error = fixture
        .raw()
        .commit(fresh, &large)
        .await
        .expect_err("too large");
    assert!(matches!(error, Error::TooLarge { what: "result", .. }));
}

#[derive(Debug, PartialEq, Deserialize, Serialize)]
struct Mail {
    to: String,
}

#[derive(Debug, PartialEq, Deserialize, Serialize)]
struct Sent {
    id: u32,
}

#[tokio::test]
async fn types_come_back_or_the_state_is_incompatible() {
    let fixture = Fixture::new();
    let mut mails = fixture.raw().typed::<Mail, Sent>();
    let mail = Mail {
        to: "anna".to_owned(),
    };
    let Ok(Begun::Fresh(fresh)) = mails.begin(&fixture.key, &mail).await else {
        panic!("not fresh");
    };
    let id = fresh.id();
    mails.commit(fresh, &Sent { id: 7 }).await.expect("ours");
    let again = mails.begin(&fixture.key, &mail).await;
    assert!(matches!(again, Ok(Begun::PriorResult(Sent { id: 7 }))));
    // The same, read by a program whose type has changed.
    let mut changed = fixture.raw().typed::<Mail, Vec<u8>>();
    let error = changed
        .begin(&fixture.key, &mail)
        .await
        .expect_err("another type");
    assert!(matches!(error, Error::IncompatibleState { operation, .. } if operation == id));
}

#[tokio::test]
async fn a_value_that_is_not_json_is_refused() {
    let fixture = Fixture::new();
    let mut store = fixture
        .raw()
        .typed::<std::collections::BTreeMap<Vec<u8>, u8>, ()>();
    let request = [(vec![1], 1)].into();
    let error = store
        .begin(&fixture.key, &request)
        .await
        .expect_err("no names");
    assert!(matches!(
        error,
        Error::Encode {
            what: "request",
            ..
        }
    ));
}

/// A resolution by an operator is an outcome.
#[rstest]
#[case::ran(200, br#"{"id":9}"#.as_slice(), "result {\"id\":9}")]
#[case::ran_without_json(204, b"".as_slice(), "incompatible")]
#[case::failed(404, b"no such".as_slice(), "recorded-elsewhere: recorded elsewhere, with status 404 (no such)")]
#[tokio::test]
async fn a_resolution_is_replayed_like_an_outcome(
    #[case] status: u16,
    #[case] body: &'static [u8],
    #[case] want: &str,
) {
    let fixture = Fixture::new();
    drop(fixture.fresh(&json!(1)).await);
    fixture.settle_down().await;
    let page = PageRequest::first(1);
    let listed = fixture
        .store
        .list(&Filter::default(), page)
        .await
        .expect("answers");
    let record = &listed.records[0];
    assert_eq!(record.identity.caller.tenant(), "_library");
    assert_eq!(record.identity.caller.project(), "mail");
    assert_eq!(record.identity.endpoint.as_str(), "mail");
    assert_eq!(record.state, State::Unknown);
    let reply = Reply {
        status,
        headers: Vec::new(),
        body: body.into(),
        trailers: Vec::new(),
    };
    let word = Resolution::Ran(Arc::new(reply));
    let resolved = fixture
        .store
        .resolve(record.id, Some(record.fence), word)
        .await;
    assert_eq!(resolved.expect("answers"), Changed::Done);
    let got = match fixture.begin(&json!(1)).await {
        Ok(Begun::PriorResult(result)) => format!("result {result}"),
        Ok(Begun::PriorError(error)) => {
            let cause = error.cause.clone().unwrap_or_default();
            format!("{}: {error} ({cause})", error.class)
        }
        Err(Error::IncompatibleState { .. }) => "incompatible".to_owned(),
        other => panic!("{other:?}"),
    };
    assert_eq!(got, want);
}

/// Records outlive the program that wrote them.
#[tokio::test]
async fn written_form_is_fixed() {
    let fixture = Fixture::new();
    fixture
        .commit(&json!({"b": 1, "a": [2.0]}), &json!({"id": 7}))
        .await;
    let page = PageRequest::first(1);
    let listed = fixture
        .store
        .list(&Filter::default(), page)
        .await
        .expect("answers");
    let record = fixture
        .store
        .show(listed.records[0].id)
        .await
        .expect("answers");
    let record = record.expect("on record");
    // printf '{"a":[2],"b":1}' | sha256sum
    assert_eq!(
        data_encoding::HEXLOWER.encode(&record.fingerprint.digest),
        "63c9663de90ee828bbda6cd9acf02d0c653986c1ec25aa239920641edc9a1de5"
    );
    let body = br#"{"class":"declined","message":"no"}"#;
    let reply = Reply {
        status: 422,
        headers: vec![(
            "content-type".into(),
            "application/vnd.onceward.error+json; version=1".into(),
        )],
        body: body.as_slice().into(),
        trailers: Vec::new(),
    };
    let mut failed = crate::record::Record::clone(&record);
    failed.state = State::Failed;
    failed.answer = Some(crate::record::Answer::Kept(Arc::new(reply)));
    let stored = StoredError::new("declined", "no");
    assert_eq!(
        prior::<Value>(&failed).expect("read"),
        content::Prior::Error(stored.clone())
    );
    let written = content::error_reply(&stored).expect("small");
    assert_eq!(Some(crate::record::Answer::Kept(written)), failed.answer);
}

#[rstest]
#[case::created(
    Outcome::created(Sent { id: 7 }),
    r#"{"version":1,"kind":"Created","result":{"id":7}}"#
)]
#[case::pre_existing(
    told(Begun::PriorResult(Sent { id: 7 })),
    r#"{"version":1,"kind":"PreExisting","result":{"id":7}}"#
)]
#[case::in_progress(told(Begun::InFlight), r#"{"version":1,"kind":"OperationInProgress"}"#)]
#[case::mismatch(told(Begun::Mismatch(secret())), r#"{"version":1,"kind":"Mismatch"}"#)]
#[case::failed(
    told(Begun::PriorError(StoredError {
        cause: Some("the caller need not know".to_owned()),
        ..StoredError::new("declined", "no")
    })),
    r#"{"version":1,"kind":"Failed","error":{"code":"declined","message":"no"}}"#
)]
#[case::fails(
    Outcome::failed(&StoredError::new("declined", "no")),
    r#"{"version":1,"kind":"Failed","error":{"code":"declined","message":"no"}}"#
)]
fn outcomes_on_the_wire(#[case] outcome: Outcome<Sent>, #[case] want: &str) {
    let written = serde_json::to_string(&outcome).expect("JSON");
    assert_eq!(written, want);
    let read: Outcome<Sent> = serde_json::from_str(&written).expect("it reads back");
    assert_eq!(read, outcome);
}

fn told(begun: Begun<Mail, Sent>) -> Outcome<Sent> {
    begun.outcome().expect("nothing to run")
}

fn secret() -> Mismatch<Mail> {
    let hash = content::Request::of(&json!(1)).expect("small").fingerprint;
    Mismatch {
        recorded: RecordedRequest::Kept(Mail {
            to: "secret".to_owned(),
        }),
        recorded_hash: hash,
        submitted_hash: hash,
    }
}

#[test]
fn outcome_of_another_version_is_refused() {
    let newer = r#"{"version":2,"kind":"Mismatch"}"#;
    let error = serde_json::from_str::<Outcome<Sent>>(newer).expect_err("newer");
    assert!(error.to_string().contains("version 2"), "{error}");
}
