//! The gateway's own API keys: `ow_{id}_{secret}{checksum}`.
//!
//! The id finds the key, the secret proves it, and the checksum lets a scanner
//! recognise a leaked key offline. The store keeps an HMAC of id and secret,
//! keyed with the gateway's key, so that a stolen store alone is useless. The
//! secret has 256 random bits, so a slow password hash would add cost and no
//! protection.
//!
//! All keys are in memory, so that verifying one reads no store, and every
//! change goes through [`ApiKeyRegistry`]. Keys can be managed even where they are not
//! accepted.

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
use super::refusal::Refusal;
use super::verified_caller::VerifiedCaller;
use crate::config::KnownBy;
use crate::secrets::gateway_key::GatewayKey;
use crate::secrets::random::random_bytes;

/// The most keys.
pub(crate) const KEYS_MAX: usize = 100_000;
/// The most scopes of one key.
pub(crate) const SCOPES_MAX: usize = 64;
/// The version of a document.
const VERSION: u32 = 1;
/// How many random ids are tried before creating a key fails.
const ATTEMPTS_MAX: usize = 3;

const ID_BYTES: usize = 10;
const SECRET_BYTES: usize = 32;
const CHECKSUM_BYTES: usize = 4;
/// Lengths in characters, five bits each.
const ID_LENGTH: usize = 16;
const SECRET_LENGTH: usize = 52;
const CHECKSUM_LENGTH: usize = 7;

/// The settings of a new key.
#[derive(Clone, Debug)]
pub(crate) struct NewKey {
    /// The tenant of its caller.
    pub(crate) tenant: String,
    /// The project of its caller. A key without one works only on routes with
    /// the scope `tenant` or `platform`.
    pub(crate) project: Option<String>,
    /// The subject of its caller.
    pub(crate) subject: Subject,
    /// The scopes of its caller.
    pub(crate) scopes: Vec<String>,
    /// A description for operators.
    pub(crate) name: String,
    /// When it expires, if ever.
    pub(crate) expires_at: Option<Timestamp>,
}

/// A key as operators see it, without the secret and its hash.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KeyRecord {
    /// Its id, which is part of the key and not secret.
    pub(crate) id: String,
    /// The tenant of its caller.
    pub(crate) tenant: String,
    /// The project of its caller.
    pub(crate) project: Option<String>,
    /// The subject of its caller.
    pub(crate) subject: Subject,
    /// The scopes of its caller.
    pub(crate) scopes: Vec<String>,
    /// A description for operators.
    pub(crate) name: String,
    /// When it was created.
    pub(crate) created_at: Timestamp,
    /// When it expires, if ever.
    pub(crate) expires_at: Option<Timestamp>,
    /// When it was revoked, if it was.
    pub(crate) revoked_at: Option<Timestamp>,
}

/// A new key.
#[derive(Debug)]
pub(crate) struct IssuedKey {
    /// Its id.
    pub(crate) id: String,
    /// The whole key, to be shown once. It cannot be restored from the store.
    pub(crate) secret: SecretString,
    /// The key as operators see it.
    pub(crate) record: KeyRecord,
}

/// The result of revoking a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Revoked {
    /// The key is refused from now on.
    Done,
    /// The key had been revoked before.
    Already,
    /// There is no such key.
    Absent,
}

/// Why keys could not be read or changed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum KeysError {
    /// The names are not allowed for a caller.
    #[error(transparent)]
    Caller(#[from] CallerError),
    /// The description is too long, or has control characters.
    #[error("a key's name has at most 256 bytes and no control characters")]
    Name,
    /// Too many scopes, or a malformed one.
    #[error("a key has at most 64 scopes, each 1 to 128 visible characters without blanks")]
    Scopes,
    /// The expiry is in the past.
    #[error("the key's expiry is in the past")]
    Expired,
    /// No more keys can be created.
    #[error("there are {KEYS_MAX} keys already, which is the maximum")]
    TooMany,
    /// The store has more keys than the maximum.
    #[error("the store has more than {KEYS_MAX} keys")]
    Overfull,
    /// The stored document is not a key's.
    #[error("the document of key {id} is damaged")]
    Damaged {
        /// The id of the key.
        id: String,
        /// The cause.
        source: KeyDocumentError,
    },
    /// The store failed; it is unknown whether the change was made.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A document could not be encoded.
    #[error("the key's document could not be encoded")]
    Wire(#[source] serde_json::Error),
    /// The system returns no random bytes.
    #[error("the system returns no random bytes")]
    Random(#[source] getrandom::Error),
    /// Every generated id was in use, which does not happen by chance.
    #[error("no unused id was found; the system's random bytes are not random")]
    NoFreeId,
}

/// All API keys of the gateway.
pub(crate) struct ApiKeyRegistry {
    registry: Arc<dyn Registry>,
    hasher: KeyHasher,
    clock: WallClock,
    keys: RwLock<HashMap<String, Arc<StoredKey>>>,
    /// Held during each change and its write. Two concurrent changes could leave
    /// memory different from the store, such as with a revoked key restored.
    changing: tokio::sync::Mutex<()>,
}

/// A key in memory.
#[derive(Clone)]
struct StoredKey {
    hash: [u8; 32],
    record: KeyRecord,
    caller: VerifiedCaller,
}

impl ApiKeyRegistry {
    /// Reads all keys.
    pub(crate) async fn open(
        registry: Arc<dyn Registry>,
        pepper: GatewayKey,
        clock: WallClock,
    ) -> Result<Self, KeysError> {
        let keys = Self {
            registry,
            hasher: KeyHasher::new(&pepper),
            clock,
            keys: RwLock::default(),
            changing: tokio::sync::Mutex::default(),
        };
        keys.refresh().await?;
        Ok(keys)
    }

    /// Reads all keys again, because other gateways may change them in the store.
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
                match StoredKey::read(&id, &document) {
                    Ok(stored) => {
                        read.insert(id, stored);
                    }
                    // Only this key is refused; all others still work.
                    Err(source) => {
                        tracing::error!(key_id = id, cause = %source, "document of an API key damaged; key refused");
                    }
                }
            }
        }
        self.replace_all(read);
        Ok(())
    }

    /// Creates a key. It is accepted as soon as this returns.
    pub(crate) async fn create(&self, new: NewKey) -> Result<IssuedKey, KeysError> {
        let now = self.clock.now();
        validate(&new, now)?;
        let _changing = self.changing.lock().await;
        if self.read_keys().len() >= KEYS_MAX {
            return Err(KeysError::TooMany);
        }
        for _ in 0..ATTEMPTS_MAX {
            let generated = GeneratedKey::new().map_err(KeysError::Random)?;
            let stored = StoredKey::new(&generated, &new, &self.hasher, now)?;
            let document = stored.document()?;
            let added = self
                .registry
                .add(Collection::ApiKeys, &generated.id, document)
                .await;
            match added? {
                Added::Known => {}
                Added::Done => {
                    let record = stored.record.clone();
                    self.insert(stored);
                    return Ok(IssuedKey {
                        id: generated.id,
                        secret: generated.key,
                        record,
                    });
                }
            }
        }
        Err(KeysError::NoFreeId)
    }

    /// All keys, the oldest first, revoked and expired ones included.
    pub(crate) fn list(&self) -> Vec<KeyRecord> {
        let keys = self.read_keys();
        let mut records: Vec<_> = keys.values().map(|stored| stored.record.clone()).collect();
        records.sort_by(|a, b| (a.created_at, &a.id).cmp(&(b.created_at, &b.id)));
        records
    }

    /// Revokes a key, first in memory: this gateway refuses the key even while
    /// the store is slow or fails, and a second call completes the revocation.
    pub(crate) async fn revoke(&self, id: &str) -> Result<Revoked, KeysError> {
        let now = self.clock.now();
        self.revoke_in_memory(id, now);
        let _changing = self.changing.lock().await;
        let Some(document) = self.registry.read(Collection::ApiKeys, id).await? else {
            self.keys
                .write()
                .unwrap_or_else(PoisonError::into_inner)
                .remove(id);
            return Ok(Revoked::Absent);
        };
        let mut stored = StoredKey::read(id, &document).map_err(|source| KeysError::Damaged {
            id: id.to_owned(),
            source,
        })?;
        if stored.record.revoked_at.is_some() {
            self.insert(stored);
            return Ok(Revoked::Already);
        }
        stored.record.revoked_at = self.revoked_at(id).or(Some(now));
        let document = stored.document()?;
        self.insert(stored);
        self.registry.put(Collection::ApiKeys, id, document).await?;
        Ok(Revoked::Done)
    }

    /// Verifies a key. The hash is computed and compared for unknown ids too, so
    /// that the time taken does not reveal which ids exist.
    pub(super) fn verify(&self, text: &str) -> Result<VerifiedCaller, Refusal> {
        let (id, secret) = parse_key(text).ok_or(Refusal::Malformed("not an API key"))?;
        let hash = self.hasher.hash(id, secret);
        let keys = self.read_keys();
        let stored = keys.get(id);
        let wanted = stored.map_or([0; 32], |stored| stored.hash);
        let same = bool::from(hash.ct_eq(&wanted));
        let stored = stored.ok_or(Refusal::UnknownKey)?;
        if !same {
            return Err(Refusal::WrongSecret);
        }
        if stored.record.revoked_at.is_some() {
            return Err(Refusal::Revoked);
        }
        let now = self.clock.now();
        if stored.record.expires_at.is_some_and(|end| now >= end) {
            return Err(Refusal::Expired);
        }
        Ok(stored.caller.clone())
    }

    fn read_keys(&self) -> std::sync::RwLockReadGuard<'_, HashMap<String, Arc<StoredKey>>> {
        self.keys.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn revoked_at(&self, id: &str) -> Option<Timestamp> {
        self.read_keys().get(id)?.record.revoked_at
    }

    /// Refuses a key from now on, before the revocation is stored.
    fn revoke_in_memory(&self, id: &str, now: Timestamp) {
        let mut keys = self.keys.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(stored) = keys.get_mut(id)
            && stored.record.revoked_at.is_none()
        {
            Arc::make_mut(stored).record.revoked_at = Some(now);
        }
    }

    /// Replaces all keys by those that were read. Revocations in memory stay: they
    /// may not be stored yet, or may have been stored after the read.
    fn replace_all(&self, read: HashMap<String, StoredKey>) {
        let mut keys = self.keys.write().unwrap_or_else(PoisonError::into_inner);
        let merged = read.into_iter().map(|(id, mut stored)| {
            let before = keys.get(&id).and_then(|stored| stored.record.revoked_at);
            stored.record.revoked_at = stored.record.revoked_at.or(before);
            (id, Arc::new(stored))
        });
        *keys = merged.collect();
    }

    fn insert(&self, stored: StoredKey) {
        let mut keys = self.keys.write().unwrap_or_else(PoisonError::into_inner);
        keys.insert(stored.record.id.clone(), Arc::new(stored));
    }
}

fn validate(new: &NewKey, now: Timestamp) -> Result<(), KeysError> {
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

/// The random parts of a new key.
struct GeneratedKey {
    id: String,
    secret: SecretString,
    key: SecretString,
}

impl GeneratedKey {
    fn new() -> Result<Self, getrandom::Error> {
        let id = encode(&random_bytes::<ID_BYTES>()?);
        let secret = encode(&random_bytes::<SECRET_BYTES>()?);
        let checksum = checksum(&id, &secret);
        let checksum = String::from_utf8_lossy(&checksum);
        Ok(Self {
            key: format!("{API_KEY_PREFIX}{id}_{secret}{checksum}").into(),
            id,
            secret: secret.into(),
        })
    }
}

/// Base32 in lower case: no character of it ends a word in a shell or a log.
fn encode(bytes: &[u8]) -> String {
    BASE32_NOPAD.encode(bytes).to_ascii_lowercase()
}

/// The first 4 bytes of SHA-256 over the key's text before the checksum, encoded as all
/// parts of a key. Every request with a key computes it, so that it allocates nothing.
fn checksum(id: &str, secret: &str) -> [u8; CHECKSUM_LENGTH] {
    let text = [API_KEY_PREFIX, id, "_", secret];
    let digest = text.iter().fold(Sha256::new(), Sha256::chain_update);
    let mut encoded = [0; CHECKSUM_LENGTH];
    BASE32_NOPAD.encode_mut(&digest.finalize()[..CHECKSUM_BYTES], &mut encoded);
    encoded.make_ascii_lowercase();
    encoded
}

/// The id and the secret of a well-formed key with a correct checksum.
fn parse_key(key: &str) -> Option<(&str, &str)> {
    let (id, tail) = key.strip_prefix(API_KEY_PREFIX)?.split_once('_')?;
    let ours = |byte: u8| matches!(byte, b'a'..=b'z' | b'2'..=b'7');
    if id.len() != ID_LENGTH
        || tail.len() != SECRET_LENGTH + CHECKSUM_LENGTH
        || !id.bytes().chain(tail.bytes()).all(ours)
    {
        return None;
    }
    let (secret, sum) = tail.split_at(SECRET_LENGTH);
    (checksum(id, secret) == sum.as_bytes()).then_some((id, secret))
}

/// The HMAC that has taken the gateway's key already, which is a part of the work.
struct KeyHasher(Hmac<Sha256>);

impl KeyHasher {
    fn new(pepper: &GatewayKey) -> Self {
        let mut mac = <Hmac<Sha256> as KeyInit>::new_from_slice(&pepper.bytes())
            .expect("HMAC takes a key of any length");
        mac.update(b"onceward.api-key.1");
        Self(mac)
    }

    /// The HMAC of id and secret. Both have fixed lengths, so that no other pair makes
    /// the same input.
    fn hash(&self, id: &str, secret: &str) -> [u8; 32] {
        let mut mac = self.0.clone();
        mac.update(id.as_bytes());
        mac.update(secret.as_bytes());
        mac.finalize().into_bytes().into()
    }
}

impl StoredKey {
    fn new(
        generated: &GeneratedKey,
        new: &NewKey,
        hasher: &KeyHasher,
        now: Timestamp,
    ) -> Result<Self, CallerError> {
        let record = KeyRecord {
            id: generated.id.clone(),
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
            hash: hasher.hash(&generated.id, generated.secret.expose_secret()),
            caller: caller_of(&record)?,
            record,
        })
    }

    fn document(&self) -> Result<Bytes, KeysError> {
        let record = &self.record;
        let ms = |moment: Timestamp| moment.unix_ms();
        let document = KeyDocument {
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

    fn read(id: &str, document: &[u8]) -> Result<Self, KeyDocumentError> {
        let document: KeyDocument = serde_json::from_slice(document)?;
        if document.version != VERSION {
            return Err(KeyDocumentError::Version(document.version));
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
            hash: hash.ok_or(KeyDocumentError::Hash)?,
            caller: caller_of(&record)?,
            record,
        })
    }
}

fn caller_of(record: &KeyRecord) -> Result<VerifiedCaller, CallerError> {
    VerifiedCaller::claimed(
        &record.tenant,
        record.project.as_deref(),
        record.subject.clone(),
        record.scopes.clone(),
        KnownBy::ApiKey,
    )
}

/// Why a document is not a key's.
#[derive(Debug, thiserror::Error)]
pub(crate) enum KeyDocumentError {
    /// Not the JSON of a key.
    #[error("the document is not the JSON of a key")]
    Json(#[from] serde_json::Error),
    /// Written by another version of the gateway.
    #[error("the document has the unsupported version {0}")]
    Version(u32),
    /// The hash is not 32 bytes in hexadecimal.
    #[error("the document's hash is malformed")]
    Hash,
    /// The names are not allowed for a caller.
    #[error(transparent)]
    Caller(#[from] CallerError),
}

/// A key as it is stored.
#[derive(Serialize, Deserialize)]
struct KeyDocument {
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
