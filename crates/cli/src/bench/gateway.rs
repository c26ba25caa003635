//! The gateway under test: a new process with its own store, or a given one.
//!
//! The operations that will be replayed are recorded first, so that they are the oldest records: in
//! a full store a million others follow them.

use std::fmt::Write;
use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, anyhow, ensure};
use bytes::Bytes;
use data_encoding::HEXLOWER;
use hyper::header::{CONTENT_TYPE, HeaderMap, HeaderValue};
use indicatif::{ProgressBar, ProgressState, ProgressStyle};
use onceward_gateway::upstream::fetch::{Fetch, FetchLimits};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::time::sleep;

use crate::process::Process;

use super::deliveries::DeliveryMonitor;
use super::load::{Length, Load, Run};
use super::loopback::LoopbackOrigin;
use super::stats::ResponseCounts;
use super::webhook::Webhook;
use super::workload::{ApiKey, REPLAY_KEYS, Seed, Workload};

const PRIME_CONNECTIONS: usize = 16;
/// Filling is fastest with many connections, whose writes share a sync.
const FILL_CONNECTIONS: usize = 256;
/// The name of the upstream of a gateway without a configuration.
const UNCONFIGURED_UPSTREAM: &str = "default";
const BAR_PAUSE: Duration = Duration::from_millis(200);
/// The limits of a request to the admin API.
const ASKING: FetchLimits = FetchLimits {
    deadline: Duration::from_secs(10),
    answer_bytes_max: 64 << 10,
};

pub(super) struct Gateway {
    target: LoopbackOrigin,
    primed: Seed,
    /// The API key to send, if callers are authenticated.
    api_key: Option<ApiKey>,
    // Dropped in this order: the process ends before its directory is removed.
    process: Option<Process>,
    store: Option<TempDir>,
}

impl Gateway {
    /// A new process with an empty store in its own directory under `stores`.
    pub(super) async fn fresh(upstream: LoopbackOrigin, stores: &Path) -> anyhow::Result<Self> {
        let store = TempDir::with_prefix_in("store-", stores)?;
        let listen = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let process = Process::gateway(upstream.addr(), store.path(), listen).await?;
        let target = LoopbackOrigin::at(process.listen())?;
        let primed = prime(target, None).await?;
        Ok(Gateway {
            target,
            primed,
            api_key: None,
            process: Some(process),
            store: Some(store),
        })
    }

    /// A new process with an empty store and a configuration: a route, API keys, and `more` lines of
    /// TOML.
    pub(super) async fn configured(
        upstream: LoopbackOrigin,
        stores: &Path,
        more: &str,
    ) -> anyhow::Result<Self> {
        let store = TempDir::with_prefix_in("store-", stores)?;
        let config = store.path().join("onceward.toml");
        let data = format!("embedded:{}", store.path().join("data").display());
        // A JSON string is also a TOML string.
        let url = serde_json::to_string(&data)?;
        let text = format!(
            "[server]\nlisten = \"127.0.0.1:0\"\nadmin = \"127.0.0.1:0\"\n[store]\nurl = {url}\n\
             [auth.api_keys]\n[upstreams.sample]\nurl = \"{upstream}\"\n\
             [[routes]]\nendpoint = \"payments.create\"\nmethod = \"POST\"\npath = \"/payments\"\n\
             upstream = \"sample\"\npolicy = \"REQUIRED_A\"\n{more}"
        );
        fs::write(&config, text)?;
        let process = Process::configured(&config).await?;
        let target = LoopbackOrigin::at(process.listen())?;
        let api_key = create_api_key(&process, "bench").await?;
        let primed = prime(target, Some(api_key.clone())).await?;
        Ok(Gateway {
            target,
            primed,
            api_key: Some(api_key),
            process: Some(process),
            store: Some(store),
        })
    }

    /// A running gateway, whose store and memory are not examined.
    pub(super) async fn given(target: LoopbackOrigin) -> anyhow::Result<Self> {
        let primed = prime(target, None).await?;
        Ok(Gateway {
            target,
            primed,
            api_key: None,
            process: None,
            store: None,
        })
    }

    pub(super) fn target(&self) -> LoopbackOrigin {
        self.target
    }

    pub(super) fn api_key(&self) -> Option<ApiKey> {
        self.api_key.clone()
    }

    /// Creates an API key for a tenant through the admin API.
    pub(super) async fn create_api_key(&self, tenant: &str) -> anyhow::Result<ApiKey> {
        let process = self.process.as_ref();
        create_api_key(
            process.context("a given gateway cannot get new API keys")?,
            tenant,
        )
        .await
    }

    /// Creates a webhook through the admin API. Returns the load of events for it and the monitor
    /// of their deliveries, each of which is a payment at the upstream. `None` for a given gateway.
    pub(super) async fn webhook(
        &self,
        upstream: LoopbackOrigin,
    ) -> anyhow::Result<Option<(Workload, DeliveryMonitor)>> {
        let Some(process) = &self.process else {
            return Ok(None);
        };
        let webhook = create_webhook(process).await?;
        let workload = Workload::Webhook(seed()?, Arc::new(webhook));
        Ok(Some((
            workload,
            DeliveryMonitor::new(upstream, admin(process)?)?,
        )))
    }

    pub(super) fn first(&self) -> anyhow::Result<Workload> {
        seed().map(Workload::First)
    }

    pub(super) fn replay(&self) -> Workload {
        Workload::Replay(self.primed)
    }

    /// Records this many operations by ordinary requests, with a progress bar.
    pub(super) async fn fill(&self, records: u64) -> anyhow::Result<()> {
        let bar = ProgressBar::new(records).with_style(style(
            "filling the store {bar:30} {human_pos} of {human_len} records, {rate}, {eta} left",
        ));
        let length = Length::Count(records);
        let run = Run::start(&Load {
            target: self.target,
            workload: self.first()?,
            api_key: self.api_key(),
            connections: FILL_CONNECTIONS,
            threads: 1,
            length,
        })?;
        let begun = run.begun();
        let mut finish = pin!(run.finish());
        let outcome = loop {
            tokio::select! {
                outcome = &mut finish => break outcome?,
                () = sleep(BAR_PAUSE) => bar.set_position(begun()),
            }
        };
        bar.finish_and_clear();
        expect_clean("filling the store", &outcome.answers)
    }

    /// The peak resident memory of the process.
    pub(super) fn peak_memory_bytes(&self) -> Option<u64> {
        self.process.as_ref().and_then(Process::peak_memory_bytes)
    }

    /// Ends the process and removes its store before it returns; dropping does so later.
    pub(super) async fn close(self) -> anyhow::Result<()> {
        if let Some(mut process) = self.process {
            process.kill().await?;
        }
        self.store.map_or(Ok(()), TempDir::close)?;
        Ok(())
    }
}

pub(super) fn seed() -> anyhow::Result<Seed> {
    getrandom::u64().map(Seed).map_err(no_randomness)
}

fn no_randomness(error: getrandom::Error) -> anyhow::Error {
    anyhow!("the system provides no randomness: {error}")
}

/// `{rate}` in a template is steps per second, whole.
pub(super) fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template)
        .expect("the templates are literals that parse")
        .with_key("rate", |state: &ProgressState, text: &mut dyn Write| {
            // A failed write only misses on the screen.
            let _ = write!(text, "{:.0}/s", state.per_sec());
        })
}

async fn prime(target: LoopbackOrigin, api_key: Option<ApiKey>) -> anyhow::Result<Seed> {
    let seed = seed()?;
    let run = Run::start(&Load {
        target,
        workload: Workload::First(seed),
        api_key,
        connections: PRIME_CONNECTIONS,
        threads: 1,
        length: Length::Count(REPLAY_KEYS),
    })?;
    expect_clean("priming the gateway", &run.finish().await?.answers)?;
    Ok(seed)
}

async fn create_api_key(process: &Process, tenant: &str) -> anyhow::Result<ApiKey> {
    let body = json!({
        "tenant": tenant, "project": "bench", "subject": "service:bench", "why": "a benchmark",
    });
    let made = create(process, "/admin/v1/keys", &body).await?;
    let secret = made["secret"].as_str();
    Ok(secret.context("no API key was created")?.into())
}

async fn create_webhook(process: &Process) -> anyhow::Result<Webhook> {
    let mut random = [0; 32];
    getrandom::fill(&mut random).map_err(no_randomness)?;
    let secret = format!("whsec_{}", HEXLOWER.encode(&random));
    let body = json!({
        "tenant": "bench", "project": "bench", "provider": "stripe", "secrets": [secret],
        "upstream": UNCONFIGURED_UPSTREAM, "path": "/payments", "deliver": "async",
        "why": "a benchmark",
    });
    let made = create(process, "/admin/v1/webhooks", &body).await?;
    let id = made["webhook_id"].as_str();
    let id = id.context("no webhook was created")?;
    Ok(Webhook::new(id, &secret))
}

/// Creates something through the admin API.
async fn create(process: &Process, path: &str, body: &Value) -> anyhow::Result<Value> {
    let fetch = Fetch::new(&format!("http://{}", admin(process)?), ASKING)?;
    let mut headers = HeaderMap::new();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    let body = Bytes::from(body.to_string());
    let made = fetch.post(Some(path), headers, body).await?;
    ensure!(
        made.status.is_success(),
        "{path} answered {}: {}",
        made.status,
        String::from_utf8_lossy(&made.body)
    );
    Ok(serde_json::from_slice(&made.body)?)
}

fn admin(process: &Process) -> anyhow::Result<SocketAddr> {
    process.admin().context("it has no admin listener")
}

fn expect_clean(what: &str, answers: &ResponseCounts) -> anyhow::Result<()> {
    let ResponseCounts {
        faults,
        first_fault,
        ..
    } = answers;
    let first = first_fault.as_deref().unwrap_or_default();
    ensure!(
        *faults == 0,
        "{what} went wrong {faults} times, first: {first}"
    );
    Ok(())
}
