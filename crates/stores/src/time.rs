//! By whose time a shared store judges.

use std::sync::Arc;

use onceward_core::clock::Clock;

/// By whose time leases and expiry are judged.
#[derive(Clone)]
pub enum Time {
    /// By the server's, the same for all who share it.
    Server,
    /// By a clock that is handed in, for tests.
    Given(Arc<dyn Clock>),
}
