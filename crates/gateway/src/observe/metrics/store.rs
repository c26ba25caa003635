//! A store that records how long its steps take and how they end.
//!
//! A caller has a deadline and drops a step that takes longer; such a step is the
//! slowest of all and is recorded too. Whether writes succeed decides whether the
//! gateway is ready.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use metrics::Label;
use onceward_core::identity::{Digest, OperationId};
use onceward_core::record::{Attempt, Fence, Record, Settled, Settlement};
use onceward_core::store::{Claim, ClaimRequest, Store, StoreError};
use tokio::time::Instant;

use super::MetricRegistry;
use super::family::Family;
use super::histogram::Histogram;
use crate::admin::StoreHealth;

const NAME: &str = "onceward_store_duration_seconds";

/// Wraps a store that times its steps.
pub(super) fn timed(
    registry: &MetricRegistry,
    inner: Arc<dyn Store>,
    store_health: Arc<StoreHealth>,
) -> Arc<dyn Store> {
    let step = |name| {
        let labels = vec![Label::new("step", name)];
        let outcomes = Family::histograms(registry, NAME, labels, "outcome");
        StepHistograms {
            done: outcomes.of("done"),
            failed: outcomes.of("failed"),
            given_up: outcomes.of("given-up"),
        }
    };
    Arc::new(TimedStore {
        inner,
        store_health,
        claim: step("claim"),
        settle: step("settle"),
        renew: step("renew"),
        read: step("read"),
    })
}

struct TimedStore {
    inner: Arc<dyn Store>,
    /// Records the results of writes.
    store_health: Arc<StoreHealth>,
    claim: StepHistograms,
    settle: StepHistograms,
    renew: StepHistograms,
    read: StepHistograms,
}

/// The histograms of one step.
struct StepHistograms {
    done: Histogram,
    failed: Histogram,
    given_up: Histogram,
}

impl StepHistograms {
    async fn time<T>(
        &self,
        work: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        let timing = Timing {
            start: Instant::now(),
            histogram: &self.given_up,
        };
        let answer = work.await;
        timing.end(match answer {
            Ok(_) => &self.done,
            Err(_) => &self.failed,
        });
        answer
    }
}

/// Recorded when it is dropped: as given up, unless it ended before.
struct Timing<'a> {
    start: Instant,
    histogram: &'a Histogram,
}

impl<'a> Timing<'a> {
    fn end(mut self, histogram: &'a Histogram) {
        self.histogram = histogram;
    }
}

impl Drop for Timing<'_> {
    fn drop(&mut self) {
        self.histogram.record(self.start.elapsed());
    }
}

#[async_trait]
impl Store for TimedStore {
    async fn claim(&self, request: &ClaimRequest) -> Result<Claim, StoreError> {
        let answer = self.claim.time(self.inner.claim(request)).await;
        self.store_health.record_write(&answer);
        answer
    }

    fn recall(&self, request: &ClaimRequest) -> Option<Claim> {
        self.inner.recall(request)
    }

    async fn withdraw(&self, digest: &Digest, attempt: Attempt) -> Result<(), StoreError> {
        self.inner.withdraw(digest, attempt).await
    }

    async fn renew(&self, digest: &Digest, fence: Fence) -> Result<Settled, StoreError> {
        self.renew.time(self.inner.renew(digest, fence)).await
    }

    async fn settle(
        &self,
        digest: &Digest,
        fence: Fence,
        settlement: Settlement,
    ) -> Result<Settled, StoreError> {
        let work = self.inner.settle(digest, fence, settlement);
        let answer = self.settle.time(work).await;
        self.store_health.record_write(&answer);
        answer
    }

    async fn get(&self, digest: &Digest) -> Result<Option<Arc<Record>>, StoreError> {
        self.read.time(self.inner.get(digest)).await
    }

    async fn find(&self, id: OperationId) -> Result<Option<Arc<Record>>, StoreError> {
        self.read.time(self.inner.find(id)).await
    }

    async fn touch(&self, digest: &Digest) -> Result<(), StoreError> {
        self.inner.touch(digest).await
    }

    async fn wait(&self, digest: &Digest, limit: Duration) -> Result<(), StoreError> {
        self.inner.wait(digest, limit).await
    }
}
