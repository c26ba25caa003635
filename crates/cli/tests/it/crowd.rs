//! Ten thousand requests that wait for one operation, over HTTP/2 streams: memory stays bounded, one
//! more request is refused immediately, and all get the same reply.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use bytes::Bytes;
use h2::client::SendRequest;
use tokio::net::TcpStream;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::timeout;

use crate::fixture::BODY;
use crate::fixture::gateway::{Gateway, gateway_of};
use crate::fixture::origin::{Behaviour, Sequence, origin_choosing};

const CONNECTIONS: usize = 40;
/// Within `limits.streams`.
const STREAMS: usize = 250;
/// `limits.waiters_per_key`.
const WAITERS: usize = CONNECTIONS * STREAMS;
/// The maximum resident memory. It is about 240 MiB: 30 for the process, and 21 KiB for each waiting
/// request, most of it for the HTTP/2 stream.
const MEMORY_BYTES_MAX: u64 = 384 << 20;
/// The limit for an immediate answer, on a busy machine too.
const AT_ONCE: Duration = Duration::from_secs(5);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_waiters_fit_in_memory_and_the_next_is_refused_at_once() {
    let origin = origin_choosing(Sequence::default(), |key, _| match key {
        "crowd" => Behaviour::Hold,
        _ => Behaviour::PAY,
    })
    .await;
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("onceward.toml");
    let text = format!(
        "[server]\nlisten = \"127.0.0.1:0\"\nadmin = \"127.0.0.1:0\"\n\
         [store]\nurl = \"embedded:{}\"\n\
         [classes.interactive]\nwait = \"10m\"\nlease = \"10m\"\n\
         [upstreams.origin]\nurl = \"http://{}\"\ntimeout = \"10m\"\n\
         [[routes]]\nendpoint = \"payments.create\"\nmethod = \"POST\"\npath = \"/payments\"\n\
         upstream = \"origin\"\npolicy = \"REQUIRED_A\"\n",
        directory.path().join("data").display(),
        origin.address(),
    );
    std::fs::write(&file, text).unwrap();
    let plan = gateway_of(&file).option("--log", "warn,onceward::access=off");
    let gateway = plan.run().await;
    let alone = memory(&gateway, "VmRSS:");

    let leader = gateway.spawn_post("crowd", BODY);
    origin.called(1).await;
    let begun = Instant::now();
    let mut crowd = JoinSet::new();
    let mut lines = Vec::new();
    for _ in 0..CONNECTIONS {
        let line = Http2Connection::open(gateway.listen()).await;
        for _ in 0..STREAMS {
            crowd.spawn(ask(line.sender.clone()));
        }
        lines.push(line);
    }
    while waiters(&gateway).await < WAITERS {
        tokio::time::sleep(Duration::from_millis(20)).await;
        if let Some(early) = crowd.try_join_next() {
            panic!("one did not wait: {:?}", early.unwrap());
        }
    }
    let (gathered, waiting) = (begun.elapsed(), memory(&gateway, "VmRSS:"));

    let next = timeout(AT_ONCE, gateway.post("crowd", BODY)).await;
    let next = next.expect("told at once").unwrap();
    assert_eq!((next.status, next.code().as_str()), (409, "in-progress"));
    let other = timeout(AT_ONCE, gateway.post("another", BODY)).await;
    assert_eq!(other.expect("served at once").unwrap().status, 201);
    assert_eq!(waiters(&gateway).await, WAITERS);

    let opened = Instant::now();
    origin.open();
    let first = leader.await.unwrap().unwrap();
    assert_eq!((first.status, first.is_replay()), (201, false));
    let mut answered = 0;
    while let Some(answer) = crowd.join_next().await {
        let answer = answer.unwrap();
        assert_eq!((answer.status, answer.replayed), (201, true), "{answer:?}");
        assert_eq!(answer.body, first.body);
        answered += 1;
    }
    assert_eq!((answered, origin.runs_of("crowd").len()), (WAITERS, 1));

    let peak = memory(&gateway, "VmHWM:");
    eprintln!(
        "{WAITERS} gathered in {gathered:?} and were answered in {:?}; resident: {} MiB alone, {} MiB \
         waiting, {} MiB at most",
        opened.elapsed(),
        alone >> 20,
        waiting >> 20,
        peak >> 20,
    );
    assert!(peak < MEMORY_BYTES_MAX, "{} MiB", peak >> 20);
}

/// An HTTP/2 connection, driven until it is dropped.
pub(crate) struct Http2Connection {
    pub(crate) sender: SendRequest<Bytes>,
    driver: JoinHandle<()>,
}

impl Http2Connection {
    pub(crate) async fn open(to: SocketAddr) -> Self {
        let stream = TcpStream::connect(to).await.unwrap();
        stream.set_nodelay(true).unwrap();
        let (sender, connection) = h2::client::handshake(stream).await.unwrap();
        let driver = tokio::spawn(async move { connection.await.unwrap() });
        Self { sender, driver }
    }
}

impl Drop for Http2Connection {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

#[derive(Debug)]
pub(crate) struct StreamResponse {
    pub(crate) status: u16,
    pub(crate) replayed: bool,
    pub(crate) body: Vec<u8>,
}

/// `POST /payments` with the shared key, on its own stream.
pub(crate) async fn ask(sender: SendRequest<Bytes>) -> StreamResponse {
    let request = hyper::Request::post("http://shop.example/payments")
        .header("content-type", "application/json")
        .header("idempotency-key", "crowd")
        .body(())
        .unwrap();
    let mut sender = sender.ready().await.unwrap();
    let (response, mut body) = sender.send_request(request, false).unwrap();
    body.send_data(BODY.into(), true).unwrap();
    let (head, mut stream) = response.await.unwrap().into_parts();
    let mut body = Vec::new();
    while let Some(piece) = stream.data().await {
        let piece = piece.unwrap();
        body.extend_from_slice(&piece);
        stream.flow_control().release_capacity(piece.len()).unwrap();
    }
    StreamResponse {
        status: head.status.as_u16(),
        replayed: head.headers.contains_key("idempotent-replayed"),
        body,
    }
}

async fn waiters(gateway: &Gateway) -> usize {
    gateway.counted("onceward_waiters").await
}

/// A memory figure of the process from the kernel, in bytes.
fn memory(gateway: &Gateway, name: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", gateway.pid())).unwrap();
    let mut lines = status.lines();
    let line = lines.find_map(|line| line.strip_prefix(name)).unwrap();
    let kib: u64 = line.trim().strip_suffix(" kB").unwrap().parse().unwrap();
    kib << 10
}
