//! The other half of the webhook lane: what was acknowledged must arrive, each event once.
//!
//! The sample upstream counts what arrives, and is asked often because that costs it little. The
//! gateway is asked at the end, when little is left to count: for its metrics it looks through all
//! that is queued. It must have recorded as many deliveries as have arrived, or it would make some
//! of them again. The rate is from the first event to the last that arrived, with the time in
//! which deliveries shared the machine with the load.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use bytes::Bytes;
use hyper::header::HeaderMap;
use onceward_gateway::upstream::fetch::{Fetch, FetchLimits};
use serde_json::Value;
use tokio::time::sleep;

use super::loopback::LoopbackOrigin;
use super::stats::{LoadResult, ResponseCounts};

const PAUSE: Duration = Duration::from_millis(20);
/// When nothing has arrived for this long, nothing more is waited for. An event may rest for a
/// minute while its upstream has no place for it.
const STALL_MAX: Duration = Duration::from_secs(90);
const ASKING: FetchLimits = FetchLimits {
    deadline: Duration::from_secs(10),
    answer_bytes_max: 1 << 20,
};

/// Whom to ask how far deliveries are.
pub(super) struct DeliveryMonitor {
    upstream: Fetch,
    gateway: Fetch,
}

/// Deliveries under way.
pub(super) struct DeliveryRun {
    monitor: DeliveryMonitor,
    since: Instant,
    before: DeliveryCounts,
}

/// Deliveries as both sides count them.
#[derive(Clone, Copy)]
struct DeliveryCounts {
    arrived: u64,
    recorded: u64,
}

impl DeliveryMonitor {
    pub(super) fn new(upstream: LoopbackOrigin, admin: SocketAddr) -> anyhow::Result<Self> {
        Ok(DeliveryMonitor {
            upstream: Fetch::new(&upstream.to_string(), ASKING)?,
            gateway: Fetch::new(&format!("http://{admin}"), ASKING)?,
        })
    }

    /// DeliveryCounts what was there before the first event.
    pub(super) async fn begin(self) -> anyhow::Result<DeliveryRun> {
        let before = DeliveryCounts {
            arrived: self.arrived().await?,
            recorded: self.recorded().await?,
        };
        Ok(DeliveryRun {
            monitor: self,
            since: Instant::now(),
            before,
        })
    }

    async fn arrived(&self) -> anyhow::Result<u64> {
        let told = ask(&self.upstream, "/payments/count").await?;
        let told: Value = serde_json::from_slice(&told)?;
        let payments = told["payments"].as_u64();
        payments.context("the upstream does not count payments")
    }

    async fn recorded(&self) -> anyhow::Result<u64> {
        let page = ask(&self.gateway, "/metrics").await?;
        recorded(std::str::from_utf8(&page)?)
    }
}

impl DeliveryRun {
    /// Waits until everything that was acknowledged has arrived and is recorded, or nothing more
    /// comes. What is missing or too much is a fault.
    pub(super) async fn finish(self, acknowledged: u64) -> anyhow::Result<LoadResult> {
        let DeliveryRun {
            monitor,
            since,
            before,
        } = self;
        let arrived = async || Ok(monitor.arrived().await?.saturating_sub(before.arrived));
        let recorded = async || Ok(monitor.recorded().await?.saturating_sub(before.recorded));
        let reached = until(acknowledged, arrived).await?;
        let rate = reached as f64 / since.elapsed().as_secs_f64();
        let counts = DeliveryCounts {
            recorded: until(reached.min(acknowledged), recorded).await?,
            // Again, for what came once more in the meantime.
            arrived: arrived().await?,
        };
        Ok(LoadResult::without_latency(
            rate,
            counts.judge(acknowledged),
        ))
    }
}

impl DeliveryCounts {
    fn judge(self, acknowledged: u64) -> ResponseCounts {
        let DeliveryCounts { arrived, recorded } = self;
        let faults = acknowledged
            .abs_diff(arrived)
            .max(acknowledged.abs_diff(recorded));
        let first_fault = (faults > 0).then(|| {
            format!("{acknowledged} acknowledged, {arrived} arrived, {recorded} recorded")
        });
        ResponseCounts {
            faults,
            first_fault,
            ..ResponseCounts::default()
        }
    }
}

/// Asks until there are so many, or until there have been no more for too long.
async fn until(wanted: u64, count: impl AsyncFn() -> anyhow::Result<u64>) -> anyhow::Result<u64> {
    let mut seen = count().await?;
    let mut moved = Instant::now();
    while seen < wanted && moved.elapsed() < STALL_MAX {
        sleep(PAUSE).await;
        let now = count().await?;
        if now != seen {
            (seen, moved) = (now, Instant::now());
        }
    }
    Ok(seen)
}

async fn ask(whom: &Fetch, path: &str) -> anyhow::Result<Bytes> {
    let told = whom.get(Some(path), HeaderMap::new()).await?;
    ensure!(told.status.is_success(), "{path} answered {}", told.status);
    Ok(told.body)
}

/// How many events the upstream took, by the gateway's metrics; none before the first.
fn recorded(metrics: &str) -> anyhow::Result<u64> {
    let series = metrics.lines().filter(|line| {
        line.starts_with("onceward_webhook_deliveries_total{")
            && line.contains(r#"outcome="completed""#)
    });
    series
        .map(|line| {
            let value = line.rsplit(' ').next().unwrap_or_default();
            let value = value.parse::<u64>();
            value.with_context(|| format!("not a count: {line}"))
        })
        .sum()
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;
    use crate::sample_upstream::SampleUpstream;

    #[test]
    fn only_what_the_upstream_took_is_counted_as_recorded() {
        let page = "\
# TYPE onceward_webhook_deliveries_total counter
onceward_webhook_deliveries_total{upstream=\"default\",outcome=\"completed\"} 41
onceward_webhook_deliveries_total{upstream=\"default\",outcome=\"requeued\"} 7
onceward_webhook_deliveries_total{upstream=\"other\",outcome=\"completed\"} 1
onceward_queued 3
";
        assert_eq!(recorded(page).expect("all are counts"), 42);
        assert_eq!(recorded("onceward_queued 3\n").expect("there are none"), 0);
        assert!(recorded(&page.replace("41", "many")).is_err());
    }

    #[test]
    fn an_event_that_is_missing_or_came_twice_is_a_fault() {
        let cases = [
            ((10, 10), 0),
            ((9, 9), 1),
            ((12, 10), 2),
            ((10, 7), 3),
            ((11, 12), 2),
        ];
        for ((arrived, recorded), faults) in cases {
            let answers = DeliveryCounts { arrived, recorded }.judge(10);
            assert_eq!(answers.faults, faults, "{arrived} {recorded}");
            let told = format!("10 acknowledged, {arrived} arrived, {recorded} recorded");
            assert_eq!(answers.first_fault, (faults > 0).then_some(told));
        }
    }

    #[tokio::test]
    async fn what_grows_is_waited_for() {
        let count = Cell::new(0);
        let growing = async || {
            count.set(count.get() + 1);
            Ok(count.get())
        };
        assert_eq!(until(3, growing).await.expect("it counts"), 3);
        assert_eq!(count.get(), 3);
    }

    #[tokio::test]
    async fn the_sample_tells_what_arrived() {
        let addr = "127.0.0.1:0".parse().expect("a literal address");
        let (addr, sample) = SampleUpstream::start(addr)
            .await
            .expect("loopback has free ports");
        let target = LoopbackOrigin::at(addr).expect("the sample is on this machine");
        let monitor = DeliveryMonitor::new(target, addr).expect("both are addresses");
        assert_eq!(monitor.arrived().await.expect("the sample counts"), 0);
        let payment = Bytes::from_static(br#"{"id":"evt_1","amount":4200,"currency":"EUR"}"#);
        let paid = monitor
            .upstream
            .post(Some("/payments"), HeaderMap::new(), payment);
        assert_eq!(paid.await.expect("the sample answers").status, 201);
        assert_eq!(monitor.arrived().await.expect("the sample counts"), 1);
        assert_eq!(sample.payments(), 1);
    }
}
