//! Two hundred events a second, and a gateway that is killed about once a second, at random times,
//! also while it starts. The providers send each event until it is acknowledged. The checker decides
//! over what the providers and the service got.
//!
//! A shorter run uses a store that forgets, which the checker must detect.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex, RwLock};
use std::time::{Duration, Instant};

use fastrand::Rng;
use serde_json::json;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};

use crate::fixture::client::Client;
use crate::fixture::gateway::{Gateway, GatewayCommand, gateway_of};
use crate::fixture::origin::{Behaviour, Origin, Run, Sequence, origin_choosing};
use crate::fixture::{free_address, seed};
use crate::webhooks::checker::{
    Acknowledgement, Delivery, DeliveryEffect, Event, EventFigures, EventViolation, History,
    SentEvent, check,
};
use crate::webhooks::provider::{Provider, Webhook, configured, delivered, embedded};

/// One event after the other, this far apart.
const EVERY: Duration = Duration::from_millis(5);
/// How many events are sent at a time; a machine that is too slow for the rate
/// gets fewer.
const SENDING_MAX: usize = 300;
/// The longest response time of the service: most kills interrupt deliveries.
const WORK_MS_MAX: u64 = 80;
/// The number of concurrent deliveries.
const UNDER_WAY_MAX: usize = 24;
/// How long a provider waits for one answer, and before it sends again.
const RESPONSE_MAX: Duration = Duration::from_secs(10);
const REST: Duration = Duration::from_millis(30);
/// The number of failed attempts after which a provider gives up on the gateway.
const TRIES_MAX: usize = 2000;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_every_second_every_acknowledged_event_arrives_and_few_twice() {
    let directory = tempfile::tempdir().unwrap();
    let store = embedded(directory.path());
    let length = Duration::from_secs(20);
    let seen = storm(directory.path(), &store, length).await;
    let (kills, figures) = (&seen.kills, &seen.figures);
    assert_eq!(seen.violations, []);
    // A run with few events proves little. Any machine exceeds these bounds by far.
    assert!(kills.serving >= 8 && kills.starting > 0, "{kills:?}");
    assert!(figures.acknowledged >= 500, "{figures:?}");
    assert!(figures.ambiguous >= 10, "{figures:?}");
    assert!(
        figures.unanswered > 0 && figures.acknowledged_by_retry > 0,
        "{figures:?}"
    );
    assert!(figures.refused > 0, "{figures:?}");
    // An event without a 2xx may or may not be recorded; every event was sent until it was
    // acknowledged.
    assert_eq!(figures.acknowledged, figures.taken, "{figures:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_checker_detects_a_store_that_forgets() {
    let directory = tempfile::tempdir().unwrap();
    let seen = storm(directory.path(), "memory:", Duration::from_secs(4)).await;
    let mut violations = seen.violations.iter();
    assert!(
        violations.any(|violation| matches!(violation, EventViolation::Lost(_))),
        "{:?}",
        seen.figures
    );
}

/// The result of a run.
struct EventStormResult {
    kills: KillTimes,
    figures: EventFigures,
    violations: Vec<EventViolation>,
}

/// How often the gateway was killed.
#[derive(Clone, Copy, Debug, Default)]
struct KillTimes {
    serving: usize,
    starting: usize,
}

/// Providers send while the gateway is killed and started; then it is killed once more, delivers
/// the remaining events, and receives every event again.
async fn storm(directory: &Path, store: &str, length: Duration) -> EventStormResult {
    let seed = seed();
    eprintln!(
        "ONCEWARD_SEED={seed} draws the same moments again; how threads interleave is not drawn"
    );
    let mut random = Rng::with_seed(seed);
    let order = Sequence::default();
    let origin = origin_choosing(order.clone(), behaviours(random.fork())).await;
    let at = free_address(&mut random);
    let upstreams = [("origin", origin.address())];
    let file = configured(directory, store, &upstreams, &words());
    let plan = gateway_of(&file)
        .option("--log", "error")
        .variable("ONCEWARD__SERVER__LISTEN", at.to_string());

    let gateway = plan.run().await;
    let outside = Arc::new(Providers::new(at, order, webhooks(&gateway).await));
    let sending = tokio::spawn(outside.clone().happen(length));
    let mut weather = KillSchedule {
        plan: &plan,
        origin: &origin,
        outside: &outside,
        forgets: store == "memory:",
        deaths: Vec::new(),
        kills: KillTimes::default(),
        random: &mut random,
    };
    let gateway = weather.blow(gateway, length).await;
    let events = sending.await.unwrap();
    let gateway = weather.strike(gateway).await;
    let (deaths, kills) = (weather.deaths, weather.kills);
    delivered(&gateway).await;
    let settled = outside.order.next();
    outside.tell_all_again(events).await;
    delivered(&gateway).await;

    let history = History {
        told: outside.log.lock().unwrap().clone(),
        carried: origin.runs().iter().map(carried).collect(),
        deaths,
        settled,
        under_way_max: UNDER_WAY_MAX,
    };
    let (figures, violations) = check(&history);
    eprintln!("{kills:?}, {figures:?}");
    EventStormResult {
        kills,
        figures,
        violations,
    }
}

fn words() -> String {
    let most = UNDER_WAY_MAX;
    format!(
        "deliveries = {}\ndeliveries_per_upstream = {most}\n\
         [classes.webhook]\nmax_attempts = 100\n\
         backoff = {{ first = \"50ms\", max = \"200ms\" }}",
        2 * most,
    )
}

/// The service refuses some events the first time.
fn behaviours(random: Rng) -> impl Fn(&str, usize) -> Behaviour {
    let random = Mutex::new(random);
    move |_, times| {
        let mut random = random.lock().unwrap();
        match random.u8(..8) == 0 && times == 1 {
            true => Behaviour::Refuse,
            false => Behaviour::Pay(Duration::from_millis(random.u64(..WORK_MS_MAX))),
        }
    }
}

async fn webhooks(gateway: &Gateway) -> [Webhook; 2] {
    [
        Webhook::create(gateway, Provider::Stripe, json!({})).await,
        Webhook::create(gateway, Provider::GitHub, json!({})).await,
    ]
}

/// Kills the gateway.
struct KillSchedule<'a> {
    plan: &'a GatewayCommand,
    origin: &'a Origin,
    outside: &'a Providers,
    /// Its store forgets the webhooks too, and they are created again.
    forgets: bool,
    deaths: Vec<u64>,
    kills: KillTimes,
    random: &'a mut Rng,
}

impl KillSchedule<'_> {
    /// Kills and starts until the time is over; returns the last gateway.
    async fn blow(&mut self, mut gateway: Gateway, length: Duration) -> Gateway {
        let end = Instant::now() + length;
        while Instant::now() < end {
            sleep(Duration::from_millis(self.random.u64(200..1500))).await;
            gateway = self.strike(gateway).await;
        }
        gateway
    }

    /// Kills a gateway, now and then its successors too, and starts another.
    async fn strike(&mut self, gateway: Gateway) -> Gateway {
        gateway.kill().await;
        self.kills.serving += 1;
        self.died().await;
        // Once at least.
        while self.kills.starting == 0 || self.random.u8(..4) == 0 {
            let starting = self.plan.start();
            sleep(Duration::from_millis(self.random.u64(..150))).await;
            starting.kill().await;
            self.kills.starting += 1;
            self.died().await;
        }
        let gateway = self.plan.run().await;
        if self.forgets {
            *self.outside.webhooks.write().unwrap() = webhooks(&gateway).await;
        }
        gateway
    }

    async fn died(&mut self) {
        self.origin.quiet().await;
        self.deaths.push(self.outside.order.next());
    }
}

/// The state of the providers.
struct Providers {
    at: SocketAddr,
    order: Sequence,
    webhooks: RwLock<[Webhook; 2]>,
    log: Mutex<Vec<SentEvent>>,
}

impl Providers {
    fn new(at: SocketAddr, order: Sequence, webhooks: [Webhook; 2]) -> Self {
        Self {
            at,
            order,
            webhooks: RwLock::new(webhooks),
            log: Mutex::default(),
        }
    }

    /// Sends events for a while, each until it is acknowledged; returns their number.
    async fn happen(self: Arc<Self>, length: Duration) -> Event {
        let places = Arc::new(Semaphore::new(SENDING_MAX));
        let mut sending = JoinSet::new();
        let mut clock = interval(EVERY);
        clock.set_missed_tick_behavior(MissedTickBehavior::Burst);
        let end = Instant::now() + length;
        let mut events = 0;
        while Instant::now() < end {
            clock.tick().await;
            let place = places.clone().acquire_owned().await.unwrap();
            let outside = self.clone();
            sending.spawn(async move {
                outside.until_acknowledged(events).await;
                drop(place);
            });
            events += 1;
        }
        while let Some(sent) = sending.join_next().await {
            sent.unwrap();
        }
        events
    }

    /// Sends an event again and again, as providers do.
    async fn until_acknowledged(&self, event: Event) {
        let mut client = Client::new(self.at);
        for _ in 0..TRIES_MAX {
            match self.tell(&mut client, event).await {
                Acknowledgement::Acknowledged | Acknowledgement::Replayed => return,
                Acknowledgement::Nothing => sleep(REST).await,
            }
        }
        panic!("event {event} was not acknowledged after {TRIES_MAX} tries");
    }

    /// Sends an event once, and records the response.
    async fn tell(&self, client: &mut Client, event: Event) -> Acknowledgement {
        let request = {
            let webhooks = self.webhooks.read().unwrap();
            let webhook = &webhooks[usize::from(event.is_multiple_of(4))];
            webhook.request(&event.to_string())
        };
        let sent = self.order.next();
        let heard = match timeout(RESPONSE_MAX, client.send(request)).await {
            Ok(Ok(answer)) => match (answer.status, answer.is_replay()) {
                (200, true) => Acknowledgement::Replayed,
                (200, false) => Acknowledgement::Acknowledged,
                // The webhook was forgotten, or the machine is so slow that the store's deadline
                // passed.
                (401 | 503, _) => Acknowledgement::Nothing,
                _ => panic!("nobody answers like this: {answer:?}"),
            },
            Ok(Err(_)) | Err(_) => Acknowledgement::Nothing,
        };
        self.log.lock().unwrap().push(SentEvent {
            event,
            sent,
            heard_at: self.order.next(),
            heard,
        });
        heard
    }

    /// Sends every event once more.
    async fn tell_all_again(self: &Arc<Self>, events: Event) {
        const PROVIDERS: usize = 16;
        let mut providers = JoinSet::new();
        for first in 0..PROVIDERS {
            let outside = self.clone();
            providers.spawn(async move {
                let mut client = Client::new(outside.at);
                for event in (first..events).step_by(PROVIDERS) {
                    outside.tell(&mut client, event).await;
                }
            });
        }
        while let Some(provider) = providers.join_next().await {
            provider.unwrap();
        }
    }
}

/// The service's records in the form of the checker.
fn carried(run: &Run) -> Delivery {
    let digits = |text: &str| {
        text.chars()
            .filter(char::is_ascii_digit)
            .collect::<String>()
    };
    Delivery {
        // The only digits in an event are its number.
        event: digits(&run.body).parse().expect("all events are ours"),
        at: run.at,
        key: run.key.clone(),
        fence: run.fence,
        effect: match run.behaviour {
            Behaviour::Refuse => DeliveryEffect::Refused,
            _ => DeliveryEffect::Taken,
        },
    }
}
