//! Outcomes as an application's own API may send them. A type apart from
//! [`Begun`], because what is told outside is less: never the recorded request,
//! and of an error only code and message.

use serde::{Deserialize, Serialize};

use super::failure::{Failure, StoredError};
use super::outcome::{Begun, Fresh};

/// The version of this form.
const VERSION: u32 = 1;

/// An outcome on the wire: `{"version": 1, "kind": "Created", "result": …}`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct Outcome<Res> {
    #[serde(deserialize_with = "known_version")]
    version: u32,
    /// What it is.
    #[serde(flatten)]
    pub kind: OutcomeKind<Res>,
}

/// What an outcome is.
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
    /// An earlier request is being worked on.
    OperationInProgress,
    /// The key belongs to a different request. Nothing of that is told.
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
    /// What people read.
    pub message: String,
}

impl<Res> Outcome<Res> {
    /// What was committed just now.
    pub fn created(result: Res) -> Self {
        OutcomeKind::Created { result }.into()
    }

    /// What failed for good just now.
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
    /// What a caller is told where nothing is to be run, else the right to run.
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
