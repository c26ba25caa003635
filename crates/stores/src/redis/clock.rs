//! How scripts are told the time.

use std::borrow::Cow;
use std::sync::atomic::{AtomicU64, Ordering};

use onceward_core::clock::Timestamp;

use crate::time::Time;

/// Tells scripts the time.
pub(super) struct Teller {
    time: Time,
    /// The last stamp that a given clock gave, in microseconds.
    last: AtomicU64,
}

impl Teller {
    pub(super) fn new(time: Time) -> Self {
        Self {
            time,
            last: AtomicU64::default(),
        }
    }

    /// The first argument of every script: see `lua/clock.lua`.
    pub(super) fn tell(&self) -> Cow<'static, str> {
        match &self.time {
            Time::Server => Cow::Borrowed(""),
            Time::Given(clock) => {
                let now = clock.now().unix_ms();
                let stamp = self.next_after(now * 1_000);
                Cow::Owned(format!("{now} {stamp}"))
            }
        }
    }

    /// The moment, if it is not for the server to tell.
    pub(super) fn given(&self) -> Option<Timestamp> {
        match &self.time {
            Time::Server => None,
            Time::Given(clock) => Some(clock.now()),
        }
    }

    /// While a given clock stands still, what comes later still gets a later stamp.
    fn next_after(&self, stamp: u64) -> u64 {
        let rise = |last: u64| stamp.max(last + 1);
        let before = self
            .last
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |last| {
                Some(rise(last))
            });
        rise(before.unwrap_or_else(|last| last))
    }
}
