//! What the tests are written with: a directory, a clock, numbered operations,
//! and this very program as another process.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use onceward_core::caller::Caller;
use onceward_core::class::{AfterLoss, Class, Terms};
use onceward_core::clock::{ManualClock, Timestamp};
use onceward_core::fingerprint::{Algorithm, Fingerprint};
use onceward_core::identity::{Endpoint, Identity, KeySpace, OperationId};
use onceward_core::key::Key;
use onceward_core::record::{Answer, Attempt, Record, Reply, Settled, Settlement};
use onceward_core::store::{Ask, Claim, Grant, Store};
use onceward_stores::embedded::EmbeddedStore;
use tempfile::TempDir;

/// Where the child finds the directory of its store.
const DIRECTORY: &str = "ONCEWARD_TEST_DIRECTORY";
/// Nothing here takes longer, on any machine.
const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) fn directory() -> TempDir {
    TempDir::new().expect("a temporary directory can be made")
}

pub(crate) fn clock() -> Arc<ManualClock> {
    Arc::new(ManualClock::new(Timestamp::from_unix_ms(1_700_000_000_000)))
}

pub(crate) fn open(path: &Path, clock: &Arc<ManualClock>) -> EmbeddedStore {
    EmbeddedStore::open(path, clock.clone()).expect("the store opens")
}

pub(crate) fn terms(after_loss: AfterLoss) -> Terms {
    Terms {
        after_loss,
        ..Class::interactive().terms()
    }
}

/// The request for the operation of this number.
pub(crate) fn ask(number: u64) -> Ask {
    ask_with(number, terms(AfterLoss::Hold))
}

pub(crate) fn ask_with(number: u64, terms: Terms) -> Ask {
    let identity = Identity {
        caller: Caller::local(),
        endpoint: Endpoint::new("payments.create"),
        key: Key::parse(&format!("key-{number}")).expect("a good key"),
        space: KeySpace::Endpoint,
    };
    let digest = identity.digest();
    Ask {
        digest,
        identity,
        fingerprint: Fingerprint {
            algorithm: Algorithm::Json1,
            digest: *digest.as_bytes(),
            sender: [7; 16],
        },
        terms,
        attempt: Attempt(u128::from(number) << 32),
        id: OperationId::new(&digest, number),
    }
}

/// The same request by another attempt.
pub(crate) fn retry(ask: &Ask) -> Ask {
    Ask {
        attempt: Attempt(ask.attempt.0 + 1),
        ..ask.clone()
    }
}

/// The reply to the operation of this number; no two are alike.
pub(crate) fn reply(number: u64) -> Arc<Reply> {
    let body = format!("paid {number} ").repeat(1 + number as usize % 7);
    Arc::new(Reply {
        status: 201,
        headers: vec![(
            Bytes::from_static(b"content-type"),
            Bytes::from_static(b"text/plain"),
        )],
        body: body.into(),
        trailers: vec![(
            Bytes::from_static(b"checked"),
            Bytes::from_static(b"\xff\x00"),
        )],
    })
}

pub(crate) async fn grant(store: &dyn Store, ask: &Ask) -> Grant {
    match store.claim(ask).await.expect("the store answers") {
        Claim::Granted(grant) => grant,
        other => panic!("not granted: {other:?}"),
    }
}

pub(crate) async fn settle(store: &dyn Store, grant: &Grant, word: Settlement) {
    let settled = store.settle(&grant.digest, grant.fence, word).await;
    assert_eq!(settled.expect("the store answers"), Settled::Done);
}

pub(crate) fn completed(number: u64) -> Settlement {
    Settlement::Completed(Answer::Kept(reply(number)))
}

/// Runs the operation of this number to its end.
pub(crate) async fn complete(store: &dyn Store, number: u64) {
    let grant = grant(store, &ask(number)).await;
    settle(store, &grant, completed(number)).await;
}

pub(crate) async fn get(store: &dyn Store, ask: &Ask) -> Option<Arc<Record>> {
    store.get(&ask.digest).await.expect("the store answers")
}

/// Whether the operation of this number is replayed byte for byte.
pub(crate) async fn is_replayed(store: &dyn Store, number: u64) -> bool {
    let record = get(store, &ask(number)).await;
    record.is_some_and(|record| record.answer == Some(Answer::Kept(reply(number))))
}

/// The directory that this process is to use, if it is a child.
pub(crate) fn directory_as_child() -> Option<std::path::PathBuf> {
    std::env::var_os(DIRECTORY).map(Into::into)
}

/// This program as a child that runs one test function, with the parent's
/// directory, behind a shell that first does `before`.
pub(crate) fn child(test: &str, directory: &Path, before: &str) -> Running {
    let program = std::env::current_exe().expect("the test's own path");
    let child = Command::new("sh")
        .arg("-c")
        .arg(format!(
            "{before} exec \"$0\" {test} --exact --nocapture 2>/dev/null"
        ))
        .arg(program)
        .env(DIRECTORY, directory)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn();
    Running(child.expect("the test's own program starts"))
}

/// A child that does not outlive the test.
pub(crate) struct Running(pub(crate) Child);

impl Running {
    /// Ends it without a warning.
    pub(crate) fn kill(&mut self) {
        self.0.kill().expect("the child is ours");
        self.0.wait().expect("the child ends");
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Looks until there is something.
pub(crate) fn wait_until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(begun.elapsed() < PATIENCE, "waited in vain until {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}
