//! Hearing of what other processes settle. A message is a hint: whoever waits
//! looks for itself now and then, so nothing depends on one that is lost.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use onceward_core::identity::Digest;
use onceward_core::notifier::Notifier;
use redis::{Client, ErrorKind, RedisError, RedisResult};
use tokio::sync::oneshot;
use tokio::time::{interval, sleep, timeout};
use tokio_util::task::AbortOnDropHandle;

/// The rest before a lost subscription is made again, at first and at most.
const PAUSE_MIN: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(2);
/// How often a silent subscription is tried.
const PING: Duration = Duration::from_secs(5);

/// A subscription that lasts as long as this is held.
pub(super) struct Listener(#[expect(dead_code, reason = "held")] AbortOnDropHandle<()>);

impl Listener {
    /// Listens to one of `ears` and rings for every operation that is told on
    /// `pattern`. Returns when it hears, or has failed to for the first time.
    pub(super) async fn start(
        ears: Vec<Client>,
        pattern: String,
        notifier: Arc<Notifier>,
        deadline: Duration,
    ) -> Self {
        let (hears, heard) = oneshot::channel();
        let ear = Ear {
            pattern,
            notifier,
            deadline,
        };
        let task = tokio::spawn(async move { ear.listen(&ears, Some(hears)).await });
        // Whether it hears or not, the store opens: a message is only a hint.
        let _ = heard.await;
        Self(AbortOnDropHandle::new(task))
    }
}

struct Ear {
    pattern: String,
    notifier: Arc<Notifier>,
    deadline: Duration,
}

impl Ear {
    /// Listens for ever, to one after the other.
    async fn listen(&self, ears: &[Client], mut hears: Option<oneshot::Sender<()>>) {
        let mut pause = PAUSE_MIN;
        for client in ears.iter().cycle() {
            match self.hear(client, &mut hears).await {
                Ok(()) => pause = PAUSE_MIN,
                Err(error) => {
                    tracing::warn!(%error, "cannot listen to Redis; waiters look for themselves");
                    pause = (pause * 2).min(PAUSE_MAX);
                }
            }
            drop(hears.take());
            sleep(pause).await;
        }
    }

    /// Listens until the connection ends.
    async fn hear(
        &self,
        client: &Client,
        hears: &mut Option<oneshot::Sender<()>>,
    ) -> RedisResult<()> {
        let subscribed = async {
            let mut subscription = client.get_async_pubsub().await?;
            subscription.psubscribe(&self.pattern).await?;
            Ok::<_, RedisError>(subscription)
        };
        let subscription = self.within(subscribed).await?;
        drop(hears.take());
        let (mut sink, mut messages) = subscription.split();
        let mut ticks = interval(PING);
        ticks.tick().await;
        loop {
            tokio::select! {
                message = messages.next() => match message {
                    Some(message) => self.ring(message.get_payload_bytes()),
                    None => return Ok(()),
                },
                _ = ticks.tick() => {
                    self.within(sink.ping::<redis::Value>()).await?;
                }
            }
        }
    }

    fn ring(&self, payload: &[u8]) {
        if let Ok(digest) = payload.try_into() {
            self.notifier.notify(&Digest::from_bytes(digest));
        }
    }

    async fn within<T>(&self, step: impl Future<Output = RedisResult<T>>) -> RedisResult<T> {
        let late = || RedisError::from((ErrorKind::Io, "no answer in time"));
        timeout(self.deadline, step)
            .await
            .unwrap_or_else(|_| Err(late()))
    }
}
