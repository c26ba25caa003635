//! The name and the meaning of every metric, as Prometheus is told them. The
//! names that begin with `idempotency_`, `transport_` and `handler_` are the
//! contract's; ours begin with `onceward_`.

use metrics::{Recorder, Unit};
use metrics_exporter_prometheus::PrometheusRecorder;

const COUNTERS: [(&str, &str); 21] = [
    (
        "idempotency_key_present_total",
        "Requests that came with a key (case A) or had one lifted out of them (case B).",
    ),
    (
        "idempotency_key_missing_total",
        "Requests that could have had a key and came without one.",
    ),
    (
        "idempotency_key_invalid_total",
        "Requests refused for a malformed key, by reason.",
    ),
    (
        "transport_translation_failed_total",
        "Requests in which the provider's identifier could not be found.",
    ),
    (
        "idempotency_cache_hit_total",
        "Kept replies given again, by the state of their operation.",
    ),
    (
        "handler_internal_dedup_hit_total",
        "Answers of HANDLER_INTERNAL_C routes that say Idempotent-Replayed: true.",
    ),
    (
        "idempotency_key_collision_total",
        "Requests whose key belongs to a different request.",
    ),
    (
        "onceward_protected_total",
        "Protected requests, by what they came to.",
    ),
    (
        "onceward_bypassed_total",
        "Requests forwarded unprotected while the store was away.",
    ),
    ("onceward_refused_total", "Problems answered, by code."),
    (
        "onceward_limited_total",
        "Requests refused by a limit, by tenant and limit.",
    ),
    (
        "onceward_auth_refused_total",
        "Callers not let in, by what they showed and why.",
    ),
    (
        "onceward_webhook_refused_total",
        "What providers sent and was not verified, by provider and reason.",
    ),
    (
        "onceward_webhook_same_bytes_total",
        "Events whose bytes came before under another id, by provider and what was done.",
    ),
    (
        "onceward_webhook_deliveries_total",
        "Attempts to deliver events, by upstream and what they came to.",
    ),
    (
        "onceward_jwks_refresh_failed_total",
        "Failed attempts to fetch an issuer's keys.",
    ),
    (
        "onceward_connections_refused_total",
        "Connections closed at once because there were too many.",
    ),
    (
        "onceward_connections_cut_total",
        "Connections closed because the client did not read its answers.",
    ),
    (
        "onceward_reloads_total",
        "Reloads of the configuration, by outcome.",
    ),
    (
        "onceward_spans_exported_total",
        "Spans that the collector took.",
    ),
    (
        "onceward_spans_dropped_total",
        "Spans that were given up, by reason.",
    ),
];

const GAUGES: [(&str, &str); 12] = [
    ("onceward_in_flight", "Operations that this gateway runs."),
    (
        "onceward_waiters",
        "Requests that wait for an operation under way.",
    ),
    ("onceward_queued", "Operations that wait for delivery."),
    ("onceward_unknown", "Operations that may have run."),
    ("onceward_paused", "Operations whose attempts are used up."),
    (
        "onceward_webhook_failed",
        "Events that failed for good and were neither purged nor redelivered.",
    ),
    ("onceward_stored_operations", "Operations on record."),
    ("onceward_stored_bytes", "Bytes that the store takes."),
    ("onceward_connections", "Open connections of clients."),
    (
        "onceward_reload_successful",
        "1 if the last reload of the configuration succeeded, else 0.",
    ),
    (
        "onceward_config_age_seconds",
        "How long the configuration in use has held.",
    ),
    ("onceward_build_info", "1, with the version as a label."),
];

const HISTOGRAMS: [(&str, &str); 3] = [
    (
        "onceward_request_duration_seconds",
        "From a request's head to its answer's head.",
    ),
    (
        "onceward_upstream_duration_seconds",
        "From sending to the head of the upstream's answer, or to giving up.",
    ),
    (
        "onceward_store_duration_seconds",
        "One step of the store, made durable, or given up.",
    ),
];

/// Gives each metric its help text.
pub(super) fn describe(recorder: &PrometheusRecorder) {
    for (name, text) in COUNTERS {
        recorder.describe_counter(name.into(), None, text.into());
    }
    for (name, text) in GAUGES {
        recorder.describe_gauge(name.into(), None, text.into());
    }
    for (name, text) in HISTOGRAMS {
        recorder.describe_histogram(name.into(), Some(Unit::Seconds), text.into());
    }
}

/// Every name.
#[cfg(test)]
pub(super) fn all() -> impl Iterator<Item = &'static str> {
    let lists = [&COUNTERS[..], &GAUGES[..], &HISTOGRAMS[..]];
    lists.into_iter().flatten().map(|(name, _)| *name)
}
