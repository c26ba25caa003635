//! Waking those who wait for an operation, within one process.
//!
//! Ringing costs a look into a map and nothing more while nobody listens.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;

use crate::identity::Digest;

/// A bell for each operation that somebody listens for.
#[derive(Default)]
pub struct Bells(Mutex<HashMap<Digest, Arc<Notify>>>);

impl Bells {
    /// Listens from now on: whatever rings after this call is heard.
    pub fn listen(&self, digest: &Digest) -> Bell<'_> {
        let notify = self.bells().entry(*digest).or_default().clone();
        let heard = notify.clone().notified_owned();
        Bell {
            bells: self,
            digest: *digest,
            notify: Some(notify),
            heard: Box::pin(heard),
        }
    }

    /// Wakes all who listen for this operation.
    pub fn ring(&self, digest: &Digest) {
        if let Some(notify) = self.bells().get(digest) {
            notify.notify_waiters();
        }
    }

    fn bells(&self) -> MutexGuard<'_, HashMap<Digest, Arc<Notify>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One listener.
pub struct Bell<'a> {
    bells: &'a Bells,
    digest: Digest,
    notify: Option<Arc<Notify>>,
    heard: std::pin::Pin<Box<tokio::sync::futures::OwnedNotified>>,
}

impl Bell<'_> {
    /// Waits for the bell, at most this long.
    pub async fn heard_within(mut self, limit: Duration) {
        // Running out of time is one of the two good ends.
        let _ = tokio::time::timeout(limit, self.heard.as_mut()).await;
    }
}

impl Drop for Bell<'_> {
    fn drop(&mut self) {
        let mut bells = self.bells.bells();
        self.notify = None;
        if let Entry::Occupied(entry) = bells.entry(self.digest) {
            // Left in the map: its own reference, and our future's.
            if Arc::strong_count(entry.get()) <= 2 {
                entry.remove();
            }
        }
    }
}
