//! The least that a request costs with hyper, in the gateway's runtime set-up: one current-thread
//! runtime per core, each with its own connections, fed by one acceptor.
//!
//! `floors proxy ADDRESS` forwards every request there and is the floor of a pass-through.
//! `floors server` reads every request and answers from memory; it is the floor of a replay.
//! Both listen on a free loopback port, print it, and run until they are ended. Neither checks,
//! limits or records anything.

#![allow(clippy::print_stdout, reason = "a program that prints its address")]

use std::cell::RefCell;
use std::convert::Infallible;
use std::error::Error;
use std::net::SocketAddr;
use std::rc::Rc;
use std::thread;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::{Body, Incoming};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use mimalloc::MiMalloc;
use tokio::net::TcpStream;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::{LocalSet, spawn_local};

#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

/// As long as the reply of bench/nginx-upstream.conf.
const REPLY: &str = concat!(
    r#"{"id":"pay_0123456789","amount":4200,"currency":"EUR","status":"succeeded","#,
    r#""created":1760000000,"customer":"cus_012345678","description":"a payment","#,
    r#""receipt":"https://example.com/r/0123456789abcdef"}"#
);

type Fault = Box<dyn Error + Send + Sync>;

#[derive(Clone, Copy)]
enum Floor {
    Proxy(SocketAddr),
    Server,
}

fn main() -> Result<(), Fault> {
    let mut arguments = std::env::args().skip(1);
    let floor = match (arguments.next().as_deref(), arguments.next()) {
        (Some("proxy"), Some(upstream)) => Floor::Proxy(upstream.parse()?),
        (Some("server"), None) => Floor::Server,
        _ => return Err("usage: floors proxy ADDRESS | floors server".into()),
    };
    let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
    let cores = thread::available_parallelism()?.get();
    let cores = (0..cores).map(|_| start_core(floor));
    let cores = cores.collect::<Vec<_>>();
    println!("{}", listener.local_addr()?);
    for core in cores.iter().cycle() {
        let (stream, _) = listener.accept()?;
        core.send(stream)?;
    }
    Ok(())
}

/// A thread with a runtime, which serves the connections that are sent to it.
fn start_core(floor: Floor) -> UnboundedSender<std::net::TcpStream> {
    let (sender, streams) = unbounded_channel();
    thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_io()
            .build()
            .expect("a runtime needs only file handles");
        LocalSet::new().block_on(&runtime, serve_all(floor, streams));
    });
    sender
}

async fn serve_all(floor: Floor, mut streams: UnboundedReceiver<std::net::TcpStream>) {
    let pool = Rc::default();
    while let Some(stream) = streams.recv().await {
        spawn_local(serve(floor, stream, Rc::clone(&pool)));
    }
}

/// One connection. Its errors end only this connection.
async fn serve(floor: Floor, stream: std::net::TcpStream, pool: Rc<Pool>) -> Result<(), Fault> {
    stream.set_nodelay(true)?;
    stream.set_nonblocking(true)?;
    let io = TokioIo::new(TcpStream::from_std(stream)?);
    match floor {
        Floor::Proxy(upstream) => {
            let forward = |request| forward(request, upstream, Rc::clone(&pool));
            let connection = http1::Builder::new().serve_connection(io, service_fn(forward));
            connection.await?;
        }
        Floor::Server => {
            let connection = http1::Builder::new().serve_connection(io, service_fn(answer));
            connection.await?;
        }
    }
    Ok(())
}

/// The connections of one core to the upstream.
type Pool = RefCell<Vec<SendRequest<Incoming>>>;

async fn forward(
    request: Request<Incoming>,
    upstream: SocketAddr,
    pool: Rc<Pool>,
) -> Result<Response<impl Body<Data = Bytes, Error = hyper::Error>>, Fault> {
    let mut sender = match take_idle(&pool) {
        Some(idle) => idle,
        None => connect(upstream).await?,
    };
    let response = sender.send_request(request).await?;
    pool.borrow_mut().push(sender);
    Ok(response)
}

/// A connection whose last response was read to its end.
fn take_idle(pool: &Pool) -> Option<SendRequest<Incoming>> {
    let mut pool = pool.borrow_mut();
    let at = pool.iter().rposition(SendRequest::is_ready)?;
    Some(pool.swap_remove(at))
}

async fn connect(upstream: SocketAddr) -> Result<SendRequest<Incoming>, Fault> {
    let stream = TcpStream::connect(upstream).await?;
    stream.set_nodelay(true)?;
    let (sender, connection) = handshake(TokioIo::new(stream)).await?;
    spawn_local(connection);
    Ok(sender)
}

async fn answer(request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    // A client that breaks off gets no answer either way.
    let _ = request.into_body().collect().await;
    let mut response = Response::new(Full::new(Bytes::from_static(REPLY.as_bytes())));
    *response.status_mut() = StatusCode::CREATED;
    let json = HeaderValue::from_static("application/json");
    response.headers_mut().insert(CONTENT_TYPE, json);
    Ok(response)
}
