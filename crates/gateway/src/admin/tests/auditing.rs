//! Every change has an audit entry, written before it; no entry contains a secret.

use std::sync::Mutex as StdMutex;

use serde_json::json;

use super::*;
use crate::admin::audit::{Action, Change, ChangeOutcome};

#[tokio::test]
async fn every_change_has_an_audit_entry_even_if_refused() {
    let bench = bench().await;
    let [done, running] = [
        bench.completed("acme", "a").await,
        bench.claim("acme", "b").await,
    ];
    let unknown = bench.unknown("acme", "c").await;
    let paused = bench.paused("acme", "d").await;
    let operations = "/admin/v1/operations";
    let cases = [
        (
            "operations.purge",
            format!("{operations}/{}/purge", done.id),
            json!({}),
            "done",
        ),
        (
            "operations.purge",
            format!("{operations}/{}/purge", running.id),
            json!({}),
            "refused",
        ),
        (
            "operations.purge",
            format!("{operations}/{}/purge", done.id),
            json!({}),
            "refused",
        ),
        (
            "operations.resolve",
            format!("{operations}/{}/resolve", running.id),
            json!({ "outcome": "not_run" }),
            "refused",
        ),
        (
            "operations.resolve",
            format!("{operations}/{}/resolve", unknown.id),
            json!({ "outcome": "unsure" }),
            "done",
        ),
        (
            "operations.resolve",
            format!("{operations}/{}/resolve", unknown.id),
            json!({ "outcome": "not_run" }),
            "done",
        ),
        (
            "operations.resume",
            format!("{operations}/{}/resume", unknown.id),
            json!({}),
            "refused",
        ),
        (
            "operations.resume",
            format!("{operations}/{}/resume", paused.id),
            json!({}),
            "done",
        ),
        (
            "classes.set",
            "/admin/v1/classes/brief".to_owned(),
            json!({ "settings": { "retention": "1h" } }),
            "done",
        ),
        (
            "classes.set",
            "/admin/v1/classes/brief".to_owned(),
            json!({ "settings": { "remember": "1s" } }),
            "refused",
        ),
        (
            "classes.unset",
            "/admin/v1/classes/brief/unset".to_owned(),
            json!({}),
            "done",
        ),
        (
            "classes.unset",
            "/admin/v1/classes/brief/unset".to_owned(),
            json!({}),
            "refused",
        ),
        (
            "keys.create",
            "/admin/v1/keys".to_owned(),
            json!({ "tenant": "acme", "subject": "service:a" }),
            "done",
        ),
        (
            "keys.create",
            "/admin/v1/keys".to_owned(),
            json!({ "tenant": "_acme", "subject": "service:a" }),
            "refused",
        ),
        (
            "keys.revoke",
            "/admin/v1/keys/nobody/revoke".to_owned(),
            json!({}),
            "refused",
        ),
        (
            "configuration.reload",
            "/admin/v1/reload".to_owned(),
            json!({}),
            "refused",
        ),
    ];
    for (count, (action, path, mut body, outcome)) in cases.into_iter().enumerate() {
        body["why"] = format!("reason {count}").into();
        let answer = bench.post("root", &path, &body).await;
        let entries = bench.audit().await;
        assert_eq!(entries.len(), count + 1, "{path}: {}", answer.text());
        let entry = &entries[0];
        let recorded = ["action", "outcome", "who", "role", "from", "why"]
            .map(|name| entry[name].as_str().unwrap_or_default());
        let why = format!("reason {count}");
        assert_eq!(
            recorded,
            [action, outcome, "root", "admin", "203.0.113.9", &why],
            "{entry}"
        );
        assert_eq!(
            (answer.status < 300),
            outcome == "done",
            "{path}: {}",
            answer.text()
        );
        assert!(
            entry["ended_at"].is_string() && entry["at"].is_string(),
            "{entry}"
        );
        if outcome == "refused" {
            assert_eq!(entry["detail"], answer.json()["detail"]);
        }
    }
}

#[tokio::test]
async fn a_bulk_purge_names_its_operations() {
    let bench = bench().await;
    let mut ids = Vec::new();
    for key in ["a", "b"] {
        ids.push(bench.completed("acme", key).await.id.to_string());
    }
    let ask = json!({ "filter": { "tenant": "acme" }, "why": "a test" });
    let purge = "/admin/v1/operations/purge";
    let preview = bench.post("ops", purge, &ask).await.json();
    let run = json!({ "set": preview["set"], "why": "a test" });
    bench.post("ops", purge, &run).await;
    let entry = &bench.audit().await[0];
    assert_eq!(
        (&entry["action"], &entry["outcome"], &entry["why"]),
        (&json!("operations.purge"), &json!("done"), &json!("a test"))
    );
    let were = entry["result"]["were"].as_array().expect("a list");
    let mut named: Vec<_> = were
        .iter()
        .map(|was| was["operation_id"].as_str().unwrap_or_default())
        .collect();
    named.sort_unstable();
    ids.sort_unstable();
    assert_eq!(named, ids);
    assert_eq!(entry["asked"]["filter"], json!({ "tenant": "acme" }));
}

#[tokio::test]
async fn nothing_changes_without_an_audit_entry() {
    let bench = bench().await;
    let grant = bench.completed("acme", "k").await;
    bench.registry.break_collection(Collection::Audit);
    let path = format!("/admin/v1/operations/{}/purge", grant.id);
    let answer = bench.post("ops", &path, &json!({ "why": "a test" })).await;
    assert_eq!(
        (answer.status, answer.code()),
        (503, "store-unavailable".to_owned())
    );
    assert_eq!(
        answer.detail(),
        "Nothing was changed: the audit log cannot be written. Try again later."
    );
    bench.registry.mend();
    assert_eq!(bench.state(grant.id).await, "completed");
    assert!(bench.audit().await.is_empty());
}

#[tokio::test]
async fn a_change_that_the_store_did_not_confirm_is_failed() {
    let bench = bench().await;
    bench.registry.break_collection(Collection::Classes);
    let ask = json!({ "settings": { "retention": "1h" }, "why": "a test" });
    let answer = bench.post("root", "/admin/v1/classes/brief", &ask).await;
    assert_eq!(answer.status, 503);
    let entry = &bench.audit().await[0];
    assert_eq!(entry["outcome"], "failed");
    assert!(bench.classes.get("brief").is_none());
}

#[tokio::test]
async fn audit_pages_list_the_latest_entries_first() {
    let bench = bench().await;
    for count in 0..5 {
        let ask = json!({ "why": format!("reason {count}") });
        bench.post("root", "/admin/v1/reload", &ask).await;
        if count % 2 == 0 {
            bench.clock.advance(Duration::from_secs(1));
        }
    }
    let (mut seen, mut path) = (Vec::new(), "/admin/v1/audit?limit=2".to_owned());
    loop {
        let page = bench.get("viewer", &path).await.json();
        let entries = page["entries"].as_array().expect("a list");
        seen.extend(
            entries
                .iter()
                .map(|entry| entry["why"].as_str().unwrap_or_default().to_owned()),
        );
        match page["next"].as_str() {
            Some(next) => path = format!("/admin/v1/audit?limit=2&after={next}"),
            None => break,
        }
    }
    assert_eq!(
        seen,
        ["reason 4", "reason 3", "reason 2", "reason 1", "reason 0"]
    );
}

#[tokio::test]
async fn the_gateways_own_changes_are_audited() {
    let bench = bench().await;
    let audit = Audit::new(
        bench.registry.clone(),
        bench.clock.clone(),
        Entropy::seeded(9),
    );
    let change = Change::by_gateway("file watch", Action::Reload).on("onceward.toml");
    let noted = audit
        .note(change, ChangeOutcome::Refused("line 3: no".to_owned()))
        .await;
    noted.expect("the store answers");
    let entry = &bench.audit().await[0];
    assert_eq!(
        (
            &entry["who"],
            &entry["target"],
            &entry["outcome"],
            &entry["detail"]
        ),
        (
            &json!("file watch"),
            &json!("onceward.toml"),
            &json!("refused"),
            &json!("line 3: no")
        )
    );
    assert!(entry.get("role").is_none() && entry.get("why").is_none());
}

#[tokio::test]
async fn a_change_completes_after_its_client_disconnects() {
    let bench = bench().await;
    let grant = bench.completed("acme", "k").await;
    let path = format!("/admin/v1/operations/{}/purge", grant.id);
    let ask = json!({ "why": "a test" });
    {
        let mut asking = std::pin::pin!(bench.post("ops", &path, &ask));
        // Polled once and then dropped.
        let looked = std::future::poll_fn(|context| {
            std::task::Poll::Ready(asking.as_mut().poll(context).is_pending())
        });
        assert!(looked.await);
    }
    bench.engine.tasks().close();
    bench.engine.tasks().wait().await;
    assert_eq!(bench.state(grant.id).await, "absent");
    assert_eq!(bench.audit().await[0]["outcome"], "done");
}

#[derive(Clone, Default)]
struct Lines(Arc<StdMutex<Vec<u8>>>);

impl std::io::Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().expect("whole").extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Tokens and keys are in no answer except the one that creates a key, in no entry
/// and in no log line.
#[tokio::test]
async fn no_secret_is_shown_or_audited() {
    let lines = Lines::default();
    let writer = lines.clone();
    let subscriber = tracing_subscriber::fmt()
        .json()
        .with_max_level(tracing::Level::TRACE)
        .with_writer(move || writer.clone())
        .finish();
    let _guard = tracing::subscriber::set_default(subscriber);
    let bench = bench().await;
    let ask = json!({ "tenant": "acme", "project": "shop", "subject": "service:worker", "why": "a test" });
    let made = bench.post("root", "/admin/v1/keys", &ask).await;
    assert_eq!(made.status, 201);
    let secret = made.json()["secret"].as_str().expect("a key").to_owned();
    let id = made.json()["key"]["id"].as_str().expect("an id").to_owned();
    let tail = secret.rsplit('_').next().expect("it has parts").to_owned();
    let mut seen = String::new();
    for path in [
        "/admin/v1/keys",
        "/admin/v1/audit",
        "/admin/v1/openapi.json",
        "/admin/v1/operations",
        "/metrics",
    ] {
        seen.push_str(&bench.get("root", path).await.text());
    }
    seen.push_str(&bench.get("nobody", "/admin/v1/keys").await.text());
    seen.push_str(&bench.post("ops", "/admin/v1/keys", &ask).await.text());
    let revoked = bench
        .post("root", &format!("/admin/v1/keys/{id}/revoke"), &ask_why())
        .await;
    assert_eq!(revoked.json(), json!({ "id": id, "already": false }));
    seen.push_str(
        &bench
            .audit()
            .await
            .iter()
            .map(ToString::to_string)
            .collect::<String>(),
    );
    let documents = bench
        .registry
        .documents(Collection::ApiKeys, SortOrder::Ascending, None, 10)
        .await;
    for (_, document) in documents.expect("the store answers") {
        seen.push_str(&String::from_utf8_lossy(&document));
    }
    seen.push_str(&String::from_utf8_lossy(&lines.0.lock().expect("whole")));
    assert!(
        seen.contains("onceward::audit") && seen.contains("keys.create"),
        "{seen}"
    );
    for hidden in [CANARY, &secret, &tail] {
        assert!(!seen.contains(hidden), "{hidden} in {seen}");
    }
}

fn ask_why() -> Value {
    json!({ "why": "a test" })
}
