//! Two gateways that are restarted one after the other, as in a rolling deployment, under load. The
//! clients act like a load balancer: if a gateway is gone, they send the same key to the other.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use fastrand::Rng;
use rstest::rstest;
use rustix::process::Signal;
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::fixture::client::{Client, Response};
use crate::fixture::gateway::{Gateway, GatewayCommand};
use crate::fixture::origin::{Behaviour, Sequence, origin_choosing, raw};
use crate::fixture::{BODY, until};
use crate::fixture::{free_address, seed};
use crate::shared::deployment::{Deployment, Settings, StoreKind};

const CLIENTS: usize = 12;
/// The number of restarts of each gateway.
const ROUNDS: usize = 3;
/// A kept connection may have ended with its gateway, at each of the two; then one of them refuses a
/// new connection; then the other accepts it.
const TRIES_MAX: usize = 4;

#[rstest]
#[case::postgres(StoreKind::Postgres)]
#[case::redis(StoreKind::Redis)]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rolling_restarts_under_load_fail_no_request_and_run_nothing_twice(
    #[case] kind: StoreKind,
) {
    let origin = origin_choosing(Sequence::default(), |key, _| {
        match key.starts_with("held") {
            true => Behaviour::Hold,
            false => Behaviour::Pay(Duration::from_millis(key.len() as u64 % 4 * 15)),
        }
    });
    let deployment = Deployment::open(kind, origin.await).await;
    let mut random = Rng::with_seed(seed());
    let at = [(); 2].map(|()| free_address(&mut random));
    let plan = deployment.plan(&Settings::default());
    let plans = at.map(|at| {
        let listen = at.to_string();
        plan.clone().variable("ONCEWARD__SERVER__LISTEN", listen)
    });
    let mut gateways = [plans[0].run().await, plans[1].run().await];
    let shop = Arc::new(RollingClients::new(at));
    let mut clients = JoinSet::new();
    for number in 0..CLIENTS {
        clients.spawn(shop.clone().buy(number % 2));
    }

    for round in 0..ROUNDS {
        for stopped in [0, 1] {
            shop.sell_more().await;
            let held = format!("held-{round}-{stopped}");
            let [one, other] = gateways;
            gateways = match stopped {
                0 => [
                    roll(&deployment, &plans[0], one, &other, &held).await,
                    other,
                ],
                _ => {
                    let other = roll(&deployment, &plans[1], other, &one, &held).await;
                    [one, other]
                }
            };
        }
    }
    shop.sell_more().await;
    shop.closed.store(true, Ordering::SeqCst);
    while let Some(client) = clients.join_next().await {
        client.unwrap();
    }

    let told = shop.told.lock().unwrap();
    let runs = deployment.origin.runs();
    assert_eq!(runs.len(), told.len() + 2 * ROUNDS);
    for run in runs.iter().filter(|run| run.behaviour != Behaviour::Hold) {
        assert_eq!(told[raw(&run.key)], run.reply, "{run:?}");
    }
    let gone = shop.gone.load(Ordering::SeqCst);
    eprintln!("{} bought, {gone} times at the other gateway", told.len());
    assert!(gone > 0, "no client noticed anything");
}

/// Restarts a gateway during a request and waits until it is ready again.
async fn roll(
    deployment: &Deployment,
    plan: &GatewayCommand,
    leaves: Gateway,
    stays: &Gateway,
    held: &str,
) -> Gateway {
    let first = leaves.spawn_post(held, BODY);
    until("it is held", || async {
        deployment.origin.runs_of(held).len() == 1
    })
    .await;
    leaves.signal(Signal::TERM);
    until("it says that it is not ready", || async {
        let told = leaves.admin("/readyz").await.unwrap();
        told.status == 503 && told.body == "draining\n"
    })
    .await;
    let address = leaves.listen();
    until("it takes no connections", || async {
        TcpStream::connect(address).await.is_err()
    })
    .await;
    // The other gateway waits for the operation that it still runs.
    let again = stays.spawn_post(held, BODY);
    deployment.origin.open();
    let first = first.await.unwrap().unwrap();
    assert_eq!(
        (first.status, first.header("idempotency-status")),
        (201, "completed")
    );
    let again = again.await.unwrap().unwrap();
    assert!(again.is_replay(), "{again:?}");
    assert_eq!(again.kept(), first.kept());

    let (status, log) = leaves.ended().await;
    assert_eq!(status.code(), Some(0), "{log:?}");
    let back = plan.run().await;
    until("it is ready again", || async { back.is_ready().await }).await;
    back
}

/// The state that all clients share.
struct RollingClients {
    at: [SocketAddr; 2],
    closed: AtomicBool,
    keys: AtomicUsize,
    /// How often a gateway was not reachable.
    gone: AtomicUsize,
    /// The response of each key.
    told: Mutex<HashMap<String, Bytes>>,
}

impl RollingClients {
    fn new(at: [SocketAddr; 2]) -> Self {
        Self {
            at,
            closed: AtomicBool::new(false),
            keys: AtomicUsize::new(0),
            gone: AtomicUsize::new(0),
            told: Mutex::default(),
        }
    }

    /// Waits until every client has made a few more payments.
    async fn sell_more(&self) {
        let before = self.told.lock().unwrap().len();
        until("more is bought", || async {
            self.told.lock().unwrap().len() > before + 4 * CLIENTS
        })
        .await;
    }

    /// One client: sends a new key to its gateway and at the same time, like a retry, to the other;
    /// then once more.
    async fn buy(self: Arc<Self>, gateway: usize) {
        let mut clients = self.at.map(Client::new);
        let mut twins = self.at.map(Client::new);
        while !self.closed.load(Ordering::SeqCst) {
            let key = format!("key-{}", self.keys.fetch_add(1, Ordering::SeqCst));
            let (first, second) = tokio::join!(
                self.ask(&mut clients, gateway, &key),
                self.ask(&mut twins, 1 - gateway, &key),
            );
            let third = self.ask(&mut clients, 1 - gateway, &key).await;
            assert!(third.is_replay(), "{third:?}");
            let replies = [&first, &second, &third].map(Response::kept);
            assert!(
                replies.iter().all(|kept| *kept == replies[0]),
                "{replies:?}"
            );
            self.told.lock().unwrap().insert(key, first.body);
            sleep(Duration::from_millis(2)).await;
        }
    }

    /// Sends to one gateway and, if that is gone, to the other. The only valid response is the
    /// service's.
    async fn ask(&self, clients: &mut [Client; 2], first: usize, key: &str) -> Response {
        for turn in 0..TRIES_MAX {
            let Ok(answer) = clients[(first + turn) % 2].post(key, BODY).await else {
                self.gone.fetch_add(1, Ordering::SeqCst);
                continue;
            };
            assert_eq!(answer.status, 201, "{key}: {answer:?}");
            return answer;
        }
        panic!("{key}: no gateway was there");
    }
}
