//! The gateway under test: a new process with its own store.
//!
//! The operations that will be replayed are recorded first, so that they are the oldest records: in
//! a full store millions of others follow them.

use std::ffi::OsString;
use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, ensure};
use bytes::Bytes;
use data_encoding::HEXLOWER;
use hyper::header::{CONTENT_TYPE, HeaderMap, HeaderValue};
use onceward_gateway::upstream::fetch::{Fetch, FetchLimits};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::process::{Memory, Process};

use super::cost::Server;
use super::deliveries::DeliveryMonitor;
use super::load::{Length, Load, Run};
use super::loopback::LoopbackOrigin;
use super::stats::Faults;
use super::upstream_count::UpstreamCount;
use super::webhook::{self, Webhook};
use super::workload::{ApiKey, REPLAY_KEYS, Seed, Workload};

const PRIME_CONNECTIONS: usize = 16;
/// The name of the upstream of a gateway without a configuration.
const UNCONFIGURED_UPSTREAM: &str = "default";
/// The key of gateways that share a store. The store has nothing but the benchmark's operations.
const SHARED_KEY: &str = "the-key-of-the-benchmark";
/// The limits of a request to the admin API.
const ASKING: FetchLimits = FetchLimits {
    deadline: Duration::from_secs(60),
    answer_bytes_max: 1 << 20,
};

/// What all gateways have in common.
pub(super) struct GatewayPlan {
    /// The binary, usually this program.
    pub(super) program: PathBuf,
    pub(super) upstream: LoopbackOrigin,
    /// The directory in which each has a directory of its own.
    pub(super) stores: PathBuf,
}

/// The store of a new gateway.
#[derive(Clone, Copy)]
pub(super) enum StoreChoice<'a> {
    Embedded,
    /// A server, by its URL.
    Shared(&'a str),
}

pub(super) struct Gateway {
    target: LoopbackOrigin,
    primed: Seed,
    /// The API key to send, if callers are authenticated.
    api_key: Option<ApiKey>,
    // Dropped in this order: the process ends before its directory is removed.
    process: Process,
    /// The store, and the configuration if there is one.
    directory: TempDir,
}

impl Gateway {
    /// A new process without a configuration. An embedded store is empty.
    pub(super) async fn fresh(plan: &GatewayPlan, store: StoreChoice<'_>) -> anyhow::Result<Self> {
        let directory = TempDir::with_prefix_in("store-", &plan.stores)?;
        let listen = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let (program, upstream) = (&plan.program, plan.upstream.addr());
        let process = match store {
            StoreChoice::Embedded => {
                let store = Process::embedded(&data(directory.path()));
                Process::gateway(program, upstream, store, listen).await?
            }
            StoreChoice::Shared(url) => {
                let store = OsString::from(url);
                Process::sharing_gateway(program, upstream, store, listen, SHARED_KEY).await?
            }
        };
        let target = LoopbackOrigin::at(process.listen())?;
        Ok(Gateway {
            target,
            primed: prime(target, None).await?,
            api_key: None,
            process,
            directory,
        })
    }

    /// A new process with an empty embedded store and a configuration: a route, API keys, and `more`
    /// lines of TOML.
    pub(super) async fn configured(plan: &GatewayPlan, more: &str) -> anyhow::Result<Self> {
        let upstream = plan.upstream;
        let directory = TempDir::with_prefix_in("store-", &plan.stores)?;
        let url = format!("embedded:{}", data(directory.path()).display());
        // A JSON string is also a TOML string.
        let url = serde_json::to_string(&url)?;
        let text = format!(
            "[server]\nlisten = \"127.0.0.1:0\"\nadmin = \"127.0.0.1:0\"\n[store]\nurl = {url}\n\
             [auth.api_keys]\n[upstreams.sample]\nurl = \"{upstream}\"\n\
             [[routes]]\nendpoint = \"payments.create\"\nmethod = \"POST\"\npath = \"/payments\"\n\
             upstream = \"sample\"\npolicy = \"REQUIRED_A\"\n{more}"
        );
        let config = config(directory.path());
        fs::write(&config, text)?;
        let process = Process::configured(&plan.program, &config).await?;
        let target = LoopbackOrigin::at(process.listen())?;
        let api_key = create_api_key(&process, "bench").await?;
        Ok(Gateway {
            target,
            primed: prime(target, Some(api_key.clone())).await?,
            api_key: Some(api_key),
            process,
            directory,
        })
    }

    /// Kills a gateway with a configuration, starts it again on its store, and returns the time from
    /// the start until it was ready.
    pub(super) async fn reopen(&mut self, plan: &GatewayPlan) -> anyhow::Result<Duration> {
        self.process.kill().await?;
        let start = Instant::now();
        self.process = Process::configured(&plan.program, &config(self.directory.path())).await?;
        let took = start.elapsed();
        self.target = LoopbackOrigin::at(self.process.listen())?;
        Ok(took)
    }

    pub(super) fn target(&self) -> LoopbackOrigin {
        self.target
    }

    pub(super) fn api_key(&self) -> Option<ApiKey> {
        self.api_key.clone()
    }

    /// Its process, for its processor time.
    pub(super) fn server(&self) -> Option<Server> {
        self.process.id().map(Server::process)
    }

    /// Creates an API key for a tenant through the admin API.
    pub(super) async fn create_api_key(&self, tenant: &str) -> anyhow::Result<ApiKey> {
        create_api_key(&self.process, tenant).await
    }

    /// Creates a webhook through the admin API. Returns the load of events for it and the monitor
    /// of their deliveries, each of which is a payment at the upstream.
    pub(super) async fn webhook(
        &self,
        upstream: Arc<UpstreamCount>,
    ) -> anyhow::Result<(Workload, DeliveryMonitor)> {
        let webhook = create_webhook(&self.process).await?;
        let workload = Workload::Webhook(seed()?, Arc::new(webhook));
        let monitor = DeliveryMonitor::new(upstream, admin(&self.process)?)?;
        Ok((workload, monitor))
    }

    pub(super) fn first(&self) -> anyhow::Result<Workload> {
        seed().map(Workload::First)
    }

    pub(super) fn replay(&self) -> Workload {
        Workload::Replay(self.primed)
    }

    /// The time of one page of the list of operations.
    pub(super) async fn list(&self, limit: usize) -> anyhow::Result<Duration> {
        let start = Instant::now();
        let path = format!("/admin/v1/operations?limit={limit}");
        get(&self.process, &path).await?;
        Ok(start.elapsed())
    }

    /// The value of a gauge without labels.
    pub(super) async fn gauge(&self, name: &str) -> anyhow::Result<u64> {
        let page = get(&self.process, "/metrics").await?;
        let page = std::str::from_utf8(&page)?;
        let mut values = page.lines().filter_map(|line| line.strip_prefix(name));
        let value = values.find_map(|rest| rest.strip_prefix(' ')?.parse::<f64>().ok());
        Ok(value.with_context(|| format!("no gauge {name}"))? as u64)
    }

    pub(super) fn memory(&self) -> Option<Memory> {
        self.process.memory()
    }

    /// The space that its embedded store takes on disk.
    pub(super) fn disk_bytes(&self) -> anyhow::Result<u64> {
        let mut bytes = 0;
        let mut directories = vec![data(self.directory.path())];
        while let Some(directory) = directories.pop() {
            for entry in fs::read_dir(directory)? {
                let entry = entry?;
                let metadata = entry.metadata()?;
                match metadata.is_dir() {
                    true => directories.push(entry.path()),
                    // A block of `stat` has 512 bytes, whatever the file system's.
                    false => bytes += metadata.blocks() * 512,
                }
            }
        }
        Ok(bytes)
    }

    /// Ends the process and removes its store before it returns; dropping does so later.
    pub(super) async fn close(mut self) -> anyhow::Result<()> {
        self.process.kill().await?;
        Ok(self.directory.close()?)
    }
}

fn data(directory: &Path) -> PathBuf {
    directory.join("data")
}

fn config(directory: &Path) -> PathBuf {
    directory.join("onceward.toml")
}

pub(super) fn seed() -> anyhow::Result<Seed> {
    getrandom::u64().map(Seed).map_err(no_randomness)
}

fn no_randomness(error: getrandom::Error) -> anyhow::Error {
    anyhow!("the system provides no randomness: {error}")
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
    expect_clean("priming the gateway", &run.finish().await?.faults)?;
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
    let secret = HEXLOWER.encode(&random);
    let body = json!({
        "tenant": "bench", "project": "bench", "provider": webhook::PROVIDER, "secrets": [secret],
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

/// Reads something from the admin API.
async fn get(process: &Process, path: &str) -> anyhow::Result<Bytes> {
    let fetch = Fetch::new(&format!("http://{}", admin(process)?), ASKING)?;
    let told = fetch.get(Some(path), HeaderMap::new()).await?;
    ensure!(told.status.is_success(), "{path} answered {}", told.status);
    Ok(told.body)
}

fn admin(process: &Process) -> anyhow::Result<SocketAddr> {
    process.admin().context("it has no admin listener")
}

pub(super) fn expect_clean(what: &str, faults: &Faults) -> anyhow::Result<()> {
    let Faults { count, first } = faults;
    let first = first.as_deref().unwrap_or_default();
    ensure!(
        *count == 0,
        "{what} went wrong {count} times, first: {first}"
    );
    Ok(())
}
