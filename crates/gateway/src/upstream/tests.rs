//! Requests to raw servers on real sockets, which answer, break off or close at a
//! given point: is each request answered, not sent, or lost?

use std::convert::Infallible;
use std::future::Future;
use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join_all;
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, Uri, header};
use http_body_util::channel::Channel;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use rstest::rstest;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::{mpsc, oneshot};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use super::*;
use crate::listen::tls::tests::Authority;
use crate::listen::tls::{ClientTls, ListenerTls};
use crate::runtime::cores::{CorePlace, Cores};

const OK: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\npaid";
const TIMEOUT: Duration = Duration::from_secs(5);

/// Runs a server that counts its connections and gives each to `serve`.
async fn server<F>(serve: impl Fn(TcpStream) -> F + Send + 'static) -> TestServer
where
    F: Future<Output = ()> + Send + 'static,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("bound");
    let (accepted, connections) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            if accepted.send(()).is_err() {
                return;
            }
            tokio::spawn(serve(stream));
        }
    });
    TestServer {
        address,
        connections,
    }
}

struct TestServer {
    address: SocketAddr,
    connections: mpsc::UnboundedReceiver<()>,
}

impl TestServer {
    fn http1(&self) -> UpstreamClient {
        UpstreamClient::parse(&format!("http://{}", self.address)).expect("an address")
    }

    fn http2(&self) -> UpstreamClient {
        UpstreamClient::parse(&format!("h2c://{}", self.address)).expect("an address")
    }

    fn connections(&self) -> usize {
        self.connections.len()
    }
}

/// Reads a POST with the body `please` or a GET without one. False when the
/// connection has ended.
async fn read_request(stream: &mut TcpStream) -> bool {
    let mut seen = Vec::new();
    loop {
        if stream.read_buf(&mut seen).await.unwrap_or(0) == 0 {
            return false;
        }
        if seen.ends_with(b"\r\n\r\n") && seen.starts_with(b"GET") || seen.ends_with(b"please") {
            return true;
        }
    }
}

async fn answer_each(mut stream: TcpStream, answer: &'static [u8]) {
    while read_request(&mut stream).await {
        if stream.write_all(answer).await.is_err() {
            return;
        }
    }
}

fn request(method: Method, body: impl Into<OutgoingBody>) -> Request<OutgoingBody> {
    Request::builder()
        .method(method)
        .uri("/payments")
        .header(header::HOST, "shop.example")
        .body(body.into())
        .expect("a valid request")
}

fn post() -> Request<OutgoingBody> {
    request(Method::POST, Bytes::from_static(b"please"))
}

async fn read(response: Response<ResponseBody>) -> Bytes {
    let body = response.into_body().collect().await;
    body.expect("a whole body").to_bytes()
}

fn pool(upstream: &UpstreamClient) -> &Arc<http1::Pool> {
    &upstream.http1
}

async fn until(what: &str, condition: impl Fn() -> bool) {
    let wait = async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    let waited = tokio::time::timeout(TIMEOUT, wait).await;
    waited.unwrap_or_else(|_| panic!("timed out waiting until {what}"));
}

fn assert_not_sent<T>(sent: Result<T, SendError>) {
    match sent {
        Err(SendError::NotSent(_)) => {}
        Err(error @ SendError::Lost(_)) => panic!("not sent, but: {error}"),
        Ok(_) => panic!("not sent, but answered"),
    }
}

fn assert_lost<T>(sent: Result<T, SendError>) {
    match sent {
        Err(SendError::Lost(_)) => {}
        Err(error @ SendError::NotSent(_)) => panic!("lost, but: {error}"),
        Ok(_) => panic!("lost, but answered"),
    }
}

#[rstest]
#[case("http://127.0.0.1:3000")]
#[case("http://localhost")]
#[case("http://[::1]:3000/")]
#[case("h2c://payments.internal:50051")]
#[case("https://payments.internal")]
fn an_upstream_is_a_scheme_and_a_host(#[case] url: &str) {
    UpstreamClient::parse(url).expect("a valid upstream");
}

#[rstest]
#[case(
    "ftp://a",
    "the URL of an upstream must begin with http://, https:// or h2c://"
)]
#[case(
    "a:80",
    "the URL of an upstream must begin with http://, https:// or h2c://"
)]
#[case(
    "http://me@a",
    "the URL of an upstream must have a host and may have a port, but no user name"
)]
#[case(
    "http://a/base",
    "the URL of an upstream must have no path or query: requests keep their own"
)]
#[case(
    "http://a?q",
    "the URL of an upstream must have no path or query: requests keep their own"
)]
#[case("http://a b", "the upstream is not a valid URL")]
#[case("", "the upstream is not a valid URL")]
fn an_unusable_url_is_explained(#[case] url: &str, #[case] why: &str) {
    let error = UpstreamClient::parse(url).expect_err("not an upstream");
    assert_eq!(error.to_string(), why);
}

#[tokio::test]
async fn a_refused_connection_is_not_sent() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("bound");
    drop(listener);
    for scheme in ["http", "h2c"] {
        let upstream = UpstreamClient::parse(&format!("{scheme}://{address}")).expect("an address");
        let sent = upstream.send(post()).await;
        assert!(matches!(
            sent,
            Err(SendError::NotSent(ConnectionError::Connect(_)))
        ));
    }
}

#[tokio::test]
async fn a_connection_that_takes_too_long_is_not_sent() {
    // No process accepts connections, so the queue fills up; then connecting hangs.
    let socket = TcpSocket::new_v4().expect("a socket");
    let any = "127.0.0.1:0".parse().expect("an address");
    socket.bind(any).expect("a free port");
    let listener = socket.listen(1).expect("bound");
    let address = listener.local_addr().expect("bound");
    let mut queued = Vec::new();
    let short = Duration::from_millis(100);
    while let Ok(stream) = tokio::time::timeout(short, TcpStream::connect(address)).await {
        queued.push(stream);
    }
    let upstream = UpstreamClient::parse(&format!("http://{address}")).expect("an address");
    let upstream = upstream.with_limits(UpstreamLimits {
        connect_timeout: short,
        ..UpstreamLimits::default()
    });
    let sent = upstream.send(post()).await;
    assert!(matches!(
        sent,
        Err(SendError::NotSent(ConnectionError::ConnectTimeout(_)))
    ));
}

#[tokio::test]
async fn a_new_connection_that_closes_before_a_byte_gives_the_request_back() {
    let server = server(|stream| async move { drop(stream) }).await;
    let upstream = server.http1();
    let dialed = upstream.dialer.dial().await.expect("the server listens");
    let tasks = upstream.dialer.tasks();
    let pool = pool(&upstream);
    let connection = http1::Http1Connection::open(dialed.stream, pool.reserve(), pool).await;
    let connection = connection.expect("a connection");
    until("the connection is closed", || tasks.is_empty()).await;
    let permit = pool.acquire().await;
    let slot = http1::ConnectionSlot { connection, permit };
    let sent = slot.send(pool, post()).await;
    assert!(matches!(sent, SendResult::Returned(..)));
}

#[tokio::test]
async fn at_the_bound_an_idle_connection_of_another_core_is_closed() {
    let server = server(|stream| answer_each(stream, OK)).await;
    let upstream = Arc::new(server.http1().with_limits(UpstreamLimits {
        connections_max: 1,
        ..UpstreamLimits::default()
    }));
    let cores = Cores::start(NonZeroUsize::new(2)).expect("threads");
    for place in [cores.least_loaded(), cores.least_loaded()] {
        send_from(place, &upstream, 1).await;
    }
    assert_eq!(server.connections(), 2, "each core has its own");
    until("the first one is closed", || {
        upstream.dialer.tasks().len() == 1
    })
    .await;
}

/// Sends requests from a core, all at the same time, and reads their answers.
async fn send_from(place: CorePlace, upstream: &Arc<UpstreamClient>, requests: usize) {
    let (done, answered) = oneshot::channel();
    let upstream = Arc::clone(upstream);
    place.spawn(|load| async move {
        let sending = (0..requests).map(|_| async {
            let response = upstream.send(post()).await.expect("an answer");
            read(response).await
        });
        let _ = done.send((join_all(sending).await, load));
    });
    let (bodies, _) = answered.await.expect("the core has sent them");
    assert!(bodies.iter().all(|body| body == "paid"));
}

#[tokio::test]
async fn concurrent_requests_of_another_core_do_not_exceed_the_bound() {
    let server = server(|stream| answer_each(stream, OK)).await;
    let upstream = Arc::new(server.http1().with_limits(UpstreamLimits {
        connections_max: 4,
        ..UpstreamLimits::default()
    }));
    let cores = Cores::start(NonZeroUsize::new(2)).expect("threads");
    let [one, other] = [cores.least_loaded(), cores.least_loaded()];
    send_from(one, &upstream, 4).await;
    until("they are back", || pool(&upstream).ready() == 4).await;
    send_from(other, &upstream, 4).await;
    assert_eq!(server.connections(), 8, "each core has its own");
    until("those of the first core are closed", || {
        upstream.dialer.tasks().len() == 4
    })
    .await;
}

#[tokio::test]
async fn at_the_bound_the_connection_that_was_idle_for_the_longest_time_is_closed() {
    let server = server(|stream| answer_each(stream, OK)).await;
    let upstream = Arc::new(server.http1().with_limits(UpstreamLimits {
        idle_max: 2,
        ..UpstreamLimits::default()
    }));
    let cores = Cores::start(NonZeroUsize::new(3)).expect("threads");
    let [one, two, three] = [(); 3].map(|()| cores.least_loaded());
    let again = one.again();
    for (place, idle) in [(two, 1), (one, 2), (three, 2)] {
        send_from(place, &upstream, 1).await;
        until("it is back", || pool(&upstream).ready() == idle).await;
    }
    assert_eq!(server.connections(), 3);
    send_from(again, &upstream, 1).await;
    assert_eq!(server.connections(), 3, "the first core has kept its own");
}

#[tokio::test]
async fn a_request_that_was_read_and_not_answered_is_lost() {
    let server = server(|mut stream| async move {
        read_request(&mut stream).await;
    })
    .await;
    assert_lost(server.http1().send(post()).await);
}

#[rstest]
#[case::not_http(b"SMTP ready\r\n\r\n")]
#[case::two_lengths(b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab")]
#[case::broken_off(b"HTTP/1.1 200 OK\r\nContent-Le")]
#[tokio::test]
async fn an_invalid_response_is_lost(#[case] answer: &'static [u8]) {
    let server = server(move |mut stream| async move {
        read_request(&mut stream).await;
        let _ = stream.write_all(answer).await;
    })
    .await;
    assert_lost(server.http1().send(post()).await);
}

#[tokio::test]
async fn an_answer_with_too_large_a_head_is_lost() {
    let server = server(|mut stream| async move {
        read_request(&mut stream).await;
        let head = format!("HTTP/1.1 200 OK\r\nX: {}\r\n\r\n", "x".repeat(128 * 1024));
        let _ = stream.write_all(head.as_bytes()).await;
    })
    .await;
    assert_lost(server.http1().send(post()).await);
}

#[rstest]
#[case::length(OK)]
#[case::chunks(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\npaid\r\n0\r\n\r\n")]
#[tokio::test]
async fn requests_in_a_row_share_a_connection(#[case] answer: &'static [u8]) {
    let server = server(move |stream| answer_each(stream, answer)).await;
    let upstream = server.http1();
    for _ in 0..10 {
        let response = upstream.send(post()).await.expect("an answer");
        assert_eq!(read(response).await, "paid");
        until("it is back", || pool(&upstream).ready() == 1).await;
    }
    assert_eq!(server.connections(), 1);
}

#[tokio::test]
async fn an_answer_without_a_body_gives_its_connection_back_unread() {
    let server = server(|stream| answer_each(stream, b"HTTP/1.1 204 No Content\r\n\r\n")).await;
    let upstream = server.http1();
    for _ in 0..3 {
        let response = upstream.send(post()).await.expect("an answer");
        assert_eq!(response.status(), StatusCode::NO_CONTENT);
        until("it is back", || pool(&upstream).ready() == 1).await;
    }
    assert_eq!(server.connections(), 1);
}

#[tokio::test]
async fn requests_at_once_have_a_connection_each_and_few_are_kept() {
    let server = server(|stream| answer_each(stream, OK)).await;
    let upstream = server.http1().with_limits(UpstreamLimits {
        idle_max: 2,
        ..UpstreamLimits::default()
    });
    let (a, b, c) = tokio::join!(
        upstream.send(post()),
        upstream.send(post()),
        upstream.send(post())
    );
    assert_eq!(server.connections(), 3);
    for response in [a, b, c] {
        read(response.expect("an answer")).await;
    }
    until("they are back", || pool(&upstream).ready() == 2).await;
}

#[tokio::test]
async fn a_connection_unused_for_too_long_is_not_used_again() {
    let server = server(|stream| answer_each(stream, OK)).await;
    let upstream = server.http1().with_limits(UpstreamLimits {
        idle_timeout: Duration::ZERO,
        ..UpstreamLimits::default()
    });
    for _ in 0..2 {
        read(upstream.send(post()).await.expect("an answer")).await;
        until("it is back", || pool(&upstream).ready() == 1).await;
    }
    assert_eq!(server.connections(), 2);
}

#[tokio::test]
async fn an_http2_connection_unused_for_too_long_is_not_used_again() {
    let server = server(echo_http2).await;
    let upstream = server.http2().with_limits(UpstreamLimits {
        idle_timeout: Duration::ZERO,
        ..UpstreamLimits::default()
    });
    for _ in 0..2 {
        read(upstream.send(post()).await.expect("an answer")).await;
    }
    assert_eq!(server.connections(), 2);
}

#[tokio::test]
async fn an_http2_connection_with_an_open_stream_is_not_unused() {
    let server = server(echo_http2).await;
    let upstream = server.http2().with_limits(UpstreamLimits {
        idle_timeout: Duration::ZERO,
        ..UpstreamLimits::default()
    });
    let unread = upstream.send(post()).await.expect("an answer");
    upstream.close_expired();
    read(upstream.send(post()).await.expect("an answer")).await;
    assert_eq!(server.connections(), 1);
    read(unread).await;
}

#[tokio::test]
async fn expired_connections_of_all_cores_are_closed_without_another_request() {
    let http1_server = server(|stream| answer_each(stream, OK)).await;
    let http2_server = server(answer_http2).await;
    for upstream in [http1_server.http1(), http2_server.http2()] {
        let upstream = Arc::new(upstream.with_limits(UpstreamLimits {
            idle_timeout: Duration::ZERO,
            ..UpstreamLimits::default()
        }));
        let cores = Cores::start(NonZeroUsize::new(2)).expect("threads");
        for place in [cores.least_loaded(), cores.least_loaded()] {
            send_from(place, &upstream, 1).await;
        }
        // An HTTP/1 connection comes back shortly after its answer was read.
        until("all are closed", || {
            upstream.close_expired();
            upstream.dialer.tasks().is_empty()
        })
        .await;
        assert_eq!(pool(&upstream).ready(), 0);
    }
    for server in [http1_server, http2_server] {
        assert_eq!(server.connections(), 2, "each core had its own");
    }
}

#[tokio::test]
async fn connections_that_are_not_expired_stay_open() {
    let server = server(|stream| answer_each(stream, OK)).await;
    let upstream = server.http1();
    for _ in 0..2 {
        read(upstream.send(post()).await.expect("an answer")).await;
        until("it is back", || pool(&upstream).ready() == 1).await;
        upstream.close_expired();
    }
    assert_eq!(server.connections(), 1);
}

#[tokio::test]
async fn a_kept_connection_that_the_upstream_closed_is_replaced() {
    let server = server(|mut stream| async move {
        read_request(&mut stream).await;
        let _ = stream.write_all(OK).await;
    })
    .await;
    let upstream = server.http1();
    for _ in 0..3 {
        let response = upstream.send(post()).await.expect("an answer");
        assert_eq!(read(response).await, "paid");
        until("it is closed", || pool(&upstream).ready() == 0).await;
    }
    assert_eq!(server.connections(), 3);
}

#[tokio::test]
async fn a_body_that_breaks_off_is_an_error() {
    let server = server(|mut stream| async move {
        read_request(&mut stream).await;
        let _ = stream
            .write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\npai")
            .await;
    })
    .await;
    let upstream = server.http1();
    let response = upstream.send(post()).await.expect("a head");
    response
        .into_body()
        .collect()
        .await
        .expect_err("half a body");
    assert_eq!(pool(&upstream).ready(), 0);
}

#[tokio::test]
async fn a_body_that_is_not_read_closes_its_connection() {
    let (closed, mut closings) = mpsc::unbounded_channel();
    let server = server(move |mut stream| {
        let closed = closed.clone();
        async move {
            read_request(&mut stream).await;
            let _ = stream
                .write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\npai")
                .await;
            assert!(!read_request(&mut stream).await);
            let _ = closed.send(());
        }
    })
    .await;
    let upstream = server.http1();
    drop(upstream.send(post()).await.expect("a head"));
    let closing = tokio::time::timeout(TIMEOUT, closings.recv()).await;
    assert_eq!(closing, Ok(Some(())));
    assert_eq!(pool(&upstream).ready(), 0);
}

#[tokio::test]
async fn a_connection_that_still_sends_takes_no_other_request() {
    let server = server(|mut stream| async move {
        let mut head = [0; 16];
        let _ = stream.read_exact(&mut head).await;
        let _ = stream.write_all(OK).await;
        // Reads the rest, until the client closes.
        let _ = tokio::io::copy(&mut stream, &mut tokio::io::sink()).await;
    })
    .await;
    let upstream = server.http1();
    let (unfinished, body) = Channel::<Bytes, BoxError>::new(1);
    let response = upstream
        .send(request(Method::POST, body.boxed_unsync()))
        .await;
    assert_eq!(read(response.expect("an early answer")).await, "paid");
    read(upstream.send(post()).await.expect("another answer")).await;
    assert_eq!(server.connections(), 2);
    drop(unfinished);
}

#[tokio::test]
async fn the_head_is_sent_as_the_caller_made_it() {
    let (heads, mut seen) = mpsc::unbounded_channel();
    let server = server(move |mut stream| {
        let heads = heads.clone();
        async move {
            let mut head = vec![0; 1024];
            let length = stream.read(&mut head).await.unwrap_or(0);
            let _ = stream.write_all(OK).await;
            let _ = heads.send(String::from_utf8_lossy(&head[..length]).into_owned());
        }
    })
    .await;
    let upstream = server.http1();
    let mut absolute = post();
    *absolute.uri_mut() = Uri::from_static("http://elsewhere/payments?x=1");
    *absolute.version_mut() = http::Version::HTTP_2;
    read(upstream.send(absolute).await.expect("an answer")).await;
    assert_eq!(
        seen.recv().await.as_deref(),
        Some(
            "POST /payments?x=1 HTTP/1.1\r\nhost: shop.example\r\ncontent-length: 6\r\n\r\nplease"
        )
    );
}

#[tokio::test]
async fn an_upgraded_connection_belongs_to_the_caller() {
    let server = server(|mut stream| async move {
        read_request(&mut stream).await;
        let head =
            b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: echo\r\n\r\n";
        let _ = stream.write_all(head).await;
        let (mut from, mut to) = stream.split();
        let _ = tokio::io::copy(&mut from, &mut to).await;
    })
    .await;
    let upstream = server.http1();
    let mut request = request(Method::GET, OutgoingBody::Empty);
    let headers = request.headers_mut();
    headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
    headers.insert(header::UPGRADE, HeaderValue::from_static("echo"));
    let response = upstream.send(request).await.expect("an answer");
    assert_eq!(response.status(), StatusCode::SWITCHING_PROTOCOLS);
    let upgraded = hyper::upgrade::on(response).await.expect("an upgrade");
    let mut tunnel = TokioIo::new(upgraded);
    tunnel.write_all(b"hello").await.expect("an open tunnel");
    let mut echo = [0; 5];
    tunnel.read_exact(&mut echo).await.expect("an echo");
    assert_eq!(&echo, b"hello");
    assert_eq!(pool(&upstream).ready(), 0);
}

#[tokio::test]
async fn closing_waits_for_the_last_answer() {
    let server = server(|stream| answer_each(stream, OK)).await;
    let upstream = server.http1();
    let (first, second) = tokio::join!(upstream.send(post()), upstream.send(post()));
    read(first.expect("an answer")).await;
    let closing = upstream.close();
    tokio::pin!(closing);
    let early = tokio::time::timeout(Duration::from_millis(50), &mut closing).await;
    assert!(early.is_err(), "an answer is still being read");
    read(second.expect("an answer")).await;
    let waited = tokio::time::timeout(TIMEOUT, closing).await;
    waited.expect("the last answer was read");
}

/// An HTTP/2 server that returns the request's body, with trailers.
async fn echo_http2(stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) {
    let echo = service_fn(|request: Request<Incoming>| async {
        let uri = request.uri().to_string();
        let body = request.into_body().collect().await.expect("a whole body");
        let mut trailers = HeaderMap::new();
        trailers.insert("grpc-status", HeaderValue::from_static("0"));
        let body = Full::new(body.to_bytes()).with_trailers(std::future::ready(Some(Ok(trailers))));
        let mut response = Response::new(body);
        let uri = HeaderValue::from_str(&uri).expect("an ASCII target");
        response.headers_mut().insert("x-uri", uri);
        Ok::<_, Infallible>(response)
    });
    let _ = hyper::server::conn::http2::Builder::new(TokioExecutor::new())
        .serve_connection(TokioIo::new(stream), echo)
        .await;
}

/// An HTTP/2 server that answers `paid`.
async fn answer_http2(stream: TcpStream) {
    let answer = service_fn(|_: Request<Incoming>| async {
        Ok::<_, Infallible>(Response::new(Full::new(Bytes::from_static(b"paid"))))
    });
    let _ = hyper::server::conn::http2::Builder::new(TokioExecutor::new())
        .serve_connection(TokioIo::new(stream), answer)
        .await;
}

#[tokio::test]
async fn http2_carries_bodies_and_trailers_on_one_connection() {
    let server = server(echo_http2).await;
    let upstream = server.http2();
    let (a, b) = tokio::join!(upstream.send(post()), upstream.send(post()));
    for response in [a, b, upstream.send(post()).await] {
        let response = response.expect("an answer");
        assert_eq!(response.headers()["x-uri"], "http://shop.example/payments");
        let body = response.into_body().collect().await.expect("a whole body");
        let trailers = body.trailers().expect("trailers");
        assert_eq!(trailers["grpc-status"], "0");
        assert_eq!(body.to_bytes(), "please");
    }
    assert_eq!(server.connections(), 1);
    let closed = tokio::time::timeout(TIMEOUT, upstream.close()).await;
    closed.expect("the connection closes");
}

/// Raw HTTP/2: sends settings, waits for a request, sends `last`, and closes after
/// the client.
async fn break_off_http2(mut stream: TcpStream, last: &'static [u8]) {
    let settings = [0, 0, 0, 4, 0, 0, 0, 0, 0];
    let _ = stream.write_all(&settings).await;
    let mut seen = Vec::new();
    // The body is sent after the head.
    while !seen.windows(6).any(|bytes| bytes == b"please") {
        if stream.read_buf(&mut seen).await.unwrap_or(0) == 0 {
            return;
        }
    }
    if stream.write_all(last).await.is_ok() && !last.is_empty() {
        let _ = tokio::io::copy(&mut stream, &mut tokio::io::sink()).await;
    }
}

/// RST_STREAM on the first stream, with a reason.
const REFUSED: &[u8] = &[0, 0, 4, 3, 0, 0, 0, 0, 1, 0, 0, 0, 7];
const INTERNAL: &[u8] = &[0, 0, 4, 3, 0, 0, 0, 0, 1, 0, 0, 0, 2];
/// GOAWAY with a last stream and a reason.
const AWAY_BEFORE: &[u8] = &[0, 0, 8, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
const AWAY_BROKEN: &[u8] = &[0, 0, 8, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2];

#[tokio::test]
async fn http2_is_not_sent_when_the_upstream_says_so() {
    for last in [REFUSED, AWAY_BEFORE] {
        let server = server(move |stream| break_off_http2(stream, last)).await;
        assert_not_sent(server.http2().send(post()).await);
    }
}

#[tokio::test]
async fn http2_is_lost_otherwise() {
    for last in [INTERNAL, AWAY_BROKEN, b""] {
        let server = server(move |stream| break_off_http2(stream, last)).await;
        assert_lost(server.http2().send(post()).await);
    }
}

#[tokio::test]
async fn http2_opens_a_new_connection_when_the_old_one_has_closed() {
    let server = server(|stream| async move {
        let limited = tokio::time::timeout(Duration::from_millis(200), echo_http2(stream));
        let _ = limited.await;
    })
    .await;
    let upstream = server.http2();
    read(upstream.send(post()).await.expect("an answer")).await;
    let tasks = upstream.dialer.tasks();
    until("the connection is closed", || tasks.is_empty()).await;
    read(upstream.send(post()).await.expect("an answer")).await;
    assert_eq!(server.connections(), 2);
}

/// Raw HTTP/2: allows one stream at a time, never answers, and reports each request
/// head.
async fn hold_http2(mut stream: TcpStream, heads: mpsc::UnboundedSender<()>) {
    let one_stream = [0, 0, 6, 4, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 1];
    let _ = stream.write_all(&one_stream).await;
    let mut seen = vec![0; 24];
    if stream.read_exact(&mut seen).await.is_err() {
        return;
    }
    loop {
        let mut head = [0; 9];
        if stream.read_exact(&mut head).await.is_err() {
            return;
        }
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
        let mut payload = vec![0; length as usize];
        let _ = stream.read_exact(&mut payload).await;
        const HEADERS: u8 = 1;
        if head[3] == HEADERS {
            let _ = heads.send(());
        }
    }
}

#[tokio::test]
async fn a_request_that_finds_no_free_stream_is_not_sent() {
    let (heads, mut seen) = mpsc::unbounded_channel();
    let server = server(move |stream| hold_http2(stream, heads.clone())).await;
    let upstream = Arc::new(server.http2().with_limits(UpstreamLimits {
        connect_timeout: Duration::from_millis(200),
        ..UpstreamLimits::default()
    }));
    let first = tokio::spawn({
        let upstream = upstream.clone();
        async move { upstream.send(post()).await.map(drop) }
    });
    assert_eq!(seen.recv().await, Some(()));
    for _ in 0..3 {
        let sent = upstream.send(post()).await;
        assert!(matches!(
            sent,
            Err(SendError::NotSent(ConnectionError::ConnectTimeout(_)))
        ));
    }
    assert!(seen.is_empty(), "only the first was seen");
    assert_eq!(server.connections(), 1);
    first.abort();
}

#[tokio::test]
async fn a_stream_that_ends_makes_room_for_the_next() {
    let server = server(|stream| async move {
        let service = service_fn(|_: Request<Incoming>| async {
            tokio::time::sleep(Duration::from_millis(5)).await;
            Ok::<_, Infallible>(Response::new(Full::new(Bytes::from_static(b"paid"))))
        });
        let _ = hyper::server::conn::http2::Builder::new(TokioExecutor::new())
            .max_concurrent_streams(2)
            .serve_connection(TokioIo::new(stream), service)
            .await;
    })
    .await;
    let upstream = Arc::new(server.http2());
    let mut sending = tokio::task::JoinSet::new();
    for _ in 0..20 {
        let upstream = upstream.clone();
        sending.spawn(async move { read(upstream.send(post()).await.expect("an answer")).await });
    }
    let answers = tokio::time::timeout(TIMEOUT, sending.join_all()).await;
    assert!(
        answers
            .expect("all are answered")
            .iter()
            .all(|a| a == "paid")
    );
    assert_eq!(server.connections(), 1);
}

#[tokio::test]
async fn a_server_without_http2_is_sent_no_request() {
    let server = server(|mut stream| async move {
        let _ = tokio::io::copy(&mut stream, &mut tokio::io::sink()).await;
    })
    .await;
    let upstream = server.http2().with_limits(UpstreamLimits {
        connect_timeout: Duration::from_millis(100),
        ..UpstreamLimits::default()
    });
    assert_not_sent(upstream.send(post()).await);
}

#[tokio::test]
async fn a_connection_that_closes_at_once_is_opened_once() {
    let server = server(|stream| async move { drop(stream) }).await;
    let sent = server.http2().send(post()).await;
    assert_not_sent(sent);
    assert_eq!(server.connections(), 1);
}

#[tokio::test]
async fn requests_beyond_the_connection_limit_wait() {
    let server = server(|stream| answer_each(stream, OK)).await;
    let upstream = Arc::new(server.http1().with_limits(UpstreamLimits {
        connections_max: 2,
        ..UpstreamLimits::default()
    }));
    let mut sending = tokio::task::JoinSet::new();
    for _ in 0..20 {
        let upstream = upstream.clone();
        sending.spawn(async move { read(upstream.send(post()).await.expect("an answer")).await });
    }
    let answers = tokio::time::timeout(TIMEOUT, sending.join_all()).await;
    assert!(
        answers
            .expect("all are answered")
            .iter()
            .all(|a| a == "paid")
    );
    assert!(server.connections() <= 2);
}

#[tokio::test]
async fn a_request_that_finds_no_free_connection_is_not_sent() {
    let server = server(|stream| answer_each(stream, OK)).await;
    let upstream = server.http1().with_limits(UpstreamLimits {
        connections_max: 1,
        connect_timeout: Duration::from_millis(50),
        ..UpstreamLimits::default()
    });
    let held = upstream.send(post()).await.expect("an answer");
    let sent = upstream.send(post()).await;
    assert!(matches!(
        sent,
        Err(SendError::NotSent(ConnectionError::ConnectTimeout(_)))
    ));
    read(held).await;
    read(upstream.send(post()).await.expect("room again")).await;
    assert_eq!(server.connections(), 1);
}

#[tokio::test]
async fn a_tunnel_keeps_its_connection_permit() {
    let server = server(|mut stream| async move {
        read_request(&mut stream).await;
        let head =
            b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: echo\r\n\r\n";
        let _ = stream.write_all(head).await;
        let _ = tokio::io::copy(&mut stream, &mut tokio::io::sink()).await;
    })
    .await;
    let upstream = server.http1().with_limits(UpstreamLimits {
        connections_max: 1,
        connect_timeout: Duration::from_millis(50),
        ..UpstreamLimits::default()
    });
    let ask = || {
        let mut request = request(Method::GET, OutgoingBody::Empty);
        let headers = request.headers_mut();
        headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
        headers.insert(header::UPGRADE, HeaderValue::from_static("echo"));
        upstream.send(request)
    };
    let response = ask().await.expect("an answer");
    let tunnel = hyper::upgrade::on(response).await.expect("an upgrade");
    assert_not_sent(ask().await.map(drop));
    drop(tunnel);
    ask().await.map(drop).expect("room again");
}

#[tokio::test]
async fn a_connection_whose_answer_came_too_early_is_not_used_again() {
    let server = server(|mut stream| async move {
        let mut head = [0; 16];
        let _ = stream.read_exact(&mut head).await;
        let _ = stream.write_all(OK).await;
        // Reads the rest, and keeps the connection open.
        let _ = tokio::io::copy(&mut stream, &mut tokio::io::sink()).await;
    })
    .await;
    let upstream = server.http1();
    let (mut body, early) = Channel::<Bytes, BoxError>::new(1);
    let response = upstream
        .send(request(Method::POST, early.boxed_unsync()))
        .await
        .expect("an early answer");
    body.send_data(Bytes::from_static(b"please"))
        .await
        .expect("it is still being sent");
    drop(body);
    tokio::time::sleep(Duration::from_millis(20)).await;
    assert_eq!(read(response).await, "paid");
    let tasks = upstream.dialer.tasks();
    until("the connection is closed", || tasks.is_empty()).await;
    assert_eq!(pool(&upstream).ready(), 0);
}

/// Runs a server with TLS and a certificate for localhost.
async fn tls_server<F>(
    authority: &Authority,
    protocols: &[&[u8]],
    serve: impl Fn(TlsStream<TcpStream>) -> F + Clone + Send + Sync + 'static,
) -> TestServer
where
    F: Future<Output = ()> + Send + 'static,
{
    let tls = ListenerTls::new(authority.server("server")).expect("usable files");
    let mut config = rustls::ServerConfig::clone(&tls.current());
    config.alpn_protocols = protocols.iter().map(|name| name.to_vec()).collect();
    let acceptor = TlsAcceptor::from(Arc::new(config));
    server(move |stream| {
        let (acceptor, serve) = (acceptor.clone(), serve.clone());
        async move {
            if let Ok(stream) = acceptor.accept(stream).await {
                serve(stream).await;
            }
        }
    })
    .await
}

impl TestServer {
    fn https(&self, tls: &Tls) -> UpstreamClient {
        let url = format!("https://localhost:{}", self.address.port());
        UpstreamClient::open(&url, UpstreamLimits::default(), tls).expect("an upstream")
    }
}

async fn answer_over_tls(mut stream: TlsStream<TcpStream>) {
    let mut seen = Vec::new();
    while stream.read_buf(&mut seen).await.unwrap_or(0) > 0 {
        if seen.ends_with(b"please") {
            seen.clear();
            let _ = stream.write_all(OK).await;
        }
    }
}

#[rstest]
#[case::nothing_agreed(&[])]
#[case::http1(&[b"http/1.1".as_slice()])]
#[tokio::test]
async fn https_is_http1_where_the_upstream_wants_it(#[case] protocols: &[&[u8]]) {
    let authority = Authority::new();
    let server = tls_server(&authority, protocols, answer_over_tls).await;
    let upstream = server.https(&authority.client());
    for _ in 0..5 {
        let response = upstream.send(post()).await.expect("an answer");
        assert_eq!(read(response).await, "paid");
        until("it is back", || pool(&upstream).ready() == 1).await;
    }
    assert_eq!(server.connections(), 1);
}

#[tokio::test]
async fn https_is_http2_where_the_upstream_offers_it() {
    let authority = Authority::new();
    let server = tls_server(&authority, &[b"h2", b"http/1.1"], echo_http2).await;
    let upstream = server.https(&authority.client());
    let (a, b, c) = tokio::join!(
        upstream.send(post()),
        upstream.send(post()),
        upstream.send(post())
    );
    for response in [a, b, c] {
        let response = response.expect("an answer");
        assert_eq!(response.headers()["x-uri"], "https://shop.example/payments");
        assert_eq!(read(response).await, "please");
    }
    assert_eq!(server.connections(), 1);
}

#[tokio::test]
async fn an_upstream_may_change_its_protocol() {
    let authority = Authority::new();
    let server = tls_server(&authority, &[b"http/1.1"], answer_over_tls).await;
    let upstream = server.https(&authority.client());
    // Expected until a connection has negotiated another protocol.
    upstream.last_protocol.set(Protocol::Http2);
    read(upstream.send(post()).await.expect("an answer")).await;
    assert_eq!(upstream.last_protocol.get(), Some(Protocol::Http1));
}

#[tokio::test]
async fn a_handshake_that_fails_is_not_sent() {
    let (authority, stranger) = (Authority::new(), Authority::new());
    let server = tls_server(&authority, &[b"http/1.1"], answer_over_tls).await;
    let other_name = Tls {
        server_name: Some("shop.example".to_owned()),
        ..authority.client()
    };
    for tls in [stranger.client(), Tls::default(), other_name] {
        let sent = server.https(&tls).send(post()).await;
        assert!(matches!(
            sent,
            Err(SendError::NotSent(ConnectionError::Handshake(_)))
        ));
    }
}

#[tokio::test]
async fn new_connections_use_the_files_as_they_are_now() {
    let (authority, stranger) = (Authority::new(), Authority::new());
    let server = tls_server(&authority, &[b"http/1.1"], answer_over_tls).await;
    let url = format!("https://localhost:{}", server.address.port());
    let address = Address::parse(&url).expect("an address");
    let tls =
        ClientTls::with_check_interval(Duration::ZERO, stranger.client()).expect("usable files");
    let mode = DialMode::tls(&address, tls).expect("a name");
    let each_its_own = UpstreamLimits {
        idle_timeout: Duration::ZERO,
        ..UpstreamLimits::default()
    };
    let upstream = UpstreamClient::new(address, mode, each_its_own);
    assert_not_sent(upstream.send(post()).await);
    let right = std::fs::read_to_string(authority.path("ca")).expect("a file");
    stranger.write("ca", &format!("{right}\n"));
    read(upstream.send(post()).await.expect("the new one is trusted")).await;
    stranger.write("ca", "nonsense");
    read(upstream.send(post()).await.expect("the good one stays")).await;
    assert_eq!(server.connections(), 3);
}

#[tokio::test]
async fn a_server_without_tls_is_sent_no_request() {
    let server = server(|stream| answer_each(stream, OK)).await;
    let authority = Authority::new();
    let upstream = server
        .https(&authority.client())
        .with_limits(UpstreamLimits {
            connect_timeout: Duration::from_millis(200),
            ..UpstreamLimits::default()
        });
    assert_not_sent(upstream.send(post()).await);
}

#[tokio::test]
async fn the_servers_name_can_be_another_than_the_urls() {
    let authority = Authority::new();
    let server = tls_server(&authority, &[b"http/1.1"], answer_over_tls).await;
    let tls = Tls {
        server_name: Some("localhost".to_owned()),
        ..authority.client()
    };
    let url = format!("https://127.0.0.2:{}", server.address.port());
    let upstream =
        UpstreamClient::open(&url, UpstreamLimits::default(), &tls).expect("an upstream");
    // No process listens at that address; the test is that the settings are valid.
    assert_not_sent(upstream.send(post()).await);
    let url = format!("https://{}", server.address);
    let upstream =
        UpstreamClient::open(&url, UpstreamLimits::default(), &tls).expect("an upstream");
    read(upstream.send(post()).await.expect("an answer")).await;
}

#[tokio::test]
async fn a_request_over_tls_that_was_read_and_not_answered_is_lost() {
    let authority = Authority::new();
    let server = tls_server(&authority, &[b"http/1.1"], |mut stream| async move {
        let _ = stream.read(&mut [0; 16]).await;
    })
    .await;
    assert_lost(server.https(&authority.client()).send(post()).await);
}

#[tokio::test]
async fn a_large_request_over_tls_that_breaks_off_is_lost() {
    let authority = Authority::new();
    let server = tls_server(&authority, &[b"http/1.1"], |mut stream| async move {
        let _ = stream.read(&mut [0; 16]).await;
    })
    .await;
    let large = request(Method::POST, Bytes::from(vec![b'x'; 4 << 20]));
    assert_lost(server.https(&authority.client()).send(large).await);
}

#[tokio::test]
async fn a_request_that_is_given_up_ends_its_connection_though_the_upstream_does_not_read() {
    let authority = Authority::new();
    let server = tls_server(&authority, &[b"http/1.1"], |stream| async move {
        let _unread = stream;
        std::future::pending::<()>().await;
    })
    .await;
    let upstream = server.https(&authority.client());
    let large = request(Method::POST, Bytes::from(vec![b'x'; 16 << 20]));
    let limit = Duration::from_millis(200);
    let sent = tokio::time::timeout(limit, upstream.send(large)).await;
    assert!(sent.is_err(), "no answer comes");
    let closed = tokio::time::timeout(TIMEOUT, upstream.close()).await;
    closed.expect("the connection ends");
}

#[tokio::test]
async fn an_answer_that_is_given_up_ends_its_connection_though_the_upstream_does_not_read() {
    let authority = Authority::new();
    let server = tls_server(&authority, &[b"http/1.1"], |mut stream| async move {
        let head = b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\npai";
        let _ = stream.read(&mut [0; 16]).await;
        let _ = stream.write_all(head).await;
        std::future::pending::<()>().await;
    })
    .await;
    let upstream = server.https(&authority.client());
    let large = request(Method::POST, Bytes::from(vec![b'x'; 16 << 20]));
    drop(upstream.send(large).await.expect("an early head"));
    let closed = tokio::time::timeout(TIMEOUT, upstream.close()).await;
    closed.expect("the connection ends");
}

#[rstest]
#[case("http://a", Tls { server_name: Some("b".to_owned()), ..Tls::default() }, "TLS settings require an upstream that begins with https://")]
#[case("https://a", Tls { server_name: Some("b c".to_owned()), ..Tls::default() }, "the upstream's server name is neither a host name nor an address")]
#[case("https://a", Tls { ca: Some("/absent.pem".into()), ..Tls::default() }, "cannot read /absent.pem: No such file or directory (os error 2)")]
fn unusable_tls_settings_are_explained(#[case] url: &str, #[case] tls: Tls, #[case] why: &str) {
    let error = UpstreamClient::open(url, UpstreamLimits::default(), &tls).expect_err("unusable");
    assert_eq!(error.to_string(), why);
}
