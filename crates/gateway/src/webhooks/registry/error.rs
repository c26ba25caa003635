//! Why webhooks could not be read, used or changed.

use onceward_core::store::StoreError;

use super::document::DocumentError;
use crate::config::Mistake;
use crate::secrets;
use crate::upstream::fetch::FetchError;

/// Why not. No text holds a secret.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WebhooksError {
    /// What was asked for cannot be; which field, what is wrong, what is right.
    #[error("{0}")]
    Mistaken(Box<Mistake>),
    /// It would be one too many.
    #[error("there are {} webhooks already", super::WEBHOOKS_MAX)]
    TooMany,
    /// The registry holds more than may be read.
    #[error("the registry holds more than {} webhooks", super::WEBHOOKS_MAX)]
    Overfull,
    /// So many secrets are valid that another would be one too many.
    #[error(
        "{} of its secrets are valid, and no more may be at a time; rotate with an overlap of 0s to end them now",
        super::SECRETS_MAX
    )]
    TooManySecrets,
    /// Its secrets are not ours to change.
    #[error(
        "its secrets are in OpenBao; write the new one to the field `secret` of {path}, and keep the old one in `secret_old` for as long as it is to count"
    )]
    InOpenBao {
        /// Where they are.
        path: String,
    },
    /// What the registry says of it does not go with the configuration.
    #[error("the webhook {id} cannot be served: {source}")]
    Unfit {
        /// Which.
        id: String,
        /// What does not fit.
        source: Box<Mistake>,
    },
    /// None of what should be its secrets is one.
    #[error("the webhook {id} has no secret that its provider could have: {problem}")]
    NoSecret {
        /// Which.
        id: String,
        /// What is the matter.
        problem: NoSecret,
    },
    /// What is kept under this id is not a webhook's document.
    #[error("the document of webhook {id} is damaged")]
    Damaged {
        /// Which.
        id: String,
        /// What is wrong with it.
        source: DocumentError,
    },
    /// A secret cannot be read.
    #[error(transparent)]
    Secret(#[from] secrets::SecretError),
    /// Unkey does not answer, so nobody knows whether there is such a webhook.
    #[error("Unkey cannot be asked now whether there is such a webhook")]
    Unkey,
    /// Unkey is at no URL that could be asked.
    #[error("Unkey cannot be asked: {0}")]
    UnkeySetup(#[source] FetchError),
    /// What the configuration gives to sign with is no signing secret.
    #[error("the signing_secret of upstream {upstream} is not `whsec_` and base64")]
    Signing {
        /// Whose.
        upstream: String,
    },
    /// The store failed; whether the change was made is not known.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A document could not be written down.
    #[error("a webhook's document could not be written")]
    Wire(#[source] serde_json::Error),
    /// The system gives no random bytes.
    #[error("the system gives no random bytes")]
    Random(#[from] getrandom::Error),
    /// Every id that was drawn was taken, which chance does not do.
    #[error("no free id was found; the system's random bytes are not random")]
    Drawn,
}

/// Why a webhook has nothing to verify with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NoSecret {
    /// There is none that counts now.
    #[error("none is valid now")]
    Ended,
    /// The secret in OpenBao has no such field.
    #[error("OpenBao has no field `secret` or `secret_…` for it")]
    NoField,
    /// More than may be tried.
    #[error("OpenBao has more than {} of them", super::SECRETS_MAX)]
    TooMany,
    /// It is there, and the provider's secrets look otherwise.
    #[error("one of them is not of the provider's form")]
    Malformed,
}

impl WebhooksError {
    /// A field of a request that is not as it should be.
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
