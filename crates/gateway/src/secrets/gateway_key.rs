//! The gateway's own key: the key of fingerprints, of stored API keys, and of
//! hashes in logs.
//!
//! With an embedded store it is created on the first start and kept beside the
//! data, readable by its owner only. With a memory store it lives as long as the
//! process. With a store that several gateways share it must be configured, the
//! same for all of them.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use bytes::Bytes;
use hmac::{Hmac, KeyInit, Mac};
use onceward_core::store::{Added, Collection, Registry, StoreError};
use onceward_stores::embedded::make_directory;
use secrecy::{ExposeSecret, SecretString};
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq;

use super::random::random_bytes;

/// The name of the key file beside the data.
const FILE: &str = "secret.key";
/// The store's file, whose presence shows that a directory is in use.
const DATABASE: &str = "onceward.db";

/// The name of the document that identifies the key in a shared store.
const KEY_MARK: &str = "secret";

/// 32 random bytes that never leave the gateway.
#[derive(Clone)]
pub(crate) struct GatewayKey([u8; 32]);

/// Why there is no key.
#[derive(Debug, thiserror::Error)]
pub enum GatewayKeyError {
    /// The file cannot be read or written.
    #[error("the key file {path} cannot be used: {source}")]
    File {
        /// The path of the file.
        path: PathBuf,
        /// What went wrong.
        source: io::Error,
    },
    /// The file has the wrong length.
    #[error(
        "the key file {path} has {bytes} bytes instead of 32; restore it from a backup, because with a new key every stored request looks different"
    )]
    Length {
        /// The path of the file.
        path: PathBuf,
        /// The length of the file.
        bytes: usize,
    },
    /// The store has operations, and the key of their fingerprints is missing.
    #[error(
        "the key file {path} is missing, and the stored operations depend on it; restore it from a backup, or move the directory away to start with an empty store"
    )]
    Missing {
        /// The path of the file.
        path: PathBuf,
    },
    /// The store is shared, and no key is configured.
    #[error(
        "gateways that share a store need the same secrets.key, and none is given: set key in [secrets] of the configuration, or ONCEWARD_KEY, to 16 characters or more"
    )]
    NotConfigured,
    /// The store is used by gateways with a different key.
    #[error(
        "this store is used by gateways with another secrets.key (ONCEWARD_KEY): with this one retries would look like different requests, and API keys would be unknown; set the same key as in the other gateways, or another store.namespace to start with an empty store"
    )]
    Different,
    /// The system returns no random bytes.
    #[error("the system returns no random bytes: {0}")]
    Random(getrandom::Error),
}

/// How a key compares with the one that a store was first used with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KeyMatch {
    /// It is the same, or the store is new.
    Same,
    /// It is a different one.
    Different,
}

impl GatewayKey {
    /// A random key.
    pub(crate) fn new() -> Result<Self, GatewayKeyError> {
        random_bytes().map(Self).map_err(GatewayKeyError::Random)
    }

    /// The key that a configured text stands for.
    pub(crate) fn given(text: &SecretString) -> Self {
        let mut hash = Sha256::new();
        hash.update(b"onceward.secret.1");
        hash.update(text.expose_secret().as_bytes());
        Self(hash.finalize().into())
    }

    /// The key of a directory, created if the directory is new. Must be called
    /// before the store creates its files there.
    pub(crate) fn in_directory(directory: &Path) -> Result<Self, GatewayKeyError> {
        let path = directory.join(FILE);
        let used = directory.join(DATABASE).exists();
        match Self::read(&path) {
            Err(GatewayKeyError::File { source, .. })
                if source.kind() == io::ErrorKind::NotFound =>
            {
                if used {
                    return Err(GatewayKeyError::Missing { path });
                }
                Self::new()?
                    .write(directory, &path)
                    .map_err(|source| GatewayKeyError::File {
                        path: path.clone(),
                        source,
                    })?;
                // Another process may have written it first.
                Self::read(&path)
            }
            read => read,
        }
    }

    fn read(path: &Path) -> Result<Self, GatewayKeyError> {
        let path = path.to_owned();
        match fs::read(&path) {
            Ok(bytes) => match <[u8; 32]>::try_from(bytes.as_slice()) {
                Ok(bytes) => Ok(Self(bytes)),
                Err(_) => Err(GatewayKeyError::Length {
                    path,
                    bytes: bytes.len(),
                }),
            },
            Err(source) => Err(GatewayKeyError::File { path, source }),
        }
    }

    /// Writes a temporary file and links it, so that a crash leaves a whole key
    /// or none, and of two processes that start at once only one sets the key.
    fn write(&self, directory: &Path, path: &Path) -> io::Result<()> {
        make_directory(directory)?;
        let aside = directory.join(format!("{FILE}.{}", std::process::id()));
        let mut options = fs::OpenOptions::new();
        options.write(true).create(true).truncate(true);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        let mut file = options.open(&aside)?;
        file.write_all(&self.0)?;
        file.sync_all()?;
        let linked = fs::hard_link(&aside, path);
        fs::remove_file(&aside)?;
        match linked {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
            _ => fs::File::open(directory)?.sync_all(),
        }
    }

    /// Compares the key with that of the other gateways that share the store.
    /// The first one stores a hash, which does not reveal the key.
    pub(crate) async fn compare_with_store(
        &self,
        registry: &dyn Registry,
    ) -> Result<KeyMatch, StoreError> {
        let mark = Bytes::from(self.hash_for(b"onceward.mark.1", &[]).to_vec());
        // Usually the hash is there already, and reading is enough.
        let known = match registry.read(Collection::Agreed, KEY_MARK).await? {
            Some(known) => Some(known),
            None => match registry
                .add(Collection::Agreed, KEY_MARK, mark.clone())
                .await?
            {
                Added::Done => None,
                Added::Known => registry.read(Collection::Agreed, KEY_MARK).await?,
            },
        };
        Ok(match known {
            Some(known) if !bool::from(known.ct_eq(&mark)) => KeyMatch::Different,
            Some(_) | None => KeyMatch::Same,
        })
    }

    /// The bytes, for keyed fingerprints.
    pub(crate) fn bytes(&self) -> [u8; 32] {
        self.0
    }

    /// A short keyed hash that stands for a value in logs.
    pub(crate) fn hash(&self, value: &[u8]) -> String {
        let hash = self.hash_for(b"onceward.log.1", value);
        data_encoding::HEXLOWER.encode(&hash[..12])
    }

    /// A keyed hash for one purpose.
    pub(crate) fn hash_for(&self, purpose: &[u8], value: &[u8]) -> [u8; 32] {
        let mut mac = <Hmac<Sha256> as KeyInit>::new_from_slice(&self.0)
            .expect("HMAC takes a key of any length");
        mac.update(purpose);
        mac.update(value);
        mac.finalize().into_bytes().into()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use onceward_core::clock::SystemClock;
    use onceward_core::memory::MemoryStore;

    use super::*;

    #[test]
    fn a_key_is_created_once_and_stays() {
        let directory = tempfile::tempdir().expect("a directory");
        let first = GatewayKey::in_directory(directory.path()).expect("made");
        let again = GatewayKey::in_directory(directory.path()).expect("read");
        assert_eq!(first.0, again.0);
        assert_eq!(first.hash(b"k"), again.hash(b"k"));
    }

    #[test]
    fn a_lost_or_damaged_key_is_not_replaced() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join(FILE);
        fs::write(&path, b"short").expect("written");
        let damaged = GatewayKey::in_directory(directory.path());
        assert!(matches!(
            damaged,
            Err(GatewayKeyError::Length { bytes: 5, .. })
        ));
        fs::remove_file(&path).expect("removed");
        fs::write(directory.path().join(DATABASE), b"").expect("written");
        let lost = GatewayKey::in_directory(directory.path());
        assert!(matches!(lost, Err(GatewayKeyError::Missing { .. })));
    }

    #[tokio::test]
    async fn the_first_key_of_a_store_is_that_of_all_gateways() {
        let registry = MemoryStore::new(Arc::new(SystemClock::new()));
        let given = |text: &str| GatewayKey::given(&text.into());
        let cases = [
            ("ours, and nobody else's", KeyMatch::Same),
            ("ours, and nobody else's", KeyMatch::Same),
            ("theirs, and somebody else's", KeyMatch::Different),
            ("ours, and nobody else's", KeyMatch::Same),
        ];
        for (text, want) in cases {
            let agreed = given(text).compare_with_store(&registry).await;
            assert_eq!(agreed.expect("the store answers"), want, "{text}");
        }
        let mark = registry.read(Collection::Agreed, KEY_MARK).await;
        let mark = mark.expect("the store answers").expect("it was stored");
        assert_ne!(mark, Bytes::copy_from_slice(&given(cases[0].0).0));
    }
}
