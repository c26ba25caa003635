//! Each server beside the least that a claim and a completion must cost there: one
//! `INSERT … ON CONFLICT` and one `UPDATE` by pgbench, two short scripts on a
//! record with an expiry by redis-benchmark. They run in turns, so that both see
//! the same load of the machine; the medians of the ratios of all rounds are
//! printed.

use std::fs;
use std::process::Command;
use std::time::Duration;

use onceward_servers::{Postgres, Redis};
use onceward_stores::postgres::migrate::{Options, apply};

use crate::Outcome;
use crate::work::Bench;

/// How many callers, and how many connections of the bare tools.
const CALLERS: [usize; 2] = [16, 64];
/// The target of every ratio.
const RATIO_MIN: f64 = 0.7;
/// How long the bare minimum's replies are.
const REPLY_BYTES: usize = 130;
/// How many commands redis-benchmark sends for each second of a round.
const COMMANDS_PER_SECOND: u64 = 40_000;

const BARE_TABLE: &str = "CREATE TABLE bare (digest bytea PRIMARY KEY, state text NOT NULL, \
    request_hash bytea NOT NULL, created_at timestamptz NOT NULL, expires_at timestamptz, reply bytea)";

const BARE_PAIR: &str = r"\set key random(1, 9000000000000000)
INSERT INTO bare (digest, state, request_hash, created_at)
VALUES (sha256(:key::text::bytea), 'running', sha256('request'), now()) ON CONFLICT DO NOTHING;
UPDATE bare SET state = 'completed', expires_at = now() + interval '1 day', reply = decode(repeat('00', 130), 'hex')
WHERE digest = sha256(:key::text::bytea) AND state = 'running';
";

const BARE_CLAIM: &str = "if redis.call('EXISTS', KEYS[1]) == 0 then \
    redis.call('HSET', KEYS[1], 'state', 'running', 'hash', ARGV[1]) \
    redis.call('PEXPIRE', KEYS[1], 86400000) return 1 end return 0";
/// redis-benchmark draws its keys, so that some are finished twice: that costs
/// the same.
const BARE_FINISH: &str = "if redis.call('HGET', KEYS[1], 'state') then \
    redis.call('HSET', KEYS[1], 'state', 'completed', 'reply', ARGV[1]) \
    redis.call('PEXPIRE', KEYS[1], 86400000) return 1 end return 0";
/// The keys that can be drawn to be claimed; more would not fit its numbers.
const KEYS_MAX: u64 = 2_000_000_000;
/// The keys that can be drawn to be finished; all are there.
const FINISHED: u64 = 200_000;
const BARE_FILL: &str = "for place = 0, ARGV[1] - 1 do \
    local key = string.format('bare:%012d', place) \
    redis.call('HSET', key, 'state', 'running', 'hash', ARGV[2]) end";

/// The results of one store with one number of callers.
struct Series {
    store: &'static str,
    callers: usize,
    bare: Vec<f64>,
    ours: Vec<f64>,
}

pub(crate) async fn run(rounds: u64, span: Duration) -> Outcome<()> {
    let mut all = on_postgres(rounds, span).await?;
    all.extend(on_redis(rounds, span).await?);
    println!("| store | callers | bare minimum, pairs/s | Onceward, pairs/s | ratio |");
    println!("|---|---|---|---|---|");
    let mut lowest = f64::INFINITY;
    for series in all {
        let ratios = series.ours.iter().zip(&series.bare).map(|(a, b)| a / b);
        let ratio = median(ratios);
        lowest = lowest.min(ratio);
        println!(
            "| {} | {} | {:.0} | {:.0} | {:.2} |",
            series.store,
            series.callers,
            median(series.bare.iter().copied()),
            median(series.ours.iter().copied()),
            ratio,
        );
    }
    if lowest < RATIO_MIN {
        return Err(format!("{lowest:.2} is less than {RATIO_MIN} of the bare minimum").into());
    }
    Ok(())
}

async fn on_postgres(rounds: u64, span: Duration) -> Outcome<Vec<Series>> {
    let server = Postgres::start_with(&[("shared_buffers", "512MB"), ("max_wal_size", "4GB")]);
    apply(&server.url(), &Options::default()).await?;
    server.sql("postgres", BARE_TABLE);
    let script = server.directory().join("bare.sql");
    fs::write(&script, BARE_PAIR)?;
    let bench = Bench::open(&server.url()).await?;
    let mut all = Vec::new();
    for callers in CALLERS {
        let mut series = series("PostgreSQL", callers);
        for _ in 0..rounds {
            let bare = pgbench(&server, &script, callers, span)?;
            series.bare.push(bare);
            series.ours.push(bench.rate(callers, span).await?);
        }
        all.push(series);
    }
    Ok(all)
}

async fn on_redis(rounds: u64, span: Duration) -> Outcome<Vec<Series>> {
    // Its log is not rewritten meanwhile, which would slow down one of the two.
    let server = Redis::start_with(&["--auto-aof-rewrite-percentage", "0"]);
    let reply = "0".repeat(REPLY_BYTES);
    server.cli(&["EVAL", BARE_FILL, "0", &FINISHED.to_string(), &reply]);
    let bench = Bench::open(&server.url()).await?;
    let mut all = Vec::new();
    for callers in CALLERS {
        let mut series = series("Redis", callers);
        for _ in 0..rounds {
            series.bare.push(redis_benchmark(&server, callers, span)?);
            series.ours.push(bench.rate(callers, span).await?);
        }
        all.push(series);
    }
    Ok(all)
}

fn series(store: &'static str, callers: usize) -> Series {
    Series {
        store,
        callers,
        bare: Vec::new(),
        ours: Vec::new(),
    }
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

fn pgbench(
    postgres: &Postgres,
    script: &std::path::Path,
    callers: usize,
    span: Duration,
) -> Outcome<f64> {
    let told = Command::new(Postgres::program("pgbench"))
        .args(["--no-vacuum", "--protocol=prepared", "--jobs=2"])
        .args(["--host=127.0.0.1", "--username=postgres"])
        .arg(format!("--port={}", postgres.port()))
        .arg(format!("--client={callers}"))
        .arg(format!("--time={}", span.as_secs()))
        .arg(format!("--file={}", script.display()))
        .arg("postgres")
        .output()
        .map_err(|error| format!("pgbench: {error}"))?;
    let told = String::from_utf8(told.stdout)?;
    let line = told.lines().find_map(|line| line.strip_prefix("tps = "));
    let rate = line.and_then(|line| line.split(' ').next());
    Ok(rate.ok_or("pgbench told no rate")?.parse()?)
}

/// A pair is one command of each kind; both take their time.
fn redis_benchmark(redis: &Redis, callers: usize, span: Duration) -> Outcome<f64> {
    let mut took = 0.0;
    for (script, keys) in [(BARE_CLAIM, KEYS_MAX), (BARE_FINISH, FINISHED)] {
        let sha = redis.cli(&["SCRIPT", "LOAD", script]);
        let commands = COMMANDS_PER_SECOND * span.as_secs();
        let told = Command::new("redis-benchmark")
            .args(["-h", "127.0.0.1", "--csv", "-r", &keys.to_string()])
            .args(["-p", &redis.port().to_string()])
            .args(["-c", &callers.to_string(), "-n", &commands.to_string()])
            .args(["EVALSHA", sha.trim(), "1", "bare:__rand_int__"])
            .arg("0".repeat(REPLY_BYTES))
            .output()
            .map_err(|error| format!("redis-benchmark: {error}"))?;
        let told = String::from_utf8(told.stdout)?;
        let line = told.lines().last().ok_or("redis-benchmark told nothing")?;
        // Scripts have commas in them; the rate is the second of eight numbers from the end.
        let fields: Vec<_> = line.rsplit(',').collect();
        let rate = fields.get(6).ok_or("redis-benchmark told no rate")?;
        let rate: f64 = rate.trim_matches('"').parse()?;
        took += 1.0 / rate;
    }
    Ok(1.0 / took)
}
