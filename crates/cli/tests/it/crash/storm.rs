//! A minute of `kill -9`: sixteen clients with fresh keys and retries, and a
//! gateway that is killed about once a second, at random moments, also while
//! it starts. What the clients heard and what the service got goes before the
//! checker.
//!
//! Two shorter storms stand beside it: one where the gateway is asked to stop,
//! so that nothing may be left unknown; and one on a store that forgets, which
//! must be found out.

use std::collections::HashMap;
use std::ffi::OsString;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use fastrand::Rng;
use rustix::process::Signal;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::crash::checker::{Asked, Body, Effect, Figures, Heard, Key, Ran, Violation, check};
use crate::fixture::client::{Answer, Client};
use crate::fixture::gateway::{Gateway, Plan, gateway_on};
use crate::fixture::origin::{Manner, Order, Run, origin_choosing, raw};
use crate::fixture::{free_address, seed};

pub(crate) const CLIENTS: usize = 16;
/// How long the service may take, at most: most kills find requests under way.
const WORK_MS_MAX: u64 = 120;
/// How long a client waits for one answer before it asks again.
const PATIENCE: Duration = Duration::from_secs(10);
/// How often a client asks in vain before it calls the gateway dead.
const TRIES_MAX: usize = 2000;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_every_second_for_a_minute_nothing_runs_twice_and_nothing_is_forgotten() {
    let directory = tempfile::tempdir().unwrap();
    let store = embedded(&directory);
    let seen = storm(store, Stop::Kill, Duration::from_secs(60)).await;
    let (stops, figures) = (&seen.stops, &seen.figures);
    assert_eq!(seen.violations, []);
    // A run that saw little proves little. The bounds are far below what any
    // machine does.
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
    // The store knows exactly the unknown operations that clients were told of.
    assert_eq!(seen.unknown_in_store, figures.unknown);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn asked_to_stop_again_and_again_it_leaves_nothing_unknown() {
    let directory = tempfile::tempdir().unwrap();
    let store = embedded(&directory);
    let seen = storm(store, Stop::Terminate, Duration::from_secs(8)).await;
    assert_eq!(seen.violations, []);
    assert_eq!(seen.figures.unknown, 0);
    assert!(seen.stops.serving >= 3 && seen.figures.completed >= 50);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn store_that_forgets_is_found_out() {
    let seen = storm("memory:".into(), Stop::Kill, Duration::from_secs(4)).await;
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
    /// Without a word.
    Kill,
    /// With SIGTERM; it ends what runs.
    Terminate,
}

/// What came of a storm.
struct Seen {
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

/// Clients buy while the gateway is stopped and started; then everything is
/// asked for once more, after one more stop, and judged.
async fn storm(store: OsString, stop: Stop, length: Duration) -> Seen {
    let seed = seed();
    eprintln!(
        "ONCEWARD_SEED={seed} draws the same moments again; how threads interleave is not drawn"
    );
    let mut random = Rng::with_seed(seed);
    let order = Order::default();
    let origin = origin_choosing(order.clone(), manners(random.fork())).await;
    let at = free_address(&mut random);
    let plan = gateway_on(&origin, store).at(at).option("--log", "error");

    let gateway = plan.run().await;
    let shop = Arc::new(Shop::new([at; 2], order));
    let mut clients = JoinSet::new();
    for _ in 0..CLIENTS {
        clients.spawn(shop.clone().buy(random.fork()));
    }
    let (gateway, stops) = blow(gateway, &plan, stop, length, &mut random).await;
    shop.closed.store(true, Ordering::SeqCst);
    while let Some(client) = clients.join_next().await {
        client.unwrap();
    }

    // Everybody has an end now. It must outlive one more.
    gateway.kill().await;
    let gateway = plan.run().await;
    ask_all_again(&shop).await;
    let (figures, violations) = check(&shop.log(), &ledger(&origin.runs()));
    eprintln!("{stops:?}, {figures:?}");
    Seen {
        stops,
        figures,
        violations,
        unknown_in_store: gauge(&gateway, "onceward_unknown").await,
    }
}

/// The service refuses some keys the first time, without doing anything.
pub(crate) fn manners(random: Rng) -> impl Fn(&str, usize) -> Manner {
    let random = Mutex::new(random);
    move |key, times| {
        let work_ms = random.lock().unwrap().u64(..WORK_MS_MAX);
        match number(key).is_multiple_of(8) && times == 1 {
            true => Manner::Refuse,
            false => Manner::Pay(Duration::from_millis(work_ms)),
        }
    }
}

/// Stops and starts until the time is over; gives the gateway that is left.
async fn blow(
    mut gateway: Gateway,
    plan: &Plan,
    stop: Stop,
    length: Duration,
    random: &mut Rng,
) -> (Gateway, Stops) {
    let mut stops = Stops::default();
    let end = Instant::now() + length;
    while Instant::now() < end {
        sleep(Duration::from_millis(random.u64(200..1500))).await;
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

/// What the clients share.
pub(crate) struct Shop {
    /// Where each client asks, and where its twin does.
    at: [SocketAddr; 2],
    order: Order,
    pub(crate) closed: AtomicBool,
    keys: AtomicUsize,
    log: Mutex<Vec<Asked>>,
}

impl Shop {
    pub(crate) fn new(at: [SocketAddr; 2], order: Order) -> Self {
        Self {
            at,
            order,
            closed: AtomicBool::new(false),
            keys: AtomicUsize::new(0),
            log: Mutex::default(),
        }
    }

    pub(crate) fn log(&self) -> Vec<Asked> {
        self.log.lock().unwrap().clone()
    }

    /// The life of one client: a fresh key, alone or twice at once, until its
    /// end is known; then perhaps an old one, or one with another body.
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

    /// Asks again and again, as a client does that wants to know.
    async fn until_ended(&self, client: &mut Client, key: Key) {
        for _ in 0..TRIES_MAX {
            match self.ask(client, key, Body::Own).await {
                Heard::Final(_) | Heard::Unknown | Heard::Reused => return,
                Heard::Later | Heard::Nothing => sleep(Duration::from_millis(15)).await,
            }
        }
        panic!("key {key} had no end after {TRIES_MAX} tries");
    }

    /// Asks once, and writes down what was heard.
    async fn ask(&self, client: &mut Client, key: Key, body: Body) -> Heard {
        let sent = self.order.next();
        let asked = timeout(
            PATIENCE,
            client.post(&format!("key-{key}"), &text(key, body)),
        )
        .await;
        let heard = match asked {
            Ok(Ok(answer)) => heard(&answer),
            Ok(Err(_)) | Err(_) => Heard::Nothing,
        };
        self.log.lock().unwrap().push(Asked {
            key,
            body,
            sent,
            heard_at: self.order.next(),
            heard: heard.clone(),
        });
        heard
    }
}

/// Asks for every key once more, each client for its share.
pub(crate) async fn ask_all_again(shop: &Arc<Shop>) {
    let keys = shop.keys.load(Ordering::SeqCst);
    let mut clients = JoinSet::new();
    for first in 0..CLIENTS {
        let shop = shop.clone();
        clients.spawn(async move {
            let mut client = Client::new(shop.at[first % 2]);
            for key in (first..keys).step_by(CLIENTS) {
                let mut tries = 0..TRIES_MAX;
                // No word is no word; but the first word is the last.
                while tries.next().is_some()
                    && shop.ask(&mut client, key, Body::Own).await == Heard::Nothing
                {
                }
            }
        });
    }
    while let Some(client) = clients.join_next().await {
        client.unwrap();
    }
}

/// What the request under a key says.
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

fn heard(answer: &Answer) -> Heard {
    match (answer.status, answer.code().as_str()) {
        (201, _) => Heard::Final(whole(answer)),
        (409 | 504, "outcome-unknown") => Heard::Unknown,
        (422, "key-reused") => Heard::Reused,
        // It runs, or the service refused it.
        (409, "in-progress") | (503, "") => Heard::Later,
        // A machine so slow that the store's deadline passed.
        (503, "store-unavailable") => Heard::Nothing,
        _ => panic!("nobody answers like this: {answer:?}"),
    }
}

/// The answer in bytes: status, kept headers, body.
fn whole(answer: &Answer) -> Vec<u8> {
    let kept = answer.kept();
    let mut fields = kept.fields;
    // Told by the gateway of the run, and not by the service.
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

/// The service's ledger in the checker's words.
pub(crate) fn ledger(runs: &[Run]) -> Vec<Ran> {
    runs.iter()
        .map(|run| {
            let key = number(raw(&run.key));
            Ran {
                key,
                at: run.at,
                fence: run.fence,
                body: match run.body == text(key, Body::Own) {
                    true => Body::Own,
                    false => Body::Other,
                },
                effect: match run.manner {
                    Manner::Refuse => Effect::Refused,
                    _ => Effect::Done(reply(201, &run.fields(), run.reply.as_bytes())),
                },
            }
        })
        .collect()
}

/// What the gateway counts.
async fn gauge(gateway: &Gateway, name: &str) -> usize {
    let page = gateway.admin("/metrics").await.unwrap();
    let page = String::from_utf8(page.body.into()).unwrap();
    let gauges: HashMap<_, _> = page
        .lines()
        .filter_map(|line| line.split_once(' '))
        .collect();
    gauges[name].parse().unwrap()
}
