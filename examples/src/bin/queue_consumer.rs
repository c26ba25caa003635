//! A consumer of a queue that delivers at least once. The key is the message's id:
//! a redelivered message is acknowledged and does not run again.
//!
//! A message that failed for good goes to the dead letters, and again when it is
//! redelivered: acknowledging it silently would lose the failure if the first
//! report was lost.
//!
//! Messages are lines of JSON on standard input, results are lines on standard
//! output:
//!
//! ```sh
//! echo '{"id":"m-1","member":"anna","points":5}' |
//!     cargo run -p onceward-examples --bin queue_consumer -- postgres://…
//! ```
#![allow(clippy::print_stdout)]

use std::fmt;
use std::io::BufRead as _;

use anyhow::Context as _;
use onceward::postgres::{Records, migrate};
use onceward::{Begun, Entropy, Failure, Fresh, Namespace, StoredError, parse_key};
use serde::{Deserialize, Serialize};
use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, NoTls, Transaction};

const TABLES: &str = "
    CREATE TABLE IF NOT EXISTS member (name text PRIMARY KEY);
    CREATE TABLE IF NOT EXISTS points (member text NOT NULL REFERENCES member, points bigint NOT NULL);
    INSERT INTO member VALUES ('anna') ON CONFLICT DO NOTHING;
";

#[derive(Deserialize)]
struct Message {
    id: String,
    #[serde(flatten)]
    award: Award,
}

/// The request of a message, which is compared when it is redelivered.
#[derive(Deserialize, Serialize)]
struct Award {
    member: String,
    points: i64,
}

/// Errors that are final.
#[derive(Debug, thiserror::Error)]
#[error("there is no member {0:?}")]
struct NoMember(String);

impl Failure for NoMember {
    fn class(&self) -> &str {
        "no-member"
    }

    fn restore(_: &StoredError) -> Option<Self> {
        // Dead letters carry the error as it was stored.
        None
    }
}

/// The answer to the queue.
enum Verdict {
    /// Done now.
    Done,
    /// Done before: nothing was run.
    DoneBefore,
    /// Failed for good.
    DeadLetter(StoredError),
    /// Nothing was done; deliver it again.
    Later(String),
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Done => write!(f, "ack"),
            Self::DoneBefore => write!(f, "ack, done before"),
            Self::DeadLetter(error) => write!(f, "dead letter, {}: {error}", error.class),
            Self::Later(why) => write!(f, "later, {why}"),
        }
    }
}

struct Consumer {
    client: Client,
    namespace: Namespace,
    records: Records,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let database = std::env::args().nth(1).context("say which database")?;
    migrate::apply(&database, &migrate::Options::default()).await?;
    let (client, connection) = tokio_postgres::connect(&database, NoTls).await?;
    // It ends with the client.
    tokio::spawn(connection);
    client.batch_execute(TABLES).await?;
    let namespace = Namespace::new("awards")?;
    let mut consumer = Consumer {
        client,
        records: Records::new(namespace.clone(), Entropy::system()?),
        namespace,
    };
    for line in std::io::stdin().lock().lines() {
        let message: Message = serde_json::from_str(&line?)?;
        let verdict = consumer.take(&message).await;
        let verdict = verdict.unwrap_or_else(|error| Verdict::Later(format!("{error:#}")));
        println!("{}: {verdict}", message.id);
    }
    Ok(())
}

impl Consumer {
    /// Handles one delivery. An error means that nothing was done.
    async fn take(&mut self, message: &Message) -> anyhow::Result<Verdict> {
        let key = parse_key(&self.namespace, Some(&message.id))?;
        let key = key.context("a message has an id")?;
        let mut tx = self.client.transaction().await?;
        let mut awards = self.records.with_tx(&tx).typed::<Award, i64>();
        let begun = awards.begin(&key, &message.award).await?;
        let verdict = match begun {
            Begun::Fresh(fresh) => award(&self.records, &mut tx, fresh, &message.award).await?,
            Begun::PriorResult(_) => Verdict::DoneBefore,
            Begun::PriorError(error) => Verdict::DeadLetter(error),
            Begun::InFlight => Verdict::Later("another consumer has it".to_owned()),
            Begun::Mismatch(_) => {
                let words = "another message had this id before";
                Verdict::DeadLetter(StoredError::new("id-reused", words))
            }
        };
        // The result is durable when this returns: after an earlier crash the
        // message is redelivered, and runs.
        tx.commit().await?;
        Ok(verdict)
    }
}

async fn award(
    records: &Records,
    tx: &mut Transaction<'_>,
    fresh: Fresh,
    award: &Award,
) -> anyhow::Result<Verdict> {
    let work = tx.savepoint("work").await?;
    let insert = "INSERT INTO points (member, points) VALUES ($1, $2)";
    let written = work.execute(insert, &[&award.member, &award.points]).await;
    match written {
        Ok(_) => {
            work.commit().await?;
            let mut awards = records.with_tx(&*tx).typed::<Award, i64>();
            awards.commit(fresh, &award.points).await?;
            Ok(Verdict::Done)
        }
        Err(error) if error.code() == Some(&SqlState::FOREIGN_KEY_VIOLATION) => {
            work.rollback().await?;
            let error = NoMember(award.member.clone());
            let mut awards = records.with_tx(&*tx).typed::<Award, i64>();
            awards.fail_permanent(fresh, &error).await?;
            Ok(Verdict::DeadLetter(StoredError::of(&error)))
        }
        // A transient error: everything is rolled back, and the key is free.
        Err(error) => Err(error.into()),
    }
}
