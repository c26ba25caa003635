//! No credential and no secret in the log, whatever goes wrong.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use onceward_core::caller::Subject;
use secrecy::ExposeSecret;
use tracing_subscriber::fmt::MakeWriter;

use super::forge::{Signer, claims, header, jwks};
use super::stub_server::{self, StubServer, reply};
use super::{callers, issuer, send_bearer, send_headers};
use crate::callers::api_keys::NewKey;
use crate::config::{self, JwksSource, SecretValue};

/// A log in memory.
#[derive(Clone, Default)]
struct CapturedLog(Arc<Mutex<Vec<u8>>>);

impl CapturedLog {
    fn text(&self) -> String {
        let held = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        String::from_utf8_lossy(&held).into_owned()
    }
}

impl io::Write for CapturedLog {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut held = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        held.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for CapturedLog {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}

#[tokio::test]
async fn no_credential_and_no_secret_is_logged() {
    let log = CapturedLog::default();
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(tracing::Level::TRACE)
        .with_writer(log.clone())
        .finish();
    let _guard = tracing::subscriber::set_default(subscriber);

    let signer = Signer::p256();
    let keys = jwks(&[signer.jwk("a")]);
    let endpoint = StubServer::new(move |_| stub_server::json(200, &keys)).await;
    let unkey = StubServer::new(|_| reply(403, "")).await;
    let url = format!("{}/jwks?canary-query=1", endpoint.url());
    let callers = callers(&config::Auth {
        api_keys: Some(config::ApiKeys::default()),
        jwt: vec![issuer(JwksSource::Url(url))],
        unkey: Some(config::Unkey {
            url: unkey.url().to_owned(),
            root_key: SecretValue::Given("canary-root-key".into()),
            webhook_root_key: None,
            cache: Duration::from_secs(1),
            deadline: Duration::from_secs(1),
        }),
        scheduler: Some(config::Scheduler {
            secrets: vec![SecretValue::Given("canary-scheduler-secret".into())],
            tolerance: Duration::from_secs(300),
        }),
    })
    .await;

    let created = callers.api_keys().create(NewKey {
        tenant: "acme".to_owned(),
        project: None,
        subject: Subject::parse("service:worker").expect("a subject"),
        scopes: Vec::new(),
        name: String::new(),
        expires_at: None,
    });
    let created = created.await.expect("a key");
    let key = created.secret.expose_secret().to_owned();
    send_bearer(&callers, &key).await.expect("known");
    callers
        .api_keys()
        .revoke(&created.id)
        .await
        .expect("revoked");
    send_bearer(&callers, &key).await.expect_err("revoked");
    let good = signer.token(&header("ES256", "a"), &claims());
    send_bearer(&callers, &good).await.expect("known");
    let bad = signer.token(&header("ES256", "canary-kid"), &claims());
    send_bearer(&callers, &bad).await.expect_err("unknown key");
    send_bearer(&callers, "canary-unkey-key")
        .await
        .expect_err("no verdict");
    send_headers(&callers, &[("authorization", "Basic canary-basic")])
        .await
        .expect_err("another scheme");
    let signed = r#"tenant="canary-tenant", project="p", time=1, v1="00""#;
    send_headers(&callers, &[("x-schedule-signature", signed)])
        .await
        .expect_err("too old");
    endpoint.respond_with(|_| reply(500, "canary-answer"));

    let text = log.text();
    assert!(text.contains("caller refused"), "nothing was logged");
    assert!(text.contains("Unkey refused the root key"));
    assert!(!text.contains("canary"), "{text}");
    for credential in [&key[20..], &good, &bad] {
        assert!(!text.contains(credential));
    }
}
