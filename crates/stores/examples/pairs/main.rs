//! How fast a store is on this machine: claim and settle, as pairs per second,
//! by concurrent callers.
//!
//! `pairs [URL] [FILL] [SECONDS]` measures one store, empty and filled; the URL
//! is as in a configuration, and without one it is an embedded store in a
//! temporary directory. `pairs beside [ROUNDS] [SECONDS]` starts a PostgreSQL
//! and a Redis of its own and measures each beside the least that any claim and
//! completion must cost there, in turns.
//!
//! `cargo run --release -p onceward-stores --all-features --example pairs -- …`

#![allow(clippy::disallowed_methods, reason = "a benchmark measures real time")]
#![allow(clippy::print_stdout)]

#[cfg(all(feature = "postgres", feature = "redis"))]
mod beside;
mod work;

use std::time::{Duration, Instant};

use work::Bench;

type Outcome<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

#[tokio::main]
async fn main() -> Outcome<()> {
    let mut arguments = std::env::args().skip(1);
    let first = arguments.next();
    let mut number = |default: u64| arguments.next().map_or(Ok(default), |text| text.parse());
    #[cfg(all(feature = "postgres", feature = "redis"))]
    if first.as_deref() == Some("beside") {
        let rounds = number(5)?;
        let span = Duration::from_secs(number(5)?);
        return beside::run(rounds, span).await;
    }
    let fill = number(1_000_000)?;
    let span = Duration::from_secs(number(5)?);
    let url = first.unwrap_or_else(|| {
        let home = std::env::temp_dir().join(format!("onceward-pairs-{}", std::process::id()));
        format!("embedded:{}", home.display())
    });
    one(&url, fill, span).await
}

/// One store, empty, filled and opened again.
async fn one(url: &str, fill: u64, span: Duration) -> Outcome<()> {
    let begun = Instant::now();
    let bench = Bench::open(url).await?;
    println!("opened in {:.1?}", begun.elapsed());
    bench.measure("empty", span).await?;
    let begun = Instant::now();
    bench.fill(fill).await?;
    println!("filled with {fill} in {:.1?}", begun.elapsed());
    bench.measure("filled", span).await?;
    drop(bench);

    let begun = Instant::now();
    let bench = Bench::open(url).await?;
    println!("reopened in {:.1?}", begun.elapsed());
    bench.measure("reopened", span).await?;
    bench.replays(span).await?;
    let stats = bench.opened.inspect.stats().await?;
    println!(
        "{} operations in {} MiB; {} MiB of memory",
        stats.operations,
        stats.bytes >> 20,
        work::resident_bytes()? >> 20
    );
    Ok(())
}
