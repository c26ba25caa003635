//! The load generator: a closed loop over a constant number of keep-alive connections, and an open
//! loop for latencies at a given rate.
//!
//! In the closed loop each connection sends its next request when it has the response to the last
//! one, so the rate is what the other side can do, and a latency includes the time behind the other
//! connections. The generator shares the machine with what it measures and must be cheap: one
//! thread by default; per request one write, one read, no allocation, one clock reading, and for an
//! event one HMAC. Nothing is retried: an unexpected response is a fault, and a load with faults has
//! no valid rate.

use std::cell::RefCell;
use std::io::{self, Read, Write};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio::task::{JoinSet, LocalSet};

use super::loopback::LoopbackOrigin;
use super::response::{self, Connection, Progress, Response};
use super::stats::{Fault, LoadResult, Stats, Window, WindowPart};
use super::workload::{ApiKey, Request, Workload};

/// Far larger than any response that is measured.
const RESPONSE_BYTES_MAX: usize = 8 * 1024;
/// No response on any connection for this long is a fault.
const STALL_MAX: Duration = Duration::from_secs(10);

/// What to send, where, over how many connections, for how long.
#[derive(Clone)]
pub(super) struct Load {
    pub(super) target: LoopbackOrigin,
    pub(super) workload: Workload,
    /// The API key to send, if callers are authenticated.
    pub(super) api_key: Option<ApiKey>,
    pub(super) connections: usize,
    pub(super) threads: usize,
    pub(super) length: Length,
}

#[derive(Clone, Copy)]
pub(super) enum Length {
    /// Responses during the warm-up are checked, but not counted.
    Time {
        warmup: Duration,
        measured: Duration,
    },
    /// Exactly this many requests, all counted.
    Count(u64),
}

/// A running load. Dropping it stops the load.
pub(super) struct Run {
    numbers: Arc<RequestNumbers>,
    threads: Vec<oneshot::Receiver<anyhow::Result<Stats>>>,
}

impl Run {
    pub(super) fn start(load: &Load) -> anyhow::Result<Self> {
        let numbers = Arc::new(RequestNumbers::new(load.length));
        let mut threads = Vec::with_capacity(load.threads);
        for share in shares(load.connections, load.threads) {
            let (done, stats) = oneshot::channel();
            let (load, numbers) = (load.clone(), numbers.clone());
            thread::Builder::new().name("load".into()).spawn(move || {
                // The receiver is gone when the benchmark was interrupted.
                let _ = done.send(work(&load, share, &numbers));
            })?;
            threads.push(stats);
        }
        Ok(Run { numbers, threads })
    }

    /// Starts an open loop: requests are sent at fixed times, `per_second` of them, whether or not
    /// earlier ones are answered, and latencies count from those times. Each connection has its own
    /// blocking thread, because the lateness of an async timer would distort the result.
    pub(super) fn start_paced(load: &Load, per_second: u32) -> anyhow::Result<Self> {
        let numbers = Arc::new(RequestNumbers::new(load.length));
        let lines = (0..load.connections).map(|_| PacedConnection::connect(load));
        let lines = lines.collect::<anyhow::Result<Vec<_>>>()?;
        let send_times = SendTimes {
            start: Instant::now(),
            spacing: Duration::from_secs(1) / per_second,
            window: Window::open(load.length),
        };
        let mut threads = Vec::with_capacity(load.connections);
        for line in lines {
            let (done, stats) = oneshot::channel();
            let numbers = numbers.clone();
            thread::Builder::new().name("paced".into()).spawn(move || {
                // The receiver is gone when the benchmark was interrupted.
                let _ = done.send(Ok(line.drive(&send_times, &numbers)));
            })?;
            threads.push(stats);
        }
        Ok(Run { numbers, threads })
    }

    /// A function that returns how many requests were begun.
    pub(super) fn begun(&self) -> impl Fn() -> u64 + use<> {
        let numbers = self.numbers.clone();
        move || numbers.next.load(Ordering::Relaxed)
    }

    pub(super) async fn finish(mut self) -> anyhow::Result<LoadResult> {
        let mut whole = Stats::new();
        for thread in &mut self.threads {
            whole.add(thread.await.context("a load thread panicked")??);
        }
        Ok(whole.outcome())
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        self.numbers.end.store(0, Ordering::Relaxed);
    }
}

/// The numbers of the requests. Each is used once, over all connections of all threads.
struct RequestNumbers {
    next: AtomicU64,
    end: AtomicU64,
}

impl RequestNumbers {
    fn new(length: Length) -> Self {
        let end = match length {
            Length::Time { .. } => u64::MAX,
            Length::Count(count) => count,
        };
        RequestNumbers {
            next: AtomicU64::new(0),
            end: AtomicU64::new(end),
        }
    }

    fn take(&self) -> Option<u64> {
        let end = self.end.load(Ordering::Relaxed);
        // Compared first, so that `next` stops near the end instead of growing on.
        (self.next.load(Ordering::Relaxed) < end)
            .then(|| self.next.fetch_add(1, Ordering::Relaxed))
            .filter(|&number| number < end)
    }
}

/// Splits the connections into nearly equal parts, none of them empty.
fn shares(connections: usize, threads: usize) -> impl Iterator<Item = usize> {
    let threads = threads.clamp(1, connections.max(1));
    (0..threads).map(move |at| (connections + at) / threads)
}

/// One thread: opens all its connections, then drives them until the load ends or stalls.
fn work(load: &Load, connections: usize, numbers: &Arc<RequestNumbers>) -> anyhow::Result<Stats> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    LocalSet::new().block_on(&runtime, async {
        let mut streams = Vec::with_capacity(connections);
        for _ in 0..connections {
            let stream = connect(load.target).await;
            streams.push(stream.with_context(|| format!("cannot connect to {}", load.target))?);
        }
        Ok(drive_all(load, streams, numbers).await)
    })
}

async fn connect(target: LoopbackOrigin) -> io::Result<TcpStream> {
    let stream = TcpStream::connect(target.addr()).await?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

async fn drive_all(load: &Load, streams: Vec<TcpStream>, numbers: &Arc<RequestNumbers>) -> Stats {
    let stats = Rc::new(RefCell::new(Stats::new()));
    let window = Window::open(load.length);
    let mut lines = JoinSet::new();
    for stream in streams {
        let (load, numbers, stats) = (load.clone(), numbers.clone(), stats.clone());
        lines.spawn_local(async move {
            if let Err(fault) = drive(&load, stream, window, &numbers, &stats).await {
                stats.borrow_mut().fault(&fault);
            }
        });
    }
    tokio::select! {
        () = async { while lines.join_next().await.is_some() {} } => {}
        () = stall(&stats) => stats.borrow_mut().fault(&Fault::Stalled),
    }
    // Connections that have not finished hold a reference; they end here.
    drop(lines);
    stats.replace(Stats::new()).closed(window)
}

/// Returns when no response has arrived for too long. One timer for all connections is cheaper than
/// one for each.
async fn stall(stats: &RefCell<Stats>) {
    let mut seen = None;
    loop {
        let answers = stats.borrow().answered();
        if seen.replace(answers) == Some(answers) {
            return;
        }
        tokio::time::sleep(STALL_MAX).await;
    }
}

/// Drives one connection. A connection fault ends it; an unexpected response does not.
async fn drive(
    load: &Load,
    mut stream: TcpStream,
    window: Window,
    numbers: &RequestNumbers,
    stats: &RefCell<Stats>,
) -> Result<(), Fault> {
    let mut request = Request::new(load.workload.clone(), &load.target, load.api_key.as_ref());
    let mut buffer = vec![0; RESPONSE_BYTES_MAX];
    let mut sent = Instant::now();
    while let Some(number) = numbers.take() {
        stream.write_all(request.numbered(number)).await?;
        let response = receive(&mut stream, &mut buffer).await?;
        let now = Instant::now();
        stats
            .borrow_mut()
            .answer(&load.workload, &response, now - sent, window.part(now));
        if window.part(now) == WindowPart::After {
            break;
        }
        if response.connection == Connection::Close {
            stream = connect(load.target).await?;
        }
        sent = now;
    }
    Ok(())
}

async fn receive(stream: &mut TcpStream, buffer: &mut [u8]) -> Result<Response, Fault> {
    let mut filled = 0;
    while filled < buffer.len() {
        match stream.read(&mut buffer[filled..]).await? {
            0 => return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
            more => filled += more,
        }
        if let Some(response) = whole(&buffer[..filled])? {
            return Ok(response);
        }
    }
    Err(Fault::TooLarge)
}

/// The response, when all of it has arrived.
fn whole(received: &[u8]) -> Result<Option<Response>, Fault> {
    match response::parse(received).map_err(Fault::Malformed)? {
        Progress::Partial => Ok(None),
        Progress::Whole(response) if response.length_bytes == received.len() => Ok(Some(response)),
        Progress::Whole(_) => Err(Fault::Surplus),
    }
}

/// When the requests of an open loop are sent.
#[derive(Clone, Copy)]
struct SendTimes {
    start: Instant,
    spacing: Duration,
    window: Window,
}

impl SendTimes {
    /// When the request with this number is sent; `None` after the end.
    fn due(&self, number: u64) -> Option<Instant> {
        let due = self.start + self.spacing * u32::try_from(number).ok()?;
        (self.window.part(due) != WindowPart::After).then_some(due)
    }
}

/// A connection of an open loop, with its own thread.
struct PacedConnection {
    stream: std::net::TcpStream,
    workload: Workload,
    request: Request,
}

impl PacedConnection {
    fn connect(load: &Load) -> anyhow::Result<Self> {
        let stream = std::net::TcpStream::connect(load.target.addr());
        let stream = stream.with_context(|| format!("cannot connect to {}", load.target))?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(STALL_MAX))?;
        Ok(PacedConnection {
            stream,
            workload: load.workload.clone(),
            request: Request::new(load.workload.clone(), &load.target, load.api_key.as_ref()),
        })
    }

    /// Takes the next request number whenever the connection is free.
    fn drive(mut self, send_times: &SendTimes, numbers: &RequestNumbers) -> Stats {
        let mut stats = Stats::new();
        let mut buffer = vec![0; RESPONSE_BYTES_MAX];
        while let Some(number) = numbers.take()
            && let Some(due) = send_times.due(number)
        {
            thread::sleep(due.saturating_duration_since(Instant::now()));
            match self.exchange(number, &mut buffer) {
                Ok(response) => {
                    let part = send_times.window.part(due);
                    stats.answer(&self.workload, &response, due.elapsed(), part);
                }
                Err(fault) => {
                    stats.fault(&fault);
                    break;
                }
            }
        }
        stats.closed(send_times.window)
    }

    fn exchange(&mut self, number: u64, buffer: &mut [u8]) -> Result<Response, Fault> {
        self.stream.write_all(self.request.numbered(number))?;
        let mut filled = 0;
        while filled < buffer.len() {
            match self.stream.read(&mut buffer[filled..])? {
                0 => return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
                more => filled += more,
            }
            if let Some(response) = whole(&buffer[..filled])? {
                return Ok(response);
            }
        }
        Err(Fault::TooLarge)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample_upstream::SampleUpstream;

    async fn run(workload: Workload, length: Length) -> (LoadResult, u64) {
        let addr = "127.0.0.1:0".parse().expect("a literal address");
        let (addr, sample) = SampleUpstream::start(addr)
            .await
            .expect("loopback has free ports");
        let target = LoopbackOrigin::at(addr).expect("the sample is on this machine");
        let load = Load {
            target,
            workload,
            api_key: None,
            connections: 8,
            threads: 2,
            length,
        };
        let run = Run::start(&load).expect("threads can be started");
        let outcome = run.finish().await.expect("the sample takes connections");
        (outcome, sample.payments())
    }

    #[tokio::test]
    async fn a_counted_load_sends_exactly_that_many() {
        let (outcome, payments) = run(Workload::PassThrough, Length::Count(1001)).await;
        assert_eq!(
            (payments, outcome.latency.len(), outcome.answers.faults),
            (1001, 1001, 0)
        );
        assert_eq!(outcome.answers.by_status_class, [0, 0, 1001, 0, 0, 0]);
    }

    #[tokio::test]
    async fn a_timed_load_does_not_count_its_warmup() {
        let time = Duration::from_millis(200);
        let (outcome, payments) = run(
            Workload::PassThrough,
            Length::Time {
                warmup: time,
                measured: time,
            },
        )
        .await;
        assert_eq!(outcome.answers.faults, 0);
        assert!(
            outcome.latency.len() < payments,
            "{} of {payments}",
            outcome.latency.len()
        );
        assert!(outcome.rate > 0.0);
    }

    #[tokio::test]
    async fn a_paced_load_sends_as_many_as_it_should() {
        let addr = "127.0.0.1:0".parse().expect("a literal address");
        let (addr, sample) = SampleUpstream::start(addr)
            .await
            .expect("loopback has free ports");
        let load = Load {
            target: LoopbackOrigin::at(addr).expect("the sample is on this machine"),
            workload: Workload::PassThrough,
            api_key: None,
            connections: 4,
            threads: 1,
            length: Length::Time {
                warmup: Duration::from_millis(100),
                measured: Duration::from_millis(400),
            },
        };
        let run = Run::start_paced(&load, 200).expect("threads can be started");
        let outcome = run.finish().await.expect("the sample takes connections");
        assert_eq!(outcome.answers.faults, 0);
        let (sent, counted) = (sample.payments(), outcome.latency.len());
        assert!(
            sent.abs_diff(100) <= 1 && counted.abs_diff(80) <= 1,
            "{sent} {counted}"
        );
    }

    #[tokio::test]
    async fn replays_that_ran_are_faults() {
        let (outcome, _) = run(
            Workload::Replay(super::super::workload::Seed(1)),
            Length::Count(10),
        )
        .await;
        assert_eq!((outcome.latency.len(), outcome.answers.faults), (0, 10));
        assert_eq!(outcome.answers.first_fault.as_deref(), Some("not replayed"));
    }

    #[test]
    fn connections_are_split_nearly_equally() {
        let cases = [(64, 1, vec![64]), (65, 2, vec![32, 33]), (1, 4, vec![1])];
        for (connections, threads, expected) in cases {
            assert_eq!(shares(connections, threads).collect::<Vec<_>>(), expected);
        }
    }
}
