//! What is kept, what is read back, and what is not believed.

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
    let house = House::new();
    let webhooks = house.open().await;
    let said = NewWebhook {
        provider: "twilio".to_owned(),
        scheme: Some("sha256".to_owned()),
        upstream: Some("ledger".to_owned()),
        path: Some("/in".to_owned()),
        deliver: Some(Deliver::Async),
        same_bytes: Some(SameBytes::Refuse),
        ..new()
    };
    let mut house = house;
    house.config.server.public_url = Some("https://api.example.com".to_owned());
    let id = house.make(&webhooks, said).await;
    let plain = house.make(&webhooks, new()).await;
    let before = webhooks.list();
    let webhooks = house.open().await;
    let after = webhooks.list();
    let records = |shown: &[crate::webhooks::registry::WebhookView]| -> Vec<_> {
        let shown = shown.iter();
        shown
            .map(|one| (one.registration.clone(), one.secrets.clone()))
            .collect()
    };
    assert_eq!(records(&before), records(&after));
    assert!(matches!(&after[0].secrets, SecretsView::Sealed(valid) if valid.len() == 1));

    let found = webhooks.find(&house.config, "twilio", &id).await;
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
    let found = webhooks.find(&house.config, "svix", &plain).await;
    let found = found.expect("found").expect("there");
    assert_eq!(
        (&*found.upstream, found.path.as_str()),
        ("default", "/webhooks/svix")
    );
    assert_eq!(
        (found.deliver, found.same_bytes),
        (Deliver::Async, SameBytes::Deliver)
    );
    let keys = house.keys(&webhooks, &plain).await.expect("keys");
    assert_eq!(keys, of_secrets(&[&secret('a')]));
}

#[tokio::test]
async fn an_id_tells_nothing_and_no_secret_is_stored_in_the_clear() {
    let house = House::new();
    let webhooks = house.open().await;
    let one = house.make(&webhooks, new()).await;
    let other = house.make(&webhooks, new()).await;
    assert_ne!(one, other);
    for id in [&one, &other] {
        let drawn = id.strip_prefix("wh_").expect("an id");
        // 32 letters of 5 bits each.
        assert_eq!(drawn.len(), 32);
        assert!(!id.contains("acme") && !id.contains("shop"));
    }
    let documents = house.documents().await;
    assert_eq!(documents.len(), 2);
    for (_, document) in documents {
        let text = String::from_utf8(document.to_vec()).expect("JSON");
        assert!(!text.contains(CANARY) && !text.contains("whsec_"), "{text}");
    }
}

#[tokio::test]
async fn only_the_right_provider_finds_a_webhook() {
    let house = House::new();
    let webhooks = house.open().await;
    let id = house.make(&webhooks, new()).await;
    for (provider, id, found) in [
        ("svix", id.as_str(), true),
        ("stripe", id.as_str(), false),
        ("standard-webhooks", id.as_str(), false),
        ("svix", "wh_aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", false),
        ("svix", "wh_", false),
        ("svix", "", false),
        ("svix", "../../x", false),
    ] {
        let got = webhooks.find(&house.config, provider, id).await;
        assert_eq!(
            got.expect("nobody fails").is_some(),
            found,
            "{provider} {id}"
        );
    }
}

/// The stored document with a change.
async fn change(house: &House, id: &str, edit: impl FnOnce(&mut Value)) {
    let read = house.registry.read(Collection::Webhooks, id).await;
    let read = read.expect("the store answers").expect("there");
    let mut document: Value = serde_json::from_slice(&read).expect("JSON");
    edit(&mut document);
    let written = Bytes::from(document.to_string());
    let put = house.registry.put(Collection::Webhooks, id, written);
    put.await.expect("the store answers");
}

#[tokio::test]
async fn no_webhook_takes_anothers_secret_and_a_damaged_one_spoils_no_other() {
    let house = House::new();
    let webhooks = house.open().await;
    let victim = house.make(&webhooks, new()).await;
    let thief = house.make(&webhooks, with(&[&secret('b')])).await;
    let bystander = house.make(&webhooks, with(&[&secret('c')])).await;
    let read = house.registry.read(Collection::Webhooks, &thief).await;
    let read = read.expect("the store answers").expect("there");
    let read: Value = serde_json::from_slice(&read).expect("JSON");
    let stolen = read["secrets"][0]["sealed"].clone();
    change(&house, &victim, |document| {
        document["secrets"][0]["sealed"] = stolen;
    })
    .await;
    webhooks.refresh().await.expect("read");
    assert!(!house.is_found(&webhooks, &victim).await);
    for (id, letter) in [(&thief, 'b'), (&bystander, 'c')] {
        let keys = house.keys(&webhooks, id).await.expect("keys");
        assert_eq!(keys, of_secrets(&[&secret(letter)]));
    }
    let error = webhooks.rotate(&house.config, &victim, None, None).await;
    let error = error.expect_err("damaged");
    assert!(matches!(error, WebhooksError::Damaged { .. }), "{error:?}");
    assert_eq!(
        webhooks.delete(&victim).await.expect("deleted"),
        Deleted::Done
    );
}

#[tokio::test]
async fn what_is_not_a_webhooks_document_is_not_believed() {
    let house = House::new();
    let webhooks = house.open().await;
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
        let id = house.make(&webhooks, new()).await;
        change(&house, &id, edit).await;
        webhooks.refresh().await.expect("read");
        assert!(!house.is_found(&webhooks, &id).await, "{name}");
    }
}

#[tokio::test]
async fn another_gateways_key_opens_nothing() {
    let house = House::new();
    let webhooks = house.open().await;
    let id = house.make(&webhooks, new()).await;
    let house = House {
        secret: Secret::new().expect("random bytes"),
        ..house
    };
    assert!(!house.is_found(&house.open().await, &id).await);
}

#[tokio::test]
async fn what_another_gateway_changed_is_learned() {
    let house = House::new();
    let (here, there) = (house.open().await, house.open().await);
    let id = house.make(&there, new()).await;
    assert!(!house.is_found(&here, &id).await);
    here.refresh().await.expect("read");
    let keys = house.keys(&here, &id).await.expect("keys");
    assert_eq!(keys, of_secrets(&[&secret('a')]));
    let rotated = there.rotate(&house.config, &id, Some(secret('b').into()), None);
    rotated.await.expect("rotated");
    here.refresh().await.expect("read");
    let keys = house.keys(&here, &id).await.expect("keys");
    assert_eq!(keys, of_secrets(&[&secret('a'), &secret('b')]));
    there.delete(&id).await.expect("deleted");
    here.refresh().await.expect("read");
    assert!(!house.is_found(&here, &id).await);
}

/// What becomes of removals.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Removes {
    Done,
    Refused,
}

/// A registry that is slow to write, and may remove nothing.
struct Unwilling {
    registry: Arc<dyn Registry>,
    removes: Removes,
    /// Rung when a document is to be written over another.
    begun: Notify,
    /// It is written when this is rung.
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
async fn a_deletion_that_cannot_be_written_holds_here() {
    let mut house = House::new();
    let willing = house.registry.clone();
    house.registry = Unwilling::new(willing.clone(), Removes::Refused);
    let webhooks = house.open().await;
    let id = house.make(&webhooks, new()).await;
    for _ in 0..2 {
        webhooks.delete(&id).await.expect_err("not removed");
        assert!(!house.is_found(&webhooks, &id).await);
        webhooks.refresh().await.expect("read");
        assert!(!house.is_found(&webhooks, &id).await);
        let rotated = webhooks.rotate(&house.config, &id, Some(secret('b').into()), None);
        assert!(matches!(rotated.await.expect("read"), Rotated::Absent));
    }
    house.registry = willing;
    assert!(house.is_found(&house.open().await, &id).await);
    assert_eq!(
        house.open().await.delete(&id).await.expect("removed"),
        Deleted::Done
    );
    assert_eq!(
        house.open().await.delete(&id).await.expect("removed"),
        Deleted::Absent
    );
}

/// A rotation is being written while its webhook is taken away.
#[rstest]
#[case::known_here(Knows::Here, Removes::Done)]
#[case::made_elsewhere(Knows::Elsewhere, Removes::Done)]
#[case::known_here_and_not_removed(Knows::Here, Removes::Refused)]
#[case::made_elsewhere_and_not_removed(Knows::Elsewhere, Removes::Refused)]
#[tokio::test]
async fn no_rotation_brings_a_deleted_webhook_back(#[case] knows: Knows, #[case] removes: Removes) {
    let mut house = House::new();
    let slow = Unwilling::new(house.registry.clone(), removes);
    house.registry = slow.clone();
    let webhooks = house.open().await;
    let id = match knows {
        Knows::Here => house.make(&webhooks, new()).await,
        Knows::Elsewhere => house.make(&house.open().await, new()).await,
    };
    let rotating = webhooks.rotate(&house.config, &id, Some(secret('b').into()), None);
    let deleting = async {
        slow.begun.notified().await;
        let mut deleting = std::pin::pin!(webhooks.delete(&id));
        tokio::select! {
            biased;
            _ = &mut deleting => panic!("the rotation is not over"),
            () = std::future::ready(()) => {}
        }
        assert!(!house.is_found(&webhooks, &id).await);
        slow.go.notify_one();
        deleting.await
    };
    let (rotated, deleted) = tokio::join!(rotating, deleting);
    match knows {
        Knows::Here => assert!(matches!(rotated.expect("written"), Rotated::Absent)),
        // The deletion has not begun before the rotation is over.
        Knows::Elsewhere => assert!(matches!(rotated.expect("written"), Rotated::Done(_))),
    }
    assert_eq!(deleted.is_ok(), removes == Removes::Done);
    assert_eq!(house.documents().await.is_empty(), removes == Removes::Done);
    assert!(!house.is_found(&webhooks, &id).await);
    webhooks.refresh().await.expect("read");
    assert!(!house.is_found(&webhooks, &id).await);
}

/// Which gateway holds a webhook.
#[derive(Clone, Copy)]
enum Knows {
    Here,
    Elsewhere,
}
