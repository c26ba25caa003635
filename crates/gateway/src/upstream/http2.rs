//! HTTP/2: one connection that all requests share.
//!
//! Counting bytes tells nothing here, since they may be another request's. A
//! request is not sent when hyper hands it back, and when the upstream itself
//! says so: by refusing the stream, or by going away in peace and naming a last
//! stream before this one. Every other failure is a lost answer.

use std::error::Error;
use std::future::Future;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use h2::Reason;
use http::{Request, Response};
use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::sync::Semaphore;
use tokio_util::task::TaskTracker;

use super::address::Dialer;
use super::{Cause, RequestBody, ResponseBody, SendError};

/// How often a connection with requests on it is asked whether it lives, and
/// how long it may take to answer. Only one connection would be dead, but with
/// it every request to this upstream.
const PING_EVERY: Duration = Duration::from_secs(10);
const PING_WITHIN: Duration = Duration::from_secs(10);

/// The connection that all requests share.
#[derive(Debug)]
pub(super) struct Shared {
    current: Mutex<Option<SendRequest<RequestBody>>>,
    /// One opens a connection, the others wait for it.
    dialing: Semaphore,
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
    pub(super) async fn send(
        &self,
        dialer: &Dialer,
        request: Request<RequestBody>,
    ) -> Result<Response<ResponseBody>, SendError> {
        let unsent = match self.try_send(dialer, request).await? {
            Sent::Answered(response) => return Ok(response),
            Sent::Returned(unsent, _) => *unsent,
        };
        // The connection had ended unnoticed. Once more, on a new one.
        self.clear();
        match self.try_send(dialer, unsent).await? {
            Sent::Answered(response) => Ok(response),
            Sent::Returned(_, cause) => Err(SendError::NotSent(cause)),
        }
    }

    async fn try_send(
        &self,
        dialer: &Dialer,
        request: Request<RequestBody>,
    ) -> Result<Sent, SendError> {
        // Waiting for somebody else's dialling counts: whoever is still without
        // a connection when the time is up has sent nothing.
        let limit = dialer.timeout();
        let connected = tokio::time::timeout(limit, self.connect(dialer)).await;
        let connected = connected.unwrap_or(Err(Cause::ConnectTimeout(limit)));
        let mut sender = connected.map_err(SendError::NotSent)?;
        let mut error = match sender.try_send_request(request).await {
            Ok(response) => {
                let response = response.map(|body| ResponseBody::new(body, None));
                return Ok(Sent::Answered(response));
            }
            Err(error) => error,
        };
        let unsent = error.take_message();
        let error = error.into_error();
        match unsent {
            Some(request) => Ok(Sent::Returned(Box::new(request), Cause::Http(error))),
            None if is_refusal(&error) => Err(SendError::NotSent(Cause::Http(error))),
            None => Err(SendError::Lost(Cause::Http(error))),
        }
    }

    async fn connect(&self, dialer: &Dialer) -> Result<SendRequest<RequestBody>, Cause> {
        if let Some(sender) = self.live() {
            return Ok(sender);
        }
        let turn = self.dialing.acquire().await;
        let _turn = turn.expect("nobody closes the semaphore");
        if let Some(sender) = self.live() {
            return Ok(sender);
        }
        let sender = open(dialer).await?;
        *self.lock() = Some(sender.clone());
        Ok(sender)
    }

    fn live(&self) -> Option<SendRequest<RequestBody>> {
        self.lock()
            .as_ref()
            .filter(|sender| !sender.is_closed())
            .cloned()
    }

    /// Requests on it still end; the next opens another.
    pub(super) fn clear(&self) {
        *self.lock() = None;
    }

    fn lock(&self) -> MutexGuard<'_, Option<SendRequest<RequestBody>>> {
        // An option is whole after every step, so a panic elsewhere is no harm.
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What became of a request that did not fail.
enum Sent {
    Answered(Response<ResponseBody>),
    /// Never begun: here it is again.
    Returned(Box<Request<RequestBody>>, Cause),
}

async fn open(dialer: &Dialer) -> Result<SendRequest<RequestBody>, Cause> {
    let stream = dialer.dial().await?;
    let (sender, connection) = http2::Builder::new(Tracked(dialer.tasks().clone()))
        .timer(TokioTimer::new())
        .keep_alive_interval(PING_EVERY)
        .keep_alive_timeout(PING_WITHIN)
        .handshake(TokioIo::new(stream))
        .await
        .map_err(Cause::Http)?;
    dialer.tasks().spawn(async move {
        // Who waits for an answer has been told by hyper; this is for the log
        // alone.
        if let Err(error) = connection.await {
            tracing::debug!(%error, "connection to upstream failed");
        }
    });
    Ok(sender)
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
