//! Where secrets come from: the configuration itself, or OpenBao.
//!
//! A secret is read when it is needed and not kept by who needed it, so one
//! that is changed in OpenBao is in use within half a minute, without a restart.

pub(crate) mod gateway_key;
mod openbao;
pub(crate) mod random;
#[cfg(test)]
pub(crate) mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;

use http::StatusCode;
use secrecy::SecretString;

use self::openbao::OpenBao;
use crate::config;
use crate::upstream::fetch::FetchError;

/// The fields of one secret.
pub(crate) type Fields = BTreeMap<String, SecretString>;

/// Reads secrets. Clones share what they know.
#[derive(Clone)]
pub(crate) struct SecretReader {
    openbao: Option<Arc<OpenBao>>,
}

/// Why there is no secret. The texts name where it should be, never what it is.
#[derive(Clone, Debug, thiserror::Error)]
pub(crate) enum SecretError {
    /// A secret is said to be in OpenBao, and there is no OpenBao.
    #[error("the secret {path} is in OpenBao, and [secrets.openbao] is not configured")]
    NotConfigured {
        /// Which secret.
        path: String,
    },
    /// OpenBao cannot be set up.
    #[error("OpenBao cannot be asked")]
    Setup(#[source] Arc<FetchError>),
    /// What is configured cannot stand in a header.
    #[error("OpenBao's {0} holds characters that cannot be sent")]
    Unsendable(&'static str),
    /// The path is none.
    #[error("{path} is not the path of a secret in OpenBao")]
    Path {
        /// Which.
        path: String,
    },
    /// There is no such secret, or it was deleted.
    #[error("there is no secret {path} in OpenBao")]
    Absent {
        /// Which.
        path: String,
    },
    /// We may not read it.
    #[error("OpenBao does not let us read the secret {path}")]
    Denied {
        /// Which.
        path: String,
    },
    /// The secret has no such field, or it is not text.
    #[error("the secret {path} in OpenBao has no text field {field}")]
    Field {
        /// Which secret.
        path: String,
        /// Which field.
        field: String,
    },
    /// OpenBao does not let us in.
    #[error("OpenBao refuses the login (it answers {0})")]
    Login(StatusCode),
    /// OpenBao is away, slow, sealed or not what it should be.
    #[error("OpenBao is away: {0}")]
    Away(Arc<AwayError>),
}

/// How OpenBao failed to answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AwayError {
    /// No answer.
    #[error(transparent)]
    Fetch(FetchError),
    /// An answer that settles nothing.
    #[error("it answers {0}")]
    Status(StatusCode),
    /// Not the JSON of OpenBao.
    #[error("its answer is not what OpenBao says")]
    Malformed,
}

impl From<AwayError> for SecretError {
    fn from(error: AwayError) -> Self {
        Self::Away(Arc::new(error))
    }
}

impl SecretReader {
    /// Opens no connection yet.
    pub(crate) fn new(secrets: &config::Secrets) -> Result<Self, SecretError> {
        let openbao = match &secrets.openbao {
            None => None,
            Some(settings) => Some(Arc::new(OpenBao::new(settings, openbao::Pace::default())?)),
        };
        Ok(Self { openbao })
    }

    /// The secret that is meant.
    pub(crate) async fn read(
        &self,
        value: &config::SecretValue,
    ) -> Result<SecretString, SecretError> {
        match value {
            config::SecretValue::Given(secret) => Ok(secret.clone()),
            config::SecretValue::OpenBao { path, field } => {
                let fields = self.read_path(path).await?;
                let secret = fields.get(field).cloned();
                secret.ok_or_else(|| SecretError::Field {
                    path: path.clone(),
                    field: field.clone(),
                })
            }
        }
    }

    /// All text fields of a secret in OpenBao.
    pub(crate) async fn read_path(&self, path: &str) -> Result<Arc<Fields>, SecretError> {
        match &self.openbao {
            Some(openbao) => openbao.read(path).await,
            None => Err(SecretError::NotConfigured {
                path: path.to_owned(),
            }),
        }
    }
}
