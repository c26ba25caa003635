//! The gateway's own API keys.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use onceward_core::caller::{CallerError, Subject};
use onceward_core::store::{Added, Collection, Registry, SortOrder, StoreError};
use rstest::rstest;
use secrecy::ExposeSecret;
use tokio::sync::RwLock;

use super::{TestClock, parts, quick_timing, send_bearer, send_headers};
use crate::callers::api_keys::{ApiKeyRegistry, IssuedKey, KeysError, NewKey, Revoked};
use crate::callers::{Callers, Parts, Refusal};
use crate::config::{self, KnownBy, Scope};

fn new_key() -> NewKey {
    NewKey {
        tenant: "acme".to_owned(),
        project: Some("shop".to_owned()),
        subject: Subject::parse("service:worker").expect("a subject"),
        scopes: vec!["pay".to_owned()],
        name: "the worker".to_owned(),
        expires_at: None,
    }
}

fn taking() -> config::Auth {
    config::Auth {
        api_keys: Some(config::ApiKeys::default()),
        ..config::Auth::default()
    }
}

async fn open(auth: &config::Auth, test_clock: &TestClock) -> Callers {
    let opened = Callers::open_with_timing(auth, parts(test_clock), quick_timing()).await;
    opened.expect("callers")
}

async fn create(callers: &Callers, new: NewKey) -> IssuedKey {
    callers.api_keys().create(new).await.expect("a key")
}

/// A copy of parts that shares their registry and pepper.
fn sharing_store(parts: &Parts) -> Parts {
    Parts {
        registry: parts.registry.clone(),
        pepper: parts.pepper.clone(),
        secrets: parts.secrets.clone(),
        clock: parts.clock.clone(),
    }
}

#[tokio::test]
async fn a_key_authenticates_its_caller_in_either_header() {
    let callers = open(&taking(), &TestClock::new()).await;
    let created = create(&callers, new_key()).await;
    let key = created.secret.expose_secret();
    let known = send_bearer(&callers, key).await.expect("known");
    assert_eq!(
        send_headers(&callers, &[("x-api-key", key)]).await,
        Ok(known.clone())
    );
    assert_eq!(known.by(), KnownBy::ApiKey);
    assert_eq!(known.scopes(), ["pay"]);
    let caller = known.caller(Scope::Project).expect("a caller");
    assert_eq!(caller.tenant(), "acme");
    assert_eq!(caller.project(), "shop");
    assert_eq!(caller.subject().to_string(), "service:worker");
}

#[tokio::test]
async fn keys_have_the_documented_form() {
    let callers = open(&taking(), &TestClock::new()).await;
    let created = create(&callers, new_key()).await;
    let key = created.secret.expose_secret();
    let rest = key.strip_prefix("ow_").expect("the prefix");
    let (id, tail) = rest.split_once('_').expect("two parts");
    assert_eq!(id, created.id);
    assert_eq!((id.len(), tail.len()), (16, 59));
    assert!(!format!("{created:?}").contains(&tail[..52]));
}

#[tokio::test]
async fn wrong_keys_are_refused() {
    let callers = open(&taking(), &TestClock::new()).await;
    let one = create(&callers, new_key()).await;
    let other = create(&callers, new_key()).await;
    let key = one.secret.expose_secret();
    let changed = |at: usize| {
        let mut bytes = key.as_bytes().to_vec();
        bytes[at] = if bytes[at] == b'a' { b'b' } else { b'a' };
        String::from_utf8(bytes).expect("text")
    };
    let malformed = Refusal::Malformed("not an API key");
    for bad in [
        changed(5),
        changed(30),
        changed(key.len() - 1),
        key.to_uppercase().replacen("OW_", "ow_", 1),
        key[..key.len() - 1].to_owned(),
        format!("{key}a"),
        "ow_".to_owned(),
        "ow__".to_owned(),
    ] {
        let error = send_bearer(&callers, &bad).await;
        assert_eq!(error, Err(malformed.clone().into()), "{bad}");
    }
    // Well-formed, but with an unknown id or another key's secret.
    let elsewhere = open(&taking(), &TestClock::new()).await;
    let unknown = create(&elsewhere, new_key()).await;
    let error = send_bearer(&callers, unknown.secret.expose_secret()).await;
    assert_eq!(error, Err(Refusal::UnknownKey.into()));
    let mixed = forged(&one.id, other.secret.expose_secret());
    assert_eq!(
        send_bearer(&callers, &mixed).await,
        Err(Refusal::WrongSecret.into())
    );
    // The client's answer is the same for both.
    let texts = [Refusal::UnknownKey, Refusal::WrongSecret, Refusal::Revoked];
    let texts =
        texts.map(|refusal| format!("{:?}", crate::callers::AuthError::from(refusal).problem()));
    assert!(texts.iter().all(|text| *text == texts[0]));
}

/// Another key's secret under this id, with a correct checksum.
fn forged(id: &str, other: &str) -> String {
    use sha2::{Digest as _, Sha256};
    let (_, tail) = other[3..].split_once('_').expect("two parts");
    let text = format!("ow_{id}_{}", &tail[..52]);
    let sum = data_encoding::BASE32_NOPAD.encode(&Sha256::digest(&text)[..4]);
    format!("{text}{}", sum.to_ascii_lowercase())
}

#[tokio::test]
async fn a_revoked_key_is_refused_at_once_and_after_a_restart() {
    let test_clock = TestClock::new();
    let parts = parts(&test_clock);
    let copy = sharing_store(&parts);
    let callers = Callers::open_with_timing(&taking(), parts, quick_timing())
        .await
        .expect("callers");
    let created = create(&callers, new_key()).await;
    let kept = create(&callers, new_key()).await;
    let key = created.secret.expose_secret();
    send_bearer(&callers, key).await.expect("known");
    let keys = callers.api_keys();
    assert_eq!(
        keys.revoke(&created.id).await.expect("revoked"),
        Revoked::Done
    );
    assert_eq!(
        send_bearer(&callers, key).await,
        Err(Refusal::Revoked.into())
    );
    assert_eq!(
        keys.revoke(&created.id).await.expect("again"),
        Revoked::Already
    );
    assert_eq!(keys.revoke("nobody").await.expect("asked"), Revoked::Absent);
    keys.refresh().await.expect("read again");
    assert_eq!(
        send_bearer(&callers, key).await,
        Err(Refusal::Revoked.into())
    );
    let restarted = Callers::open_with_timing(&taking(), copy, quick_timing())
        .await
        .expect("callers");
    assert_eq!(
        send_bearer(&restarted, key).await,
        Err(Refusal::Revoked.into())
    );
    send_bearer(&restarted, kept.secret.expose_secret())
        .await
        .expect("known");
}

#[tokio::test]
async fn a_key_expires_on_time() {
    let test_clock = TestClock::new();
    let callers = open(&taking(), &test_clock).await;
    let expires_at = Some(test_clock.now().plus(Duration::from_secs(10)));
    let created = create(
        &callers,
        NewKey {
            expires_at,
            ..new_key()
        },
    )
    .await;
    let key = created.secret.expose_secret();
    test_clock.advance(Duration::from_millis(9_999));
    send_bearer(&callers, key).await.expect("known");
    test_clock.advance(Duration::from_millis(1));
    assert_eq!(
        send_bearer(&callers, key).await,
        Err(Refusal::Expired.into())
    );
}

#[tokio::test]
async fn no_secret_is_stored() {
    let test_clock = TestClock::new();
    let parts = parts(&test_clock);
    let registry = parts.registry.clone();
    let callers = Callers::open_with_timing(&taking(), parts, quick_timing())
        .await
        .expect("callers");
    let created = create(&callers, new_key()).await;
    let key = created.secret.expose_secret();
    let secret = key[3..].split_once('_').expect("two parts").1;
    let all = registry
        .documents(Collection::ApiKeys, SortOrder::Ascending, None, 100)
        .await;
    let all = all.expect("documents");
    assert_eq!(all.len(), 1);
    for (name, document) in all {
        let text = format!("{name}{}", String::from_utf8_lossy(&document));
        assert!(!text.contains(secret) && !text.contains(&secret[..20]));
    }
    let listed = callers.api_keys().list();
    assert_eq!(listed, [created.record]);
    assert!(!format!("{listed:?}").contains(&secret[..20]));
}

#[tokio::test]
async fn a_stolen_registry_is_useless_without_the_gateways_key() {
    let test_clock = TestClock::new();
    let mine = parts(&test_clock);
    let registry = mine.registry.clone();
    let callers = Callers::open_with_timing(&taking(), mine, quick_timing())
        .await
        .expect("callers");
    let created = create(&callers, new_key()).await;
    let thief = Parts {
        registry,
        ..parts(&test_clock)
    };
    let thief = Callers::open_with_timing(&taking(), thief, quick_timing())
        .await
        .expect("callers");
    let error = send_bearer(&thief, created.secret.expose_secret()).await;
    assert_eq!(error, Err(Refusal::WrongSecret.into()));
}

#[tokio::test]
async fn keys_can_be_managed_where_they_are_not_accepted() {
    let callers = open(&config::Auth::default(), &TestClock::new()).await;
    let created = create(&callers, new_key()).await;
    let error = send_bearer(&callers, created.secret.expose_secret()).await;
    assert_eq!(error, Err(Refusal::NotTaken("API keys").into()));
    assert_eq!(callers.api_keys().list().len(), 1);
    // A key revoked through the old configuration is revoked in the new one too.
    let reopened = callers.reopen(&taking(), callers.secrets.clone());
    let reopened = reopened.expect("reopened");
    let key = created.secret.expose_secret();
    send_bearer(&reopened, key).await.expect("taken now");
    callers
        .api_keys()
        .revoke(&created.id)
        .await
        .expect("revoked");
    assert_eq!(
        send_bearer(&reopened, key).await,
        Err(Refusal::Revoked.into())
    );
}

#[rstest]
#[case::reserved_tenant(NewKey { tenant: "_local".into(), ..new_key() })]
#[case::reserved_project(NewKey { project: Some("_tenant".into()), ..new_key() })]
#[case::the_scheduler(NewKey { subject: Subject::parse("service:scheduler").expect("typed"), ..new_key() })]
#[case::no_tenant(NewKey { tenant: String::new(), ..new_key() })]
#[case::a_name_with_a_newline(NewKey { name: "a\nb".into(), ..new_key() })]
#[case::a_blank_in_a_scope(NewKey { scopes: vec!["a b".into()], ..new_key() })]
#[case::too_many_scopes(NewKey { scopes: vec!["a".into(); 65], ..new_key() })]
#[case::expired(NewKey { expires_at: Some(TestClock::new().now()), ..new_key() })]
#[tokio::test]
async fn invalid_keys_are_not_created(#[case] new: NewKey) {
    let callers = open(&taking(), &TestClock::new()).await;
    callers.api_keys().create(new).await.expect_err("not a key");
    assert!(callers.api_keys().list().is_empty());
}

#[tokio::test]
async fn a_damaged_document_affects_only_its_own_key() {
    let test_clock = TestClock::new();
    let parts = parts(&test_clock);
    let copy = sharing_store(&parts);
    let callers = Callers::open_with_timing(&taking(), parts, quick_timing())
        .await
        .expect("callers");
    let good = create(&callers, new_key()).await;
    let bad = create(&callers, new_key()).await;
    let read = copy.registry.read(Collection::ApiKeys, &bad.id).await;
    let document = String::from_utf8(read.expect("read").expect("there").to_vec()).expect("text");
    for (from, to) in [
        ("\"version\":1", "\"version\":2"),
        ("\"acme\"", "\"_local\""),
        ("service:worker", "service:scheduler"),
        ("{", "["),
        ("\"hash\":\"", "\"hash\":\"0"),
    ] {
        let damaged = Bytes::from(document.replacen(from, to, 1));
        copy.registry
            .put(Collection::ApiKeys, &bad.id, damaged)
            .await
            .expect("written");
        callers.api_keys().refresh().await.expect("read");
        let error = send_bearer(&callers, bad.secret.expose_secret()).await;
        assert_eq!(error, Err(Refusal::UnknownKey.into()), "{to}");
        send_bearer(&callers, good.secret.expose_secret())
            .await
            .expect("known");
        let revoked = callers.api_keys().revoke(&bad.id).await;
        assert!(matches!(revoked, Err(KeysError::Damaged { .. })));
    }
}

#[tokio::test]
async fn more_keys_than_a_page_are_all_read() {
    let test_clock = TestClock::new();
    let parts = parts(&test_clock);
    let copy = sharing_store(&parts);
    let callers = Callers::open_with_timing(&taking(), parts, quick_timing())
        .await
        .expect("callers");
    let mut last = None;
    for _ in 0..1_001 {
        last = Some(create(&callers, new_key()).await);
    }
    let restarted = Callers::open_with_timing(&taking(), copy, quick_timing())
        .await
        .expect("callers");
    assert_eq!(restarted.api_keys().list().len(), 1_001);
    let key = last.expect("a key");
    send_bearer(&restarted, key.secret.expose_secret())
        .await
        .expect("known");
}

/// A registry whose writes can be made to fail, or every access.
struct FailingRegistry {
    inner: Arc<dyn Registry>,
    away: AtomicBool,
    /// A write lock delays the reads.
    slow: RwLock<()>,
}

impl FailingRegistry {
    fn new(inner: &Arc<dyn Registry>) -> Arc<Self> {
        Arc::new(Self {
            inner: inner.clone(),
            away: AtomicBool::new(false),
            slow: RwLock::default(),
        })
    }

    fn there(&self) -> Result<&dyn Registry, StoreError> {
        match self.away.load(Ordering::SeqCst) {
            true => Err(StoreError::Unavailable("nobody answers".into())),
            false => Ok(self.inner.as_ref()),
        }
    }
}

#[async_trait]
impl Registry for FailingRegistry {
    async fn put(&self, _: Collection, _: &str, _: Bytes) -> Result<(), StoreError> {
        Err(StoreError::Unavailable("the disk is full".into()))
    }

    async fn add(&self, _: Collection, _: &str, _: Bytes) -> Result<Added, StoreError> {
        Err(StoreError::Unavailable("the disk is full".into()))
    }

    async fn read(&self, collection: Collection, name: &str) -> Result<Option<Bytes>, StoreError> {
        self.there()?.read(collection, name).await
    }

    async fn remove(&self, collection: Collection, name: &str) -> Result<(), StoreError> {
        self.there()?.remove(collection, name).await
    }

    async fn documents(
        &self,
        collection: Collection,
        order: SortOrder,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<(String, Bytes)>, StoreError> {
        let read = self
            .there()?
            .documents(collection, order, after, limit)
            .await;
        let _in_time = self.slow.read().await;
        read
    }
}

#[tokio::test]
async fn an_unwritten_revocation_holds_in_memory_and_can_be_repeated() {
    let test_clock = TestClock::new();
    let parts = parts(&test_clock);
    let copy = sharing_store(&parts);
    let callers = Callers::open_with_timing(&taking(), parts, quick_timing())
        .await
        .expect("callers");
    let created = create(&callers, new_key()).await;
    let registry = FailingRegistry::new(&copy.registry);
    let failing = ApiKeyRegistry::open(registry, copy.pepper.clone(), test_clock.clock()).await;
    let failing = failing.expect("keys");
    let key = created.secret.expose_secret();
    failing.verify(key).expect("known");
    failing.create(new_key()).await.expect_err("not written");
    assert_eq!(failing.list().len(), 1);
    for _ in 0..2 {
        failing.revoke(&created.id).await.expect_err("not written");
        assert_eq!(failing.verify(key), Err(Refusal::Revoked));
        failing.refresh().await.expect("read");
        assert_eq!(failing.verify(key), Err(Refusal::Revoked));
    }
    let revoked_at = failing.list()[0].revoked_at;
    assert_eq!(revoked_at, Some(test_clock.now()));
    let reserved = CallerError::Reserved("tenant");
    let new = NewKey {
        tenant: "_x".into(),
        ..new_key()
    };
    let error = callers.api_keys().create(new).await.expect_err("reserved");
    assert!(matches!(error, KeysError::Caller(error) if error == reserved));
}

#[tokio::test]
async fn a_revocation_holds_while_the_registry_is_unavailable() {
    let test_clock = TestClock::new();
    let parts = parts(&test_clock);
    let copy = sharing_store(&parts);
    let callers = Callers::open_with_timing(&taking(), parts, quick_timing())
        .await
        .expect("callers");
    let created = create(&callers, new_key()).await;
    let registry = FailingRegistry::new(&copy.registry);
    let keys =
        ApiKeyRegistry::open(registry.clone(), copy.pepper.clone(), test_clock.clock()).await;
    let keys = keys.expect("keys");
    let key = created.secret.expose_secret();
    keys.verify(key).expect("known");
    registry.away.store(true, Ordering::SeqCst);
    keys.revoke(&created.id).await.expect_err("nobody answers");
    assert_eq!(keys.verify(key), Err(Refusal::Revoked));
}

#[tokio::test]
async fn a_revocation_survives_a_refresh_that_began_before_it() {
    let test_clock = TestClock::new();
    let parts = parts(&test_clock);
    let copy = sharing_store(&parts);
    let callers = Callers::open_with_timing(&taking(), parts, quick_timing())
        .await
        .expect("callers");
    let created = create(&callers, new_key()).await;
    let registry = FailingRegistry::new(&copy.registry);
    let keys =
        ApiKeyRegistry::open(registry.clone(), copy.pepper.clone(), test_clock.clock()).await;
    let keys = keys.expect("keys");
    let key = created.secret.expose_secret();
    let held_up = registry.slow.write().await;
    let mut refresh = Box::pin(keys.refresh());
    assert!(is_pending(&mut refresh).await);
    let mut revoke = Box::pin(keys.revoke(&created.id));
    assert!(is_pending(&mut revoke).await);
    assert_eq!(keys.verify(key), Err(Refusal::Revoked));
    drop((revoke, held_up));
    refresh.await.expect("read");
    assert_eq!(keys.verify(key), Err(Refusal::Revoked));
}

/// Polls some work until it has to wait.
async fn is_pending(work: &mut (impl Future + Unpin)) -> bool {
    tokio::select! {
        biased;
        _ = work => false,
        () = std::future::ready(()) => true,
    }
}
