//! What the gateway tells its operators about the work it does: one access-log
//! line per request, counters for Prometheus, and spans for a collector.

pub(crate) mod access_log;
pub(crate) mod metrics;
pub(crate) mod report;
pub(crate) mod traces;
