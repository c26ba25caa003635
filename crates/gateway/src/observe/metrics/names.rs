//! The name and the help text of every metric. Names that begin with
//! `idempotency_`, `transport_` and `handler_` come from CONTRACT; all others
//! begin with `onceward_`.

use metrics::Recorder;
use metrics_exporter_prometheus::PrometheusRecorder;

const COUNTERS: [(&str, &str); 21] = [
    (
        "idempotency_key_present_total",
        "Number of requests with an idempotency key: sent by the client or derived from its request (case A), or taken from a provider's identifier (case B).",
    ),
    (
        "idempotency_key_missing_total",
        "Number of requests without a key on routes that accept one.",
    ),
    (
        "idempotency_key_invalid_total",
        "Number of requests refused for a malformed key, by reason.",
    ),
    (
        "transport_translation_failed_total",
        "Number of verified provider requests in which the identifier could not be found.",
    ),
    (
        "idempotency_cache_hit_total",
        "Number of kept replies returned again, by the state of their operation.",
    ),
    (
        "handler_internal_dedup_hit_total",
        "Number of answers on HANDLER_INTERNAL_C routes with Idempotent-Replayed: true.",
    ),
    (
        "idempotency_key_collision_total",
        "Number of requests whose key was used before with a different request.",
    ),
    (
        "onceward_protected_total",
        "Number of protected requests and received events, by outcome.",
    ),
    (
        "onceward_bypassed_total",
        "Number of requests forwarded without protection while the store was unavailable.",
    ),
    (
        "onceward_refused_total",
        "Number of requests answered with a problem, by code.",
    ),
    (
        "onceward_limited_total",
        "Number of requests refused by a limit, by tenant and limit.",
    ),
    (
        "onceward_auth_refused_total",
        "Number of requests whose caller was not authenticated or not authorised, by credential and reason.",
    ),
    (
        "onceward_webhook_refused_total",
        "Number of requests to webhooks that were not verified, by provider and reason.",
    ),
    (
        "onceward_webhook_same_bytes_total",
        "Number of events whose bytes came before under another id, by provider and answer.",
    ),
    (
        "onceward_webhook_deliveries_total",
        "Number of attempts to deliver queued events, by upstream and outcome.",
    ),
    (
        "onceward_jwks_refresh_failed_total",
        "Number of failed attempts to fetch an issuer's keys.",
    ),
    (
        "onceward_connections_refused_total",
        "Number of connections closed at once because the limit was reached.",
    ),
    (
        "onceward_connections_cut_total",
        "Number of connections closed because the client did not read its answers.",
    ),
    (
        "onceward_reloads_total",
        "Number of reloads of the configuration, by outcome.",
    ),
    (
        "onceward_spans_exported_total",
        "Number of spans that the collector accepted.",
    ),
    (
        "onceward_spans_dropped_total",
        "Number of spans that were dropped, by reason.",
    ),
];

const GAUGES: [(&str, &str); 12] = [
    (
        "onceward_in_flight",
        "Number of operations that this gateway is running.",
    ),
    (
        "onceward_waiters",
        "Number of requests that wait for a running operation.",
    ),
    (
        "onceward_queued",
        "Number of operations in the store that wait for delivery.",
    ),
    (
        "onceward_unknown",
        "Number of operations in the store whose outcome is unknown.",
    ),
    (
        "onceward_paused",
        "Number of operations in the store that are paused because their attempts are used up.",
    ),
    (
        "onceward_webhook_failed",
        "Number of events in the store that failed for good and were neither purged nor redelivered.",
    ),
    (
        "onceward_stored_operations",
        "Number of operations in the store.",
    ),
    ("onceward_stored_bytes", "Size of the store in bytes."),
    ("onceward_connections", "Number of open client connections."),
    (
        "onceward_reload_successful",
        "1 if the last reload of the configuration succeeded, otherwise 0.",
    ),
    (
        "onceward_config_age_seconds",
        "Seconds since the current configuration came into force.",
    ),
    (
        "onceward_build_info",
        "Always 1; the label is the gateway's version.",
    ),
];

const HISTOGRAMS: [(&str, &str); 3] = [
    (
        "onceward_request_duration_seconds",
        "Seconds from a request's head to its answer's head.",
    ),
    (
        "onceward_upstream_duration_seconds",
        "Seconds from sending a request upstream to the head of the answer, or until the gateway gave up.",
    ),
    (
        "onceward_store_duration_seconds",
        "Seconds until one step of the store was durable, or until it failed or was given up.",
    ),
];

/// Registers the help text of each counter and gauge.
pub(super) fn describe(recorder: &PrometheusRecorder) {
    for (name, text) in COUNTERS {
        recorder.describe_counter(name.into(), None, text.into());
    }
    for (name, text) in GAUGES {
        recorder.describe_gauge(name.into(), None, text.into());
    }
}

/// The help text of a histogram.
pub(super) fn help_of_histogram(name: &str) -> Option<&'static str> {
    let known = HISTOGRAMS.iter().find(|(known, _)| *known == name);
    known.map(|(_, help)| *help)
}

/// The names of all metrics.
#[cfg(test)]
pub(super) fn all() -> impl Iterator<Item = &'static str> {
    let lists = [&COUNTERS[..], &GAUGES[..], &HISTOGRAMS[..]];
    lists.into_iter().flatten().map(|(name, _)| *name)
}
