//! The options of an application's records.

use std::time::Duration;

use crate::caller::{Caller, Subject, SubjectKind};
use crate::class::{AfterLoss, Expiry, Terms, TtlBasis};
use crate::identity::{Endpoint, Identity, KeySpace};
use crate::namespace::Namespace;

use super::key::ScopedKey;

/// The class of application records, as operators see it.
const CLASS: &str = "library";
/// The tenant of application records. No outside caller can have it.
const TENANT: &str = "_library";

/// The longest span: a hundred years.
const SPAN_MAX: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// How long outcomes are kept, and what an abandoned claim means. A record keeps
/// the options of its claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RecordOptions {
    /// How long a result or an error is replayed after it was recorded.
    pub replay_window: Duration,
    /// How long the key is remembered; after `replay_window` a request under it
    /// is refused rather than run. `None`: as long as `replay_window`.
    pub remember: Option<Duration>,
    /// Whether replays end with time alone, or by a purge.
    pub expiry: Expiry,
    /// After how long a claim without an outcome counts as abandoned.
    pub lease: Duration,
    /// What an abandoned claim means: an unknown outcome, or, where running twice
    /// is safe, a free key.
    pub after_loss: AfterLoss,
}

/// A day of replays, a lease of a minute, and abandoned claims are unknown.
impl Default for RecordOptions {
    fn default() -> Self {
        Self {
            replay_window: DAY,
            remember: None,
            expiry: Expiry::Strict,
            lease: Duration::from_secs(60),
            after_loss: AfterLoss::Hold,
        }
    }
}

/// Why options are invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RecordOptionsError {
    /// A span is too short.
    #[error("{0} is shorter than a millisecond")]
    Zero(&'static str),
    /// A span is too long.
    #[error("{0} is longer than a hundred years")]
    Endless(&'static str),
    /// Outcomes would outlive their keys.
    #[error("remember ({remember:?}) is shorter than replay_window ({replay_window:?})")]
    ForgetsEarlier {
        /// The chosen `remember`.
        remember: Duration,
        /// The longer `replay_window`.
        replay_window: Duration,
    },
}

impl RecordOptions {
    /// The same options with changes:
    /// `RecordOptions::default().with(|options| options.lease = lease)`.
    #[must_use]
    pub fn with(mut self, change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        self
    }

    fn checked(&self) -> Result<Terms, RecordOptionsError> {
        let remember = self.remember.unwrap_or(self.replay_window);
        for (name, span) in [
            ("replay_window", self.replay_window),
            ("remember", remember),
            ("lease", self.lease),
        ] {
            if span.as_millis() == 0 {
                return Err(RecordOptionsError::Zero(name));
            }
            if span > SPAN_MAX {
                return Err(RecordOptionsError::Endless(name));
            }
        }
        if remember < self.replay_window {
            return Err(RecordOptionsError::ForgetsEarlier {
                remember,
                replay_window: self.replay_window,
            });
        }
        Ok(Terms {
            class: CLASS.into(),
            lease: self.lease,
            retention: self.replay_window,
            remember,
            after_loss: self.after_loss,
            ttl_basis: TtlBasis::Completion,
            expiry: self.expiry,
            keep_expired: Duration::ZERO,
        })
    }
}

/// A namespace with checked options.
#[derive(Clone, Debug)]
pub struct Scope {
    namespace: Namespace,
    caller: Caller,
    terms: Terms,
}

impl Scope {
    /// A namespace with [`RecordOptions::default`].
    pub fn new(namespace: Namespace) -> Self {
        let terms = RecordOptions::default().checked();
        let subject = Subject::new(SubjectKind::Client, "anonymous");
        let caller = subject
            .and_then(|subject| Caller::trusted(TENANT, namespace.as_str(), subject))
            .expect("a namespace is a good name of a project");
        Self {
            namespace,
            caller,
            terms: terms.expect("the default is good"),
        }
    }

    /// The same namespace with other options.
    pub fn with_options(self, options: &RecordOptions) -> Result<Self, RecordOptionsError> {
        let terms = options.checked()?;
        Ok(Self { terms, ..self })
    }

    /// The namespace.
    pub fn namespace(&self) -> &Namespace {
        &self.namespace
    }

    /// The terms that a record freezes.
    pub fn terms(&self) -> &Terms {
        &self.terms
    }

    /// The identity of the operation of a key. The namespace is its project and
    /// its endpoint, so that operators find it as they find any other.
    pub(crate) fn identity(&self, key: &ScopedKey) -> Identity {
        Identity {
            caller: self.caller.clone(),
            endpoint: Endpoint::new(self.namespace.as_str()),
            key: key.key().clone(),
            space: KeySpace::Endpoint,
        }
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn chosen(change: impl FnOnce(&mut RecordOptions)) -> RecordOptions {
        let mut options = RecordOptions::default();
        change(&mut options);
        options
    }

    #[rstest]
    #[case::default(RecordOptions::default(), Ok(()))]
    #[case::equal(chosen(|k| k.remember = Some(DAY)), Ok(()))]
    #[case::longer(chosen(|k| k.remember = Some(2 * DAY)), Ok(()))]
    #[case::the_longest(chosen(|k| k.replay_window = SPAN_MAX), Ok(()))]
    #[case::no_window(
        chosen(|k| k.replay_window = Duration::ZERO),
        Err(RecordOptionsError::Zero("replay_window"))
    )]
    #[case::less_than_is_counted(
        chosen(|k| k.lease = Duration::from_micros(999)),
        Err(RecordOptionsError::Zero("lease"))
    )]
    #[case::endless(
        chosen(|k| k.replay_window = Duration::MAX),
        Err(RecordOptionsError::Endless("replay_window"))
    )]
    #[case::endless_memory(
        chosen(|k| k.remember = Some(SPAN_MAX + SECOND)),
        Err(RecordOptionsError::Endless("remember"))
    )]
    #[case::endless_lease(
        chosen(|k| k.lease = Duration::MAX),
        Err(RecordOptionsError::Endless("lease"))
    )]
    #[case::forgets_earlier(
        chosen(|k| k.remember = Some(DAY - SECOND)),
        Err(RecordOptionsError::ForgetsEarlier { remember: DAY - SECOND, replay_window: DAY })
    )]
    fn choices(#[case] options: RecordOptions, #[case] want: Result<(), RecordOptionsError>) {
        let scope = Scope::new(Namespace::edge()).with_options(&options);
        assert_eq!(scope.map(|_| ()), want);
    }
}
