//! Load by `wrk`, which costs less per request than the load generator of this program.
//!
//! The script is generated, with the same bytes that the own generator sends. A request without a
//! key is static and costs no Lua at all; replays are taken from a table; first runs are two
//! concatenations. wrk does not look at headers, so what ran is checked at the upstream.

use std::fmt::Write;
use std::fs;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, ensure};
use tokio::process::Command;

use super::load::Load;
use super::stats::{Faults, Latency, LoadResult};
use super::workload::{REPLAY_KEYS, Request, Workload};

pub(super) const PROGRAM: &str = "wrk";
const SCRIPT: &str = "wrk.lua";
/// Longer than any response takes.
const TIMEOUT: &str = "30s";
/// The first word of the line that the script prints at the end.
const RESULT: &str = "onceward-bench";
const DONE: &str = r#"
function done(summary, latency, requests)
    local errors = summary.errors
    io.write(string.format("onceward-bench %d %d %d %d %d %d %d %d %d\n",
        summary.requests, summary.duration, errors.status,
        errors.connect + errors.read + errors.write + errors.timeout,
        latency:percentile(50), latency:percentile(90), latency:percentile(99),
        latency:percentile(99.9), latency.max))
end
"#;

/// Sends the load for this long, with a script in `directory`.
pub(super) async fn run(
    load: &Load,
    time: Duration,
    directory: &Path,
) -> anyhow::Result<LoadResult> {
    let path = directory.join(SCRIPT);
    fs::write(&path, script(load))?;
    let output = Command::new(PROGRAM)
        .arg(format!("--threads={}", load.threads))
        .arg(format!("--connections={}", load.connections))
        .arg(format!("--duration={}", time.as_secs().max(1)))
        .args(["--latency", "--timeout", TIMEOUT, "--script"])
        .arg(&path)
        .arg(format!("{}{}", load.target, load.workload.path()))
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output()
        .await
        .context("cannot start wrk")?;
    let text = String::from_utf8_lossy(&output.stdout);
    let words = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "wrk failed: {words}{text}");
    parse(&text, &load.workload).with_context(|| format!("unexpected output of wrk: {text}"))
}

fn script(load: &Load) -> String {
    let mut request = Request::new(load.workload.clone(), &load.target, load.api_key.as_ref());
    let mut text = String::new();
    match &load.workload {
        Workload::PassThrough => {
            let bytes = lua_string(request.numbered(0));
            write!(text, "local bytes = {bytes}\nfunction request() return bytes end\n")
        }
        Workload::Replay(_) => {
            text.push_str("local replays = {\n");
            for number in 0..REPLAY_KEYS {
                let bytes = lua_string(request.numbered(number));
                writeln!(text, "{bytes},").expect("writing to a String does not fail");
            }
            write!(
                text,
                "}}\nlocal last = 0\nfunction request()\n\
                 last = last % {REPLAY_KEYS} + 1\nreturn replays[last]\nend\n"
            )
        }
        Workload::First(seed)
        | Workload::Restate(seed)
        | Workload::ShortLived(seed)
        | Workload::Flood(seed)
        | Workload::Webhook(seed, _) => {
            let (head, tail) = request.around_key();
            let (head, tail) = (lua_string(head), lua_string(tail));
            let prefix = seed.prefix();
            write!(
                text,
                "local threads = 0\nfunction setup(thread) thread:set('number', threads); threads = threads + 1 end\n\
                 local head, tail, last = '', {tail}, 0\n\
                 function init() head = {head} .. '{prefix}' .. string.format('%04x-', number) end\n\
                 function request()\nlast = last + 1\n\
                 return head .. string.format('%012x', last) .. tail\nend\n"
            )
        }
    }
    .expect("writing to a String does not fail");
    text + DONE
}

/// Bytes as a Lua string. Only ASCII is sent.
fn lua_string(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    let text = text.replace('\\', "\\\\").replace('"', "\\\"");
    format!("\"{}\"", text.replace('\r', "\\r").replace('\n', "\\n"))
}

fn parse(output: &str, workload: &Workload) -> Option<LoadResult> {
    let line = output.lines().find_map(|line| line.strip_prefix(RESULT))?;
    let numbers = line.split_whitespace().map(str::parse::<u64>);
    let numbers = numbers.collect::<Result<Vec<_>, _>>().ok()?;
    let [answered, duration_us, status, broken, latencies @ ..] = &numbers[..] else {
        return None;
    };
    let [p50_us, p90_us, p99_us, p999_us, max_us] = latencies.try_into().ok()?;
    let refused = match workload {
        Workload::Flood(_) => 0,
        _ => *status,
    };
    let faults = Faults::of(refused + broken, || {
        format!("wrk counts {status} responses with an error, {broken} broken or late")
    });
    Some(LoadResult {
        rate: *answered as f64 / (*duration_us as f64 / 1e6),
        latency: Some(Latency {
            p50_us,
            p90_us,
            p99_us,
            p999_us,
            max_us,
        }),
        answered: *answered,
        faults,
    })
}

#[cfg(test)]
mod tests {
    use super::super::load::Length;
    use super::super::loopback::LoopbackOrigin;
    use super::super::workload::Seed;
    use super::*;

    fn load(workload: Workload) -> Load {
        Load {
            target: LoopbackOrigin::parse("http://127.0.0.1:8080").expect("a literal URL"),
            workload,
            api_key: None,
            connections: 64,
            threads: 1,
            length: Length::Count(1),
        }
    }

    #[test]
    fn a_result_is_read_from_its_line() {
        let output = "Running 2s test @ http://127.0.0.1:1\n  64 connections\n\
                      onceward-bench 50000 2000000 0 0 1200 1900 3000 5000 9000\n";
        let result = parse(output, &Workload::PassThrough).expect("a line has the result");
        assert_eq!(
            (result.rate, result.answered, result.faults.count),
            (25_000.0, 50_000, 0)
        );
        let latency = result.latency.expect("wrk measures latencies");
        assert_eq!(
            (latency.p50_us, latency.p999_us, latency.max_us),
            (1200, 5000, 9000)
        );
    }

    #[test]
    fn errors_are_faults_except_those_of_a_flood() {
        let output = "onceward-bench 100 1000000 7 2 1 1 1 1 1\n";
        let faults = |workload| parse(output, &workload).expect("a line").faults.count;
        assert_eq!(faults(Workload::First(Seed(1))), 9);
        assert_eq!(faults(Workload::Flood(Seed(1))), 2);
    }

    #[test]
    fn other_output_has_no_result() {
        for output in [
            "",
            "unable to connect\n",
            "onceward-bench 1 2\n",
            "onceward-bench x\n",
        ] {
            assert!(parse(output, &Workload::PassThrough).is_none(), "{output}");
        }
    }

    #[test]
    fn the_script_of_first_runs_has_the_request_around_the_key() {
        let script = script(&load(Workload::First(Seed(7))));
        let head = r#"head = "POST /payments HTTP/1.1\r\nHost: 127.0.0.1:8080\r\n"#;
        assert!(script.contains(head), "{script}");
        let tail = r#"tail, last = '', "\r\nContent-Length: 32\r\n\r\n{\"amount\":4200"#;
        assert!(script.contains(tail), "{script}");
        assert!(script.contains("function done"), "{script}");
    }

    #[test]
    fn the_script_of_replays_has_every_key() {
        let script = script(&load(Workload::Replay(Seed(7))));
        let requests = script.lines().filter(|line| line.starts_with("\"POST "));
        assert_eq!(requests.count() as u64, REPLAY_KEYS);
    }
}
