//! The load generator: a closed loop over a constant number of keep-alive connections, and an open
//! loop for latencies at a given rate.
//!
//! In the closed loop each connection sends its next request when it has the response to the last
//! one, so the rate is what the other side can do, and a latency includes the time behind the other
//! connections. The generator shares the machine with what it measures and must be cheap: one
//! thread by default; per request one write, one read, no allocation, one clock reading. Nothing is
//! retried: an unexpected response is a fault, and a load with faults has no valid rate.
//!
//! In the open loop requests have fixed times, whether or not earlier ones are answered. A request
//! whose time has come while all connections are busy waits for one, and its latency counts from
//! that time: a slow server cannot hide its delays by slowing the generator.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::{Notify, oneshot};
use tokio::task::{JoinSet, LocalSet};

use super::loopback::LoopbackOrigin;
use super::response::{self, Connection, Progress, Response};
use super::stats::{Fault, LoadResult, Stats, Window, WindowPart};
use super::timer::Timer;
use super::workload::{ApiKey, Request, Workload};
use crate::scheduling::ask_for_short_slices;

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
    /// Starts a closed loop.
    pub(super) fn start(load: &Load) -> anyhow::Result<Self> {
        let numbers = Arc::new(RequestNumbers::new(load.length));
        let mut threads = Vec::with_capacity(load.threads);
        for share in shares(load.connections, load.threads) {
            let (load, numbers) = (load.clone(), numbers.clone());
            threads.push(spawn(move || {
                on_connections(&load, share, async |streams| {
                    Ok(drive_all(&load, streams, &numbers).await)
                })
            })?);
        }
        Ok(Run { numbers, threads })
    }

    /// Starts an open loop with this many requests per second.
    pub(super) fn start_paced(load: &Load, per_second: f64) -> anyhow::Result<Self> {
        let numbers = Arc::new(RequestNumbers::new(load.length));
        let (load, shared) = (load.clone(), numbers.clone());
        let thread = spawn(move || {
            on_connections(&load, load.connections, async |streams| {
                pace_all(&load, streams, per_second, &shared).await
            })
        })?;
        Ok(Run {
            numbers,
            threads: vec![thread],
        })
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

/// Starts a thread of the generator.
fn spawn(
    work: impl FnOnce() -> anyhow::Result<Stats> + Send + 'static,
) -> io::Result<oneshot::Receiver<anyhow::Result<Stats>>> {
    let (done, stats) = oneshot::channel();
    thread::Builder::new().name("load".into()).spawn(move || {
        // A request that is sent late counts as a slow one.
        ask_for_short_slices();
        // The receiver is gone when the benchmark was interrupted.
        let _ = done.send(work());
    })?;
    Ok(stats)
}

/// Opens all connections, then does the work on them, in a runtime of this thread.
fn on_connections(
    load: &Load,
    connections: usize,
    work: impl AsyncFnOnce(Vec<TcpStream>) -> anyhow::Result<Stats>,
) -> anyhow::Result<Stats> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    LocalSet::new().block_on(&runtime, async {
        let mut streams = Vec::with_capacity(connections);
        for _ in 0..connections {
            let stream = connect(load.target).await;
            streams.push(stream.with_context(|| format!("cannot connect to {}", load.target))?);
        }
        work(streams).await
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
    end_all(lines, &stats).await;
    stats.replace(Stats::new()).closed(window)
}

/// Waits until all connections have finished or nothing moves any more, and ends them.
async fn end_all(mut lines: JoinSet<()>, stats: &RefCell<Stats>) {
    tokio::select! {
        () = async { while lines.join_next().await.is_some() {} } => {}
        () = stall(stats) => stats.borrow_mut().fault(&Fault::Stalled),
    }
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

/// The open loop: one task puts the requests that are due into a queue, and every connection takes
/// the next one as soon as it is free.
async fn pace_all(
    load: &Load,
    streams: Vec<TcpStream>,
    per_second: f64,
    numbers: &RequestNumbers,
) -> anyhow::Result<Stats> {
    let stats = Rc::new(RefCell::new(Stats::new()));
    let queue = Rc::new(DueRequests::default());
    let window = Window::open(load.length);
    let mut lines = JoinSet::new();
    for stream in streams {
        let (load, queue, stats) = (load.clone(), queue.clone(), stats.clone());
        lines.spawn_local(async move {
            if let Err(fault) = drive_paced(&load, stream, window, &queue, &stats).await {
                stats.borrow_mut().fault(&fault);
            }
        });
    }
    let (timer, start) = (Timer::new()?, Instant::now());
    while let Some(number) = numbers.take()
        && let due = start + send_offset(number, per_second)
        && window.part(due) != WindowPart::After
    {
        if due > Instant::now() {
            timer.until(due).await?;
        }
        queue.push(number, due);
    }
    queue.close();
    end_all(lines, &stats).await;
    Ok(stats.replace(Stats::new()).closed(window))
}

/// When a request of an open loop is sent, counted from its start.
fn send_offset(number: u64, per_second: f64) -> Duration {
    Duration::from_secs_f64(number as f64 / per_second)
}

/// The requests of an open loop whose time has come.
#[derive(Default)]
struct DueRequests {
    waiting: RefCell<VecDeque<(u64, Instant)>>,
    closed: Cell<bool>,
    changed: Notify,
}

impl DueRequests {
    fn push(&self, number: u64, due: Instant) {
        self.waiting.borrow_mut().push_back((number, due));
        self.changed.notify_one();
    }

    fn close(&self) {
        self.closed.set(true);
        self.changed.notify_waiters();
    }

    /// The next request and its time; `None` when no more will come.
    async fn next(&self) -> Option<(u64, Instant)> {
        loop {
            let next = self.waiting.borrow_mut().pop_front();
            if next.is_some() || self.closed.get() {
                return next;
            }
            self.changed.notified().await;
        }
    }
}

/// Drives one connection of an open loop.
async fn drive_paced(
    load: &Load,
    mut stream: TcpStream,
    window: Window,
    queue: &DueRequests,
    stats: &RefCell<Stats>,
) -> Result<(), Fault> {
    let mut request = Request::new(load.workload.clone(), &load.target, load.api_key.as_ref());
    let mut buffer = vec![0; RESPONSE_BYTES_MAX];
    while let Some((number, due)) = queue.next().await {
        stream.write_all(request.numbered(number)).await?;
        let response = receive(&mut stream, &mut buffer).await?;
        let part = window.part(due);
        stats
            .borrow_mut()
            .answer(&load.workload, &response, due.elapsed(), part);
        if response.connection == Connection::Close {
            stream = connect(load.target).await?;
        }
    }
    Ok(())
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
            (payments, outcome.answered, outcome.faults.count),
            (1001, 1001, 0)
        );
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
        assert_eq!(outcome.faults.count, 0);
        assert_eq!(outcome.answered, payments);
        let counted = outcome.rate * time.as_secs_f64();
        assert!(
            counted > 0.0 && counted < payments as f64,
            "{counted} of {payments}"
        );
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
        let run = Run::start_paced(&load, 200.0).expect("threads can be started");
        let outcome = run.finish().await.expect("the sample takes connections");
        assert_eq!(outcome.faults.count, 0);
        let (sent, rate) = (sample.payments(), outcome.rate);
        assert!(
            sent.abs_diff(100) <= 1 && (rate - 200.0).abs() < 5.0,
            "{sent} {rate}"
        );
    }

    #[tokio::test]
    async fn replays_that_ran_are_faults() {
        let (outcome, _) = run(
            Workload::Replay(super::super::workload::Seed(1)),
            Length::Count(10),
        )
        .await;
        assert_eq!((outcome.latency, outcome.faults.count), (None, 10));
        assert_eq!(outcome.faults.first.as_deref(), Some("not replayed"));
    }

    /// The first response takes 300 ms, so the requests behind it are late.
    #[tokio::test]
    async fn a_late_request_counts_from_the_time_it_was_due() {
        let addr = "127.0.0.1:0".parse().expect("a literal address");
        let (addr, _sample) = SampleUpstream::start(addr)
            .await
            .expect("loopback has free ports");
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await;
        let listener = listener.expect("loopback has free ports");
        let slow = listener.local_addr().expect("it is bound");
        let stall = Duration::from_millis(300);
        tokio::spawn(async move {
            let (mut near, _) = listener.accept().await.expect("the load connects");
            let mut far = TcpStream::connect(addr).await.expect("the sample listens");
            near.peek(&mut [0]).await.expect("the load sends");
            tokio::time::sleep(stall).await;
            // The end of the load breaks the copy.
            let _ = tokio::io::copy_bidirectional(&mut near, &mut far).await;
        });
        let load = Load {
            target: LoopbackOrigin::at(slow).expect("it is on this machine"),
            workload: Workload::PassThrough,
            api_key: None,
            connections: 1,
            threads: 1,
            length: Length::Time {
                warmup: Duration::ZERO,
                measured: Duration::from_millis(500),
            },
        };
        let run = Run::start_paced(&load, 200.0).expect("threads can be started");
        let outcome = run.finish().await.expect("the relay takes connections");
        assert_eq!(outcome.faults.count, 0);
        // 60 of 100 requests were due during the stall: ten of them waited for 250 ms or
        // more.
        let latency = outcome.latency.expect("there were responses");
        assert!(
            latency.max_us > 250_000 && latency.p90_us > 150_000,
            "{latency:?}"
        );
    }

    #[test]
    fn requests_of_an_open_loop_are_evenly_spaced() {
        assert_eq!(send_offset(0, 250.0), Duration::ZERO);
        assert_eq!(send_offset(500, 250.0), Duration::from_secs(2));
    }

    #[test]
    fn connections_are_split_nearly_equally() {
        let cases = [(64, 1, vec![64]), (65, 2, vec![32, 33]), (1, 4, vec![1])];
        for (connections, threads, expected) in cases {
            assert_eq!(shares(connections, threads).collect::<Vec<_>>(), expected);
        }
    }
}
