//! The load generator: a closed loop over a constant number of keep-alive connections, and beside
//! it an open one, for latencies at a given rate.
//!
//! In the closed loop each connection sends its next request when it has the answer to the last one, so the rate is
//! what the other side can do, and a latency includes the wait behind the other connections.
//! It shares the machine with what it measures and must be cheap: one thread by default, one
//! write and one read per request, no allocation, one clock reading, and where an event is to be
//! signed one HMAC. Nothing is retried: an
//! answer that is not the expected one is a fault, and a load with faults has no valid rate.

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

/// Far above any answer that is measured.
const RESPONSE_BYTES_MAX: usize = 8 * 1024;
/// No answer on any connection for this long is a fault.
const STALL_MAX: Duration = Duration::from_secs(10);

/// What is to be sent, where, by how many, for how long.
#[derive(Clone)]
pub(super) struct Load {
    pub(super) target: LoopbackOrigin,
    pub(super) workload: Workload,
    /// Who sends it, where that is asked.
    pub(super) api_key: Option<ApiKey>,
    pub(super) connections: usize,
    pub(super) threads: usize,
    pub(super) length: Length,
}

#[derive(Clone, Copy)]
pub(super) enum Length {
    /// What is answered during the warm-up is judged, but not counted.
    Time {
        warmup: Duration,
        measured: Duration,
    },
    /// Exactly so many requests, all counted.
    Count(u64),
}

/// A load under way. Dropping it stops the load.
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
                // Nobody listens any more when the bench was interrupted.
                let _ = done.send(work(&load, share, &numbers));
            })?;
            threads.push(stats);
        }
        Ok(Run { numbers, threads })
    }

    /// Requests that leave at their time, `per_second` of them, whether or not those before are
    /// answered; a latency is counted from that time. Each connection has a thread that blocks,
    /// because a timer that is late by a millisecond would be a good part of what is measured.
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
                // Nobody listens any more when the bench was interrupted.
                let _ = done.send(Ok(line.drive(&send_times, &numbers)));
            })?;
            threads.push(stats);
        }
        Ok(Run { numbers, threads })
    }

    /// A way to ask how many requests were begun.
    pub(super) fn begun(&self) -> impl Fn() -> u64 + use<> {
        let numbers = self.numbers.clone();
        move || numbers.next.load(Ordering::Relaxed)
    }

    pub(super) async fn finish(mut self) -> anyhow::Result<LoadResult> {
        let mut whole = Stats::new();
        for thread in &mut self.threads {
            whole.add(thread.await.context("a load thread died")??);
        }
        Ok(whole.outcome())
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        self.numbers.end.store(0, Ordering::Relaxed);
    }
}

/// The numbers of the requests, given out once each to all connections of all threads.
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
        // Asked first, so that `next` stops near the end instead of running on.
        (self.next.load(Ordering::Relaxed) < end)
            .then(|| self.next.fetch_add(1, Ordering::Relaxed))
            .filter(|&number| number < end)
    }
}

/// Near-equal parts of the connections, none of them empty.
fn shares(connections: usize, threads: usize) -> impl Iterator<Item = usize> {
    let threads = threads.clamp(1, connections.max(1));
    (0..threads).map(move |at| (connections + at) / threads)
}

/// One thread's life: connect all, then drive them until the load is over or stalls.
fn work(load: &Load, connections: usize, numbers: &Arc<RequestNumbers>) -> anyhow::Result<Stats> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    LocalSet::new().block_on(&runtime, async {
        let mut streams = Vec::with_capacity(connections);
        for _ in 0..connections {
            let stream = connect(load.target).await;
            streams.push(stream.with_context(|| format!("no connection to {}", load.target))?);
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
    // The lines that are still there hold the tally, and end here.
    drop(lines);
    stats.replace(Stats::new()).closed(window)
}

/// Ends when no answer has come for too long. One watch for all is cheaper than a timer each.
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

/// One connection's life. A fault of the connection ends it; a wrong answer does not.
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

/// The one answer that was asked for, when all of it is there.
fn whole(received: &[u8]) -> Result<Option<Response>, Fault> {
    match response::parse(received).map_err(Fault::Malformed)? {
        Progress::Partial => Ok(None),
        Progress::Whole(response) if response.length_bytes == received.len() => Ok(Some(response)),
        Progress::Whole(_) => Err(Fault::Unasked),
    }
}

/// When requests leave.
#[derive(Clone, Copy)]
struct SendTimes {
    start: Instant,
    spacing: Duration,
    window: Window,
}

impl SendTimes {
    /// When the request with this number leaves; none after the end.
    fn due(&self, number: u64) -> Option<Instant> {
        let due = self.start + self.spacing * u32::try_from(number).ok()?;
        (self.window.part(due) != WindowPart::After).then_some(due)
    }
}

/// A connection with a thread of its own.
struct PacedConnection {
    stream: std::net::TcpStream,
    workload: Workload,
    request: Request,
}

impl PacedConnection {
    fn connect(load: &Load) -> anyhow::Result<Self> {
        let stream = std::net::TcpStream::connect(load.target.addr());
        let stream = stream.with_context(|| format!("no connection to {}", load.target))?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(STALL_MAX))?;
        Ok(PacedConnection {
            stream,
            workload: load.workload.clone(),
            request: Request::new(load.workload.clone(), &load.target, load.api_key.as_ref()),
        })
    }

    /// Takes the next request of all lines whenever it is free.
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
    async fn a_timed_load_leaves_out_its_warmup() {
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
    async fn replays_that_ran_are_faults_and_not_counted() {
        let (outcome, _) = run(
            Workload::Replay(super::super::workload::Seed(1)),
            Length::Count(10),
        )
        .await;
        assert_eq!((outcome.latency.len(), outcome.answers.faults), (0, 10));
        assert_eq!(outcome.answers.first_fault.as_deref(), Some("not replayed"));
    }

    #[test]
    fn connections_are_shared_out_whole() {
        let cases = [(64, 1, vec![64]), (65, 2, vec![32, 33]), (1, 4, vec![1])];
        for (connections, threads, expected) in cases {
            assert_eq!(shares(connections, threads).collect::<Vec<_>>(), expected);
        }
    }
}
