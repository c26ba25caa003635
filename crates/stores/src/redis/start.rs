//! Checks before a store on Redis opens. Each error is one sentence that says what to
//! do; none contains the URL.

use std::collections::HashMap;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::cluster::ClusterClient;
use redis::cluster_async::ClusterConnection;
use redis::cluster_routing::{MultipleNodeRoutingInfo, RoutingInfo};
use redis::io::tcp::TcpSettings;
use redis::io::tcp::socket2::TcpKeepalive;
use redis::{
    AsyncConnectionConfig, Client, Cmd, ConnectionAddr, ConnectionInfo, ErrorKind, FromRedisValue,
    IntoConnectionInfo, ProtocolVersion, RedisError, ServerErrorKind, cmd,
};

use super::connection::{ServerConnection, SharedConnection};
use super::eviction::NO_EVICTION;
use crate::{Durability, Settings};

/// The oldest version that has all commands in use.
const VERSION_MIN: (u32, u32) = (6, 2);
/// The setting of how often the append-only file is synced; INFO does not show it.
const SYNC: &str = "appendfsync";
/// The time after which the system closes a connection without acknowledgements.
const SILENCE_MAX: Duration = Duration::from_secs(5);
/// How often the system tests an idle connection.
const KEEPALIVE: Duration = Duration::from_secs(10);
/// The number of connections to a server if replicas need not confirm. Redis answers
/// in one thread: with fewer connections it reads and writes more at once (a second
/// one costs a tenth of the throughput).
const CONNECTIONS: usize = 1;
/// How often the Cluster client retries within the deadline: a slot may be moving
/// from one node to another. It also repeats a step whose answer was lost. So each
/// repeated step is recognised by its attempt, fence or token; a repeated enqueueing
/// or addition is reported as known.
const CLUSTER_RETRIES: u32 = 16;
/// The pause between these retries, in milliseconds, at first and at most.
const CLUSTER_PAUSE_MIN_MS: u64 = 5;
const CLUSTER_PAUSE_MAX_MS: u64 = 200;

/// Why a store on Redis does not open. Nothing was changed in it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RedisOpenError {
    /// The URL is not valid.
    #[error(
        "the store's URL is not a Redis URL ({reason}); write redis://[user:password@]host[:port][/database], or rediss:// for TLS"
    )]
    Url {
        /// The cause.
        reason: String,
    },
    /// The server does not answer.
    #[error("cannot reach Redis at {address}: {}", words(source))]
    Away {
        /// Its address.
        address: String,
        /// The cause.
        source: RedisError,
    },
    /// The login is refused.
    #[error(
        "Redis at {address} refuses the login: check user and password in the URL ({})",
        words(source)
    )]
    Login {
        /// Its address.
        address: String,
        /// The cause.
        source: RedisError,
    },
    /// The server is not Redis.
    #[error("the server at {address} does not speak the Redis protocol; check host and port")]
    NotRedis {
        /// Its address.
        address: String,
        /// The cause.
        source: RedisError,
    },
    /// INFO is not allowed.
    #[error(
        "Redis at {address} does not allow this user to run INFO; allow it: ACL SETUSER … +info"
    )]
    Silent {
        /// Its address.
        address: String,
    },
    /// The version is too old.
    #[error("Redis at {address} has version {version}; 6.2 or newer is required")]
    TooOld {
        /// Its address.
        address: String,
        /// Its version.
        version: String,
    },
    /// It would evict records.
    #[error(
        "Redis at {address} has maxmemory-policy {policy}, which evicts records when memory is full, so that operations would run again; set it to noeviction (CONFIG SET maxmemory-policy noeviction)"
    )]
    Evicts {
        /// Its address.
        address: String,
        /// The policy.
        policy: String,
    },
    /// It does not show its eviction policy.
    #[error(
        "Redis at {address} does not show its maxmemory-policy, neither by INFO nor by CONFIG GET; it must be noeviction, so allow this user to read it"
    )]
    PolicyHidden {
        /// Its address.
        address: String,
    },
    /// It accepts no writes.
    #[error("Redis at {address} is a replica and accepts no writes; use its primary in the URL")]
    Replica {
        /// Its address.
        address: String,
    },
    /// There are fewer replicas than must confirm.
    #[error(
        "durability is wait:{wanted}, but Redis at {address} has {connected} replicas connected; start more, or require fewer"
    )]
    Replicas {
        /// Its address.
        address: String,
        /// How many must confirm.
        wanted: u32,
        /// How many are connected.
        connected: u32,
    },
    /// The Cluster is down.
    #[error(
        "the Cluster of {address} is down (cluster_state:fail); bring its nodes back, or assign their slots to other nodes"
    )]
    ClusterDown {
        /// A node of it.
        address: String,
    },
    /// A Cluster has one database.
    #[error(
        "Redis at {address} is part of a Cluster, which has only database 0; remove the database from the URL"
    )]
    ClusterDatabase {
        /// A node of it.
        address: String,
    },
    /// The system has no random numbers.
    #[error("the system provides no random numbers")]
    Entropy(#[source] std::io::Error),
    /// Anything else.
    #[error("Redis at {address}: {}", words(source))]
    Redis {
        /// Its address.
        address: String,
        /// The cause.
        source: RedisError,
    },
}

/// The message of redis-rs without its doubled punctuation.
fn words(error: &RedisError) -> String {
    match (error.code(), error.detail()) {
        (Some(code), Some(detail)) => format!("{code} {detail}"),
        _ => error.to_string(),
    }
}

/// A checked server.
pub(super) struct Started {
    pub(super) connections: Vec<SharedConnection>,
    /// The servers to subscribe to, one after the other.
    pub(super) subscribers: Vec<Client>,
}

/// Parses the URL, connects, and checks the server.
pub(super) async fn start(settings: &Settings) -> Result<Started, RedisOpenError> {
    let nodes = nodes(&settings.url)?;
    let (node, mut connection) = reach(&nodes, settings.deadline).await?;
    let address = node.addr().to_string();
    let facts = ServerInfo::ask(&mut connection, &address).await?;
    if facts.is("redis_mode", "cluster") || facts.is("cluster_enabled", "1") {
        return start_cluster(settings, &nodes, node, connection).await;
    }
    if facts.is("role", "slave") {
        return Err(RedisOpenError::Replica { address });
    }
    facts.check(&mut connection, settings.durability).await?;
    let client = open_client(node)?;
    let connection = || {
        SharedConnection::Server(Box::new(ServerConnection::new(
            client.clone(),
            settings.deadline,
        )))
    };
    Ok(Started {
        connections: (0..connections(settings)).map(|_| connection()).collect(),
        subscribers: vec![subscriber(node)?],
    })
}

/// The number of connections. A `WAIT` blocks its connection, so with replicas as
/// many are opened as the settings allow.
fn connections(settings: &Settings) -> usize {
    let wanted = match settings.durability {
        Durability::Primary => CONNECTIONS,
        Durability::Replicas(_) => settings.connections,
    };
    wanted.clamp(1, settings.connections.max(1))
}

async fn start_cluster(
    settings: &Settings,
    nodes: &[ConnectionInfo],
    node: &ConnectionInfo,
    mut connection: MultiplexedConnection,
) -> Result<Started, RedisOpenError> {
    let address = node.addr().to_string();
    let failed = |source| RedisOpenError::Redis {
        address: address.clone(),
        source,
    };
    let state: String = cmd("CLUSTER")
        .arg("INFO")
        .query_async(&mut connection)
        .await
        .map_err(failed)?;
    if !ServerInfo::parse(&address, &state).is("cluster_state", "ok") {
        return Err(RedisOpenError::ClusterDown { address });
    }
    let client = cluster_client(settings, nodes).map_err(failed)?;
    let mut cluster_connections = Vec::new();
    for _ in 0..connections(settings) {
        cluster_connections.push(client.get_async_connection().await.map_err(failed)?);
    }
    let mut subscribers = Vec::new();
    if let Some(connection) = cluster_connections.first_mut() {
        for (address, facts) in ask_primaries(connection).await.map_err(failed)? {
            facts.check_alone(settings.durability)?;
            facts.warn();
            subscribers.extend(subscriber_at(node, &address));
        }
    }
    subscribers.extend(nodes.iter().filter_map(|node| subscriber(node).ok()));
    Ok(Started {
        connections: cluster_connections
            .into_iter()
            .map(SharedConnection::Cluster)
            .collect(),
        subscribers,
    })
}

fn cluster_client(
    settings: &Settings,
    nodes: &[ConnectionInfo],
) -> Result<ClusterClient, RedisError> {
    ClusterClient::builder(nodes.to_vec())
        .use_protocol(ProtocolVersion::RESP3)
        .tcp_settings(tcp_settings())
        .connection_timeout(settings.deadline)
        .response_timeout(settings.deadline)
        .overall_response_timeout(Some(settings.deadline))
        .retries(CLUSTER_RETRIES)
        .min_retry_wait(CLUSTER_PAUSE_MIN_MS)
        .max_retry_wait(CLUSTER_PAUSE_MAX_MS)
        .build()
}

async fn ask_primaries(
    connection: &mut ClusterConnection,
) -> Result<Vec<(String, ServerInfo)>, RedisError> {
    let routing = RoutingInfo::MultiNode((MultipleNodeRoutingInfo::AllMasters, None));
    let infos = connection
        .route_command(cmd("INFO"), routing.clone())
        .await?;
    let infos = HashMap::<String, String>::from_redis_value(infos)?;
    // Hidden settings stay unknown.
    let synced = connection.route_command(config_get(SYNC), routing).await;
    let synced = synced.and_then(|settings| Ok(HashMap::from_redis_value(settings)?));
    let mut synced: HashMap<String, HashMap<String, String>> = synced.unwrap_or_default();
    let facts = |(address, text): (String, String)| {
        let mut facts = ServerInfo::parse(&address, &text);
        let settings = synced.remove(&address).unwrap_or_default();
        facts.facts.extend(settings);
        (address, facts)
    };
    Ok(infos.into_iter().map(facts).collect())
}

fn config_get(name: &str) -> Cmd {
    let mut question = cmd("CONFIG");
    question.arg("GET").arg(name);
    question
}

/// The nodes in a URL: one, or several of a Cluster, separated by commas.
fn nodes(url: &str) -> Result<Vec<ConnectionInfo>, RedisOpenError> {
    let refused = |reason: &str| RedisOpenError::Url {
        reason: reason.to_owned(),
    };
    let (scheme, rest) = url
        .split_once("://")
        .ok_or_else(|| refused("it has no //"))?;
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let (authority, behind) = rest.split_at(end);
    let (login, hosts) = match authority.rsplit_once('@') {
        Some((login, hosts)) => (format!("{login}@"), hosts),
        None => (String::new(), authority),
    };
    let info = |host: &str| {
        let url = format!("{scheme}://{login}{host}{behind}");
        let info = url.as_str().into_connection_info();
        let info = info.map_err(|error| refused(&reason(&error)))?;
        let redis = info.redis_settings().clone();
        let redis = redis.set_protocol(ProtocolVersion::RESP3);
        Ok(info
            .set_tcp_settings(tcp_settings())
            .set_redis_settings(redis))
    };
    hosts.split(',').map(info).collect()
}

/// The mistake in a URL, without any part of it.
fn reason(error: &RedisError) -> String {
    let text = error.to_string();
    let words = text.split(" - ").next();
    words.unwrap_or("it cannot be read").to_owned()
}

fn tcp_settings() -> TcpSettings {
    let keepalive = TcpKeepalive::new()
        .with_time(KEEPALIVE)
        .with_interval(KEEPALIVE);
    let settings = TcpSettings::default()
        .set_nodelay(true)
        .set_keepalive(keepalive);
    #[cfg(target_os = "linux")]
    let settings = settings.set_user_timeout(SILENCE_MAX);
    settings
}

fn open_client(node: &ConnectionInfo) -> Result<Client, RedisOpenError> {
    provide_tls(node);
    Client::open(node.clone()).map_err(|source| RedisOpenError::Redis {
        address: node.addr().to_string(),
        source,
    })
}

/// redis-rs uses the process's default cryptography, and panics if there is none.
fn provide_tls(node: &ConnectionInfo) {
    if matches!(node.addr(), ConnectionAddr::TcpTls { .. })
        && rustls::crypto::CryptoProvider::get_default().is_none()
    {
        // Another thread may have installed one first, which is as good.
        let _ = rustls::crypto::ring::default_provider().install_default();
    }
}

/// Subscriptions use the older protocol.
fn subscriber(node: &ConnectionInfo) -> Result<Client, RedisOpenError> {
    let redis = node.redis_settings().clone();
    let redis = redis.set_protocol(ProtocolVersion::RESP2);
    open_client(&node.clone().set_redis_settings(redis))
}

/// The same at another address, `host:port`.
fn subscriber_at(node: &ConnectionInfo, address: &str) -> Option<Client> {
    let (host, port) = address.rsplit_once(':')?;
    let port = port.parse().ok()?;
    let host = host.trim_matches(['[', ']']).to_owned();
    let there = match node.addr() {
        ConnectionAddr::Tcp(..) => ConnectionAddr::Tcp(host, port),
        ConnectionAddr::TcpTls {
            insecure,
            tls_params,
            ..
        } => ConnectionAddr::TcpTls {
            host,
            port,
            insecure: *insecure,
            tls_params: tls_params.clone(),
        },
        _ => return None,
    };
    subscriber(&node.clone().set_addr(there)).ok()
}

/// Connects to one of the nodes; the error is that of the last one.
async fn reach(
    nodes: &[ConnectionInfo],
    deadline: Duration,
) -> Result<(&ConnectionInfo, MultiplexedConnection), RedisOpenError> {
    let mut refused = RedisOpenError::Url {
        reason: "it names no host".to_owned(),
    };
    for node in nodes {
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(deadline))
            .set_response_timeout(Some(deadline));
        let client = open_client(node)?;
        match client
            .get_multiplexed_async_connection_with_config(&config)
            .await
        {
            Ok(connection) => return Ok((node, connection)),
            Err(error) => refused = refusal(&node.addr().to_string(), error),
        }
    }
    Err(refused)
}

/// The meaning of an error during the connection.
fn refusal(address: &str, source: RedisError) -> RedisOpenError {
    let address = address.to_owned();
    let code = source.code().unwrap_or_default();
    match source.kind() {
        ErrorKind::AuthenticationFailed => RedisOpenError::Login { address, source },
        _ if ["NOAUTH", "WRONGPASS", "NOPERM"].contains(&code) => {
            RedisOpenError::Login { address, source }
        }
        ErrorKind::Parse | ErrorKind::UnexpectedReturnType => {
            RedisOpenError::NotRedis { address, source }
        }
        ErrorKind::RESP3NotSupported => RedisOpenError::NotRedis { address, source },
        // A Cluster refuses the database before it can be identified.
        _ if words(&source).contains("SELECT is not allowed in cluster mode") => {
            RedisOpenError::ClusterDatabase { address }
        }
        // A server that closes the connection at the greeting is not Redis.
        ErrorKind::Io if source.is_connection_dropped() && !source.is_connection_refusal() => {
            RedisOpenError::NotRedis { address, source }
        }
        ErrorKind::Io => RedisOpenError::Away { address, source },
        _ => RedisOpenError::Redis { address, source },
    }
}

/// The facts that a server reports about itself.
#[derive(Debug)]
struct ServerInfo {
    address: String,
    facts: HashMap<String, String>,
}

impl ServerInfo {
    async fn ask(
        connection: &mut MultiplexedConnection,
        address: &str,
    ) -> Result<Self, RedisOpenError> {
        let info = cmd("INFO").query_async::<String>(connection).await;
        match info {
            Ok(text) => Ok(Self::parse(address, &text)),
            Err(error) if error.kind() == ErrorKind::Server(ServerErrorKind::NoPerm) => {
                Err(RedisOpenError::Silent {
                    address: address.to_owned(),
                })
            }
            Err(error) => Err(refusal(address, error)),
        }
    }

    fn parse(address: &str, text: &str) -> Self {
        let facts = text.lines().filter_map(|line| line.split_once(':'));
        Self {
            address: address.to_owned(),
            facts: facts
                .map(|(name, value)| (name.to_owned(), value.trim().to_owned()))
                .collect(),
        }
    }

    fn get(&self, name: &str) -> Option<&str> {
        self.facts.get(name).map(String::as_str)
    }

    fn is(&self, name: &str, value: &str) -> bool {
        self.get(name) == Some(value)
    }

    fn number(&self, name: &str) -> u32 {
        let number = self.get(name).and_then(|text| text.parse().ok());
        number.unwrap_or_default()
    }

    /// Checks a server, and asks for what INFO does not show.
    async fn check(
        mut self,
        connection: &mut MultiplexedConnection,
        durability: Durability,
    ) -> Result<(), RedisOpenError> {
        for (name, fact) in [("maxmemory-policy", "maxmemory_policy"), (SYNC, SYNC)] {
            if self.get(fact).is_none() {
                let question = config_get(name);
                let settings = question.query_async::<HashMap<String, String>>(connection);
                // A hidden setting stays unknown.
                let values = settings.await.unwrap_or_default().into_values();
                self.facts
                    .extend(values.map(|value| (fact.to_owned(), value)));
            }
        }
        self.check_alone(durability)?;
        self.warn();
        Ok(())
    }

    /// Checks what a server reported.
    fn check_alone(&self, durability: Durability) -> Result<(), RedisOpenError> {
        let address = self.address.clone();
        let version = self.get("redis_version").unwrap_or("unknown");
        if version_of(version).is_none_or(|version| version < VERSION_MIN) {
            let version = version.to_owned();
            return Err(RedisOpenError::TooOld { address, version });
        }
        match self.get("maxmemory_policy") {
            Some(NO_EVICTION) => {}
            Some(policy) => {
                let policy = policy.to_owned();
                return Err(RedisOpenError::Evicts { address, policy });
            }
            None => return Err(RedisOpenError::PolicyHidden { address }),
        }
        if let Durability::Replicas(wanted) = durability {
            let connected = self.number("connected_slaves");
            if connected < wanted {
                return Err(RedisOpenError::Replicas {
                    address,
                    wanted,
                    connected,
                });
            }
        }
        Ok(())
    }

    /// Warns of acknowledged writes that a crash of the server would lose.
    fn warn(&self) {
        if let Some(loss) = self.loss() {
            tracing::warn!(address = self.address, "{loss}");
        }
    }

    fn loss(&self) -> Option<String> {
        const LOSES: &str = "a crash may lose the latest acknowledged writes";
        match (self.get("aof_enabled"), self.get(SYNC)) {
            (Some("0"), _) => Some(
                "Redis has no append-only file: a restart loses acknowledged writes; set \
                 appendonly to yes"
                    .to_owned(),
            ),
            (None, _) => Some(format!(
                "Redis does not show by INFO whether it has an append-only file: if it has none, \
                 or does not sync it always, {LOSES}"
            )),
            (Some(_), None) => Some(format!(
                "Redis does not show its appendfsync, as this user may not run CONFIG GET: unless \
                 it is always, {LOSES}"
            )),
            (Some(_), Some("always")) => None,
            (Some(_), Some(sync)) => Some(format!(
                "Redis has appendfsync {sync}: {LOSES}; set it to always"
            )),
        }
    }
}

fn version_of(text: &str) -> Option<(u32, u32)> {
    let mut parts = text.split('.').map(str::parse);
    Some((parts.next()?.ok()?, parts.next()?.ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "# Server\r\nredis_version:7.0.15\r\nmaxmemory_policy:noeviction\r\naof_enabled:1\r\nconnected_slaves:1\r\n";

    fn finding(text: &str, durability: Durability) -> String {
        let checked = ServerInfo::parse("host:6379", text).check_alone(durability);
        checked.map_or_else(|error| error.to_string(), |()| "good".to_owned())
    }

    #[test]
    fn facts_about_a_server_are_checked() {
        let primary = Durability::Primary;
        let cases = [
            (GOOD.to_owned(), primary, "good"),
            (GOOD.replace("7.0.15", "6.2.0"), primary, "good"),
            (GOOD.replace("7.0.15", "10.0"), primary, "good"),
            (
                GOOD.replace("7.0.15", "6.0.16"),
                primary,
                "Redis at host:6379 has version 6.0.16; 6.2 or newer is required",
            ),
            (GOOD.replace("7.0.15", "?"), primary, "has version ?"),
            (
                GOOD.replace("noeviction", "allkeys-lru"),
                primary,
                "set it to noeviction (CONFIG SET maxmemory-policy noeviction)",
            ),
            (
                GOOD.replace("maxmemory_policy", "x"),
                primary,
                "does not show its maxmemory-policy",
            ),
            (GOOD.to_owned(), Durability::Replicas(1), "good"),
            (
                GOOD.to_owned(),
                Durability::Replicas(2),
                "durability is wait:2, but Redis at host:6379 has 1 replicas connected",
            ),
        ];
        for (text, durability, want) in cases {
            let found = finding(&text, durability);
            assert!(found.contains(want), "{found}");
        }
    }

    #[test]
    fn the_possible_loss_of_a_crash_is_known_or_reported_as_unknown() {
        let cases = [
            ("aof_enabled:1\r\nappendfsync:always", ""),
            (
                "aof_enabled:1\r\nappendfsync:no",
                "Redis has appendfsync no: ",
            ),
            ("aof_enabled:1", "Redis does not show its appendfsync, "),
            ("aof_enabled:0", "Redis has no append-only file: "),
            (
                "aof_enabled:0\r\nappendfsync:always",
                "Redis has no append-only file: ",
            ),
            (
                "appendfsync:always",
                "Redis does not show by INFO whether it has ",
            ),
        ];
        for (text, want) in cases {
            let loss = ServerInfo::parse("host:6379", text)
                .loss()
                .unwrap_or_default();
            assert_eq!(loss.is_empty(), want.is_empty(), "{loss}");
            assert!(loss.starts_with(want), "{loss}");
        }
    }

    #[test]
    fn urls_name_one_node_or_several() {
        let addresses = |url: &str| {
            let nodes = nodes(url).expect("a good URL");
            let addresses = nodes.iter().map(|node| node.addr().to_string());
            addresses.collect::<Vec<_>>().join(" ")
        };
        assert_eq!(addresses("redis://a"), "a:6379");
        assert_eq!(addresses("redis://u:p@a:1,b,[::1]:3/0"), "a:1 b:6379 ::1:3");
        assert_eq!(addresses("valkey://a:1/2?x=y"), "a:1");
        let nodes = nodes("redis://u:p%2C@a:1,b:2").expect("a good URL");
        for node in nodes {
            assert_eq!(node.redis_settings().username(), Some("u"));
            assert_eq!(node.redis_settings().password(), Some("p,"));
        }
    }

    #[test]
    fn bad_urls_are_refused_without_their_secrets() {
        for url in [
            "redis:secret",
            "redis://:secret@",
            "redis://:secret@host:port",
            "redis://:secret@host/secret",
            "redis://:secret@host:1,/",
            "redis://:secret@0.0.0.0",
            "redis://u:secret@host?protocol=secret",
        ] {
            let refused = nodes(url).expect_err("a bad URL").to_string();
            assert!(
                refused.starts_with("the store's URL is not a Redis URL ("),
                "{refused}"
            );
            assert!(!refused.contains("secret"), "{refused}");
        }
    }
}
