//! HTTP/2: one connection that all requests of a core share.
//!
//! While requests are open the connection is pinged. Without any it is not, and past its
//! idle timeout it is not used again: a device on the way may have forgotten it, and
//! every request on it would be lost.
//!
//! Counting bytes does not help here, because they may belong to another request. A
//! request was not sent if hyper returns it, or if the upstream says so: by
//! refusing the stream (REFUSED_STREAM), or by GOAWAY without an error and with an
//! earlier last stream. Every other failure is a lost answer.
//!
//! A request is passed to hyper only when the upstream has a free stream: otherwise
//! hyper would queue it without reporting whether it was sent. The number of
//! streams is in the upstream's settings, which `streams` reads from the incoming
//! bytes.

use std::error::Error;
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::FutureExt as _;
use h2::Reason;
use http::Request;
use hyper::client::conn::TrySendError;
use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio_util::task::TaskTracker;

use super::dial::{DialedStream, is_certificate_refused};
pub(super) use super::streams::StreamPermit;
use super::streams::{Streams, observe};
use super::{ConnectionError, OutgoingBody, ResponseBody, ResponseGuard, SendError, SendResult};

/// How often a connection with open requests is pinged, and how long the upstream
/// may take to answer. A dead connection would stall every request to it.
const PING_EVERY: Duration = Duration::from_secs(10);
const PING_WITHIN: Duration = Duration::from_secs(10);

/// The connection that all requests of a core share.
#[derive(Debug)]
pub(super) struct SharedConnection {
    current: Mutex<Option<Http2Connection>>,
    /// Held by the task that opens a connection; the others wait for it.
    dialing: Semaphore,
}

#[derive(Clone, Debug)]
pub(super) struct Http2Connection {
    sender: SendRequest<OutgoingBody>,
    streams: Arc<Streams>,
}

/// A connection and permission for one stream on it.
pub(super) struct StreamSlot {
    sender: SendRequest<OutgoingBody>,
    permit: StreamPermit,
}

impl Default for SharedConnection {
    fn default() -> Self {
        Self {
            current: Mutex::default(),
            dialing: Semaphore::new(1),
        }
    }
}

impl SharedConnection {
    /// A stream, if one is free now.
    pub(super) fn take(&self, idle_timeout: Duration) -> Option<StreamSlot> {
        self.live(idle_timeout)?.take()
    }

    /// The connection, unless it is closed or past its idle timeout.
    pub(super) fn live(&self, idle_timeout: Duration) -> Option<Http2Connection> {
        self.close_expired(idle_timeout);
        self.lock()
            .as_ref()
            .filter(|connection| !connection.sender.is_closed())
            .cloned()
    }

    /// Waits for permission to open a connection. Afterwards the caller must check
    /// whether another task has opened one.
    pub(super) async fn dialing(&self) -> SemaphorePermit<'_> {
        let permit = self.dialing.acquire().await;
        permit.expect("the semaphore is never closed")
    }

    pub(super) fn put(&self, connection: Http2Connection) {
        *self.lock() = Some(connection);
    }

    /// Drops the connection: its requests still finish, and the next request opens
    /// another one.
    pub(super) fn clear(&self) {
        *self.lock() = None;
    }

    /// Closes the connection if it is past its idle timeout.
    pub(super) fn close_expired(&self, idle_timeout: Duration) {
        let is_expired = |connection: &mut Http2Connection| {
            let idle = connection.streams.idle();
            idle.is_some_and(|idle| idle > idle_timeout)
        };
        let expired = self.lock().take_if(is_expired);
        // Without the lock, which requests of that core wait for.
        drop(expired);
    }

    fn lock(&self) -> MutexGuard<'_, Option<Http2Connection>> {
        // The option is consistent after every step, so a poisoned lock is usable.
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Http2Connection {
    pub(super) async fn open(
        stream: DialedStream,
        tasks: &TaskTracker,
    ) -> Result<Self, ConnectionError> {
        let streams = Arc::new(Streams::new());
        let io = TokioIo::new(observe(stream, Arc::clone(&streams)));
        let (sender, connection) = http2::Builder::new(TrackedExecutor(tasks.clone()))
            .timer(TokioTimer::new())
            .keep_alive_interval(PING_EVERY)
            .keep_alive_timeout(PING_WITHIN)
            .handshake(io)
            .await
            .map_err(ConnectionError::Http)?;
        tasks.spawn(connection.map(|ended| {
            // hyper reports the error to the requests that wait; here it is only
            // logged.
            if let Err(error) = ended {
                tracing::debug!(%error, "connection to upstream failed");
            }
        }));
        Ok(Self { sender, streams })
    }

    fn take(self) -> Option<StreamSlot> {
        let permit = self.streams.try_open()?;
        let sender = self.sender;
        Some(StreamSlot { sender, permit })
    }

    /// Waits for a free stream; `None` if the connection closes first.
    pub(super) async fn acquire(self) -> Option<StreamSlot> {
        let permit = self.streams.open().await?;
        let sender = self.sender;
        Some(StreamSlot { sender, permit })
    }
}

impl StreamSlot {
    /// Hands the request to the connection, and returns a future of its answer.
    pub(super) fn send(
        mut self,
        shared: &SharedConnection,
        request: Request<OutgoingBody>,
    ) -> impl Future<Output = SendResult> + Send {
        let sending = self.sender.try_send_request(request);
        sending.map(move |sent| match sent {
            Ok(response) => {
                let guard = Some(ResponseGuard::Http2(self.permit));
                SendResult::Answered(response.map(|body| ResponseBody::new(body, guard)))
            }
            Err(error) => shared.failed(error),
        })
    }
}

impl SharedConnection {
    fn failed(&self, mut error: TrySendError<Request<OutgoingBody>>) -> SendResult {
        let unsent = error.take_message();
        let error = error.into_error();
        match unsent {
            Some(request) => {
                // The connection was closed already.
                self.clear();
                SendResult::Returned(Box::new(request), ConnectionError::Http(error))
            }
            None if is_refusal(&error) || is_certificate_refused(&error) => {
                SendResult::Failed(SendError::NotSent(ConnectionError::Http(error)))
            }
            None => SendResult::Failed(SendError::Lost(ConnectionError::Http(error))),
        }
    }
}

/// Whether the upstream says that it has not processed the request.
fn is_refusal(error: &hyper::Error) -> bool {
    let Some(error) = error
        .source()
        .and_then(|source| source.downcast_ref::<h2::Error>())
    else {
        return false;
    };
    // h2 reports GOAWAY only to streams after the last stream that it names. The
    // last stream of a GOAWAY with an error is not trusted.
    error.is_remote()
        && (error.is_reset() && error.reason() == Some(Reason::REFUSED_STREAM)
            || error.is_go_away() && error.reason() == Some(Reason::NO_ERROR))
}

/// Spawns hyper's tasks on the tracker, so that shutdown waits for them.
#[derive(Clone)]
struct TrackedExecutor(TaskTracker);

impl<F> hyper::rt::Executor<F> for TrackedExecutor
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    fn execute(&self, task: F) {
        self.0.spawn(task);
    }
}
