//! The pace of the filler.
//!
//! A fill keeps a processor busy for milliseconds, and meanwhile the kernel may leave the
//! threads that serve requests waiting for another one. So the filler rests between rows
//! after each short stretch of work, unless something waits for it.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::time::Instant;

/// How long the filler works without a rest: less than the latency of a request.
const STRETCH: Duration = Duration::from_micros(200);
/// How long it then rests. Other threads get more than half of its processor.
const REST: Duration = Duration::from_micros(300);

/// Whether something waits for the filler. The writer sets it.
#[derive(Debug, Default)]
pub(super) struct Hurry(AtomicBool);

impl Hurry {
    pub(super) fn set(&self, is_hurried: bool) {
        self.0.store(is_hurried, Ordering::Relaxed);
    }

    fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// The rests of the filler's thread.
pub(super) struct Rests {
    hurry: Arc<Hurry>,
    stretch_began: Cell<Instant>,
}

impl Rests {
    pub(super) fn new(hurry: Arc<Hurry>) -> Self {
        Self {
            hurry,
            stretch_began: Cell::new(Instant::now()),
        }
    }

    /// To be called when work begins.
    pub(super) fn begin(&self) {
        self.stretch_began.set(Instant::now());
    }

    /// To be called after each small part of the work.
    pub(super) fn rest_if_due(&self) {
        if self.is_rest_due() {
            std::thread::sleep(REST);
            self.begin();
        }
    }

    fn is_rest_due(&self) -> bool {
        self.stretch_began.get().elapsed() >= STRETCH && !self.hurry.is_set()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_filler_rests_after_a_stretch_unless_something_waits() {
        let hurry = Arc::new(Hurry::default());
        let rests = Rests::new(hurry.clone());
        rests.begin();
        std::thread::sleep(STRETCH);
        assert!(rests.is_rest_due());
        hurry.set(true);
        assert!(!rests.is_rest_due());
    }
}
