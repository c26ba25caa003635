//! The gateway's own key: it keys fingerprints and hashes in logs.
//!
//! With an embedded store it is made on first start and kept beside the data,
//! readable by the owner only; without a directory it lives as long as the
//! process.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

/// The file's name beside the data.
const FILE: &str = "secret.key";

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
    #[error("the key file {path} holds {bytes} bytes where 32 are right; restore it from a backup, because a new key makes every kept request look different")]
    Length {
        /// Which file.
        path: PathBuf,
        /// How many bytes it holds.
        bytes: usize,
    },
    /// The system gives no random bytes.
    #[error("the system gives no random bytes: {0}")]
    Random(getrandom::Error),
}

impl Secret {
    /// A secret for the life of this process.
    pub(crate) fn new() -> Result<Self, SecretError> {
        let mut bytes = [0; 32];
        getrandom::fill(&mut bytes).map_err(SecretError::Random)?;
        Ok(Self(bytes))
    }

    /// The secret of a directory, made if it is not there yet.
    pub(crate) fn in_directory(directory: &Path) -> Result<Self, SecretError> {
        let path = directory.join(FILE);
        match fs::read(&path) {
            Ok(bytes) => match <[u8; 32]>::try_from(bytes.as_slice()) {
                Ok(bytes) => Ok(Self(bytes)),
                Err(_) => Err(SecretError::Length {
                    path,
                    bytes: bytes.len(),
                }),
            },
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let secret = Self::new()?;
                match secret.write(directory, &path) {
                    Ok(()) => Ok(secret),
                    Err(source) => Err(SecretError::File { path, source }),
                }
            }
            Err(source) => Err(SecretError::File { path, source }),
        }
    }

    /// Written aside and renamed, so that a crash leaves all of it or nothing.
    fn write(&self, directory: &Path, path: &Path) -> io::Result<()> {
        let aside = directory.join(format!("{FILE}.new"));
        let mut options = fs::OpenOptions::new();
        options.write(true).create(true).truncate(true);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        let mut file = options.open(&aside)?;
        file.write_all(&self.0)?;
        file.sync_all()?;
        fs::rename(&aside, path)?;
        fs::File::open(directory)?.sync_all()
    }

    /// The bytes, for keyed fingerprints.
    pub(crate) fn bytes(&self) -> [u8; 32] {
        self.0
    }

    /// A short keyed hash that stands for a value in logs.
    pub(crate) fn hash(&self, value: &[u8]) -> String {
        let mut mac = <Hmac<Sha256> as KeyInit>::new_from_slice(&self.0)
            .expect("HMAC takes a key of any length");
        mac.update(b"onceward.log.1");
        mac.update(value);
        let hash = mac.finalize().into_bytes();
        data_encoding::HEXLOWER.encode(&hash[..12])
    }
}
