//! The rules as tables, the independence of splits and boundaries as properties,
//! and refusals with hyper on real sockets, since hyper writes the response.

use std::convert::Infallible;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use proptest::prelude::*;
use rstest::rstest;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::*;

/// Feeds `bytes` in pieces that end at `splits`. A violation's position is
/// relative to all of `bytes`.
fn check(bytes: &[u8], splits: &[usize]) -> Result<(), Violation> {
    let mut framing = Framing::default();
    let mut from = 0;
    for to in splits.iter().copied().chain([bytes.len()]) {
        framing
            .feed(&bytes[from..to])
            .map_err(|violation| Violation {
                at: from + violation.at,
                ..violation
            })?;
        from = to;
    }
    Ok(())
}

fn fault(text: &str) -> Option<Fault> {
    check(text.as_bytes(), &[]).err().map(|found| found.fault)
}

#[rstest]
#[case::no_body("GET / HTTP/1.1\r\nHost: a\r\n\r\n")]
#[case::host_with_port("GET / HTTP/1.1\r\nHost: [::1]:8080\r\n\r\n")]
#[case::length("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc")]
#[case::chunks(
    "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: Chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"
)]
#[case::tab_before_value(
    "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding:\tchunked\r\n\r\n0\r\n\r\n"
)]
#[case::chunk_extension(
    "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3;a=\"b\"\r\nabc\r\n0\r\n\r\n"
)]
#[case::trailers(
    "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nContent-Length: 9\r\n\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n"
)]
#[case::empty_line_first("\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n")]
#[case::empty_line_between(
    "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\nx\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n"
)]
#[case::old_version_without_host("GET / HTTP/1.0\r\n\r\n")]
#[case::begins_like_the_preface("PROPFIND / HTTP/1.1\r\nHost: a\r\n\r\n")]
#[case::http2("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\nanything\n\n at all")]
#[case::upgrade(
    "GET / HTTP/1.1\r\nHost: a\r\nConnection: keep-alive, Upgrade\r\nUpgrade: websocket\r\n\r\nno\nlonger : HTTP"
)]
#[case::unfinished("GET / HTTP/1.1\r\nHost: a\r\nX: ")]
fn valid_requests_pass(#[case] text: &str) {
    assert_eq!(fault(text), None);
}

#[rstest]
#[case("PRI * HTTP/2.0\r\n\r\nXX\r\n\r\n", Fault::Preface)]
#[case("PRI / HTTP/1.1\r\nHost: a\r\n\r\n", Fault::Preface)]
#[case("\nGET / HTTP/1.1\r\nHost: a\r\n\r\n", Fault::BareLineFeed)]
#[case("GET / HTTP/1.1\nHost: a\r\n\r\n", Fault::BareLineFeed)]
#[case("GET / HTTP/1.1\r\nHost: a\n\r\n", Fault::BareLineFeed)]
#[case("GET / HTTP/1.1\r\nHost: a\r\n\n", Fault::BareLineFeed)]
#[case("GET / HTTP/1.2\r\nHost: a\r\n\r\n", Fault::RequestLine)]
#[case("GET /\r\nHost: a\r\n\r\n", Fault::RequestLine)]
#[case("GET / HTTP/1.1\r\nHost : a\r\n\r\n", Fault::HeaderLine)]
#[case("GET / HTTP/1.1\r\nHost: a\r\nX: a\r\n b\r\n\r\n", Fault::HeaderLine)]
#[case(
    "GET / HTTP/1.1\r\nHost: a\r\nX: a\r\n\tb: c\r\n\r\n",
    Fault::HeaderLine
)]
#[case("GET / HTTP/1.1\r\nHost: a\r\nFoo\r\n\r\n", Fault::HeaderLine)]
#[case("GET / HTTP/1.1\r\nHost: a\r\n: v\r\n\r\n", Fault::HeaderLine)]
#[case("GET / HTTP/1.1\r\n\r\n", Fault::HostMissing)]
#[case("GET / HTTP/1.1\r\nHost: a\r\nhost: a\r\n\r\n", Fault::HostRepeated)]
#[case("GET / HTTP/1.0\r\nHost: a\r\nHOST: b\r\n\r\n", Fault::HostRepeated)]
#[case("GET / HTTP/1.1\r\nHost: a/../b\r\n\r\n", Fault::HostMalformed)]
#[case("GET / HTTP/1.1\r\nHost: me@a\r\n\r\n", Fault::HostMalformed)]
#[case("GET / HTTP/1.1\r\nHost: a, b\r\n\r\n", Fault::HostMalformed)]
#[case("GET / HTTP/1.1\r\nHost: \r\n\r\n", Fault::HostMalformed)]
#[case(
    "GET / HTTP/1.1\r\nContent-Length: 3\r\nContent-Length: 3\r\n",
    Fault::ContentLengthRepeated
)]
#[case(
    "GET / HTTP/1.1\r\nContent-Length: 3, 3\r\n",
    Fault::ContentLengthMalformed
)]
#[case(
    "GET / HTTP/1.1\r\nContent-Length: +3\r\n",
    Fault::ContentLengthMalformed
)]
#[case(
    "GET / HTTP/1.1\r\nContent-Length: -1\r\n",
    Fault::ContentLengthMalformed
)]
#[case(
    "GET / HTTP/1.1\r\nContent-Length: 0x3\r\n",
    Fault::ContentLengthMalformed
)]
#[case("GET / HTTP/1.1\r\nContent-Length:\r\n", Fault::ContentLengthMalformed)]
#[case(
    "GET / HTTP/1.1\r\nContent-Length: 18446744073709551616\r\n",
    Fault::ContentLengthMalformed
)]
#[case(
    "GET / HTTP/1.1\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n",
    Fault::LengthAmbiguous
)]
#[case(
    "GET / HTTP/1.1\r\nTransfer-Encoding: chunked\r\nContent-Length: 3\r\n",
    Fault::LengthAmbiguous
)]
#[case(
    "GET / HTTP/1.1\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
    Fault::TransferEncodingRepeated
)]
#[case(
    "GET / HTTP/1.1\r\nTransfer-Encoding: xchunked\r\n",
    Fault::TransferEncodingUnknown
)]
#[case(
    "GET / HTTP/1.1\r\nTransfer-Encoding: gzip, chunked\r\n",
    Fault::TransferEncodingUnknown
)]
#[case(
    "GET / HTTP/1.1\r\nTransfer-Encoding: chunked, chunked\r\n",
    Fault::TransferEncodingUnknown
)]
#[case(
    "GET / HTTP/1.1\r\nTransfer-Encoding:\r\n",
    Fault::TransferEncodingUnknown
)]
#[case(
    "GET / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n",
    Fault::TransferEncodingOnHttp10
)]
fn ambiguous_heads_are_refused(#[case] text: &str, #[case] expected: Fault) {
    assert_eq!(fault(text), Some(expected));
}

#[rstest]
#[case("+3\r\nabc\r\n", Fault::ChunkSize)]
#[case("3 \r\nabc\r\n", Fault::ChunkSize)]
#[case("0x3\r\nabc\r\n", Fault::ChunkSize)]
#[case("\r\n", Fault::ChunkSize)]
#[case(";a\r\n", Fault::ChunkSize)]
#[case("ffffffffffffffff1\r\n", Fault::ChunkSize)]
#[case("3;a\rb\r\nabc\r\n", Fault::ChunkSize)]
#[case("3\nabc\r\n", Fault::BareLineFeed)]
#[case("3;a\nabc\r\n", Fault::BareLineFeed)]
#[case("3\r\nabcd\r\n", Fault::ChunkEnd)]
#[case("3\r\nabc\n", Fault::ChunkEnd)]
#[case("3\r\nabc\r\r\n", Fault::ChunkEnd)]
#[case("0\r\nX: y\n\r\n", Fault::BareLineFeed)]
#[case("0\r\nX : y\r\n\r\n", Fault::HeaderLine)]
#[case("0\r\nX\r\n\r\n", Fault::HeaderLine)]
fn malformed_chunks_are_refused(#[case] body: &str, #[case] expected: Fault) {
    let text = format!("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n{body}");
    assert_eq!(fault(&text), Some(expected));
}

#[rstest]
#[case::request_line(
    format!("GET /{}", "a".repeat(REQUEST_LINE_BYTES_MAX)),
    Fault::RequestLineTooLong,
    REQUEST_LINE_BYTES_MAX
)]
#[case::empty_lines(
    "\r\n".repeat(REQUEST_LINE_BYTES_MAX),
    Fault::RequestLineTooLong,
    REQUEST_LINE_BYTES_MAX
)]
#[case::header(
    format!("GET / HTTP/1.1\r\nX: {}\r\n", "a".repeat(HEADERS_BYTES_MAX)),
    Fault::HeadersTooLarge,
    16 + HEADERS_BYTES_MAX
)]
#[case::chunk_line(
    format!(
        "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3;{}",
        "a".repeat(CHUNK_LINE_BYTES_MAX)
    ),
    Fault::ChunkLineTooLong,
    56 + CHUNK_LINE_BYTES_MAX
)]
#[case::headers(
    format!("GET / HTTP/1.1\r\n{}", "a: b\r\n".repeat(HEADERS_MAX + 1)),
    Fault::TooManyHeaders,
    16 + 6 * (HEADERS_MAX + 1) - 1
)]
fn lines_and_headers_are_bounded(#[case] text: String, #[case] fault: Fault, #[case] at: usize) {
    assert_eq!(check(text.as_bytes(), &[]), Err(Violation { at, fault }));
}

#[test]
fn a_refused_connection_stays_refused() {
    let mut framing = Framing::default();
    let first = framing.feed(b"GET / HTTP/1.1\r\n\r\n");
    let later = framing.feed(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    let fault = Fault::HostMissing;
    assert_eq!(first, Err(Violation { at: 17, fault }));
    assert_eq!(later, Err(Violation { at: 0, fault }));
}

#[test]
fn whole_lines_need_no_allocation() {
    let mut framing = Framing::default();
    let request = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\nx";
    for _ in 0..3 {
        assert_eq!(framing.feed(request), Ok(()));
    }
    assert_eq!(framing.partial_line.capacity(), 0);
}

/// Pieces of random requests: text that matters to framing, and noise.
const PIECES: &[&str] = &[
    "GET / HTTP/1.1\r\n",
    "POST /p HTTP/1.1\r\n",
    "PUT / HTTP/1.0\r\n",
    "PRI * HTTP/2.0\r\n",
    "SM\r\n\r\n",
    "Host: a\r\n",
    "Content-Length: 5\r\n",
    "Content-Length: 0\r\n",
    "Transfer-Encoding: chunked\r\n",
    "Connection: upgrade\r\n",
    "Upgrade: x\r\n",
    "X: y\r\n",
    " folded\r\n",
    "5\r\nabcde\r\n",
    "5;x=y\r\nabcde\r\n",
    "0\r\n\r\n",
    "0\r\n",
    "abcde",
    "\r\n",
    "\n",
    "\r",
    "P",
    ":",
    " ",
    "\0",
];

fn bytes_near_http() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop_oneof![
        12 => prop::sample::select(PIECES).prop_map(|piece| piece.as_bytes().to_vec()),
        1 => prop::collection::vec(any::<u8>(), 0..8),
    ];
    prop::collection::vec(piece, 0..24).prop_map(|pieces| pieces.concat())
}

/// A body that contains text like that of heads and chunks.
fn body() -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(prop::sample::select(PIECES), 0..6)
        .prop_map(|pieces| pieces.concat().into_bytes())
}

fn valid_request() -> impl Strategy<Value = Vec<u8>> {
    let fixed = body().prop_map(|body| {
        let head = format!(
            "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        [head.into_bytes(), body].concat()
    });
    let chunked = prop::collection::vec(body(), 0..4).prop_map(|chunks| {
        let mut request =
            b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\nHost: a\r\n\r\n".to_vec();
        for chunk in chunks.iter().filter(|chunk| !chunk.is_empty()) {
            request.extend_from_slice(format!("{:x};e\r\n", chunk.len()).as_bytes());
            request.extend_from_slice(chunk);
            request.extend_from_slice(b"\r\n");
        }
        request.extend_from_slice(b"0\r\nHost: trailer\r\n\r\n");
        request
    });
    prop_oneof![fixed, chunked]
}

/// The positions of the splits in `bytes`, in order.
fn split_positions(bytes: &[u8], splits: &[prop::sample::Index]) -> Vec<usize> {
    let positions = splits.iter().map(|split| split.index(bytes.len() + 1));
    let mut positions: Vec<_> = positions.collect();
    positions.sort_unstable();
    positions
}

proptest! {
    #[test]
    fn the_result_does_not_depend_on_the_splits(
        bytes in bytes_near_http(),
        splits in prop::collection::vec(any::<prop::sample::Index>(), 0..8),
    ) {
        let whole = check(&bytes, &[]);
        prop_assert_eq!(check(&bytes, &split_positions(&bytes, &splits)), whole);
        let every: Vec<_> = (0..bytes.len()).collect();
        prop_assert_eq!(check(&bytes, &every), whole);
    }

    #[test]
    fn arbitrary_bytes_do_not_panic(bytes in prop::collection::vec(any::<u8>(), 0..512)) {
        let _ = check(&bytes, &[]);
    }

    #[test]
    fn valid_requests_in_a_row_pass_and_the_next_is_checked(
        requests in prop::collection::vec(valid_request(), 1..6),
        splits in prop::collection::vec(any::<prop::sample::Index>(), 0..8),
    ) {
        let mut bytes = requests.concat();
        prop_assert_eq!(check(&bytes, &split_positions(&bytes, &splits)), Ok(()));
        let end = bytes.len();
        bytes.extend_from_slice(b"GET / HTTP/1.1\r\n\r\n");
        let refused = Violation { at: end + 17, fault: Fault::HostMissing };
        prop_assert_eq!(check(&bytes, &split_positions(&bytes, &splits)), Err(refused));
    }
}

/// The number of heads that end in `bytes`, or `None` if the connection leaves
/// HTTP/1.
fn count_heads(bytes: &[u8]) -> Option<usize> {
    let mut framing = Framing::default();
    let mut heads = 0;
    for byte in bytes.chunks(1) {
        let before = framing.state;
        if framing.feed(byte).is_err() {
            break;
        }
        let in_head = |state| matches!(state, ParserState::Headers);
        heads += usize::from(in_head(before) && !in_head(framing.state));
    }
    (!framing.is_unchecked()).then_some(heads)
}

/// The number of requests that hyper finds in `bytes` behind the check.
async fn count_requests(bytes: &[u8]) -> usize {
    let (mut client, server) = tokio::io::duplex(1 << 16);
    let requests = std::cell::Cell::new(0);
    let count = service_fn(|request: Request<Incoming>| {
        requests.set(requests.get() + 1);
        async {
            // An incomplete body ends the connection; after a complete one hyper
            // reads the next request.
            let _ = request.into_body().collect().await;
            Ok::<_, Infallible>(Response::new(Full::new(Bytes::new())))
        }
    });
    let served = hyper::server::conn::http1::Builder::new()
        .serve_connection(TokioIo::new(CheckedStream::new(server)), count);
    let exchange = async {
        client.write_all(bytes).await.expect("room for all");
        client.shutdown().await.expect("an open pipe");
        let mut responses = Vec::new();
        client.read_to_end(&mut responses).await
    };
    let (_, responses) = tokio::join!(served, exchange);
    responses.expect("a pipe does not fail");
    requests.get()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]
    #[test]
    fn hyper_finds_no_request_that_the_check_did_not_see(bytes in bytes_near_http()) {
        if let Some(heads) = count_heads(&bytes) {
            let runtime = tokio::runtime::Builder::new_current_thread().build();
            let runtime = runtime.expect("a runtime");
            let requests = runtime.block_on(count_requests(&bytes));
            prop_assert!(requests <= heads, "{requests} requests, {heads} heads");
        }
    }
}

/// A hyper server behind the check that responds with the request's body, or
/// with 422 if the body is incomplete.
async fn serve_one(listener: TcpListener) {
    let (socket, _) = listener.accept().await.expect("a client connects");
    let echo = service_fn(|request: Request<Incoming>| async {
        let mut response = Response::new(Full::new(Bytes::new()));
        match request.into_body().collect().await {
            Ok(body) => *response.body_mut() = Full::new(body.to_bytes()),
            Err(_) => *response.status_mut() = StatusCode::UNPROCESSABLE_ENTITY,
        }
        Ok::<_, Infallible>(response)
    });
    let mut http = hyper_util::server::conn::auto::Builder::new(TokioExecutor::new());
    http.http1()
        .max_headers(HEADERS_MAX)
        .max_buf_size(HEAD_BYTES_MAX);
    let served = http
        .serve_connection(TokioIo::new(CheckedStream::new(socket)), echo)
        .await;
    // hyper returns an error for a refused request. The tests look at the
    // client's side instead.
    drop(served);
}

/// Sends each piece in its own packet and reads until the server closes.
async fn exchange(pieces: &[&[u8]]) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("bound");
    let server = tokio::spawn(serve_one(listener));
    let mut client = TcpStream::connect(address).await.expect("listening");
    client.set_nodelay(true).expect("a live socket");
    for (i, piece) in pieces.iter().enumerate() {
        if i > 0 {
            // The client cannot observe when the server has read a piece.
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        // After a refusal the server may already have closed.
        if client.write_all(piece).await.is_err() {
            break;
        }
    }
    let mut response = Vec::new();
    let read = client.read_to_end(&mut response);
    tokio::time::timeout(Duration::from_secs(5), read)
        .await
        .expect("the server closes")
        .expect("with FIN, not with a reset");
    server.await.expect("the server does not panic");
    String::from_utf8(response).expect("responses in ASCII")
}

fn statuses(response: &str) -> Vec<&str> {
    response
        .split("HTTP/1.1 ")
        .skip(1)
        .map(|rest| &rest[..3])
        .collect()
}

const BAD_HEADS: &[&str] = &[
    "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 6\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nG",
    "GET / HTTP/1.1\r\n\r\n",
    "GET / HTTP/1.1\nHost: a\n\n",
    "GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
    "GET / HTTP/1.1\r\nHost: a\r\n\n",
    "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\nx",
    "GET /x#frag HTTP/1.1\r\nHost: a/../b\r\n\r\n",
    "\nGET / HTTP/1.1\r\nHost: a\r\n\r\n",
    "PRI * HTTP/2.0\r\n\r\nXX\r\n\r\n",
];

#[tokio::test]
async fn hyper_responds_with_400_and_closes() {
    for head in BAD_HEADS {
        let response = exchange(&[head.as_bytes()]).await;
        assert_eq!(statuses(&response), ["400"], "{head:?}");
    }
}

#[tokio::test]
async fn hyper_responds_with_400_to_a_head_in_pieces() {
    for head in BAD_HEADS {
        for split in [1, head.len() / 2, head.len() - 1] {
            let (first, second) = head.as_bytes().split_at(split);
            let response = exchange(&[first, second]).await;
            assert_eq!(statuses(&response), ["400"], "{head:?} split at {split}");
        }
    }
}

#[tokio::test]
async fn a_request_before_the_refused_one_is_answered_first() {
    let good = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\npaid";
    // Without the last two: hyper treats an empty line and the HTTP/2 preface
    // specially at the beginning of a connection.
    for head in &BAD_HEADS[..7] {
        let response = exchange(&[format!("{good}{head}").as_bytes()]).await;
        assert_eq!(statuses(&response), ["200", "400"], "{head:?}");
        assert!(response.contains("paid"), "{response}");
        let response = exchange(&[good.as_bytes(), head.as_bytes()]).await;
        assert_eq!(
            statuses(&response),
            ["200", "400"],
            "{head:?} in its own packet"
        );
    }
}

#[tokio::test]
async fn a_malformed_chunk_ends_the_body_and_closes() {
    let head = "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";
    for body in [
        "+3\r\nabc\r\n",
        "3\r\nabc\n",
        "3 \r\nabc\r\n0\r\n\r\n",
        "0\r\nX: y\n\r\n",
    ] {
        let response = exchange(&[head.as_bytes(), body.as_bytes()]).await;
        assert_eq!(statuses(&response), ["422"], "{body:?}");
    }
}

#[tokio::test]
async fn a_target_beyond_hypers_limit_gets_414() {
    let head = format!("GET /{} HTTP/1.1\r\nHost: a\r\n\r\n", "a".repeat(70_000));
    let response = exchange(&[head.as_bytes()]).await;
    assert_eq!(statuses(&response), ["414"]);
}

#[tokio::test]
async fn bytes_after_a_refusal_do_not_lose_the_response() {
    let head = format!("GET / HTTP/1.1\r\n\r\n{}", "x".repeat(100_000));
    let response = exchange(&[head.as_bytes()]).await;
    assert_eq!(statuses(&response), ["400"]);
}

#[tokio::test]
async fn http2_passes() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("bound");
    let server = tokio::spawn(serve_one(listener));
    let socket = TcpStream::connect(address).await.expect("listening");
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(socket))
            .await
            .expect("an HTTP/2 handshake");
    let connection = tokio::spawn(connection);
    let request = Request::post("http://a/").body(Full::new(Bytes::from_static(b"\n\n")));
    let response = sender
        .send_request(request.expect("a valid request"))
        .await
        .expect("a response");
    let body = response.into_body().collect().await.expect("a body");
    assert_eq!(body.to_bytes(), "\n\n");
    drop(sender);
    connection.await.expect("no panic").expect("a clean end");
    server.await.expect("no panic");
}
