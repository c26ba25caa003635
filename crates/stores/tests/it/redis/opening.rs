//! A server that is not usable is refused in one sentence that says what to change,
//! without the secrets of the URL.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use onceward_core::clock::SystemClock;
use onceward_core::store::Store;
use onceward_servers::{Redis, RedisCluster};
use onceward_stores::redis::RedisStore;
use onceward_stores::{Settings, open as open_url};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata};

use crate::fixture::redis::*;
use crate::fixture::{ask, grant};

async fn refusal(url: &str) -> String {
    let mut settings = settings(url);
    settings.deadline = Duration::from_secs(2);
    let refused = RedisStore::open(&settings).await;
    let words = refused.expect_err("it does not open").to_string();
    assert!(!words.contains("secret"), "{words}");
    assert!(!words.contains('\n'), "{words}");
    words
}

/// A URL with a login.
fn login(server: &Redis, user_and_password: &str) -> String {
    format!("redis://{user_and_password}@127.0.0.1:{}", server.port())
}

#[tokio::test]
async fn redis_is_opened_by_its_url() {
    let server = Redis::start();
    let opened = open_url(&*server.url(), Arc::new(SystemClock::new())).await;
    let opened = opened.expect("it opens");
    grant(&*opened.store, &ask(1)).await;
    let keys = server.cli(&["KEYS", "onceward:{edge.*}:*"]);
    assert_eq!(keys.lines().count(), 2, "{keys}");
}

#[tokio::test]
async fn eviction_is_refused() {
    let server = Redis::start_with(&["--maxmemory-policy", "allkeys-lru"]);
    let words = refusal(&server.url()).await;
    assert_eq!(
        words,
        format!(
            "Redis at 127.0.0.1:{} has maxmemory-policy allkeys-lru, which evicts records when \
             memory is full, so that operations would run again; set it to noeviction (CONFIG SET \
             maxmemory-policy noeviction)",
            server.port()
        )
    );
    server.cli(&["CONFIG", "SET", "maxmemory-policy", "noeviction"]);
    open(&settings(&server.url())).await;
}

#[tokio::test]
async fn wrong_logins_are_refused() {
    let server = Redis::start_with(&["--requirepass", "topsecret"]);
    for url in [
        server.url(),
        login(&server, ":secret"),
        login(&server, "nobody:secret"),
    ] {
        let words = refusal(&url).await;
        let want = format!(
            "Redis at 127.0.0.1:{} refuses the login: check user and password in the URL (",
            server.port()
        );
        assert!(words.starts_with(&want), "{words}");
    }
    open(&settings(&login(&server, ":topsecret"))).await;
}

/// Collects the messages of warnings.
struct Warnings(Arc<Mutex<Vec<String>>>);

impl tracing::Subscriber for Warnings {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() == Level::WARN
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut words = Words::default();
        event.record(&mut words);
        let mut warnings = self.0.lock().expect("no panic");
        warnings.push(words.0);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

#[derive(Default)]
struct Words(String);

impl Visit for Words {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        if field.name() == "message" {
            self.0 = format!("{value:?}");
        }
    }
}

/// The warnings when a store is opened.
async fn warnings(settings: &Settings) -> Vec<String> {
    let warnings = Arc::<Mutex<Vec<String>>>::default();
    let heard = tracing::subscriber::set_default(Warnings(warnings.clone()));
    open(settings).await;
    drop(heard);
    let mut warnings = warnings.lock().expect("no panic");
    std::mem::take(&mut *warnings)
}

#[tokio::test]
async fn the_possible_loss_of_a_crash_is_warned_of() {
    let loses = "a crash may lose the latest acknowledged writes";
    let everysec = format!("Redis has appendfsync everysec: {loses}; set it to always");
    let server = Redis::start_with(&["--appendfsync", "always"]);
    let mut settings = settings(&server.url());
    assert_eq!(warnings(&settings).await, [""; 0]);
    server.cli(&["CONFIG", "SET", "appendfsync", "everysec"]);
    assert_eq!(warnings(&settings).await, [everysec.as_str()]);

    set_documented_user(&server, &settings, &[]);
    settings.url = login(&server, "onceward:password");
    assert_eq!(
        warnings(&settings).await,
        [format!(
            "Redis does not show its appendfsync, as this user may not run CONFIG GET: unless it \
             is always, {loses}"
        )]
    );
    server.cli(&["CONFIG", "SET", "appendonly", "no"]);
    assert_eq!(
        warnings(&settings).await,
        [
            "Redis has no append-only file: a restart loses acknowledged writes; set appendonly to \
             yes"
        ]
    );

    let cluster = RedisCluster::start(3);
    for node in &cluster.nodes()[1..] {
        node.cli(&["CONFIG", "SET", "appendfsync", "always"]);
    }
    settings.url = cluster.url();
    let warned = warnings(&settings).await;
    assert_eq!(warned, [everysec.as_str()], "one of three");
}

/// Creates the user of the documentation, with these additional rights.
fn set_documented_user(server: &Redis, settings: &Settings, besides: &[&str]) {
    let page = include_str!("../../../../../docs/redis.md");
    let mut lines = page.lines().map(str::trim);
    let line = lines.find(|line| line.starts_with("ACL SETUSER onceward "));
    let line = line.expect("the page has the rules");
    let own = line.replace("{edge.", &format!("{{{}.", settings.namespace));
    let mut rules = own.split_whitespace().collect::<Vec<_>>();
    rules.extend(besides);
    assert_eq!(server.cli(&rules), "OK");
}

#[tokio::test]
async fn a_user_with_the_documented_rights_is_let_in() {
    let server = Redis::start();
    let settings = settings(&login(&server, "onceward:password"));
    set_documented_user(&server, &settings, &[]);
    let store = open(&settings).await;
    assert_ne!(server.cli(&["PUBSUB", "NUMPAT"]), "0", "it listens");
    use_all(&store).await;
    // The policy is checked on every new connection.
    server.cli(&["CONFIG", "SET", "maxmemory-policy", "volatile-lru"]);
    server.cli(&["CLIENT", "KILL", "TYPE", "normal"]);
    tokio::time::sleep(Duration::from_millis(100)).await;
    until("the policy is seen", async || {
        let words = unavailable(store.claim(&ask(4)).await);
        words.contains("volatile-lru").then_some(())
    })
    .await;
    server.cli(&["CONFIG", "SET", "maxmemory-policy", "noeviction"]);
    server.cli(&["ACL", "SETUSER", "onceward", "-info"]);
    let words = refusal(&settings.url).await;
    assert!(
        words.contains("does not allow this user to run INFO; allow it: ACL SETUSER"),
        "{words}"
    );
}

#[tokio::test]
async fn a_user_with_the_documented_rights_is_let_into_a_cluster() {
    let cluster = RedisCluster::start(3);
    let url = login(&cluster.nodes()[0], "onceward:password");
    let settings = settings(&url);
    for node in cluster.nodes() {
        set_documented_user(node, &settings, &["+cluster|info", "+cluster|slots"]);
    }
    let store = open(&settings).await;
    use_all(&store).await;
}

/// Takes a step of every kind.
async fn use_all(store: &RedisStore) {
    use bytes::Bytes;
    use onceward_core::store::{
        Collection, Filter, Force, Inspect, PageRequest, Queue, Registry, SortOrder,
    };

    crate::fixture::complete(store, 1).await;
    let held = grant(store, &ask(2)).await;
    let renewed = store.renew(&held.digest, held.fence).await;
    renewed.expect("the store renews");
    let waited = store.wait(&held.digest, Duration::from_millis(1)).await;
    waited.expect("the store answers a wait");
    let purged = store.purge(held.id, Force::Yes).await;
    purged.expect("the store forgets");
    let enqueued = store.enqueue(&ask(3), Bytes::new(), Duration::ZERO).await;
    enqueued.expect("the store records");
    assert_eq!(store.due(1).await.map(|due| due.len()).ok(), Some(1));
    store.next_due().await.expect("the store answers");
    store.sweep(10).await.expect("the store sweeps");
    let stats = store.stats().await.expect("the store counts");
    assert_eq!(stats.operations, 2);
    assert!(stats.bytes > 0);
    let page = PageRequest::first(10);
    let page = store.list(&Filter::default(), page).await;
    assert_eq!(page.map(|page| page.records.len()).ok(), Some(2));
    let put = store.put(Collection::Classes, "name", Bytes::from_static(b"document"));
    put.await.expect("the store keeps documents");
    let documents = store
        .documents(Collection::Classes, SortOrder::Ascending, None, 10)
        .await;
    assert_eq!(documents.map(|documents| documents.len()).ok(), Some(1));
    let removed = store.remove(Collection::Classes, "name").await;
    removed.expect("the store forgets documents");
}

#[tokio::test]
async fn a_refused_connection_is_reported_with_the_address() {
    let mut server = Redis::start();
    server.kill();
    let words = refusal(&server.url()).await;
    let want = format!("cannot reach Redis at 127.0.0.1:{}: ", server.port());
    assert!(words.starts_with(&want), "{words}");
}

/// Other servers at the port: one that closes the connection, one that speaks HTTP,
/// one that sends nothing.
#[tokio::test]
async fn a_server_that_is_not_redis_is_reported_with_the_address() {
    let answers: [Option<&[u8]>; 3] = [
        Some(b""),
        Some(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n"),
        None,
    ];
    for answer in answers {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("it is bound");
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.expect("a caller");
                // The client sends first.
                let _ = stream.read(&mut [0; 512]);
                match answer {
                    Some(answer) => stream.write_all(answer).expect("the caller listens"),
                    None => std::thread::sleep(Duration::from_secs(30)),
                }
            }
        });
        let words = refusal(&format!("redis://{address}")).await;
        let not_redis = format!("the server at {address} does not speak the Redis protocol");
        let silent = format!("cannot reach Redis at {address}: ");
        let want = match answer {
            Some(_) => not_redis,
            None => silent,
        };
        assert!(words.starts_with(&want), "{words}");
    }
}

#[tokio::test]
async fn a_replica_is_refused() {
    let primary = Redis::start();
    let replica = primary.replica();
    let words = refusal(&replica.url()).await;
    assert!(
        words.ends_with("is a replica and accepts no writes; use its primary in the URL"),
        "{words}"
    );
}

#[tokio::test]
async fn a_cluster_that_does_not_serve_is_refused() {
    let mut cluster = RedisCluster::start(3);
    for node in cluster.nodes() {
        // Otherwise it takes a quarter of a minute until a missing node is noticed.
        node.cli(&["CONFIG", "SET", "cluster-node-timeout", "1000"]);
    }
    let words = refusal(&format!("{}/1", cluster.url())).await;
    assert!(
        words.contains("remove the database from the URL"),
        "{words}"
    );
    cluster.nodes()[2].cli(&["CONFIG", "SET", "maxmemory-policy", "volatile-ttl"]);
    let words = refusal(&cluster.url()).await;
    let place = format!("Redis at 127.0.0.1:{} has", cluster.nodes()[2].port());
    assert!(words.contains(&place), "every primary is checked: {words}");

    cluster.nodes_mut()[2].kill();
    let url = cluster.url();
    until("the others know", async || {
        let state = cluster.nodes()[0].cli(&["CLUSTER", "INFO"]);
        state.contains("cluster_state:fail").then_some(())
    })
    .await;
    let words = refusal(&url).await;
    assert!(
        words.contains("is down (cluster_state:fail); bring its nodes back"),
        "{words}"
    );
    // Any node of the URL gives access to the Cluster, also when another one is
    // down.
    let dead = format!("127.0.0.1:{}", cluster.nodes()[2].port());
    cluster.nodes_mut()[2].restart();
    cluster.wait_until_ok();
    cluster.nodes()[2].cli(&["CONFIG", "SET", "maxmemory-policy", "noeviction"]);
    let alive = url.trim_start_matches("redis://");
    let closed = dead.rsplit_once(':').map_or("", |(host, _)| host);
    open(&settings(&format!("redis://{closed}:1,{alive}"))).await;
}
