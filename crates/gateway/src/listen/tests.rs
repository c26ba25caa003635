//! Clients on real sockets that are too many, silent, slow or do not read: they
//! are closed, and other clients are served meanwhile.

use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use bytes::Bytes;
use http::{HeaderValue, StatusCode, header};
use http_body_util::{BodyExt, Empty};
use hyper::client::conn::{http1, http2};
use hyper_util::rt::TokioExecutor;
use onceward_http::body;
use rstest::rstest;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use super::*;
use crate::listen::framing::HEADERS_BYTES_MAX;
use crate::listen::tls::tests::Authority;
use crate::upstream::{SendError, Tls, UpstreamClient, UpstreamLimits};

const TEST_TIMEOUT: Duration = Duration::from_secs(5);
const SHORT: Duration = Duration::from_millis(100);
/// Long enough for a busy machine, and shorter than the slow reads below.
const LONG: Duration = Duration::from_secs(1);
const LARGE_BYTES: usize = 8 << 20;

/// Responds with what is known of the client, or with a small or large body.
struct SampleService;

impl Serve for SampleService {
    async fn serve(&self, request: Request<Incoming>, peer: Peer) -> Response<Body> {
        match request.uri().path() {
            "/large" => Response::new(body::full(vec![b'x'; LARGE_BYTES])),
            "/small" => Response::new(body::full("small")),
            _ => {
                let (scheme, address, trusted) = (peer.scheme(), peer.address(), peer.is_trusted());
                Response::new(body::full(format!("{scheme} {address} {trusted}")))
            }
        }
    }
}

struct RunningListener {
    address: SocketAddr,
    counts: Arc<ConnectionCounts>,
    stop: CancellationToken,
    serving: tokio::task::JoinHandle<()>,
}

/// Starts a listener on a free port, with changed settings.
async fn start(change: impl FnOnce(&mut Listener)) -> RunningListener {
    start_serving(SampleService, change).await
}

/// The same with another service.
async fn start_serving<S: Serve>(
    service: S,
    change: impl FnOnce(&mut Listener),
) -> RunningListener {
    let socket = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = socket.local_addr().expect("bound");
    let mut listener = Listener::new(socket);
    change(&mut listener);
    let counts = Arc::clone(&listener.counts);
    let stop = CancellationToken::new();
    let cores = Cores::start(NonZeroUsize::new(2)).expect("threads");
    let service = (Arc::new(service), Arc::new(cores));
    let serving = tokio::spawn(serve(listener, service, stop.clone()));
    RunningListener {
        address,
        counts,
        stop,
        serving,
    }
}

impl RunningListener {
    async fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).await;
        stream.expect("a listening socket")
    }

    /// Sends text on a new connection and returns everything that is received.
    async fn exchange(&self, text: impl AsRef<[u8]>) -> String {
        let mut stream = self.connect().await;
        // If the listener has closed the connection, the write or the read fails.
        let _ = stream.write_all(text.as_ref()).await;
        read_all(&mut stream).await
    }

    async fn is_serving(&self) -> bool {
        self.exchange(get("/small"))
            .await
            .ends_with("\r\n\r\nsmall")
    }

    fn upstream(&self, tls: &Tls) -> UpstreamClient {
        let url = format!("https://localhost:{}", self.address.port());
        UpstreamClient::open(&url, UpstreamLimits::default(), tls).expect("an upstream")
    }
}

fn get(path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
}

async fn read_all(stream: &mut (impl AsyncRead + Unpin)) -> String {
    let mut seen = Vec::new();
    let read = tokio::time::timeout(TEST_TIMEOUT, stream.read_to_end(&mut seen)).await;
    // A reset also ends the connection.
    let _ = read.expect("the connection ends");
    String::from_utf8_lossy(&seen).into_owned()
}

async fn wait_until(what: &str, condition: impl Fn() -> bool) {
    let wait = async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    let waited = tokio::time::timeout(TEST_TIMEOUT, wait).await;
    waited.unwrap_or_else(|_| panic!("timed out waiting until {what}"));
}

async fn send(upstream: &UpstreamClient, path: &str) -> Result<String, SendError> {
    let request = Request::builder()
        .uri(path)
        .header(header::HOST, "a")
        .body(Bytes::new())
        .expect("a valid request");
    let response = upstream.send(request).await?;
    let body = response.into_body().collect().await.expect("a whole body");
    Ok(String::from_utf8_lossy(&body.to_bytes()).into_owned())
}

#[tokio::test]
async fn http1_client_that_does_not_read_is_cut_off_and_others_are_served() {
    let listener = start(|listener| listener.write_deadline = SHORT).await;
    let mut silent = listener.connect().await;
    silent
        .write_all(get("/large").as_bytes())
        .await
        .expect("sent");
    assert!(listener.is_serving().await);
    wait_until("the connection is cut off", || {
        listener.counts.cut_off() == 1
    })
    .await;
    wait_until("its slot is free", || listener.counts.open() == 0).await;
    assert!(read_all(&mut silent).await.len() < LARGE_BYTES);
    assert!(listener.is_serving().await);
}

#[tokio::test]
async fn http1_deadline_grows_with_the_size_of_the_response() {
    let listener = start(|listener| listener.write_deadline = LONG).await;
    let mut slow = listener.connect().await;
    slow.write_all(get("/large").as_bytes())
        .await
        .expect("sent");
    let mut seen = 0;
    let mut piece = vec![0; 512 * 1024];
    loop {
        match slow.read(&mut piece).await.expect("not cut off") {
            0 => break,
            count => seen += count,
        }
        tokio::time::sleep(LONG / 10).await;
    }
    assert!(seen > LARGE_BYTES);
    assert_eq!(listener.counts.cut_off(), 0);
}

#[tokio::test]
async fn http1_response_that_is_still_being_written_outlasts_the_head_deadline() {
    let listener = start(|listener| listener.head_deadline = SHORT).await;
    let mut slow = listener.connect().await;
    let sent = slow.write_all(get("/large").as_bytes()).await;
    sent.expect("sent");
    tokio::time::sleep(5 * SHORT).await;
    assert!(read_all(&mut slow).await.len() > LARGE_BYTES);
}

/// Connects an HTTP/2 client that grants each stream a window of so many bytes.
async fn connect_with_window(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    bytes: u32,
) -> h2::client::SendRequest<Bytes> {
    let handshake = h2::client::Builder::new()
        .initial_window_size(bytes)
        .handshake(stream)
        .await;
    let (sender, connection) = handshake.expect("HTTP/2");
    tokio::spawn(connection);
    sender
}

#[rstest]
#[case::no_window_for_a_large_body(0, "/large")]
#[case::no_window_for_a_small_body(0, "/small")]
#[case::window_for_a_part_of_a_large_body(1, "/large")]
#[case::window_for_a_part_of_a_small_body(1, "/small")]
#[tokio::test]
async fn http2_client_without_a_window_is_cut_off_and_others_are_served(
    #[case] window: u32,
    #[case] path: &str,
) {
    let listener = start(|listener| listener.write_deadline = SHORT).await;
    let mut sender = connect_with_window(listener.connect().await, window).await;
    let mut responses = Vec::new();
    for _ in 0..20 {
        sender = sender.ready().await.expect("a stream");
        let uri = format!("http://a{path}");
        let request = Request::builder().uri(uri).body(()).expect("valid");
        let (response, _) = sender.send_request(request, true).expect("sent");
        responses.push(response);
    }
    assert!(listener.is_serving().await);
    // A large response extends the deadline only while it is read.
    wait_until("the connection is cut off", || {
        listener.counts.cut_off() == 1
    })
    .await;
    wait_until("its slot is free", || listener.counts.open() == 0).await;
    assert!(listener.is_serving().await);
}

#[tokio::test]
async fn http2_clients_that_read_are_not_cut_off() {
    let listener = start(|listener| listener.write_deadline = SHORT).await;
    let io = TokioIo::new(listener.connect().await);
    let handshake = http2::handshake::<_, _, Empty<Bytes>>(TokioExecutor::new(), io).await;
    let (mut sender, connection) = handshake.expect("HTTP/2");
    tokio::spawn(connection);
    for path in ["/small", "/large", "/small"] {
        let uri = format!("http://a{path}");
        let request = Request::builder().uri(uri).body(Empty::new());
        let response = sender.send_request(request.expect("valid")).await;
        let body = response.expect("a response").into_body().collect().await;
        assert!(!body.expect("a whole body").to_bytes().is_empty());
        // An idle connection has no write deadline.
        tokio::time::sleep(2 * SHORT).await;
    }
    assert_eq!(listener.counts.cut_off(), 0);
}

#[tokio::test]
async fn http2_deadline_grows_with_the_size_of_the_response() {
    let listener = start(|listener| listener.write_deadline = LONG).await;
    let mut sender = connect_with_window(listener.connect().await, 65_535).await;
    let request = Request::builder().uri("http://a/large").body(());
    let sent = sender.send_request(request.expect("valid"), true);
    let (response, _) = sent.expect("sent");
    let mut body = response.await.expect("a response head").into_body();
    let mut seen = 0;
    // In total slower than the deadline, but faster than the minimum rate.
    while let Some(piece) = body.data().await {
        let bytes = piece.expect("not cut off").len();
        seen += bytes;
        if seen % (1 << 20) < bytes {
            tokio::time::sleep(LONG / 5).await;
        }
        let window = body.flow_control();
        window.release_capacity(bytes).expect("capacity");
    }
    assert_eq!(seen, LARGE_BYTES);
    assert_eq!(listener.counts.cut_off(), 0);
}

#[tokio::test]
async fn connections_beyond_the_maximum_are_closed_and_counted() {
    let listener = start(|listener| listener.connections_max = 2).await;
    let first = listener.connect().await;
    let second = listener.connect().await;
    wait_until("both are open", || listener.counts.open() == 2).await;
    assert_eq!(listener.exchange(get("/small")).await, "");
    assert_eq!(listener.counts.refused(), 1);
    drop(first);
    wait_until("one is closed", || listener.counts.open() == 1).await;
    assert!(listener.is_serving().await);
    drop(second);
}

#[rstest]
#[case::maximum_count(HEADERS_MAX, 1, StatusCode::OK)]
#[case::one_more_than_the_maximum(HEADERS_MAX + 1, 1, StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE)]
#[case::below_the_maximum_size(7, HEADERS_BYTES_MAX / 8, StatusCode::OK)]
#[case::above_the_maximum_size(9, HEADERS_BYTES_MAX / 8, StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE)]
#[tokio::test]
async fn http2_heads_have_the_limits_of_http1(
    #[case] count: usize,
    #[case] bytes: usize,
    #[case] status: StatusCode,
) {
    let listener = start(|_| {}).await;
    let io = TokioIo::new(listener.connect().await);
    let handshake = http2::handshake::<_, _, Empty<Bytes>>(TokioExecutor::new(), io).await;
    let (mut sender, connection) = handshake.expect("HTTP/2");
    tokio::spawn(connection);
    let mut request = Request::builder().uri("http://a/small");
    for number in 0..count {
        request = request.header(format!("x-{number}"), "x".repeat(bytes));
    }
    let request = request.body(Empty::new()).expect("a valid request");
    let response = sender.send_request(request).await;
    assert_eq!(response.expect("a response").status(), status);
}

#[tokio::test]
async fn http2_response_to_head_has_a_length_and_no_body() {
    let listener = start(|_| {}).await;
    let io = TokioIo::new(listener.connect().await);
    let handshake = http2::handshake::<_, _, Empty<Bytes>>(TokioExecutor::new(), io).await;
    let (mut sender, connection) = handshake.expect("HTTP/2");
    tokio::spawn(connection);
    let request = Request::head("http://a/small").body(Empty::new());
    let response = sender.send_request(request.expect("valid")).await;
    let response = response.expect("a response");
    assert_eq!(response.headers()[header::CONTENT_LENGTH], "5");
    let body = response.into_body().collect().await.expect("no body");
    assert!(body.to_bytes().is_empty());
}

#[tokio::test]
async fn streams_of_a_connection_are_bounded() {
    let listener = start(|listener| listener.streams_max = 3).await;
    let mut sender = connect_with_window(listener.connect().await, 0).await;
    wait_until("the settings arrive", || {
        sender.current_max_send_streams() == 3
    })
    .await;
    sender = sender.ready().await.expect("a stream");
    drop(sender);
}

#[tokio::test]
async fn stopping_closes_idle_and_silent_connections() {
    let listener = start(|_| {}).await;
    let mut silent = listener.connect().await;
    let mut idle = listener.connect().await;
    let request = "GET /small HTTP/1.1\r\nHost: a\r\n\r\n";
    idle.write_all(request.as_bytes()).await.expect("sent");
    let mut some = [0; 64];
    assert!(idle.read(&mut some).await.expect("a response") > 0);
    listener.stop.cancel();
    let served = tokio::time::timeout(TEST_TIMEOUT, listener.serving).await;
    served
        .expect("the listener stops")
        .expect("without a panic");
    read_all(&mut idle).await;
    assert_eq!(read_all(&mut silent).await, "");
}

/// Counts the requests in progress, none of which ends before its client is gone.
struct EndlessService(Arc<AtomicUsize>);

impl Serve for EndlessService {
    async fn serve(&self, _: Request<Incoming>, _: Peer) -> Response<Body> {
        self.0.fetch_add(1, Ordering::Relaxed);
        let _in_progress = SlowEnd(Arc::clone(&self.0));
        std::future::pending().await
    }
}

/// Makes the end of a request last longer than that of its connection.
struct SlowEnd(Arc<AtomicUsize>);

impl Drop for SlowEnd {
    fn drop(&mut self) {
        thread::sleep(SHORT / 4);
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[tokio::test]
async fn stopping_waits_for_http2_streams_whose_connection_is_gone() {
    let in_progress = Arc::new(AtomicUsize::new(0));
    let listener = start_serving(EndlessService(Arc::clone(&in_progress)), |_| {}).await;
    let handshake = h2::client::handshake(listener.connect().await).await;
    let (mut sender, connection) = handshake.expect("HTTP/2");
    let connection = tokio::spawn(connection);
    let mut responses = Vec::new();
    for _ in 0..20 {
        sender = sender.ready().await.expect("a stream");
        let request = Request::builder().uri("http://a/").body(());
        let (response, _) = sender
            .send_request(request.expect("valid"), true)
            .expect("sent");
        responses.push(response);
    }
    wait_until("all are in progress", || {
        in_progress.load(Ordering::Relaxed) == 20
    })
    .await;
    connection.abort();
    listener.stop.cancel();
    let served = tokio::time::timeout(TEST_TIMEOUT, listener.serving).await;
    served
        .expect("the listener stops")
        .expect("without a panic");
    assert_eq!(in_progress.load(Ordering::Relaxed), 0);
}

fn listener_tls(authority: &Authority) -> Arc<ListenerTls> {
    let files = authority.server("server");
    Arc::new(ListenerTls::new(files).expect("usable files"))
}

#[tokio::test]
async fn tls_serves_both_protocols_with_scheme_https() {
    let authority = Authority::new();
    let listener = start(|listener| listener.tls = Some(listener_tls(&authority))).await;
    // The gateway's own client prefers HTTP/2.
    let upstream = listener.upstream(&authority.client());
    let response = send(&upstream, "/").await.expect("a response");
    assert!(response.starts_with("https 127.0.0.1:"), "{response}");
    // A client without ALPN gets HTTP/1.
    let mut config = tls::client_config(&authority.client()).expect("usable");
    config.alpn_protocols.clear();
    let mut stream = connect_tls(&listener, config).await.expect("TLS");
    let text = get("/small");
    stream.write_all(text.as_bytes()).await.expect("sent");
    let response = read_all(&mut stream).await;
    assert!(response.starts_with("HTTP/1.1 200 OK"), "{response}");
}

async fn connect_tls(
    listener: &RunningListener,
    config: rustls::ClientConfig,
) -> io::Result<tokio_rustls::client::TlsStream<TcpStream>> {
    let name = rustls::pki_types::ServerName::try_from("localhost").expect("a name");
    let stream = listener.connect().await;
    tokio_rustls::TlsConnector::from(Arc::new(config))
        .connect(name, stream)
        .await
}

#[tokio::test]
async fn old_versions_of_tls_and_plain_text_are_refused() {
    let authority = Authority::new();
    let listener = start(|listener| listener.tls = Some(listener_tls(&authority))).await;
    let response = listener.exchange(get("/small")).await;
    assert!(!response.contains("small"), "{response}");
    let versions: Vec<_> = rustls::ALL_VERSIONS.iter().map(|v| v.version).collect();
    assert_eq!(
        versions,
        [
            rustls::ProtocolVersion::TLSv1_3,
            rustls::ProtocolVersion::TLSv1_2
        ]
    );
}

#[rstest]
#[case::no_bytes(&b""[..])]
#[case::incomplete_client_hello(&b"\x16\x03\x01\x02\x00\x01"[..])]
#[tokio::test]
async fn slow_tls_handshake_is_closed_and_others_are_served(#[case] sent: &[u8]) {
    let authority = Authority::new();
    let tls = listener_tls(&authority);
    let listener = start(|listener| {
        listener.tls = Some(tls);
        listener.head_deadline = SHORT;
    })
    .await;
    let mut silent = listener.connect().await;
    silent.write_all(sent).await.expect("sent");
    let upstream = listener.upstream(&authority.client());
    send(&upstream, "/").await.expect("a response");
    read_all(&mut silent).await;
}

#[tokio::test]
async fn http2_client_that_sends_no_preface_is_closed() {
    let authority = Authority::new();
    let tls = listener_tls(&authority);
    let listener = start(|listener| {
        listener.tls = Some(tls);
        listener.head_deadline = SHORT;
    })
    .await;
    let config = tls::client_config(&authority.client()).expect("usable");
    let mut silent = connect_tls(&listener, config).await.expect("TLS");
    read_all(&mut silent).await;
    wait_until("its slot is free", || listener.counts.open() == 0).await;
}

#[tokio::test]
async fn clients_without_a_certificate_are_served_only_if_it_is_optional() {
    let authority = Authority::new();
    let other_authority = Authority::new();
    for auth in [tls::ClientAuth::Required, tls::ClientAuth::Optional] {
        let files = tls::TlsFiles {
            client_ca: Some(authority.path("ca")),
            client_auth: auth,
            ..authority.server("server")
        };
        let tls = Arc::new(ListenerTls::new(files).expect("usable files"));
        let listener = start(|listener| listener.tls = Some(tls)).await;
        let known = listener.upstream(&authority.known_client("client"));
        send(&known, "/").await.expect("a known client is served");
        let unknown = send(&listener.upstream(&authority.client()), "/").await;
        match auth {
            // The request was written, but the listener certainly did not read
            // it.
            tls::ClientAuth::Required => {
                assert!(matches!(unknown, Err(SendError::NotSent(_))), "{unknown:?}");
            }
            tls::ClientAuth::Optional => {
                unknown.expect("no certificate is needed");
            }
        }
        let forged = Tls {
            ca: Some(authority.path("ca")),
            ..other_authority.known_client("client")
        };
        let forged = send(&listener.upstream(&forged), "/").await;
        assert!(matches!(forged, Err(SendError::NotSent(_))), "{forged:?}");
    }
}

#[tokio::test]
async fn new_connections_get_the_new_certificate() {
    let (old, new) = (Authority::new(), Authority::new());
    let tls = listener_tls(&old);
    let listener = start(|listener| listener.tls = Some(tls.clone())).await;
    let kept = listener.upstream(&old.client());
    send(&kept, "/").await.expect("a response");
    new.sign("server");
    for name in ["server", "server-key"] {
        std::fs::copy(new.path(name), old.path(name)).expect("copied");
    }
    assert_eq!(tls.reload().expect("usable"), tls::TlsReload::Changed);
    send(&kept, "/").await.expect("its connection stays open");
    let refused = send(&listener.upstream(&old.client()), "/").await;
    assert!(matches!(refused, Err(SendError::NotSent(_))));
    let upstream = listener.upstream(&new.client());
    send(&upstream, "/").await.expect("a response");
}

const PROXY1: &str = "PROXY TCP4 203.0.113.9 10.0.0.1 4711 443\r\n";

fn trust(listener: &mut Listener) {
    listener.trusted = TrustedProxies::of(&["127.0.0.0/8"]);
}

#[tokio::test]
async fn trusted_proxy_must_name_the_client() {
    let listener = start(|listener| {
        trust(listener);
        listener.proxy_protocol = true;
        listener.head_deadline = SHORT;
    })
    .await;
    let response = listener.exchange(format!("{PROXY1}{}", get("/"))).await;
    assert!(
        response.ends_with("http 203.0.113.9:4711 false"),
        "{response}"
    );
    let local = b"\r\n\r\n\0\r\nQUIT\n\x20\0\0\0".as_slice();
    let response = listener
        .exchange([local, get("/").as_bytes()].concat())
        .await;
    assert!(response.contains("http 127.0.0.1:"), "{response}");
    assert_eq!(listener.exchange(get("/")).await, "");
    assert_eq!(listener.exchange("PROXY TCP4 203").await, "");
}

#[tokio::test]
async fn untrusted_peer_cannot_name_a_client() {
    let listener = start(|listener| {
        listener.trusted = TrustedProxies::of(&["10.0.0.0/8"]);
        listener.proxy_protocol = true;
    })
    .await;
    let response = listener.exchange(format!("{PROXY1}{}", get("/"))).await;
    assert!(response.starts_with("HTTP/1.1 400 "), "{response}");
    let response = listener.exchange(get("/")).await;
    assert!(response.contains("http 127.0.0.1:"), "{response}");
}

#[tokio::test]
async fn proxy_header_comes_before_tls() {
    let authority = Authority::new();
    let tls = listener_tls(&authority);
    let listener = start(|listener| {
        trust(listener);
        listener.proxy_protocol = true;
        listener.tls = Some(tls);
    })
    .await;
    let mut stream = listener.connect().await;
    stream.write_all(PROXY1.as_bytes()).await.expect("sent");
    let config = tls::client_config(&authority.client()).expect("usable");
    let name = rustls::pki_types::ServerName::try_from("localhost").expect("a name");
    let stream = tokio_rustls::TlsConnector::from(Arc::new(config))
        .connect(name, stream)
        .await
        .expect("TLS");
    let io = TokioIo::new(stream);
    let handshake = http2::handshake::<_, _, Empty<Bytes>>(TokioExecutor::new(), io).await;
    let (mut sender, connection) = handshake.expect("HTTP/2");
    tokio::spawn(connection);
    let request = Request::builder().uri("https://a/").body(Empty::new());
    let response = sender.send_request(request.expect("valid")).await;
    let body = response.expect("a response").into_body().collect().await;
    let body = body.expect("a whole body").to_bytes();
    assert_eq!(body, "https 203.0.113.9:4711 false");
}

#[rstest]
#[case::trusted(true, "https 203.0.113.9:0 true")]
#[case::not_trusted(false, "http 127.0.0.1:")]
#[tokio::test]
async fn forwarding_headers_are_used_only_from_trusted_proxies(
    #[case] trusted: bool,
    #[case] expected: &str,
) {
    let listener = start(|listener| {
        if trusted {
            trust(listener);
        }
    })
    .await;
    let io = TokioIo::new(listener.connect().await);
    let handshake = http1::handshake(io).await;
    let (mut sender, connection) = handshake.expect("HTTP/1");
    tokio::spawn(connection);
    let mut request = Request::new(Empty::<Bytes>::new());
    let headers = request.headers_mut();
    for (name, value) in [
        ("host", "a"),
        ("x-forwarded-for", "1.1.1.1, 203.0.113.9"),
        ("x-forwarded-proto", "https"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    let response = sender.send_request(request).await;
    let body = response.expect("a response").into_body().collect().await;
    let body = body.expect("a whole body").to_bytes();
    let body = String::from_utf8_lossy(&body);
    assert!(body.starts_with(expected), "{body}");
}
