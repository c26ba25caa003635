//! Joined routes: the application commits the outcome itself, under the fence
//! that it was given, and the record arbitrates.
//!
//! The application here follows a script: what it commits, and whether it answers.
//! The store is the model, so the results apply to every store that passes the
//! conformance suite.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Request, Response};
use http_body_util::BodyExt;
use http_body_util::channel::Channel;
use onceward_core::caller::Caller;
use onceward_core::class::{Backoff, Class, OnExhausted, OnStoreFailure, OnUnknown};
use onceward_core::engine::{Engine, Limits};
use onceward_core::entropy::Entropy;
use onceward_core::fingerprint::Fingerprinter;
use onceward_core::identity::{Digest, Endpoint, Identity, KeySpace};
use onceward_core::key::Key;
use onceward_core::record::{Answer, Fence, Reply, Settled, Settlement, State};
use onceward_core::store::{Force, Inspect, Resolution, Store};
use onceward_http::body::{self, Body, BoxError};
use onceward_http::problem::ProblemLinks;
use onceward_http::rules::{Credentials, Rules};
use onceward_http::run::{Call, Granted, Protection, Unanswered, run};
use rstest::rstest;
use tokio::sync::Notify;

use crate::faults::Faulty;
use crate::harness::until;

/// The steps of the application, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Does {
    /// Commits a reply with this status.
    Commits(u16),
    /// Commits a 201 in its second run.
    CommitsSecond,
    /// Commits that there is no reply to keep, only this status.
    CommitsBare(u16),
    /// Answers with this status.
    Answers(u16),
    /// Answers with more than is kept.
    AnswersAtLength(u16),
    /// Begins to answer at length and breaks off.
    BreaksOff(u16),
    /// Breaks the connection.
    Breaks,
    /// Takes longer than the gateway waits.
    Hangs,
    /// Cannot be reached.
    IsAway,
    /// An operator resolves, meanwhile, that it did not run.
    IsResolved,
}
use Does::{
    Answers, AnswersAtLength, Breaks, BreaksOff, Commits, CommitsBare, CommitsSecond, Hangs,
    IsAway, IsResolved,
};

const LONG: usize = 5000;

/// A gateway's joined route, and the application behind it.
struct Pair {
    protection: Arc<Protection>,
    faulty: Arc<Faulty>,
    class: Arc<Class>,
    runs: Arc<AtomicUsize>,
    /// The fences that the application was given.
    fences: Arc<Mutex<Vec<Fence>>>,
    /// Lets a hanging application continue.
    go_on: Arc<Notify>,
}

/// The answer to a client.
#[derive(Debug)]
struct Got {
    status: u16,
    headers: HeaderMap,
    body: Result<String, String>,
}

impl Got {
    /// Status and body, or the code of a problem; a star where it is a replay.
    fn brief(&self) -> String {
        let replayed = self.headers.contains_key("idempotent-replayed");
        let star = if replayed { "*" } else { "" };
        let body = match &self.body {
            Ok(body) if body.len() == LONG => "whole",
            Ok(body) if body.starts_with('{') => {
                let code = body.split("\"code\":\"").nth(1);
                code.and_then(|rest| rest.split('"').next()).unwrap()
            }
            Ok(body) => body,
            Err(_) => "broken",
        };
        format!("{}{star} {body}", self.status)
    }

    fn header(&self, name: &str) -> &str {
        self.headers
            .get(name)
            .map_or("", |value| value.to_str().unwrap())
    }
}

fn class() -> Class {
    Class::interactive().with(|class| class.lease = Duration::from_secs(60))
}

/// A class with this many attempts, without pauses.
fn patient(max_attempts: u32) -> Class {
    class().with(|class| {
        class.max_attempts = max_attempts;
        class.backoff = Backoff::new(Duration::ZERO, Duration::ZERO);
    })
}

fn pair(class: Class) -> Pair {
    pair_on(Faulty::new(), class, 1)
}

/// The seed distinguishes gateways that share a store.
fn pair_on(faulty: Arc<Faulty>, class: Class, seed: u64) -> Pair {
    let limits =
        Limits::default().with(|limits| limits.store_deadline = Duration::from_millis(200));
    let engine = Engine::new(faulty.clone(), Entropy::seeded(seed), limits);
    Pair {
        protection: Arc::new(Protection::new(engine, Fingerprinter::plain())),
        faulty,
        class: Arc::new(class),
        runs: Arc::default(),
        fences: Arc::default(),
        go_on: Arc::default(),
    }
}

impl Pair {
    /// Sends the request; `does` is what the application does with it.
    async fn send(&self, does: &'static [Does]) -> Got {
        self.ask_for("a", does).await
    }

    /// The same with this body: under one key, another request.
    async fn ask_for(&self, body: &'static str, does: &'static [Does]) -> Got {
        let rules = Rules::new(Credentials::Trusted).with(|rules| {
            rules.upstream_timeout = Duration::from_millis(1500);
            rules.reply_limit = 1000;
            rules.joined = true;
        });
        let request = Request::post("/pay").body(Bytes::from_static(body.as_bytes()));
        let Identity {
            caller,
            endpoint,
            key,
            ..
        } = identity();
        let settings = (self.class.clone(), Arc::new(rules));
        let call = Call::new((caller, endpoint), key, settings, request.unwrap());
        let application = Application {
            store: self.faulty.clone(),
            runs: self.runs.clone(),
            fences: self.fences.clone(),
            go_on: self.go_on.clone(),
        };
        let forward = move |_, granted: Option<Granted>| application.clone().run(granted, does);
        let ended = run(&self.protection, call, forward).await;
        let response = ended
            .response
            .unwrap_or_else(|problem| problem.to_response(&ProblemLinks::none(), "/pay"));
        let (parts, body) = response.into_parts();
        let body = body.collect().await.map_err(|error| error.to_string());
        Got {
            status: parts.status.as_u16(),
            headers: parts.headers,
            body: body.map(|body| String::from_utf8(body.to_bytes().into()).unwrap()),
        }
    }

    fn spawn_send(self: &Arc<Self>, does: &'static [Does]) -> tokio::task::JoinHandle<Got> {
        let this = self.clone();
        tokio::spawn(async move { this.send(does).await })
    }

    /// The state of the operation after all writes.
    async fn state(&self) -> Option<State> {
        until(|| self.engine().tasks().is_empty()).await;
        let record = self.faulty.inner.get(&digest()).await.unwrap();
        record.map(|record| record.state)
    }

    /// The store's answer to an application that commits under its last fence.
    async fn commit_late(&self) -> Settled {
        let fence = *self.fences.lock().unwrap().last().unwrap();
        let word = Settlement::Completed(Answer::Kept(reply(201, "late")));
        self.faulty
            .inner
            .settle(&digest(), fence, word)
            .await
            .unwrap()
    }

    fn engine(&self) -> &Arc<Engine> {
        &self.protection.engine
    }

    fn runs(&self) -> usize {
        self.runs.load(Ordering::SeqCst)
    }
}

/// An application that shares the store.
#[derive(Clone)]
struct Application {
    store: Arc<Faulty>,
    runs: Arc<AtomicUsize>,
    fences: Arc<Mutex<Vec<Fence>>>,
    go_on: Arc<Notify>,
}

impl Application {
    async fn run(
        self,
        granted: Option<Granted>,
        does: &'static [Does],
    ) -> Result<Response<Body>, Unanswered> {
        let run = self.runs.fetch_add(1, Ordering::SeqCst) + 1;
        let granted = granted.expect("a joined request is never forwarded without a grant");
        self.fences.lock().unwrap().push(granted.fence);
        for does in does {
            match *does {
                Commits(status) => {
                    let reply = reply(status, &format!("committed {run}"));
                    self.commit(granted.fence, status, Answer::Kept(reply))
                        .await;
                }
                CommitsSecond if run == 2 => {
                    let reply = reply(201, "committed 2");
                    self.commit(granted.fence, 201, Answer::Kept(reply)).await;
                }
                CommitsSecond => {}
                CommitsBare(status) => {
                    self.commit(granted.fence, status, Answer::NotKept { status })
                        .await;
                }
                Answers(status) => return Ok(answer(status, body::full(format!("said {run}")))),
                AnswersAtLength(status) => {
                    return Ok(answer(status, body::full("x".repeat(LONG))));
                }
                BreaksOff(status) => {
                    let (mut sender, channel) = Channel::<Bytes, BoxError>::new(1);
                    tokio::spawn(async move {
                        let _ = sender.send_data("x".repeat(2000).into()).await;
                        sender.abort("cut".into());
                    });
                    return Ok(answer(status, body::boxed(channel)));
                }
                Breaks => return Err(Unanswered::Lost("the connection broke".into())),
                IsAway => return Err(Unanswered::NotSent("connection refused".into())),
                Hangs => self.go_on.notified().await,
                IsResolved => self.resolve(&granted).await,
            }
        }
        unreachable!("an application answers or breaks");
    }

    /// As in a transaction: the outcome is recorded, or everything is rolled back.
    async fn commit(&self, fence: Fence, status: u16, answer: Answer) {
        let word = match State::of_status(status) {
            State::Failed => Settlement::Failed(answer),
            _ => Settlement::Completed(answer),
        };
        let settled = self.store.inner.settle(&digest(), fence, word).await;
        assert!(settled.unwrap().is_recorded());
    }

    async fn resolve(&self, granted: &Granted) {
        let lost = Settlement::Lost;
        let inner = &self.store.inner;
        inner.settle(&digest(), granted.fence, lost).await.unwrap();
        let word = Resolution::NotRun;
        inner.resolve(granted.id, None, word).await.unwrap();
    }
}

fn answer(status: u16, body: Body) -> Response<Body> {
    let response = Response::builder()
        .status(status)
        .header("set-cookie", "s=1");
    response.header("x-said", "live").body(body).unwrap()
}

fn reply(status: u16, body: &str) -> Arc<Reply> {
    let line = |name: &'static str, value: &'static str| {
        (
            Bytes::from_static(name.as_bytes()),
            Bytes::from_static(value.as_bytes()),
        )
    };
    Arc::new(Reply {
        status,
        headers: vec![line("x-said", "committed")],
        body: Bytes::copy_from_slice(body.as_bytes()),
        trailers: Vec::new(),
    })
}

fn identity() -> Identity {
    Identity {
        caller: Caller::local(),
        endpoint: Endpoint::new("payments.create"),
        key: Key::parse("k").unwrap(),
        space: KeySpace::Endpoint,
    }
}

fn digest() -> Digest {
    identity().digest()
}

const FREE: Option<State> = Some(State::Released);
const DONE: Option<State> = Some(State::Completed);
const FAILED: Option<State> = Some(State::Failed);

/// The steps of the application, the answer to the first caller, the state of the
/// operation, and the answer to a retry, for which the application commits.
#[rstest]
#[case::committed_and_answered(&[Commits(201), Answers(201)], "201 committed 1", "completed", DONE, "201* committed 1")]
#[case::committed_and_answered_otherwise(&[Commits(201), Answers(500)], "201 committed 1", "completed", DONE, "201* committed 1")]
#[case::committed_a_failure(&[Commits(422), Answers(422)], "422 committed 1", "failed", FAILED, "422* committed 1")]
#[case::committed_a_failure_and_said_well(&[Commits(422), Answers(200)], "422 committed 1", "failed", FAILED, "422* committed 1")]
#[case::committed_and_broke(&[Commits(201), Breaks], "201 committed 1", "completed", DONE, "201* committed 1")]
#[case::committed_and_hung(&[Commits(201), Hangs], "201 committed 1", "completed", DONE, "201* committed 1")]
#[case::committed_and_broke_off(&[Commits(201), BreaksOff(201)], "201 committed 1", "completed", DONE, "201* committed 1")]
#[case::committed_and_answered_at_length(&[Commits(201), AnswersAtLength(201)], "201 committed 1", "completed", DONE, "201* committed 1")]
#[case::committed_and_was_taken_for_away(&[Commits(201), IsAway], "201 committed 1", "completed", DONE, "201* committed 1")]
#[case::committed_without_a_reply(&[CommitsBare(201), Answers(201)], "201 said 1", "completed", DONE, "410 reply-not-kept")]
#[case::committed_without_a_reply_and_broke(&[CommitsBare(201), Breaks], "410 reply-not-kept", "completed", DONE, "410 reply-not-kept")]
#[case::committed_without_a_reply_at_length(&[CommitsBare(201), AnswersAtLength(201)], "201 whole", "completed", DONE, "410 reply-not-kept")]
#[case::committed_without_a_reply_and_broke_off(&[CommitsBare(201), BreaksOff(201)], "201 broken", "completed", DONE, "410 reply-not-kept")]
#[case::broke(&[Breaks], "502 upstream-unreachable", "released", FREE, "201 committed 2")]
#[case::hung(&[Hangs], "502 upstream-unreachable", "released", FREE, "201 committed 2")]
#[case::away(&[IsAway], "502 upstream-unreachable", "released", FREE, "201 committed 2")]
#[case::answered_well(&[Answers(200)], "200 said 1", "completed", DONE, "200* said 1")]
#[case::answered_a_refusal(&[Answers(422)], "422 said 1", "failed", FAILED, "422* said 1")]
#[case::answered_try_again(&[Answers(503)], "503 said 1", "released", FREE, "201 committed 2")]
#[case::answered_by_somebody_between(&[Answers(502)], "502 said 1", "released", FREE, "201 committed 2")]
#[case::answered_at_length(&[AnswersAtLength(200)], "200 whole", "processing", DONE, "410 reply-not-kept")]
#[case::answered_try_again_at_length(&[AnswersAtLength(503)], "503 whole", "released", FREE, "201 committed 2")]
#[case::answered_at_length_by_somebody_between(&[AnswersAtLength(504)], "504 whole", "released", FREE, "201 committed 2")]
#[case::broke_off(&[BreaksOff(200)], "200 broken", "processing", FREE, "201 committed 2")]
#[case::resolved_and_answered(&[IsResolved, Answers(200)], "409 in-progress", "released", FREE, "201 committed 2")]
#[case::resolved_and_broke(&[IsResolved, Breaks], "409 in-progress", "released", FREE, "201 committed 2")]
#[tokio::test]
async fn the_record_arbitrates(
    #[case] does: &'static [Does],
    #[case] first: &str,
    #[case] standing: &str,
    #[case] state: Option<State>,
    #[case] retry: &str,
) {
    let pair = pair(class());
    let got = pair.send(does).await;
    assert_eq!(got.brief(), first, "the first caller");
    assert_eq!(got.header("idempotency-status"), standing);
    assert_eq!(pair.state().await, state);
    let late = pair.commit_late().await;
    let kept = matches!(does[0], Commits(201) | CommitsBare(201)) || state == DONE;
    // A repeated outcome is not a second commit: the application sees that it
    // changed nothing. A released grant is stale.
    assert_eq!(late.is_recorded(), kept, "a late commit");
    assert_eq!(pair.state().await, state, "a late commit changes nothing");
    let again = pair.send(&[Commits(201), Answers(201)]).await;
    assert_eq!(again.brief(), retry, "a retry");
    let runs = if retry.contains("committed 2") { 2 } else { 1 };
    assert_eq!(pair.runs(), runs);
    assert_ne!(pair.state().await, Some(State::Unknown));
}

#[tokio::test]
async fn the_committed_reply_is_answered_with_the_headers_of_the_exchange() {
    let pair = pair(class());
    let got = pair.send(&[Commits(201), Answers(201)]).await;
    assert_eq!(got.header("x-said"), "committed");
    assert_eq!(got.header("set-cookie"), "s=1");
    assert!(!got.header("idempotency-expires").is_empty());
    assert!(got.header("x-operation-id").starts_with("op_"));
    let other = self::pair(class());
    let got = other.send(&[Commits(201), Answers(500)]).await;
    assert_eq!(got.header("x-said"), "committed");
    assert_eq!(got.header("set-cookie"), "", "an answer to something else");
}

#[tokio::test]
async fn a_waiter_gets_the_committed_reply() {
    let pair = Arc::new(pair(class()));
    let first = pair.spawn_send(&[Hangs, Commits(201), Breaks]);
    until(|| pair.runs() == 1).await;
    let second = pair.spawn_send(&[Answers(500)]);
    until(|| pair.engine().waiters() == 1).await;
    pair.go_on.notify_one();
    assert_eq!(first.await.unwrap().brief(), "201 committed 1");
    assert_eq!(second.await.unwrap().brief(), "201* committed 1");
    assert_eq!(pair.runs(), 1);
}

#[tokio::test]
async fn a_waiter_of_a_released_operation_may_retry() {
    let pair = Arc::new(pair(class()));
    let first = pair.spawn_send(&[Hangs, Breaks]);
    until(|| pair.runs() == 1).await;
    let second = pair.spawn_send(&[Answers(500)]);
    until(|| pair.engine().waiters() == 1).await;
    pair.go_on.notify_one();
    assert_eq!(first.await.unwrap().brief(), "502 upstream-unreachable");
    assert_eq!(second.await.unwrap().brief(), "409 in-progress");
}

/// The application has done its last step and not committed yet, for example:
/// the record's row is locked, and the store cannot take the release.
#[tokio::test]
async fn a_release_that_the_store_does_not_take_is_written_later() {
    let pair = Arc::new(pair(class()));
    let first = pair.spawn_send(&[Hangs, Breaks]);
    until(|| pair.runs() == 1).await;
    let second = pair.spawn_send(&[Answers(500)]);
    until(|| pair.engine().waiters() == 1).await;
    pair.faulty.refuse_outcomes.store(true, Ordering::SeqCst);
    pair.go_on.notify_one();
    let first = first.await.unwrap();
    assert_eq!(first.brief(), "504 outcome-unknown");
    assert_eq!(first.header("idempotency-status"), "unknown");
    // The release is not recorded yet, and the outcome is not unknown either.
    assert_eq!(second.await.unwrap().brief(), "409 in-progress");
    pair.faulty.refuse_outcomes.store(false, Ordering::SeqCst);
    assert_eq!(pair.state().await, FREE);
    assert_eq!(pair.commit_late().await, Settled::Stale);
    assert_eq!(
        pair.send(&[Commits(201), Breaks]).await.brief(),
        "201 committed 2"
    );
}

#[tokio::test]
async fn a_commit_before_a_release_that_comes_later_stands() {
    let pair = pair(class());
    pair.faulty.refuse_outcomes.store(true, Ordering::SeqCst);
    assert_eq!(pair.send(&[Breaks]).await.brief(), "504 outcome-unknown");
    assert!(pair.commit_late().await.is_recorded());
    pair.faulty.refuse_outcomes.store(false, Ordering::SeqCst);
    assert_eq!(pair.state().await, DONE);
    assert_eq!(pair.send(&[Breaks]).await.brief(), "201* late");
    assert_eq!(pair.runs(), 1);
}

#[tokio::test]
async fn a_single_unsent_attempt_is_certain_without_the_store() {
    for (attempts, want) in [(1, "502 upstream-unreachable"), (2, "504 outcome-unknown")] {
        let pair = pair(patient(attempts).with(|class| class.on_exhausted = OnExhausted::Kill));
        pair.faulty.refuse_outcomes.store(true, Ordering::SeqCst);
        assert_eq!(pair.send(&[IsAway]).await.brief(), want);
    }
}

/// The gateway tries again within one claim; the record shows when to stop.
#[tokio::test]
async fn attempts_end_with_the_commit() {
    let committed = pair(patient(5));
    let got = committed.send(&[Commits(201), Answers(503)]).await;
    assert_eq!(got.brief(), "201 committed 1");
    assert_eq!(committed.runs(), 1);
    let open = pair(patient(5));
    let got = open.send(&[Answers(503)]).await;
    assert_eq!((got.brief().as_str(), open.runs()), ("409 paused", 5));
    assert_eq!(open.commit_late().await, Settled::Stale);
}

#[tokio::test]
async fn a_commit_during_the_last_attempt_beats_the_pause() {
    let pair = pair(patient(2));
    let got = pair.send(&[CommitsSecond, Answers(503)]).await;
    assert_eq!((got.brief().as_str(), pair.runs()), ("201 committed 2", 2));
    assert_eq!(pair.state().await, DONE);
}

#[tokio::test]
async fn work_that_a_drain_cuts_off_is_released() {
    let pair = Arc::new(pair(class()));
    let cut = pair.spawn_send(&[Hangs, Breaks]);
    until(|| pair.runs() == 1).await;
    pair.engine().abandon();
    assert_eq!(cut.await.unwrap().brief(), "504 outcome-unknown");
    assert_eq!(pair.state().await, FREE);
    assert_eq!(pair.commit_late().await, Settled::Stale);
}

#[tokio::test]
async fn a_commit_stands_when_a_drain_cuts_its_answer_off() {
    let pair = Arc::new(pair(class()));
    let cut = pair.spawn_send(&[Commits(201), Hangs, Breaks]);
    until(|| pair.runs() == 1).await;
    until(|| pair.engine().running() == 1).await;
    pair.engine().abandon();
    assert_eq!(cut.await.unwrap().brief(), "504 outcome-unknown");
    assert_eq!(pair.state().await, DONE);
}

/// One gateway has ended and renews nothing; a client retries at another.
#[tokio::test]
async fn the_end_of_a_lease_frees_the_key_in_every_class() {
    for on_unknown in [OnUnknown::Hold, OnUnknown::Reconcile, OnUnknown::Retry] {
        let short = class().with(|class| {
            class.lease = Duration::from_millis(300);
            class.on_unknown = on_unknown;
        });
        let gone = Arc::new(pair(short.clone()));
        let other = pair_on(Faulty::over(gone.faulty.inner.clone()), short, 2);
        let cut = gone.spawn_send(&[Hangs, Hangs, Breaks]);
        until(|| gone.runs() == 1).await;
        gone.faulty.away.store(true, Ordering::SeqCst);
        let retried = loop {
            let got = other.send(&[Commits(201), Answers(201)]).await;
            if got.brief() != "409 in-progress" {
                break got;
            }
        };
        assert_eq!(retried.brief(), "201 committed 1", "{on_unknown:?}");
        assert_eq!(gone.commit_late().await, Settled::Stale);
        cut.abort();
    }
}

#[tokio::test]
async fn nothing_is_forwarded_unprotected_while_the_store_is_unavailable() {
    let pair = pair(class().with(|class| class.on_store_failure = OnStoreFailure::Bypass));
    pair.faulty.away.store(true, Ordering::SeqCst);
    assert_eq!(
        pair.send(&[Answers(200)]).await.brief(),
        "503 store-unavailable"
    );
    assert_eq!(pair.runs(), 0);
}

#[tokio::test]
async fn an_answer_whose_record_cannot_be_read_is_given_and_settled_later() {
    let pair = Arc::new(pair(class()));
    let first = pair.spawn_send(&[Commits(201), Hangs, Answers(201)]);
    until(|| pair.runs() == 1).await;
    pair.faulty.away.store(true, Ordering::SeqCst);
    pair.go_on.notify_one();
    let first = first.await.unwrap();
    assert_eq!(first.brief(), "201 said 1");
    assert_eq!(first.header("idempotency-status"), "unknown");
    pair.faulty.away.store(false, Ordering::SeqCst);
    assert_eq!(pair.state().await, DONE);
    assert_eq!(pair.send(&[Breaks]).await.brief(), "201* committed 1");
}

/// The lease of the holder ended, and another gateway ran the operation.
#[tokio::test]
async fn an_overtaken_caller_is_answered_as_a_duplicate() {
    let pair = Arc::new(pair(class()));
    let slow = pair.spawn_send(&[Hangs, Answers(201)]);
    until(|| pair.runs() == 1).await;
    let id = pair.faulty.inner.get(&digest()).await.unwrap().unwrap().id;
    pair.faulty.inner.purge(id, Force::Yes).await.unwrap();
    assert_eq!(
        pair.send(&[Commits(201), Answers(201)]).await.brief(),
        "201 committed 2"
    );
    pair.go_on.notify_one();
    assert_eq!(slow.await.unwrap().brief(), "201* committed 2");
}

/// The same, and another gateway claimed the key for another request meanwhile: its
/// reply is not for the first caller, with any answer.
#[rstest]
#[case::answered(&[Hangs, Answers(201)])]
#[case::answered_at_length(&[Hangs, AnswersAtLength(201)])]
#[case::broke(&[Hangs, Breaks])]
#[case::away(&[Hangs, IsAway])]
#[tokio::test]
async fn a_caller_overtaken_by_another_request_does_not_get_its_reply(
    #[case] does: &'static [Does],
) {
    let pair = Arc::new(pair(class()));
    let slow = pair.spawn_send(does);
    until(|| pair.runs() == 1).await;
    let id = pair.faulty.inner.get(&digest()).await.unwrap().unwrap().id;
    pair.faulty.inner.purge(id, Force::Yes).await.unwrap();
    let other = pair.ask_for("b", &[Commits(201), Answers(201)]).await;
    assert_eq!(other.brief(), "201 committed 2");
    pair.go_on.notify_one();
    let slow = slow.await.unwrap();
    assert_eq!(slow.brief(), "409 in-progress");
    assert_eq!(slow.header("retry-after"), "1");
    assert_eq!(slow.header("idempotency-status"), "released");
}

#[tokio::test]
async fn a_purged_operation_is_answered_with_its_own_answer() {
    let pair = Arc::new(pair(class()));
    let purged = pair.spawn_send(&[Hangs, Answers(201)]);
    until(|| pair.runs() == 1).await;
    let id = pair.faulty.inner.get(&digest()).await.unwrap().unwrap().id;
    pair.faulty.inner.purge(id, Force::Yes).await.unwrap();
    pair.go_on.notify_one();
    let purged = purged.await.unwrap();
    assert_eq!(purged.brief(), "201 said 1");
    assert_eq!(purged.header("idempotency-status"), "unknown");
}
