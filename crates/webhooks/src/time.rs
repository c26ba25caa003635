//! The tolerance for a signed time.
//!
//! It holds in both directions: a leaked signature with a time in the far future
//! would otherwise be valid until then. The clock is handed in.

use std::time::Duration;

use crate::refusal::Refusal;

/// How far a signed time may be from now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tolerance {
    /// At most this far, into the past and into the future, the boundary
    /// included. Zero means the very second.
    Within(Duration),
    /// Times are not checked.
    Off,
}

impl Default for Tolerance {
    fn default() -> Self {
        Self::Within(Duration::from_secs(300))
    }
}

impl Tolerance {
    pub(crate) fn check(self, signed_at: i64, now: i64) -> Result<(), Refusal> {
        match self {
            Self::Off => Ok(()),
            Self::Within(limit) if Duration::from_secs(now.abs_diff(signed_at)) <= limit => Ok(()),
            Self::Within(_) if signed_at < now => Err(Refusal::TooOld),
            Self::Within(_) => Err(Refusal::TooNew),
        }
    }
}

/// Seconds since 1970 as providers write them: digits only, no more than
/// twelve. Signs, fractions and spaces are refused, because parsers differ on
/// them.
pub(crate) fn seconds(text: &str) -> Option<i64> {
    digits(text, 12)
}

/// Milliseconds since 1970, rounded down to seconds.
pub(crate) fn milliseconds(text: &str) -> Option<i64> {
    digits(text, 15).map(|ms| ms / 1000)
}

fn digits(text: &str, most: usize) -> Option<i64> {
    let fits = (1..=most).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_digit());
    if fits { text.parse().ok() } else { None }
}
