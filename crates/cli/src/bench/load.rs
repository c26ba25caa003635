//! The load generator: a closed loop over a constant number of keep-alive connections.
//!
//! Each connection sends its next request when it has the answer to the last one, so the rate is
//! what the other side can do, and a latency includes the wait behind the other connections.
//! It shares the machine with what it measures and must be cheap: one thread by default, one
//! write and one read per request, no allocation, one clock reading. Nothing is retried: an
//! answer that is not the expected one is a fault, and a load with faults has no valid rate.

use std::cell::RefCell;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;
use hdrhistogram::Histogram;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio::task::{JoinSet, LocalSet};

use super::reply::{self, After, Malformed, Progress, Reply};
use super::script::{Request, Script, Verdict};
use super::target::Target;

/// Far above any answer that is measured.
const REPLY_BYTES_MAX: usize = 8 * 1024;
/// No answer on any connection for this long is a fault.
const STALL_MAX: Duration = Duration::from_secs(10);
const LATENCY_US_MAX: u64 = 60_000_000;

/// What is to be sent, where, by how many, for how long.
#[derive(Clone, Copy)]
pub(super) struct Load {
    pub(super) target: Target,
    pub(super) script: Script,
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

/// What came of a load.
#[derive(Debug)]
pub(super) struct Outcome {
    /// Expected answers per second.
    pub(super) rate: f64,
    pub(super) latency: Histogram<u64>,
    pub(super) faults: Faults,
}

/// Answers by the first digit of their status, and what went wrong.
#[derive(Clone, Debug, Default)]
pub(super) struct Faults {
    pub(super) count: u64,
    pub(super) first: Option<String>,
    pub(super) answers_by_class: [u64; 6],
}

/// A load under way. Dropping it stops the load.
pub(super) struct Run {
    tickets: Arc<Tickets>,
    threads: Vec<oneshot::Receiver<anyhow::Result<Tally>>>,
}

impl Run {
    pub(super) fn start(load: Load) -> anyhow::Result<Self> {
        let tickets = Arc::new(Tickets::new(load.length));
        let mut threads = Vec::with_capacity(load.threads);
        for share in shares(load.connections, load.threads) {
            let (done, tally) = oneshot::channel();
            let tickets = tickets.clone();
            thread::Builder::new().name("load".into()).spawn(move || {
                // Nobody listens any more when the bench was interrupted.
                let _ = done.send(work(&load, share, &tickets));
            })?;
            threads.push(tally);
        }
        Ok(Run { tickets, threads })
    }

    /// A way to ask how many requests were begun.
    pub(super) fn begun(&self) -> impl Fn() -> u64 + use<> {
        let tickets = self.tickets.clone();
        move || tickets.next.load(Ordering::Relaxed)
    }

    pub(super) async fn finish(mut self) -> anyhow::Result<Outcome> {
        let mut whole = Tally::new();
        for thread in &mut self.threads {
            whole.add(thread.await.context("a load thread died")??);
        }
        Ok(whole.outcome())
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        self.tickets.end.store(0, Ordering::Relaxed);
    }
}

/// The numbers of the requests, given out once each to all connections of all threads.
struct Tickets {
    next: AtomicU64,
    end: AtomicU64,
}

impl Tickets {
    fn new(length: Length) -> Self {
        let end = match length {
            Length::Time { .. } => u64::MAX,
            Length::Count(count) => count,
        };
        Tickets {
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

/// The part of the time in which answers are counted.
#[derive(Clone, Copy)]
struct Window {
    from: Instant,
    until: Option<Instant>,
}

impl Window {
    fn open(length: Length) -> Self {
        let now = Instant::now();
        match length {
            Length::Time { warmup, measured } => Window {
                from: now + warmup,
                until: Some(now + warmup + measured),
            },
            Length::Count(_) => Window {
                from: now,
                until: None,
            },
        }
    }

    fn part(&self, now: Instant) -> Part {
        match self.until {
            Some(until) if now >= until => Part::After,
            _ if now < self.from => Part::Warmup,
            _ => Part::Counted,
        }
    }

    fn length(&self) -> Duration {
        self.until.unwrap_or_else(Instant::now) - self.from
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    Warmup,
    Counted,
    After,
}

/// What one thread has seen.
struct Tally {
    latency: Histogram<u64>,
    answers: u64,
    faults: Faults,
    seconds: f64,
}

impl Tally {
    fn new() -> Self {
        let latency = Histogram::new_with_bounds(1, LATENCY_US_MAX, 3);
        let latency = latency.expect("the bounds and three digits are legal for a histogram");
        Tally {
            latency,
            answers: 0,
            faults: Faults::default(),
            seconds: 0.0,
        }
    }

    fn answer(&mut self, script: Script, reply: &Reply, took: Duration, part: Part) {
        self.answers += 1;
        self.faults.answers_by_class[usize::from(reply.status / 100).min(5)] += 1;
        match (script.judge(reply), part) {
            (Verdict::Expected, Part::Counted) => {
                let took_us = u64::try_from(took.as_micros()).unwrap_or(LATENCY_US_MAX);
                self.latency.saturating_record(took_us.max(1));
            }
            (Verdict::Expected, _) => {}
            (verdict, _) => self.faults.note(|| Fault::Answer(verdict).to_string()),
        }
    }

    fn add(&mut self, other: Tally) {
        self.latency
            .add(&other.latency)
            .expect("all histograms have the same bounds");
        self.answers += other.answers;
        self.seconds = self.seconds.max(other.seconds);
        self.faults.add(other.faults);
    }

    fn outcome(self) -> Outcome {
        let rate = self.latency.len() as f64 / self.seconds.max(f64::EPSILON);
        Outcome {
            rate,
            latency: self.latency,
            faults: self.faults,
        }
    }
}

impl Faults {
    fn note(&mut self, text: impl FnOnce() -> String) {
        self.count += 1;
        self.first.get_or_insert_with(text);
    }

    pub(super) fn add(&mut self, other: Faults) {
        self.count += other.count;
        self.first = self.first.take().or(other.first);
        for (mine, theirs) in self.answers_by_class.iter_mut().zip(other.answers_by_class) {
            *mine += theirs;
        }
    }
}

/// Why a load is not valid.
enum Fault {
    Answer(Verdict),
    Io(io::Error),
    Malformed(Malformed),
    TooLarge,
    /// More than the one answer came.
    Unasked,
    Stalled,
}

impl std::fmt::Display for Fault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Fault::Answer(Verdict::Expected) => f.write_str("nothing is wrong"),
            Fault::Answer(Verdict::Status(status)) => write!(f, "status {status}"),
            Fault::Answer(Verdict::RanAgain) => f.write_str("not replayed"),
            Fault::Answer(Verdict::ReplayedTooSoon) => f.write_str("replayed a first run"),
            Fault::Io(error) => write!(f, "connection: {error}"),
            Fault::Malformed(error) => write!(f, "{error}"),
            Fault::TooLarge => f.write_str("answer too large"),
            Fault::Unasked => f.write_str("an answer nobody asked for"),
            Fault::Stalled => f.write_str("no answer for 10 s"),
        }
    }
}

impl From<io::Error> for Fault {
    fn from(error: io::Error) -> Self {
        Fault::Io(error)
    }
}

/// One thread's life: connect all, then drive them until the load is over or stalls.
fn work(load: &Load, connections: usize, tickets: &Arc<Tickets>) -> anyhow::Result<Tally> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    LocalSet::new().block_on(&runtime, async {
        let mut streams = Vec::with_capacity(connections);
        for _ in 0..connections {
            let stream = connect(load.target).await;
            streams.push(stream.with_context(|| format!("no connection to {}", load.target))?);
        }
        Ok(drive_all(load, streams, tickets).await)
    })
}

async fn connect(target: Target) -> io::Result<TcpStream> {
    let stream = TcpStream::connect(target.addr()).await?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

async fn drive_all(load: &Load, streams: Vec<TcpStream>, tickets: &Arc<Tickets>) -> Tally {
    let tally = Rc::new(RefCell::new(Tally::new()));
    let window = Window::open(load.length);
    let mut lines = JoinSet::new();
    for stream in streams {
        let (load, tickets, tally) = (*load, tickets.clone(), tally.clone());
        lines.spawn_local(async move {
            if let Err(fault) = drive(&load, stream, window, &tickets, &tally).await {
                tally.borrow_mut().faults.note(|| fault.to_string());
            }
        });
    }
    tokio::select! {
        () = async { while lines.join_next().await.is_some() {} } => {}
        () = stall(&tally) => tally.borrow_mut().faults.note(|| Fault::Stalled.to_string()),
    }
    // The lines that are still there hold the tally, and end here.
    drop(lines);
    let mut tally = tally.replace(Tally::new());
    tally.seconds = window.length().as_secs_f64();
    tally
}

/// Ends when no answer has come for too long. One watch for all is cheaper than a timer each.
async fn stall(tally: &RefCell<Tally>) {
    let mut seen = None;
    loop {
        let answers = tally.borrow().answers;
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
    tickets: &Tickets,
    tally: &RefCell<Tally>,
) -> Result<(), Fault> {
    let mut request = Request::new(load.script, &load.target);
    let mut buffer = vec![0; REPLY_BYTES_MAX];
    let mut sent = Instant::now();
    while let Some(number) = tickets.take() {
        stream.write_all(request.numbered(number)).await?;
        let reply = receive(&mut stream, &mut buffer).await?;
        let now = Instant::now();
        tally
            .borrow_mut()
            .answer(load.script, &reply, now - sent, window.part(now));
        if window.part(now) == Part::After {
            break;
        }
        if reply.after == After::Close {
            stream = connect(load.target).await?;
        }
        sent = now;
    }
    Ok(())
}

async fn receive(stream: &mut TcpStream, buffer: &mut [u8]) -> Result<Reply, Fault> {
    let mut filled = 0;
    while filled < buffer.len() {
        match stream.read(&mut buffer[filled..]).await? {
            0 => return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
            more => filled += more,
        }
        match reply::parse(&buffer[..filled]).map_err(Fault::Malformed)? {
            Progress::Partial => {}
            Progress::Whole(reply) if reply.length_bytes == filled => return Ok(reply),
            Progress::Whole(_) => return Err(Fault::Unasked),
        }
    }
    Err(Fault::TooLarge)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::Sample;

    async fn run(script: Script, length: Length) -> (Outcome, u64) {
        let addr = "127.0.0.1:0".parse().expect("a literal address");
        let (addr, sample) = Sample::start(addr).await.expect("loopback has free ports");
        let target = Target::at(addr).expect("the sample is on this machine");
        let load = Load {
            target,
            script,
            connections: 8,
            threads: 2,
            length,
        };
        let run = Run::start(load).expect("threads can be started");
        let outcome = run.finish().await.expect("the sample takes connections");
        (outcome, sample.payments())
    }

    #[tokio::test]
    async fn a_counted_load_sends_exactly_that_many() {
        let (outcome, payments) = run(Script::PassThrough, Length::Count(1001)).await;
        assert_eq!(
            (payments, outcome.latency.len(), outcome.faults.count),
            (1001, 1001, 0)
        );
        assert_eq!(outcome.faults.answers_by_class, [0, 0, 1001, 0, 0, 0]);
    }

    #[tokio::test]
    async fn a_timed_load_leaves_out_its_warmup() {
        let time = Duration::from_millis(200);
        let (outcome, payments) = run(
            Script::PassThrough,
            Length::Time {
                warmup: time,
                measured: time,
            },
        )
        .await;
        assert_eq!(outcome.faults.count, 0);
        assert!(
            outcome.latency.len() < payments,
            "{} of {payments}",
            outcome.latency.len()
        );
        assert!(outcome.rate > 0.0);
    }

    #[tokio::test]
    async fn replays_that_ran_are_faults_and_not_counted() {
        let (outcome, _) = run(
            Script::Replay(super::super::script::Seed(1)),
            Length::Count(10),
        )
        .await;
        assert_eq!((outcome.latency.len(), outcome.faults.count), (0, 10));
        assert_eq!(outcome.faults.first.as_deref(), Some("not replayed"));
    }

    #[test]
    fn connections_are_shared_out_whole() {
        let cases = [(64, 1, vec![64]), (65, 2, vec![32, 33]), (1, 4, vec![1])];
        for (connections, threads, expected) in cases {
            assert_eq!(shares(connections, threads).collect::<Vec<_>>(), expected);
        }
    }
}
