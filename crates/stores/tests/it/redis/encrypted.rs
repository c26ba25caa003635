//! `rediss://`: TLS, with the certificates that the system trusts.

use std::fs;
use std::net::TcpListener;
use std::path::Path;

use onceward_servers::Redis;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};

use crate::fixture::redis::*;
use crate::fixture::{child, complete, directory, directory_as_child, is_replayed, until};

/// A certificate for localhost, and its issuer.
fn write_certificates(directory: &Path) {
    let authority_key = KeyPair::generate().expect("a key");
    let mut authority = CertificateParams::new(Vec::new()).expect("no names");
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let signed = authority.self_signed(&authority_key);
    let root = signed.expect("a certificate").pem();
    let issuer = Issuer::new(authority, authority_key);
    let key = KeyPair::generate().expect("a key");
    let server = CertificateParams::new(vec!["localhost".to_owned()]).expect("a good name");
    let server = server.signed_by(&key, &issuer).expect("a certificate");
    for (name, text) in [
        ("root.pem", root),
        ("server.pem", server.pem()),
        ("key.pem", key.serialize_pem()),
    ] {
        fs::write(directory.join(name), text).expect("written");
    }
}

/// A port that was free a moment ago.
fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    listener.local_addr().expect("it is bound").port()
}

/// Opens the store at the URL in the directory, with the trusted certificates of
/// its environment, and writes the result to a file.
#[tokio::test]
async fn child_opens() {
    let Some(home) = directory_as_child() else {
        return;
    };
    let url = fs::read_to_string(home.join("url")).expect("the parent wrote it");
    let word = match onceward_stores::redis::RedisStore::open(&settings(&url)).await {
        Ok(store) => {
            complete(&store, 1).await;
            assert!(is_replayed(&store, 1).await);
            "opened".to_owned()
        }
        Err(error) => error.to_string(),
    };
    fs::write(home.join("word.part"), word).expect("written");
    fs::rename(home.join("word.part"), home.join("word")).expect("renamed");
}

/// The result of a child that trusts this file.
async fn word_of_child(home: &Path, url: &str, trusted: &str) -> String {
    fs::write(home.join("url"), url).expect("written");
    let trust = format!(
        "export SSL_CERT_FILE={}; unset SSL_CERT_DIR;",
        home.join(trusted).display()
    );
    let _child = child("redis::encrypted::child_opens", home, &trust);
    let word = until("the child has spoken", async || {
        fs::read_to_string(home.join("word")).ok()
    })
    .await;
    fs::remove_file(home.join("word")).expect("removed");
    word
}

#[tokio::test]
async fn redis_is_reached_by_tls_if_its_certificate_is_trusted() {
    let home = directory();
    write_certificates(home.path());
    let file = |name: &str| home.path().join(name).display().to_string();
    let port = free_port().to_string();
    let _server = Redis::start_with(&[
        "--tls-port",
        &port,
        "--tls-cert-file",
        &file("server.pem"),
        "--tls-key-file",
        &file("key.pem"),
        "--tls-auth-clients",
        "no",
    ]);
    let url = format!("rediss://localhost:{port}");
    assert_eq!(word_of_child(home.path(), &url, "root.pem").await, "opened");

    let other = directory();
    write_certificates(other.path());
    let stranger = other.path().join("root.pem");
    fs::copy(stranger, home.path().join("stranger.pem")).expect("copied");
    let word = word_of_child(home.path(), &url, "stranger.pem").await;
    assert!(word.contains("invalid peer certificate"), "{word}");
    let plain = format!("redis://localhost:{port}");
    let word = word_of_child(home.path(), &plain, "root.pem").await;
    assert!(word.contains("does not speak the Redis protocol"), "{word}");
}
