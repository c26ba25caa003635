//! The clock of a store that was open before.
//!
//! If the system clock is in the past at the start, records would be written
//! that the next process, with the right time, takes for long expired; and a key
//! that is forgotten too early runs twice. So time begins no earlier than the
//! latest time noted in the file, and continues from there.

use std::sync::Arc;
use std::time::Duration;

use onceward_core::clock::{Clock, Timestamp};

/// A clock that never shows an earlier time than the file has noted.
pub(super) struct ResumedClock {
    clock: Arc<dyn Clock>,
    /// How far the clock was behind at the start.
    behind: Duration,
}

impl ResumedClock {
    /// The clock, moved forward to `latest` if it is behind.
    pub(super) fn new(clock: Arc<dyn Clock>, latest: Timestamp) -> Self {
        let behind = latest.since(clock.now());
        if !behind.is_zero() {
            tracing::warn!(
                behind_seconds = behind.as_secs(),
                "the system clock is behind the store's latest time; the store continues from its own"
            );
        }
        Self { clock, behind }
    }
}

impl Clock for ResumedClock {
    fn now(&self) -> Timestamp {
        self.clock.now().plus(self.behind)
    }
}

#[cfg(test)]
mod tests {
    use onceward_core::clock::ManualClock;

    use super::*;

    #[test]
    fn time_continues_from_the_latest_noted() {
        let at = Timestamp::from_unix_ms;
        for (clock, latest, want) in [(500, 900, 910), (900, 500, 910), (900, 900, 910)] {
            let clock = Arc::new(ManualClock::new(at(clock)));
            let resumed = ResumedClock::new(clock.clone(), at(latest));
            clock.advance(Duration::from_millis(10));
            assert_eq!(resumed.now(), at(want));
        }
    }
}
