//! Durations and sizes as the file has them: `24h`, `1h30m`, `64KiB`.
//!
//! A number without a unit is refused, because it could mean seconds or
//! milliseconds. The raw types keep the text as it is written, so that a mistake in
//! one value never hides a mistake in another.

use std::borrow::Cow;
use std::time::Duration;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

/// The longest duration: ten years. Beyond it clocks overflow.
pub const TIME_MAX: Duration = Duration::from_secs(10 * 365 * 24 * 60 * 60);

/// A duration as it is in the file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Time(pub String);

/// A duration or `off`, as it is in the file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Tolerance(pub String);

/// A size as it is in the file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Size(pub String);

/// Why a text is not a duration or a size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnitError {
    /// A number without a unit.
    #[error("has no unit")]
    NoUnit,
    /// An unknown unit.
    #[error("has an unknown unit")]
    UnknownUnit,
    /// Not numbers with units.
    #[error("is not a number with a unit")]
    Malformed,
    /// Larger than the maximum.
    #[error("is too large")]
    TooLarge,
}

const TIME_UNITS: [(&str, u64); 5] = [
    ("d", 24 * 60 * 60 * 1000),
    ("h", 60 * 60 * 1000),
    ("m", 60 * 1000),
    ("s", 1000),
    ("ms", 1),
];

const SIZE_UNITS: [(&str, u64); 7] = [
    ("GiB", 1 << 30),
    ("MiB", 1 << 20),
    ("KiB", 1 << 10),
    ("GB", 1_000_000_000),
    ("MB", 1_000_000),
    ("KB", 1000),
    ("B", 1),
];

impl Time {
    /// The text for a duration; [`Time::parse`] returns the same duration. A single
    /// day is written `24h`, the usual form.
    pub fn of(time: Duration) -> Self {
        let mut rest = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let mut text = String::new();
        for (unit, ms) in TIME_UNITS {
            let count = rest / ms;
            if count == 0 || (unit == "d" && (count == 1 || rest % ms != 0)) {
                continue;
            }
            text.push_str(&format!("{count}{unit}"));
            rest %= ms;
        }
        if text.is_empty() {
            text.push_str("0s");
        }
        Self(text)
    }

    /// Parses the duration.
    pub fn parse(&self) -> Result<Duration, UnitError> {
        let ms = sum(&self.0, &TIME_UNITS)?;
        let time = Duration::from_millis(ms);
        if time > TIME_MAX {
            return Err(UnitError::TooLarge);
        }
        Ok(time)
    }
}

impl Size {
    /// Parses the size, in bytes.
    pub fn parse(&self) -> Result<usize, UnitError> {
        let bytes = sum(&self.0, &SIZE_UNITS)?;
        usize::try_from(bytes).map_err(|_| UnitError::TooLarge)
    }
}

/// Sums up numbers with units.
fn sum(text: &str, units: &[(&str, u64)]) -> Result<u64, UnitError> {
    let mut total: u64 = 0;
    let mut rest = text;
    loop {
        let digits = rest.len() - rest.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        let (number, after) = rest.split_at(digits);
        if number.is_empty() {
            return Err(UnitError::Malformed);
        }
        let letters = after.len()
            - after
                .trim_start_matches(|c: char| c.is_ascii_alphabetic())
                .len();
        let (unit, after) = after.split_at(letters);
        let factor = match units.iter().find(|(name, _)| *name == unit) {
            Some((_, factor)) => *factor,
            None if unit.is_empty() && after.is_empty() => return Err(UnitError::NoUnit),
            None if unit.is_empty() => return Err(UnitError::Malformed),
            None => return Err(UnitError::UnknownUnit),
        };
        let number: u64 = number.parse().map_err(|_| UnitError::TooLarge)?;
        total = number
            .checked_mul(factor)
            .and_then(|part| total.checked_add(part))
            .ok_or(UnitError::TooLarge)?;
        if after.is_empty() {
            return Ok(total);
        }
        rest = after;
    }
}

impl JsonSchema for Time {
    fn schema_name() -> Cow<'static, str> {
        "Time".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "title": "a duration",
            "type": "string",
            "pattern": "^([0-9]+(d|h|m|s|ms))+$",
            "examples": ["30s", "1h30m", "7d"],
        })
    }
}

impl JsonSchema for Tolerance {
    fn schema_name() -> Cow<'static, str> {
        "Tolerance".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "title": "a duration or \"off\",",
            "type": "string",
            "pattern": "^(off|([0-9]+(d|h|m|s|ms))+)$",
            "examples": ["5m", "off"],
        })
    }
}

impl JsonSchema for Size {
    fn schema_name() -> Cow<'static, str> {
        "Size".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "title": "a size",
            "type": "string",
            "pattern": "^([0-9]+(GiB|MiB|KiB|GB|MB|KB|B))+$",
            "examples": ["1MiB", "64KiB"],
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::milliseconds("500ms", Ok(500))]
    #[case::seconds("30s", Ok(30_000))]
    #[case::sum("1h30m", Ok(5_400_000))]
    #[case::days("7d", Ok(604_800_000))]
    #[case::none("0s", Ok(0))]
    #[case::bare("30", Err(UnitError::NoUnit))]
    #[case::week("1w", Err(UnitError::UnknownUnit))]
    #[case::blank("1 h", Err(UnitError::Malformed))]
    #[case::fraction("1.5h", Err(UnitError::Malformed))]
    #[case::negative("-1s", Err(UnitError::Malformed))]
    #[case::empty("", Err(UnitError::Malformed))]
    #[case::huge("99999999999999999999d", Err(UnitError::TooLarge))]
    #[case::eleven_years("4015d", Err(UnitError::TooLarge))]
    fn times(#[case] text: &str, #[case] want: Result<u64, UnitError>) {
        let got = Time(text.to_owned()).parse();
        assert_eq!(got, want.map(Duration::from_millis));
    }

    #[rstest]
    #[case::mebibyte("1MiB", Ok(1_048_576))]
    #[case::kilobyte("64KB", Ok(64_000))]
    #[case::bytes("512B", Ok(512))]
    #[case::bare("512", Err(UnitError::NoUnit))]
    #[case::letter("1M", Err(UnitError::UnknownUnit))]
    fn sizes(#[case] text: &str, #[case] want: Result<usize, UnitError>) {
        assert_eq!(Size(text.to_owned()).parse(), want);
    }

    #[rstest]
    #[case::day(86_400_000, "24h")]
    #[case::week(604_800_000, "7d")]
    #[case::hour_and_a_half(5_400_000, "1h30m")]
    #[case::day_and_an_hour(90_000_000, "25h")]
    #[case::none(0, "0s")]
    #[case::milliseconds(1500, "1s500ms")]
    fn times_are_written(#[case] ms: u64, #[case] want: &str) {
        assert_eq!(Time::of(Duration::from_millis(ms)).0, want);
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_back(ms in 0..TIME_MAX.as_millis() as u64) {
            let time = Duration::from_millis(ms);
            prop_assert_eq!(Time::of(time).parse(), Ok(time));
        }

        #[test]
        fn no_text_panics(text in ".{0,24}") {
            let _ = Time(text.clone()).parse();
            let _ = Size(text).parse();
        }
    }
}
