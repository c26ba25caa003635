//! The eviction policy: Redis must keep every record. The policy is checked when
//! the store opens, and again now and then before something new is recorded: an
//! operator may have changed it, or a failover may have led to another server.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

use super::RedisStore;
use super::error::{Error, Result};
use super::response;
use super::script::POLICY;
use super::shard::SHARDS;
use crate::lookup::Lookup;

/// The only policy under which Redis never removes data by itself.
pub(super) const NO_EVICTION: &str = "noeviction";
/// How long a check is valid.
const VALID_FOR: Duration = Duration::from_secs(10);

/// The last successful check of each shard's server.
pub(super) struct EvictionPolicies(Mutex<[Option<PolicyCheck>; SHARDS]>);

/// A server had the right policy.
#[derive(Clone, Copy)]
struct PolicyCheck {
    at: Instant,
    /// The connection that led to the server.
    connection: u64,
}

impl EvictionPolicies {
    /// All servers were checked just now, by their first connections.
    pub(super) fn just_checked() -> Self {
        let check = PolicyCheck {
            at: Instant::now(),
            connection: 0,
        };
        Self(Mutex::new([Some(check); SHARDS]))
    }

    fn lock(&self) -> MutexGuard<'_, [Option<PolicyCheck>; SHARDS]> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl RedisStore {
    /// Returns an error if the server may evict the record of this operation.
    pub(super) async fn check_eviction(&self, lookup: Lookup) -> Result<()> {
        let shard = self.shards.with(lookup);
        let connection = self.connections.connection_number(shard);
        let last = self.policies.lock()[shard.number];
        let is_valid =
            |check: PolicyCheck| check.connection == connection && check.at.elapsed() < VALID_FOR;
        if last.is_some_and(is_valid) {
            return Ok(());
        }
        let at = Instant::now();
        let policy = POLICY.on(&shard.keys);
        let policy = self.connections.run_on(shard, policy).await?;
        match response::bytes(policy)? {
            Some(policy) if policy != NO_EVICTION.as_bytes() => {
                // Other shards may be on the same server: they are checked again too.
                *self.policies.lock() = [None; SHARDS];
                let policy = String::from_utf8_lossy(&policy).into_owned();
                Err(Error::Evicts { policy })
            }
            // A server that hides the policy from scripts showed it at the start.
            _ => {
                self.policies.lock()[shard.number] = Some(PolicyCheck { at, connection });
                Ok(())
            }
        }
    }
}
