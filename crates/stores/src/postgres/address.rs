//! From a URL to connections: the parameters that tokio-postgres does not know, and
//! TLS as in libpq.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use deadpool_postgres::{
    Connect, Manager, ManagerConfig, Pool, RecyclingMethod, Runtime, Timeouts,
};
use futures_util::future::{BoxFuture, FutureExt as _};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
use tokio::runtime::Handle;
use tokio::task::JoinHandle;
use tokio_postgres::config::{Host, SslMode, TargetSessionAttrs};
use tokio_postgres::{Client, Config};
use tokio_postgres_rustls::MakeRustlsConnect;
use tokio_util::task::AbortOnDropHandle;

use super::error::words;

/// The default time limit of a connection attempt.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// The time after which the system closes a connection without acknowledgements. It
/// is longer than the statement timeout, so a statement sent on such a connection has
/// ended by then.
const SILENCE_MAX: Duration = Duration::from_secs(5);
/// How often the system tests an idle connection.
const KEEPALIVE: Duration = Duration::from_secs(10);

/// The address of a database, with TLS and connection settings.
#[derive(Clone)]
pub struct Address {
    config: Config,
    tls: MakeRustlsConnect,
    pooler: Pooler,
}

/// Whether a pooler is between this process and the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pooler {
    /// Nothing: a session lasts as long as its connection.
    None,
    /// A pooler in transaction mode: nothing outlives a transaction.
    Transactions,
}

/// Why a URL is not valid. The URL is not repeated: it may contain a password.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AddressError {
    /// tokio-postgres cannot read it.
    #[error(
        "the URL cannot be read ({}); write postgres://user:password@host:5432/database, for example",
        words(.0)
    )]
    Url(#[source] tokio_postgres::Error),
    /// An unknown value of a parameter.
    #[error("{name} in the URL is {value:?}; it is one of {choices}")]
    Parameter {
        /// Which.
        name: &'static str,
        /// Its value.
        value: String,
        /// The valid values.
        choices: &'static str,
    },
    /// The certificates to trust cannot be read.
    #[error("sslrootcert in the URL names {path}, which cannot be read: {source}")]
    Root {
        /// Which file.
        path: String,
        /// The cause.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// TLS cannot be set up.
    #[error("TLS cannot be set up: {0}")]
    Tls(#[source] rustls::Error),
}

/// Whether TLS is used and verified; the names are libpq's.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Trust {
    Disable,
    Prefer,
    Require,
    VerifyFull,
}

impl Address {
    /// Parses `postgres://…`. Besides the parameters of tokio-postgres, the query may
    /// contain `sslmode` (`disable`, `prefer`, `require`, `verify-full`),
    /// `sslrootcert=FILE` and `pgbouncer=true`.
    pub fn parse(url: &str) -> Result<Self, AddressError> {
        let (base, query) = url.split_once('?').unwrap_or((url, ""));
        let mut trust = Trust::Prefer;
        let mut root = None;
        let mut pooler = Pooler::None;
        let mut rest = Vec::new();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            match pair.split_once('=').unwrap_or((pair, "")) {
                ("sslmode", value) => trust = trust_of(value)?,
                ("sslrootcert", value) => root = Some(value),
                ("pgbouncer", value) => pooler = pooler_of(value)?,
                _ => rest.push(pair),
            }
        }
        let url = format!("{base}?{}", rest.join("&"));
        let mut config: Config = url.parse().map_err(AddressError::Url)?;
        config.ssl_mode(match trust {
            Trust::Disable => SslMode::Disable,
            Trust::Prefer => SslMode::Prefer,
            Trust::Require | Trust::VerifyFull => SslMode::Require,
        });
        // Of several servers only one accepts writes, and after a failover another.
        if config.get_hosts().len() > 1
            && config.get_target_session_attrs() == TargetSessionAttrs::Any
        {
            config.target_session_attrs(TargetSessionAttrs::ReadWrite);
        }
        if config.get_connect_timeout().is_none() {
            config.connect_timeout(CONNECT_TIMEOUT);
        }
        if config.get_tcp_user_timeout().is_none() {
            config.tcp_user_timeout(SILENCE_MAX);
        }
        let said = |name: &str| rest.iter().any(|pair| pair.starts_with(name));
        if !said("keepalives_idle=") {
            config.keepalives_idle(KEEPALIVE);
        }
        if !said("keepalives_interval=") {
            config.keepalives_interval(KEEPALIVE);
        }
        if config.get_application_name().is_none() {
            config.application_name("onceward");
        }
        Ok(Self {
            config,
            tls: tls(trust, root)?,
            pooler,
        })
    }

    pub(crate) fn pooler(&self) -> Pooler {
        self.pooler
    }

    /// The database's name, for messages.
    pub(crate) fn database(&self) -> &str {
        let user = self.config.get_user();
        self.config.get_dbname().or(user).unwrap_or("postgres")
    }

    /// The user's name, for messages.
    pub(crate) fn user(&self) -> &str {
        self.config.get_user().unwrap_or("of this process")
    }

    /// Host and port of every server that may answer, for messages.
    pub(crate) fn server(&self) -> String {
        let ports = self.config.get_ports();
        let port = |place: usize| ports.get(place).or(ports.first()).unwrap_or(&5432);
        let hosts = self.config.get_hosts().iter().enumerate();
        let servers = hosts.map(|(place, host)| match host {
            Host::Tcp(name) => format!("{name}:{}", port(place)),
            Host::Unix(path) => format!("{}:{}", path.display(), port(place)),
        });
        servers.collect::<Vec<_>>().join(" or ")
    }

    /// Sets the time limit and the isolation level of every statement, instead of
    /// the server's defaults. A pooler would not forward them.
    pub(crate) fn within(mut self, deadline: Duration) -> Self {
        if self.pooler == Pooler::None {
            let ms = deadline.as_millis().max(1);
            let given = self.config.get_options().unwrap_or_default();
            let options = format!(
                "{given} -c statement_timeout={ms} -c idle_in_transaction_session_timeout={} \
                 -c default_transaction_isolation=read\\ committed",
                ms * 5
            );
            self.config.options(options.trim());
        }
        self
    }

    /// One connection, driven by a task of its own.
    pub(crate) async fn connect(&self) -> Result<(Client, JoinHandle<()>), tokio_postgres::Error> {
        let (client, connection) = self.config.connect(self.tls.clone()).await?;
        let driven = tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "connection to PostgreSQL ended");
            }
        });
        Ok((client, driven))
    }

    /// The same with its messages, for the listener.
    pub(crate) async fn connect_raw(&self) -> Result<(Client, Raw), tokio_postgres::Error> {
        self.config.connect(self.tls.clone()).await
    }

    /// A pool of such connections, which this runtime drives.
    pub(crate) fn pool(&self, connections: usize, deadline: Duration, runtime: &Handle) -> Pool {
        let recycling = ManagerConfig {
            recycling_method: RecyclingMethod::Fast,
        };
        let connect = ConnectOn {
            runtime: runtime.clone(),
            address: self.clone(),
        };
        let manager = Manager::from_connect(self.config.clone(), connect, recycling);
        Pool::builder(manager)
            .max_size(connections)
            .runtime(Runtime::Tokio1)
            .timeouts(Timeouts {
                wait: Some(deadline),
                create: Some(deadline.max(CONNECT_TIMEOUT)),
                recycle: Some(deadline),
            })
            .build()
            .expect("a pool with timeouts has a runtime")
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Address")
            .field("server", &self.server())
            .field("database", &self.database())
            .field("user", &self.user())
            .finish_non_exhaustive()
    }
}

/// Connects on one runtime, whichever runtime asks for a connection: that one may end
/// before the connection, or has requests to serve.
struct ConnectOn {
    runtime: Handle,
    address: Address,
}

impl Connect for ConnectOn {
    fn connect(
        &self,
        _: &Config,
    ) -> BoxFuture<'_, Result<(Client, JoinHandle<()>), tokio_postgres::Error>> {
        let address = self.address.clone();
        let connecting = self.runtime.spawn(async move { address.connect().await });
        let connecting = AbortOnDropHandle::new(connecting);
        async move {
            match connecting.await {
                Ok(connected) => connected,
                // The runtime is ending; the time limit of the pool ends the wait.
                Err(_) => std::future::pending().await,
            }
        }
        .boxed()
    }
}

/// A connection whose messages the caller polls.
pub(crate) type Raw = tokio_postgres::Connection<
    tokio_postgres::Socket,
    <MakeRustlsConnect as tokio_postgres::tls::MakeTlsConnect<tokio_postgres::Socket>>::Stream,
>;

fn trust_of(value: &str) -> Result<Trust, AddressError> {
    match value {
        "disable" => Ok(Trust::Disable),
        "prefer" | "allow" => Ok(Trust::Prefer),
        "require" => Ok(Trust::Require),
        "verify-full" | "verify-ca" => Ok(Trust::VerifyFull),
        _ => Err(AddressError::Parameter {
            name: "sslmode",
            value: value.to_owned(),
            choices: "disable, prefer, require and verify-full",
        }),
    }
}

fn pooler_of(value: &str) -> Result<Pooler, AddressError> {
    match value {
        "true" => Ok(Pooler::Transactions),
        "false" => Ok(Pooler::None),
        _ => Err(AddressError::Parameter {
            name: "pgbouncer",
            value: value.to_owned(),
            choices: "true and false",
        }),
    }
}

fn tls(trust: Trust, root: Option<&str>) -> Result<MakeRustlsConnect, AddressError> {
    let provider = Arc::new(ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider.clone());
    let builder = builder
        .with_safe_default_protocol_versions()
        .map_err(AddressError::Tls)?;
    // As with libpq: a certificate to trust makes `require` verify.
    let config = if trust == Trust::VerifyFull || root.is_some() {
        builder
            .with_root_certificates(roots(root)?)
            .with_no_client_auth()
    } else {
        builder
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(Anyone(provider)))
            .with_no_client_auth()
    };
    Ok(MakeRustlsConnect::new(config))
}

fn roots(path: Option<&str>) -> Result<RootCertStore, AddressError> {
    let mut roots = RootCertStore::empty();
    let Some(path) = path else {
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        return Ok(roots);
    };
    let unreadable = |source: Box<dyn std::error::Error + Send + Sync>| AddressError::Root {
        path: path.to_owned(),
        source,
    };
    let certificates = CertificateDer::pem_file_iter(path).map_err(|e| unreadable(Box::new(e)))?;
    for certificate in certificates {
        let certificate = certificate.map_err(|e| unreadable(Box::new(e)))?;
        roots
            .add(certificate)
            .map_err(|e| unreadable(Box::new(e)))?;
    }
    Ok(roots)
}

/// Encrypts without verifying the server, as libpq does for `prefer` and `require`.
#[derive(Debug)]
struct Anyone(Arc<CryptoProvider>);

impl ServerCertVerifier for Anyone {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signed, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signed, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
