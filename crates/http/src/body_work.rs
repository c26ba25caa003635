//! Work whose time grows with the size of a body: reading it as JSON, hashing it.
//!
//! A thread serves many requests, and all of them would wait for a large body. Such a
//! body is therefore worked on by another thread. There are only as many of these at a
//! time as the machine has cores, because more would not end earlier. Requests beyond
//! that wait without a thread, and a client that disconnects takes its request along.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::thread::available_parallelism;

use tokio::sync::Semaphore;
use tracing::Span;

/// The largest body that is worked on by the thread that serves its request.
const BYTES_HERE_MAX: usize = 64 * 1024;

/// Whether a body of this size is worked on by another thread.
pub fn is_large(body_bytes: usize) -> bool {
    body_bytes > BYTES_HERE_MAX
}

/// The threads that work on large bodies.
#[derive(Clone, Debug)]
pub struct BodyWork {
    threads: Arc<Semaphore>,
}

impl Default for BodyWork {
    fn default() -> Self {
        let threads = available_parallelism().map_or(1, NonZeroUsize::get);
        Self {
            threads: Arc::new(Semaphore::new(threads)),
        }
    }
}

impl BodyWork {
    /// Does the work for a body of this size: at once if it is small, else on another
    /// thread. Work that has begun there goes on when the caller is dropped, so what
    /// counts the body's bytes belongs into the work.
    // Not an async function, whose future would have a place for the work.
    pub fn run<T, W>(
        &self,
        body_bytes: usize,
        work: W,
    ) -> impl Future<Output = T> + Send + use<T, W>
    where
        T: Send + 'static,
        W: FnOnce() -> T + Send + 'static,
    {
        let done = match is_large(body_bytes) {
            false => Ok(work()),
            true => Err(Box::pin(run_elsewhere(Arc::clone(&self.threads), work))),
        };
        async move {
            match done {
                Ok(done) => done,
                Err(running) => running.await,
            }
        }
    }
}

async fn run_elsewhere<T, W>(threads: Arc<Semaphore>, work: W) -> T
where
    T: Send + 'static,
    W: FnOnce() -> T + Send + 'static,
{
    let thread = threads.acquire_owned().await;
    let thread = thread.expect("the semaphore is never closed");
    let span = Span::current();
    let working = tokio::task::spawn_blocking(move || {
        let done = span.in_scope(work);
        drop(thread);
        done
    });
    let done = working.await;
    done.expect("the work takes any bytes, and the runtime lives as long as its requests")
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::thread;

    use super::*;

    const LARGE: usize = BYTES_HERE_MAX + 1;

    #[tokio::test]
    async fn only_large_bodies_are_worked_on_by_another_thread() {
        let work = BodyWork::default();
        let here = thread::current().id();
        let thread_for = |bytes| work.run(bytes, || thread::current().id());
        assert_eq!(thread_for(BYTES_HERE_MAX).await, here);
        assert_ne!(thread_for(LARGE).await, here);
    }

    #[tokio::test]
    async fn threads_are_bounded_and_a_caller_that_goes_takes_its_work_along() {
        let work = BodyWork {
            threads: Arc::new(Semaphore::new(1)),
        };
        let (end, ended) = mpsc::channel::<()>();
        let running = work.clone();
        let running = tokio::spawn(async move { running.run(LARGE, move || ended.recv()).await });
        while work.threads.available_permits() > 0 {
            tokio::task::yield_now().await;
        }
        // A caller that waits for a thread.
        let body = Arc::new(());
        let moved = Arc::clone(&body);
        let waiting = work.clone();
        let waiting = tokio::spawn(async move { waiting.run(LARGE, move || drop(moved)).await });
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished());
        waiting.abort();
        assert!(waiting.await.is_err_and(|error| error.is_cancelled()));
        assert_eq!(Arc::strong_count(&body), 1);
        // Work that has begun keeps its thread.
        running.abort();
        assert!(running.await.is_err_and(|error| error.is_cancelled()));
        assert_eq!(work.threads.available_permits(), 0);
        end.send(()).expect("the work waits");
        while work.threads.available_permits() == 0 {
            tokio::task::yield_now().await;
        }
    }
}
