//! The effect of an upstream's answer on the key, as a pure function.

use crate::class::OnError;

/// The effect of a complete answer on the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Meaning {
    /// Final: the reply is kept and replayed.
    Keep,
    /// Nothing was done: the answer passes through and the key is free.
    Release,
    /// It may have run: an intermediary answered, or the service failed where
    /// its class says [`OnError::Unknown`].
    Unknown,
}

/// The upstream's own decision, from the response header `Idempotency-Outcome`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hint {
    /// Keep it, with any status.
    Permanent,
    /// Release it, with any status.
    Transient,
}

impl Hint {
    /// Parses the header's value; `None` for any other word.
    pub fn parse(value: &[u8]) -> Option<Self> {
        let value = value.trim_ascii();
        if value.eq_ignore_ascii_case(b"permanent") {
            Some(Self::Permanent)
        } else if value.eq_ignore_ascii_case(b"transient") {
            Some(Self::Transient)
        } else {
            None
        }
    }
}

/// Classifies a complete answer. The upstream's hint beats the status; the class
/// decides only about server errors that say nothing of the work itself.
pub fn classify(status: u16, hint: Option<Hint>, on_error: OnError) -> Meaning {
    match (hint, status) {
        (Some(Hint::Permanent), _) => Meaning::Keep,
        (Some(Hint::Transient), _) => Meaning::Release,
        (None, 401 | 403 | 407 | 408 | 409 | 423 | 425 | 429) => Meaning::Release,
        (None, 200..=499) => Meaning::Keep,
        // The service says that it did nothing: not implemented, not available.
        (None, 501 | 503) => Meaning::Release,
        // A gateway or proxy answered in place of the service.
        (None, 502 | 504) => Meaning::Unknown,
        (None, 500..=599) => match on_error {
            OnError::Release => Meaning::Release,
            OnError::Unknown => Meaning::Unknown,
            OnError::Keep => Meaning::Keep,
        },
        // Not an HTTP status: its meaning is not defined.
        (None, _) => Meaning::Unknown,
    }
}

/// Classifies a complete answer to an event of a webhook: a 2xx accepts it, and
/// the upstream's hint may call any other answer final. Everything else frees the
/// key, because a 404 may be a mistyped path, and no event may be lost to one.
pub fn classify_event(status: u16, hint: Option<Hint>) -> Meaning {
    match (hint, status) {
        (Some(Hint::Permanent), _) | (None, 200..=299) => Meaning::Keep,
        (Some(Hint::Transient) | None, _) => Meaning::Release,
    }
}

/// Whether an answer that frees the key says that the same request may soon be
/// answered otherwise. A refusal of the caller, or a conflict, does not.
pub fn is_worth_repeating(status: u16, hint: Option<Hint>) -> bool {
    hint == Some(Hint::Transient) || matches!(status, 408 | 425 | 429 | 500..=599)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    const CHOICES: [OnError; 3] = [OnError::Release, OnError::Unknown, OnError::Keep];

    #[rstest]
    #[case::success(&[200, 201, 202, 204, 206, 299], Meaning::Keep)]
    #[case::redirection(&[300, 301, 303, 304, 307], Meaning::Keep)]
    #[case::refusal(&[400, 402, 404, 405, 410, 412, 413, 415, 418, 422, 424, 426, 428, 431, 451, 499], Meaning::Keep)]
    #[case::try_again(&[401, 403, 407, 408, 409, 423, 425, 429], Meaning::Release)]
    #[case::nothing_done(&[501, 503], Meaning::Release)]
    #[case::between(&[502, 504], Meaning::Unknown)]
    #[case::beyond(&[600, 999], Meaning::Unknown)]
    fn by_status_in_every_class(#[case] statuses: &[u16], #[case] want: Meaning) {
        for status in statuses {
            for on_error in CHOICES {
                let meaning = classify(*status, None, on_error);
                assert_eq!(meaning, want, "{status} {on_error:?}");
            }
        }
    }

    #[rstest]
    #[case::release(OnError::Release, Meaning::Release)]
    #[case::unknown(OnError::Unknown, Meaning::Unknown)]
    #[case::keep(OnError::Keep, Meaning::Keep)]
    fn a_server_error_goes_by_the_class(#[case] on_error: OnError, #[case] want: Meaning) {
        for status in [500, 505, 506, 507, 508, 511, 520, 599] {
            assert_eq!(classify(status, None, on_error), want, "{status}");
        }
    }

    #[rstest]
    #[case::accepted(&[200, 201, 204, 299], Meaning::Keep)]
    #[case::not_accepted(&[199, 300, 303, 400, 404, 410, 422, 500, 502, 504, 600], Meaning::Release)]
    fn only_success_accepts_an_event(#[case] statuses: &[u16], #[case] want: Meaning) {
        for status in statuses {
            assert_eq!(classify_event(*status, None), want, "{status}");
        }
    }

    #[test]
    fn the_upstream_overrides_status_and_class() {
        for status in [200, 404, 409, 500, 501, 502, 504, 599] {
            let of_event = |hint: &[u8]| classify_event(status, Hint::parse(hint));
            assert_eq!(of_event(b"permanent"), Meaning::Keep);
            assert_eq!(of_event(b"transient"), Meaning::Release);
            for on_error in CHOICES {
                let meaning = |hint: &[u8]| classify(status, Hint::parse(hint), on_error);
                assert_eq!(meaning(b"permanent"), Meaning::Keep);
                assert_eq!(meaning(b" Transient "), Meaning::Release);
            }
        }
        assert_eq!(Hint::parse(b"perhaps"), None);
    }
}
