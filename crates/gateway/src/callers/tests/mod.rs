//! Callers, tested with forged credentials and with failing services.

mod api_keys;
mod credentials;
pub(crate) mod forge;
mod jwks;
mod jwt;
mod logs;
mod scheduler;
pub(crate) mod stub_server;
mod unkey;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue};
use onceward_core::caller::SubjectKind;
use onceward_core::clock::{SystemClock, Timestamp};
use onceward_core::memory::MemoryStore;
use onceward_core::store::Registry;

use super::jwks::JwksTiming;
use super::{AuthError, Authentication, Callers, Parts, VerifiedCaller, WallClock};
use crate::config;
use crate::secrets::SecretReader;
use crate::secrets::gateway_key::GatewayKey;

/// The time of all tests, in seconds.
pub(crate) const NOW_S: u64 = 1_700_000_000;
pub(crate) const ISSUER: &str = "https://id.example.com/";
pub(crate) const AUDIENCE: &str = "payments";

/// A clock that the tests set.
#[derive(Clone)]
pub(crate) struct TestClock(Arc<AtomicU64>);

impl TestClock {
    pub(crate) fn new() -> Self {
        Self(Arc::new(AtomicU64::new(NOW_S * 1000)))
    }

    pub(crate) fn advance(&self, span: Duration) {
        let ms = u64::try_from(span.as_millis()).expect("a short span");
        self.0.fetch_add(ms, Ordering::SeqCst);
    }

    pub(crate) fn now(&self) -> Timestamp {
        Timestamp::from_unix_ms(self.0.load(Ordering::SeqCst))
    }

    pub(crate) fn clock(&self) -> WallClock {
        let test_clock = self.clone();
        WallClock::new(move || test_clock.now())
    }
}

/// The usual timing, with a short deadline for a server that never answers.
pub(crate) fn quick_timing() -> JwksTiming {
    JwksTiming {
        retry: Duration::from_millis(20),
        poll: Duration::from_millis(20),
        deadline: Duration::from_millis(400),
        ..JwksTiming::default()
    }
}

pub(crate) fn registry() -> Arc<dyn Registry> {
    Arc::new(MemoryStore::new(Arc::new(SystemClock::new())))
}

pub(crate) fn parts(test_clock: &TestClock) -> Parts {
    Parts {
        registry: registry(),
        pepper: GatewayKey::new().expect("random bytes"),
        secrets: SecretReader::new(&config::Secrets::default()).expect("nothing to set up"),
        clock: test_clock.clock(),
    }
}

/// Callers with this configuration, at the tests' time.
pub(crate) async fn callers(auth: &config::Auth) -> Callers {
    callers_with_timing(auth, quick_timing()).await
}

pub(crate) async fn callers_with_timing(auth: &config::Auth, timing: JwksTiming) -> Callers {
    let opened = Callers::open_with_timing(auth, parts(&TestClock::new()), timing).await;
    opened.expect("callers")
}

/// An issuer whose keys are available.
pub(crate) fn issuer(keys: config::JwksSource) -> config::Jwt {
    use jsonwebtoken::Algorithm;
    let pointer = |text: &str| config::ClaimSource::Pointer(text.to_owned());
    config::Jwt {
        issuer: ISSUER.to_owned(),
        audience: vec![AUDIENCE.to_owned()],
        keys,
        algorithms: vec![
            Algorithm::RS256,
            Algorithm::PS256,
            Algorithm::ES256,
            Algorithm::ES384,
            Algorithm::EdDSA,
        ],
        tenant: pointer("/tenant_id"),
        project: Some(pointer("/project_id")),
        subject: pointer("/sub"),
        subject_type: SubjectKind::User,
        scopes: Some("/scope".to_owned()),
        leeway: Duration::from_secs(30),
    }
}

pub(crate) fn headers(lines: &[(&'static str, &str)]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, value) in lines {
        let value = HeaderValue::from_str(value).expect("a header's value");
        headers.append(HeaderName::from_static(name), value);
    }
    headers
}

/// The result of a bearer token.
pub(crate) async fn send_bearer(
    callers: &Callers,
    token: &str,
) -> Result<VerifiedCaller, AuthError> {
    let line = format!("Bearer {token}");
    send_headers(callers, &[("authorization", &line)]).await
}

pub(crate) async fn send_headers(
    callers: &Callers,
    lines: &[(&'static str, &str)],
) -> Result<VerifiedCaller, AuthError> {
    match callers.authenticate(&headers(lines)).await? {
        Authentication::Verified(known) => Ok(known),
        Authentication::Signed(_) => panic!("nothing was signed"),
    }
}

/// Waits until a condition holds, for at most five seconds.
pub(crate) async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    for _ in 0..500 {
        if holds() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("waited in vain until {what}");
}
