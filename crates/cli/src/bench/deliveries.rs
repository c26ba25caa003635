//! The second half of the webhook scenario: each acknowledged event must be delivered once.
//!
//! The upstream counts deliveries and is queried often, because that is cheap. The gateway is
//! queried at the end, when its queue is short: for its metrics it scans the whole queue. It must
//! have recorded as many deliveries as arrived, or it would repeat some of them. The rate covers the
//! time from the first event to the last delivery, including the time in which deliveries share the
//! machine with the load.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use hyper::header::HeaderMap;
use onceward_gateway::upstream::fetch::{Fetch, FetchLimits};
use tokio::time::sleep;

use super::stats::{Faults, LoadResult};
use super::upstream_count::UpstreamCount;

const PAUSE: Duration = Duration::from_millis(20);
/// Waiting ends when nothing has arrived for this long. An event may wait for a minute while its
/// upstream is busy.
const STALL_MAX: Duration = Duration::from_secs(90);
/// The limit for the deliveries of the last events to be recorded.
const REST_MAX: Duration = Duration::from_secs(10);
const ASKING: FetchLimits = FetchLimits {
    deadline: Duration::from_secs(10),
    answer_bytes_max: 1 << 20,
};

/// The two sides that count deliveries.
pub(super) struct DeliveryMonitor {
    upstream: Arc<UpstreamCount>,
    gateway: Fetch,
}

/// A monitored run.
pub(super) struct DeliveryRun {
    monitor: DeliveryMonitor,
    since: Instant,
    before: DeliveryCounts,
}

/// Deliveries as counted by both sides.
#[derive(Clone, Copy)]
struct DeliveryCounts {
    arrived: u64,
    recorded: u64,
}

impl DeliveryMonitor {
    pub(super) fn new(upstream: Arc<UpstreamCount>, admin: SocketAddr) -> anyhow::Result<Self> {
        Ok(DeliveryMonitor {
            upstream,
            gateway: Fetch::new(&format!("http://{admin}"), ASKING)?,
        })
    }

    /// Takes the counts before the first event.
    pub(super) async fn begin(self) -> anyhow::Result<DeliveryRun> {
        let before = DeliveryCounts {
            arrived: self.upstream.read().await?,
            recorded: self.recorded().await?,
        };
        Ok(DeliveryRun {
            monitor: self,
            since: Instant::now(),
            before,
        })
    }

    async fn recorded(&self) -> anyhow::Result<u64> {
        let page = self.gateway.get(Some("/metrics"), HeaderMap::new()).await?;
        ensure!(
            page.status.is_success(),
            "/metrics answered {}",
            page.status
        );
        recorded(std::str::from_utf8(&page.body)?)
    }
}

impl DeliveryRun {
    /// Waits until all acknowledged events have arrived and are recorded, or nothing more arrives.
    /// Missing and surplus deliveries are faults, except for up to `unanswered` events whose
    /// acknowledgement the load generator did not wait for.
    pub(super) async fn finish(
        self,
        acknowledged: u64,
        unanswered: u64,
    ) -> anyhow::Result<LoadResult> {
        let DeliveryRun {
            monitor,
            since,
            before,
        } = self;
        let arrived = async || {
            Ok(monitor
                .upstream
                .read()
                .await?
                .saturating_sub(before.arrived))
        };
        let recorded = async || Ok(monitor.recorded().await?.saturating_sub(before.recorded));
        let reached = until(acknowledged, arrived).await?;
        let rate = reached as f64 / since.elapsed().as_secs_f64();
        until(acknowledged, recorded).await?;
        // Events whose acknowledgement was not awaited may still be on their way.
        let moved = Instant::now();
        let counts = loop {
            let counts = DeliveryCounts {
                recorded: recorded().await?,
                arrived: arrived().await?,
            };
            if counts.recorded == counts.arrived || moved.elapsed() > REST_MAX {
                break counts;
            }
            sleep(PAUSE).await;
        };
        Ok(LoadResult {
            rate,
            latency: None,
            answered: reached,
            faults: counts.check(acknowledged, unanswered),
        })
    }
}

impl DeliveryCounts {
    fn check(self, acknowledged: u64, unanswered: u64) -> Faults {
        let DeliveryCounts { arrived, recorded } = self;
        let accepted = arrived.clamp(acknowledged, acknowledged + unanswered);
        let wrong = accepted.abs_diff(arrived).max(accepted.abs_diff(recorded));
        Faults::of(wrong, || {
            format!("{acknowledged} acknowledged, {arrived} arrived, {recorded} recorded")
        })
    }
}

/// Polls until the count is reached, or has not changed for too long.
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

/// The number of completed deliveries in the gateway's metrics.
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

    use super::super::loopback::LoopbackOrigin;
    use super::*;
    use crate::sample_upstream::SampleUpstream;

    #[test]
    fn only_completed_deliveries_are_counted_as_recorded() {
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
    fn a_missing_or_repeated_event_is_a_fault() {
        let cases = [
            ((10, 10), 0, 0),
            ((9, 9), 0, 1),
            ((12, 10), 0, 2),
            ((10, 7), 0, 3),
            ((11, 12), 0, 2),
            ((12, 12), 2, 0),
            ((13, 13), 2, 1),
            ((12, 10), 2, 2),
        ];
        for ((arrived, recorded), unanswered, wrong) in cases {
            let faults = DeliveryCounts { arrived, recorded }.check(10, unanswered);
            assert_eq!(faults.count, wrong, "{arrived} {recorded} {unanswered}");
            let told = format!("10 acknowledged, {arrived} arrived, {recorded} recorded");
            assert_eq!(faults.first, (wrong > 0).then_some(told));
        }
    }

    #[tokio::test]
    async fn a_growing_count_is_awaited() {
        let count = Cell::new(0);
        let growing = async || {
            count.set(count.get() + 1);
            Ok(count.get())
        };
        assert_eq!(until(3, growing).await.expect("it counts"), 3);
        assert_eq!(count.get(), 3);
    }

    #[tokio::test]
    async fn the_sample_upstream_reports_its_payments() {
        let addr = "127.0.0.1:0".parse().expect("a literal address");
        let (addr, sample) = SampleUpstream::start(addr)
            .await
            .expect("loopback has free ports");
        let target = LoopbackOrigin::at(addr).expect("the sample is on this machine");
        let count = UpstreamCount::new(target).expect("it is an address");
        assert_eq!(count.read().await.expect("the sample counts"), 0);
        let upstream = Fetch::new(&target.to_string(), ASKING).expect("it is an address");
        let payment = bytes::Bytes::from_static(br#"{"amount":4200,"currency":"EUR"}"#);
        let paid = upstream.post(Some("/payments"), HeaderMap::new(), payment);
        assert_eq!(paid.await.expect("the sample answers").status, 201);
        assert_eq!(count.read().await.expect("the sample counts"), 1);
        assert_eq!(sample.payments(), 1);
    }
}
