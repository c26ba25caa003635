//! Load over HTTP/2 by `h2load`: one connection with many streams. It sends the same bytes again
//! and again, so it can pass through and replay one key with its body, but not run first.

use std::fs;
use std::path::Path;
use std::process::Stdio;
use std::str::FromStr;
use std::time::Duration;

use anyhow::{Context, ensure};
use tokio::process::Command;

use super::load::Load;
use super::stats::{Faults, LoadResult};
use super::workload::Request;

pub(super) const PROGRAM: &str = "h2load";
pub(super) const STREAMS: usize = 100;
const BODY: &str = "h2load.json";

/// Sends the load for this long, with the request's body in a file in `directory`.
pub(super) async fn run(
    load: &Load,
    time: Duration,
    directory: &Path,
) -> anyhow::Result<LoadResult> {
    let body = directory.join(BODY);
    let mut request = Request::new(load.workload.clone(), &load.target, load.api_key.as_ref());
    request.numbered(0);
    fs::write(&body, request.body())?;
    let mut command = Command::new(PROGRAM);
    command
        .args([
            "--clients=1",
            "--threads=1",
            "-H",
            "content-type: application/json",
        ])
        .arg(format!("--max-concurrent-streams={STREAMS}"))
        .arg(format!("--duration={}", time.as_secs().max(1)))
        .arg("--data")
        .arg(&body);
    if let Some(key) = load.workload.key(0) {
        let key = String::from_utf8_lossy(&key).into_owned();
        command.args(["-H", &format!("idempotency-key: {key}")]);
    }
    let output = command
        .arg(format!("{}{}", load.target, load.workload.path()))
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output()
        .await
        .context("cannot start h2load")?;
    let text = String::from_utf8_lossy(&output.stdout);
    ensure!(output.status.success(), "h2load failed: {text}");
    parse(&text).with_context(|| format!("unexpected output of h2load: {text}"))
}

fn parse(output: &str) -> Option<LoadResult> {
    let line = |prefix| output.lines().find_map(|line| line.strip_prefix(prefix));
    let rate: f64 = before(line("finished in ")?, "req/s")?;
    let requests = line("requests: ")?;
    let succeeded: u64 = before(requests, "succeeded")?;
    let failed: u64 = before(requests, "failed")?;
    let statuses = line("status codes: ")?;
    let good: u64 = before(statuses, "2xx")?;
    let faults = Faults::of(failed + succeeded.saturating_sub(good), || {
        format!("h2load reports: {requests}; {statuses}")
    });
    Some(LoadResult {
        rate,
        latency: None,
        answered: succeeded,
        faults,
    })
}

/// The number before a word, in a list such as `10 total, 9 done`.
fn before<T: FromStr>(list: &str, word: &str) -> Option<T> {
    let entries = list.split(',').map(str::trim);
    let mut found = entries.filter_map(|entry| entry.strip_suffix(word));
    found.next()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUTPUT: &str = "\
starting benchmark...
spawning thread #0: 1 total client(s). Timing-based test with 0s of warm-up time and 2s of main duration for measurements.

finished in 2.00s, 11850.50 req/s, 1.63MB/s
requests: 23701 total, 23801 started, 23701 done, 23701 succeeded, 0 failed, 0 errored, 0 timeout
status codes: 23701 2xx, 0 3xx, 0 4xx, 0 5xx
traffic: 3.26MB (3421345) total, 92.57KB (94792) headers (space savings 97.37%), 2.71MB (2844120) data
";

    #[test]
    fn a_result_is_read_from_three_lines() {
        let result = parse(OUTPUT).expect("all lines are there");
        assert_eq!(
            (result.rate, result.answered, result.faults.count),
            (11_850.5, 23_701, 0)
        );
    }

    #[test]
    fn other_statuses_are_faults() {
        let output = OUTPUT.replace("23701 2xx, 0 3xx, 0 4xx", "23001 2xx, 0 3xx, 700 4xx");
        assert_eq!(
            parse(&output).expect("all lines are there").faults.count,
            700
        );
        assert!(parse("h2load: no such host\n").is_none());
    }
}
