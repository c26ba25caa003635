//! Secrets are nowhere but in the answer that shows them: not in the store's
//! files, not in the log, not in metrics, problems, the audit or what operators
//! see.

use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use data_encoding::{BASE64, BASE64_NOPAD, HEXLOWER, HEXLOWER_PERMISSIVE, HEXUPPER};
use serde_json::json;
use tempfile::TempDir;
use tracing_subscriber::fmt::MakeWriter;

use super::signers::Kind;
use super::{Hook, house_at};
use crate::harness::{Reply, origin};

/// A log in memory.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    fn bytes(&self) -> Vec<u8> {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut held = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        held.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Log {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}

/// The ways to write a secret down: as it is, and what it stands for, in each
/// of the usual encodings.
fn spellings(secret: &str) -> Vec<Vec<u8>> {
    let mut bytes = vec![secret.as_bytes().to_vec()];
    let tail = secret.rsplit(['_', ':']).next().unwrap().as_bytes();
    bytes.push(tail.to_vec());
    bytes.extend(BASE64.decode(tail));
    bytes.extend(HEXLOWER_PERMISSIVE.decode(tail));
    let encoded = bytes.iter().flat_map(|bytes| {
        [
            BASE64_NOPAD.encode(bytes),
            HEXLOWER.encode(bytes),
            HEXUPPER.encode(bytes),
        ]
    });
    let encoded: Vec<_> = encoded.map(String::into_bytes).collect();
    bytes.extend(encoded);
    bytes
}

fn contains(held: &[u8], wanted: &[u8]) -> bool {
    memchr::memmem::find(held, wanted).is_some()
}

/// All files of a directory, with what is in them.
fn files(directory: &Path, found: &mut Vec<(String, Vec<u8>)>) {
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files(&path, found);
        } else {
            found.push((path.display().to_string(), std::fs::read(&path).unwrap()));
        }
    }
}

#[tokio::test]
async fn no_secret_is_anywhere() {
    let log = Log::default();
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(tracing::Level::TRACE)
        .with_writer(log.clone())
        .finish();
    // For all threads of the process: the store writes in one of its own.
    tracing::subscriber::set_global_default(subscriber).unwrap();
    let directory = TempDir::new().unwrap();
    // Some events wait in the store when it is looked at.
    let origin = origin().replying(|seen, _| {
        let waits = seen.text().contains("note 2");
        Reply::new(if waits { 500 } else { 200 }, "taken")
    });
    let house = house_at(origin.run().await, directory.path()).await;

    let mut secrets = Vec::new();
    let mut seen: Vec<(String, Vec<u8>)> = Vec::new();
    for kind in Kind::ALL {
        let hook = house.hook_with(kind, json!({ "deliver": "async" })).await;
        let new = kind.secret();
        let rotate = format!("/admin/v1/webhooks/{}/rotate", hook.id);
        let rotated = house
            .operate(&rotate, json!({ "secret": new, "why": "a test" }))
            .await;
        // What the upstream needs is shown on purpose.
        assert_eq!(rotated["signing_secret"], *hook.signing_secret);
        assert!(!rotated.to_string().contains(&new), "{kind:?}");
        let stranger = kind.secret();
        for (number, secret) in [(1, &hook.secret), (2, &new), (3, &stranger)] {
            let sent = hook.letter(number).secret(secret).signed();
            let told = house.send(&hook, &sent).await;
            seen.push((format!("{kind:?}: told"), told.body.to_vec()));
        }
        let without = hook.letter(4).without_id().signed();
        for sent in [without, hook.event(5).with("webhook-id", "x")] {
            let told = house.send(&hook, &sent).await;
            seen.push((format!("{kind:?}: told"), told.body.to_vec()));
        }
        // As a mistake of the operator's.
        for ask in [
            json!({ "secret": format!(" {new}"), "why": "a test" }),
            json!({ "secret": [&new], "why": "a test" }),
            json!({ "secret": new, "overlap": new, "why": "a test" }),
        ] {
            let told = house.gateway.change(&rotate, &ask.to_string()).send().await;
            if ask["overlap"].is_null() {
                seen.push((format!("{kind:?}: refused"), told.body.to_vec()));
            }
        }
        // A stranger's may be a mistake of the provider's own.
        secrets.extend([
            hook.secret.clone(),
            new,
            stranger,
            hook.signing_secret.clone(),
        ]);
    }
    for kind in [Kind::GitHub, Kind::Svix, Kind::Postmark, Kind::Acme] {
        let hook = house.generated(kind).await;
        house.accepted(&hook, &hook.event(1)).await;
        secrets.push(hook.secret);
    }
    house.called(&stripe(&house).await, 1).await;

    for path in [
        "/metrics",
        "/admin/v1/webhooks",
        "/admin/v1/operations?limit=1000",
        "/admin/v1/audit?limit=200",
    ] {
        let told = house.gateway.admin(path).await;
        assert_eq!(told.status, 200, "{path}");
        seen.push((path.to_owned(), told.body.to_vec()));
    }
    let listed = house.gateway.admin("/admin/v1/webhooks").await.json();
    for hook in listed["webhooks"].as_array().unwrap() {
        let path = format!(
            "/admin/v1/webhooks/{}",
            hook["webhook_id"].as_str().unwrap()
        );
        seen.push((path.clone(), house.gateway.admin(&path).await.body.to_vec()));
    }
    for operation in house.operations("").await {
        let id = operation["operation_id"].as_str().unwrap();
        let path = format!("/admin/v1/operations/{id}?body=1");
        seen.push((path.clone(), house.gateway.admin(&path).await.body.to_vec()));
    }
    let mut stored = Vec::new();
    files(directory.path(), &mut stored);
    // What is on its way to the upstream is in the store, so this looks where
    // something is.
    assert!(stored.iter().any(|(_, held)| contains(held, b"note 2")));
    seen.extend(stored);
    let logged = log.bytes();
    assert!(contains(&logged, b"service:webhook-ingest") || contains(&logged, b"webhooks."));
    seen.push(("the log".to_owned(), logged));

    for secret in &secrets {
        for spelling in spellings(secret) {
            for (place, held) in &seen {
                assert!(!contains(held, &spelling), "{secret} is in {place}");
            }
        }
    }
}

/// The webhook of Stripe's that was made first.
async fn stripe(house: &super::House) -> Hook {
    let listed = house
        .gateway
        .admin("/admin/v1/webhooks?provider=stripe")
        .await
        .json();
    let text = |name: &str| listed["webhooks"][0][name].as_str().unwrap().to_owned();
    Hook {
        kind: Kind::Stripe,
        id: text("webhook_id"),
        secret: String::new(),
        path: text("path"),
        signing_secret: String::new(),
    }
}
