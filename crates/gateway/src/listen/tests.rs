//! Clients on real sockets that are many, silent, slow or do not read, and what
//! becomes of them and of the others.

use bytes::Bytes;
use http::HeaderValue;
use http_body_util::{BodyExt, Empty};
use hyper::client::conn::{http1, http2};
use rstest::rstest;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use super::*;
use crate::listen::tls::tests::Authority;
use crate::upstream::{SendError, Tls, UpstreamClient, UpstreamLimits};

const PATIENCE: Duration = Duration::from_secs(5);
const SHORT: Duration = Duration::from_millis(100);
/// Time enough for a busy machine, and less than reading slowly takes.
const LONG: Duration = Duration::from_secs(1);
const LARGE_BYTES: usize = 8 << 20;

/// Answers with what it knows of the client, or with as many bytes as asked.
struct Sample;

impl Serve for Sample {
    async fn serve(self: Arc<Self>, request: Request<Incoming>, peer: Peer) -> Response<Body> {
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

struct Running {
    address: SocketAddr,
    census: Arc<Census>,
    stop: CancellationToken,
    serving: tokio::task::JoinHandle<()>,
}

/// Opens a door on a free port, changed as told.
async fn open(change: impl FnOnce(&mut Door)) -> Running {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("bound");
    let mut door = Door::new(listener);
    change(&mut door);
    let census = Arc::clone(&door.census);
    let stop = CancellationToken::new();
    let serving = tokio::spawn(serve(door, Arc::new(Sample), stop.clone()));
    Running {
        address,
        census,
        stop,
        serving,
    }
}

impl Running {
    async fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).await;
        stream.expect("somebody listens")
    }

    /// Says something on a connection of its own, and gives all that comes back.
    async fn say(&self, text: impl AsRef<[u8]>) -> String {
        let mut stream = self.connect().await;
        // A door that has closed already may be noticed here or while reading.
        let _ = stream.write_all(text.as_ref()).await;
        read_all(&mut stream).await
    }

    async fn is_well(&self) -> bool {
        self.say(get("/small")).await.ends_with("\r\n\r\nsmall")
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
    let read = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut seen)).await;
    // A reset ends it as well.
    let _ = read.expect("the connection ends");
    String::from_utf8_lossy(&seen).into_owned()
}

async fn until(what: &str, condition: impl Fn() -> bool) {
    let wait = async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    let waited = tokio::time::timeout(PATIENCE, wait).await;
    waited.unwrap_or_else(|_| panic!("waited in vain until {what}"));
}

async fn ask(upstream: &UpstreamClient, path: &str) -> Result<String, SendError> {
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
async fn an_http1_client_that_does_not_read_is_cut_off_and_others_are_served() {
    let door = open(|door| door.write_deadline = SHORT).await;
    let mut silent = door.connect().await;
    silent
        .write_all(get("/large").as_bytes())
        .await
        .expect("sent");
    assert!(door.is_well().await);
    until("it is cut off", || door.census.cut_off() == 1).await;
    until("its place is free", || door.census.open() == 0).await;
    assert!(read_all(&mut silent).await.len() < LARGE_BYTES);
    assert!(door.is_well().await);
}

#[tokio::test]
async fn a_client_that_reads_slowly_has_as_long_as_its_answer_is_large() {
    let door = open(|door| door.write_deadline = LONG).await;
    let mut slow = door.connect().await;
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
    assert_eq!(door.census.cut_off(), 0);
}

/// An HTTP/2 client with a window of so many bytes per stream, and its driver.
async fn with_window(
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
#[case::no_window(0, "/large")]
#[case::no_window_for_little(0, "/small")]
#[case::a_window_for_a_part_of_much(1, "/large")]
#[case::a_window_for_a_part_of_little(1, "/small")]
#[tokio::test]
async fn an_http2_client_that_gives_no_window_is_cut_off_and_others_are_served(
    #[case] window: u32,
    #[case] path: &str,
) {
    let door = open(|door| door.write_deadline = SHORT).await;
    let mut sender = with_window(door.connect().await, window).await;
    let mut answers = Vec::new();
    for _ in 0..20 {
        sender = sender.ready().await.expect("a stream");
        let uri = format!("http://a{path}");
        let request = Request::builder().uri(uri).body(()).expect("valid");
        let (answer, _) = sender.send_request(request, true).expect("sent");
        answers.push(answer);
    }
    assert!(door.is_well().await);
    // What is large has longer only while it is being read.
    until("it is cut off", || door.census.cut_off() == 1).await;
    until("its place is free", || door.census.open() == 0).await;
    assert!(door.is_well().await);
}

#[tokio::test]
async fn http2_clients_that_read_are_not_cut_off() {
    let door = open(|door| door.write_deadline = SHORT).await;
    let io = TokioIo::new(door.connect().await);
    let handshake = http2::handshake::<_, _, Empty<Bytes>>(TokioExecutor::new(), io).await;
    let (mut sender, connection) = handshake.expect("HTTP/2");
    tokio::spawn(connection);
    for path in ["/small", "/large", "/small"] {
        let uri = format!("http://a{path}");
        let request = Request::builder().uri(uri).body(Empty::new());
        let response = sender.send_request(request.expect("valid")).await;
        let body = response.expect("an answer").into_body().collect().await;
        assert!(!body.expect("a whole body").to_bytes().is_empty());
        // An open connection without anything on it waits for nobody.
        tokio::time::sleep(2 * SHORT).await;
    }
    assert_eq!(door.census.cut_off(), 0);
}

#[tokio::test]
async fn an_http2_client_that_reads_slowly_has_as_long_as_its_answer_is_large() {
    let door = open(|door| door.write_deadline = LONG).await;
    let mut sender = with_window(door.connect().await, 65_535).await;
    let request = Request::builder().uri("http://a/large").body(());
    let sent = sender.send_request(request.expect("valid"), true);
    let (answer, _) = sent.expect("sent");
    let mut body = answer.await.expect("a head").into_body();
    let mut seen = 0;
    // Slower than the deadline in all, and faster than the slowest rate.
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
    assert_eq!(door.census.cut_off(), 0);
}

#[tokio::test]
async fn further_connections_are_closed_at_once_and_counted() {
    let door = open(|door| door.connections_max = 2).await;
    let first = door.connect().await;
    let second = door.connect().await;
    until("both are in", || door.census.open() == 2).await;
    assert_eq!(door.say(get("/small")).await, "");
    assert_eq!(door.census.turned_away(), 1);
    drop(first);
    until("one has gone", || door.census.open() == 1).await;
    assert!(door.is_well().await);
    drop(second);
}

#[rstest]
#[case::as_many_as_on_http1(HEADERS_MAX, 1, StatusCode::OK)]
#[case::one_more(HEADERS_MAX + 1, 1, StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE)]
#[case::as_large_as_on_http1(7, HEADERS_BYTES_MAX / 8, StatusCode::OK)]
#[case::larger(9, HEADERS_BYTES_MAX / 8, StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE)]
#[tokio::test]
async fn heads_of_http2_have_the_bounds_of_http1(
    #[case] count: usize,
    #[case] bytes: usize,
    #[case] status: StatusCode,
) {
    let door = open(|_| {}).await;
    let io = TokioIo::new(door.connect().await);
    let handshake = http2::handshake::<_, _, Empty<Bytes>>(TokioExecutor::new(), io).await;
    let (mut sender, connection) = handshake.expect("HTTP/2");
    tokio::spawn(connection);
    let mut request = Request::builder().uri("http://a/small");
    for number in 0..count {
        request = request.header(format!("x-{number}"), "x".repeat(bytes));
    }
    let request = request.body(Empty::new()).expect("a valid request");
    let response = sender.send_request(request).await;
    assert_eq!(response.expect("an answer").status(), status);
}

#[tokio::test]
async fn a_head_on_http2_tells_the_length_and_sends_nothing() {
    let door = open(|_| {}).await;
    let io = TokioIo::new(door.connect().await);
    let handshake = http2::handshake::<_, _, Empty<Bytes>>(TokioExecutor::new(), io).await;
    let (mut sender, connection) = handshake.expect("HTTP/2");
    tokio::spawn(connection);
    let request = Request::head("http://a/small").body(Empty::new());
    let response = sender.send_request(request.expect("valid")).await;
    let response = response.expect("an answer");
    assert_eq!(response.headers()[header::CONTENT_LENGTH], "5");
    let body = response.into_body().collect().await.expect("no body");
    assert!(body.to_bytes().is_empty());
}

#[tokio::test]
async fn one_connection_has_so_many_streams() {
    let door = open(|door| door.streams_max = 3).await;
    let mut sender = with_window(door.connect().await, 0).await;
    until("the settings came", || {
        sender.current_max_send_streams() == 3
    })
    .await;
    sender = sender.ready().await.expect("a stream");
    drop(sender);
}

#[tokio::test]
async fn stopping_closes_what_is_idle_and_what_has_said_nothing() {
    let door = open(|_| {}).await;
    let mut silent = door.connect().await;
    let mut idle = door.connect().await;
    let request = "GET /small HTTP/1.1\r\nHost: a\r\n\r\n";
    idle.write_all(request.as_bytes()).await.expect("sent");
    let mut some = [0; 64];
    assert!(idle.read(&mut some).await.expect("an answer") > 0);
    door.stop.cancel();
    let served = tokio::time::timeout(PATIENCE, door.serving).await;
    served.expect("it ends").expect("without a panic");
    read_all(&mut idle).await;
    assert_eq!(read_all(&mut silent).await, "");
}

fn secure(authority: &Authority) -> Arc<ServerTls> {
    let files = authority.server("server");
    Arc::new(ServerTls::new(files).expect("usable files"))
}

#[tokio::test]
async fn over_tls_both_protocols_are_spoken_and_the_client_is_on_https() {
    let authority = Authority::new();
    let door = open(|door| door.tls = Some(secure(&authority))).await;
    // An upstream of ours prefers HTTP/2.
    let upstream = door.upstream(&authority.client());
    let answer = ask(&upstream, "/").await.expect("an answer");
    assert!(answer.starts_with("https 127.0.0.1:"), "{answer}");
    // One that offers nothing gets HTTP/1.
    let mut config = tls::client_config(&authority.client()).expect("usable");
    config.alpn_protocols.clear();
    let mut stream = greet(&door, config).await.expect("TLS");
    let text = get("/small");
    stream.write_all(text.as_bytes()).await.expect("sent");
    let answer = read_all(&mut stream).await;
    assert!(answer.starts_with("HTTP/1.1 200 OK"), "{answer}");
}

async fn greet(
    door: &Running,
    config: rustls::ClientConfig,
) -> io::Result<tokio_rustls::client::TlsStream<TcpStream>> {
    let name = rustls::pki_types::ServerName::try_from("localhost").expect("a name");
    let stream = door.connect().await;
    tokio_rustls::TlsConnector::from(Arc::new(config))
        .connect(name, stream)
        .await
}

#[tokio::test]
async fn old_versions_of_tls_and_plain_text_are_refused() {
    let authority = Authority::new();
    let door = open(|door| door.tls = Some(secure(&authority))).await;
    let answer = door.say(get("/small")).await;
    assert!(!answer.contains("small"), "{answer}");
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
#[case::nothing(&b""[..])]
#[case::half_a_greeting(&b"\x16\x03\x01\x02\x00\x01"[..])]
#[tokio::test]
async fn who_does_not_greet_in_time_is_let_go_and_others_are_served(#[case] said: &[u8]) {
    let authority = Authority::new();
    let tls = secure(&authority);
    let door = open(|door| {
        door.tls = Some(tls);
        door.head_deadline = SHORT;
    })
    .await;
    let mut silent = door.connect().await;
    silent.write_all(said).await.expect("sent");
    let upstream = door.upstream(&authority.client());
    ask(&upstream, "/").await.expect("an answer");
    read_all(&mut silent).await;
}

#[tokio::test]
async fn who_agrees_on_http2_and_says_nothing_is_let_go() {
    let authority = Authority::new();
    let tls = secure(&authority);
    let door = open(|door| {
        door.tls = Some(tls);
        door.head_deadline = SHORT;
    })
    .await;
    let config = tls::client_config(&authority.client()).expect("usable");
    let mut silent = greet(&door, config).await.expect("TLS");
    read_all(&mut silent).await;
    until("its place is free", || door.census.open() == 0).await;
}

#[tokio::test]
async fn clients_with_certificates_are_let_in_and_others_as_the_setting_says() {
    let authority = Authority::new();
    let stranger = Authority::new();
    for auth in [tls::ClientAuth::Required, tls::ClientAuth::Optional] {
        let files = tls::TlsFiles {
            client_ca: Some(authority.path("ca")),
            client_auth: auth,
            ..authority.server("server")
        };
        let tls = Arc::new(ServerTls::new(files).expect("usable files"));
        let door = open(|door| door.tls = Some(tls)).await;
        let known = door.upstream(&authority.known_client("client"));
        ask(&known, "/").await.expect("a known client is let in");
        let unknown = ask(&door.upstream(&authority.client()), "/").await;
        match auth {
            // It was written, but it is certain that nobody looked at it.
            tls::ClientAuth::Required => {
                assert!(matches!(unknown, Err(SendError::NotSent(_))), "{unknown:?}");
            }
            tls::ClientAuth::Optional => {
                unknown.expect("no certificate is needed");
            }
        }
        let forged = Tls {
            ca: Some(authority.path("ca")),
            ..stranger.known_client("client")
        };
        let forged = ask(&door.upstream(&forged), "/").await;
        assert!(matches!(forged, Err(SendError::NotSent(_))), "{forged:?}");
    }
}

#[tokio::test]
async fn new_connections_get_the_new_certificate() {
    let (old, new) = (Authority::new(), Authority::new());
    let tls = secure(&old);
    let door = open(|door| door.tls = Some(tls.clone())).await;
    let kept = door.upstream(&old.client());
    ask(&kept, "/").await.expect("an answer");
    new.sign("server");
    for name in ["server", "server-key"] {
        std::fs::copy(new.path(name), old.path(name)).expect("copied");
    }
    assert_eq!(tls.reload().expect("usable"), tls::Reloaded::Changed);
    ask(&kept, "/").await.expect("its connection stays");
    let refused = ask(&door.upstream(&old.client()), "/").await;
    assert!(matches!(refused, Err(SendError::NotSent(_))));
    let upstream = door.upstream(&new.client());
    ask(&upstream, "/").await.expect("an answer");
}

const PROXY1: &str = "PROXY TCP4 203.0.113.9 10.0.0.1 4711 443\r\n";

fn trust(door: &mut Door) {
    door.trusted = Trusted::of(&["127.0.0.0/8"]);
}

#[tokio::test]
async fn a_trusted_proxy_names_the_client_and_must() {
    let door = open(|door| {
        trust(door);
        door.proxy_protocol = true;
        door.head_deadline = SHORT;
    })
    .await;
    let answer = door.say(format!("{PROXY1}{}", get("/"))).await;
    assert!(answer.ends_with("http 203.0.113.9:4711 false"), "{answer}");
    let local = b"\r\n\r\n\0\r\nQUIT\n\x20\0\0\0".as_slice();
    let answer = door.say([local, get("/").as_bytes()].concat()).await;
    assert!(answer.contains("http 127.0.0.1:"), "{answer}");
    assert_eq!(door.say(get("/")).await, "");
    assert_eq!(door.say("PROXY TCP4 203").await, "");
}

#[tokio::test]
async fn a_stranger_cannot_name_another() {
    let door = open(|door| {
        door.trusted = Trusted::of(&["10.0.0.0/8"]);
        door.proxy_protocol = true;
    })
    .await;
    let answer = door.say(format!("{PROXY1}{}", get("/"))).await;
    assert!(answer.starts_with("HTTP/1.1 400 "), "{answer}");
    let answer = door.say(get("/")).await;
    assert!(answer.contains("http 127.0.0.1:"), "{answer}");
}

#[tokio::test]
async fn the_proxy_header_comes_before_tls() {
    let authority = Authority::new();
    let tls = secure(&authority);
    let door = open(|door| {
        trust(door);
        door.proxy_protocol = true;
        door.tls = Some(tls);
    })
    .await;
    let mut stream = door.connect().await;
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
    let body = response.expect("an answer").into_body().collect().await;
    let body = body.expect("a whole body").to_bytes();
    assert_eq!(body, "https 203.0.113.9:4711 false");
}

#[rstest]
#[case::trusted(true, "https 203.0.113.9:0 true")]
#[case::not_trusted(false, "http 127.0.0.1:")]
#[tokio::test]
async fn what_a_proxy_forwards_is_believed_if_it_is_trusted(
    #[case] trusted: bool,
    #[case] known: &str,
) {
    let door = open(|door| {
        if trusted {
            trust(door);
        }
    })
    .await;
    let io = TokioIo::new(door.connect().await);
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
    let body = response.expect("an answer").into_body().collect().await;
    let body = body.expect("a whole body").to_bytes();
    let body = String::from_utf8_lossy(&body);
    assert!(body.starts_with(known), "{body}");
}
