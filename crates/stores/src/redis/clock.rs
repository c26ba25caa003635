//! The time that is passed to scripts.

use std::borrow::Cow;
use std::sync::atomic::{AtomicU64, Ordering};

use onceward_core::clock::Timestamp;

use crate::time::Time;

/// Gives every script its time argument.
pub(super) struct ScriptClock {
    time: Time,
    /// The last stamp made from a given clock, in microseconds.
    last: AtomicU64,
}

impl ScriptClock {
    pub(super) fn new(time: Time) -> Self {
        Self {
            time,
            last: AtomicU64::default(),
        }
    }

    /// The first argument of every script; see `lua/clock.lua`.
    pub(super) fn argument(&self) -> Cow<'static, str> {
        match &self.time {
            Time::Server => Cow::Borrowed(""),
            Time::Given(clock) => {
                let now = clock.now().unix_ms();
                let stamp = self.next_after(now * 1_000);
                Cow::Owned(format!("{now} {stamp}"))
            }
        }
    }

    /// The clock itself.
    pub(super) fn time(&self) -> &Time {
        &self.time
    }

    /// The time, unless the server determines it.
    pub(super) fn given(&self) -> Option<Timestamp> {
        match &self.time {
            Time::Server => None,
            Time::Given(clock) => Some(clock.now()),
        }
    }

    /// A stamp above all earlier ones, even while a given clock stands still.
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
