//! TLS towards clients and upstreams: the certificates from their files, and
//! their reload when the files change.
//!
//! The provider of cryptography is ring: it builds on every platform with only a
//! C compiler. By default the certificate authorities of the system are trusted,
//! not a compiled-in list: operators then have one place to add and revoke
//! authorities, and a company's own authority is already there.
//!
//! The server never accepts early data: an attacker can replay it, and a request
//! must not be executed twice.

mod config;
mod file_backed;
#[cfg(test)]
pub(crate) mod tests;

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustls::pki_types::pem;
use rustls::{ClientConfig, ServerConfig};
use schemars::JsonSchema;
use serde::Deserialize;
use tokio::time::Instant;

use self::config::server_config;
use self::file_backed::FileBacked;
use crate::upstream::Tls;

pub(super) use self::config::client_config;

/// The ALPN names of the protocols.
pub(crate) const HTTP2: &[u8] = b"h2";
const HTTP1: &[u8] = b"http/1.1";

/// How often the files are checked for changes.
const CHECK_INTERVAL: Duration = Duration::from_secs(5);

/// The files of a server's TLS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// The certificate and its chain of issuers, in PEM.
    pub cert: PathBuf,
    /// The certificate's private key, in PEM.
    pub key: PathBuf,
    /// The authorities that sign clients' certificates, in PEM. Without it,
    /// clients are not asked for a certificate.
    pub client_ca: Option<PathBuf>,
    /// Whether clients without a certificate are refused. Applies only with
    /// `client_ca`.
    pub client_auth: ClientAuth,
}

/// Whether clients must present a certificate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ClientAuth {
    /// A client without a certificate is refused.
    #[default]
    Required,
    /// A client without a certificate is served; an invalid certificate is refused.
    Optional,
}

/// Why TLS cannot be configured.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TlsError {
    /// A file cannot be read.
    #[error("cannot read {path}: {source}")]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// A file is not PEM.
    #[error("{path} is not a PEM file: {source}")]
    Malformed {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: pem::Error,
    },
    /// A file holds no certificate.
    #[error("no certificate in {path}")]
    NoCertificate {
        /// The file.
        path: PathBuf,
    },
    /// A file holds no key.
    #[error("no private key in {path}")]
    NoKey {
        /// The file.
        path: PathBuf,
    },
    /// A certificate authority's certificate cannot be used.
    #[error("a certificate in {path} cannot be used as a certificate authority: {source}")]
    Authority {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: rustls::Error,
    },
    /// Certificate and key do not match, or one of them cannot be used.
    #[error("the certificate in {cert} does not match the key in {key}: {source}")]
    Pair {
        /// The certificate's file.
        cert: PathBuf,
        /// The key's file.
        key: PathBuf,
        /// The cause.
        source: rustls::Error,
    },
    /// The verifier of client certificates cannot be built.
    #[error("cannot verify client certificates with {path}: {source}")]
    Verifier {
        /// The authorities' file.
        path: PathBuf,
        /// The cause.
        source: rustls::server::VerifierBuilderError,
    },
    /// A certificate without a key, or a key without a certificate.
    #[error("a client certificate needs both cert and key")]
    IncompletePair,
    /// The system has no certificate authorities.
    #[error("no certificate authorities found in the system: install ca-certificates or set ca")]
    NoAuthorities,
    /// The provider does not support the protocol versions: a defect of the
    /// gateway.
    #[error("cannot configure TLS: {0}")]
    Setup(#[source] rustls::Error),
}

/// The result of [`ListenerTls::reload`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TlsReload {
    /// New connections use the new files.
    Changed,
    /// The files have not changed.
    Unchanged,
}

/// The TLS configuration of a listener. A reload affects new connections only.
pub(crate) struct ListenerTls {
    files: TlsFiles,
    config: FileBacked<ServerConfig>,
}

impl fmt::Debug for ListenerTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ListenerTls").field(&self.files).finish()
    }
}

impl ListenerTls {
    /// Reads the files.
    pub(crate) fn new(files: TlsFiles) -> Result<Self, TlsError> {
        let (cert, key) = (files.cert.clone(), files.key.clone());
        let paths = [Some(cert), Some(key), files.client_ca.clone()];
        let config = FileBacked::new(paths, || server_config(&files))?;
        Ok(Self { files, config })
    }

    /// The configuration for new connections.
    pub(crate) fn current(&self) -> Arc<ServerConfig> {
        self.config.current()
    }

    /// Reads the files again if they have changed. On an error the old
    /// certificate stays in use, and every call fails until the files are
    /// usable.
    pub(crate) fn reload(&self) -> Result<TlsReload, TlsError> {
        self.config.reload(|| server_config(&self.files))
    }

    /// Checks the files periodically. Never returns.
    pub(crate) async fn reload_periodically(self: Arc<Self>) {
        loop {
            tokio::time::sleep(CHECK_INTERVAL).await;
            let tls = self.clone();
            check_files(move || tls.config.check(|| server_config(&tls.files))).await;
        }
    }
}

/// The TLS configuration for connections to an upstream. A change of the files
/// affects new connections only.
pub(crate) struct ClientTls {
    files: Tls,
    config: FileBacked<ClientConfig>,
    check_interval: Duration,
    next_check: Mutex<Instant>,
}

impl ClientTls {
    /// Reads the files.
    pub(crate) fn new(files: Tls) -> Result<Self, TlsError> {
        Self::with_check_interval(CHECK_INTERVAL, files)
    }

    /// Like [`ClientTls::new`], with another minimum time between two checks of
    /// the files.
    pub(crate) fn with_check_interval(
        check_interval: Duration,
        files: Tls,
    ) -> Result<Self, TlsError> {
        let paths = [files.ca.clone(), files.cert.clone(), files.key.clone()];
        Ok(Self {
            config: FileBacked::new(paths, || client_config(&files))?,
            files,
            check_interval,
            next_check: Mutex::new(Instant::now() + check_interval),
        })
    }

    /// The name that the server's certificate must have, if one is configured.
    pub(crate) fn server_name(&self) -> Option<&str> {
        self.files.server_name.as_deref()
    }

    /// The configuration for a new connection. Checks the files first if the
    /// last check was long enough ago; unusable files leave the old
    /// configuration in place.
    pub(crate) async fn current_config(self: &Arc<Self>) -> Arc<ClientConfig> {
        if self.config.has_files() && self.begin_check() {
            let tls = self.clone();
            check_files(move || tls.config.check(|| client_config(&tls.files))).await;
        }
        self.config.current()
    }

    /// Whether a check is due. If so, the next one is due after the interval, so
    /// only one caller checks.
    fn begin_check(&self) -> bool {
        let next = self.next_check.lock();
        let mut next = next.unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        let is_due = now >= *next;
        if is_due {
            *next = now + self.check_interval;
        }
        is_due
    }
}

/// Runs a check on a blocking thread, since file systems may be slow.
async fn check_files(check: impl FnOnce() + Send + 'static) {
    if let Err(error) = tokio::task::spawn_blocking(check).await {
        tracing::error!(%error, "could not check the certificate files");
    }
}
