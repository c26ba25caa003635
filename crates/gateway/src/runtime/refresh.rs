//! What operators keep in a store that several gateways share, read again and
//! again: API keys, classes and webhooks.
//!
//! A change is in force at once where it was made. The others learn of it here,
//! so a key that was revoked opens them for a moment longer. What cannot be
//! read leaves all as it was.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{sleep, timeout};

use crate::callers::api_keys::ApiKeys;
use crate::runtime::classes::Classes;
use crate::webhooks::registry::Webhooks;

/// How long a gateway rests before it reads again.
const REFRESH_INTERVAL: Duration = Duration::from_secs(3);
/// How long reading all of one kind may take.
const REFRESH_DEADLINE: Duration = Duration::from_secs(10);

/// Reads again for as long as the gateway lives.
pub(crate) async fn keep_fresh(
    api_keys: Arc<ApiKeys>,
    classes: Arc<Classes>,
    webhooks: Arc<Webhooks>,
) {
    loop {
        sleep(REFRESH_INTERVAL).await;
        read_again("API keys", api_keys.refresh()).await;
        read_again("classes", classes.refresh()).await;
        read_again("webhooks", webhooks.refresh()).await;
    }
}

async fn read_again<E: std::fmt::Display>(
    what: &str,
    reading: impl Future<Output = Result<(), E>>,
) {
    match timeout(REFRESH_DEADLINE, reading).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => {
            tracing::warn!(%error, what, "could not be read again; those known so far hold");
        }
        Err(_) => {
            tracing::warn!(
                what,
                "could not be read again in time; those known so far hold"
            );
        }
    }
}
