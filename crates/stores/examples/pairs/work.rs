//! Claim and settle, again and again, by many callers at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use onceward_core::caller::Caller;
use onceward_core::class::Class;
use onceward_core::clock::SystemClock;
use onceward_core::fingerprint::{Algorithm, Fingerprint};
use onceward_core::identity::{Endpoint, Identity, KeySpace, OperationId};
use onceward_core::key::Key;
use onceward_core::record::{Answer, Attempt, Reply, Settlement};
use onceward_core::store::{Claim, ClaimRequest};
use onceward_stores::{Opened, open};

use crate::Outcome;

/// A store that is being measured.
#[derive(Clone)]
pub(crate) struct Bench {
    pub(crate) opened: Opened,
    drawn: Arc<AtomicU64>,
    run: u64,
}

impl Bench {
    pub(crate) async fn open(url: &str) -> Outcome<Self> {
        Ok(Self {
            opened: open(url, Arc::new(SystemClock::new())).await?,
            drawn: Arc::default(),
            run: std::time::UNIX_EPOCH.elapsed()?.as_nanos() as u64,
        })
    }

    pub(crate) async fn measure(&self, name: &str, span: Duration) -> Outcome<()> {
        for callers in [1, 16, 64, 1024] {
            let before = processor_ms()?;
            let (pairs, took, mut latencies) = self.run(callers, Pace::For(span)).await?;
            let spent = processor_ms()? - before;
            latencies.sort_unstable();
            let at = |part: f64| latencies[((latencies.len() - 1) as f64 * part) as usize];
            println!(
                "{name:9} {callers:5} callers: {:8.0} pairs/s  {:5.1} µs of processor each   p50 {:6.2?}  p99 {:6.2?}  max {:6.2?}",
                pairs as f64 / took.as_secs_f64(),
                spent as f64 * 1000.0 / pairs as f64,
                at(0.5),
                at(0.99),
                at(1.0),
            );
        }
        Ok(())
    }

    pub(crate) async fn fill(&self, count: u64) -> Outcome<()> {
        self.run(
            1024,
            Pace::Pairs(self.drawn.load(Ordering::Relaxed) + count),
        )
        .await?;
        Ok(())
    }

    /// Pairs per second by this many callers.
    #[cfg(all(feature = "postgres", feature = "redis"))]
    pub(crate) async fn rate(&self, callers: usize, span: Duration) -> Outcome<f64> {
        let (pairs, took, _) = self.run(callers, Pace::For(span)).await?;
        Ok(pairs as f64 / took.as_secs_f64())
    }

    async fn run(&self, callers: usize, pace: Pace) -> Outcome<(usize, Duration, Vec<Duration>)> {
        let begun = Instant::now();
        let tasks: Vec<_> = (0..callers)
            .map(|_| tokio::spawn(self.clone().call(pace, begun)))
            .collect();
        let mut latencies = Vec::new();
        for task in tasks {
            latencies.extend(task.await??);
        }
        Ok((latencies.len(), begun.elapsed(), latencies))
    }

    async fn call(self, pace: Pace, begun: Instant) -> Outcome<Vec<Duration>> {
        let mut latencies = Vec::new();
        loop {
            let number = self.drawn.fetch_add(1, Ordering::Relaxed);
            match pace {
                Pace::For(span) if begun.elapsed() >= span => return Ok(latencies),
                Pace::Pairs(last) if number >= last => return Ok(latencies),
                _ => {}
            }
            let start = Instant::now();
            self.pair(number).await?;
            latencies.push(start.elapsed());
        }
    }

    async fn pair(&self, number: u64) -> Outcome<()> {
        let ask = self.ask(number)?;
        let Claim::Granted(grant) = self.opened.store.claim(&ask).await? else {
            return Err("a new key was not granted".into());
        };
        let settlement = Settlement::Completed(Answer::Kept(Arc::new(reply())));
        self.opened
            .store
            .settle(&grant.digest, grant.fence, settlement)
            .await?;
        Ok(())
    }

    pub(crate) async fn replays(&self, span: Duration) -> Outcome<()> {
        let last = self.drawn.load(Ordering::Relaxed);
        let begun = Instant::now();
        let mut replays = 0;
        while begun.elapsed() < span {
            let ask = self.ask(last - 2000 + replays % 100)?;
            self.opened.store.claim(&ask).await?;
            replays += 1;
        }
        println!(
            "replays       1 caller : {:8.0} /s",
            replays as f64 / begun.elapsed().as_secs_f64()
        );
        Ok(())
    }

    fn ask(&self, number: u64) -> Outcome<ClaimRequest> {
        let identity = Identity {
            caller: Caller::local(),
            endpoint: Endpoint::new("POST /payments"),
            key: Key::parse(&format!("{:016x}-{number:016x}", self.run))?,
            space: KeySpace::Endpoint,
        };
        let digest = identity.digest();
        Ok(ClaimRequest {
            digest,
            identity,
            fingerprint: Fingerprint {
                algorithm: Algorithm::Json1,
                digest: *digest.as_bytes(),
                sender: [0; 16],
            },
            terms: Class::interactive().terms(),
            attempt: Attempt(u128::from(number)),
            id: OperationId::new(&digest, number),
        })
    }
}

#[derive(Clone, Copy)]
enum Pace {
    For(Duration),
    Pairs(u64),
}

/// The processor time that this process has used so far, where Linux reports it.
fn processor_ms() -> Outcome<u64> {
    let Ok(stat) = std::fs::read_to_string("/proc/self/stat") else {
        return Ok(0);
    };
    let fields = stat
        .rsplit(')')
        .next()
        .unwrap_or_default()
        .split_whitespace();
    let ticks: Result<Vec<u64>, _> = fields.skip(11).take(2).map(str::parse).collect();
    // A tick is a hundredth of a second.
    Ok(ticks?.iter().sum::<u64>() * 10)
}

/// The memory that this process has now, where Linux reports it.
pub(crate) fn resident_bytes() -> Outcome<u64> {
    let Ok(status) = std::fs::read_to_string("/proc/self/status") else {
        return Ok(0);
    };
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kilobytes = line.unwrap_or_default().trim().trim_end_matches(" kB");
    Ok(kilobytes.parse::<u64>()? * 1024)
}

fn reply() -> Reply {
    Reply {
        status: 201,
        headers: vec![(
            Bytes::from_static(b"content-type"),
            Bytes::from_static(b"application/json"),
        )],
        body: Bytes::from_static(
            br#"{"id":"pay_0123456789","amount":1000,"currency":"EUR","status":"paid"}"#,
        ),
        trailers: Vec::new(),
    }
}
