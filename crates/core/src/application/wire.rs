//! Outcomes as an application's own API may send them. A type apart from
//! [`Begun`], because outsiders learn less: never the recorded request, and only
//! code and message of an error.

use serde::{Deserialize, Serialize};

use super::failure::{Failure, StoredError};
use super::outcome::{Begun, Fresh};

/// The version of this format.
const VERSION: u32 = 1;

/// An outcome on the wire: `{"version": 1, "kind": "Created", "result": …}`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct Outcome<Res> {
    #[serde(deserialize_with = "known_version")]
    version: u32,
    /// Its kind.
    #[serde(flatten)]
    pub kind: OutcomeKind<Res>,
}

/// The kind of an outcome.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(tag = "kind")]
pub enum OutcomeKind<Res> {
    /// It was done by this request.
    Created {
        /// With this result.
        result: Res,
    },
    /// It was done by an earlier request.
    PreExisting {
        /// With this result.
        result: Res,
    },
    /// An earlier request is still running.
    OperationInProgress,
    /// The key belongs to a different request, of which nothing is disclosed.
    Mismatch,
    /// It failed for good, now or earlier.
    Failed {
        /// With this error.
        error: OutcomeError,
    },
}

/// An error on the wire, flat.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct OutcomeError {
    /// Its class.
    pub code: String,
    /// The message for people.
    pub message: String,
}

impl<Res> Outcome<Res> {
    /// The outcome of a commit.
    pub fn created(result: Res) -> Self {
        OutcomeKind::Created { result }.into()
    }

    /// The outcome of a failure for good.
    pub fn failed(error: &impl Failure) -> Self {
        let error = OutcomeError::from(StoredError::of(error));
        OutcomeKind::Failed { error }.into()
    }
}

impl<Res> From<OutcomeKind<Res>> for Outcome<Res> {
    fn from(kind: OutcomeKind<Res>) -> Self {
        Self {
            version: VERSION,
            kind,
        }
    }
}

impl From<StoredError> for OutcomeError {
    fn from(error: StoredError) -> Self {
        Self {
            code: error.class,
            message: error.message,
        }
    }
}

impl<Req, Res> Begun<Req, Res> {
    /// The outcome where nothing is to be run, otherwise the right to run.
    pub fn outcome(self) -> Result<Outcome<Res>, Fresh> {
        let kind = match self {
            Self::Fresh(fresh) => return Err(fresh),
            Self::InFlight => OutcomeKind::OperationInProgress,
            Self::PriorResult(result) => OutcomeKind::PreExisting { result },
            Self::PriorError(error) => OutcomeKind::Failed {
                error: error.into(),
            },
            Self::Mismatch(_) => OutcomeKind::Mismatch,
        };
        Ok(kind.into())
    }
}

fn known_version<'de, D: serde::Deserializer<'de>>(source: D) -> Result<u32, D::Error> {
    let version = u32::deserialize(source)?;
    if version == VERSION {
        return Ok(version);
    }
    let words = format!("an outcome of version {version}; {VERSION} is known");
    Err(serde::de::Error::custom(words))
}
