//! Time as a parameter. Every decision about leases and expiry takes the
//! store's time, so the clock is handed in: the system's in production, a
//! manual one in tests.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// A moment, in milliseconds since the Unix epoch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(u64);

impl Timestamp {
    /// The moment this many milliseconds after the epoch.
    pub const fn from_unix_ms(ms: u64) -> Self {
        Self(ms)
    }

    /// Milliseconds since the epoch.
    pub const fn unix_ms(self) -> u64 {
        self.0
    }

    /// This moment moved later. Saturates at the end of time.
    pub fn plus(self, span: Duration) -> Self {
        let ms = u64::try_from(span.as_millis()).unwrap_or(u64::MAX);
        Self(self.0.saturating_add(ms))
    }

    /// The time from `earlier` to this moment; zero if `earlier` is later.
    pub fn since(self, earlier: Timestamp) -> Duration {
        Duration::from_millis(self.0.saturating_sub(earlier.0))
    }
}

/// RFC 3339 in UTC with milliseconds, as `Idempotency-Expires` shows it.
impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ms = i64::try_from(self.0).unwrap_or(i64::MAX);
        match jiff::Timestamp::from_millisecond(ms) {
            Ok(moment) => write!(f, "{moment:.3}"),
            // Past the year 9999 there is no RFC 3339 form.
            Err(_) => write!(f, "9999-12-31T23:59:59.999Z"),
        }
    }
}

/// A source of time that never goes back.
pub trait Clock: Send + Sync + 'static {
    /// The present moment; never earlier than an answer given before.
    fn now(&self) -> Timestamp;
}

/// Wall time read once at creation, then advanced by the monotonic clock, so that
/// a change of the wall clock moves no expiry.
#[derive(Debug)]
pub struct SystemClock {
    start_wall: Timestamp,
    start: Instant,
}

impl SystemClock {
    /// A clock that starts from the present wall time.
    #[expect(clippy::disallowed_methods, reason = "the clock that is handed in")]
    pub fn new() -> Self {
        let wall = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        Self {
            start_wall: Timestamp::default().plus(wall),
            start: Instant::now(),
        }
    }
}

impl Default for SystemClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        self.start_wall.plus(self.start.elapsed())
    }
}

/// A clock that stands still until [`advance`](Self::advance) moves it.
#[derive(Debug)]
pub struct ManualClock(AtomicU64);

impl ManualClock {
    /// A clock that shows `now`.
    pub fn new(now: Timestamp) -> Self {
        Self(AtomicU64::new(now.unix_ms()))
    }

    /// Moves the clock forward.
    pub fn advance(&self, span: Duration) {
        let ms = u64::try_from(span.as_millis()).unwrap_or(u64::MAX);
        self.0.fetch_add(ms, Ordering::SeqCst);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Timestamp {
        Timestamp(self.0.load(Ordering::SeqCst))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timestamps_print_as_rfc_3339_with_milliseconds() {
        let moment = Timestamp::from_unix_ms(1_700_000_000_120);
        assert_eq!(moment.to_string(), "2023-11-14T22:13:20.120Z");
        assert_eq!(
            Timestamp::from_unix_ms(u64::MAX).to_string(),
            "9999-12-31T23:59:59.999Z"
        );
    }
}
