//! Wakes tasks that wait for an operation, within one process.
//!
//! A notification without subscribers costs one look-up in a map.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::sync::futures::OwnedNotified;

use crate::deadline::within;
use crate::identity::Digest;

/// Subscriptions to operations, by digest.
#[derive(Debug, Default)]
pub struct Notifier(Mutex<HashMap<Digest, Topic>>);

/// An operation with at least one subscription.
#[derive(Debug, Default)]
struct Topic {
    notify: Arc<Notify>,
    subscriptions: usize,
}

impl Notifier {
    /// Subscribes to an operation: every notification after this call is received.
    pub fn listen(&self, digest: &Digest) -> Subscription<'_> {
        let mut topics = self.topics();
        let topic = topics.entry(*digest).or_default();
        topic.subscriptions += 1;
        Subscription {
            notifier: self,
            digest: *digest,
            notified: Box::pin(topic.notify.clone().notified_owned()),
        }
    }

    /// Wakes every subscriber of this operation.
    pub fn notify(&self, digest: &Digest) {
        if let Some(topic) = self.topics().get(digest) {
            topic.notify.notify_waiters();
        }
    }

    fn topics(&self) -> MutexGuard<'_, HashMap<Digest, Topic>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A subscription to one operation. Dropping it ends it.
#[derive(Debug)]
pub struct Subscription<'a> {
    notifier: &'a Notifier,
    digest: Digest,
    notified: Pin<Box<OwnedNotified>>,
}

impl Subscription<'_> {
    /// Waits for a notification, at most this long.
    pub async fn notified_within(mut self, limit: Duration) {
        // The result does not matter: the caller reads the record in any case.
        let _ = within(limit, self.notified.as_mut()).await;
    }
}

impl Drop for Subscription<'_> {
    fn drop(&mut self) {
        let mut topics = self.notifier.topics();
        if let Entry::Occupied(mut topic) = topics.entry(self.digest) {
            topic.get_mut().subscriptions -= 1;
            if topic.get().subscriptions == 0 {
                topic.remove();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_notification_after_listening_is_received_and_nothing_stays_behind() {
        let (notifier, digest) = (Notifier::default(), Digest::from_bytes([7; 32]));
        let (one, other) = (notifier.listen(&digest), notifier.listen(&digest));
        notifier.notify(&digest);
        one.notified_within(Duration::MAX).await;
        other.notified_within(Duration::MAX).await;
        assert!(notifier.topics().is_empty());
    }
}
