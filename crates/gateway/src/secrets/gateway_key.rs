//! The gateway's own key: it keys fingerprints and hashes in logs.
//!
//! With an embedded store it is made on first start and kept beside the data,
//! readable by the owner only; in memory it lives as long as the process. With a
//! store that others use too it must be given, the same to all of them.

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

/// The file's name beside the data.
const FILE: &str = "secret.key";
/// The store's file, by which a directory is known to be in use.
const DATABASE: &str = "onceward.db";

/// The name of the mark that a secret leaves in a shared store.
const MARK: &str = "secret";

/// 32 random bytes that never leave the gateway.
#[derive(Clone)]
pub(crate) struct Secret([u8; 32]);

/// Why there is no secret.
#[derive(Debug, thiserror::Error)]
pub enum SecretError {
    /// The file cannot be read or written.
    #[error("the key file {path} cannot be used: {source}")]
    File {
        /// Which file.
        path: PathBuf,
        /// What went wrong.
        source: io::Error,
    },
    /// The file does not hold a key.
    #[error(
        "the key file {path} holds {bytes} bytes where 32 are right; restore it from a backup, because a new key makes every kept request look different"
    )]
    Length {
        /// Which file.
        path: PathBuf,
        /// How many bytes it holds.
        bytes: usize,
    },
    /// There are operations, and the key they were compared with is gone.
    #[error(
        "{path} is missing beside the operations that were compared with it; restore it from a backup, or move the directory away to begin anew"
    )]
    Missing {
        /// Which file.
        path: PathBuf,
    },
    /// Others use the store too, and nobody has said which secret they have.
    #[error(
        "gateways that share a store need the same secret, and none is given: set ONCEWARD_KEY to 16 characters or more, or key in [secrets] of the configuration"
    )]
    Needed,
    /// Others use the store too, with another secret.
    #[error(
        "this store belongs to gateways with another secret: with this one retries would look like different requests and API keys would be unknown; give the same secret as to the others, or a namespace of its own to begin anew"
    )]
    Another,
    /// The system gives no random bytes.
    #[error("the system gives no random bytes: {0}")]
    Random(getrandom::Error),
}

/// How a secret stands to the one that a store was first used with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Agreement {
    /// It is the same, or the first.
    Same,
    /// It is another.
    Another,
}

impl Secret {
    /// A secret for the life of this process.
    pub(crate) fn new() -> Result<Self, SecretError> {
        random_bytes().map(Self).map_err(SecretError::Random)
    }

    /// A secret made of a text that the configuration gives.
    pub(crate) fn given(text: &SecretString) -> Self {
        let mut hash = Sha256::new();
        hash.update(b"onceward.secret.1");
        hash.update(text.expose_secret().as_bytes());
        Self(hash.finalize().into())
    }

    /// The secret of a directory, made if both are new. To be called before the
    /// store makes its own files there.
    pub(crate) fn in_directory(directory: &Path) -> Result<Self, SecretError> {
        let path = directory.join(FILE);
        let used = directory.join(DATABASE).exists();
        match Self::read(&path) {
            Err(SecretError::File { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
                if used {
                    return Err(SecretError::Missing { path });
                }
                Self::new()?
                    .write(directory, &path)
                    .map_err(|source| SecretError::File {
                        path: path.clone(),
                        source,
                    })?;
                // Whoever was first has written it.
                Self::read(&path)
            }
            read => read,
        }
    }

    fn read(path: &Path) -> Result<Self, SecretError> {
        let path = path.to_owned();
        match fs::read(&path) {
            Ok(bytes) => match <[u8; 32]>::try_from(bytes.as_slice()) {
                Ok(bytes) => Ok(Self(bytes)),
                Err(_) => Err(SecretError::Length {
                    path,
                    bytes: bytes.len(),
                }),
            },
            Err(source) => Err(SecretError::File { path, source }),
        }
    }

    /// Written aside and then linked, so that a crash leaves all of it or
    /// nothing, and of two processes that start at once only one has its way.
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

    /// Compares with what others who share the store have. The first one leaves
    /// a mark, from which nobody learns the secret.
    pub(crate) async fn agrees(&self, registry: &dyn Registry) -> Result<Agreement, StoreError> {
        let mark = Bytes::from(self.hash_for(b"onceward.mark.1", &[]).to_vec());
        // Nearly always it is there, and looking is enough.
        let known = match registry.read(Collection::Agreed, MARK).await? {
            Some(known) => Some(known),
            None => match registry.add(Collection::Agreed, MARK, mark.clone()).await? {
                Added::Done => None,
                Added::Known => registry.read(Collection::Agreed, MARK).await?,
            },
        };
        Ok(match known {
            Some(known) if !bool::from(known.ct_eq(&mark)) => Agreement::Another,
            Some(_) | None => Agreement::Same,
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
    fn a_secret_is_made_once_and_stays() {
        let directory = tempfile::tempdir().expect("a directory");
        let first = Secret::in_directory(directory.path()).expect("made");
        let again = Secret::in_directory(directory.path()).expect("read");
        assert_eq!(first.0, again.0);
        assert_eq!(first.hash(b"k"), again.hash(b"k"));
    }

    #[test]
    fn a_lost_or_damaged_secret_is_not_made_anew() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join(FILE);
        fs::write(&path, b"short").expect("written");
        let damaged = Secret::in_directory(directory.path());
        assert!(matches!(damaged, Err(SecretError::Length { bytes: 5, .. })));
        fs::remove_file(&path).expect("removed");
        fs::write(directory.path().join(DATABASE), b"").expect("written");
        let lost = Secret::in_directory(directory.path());
        assert!(matches!(lost, Err(SecretError::Missing { .. })));
    }

    #[tokio::test]
    async fn the_first_secret_of_a_store_is_that_of_all() {
        let registry = MemoryStore::new(Arc::new(SystemClock::new()));
        let given = |text: &str| Secret::given(&text.into());
        let cases = [
            ("ours, and nobody else's", Agreement::Same),
            ("ours, and nobody else's", Agreement::Same),
            ("theirs, and somebody else's", Agreement::Another),
            ("ours, and nobody else's", Agreement::Same),
        ];
        for (text, want) in cases {
            let agreed = given(text).agrees(&registry).await;
            assert_eq!(agreed.expect("the store answers"), want, "{text}");
        }
        let mark = registry.read(Collection::Agreed, MARK).await;
        let mark = mark.expect("the store answers").expect("it was left");
        assert_ne!(mark, Bytes::copy_from_slice(&given(cases[0].0).0));
    }
}
