//! Hearing of what other processes settle. A notification is a hint: whoever
//! waits looks for itself now and then, so nothing depends on one that is lost.

use std::future::poll_fn;
use std::sync::Arc;
use std::time::Duration;

use data_encoding::HEXLOWER;
use onceward_core::bell::Bells;
use onceward_core::identity::Digest;
use tokio::time::sleep;
use tokio_postgres::AsyncMessage;

use super::connect::Address;

/// The rest before a lost connection is made again, at first and at most.
const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// Listens for ever, and rings for every operation of this namespace.
pub(crate) async fn listen(
    address: Address,
    channel: String,
    namespace: String,
    bells: Arc<Bells>,
) {
    let mut pause = PAUSE_MIN;
    loop {
        match hear(&address, &channel, &namespace, &bells).await {
            Ok(()) => pause = PAUSE_MIN,
            Err(error) => {
                let error = super::fault::words(&error);
                tracing::warn!(
                    error,
                    "cannot listen to PostgreSQL; waiters look for themselves"
                );
            }
        }
        sleep(pause).await;
        pause = (pause * 2).min(PAUSE_MAX);
    }
}

/// Listens until the connection ends.
async fn hear(
    address: &Address,
    channel: &str,
    namespace: &str,
    bells: &Bells,
) -> Result<(), tokio_postgres::Error> {
    let (client, mut connection) = address.connect_raw().await?;
    let asked = async {
        let asked = client.batch_execute(&format!("LISTEN \"{channel}\"")).await;
        // The connection lasts as long as its client.
        if asked.is_ok() {
            std::future::pending::<()>().await;
        }
        asked
    };
    let heard = async {
        while let Some(message) = poll_fn(|context| connection.poll_message(context)).await {
            if let AsyncMessage::Notification(note) = message?
                && let Some(digest) = digest_of(note.payload(), namespace)
            {
                bells.ring(&digest);
            }
        }
        Ok(())
    };
    tokio::select! {
        refused = asked => refused,
        ended = heard => ended,
    }
}

/// `namespace:digest`, if it is about this namespace.
fn digest_of(payload: &str, namespace: &str) -> Option<Digest> {
    let hex = payload.strip_prefix(namespace)?.strip_prefix(':')?;
    let bytes = HEXLOWER.decode(hex.as_bytes()).ok()?;
    Some(Digest::from_bytes(bytes.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_notes_about_our_own_are_heard() {
        let hex = "07".repeat(32);
        let digest = Some(Digest::from_bytes([7; 32]));
        assert_eq!(digest_of(&format!("edge:{hex}"), "edge"), digest);
        for other in [
            format!("edges:{hex}"),
            format!("edge{hex}"),
            format!("edge:{hex}07"),
            "edge:zz".to_owned(),
            String::new(),
        ] {
            assert_eq!(digest_of(&other, "edge"), None, "{other}");
        }
    }
}
