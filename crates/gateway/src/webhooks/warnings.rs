//! Which warnings about deliveries are logged: at most one per webhook and
//! status a minute, so that an upstream that refuses a thousand events does not
//! bury the rest of the log. Where more pairs are due than can be remembered,
//! one warning a minute says how many were left out.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use onceward_core::clock::Timestamp;

/// The shortest time between two warnings about the same webhook and status.
const INTERVAL: Duration = Duration::from_secs(60);
/// How many pairs of webhook and status are remembered.
const PAIRS_MAX: usize = 1024;

/// Limits the warnings about deliveries.
#[derive(Default)]
pub(crate) struct WarningLimiter(Mutex<RecentWarnings>);

#[derive(Default)]
struct RecentWarnings {
    by_pair: HashMap<(String, Option<u16>), LastWarning>,
    untracked: Option<Untracked>,
}

struct LastWarning {
    at: Timestamp,
    suppressed: u64,
}

/// Warnings about pairs beyond the maximum.
struct Untracked {
    since: Timestamp,
    suppressed: u64,
}

impl WarningLimiter {
    /// Whether a warning is due now; if so, how many of the same kind were
    /// suppressed since the last one. `status` is none if there was no answer. Once
    /// the maximum number of pairs is remembered, warnings about further pairs are
    /// only counted; see [`take_untracked`](Self::take_untracked).
    pub(crate) fn allow(
        &self,
        webhook_id: &str,
        status: Option<u16>,
        now: Timestamp,
    ) -> Option<u64> {
        self.lock().allow((webhook_id.to_owned(), status), now)
    }

    /// The number of warnings about pairs beyond the maximum, once a minute; none
    /// if there were none.
    pub(crate) fn take_untracked(&self, now: Timestamp) -> Option<u64> {
        let mut recent = self.lock();
        let ready = |untracked: &mut Untracked| now.since(untracked.since) >= INTERVAL;
        let untracked = recent.untracked.take_if(ready)?;
        Some(untracked.suppressed)
    }

    fn lock(&self) -> MutexGuard<'_, RecentWarnings> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl RecentWarnings {
    fn allow(&mut self, pair: (String, Option<u16>), now: Timestamp) -> Option<u64> {
        let first = LastWarning {
            at: now,
            suppressed: 0,
        };
        if let Some(last) = self.by_pair.get_mut(&pair) {
            if now.since(last.at) < INTERVAL {
                last.suppressed += 1;
                return None;
            }
            return Some(std::mem::replace(last, first).suppressed);
        }
        if self.by_pair.len() >= PAIRS_MAX {
            self.by_pair.retain(|_, last| now.since(last.at) < INTERVAL);
        }
        if self.by_pair.len() >= PAIRS_MAX {
            let untracked = self.untracked.get_or_insert(Untracked {
                since: now,
                suppressed: 0,
            });
            untracked.suppressed += 1;
            return None;
        }
        self.by_pair.insert(pair, first);
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
        let warnings = WarningLimiter::default();
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
        let warnings = WarningLimiter::default();
        for webhook in 0..PAIRS_MAX {
            let id = format!("wh_{webhook}");
            assert_eq!(warnings.allow(&id, Some(404), at(0)), Some(0));
        }
        assert_eq!(warnings.allow("wh_more", Some(404), at(1)), None);
        assert_eq!(warnings.allow("wh_more", Some(404), at(60)), Some(0));
        let remembered = warnings.lock().by_pair.len();
        assert_eq!(remembered, 1);
    }

    #[test]
    fn warnings_without_room_are_counted_once_a_minute() {
        let warnings = WarningLimiter::default();
        for webhook in 0..PAIRS_MAX + 3 {
            warnings.allow(&format!("wh_{webhook}"), None, at(0));
        }
        assert_eq!(warnings.take_untracked(at(59)), None);
        assert_eq!(warnings.take_untracked(at(60)), Some(3));
        assert_eq!(warnings.take_untracked(at(120)), None);
    }
}
