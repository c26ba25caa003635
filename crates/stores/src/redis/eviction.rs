//! Whether Redis keeps what it is given. Servers are asked when the store opens,
//! and now and then again by whoever records something new: an operator may have
//! set another policy, or a failover have led to a server that has another.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::RedisStore;
use super::error::{Fault, Step};
use super::response;
use super::script::POLICY;
use super::shard::{Name, SHARDS};

/// The only policy under which Redis forgets nothing by itself.
pub(super) const NO_EVICTION: &str = "noeviction";
/// How long a server is believed.
const BELIEVED: Duration = Duration::from_secs(10);

/// Which shards lie on servers that keep everything, as far as is known.
pub(super) struct Policies(Mutex<[Option<Seen>; SHARDS]>);

/// A server was seen to keep everything.
#[derive(Clone, Copy)]
struct Seen {
    at: Instant,
    /// By which connection.
    connection: u64,
}

impl Policies {
    /// All were just seen to, by the first connections.
    pub(super) fn seen() -> Self {
        let seen = Seen {
            at: Instant::now(),
            connection: 0,
        };
        Self(Mutex::new([Some(seen); SHARDS]))
    }

    fn lock(&self) -> MutexGuard<'_, [Option<Seen>; SHARDS]> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl RedisStore {
    /// Whether what is recorded of this operation stays recorded.
    pub(super) async fn keeps(&self, name: Name) -> Step<()> {
        let shard = self.shards.with(name);
        let connection = self.lines.connection_of(shard);
        let seen = self.policies.lock()[shard.number];
        if seen.is_some_and(|seen| seen.connection == connection && seen.at.elapsed() < BELIEVED) {
            return Ok(());
        }
        let at = Instant::now();
        let told = self.lines.ask_about(shard, POLICY.on(&shard.keys)).await?;
        match response::bytes(told)? {
            Some(policy) if policy != NO_EVICTION.as_bytes() => {
                // Others on the same server are not to find out one by one.
                *self.policies.lock() = [None; SHARDS];
                let policy = String::from_utf8_lossy(&policy).into_owned();
                Err(Fault::Evicts { policy })
            }
            // Whoever does not tell a script told it when the store opened.
            _ => {
                self.policies.lock()[shard.number] = Some(Seen { at, connection });
                Ok(())
            }
        }
    }
}
