//! Webhooks and their events, managed by commands: each change applies to the provider's next
//! request.

use rstest::rstest;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::fixture::client::Response;
use crate::fixture::command::{CommandOutput, run};
use crate::fixture::gateway::{Gateway, gateway_of};
use crate::fixture::origin::{Behaviour, Origin, Sequence, origin, origin_choosing};
use crate::webhooks::provider::{Provider, Webhook, configured, delivered, embedded, operations};

const CLASS: &str =
    "[classes.webhook]\nmax_attempts = 2\nbackoff = { first = \"10ms\", max = \"20ms\" }";

async fn serve(origin: &Origin, directory: &TempDir) -> Gateway {
    let store = embedded(directory.path());
    let upstreams = [("origin", origin.address())];
    let file = configured(directory.path(), &store, &upstreams, CLASS);
    gateway_of(&file).run().await
}

async fn done(gateway: &Gateway, args: &[&str]) -> CommandOutput {
    let said = run(gateway, args).await;
    assert_eq!((said.code, said.err.as_str()), (0, ""), "{said:?}");
    said
}

fn text(value: &Value) -> String {
    value.as_str().unwrap().to_owned()
}

/// The only operation in a state.
async fn only(gateway: &Gateway, state: &str) -> String {
    let found = operations(gateway, state).await;
    let [operation] = found.as_slice() else {
        panic!("{found:?}");
    };
    text(&operation["operation_id"])
}

#[tokio::test]
async fn a_webhook_is_created_rotated_and_deleted() {
    let origin = origin(Behaviour::PAY).await;
    let directory = tempfile::tempdir().unwrap();
    let gateway = serve(&origin, &directory).await;
    let create = "webhooks create --tenant acme --project shop --provider github \
        --upstream origin --path /hooks/code --generate --json";
    let create: Vec<_> = create.split_whitespace().collect();
    let made = done(&gateway, &create).await.json();
    let id = text(&made["webhook_id"]);
    let url = format!("http://{}/api/v1/webhooks/github/{id}", gateway.listen());
    assert_eq!(made["url"], url);
    let old = Webhook {
        provider: Provider::GitHub,
        id: id.clone(),
        secret: text(&made["secret"]),
    };
    old.tell(&gateway, "first").await;

    let rotate = ["webhooks", "rotate", &id, "--generate", "--json"];
    let rotated = done(&gateway, &rotate).await.json();
    let new = Webhook {
        secret: text(&rotated["secret"]),
        ..old.clone()
    };
    // Both are valid until the overlap ends, and both sign events of one webhook.
    new.tell(&gateway, "second").await;
    old.tell(&gateway, "third").await;
    delivered(&gateway).await;
    let again = new.tell(&gateway, "first").await;
    assert!(again.is_replay(), "{again:?}");
    let rotate = [
        "webhooks",
        "rotate",
        &id,
        "--generate",
        "--overlap",
        "0s",
        "--json",
    ];
    let rotated = done(&gateway, &rotate).await.json();
    let last = Webhook {
        secret: text(&rotated["secret"]),
        ..old.clone()
    };
    for ended in [&old, &new] {
        let refused = ended.send(&gateway, "fourth").await.unwrap();
        assert_eq!(refused.status, 401, "{refused:?}");
    }
    last.tell(&gateway, "fourth").await;
    delivered(&gateway).await;
    for event in ["first", "second", "third", "fourth"] {
        let carried = last.carried(&origin, event);
        assert_eq!(carried.len(), 1, "{event}: {carried:?}");
        assert_eq!(carried[0].path, "/hooks/code");
    }

    done(&gateway, &["webhooks", "delete", &id]).await;
    let refused = last.send(&gateway, "fifth").await.unwrap();
    let nobody = Webhook {
        id: format!("{}x", &id[..id.len() - 1]),
        ..last.clone()
    };
    let nobodys = nobody.send(&gateway, "fifth").await.unwrap();
    assert_eq!((refused.status, nobodys.status), (401, 401));
    let said = |answer: &Response, id: &str| {
        let body = String::from_utf8(answer.body.to_vec()).unwrap();
        body.replace(id, "wh_")
    };
    let (refused, nobodys) = (said(&refused, &id), said(&nobodys, &nobody.id));
    assert_eq!(refused, nobodys, "nobody learns that there was one");
    let list = done(&gateway, &["webhooks", "list", "--json"]).await;
    assert_eq!(list.json(), json!({ "webhooks": [], "next": null }));
}

/// How an operator handles an event that failed for good.
#[derive(Clone, Copy)]
enum OperatorAction {
    /// Purge: it is delivered when the provider sends it again.
    Purge,
    /// Redeliver: it is delivered from the stored request.
    Redeliver,
}

#[rstest]
#[case::purged(OperatorAction::Purge)]
#[case::redelivered(OperatorAction::Redeliver)]
#[tokio::test]
async fn event_that_failed_for_good_is_delivered_when_an_operator_acts(
    #[case] word: OperatorAction,
) {
    // The service is repaired after it refused the event once.
    let origin = origin_choosing(Sequence::default(), |_, times| match times {
        1 => Behaviour::Deny,
        _ => Behaviour::PAY,
    })
    .await;
    let directory = tempfile::tempdir().unwrap();
    let gateway = serve(&origin, &directory).await;
    let webhook = Webhook::create(&gateway, Provider::Stripe, json!({})).await;
    webhook.tell(&gateway, "refused").await;
    delivered(&gateway).await;
    let id = only(&gateway, "failed").await;

    // Sending the event again does nothing, as the response shows.
    let again = webhook.tell(&gateway, "refused").await;
    let told = (again.is_replay(), again.header("idempotency-status"));
    assert_eq!(told, (true, "failed"), "{again:?}");
    delivered(&gateway).await;
    assert_eq!(webhook.carried(&origin, "refused").len(), 1);

    // And the operator sees why.
    let shown = done(&gateway, &["operations", "show", &id, "--body"]).await;
    let refusal = &webhook.carried(&origin, "refused")[0].reply;
    for line in [
        format!("operation  {id}\n"),
        "state      failed\n".to_owned(),
        "subject    service:webhook-ingest\n".to_owned(),
        "key        stripe-evt_refused\n".to_owned(),
        "attempts   1\n".to_owned(),
        format!("reply      422 (whole, {} bytes)\n", refusal.len()),
        format!("\n{refusal}\n"),
    ] {
        assert!(shown.out.contains(&line), "{line}{}", shown.out);
    }

    let why = ["--why", "the handler is mended"];
    let (action, fresh) = match word {
        OperatorAction::Purge => {
            let purge = [&["operations", "purge", &id][..], &why].concat();
            done(&gateway, &purge).await;
            delivered(&gateway).await;
            assert_eq!(webhook.carried(&origin, "refused").len(), 1);
            let fresh = webhook.tell(&gateway, "refused").await;
            assert!(!fresh.is_replay(), "{fresh:?}");
            (
                "operations.purge",
                fresh.header("x-operation-id").to_owned(),
            )
        }
        OperatorAction::Redeliver => {
            let redeliver = [&["webhooks", "redeliver", &id][..], &why].concat();
            let said = done(&gateway, &redeliver).await;
            // The delivery may already be running, or even done.
            assert!(said.out.starts_with(&format!("{id} is ")), "{said:?}");
            ("operations.redeliver", id.clone())
        }
    };
    delivered(&gateway).await;
    let runs = webhook.carried(&origin, "refused");
    assert_eq!(runs.len(), 2, "{runs:?}");
    assert!(runs[0].fence < runs[1].fence && runs[0].key == runs[1].key);
    assert_eq!(only(&gateway, "completed").await, fresh);
    let again = webhook.tell(&gateway, "refused").await;
    let told = (again.is_replay(), again.header("idempotency-status"));
    assert_eq!(told, (true, "completed"), "{again:?}");

    let audit = done(&gateway, &["audit", "--json"]).await.json();
    let entries = audit["entries"].as_array().unwrap().iter();
    let mut entries = entries.filter(|entry| entry["action"] == action);
    let entry = entries.next().unwrap();
    assert_eq!(
        (&entry["why"], &entry["outcome"]),
        (&json!(why[1]), &json!("done"))
    );
    assert!(entries.next().is_none(), "{audit}");
}

#[tokio::test]
async fn an_event_without_attempts_left_is_paused_until_resumed() {
    let origin = origin_choosing(Sequence::default(), |_, times| match times {
        1 | 2 => Behaviour::Refuse,
        _ => Behaviour::PAY,
    })
    .await;
    let directory = tempfile::tempdir().unwrap();
    let gateway = serve(&origin, &directory).await;
    let webhook = Webhook::create(&gateway, Provider::Stripe, json!({})).await;
    webhook.tell(&gateway, "in-vain").await;
    delivered(&gateway).await;
    let id = only(&gateway, "paused").await;
    let again = webhook.tell(&gateway, "in-vain").await;
    assert!(!again.is_replay(), "{again:?}");
    delivered(&gateway).await;
    assert_eq!(webhook.carried(&origin, "in-vain").len(), 2);

    let resume = ["operations", "resume", &id, "--why", "it is back"];
    done(&gateway, &resume).await;
    delivered(&gateway).await;
    assert_eq!(webhook.carried(&origin, "in-vain").len(), 3);
    assert_eq!(only(&gateway, "completed").await, id);
    let again = webhook.tell(&gateway, "in-vain").await;
    assert!(again.is_replay(), "{again:?}");
}
