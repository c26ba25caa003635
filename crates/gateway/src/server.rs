//! Accepting connections and serving HTTP/1 and HTTP/2 on them.
//!
//! Every connection has bounds: how long a head may take, how large it may be,
//! how many streams it may hold. Draining lets what was begun end and closes
//! what is idle.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use http::Request;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;

use crate::framing::{HEAD_BYTES_MAX, HEADERS_MAX, Watched};
use crate::pipeline::Pipeline;

/// How many requests one HTTP/2 connection may have under way.
const STREAMS_MAX: u32 = 256;
/// How often to look whether more of a beginning has come.
const PREFACE_PAUSE: Duration = Duration::from_millis(50);
/// How long to rest when the process has no file descriptors left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Serves the pipeline on a listener until told to stop; returns when the last
/// connection is done.
pub(crate) async fn serve(
    listener: TcpListener,
    pipeline: Arc<Pipeline>,
    head_deadline: Duration,
    stop: CancellationToken,
) {
    let http = builder(head_deadline);
    let connections = GracefulShutdown::new();
    loop {
        let accepted = tokio::select! {
            biased;
            () = stop.cancelled() => break,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((stream, peer)) => {
                let watcher = connections.watcher();
                let (http, pipeline, stop) = (http.clone(), pipeline.clone(), stop.clone());
                // `connections` waits for it at the end, once it is watched.
                tokio::spawn(async move {
                    let speaking = has_spoken(&stream, head_deadline);
                    let spoken = stop.run_until_cancelled_owned(speaking).await;
                    if spoken == Some(true) {
                        serve_one(&http, watcher, stream, peer, pipeline).await;
                    }
                });
            }
            Err(error) => pause_after(&error).await,
        }
    }
    drop(listener);
    connections.shutdown().await;
}

fn builder(head_deadline: Duration) -> auto::Builder<TokioExecutor> {
    let mut http = auto::Builder::new(TokioExecutor::new());
    http.http1()
        .timer(TokioTimer::new())
        .header_read_timeout(head_deadline)
        .max_headers(HEADERS_MAX)
        .max_buf_size(HEAD_BYTES_MAX)
        // Most answers are small: one copy costs less than two pieces to write.
        .writev(false);
    http.http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(STREAMS_MAX)
        .max_header_list_size(HEAD_BYTES_MAX as u32)
        .keep_alive_interval(head_deadline);
    http
}

/// Waits until a client has said enough to tell HTTP/1 from HTTP/2. hyper would
/// wait for that without end.
async fn has_spoken(stream: &TcpStream, limit: Duration) -> bool {
    const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    let speaking = async {
        let mut heard = [0; PREFACE.len()];
        loop {
            match stream.peek(&mut heard).await {
                Ok(0) | Err(_) => return false,
                Ok(count) if count == PREFACE.len() => return true,
                Ok(count) if heard[..count] != PREFACE[..count] => return true,
                // What was heard stays readable: waiting for more is a matter of time.
                Ok(_) => tokio::time::sleep(PREFACE_PAUSE).await,
            }
        }
    };
    tokio::time::timeout(limit, speaking).await == Ok(true)
}

async fn serve_one(
    http: &auto::Builder<TokioExecutor>,
    watcher: Watcher,
    stream: TcpStream,
    peer: SocketAddr,
    pipeline: Arc<Pipeline>,
) {
    // Without it small answers wait for the client's acknowledgement.
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, %peer, "could not switch off delays");
    }
    let service = service_fn(move |request: Request<Incoming>| {
        let pipeline = pipeline.clone();
        async move { Ok::<_, Infallible>(pipeline.serve(request, peer).await) }
    });
    let io = TokioIo::new(Watched::new(stream));
    let connection = http.serve_connection_with_upgrades(io, service);
    if let Err(error) = watcher.watch(connection).await {
        tracing::debug!(error, %peer, "a connection ended badly");
    }
}

/// A connection that failed while it was accepted is nobody's concern; a lack
/// of descriptors is, and must not make a busy loop.
async fn pause_after(error: &io::Error) {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    if !matches!(
        error.kind(),
        ConnectionAborted | ConnectionRefused | ConnectionReset
    ) {
        tracing::error!(%error, "cannot accept connections");
        tokio::time::sleep(ACCEPT_PAUSE).await;
    }
}
