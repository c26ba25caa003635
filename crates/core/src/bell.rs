//! Waking those who wait for an operation, within one process.
//!
//! Ringing costs a look into a map and nothing more while nobody listens.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::sync::futures::OwnedNotified;

use crate::identity::Digest;

/// A bell for each operation that somebody listens for.
#[derive(Default)]
pub struct Bells(Mutex<HashMap<Digest, Hung>>);

/// A bell, and for how many it hangs.
#[derive(Default)]
struct Hung {
    notify: Arc<Notify>,
    listeners: usize,
}

impl Bells {
    /// Listens from now on: whatever rings after this call is heard.
    pub fn listen(&self, digest: &Digest) -> Bell<'_> {
        let mut bells = self.bells();
        let hung = bells.entry(*digest).or_default();
        hung.listeners += 1;
        Bell {
            bells: self,
            digest: *digest,
            heard: Box::pin(hung.notify.clone().notified_owned()),
        }
    }

    /// Wakes all who listen for this operation.
    pub fn ring(&self, digest: &Digest) {
        if let Some(hung) = self.bells().get(digest) {
            hung.notify.notify_waiters();
        }
    }

    fn bells(&self) -> MutexGuard<'_, HashMap<Digest, Hung>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One listener.
pub struct Bell<'a> {
    bells: &'a Bells,
    digest: Digest,
    heard: Pin<Box<OwnedNotified>>,
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
        if let Entry::Occupied(mut hung) = bells.entry(self.digest) {
            hung.get_mut().listeners -= 1;
            if hung.get().listeners == 0 {
                hung.remove();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_ring_after_listening_is_heard_and_nothing_stays_behind() {
        let (bells, digest) = (Bells::default(), Digest::from_bytes([7; 32]));
        let (one, other) = (bells.listen(&digest), bells.listen(&digest));
        bells.ring(&digest);
        one.heard_within(Duration::MAX).await;
        other.heard_within(Duration::MAX).await;
        assert!(bells.bells().is_empty());
    }
}
