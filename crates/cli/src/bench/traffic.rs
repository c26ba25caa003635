//! The traffic between a gateway and the server of its store, as the kernel counts it for each
//! connection. `ss` reads these counts.
//!
//! A segment with data is one send or part of a long one. What is sent together, in a pipeline,
//! waits for the server once: segments are an upper bound of the round trips.

use std::ops::{Add, Sub};
use std::process::Stdio;

use serde::Serialize;
use tokio::process::Command;

pub(super) const PROGRAM: &str = "ss";

/// The counts of all connections to a port, from the side of the client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Traffic {
    sends: u64,
    sent_bytes: u64,
    received_bytes: u64,
}

/// The traffic per request.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(super) struct TrafficPerRequest {
    pub(super) sends: f64,
    pub(super) sent_bytes: f64,
    pub(super) received_bytes: f64,
}

impl Traffic {
    /// The counts so far. `None` if `ss` is missing.
    pub(super) async fn to_port(port: u16) -> Option<Self> {
        let output = Command::new(PROGRAM)
            .args(["-t", "-i", "-n", "-H", "state", "established"])
            .arg(format!("( dport = :{port} )"))
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .output()
            .await
            .ok()
            .filter(|output| output.status.success())?;
        Some(sum(&String::from_utf8_lossy(&output.stdout)))
    }

    /// Connections that were closed since then are left out.
    pub(super) fn since(self, before: Self, requests: u64) -> TrafficPerRequest {
        let Traffic {
            sends,
            sent_bytes,
            received_bytes,
        } = self - before;
        let each = |count: u64| count as f64 / requests.max(1) as f64;
        TrafficPerRequest {
            sends: each(sends),
            sent_bytes: each(sent_bytes),
            received_bytes: each(received_bytes),
        }
    }
}

impl Add for Traffic {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Traffic {
            sends: self.sends + other.sends,
            sent_bytes: self.sent_bytes + other.sent_bytes,
            received_bytes: self.received_bytes + other.received_bytes,
        }
    }
}

impl Sub for Traffic {
    type Output = Self;

    fn sub(self, other: Self) -> Self {
        Traffic {
            sends: self.sends.saturating_sub(other.sends),
            sent_bytes: self.sent_bytes.saturating_sub(other.sent_bytes),
            received_bytes: self.received_bytes.saturating_sub(other.received_bytes),
        }
    }
}

fn sum(output: &str) -> Traffic {
    let lines = output.lines().map(|line| {
        let count = |name: &str| {
            let mut fields = line.split_whitespace();
            let value = fields.find_map(|field| field.strip_prefix(name)?.strip_prefix(':'));
            value.and_then(|value| value.parse().ok()).unwrap_or(0)
        };
        Traffic {
            sends: count("data_segs_out"),
            sent_bytes: count("bytes_sent"),
            received_bytes: count("bytes_received"),
        }
    });
    lines.fold(Traffic::default(), Traffic::add)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_are_added_up() {
        let output = "\
0      0          127.0.0.1:51000    127.0.0.1:6379
\t cubic wscale:7,7 rto:204 rtt:0.05/0.02 mss:65483 bytes_sent:1000 bytes_acked:1001 bytes_received:300 segs_out:12 segs_in:9 data_segs_out:10 data_segs_in:8 send 1Gbps
0      0          127.0.0.1:51002    127.0.0.1:6379
\t cubic wscale:7,7 bytes_sent:500 bytes_received:100 segs_out:6 data_segs_out:5 data_segs_in:5
";
        let found = sum(output);
        let expected = Traffic {
            sends: 15,
            sent_bytes: 1500,
            received_bytes: 400,
        };
        assert_eq!(found, expected);
        let each = found.since(Traffic::default(), 10);
        assert_eq!(
            (each.sends, each.sent_bytes, each.received_bytes),
            (1.5, 150.0, 40.0)
        );
    }
}
