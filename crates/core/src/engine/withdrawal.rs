//! Claims whose answer was lost. The store may have granted them, and nothing
//! was forwarded under them, so the key must not stay taken.

use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::time::sleep;

use super::detached::runtime_after_drop;
use super::{Engine, Permit};
use crate::identity::Digest;
use crate::record::Attempt;

/// The pauses after which a withdrawal is repeated: a claim that was sent on an
/// abandoned connection, or that waited for a standby to commit, may arrive
/// behind the first withdrawal.
const REPEATS: [Duration; 3] = [
    Duration::from_secs(1),
    Duration::from_secs(10),
    Duration::from_secs(60),
];
/// How many withdrawals are being repeated at once; further ones are not repeated.
const REPEATING_MAX: usize = 10_000;

/// A claim without an answer so far. Dropped before its answer, because the
/// store failed or the client has gone, it is withdrawn.
pub(super) struct PendingClaim<'a> {
    engine: &'a Arc<Engine>,
    runtime: Option<Handle>,
    digest: Digest,
    attempt: Attempt,
    is_answered: bool,
}

impl<'a> PendingClaim<'a> {
    pub(super) fn new(engine: &'a Arc<Engine>, digest: Digest, attempt: Attempt) -> Self {
        Self {
            engine,
            runtime: Handle::try_current().ok(),
            digest,
            attempt,
            is_answered: false,
        }
    }

    /// The answer has come: there is nothing to withdraw.
    pub(super) fn answered(mut self) {
        self.is_answered = true;
    }
}

impl Drop for PendingClaim<'_> {
    fn drop(&mut self) {
        if self.is_answered {
            return;
        }
        if let Some(runtime) = runtime_after_drop(self.runtime.as_ref()) {
            withdraw(self.engine, &runtime, self.digest, self.attempt);
        }
    }
}

/// Withdraws a claim in the background. The number of withdrawals is bounded, so
/// that they do not pile up while the store is unavailable for long; a claim that
/// is not withdrawn ends with its lease.
fn withdraw(engine: &Arc<Engine>, runtime: &Handle, digest: Digest, attempt: Attempt) {
    let Some(permit) = Permit::take(&engine.withdrawals, engine.limits().withdrawals) else {
        tracing::error!("too many withdrawals; a claim is left to its lease");
        return;
    };
    let engine = engine.clone();
    let tasks = engine.tasks.clone();
    let work = async move {
        let step = || engine.store.withdraw(&digest, attempt);
        if let Err(error) = engine.until_recorded(step).await {
            tracing::error!(%error, "claim without an answer not withdrawn; left to its lease");
            return;
        }
        // The repeats take over a minute, and most of them find nothing. Other claims
        // must not go without their first withdrawal meanwhile.
        drop(permit);
        repeat(engine, digest, attempt);
    };
    tasks.spawn_on(work, runtime);
}

/// Repeats a withdrawal in the background. Shutdown does not wait for it.
fn repeat(engine: Arc<Engine>, digest: Digest, attempt: Attempt) {
    let Some(permit) = Permit::take(&engine.repeated_withdrawals, REPEATING_MAX) else {
        tracing::warn!("too many withdrawals to repeat; a late claim is left to its lease");
        return;
    };
    tokio::spawn(async move {
        for pause in REPEATS {
            sleep(pause).await;
            let step = engine.store.withdraw(&digest, attempt);
            if let Err(error) = engine.within_deadline(step).await {
                tracing::warn!(%error, "withdrawal not repeated; a late claim is left to its lease");
            }
        }
        drop(permit);
    });
}
