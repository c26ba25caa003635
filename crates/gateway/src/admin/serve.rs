//! Serving the admin listener: few connections, each with bounds.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::connect_info::ConnectInfo;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tower::ServiceExt;

/// How many connections there are at a time; more wait to be accepted.
const CONNECTIONS_MAX: usize = 1024;
/// How long a request's head may take, and a connection be idle between two.
const HEAD_DEADLINE: Duration = Duration::from_secs(5);
/// How large a head may be, and how many lines it may have.
const HEAD_BYTES_MAX: usize = 64 << 10;
const HEADERS_MAX: usize = 100;
/// How long to rest when the process has no file descriptors left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Serves for ever. Dropped, it closes its connections; what they asked for goes on.
pub(crate) async fn serve(listener: TcpListener, router: Router) {
    let turns = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let mut connections = JoinSet::new();
    loop {
        while connections.try_join_next().is_some() {}
        let Ok(turn) = turns.clone().acquire_owned().await else {
            return;
        };
        match listener.accept().await {
            Ok((stream, peer)) => {
                let router = router.clone();
                connections.spawn(async move {
                    serve_one(stream, peer, router).await;
                    drop(turn);
                });
            }
            Err(error) => {
                tracing::warn!(%error, "the admin listener cannot accept");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

async fn serve_one(stream: TcpStream, peer: SocketAddr, router: Router) {
    let service = service_fn(move |mut request: hyper::Request<hyper::body::Incoming>| {
        request.extensions_mut().insert(ConnectInfo(peer));
        router.clone().oneshot(request.map(axum::body::Body::new))
    });
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new())
        .header_read_timeout(HEAD_DEADLINE)
        .max_headers(HEADERS_MAX)
        .max_buf_size(HEAD_BYTES_MAX);
    if let Err(error) = http.serve_connection(TokioIo::new(stream), service).await {
        tracing::debug!(%error, %peer, "an admin connection ended badly");
    }
}
