//! Errors of the registry of webhooks.

use onceward_core::store::StoreError;

use super::document::DocumentError;
use crate::config::Mistake;
use crate::secrets;
use crate::upstream::fetch::FetchError;

/// Why a webhook could not be read, used or changed. No text contains a secret.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WebhooksError {
    /// A field of the request is wrong; the text has the mistake and its correction.
    #[error("{0}")]
    Mistaken(Box<Mistake>),
    /// There are as many webhooks as are allowed.
    #[error("the limit of {} webhooks is reached", super::WEBHOOKS_MAX)]
    TooMany,
    /// The registry holds more than may be read.
    #[error("the registry holds more than {} webhooks", super::WEBHOOKS_MAX)]
    Overfull,
    /// The webhook has as many valid secrets as are allowed.
    #[error(
        "the webhook has {} valid secrets, the maximum; rotate with an overlap of 0s to end them now",
        super::SECRETS_MAX
    )]
    TooManySecrets,
    /// Its secrets are changed in OpenBao.
    #[error(
        "the webhook's secrets are in OpenBao; write the new one to the field `secret` of {path}, and keep the old one in `secret_old` while it is to stay valid"
    )]
    InOpenBao {
        /// Their path.
        path: String,
    },
    /// The configuration cannot serve it.
    #[error("the webhook {id} cannot be served: {source}")]
    Unfit {
        /// The webhook's id.
        id: String,
        /// The conflict with the configuration.
        source: Box<Mistake>,
    },
    /// It has no usable secret.
    #[error("the webhook {id} has no usable secret: {problem}")]
    NoSecret {
        /// The webhook's id.
        id: String,
        /// Why.
        problem: NoSecret,
    },
    /// The stored document cannot be read.
    #[error("the document of webhook {id} is damaged")]
    Damaged {
        /// The webhook's id.
        id: String,
        /// Why.
        source: DocumentError,
    },
    /// A secret cannot be read.
    #[error(transparent)]
    Secret(#[from] secrets::SecretError),
    /// Unkey does not answer, so whether the webhook exists is not known.
    #[error("Unkey does not answer whether the webhook exists")]
    Unkey,
    /// The client for Unkey cannot be set up.
    #[error("the client for Unkey cannot be set up: {0}")]
    UnkeySetup(#[source] FetchError),
    /// The configured signing secret is malformed.
    #[error("the signing_secret of upstream {upstream} is not `whsec_` and base64")]
    Signing {
        /// The upstream's name.
        upstream: String,
    },
    /// The store failed; whether the change was made is not known.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A document could not be serialised.
    #[error("a webhook's document could not be serialised")]
    Wire(#[source] serde_json::Error),
    /// The system provides no random bytes.
    #[error("the system provides no random bytes")]
    Random(#[from] getrandom::Error),
    /// Every generated id was taken, which does not happen by chance.
    #[error("no free id was found; the system's random bytes are not random")]
    NoFreeId,
}

/// Why a webhook has no usable secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NoSecret {
    /// None is valid now.
    #[error("none is valid now")]
    Ended,
    /// The secret in OpenBao has no such field.
    #[error("OpenBao has no field `secret` or `secret_…` for it")]
    NoField,
    /// There are more than are tried.
    #[error("OpenBao has more than {} secrets for it", super::SECRETS_MAX)]
    TooMany,
    /// A secret does not have the provider's form.
    #[error("one of its secrets does not have the provider's form")]
    Malformed,
}

impl WebhooksError {
    /// A mistaken field of a request.
    pub(super) fn mistaken(
        key: &str,
        problem: impl Into<String>,
        right: impl Into<String>,
    ) -> Self {
        Self::Mistaken(Box::new(Mistake::given(key, problem.into(), right.into())))
    }
}

impl From<Mistake> for WebhooksError {
    fn from(mistake: Mistake) -> Self {
        Self::Mistaken(Box::new(mistake))
    }
}
