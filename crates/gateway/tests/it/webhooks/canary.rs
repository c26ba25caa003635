//! Secrets appear only in the answer that shows them: not in the store's files, the
//! log, metrics, problems, the audit or the operators' listings.

use std::collections::HashMap;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use data_encoding::{BASE64, BASE64_NOPAD, HEXLOWER, HEXLOWER_PERMISSIVE, HEXUPPER};
use serde_json::{Value, json};
use tempfile::TempDir;
use tracing_subscriber::fmt::MakeWriter;

use super::signers::{Kind, standard_tag};
use super::{Fixture, Hook, fixture_at, settings};
use crate::harness::{Reply, configured, origin};

/// The token for OpenBao.
const TOKEN: &str = "hvs.0d5f2c1e9b7a4836";

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

/// The forms of a secret: as it is and decoded, in each of the usual encodings.
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

/// All files of a directory, with their contents.
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
async fn no_secret_is_stored_logged_or_shown() {
    let log = Log::default();
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(tracing::Level::TRACE)
        .with_writer(log.clone())
        .finish();
    // For all threads of the process, because the store writes from its own thread.
    tracing::subscriber::set_global_default(subscriber).unwrap();
    let directory = TempDir::new().unwrap();
    // Some events wait in the store when it is searched.
    let origin = origin().replying(|seen, _| {
        let waits = seen.text().contains("note 2");
        Reply::new(if waits { 500 } else { 200 }, "taken")
    });
    let fixture = fixture_at(origin.run().await, directory.path()).await;

    let mut secrets = Vec::new();
    let mut seen: Vec<(String, Vec<u8>)> = Vec::new();
    elsewhere(&directory.path().join("other"), &mut secrets, &mut seen).await;
    for kind in Kind::ALL {
        let hook = fixture.hook_with(kind, json!({ "deliver": "async" })).await;
        let new = kind.secret();
        let rotate = format!("/admin/v1/webhooks/{}/rotate", hook.id);
        let rotated = fixture
            .operate(&rotate, json!({ "secret": new, "why": "a test" }))
            .await;
        // The upstream's signing secret is shown on purpose.
        assert_eq!(rotated["signing_secret"], *hook.signing_secret);
        assert!(!rotated.to_string().contains(&new), "{kind:?}");
        let stranger = kind.secret();
        for (number, secret) in [(1, &hook.secret), (2, &new), (3, &stranger)] {
            let sent = hook.unsigned(number).secret(secret).signed();
            let answer = fixture.send(&hook, &sent).await;
            seen.push((format!("{kind:?}: answer"), answer.body.to_vec()));
        }
        let without = hook.unsigned(4).without_id().signed();
        for sent in [without, hook.event(5).with("webhook-id", "x")] {
            let answer = fixture.send(&hook, &sent).await;
            seen.push((format!("{kind:?}: answer"), answer.body.to_vec()));
        }
        // An operator's mistake.
        for ask in [
            json!({ "secret": format!(" {new}"), "why": "a test" }),
            json!({ "secret": [&new], "why": "a test" }),
            json!({ "secret": new, "overlap": new, "why": "a test" }),
        ] {
            let answer = fixture
                .gateway
                .change(&rotate, &ask.to_string())
                .send()
                .await;
            if ask["overlap"].is_null() {
                seen.push((format!("{kind:?}: refused"), answer.body.to_vec()));
            }
        }
        // A stranger's request may be the provider's own mistake.
        secrets.extend([
            hook.secret.clone(),
            new,
            stranger,
            hook.signing_secret.clone(),
        ]);
    }
    for kind in [Kind::GitHub, Kind::Svix, Kind::Postmark, Kind::Acme] {
        let hook = fixture.generated(kind).await;
        fixture.accepted(&hook, &hook.event(1)).await;
        secrets.push(hook.secret);
    }
    fixture.called(&stripe(&fixture).await, 1).await;

    look(&fixture, &mut seen).await;
    let mut stored = Vec::new();
    files(directory.path(), &mut stored);
    // Queued events are in the store, so the search has data to look at.
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

/// Webhooks with secrets in OpenBao, and upstreams with configured signing secrets:
/// the gateway generated none of them, so no answer shows one.
async fn elsewhere(directory: &Path, secrets: &mut Vec<String>, seen: &mut Vec<(String, Vec<u8>)>) {
    let given = [Kind::Svix.secret(), Kind::Svix.secret()];
    let malformed = format!("no {}", Kind::Svix.secret());
    let kept: Vec<_> = Kind::ALL.map(|kind| (kind, kind.secret())).into();
    let at = |kind: Kind| format!("in-{kind:?}");
    let path = |project: &str, provider: &str| {
        format!("/v1/secret/data/webhooks/acme/{project}/{provider}")
    };
    let mut vault: HashMap<String, String> = kept
        .iter()
        .map(|(kind, secret)| (path(&at(*kind), kind.provider()), secret.clone()))
        .collect();
    vault.insert(path("malformed", "svix"), malformed.clone());
    vault.insert("/v1/secret/data/signing".to_owned(), given[1].clone());
    let bao = origin().replying(move |seen, _| match vault.get(&seen.target) {
        Some(secret) if seen.header("x-vault-token") == TOKEN => {
            let data = json!({ "data": { "secret": secret }, "metadata": {} });
            Reply::new(200, json!({ "data": data }).to_string())
        }
        _ => Reply::new(404, r#"{"errors": []}"#),
    });
    let (bao, origin) = (bao.run().await, origin().run().await);
    let more = format!(
        r#"
        [upstreams.given]
        url = "{0}"
        signing_secret = "{1}"
        [upstreams.kept]
        url = "{0}"
        signing_secret = {{ openbao = "signing", field = "secret" }}
        [secrets.openbao]
        address = "{2}"
        token = "{TOKEN}"
        "#,
        origin.url(),
        given[0],
        bao.url(),
    );
    let gateway = configured(&origin, &settings("", &more)).directory(directory);
    let gateway = gateway.run().await;
    let fixture = Fixture { origin, gateway };

    let ask = |project: &str, kind: Kind| {
        json!({
            "tenant": "acme", "project": project, "provider": kind.provider(),
            "scheme": kind.scheme(), "upstream": "origin", "why": "a test",
        })
    };
    for (kind, secret) in &kept {
        let mut ask = ask(&at(*kind), *kind);
        ask["path"] = format!("/kept/{kind:?}").into();
        let made = fixture.operate("/admin/v1/webhooks", ask).await;
        assert_eq!(made["webhook"]["secrets"]["kept"], "openbao");
        let hook = hook(*kind, secret, &made);
        fixture.accepted(&hook, &hook.event(1)).await;
        fixture.called(&hook, 1).await;
        seen.push((format!("{kind:?}: made"), made.to_string().into_bytes()));
    }
    let refused = ask("malformed", Kind::Svix).to_string();
    let refused = fixture.gateway.change("/admin/v1/webhooks", &refused);
    let refused = refused.send().await;
    assert_eq!(refused.status, 400);
    seen.push(("malformed: refused".to_owned(), refused.body.to_vec()));

    for (upstream, signing) in [("given", &given[0]), ("kept", &given[1])] {
        let secret = Kind::Svix.secret();
        let mut ask = ask("shop", Kind::Svix);
        ask["secrets"] = json!([&secret]);
        ask["upstream"] = upstream.into();
        ask["path"] = format!("/{upstream}").into();
        let made = fixture.operate("/admin/v1/webhooks", ask).await;
        let hook = hook(Kind::Svix, &secret, &made);
        let rotate = format!("/admin/v1/webhooks/{}/rotate", hook.id);
        let new = Kind::Svix.secret();
        let rotate = fixture.operate(&rotate, json!({ "secret": new, "why": "a test" }));
        for answer in [&made, &rotate.await] {
            assert_eq!(answer["signing_secret"], Value::Null, "{answer}");
            seen.push((upstream.to_owned(), answer.to_string().into_bytes()));
        }
        fixture.accepted(&hook, &hook.event(1)).await;
        let arrived = fixture.only(&hook).await;
        let [id, at] = ["webhook-id", "webhook-timestamp"].map(|name| arrived.header(name));
        let tag = standard_tag(signing, id, at, &arrived.body);
        assert_eq!(arrived.header("webhook-signature"), tag, "{upstream}");
        secrets.extend([secret, new]);
    }
    look(&fixture, seen).await;
    secrets.extend(kept.into_iter().map(|(_, secret)| secret));
    secrets.extend(given);
    secrets.extend([malformed, TOKEN.to_owned()]);
}

/// A webhook, and the answer to its creation.
fn hook(kind: Kind, secret: &str, made: &Value) -> Hook {
    Hook {
        kind,
        id: made["webhook_id"].as_str().unwrap().to_owned(),
        secret: secret.to_owned(),
        path: made["webhook"]["path"].as_str().unwrap().to_owned(),
        signing_secret: String::new(),
    }
}

/// Reads everything that an operator can read.
async fn look(fixture: &Fixture, seen: &mut Vec<(String, Vec<u8>)>) {
    for path in [
        "/metrics",
        "/admin/v1/webhooks",
        "/admin/v1/operations?limit=1000",
        "/admin/v1/audit?limit=200",
    ] {
        let answer = fixture.gateway.admin(path).await;
        assert_eq!(answer.status, 200, "{path}");
        seen.push((path.to_owned(), answer.body.to_vec()));
    }
    let listed = fixture.gateway.admin("/admin/v1/webhooks").await.json();
    for hook in listed["webhooks"].as_array().unwrap() {
        let path = format!(
            "/admin/v1/webhooks/{}",
            hook["webhook_id"].as_str().unwrap()
        );
        seen.push((
            path.clone(),
            fixture.gateway.admin(&path).await.body.to_vec(),
        ));
    }
    for operation in fixture.operations("").await {
        let id = operation["operation_id"].as_str().unwrap();
        let path = format!("/admin/v1/operations/{id}?body=1");
        seen.push((
            path.clone(),
            fixture.gateway.admin(&path).await.body.to_vec(),
        ));
    }
}

/// The first webhook of Stripe.
async fn stripe(fixture: &Fixture) -> Hook {
    let listed = fixture
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
