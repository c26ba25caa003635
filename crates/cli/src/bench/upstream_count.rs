//! The number of requests that arrived at the upstream, by which the benchmark checks what ran.
//!
//! The sample upstream reports its payments as JSON; nginx reports all of its requests, including
//! these queries, as `stub_status`. There is one counter per upstream, because it leaves out its
//! own queries.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, ensure};
use hyper::header::HeaderMap;
use onceward_gateway::upstream::fetch::{Fetch, FetchLimits};
use serde_json::Value;

use super::loopback::LoopbackOrigin;
use super::stats::Faults;
use super::workload::Workload;

const PATH: &str = "/payments/count";
const ASKING: FetchLimits = FetchLimits {
    deadline: Duration::from_secs(10),
    answer_bytes_max: 64 << 10,
};

pub(super) struct UpstreamCount {
    upstream: Fetch,
    queries: AtomicU64,
}

/// A count as the upstream reports it.
#[derive(Debug, PartialEq, Eq)]
enum Told {
    Payments(u64),
    /// All requests, including queries of the count.
    Requests(u64),
}

impl UpstreamCount {
    pub(super) fn new(upstream: LoopbackOrigin) -> anyhow::Result<Self> {
        Ok(UpstreamCount {
            upstream: Fetch::new(&upstream.to_string(), ASKING)?,
            queries: AtomicU64::new(0),
        })
    }

    /// The count. Only differences of it have a meaning.
    pub(super) async fn read(&self) -> anyhow::Result<u64> {
        let told = self.upstream.get(Some(PATH), HeaderMap::new()).await?;
        let queries = self.queries.fetch_add(1, Ordering::Relaxed) + 1;
        ensure!(told.status.is_success(), "{PATH} answered {}", told.status);
        let told = parse(&told.body).context("the upstream does not report a count")?;
        Ok(match told {
            Told::Payments(payments) => payments,
            Told::Requests(requests) => requests.saturating_sub(queries),
        })
    }
}

fn parse(body: &[u8]) -> Option<Told> {
    if let Ok(told) = serde_json::from_slice::<Value>(body) {
        return told["payments"].as_u64().map(Told::Payments);
    }
    let text = std::str::from_utf8(body).ok()?;
    let numbers = text.lines().nth(2)?.split_whitespace().nth(2)?;
    numbers.parse().ok().map(Told::Requests)
}

/// Compares what arrived with what was answered. The generator may have left up to
/// `unanswered` requests without an answer.
pub(super) fn check(workload: &Workload, answered: u64, arrived: u64, unanswered: u64) -> Faults {
    let wrong = match workload {
        replay if replay.is_replay() => arrived,
        _ if arrived < answered => answered - arrived,
        _ => arrived.saturating_sub(answered + unanswered),
    };
    Faults::of(wrong, || {
        format!("{answered} were answered, {arrived} arrived at the upstream")
    })
}

#[cfg(test)]
mod tests {
    use super::super::workload::Seed;
    use super::*;

    #[test]
    fn both_forms_of_a_count_are_read() {
        let nginx = "Active connections: 2 \nserver accepts handled requests\n 16 16 31070 \n\
                     Reading: 0 Writing: 1 Waiting: 1 \n";
        let cases = [
            (nginx, Some(Told::Requests(31_070))),
            (r#"{"payments":7}"#, Some(Told::Payments(7))),
            (r#"{"id":"pay_1"}"#, None),
            ("not found", None),
        ];
        for (body, expected) in cases {
            assert_eq!(parse(body.as_bytes()), expected, "{body}");
        }
    }

    #[test]
    fn what_arrived_must_fit_what_was_answered() {
        let (replay, first) = (Workload::Replay(Seed(1)), Workload::First(Seed(1)));
        let cases = [
            (&first, 100, 100, 0),
            (&first, 100, 164, 0),
            (&first, 100, 165, 1),
            (&first, 100, 98, 2),
            (&replay, 100, 0, 0),
            (&replay, 100, 3, 3),
        ];
        for (workload, answered, arrived, faults) in cases {
            let found = check(workload, answered, arrived, 64);
            assert_eq!(found.count, faults, "{workload:?} {answered} {arrived}");
        }
    }
}
