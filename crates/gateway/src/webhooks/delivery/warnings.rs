//! Which warnings about deliveries are logged: at most one per webhook and
//! status a minute, so that an upstream that refuses a thousand events does not
//! bury the rest of the log.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use onceward_core::clock::Timestamp;

/// The shortest time between two warnings about the same webhook and status.
const INTERVAL: Duration = Duration::from_secs(60);
/// How many pairs of webhook and status are remembered.
const PAIRS_MAX: usize = 1024;

/// The warnings of the last minute.
#[derive(Default)]
pub(super) struct Warnings(Mutex<HashMap<(String, Option<u16>), LastWarning>>);

struct LastWarning {
    at: Timestamp,
    suppressed: u64,
}

impl Warnings {
    /// Whether a warning is due now; if so, how many of the same kind were
    /// suppressed since the last. `status` is none where there was no answer.
    /// While so many pairs were warned of within a minute that no more can be
    /// remembered, further pairs are not logged.
    pub(super) fn allow(
        &self,
        webhook_id: &str,
        status: Option<u16>,
        now: Timestamp,
    ) -> Option<u64> {
        let mut pairs = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let pair = (webhook_id.to_owned(), status);
        if let Some(last) = pairs.get_mut(&pair) {
            if now.since(last.at) < INTERVAL {
                last.suppressed += 1;
                return None;
            }
            let suppressed = last.suppressed;
            *last = LastWarning {
                at: now,
                suppressed: 0,
            };
            return Some(suppressed);
        }
        if pairs.len() >= PAIRS_MAX {
            pairs.retain(|_, last| now.since(last.at) < INTERVAL);
        }
        if pairs.len() >= PAIRS_MAX {
            return None;
        }
        pairs.insert(
            pair,
            LastWarning {
                at: now,
                suppressed: 0,
            },
        );
        Some(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Timestamp {
        Timestamp::from_unix_ms(1_700_000_000_000 + seconds * 1000)
    }

    #[test]
    fn one_warning_per_webhook_and_status_a_minute() {
        let warnings = Warnings::default();
        assert_eq!(warnings.allow("wh_a", Some(404), at(0)), Some(0));
        assert_eq!(warnings.allow("wh_a", Some(404), at(1)), None);
        assert_eq!(warnings.allow("wh_a", Some(404), at(59)), None);
        assert_eq!(warnings.allow("wh_a", Some(500), at(59)), Some(0));
        assert_eq!(warnings.allow("wh_a", None, at(59)), Some(0));
        assert_eq!(warnings.allow("wh_b", Some(404), at(59)), Some(0));
        assert_eq!(warnings.allow("wh_a", Some(404), at(60)), Some(2));
        assert_eq!(warnings.allow("wh_a", Some(404), at(120)), Some(0));
    }

    #[test]
    fn what_is_remembered_is_bounded_and_old_pairs_make_room() {
        let warnings = Warnings::default();
        for webhook in 0..PAIRS_MAX {
            let id = format!("wh_{webhook}");
            assert_eq!(warnings.allow(&id, Some(404), at(0)), Some(0));
        }
        assert_eq!(warnings.allow("wh_more", Some(404), at(1)), None);
        assert_eq!(warnings.allow("wh_more", Some(404), at(60)), Some(0));
        let remembered = warnings.0.lock().expect("no panic").len();
        assert_eq!(remembered, 1);
    }
}
