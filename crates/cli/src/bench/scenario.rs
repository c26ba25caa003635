//! The scenarios: the same payment, each time by another path or at another rate.

use clap::ValueEnum;
use serde::Serialize;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
pub(super) enum Scenario {
    Direct,
    Nginx,
    FloorProxy,
    PassThrough,
    FloorServer,
    Replay,
    ReplayApiKey,
    First,
    FirstApiKey,
    Webhook,
    #[value(skip)]
    WebhookDelivered,
    RedisReplay,
    RedisFirst,
    PostgresReplay,
    PostgresFirst,
    NginxHttp2,
    PassThroughHttp2,
    ReplayHttp2,
    Restate,
    #[value(skip)]
    ReplayFull,
    #[value(skip)]
    ReplayDrawnSmall,
    #[value(skip)]
    ReplayDrawnFull,
    #[value(skip)]
    FirstFull,
    #[value(skip)]
    QuietAlone,
    #[value(skip)]
    QuietFlooded,
    #[value(skip)]
    Flood,
    #[value(skip)]
    Sync,
}

impl Scenario {
    pub(super) fn label(self) -> &'static str {
        match self {
            Scenario::Direct => "direct to the upstream",
            Scenario::Nginx => "nginx, plain proxy",
            Scenario::FloorProxy => "floor: bare hyper proxy",
            Scenario::PassThrough => "onceward, no key",
            Scenario::FloorServer => "floor: bare hyper server",
            Scenario::Replay => "onceward, replay",
            Scenario::ReplayApiKey => "onceward, replay, API key",
            Scenario::First => "onceward, first run",
            Scenario::FirstApiKey => "onceward, first run, API key",
            Scenario::Webhook => "onceward, webhook, acknowledged",
            Scenario::WebhookDelivered => "onceward, webhook, delivered",
            Scenario::RedisReplay => "onceward on Redis, replay",
            Scenario::RedisFirst => "onceward on Redis, first run",
            Scenario::PostgresReplay => "onceward on PostgreSQL, replay",
            Scenario::PostgresFirst => "onceward on PostgreSQL, first run",
            Scenario::NginxHttp2 => "nginx, HTTP/2",
            Scenario::PassThroughHttp2 => "onceward, no key, HTTP/2",
            Scenario::ReplayHttp2 => "onceward, replay, HTTP/2",
            Scenario::Restate => "Restate, first run",
            Scenario::ReplayFull => "onceward, replay, full store",
            Scenario::ReplayDrawnSmall => "onceward, replay over all records, small store",
            Scenario::ReplayDrawnFull => "onceward, replay over all records, full store",
            Scenario::FirstFull => "onceward, first run, full store",
            Scenario::QuietAlone => "a quiet tenant, alone",
            Scenario::QuietFlooded => "a quiet tenant, beside a flood",
            Scenario::Flood => "the flood, served or refused",
            Scenario::Sync => "a sync of the disk, beside first runs",
        }
    }

    /// The name in file names and on the command line.
    pub(super) fn name(self) -> String {
        self.to_possible_value()
            .map_or_else(|| format!("{self:?}"), |value| value.get_name().to_owned())
    }

    /// Whether it is measured at every number of connections; the others only at the first.
    pub(super) fn is_basic(self) -> bool {
        use Scenario::{Direct, First, Nginx, PassThrough, Replay};
        matches!(self, Direct | Nginx | PassThrough | Replay | First)
    }
}

/// A part of the benchmark. Scenarios are compared only within a stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
pub(super) enum Stage {
    /// The highest rates and the processor time per request, on an empty store.
    Rates,
    /// Latencies at constant rates below the highest.
    Latencies,
    /// A tenant with a modest rate, beside one that sends as fast as it can.
    Flood,
    /// A store with many records beside an empty one.
    Scale,
}
