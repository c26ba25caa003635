//! Errors that are kept and replayed: a class tag, a message and a flat cause.
//! Tags outlive programs, so an unknown tag has a representation too.

use std::error::Error as StdError;
use std::fmt;

/// How much of a chain of causes is kept.
const CAUSES_MAX: usize = 32;

/// An error as a record keeps it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredError {
    /// The kind of error, named by the application.
    pub class: String,
    /// The message for people.
    pub message: String,
    /// Its cause, in one line.
    pub cause: Option<String>,
}

impl StoredError {
    /// An error of this class with this message.
    pub fn new(class: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            class: class.into(),
            message: message.into(),
            cause: None,
        }
    }

    /// The stored form of an error.
    pub fn of(error: &impl Failure) -> Self {
        Self {
            class: error.class().to_owned(),
            message: error.to_string(),
            cause: error.reason(),
        }
    }

    /// The original error. A tag that the type does not know, because an earlier or
    /// a later version of the program wrote it, is an internal error that keeps tag
    /// and message.
    pub fn restore<E: Failure>(self) -> Result<E, InternalError> {
        E::restore(&self).ok_or(InternalError(self))
    }
}

impl fmt::Display for StoredError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl StdError for StoredError {}

/// An application's error that can be kept.
///
/// ```
/// use onceward_core::application::{Failure, StoredError};
///
/// #[derive(Debug, PartialEq, thiserror::Error)]
/// enum Refused {
///     #[error("the card was declined")]
///     Declined,
/// }
///
/// impl Failure for Refused {
///     fn class(&self) -> &str {
///         "declined"
///     }
///     fn restore(stored: &StoredError) -> Option<Self> {
///         (stored.class == "declined").then_some(Self::Declined)
///     }
/// }
///
/// let stored = StoredError::of(&Refused::Declined);
/// assert_eq!(stored.restore::<Refused>(), Ok(Refused::Declined));
/// ```
pub trait Failure: StdError + Sized {
    /// The tag of this kind of error. Records outlive the program: a tag that was
    /// once used must keep its meaning.
    fn class(&self) -> &str;

    /// Its cause, in one line: its sources.
    fn reason(&self) -> Option<String> {
        flattened(self.source())
    }

    /// The error from its stored form; `None` if the class is not known.
    fn restore(stored: &StoredError) -> Option<Self>;
}

/// For applications without an error type of their own.
impl Failure for StoredError {
    fn class(&self) -> &str {
        &self.class
    }

    fn reason(&self) -> Option<String> {
        self.cause.clone()
    }

    fn restore(stored: &StoredError) -> Option<Self> {
        Some(stored.clone())
    }
}

/// A kept error whose class this program does not know.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an error of the unknown class {:?} was recorded: {}", .0.class, .0.message)]
pub struct InternalError(pub StoredError);

/// A chain of causes in one line.
fn flattened(cause: Option<&(dyn StdError + 'static)>) -> Option<String> {
    let causes = std::iter::successors(cause, |&cause| cause.source());
    let causes: Vec<_> = causes.take(CAUSES_MAX).map(ToString::to_string).collect();
    (!causes.is_empty()).then(|| causes.join(": "))
}
