use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use tempfile::TempDir;

use super::config::server_config;
use super::*;

/// A certificate authority with its own directory, which signs certificates for
/// tests.
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

    /// The settings of a client that trusts this authority.
    pub(crate) fn client(&self) -> Tls {
        Tls {
            ca: Some(self.path("ca")),
            ..Tls::default()
        }
    }

    /// The settings of a client that also has a certificate of this authority.
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
    let error = ListenerTls::new(files).expect_err("unusable files");
    let error = error.to_string();
    assert!(error.contains(why), "{error:?} does not contain {why:?}");
}

#[test]
fn errors_name_the_unusable_file() {
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
    check(with_cert("empty"), "no certificate in ");
    check(with_cert("broken"), "broken.pem is not a PEM file");
    check(with_key("absent"), "absent.pem: No such file");
    check(with_key("server"), "no private key in ");
    authority.sign("other");
    check(with_key("other-key"), "does not match the key in ");
    check(
        TlsFiles {
            client_ca: Some(authority.path("empty")),
            ..good.clone()
        },
        "empty.pem",
    );
    ListenerTls::new(good).expect("usable files");
}

#[test]
fn client_certificate_without_a_key_is_refused() {
    let authority = Authority::new();
    let half = Tls {
        key: None,
        ..authority.known_client("client")
    };
    assert!(matches!(
        client_config(&half),
        Err(TlsError::IncompletePair)
    ));
}

#[test]
fn unusable_new_certificate_leaves_the_old_one_and_each_reload_fails() {
    let authority = Authority::new();
    let tls = ListenerTls::new(authority.server("server")).expect("usable files");
    let first = tls.current();
    assert_eq!(tls.reload().expect("no change"), TlsReload::Unchanged);
    authority.write("server", "nonsense");
    for _ in 0..2 {
        let error = tls.reload().expect_err("no certificate");
        assert!(error.to_string().contains("server.pem"));
        assert!(Arc::ptr_eq(&first, &tls.current()));
    }
    authority.sign("server");
    assert_eq!(tls.reload().expect("a good one"), TlsReload::Changed);
    assert!(!Arc::ptr_eq(&first, &tls.current()));
}

#[test]
fn same_error_is_logged_once() {
    let authority = Authority::new();
    let tls = ListenerTls::new(authority.server("server")).expect("usable files");
    let check = || {
        tls.config.check(|| server_config(&tls.files));
        tls.config.logged_error()
    };
    assert_eq!(check(), None);
    authority.write("server", "nonsense");
    let error = check();
    assert!(error.is_some() && check() == error);
    authority.sign("server");
    assert_eq!(check(), None);
}

#[tokio::test]
async fn client_files_are_checked_once_per_interval() {
    let authority = Authority::new();
    let often = ClientTls::with_check_interval(Duration::ZERO, authority.known_client("client"));
    let often = Arc::new(often.expect("usable files"));
    let seldom = ClientTls::new(authority.known_client("client"));
    let seldom = Arc::new(seldom.expect("usable files"));
    let (first, kept) = (often.current_config().await, seldom.current_config().await);
    authority.write("client", "nonsense");
    assert!(
        Arc::ptr_eq(&first, &often.current_config().await),
        "unusable files change nothing"
    );
    authority.sign("client");
    let second = often.current_config().await;
    assert!(!Arc::ptr_eq(&first, &second));
    assert!(Arc::ptr_eq(&second, &often.current_config().await));
    assert!(Arc::ptr_eq(&kept, &seldom.current_config().await));
}

#[test]
fn early_data_is_never_accepted() {
    let authority = Authority::new();
    let tls = ListenerTls::new(authority.server("server")).expect("usable files");
    assert_eq!(tls.current().max_early_data_size, 0);
}
