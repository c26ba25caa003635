//! TLS on both sides: the certificates from their files, what is offered, and
//! what happens when the files change.
//!
//! One provider of cryptography, ring: it builds everywhere with a C compiler
//! alone. The system's authorities are trusted by default, not a list compiled
//! in: who runs a gateway has one place to add and to revoke, and a company's
//! own authority is already in it.
//!
//! A server never takes early data: it can be sent twice by anybody who has
//! seen it, which is what this gateway is there to prevent.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, SystemTime};

use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use schemars::JsonSchema;
use serde::Deserialize;
use tokio::time::Instant;

use crate::upstream::Tls;

/// The names of the protocols, as the two sides agree on one.
pub(crate) const HTTP2: &[u8] = b"h2";
const HTTP1: &[u8] = b"http/1.1";

/// How often the files are looked at.
const LOOK_INTERVAL: Duration = Duration::from_secs(5);

/// The files of a server's TLS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// The certificate, and those that vouch for it, in PEM.
    pub cert: PathBuf,
    /// Its key, in PEM.
    pub key: PathBuf,
    /// The authorities of the clients' certificates, in PEM. Without it no
    /// client is asked for one.
    pub client_ca: Option<PathBuf>,
    /// What becomes of clients without a certificate, where one is asked for.
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

/// Why TLS cannot be set up.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TlsError {
    /// A file cannot be read.
    #[error("cannot read {path}: {source}")]
    Unreadable {
        /// Which file.
        path: PathBuf,
        /// What went wrong.
        source: io::Error,
    },
    /// A file is not PEM.
    #[error("{path} is not a PEM file: {source}")]
    Malformed {
        /// Which file.
        path: PathBuf,
        /// What is wrong.
        source: pem::Error,
    },
    /// A file holds no certificate.
    #[error("there is no certificate in {path}")]
    NoCertificate {
        /// Which file.
        path: PathBuf,
    },
    /// A file holds no key.
    #[error("there is no private key in {path}")]
    NoKey {
        /// Which file.
        path: PathBuf,
    },
    /// A certificate authority's certificate cannot be used.
    #[error("a certificate in {path} is no authority's: {source}")]
    Authority {
        /// Which file.
        path: PathBuf,
        /// What is wrong.
        source: rustls::Error,
    },
    /// Certificate and key do not belong together, or one cannot be used.
    #[error("the certificate in {cert} does not go with the key in {key}: {source}")]
    Pair {
        /// The certificate's file.
        cert: PathBuf,
        /// The key's file.
        key: PathBuf,
        /// What is wrong.
        source: rustls::Error,
    },
    /// The verifier of clients cannot be made.
    #[error("clients cannot be verified with {path}: {source}")]
    Verifier {
        /// The authorities' file.
        path: PathBuf,
        /// What is wrong.
        source: rustls::server::VerifierBuilderError,
    },
    /// A certificate without a key, or a key without a certificate.
    #[error("a client certificate needs both cert and key")]
    HalfPair,
    /// The system trusts nobody.
    #[error("the system has no trusted authorities: install its ca-certificates or set ca")]
    NoAuthorities,
    /// Versions and ciphers do not fit; a fault of ours.
    #[error("TLS cannot be set up: {0}")]
    Setup(#[source] rustls::Error),
}

/// What looking at the files again came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reloaded {
    /// New connections get what the files say now.
    Changed,
    /// The files are as they were.
    Unchanged,
}

/// The TLS of a listener. What is served changes with [`ServerTls::reload`];
/// connections that are open keep what they had.
pub(crate) struct ServerTls {
    files: TlsFiles,
    watched: Watched<ServerConfig>,
}

impl fmt::Debug for ServerTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ServerTls").field(&self.files).finish()
    }
}

impl ServerTls {
    /// Reads the files.
    pub(crate) fn new(files: TlsFiles) -> Result<Self, TlsError> {
        let (cert, key) = (files.cert.clone(), files.key.clone());
        let paths = [Some(cert), Some(key), files.client_ca.clone()];
        let watched = Watched::new(paths, || server_config(&files))?;
        Ok(Self { files, watched })
    }

    /// What new connections get.
    pub(crate) fn current(&self) -> Arc<ServerConfig> {
        self.watched.current()
    }

    /// Reads the files again if they have changed. On an error the old
    /// certificate goes on being served, and it is an error each time until the
    /// files are good.
    pub(crate) fn reload(&self) -> Result<Reloaded, TlsError> {
        self.watched.reload(|| server_config(&self.files))
    }

    /// Looks at the files now and then, for ever.
    pub(crate) async fn keep_fresh(self: Arc<Self>) {
        loop {
            tokio::time::sleep(LOOK_INTERVAL).await;
            let tls = self.clone();
            // Files may be slow.
            let look = move || tls.watched.look(|| server_config(&tls.files));
            if let Err(error) = tokio::task::spawn_blocking(look).await {
                tracing::error!(%error, "could not look at the certificate");
            }
        }
    }
}

/// The TLS of a client. Whom it trusts and what it shows changes with the
/// files; connections that are open keep what they had.
pub(crate) struct ClientTls {
    files: Tls,
    watched: Watched<ClientConfig>,
    interval: Duration,
    /// When the files are to be looked at next.
    due: Mutex<Instant>,
}

impl ClientTls {
    /// Reads the files.
    pub(crate) fn new(files: Tls) -> Result<Self, TlsError> {
        Self::looking_each(LOOK_INTERVAL, files)
    }

    /// The same, looking at the files at most once in so long.
    pub(crate) fn looking_each(interval: Duration, files: Tls) -> Result<Self, TlsError> {
        let paths = [files.ca.clone(), files.cert.clone(), files.key.clone()];
        Ok(Self {
            watched: Watched::new(paths, || client_config(&files))?,
            files,
            interval,
            due: Mutex::new(Instant::now() + interval),
        })
    }

    /// The name that the server's certificate must have, if one was chosen.
    pub(crate) fn server_name(&self) -> Option<&str> {
        self.files.server_name.as_deref()
    }

    /// What a new connection gets. Who opens one looks at the files, if nobody
    /// has for a while; bad ones leave what was there.
    pub(crate) async fn fresh(self: &Arc<Self>) -> Arc<ClientConfig> {
        if self.watched.has_files() && self.is_due() {
            let tls = self.clone();
            // Files may be slow.
            let look = move || tls.watched.look(|| client_config(&tls.files));
            if let Err(error) = tokio::task::spawn_blocking(look).await {
                tracing::error!(%error, "could not look at the certificate");
            }
        }
        self.watched.current()
    }

    /// Whether to look now. Nobody else is told so for a while.
    fn is_due(&self) -> bool {
        let mut due = self.due.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        let is_due = now >= *due;
        if is_due {
            *due = now + self.interval;
        }
        is_due
    }
}

/// What was made of files, and is made again when they change.
struct Watched<T> {
    paths: Vec<PathBuf>,
    current: RwLock<Arc<T>>,
    /// What the files looked like when they were good.
    seen: Mutex<Vec<Look>>,
    /// What the log was told is wrong with them.
    told: Mutex<Option<String>>,
}

/// A file's time and length: enough to see that it was replaced.
type Look = Option<(SystemTime, u64)>;

impl<T> Watched<T> {
    fn new(
        paths: [Option<PathBuf>; 3],
        read: impl FnOnce() -> Result<T, TlsError>,
    ) -> Result<Self, TlsError> {
        let paths: Vec<_> = paths.into_iter().flatten().collect();
        // Looked at before they are read: a change in between is seen later.
        let seen = looks(&paths);
        Ok(Self {
            paths,
            current: RwLock::new(Arc::new(read()?)),
            seen: Mutex::new(seen),
            told: Mutex::default(),
        })
    }

    fn has_files(&self) -> bool {
        !self.paths.is_empty()
    }

    fn current(&self) -> Arc<T> {
        let current = self.current.read();
        current.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Reads the files again unless they look as they did when they were good.
    fn reload(&self, read: impl FnOnce() -> Result<T, TlsError>) -> Result<Reloaded, TlsError> {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let now = looks(&self.paths);
        if *seen == now {
            return Ok(Reloaded::Unchanged);
        }
        let read = Arc::new(read()?);
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = read;
        *seen = now;
        Ok(Reloaded::Changed)
    }

    /// The same for who looks again and again: the log is told, and the same
    /// mistake only once.
    fn look(&self, read: impl FnOnce() -> Result<T, TlsError>) {
        let reloaded = self.reload(read);
        let mistake = reloaded.as_ref().err().map(ToString::to_string);
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        match reloaded {
            Ok(Reloaded::Unchanged) => {}
            Ok(Reloaded::Changed) => tracing::info!(files = ?self.paths, "new certificate"),
            Err(_) if *told == mistake => {}
            Err(error) => {
                tracing::error!(%error, "the new certificate is bad; the old one stays");
            }
        }
        *told = mistake;
    }
}

fn looks(paths: &[PathBuf]) -> Vec<Look> {
    let look = |path: &PathBuf| {
        let metadata = std::fs::metadata(path).ok()?;
        Some((metadata.modified().ok()?, metadata.len()))
    };
    paths.iter().map(look).collect()
}

fn server_config(files: &TlsFiles) -> Result<ServerConfig, TlsError> {
    let builder = ServerConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .map_err(TlsError::Setup)?;
    let builder = match &files.client_ca {
        None => builder.with_no_client_auth(),
        Some(path) => builder.with_client_cert_verifier(verifier(path, files.client_auth)?),
    };
    let mut config = builder
        .with_single_cert(certificates(&files.cert)?, private_key(&files.key)?)
        .map_err(|source| TlsError::Pair {
            cert: files.cert.clone(),
            key: files.key.clone(),
            source,
        })?;
    config.alpn_protocols = vec![HTTP2.to_vec(), HTTP1.to_vec()];
    config.max_early_data_size = 0;
    Ok(config)
}

fn verifier(path: &Path, auth: ClientAuth) -> Result<Arc<dyn ClientCertVerifier>, TlsError> {
    let roots = Arc::new(authorities(path)?);
    let builder = WebPkiClientVerifier::builder_with_provider(roots, provider());
    let builder = match auth {
        ClientAuth::Required => builder,
        ClientAuth::Optional => builder.allow_unauthenticated(),
    };
    builder.build().map_err(|source| TlsError::Verifier {
        path: path.to_owned(),
        source,
    })
}

/// What a client of an upstream needs.
pub(crate) fn client_config(tls: &Tls) -> Result<ClientConfig, TlsError> {
    let roots = match &tls.ca {
        Some(path) => authorities(path)?,
        None => system_authorities()?,
    };
    let builder = ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .map_err(TlsError::Setup)?
        .with_root_certificates(roots);
    let mut config = match (&tls.cert, &tls.key) {
        (None, None) => builder.with_no_client_auth(),
        (Some(cert), Some(key)) => builder
            .with_client_auth_cert(certificates(cert)?, private_key(key)?)
            .map_err(|source| TlsError::Pair {
                cert: cert.clone(),
                key: key.clone(),
                source,
            })?,
        _ => return Err(TlsError::HalfPair),
    };
    config.alpn_protocols = vec![HTTP2.to_vec(), HTTP1.to_vec()];
    Ok(config)
}

/// Named each time, so that no other crate's choice of a provider matters.
fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

fn system_authorities() -> Result<RootCertStore, TlsError> {
    let found = rustls_native_certs::load_native_certs();
    for error in &found.errors {
        tracing::warn!(%error, "a trusted authority of the system cannot be read");
    }
    let mut roots = RootCertStore::empty();
    // Old ones that no longer parse are in every system's list.
    let (usable, _) = roots.add_parsable_certificates(found.certs);
    match usable {
        0 => Err(TlsError::NoAuthorities),
        _ => Ok(roots),
    }
}

fn authorities(path: &Path) -> Result<RootCertStore, TlsError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(path)? {
        roots
            .add(certificate)
            .map_err(|source| TlsError::Authority {
                path: path.to_owned(),
                source,
            })?;
    }
    Ok(roots)
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let found =
        CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    match found {
        Ok(found) if found.is_empty() => Err(TlsError::NoCertificate {
            path: path.to_owned(),
        }),
        Ok(found) => Ok(found),
        Err(source) => Err(unusable(path, source)),
    }
}

fn private_key(path: &Path) -> Result<PrivateKeyDer<'static>, TlsError> {
    PrivateKeyDer::from_pem_file(path).map_err(|source| match source {
        pem::Error::NoItemsFound => TlsError::NoKey {
            path: path.to_owned(),
        },
        source => unusable(path, source),
    })
}

fn unusable(path: &Path, source: pem::Error) -> TlsError {
    let path = path.to_owned();
    match source {
        pem::Error::Io(source) => TlsError::Unreadable { path, source },
        source => TlsError::Malformed { path, source },
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
    use tempfile::TempDir;

    use super::*;

    /// An authority in a directory of its own, which signs what tests need.
    pub(crate) struct Authority {
        issuer: Issuer<'static, KeyPair>,
        directory: TempDir,
    }

    impl Authority {
        pub(crate) fn new() -> Self {
            let mut params = CertificateParams::new(Vec::new()).expect("no names");
            params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
            let key = KeyPair::generate().expect("a key");
            let certificate = params.self_signed(&key).expect("a certificate");
            let directory = tempfile::tempdir().expect("a directory");
            let authority = Self {
                issuer: Issuer::new(params, key),
                directory,
            };
            authority.write("ca", &certificate.pem());
            authority
        }

        pub(crate) fn path(&self, name: &str) -> PathBuf {
            self.directory.path().join(format!("{name}.pem"))
        }

        pub(crate) fn write(&self, name: &str, text: &str) {
            std::fs::write(self.path(name), text).expect("a writable directory");
        }

        /// Signs a certificate for localhost: `{name}.pem` and `{name}-key.pem`.
        pub(crate) fn sign(&self, name: &str) {
            let names = vec!["localhost".to_owned(), "127.0.0.1".to_owned()];
            let params = CertificateParams::new(names).expect("names");
            let key = KeyPair::generate().expect("a key");
            let certificate = params.signed_by(&key, &self.issuer).expect("signed");
            self.write(name, &certificate.pem());
            self.write(&format!("{name}-key"), &key.serialize_pem());
        }

        pub(crate) fn server(&self, name: &str) -> TlsFiles {
            self.sign(name);
            TlsFiles {
                cert: self.path(name),
                key: self.path(&format!("{name}-key")),
                client_ca: None,
                client_auth: ClientAuth::Required,
            }
        }

        /// What a client needs to trust it.
        pub(crate) fn client(&self) -> Tls {
            Tls {
                ca: Some(self.path("ca")),
                ..Tls::default()
            }
        }

        /// What a client needs to be trusted by it, too.
        pub(crate) fn known_client(&self, name: &str) -> Tls {
            self.sign(name);
            Tls {
                cert: Some(self.path(name)),
                key: Some(self.path(&format!("{name}-key"))),
                ..self.client()
            }
        }
    }

    fn check(files: TlsFiles, why: &str) {
        let error = ServerTls::new(files).expect_err("unusable files");
        let error = error.to_string();
        assert!(error.contains(why), "{error} does not say {why}");
    }

    #[test]
    fn what_is_wrong_with_files_is_said_with_their_names() {
        let authority = Authority::new();
        let good = authority.server("server");
        authority.write("empty", "");
        authority.write(
            "broken",
            "-----BEGIN CERTIFICATE-----\n!\n-----END CERTIFICATE-----\n",
        );
        let with_cert = |name| TlsFiles {
            cert: authority.path(name),
            ..good.clone()
        };
        let with_key = |name| TlsFiles {
            key: authority.path(name),
            ..good.clone()
        };
        check(with_cert("absent"), "absent.pem: No such file");
        check(with_cert("empty"), "there is no certificate in ");
        check(with_cert("broken"), "broken.pem is not a PEM file");
        check(with_key("absent"), "absent.pem: No such file");
        check(with_key("server"), "there is no private key in ");
        authority.sign("other");
        check(with_key("other-key"), "does not go with the key in ");
        check(
            TlsFiles {
                client_ca: Some(authority.path("empty")),
                ..good.clone()
            },
            "empty.pem",
        );
        ServerTls::new(good).expect("usable files");
    }

    #[test]
    fn half_a_client_certificate_is_none() {
        let authority = Authority::new();
        let half = Tls {
            key: None,
            ..authority.known_client("client")
        };
        assert!(matches!(client_config(&half), Err(TlsError::HalfPair)));
    }

    #[test]
    fn a_bad_new_certificate_leaves_the_old_one_and_says_why_each_time() {
        let authority = Authority::new();
        let tls = ServerTls::new(authority.server("server")).expect("usable files");
        let first = tls.current();
        assert_eq!(tls.reload().expect("no change"), Reloaded::Unchanged);
        authority.write("server", "nonsense");
        for _ in 0..2 {
            let error = tls.reload().expect_err("no certificate");
            assert!(error.to_string().contains("server.pem"));
            assert!(Arc::ptr_eq(&first, &tls.current()));
        }
        authority.sign("server");
        assert_eq!(tls.reload().expect("a good one"), Reloaded::Changed);
        assert!(!Arc::ptr_eq(&first, &tls.current()));
    }

    #[test]
    fn the_log_is_told_of_a_mistake_once() {
        let authority = Authority::new();
        let tls = ServerTls::new(authority.server("server")).expect("usable files");
        let look = || {
            tls.watched.look(|| server_config(&tls.files));
            let told = tls.watched.told.lock().expect("whole");
            told.clone()
        };
        assert_eq!(look(), None);
        authority.write("server", "nonsense");
        let mistake = look();
        assert!(mistake.is_some() && look() == mistake);
        authority.sign("server");
        assert_eq!(look(), None);
    }

    #[tokio::test]
    async fn a_clients_files_are_looked_at_when_it_is_time() {
        let authority = Authority::new();
        let often = ClientTls::looking_each(Duration::ZERO, authority.known_client("client"));
        let often = Arc::new(often.expect("usable files"));
        let seldom = ClientTls::new(authority.known_client("client"));
        let seldom = Arc::new(seldom.expect("usable files"));
        let (first, kept) = (often.fresh().await, seldom.fresh().await);
        authority.write("client", "nonsense");
        assert!(Arc::ptr_eq(&first, &often.fresh().await), "bad ones stay");
        authority.sign("client");
        let second = often.fresh().await;
        assert!(!Arc::ptr_eq(&first, &second));
        assert!(Arc::ptr_eq(&second, &often.fresh().await));
        assert!(Arc::ptr_eq(&kept, &seldom.fresh().await));
    }

    #[test]
    fn early_data_is_never_taken() {
        let authority = Authority::new();
        let tls = ServerTls::new(authority.server("server")).expect("usable files");
        assert_eq!(tls.current().max_early_data_size, 0);
    }
}
