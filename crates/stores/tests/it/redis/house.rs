//! What the tests on Redis are written with.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use onceward_core::clock::{ManualClock, Timestamp};
use onceward_core::namespace::Namespace;
use onceward_core::store::StoreError;
use onceward_servers::Redis;
use onceward_stores::redis::{RedisStore, Time};
use onceward_stores::{Durability, Settings};

/// Nothing here takes longer, on any machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// The settings of a store of its own at this URL.
pub(crate) fn settings(url: &str) -> Settings {
    static DRAWN: AtomicUsize = AtomicUsize::new(0);
    let number = DRAWN.fetch_add(1, Ordering::Relaxed);
    let mut settings = Settings::at(url);
    settings.namespace = Namespace::new(&format!("trial-{number}")).expect("a good name");
    // The machine may be busy; how long a step takes is not what is tested.
    settings.deadline = Duration::from_secs(20);
    settings
}

/// The same where replicas must confirm, and it may take this long to say that
/// they do not.
pub(crate) fn confirmed(url: &str, replicas: u32, deadline: Duration) -> Settings {
    let mut settings = settings(url);
    settings.durability = Durability::Replicas(replicas);
    settings.deadline = deadline;
    settings
}

/// The same namespace at another server.
pub(crate) fn at(settings: &Settings, url: &str) -> Settings {
    let mut there = settings.clone();
    there.url = url.to_owned();
    there.durability = Durability::Primary;
    there
}

/// A store that judges by the server's clock, as in production.
pub(crate) async fn open(settings: &Settings) -> Arc<RedisStore> {
    let store = RedisStore::open(settings).await;
    Arc::new(store.unwrap_or_else(|error| panic!("the store opens: {error}")))
}

/// A store that judges by this clock.
pub(crate) async fn judged_by(settings: &Settings, clock: Arc<ManualClock>) -> Arc<RedisStore> {
    let store = RedisStore::judged_by(settings, Time::Given(clock)).await;
    Arc::new(store.unwrap_or_else(|error| panic!("the store opens: {error}")))
}

pub(crate) fn clock() -> Arc<ManualClock> {
    Arc::new(ManualClock::new(Timestamp::from_unix_ms(1_700_000_000_000)))
}

/// The words of a store that is away.
#[track_caller]
pub(crate) fn unavailable<T: std::fmt::Debug>(answer: Result<T, StoreError>) -> String {
    match answer {
        Err(StoreError::Unavailable(why)) => why.to_string(),
        other => panic!("it was to be unavailable: {other:?}"),
    }
}

/// Asks again until there is an answer.
pub(crate) async fn until<T>(what: &str, mut ask: impl AsyncFnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(answer) = ask().await {
            return answer;
        }
        assert!(begun.elapsed() < PATIENCE, "waited in vain until {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Waits until somebody listens for what is settled.
pub(crate) async fn until_heard(server: &Redis) {
    until("somebody listens", async || {
        (server.cli(&["PUBSUB", "NUMPAT"]) != "0").then_some(())
    })
    .await;
}

/// Waits until an operation on one of these servers is marked as awaited.
pub(crate) async fn until_awaited(servers: &[Redis]) {
    let script = "for _, key in ipairs(redis.call('KEYS', '*:operations')) do \
                    for _, value in ipairs(redis.call('HVALS', key)) do \
                      if #value > 100 and string.sub(value, 1, 2) == '1\\1' then return 1 end \
                    end \
                  end \
                  return 0";
    until("the waiter has come", async || {
        let mut answers = servers.iter().map(|node| node.cli(&["EVAL", script, "0"]));
        answers.any(|answer| answer == "1").then_some(())
    })
    .await;
}
