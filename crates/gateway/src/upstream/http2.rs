//! HTTP/2: one connection that all requests share.
//!
//! Counting bytes tells nothing here, since they may be another request's. A
//! request is not sent when hyper hands it back, and when the upstream itself
//! says so: by refusing the stream, or by going away in peace and naming a last
//! stream before this one. Every other failure is a lost answer.
//!
//! A request is given to hyper only when the upstream has a stream free for it:
//! hyper would keep it waiting and not tell whether it was sent. How many
//! streams there are the upstream says in its settings, which `streams` reads
//! on their way in.

use std::error::Error;
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use h2::Reason;
use http::Request;
use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio_util::task::TaskTracker;

use super::dial::{Stream, is_turned_away};
pub(super) use super::streams::Place;
use super::streams::{Overheard, Streams};
use super::{Cause, Hold, RequestBody, ResponseBody, SendError, Sent};

/// How often a connection with requests on it is asked whether it lives, and
/// how long it may take to answer. Only one connection would be dead, but with
/// it every request to this upstream.
const PING_EVERY: Duration = Duration::from_secs(10);
const PING_WITHIN: Duration = Duration::from_secs(10);

/// The connection that all requests share.
#[derive(Debug)]
pub(super) struct Shared {
    current: Mutex<Option<Connection>>,
    /// One opens a connection, the others wait for it.
    dialing: Semaphore,
}

#[derive(Clone, Debug)]
pub(super) struct Connection {
    sender: SendRequest<RequestBody>,
    streams: Arc<Streams>,
}

/// A connection and a free stream on it.
pub(super) struct Turn {
    sender: SendRequest<RequestBody>,
    place: Place,
}

impl Default for Shared {
    fn default() -> Self {
        Self {
            current: Mutex::default(),
            dialing: Semaphore::new(1),
        }
    }
}

impl Shared {
    /// A free stream, if there is one now.
    pub(super) fn take(&self) -> Option<Turn> {
        self.live()?.take()
    }

    /// The connection, unless it has ended.
    pub(super) fn live(&self) -> Option<Connection> {
        self.lock()
            .as_ref()
            .filter(|connection| !connection.sender.is_closed())
            .cloned()
    }

    /// The right to open a connection. Whoever had to wait for it looks again
    /// whether there is one.
    pub(super) async fn dialing(&self) -> SemaphorePermit<'_> {
        let turn = self.dialing.acquire().await;
        turn.expect("nobody closes the semaphore")
    }

    pub(super) fn put(&self, connection: Connection) {
        *self.lock() = Some(connection);
    }

    /// Requests on it still end; the next opens another.
    pub(super) fn clear(&self) {
        *self.lock() = None;
    }

    fn lock(&self) -> MutexGuard<'_, Option<Connection>> {
        // An option is whole after every step, so a panic elsewhere is no harm.
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Connection {
    pub(super) async fn open(stream: Stream, tasks: &TaskTracker) -> Result<Self, Cause> {
        let streams = Arc::new(Streams::default());
        let io = TokioIo::new(Overheard::new(stream, Arc::clone(&streams)));
        let (sender, connection) = http2::Builder::new(Tracked(tasks.clone()))
            .timer(TokioTimer::new())
            .keep_alive_interval(PING_EVERY)
            .keep_alive_timeout(PING_WITHIN)
            .handshake(io)
            .await
            .map_err(Cause::Http)?;
        tasks.spawn(async move {
            // Who waits for an answer has been told by hyper; this is for the
            // log alone.
            if let Err(error) = connection.await {
                tracing::debug!(%error, "connection to upstream failed");
            }
        });
        Ok(Self { sender, streams })
    }

    fn take(self) -> Option<Turn> {
        let place = self.streams.try_open()?;
        let sender = self.sender;
        Some(Turn { sender, place })
    }

    /// Waits for a free stream; `None` when the connection ends before.
    pub(super) async fn turn(self) -> Option<Turn> {
        let place = self.streams.open().await?;
        let sender = self.sender;
        Some(Turn { sender, place })
    }
}

impl Turn {
    pub(super) async fn send(mut self, shared: &Shared, request: Request<RequestBody>) -> Sent {
        let mut error = match self.sender.try_send_request(request).await {
            Ok(response) => {
                let hold = Some(Hold::Http2(self.place));
                return Sent::Answered(response.map(|body| ResponseBody::new(body, hold)));
            }
            Err(error) => error,
        };
        let unsent = error.take_message();
        let error = error.into_error();
        match unsent {
            Some(request) => {
                // The connection has ended unnoticed.
                shared.clear();
                Sent::Returned(Box::new(request), Cause::Http(error))
            }
            None if is_refusal(&error) || is_turned_away(&error) => {
                Sent::Failed(SendError::NotSent(Cause::Http(error)))
            }
            None => Sent::Failed(SendError::Lost(Cause::Http(error))),
        }
    }
}

/// Whether the upstream says that it has not looked at the request.
fn is_refusal(error: &hyper::Error) -> bool {
    let Some(error) = error
        .source()
        .and_then(|source| source.downcast_ref::<h2::Error>())
    else {
        return false;
    };
    // h2 gives the second error only to streams after the last one named. A
    // peer that goes away because of an error is not trusted to count well.
    error.is_remote()
        && (error.is_reset() && error.reason() == Some(Reason::REFUSED_STREAM)
            || error.is_go_away() && error.reason() == Some(Reason::NO_ERROR))
}

/// Spawns hyper's tasks where shutdown waits for them.
#[derive(Clone)]
struct Tracked(TaskTracker);

impl<F> hyper::rt::Executor<F> for Tracked
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    fn execute(&self, task: F) {
        self.0.spawn(task);
    }
}
