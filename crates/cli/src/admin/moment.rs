//! Moments as people say them: `2h ago` to read, `2h` or RFC 3339 to write.

use std::time::Duration;

use anyhow::{anyhow, bail};
use jiff::{SignedDuration, Timestamp};
use onceward_gateway::config::units::Time;
use serde_json::Value;

/// A moment of the API, seen from now.
pub(crate) fn ago(value: &Value, now: Timestamp) -> String {
    let moment = value.as_str().and_then(|text| text.parse().ok());
    moment.map_or_else(|| "-".to_owned(), |moment| apart(now, moment))
}

/// The same with the moment itself.
pub(crate) fn at(value: &Value, now: Timestamp) -> String {
    match value.as_str() {
        None => "-".to_owned(),
        Some(text) => format!("{} ({})", super::table::plain(text), ago(value, now)),
    }
}

fn apart(now: Timestamp, moment: Timestamp) -> String {
    let seconds = moment.duration_since(now).as_secs();
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

/// Which side of now a bare length of time means.
#[derive(Clone, Copy)]
pub(crate) enum Side {
    Past,
    Future,
}

/// A moment from a command line: RFC 3339, or a length of time from now.
pub(crate) fn parse(text: &str, side: Side, now: Timestamp) -> anyhow::Result<String> {
    if let Ok(moment) = text.parse::<Timestamp>() {
        return Ok(moment.to_string());
    }
    let Ok(length) = Time(text.to_owned()).parse() else {
        bail!(
            "`{}` is no moment: write 2h, 7d or 2026-11-16T08:00:00Z",
            super::table::plain(text)
        );
    };
    let moved = moved(now, length, side);
    moved.ok_or_else(|| anyhow!("`{text}` is too far away"))
}

fn moved(now: Timestamp, length: Duration, side: Side) -> Option<String> {
    let length = SignedDuration::try_from(length).ok()?;
    let moment = match side {
        Side::Past => now.checked_sub(length),
        Side::Future => now.checked_add(length),
    };
    moment.ok().map(|moment| format!("{moment:.0}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn now() -> Timestamp {
        "2026-11-16T12:00:00Z".parse().expect("a moment")
    }

    #[test]
    fn moments_are_told_by_their_distance() {
        for (moment, want) in [
            ("2026-11-16T12:00:00.400Z", "now"),
            ("2026-11-16T11:59:30Z", "30s ago"),
            ("2026-11-16T11:00:00Z", "1h ago"),
            ("2026-11-15T11:00:00Z", "25h ago"),
            ("2026-11-09T12:00:00Z", "7d ago"),
            ("2026-11-16T12:05:00Z", "in 5m"),
        ] {
            assert_eq!(ago(&moment.into(), now()), want);
        }
        assert_eq!(ago(&Value::Null, now()), "-");
        assert_eq!(
            at(&"2026-11-16T11:00:00.000Z".into(), now()),
            "2026-11-16T11:00:00.000Z (1h ago)"
        );
    }

    #[test]
    fn moments_are_read_in_both_forms() {
        let parse = |text, side| parse(text, side, now()).map_err(|error| error.to_string());
        assert_eq!(
            parse("2h", Side::Past).as_deref(),
            Ok("2026-11-16T10:00:00Z")
        );
        assert_eq!(
            parse("90d", Side::Future).as_deref(),
            Ok("2027-02-14T12:00:00Z")
        );
        assert_eq!(
            parse("2026-01-01T00:00:00+01:00", Side::Past).as_deref(),
            Ok("2025-12-31T23:00:00Z")
        );
        assert_eq!(
            parse("soon", Side::Past),
            Err("`soon` is no moment: write 2h, 7d or 2026-11-16T08:00:00Z".to_owned())
        );
    }
}
