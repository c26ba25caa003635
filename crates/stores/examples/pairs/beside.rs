//! Each server beside the least that a claim and a completion must cost there:
//! one `INSERT … ON CONFLICT` and one `UPDATE` as pgbench says them, two short
//! scripts as redis-benchmark says them. In turns, so that the machine's mood
//! is the same for both; told are the medians of each round's own ratio.

use std::fs;
use std::process::Command;
use std::time::Duration;

use onceward_servers::{Postgres, Redis};
use onceward_stores::postgres::migrate::{Options, apply};

use crate::Outcome;
use crate::work::Bench;

/// How many callers, and how many connections of the bare tools.
const CALLERS: [usize; 2] = [16, 64];
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
    redis.call('HSET', KEYS[1], 'state', 'running', 'hash', ARGV[1]) return 1 end return 0";
const BARE_FINISH: &str = "if redis.call('HGET', KEYS[1], 'state') == 'running' then \
    redis.call('HSET', KEYS[1], 'state', 'completed', 'reply', ARGV[1]) return 1 end return 0";

/// What the rounds of one store and one number of callers gave.
struct Series {
    store: &'static str,
    callers: usize,
    bare: Vec<f64>,
    ours: Vec<f64>,
}

pub(crate) async fn run(rounds: u64, span: Duration) -> Outcome<()> {
    let postgres = Postgres::start_with(&[("shared_buffers", "512MB"), ("max_wal_size", "4GB")]);
    apply(&postgres.url(), &Options::default()).await?;
    postgres.sql("postgres", BARE_TABLE);
    let script = postgres.directory().join("bare.sql");
    fs::write(&script, BARE_PAIR)?;
    let redis = Redis::start();
    let on_postgres = Bench::open(&postgres.url()).await?;
    let on_redis = Bench::open(&redis.url()).await?;
    let mut all = Vec::new();
    for callers in CALLERS {
        let (mut pg, mut rd) = (series("PostgreSQL", callers), series("Redis", callers));
        for _ in 0..rounds {
            pg.bare.push(pgbench(&postgres, &script, callers, span)?);
            pg.ours.push(on_postgres.rate(callers, span).await?);
            rd.bare.push(redis_benchmark(&redis, callers, span)?);
            rd.ours.push(on_redis.rate(callers, span).await?);
        }
        all.extend([pg, rd]);
    }
    println!("| store | callers | bare minimum, pairs/s | Onceward, pairs/s | ratio |");
    println!("|---|---|---|---|---|");
    for series in all {
        let ratios = series.ours.iter().zip(&series.bare).map(|(a, b)| a / b);
        println!(
            "| {} | {} | {:.0} | {:.0} | {:.2} |",
            series.store,
            series.callers,
            median(series.bare.iter().copied()),
            median(series.ours.iter().copied()),
            median(ratios),
        );
    }
    Ok(())
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
        .output()?;
    let told = String::from_utf8(told.stdout)?;
    let line = told.lines().find_map(|line| line.strip_prefix("tps = "));
    let rate = line.and_then(|line| line.split(' ').next());
    Ok(rate.ok_or("pgbench told no rate")?.parse()?)
}

/// A pair is one command of each kind; both take their time.
fn redis_benchmark(redis: &Redis, callers: usize, span: Duration) -> Outcome<f64> {
    let mut took = 0.0;
    for script in [BARE_CLAIM, BARE_FINISH] {
        let sha = redis.cli(&["SCRIPT", "LOAD", script]);
        let commands = COMMANDS_PER_SECOND * span.as_secs();
        let told = Command::new("redis-benchmark")
            .args(["-h", "127.0.0.1", "--csv", "-r", "1000000000"])
            .args(["-p", &redis.port().to_string()])
            .args(["-c", &callers.to_string(), "-n", &commands.to_string()])
            .args(["EVALSHA", sha.trim(), "1", "bare:__rand_int__"])
            .arg("0".repeat(130))
            .output()?;
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
