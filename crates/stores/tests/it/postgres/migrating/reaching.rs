//! Servers that cannot be reached, or are not PostgreSQL: one sentence each,
//! without the secrets of the URL.

use std::io::{Read as _, Write as _};
use std::net::TcpListener;

use onceward_servers::Postgres;
use onceward_stores::postgres::migrate::Options;

use super::{named, refused};

#[tokio::test]
async fn each_reason_of_a_failed_connection_has_its_own_error() {
    let mut postgres = Postgres::start();
    let port = postgres.port();
    postgres.sql(
        "postgres",
        "CREATE ROLE app LOGIN PASSWORD 'right'; CREATE ROLE idle NOLOGIN; CREATE DATABASE closed; \
         REVOKE CONNECT ON DATABASE closed FROM PUBLIC; CREATE SCHEMA theirs",
    );
    let url = |user: &str, database: &str| postgres.url_of(user, database);
    let cases = [
        (
            url("postgres", "nowhere"),
            Options::default(),
            format!(
                "database nowhere does not exist on PostgreSQL at 127.0.0.1:{port}; create it, or use another one in the URL"
            ),
        ),
        (
            url("nobody", "postgres"),
            Options::default(),
            format!(
                "PostgreSQL at 127.0.0.1:{port} rejects user nobody (28000: role \"nobody\" does not exist); \
                 check the user in the URL, and the server's pg_hba.conf"
            ),
        ),
        (
            url("app", "closed"),
            Options::default(),
            format!(
                "user app may not connect to database closed on PostgreSQL at 127.0.0.1:{port} \
                 (42501: permission denied for database \"closed\"); grant it CONNECT, or use another user"
            ),
        ),
        (
            url("postgres", "postgres?sslmode=require"),
            Options::default(),
            format!(
                "cannot set up TLS with PostgreSQL at 127.0.0.1:{port} (error performing TLS handshake: server does not support TLS); \
                 check sslmode and sslrootcert in the URL"
            ),
        ),
        (
            url("app", "postgres"),
            named("theirs.once"),
            "this user lacks a right (42501: permission denied for schema theirs); use the owner of \
             the table, or for a new table a user with the CREATE right in its schema"
                .to_owned(),
        ),
        (
            url("postgres", "postgres?options=-c%20default_transaction_read_only%3Don"),
            Options::default(),
            "the server accepts no writes (25006: cannot execute CREATE TABLE in a read-only transaction); \
             connect to the primary"
                .to_owned(),
        ),
    ];
    for (url, options, want) in cases {
        assert_eq!(refused(&url, &options).await.to_string(), want);
    }

    let rules = postgres.directory().join("data/pg_hba.conf");
    let all = std::fs::read_to_string(&rules).expect("initdb wrote it");
    let asking = format!("host all app 127.0.0.1/32 scram-sha-256\n{all}");
    std::fs::write(&rules, asking).expect("it can be written");
    postgres.stop();
    postgres.restart();
    let wrong = postgres.url_of("app:canary7e41", "postgres");
    let error = refused(&wrong, &Options::default()).await.to_string();
    assert!(!error.contains("canary7e41"), "{error}");
    assert_eq!(
        error,
        format!(
            "PostgreSQL at 127.0.0.1:{port} rejects the password of user app \
             (28P01: password authentication failed for user \"app\"); check it in the URL"
        )
    );
    let none = refused(&postgres.url_of("app", "postgres"), &Options::default()).await;
    assert_eq!(
        none.to_string(),
        format!(
            "PostgreSQL at 127.0.0.1:{port} rejects the password of user app \
             (invalid configuration: password missing); check it in the URL"
        )
    );
    postgres.stop();
    let error = refused(&postgres.url(), &Options::default())
        .await
        .to_string();
    let want = format!("cannot reach PostgreSQL at 127.0.0.1:{port} (error connecting to server: ");
    assert!(error.starts_with(&want), "{error}");
}

/// A server of another kind: it reads the first message and answers in its own
/// protocol.
fn stranger(answer: &'static [u8]) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let port = listener.local_addr().expect("it is bound").port();
    std::thread::spawn(move || {
        while let Ok((mut stream, _)) = listener.accept() {
            let mut heard = [0; 8];
            // An error here means that the client has gone.
            let _ = stream.read(&mut heard);
            let _ = stream.write_all(answer);
            if answer.is_empty() {
                // Sends nothing until the client gives up.
                let _ = stream.read_to_end(&mut Vec::new());
            }
        }
    });
    port
}

#[tokio::test]
async fn a_server_that_is_not_postgres_is_named() {
    let answers: [&'static [u8]; 3] = [
        b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n",
        b"-ERR unknown command\r\n",
        b"",
    ];
    for answer in answers {
        let port = stranger(answer);
        for mode in ["disable", "prefer"] {
            let url = format!("postgres://app:canary7e41@127.0.0.1:{port}/pay?sslmode={mode}");
            let error = refused(&url, &Options::default()).await.to_string();
            let want =
                format!("the server at 127.0.0.1:{port} does not speak the PostgreSQL protocol (");
            assert!(error.starts_with(&want), "{mode}: {error}");
            assert!(!error.contains("canary7e41"), "{error}");
        }
    }
}

#[tokio::test]
async fn urls_that_name_no_postgres_are_refused_without_their_secrets() {
    let cases = [
        (
            "embedded:./data",
            "store: `embedded:` is not PostgreSQL and needs no migration; ",
        ),
        (
            "redis://:canary7e41@host",
            "store: `redis:` is not PostgreSQL and needs no migration; ",
        ),
        ("canary7e41", "store: this is not a URL; write postgres://"),
        (
            "postgres://app:canary7e41@host:port/pay",
            "store: the URL cannot be read (",
        ),
        (
            "postgres://app:canary7e41@host/pay?sslmode=canary",
            "store: sslmode in the URL is \"canary\"; ",
        ),
        (
            "postgres://app:canary7e41@host/pay?nothing=1",
            "store: the URL cannot be read (",
        ),
    ];
    for (url, want) in cases {
        let error = refused(url, &Options::default()).await.to_string();
        assert!(error.starts_with(want), "{url}: {error}");
        assert!(!error.contains("canary7e41"), "{error}");
    }
}
