//! A configuration that changes while requests are served: by the file, by SIGHUP and by the admin
//! API, sometimes with a mistake in it.
//!
//! Every response of a configured route has the number of its configuration, which shows the one in
//! force.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::Request;
use rstest::rstest;
use rustix::process::Signal;
use serde_json::Value;
use tempfile::TempDir;
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::fixture::client::{Client, PATH, Response, get_request};
use crate::fixture::gateway::{Gateway, gateway_of};
use crate::fixture::origin::{Behaviour, Origin, Sequence, origin, origin_choosing};
use crate::fixture::{BODY, until};

/// A path that only the load uses.
const OTHER: &str = "/other";
const CLIENTS: usize = 8;
/// The number of changes under load.
const CHANGES: usize = 30;
/// Every n-th change has a mistake.
const MISTAKEN_EVERY: usize = 3;

/// A configuration with variable settings.
#[derive(Clone)]
struct ConfigText {
    number: usize,
    upstream: String,
    server: String,
    limits: String,
    classes: String,
    timeout: &'static str,
    payments: Option<String>,
    other: &'static str,
    more: String,
}

impl ConfigText {
    /// `POST /payments` is protected, in front of this service.
    fn before(origin: &Origin) -> Self {
        Self {
            number: 0,
            upstream: format!("http://{}", origin.address()),
            server: String::new(),
            limits: String::new(),
            classes: String::new(),
            timeout: "30s",
            payments: Some("policy = \"REQUIRED_A\"".to_owned()),
            other: "ACCEPTED",
            more: String::new(),
        }
    }

    fn write(&self, store: &Path) -> String {
        let Self {
            number,
            upstream,
            server,
            limits,
            classes,
            timeout,
            payments,
            other,
            more,
        } = self;
        let route = |endpoint: &str, path: &str, more: &str| {
            format!(
                "[[routes]]\nendpoint = \"{endpoint}\"\nmethod = [\"GET\", \"POST\"]\npath = \"{path}\"\n\
                 upstream = \"origin\"\nresponse_headers = {{ set = {{ X-Number = \"{number}\" }} }}\n{more}\n"
            )
        };
        let payments = payments.as_ref();
        let payments = payments.map(|more| route("payments.create", PATH, more));
        format!(
            "[server]\nlisten = \"127.0.0.1:0\"\nadmin = \"127.0.0.1:0\"\n{server}\n\
             [store]\nurl = \"embedded:{}\"\n[limits]\n{limits}\n{classes}\n\
             [upstreams.origin]\nurl = \"{upstream}\"\ntimeout = \"{timeout}\"\n{}{}{more}\n",
            store.display(),
            payments.unwrap_or_default(),
            route("other.create", OTHER, &format!("policy = \"{other}\"")),
        )
    }
}

/// A gateway, its file, and the service behind it.
struct ReloadedGateway {
    directory: TempDir,
    gateway: Gateway,
}

impl ReloadedGateway {
    async fn open(text: &ConfigText) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("onceward.toml");
        std::fs::write(&file, text.write(&directory.path().join("data"))).unwrap();
        let gateway = gateway_of(&file).option("--log", "info,onceward::access=off");
        Self {
            gateway: gateway.run().await,
            directory,
        }
    }

    fn file(&self) -> PathBuf {
        self.directory.path().join("onceward.toml")
    }

    /// Puts another file in the place of the old one, as editors do.
    fn replace(&self, text: &str) {
        let beside = self.directory.path().join(".onceward.toml.new");
        std::fs::write(&beside, text).unwrap();
        std::fs::rename(&beside, self.file()).unwrap();
    }

    /// Changes the file and waits until it is in force.
    async fn change_to(&self, text: &ConfigText) {
        self.replace(&text.write(&self.directory.path().join("data")));
        until("it is in force", || async {
            self.number().await == text.number
        })
        .await;
    }

    /// The number of the configuration in force.
    async fn number(&self) -> usize {
        let answer = get(&self.gateway, OTHER).await;
        answer.header("x-number").parse().unwrap()
    }

    async fn failures(&self) -> usize {
        self.gateway
            .counted(r#"onceward_reloads_total{outcome="failed"}"#)
            .await
    }

    /// The audit entries of reloads.
    async fn audit(&self) -> Vec<Value> {
        let request = Request::get("/admin/v1/audit?limit=200").header("host", "localhost");
        let request = request.body(Full::default()).unwrap();
        let mut client = Client::new(self.gateway.admin_address());
        let page = client.send(request).await.unwrap().json();
        let entries = page["entries"].as_array().unwrap().iter();
        let reloads = entries.filter(|entry| entry["action"] == "configuration.reload");
        reloads.cloned().collect()
    }
}

async fn get(gateway: &Gateway, path: &str) -> Response {
    let mut client = Client::new(gateway.listen());
    client.send(get_request(path)).await.unwrap()
}

/// `POST /admin/v1/reload`, without a token.
async fn reload(gateway: &Gateway) -> Response {
    let request = Request::post("/admin/v1/reload")
        .header("host", "localhost")
        .header("content-type", "application/json")
        .body(Full::<Bytes>::from(r#"{"why":"a test"}"#))
        .unwrap();
    let mut client = Client::new(gateway.admin_address());
    client.send(request).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reloads_under_load_fail_no_request_and_run_nothing_twice() {
    let origin = origin_choosing(Sequence::default(), |key, times| {
        // Some are refused the first time, so that retries run as well.
        match key.ends_with('7') && times == 1 {
            true => Behaviour::Refuse,
            false => Behaviour::Pay(Duration::from_millis(key.len() as u64 % 5 * 10)),
        }
    })
    .await;
    let text = ConfigText::before(&origin);
    let fixture = ReloadedGateway::open(&text).await;
    let shop = Arc::new(ReloadClients::new(&fixture.gateway));
    let mut clients = JoinSet::new();
    for _ in 0..CLIENTS {
        clients.spawn(shop.clone().buy());
    }

    let mut mistakes = 0;
    for number in 1..=CHANGES {
        let way = [Trigger::File, Trigger::Signal, Trigger::Admin][number / MISTAKEN_EVERY % 3];
        eprintln!("change {number} by {way:?}");
        if number.is_multiple_of(MISTAKEN_EVERY) {
            mistakes += 1;
            refused(&fixture, &mistaken(&text, mistakes), way).await;
        } else {
            taken(&fixture, &changed(&text, number), way).await;
        }
        // The load goes on under each for a while.
        let before = shop.bought();
        until("more is bought", || async {
            shop.bought() > before + CLIENTS
        })
        .await;
    }
    shop.closed.store(true, Ordering::SeqCst);
    while let Some(client) = clients.join_next().await {
        client.unwrap();
    }

    let bought = shop.told.lock().unwrap().len();
    let mut runs: HashMap<_, usize> = HashMap::new();
    for run in origin.runs() {
        if run.behaviour != Behaviour::Refuse && !run.key.is_empty() {
            *runs.entry(run.key).or_default() += 1;
        }
    }
    assert_eq!(runs.values().max(), Some(&1), "nothing ran twice");
    assert_eq!(runs.len(), bought, "and all that was answered ran");
    let all = fixture.audit().await;
    let refusals = all.iter().filter(|entry| entry["outcome"] == "refused");
    assert!(refusals.count() >= mistakes && all.len() >= CHANGES);
    eprintln!("{bought} operations under {CHANGES} changes, {mistakes} of them mistaken");
}

/// How a reload is triggered.
#[derive(Clone, Copy, Debug)]
enum Trigger {
    File,
    Signal,
    Admin,
}

impl Trigger {
    /// The actor in the audit log.
    fn who(self) -> &'static str {
        match self {
            Self::File => "file",
            Self::Signal => "signal",
            Self::Admin => "local",
        }
    }
}

/// Another configuration, with many different settings.
fn changed(text: &ConfigText, number: usize) -> ConfigText {
    let pick = |texts: [&'static str; 4]| texts[number % 4];
    // A class of the busy route that comes and goes.
    let class = pick(["interactive", "gold", "financial", "gold-2"]);
    let own = format!("[classes.{class}]\nretention = \"{}h\"\n", 24 + number);
    ConfigText {
        number,
        limits: format!(
            "waiters_per_key = {}\nrequests_per_tenant = {{ per_second = 100000, burst = {} }}",
            1000 + number,
            100_000 + number % 2,
        ),
        classes: own + &format!("wait = \"{}s\"", 20 + number % 5),
        timeout: pick(["30s", "29s", "29s", "28s"]),
        payments: Some(format!("policy = \"REQUIRED_A\"\nclass = \"{class}\"")),
        other: pick(["ACCEPTED", "PROHIBITED", "HANDLER_INTERNAL_C", "REQUIRED_A"]),
        server: format!("body_limit = \"{}KiB\"", 512 + number),
        ..text.clone()
    }
}

/// A configuration with a mistake, and its error message.
fn mistaken(text: &ConfigText, number: usize) -> (ConfigText, &'static str) {
    let text = ConfigText {
        // The number would show if it were in force.
        number: 1_000_000,
        payments: Some("policy = \"PROHIBITED\"".to_owned()),
        ..text.clone()
    };
    let server = |line: &str| ConfigText {
        server: line.to_owned(),
        ..text.clone()
    };
    let more = |line: &str| ConfigText {
        more: line.to_owned(),
        ..text.clone()
    };
    match number % 5 {
        0 => (more("[[routes"), "invalid TOML"),
        1 => (server("drian = \"30s\""), "unknown key"),
        2 => (
            more("[[routes]]\nendpoint = \"a.b\"\npath = \"/b\"\nupstream = \"nowhere\""),
            "nowhere",
        ),
        3 => (more("[classes.interactive]\nlease = \"1s\""), "lease"),
        _ => (
            server("head_deadline = \"11s\""),
            "server.head_deadline cannot change while the gateway runs",
        ),
    }
}

/// Puts a configuration in force.
async fn taken(fixture: &ReloadedGateway, text: &ConfigText, way: Trigger) {
    fixture.replace(&text.write(&fixture.directory.path().join("data")));
    match way {
        Trigger::File => {}
        Trigger::Signal => fixture.gateway.signal(Signal::HUP),
        Trigger::Admin => {
            let answer = reload(&fixture.gateway).await;
            assert_eq!(answer.status, 200, "{answer:?}");
            assert_eq!(fixture.number().await, text.number, "at once");
        }
    }
    until("it is in force", || async {
        fixture.number().await == text.number
    })
    .await;
    assert_eq!(
        fixture.gateway.counted("onceward_reload_successful").await,
        1
    );
}

/// Tries to load a configuration with a mistake: it changes nothing, and the error is reported.
async fn refused(fixture: &ReloadedGateway, (text, why): &(ConfigText, &str), way: Trigger) {
    let (before, failures) = (fixture.number().await, fixture.failures().await);
    fixture.replace(&text.write(&fixture.directory.path().join("data")));
    match way {
        Trigger::File => {}
        Trigger::Signal => fixture.gateway.signal(Signal::HUP),
        Trigger::Admin => {
            let answer = reload(&fixture.gateway).await;
            assert_eq!(answer.status, 409, "{answer:?}");
            let detail = answer.json()["detail"].as_str().unwrap().to_owned();
            assert!(detail.contains(why), "{detail}");
        }
    }
    until("it is counted", || async {
        fixture.failures().await > failures
    })
    .await;
    assert_eq!(fixture.number().await, before);
    assert_eq!(
        fixture.gateway.counted("onceward_reload_successful").await,
        0
    );
    let told = || async {
        let audit = fixture.audit().await;
        audit.iter().any(|entry| {
            entry["outcome"] == "refused"
                && entry["who"] == way.who()
                && entry.to_string().contains(why)
        })
    };
    until("the audit tells it", told).await;
}

/// The state that all clients share.
struct ReloadClients {
    to: std::net::SocketAddr,
    closed: AtomicBool,
    keys: AtomicUsize,
    /// The response of each key.
    told: Mutex<HashMap<String, Bytes>>,
}

impl ReloadClients {
    fn new(gateway: &Gateway) -> Self {
        Self {
            to: gateway.listen(),
            closed: AtomicBool::new(false),
            keys: AtomicUsize::new(0),
            told: Mutex::default(),
        }
    }

    fn bought(&self) -> usize {
        self.told.lock().unwrap().len()
    }

    /// One client: sends a new key twice at once until it is answered; then once more.
    async fn buy(self: Arc<Self>) {
        let (mut client, mut twin) = (Client::new(self.to), Client::new(self.to));
        while !self.closed.load(Ordering::SeqCst) {
            let key = format!("key-{}", self.keys.fetch_add(1, Ordering::SeqCst));
            let (first, second) = tokio::join!(
                self.until_answered(&mut client, &key),
                self.until_answered(&mut twin, &key),
            );
            let third = self.until_answered(&mut client, &key).await;
            assert!(third.is_replay());
            assert_eq!((&first.body, &first.body), (&second.body, &third.body));
            self.told.lock().unwrap().insert(key, first.body);
            sleep(Duration::from_millis(5)).await;
        }
    }

    /// Retries until the service has done it. The only other valid answer is its refusal.
    async fn until_answered(&self, client: &mut Client, key: &str) -> Response {
        loop {
            let answer = client.post(key, BODY).await;
            let answer = answer.unwrap_or_else(|_| panic!("{key}: the connection broke"));
            match (answer.status, answer.code().as_str()) {
                (201, _) => return answer,
                (503, "") => {}
                // The run that this one waited for was refused by the service,
                // or is under way again.
                (409, "in-progress") => sleep(Duration::from_millis(5)).await,
                _ => panic!("{key}: {answer:?}"),
            }
        }
    }
}

/// What happens to a route while its operation runs.
#[rstest]
#[case::prohibited(|text: &mut ConfigText| text.payments = Some("policy = \"PROHIBITED\"".into()), Some((400, "key-prohibited")), 201)]
#[case::removed(|text: &mut ConfigText| text.payments = None, Some((404, "no-route")), 404)]
#[case::another_upstream(
    |text: &mut ConfigText| text.upstream = "http://127.0.0.1:9".into(), Some((502, "upstream-unreachable")), 201)]
#[case::hardly_any_time(|text: &mut ConfigText| text.timeout = "1ms", None, 201)]
#[tokio::test]
async fn work_under_way_ends_by_the_rules_that_it_began_with(
    #[case] change: fn(&mut ConfigText),
    #[case] others: Option<(u16, &str)>,
    #[case] by_id: u16,
) {
    let origin = origin(Behaviour::Hold).await;
    let text = ConfigText::before(&origin);
    let fixture = ReloadedGateway::open(&text).await;
    let gateway = &fixture.gateway;
    let first = gateway.spawn_post("k", BODY);
    origin.called(1).await;
    let second = gateway.spawn_post("k", BODY);
    until("it waits", || async {
        fixture.gateway.counted("onceward_waiters").await == 1
    })
    .await;

    let mut after = ConfigText {
        number: 1,
        ..text.clone()
    };
    change(&mut after);
    fixture.replace(&after.write(&fixture.directory.path().join("data")));
    assert_eq!(reload(gateway).await.status, 200);
    if let Some(others) = others {
        let other = gateway.post("other", BODY).await.unwrap();
        assert_eq!((other.status, other.code().as_str()), others);
    }

    assert!(!first.is_finished() && !second.is_finished());
    origin.open();
    let first = first.await.unwrap().unwrap();
    assert_eq!(
        (first.status, first.header("idempotency-status")),
        (201, "completed")
    );
    assert_eq!(first.header("x-number"), "0", "by the old rules");
    let second = second.await.unwrap().unwrap();
    assert!(second.is_replay());
    assert_eq!(second.kept(), first.kept());

    let id = first.header("x-operation-id").to_owned();
    let path = format!("/api/v1/operations/{id}/output");
    let found = get(gateway, &path).await;
    assert_eq!(found.status, by_id, "{found:?}");

    let back = ConfigText {
        number: 2,
        ..text.clone()
    };
    fixture.replace(&back.write(&fixture.directory.path().join("data")));
    assert_eq!(reload(gateway).await.status, 200);
    for answer in [
        gateway.post("k", BODY).await.unwrap(),
        get(gateway, &path).await,
        get(gateway, &format!("{PATH}/by-idempotency-key/k")).await,
    ] {
        assert!(answer.is_replay(), "{answer:?}");
        assert_eq!(answer.body, first.body);
    }
    assert_eq!(origin.runs_of("k").len(), 1);
}

#[tokio::test]
async fn mistake_is_in_the_log_and_a_stop_after_it_is_in_order() {
    let origin = origin(Behaviour::PAY).await;
    let text = ConfigText::before(&origin);
    let fixture = ReloadedGateway::open(&text).await;
    let (mistaken, why) = mistaken(&text, 1);
    refused(&fixture, &(mistaken, why), Trigger::File).await;
    assert_eq!(fixture.gateway.post("k", BODY).await.unwrap().status, 201);
    fixture.change_to(&ConfigText { number: 3, ..text }).await;
    fixture.gateway.signal(Signal::TERM);
    let (status, log) = fixture.gateway.ended().await;
    assert_eq!(status.code(), Some(0), "{log:?}");
    let lines: Vec<Value> = log
        .iter()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let line = |message: &str| {
        let mut lines = lines.iter().filter(|line| line["message"] == message);
        lines
            .next()
            .unwrap_or_else(|| panic!("no {message:?} in {log:?}"))
            .clone()
    };
    let refusal = line("configuration refused; the previous one stays in force");
    assert_eq!(refusal["level"], "ERROR");
    assert!(refusal["why"].as_str().unwrap().contains(why), "{refusal}");
    line("configuration reloaded");
}

/// As Kubernetes mounts it: the file is a link into a directory that is a link,
/// and only the second is changed.
#[tokio::test]
async fn configuration_behind_a_link_is_followed() {
    let origin = origin(Behaviour::PAY).await;
    let text = ConfigText::before(&origin);
    let directory = tempfile::tempdir().unwrap();
    let place = |text: &ConfigText| {
        let there = directory.path().join(format!("..{}", text.number));
        std::fs::create_dir(&there).unwrap();
        let written = text.write(&directory.path().join("data"));
        std::fs::write(there.join("onceward.toml"), written).unwrap();
        let beside = directory.path().join("..data_tmp");
        std::os::unix::fs::symlink(&there, &beside).unwrap();
        std::fs::rename(&beside, directory.path().join("..data")).unwrap();
    };
    place(&text);
    let file = directory.path().join("onceward.toml");
    std::os::unix::fs::symlink("..data/onceward.toml", &file).unwrap();
    let gateway = gateway_of(&file).run().await;
    assert_eq!(get(&gateway, OTHER).await.header("x-number"), "0");
    place(&ConfigText { number: 1, ..text });
    until("it is in force", || async {
        get(&gateway, OTHER).await.header("x-number") == "1"
    })
    .await;
    assert_eq!(gateway.post("k", BODY).await.unwrap().status, 201);
}

#[tokio::test]
async fn change_while_the_gateway_starts_is_not_missed() {
    let origin = origin(Behaviour::PAY).await;
    let text = ConfigText::before(&origin);
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("onceward.toml");
    let write = |text: &ConfigText| {
        let beside = directory.path().join("beside");
        std::fs::write(&beside, text.write(&directory.path().join("data"))).unwrap();
        std::fs::rename(&beside, &file).unwrap();
    };
    write(&text);
    let starting = gateway_of(&file).start();
    // At once, and repeatedly while it starts; this configuration is the last.
    for number in 1..=10 {
        write(&ConfigText {
            number,
            ..text.clone()
        });
        sleep(Duration::from_millis(10)).await;
    }
    let gateway = starting.ready().await;
    until("the last one is in force", || async {
        get(&gateway, OTHER).await.header("x-number") == "10"
    })
    .await;
}
