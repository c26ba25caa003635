//! A webhook as it is kept, and as it is held in memory.
//!
//! The document is versioned JSON; its secrets stand in it sealed. What was
//! read is opened at once, so that a document that does not open is found when
//! it is read and not when an event comes.

use std::sync::Arc;

use bytes::Bytes;
use onceward_core::caller::{Caller, CallerError, Subject, SubjectKind, WEBHOOK_INGEST};
use onceward_core::clock::Timestamp;
use secrecy::{ExposeSecret, SecretString};
use serde::{Deserialize, Serialize};

use super::error::WebhooksError;
use super::seal::{Broken, Label, Seal};
use crate::config::{Deliver, SameBytes, path_problem};

/// The version of a document.
const VERSION: u32 = 1;

/// What was said of a webhook when it was made. What is `None` is as the
/// configuration says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    /// Its id, which is in its URL.
    pub(crate) id: Arc<str>,
    /// As whom its events come in: its tenant and project, and the gateway's
    /// own subject for them.
    pub(crate) caller: Caller,
    /// Who sends them, by name.
    pub(crate) provider: Arc<str>,
    /// How they are signed, where the provider has several ways.
    pub(crate) scheme: Option<Arc<str>>,
    /// Where they go.
    pub(crate) upstream: Option<Arc<str>>,
    /// Under which path.
    pub(crate) path: Option<String>,
    /// When they go.
    pub(crate) deliver: Option<Deliver>,
    /// What becomes of the same bytes under another id.
    pub(crate) same_bytes: Option<SameBytes>,
    /// When it was made.
    pub(crate) created_at: Timestamp,
}

/// Where the secrets of a webhook are.
#[derive(Clone, Debug)]
pub(super) enum Kept {
    /// Here, sealed in the document.
    Sealed(Vec<Held>),
    /// In OpenBao, at the path of its names.
    OpenBao,
}

/// A secret of a webhook.
#[derive(Clone, Debug)]
pub(super) struct Held {
    /// Its number, which no other secret of the webhook ever had.
    pub(super) serial: u32,
    pub(super) text: SecretString,
    pub(super) created_at: Timestamp,
    /// When it ends; one that is current has no end.
    pub(super) until: Option<Timestamp>,
}

impl Held {
    pub(super) fn is_valid(&self, now: Timestamp) -> bool {
        self.until.is_none_or(|until| now < until)
    }

    /// Whether it is this secret. Both are ours; there is nobody to time it.
    pub(super) fn is(&self, text: &SecretString) -> bool {
        self.text.expose_secret() == text.expose_secret()
    }
}

/// Why a document is not a webhook's.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DocumentError {
    /// Not our JSON.
    #[error("it is not the JSON of a webhook")]
    Json(#[from] serde_json::Error),
    /// From another version of this program.
    #[error("it has version {0}")]
    Version(u32),
    /// A word that this version does not know.
    #[error("its {0} is a word that is not known")]
    Word(&'static str),
    /// It leads where no upstream's path does.
    #[error("its path {0}")]
    Path(&'static str),
    /// Its names do not make a caller.
    #[error(transparent)]
    Caller(#[from] CallerError),
    /// A secret of it does not open.
    #[error(transparent)]
    Broken(#[from] Broken),
}

/// As whom the events of a tenant's project come in. The names are held to what
/// a token could claim, so that no webhook speaks for the gateway itself.
pub(super) fn caller(tenant: &str, project: &str) -> Result<Caller, CallerError> {
    let anybody = Subject::new(SubjectKind::Service, "anybody")?;
    Caller::claimed(tenant, project, anybody)?;
    let ingest = Subject::new(SubjectKind::Service, WEBHOOK_INGEST)?;
    Caller::trusted(tenant, project, ingest)
}

pub(super) fn write(record: &Record, kept: &Kept, seal: &Seal) -> Result<Bytes, WebhooksError> {
    let secrets = match kept {
        Kept::OpenBao => None,
        Kept::Sealed(held) => {
            let sealed = held.iter().map(|held| {
                let label = label(&record.id, held.serial);
                Ok(Sealed {
                    serial: held.serial,
                    sealed: seal.seal(label, &held.text)?,
                    created_at: held.created_at.unix_ms(),
                    until: held.until.map(Timestamp::unix_ms),
                })
            });
            Some(sealed.collect::<Result<Vec<_>, getrandom::Error>>()?)
        }
    };
    let owned = |text: &Arc<str>| text.as_ref().to_owned();
    let document = Document {
        version: VERSION,
        tenant: record.caller.tenant().to_owned(),
        project: record.caller.project().to_owned(),
        provider: owned(&record.provider),
        scheme: record.scheme.as_ref().map(owned),
        upstream: record.upstream.as_ref().map(owned),
        path: record.path.clone(),
        deliver: record.deliver.map(|deliver| deliver.as_str().to_owned()),
        same_bytes: record.same_bytes.map(|same| same.as_str().to_owned()),
        created_at: record.created_at.unix_ms(),
        secrets,
    };
    let written = serde_json::to_vec(&document).map_err(WebhooksError::Wire)?;
    Ok(written.into())
}

pub(super) fn read(id: &str, bytes: &[u8], seal: &Seal) -> Result<(Record, Kept), DocumentError> {
    let document: Document = serde_json::from_slice(bytes)?;
    if document.version != VERSION {
        return Err(DocumentError::Version(document.version));
    }
    if let Some(problem) = document.path.as_deref().and_then(path_problem) {
        return Err(DocumentError::Path(problem));
    }
    let record = Record {
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
        return Ok((record, Kept::OpenBao));
    };
    let held = secrets.into_iter().map(|secret| {
        Ok(Held {
            serial: secret.serial,
            text: seal.open(label(id, secret.serial), &secret.sealed)?,
            created_at: Timestamp::from_unix_ms(secret.created_at),
            until: secret.until.map(Timestamp::from_unix_ms),
        })
    });
    let held = held.collect::<Result<Vec<_>, Broken>>()?;
    Ok((record, Kept::Sealed(held)))
}

fn word<T>(
    what: &'static str,
    text: Option<&str>,
    parse: impl Fn(&str) -> Option<T>,
) -> Result<Option<T>, DocumentError> {
    let parsed = text.map(|text| parse(text).ok_or(DocumentError::Word(what)));
    parsed.transpose()
}

fn label(webhook: &str, serial: u32) -> Label<'_> {
    Label {
        version: VERSION,
        webhook,
        serial,
    }
}

/// A webhook as it is kept.
#[derive(Serialize, Deserialize)]
struct Document {
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
    /// None where they are in OpenBao.
    secrets: Option<Vec<Sealed>>,
}

#[derive(Serialize, Deserialize)]
struct Sealed {
    serial: u32,
    sealed: String,
    created_at: u64,
    until: Option<u64>,
}
