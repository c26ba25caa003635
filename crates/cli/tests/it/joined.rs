//! A gateway and an application that share one record in PostgreSQL. Both are killed: the application
//! before and after its commit, the gateway at every step of a request. Clients retry with the same
//! keys.
//!
//! Afterwards there must be as many rows as keys, the same reply for all requests with one key, and
//! nothing unknown.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use fastrand::Rng;
use onceward_servers::Postgres;
use rstest::rstest;
use rustix::process::Signal;
use tempfile::TempDir;
use tokio::net::TcpStream;
use tokio::process::{Child, Command};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::fixture::BODY;
use crate::fixture::client::{Client, Kept, NoResponse, Response};
use crate::fixture::gateway::{Gateway, GatewayCommand, gateway_of, onceward, run_to_end};
use crate::fixture::until;
use crate::fixture::{free_address, seed};

const DATABASE: &str = "shop";
/// How long a client waits for a response before it retries.
const RESPONSE_MAX: Duration = Duration::from_secs(10);
/// How often a client retries before the test fails.
const TRIES_MAX: usize = 3000;
const CLIENTS: usize = 12;
const STORM: Duration = Duration::from_secs(25);

/// Where the application dies.
const APPLICATION_POINTS: [&str; 3] = ["after-insert", "before-commit", "after-commit"];
/// Where the gateway dies, on the path of a joined request.
const GATEWAY_POINTS: [&str; 6] = [
    "before-claim",
    "after-claim",
    "before-connect",
    "after-sent",
    "before-record",
    "before-answer",
];

/// A database with the gateway's table, and a directory for configurations.
struct JoinedDeployment {
    postgres: Postgres,
    url: String,
    directory: TempDir,
    /// The application's address, the same at every start.
    application: SocketAddr,
}

impl JoinedDeployment {
    async fn new(random: &mut Rng) -> Self {
        let postgres = Postgres::start();
        let url = postgres.database(DATABASE);
        let args = ["migrate", "apply", "--store", &url].map(Into::into);
        let made = run_to_end(&args).await;
        assert!(made.status.success(), "{made:?}");
        Self {
            postgres,
            url,
            directory: tempfile::tempdir().unwrap(),
            application: free_address(random),
        }
    }

    /// A configuration for a gateway at this address.
    fn configuration(&self, at: SocketAddr) -> PathBuf {
        let path = self.directory.path().join(format!("{}.toml", at.port()));
        let text = format!(
            "[server]\nlisten = \"{at}\"\nadmin = \"127.0.0.1:0\"\n\
             [store]\nurl = \"{url}\"\n[secrets]\nkey = \"the same for all of them\"\n\
             [upstreams.shop]\nurl = \"http://{application}\"\ntimeout = \"1500ms\"\n\
             [classes.interactive]\nlease = \"2s\"\nwait = \"1s\"\n\
             [[routes]]\nendpoint = \"payments.create\"\nmethod = \"POST\"\n\
             path = \"/payments\"\nupstream = \"shop\"\njoined = true\n",
            url = self.url,
            application = self.application,
        );
        std::fs::write(&path, text).unwrap();
        path
    }

    fn gateway(&self, at: SocketAddr) -> GatewayCommand {
        gateway_of(&self.configuration(at)).option("--log", "warn")
    }

    /// The application, not yet started.
    fn application(&self, failpoints: Option<&str>) -> Command {
        let path = Path::new(env!("CARGO_BIN_EXE_onceward")).with_file_name("joined_app");
        assert!(
            path.exists(),
            "the application is not built: cargo build -p onceward-examples --features failpoints"
        );
        let mut command = Command::new(path);
        command
            .args([&self.url, &self.application.to_string()])
            .env_remove("FAILPOINTS")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .kill_on_drop(true);
        if let Some(failpoints) = failpoints {
            command.env("FAILPOINTS", failpoints);
        }
        command
    }

    /// The application, once it listens.
    async fn serving(&self, failpoints: Option<&str>) -> Child {
        let child = self.application(failpoints).spawn().unwrap();
        until("the application listens", async || {
            TcpStream::connect(self.application).await.is_ok()
        })
        .await;
        child
    }

    /// The payments that were made, by key: all rows of each.
    fn payments(&self) -> BTreeMap<String, Vec<u64>> {
        let rows = self.postgres.sql(DATABASE, "SELECT key, id FROM payment");
        let mut payments = BTreeMap::<_, Vec<_>>::new();
        for row in rows.lines() {
            let (key, id) = row.split_once('|').unwrap();
            let key = key.rsplit(':').next().unwrap().to_owned();
            payments.entry(key).or_default().push(id.parse().unwrap());
        }
        payments
    }

    /// The number of operations in each state.
    fn states(&self) -> String {
        let sql = "SELECT state, count(*) FROM idempotency_record GROUP BY state ORDER BY state";
        self.postgres.sql(DATABASE, sql)
    }
}

/// Which process dies, and at which point.
#[derive(Clone, Copy, Debug)]
enum Victim {
    Application(&'static str),
    Gateway(&'static str),
}

/// The application or the gateway dies once during a request. Each case has the answer to the first
/// caller and the number of payments by then. Afterwards a retry gets the reply, and there is one
/// payment.
#[rstest]
#[case::application_after_insert(
    Victim::Application("after-insert"),
    "502 upstream-unreachable",
    0
)]
#[case::application_before_commit(
    Victim::Application("before-commit"),
    "502 upstream-unreachable",
    0
)]
#[case::application_after_commit(Victim::Application("after-commit"), "201", 1)]
#[case::gateway_before_claim(Victim::Gateway("before-claim"), "nothing", 0)]
#[case::gateway_after_claim(Victim::Gateway("after-claim"), "nothing", 0)]
#[case::gateway_before_connect(Victim::Gateway("before-connect"), "nothing", 0)]
#[case::gateway_after_sent(Victim::Gateway("after-sent"), "nothing", 1)]
#[case::gateway_before_record(Victim::Gateway("before-record"), "nothing", 1)]
#[case::gateway_before_answer(Victim::Gateway("before-answer"), "nothing", 1)]
#[tokio::test]
async fn a_crash_at_any_point_pays_once(
    #[case] dies: Victim,
    #[case] first: &str,
    #[case] payments: usize,
) {
    let mut random = Rng::with_seed(seed());
    let deployment = JoinedDeployment::new(&mut random).await;
    let at = free_address(&mut random);
    let [of_application, of_gateway] = match dies {
        Victim::Application(point) => [Some(point), None],
        Victim::Gateway(point) => [None, Some(point)],
    };
    let point = |point: &str| format!("{point}=return");
    let mut application = deployment
        .serving(of_application.map(point).as_deref())
        .await;
    let healthy = deployment.gateway(at);
    let gateway = match of_gateway {
        Some(name) => healthy.clone().failing(&point(name)).run().await,
        None => healthy.run().await,
    };

    let heard = gateway.post("k", BODY).await;
    assert_eq!(word(&heard), first);
    let gateway = match dies {
        Victim::Application(_) => {
            assert_eq!(application.wait().await.unwrap().signal(), Some(ABORTED));
            application = deployment.serving(None).await;
            gateway
        }
        Victim::Gateway(_) => {
            let (status, log) = gateway.ended().await;
            assert_eq!(status.signal(), Some(ABORTED), "{log:?}");
            // The application continues without the gateway.
            until("the payment is made", async || {
                deployment.payments().len() == payments
            })
            .await;
            healthy.run().await
        }
    };
    assert_eq!(deployment.payments().len(), payments, "after the crash");

    let reply = paid(&gateway).await;
    if let Ok(first) = &heard
        && first.status == 201
    {
        assert_eq!(
            first.kept(),
            reply.kept(),
            "the first caller got it already"
        );
    }
    let again = gateway.post("k", BODY).await.unwrap();
    assert!(again.is_replay());
    assert_eq!(again.kept(), reply.kept());
    let id = reply.json()["payment"].as_u64().unwrap();
    assert_eq!(
        deployment.payments(),
        BTreeMap::from([("k".to_owned(), vec![id])])
    );
    assert_eq!(deployment.states(), "completed|1");
    application.kill().await.unwrap();
}

const ABORTED: i32 = Signal::ABORT.as_raw();

/// Retries until the reply arrives.
async fn paid(gateway: &Gateway) -> Response {
    for _ in 0..TRIES_MAX {
        let heard = gateway.post("k", BODY).await;
        match word(&heard).as_str() {
            "201" => return heard.unwrap(),
            "409 in-progress" => sleep(Duration::from_millis(20)).await,
            other => panic!("{other}"),
        }
    }
    panic!("no reply after {TRIES_MAX} tries");
}

/// Status and code, or nothing.
fn word(heard: &Result<Response, NoResponse>) -> String {
    match heard {
        Ok(answer) => format!("{} {}", answer.status, answer.code())
            .trim()
            .to_owned(),
        Err(NoResponse) => "nothing".to_owned(),
    }
}

/// The application is suspended before it completes: the gateway gives up on it, a retry runs, and
/// the first run is rolled back when it continues.
#[tokio::test]
async fn a_commit_that_comes_too_late_is_refused() {
    let mut random = Rng::with_seed(seed());
    let deployment = JoinedDeployment::new(&mut random).await;
    let _application = deployment.serving(Some("after-insert=1*sleep(2500)")).await;
    let gateway = deployment.gateway(free_address(&mut random)).run().await;
    let first = gateway.post("k", BODY).await;
    assert_eq!(word(&first), "502 upstream-unreachable");
    let reply = paid(&gateway).await;
    // No other transaction holds it any more.
    let busy = "SELECT count(*) FROM pg_stat_activity WHERE state = 'idle in transaction'";
    until("no statement runs", async || {
        deployment.postgres.sql(DATABASE, busy) == "0"
    })
    .await;
    let id = reply.json()["payment"].as_u64().unwrap();
    assert_eq!(
        deployment.payments(),
        BTreeMap::from([("k".to_owned(), vec![id])])
    );
    let again = gateway.post("k", BODY).await.unwrap();
    assert_eq!(again.kept(), reply.kept());
}

/// The application is suspended between its last statement and its commit and holds the record: the
/// outcome is not decided yet.
#[tokio::test]
async fn a_commit_under_way_is_not_taken_for_undone() {
    let mut random = Rng::with_seed(seed());
    let deployment = JoinedDeployment::new(&mut random).await;
    let _application = deployment
        .serving(Some("before-commit=1*sleep(9000)"))
        .await;
    let gateway = deployment.gateway(free_address(&mut random)).run().await;
    let first = gateway.post("k", BODY).await;
    assert_eq!(word(&first), "504 outcome-unknown");
    assert_eq!(deployment.payments(), BTreeMap::new(), "not yet");
    let reply = paid(&gateway).await;
    assert!(reply.is_replay(), "what was committed at last");
    assert_eq!(deployment.payments().len(), 1);
    assert_eq!(deployment.states(), "completed|1");
}

/// A refused fence, an answer without a commit, and a request that bypassed the gateway.
#[tokio::test]
async fn an_uncommitted_operation_is_reported_by_its_status() {
    let mut random = Rng::with_seed(seed());
    let deployment = JoinedDeployment::new(&mut random).await;
    let _application = deployment.serving(None).await;
    let gateway = deployment.gateway(free_address(&mut random)).run().await;

    let refused = gateway.post("k", r#"{"amount":0}"#).await.unwrap();
    assert_eq!(
        (refused.status, refused.header("idempotency-status")),
        (422, "failed")
    );
    assert!(
        gateway
            .post("k", r#"{"amount":0}"#)
            .await
            .unwrap()
            .is_replay()
    );
    assert_eq!(deployment.payments(), BTreeMap::new());

    // The id of no operation: the application gets a stale fence.
    let mut past = crate::fixture::client::post_request("k", BODY);
    let headers = past.headers_mut();
    headers.insert(
        "x-operation-id",
        "op_0f8b4c1d2e3a59687f60718293a4b5c6".parse().unwrap(),
    );
    headers.insert("idempotency-fence", "7".parse().unwrap());
    let stale = Client::new(deployment.application)
        .send(past)
        .await
        .unwrap();
    assert_eq!(stale.status, 409);
    let bare = Client::new(deployment.application)
        .post("k", BODY)
        .await
        .unwrap();
    assert_eq!(bare.status, 400);
    assert_eq!(deployment.payments(), BTreeMap::new());

    // The same headers from a client do not pass the gateway.
    let mut forged = crate::fixture::client::post_request("other", BODY);
    let headers = forged.headers_mut();
    headers.insert(
        "x-operation-id",
        "op_0f8b4c1d2e3a59687f60718293a4b5c6".parse().unwrap(),
    );
    headers.insert("idempotency-fence", "7".parse().unwrap());
    let answer = Client::new(gateway.listen()).send(forged).await.unwrap();
    assert_eq!(answer.status, 201);
    assert_eq!(deployment.states(), "completed|1\nfailed|1");
}

#[tokio::test]
async fn configuration_of_the_example_has_no_mistakes() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/joined.toml");
    let checked = onceward()
        .arg("check")
        .arg(path)
        .env("ONCEWARD_STORE", "postgres://shop@127.0.0.1/shop")
        .env("ONCEWARD_KEY", "the same for all of them")
        .output()
        .await
        .unwrap();
    assert!(checked.status.success(), "{checked:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_on_both_sides_again_and_again_there_are_as_many_rows_as_keys() {
    let seed = seed();
    eprintln!(
        "ONCEWARD_SEED={seed} draws the same moments again; how threads interleave is not drawn"
    );
    let mut random = Rng::with_seed(seed);
    let deployment = Arc::new(JoinedDeployment::new(&mut random).await);
    let at = [free_address(&mut random), free_address(&mut random)];
    let shop = Arc::new(JoinedClients {
        at,
        ..JoinedClients::default()
    });

    let mut victims = JoinSet::new();
    let (keeper, closed) = (deployment.clone(), shop.clone());
    let application = move || keeper.application(Some(&ailments(&APPLICATION_POINTS, DEADLY)));
    victims.spawn(keep_killing(application, closed, random.fork()));
    for at in at {
        let path = deployment.configuration(at);
        let gateway = move || {
            let mut command = onceward();
            command
                .args(["serve", "--log", "off", "--config"])
                .arg(&path)
                .env("FAILPOINTS", ailments(&GATEWAY_POINTS, "0.2%return"))
                .stdout(Stdio::null())
                .stderr(Stdio::null());
            command
        };
        victims.spawn(keep_killing(gateway, shop.clone(), random.fork()));
    }
    let mut clients = JoinSet::new();
    for _ in 0..CLIENTS {
        clients.spawn(shop.clone().buy(random.fork()));
    }
    sleep(STORM).await;
    shop.closed.store(true, Ordering::SeqCst);
    let mut deaths = Vec::new();
    while let Some(died) = victims.join_next().await {
        deaths.push(died.unwrap());
    }

    // All programs run normally from now on.
    let _application = deployment.serving(None).await;
    let [one, other] = at.map(|at| deployment.gateway(at));
    let _gateways = tokio::join!(one.run(), other.run());
    while let Some(client) = clients.join_next().await {
        client.unwrap();
    }
    let keys = shop.ask_all_again().await;

    let payments = deployment.payments();
    let heard = shop.heard.lock().unwrap().clone();
    let told: BTreeMap<_, _> = heard
        .iter()
        .map(|(key, kept)| {
            assert_eq!(kept.len(), 1, "{key} was answered in two ways: {kept:?}");
            let body: serde_json::Value = serde_json::from_slice(&kept[0].body).unwrap();
            (key.clone(), vec![body["payment"].as_u64().unwrap()])
        })
        .collect();
    let words = shop.words.lock().unwrap().clone();
    eprintln!("{keys} keys, {deaths:?}, {words:?}");
    assert_eq!(payments.values().map(Vec::len).sum::<usize>(), keys, "rows");
    assert_eq!(payments, told, "each client was told of its own row");
    assert_eq!(
        deployment.states(),
        format!("completed|{keys}"),
        "nothing is unknown"
    );
    // A run with few events proves little. Any machine exceeds these bounds by far.
    assert!(keys >= 100, "{keys}");
    for died in deaths {
        assert!(died.by_itself >= 1 && died.killed >= 1, "{died:?}");
    }
    for word in ["201", "502 upstream-unreachable", "nothing"] {
        assert!(words.contains_key(word), "{words:?}");
    }
}

/// Dies at random; or is suspended for longer than the gateway waits and longer than a lease, so
/// that its commit comes too late.
const DEADLY: &str = "1%return->1%sleep(2500)";

/// The same at each of these points, in the words of the `fail` crate.
fn ailments(points: &[&str], what: &str) -> String {
    let points = points.iter().map(|point| format!("{point}={what}"));
    points.collect::<Vec<_>>().join(";")
}

/// How often a program died.
#[derive(Clone, Copy, Debug, Default)]
struct KillCounts {
    by_itself: usize,
    killed: usize,
}

/// Starts a program again whenever it has died, and kills it now and then.
async fn keep_killing(
    program: impl Fn() -> Command,
    shop: Arc<JoinedClients>,
    mut random: Rng,
) -> KillCounts {
    let mut deaths = KillCounts::default();
    while !shop.closed.load(Ordering::SeqCst) {
        let mut child = program().spawn().unwrap();
        let life = Duration::from_millis(random.u64(500..6000));
        match timeout(life, child.wait()).await {
            Ok(ended) => {
                deaths.by_itself += usize::from(ended.unwrap().signal() == Some(ABORTED));
            }
            Err(_) => {
                child.kill().await.unwrap();
                deaths.killed += 1;
            }
        }
    }
    deaths
}

/// The state that all clients share.
struct JoinedClients {
    at: [SocketAddr; 2],
    closed: AtomicBool,
    keys: AtomicUsize,
    /// The distinct replies for each key.
    heard: Mutex<BTreeMap<String, Vec<Kept>>>,
    /// The number of each answer.
    words: Mutex<BTreeMap<String, usize>>,
}

impl Default for JoinedClients {
    fn default() -> Self {
        Self {
            at: [SocketAddr::from(([127, 0, 0, 1], 0)); 2],
            closed: AtomicBool::default(),
            keys: AtomicUsize::default(),
            heard: Mutex::default(),
            words: Mutex::default(),
        }
    }
}

impl JoinedClients {
    /// One client: sends a new key to one gateway or to both at once, until it has the reply; then
    /// the next.
    async fn buy(self: Arc<Self>, mut random: Rng) {
        let [mut client, mut twin] = self.at.map(Client::new);
        while !self.closed.load(Ordering::SeqCst) {
            let key = format!("key-{}", self.keys.fetch_add(1, Ordering::SeqCst));
            let doubled = random.u8(..3) == 0;
            tokio::join!(self.until_paid(&mut client, &key), async {
                if doubled {
                    self.until_paid(&mut twin, &key).await;
                }
            });
            std::mem::swap(&mut client, &mut twin);
        }
    }

    /// Retries with one key until the reply arrives.
    async fn until_paid(&self, client: &mut Client, key: &str) {
        for _ in 0..TRIES_MAX {
            let heard = match timeout(RESPONSE_MAX, client.post(key, BODY)).await {
                Ok(heard) => heard,
                Err(_) => Err(NoResponse),
            };
            let word = word(&heard);
            *self.words.lock().unwrap().entry(word.clone()).or_default() += 1;
            match word.as_str() {
                "201" => return self.note(key, &heard.unwrap()),
                "nothing" | "409 in-progress" | "502 upstream-unreachable"
                // The release was not confirmed in time; the record decides.
                | "504 outcome-unknown"
                // A store or an application on a machine that is too busy.
                | "503 store-unavailable" | "503" => sleep(Duration::from_millis(15)).await,
                _ => panic!("{key}: nobody answers like this: {heard:?}"),
            }
        }
        panic!("{key} had no reply after {TRIES_MAX} tries");
    }

    fn note(&self, key: &str, answer: &Response) {
        let mut heard = self.heard.lock().unwrap();
        let replies = heard.entry(key.to_owned()).or_default();
        let kept = answer.kept();
        if !replies.contains(&kept) {
            replies.push(kept);
        }
    }

    /// Requests every key once more at both gateways; returns their number.
    async fn ask_all_again(&self) -> usize {
        let keys = self.keys.load(Ordering::SeqCst);
        let asked: BTreeSet<_> = (0..keys).map(|number| format!("key-{number}")).collect();
        for at in self.at {
            let mut client = Client::new(at);
            for key in &asked {
                let again = client.post(key, BODY).await.unwrap();
                assert!(again.status == 201 && again.is_replay(), "{again:?}");
                self.note(key, &again);
            }
        }
        keys
    }
}
