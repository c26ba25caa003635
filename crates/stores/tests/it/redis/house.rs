//! What the tests on Redis are written with.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use onceward_core::clock::ManualClock;
use onceward_core::namespace::Namespace;
use onceward_stores::Settings;
use onceward_stores::redis::{RedisStore, Time};

/// A namespace that nobody used before, so that many stores fit on one server.
pub(crate) fn fresh_namespace() -> Namespace {
    static DRAWN: AtomicUsize = AtomicUsize::new(0);
    let number = DRAWN.fetch_add(1, Ordering::Relaxed);
    Namespace::new(&format!("trial-{number}")).expect("a good name")
}

/// The settings of a store of its own at this URL.
pub(crate) fn settings(url: &str) -> Settings {
    let mut settings = Settings::at(url);
    settings.namespace = fresh_namespace();
    settings
}

/// A store that judges by the server's clock, as in production.
pub(crate) async fn open(settings: &Settings) -> RedisStore {
    let store = RedisStore::open(settings).await;
    store.expect("the store opens")
}

/// A store that judges by this clock.
pub(crate) async fn open_by(settings: &Settings, clock: Arc<ManualClock>) -> RedisStore {
    let store = RedisStore::open_by(settings, Time::Given(clock)).await;
    store.expect("the store opens")
}
