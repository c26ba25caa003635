//! The clock of a store that was open before.
//!
//! A process that starts with its wall clock in the past would write records
//! that the next one, with the right time, takes for long expired; and a key
//! that is forgotten too early runs twice. So time begins no earlier than the
//! latest that the file has seen, and goes on from there.

use std::sync::Arc;
use std::time::Duration;

use onceward_core::clock::{Clock, Timestamp};

/// A clock that never shows an earlier time than the file has seen.
pub(super) struct Onward {
    clock: Arc<dyn Clock>,
    /// By how much the clock was behind at the start.
    behind: Duration,
}

impl Onward {
    /// The clock, moved on to the latest time seen where it is behind that.
    pub(super) fn from(clock: Arc<dyn Clock>, latest: Timestamp) -> Self {
        let behind = latest.since(clock.now());
        if !behind.is_zero() {
            tracing::warn!(
                behind_seconds = behind.as_secs(),
                "the clock is behind what the store has seen; going on from there"
            );
        }
        Self { clock, behind }
    }
}

impl Clock for Onward {
    fn now(&self) -> Timestamp {
        self.clock.now().plus(self.behind)
    }
}

#[cfg(test)]
mod tests {
    use onceward_core::clock::ManualClock;

    use super::*;

    #[test]
    fn time_goes_on_from_the_latest_seen() {
        let at = Timestamp::from_unix_ms;
        for (clock, latest, want) in [(500, 900, 910), (900, 500, 910), (900, 900, 910)] {
            let clock = Arc::new(ManualClock::new(at(clock)));
            let onward = Onward::from(clock.clone(), at(latest));
            clock.advance(Duration::from_millis(10));
            assert_eq!(onward.now(), at(want));
        }
    }
}
