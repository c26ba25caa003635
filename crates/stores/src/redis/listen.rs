//! Notifications of operations that other processes settle. A message is a hint:
//! waiters poll now and then, so a lost message only delays them.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use onceward_core::deadline::within;
use onceward_core::identity::Digest;
use onceward_core::notifier::Notifier;
use redis::{Client, ErrorKind, RedisError, RedisResult};
use tokio::sync::oneshot;
use tokio::time::{interval, sleep};
use tokio_util::task::AbortOnDropHandle;

/// The pause before a lost subscription is renewed, at first and at most.
const PAUSE_MIN: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(2);
/// How often a silent subscription is tested.
const PING: Duration = Duration::from_secs(5);

/// A subscription that lasts as long as this value.
pub(super) struct Listener(#[expect(dead_code, reason = "held")] AbortOnDropHandle<()>);

impl Listener {
    /// Subscribes to `pattern` at one of the servers and wakes the waiters of every
    /// operation that is published. Returns once subscribed, or after the first
    /// failure: the store opens in either case, because a message is only a hint.
    pub(super) async fn start(
        servers: Vec<Client>,
        pattern: String,
        notifier: Arc<Notifier>,
        deadline: Duration,
    ) -> Self {
        let (ready, is_ready) = oneshot::channel();
        let subscriber = Subscriber {
            pattern,
            notifier,
            deadline,
        };
        let task = tokio::spawn(async move { subscriber.run(&servers, Some(ready)).await });
        let _ = is_ready.await;
        Self(AbortOnDropHandle::new(task))
    }
}

struct Subscriber {
    pattern: String,
    notifier: Arc<Notifier>,
    deadline: Duration,
}

impl Subscriber {
    /// Subscribes for ever, at one server after the other.
    async fn run(&self, servers: &[Client], mut ready: Option<oneshot::Sender<()>>) {
        let mut pause = PAUSE_MIN;
        for client in servers.iter().cycle() {
            match self.receive(client, &mut ready).await {
                Ok(()) => pause = PAUSE_MIN,
                Err(error) => {
                    tracing::warn!(%error, "cannot subscribe to Redis; waiters poll instead");
                    pause = (pause * 2).min(PAUSE_MAX);
                }
            }
            drop(ready.take());
            sleep(pause).await;
        }
    }

    /// Receives messages until the connection ends.
    async fn receive(
        &self,
        client: &Client,
        ready: &mut Option<oneshot::Sender<()>>,
    ) -> RedisResult<()> {
        let subscribed = async {
            let mut subscription = client.get_async_pubsub().await?;
            subscription.psubscribe(&self.pattern).await?;
            Ok::<_, RedisError>(subscription)
        };
        let subscription = self.within(subscribed).await?;
        drop(ready.take());
        let (mut sink, mut messages) = subscription.split();
        let mut ticks = interval(PING);
        ticks.tick().await;
        loop {
            tokio::select! {
                message = messages.next() => match message {
                    Some(message) => self.wake(message.get_payload_bytes()),
                    None => return Ok(()),
                },
                _ = ticks.tick() => {
                    self.within(sink.ping::<redis::Value>()).await?;
                }
            }
        }
    }

    fn wake(&self, payload: &[u8]) {
        if let Ok(digest) = payload.try_into() {
            self.notifier.notify(&Digest::from_bytes(digest));
        }
    }

    async fn within<T>(&self, step: impl Future<Output = RedisResult<T>>) -> RedisResult<T> {
        let late = || RedisError::from((ErrorKind::Io, "no answer in time"));
        within(self.deadline, step)
            .await
            .unwrap_or_else(|_| Err(late()))
    }
}
