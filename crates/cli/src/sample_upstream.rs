//! `onceward sample`: a sample payments service, the upstream of `demo` and of `bench`.
//!
//! It counts the payments that it made, which shows what ran and what did not, and it misbehaves on
//! request (`/payments/slow`, `/payments/crash`). In a benchmark it shares the machine with the
//! gateway under test, so it has one thread and does little per request. It stores only a counter;
//! it is not a model of a good service.

use std::convert::Infallible;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::Context;
use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::header::{CONTENT_TYPE, HeaderValue, LOCATION};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use serde::Deserialize;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::output;

const BODY_BYTES_MAX: usize = 1024 * 1024;
/// Enough for a proxy that opens all its connections at once.
const BACKLOG: u32 = 4096;
/// The delay of `/payments/slow`.
const SLOW: Duration = Duration::from_secs(2);
/// The limit for finishing responses at a stop; longer than the slowest response.
const STOP_MAX: Duration = Duration::from_secs(3);
/// The pause after a failed accept, so that a lack of file handles does not cause a busy loop.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Address to listen on; port 0 takes a free port.
    #[arg(long, default_value = "127.0.0.1:0")]
    listen: SocketAddr,
}

/// Serves until Ctrl-C. Prints one line of JSON when it is ready, and one at the end.
pub(crate) async fn run(args: Args) -> anyhow::Result<ExitCode> {
    let (listen, sample) = SampleUpstream::start(args.listen)
        .await
        .context("the sample service cannot listen")?;
    let ready = serde_json::json!({ "listen": listen });
    output::print(&format!("{ready}\n"))?;
    tokio::signal::ctrl_c().await?;
    let total = serde_json::json!({ "payments": sample.payments() });
    output::print(&format!("{total}\n"))?;
    Ok(ExitCode::SUCCESS)
}

/// A running sample service. Dropping it finishes the responses in progress and stops it.
pub(crate) struct SampleUpstream {
    ledger: Arc<Ledger>,
    stop: Option<oneshot::Sender<Infallible>>,
    thread: Option<thread::JoinHandle<()>>,
}

impl SampleUpstream {
    /// Listens on `addr` and serves from its own thread. The returned address has the actual port.
    pub(crate) async fn start(addr: SocketAddr) -> io::Result<(SocketAddr, SampleUpstream)> {
        let ledger = Arc::new(Ledger::default());
        let (stop, stopped) = oneshot::channel();
        let (ready, bound) = oneshot::channel();
        let shared = ledger.clone();
        let thread = thread::Builder::new()
            .name("sample".into())
            .spawn(move || run_thread(addr, &shared, ready, stopped))?;
        let sample = SampleUpstream {
            ledger,
            stop: Some(stop),
            thread: Some(thread),
        };
        let listen = bound.await.map_err(io::Error::other)??;
        Ok((listen, sample))
    }

    /// The number of payments made.
    pub(crate) fn payments(&self) -> u64 {
        self.ledger.payments.load(Ordering::Relaxed)
    }
}

impl Drop for SampleUpstream {
    fn drop(&mut self) {
        self.stop.take();
        if let Some(thread) = self.thread.take() {
            // The thread has already reported its panic.
            let _ = thread.join();
        }
    }
}

#[derive(Default)]
struct Ledger {
    payments: AtomicU64,
}

impl Ledger {
    /// Makes a payment and returns its number.
    fn pay(&self) -> u64 {
        self.payments.fetch_add(1, Ordering::Relaxed) + 1
    }
}

/// The service's thread: binds, reports the address, serves until stopped.
fn run_thread(
    addr: SocketAddr,
    ledger: &Arc<Ledger>,
    ready: oneshot::Sender<io::Result<SocketAddr>>,
    stopped: oneshot::Receiver<Infallible>,
) {
    let runtime = match tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
    {
        Ok(runtime) => runtime,
        Err(error) => return drop(ready.send(Err(error))),
    };
    runtime.block_on(async {
        let (listener, addr) = match listen(addr) {
            Ok(bound) => bound,
            Err(error) => return drop(ready.send(Err(error))),
        };
        if ready.send(Ok(addr)).is_ok() {
            serve(&listener, ledger, stopped).await;
        }
    });
}

fn listen(addr: SocketAddr) -> io::Result<(TcpListener, SocketAddr)> {
    let socket = if addr.is_ipv4() {
        TcpSocket::new_v4()?
    } else {
        TcpSocket::new_v6()?
    };
    socket.set_reuseaddr(true)?;
    socket.bind(addr)?;
    let listener = socket.listen(BACKLOG)?;
    let addr = listener.local_addr()?;
    Ok((listener, addr))
}

async fn serve(
    listener: &TcpListener,
    ledger: &Arc<Ledger>,
    mut stopped: oneshot::Receiver<Infallible>,
) {
    let graceful = GracefulShutdown::new();
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => drop(connections.spawn(serve_connection(stream, ledger.clone(), &graceful))),
                Err(_) => sleep(ACCEPT_PAUSE).await,
            },
            Some(_) = connections.join_next() => {}
            _ = &mut stopped => break,
        }
    }
    // Connections that have not finished by then are dropped with the runtime.
    let _ = timeout(STOP_MAX, graceful.shutdown()).await;
}

/// One connection. It is closed without a response when the peer leaves or a request asks for a
/// crash.
fn serve_connection(
    stream: TcpStream,
    ledger: Arc<Ledger>,
    graceful: &GracefulShutdown,
) -> impl Future<Output = ()> + use<> {
    // On failure responses are only slower.
    let _ = stream.set_nodelay(true);
    let service = service_fn(move |request| respond(request, ledger.clone()));
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .serve_connection(TokioIo::new(stream), service);
    let connection = graceful.watch(connection);
    async move { drop(connection.await) }
}

type SampleResponse = Response<Full<Bytes>>;

async fn respond(
    request: Request<Incoming>,
    ledger: Arc<Ledger>,
) -> Result<SampleResponse, Aborted> {
    let (head, body) = request.into_parts();
    match (&head.method, head.uri.path()) {
        (&Method::POST, "/payments") => Ok(pay(&read(body).await?, &ledger)),
        (&Method::POST, "/payments/slow") => {
            let paid = pay(&read(body).await?, &ledger);
            sleep(SLOW).await;
            Ok(paid)
        }
        (&Method::POST, "/payments/crash") => {
            pay(&read(body).await?, &ledger);
            Err(Aborted::Crash)
        }
        (&Method::POST, path) => Ok(echo(path, &read(body).await?)),
        (&Method::GET, "/payments/count") => Ok(count(&ledger)),
        (&Method::GET, "/") => Ok(json(StatusCode::OK, r#"{"service":"sample payments"}"#)),
        _ => Ok(json(StatusCode::NOT_FOUND, r#"{"error":"not found"}"#)),
    }
}

async fn read(body: Incoming) -> Result<Bytes, Aborted> {
    let whole = Limited::new(body, BODY_BYTES_MAX).collect().await;
    whole
        .map(|collected| collected.to_bytes())
        .map_err(|_| Aborted::Body)
}

/// The body of a payment request; the response repeats it.
#[derive(Deserialize)]
struct Charge<'a> {
    amount: serde_json::Number,
    #[serde(borrow)]
    currency: std::borrow::Cow<'a, str>,
}

fn pay(body: &[u8], ledger: &Ledger) -> SampleResponse {
    let Ok(charge) = serde_json::from_slice::<Charge<'_>>(body) else {
        return json(
            StatusCode::BAD_REQUEST,
            r#"{"error":"a payment is {\"amount\":…,\"currency\":…}"}"#,
        );
    };
    let Charge { amount, currency } = charge;
    let id = ledger.pay();
    // Not `{:?}`, which is not valid JSON for every string.
    let currency = serde_json::Value::from(currency);
    let body = format!(r#"{{"id":"pay_{id:08}","amount":{amount},"currency":{currency}}}"#);
    let mut response = json(StatusCode::CREATED, body);
    response.headers_mut().insert(LOCATION, location(id));
    response
}

fn location(id: u64) -> HeaderValue {
    HeaderValue::try_from(format!("/payments/pay_{id:08}")).expect("digits are legal in a header")
}

fn count(ledger: &Ledger) -> SampleResponse {
    let payments = ledger.payments.load(Ordering::Relaxed);
    json(StatusCode::OK, format!(r#"{{"payments":{payments}}}"#))
}

fn echo(path: &str, body: &[u8]) -> SampleResponse {
    let body = String::from_utf8_lossy(body);
    json(
        StatusCode::OK,
        serde_json::json!({ "path": path, "body": body }).to_string(),
    )
}

fn json(status: StatusCode, body: impl Into<Bytes>) -> SampleResponse {
    let mut response = Response::new(Full::new(body.into()));
    *response.status_mut() = status;
    response
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// Why a connection is closed without a response.
#[derive(Debug)]
enum Aborted {
    Crash,
    Body,
}

impl fmt::Display for Aborted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Aborted::Crash => "crashed on request",
            Aborted::Body => "the request body was incomplete or too large",
        })
    }
}

impl std::error::Error for Aborted {}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    const LOOPBACK: &str = "127.0.0.1:0";

    async fn start() -> (SocketAddr, SampleUpstream) {
        let addr = LOOPBACK.parse().expect("a literal address");
        SampleUpstream::start(addr)
            .await
            .expect("loopback has free ports")
    }

    async fn ask(addr: SocketAddr, line: &str, body: &str) -> String {
        let mut stream = TcpStream::connect(addr).await.expect("the sample listens");
        let length = body.len();
        let request = format!(
            "{line} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{body}"
        );
        stream
            .write_all(request.as_bytes())
            .await
            .expect("the sample reads");
        let mut answer = String::new();
        stream
            .read_to_string(&mut answer)
            .await
            .expect("the sample answers or closes");
        answer
    }

    const CHARGE: &str = r#"{"amount":4200,"currency":"EUR"}"#;

    #[tokio::test]
    async fn a_payment_is_counted_and_repeated_in_the_response() {
        let (addr, sample) = start().await;
        let answer = ask(addr, "POST /payments", CHARGE).await;
        assert!(answer.starts_with("HTTP/1.1 201 "), "{answer}");
        assert!(
            answer.contains("location: /payments/pay_00000001\r\n"),
            "{answer}"
        );
        let body = r#"{"id":"pay_00000001","amount":4200,"currency":"EUR"}"#;
        assert!(answer.ends_with(body), "{answer}");
        assert_eq!(sample.payments(), 1);
        let count = ask(addr, "GET /payments/count", "").await;
        assert!(count.ends_with(r#"{"payments":1}"#), "{count}");
    }

    #[tokio::test]
    async fn a_crash_pays_and_closes_the_connection() {
        let (addr, sample) = start().await;
        assert_eq!(ask(addr, "POST /payments/crash", CHARGE).await, "");
        assert_eq!(sample.payments(), 1);
    }

    #[tokio::test]
    async fn an_invalid_payment_is_refused_and_not_counted() {
        let (addr, sample) = start().await;
        let answer = ask(addr, "POST /payments", "nonsense").await;
        assert!(answer.starts_with("HTTP/1.1 400 "), "{answer}");
        assert_eq!(sample.payments(), 0);
    }

    #[tokio::test]
    async fn another_post_is_echoed() {
        let (addr, _sample) = start().await;
        let answer = ask(addr, "POST /orders", "x").await;
        assert!(
            answer.ends_with(r#"{"body":"x","path":"/orders"}"#),
            "{answer}"
        );
    }

    #[tokio::test]
    async fn dropping_frees_the_address() {
        let (addr, sample) = start().await;
        drop(sample);
        assert!(SampleUpstream::start(addr).await.is_ok());
    }
}
