//! A webhook as it is stored, and as it is in memory.
//!
//! The document is versioned JSON with sealed secrets. Secrets are unsealed when
//! the document is read, so that a damaged document is found then and not when an
//! event arrives.

use std::sync::Arc;

use bytes::Bytes;
use onceward_core::caller::{Caller, CallerError, Subject, SubjectKind, WEBHOOK_INGEST};
use onceward_core::clock::Timestamp;
use secrecy::{ExposeSecret, SecretString};
use serde::{Deserialize, Serialize};

use super::error::WebhooksError;
use super::seal::{SealContext, SecretSealer, UnsealError};
use crate::config::{Deliver, SameBytes, path_problem};

/// The version of a document.
const VERSION: u32 = 1;

/// A webhook's own settings. `None` means the configured default.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Registration {
    /// Its id, which is in its URL.
    pub(crate) id: Arc<str>,
    /// The caller of its events: its tenant and project, and the gateway's own
    /// subject for events.
    pub(crate) caller: Caller,
    /// The provider's name.
    pub(crate) provider: Arc<str>,
    /// The provider's signature scheme, if it has several.
    pub(crate) scheme: Option<Arc<str>>,
    /// The upstream of its events.
    pub(crate) upstream: Option<Arc<str>>,
    /// The path at the upstream.
    pub(crate) path: Option<String>,
    /// Whether events are queued.
    pub(crate) deliver: Option<Deliver>,
    /// What happens to the same bytes under another id.
    pub(crate) same_bytes: Option<SameBytes>,
    /// When it was created.
    pub(crate) created_at: Timestamp,
}

/// Where the secrets of a webhook are.
#[derive(Clone, Debug)]
pub(super) enum StoredSecrets {
    /// Sealed in the document.
    Sealed(Vec<StoredSecret>),
    /// In OpenBao, at the path of its tenant, project and provider.
    OpenBao,
}

/// A secret of a webhook.
#[derive(Clone, Debug)]
pub(super) struct StoredSecret {
    /// Its number, which no other secret of the webhook ever had.
    pub(super) serial: u32,
    pub(super) text: SecretString,
    pub(super) created_at: Timestamp,
    /// When it ends; the current one has no end.
    pub(super) until: Option<Timestamp>,
}

impl StoredSecret {
    pub(super) fn is_valid(&self, now: Timestamp) -> bool {
        self.until.is_none_or(|until| now < until)
    }

    /// Whether it is this secret. Only operators give both, so the comparison
    /// need not take constant time.
    pub(super) fn is(&self, text: &SecretString) -> bool {
        self.text.expose_secret() == text.expose_secret()
    }
}

/// Why a document cannot be read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DocumentError {
    /// Not the JSON of a webhook.
    #[error("it is not the JSON of a webhook")]
    Json(#[from] serde_json::Error),
    /// From another version of this program.
    #[error("it has version {0}")]
    Version(u32),
    /// A value that this version does not know.
    #[error("its {0} has an unknown value")]
    Word(&'static str),
    /// Not a valid path.
    #[error("its path {0}")]
    Path(&'static str),
    /// Its tenant or project is not valid.
    #[error(transparent)]
    Caller(#[from] CallerError),
    /// A secret cannot be unsealed.
    #[error(transparent)]
    Unseal(#[from] UnsealError),
}

/// The caller of the events of a tenant's project. The names follow the rules for
/// claims, so that no webhook uses a reserved one.
pub(super) fn caller(tenant: &str, project: &str) -> Result<Caller, CallerError> {
    let claimed = Subject::new(SubjectKind::Service, "anybody")?;
    Caller::claimed(tenant, project, claimed)?;
    let ingest = Subject::new(SubjectKind::Service, WEBHOOK_INGEST)?;
    Caller::trusted(tenant, project, ingest)
}

pub(super) fn write(
    registration: &Registration,
    secrets: &StoredSecrets,
    sealer: &SecretSealer,
) -> Result<Bytes, WebhooksError> {
    let secrets = match secrets {
        StoredSecrets::OpenBao => None,
        StoredSecrets::Sealed(secrets) => {
            let sealed = secrets.iter().map(|secret| {
                let context = seal_context(&registration.id, secret.serial);
                Ok(Sealed {
                    serial: secret.serial,
                    sealed: sealer.seal(context, &secret.text)?,
                    created_at: secret.created_at.unix_ms(),
                    until: secret.until.map(Timestamp::unix_ms),
                })
            });
            Some(sealed.collect::<Result<Vec<_>, getrandom::Error>>()?)
        }
    };
    let owned = |text: &Arc<str>| text.as_ref().to_owned();
    let document = WebhookDocument {
        version: VERSION,
        tenant: registration.caller.tenant().to_owned(),
        project: registration.caller.project().to_owned(),
        provider: owned(&registration.provider),
        scheme: registration.scheme.as_ref().map(owned),
        upstream: registration.upstream.as_ref().map(owned),
        path: registration.path.clone(),
        deliver: registration
            .deliver
            .map(|deliver| deliver.as_str().to_owned()),
        same_bytes: registration.same_bytes.map(|same| same.as_str().to_owned()),
        created_at: registration.created_at.unix_ms(),
        secrets,
    };
    let written = serde_json::to_vec(&document).map_err(WebhooksError::Wire)?;
    Ok(written.into())
}

pub(super) fn read(
    id: &str,
    bytes: &[u8],
    sealer: &SecretSealer,
) -> Result<(Registration, StoredSecrets), DocumentError> {
    let document: WebhookDocument = serde_json::from_slice(bytes)?;
    if document.version != VERSION {
        return Err(DocumentError::Version(document.version));
    }
    if let Some(problem) = document.path.as_deref().and_then(path_problem) {
        return Err(DocumentError::Path(problem));
    }
    let registration = Registration {
        id: id.into(),
        caller: caller(&document.tenant, &document.project)?,
        provider: document.provider.into(),
        scheme: document.scheme.map(Into::into),
        upstream: document.upstream.map(Into::into),
        path: document.path,
        deliver: word("deliver", document.deliver.as_deref(), Deliver::parse)?,
        same_bytes: word(
            "same_bytes",
            document.same_bytes.as_deref(),
            SameBytes::parse,
        )?,
        created_at: Timestamp::from_unix_ms(document.created_at),
    };
    let Some(secrets) = document.secrets else {
        return Ok((registration, StoredSecrets::OpenBao));
    };
    let unsealed = secrets.into_iter().map(|secret| {
        Ok(StoredSecret {
            serial: secret.serial,
            text: sealer.unseal(seal_context(id, secret.serial), &secret.sealed)?,
            created_at: Timestamp::from_unix_ms(secret.created_at),
            until: secret.until.map(Timestamp::from_unix_ms),
        })
    });
    let unsealed = unsealed.collect::<Result<Vec<_>, UnsealError>>()?;
    Ok((registration, StoredSecrets::Sealed(unsealed)))
}

fn word<T>(
    what: &'static str,
    text: Option<&str>,
    parse: impl Fn(&str) -> Option<T>,
) -> Result<Option<T>, DocumentError> {
    let parsed = text.map(|text| parse(text).ok_or(DocumentError::Word(what)));
    parsed.transpose()
}

fn seal_context(webhook: &str, serial: u32) -> SealContext<'_> {
    SealContext {
        version: VERSION,
        webhook,
        serial,
    }
}

/// A webhook as it is stored.
#[derive(Serialize, Deserialize)]
struct WebhookDocument {
    version: u32,
    tenant: String,
    project: String,
    provider: String,
    scheme: Option<String>,
    upstream: Option<String>,
    path: Option<String>,
    deliver: Option<String>,
    same_bytes: Option<String>,
    created_at: u64,
    /// None if they are in OpenBao.
    secrets: Option<Vec<Sealed>>,
}

#[derive(Serialize, Deserialize)]
struct Sealed {
    serial: u32,
    sealed: String,
    created_at: u64,
    until: Option<u64>,
}
