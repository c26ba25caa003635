//! Real servers for tests: PostgreSQL, PgBouncer, Redis and Redis Cluster; and the
//! webhook providers' own SDKs, which sign what the gateway receives.
//!
//! Each server starts in its own temporary directory, on a free port of 127.0.0.1,
//! and is ready when its constructor returns. Dropping it ends its processes by
//! their ids and removes the directory. So does the end of the test's process,
//! however it comes (`guard`).
//!
//! The calls block and nothing here is async: a test may use them from anywhere. A
//! failure is a panic that shows the server's log, because a test cannot recover
//! from it. A server that is not installed is a panic too, never a skipped test.

#![allow(clippy::disallowed_methods, reason = "servers for tests")]

mod cluster;
mod directory;
mod guard;
mod pgbouncer;
mod port;
mod postgres;
mod process;
mod program;
mod redis;
mod sdk;
mod server;
mod template;

pub use self::cluster::RedisCluster;
pub use self::pgbouncer::PgBouncer;
pub use self::postgres::Postgres;
pub use self::redis::Redis;
pub use self::sdk::{ProviderRequest, Signed, Signer, Verification};
