//! The one place that puts a time limit on a step of a store.

use std::time::Duration;

use crate::store::StoreError;

/// The store did not answer in time.
#[derive(Debug, thiserror::Error)]
#[error("the store did not answer within {0:?}")]
struct TimedOut(Duration);

/// Runs a step of a store with a time limit. A step that takes longer is
/// [`StoreError::Unavailable`]: whether it took effect is not known.
pub async fn within<T, E: From<StoreError>>(
    limit: Duration,
    step: impl Future<Output = Result<T, E>>,
) -> Result<T, E> {
    match tokio::time::timeout(limit, step).await {
        Ok(answer) => answer,
        Err(_) => Err(StoreError::Unavailable(Box::new(TimedOut(limit))).into()),
    }
}
