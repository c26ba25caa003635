//! The crash sweep for an event: the process dies at every step of it, is restarted on the same
//! directory, and the provider sends the event again.
//!
//! A recorded event is delivered, whether or not the provider got the acknowledgement; another is
//! delivered when it is sent again. An event in delivery when the process died may have arrived: by
//! the class's `on_unknown` it is delivered again with the same key and a higher fence, or it is
//! unknown and not delivered again.

use std::os::unix::process::ExitStatusExt;
use std::time::Duration;

use rstest::rstest;
use rustix::process::Signal;
use serde_json::json;
use tempfile::TempDir;
use tokio::task::JoinHandle;
use tokio::time::sleep;

use crate::fixture::client::{Client, NoResponse, Response};
use crate::fixture::gateway::{Gateway, GatewayCommand, gateway_of};
use crate::fixture::origin::{Behaviour, Origin, Sequence, origin_choosing};
use crate::fixture::until;
use crate::webhooks::provider::Provider::{GitHub, Stripe};
use crate::webhooks::provider::{Provider, Webhook, configured, delivered, embedded, operations};

/// How the process dies while it serves the event.
#[derive(Clone, Copy, Debug)]
enum EventDeath {
    /// By itself, at a fail point.
    At(&'static str),
    /// Killed while the service works on the event, which is acknowledged.
    WhileTheServiceWorks,
    /// Killed when half of the service's answer was sent.
    InTheMiddleOfTheReply,
}
use EventDeath::{At, InTheMiddleOfTheReply, WhileTheServiceWorks};

/// The progress of the event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EventState {
    /// It was not recorded.
    Nowhere,
    /// It was recorded, and not taken for delivery.
    Queued,
    /// It was taken to be delivered.
    UnderWay,
    /// It was delivered, and that was recorded.
    Delivered,
    /// A retry was recorded.
    PutBack,
}
use EventState::{Delivered, Nowhere, PutBack, Queued, UnderWay};

/// The class's `on_unknown`, for an event that may have arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OnUnknown {
    Retry,
    Hold,
}

const PAY: Behaviour = Behaviour::PAY;
const REFUSE: Behaviour = Behaviour::Refuse;
/// An event that was delivered before the crash.
const EARLIER: &str = "earlier";
/// The event during which the process dies.
const CRASHED: &str = "crashed";

#[rstest]
#[case::before_it_is_recorded(Stripe, At("before-enqueue=return"), PAY, 0, Nowhere)]
#[case::before_the_record_is_durable(Stripe, At("store-before-commit=return"), PAY, 0, Nowhere)]
#[case::when_the_record_is_durable_and_not_acknowledged(
    Stripe,
    At("store-after-commit=return"),
    PAY,
    0,
    Queued
)]
#[case::after_it_is_recorded(Stripe, At("after-enqueue=return"), PAY, 0, Queued)]
#[case::before_it_is_taken(Stripe, At("store-before-commit=1*off->return"), PAY, 0, Queued)]
#[case::when_it_is_taken(Stripe, At("store-after-commit=1*off->return"), PAY, 0, UnderWay)]
#[case::before_the_delivery(Stripe, At("before-delivery=return"), PAY, 0, UnderWay)]
#[case::before_connecting(Stripe, At("before-connect=return"), PAY, 0, UnderWay)]
#[case::while_the_service_works(Stripe, WhileTheServiceWorks, Behaviour::Hold, 1, UnderWay)]
#[case::after_it_is_sent(Stripe, At("after-sent=return"), PAY, 1, UnderWay)]
#[case::in_the_middle_of_the_reply(Stripe, InTheMiddleOfTheReply, Behaviour::Half, 1, UnderWay)]
#[case::before_its_delivery_is_recorded(Stripe, At("before-delivered=return"), PAY, 1, UnderWay)]
#[case::before_its_delivery_is_durable(
    Stripe,
    At("store-before-commit=2*off->return"),
    PAY,
    1,
    UnderWay
)]
#[case::when_its_delivery_is_durable(
    Stripe,
    At("store-after-commit=2*off->return"),
    PAY,
    1,
    Delivered
)]
#[case::after_its_delivery_is_recorded(Stripe, At("after-delivered=return"), PAY, 1, Delivered)]
#[case::before_it_is_put_back(Stripe, At("before-delivered=return"), REFUSE, 1, UnderWay)]
#[case::after_it_is_put_back(Stripe, At("after-delivered=return"), REFUSE, 1, PutBack)]
// Its bytes are claimed before the event is recorded, and remembered after.
#[case::before_its_bytes_are_claimed(GitHub, At("store-before-commit=return"), PAY, 0, Nowhere)]
#[case::when_its_bytes_are_claimed(GitHub, At("store-after-commit=return"), PAY, 0, Nowhere)]
#[case::before_its_bytes_are_remembered(
    GitHub,
    At("store-after-commit=1*off->return"),
    PAY,
    0,
    Queued
)]
#[case::between_its_bytes_and_its_record(GitHub, At("before-enqueue=return"), PAY, 0, Nowhere)]
#[case::while_the_service_works_on_unsigned(
    GitHub,
    WhileTheServiceWorks,
    Behaviour::Hold,
    1,
    UnderWay
)]
#[tokio::test]
async fn a_crash_at_any_point_loses_no_acknowledged_event(
    #[case] provider: Provider,
    #[case] death: EventDeath,
    #[case] behaviour: Behaviour,
    #[case] sent: usize,
    #[case] came: EventState,
    #[values(OnUnknown::Retry, OnUnknown::Hold)] on_unknown: OnUnknown,
) {
    let stage = CrashedGateway::set(provider, on_unknown, behaviour).await;
    let CrashedGateway {
        plan,
        origin,
        webhook,
        ..
    } = &stage;

    let heard = die(&stage, death).await;
    if matches!(came, Nowhere) {
        assert!(heard.is_err(), "it was acknowledged: {heard:?}");
    }
    let before = webhook.carried(origin, CRASHED);
    assert_eq!(before.len(), sent, "before the restart: {before:?}");

    let restarted = plan.run().await;
    if came == Nowhere {
        // Only the provider has it, and has not got a 2xx.
        delivered(&restarted).await;
        assert_eq!(webhook.carried(origin, CRASHED).len(), 0);
        let again = webhook.tell(&restarted, CRASHED).await;
        assert!(!again.is_replay(), "{again:?}");
        assert_eq!(again.header("idempotency-status"), "processing");
    }
    // A recorded event is delivered without the provider.
    delivered(&restarted).await;
    let doubted = came == UnderWay && on_unknown == OnUnknown::Hold;
    let runs = match came {
        UnderWay if doubted => sent,
        Delivered => sent,
        Nowhere | Queued | UnderWay | PutBack => sent + 1,
    };
    check_ledger(&stage, runs);
    let unknown = operations(&restarted, "unknown").await;
    assert_eq!(unknown.len(), usize::from(doubted), "{unknown:?}");

    for _ in 0..2 {
        let again = webhook.tell(&restarted, CRASHED).await;
        let told = (again.is_replay(), again.header("idempotency-status"));
        let wanted = match doubted {
            true => (false, "unknown"),
            false => (true, "completed"),
        };
        assert_eq!(told, wanted, "{again:?}");
    }
    let earlier = webhook.tell(&restarted, EARLIER).await;
    assert!(earlier.is_replay(), "{earlier:?}");
    restarted.kill().await;

    let once_more = plan.run().await;
    let again = webhook.tell(&once_more, CRASHED).await;
    assert_eq!(again.is_replay(), !doubted, "{again:?}");
    delivered(&once_more).await;
    check_ledger(&stage, runs);
    assert_eq!(webhook.carried(origin, EARLIER).len(), 1);
}

/// A provider that waits for the service's answer sends the event again without it, so the event is
/// forwarded again under the same key and a higher fence.
#[tokio::test]
async fn a_provider_that_waits_sends_the_event_again_after_a_crash() {
    let stage = CrashedGateway::set(Stripe, OnUnknown::Retry, Behaviour::Hold).await;
    let gateway = stage.plan.run().await;
    let webhook = Webhook::create(&gateway, Stripe, json!({ "deliver": "sync" })).await;
    let asked = spawn(&gateway, &webhook, "waited-for");
    until("the service has it", || async {
        !webhook.carried(&stage.origin, "waited-for").is_empty()
    })
    .await;
    gateway.kill().await;
    assert!(asked.await.unwrap().is_err());

    let gateway = stage.plan.run().await;
    delivered(&gateway).await;
    assert_eq!(webhook.carried(&stage.origin, "waited-for").len(), 1);
    let again = webhook.send(&gateway, "waited-for").await.unwrap();
    assert_eq!((again.status, again.is_replay()), (201, false), "{again:?}");
    let runs = webhook.carried(&stage.origin, "waited-for");
    assert_eq!(runs.len(), 2);
    assert_eq!(again.body, runs[1].reply);
    assert!(runs[0].fence < runs[1].fence && runs[0].key == runs[1].key);
    let replayed = webhook.send(&gateway, "waited-for").await.unwrap();
    assert!(replayed.is_replay(), "{replayed:?}");
    assert_eq!(replayed.kept(), again.kept());
    assert_eq!(webhook.carried(&stage.origin, "waited-for").len(), 2);
}

/// A service, a webhook that delivered one event, and how its gateway is started.
struct CrashedGateway {
    plan: GatewayCommand,
    origin: Origin,
    webhook: Webhook,
    _directory: TempDir,
}

impl CrashedGateway {
    /// The service's behaviour at the first delivery of the second event.
    async fn set(provider: Provider, on_unknown: OnUnknown, behaviour: Behaviour) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let origin = origin_choosing(Sequence::default(), move |key, times| {
            match key.contains(EARLIER) || times > 1 {
                true => PAY,
                false => behaviour,
            }
        })
        .await;
        let on_unknown = match on_unknown {
            OnUnknown::Retry => "retry",
            OnUnknown::Hold => "hold",
        };
        let class = format!(
            "[classes.webhook]\non_unknown = \"{on_unknown}\"\n\
             backoff = {{ first = \"10ms\", max = \"50ms\" }}"
        );
        let upstreams = [("origin", origin.address())];
        let store = embedded(directory.path());
        let plan = gateway_of(&configured(directory.path(), &store, &upstreams, &class));
        let healthy = plan.run().await;
        let webhook = Webhook::create(&healthy, provider, json!({})).await;
        webhook.tell(&healthy, EARLIER).await;
        delivered(&healthy).await;
        healthy.kill().await;
        Self {
            plan,
            origin,
            webhook,
            _directory: directory,
        }
    }
}

fn spawn(
    gateway: &Gateway,
    webhook: &Webhook,
    event: &str,
) -> JoinHandle<Result<Response, NoResponse>> {
    let (mut client, request) = (Client::new(gateway.listen()), webhook.request(event));
    tokio::spawn(async move { client.send(request).await })
}

/// Starts a gateway, sends the event, and waits until the gateway dies; returns the provider's
/// answer. The event may be acknowledged while it is delivered.
async fn die(stage: &CrashedGateway, death: EventDeath) -> Result<Response, NoResponse> {
    let (plan, signal) = match death {
        At(point) => (stage.plan.clone().failing(point), Signal::ABORT),
        WhileTheServiceWorks | InTheMiddleOfTheReply => (stage.plan.clone(), Signal::KILL),
    };
    let doomed = plan.run().await;
    if matches!(death, At(_)) {
        // Not while a new gateway searches for due events: it would take the event as soon as it is
        // recorded, or even in one commit. The next search is after a second.
        sleep(Duration::from_millis(200)).await;
    }
    let asked = spawn(&doomed, &stage.webhook, CRASHED);
    // The service has answered the earlier event already.
    match death {
        At(_) => {}
        WhileTheServiceWorks => stage.origin.called(2).await,
        InTheMiddleOfTheReply => stage.origin.answered(2).await,
    }
    let heard = match signal {
        // For any time that the service takes.
        Signal::KILL => {
            let answer = asked.await.unwrap().unwrap();
            assert_eq!(answer.status, 200, "{answer:?}");
            doomed.signal(signal);
            assert_died(doomed, signal).await;
            Ok(answer)
        }
        _ => {
            assert_died(doomed, signal).await;
            asked.await.unwrap()
        }
    };
    // Everything that it sent has been read.
    stage.origin.quiet().await;
    heard
}

async fn assert_died(doomed: Gateway, by: Signal) {
    let (status, log) = doomed.ended().await;
    assert_eq!(status.signal(), Some(by.as_raw()), "{log:?}");
}

/// It was delivered this often, unchanged, each time under the same key and a higher fence.
fn check_ledger(stage: &CrashedGateway, runs: usize) {
    let ledger = stage.webhook.carried(&stage.origin, CRASHED);
    assert_eq!(ledger.len(), runs, "{ledger:?}");
    let rises = ledger.is_sorted_by(|one, next| one.fence < next.fence);
    let same = ledger.iter().all(|run| run.key == ledger[0].key);
    assert!(rises && same, "{ledger:?}");
    let paths = ledger.iter().map(|run| run.path.as_str());
    let wanted = format!("/webhooks/{}", stage.webhook.provider.name());
    assert!(paths.into_iter().all(|path| path == wanted), "{ledger:?}");
}
