//! Deliveries of queued work, with a clock of the test's own: no event is lost
//! to an upstream that answers wrongly for a while.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use onceward_core::caller::Caller;
use onceward_core::class::{Class, OnError, OnUnknown};
use onceward_core::clock::{Clock, ManualClock, Timestamp};
use onceward_core::engine::{Engine, Limits};
use onceward_core::entropy::Entropy;
use onceward_core::fingerprint::Fingerprinter;
use onceward_core::identity::{Endpoint, Identity, KeySpace};
use onceward_core::key::Key;
use onceward_core::memory::MemoryStore;
use onceward_core::record::State;
use onceward_core::store::{Enqueued, Queue, Store};
use onceward_http::body;
use onceward_http::delivery::{DeliveryOutcome, DeliveryReport, deliver};
use onceward_http::fields::IDEMPOTENCY_OUTCOME;
use onceward_http::rules::{Credentials, Rules};
use onceward_http::run::{Protection, key_only_fingerprint};
use tokio::time::Instant;

const HOUR: Duration = Duration::from_secs(60 * 60);
const EVENTS: usize = 20;

/// A queue of events on a clock that the test moves, and a courier for it.
struct Deliveries {
    clock: Arc<ManualClock>,
    store: Arc<MemoryStore>,
    protection: Arc<Protection>,
    class: Arc<Class>,
}

impl Deliveries {
    fn new(class: Class) -> Self {
        let start = Timestamp::from_unix_ms(1_700_000_000_000);
        let clock = Arc::new(ManualClock::new(start));
        let store = Arc::new(MemoryStore::new(clock.clone()));
        let engine = Engine::new(store.clone(), Entropy::seeded(7), Limits::default());
        let protection = Protection::new(engine, Fingerprinter::keyed([7; 32]));
        Self {
            clock,
            store,
            protection: Arc::new(protection),
            class: Arc::new(class),
        }
    }

    fn identity(number: usize) -> Identity {
        Identity {
            caller: Caller::local(),
            endpoint: Endpoint::new("webhooks.stripe.wh_1"),
            key: Key::parse(&format!("stripe-evt_{number}")).unwrap(),
            space: KeySpace::Endpoint,
        }
    }

    async fn enqueue(&self, number: usize) {
        let engine = &self.protection.engine;
        let (identity, terms) = (Self::identity(number), self.class.terms());
        let request = Bytes::from(number.to_string());
        let enqueued = engine.enqueue(
            &*self.store,
            identity,
            key_only_fingerprint(),
            terms,
            request,
        );
        assert!(matches!(enqueued.await, Ok(Enqueued::Accepted(_))));
    }

    /// Delivers the work that is due now by the clock.
    async fn deliver_due(&self, answer: impl Fn() -> Response<body::Body>) -> Vec<DeliveryReport> {
        let mut reports = Vec::new();
        for due in self.store.due(EVENTS).await.unwrap() {
            let request = Request::new(due.request.clone());
            let rules = Arc::new(Rules::new(Credentials::Trusted));
            let chosen = (self.class.clone(), rules);
            let forward = |_, _| std::future::ready(Ok(answer()));
            let due = (due, Instant::now());
            reports.push(deliver(&self.protection, due, chosen, request, forward).await);
        }
        reports
    }

    /// Moves the clock to the next attempt, if there is one within the span.
    async fn advance(&self, until: Timestamp) -> bool {
        match self.store.next_due().await.unwrap() {
            Some(next) if next <= until => {
                self.clock.advance(next.since(self.clock.now()));
                true
            }
            _ => false,
        }
    }

    async fn state(&self, number: usize) -> State {
        let digest = Self::identity(number).digest();
        self.store.get(&digest).await.unwrap().unwrap().state
    }
}

fn answered(status: StatusCode) -> Response<body::Body> {
    let mut response = Response::new(body::full(""));
    *response.status_mut() = status;
    response
}

/// The path of a webhook is mistyped, and corrected after an hour: every event
/// arrives, those of before the correction too.
#[tokio::test]
async fn a_wrong_path_for_an_hour_loses_no_event() {
    let deliveries = Deliveries::new(Class::webhook());
    for number in 0..EVENTS {
        deliveries.enqueue(number).await;
    }
    let corrected = AtomicBool::new(false);
    let answer = || match corrected.load(Ordering::SeqCst) {
        true => answered(StatusCode::NO_CONTENT),
        false => answered(StatusCode::NOT_FOUND),
    };
    let correction = deliveries.clock.now().plus(HOUR);
    let mut attempts = 0;
    loop {
        for report in deliveries.deliver_due(answer).await {
            assert_eq!(report.outcome, DeliveryOutcome::Requeued, "{report:?}");
            assert_eq!(report.status, Some(404));
            assert!(report.retry_after.is_some(), "{report:?}");
            attempts += 1;
        }
        if !deliveries.advance(correction).await {
            break;
        }
    }
    assert!(attempts > 5 * EVENTS, "{attempts}");
    corrected.store(true, Ordering::SeqCst);
    let end = correction.plus(2 * HOUR);
    while deliveries.advance(end).await {
        for report in deliveries.deliver_due(answer).await {
            assert_eq!(report.outcome, DeliveryOutcome::Completed, "{report:?}");
        }
    }
    for number in 0..EVENTS {
        assert_eq!(deliveries.state(number).await, State::Completed, "{number}");
    }
}

/// The answer of an upstream to one attempt, and the result for the event.
#[tokio::test]
async fn only_a_2xx_or_a_permanent_answer_ends_a_delivery() {
    use DeliveryOutcome::{Completed, Failed, Requeued};
    for (status, hint, want) in [
        (200, None, Completed),
        (204, None, Completed),
        (204, Some("permanent"), Completed),
        (200, Some("transient"), Requeued),
        (301, None, Requeued),
        (304, None, Requeued),
        (302, Some("permanent"), Failed),
        (400, None, Requeued),
        (401, None, Requeued),
        (404, None, Requeued),
        (404, Some("permanent"), Failed),
        (410, None, Requeued),
        (422, None, Requeued),
        (422, Some("transient"), Requeued),
        (422, Some("permanent"), Failed),
        (500, None, Requeued),
        (500, Some("permanent"), Failed),
        (502, None, Requeued),
        (503, None, Requeued),
    ] {
        let deliveries = Deliveries::new(Class::webhook());
        deliveries.enqueue(1).await;
        let answer = || {
            let mut response = answered(StatusCode::from_u16(status).unwrap());
            if let Some(hint) = hint {
                let headers = response.headers_mut();
                headers.insert(IDEMPOTENCY_OUTCOME, hint.parse().unwrap());
            }
            response
        };
        let reports = deliveries.deliver_due(answer).await;
        assert_eq!(reports.len(), 1);
        assert_eq!(reports[0].outcome, want, "{status} {hint:?}");
        let state = match want {
            Completed => State::Completed,
            Failed => State::Failed,
            _ => State::Queued,
        };
        assert_eq!(deliveries.state(1).await, state, "{status} {hint:?}");
    }
}

/// An upstream that never accepts an event uses up its attempts; then the event
/// is paused, not lost.
#[tokio::test]
async fn an_event_that_is_never_accepted_is_paused() {
    let deliveries = Deliveries::new(Class::webhook());
    deliveries.enqueue(1).await;
    let end = deliveries.clock.now().plus(24 * HOUR);
    let mut last = None;
    loop {
        let reports = deliveries.deliver_due(|| answered(StatusCode::NOT_FOUND));
        last = reports.await.pop().or(last);
        if !deliveries.advance(end).await {
            break;
        }
    }
    let last = last.unwrap();
    assert_eq!((last.outcome, last.attempts), (DeliveryOutcome::Paused, 20));
    assert_eq!(last.retry_after, None);
    assert_eq!(deliveries.state(1).await, State::Paused);
}

/// `on_error` is for callers that wait for the answer. A delivery retries an
/// answered 500 in any case, and an intermediary's 502 or 504.
#[tokio::test]
async fn on_error_does_not_hold_a_delivery() {
    let class = Class::webhook().with(|class| {
        class.on_error = OnError::Unknown;
        class.on_unknown = OnUnknown::Hold;
    });
    for status in [
        StatusCode::INTERNAL_SERVER_ERROR,
        StatusCode::BAD_GATEWAY,
        StatusCode::GATEWAY_TIMEOUT,
    ] {
        let deliveries = Deliveries::new(class.clone());
        deliveries.enqueue(1).await;
        let reports = deliveries.deliver_due(|| answered(status)).await;
        assert_eq!(reports[0].outcome, DeliveryOutcome::Requeued, "{status}");
    }
}
