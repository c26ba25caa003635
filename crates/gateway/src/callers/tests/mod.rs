//! Callers, tried with forged credentials and with services that misbehave.

mod api_keys;
mod attacks;
mod door;
pub(crate) mod forge;
mod keys_of_issuers;
mod logs;
mod scheduler;
pub(crate) mod standin;
mod unkey;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue};
use onceward_core::caller::SubjectKind;
use onceward_core::clock::{SystemClock, Timestamp};
use onceward_core::memory::MemoryStore;
use onceward_core::store::Registry;

use super::jwks::Pace;
use super::{AuthError, Callers, Known, Parts, Presented, WallClock};
use crate::config;
use crate::secrets::SecretReader;
use crate::secrets::gateway_key::Secret;

/// The time of all tests, in seconds.
pub(crate) const NOW_S: u64 = 1_700_000_000;
pub(crate) const ISSUER: &str = "https://id.example.com/";
pub(crate) const AUDIENCE: &str = "payments";

/// A clock that tests move.
#[derive(Clone)]
pub(crate) struct Hands(Arc<AtomicU64>);

impl Hands {
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
        let hands = self.clone();
        WallClock::new(move || hands.now())
    }
}

/// The usual pace, with a short wait for what never answers.
pub(crate) fn quick() -> Pace {
    Pace {
        retry: Duration::from_millis(20),
        look: Duration::from_millis(20),
        deadline: Duration::from_millis(400),
        ..Pace::default()
    }
}

pub(crate) fn registry() -> Arc<dyn Registry> {
    Arc::new(MemoryStore::new(Arc::new(SystemClock::new())))
}

pub(crate) fn parts(hands: &Hands) -> Parts {
    Parts {
        registry: registry(),
        pepper: Secret::new().expect("random bytes"),
        secrets: SecretReader::new(&config::Secrets::default()).expect("nothing to set up"),
        clock: hands.clock(),
    }
}

/// Callers with this configuration, at the tests' time.
pub(crate) async fn callers(auth: &config::Auth) -> Callers {
    callers_at(auth, quick()).await
}

pub(crate) async fn callers_at(auth: &config::Auth, pace: Pace) -> Callers {
    let opened = Callers::open_at(auth, parts(&Hands::new()), pace).await;
    opened.expect("callers")
}

/// An issuer whose keys are there.
pub(crate) fn issuer(keys: config::JwksSource) -> config::Jwt {
    use jsonwebtoken::Algorithm;
    let pointer = |text: &str| config::Claim::Pointer(text.to_owned());
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

/// What becomes of a bearer.
pub(crate) async fn bear(callers: &Callers, token: &str) -> Result<Known, AuthError> {
    let line = format!("Bearer {token}");
    present(callers, &[("authorization", &line)]).await
}

pub(crate) async fn present(
    callers: &Callers,
    lines: &[(&'static str, &str)],
) -> Result<Known, AuthError> {
    match callers.authenticate(&headers(lines)).await? {
        Presented::Known(known) => Ok(known),
        Presented::Signed(_) => panic!("nothing was signed"),
    }
}

/// Waits until something holds, for at most five seconds.
pub(crate) async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    for _ in 0..500 {
        if holds() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("waited in vain until {what}");
}
