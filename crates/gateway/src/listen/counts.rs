//! Counts the connections of a listener and limits how many are open.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// The counts of one listener's connections.
#[derive(Debug, Default)]
pub(crate) struct ConnectionCounts {
    open: AtomicUsize,
    refused: AtomicU64,
    cut_off: AtomicU64,
}

impl ConnectionCounts {
    /// The number of open connections, including those upgraded to tunnels.
    pub(crate) fn open(&self) -> usize {
        self.open.load(Ordering::Relaxed)
    }

    /// How many connections were closed at once because too many were open.
    pub(crate) fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    /// How many connections were closed because the client did not read.
    pub(crate) fn cut_off(&self) -> u64 {
        self.cut_off.load(Ordering::Relaxed)
    }

    /// Takes a slot for one more connection, or counts a refusal when `max`
    /// connections are open.
    pub(super) fn admit(self: &Arc<Self>, max: usize) -> Option<ListenerSlot> {
        // Only the accept loop adds connections, so no other task can add one
        // between the check and the increment.
        if self.open() >= max {
            self.refused.fetch_add(1, Ordering::Relaxed);
            return None;
        }
        self.open.fetch_add(1, Ordering::Relaxed);
        Some(ListenerSlot(Arc::clone(self)))
    }

    pub(super) fn add_cut_off(&self) {
        self.cut_off.fetch_add(1, Ordering::Relaxed);
    }
}

/// Counts as one open connection until it is dropped.
#[derive(Debug)]
pub(super) struct ListenerSlot(Arc<ConnectionCounts>);

impl Drop for ListenerSlot {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::Relaxed);
    }
}
