//! Stored documents: what is written, read back, and refused.

use async_trait::async_trait;
use bytes::Bytes;
use onceward_core::store::{Added, StoreError};
use rstest::rstest;
use serde_json::Value;
use tokio::sync::Notify;

use super::*;
use crate::config::{Deliver, SameBytes};
use crate::webhooks::registry::{Deleted, Rotated, SecretsView};

#[tokio::test]
async fn a_webhook_is_the_same_after_a_restart() {
    let fixture = Fixture::new();
    let webhooks = fixture.open().await;
    let said = NewWebhook {
        provider: "twilio".to_owned(),
        scheme: Some("sha256".to_owned()),
        upstream: Some("ledger".to_owned()),
        path: Some("/in".to_owned()),
        deliver: Some(Deliver::Async),
        same_bytes: Some(SameBytes::Refuse),
        ..new()
    };
    let mut fixture = fixture;
    fixture.config.server.public_url = Some("https://api.example.com".to_owned());
    let id = fixture.make(&webhooks, said).await;
    let plain = fixture.make(&webhooks, new()).await;
    let before = webhooks.list();
    let webhooks = fixture.open().await;
    let after = webhooks.list();
    let records = |shown: &[crate::webhooks::registry::WebhookView]| -> Vec<_> {
        let shown = shown.iter();
        shown
            .map(|one| (one.registration.clone(), one.secrets.clone()))
            .collect()
    };
    assert_eq!(records(&before), records(&after));
    assert!(matches!(&after[0].secrets, SecretsView::Sealed(valid) if valid.len() == 1));

    let found = webhooks.find(&fixture.config, "twilio", &id).await;
    let found = found.expect("found").expect("there");
    assert_eq!(found.caller.tenant(), "acme");
    assert_eq!(found.caller.project(), "shop");
    assert_eq!(found.caller.subject().to_string(), "service:webhook-ingest");
    assert!(matches!(
        found.provider,
        Provider::Twilio(onceward_webhooks::TwilioAlgorithm::Sha256)
    ));
    assert_eq!((&*found.upstream, found.path.as_str()), ("ledger", "/in"));
    assert_eq!(
        (found.deliver, found.same_bytes),
        (Deliver::Async, SameBytes::Refuse)
    );
    let found = webhooks.find(&fixture.config, "svix", &plain).await;
    let found = found.expect("found").expect("there");
    assert_eq!(
        (&*found.upstream, found.path.as_str()),
        ("default", "/webhooks/svix")
    );
    assert_eq!(
        (found.deliver, found.same_bytes),
        (Deliver::Async, SameBytes::Deliver)
    );
    let keys = fixture.keys(&webhooks, &plain).await.expect("keys");
    assert_eq!(keys, of_secrets(&[&secret('a')]));
}

#[tokio::test]
async fn an_id_reveals_nothing_and_no_secret_is_stored_in_the_clear() {
    let fixture = Fixture::new();
    let webhooks = fixture.open().await;
    let one = fixture.make(&webhooks, new()).await;
    let other = fixture.make(&webhooks, new()).await;
    assert_ne!(one, other);
    for id in [&one, &other] {
        let drawn = id.strip_prefix("wh_").expect("an id");
        // 32 letters of 5 bits each.
        assert_eq!(drawn.len(), 32);
        assert!(!id.contains("acme") && !id.contains("shop"));
    }
    let documents = fixture.documents().await;
    assert_eq!(documents.len(), 2);
    for (_, document) in documents {
        let text = String::from_utf8(document.to_vec()).expect("JSON");
        assert!(!text.contains(CANARY) && !text.contains("whsec_"), "{text}");
    }
}

#[tokio::test]
async fn only_the_right_provider_finds_a_webhook() {
    let fixture = Fixture::new();
    let webhooks = fixture.open().await;
    let id = fixture.make(&webhooks, new()).await;
    for (provider, id, found) in [
        ("svix", id.as_str(), true),
        ("stripe", id.as_str(), false),
        ("standard-webhooks", id.as_str(), false),
        ("svix", "wh_aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", false),
        ("svix", "wh_", false),
        ("svix", "", false),
        ("svix", "../../x", false),
    ] {
        let got = webhooks.find(&fixture.config, provider, id).await;
        assert_eq!(
            got.expect("nobody fails").is_some(),
            found,
            "{provider} {id}"
        );
    }
}

/// The stored document with a change.
async fn change(fixture: &Fixture, id: &str, edit: impl FnOnce(&mut Value)) {
    let read = fixture.registry.read(Collection::Webhooks, id).await;
    let read = read.expect("the store answers").expect("there");
    let mut document: Value = serde_json::from_slice(&read).expect("JSON");
    edit(&mut document);
    let written = Bytes::from(document.to_string());
    let put = fixture.registry.put(Collection::Webhooks, id, written);
    put.await.expect("the store answers");
}

#[tokio::test]
async fn a_sealed_secret_fits_only_its_webhook_and_damage_affects_only_one() {
    let fixture = Fixture::new();
    let webhooks = fixture.open().await;
    let victim = fixture.make(&webhooks, new()).await;
    let thief = fixture.make(&webhooks, with(&[&secret('b')])).await;
    let bystander = fixture.make(&webhooks, with(&[&secret('c')])).await;
    let read = fixture.registry.read(Collection::Webhooks, &thief).await;
    let read = read.expect("the store answers").expect("there");
    let read: Value = serde_json::from_slice(&read).expect("JSON");
    let stolen = read["secrets"][0]["sealed"].clone();
    change(&fixture, &victim, |document| {
        document["secrets"][0]["sealed"] = stolen;
    })
    .await;
    webhooks.refresh().await.expect("read");
    assert!(!fixture.is_found(&webhooks, &victim).await);
    for (id, letter) in [(&thief, 'b'), (&bystander, 'c')] {
        let keys = fixture.keys(&webhooks, id).await.expect("keys");
        assert_eq!(keys, of_secrets(&[&secret(letter)]));
    }
    let error = webhooks.rotate(&fixture.config, &victim, None, None).await;
    let error = error.expect_err("damaged");
    assert!(matches!(error, WebhooksError::Damaged { .. }), "{error:?}");
    assert_eq!(
        webhooks.delete(&victim).await.expect("deleted"),
        Deleted::Done
    );
}

#[tokio::test]
async fn a_malformed_document_is_refused() {
    let fixture = Fixture::new();
    let webhooks = fixture.open().await;
    type Edit = fn(&mut Value);
    let edits: [(&str, Edit); 7] = [
        ("version", |document| document["version"] = 2.into()),
        ("tenant", |document| document["tenant"] = "_local".into()),
        ("project", |document| document["project"] = "".into()),
        ("path", |document| document["path"] = "/a/../b".into()),
        ("deliver", |document| document["deliver"] = "later".into()),
        ("serial", |document| {
            document["secrets"][0]["serial"] = 7.into();
        }),
        ("secrets", |document| document["secrets"] = "none".into()),
    ];
    for (name, edit) in edits {
        let id = fixture.make(&webhooks, new()).await;
        change(&fixture, &id, edit).await;
        webhooks.refresh().await.expect("read");
        assert!(!fixture.is_found(&webhooks, &id).await, "{name}");
    }
}

#[tokio::test]
async fn another_gateways_key_unseals_nothing() {
    let fixture = Fixture::new();
    let webhooks = fixture.open().await;
    let id = fixture.make(&webhooks, new()).await;
    let fixture = Fixture {
        secret: GatewayKey::new().expect("random bytes"),
        ..fixture
    };
    assert!(!fixture.is_found(&fixture.open().await, &id).await);
}

#[tokio::test]
async fn changes_by_another_gateway_apply_after_a_refresh() {
    let fixture = Fixture::new();
    let (here, there) = (fixture.open().await, fixture.open().await);
    let id = fixture.make(&there, new()).await;
    assert!(!fixture.is_found(&here, &id).await);
    here.refresh().await.expect("read");
    let keys = fixture.keys(&here, &id).await.expect("keys");
    assert_eq!(keys, of_secrets(&[&secret('a')]));
    let rotated = there.rotate(&fixture.config, &id, Some(secret('b').into()), None);
    rotated.await.expect("rotated");
    here.refresh().await.expect("read");
    let keys = fixture.keys(&here, &id).await.expect("keys");
    assert_eq!(keys, of_secrets(&[&secret('a'), &secret('b')]));
    there.delete(&id).await.expect("deleted");
    here.refresh().await.expect("read");
    assert!(!fixture.is_found(&here, &id).await);
}

/// How removals end.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Removes {
    Done,
    Refused,
}

/// A registry with slow writes and refused removals.
struct Unwilling {
    registry: Arc<dyn Registry>,
    removes: Removes,
    /// Notified when a document is about to be replaced.
    begun: Notify,
    /// The replacement waits for this.
    go: Notify,
}

impl Unwilling {
    fn new(registry: Arc<dyn Registry>, removes: Removes) -> Arc<Self> {
        Arc::new(Self {
            registry,
            removes,
            begun: Notify::new(),
            go: Notify::new(),
        })
    }
}

#[async_trait]
impl Registry for Unwilling {
    async fn put(
        &self,
        collection: Collection,
        name: &str,
        document: Bytes,
    ) -> Result<(), StoreError> {
        self.begun.notify_one();
        self.go.notified().await;
        self.registry.put(collection, name, document).await
    }

    async fn add(
        &self,
        collection: Collection,
        name: &str,
        document: Bytes,
    ) -> Result<Added, StoreError> {
        self.registry.add(collection, name, document).await
    }

    async fn read(&self, collection: Collection, name: &str) -> Result<Option<Bytes>, StoreError> {
        self.registry.read(collection, name).await
    }

    async fn remove(&self, collection: Collection, name: &str) -> Result<(), StoreError> {
        match self.removes {
            Removes::Done => self.registry.remove(collection, name).await,
            Removes::Refused => Err(StoreError::Unavailable("the disk is full".into())),
        }
    }

    async fn documents(
        &self,
        collection: Collection,
        order: SortOrder,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<(String, Bytes)>, StoreError> {
        let registry = &self.registry;
        registry.documents(collection, order, after, limit).await
    }
}

#[tokio::test]
async fn an_unwritten_deletion_holds_in_memory() {
    let mut fixture = Fixture::new();
    let willing = fixture.registry.clone();
    fixture.registry = Unwilling::new(willing.clone(), Removes::Refused);
    let webhooks = fixture.open().await;
    let id = fixture.make(&webhooks, new()).await;
    for _ in 0..2 {
        webhooks.delete(&id).await.expect_err("not removed");
        assert!(!fixture.is_found(&webhooks, &id).await);
        webhooks.refresh().await.expect("read");
        assert!(!fixture.is_found(&webhooks, &id).await);
        let rotated = webhooks.rotate(&fixture.config, &id, Some(secret('b').into()), None);
        assert!(matches!(rotated.await.expect("read"), Rotated::Absent));
    }
    fixture.registry = willing;
    assert!(fixture.is_found(&fixture.open().await, &id).await);
    assert_eq!(
        fixture.open().await.delete(&id).await.expect("removed"),
        Deleted::Done
    );
    assert_eq!(
        fixture.open().await.delete(&id).await.expect("removed"),
        Deleted::Absent
    );
}

/// A rotation is being written while its webhook is deleted.
#[rstest]
#[case::known_here(Knows::Here, Removes::Done)]
#[case::made_elsewhere(Knows::Elsewhere, Removes::Done)]
#[case::known_here_and_not_removed(Knows::Here, Removes::Refused)]
#[case::made_elsewhere_and_not_removed(Knows::Elsewhere, Removes::Refused)]
#[tokio::test]
async fn a_rotation_does_not_restore_a_deleted_webhook(
    #[case] knows: Knows,
    #[case] removes: Removes,
) {
    let mut fixture = Fixture::new();
    let slow = Unwilling::new(fixture.registry.clone(), removes);
    fixture.registry = slow.clone();
    let webhooks = fixture.open().await;
    let id = match knows {
        Knows::Here => fixture.make(&webhooks, new()).await,
        Knows::Elsewhere => fixture.make(&fixture.open().await, new()).await,
    };
    let rotating = webhooks.rotate(&fixture.config, &id, Some(secret('b').into()), None);
    let deleting = async {
        slow.begun.notified().await;
        let mut deleting = std::pin::pin!(webhooks.delete(&id));
        tokio::select! {
            biased;
            _ = &mut deleting => panic!("the rotation is not over"),
            () = std::future::ready(()) => {}
        }
        assert!(!fixture.is_found(&webhooks, &id).await);
        slow.go.notify_one();
        deleting.await
    };
    let (rotated, deleted) = tokio::join!(rotating, deleting);
    match knows {
        Knows::Here => assert!(matches!(rotated.expect("written"), Rotated::Absent)),
        // The deletion waits for the rotation.
        Knows::Elsewhere => assert!(matches!(rotated.expect("written"), Rotated::Done(_))),
    }
    assert_eq!(deleted.is_ok(), removes == Removes::Done);
    assert_eq!(
        fixture.documents().await.is_empty(),
        removes == Removes::Done
    );
    assert!(!fixture.is_found(&webhooks, &id).await);
    webhooks.refresh().await.expect("read");
    assert!(!fixture.is_found(&webhooks, &id).await);
}

/// The gateway that has a webhook in memory.
#[derive(Clone, Copy)]
enum Knows {
    Here,
    Elsewhere,
}
