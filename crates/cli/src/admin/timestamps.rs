//! Timestamps for people: shown as `2h ago`, given on the command line as `2h` or in RFC 3339.

use std::time::Duration;

use anyhow::{anyhow, bail};
use jiff::{SignedDuration, Timestamp};
use onceward_gateway::config::units::Time;
use serde_json::Value;

/// A timestamp of the API, relative to now.
pub(crate) fn relative(value: &Value, now: Timestamp) -> String {
    let timestamp = value.as_str().and_then(|text| text.parse().ok());
    timestamp.map_or_else(|| "-".to_owned(), |timestamp| distance(now, timestamp))
}

/// The timestamp itself, followed by the relative one.
pub(crate) fn absolute(value: &Value, now: Timestamp) -> String {
    match value.as_str() {
        None => "-".to_owned(),
        Some(text) => format!("{} ({})", super::table::escape(text), relative(value, now)),
    }
}

fn distance(now: Timestamp, timestamp: Timestamp) -> String {
    let seconds = timestamp.duration_since(now).as_secs();
    let length = match seconds.unsigned_abs() {
        0 => return "now".to_owned(),
        s @ 0..60 => format!("{s}s"),
        s @ 60..3_600 => format!("{}m", s / 60),
        s @ 3_600..172_800 => format!("{}h", s / 3_600),
        s => format!("{}d", s / 86_400),
    };
    match seconds < 0 {
        true => format!("{length} ago"),
        false => format!("in {length}"),
    }
}

/// Whether a bare duration counts back from now or forward.
#[derive(Clone, Copy)]
pub(crate) enum Direction {
    Past,
    Future,
}

/// Parses a timestamp from the command line: RFC 3339, or a duration relative to now.
pub(crate) fn parse(text: &str, direction: Direction, now: Timestamp) -> anyhow::Result<String> {
    if let Ok(timestamp) = text.parse::<Timestamp>() {
        return Ok(timestamp.to_string());
    }
    let Ok(length) = Time(text.to_owned()).parse() else {
        bail!(
            "invalid time `{}`: write 2h, 7d or 2026-11-16T08:00:00Z",
            super::table::escape(text)
        );
    };
    let shifted = shift(now, length, direction);
    shifted.ok_or_else(|| anyhow!("`{text}` is out of range"))
}

fn shift(now: Timestamp, length: Duration, direction: Direction) -> Option<String> {
    let length = SignedDuration::try_from(length).ok()?;
    let timestamp = match direction {
        Direction::Past => now.checked_sub(length),
        Direction::Future => now.checked_add(length),
    };
    timestamp.ok().map(|timestamp| format!("{timestamp:.0}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn now() -> Timestamp {
        "2026-11-16T12:00:00Z".parse().expect("a timestamp")
    }

    #[test]
    fn timestamps_are_shown_relative_to_now() {
        for (timestamp, want) in [
            ("2026-11-16T12:00:00.400Z", "now"),
            ("2026-11-16T11:59:30Z", "30s ago"),
            ("2026-11-16T11:00:00Z", "1h ago"),
            ("2026-11-15T11:00:00Z", "25h ago"),
            ("2026-11-09T12:00:00Z", "7d ago"),
            ("2026-11-16T12:05:00Z", "in 5m"),
        ] {
            assert_eq!(relative(&timestamp.into(), now()), want);
        }
        assert_eq!(relative(&Value::Null, now()), "-");
        assert_eq!(
            absolute(&"2026-11-16T11:00:00.000Z".into(), now()),
            "2026-11-16T11:00:00.000Z (1h ago)"
        );
    }

    #[test]
    fn both_forms_are_parsed() {
        let parse =
            |text, direction| parse(text, direction, now()).map_err(|error| error.to_string());
        assert_eq!(
            parse("2h", Direction::Past).as_deref(),
            Ok("2026-11-16T10:00:00Z")
        );
        assert_eq!(
            parse("90d", Direction::Future).as_deref(),
            Ok("2027-02-14T12:00:00Z")
        );
        assert_eq!(
            parse("2026-01-01T00:00:00+01:00", Direction::Past).as_deref(),
            Ok("2025-12-31T23:00:00Z")
        );
        assert_eq!(
            parse("soon", Direction::Past),
            Err("invalid time `soon`: write 2h, 7d or 2026-11-16T08:00:00Z".to_owned())
        );
    }
}
