//! Every promise of the contract, and the model, on one server and on a Cluster.

use std::sync::Arc;

use onceward_core::clock::ManualClock;
use onceward_core::conformance::{Restart, Trial, differential, run_all};
use onceward_servers::{Redis, RedisCluster};
use onceward_stores::Settings;

use crate::fixture::redis::*;

async fn trial(settings: &Settings, clock: Arc<ManualClock>) -> Trial {
    Trial::new(open_with_time(settings, clock.clone()).await, clock)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redis_keeps_every_promise() {
    let server = Redis::start();
    run_all(async || trial(&settings(&server.url()), clock()).await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redis_keeps_every_promise_when_it_is_never_emptied() {
    let server = Redis::start();
    let shared = trial(&settings(&server.url()), clock()).await;
    run_all(async || shared.clone()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redis_keeps_every_promise_when_a_replica_must_confirm() {
    let server = Redis::start();
    let _replica = server.replica();
    let deadline = settings("").deadline;
    run_all(async || trial(&confirmed(&server.url(), 1, deadline), clock()).await).await;
}

#[test]
fn redis_equals_the_model() {
    let server = Redis::start();
    differential(96, Restart::KeepsLeases, || {
        let settings = settings(&server.url());
        async move |clock: Arc<ManualClock>| trial(&settings, clock).await
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cluster_keeps_every_promise() {
    let cluster = RedisCluster::start(3);
    run_all(async || trial(&settings(&cluster.url()), clock()).await).await;
}

#[test]
fn cluster_equals_the_model() {
    let cluster = RedisCluster::start(3);
    differential(48, Restart::KeepsLeases, || {
        let settings = settings(&cluster.url());
        async move |clock: Arc<ManualClock>| trial(&settings, clock).await
    });
}
