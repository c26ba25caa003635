//! Makes rustls configurations from certificate files.

use std::path::Path;
use std::sync::Arc;

use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
use rustls::{ClientConfig, RootCertStore, ServerConfig};

use super::{ClientAuth, HTTP1, HTTP2, TlsError, TlsFiles};
use crate::upstream::Tls;

pub(super) fn server_config(files: &TlsFiles) -> Result<ServerConfig, TlsError> {
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

/// The configuration for connections to an upstream.
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
        _ => return Err(TlsError::IncompletePair),
    };
    config.alpn_protocols = vec![HTTP2.to_vec(), HTTP1.to_vec()];
    Ok(config)
}

/// Passed explicitly, so that a process-wide default set by another crate has no
/// effect.
fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

fn system_authorities() -> Result<RootCertStore, TlsError> {
    let found = rustls_native_certs::load_native_certs();
    for error in &found.errors {
        tracing::warn!(%error, "could not read a certificate authority of the system");
    }
    let mut roots = RootCertStore::empty();
    // Every system's list contains old certificates that do not parse.
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
        Err(source) => Err(pem_error(path, source)),
    }
}

fn private_key(path: &Path) -> Result<PrivateKeyDer<'static>, TlsError> {
    PrivateKeyDer::from_pem_file(path).map_err(|source| match source {
        pem::Error::NoItemsFound => TlsError::NoKey {
            path: path.to_owned(),
        },
        source => pem_error(path, source),
    })
}

fn pem_error(path: &Path, source: pem::Error) -> TlsError {
    let path = path.to_owned();
    match source {
        pem::Error::Io(source) => TlsError::Unreadable { path, source },
        source => TlsError::Malformed { path, source },
    }
}
