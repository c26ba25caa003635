//! Reads secrets from the configuration or from OpenBao.
//!
//! Code that needs a secret reads it each time and does not keep it, so a secret
//! changed in OpenBao is used within half a minute, without a restart.

pub(crate) mod gateway_key;
mod openbao;
pub(crate) mod random;
#[cfg(test)]
pub(crate) mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;

use http::StatusCode;
use secrecy::SecretString;

use self::openbao::OpenBaoClient;
use crate::config;
use crate::upstream::fetch::FetchError;

/// The fields of one secret.
pub(crate) type SecretFields = BTreeMap<String, SecretString>;

/// Reads secrets. Clones share one cache.
#[derive(Clone)]
pub(crate) struct SecretReader {
    openbao: Option<Arc<OpenBaoClient>>,
}

/// Why a secret cannot be read. The texts name its path, never its value.
#[derive(Clone, Debug, thiserror::Error)]
pub(crate) enum SecretError {
    /// The configuration refers to OpenBao and does not configure it.
    #[error("the secret {path} is in OpenBao, and [secrets.openbao] is not configured")]
    NotConfigured {
        /// The path of the secret.
        path: String,
    },
    /// The address of OpenBao cannot be used.
    #[error("the address of OpenBao cannot be used")]
    Setup(#[source] Arc<FetchError>),
    /// A configured value is not allowed in a header.
    #[error("the {0} of OpenBao has characters that are not allowed in a header")]
    Unsendable(&'static str),
    /// The path is malformed.
    #[error("{path} is not the path of a secret in OpenBao")]
    Path {
        /// The path as given.
        path: String,
    },
    /// The secret does not exist, or was deleted.
    #[error("there is no secret {path} in OpenBao")]
    Absent {
        /// The path of the secret.
        path: String,
    },
    /// The gateway may not read the secret.
    #[error("OpenBao does not allow reading the secret {path}")]
    Denied {
        /// The path of the secret.
        path: String,
    },
    /// The secret has no such field, or it is not text.
    #[error("the secret {path} in OpenBao has no text field {field}")]
    Field {
        /// The path of the secret.
        path: String,
        /// The name of the field.
        field: String,
    },
    /// OpenBao refused the login.
    #[error("OpenBao refused the login (status {0})")]
    Login(StatusCode),
    /// OpenBao is unreachable, slow, sealed, or sends something undocumented.
    #[error("OpenBao is unavailable: {0}")]
    Unavailable(Arc<UnavailableError>),
}

/// How OpenBao failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum UnavailableError {
    /// There was no response.
    #[error(transparent)]
    Fetch(FetchError),
    /// The status does not show whether the secret exists.
    #[error("status {0}")]
    Status(StatusCode),
    /// The body is not the documented JSON.
    #[error("the response is malformed")]
    Malformed,
}

impl From<UnavailableError> for SecretError {
    fn from(error: UnavailableError) -> Self {
        Self::Unavailable(Arc::new(error))
    }
}

impl SecretReader {
    /// Opens no connection until a secret is read.
    pub(crate) fn new(secrets: &config::Secrets) -> Result<Self, SecretError> {
        let openbao = match &secrets.openbao {
            None => None,
            Some(settings) => Some(Arc::new(OpenBaoClient::new(
                settings,
                openbao::CacheTiming::default(),
            )?)),
        };
        Ok(Self { openbao })
    }

    /// The value of a secret.
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
    pub(crate) async fn read_path(&self, path: &str) -> Result<Arc<SecretFields>, SecretError> {
        match &self.openbao {
            Some(openbao) => openbao.read(path).await,
            None => Err(SecretError::NotConfigured {
                path: path.to_owned(),
            }),
        }
    }
}
