//! The clock by which a shared store judges.

use std::fmt;
use std::sync::Arc;

use onceward_core::clock::Clock;

/// The clock by which leases and expiry are judged.
#[derive(Clone)]
#[non_exhaustive]
pub enum Time {
    /// The server's, which all processes share.
    Server,
    /// A given clock, for tests.
    Given(Arc<dyn Clock>),
}

impl fmt::Debug for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Server => "Server",
            Self::Given(_) => "Given",
        })
    }
}
