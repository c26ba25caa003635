//! Copying an answer that is not kept to the first caller.

use std::time::Duration;

use bytes::Bytes;
use http_body::Frame;
use http_body_util::BodyExt;
use http_body_util::channel::{Channel, Sender};
use onceward_core::deadline::within;

use crate::body::{self, Body, BoxError};

/// How many frames of a streaming answer are buffered for a slow client.
const STREAM_FRAMES_MAX: usize = 16;

/// Copies a body to the client. When the client has gone it reads on, to learn
/// whether the answer is complete.
pub(crate) async fn copy_stream(
    client: &mut StreamClient,
    read: Bytes,
    mut rest: Body,
    idle: Duration,
) -> Result<(), BoxError> {
    client.send(Frame::data(read)).await;
    loop {
        match within(idle, rest.frame()).await? {
            Some(frame) => client.send(frame?).await,
            None => return Ok(()),
        }
    }
}

/// The client's end of a streaming answer, as long as the client reads.
pub(crate) struct StreamClient {
    sender: Option<Sender<Bytes, BoxError>>,
    idle: Duration,
}

/// The client did not read.
#[derive(Debug, thiserror::Error)]
#[error("the client read nothing for {0:?}")]
struct NotReading(Duration);

impl StreamClient {
    /// The body for the client's response, and the end to fill it from. `idle`
    /// is the longest time without the client reading anything.
    pub(crate) fn new(idle: Duration) -> (Body, Self) {
        let (sender, channel) = Channel::<Bytes, BoxError>::new(STREAM_FRAMES_MAX);
        let sender = Some(sender);
        (body::boxed(channel), Self { sender, idle })
    }

    /// Sends a frame. A client that does not read is cut off, so that it holds
    /// neither the operation nor the upstream's connection.
    async fn send(&mut self, frame: Frame<Bytes>) {
        let Some(sender) = &mut self.sender else {
            return;
        };
        match within(self.idle, sender.send(frame)).await {
            Ok(Ok(())) => {}
            Ok(Err(_)) => self.sender = None,
            Err(_) => self.abort(Box::new(NotReading(self.idle))),
        }
    }

    /// Breaks the answer off, so that it is not taken for complete.
    pub(crate) fn abort(&mut self, error: BoxError) {
        if let Some(sender) = self.sender.take() {
            sender.abort(error);
        }
    }
}
