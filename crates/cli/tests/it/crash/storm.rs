//! A minute of `kill -9`: sixteen clients with new keys and retries, and a gateway that is killed
//! about once a second, at random times, also while it starts. The checker decides over what the
//! clients and the service got.
//!
//! Three shorter runs complete it: one in which the gateway is stopped by SIGTERM, so that nothing
//! may be unknown; one on a store that forgets, which the checker must detect; and one with many
//! clients and a fast service, so that each kill interrupts full batches of the store. `make
//! bench-crash` repeats the last one for 500 kills, with an optimised gateway.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use fastrand::Rng;
use rustix::process::Signal;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::crash::checker::{
    Body, Effect, Figures, Key, Outcome, RequestRecord, RunRecord, Violation, check,
};
use crate::fixture::client::{Client, Response};
use crate::fixture::gateway::{Gateway, GatewayCommand, gateway_on};
use crate::fixture::origin::{Behaviour, Run, Sequence, origin_choosing, raw};
use crate::fixture::{free_address, seed};

pub(crate) const CLIENTS: usize = 16;
/// The maximum time of the service, so that most kills interrupt requests.
const WORK_MS_MAX: u64 = 120;
/// The time between two stops.
const PAUSE_MS: Range<u64> = 200..1500;
/// The clients, the service and the kills of a heavy load.
const HEAVY_CLIENTS: usize = 64;
const HEAVY_WORK_MS_MAX: u64 = 10;
const HEAVY_PAUSE_MS: Range<u64> = 50..400;
/// The number of kills under a heavy load, and the variable that changes it.
const HEAVY_KILLS: usize = 5;
const KILLS_VARIABLE: &str = "ONCEWARD_KILLS";
/// How long a client waits for a response before it retries.
const RESPONSE_MAX: Duration = Duration::from_secs(10);
/// How often a client retries before the test fails.
const TRIES_MAX: usize = 2000;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_every_second_for_a_minute_nothing_runs_twice_and_nothing_is_forgotten() {
    let directory = tempfile::tempdir().unwrap();
    let store = embedded(&directory);
    let seen = storm(store, Storm::lasting(Stop::Kill, Duration::from_secs(60))).await;
    let (stops, figures) = (&seen.stops, &seen.figures);
    assert_eq!(seen.violations, []);
    // A run with few events proves little. Any machine exceeds these bounds by far.
    assert!(stops.serving >= 20, "{stops:?}");
    assert!(figures.completed >= 500, "{figures:?}");
    assert!(
        figures.unknown > 0 && figures.unknown_and_done > 0,
        "{figures:?}"
    );
    assert!(
        figures.unanswered > 0 && figures.completed_by_retry > 0,
        "{figures:?}"
    );
    assert!(figures.reused > 0 && figures.refused > 0, "{figures:?}");
    // The store has exactly the unknown operations that were reported to clients.
    assert_eq!(seen.unknown_in_store, figures.unknown);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_again_and_again_under_load_nothing_runs_twice_and_nothing_is_forgotten() {
    let kills = match std::env::var(KILLS_VARIABLE) {
        Ok(kills) => kills.parse().unwrap(),
        Err(_) => HEAVY_KILLS,
    };
    let directory = tempfile::tempdir().unwrap();
    let seen = storm(embedded(&directory), Storm::heavy(kills)).await;
    let (stops, figures) = (&seen.stops, &seen.figures);
    assert_eq!(seen.violations, []);
    assert_eq!(stops.serving, kills);
    assert!(figures.completed >= 20 * kills, "{figures:?}");
    assert!(figures.unanswered >= kills, "{figures:?}");
    assert_eq!(seen.unknown_in_store, figures.unknown);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn repeated_graceful_stops_leave_nothing_unknown() {
    let directory = tempfile::tempdir().unwrap();
    let store = embedded(&directory);
    let seen = storm(
        store,
        Storm::lasting(Stop::Terminate, Duration::from_secs(8)),
    )
    .await;
    assert_eq!(seen.violations, []);
    assert_eq!(seen.figures.unknown, 0);
    assert!(seen.stops.serving >= 3 && seen.figures.completed >= 50);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_checker_detects_a_store_that_forgets() {
    let plan = Storm::lasting(Stop::Kill, Duration::from_secs(4));
    let seen = storm("memory:".into(), plan).await;
    let found = |wanted: fn(Key) -> Violation| {
        let mut violations = seen.violations.iter();
        violations.any(|violation| {
            std::mem::discriminant(violation) == std::mem::discriminant(&wanted(0))
        })
    };
    assert!(
        found(Violation::RanAgain)
            && found(Violation::RanAfterTheEnd)
            && found(Violation::EndForgotten)
    );
}

fn embedded(directory: &tempfile::TempDir) -> OsString {
    let mut store = OsString::from("embedded:");
    store.push(directory.path());
    store
}

/// How the gateway is stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stop {
    /// With SIGKILL.
    Kill,
    /// With SIGTERM, after which running operations finish.
    Terminate,
}

/// How the gateway is used and stopped.
#[derive(Clone, Debug)]
struct Storm {
    stop: Stop,
    until: Until,
    clients: usize,
    work_ms_max: u64,
    pause_ms: Range<u64>,
}

/// When a run ends.
#[derive(Clone, Copy, Debug)]
enum Until {
    Time(Duration),
    /// After this many stops while it served.
    Stops(usize),
}

impl Storm {
    fn lasting(stop: Stop, length: Duration) -> Self {
        Self {
            stop,
            until: Until::Time(length),
            clients: CLIENTS,
            work_ms_max: WORK_MS_MAX,
            pause_ms: PAUSE_MS,
        }
    }

    fn heavy(kills: usize) -> Self {
        Self {
            stop: Stop::Kill,
            until: Until::Stops(kills),
            clients: HEAVY_CLIENTS,
            work_ms_max: HEAVY_WORK_MS_MAX,
            pause_ms: HEAVY_PAUSE_MS,
        }
    }
}

/// The result of a run.
struct StormResult {
    stops: Stops,
    figures: Figures,
    violations: Vec<Violation>,
    unknown_in_store: usize,
}

/// How often the gateway was stopped.
#[derive(Clone, Copy, Debug, Default)]
struct Stops {
    serving: usize,
    starting: usize,
}

/// Clients send requests while the gateway is stopped and started. Then, after one more stop, every
/// key is requested once more, and the history is checked.
async fn storm(store: OsString, storm: Storm) -> StormResult {
    let seed = seed();
    eprintln!("ONCEWARD_SEED={seed} repeats the random choices, but not how threads interleave");
    let mut random = Rng::with_seed(seed);
    let order = Sequence::default();
    let behaviours = behaviours_within(random.fork(), storm.work_ms_max);
    let origin = origin_choosing(order.clone(), behaviours).await;
    let at = free_address(&mut random);
    let plan = gateway_on(&origin, store).at(at).option("--log", "error");

    let gateway = plan.run().await;
    let shop = Arc::new(Clients::new([at; 2], order));
    let mut clients = JoinSet::new();
    for _ in 0..storm.clients {
        clients.spawn(shop.clone().buy(random.fork()));
    }
    let (gateway, stops) = stop_repeatedly(gateway, &plan, &storm, &mut random).await;
    shop.closed.store(true, Ordering::SeqCst);
    while let Some(client) = clients.join_next().await {
        client.unwrap();
    }

    // Every key has an outcome now, which must survive another kill.
    gateway.kill().await;
    let gateway = plan.run().await;
    ask_all_again(&shop).await;
    let (figures, violations) = check(&shop.log(), &ledger(&origin.runs()));
    eprintln!("{stops:?}, {figures:?}");
    StormResult {
        stops,
        figures,
        violations,
        unknown_in_store: gateway.counted("onceward_unknown").await,
    }
}

/// The service refuses some keys the first time, without doing the work.
pub(crate) fn behaviours(random: Rng) -> impl Fn(&str, usize) -> Behaviour {
    behaviours_within(random, WORK_MS_MAX)
}

fn behaviours_within(random: Rng, work_ms_max: u64) -> impl Fn(&str, usize) -> Behaviour {
    let random = Mutex::new(random);
    move |key, times| {
        let work_ms = random.lock().unwrap().u64(..work_ms_max);
        match number(key).is_multiple_of(8) && times == 1 {
            true => Behaviour::Refuse,
            false => Behaviour::Pay(Duration::from_millis(work_ms)),
        }
    }
}

/// Stops and starts the gateway until the end of the storm. Returns the running one.
async fn stop_repeatedly(
    mut gateway: Gateway,
    plan: &GatewayCommand,
    storm: &Storm,
    random: &mut Rng,
) -> (Gateway, Stops) {
    let stop = storm.stop;
    let mut stops = Stops::default();
    let start = Instant::now();
    let goes_on = |stops: &Stops| match storm.until {
        Until::Time(length) => start.elapsed() < length,
        Until::Stops(count) => stops.serving < count,
    };
    while goes_on(&stops) {
        sleep(Duration::from_millis(random.u64(storm.pause_ms.clone()))).await;
        stops.serving += 1;
        match stop {
            Stop::Kill => gateway.kill().await,
            Stop::Terminate => {
                gateway.signal(Signal::TERM);
                assert_eq!(gateway.ended().await.0.code(), Some(0));
            }
        }
        while stop == Stop::Kill && random.u8(..8) == 0 {
            let starting = plan.start();
            sleep(Duration::from_millis(random.u64(..150))).await;
            starting.kill().await;
            stops.starting += 1;
        }
        gateway = plan.run().await;
    }
    (gateway, stops)
}

/// The state that all clients share.
pub(crate) struct Clients {
    /// The addresses of each client and of its twin.
    at: [SocketAddr; 2],
    order: Sequence,
    pub(crate) closed: AtomicBool,
    keys: AtomicUsize,
    log: Mutex<Vec<RequestRecord>>,
}

impl Clients {
    pub(crate) fn new(at: [SocketAddr; 2], order: Sequence) -> Self {
        Self {
            at,
            order,
            closed: AtomicBool::new(false),
            keys: AtomicUsize::new(0),
            log: Mutex::default(),
        }
    }

    pub(crate) fn log(&self) -> Vec<RequestRecord> {
        self.log.lock().unwrap().clone()
    }

    /// One client: sends a new key, alone or twice at once, until its outcome is known; then perhaps
    /// an old key, or one with another body.
    pub(crate) async fn buy(self: Arc<Self>, mut random: Rng) {
        let [mut client, mut twin] = self.at.map(Client::new);
        if random.bool() {
            std::mem::swap(&mut client, &mut twin);
        }
        let mut ended = Vec::new();
        while !self.closed.load(Ordering::SeqCst) {
            let key = self.keys.fetch_add(1, Ordering::SeqCst);
            let doubled = random.u8(..4) == 0;
            tokio::join!(self.until_ended(&mut client, key), async {
                if doubled {
                    self.until_ended(&mut twin, key).await;
                }
            });
            ended.push(key);
            let old = ended[random.usize(..ended.len())];
            match random.u8(..8) {
                0 => self.until_ended(&mut client, old).await,
                1 => drop(self.ask(&mut client, old, Body::Other).await),
                _ => {}
            }
        }
    }

    /// Retries until the outcome is known.
    async fn until_ended(&self, client: &mut Client, key: Key) {
        for _ in 0..TRIES_MAX {
            match self.ask(client, key, Body::Own).await {
                Outcome::Final(_) | Outcome::Unknown | Outcome::Reused => return,
                Outcome::Later | Outcome::Nothing => sleep(Duration::from_millis(15)).await,
            }
        }
        panic!("key {key} had no end after {TRIES_MAX} tries");
    }

    /// Sends one request and records its outcome.
    async fn ask(&self, client: &mut Client, key: Key, body: Body) -> Outcome {
        let sent = self.order.next();
        let asked = timeout(
            RESPONSE_MAX,
            client.post(&format!("key-{key}"), &text(key, body)),
        )
        .await;
        let heard = match asked {
            Ok(Ok(answer)) => heard(&answer),
            Ok(Err(_)) | Err(_) => Outcome::Nothing,
        };
        self.log.lock().unwrap().push(RequestRecord {
            key,
            body,
            sent,
            heard_at: self.order.next(),
            heard: heard.clone(),
        });
        heard
    }
}

/// Requests every key once more, each client its share.
pub(crate) async fn ask_all_again(shop: &Arc<Clients>) {
    let keys = shop.keys.load(Ordering::SeqCst);
    let mut clients = JoinSet::new();
    for first in 0..CLIENTS {
        let shop = shop.clone();
        clients.spawn(async move {
            let mut client = Client::new(shop.at[first % 2]);
            for key in (first..keys).step_by(CLIENTS) {
                let mut tries = 0..TRIES_MAX;
                // Without a response it is repeated; the first response is final.
                while tries.next().is_some()
                    && shop.ask(&mut client, key, Body::Own).await == Outcome::Nothing
                {
                }
            }
        });
    }
    while let Some(client) = clients.join_next().await {
        client.unwrap();
    }
}

/// The body of the request with a key.
fn text(key: Key, body: Body) -> String {
    match body {
        Body::Own => format!(r#"{{"order":{key}}}"#),
        Body::Other => format!(r#"{{"order":{key},"also":"this"}}"#),
    }
}

fn number(key: &str) -> Key {
    let number = key.strip_prefix("key-").map(str::parse);
    number.expect("all keys are ours").expect("and numbered")
}

fn heard(answer: &Response) -> Outcome {
    match (answer.status, answer.code().as_str()) {
        (201, _) => Outcome::Final(whole(answer)),
        (409 | 504, "outcome-unknown") => Outcome::Unknown,
        (422, "key-reused") => Outcome::Reused,
        // It runs, or the service refused it.
        (409, "in-progress") | (503, "") => Outcome::Later,
        // The machine is so slow that the store's deadline passed.
        (503, "store-unavailable") => Outcome::Nothing,
        _ => panic!("unexpected response: {answer:?}"),
    }
}

/// The response in bytes: status, kept headers, body.
fn whole(answer: &Response) -> Vec<u8> {
    let kept = answer.kept();
    let mut fields = kept.fields;
    // Added by the gateway, not by the service.
    fields.retain(|(name, _)| name != "x-operation-id");
    reply(kept.status, &fields, &kept.body)
}

fn reply(status: u16, fields: &[(String, Vec<u8>)], body: &[u8]) -> Vec<u8> {
    let mut bytes = format!("{status}\n").into_bytes();
    for (name, value) in fields {
        bytes.extend_from_slice(name.as_bytes());
        bytes.extend_from_slice(b": ");
        bytes.extend_from_slice(value);
        bytes.push(b'\n');
    }
    bytes.extend_from_slice(body);
    bytes
}

/// The service's records in the form of the checker.
pub(crate) fn ledger(runs: &[Run]) -> Vec<RunRecord> {
    runs.iter()
        .map(|run| {
            let key = number(raw(&run.key));
            RunRecord {
                key,
                at: run.at,
                fence: run.fence,
                body: match run.body == text(key, Body::Own) {
                    true => Body::Own,
                    false => Body::Other,
                },
                effect: match run.behaviour {
                    Behaviour::Refuse => Effect::Refused,
                    _ => Effect::Done(reply(201, &run.fields(), run.reply.as_bytes())),
                },
            }
        })
        .collect()
}
