//! Notifications of operations that other processes settle. A notification is a hint:
//! waiters poll now and then, so a lost one only delays them.

use std::future::poll_fn;
use std::sync::Arc;
use std::time::Duration;

use data_encoding::HEXLOWER;
use onceward_core::deadline::within;
use onceward_core::identity::Digest;
use onceward_core::notifier::Notifier;
use tokio::time::sleep;
use tokio_postgres::AsyncMessage;

use super::address::Address;
use super::error::Error;

/// The pause before a lost connection is replaced, at first and at most.
const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(5);
/// How often a silent connection is tested, because a dead one is silent too.
const AGAIN: Duration = Duration::from_secs(5);
/// How long the server may take to answer.
const ANSWER_MAX: Duration = Duration::from_secs(5);

/// Listens for ever, and wakes the waiters of every operation of this namespace.
pub(crate) async fn listen(
    address: Address,
    channel: String,
    namespace: String,
    notifier: Arc<Notifier>,
) {
    let mut pause = PAUSE_MIN;
    loop {
        match hear(&address, &channel, &namespace, &notifier).await {
            Ok(()) => pause = PAUSE_MIN,
            Err(error) => {
                tracing::warn!(
                    %error,
                    "cannot listen for notifications of PostgreSQL; waiters poll instead"
                );
            }
        }
        sleep(pause).await;
        pause = (pause * 2).min(PAUSE_MAX);
    }
}

/// Listens until the connection ends or stops answering.
async fn hear(
    address: &Address,
    channel: &str,
    namespace: &str,
    notifier: &Notifier,
) -> Result<(), Error> {
    let (client, mut connection) = in_time(address.connect_raw()).await?;
    let listen = format!("LISTEN \"{channel}\"");
    let asked = async {
        loop {
            // A repeated LISTEN changes nothing; it tests the connection.
            in_time(client.batch_execute(&listen)).await?;
            sleep(AGAIN).await;
        }
    };
    let heard = async {
        while let Some(message) = poll_fn(|context| connection.poll_message(context)).await {
            if let AsyncMessage::Notification(note) = message?
                && let Some(digest) = digest_of(note.payload(), namespace)
            {
                notifier.notify(&digest);
            }
        }
        Ok(())
    };
    tokio::select! {
        refused = asked => refused,
        ended = heard => ended,
    }
}

async fn in_time<T>(
    answer: impl Future<Output = Result<T, tokio_postgres::Error>>,
) -> Result<T, Error> {
    match within(ANSWER_MAX, answer).await {
        Ok(answer) => Ok(answer?),
        Err(_) => Err(Error::TooSlow(ANSWER_MAX)),
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
    fn only_notifications_of_the_own_namespace_are_received() {
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
