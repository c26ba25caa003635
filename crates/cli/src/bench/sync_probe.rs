//! How long a sync of the disk takes while a load runs beside it: the lower bound of any latency
//! that includes one.
//!
//! The probe overwrites a file that was written and synced before, as the log of a store does, and
//! syncs its data, at a modest rate that hardly delays the syncs of the store.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;
use hdrhistogram::Histogram;
use tokio::sync::oneshot;

use super::stats::{Faults, Latency, LoadResult, micros, no_latencies};
use crate::scheduling::ask_for_short_slices;

const PAUSE: Duration = Duration::from_millis(10);
const FILE_BYTES: u64 = 16 << 20;
const BLOCK_BYTES: u64 = 4096;
const NAME: &str = "sync-probe";
/// About what a store writes for a first run: its claim and its reply.
const BYTES_PER_REQUEST: f64 = 1024.0;
/// How many syncs are taken to estimate the size of a batch.
const ESTIMATES: usize = 20;

/// A running probe. Dropping it stops it.
pub(super) struct SyncProbe {
    stopped: Arc<AtomicBool>,
    done: oneshot::Receiver<io::Result<Histogram<u64>>>,
    start: Instant,
}

impl SyncProbe {
    /// Starts to write and sync batches of this size in `directory`.
    pub(super) fn start(directory: &Path, batch_bytes: u64) -> anyhow::Result<Self> {
        let file = prepare(directory).context("cannot write a file to sync")?;
        let stopped = Arc::new(AtomicBool::new(false));
        let (result, done) = oneshot::channel();
        let flag = stopped.clone();
        thread::Builder::new().name("sync".into()).spawn(move || {
            // As the thread of the store that syncs.
            ask_for_short_slices();
            // The receiver is gone when the benchmark was interrupted.
            let _ = result.send(probe(&file, batch_bytes, &flag));
        })?;
        Ok(SyncProbe {
            stopped,
            done,
            start: Instant::now(),
        })
    }

    pub(super) async fn finish(mut self) -> anyhow::Result<LoadResult> {
        self.stopped.store(true, Ordering::Relaxed);
        let took = self.start.elapsed();
        let done = (&mut self.done).await;
        let latencies = done.context("the probe panicked")??;
        Ok(LoadResult {
            rate: latencies.len() as f64 / took.as_secs_f64(),
            latency: Latency::of(&latencies),
            answered: latencies.len(),
            faults: Faults::default(),
        })
    }
}

impl Drop for SyncProbe {
    fn drop(&mut self) {
        self.stopped.store(true, Ordering::Relaxed);
    }
}

/// The bytes of the requests that arrive at this rate while one sync takes place.
pub(super) fn batch_bytes(directory: &Path, per_second: f64) -> anyhow::Result<u64> {
    let file = prepare(directory).context("cannot write a file to sync")?;
    let mut latencies = no_latencies();
    for number in 0..ESTIMATES as u64 {
        let start = Instant::now();
        sync(&file, number * BLOCK_BYTES, BLOCK_BYTES)?;
        latencies.saturating_record(micros(start.elapsed()));
    }
    Ok(batch(per_second, latencies.value_at_quantile(0.5)))
}

fn batch(per_second: f64, sync_us: u64) -> u64 {
    let requests = per_second * sync_us as f64 / 1e6;
    let blocks = (requests * BYTES_PER_REQUEST / BLOCK_BYTES as f64).ceil();
    (blocks as u64).clamp(1, FILE_BYTES / BLOCK_BYTES) * BLOCK_BYTES
}

fn prepare(directory: &Path) -> io::Result<File> {
    let file = File::create(directory.join(NAME))?;
    file.write_all_at(&vec![0; FILE_BYTES as usize], 0)?;
    file.sync_all()?;
    Ok(file)
}

fn probe(file: &File, batch_bytes: u64, stopped: &AtomicBool) -> io::Result<Histogram<u64>> {
    let mut latencies = no_latencies();
    let mut at = 0;
    while !stopped.load(Ordering::Relaxed) {
        if at + batch_bytes > FILE_BYTES {
            at = 0;
        }
        let start = Instant::now();
        sync(file, at, batch_bytes)?;
        latencies.saturating_record(micros(start.elapsed()));
        at += batch_bytes;
        thread::sleep(PAUSE);
    }
    Ok(latencies)
}

fn sync(file: &File, at: u64, bytes: u64) -> io::Result<()> {
    file.write_all_at(&vec![0x5a; bytes as usize], at)?;
    file.sync_data()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_holds_what_arrives_during_a_sync_in_whole_blocks() {
        let cases = [
            (0.0, 500, 4096),
            (1000.0, 1000, 4096),
            (20_000.0, 1000, 20_480),
        ];
        for (per_second, sync_us, expected) in cases {
            assert_eq!(batch(per_second, sync_us), expected, "{per_second}");
        }
    }

    #[tokio::test]
    async fn a_probe_measures_until_it_is_finished() {
        let directory = tempfile::tempdir().expect("a temporary directory can be made");
        let probe = SyncProbe::start(directory.path(), 4096).expect("a file can be written");
        tokio::time::sleep(5 * PAUSE).await;
        let result = probe.finish().await.expect("a file can be synced");
        assert!(result.answered > 0 && result.latency.is_some());
    }
}
