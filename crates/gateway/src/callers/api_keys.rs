//! The keys that this gateway gives out: `ow_{id}_{secret}{checksum}`.
//!
//! The id finds the key, the secret proves it, and the checksum lets a scanner
//! tell a leaked key from noise without asking anybody. What is kept is a keyed
//! hash of id and secret. The secret is 256 random bits, so a slow hash would
//! protect nothing and only cost those who verify; the gateway's own secret
//! makes a stolen registry useless by itself.
//!
//! All keys are in memory, so that verifying asks no store, and each change
//! goes through here. They are managed even where they are not accepted.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};

use bytes::Bytes;
use data_encoding::BASE32_NOPAD;
use hmac::{Hmac, KeyInit, Mac};
use onceward_core::caller::{CallerError, NAME_BYTES_MAX, Subject};
use onceward_core::clock::Timestamp;
use onceward_core::store::{Added, Collection, PAGE_MAX, Registry, SortOrder, StoreError};
use secrecy::{ExposeSecret, SecretString};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq;

use super::WallClock;
use super::credential::API_KEY_PREFIX;
use super::known::Known;
use super::refusal::Refusal;
use crate::config::KnownBy;
use crate::secrets::gateway_key::Secret;
use crate::secrets::random::random_bytes;

/// The most keys.
pub(crate) const KEYS_MAX: usize = 100_000;
/// The most scopes of one key.
pub(crate) const SCOPES_MAX: usize = 64;
/// The version of a document.
const VERSION: u32 = 1;
/// How often a new id is drawn that is taken, before something is wrong.
const DRAWS_MAX: usize = 3;

const ID_BYTES: usize = 10;
const SECRET_BYTES: usize = 32;
const CHECKSUM_BYTES: usize = 4;
/// Lengths in characters, five bits each.
const ID_LENGTH: usize = 16;
const SECRET_LENGTH: usize = 52;
const CHECKSUM_LENGTH: usize = 7;

/// A key to be made.
#[derive(Clone, Debug)]
pub(crate) struct NewKey {
    /// Whose it is.
    pub(crate) tenant: String,
    /// Which project's; without one it is good only on routes of a wider scope.
    pub(crate) project: Option<String>,
    /// Who acts with it.
    pub(crate) subject: Subject,
    /// What it may do.
    pub(crate) scopes: Vec<String>,
    /// What it is for, for people.
    pub(crate) name: String,
    /// When it ends by itself.
    pub(crate) expires_at: Option<Timestamp>,
}

/// A key as operators see it. There is no secret in it, and no hash.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KeyRecord {
    /// Its id, which is part of the key and no secret.
    pub(crate) id: String,
    /// Whose it is.
    pub(crate) tenant: String,
    /// Which project's.
    pub(crate) project: Option<String>,
    /// Who acts with it.
    pub(crate) subject: Subject,
    /// What it may do.
    pub(crate) scopes: Vec<String>,
    /// What it is for.
    pub(crate) name: String,
    /// When it was made.
    pub(crate) created_at: Timestamp,
    /// When it ends by itself.
    pub(crate) expires_at: Option<Timestamp>,
    /// When it was taken back.
    pub(crate) revoked_at: Option<Timestamp>,
}

/// A key that was made.
#[derive(Debug)]
pub(crate) struct Created {
    /// Its id.
    pub(crate) id: String,
    /// The whole key, to be shown once. Nobody can make it again from what is kept.
    pub(crate) secret: SecretString,
    /// What is kept of it.
    pub(crate) record: KeyRecord,
}

/// What revoking came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Revoked {
    /// Nobody gets in with it from now on.
    Done,
    /// It had been revoked before.
    Already,
    /// There is no such key.
    Absent,
}

/// Why keys could not be read or changed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum KeysError {
    /// The names do not make a caller.
    #[error(transparent)]
    Caller(#[from] CallerError),
    /// The name is too long, or not text for people.
    #[error("a key's name has at most 256 bytes and no control characters")]
    Name,
    /// Too many scopes, or one that is none.
    #[error("a key has at most 64 scopes, each 1 to 128 visible characters without blanks")]
    Scopes,
    /// It would have ended before it began.
    #[error("the key would have expired already")]
    Expired,
    /// There are enough.
    #[error("there are {KEYS_MAX} keys already")]
    TooMany,
    /// The registry holds more than may be read.
    #[error("the registry holds more than {KEYS_MAX} keys")]
    Overfull,
    /// What is kept under this id is not a key's document.
    #[error("the document of key {id} is damaged")]
    Damaged {
        /// Which.
        id: String,
        /// What is wrong with it.
        source: DocumentError,
    },
    /// The store failed; whether the change was made is not known.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A document could not be written down.
    #[error("a key's document could not be written")]
    Wire(#[source] serde_json::Error),
    /// The system gives no random bytes.
    #[error("the system gives no random bytes")]
    Random(#[source] getrandom::Error),
    /// Every id that was drawn was taken, which chance does not do.
    #[error("no free id was found; the system's random bytes are not random")]
    Drawn,
}

/// The keys of this gateway.
pub(crate) struct ApiKeys {
    registry: Arc<dyn Registry>,
    pepper: Secret,
    clock: WallClock,
    held: RwLock<HashMap<String, Arc<Entry>>>,
    /// Held over each change and its write. Two changes at once could leave in
    /// memory what the registry no longer says: a key back that was revoked.
    changing: tokio::sync::Mutex<()>,
}

/// A key in memory.
#[derive(Clone)]
struct Entry {
    hash: [u8; 32],
    record: KeyRecord,
    known: Known,
}

impl ApiKeys {
    /// Reads all keys.
    pub(crate) async fn open(
        registry: Arc<dyn Registry>,
        pepper: Secret,
        clock: WallClock,
    ) -> Result<Self, KeysError> {
        let keys = Self {
            registry,
            pepper,
            clock,
            held: RwLock::default(),
            changing: tokio::sync::Mutex::default(),
        };
        keys.refresh().await?;
        Ok(keys)
    }

    /// Reads all keys again, for a registry that others change too.
    pub(crate) async fn refresh(&self) -> Result<(), KeysError> {
        let _changing = self.changing.lock().await;
        let mut read = HashMap::new();
        let mut after: Option<String> = None;
        loop {
            let collection = Collection::ApiKeys;
            let page = self
                .registry
                .documents(collection, SortOrder::Ascending, after.as_deref(), PAGE_MAX)
                .await?;
            let Some((last, _)) = page.last() else {
                break;
            };
            after = Some(last.clone());
            if read.len() + page.len() > KEYS_MAX {
                return Err(KeysError::Overfull);
            }
            for (id, document) in page {
                match Entry::read(&id, &document) {
                    Ok(entry) => {
                        read.insert(id, entry);
                    }
                    // Nobody gets in with it; all others still do.
                    Err(source) => {
                        tracing::error!(key_id = id, cause = %source, "an API key's document is damaged; the key is not accepted");
                    }
                }
            }
        }
        self.hold_all(read);
        Ok(())
    }

    /// Makes a key. It is good as soon as this answers.
    pub(crate) async fn create(&self, new: NewKey) -> Result<Created, KeysError> {
        let now = self.clock.now();
        check(&new, now)?;
        let _changing = self.changing.lock().await;
        if self.read().len() >= KEYS_MAX {
            return Err(KeysError::TooMany);
        }
        for _ in 0..DRAWS_MAX {
            let drawn = Drawn::new().map_err(KeysError::Random)?;
            let entry = Entry::new(&drawn, &new, &self.pepper, now)?;
            let document = entry.document()?;
            let added = self
                .registry
                .add(Collection::ApiKeys, &drawn.id, document)
                .await;
            match added? {
                Added::Known => {}
                Added::Done => {
                    let record = entry.record.clone();
                    self.hold(entry);
                    return Ok(Created {
                        id: drawn.id,
                        secret: drawn.key,
                        record,
                    });
                }
            }
        }
        Err(KeysError::Drawn)
    }

    /// All keys, the oldest first, revoked and expired ones included.
    pub(crate) fn list(&self) -> Vec<KeyRecord> {
        let held = self.read();
        let mut records: Vec<_> = held.values().map(|entry| entry.record.clone()).collect();
        records.sort_by(|a, b| (a.created_at, &a.id).cmp(&(b.created_at, &b.id)));
        records
    }

    /// Takes a key back, here before anything else is done: while the registry
    /// is slow or fails, this gateway refuses the key all the same, and asking
    /// again finishes the work.
    pub(crate) async fn revoke(&self, id: &str) -> Result<Revoked, KeysError> {
        let now = self.clock.now();
        self.refuse(id, now);
        let _changing = self.changing.lock().await;
        let Some(document) = self.registry.read(Collection::ApiKeys, id).await? else {
            self.held
                .write()
                .unwrap_or_else(PoisonError::into_inner)
                .remove(id);
            return Ok(Revoked::Absent);
        };
        let mut entry = Entry::read(id, &document).map_err(|source| KeysError::Damaged {
            id: id.to_owned(),
            source,
        })?;
        if entry.record.revoked_at.is_some() {
            self.hold(entry);
            return Ok(Revoked::Already);
        }
        entry.record.revoked_at = self.revoked_at(id).or(Some(now));
        let document = entry.document()?;
        self.hold(entry);
        self.registry.put(Collection::ApiKeys, id, document).await?;
        Ok(Revoked::Done)
    }

    /// Who comes with this key. The hash is made and compared also for an id
    /// that does not exist, so that time does not tell which do.
    pub(super) fn verify(&self, text: &str) -> Result<Known, Refusal> {
        let (id, secret) = split(text).ok_or(Refusal::Malformed("not an API key"))?;
        let hash = keyed_hash(&self.pepper, id, secret);
        let entry = self.read().get(id).cloned();
        let wanted = entry.as_ref().map_or([0; 32], |entry| entry.hash);
        let same = bool::from(hash.ct_eq(&wanted));
        let entry = entry.ok_or(Refusal::UnknownKey)?;
        if !same {
            return Err(Refusal::WrongSecret);
        }
        if entry.record.revoked_at.is_some() {
            return Err(Refusal::Revoked);
        }
        let now = self.clock.now();
        if entry.record.expires_at.is_some_and(|end| now >= end) {
            return Err(Refusal::Expired);
        }
        Ok(entry.known.clone())
    }

    fn read(&self) -> std::sync::RwLockReadGuard<'_, HashMap<String, Arc<Entry>>> {
        self.held.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn revoked_at(&self, id: &str) -> Option<Timestamp> {
        self.read().get(id)?.record.revoked_at
    }

    /// Lets nobody in with this key from now on.
    fn refuse(&self, id: &str, now: Timestamp) {
        let mut held = self.held.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(entry) = held.get_mut(id)
            && entry.record.revoked_at.is_none()
        {
            Arc::make_mut(entry).record.revoked_at = Some(now);
        }
    }

    /// Holds what was read in place of all that was held. A revocation that was
    /// not written, or only since it was read, still holds.
    fn hold_all(&self, read: HashMap<String, Entry>) {
        let mut held = self.held.write().unwrap_or_else(PoisonError::into_inner);
        let merged = read.into_iter().map(|(id, mut entry)| {
            let before = held.get(&id).and_then(|entry| entry.record.revoked_at);
            entry.record.revoked_at = entry.record.revoked_at.or(before);
            (id, Arc::new(entry))
        });
        *held = merged.collect();
    }

    fn hold(&self, entry: Entry) {
        let mut held = self.held.write().unwrap_or_else(PoisonError::into_inner);
        held.insert(entry.record.id.clone(), Arc::new(entry));
    }
}

fn check(new: &NewKey, now: Timestamp) -> Result<(), KeysError> {
    if new.name.len() > NAME_BYTES_MAX || new.name.chars().any(char::is_control) {
        return Err(KeysError::Name);
    }
    let good = |scope: &String| {
        (1..=128).contains(&scope.len()) && scope.bytes().all(|byte| byte.is_ascii_graphic())
    };
    if new.scopes.len() > SCOPES_MAX || !new.scopes.iter().all(good) {
        return Err(KeysError::Scopes);
    }
    if new.expires_at.is_some_and(|end| end <= now) {
        return Err(KeysError::Expired);
    }
    Ok(())
}

/// A new key's parts.
struct Drawn {
    id: String,
    secret: SecretString,
    key: SecretString,
}

impl Drawn {
    fn new() -> Result<Self, getrandom::Error> {
        let id = encode(&random_bytes::<ID_BYTES>()?);
        let secret = encode(&random_bytes::<SECRET_BYTES>()?);
        let checksum = checksum(&id, &secret);
        Ok(Self {
            key: format!("{API_KEY_PREFIX}{id}_{secret}{checksum}").into(),
            id,
            secret: secret.into(),
        })
    }
}

/// Base32 in small letters: no sign in it ends a word in a shell or a log.
fn encode(bytes: &[u8]) -> String {
    BASE32_NOPAD.encode(bytes).to_ascii_lowercase()
}

/// The first 4 bytes of SHA-256 over all that comes before it.
fn checksum(id: &str, secret: &str) -> String {
    let digest = Sha256::digest(format!("{API_KEY_PREFIX}{id}_{secret}"));
    encode(&digest[..CHECKSUM_BYTES])
}

/// The id and the secret of a key whose checksum is right.
fn split(key: &str) -> Option<(&str, &str)> {
    let (id, tail) = key.strip_prefix(API_KEY_PREFIX)?.split_once('_')?;
    let ours = |byte: u8| matches!(byte, b'a'..=b'z' | b'2'..=b'7');
    if id.len() != ID_LENGTH
        || tail.len() != SECRET_LENGTH + CHECKSUM_LENGTH
        || !id.bytes().chain(tail.bytes()).all(ours)
    {
        return None;
    }
    let (secret, sum) = tail.split_at(SECRET_LENGTH);
    (checksum(id, secret) == sum).then_some((id, secret))
}

/// Over fixed lengths, so that no other id and secret make the same text.
fn keyed_hash(pepper: &Secret, id: &str, secret: &str) -> [u8; 32] {
    let mut mac = <Hmac<Sha256> as KeyInit>::new_from_slice(&pepper.bytes())
        .expect("HMAC takes a key of any length");
    mac.update(b"onceward.api-key.1");
    mac.update(id.as_bytes());
    mac.update(secret.as_bytes());
    mac.finalize().into_bytes().into()
}

impl Entry {
    fn new(
        drawn: &Drawn,
        new: &NewKey,
        pepper: &Secret,
        now: Timestamp,
    ) -> Result<Self, CallerError> {
        let record = KeyRecord {
            id: drawn.id.clone(),
            tenant: new.tenant.clone(),
            project: new.project.clone(),
            subject: new.subject.clone(),
            scopes: new.scopes.clone(),
            name: new.name.clone(),
            created_at: now,
            expires_at: new.expires_at,
            revoked_at: None,
        };
        Ok(Self {
            hash: keyed_hash(pepper, &drawn.id, drawn.secret.expose_secret()),
            known: known(&record)?,
            record,
        })
    }

    fn document(&self) -> Result<Bytes, KeysError> {
        let record = &self.record;
        let ms = |moment: Timestamp| moment.unix_ms();
        let document = Document {
            version: VERSION,
            hash: data_encoding::HEXLOWER.encode(&self.hash),
            tenant: record.tenant.clone(),
            project: record.project.clone(),
            subject: record.subject.to_string(),
            scopes: record.scopes.clone(),
            name: record.name.clone(),
            created_at: record.created_at.unix_ms(),
            expires_at: record.expires_at.map(ms),
            revoked_at: record.revoked_at.map(ms),
        };
        let written = serde_json::to_vec(&document).map_err(KeysError::Wire)?;
        Ok(written.into())
    }

    fn read(id: &str, document: &[u8]) -> Result<Self, DocumentError> {
        let document: Document = serde_json::from_slice(document)?;
        if document.version != VERSION {
            return Err(DocumentError::Version(document.version));
        }
        let hash = data_encoding::HEXLOWER
            .decode(document.hash.as_bytes())
            .ok();
        let hash = hash.and_then(|hash| hash.try_into().ok());
        let record = KeyRecord {
            id: id.to_owned(),
            tenant: document.tenant,
            project: document.project,
            subject: Subject::parse(&document.subject)?,
            scopes: document.scopes,
            name: document.name,
            created_at: Timestamp::from_unix_ms(document.created_at),
            expires_at: document.expires_at.map(Timestamp::from_unix_ms),
            revoked_at: document.revoked_at.map(Timestamp::from_unix_ms),
        };
        Ok(Self {
            hash: hash.ok_or(DocumentError::Hash)?,
            known: known(&record)?,
            record,
        })
    }
}

fn known(record: &KeyRecord) -> Result<Known, CallerError> {
    Known::claimed(
        &record.tenant,
        record.project.as_deref(),
        record.subject.clone(),
        record.scopes.clone(),
        KnownBy::ApiKey,
    )
}

/// Why a document is not a key's.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DocumentError {
    /// Not our JSON.
    #[error("it is not the JSON of a key")]
    Json(#[from] serde_json::Error),
    /// From another version of this program.
    #[error("it has version {0}")]
    Version(u32),
    /// Its hash is none.
    #[error("its hash is not one")]
    Hash,
    /// Its names do not make a caller.
    #[error(transparent)]
    Caller(#[from] CallerError),
}

/// A key as it is kept.
#[derive(Serialize, Deserialize)]
struct Document {
    version: u32,
    hash: String,
    tenant: String,
    project: Option<String>,
    subject: String,
    scopes: Vec<String>,
    name: String,
    created_at: u64,
    expires_at: Option<u64>,
    revoked_at: Option<u64>,
}
