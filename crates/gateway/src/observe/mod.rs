//! The gateway's reports to its operators: one access-log line per request, metrics
//! for Prometheus, and spans for a collector.

pub(crate) mod access_log;
pub(crate) mod metrics;
pub(crate) mod report;
pub(crate) mod traces;
