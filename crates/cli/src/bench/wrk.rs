//! Load by `wrk`, which costs less per request than the load generator of this program.
//!
//! The script is generated, with the same bytes that the own generator sends. A request without a
//! key is static and costs no Lua at all; replays of a few keys are taken from a table; others are one
//! concatenation around the number of the request. Lua does not sign, so the signatures of events are
//! read from a file. wrk does not look at headers, so what ran is checked at the upstream.

use std::fs;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, ensure};
use tokio::process::Command;

use super::load::Load;
use super::stats::{Faults, Latency, LoadResult};
use super::webhook::SIGNATURE_BYTES;
use super::workload::{REPLAY_KEYS, Request, Workload};

pub(super) const PROGRAM: &str = "wrk";
const SCRIPT: &str = "wrk.lua";
const SIGNATURES: &str = "wrk.signatures";
/// More events than are sent in a second. One beyond the last signature would be a duplicate of an
/// earlier one, which the count of deliveries shows.
const EVENTS_PER_SECOND_MAX: u64 = 50_000;
/// Longer than any response takes.
const TIMEOUT: &str = "30s";
/// The first word of the line that the script prints at the end.
const RESULT: &str = "onceward-bench";
/// Gives each thread its `number`.
const NUMBERED_THREADS: &str = "local threads = 0\n\
    function setup(thread) thread:set('number', threads); threads = threads + 1 end\n";
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
    let seconds = time.as_secs().max(1);
    let path = directory.join(SCRIPT);
    let signatures = directory.join(SIGNATURES);
    // One for both: a signature covers the time at which the request was made.
    let mut request = request(load);
    if let Workload::Webhook(..) = load.workload {
        let events = seconds * EVENTS_PER_SECOND_MAX;
        fs::write(&signatures, sign(&mut request, events))?;
    }
    fs::write(&path, script(load, &mut request, &signatures))?;
    let output = Command::new(PROGRAM)
        .arg(format!("--threads={}", load.threads))
        .arg(format!("--connections={}", load.connections))
        .arg(format!("--duration={seconds}"))
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
    parse(&text).with_context(|| format!("unexpected output of wrk: {text}"))
}

/// The signatures of this many events, one after the other.
fn sign(request: &mut Request, events: u64) -> Vec<u8> {
    let mut signatures = Vec::new();
    for number in 0..events {
        request.numbered(number);
        signatures.extend_from_slice(request.signature());
    }
    signatures
}

fn request(load: &Load) -> Request {
    Request::new(load.workload.clone(), &load.target, load.api_key.as_ref())
}

/// The script. Signatures are read from their file, if the workload has any.
fn script(load: &Load, request: &mut Request, signatures: &Path) -> String {
    let pieces = Vec::from_iter(request.around_numbers().into_iter().map(lua_string));
    let pieces = pieces.join(", ");
    // Each thread takes every `threads`th number.
    let threads = load.threads;
    let numbers = format!(
        "{NUMBERED_THREADS}local last = 0\nfunction init() last = number - {threads} end\n"
    );
    let text = match &load.workload {
        Workload::PassThrough => {
            let bytes = lua_string(request.numbered(0));
            format!("local bytes = {bytes}\nfunction request() return bytes end\n")
        }
        Workload::Replay(_) => {
            let all = (0..REPLAY_KEYS).map(|number| lua_string(request.numbered(number)));
            let all = Vec::from_iter(all).join(",\n");
            format!(
                "local replays = {{\n{all}\n}}\nlocal last = 0\nfunction request()\n\
                 last = last % {REPLAY_KEYS} + 1\nreturn replays[last]\nend\n"
            )
        }
        Workload::ReplayDrawn(keys) => {
            let (draw, count) = (keys.draw.0 as u32, keys.count);
            format!(
                "{NUMBERED_THREADS}function init() math.randomseed({draw} + number) end\n\
                 local a, b, c = {pieces}\nfunction request()\n\
                 local digits = string.format('%012x', math.random({count}) - 1)\n\
                 return a .. digits .. b .. digits .. c\nend\n"
            )
        }
        Workload::Webhook(..) => {
            let path = lua_string(signatures.as_os_str().as_encoded_bytes());
            format!(
                "{numbers}local file = assert(io.open({path}))\n\
                 local signatures = file:read('*a')\nfile:close()\n\
                 local count = #signatures / {SIGNATURE_BYTES}\n\
                 local a, b, c = {pieces}\nfunction request()\n\
                 last = (last + {threads}) % count\nlocal at = last * {SIGNATURE_BYTES}\n\
                 local signature = signatures:sub(at + 1, at + {SIGNATURE_BYTES})\n\
                 return a .. signature .. b .. string.format('%012x', last) .. c\nend\n"
            )
        }
        Workload::First(_)
        | Workload::Restate(_)
        | Workload::ShortLived(_)
        | Workload::Flood(_) => {
            format!(
                "{numbers}local a, b, c = {pieces}\nfunction request()\n\
                 last = last + {threads}\nlocal digits = string.format('%012x', last)\n\
                 return a .. digits .. b .. digits .. c\nend\n"
            )
        }
    };
    text + DONE
}

/// Bytes as a Lua string. Only ASCII is sent.
fn lua_string(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    let text = text.replace('\\', "\\\\").replace('"', "\\\"");
    format!("\"{}\"", text.replace('\r', "\\r").replace('\n', "\\n"))
}

fn parse(output: &str) -> Option<LoadResult> {
    let line = output.lines().find_map(|line| line.strip_prefix(RESULT))?;
    let numbers = line.split_whitespace().map(str::parse::<u64>);
    let numbers = numbers.collect::<Result<Vec<_>, _>>().ok()?;
    let [answered, duration_us, status, broken, latencies @ ..] = &numbers[..] else {
        return None;
    };
    let [p50_us, p90_us, p99_us, p999_us, max_us] = latencies.try_into().ok()?;
    let faults = Faults::of(status + broken, || {
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
    use std::collections::HashSet;
    use std::sync::Arc;

    use super::super::load::Length;
    use super::super::loopback::LoopbackOrigin;
    use super::super::webhook::Webhook;
    use super::super::workload::{DrawnKeys, Seed};
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
        let result = parse(output).expect("a line has the result");
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
    fn errors_are_faults() {
        let output = "onceward-bench 100 1000000 7 2 1 1 1 1 1\n";
        assert_eq!(parse(output).expect("a line").faults.count, 9);
    }

    #[test]
    fn other_output_has_no_result() {
        for output in [
            "",
            "unable to connect\n",
            "onceward-bench 1 2\n",
            "onceward-bench x\n",
        ] {
            assert!(parse(output).is_none(), "{output}");
        }
    }

    fn script_of(workload: Workload) -> String {
        let load = load(workload);
        script(&load, &mut request(&load), Path::new("signatures"))
    }

    #[test]
    fn the_script_of_first_runs_has_the_request_around_its_number() {
        let script = script_of(Workload::First(Seed(7)));
        let pieces = r#"local a, b, c = "POST /payments HTTP/1.1\r\nHost: 127.0.0.1:8080\r\n"#;
        assert!(script.contains(pieces), "{script}");
        let body =
            r#"\r\nContent-Length: 79\r\n\r\n{\"amount\":4200,\"currency\":\"EUR\",\"order\":\""#;
        assert!(script.contains(body), "{script}");
        assert!(
            script.contains("return a .. digits .. b .. digits .. c"),
            "{script}"
        );
        assert!(script.contains("function done"), "{script}");
    }

    #[test]
    fn the_script_of_replays_has_every_request() {
        let script = script_of(Workload::Replay(Seed(7)));
        let requests = script.lines().filter(|line| line.starts_with("\"POST "));
        assert_eq!(requests.collect::<HashSet<_>>().len() as u64, REPLAY_KEYS);
    }

    #[test]
    fn the_script_of_drawn_replays_has_the_number_of_keys() {
        let keys = DrawnKeys {
            of: Seed(7),
            count: 5000,
            draw: Seed(1 << 40),
        };
        let script = script_of(Workload::ReplayDrawn(keys));
        assert!(script.contains("math.random(5000) - 1"), "{script}");
        assert!(script.contains("math.randomseed(0 + number)"), "{script}");
    }

    #[test]
    fn an_event_has_its_signature_from_the_file() {
        let webhook = Arc::new(Webhook::new("wh_1", "secret"));
        let load = load(Workload::Webhook(Seed(7), webhook));
        let mut request = request(&load);
        let signatures = sign(&mut request, 3);
        assert_eq!(signatures.len(), 3 * SIGNATURE_BYTES);
        let script = script(&load, &mut request, Path::new("signatures"));
        assert!(script.contains(r#"io.open("signatures")"#), "{script}");
        // With the rest of the script's request, the file's signature is right.
        let pieces = Vec::from_iter(request.around_numbers().into_iter().map(<[u8]>::to_vec));
        let signature = &signatures[2 * SIGNATURE_BYTES..];
        let event = [
            &pieces[0],
            signature,
            &pieces[1],
            b"000000000002",
            &pieces[2],
        ]
        .concat();
        assert_eq!(event, request.numbered(2));
    }
}
