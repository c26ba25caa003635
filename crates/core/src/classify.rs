//! What an upstream's answer means for the key, as a pure function.

/// What becomes of the key after a complete answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Meaning {
    /// Final: the reply is kept and replayed.
    Keep,
    /// Nothing was done: the answer passes through and the key is free.
    Release,
    /// Something between us and the upstream answered: it may have run.
    Unknown,
}

/// The upstream's own word, from the response header `Idempotency-Outcome`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hint {
    /// Keep it, whatever the status.
    Permanent,
    /// Release it, whatever the status.
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

/// Classifies a complete answer. The upstream's hint beats the status.
pub fn classify(status: u16, hint: Option<Hint>) -> Meaning {
    match (hint, status) {
        (Some(Hint::Permanent), _) => Meaning::Keep,
        (Some(Hint::Transient), _) => Meaning::Release,
        (None, 401 | 403 | 407 | 408 | 409 | 423 | 425 | 429) => Meaning::Release,
        (None, 502 | 504) => Meaning::Unknown,
        (None, 200..=499) => Meaning::Keep,
        (None, 500..=599) => Meaning::Release,
        // Not HTTP: nobody can say what it means.
        (None, _) => Meaning::Unknown,
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

    #[rstest]
    #[case::success(&[200, 201, 202, 204, 206, 299], Meaning::Keep)]
    #[case::redirection(&[300, 301, 303, 304, 307], Meaning::Keep)]
    #[case::refusal(&[400, 402, 404, 405, 410, 412, 413, 415, 418, 422, 424, 426, 428, 431, 451, 499], Meaning::Keep)]
    #[case::try_again(&[401, 403, 407, 408, 409, 423, 425, 429], Meaning::Release)]
    #[case::server_error(&[500, 501, 503, 505, 507, 511, 599], Meaning::Release)]
    #[case::between(&[502, 504], Meaning::Unknown)]
    #[case::beyond(&[600, 999], Meaning::Unknown)]
    fn by_status(#[case] statuses: &[u16], #[case] want: Meaning) {
        for status in statuses {
            assert_eq!(classify(*status, None), want, "{status}");
        }
    }

    #[test]
    fn the_upstream_overrides() {
        for status in [200, 404, 409, 500, 502, 504] {
            assert_eq!(classify(status, Hint::parse(b"permanent")), Meaning::Keep);
            assert_eq!(
                classify(status, Hint::parse(b" Transient ")),
                Meaning::Release
            );
        }
        assert_eq!(Hint::parse(b"perhaps"), None);
    }
}
