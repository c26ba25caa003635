//! Upgrades: bytes of another protocol pass on unprotected routes, and no request
//! passes unchecked beside them.

use rstest::rstest;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::harness::{gateway_to, raw_origin};

const REFUSED: &str = "HTTP/1.1 426 Upgrade Required\r\ncontent-length: 2\r\n\r\nno";

#[tokio::test]
async fn an_upgrade_tunnels_bytes_both_ways() {
    let url = shouting_origin().await;
    let gateway = gateway_to(&url).in_memory().run().await;
    let mut client = gateway.raw().await;
    client
        .say(
            "GET /chat HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
             Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n",
        )
        .await;
    let head = client.hear("\r\n\r\n").await;
    assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
    assert!(
        head.contains("upgrade: websocket") && head.contains("sec-websocket-accept: yes"),
        "{head}"
    );
    client.say(b"hello\0").await;
    assert_eq!(client.hear("\0").await, "HELLO\0");
    client.say(b"GET / HTTP/1.1\r\n\r\n").await;
    assert_eq!(
        client.hear("\r\n\r\n").await,
        "GET / HTTP/1.1\r\n\r\n",
        "whatever they are"
    );
}

/// After a request to upgrade, the bytes on the connection are not checked any
/// more, so it must not carry another request.
#[rstest]
#[case::which_the_origin_refuses("GET /chat", "Upgrade: websocket", 426)]
#[case::which_is_ours_to_answer("GET /chat/by-idempotency-key/k", "Upgrade: websocket", 404)]
#[case::which_we_refuse("POST /chat", "Upgrade: websocket\r\nIdempotency-Key: a b", 400)]
#[case::which_is_protected("POST /chat", "Upgrade: websocket\r\nIdempotency-Key: k", 426)]
#[tokio::test]
async fn a_refused_upgrade_closes_the_connection(
    #[case] what: &str,
    #[case] headers: &str,
    #[case] status: u16,
) {
    let origin = raw_origin(REFUSED).await;
    let gateway = gateway_to(&origin.url()).in_memory().run().await;
    let mut client = gateway.raw().await;
    client
        .say(format!(
            "{what} HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\n{headers}\r\n\r\n\
             GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n"
        ))
        .await;
    let heard = client.hear_out().await;
    assert!(heard.starts_with(&format!("HTTP/1.1 {status} ")), "{heard}");
    assert_eq!(heard.matches("HTTP/1.1 ").count(), 1, "{heard}");
    assert!(
        origin.ledger().iter().all(|seen| seen.target() == "/chat"),
        "{:?}",
        origin.ledger()
    );
}

#[tokio::test]
async fn a_protected_request_is_forwarded_without_its_upgrade() {
    let origin = raw_origin("HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\npaid").await;
    let gateway = gateway_to(&origin.url()).run().await;
    let mut client = gateway.raw().await;
    client
        .say(
            "POST /payments HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\
             Idempotency-Key: k\r\nContent-Length: 1\r\n\r\na",
        )
        .await;
    assert!(client.hear_out().await.ends_with("paid"));
    let seen = origin.only();
    assert_eq!(seen.body, "a");
    assert!(seen.headers("upgrade").is_empty() && seen.headers("connection").is_empty());
}

/// An origin that accepted it would answer unchecked requests.
#[tokio::test]
async fn an_upgrade_to_http2_is_never_forwarded() {
    let origin = raw_origin("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").await;
    let gateway = gateway_to(&origin.url()).in_memory().run().await;
    let mut client = gateway.raw().await;
    client
        .say(
            "GET /payments HTTP/1.1\r\nHost: a\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n\
             HTTP2-Settings: AAMAAABkAAQAoAAAAAIAAAAA\r\n\r\n",
        )
        .await;
    let heard = client.hear_out().await;
    assert!(
        heard.starts_with("HTTP/1.1 200 ") && heard.ends_with("ok"),
        "{heard}"
    );
    let seen = origin.only();
    for name in ["upgrade", "connection", "http2-settings"] {
        assert!(seen.headers(name).is_empty(), "{}", seen.head);
    }
}

/// A forwarded length without its body would make the upstream read the next
/// request as the body.
#[tokio::test]
async fn the_body_of_a_request_to_upgrade_is_forwarded_with_it() {
    let origin = raw_origin(REFUSED).await;
    let gateway = gateway_to(&origin.url()).in_memory().run().await;
    let mut client = gateway.raw().await;
    client
        .say(
            "POST /chat HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\
             Content-Length: 3\r\n\r\nabc",
        )
        .await;
    client.hear_out().await;
    assert_eq!(origin.only().body, "abc");
}

#[tokio::test]
async fn an_unrequested_protocol_switch_is_refused() {
    let origin =
        raw_origin("HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: x\r\n\r\n")
            .await;
    let gateway = gateway_to(&origin.url()).in_memory().run().await;
    let answer = gateway.get("/payments").send().await;
    assert_eq!(answer.problem(), (504, "outcome-unknown".to_owned()));
}

/// An origin that accepts each upgrade and then echoes the bytes in capitals.
async fn shouting_origin() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            tokio::spawn(shout(stream));
        }
    });
    url
}

async fn shout(mut stream: TcpStream) {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.unwrap());
    }
    let head = String::from_utf8(head).unwrap().to_ascii_lowercase();
    assert!(head.contains("\r\nupgrade: websocket\r\n"), "{head}");
    assert!(head.contains("\r\nconnection: upgrade\r\n"), "{head}");
    let answer = "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket\r\n\
                  sec-websocket-accept: yes\r\n\r\n";
    stream.write_all(answer.as_bytes()).await.unwrap();
    let mut bytes = [0; 1024];
    while let Ok(count @ 1..) = stream.read(&mut bytes).await {
        bytes.make_ascii_uppercase();
        stream.write_all(&bytes[..count]).await.unwrap();
    }
}
