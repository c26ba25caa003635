//! Slow clients in front of a whole gateway: each is closed at its deadline, holds
//! no more than it sent, and leaves no trace, while other clients are served.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use data_encoding::HEXLOWER;
use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};

use crate::harness::{Origin, Reply, Running, configured, origin};

/// The deadline for slow clients in these tests.
const DEADLINE: Duration = Duration::from_millis(600);
/// The limit for serving other clients, even on a busy machine; waiting for a slow
/// client would take longer.
const PROMPTLY: Duration = Duration::from_millis(400);
/// The limit for closing a slow client: its deadline, plus time for a busy machine.
const GONE: Duration = Duration::from_secs(20);
const LARGE_BYTES: usize = 1 << 20;

const SERVER: &str =
    "server: head_deadline = \"600ms\"; body_deadline = \"600ms\"; write_deadline = \"600ms\"\n";
const PAYMENTS: &str = "\n[[routes]]\nendpoint = \"payments.create\"\nmethod = \"POST\"\n\
     path = \"/payments\"\nupstream = \"origin\"\npolicy = \"REQUIRED_A\"\n";

/// Checks that another client is served meanwhile.
async fn others_are_served(gateway: &Running, key: &str) {
    let asked = Instant::now();
    let mut best = Duration::MAX;
    // The machine may be busy once, but not every time.
    while best >= PROMPTLY && asked.elapsed() < GONE {
        let begun = Instant::now();
        let answer = gateway.post("/payments", key).body("a").send().await;
        assert_eq!(answer.status, 201, "{}", answer.text());
        best = best.min(begun.elapsed());
    }
    assert!(best < PROMPTLY, "{best:?}");
}

#[tokio::test]
async fn slow_head_is_cut_off_while_others_are_served() {
    let origin = origin().reply(201, "paid").run().await;
    let gateway = configured(&origin, &[SERVER, PAYMENTS].concat())
        .run()
        .await;
    let begun = Instant::now();
    let mut slow = Vec::new();
    for _ in 0..50 {
        let mut client = TcpStream::connect(gateway.address()).await.unwrap();
        slow.push(tokio::spawn(async move {
            // The client keeps sending and never completes its head, until the
            // gateway closes.
            let mut line = &b"POST /payments HTTP/1.1\r\nHost: a\r\n"[..];
            while client.write_all(line).await.is_ok() {
                line = b"X-A: b\r\n";
                sleep(DEADLINE / 6).await;
            }
        }));
    }
    others_are_served(&gateway, "k").await;
    for client in slow {
        timeout(GONE, client).await.expect("it is cut off").unwrap();
    }
    assert!(begun.elapsed() >= DEADLINE);
    gateway.shows("onceward_connections 0").await;
    assert_eq!(origin.runs(), 1, "of the other");
}

#[tokio::test]
async fn slow_body_is_cut_off_leaves_its_key_free_and_holds_no_buffer() {
    let origin = origin().reply(201, "paid").run().await;
    // Space for one body, and no more.
    let limits = "[limits]\nbuffered_bytes = \"1MiB\"\n";
    let text = [SERVER, limits, PAYMENTS].concat();
    let gateway = configured(&origin, &text).run().await;
    let mut slow = Vec::new();
    for number in 0..50 {
        let mut client = gateway.raw().await;
        let head = format!(
            "POST /payments HTTP/1.1\r\nHost: a\r\nIdempotency-Key: slow-{number}\r\n\
             Content-Length: {LARGE_BYTES}\r\n\r\nbegun"
        );
        client.say(head).await;
        slow.push(tokio::spawn(async move { client.answers(1).await }));
    }
    // Each client announces as many bytes as the limit allows.
    others_are_served(&gateway, "k").await;
    for client in slow {
        let heard = timeout(GONE, client).await.expect("it is cut off").unwrap();
        assert_eq!(heard[0].status, 400, "{heard:?}");
        assert!(heard[0].message.body.contains("did not arrive within"));
    }
    let status = gateway.get("/payments/by-idempotency-key/slow-1/status");
    assert_eq!(status.send().await.problem().1, "no-operation");
    let whole = vec![b'x'; LARGE_BYTES];
    let retry = gateway.post("/payments", "slow-1").body(whole).send().await;
    assert_eq!((retry.status, retry.is_replay()), (201, false));
    assert_eq!(origin.runs(), 2);
}

#[tokio::test]
async fn waiters_hold_no_buffer() {
    let origin = origin().reply(201, "paid").gated().run().await;
    let server = SERVER.replace("server:", "server: body_limit = \"1KiB\";");
    let limits = "[limits]\nbuffered_bytes = \"1KiB\"\n";
    let text = [&server, limits, PAYMENTS].concat();
    let gateway = configured(&origin, &text).run().await;
    let ask = |key: &str| gateway.post("/payments", key).body(vec![b'x'; 400]);
    let first = ask("k").spawn();
    origin.called(1).await;
    let mut waiting = Vec::new();
    for count in 1..=5 {
        waiting.push(ask("k").spawn());
        gateway.waiting(count).await;
    }
    // The running request holds its body, so the limit is two bodies.
    let other = ask("other").spawn();
    origin.called(2).await;
    assert_eq!(ask("third").send().await.problem().0, 429);
    origin.open();
    origin.open();
    for answer in waiting {
        assert!(answer.await.unwrap().is_replay());
    }
    for answer in [first, other] {
        assert_eq!(answer.await.unwrap().status, 201);
    }
}

/// A gateway that keeps a reply of one mebibyte under `large`.
async fn with_a_large_reply() -> (Running, Origin) {
    let origin = origin()
        .replying(|seen, _| match seen.text() {
            "large" => Reply::new(201, "x".repeat(LARGE_BYTES)),
            _ => Reply::new(201, "paid"),
        })
        .run()
        .await;
    let server = SERVER.replace("server:", "server: reply_limit = \"2MiB\";");
    let gateway = configured(&origin, &[&server, PAYMENTS].concat());
    let gateway = gateway.run().await;
    let kept = gateway.post("/payments", "large").body("large").send();
    let kept = kept.await;
    assert_eq!(kept.header("idempotency-status"), "completed");
    (gateway, origin)
}

async fn still_replayed(gateway: &Running) {
    let again = gateway.post("/payments", "large").body("large").send();
    let again = again.await;
    assert!(again.is_replay());
    assert_eq!(again.body.len(), LARGE_BYTES);
}

#[tokio::test]
async fn http1_client_that_does_not_read_a_kept_reply_is_cut_off_while_others_are_served() {
    let (gateway, origin) = with_a_large_reply().await;
    let ask = "POST /payments HTTP/1.1\r\nHost: shop.example\r\nIdempotency-Key: large\r\n\
               Content-Length: 5\r\n\r\nlarge";
    let mut silent = Vec::new();
    for _ in 0..20 {
        let mut client = gateway.raw().await;
        // More than the kernel buffers on both sides.
        client.say(ask.repeat(32)).await;
        silent.push(client);
    }
    others_are_served(&gateway, "k").await;
    let cut = gateway.shows("onceward_connections_cut_total 20");
    timeout(GONE, cut).await.expect("they are cut off");
    gateway.shows("onceward_connections 0").await;
    for mut client in silent {
        assert!(client.hear_out().await.len() < 32 * LARGE_BYTES);
    }
    still_replayed(&gateway).await;
    assert_eq!(origin.runs(), 2);
}

#[tokio::test]
async fn http2_client_without_a_window_is_cut_off_and_its_replies_are_not_held() {
    const CONNECTIONS: usize = 8;
    const STREAMS: usize = 64;
    let (gateway, origin) = with_a_large_reply().await;
    still_replayed(&gateway).await;
    let before = resident();
    let mut lines = Vec::new();
    let mut answers = Vec::new();
    for _ in 0..CONNECTIONS {
        let stream = TcpStream::connect(gateway.address()).await.unwrap();
        let mut builder = h2::client::Builder::new();
        let handshake = builder.initial_window_size(0).handshake::<_, Bytes>(stream);
        let (sender, connection) = handshake.await.unwrap();
        lines.push(tokio::spawn(connection));
        for _ in 0..STREAMS {
            let request = http::Request::post("http://shop.example/payments")
                .header("idempotency-key", "large")
                .body(())
                .unwrap();
            let mut sender = sender.clone().ready().await.unwrap();
            let (answer, mut body) = sender.send_request(request, false).unwrap();
            body.send_data("large".into(), true).unwrap();
            answers.push(answer);
        }
    }
    others_are_served(&gateway, "k").await;
    // If each stream buffered the whole reply, that would be half a gibibyte.
    let held = resident().saturating_sub(before);
    assert!(held < 128 << 20, "{} MiB", held >> 20);
    let cut = format!("onceward_connections_cut_total {CONNECTIONS}");
    let cut = timeout(GONE, gateway.shows(&cut)).await;
    cut.expect("they are cut off");
    gateway.shows("onceward_connections 0").await;
    still_replayed(&gateway).await;
    assert_eq!(origin.runs(), 2);
}

/// The memory of this process: the gateway, its origin and its clients.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let mut lines = status.lines();
    let line = lines.find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    let kib: u64 = line.trim().strip_suffix(" kB").unwrap().parse().unwrap();
    kib << 10
}

/// A scheduler's request is verified with its body, so its caller is known late.
#[tokio::test]
async fn request_from_before_a_reload_keeps_its_removed_class() {
    const SECRET: &str = "a-secret-of-a-scheduler";
    let origin = origin().reply(201, "done").run().await;
    let text = |class: &str| {
        format!(
            "[auth.scheduler]\nsecret = \"{SECRET}\"\n[classes.{class}]\nretention = \"1h\"\n\
             {PAYMENTS}class = \"{class}\"\n"
        )
    };
    let gateway = configured(&origin, &text("before")).run().await;
    let time_ms = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let time_ms = time_ms.as_millis().to_string();
    let key = format!("sched:nightly:{time_ms}");
    let digest = HEXLOWER.encode(&Sha256::digest("tick"));
    let signed = [
        "onceward.schedule.v1",
        "acme",
        "shop",
        "payments.create",
        &key,
        &time_ms,
        &digest,
    ];
    let mut mac = Hmac::<Sha256>::new_from_slice(SECRET.as_bytes()).unwrap();
    mac.update(signed.join("\n").as_bytes());
    let signature = HEXLOWER.encode(&mac.finalize().into_bytes());
    let mut client = gateway.raw().await;
    client
        .say(format!(
            "POST /payments HTTP/1.1\r\nHost: a\r\nIdempotency-Key: {key}\r\nContent-Length: 4\r\n\
             X-Schedule-Signature: tenant=\"acme\", project=\"shop\", time={time_ms}, v1=\"{signature}\"\r\n\
             Expect: 100-continue\r\n\r\n"
        ))
        .await;
    // The gateway asks for the body: it has begun this request.
    client.hear("100 Continue\r\n\r\n").await;
    gateway.reload(&origin.url(), &text("after")).await.unwrap();
    client.say("tick").await;
    let answer = client.answers(1).await.remove(0);
    assert_eq!(answer.status, 201, "{}", answer.message.body);
    assert_eq!(origin.runs(), 1);
}
