//! The threads that serve requests, one current-thread runtime each.
//!
//! A request stays on one core: that of its connection, or for a stream of HTTP/2
//! perhaps another one ([`Cores::for_stream`]). The connection to the upstream, the
//! timers and the tasks that the request starts are on the same core, because a wake
//! from another thread costs a system call. Only answers of the store and work on
//! large bodies come from other threads. Everything else (admin API, courier, sweep,
//! reloads, the drivers of shared stores) runs on the runtime that started the
//! gateway.

use std::cell::Cell;
use std::fmt;
use std::io;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use arc_swap::ArcSwap;
use tokio::runtime::{Builder, Handle};
use tokio::task::AbortHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

thread_local! {
    /// The position of this thread's value in every [`PerCore`].
    static POSITION: Cell<usize> = const { Cell::new(OTHER_THREADS) };
    /// The number of this thread's core among its [`Cores`]. Cores whose numbers
    /// differ may share a position.
    static NUMBER: Cell<Option<usize>> = const { Cell::new(None) };
}

/// The position that all threads share that are not cores.
const OTHER_THREADS: usize = 0;
/// The values of a [`PerCore`]. Further cores share the values of earlier ones.
const POSITIONS: usize = 65;

/// The position of this thread's core, or that of all other threads together.
pub(crate) fn position() -> usize {
    POSITION.get()
}

/// The pause between two ticks of a core. Shorter than most deadlines that requests set.
const TICK: Duration = Duration::from_millis(250);

/// How long a stopped core waits for work that blocks a thread, such as resolving a name.
/// Nothing interrupts such work, so its thread is left behind.
const BLOCKING_WITHIN: Duration = Duration::from_secs(1);

/// How much more load a core has than another one before it gives streams away.
const CROWDED: usize = 8;

/// The cores of a gateway.
pub(crate) struct Cores {
    cores: Box<[Core]>,
    stop: CancellationToken,
    threads: TaskTracker,
}

/// A thread with its runtime.
struct Core {
    runtime: Handle,
    load: Arc<AtomicUsize>,
}

impl fmt::Debug for Cores {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let loads = self.cores.iter().map(|core| core.load());
        f.debug_list().entries(loads).finish()
    }
}

impl Cores {
    /// Starts as many threads, or one per core of the machine.
    pub(crate) fn start(threads: Option<NonZeroUsize>) -> io::Result<Self> {
        let number = match threads {
            Some(threads) => threads,
            None => thread::available_parallelism()?,
        };
        let stop = CancellationToken::new();
        let threads = TaskTracker::new();
        let cores = (0..number.get()).map(|number| Core::start(number, &stop, &threads));
        Ok(Self {
            cores: cores.collect::<io::Result<_>>()?,
            stop,
            threads,
        })
    }

    /// A place on the core with the least load.
    pub(crate) fn least_loaded(&self) -> CorePlace {
        let least = self.cores.iter().min_by_key(|core| core.load());
        let core = least.expect("there is at least one core");
        CorePlace {
            runtime: core.runtime.clone(),
            load: CoreLoad::add(&core.load),
        }
    }

    /// A place for a stream of a connection of this core: here, unless the core is
    /// crowded in comparison with another one. Waking a task on another core costs a
    /// system call.
    pub(crate) fn for_stream(&self) -> CorePlace {
        let other = self.least_loaded();
        match NUMBER.get().and_then(|number| self.cores.get(number)) {
            Some(here) if here.load() <= other.load.get() + CROWDED => CorePlace {
                runtime: here.runtime.clone(),
                load: CoreLoad::add(&here.load),
            },
            _ => other,
        }
    }

    /// Ends the threads. What still runs on them is dropped, so that the client
    /// connections, the engine's tasks and the connections to upstreams of all
    /// cores must have ended before.
    pub(crate) async fn stop(&self) {
        self.stop.cancel();
        self.threads.close();
        self.threads.wait().await;
    }
}

impl Drop for Cores {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

impl Core {
    fn start(number: usize, stop: &CancellationToken, threads: &TaskTracker) -> io::Result<Self> {
        let runtime = Builder::new_current_thread()
            .enable_all()
            // Other threads first: they may have something for this core, which then
            // need not sleep and be woken.
            .on_thread_park(thread::yield_now)
            .build()?;
        let handle = runtime.handle().clone();
        let (stop, running) = (stop.clone(), threads.token());
        thread::Builder::new()
            .name(format!("core-{number}"))
            .spawn(move || {
                POSITION.set(1 + number % (POSITIONS - 1));
                NUMBER.set(Some(number));
                runtime.spawn(tick());
                runtime.block_on(stop.cancelled());
                // Drops the tasks too, within the runtime, as dropping it would.
                runtime.shutdown_timeout(BLOCKING_WITHIN);
                drop(running);
            })?;
        Ok(Self {
            runtime: handle,
            load: Arc::default(),
        })
    }

    fn load(&self) -> usize {
        self.load.load(Ordering::Relaxed)
    }
}

/// Keeps a timer on this core that ends before most deadlines of requests. tokio writes
/// an eventfd whenever a timer is set that ends before all others, on its own thread
/// too, and the next wait for sockets then returns at once. Without ticks nearly every
/// step of the store, whose deadline is the nearest, would cost these two system calls.
async fn tick() {
    loop {
        tokio::time::sleep(TICK).await;
    }
}

/// A place on a core for one connection or stream.
pub(crate) struct CorePlace {
    runtime: Handle,
    load: CoreLoad,
}

impl CorePlace {
    /// Another place on the same core.
    #[cfg(test)]
    pub(crate) fn again(&self) -> Self {
        Self {
            runtime: self.runtime.clone(),
            load: self.load.more(),
        }
    }

    /// Runs the work of the connection or stream on the core. The work gets the
    /// load, which counts it until it is dropped.
    pub(crate) fn spawn<F>(self, work: impl FnOnce(CoreLoad) -> F) -> AbortHandle
    where
        F: Future<Output = ()> + Send + 'static,
    {
        self.runtime.spawn(work(self.load)).abort_handle()
    }
}

/// Counts as load of a core, a connection or a stream, until it is dropped.
#[derive(Debug)]
pub(crate) struct CoreLoad(Arc<AtomicUsize>);

impl CoreLoad {
    fn add(load: &Arc<AtomicUsize>) -> Self {
        load.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(load))
    }

    /// More load on the same core.
    #[cfg(test)]
    fn more(&self) -> Self {
        Self::add(&self.0)
    }

    /// The load of the core.
    fn get(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

impl Drop for CoreLoad {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A value for each core, and one for all other threads together.
pub(crate) struct PerCore<T>(Box<[Padded<T>]>);

/// A value on cache lines of its own, so that cores do not slow each other down.
#[derive(Default)]
#[repr(align(128))]
pub(crate) struct Padded<T>(pub(crate) T);

impl<T: fmt::Debug> fmt::Debug for PerCore<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.all()).finish()
    }
}

impl<T: Default> Default for PerCore<T> {
    fn default() -> Self {
        Self((0..POSITIONS).map(|_| Padded(T::default())).collect())
    }
}

impl<T> PerCore<T> {
    /// The value of this thread's core.
    pub(crate) fn here(&self) -> &T {
        &self.0[POSITION.get()].0
    }

    /// The values of all cores, used or not.
    pub(crate) fn all(&self) -> impl Iterator<Item = &T> {
        self.0.iter().map(|padded| &padded.0)
    }
}

/// A value that changes as a whole, with a copy for each core. Requests keep parts of
/// it for as long as they need them and count their references; counted in one place,
/// every count would move between the caches of all cores.
pub(crate) struct Copies<T>(Box<[ArcSwap<T>]>);

/// A value that can be copied for another core.
pub(crate) trait CopyForCore {
    /// The same value, with reference counts of its own.
    fn copy_for_core(&self) -> Self;
}

impl<T: CopyForCore> Copies<T> {
    pub(crate) fn new(value: &T) -> Self {
        // One for the threads that are not cores. Where there are more cores than
        // the machine has, some share a copy.
        let cores = thread::available_parallelism().map_or(1, NonZeroUsize::get);
        let copies = (0..=cores).map(|_| ArcSwap::from_pointee(value.copy_for_core()));
        Self(copies.collect())
    }

    /// The copy of this thread's core.
    pub(crate) fn here(&self) -> &ArcSwap<T> {
        &self.0[POSITION.get() % self.0.len()]
    }

    /// Replaces the value on all cores.
    pub(crate) fn replace(&self, value: &T) {
        // Copying takes time, so all copies are made first: the cores change over at
        // nearly the same moment.
        let copies = self.0.iter().map(|_| Arc::new(value.copy_for_core()));
        for (core, copy) in self.0.iter().zip(copies.collect::<Vec<_>>()) {
            core.store(copy);
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot;

    use super::*;

    fn cores(threads: usize) -> Cores {
        Cores::start(NonZeroUsize::new(threads)).expect("threads")
    }

    #[tokio::test]
    async fn a_connection_goes_to_the_core_with_the_least_load() {
        let cores = cores(2);
        let threads: Arc<PerCore<AtomicUsize>> = Arc::default();
        let mut held = Vec::new();
        for _ in 0..4 {
            let (send, placed) = oneshot::channel();
            let seen = Arc::clone(&threads);
            cores.least_loaded().spawn(|load| async move {
                seen.here().fetch_add(1, Ordering::Relaxed);
                let _ = send.send(load);
            });
            held.push(placed.await.expect("the core runs it"));
        }
        let counts: Vec<_> = threads.all().map(|n| n.load(Ordering::Relaxed)).collect();
        assert_eq!(counts[..3], [0, 2, 2]);
        // Two more streams on one connection: the other core gets the next.
        held.push(held[0].more());
        assert_eq!(format!("{cores:?}"), "[3, 2]");
        drop(held);
        assert_eq!(format!("{cores:?}"), "[0, 0]");
        cores.stop().await;
    }

    #[tokio::test]
    async fn streams_of_a_crowded_connection_go_to_other_cores() {
        let cores = Arc::new(cores(2));
        let (send, placed) = oneshot::channel();
        let place = Arc::clone(&cores);
        cores.least_loaded().spawn(|load| async move {
            let streams = (0..14).map(|_| place.for_stream()).collect::<Vec<_>>();
            let _ = send.send((format!("{place:?}"), streams, load));
        });
        let (loads, streams, load) = placed.await.expect("the core runs it");
        assert_eq!(loads, "[12, 3]");
        drop((streams, load));
        assert_eq!(format!("{cores:?}"), "[0, 0]");
        cores.stop().await;
    }

    #[tokio::test]
    async fn streams_of_the_sixty_fifth_core_stay_there() {
        let cores = Arc::new(cores(66));
        let mut others: Vec<_> = (0..65).map(|_| cores.least_loaded()).collect();
        let last = others.pop().expect("65 places");
        let (send, placed) = oneshot::channel();
        let place = Arc::clone(&cores);
        last.spawn(|load| async move {
            let stream = place.for_stream();
            let _ = send.send((format!("{place:?}"), stream, load));
        });
        let (loads, ..) = placed.await.expect("the core runs it");
        assert!(loads.ends_with("1, 1, 2, 0]"), "{loads}");
        cores.stop().await;
    }

    struct Shared(Arc<str>);

    impl CopyForCore for Shared {
        fn copy_for_core(&self) -> Self {
            Self((*self.0).into())
        }
    }

    #[tokio::test]
    async fn every_core_counts_for_itself_and_sees_what_replaces_a_value() {
        let cores = cores(1);
        let copies = Arc::new(Copies::new(&Shared("old".into())));
        for value in ["old", "new"] {
            copies.replace(&Shared(value.into()));
            let (send, found) = oneshot::channel();
            let there = Arc::clone(&copies);
            cores.least_loaded().spawn(|_| async move {
                let _ = send.send(there.here().load_full());
            });
            let here = copies.here().load_full();
            let found = found.await.expect("the core runs it");
            assert!(*here.0 == *value && *found.0 == *value);
            assert!(!Arc::ptr_eq(&here, &found) && !Arc::ptr_eq(&here.0, &found.0));
        }
        cores.stop().await;
    }

    #[tokio::test]
    async fn stopped_cores_do_not_wait_for_long_for_work_that_blocks() {
        let cores = cores(1);
        let (begin, begun) = oneshot::channel();
        let (release, released) = std::sync::mpsc::channel::<()>();
        let (kept, dropped) = oneshot::channel::<()>();
        cores.least_loaded().spawn(|_| async move {
            let _kept = kept;
            let blocking = tokio::task::spawn_blocking(move || {
                let _ = begin.send(());
                let _ = released.recv();
            });
            let _ = blocking.await;
        });
        begun.await.expect("a thread blocks");
        let stopped = tokio::time::timeout(5 * BLOCKING_WITHIN, cores.stop()).await;
        stopped.expect("the cores stop");
        assert!(dropped.await.is_err());
        drop(release);
    }

    #[tokio::test]
    async fn stopped_cores_drop_what_runs_on_them() {
        let cores = cores(1);
        let (kept, dropped) = oneshot::channel::<()>();
        cores.least_loaded().spawn(|_| async move {
            let _kept = kept;
            std::future::pending::<()>().await;
        });
        cores.stop().await;
        assert!(dropped.await.is_err());
    }
}
