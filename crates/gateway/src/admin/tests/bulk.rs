//! Bulk changes: a preview changes nothing, and exactly its set is changed.

use rstest::rstest;
use serde_json::json;

use super::*;

const OPERATIONS: &str = "/admin/v1/operations";

impl Bench {
    async fn bulk(&self, verb: &str, ask: &Value) -> Value {
        let answer = self.post("ops", &format!("{OPERATIONS}/{verb}"), ask).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        answer.json()
    }

    async fn run_set(&self, verb: &str, preview: &Value) -> Value {
        let ask = json!({ "set": preview["set"], "why": "a test" });
        self.bulk(verb, &ask).await
    }
}

fn acme() -> Value {
    json!({ "filter": { "tenant": "acme" }, "why": "a test" })
}

#[tokio::test]
async fn a_preview_counts_and_changes_nothing() {
    let bench = bench().await;
    let done = bench.completed("acme", "a").await;
    bench.unknown("acme", "b").await;
    bench.completed("zeta", "c").await;
    let preview = bench.bulk("purge", &acme()).await;
    assert_eq!(
        (&preview["count"], &preview["states"], &preview["next"]),
        (
            &json!(2),
            &json!({ "completed": 1, "unknown": 1 }),
            &Value::Null
        )
    );
    assert_eq!(preview["expires_at"], "2026-09-21T14:23:20.000Z");
    assert_eq!(bench.state(done.id).await, "completed");
    assert!(bench.audit().await.is_empty());
    let none = json!({ "filter": { "tenant": "nobody" }, "why": "a test" });
    let preview = bench.bulk("purge", &none).await;
    assert_eq!(
        (&preview["count"], &preview["set"]),
        (&json!(0), &Value::Null)
    );
}

#[tokio::test]
async fn exactly_the_previewed_set_is_changed() {
    let bench = bench().await;
    let previewed = bench.unknown("acme", "previewed").await;
    let moved_on = bench.unknown("acme", "moved-on").await;
    let ask = json!({ "filter": { "state": "unknown" }, "why": "a test" });
    let preview = bench.bulk("purge", &ask).await;
    assert_eq!(preview["count"], 2);
    let later = bench.unknown("acme", "later").await;
    let resolve = json!({ "outcome": "ran", "reply": { "status": 201 }, "why": "a test" });
    let path = format!("{OPERATIONS}/{}/resolve", moved_on.id);
    assert_eq!(bench.post("ops", &path, &resolve).await.status, 200);
    assert_eq!(
        bench.run_set("purge", &preview).await,
        json!({ "done": 1, "refused": 0, "skipped": 1, "remaining": 0 })
    );
    assert_eq!(bench.state(previewed.id).await, "absent");
    assert_eq!(bench.state(moved_on.id).await, "completed");
    assert_eq!(bench.state(later.id).await, "unknown");
}

#[tokio::test]
async fn an_operation_that_ran_again_is_skipped() {
    let bench = bench().await;
    let terms = Class::interactive().with(|class| class.on_unknown = OnUnknown::Retry);
    let paused = bench.claim_under("acme", "k", terms.terms()).await;
    bench.settle(&paused, Settlement::Paused).await;
    let preview = bench.bulk("resume", &acme()).await;
    let path = format!("{OPERATIONS}/{}/resume", paused.id);
    bench.post("ops", &path, &json!({ "why": "a test" })).await;
    let again = bench.claim_under("acme", "k", terms.terms()).await;
    bench.settle(&again, Settlement::Paused).await;
    assert_eq!(bench.run_set("resume", &preview).await["skipped"], json!(1));
    assert_eq!(bench.state(again.id).await, "paused");
}

#[tokio::test]
async fn every_verb_works_in_bulk() {
    let bench = bench().await;
    let unknown = bench.unknown("acme", "unknown").await.id;
    let paused = bench.paused("acme", "paused").await.id;
    let event = bench.failed_event("event").await;
    let done = bench.completed("acme", "done").await.id;
    let not_run = json!({ "filter": { "tenant": "acme" }, "outcome": "not_run", "why": "a test" });
    for (verb, ask, id, state) in [
        ("resolve", &not_run, unknown, "released"),
        ("resume", &acme(), paused, "released"),
        ("redeliver", &acme(), event, "queued"),
    ] {
        let preview = bench.bulk(verb, ask).await;
        assert_eq!(preview["count"], 1, "{verb}: {preview}");
        let ran = bench.run_set(verb, &preview).await;
        assert_eq!(ran["done"], 1, "{verb}: {ran}");
        assert_eq!(bench.state(id).await, state, "{verb}");
    }
    let preview = bench.bulk("purge", &acme()).await;
    let ran = bench.run_set("purge", &preview).await;
    assert_eq!((&preview["count"], &ran["done"]), (&json!(4), &json!(4)));
    assert_eq!(bench.state(done).await, "absent");
}

#[tokio::test]
async fn running_operations_are_reported_and_purged_only_by_force() {
    let bench = bench().await;
    let running = bench.claim("acme", "k").await.id;
    let preview = bench.bulk("purge", &acme()).await;
    assert_eq!(bench.run_set("purge", &preview).await["refused"], 1);
    assert_eq!(bench.state(running).await, "running");
    let mut ask = acme();
    ask["force"] = true.into();
    let preview = bench.bulk("purge", &ask).await;
    assert_eq!(bench.run_set("purge", &preview).await["done"], 1);
    assert_eq!(bench.state(running).await, "absent");
}

#[rstest]
#[case::another_verb("resume", 0, 409, "The set was previewed for `operations.purge`.")]
#[case::expired("purge", 10 * 60, 404, "No set has this name")]
#[tokio::test]
async fn a_set_is_valid_for_its_verb_until_it_expires(
    #[case] verb: &str,
    #[case] later_secs: u64,
    #[case] status: u16,
    #[case] words: &str,
) {
    let bench = bench().await;
    let grant = bench.completed("acme", "k").await;
    let preview = bench.bulk("purge", &acme()).await;
    bench.clock.advance(Duration::from_secs(later_secs));
    let ask = json!({ "set": preview["set"], "why": "a test" });
    let answer = bench
        .post("ops", &format!("{OPERATIONS}/{verb}"), &ask)
        .await;
    assert_eq!(answer.status, status, "{}", answer.text());
    assert!(answer.detail().contains(words), "{}", answer.detail());
    assert_eq!(bench.state(grant.id).await, "completed");
}

#[tokio::test]
async fn a_set_is_used_once() {
    let bench = bench().await;
    bench.completed("acme", "k").await;
    let preview = bench.bulk("purge", &acme()).await;
    bench.run_set("purge", &preview).await;
    let ask = json!({ "set": preview["set"], "why": "a test" });
    let answer = bench
        .post("ops", &format!("{OPERATIONS}/purge"), &ask)
        .await;
    assert_eq!(answer.status, 404, "{}", answer.text());
}

#[tokio::test]
async fn the_oldest_of_too_many_sets_makes_room() {
    let bench = bench().await;
    bench.completed("acme", "k").await;
    let first = bench.bulk("purge", &acme()).await;
    let mut last = Value::Null;
    for _ in 0..16 {
        bench.clock.advance(Duration::from_millis(1));
        last = bench.bulk("purge", &acme()).await;
    }
    let ask = json!({ "set": first["set"], "why": "a test" });
    let answer = bench
        .post("ops", &format!("{OPERATIONS}/purge"), &ask)
        .await;
    assert_eq!(answer.status, 404, "{}", answer.text());
    assert_eq!(bench.run_set("purge", &last).await["done"], 1);
}

#[tokio::test]
async fn a_large_set_is_changed_in_batches_each_with_its_entry() {
    let bench = bench().await;
    for count in 0..501 {
        bench.completed("acme", &format!("k{count}")).await;
    }
    let preview = bench.bulk("purge", &acme()).await;
    assert_eq!(preview["count"], 501);
    let batches = [(500, 1), (1, 0)];
    for (done, remaining) in batches {
        let ran = bench.run_set("purge", &preview).await;
        assert_eq!(
            (&ran["done"], &ran["remaining"]),
            (&json!(done), &json!(remaining))
        );
    }
    let entries = bench.audit().await;
    assert_eq!(entries.len(), 2);
    assert_eq!(entries[0]["asked"]["set"], preview["set"]);
}

#[tokio::test]
async fn without_its_entry_the_set_stays_whole() {
    let bench = bench().await;
    let grant = bench.completed("acme", "k").await;
    let preview = bench.bulk("purge", &acme()).await;
    bench.registry.break_collection(Collection::Audit);
    let ask = json!({ "set": preview["set"], "why": "a test" });
    let answer = bench
        .post("ops", &format!("{OPERATIONS}/purge"), &ask)
        .await;
    assert_eq!(answer.status, 503);
    assert_eq!(bench.state(grant.id).await, "completed");
    bench.registry.mend();
    assert_eq!(bench.run_set("purge", &preview).await["done"], 1);
}

/// Operations arrive while a bulk purge goes from set to set: it ends, and only
/// matching operations are gone.
#[tokio::test]
async fn a_bulk_purge_ends_and_leaves_what_does_not_match() {
    let bench = Arc::new(bench().await);
    for count in 0..40 {
        bench.completed("acme", &format!("k{count}")).await;
    }
    let running = bench.claim("acme", "running").await;
    let other = bench.completed("zeta", "k").await;
    let traffic = {
        let bench = bench.clone();
        tokio::spawn(async move {
            for count in 0.. {
                bench.completed("acme", &format!("new{count}")).await;
                tokio::task::yield_now().await;
            }
        })
    };
    let mut ask = acme();
    ask["limit"] = 7.into();
    let (mut purged, mut refused, mut requests) = (0, 0, 0);
    loop {
        let preview = bench.bulk("purge", &ask).await;
        let ran = bench.run_set("purge", &preview).await;
        assert_eq!(ran["remaining"], 0);
        purged += ran["done"].as_u64().expect("a number");
        refused += ran["refused"].as_u64().expect("a number");
        requests += 1;
        if preview["next"].is_null() {
            break;
        }
        ask["after"] = preview["next"].clone();
    }
    traffic.abort();
    assert!(purged >= 40 && refused == 1, "{purged} {refused}");
    assert!(requests < 60, "{requests}");
    assert_eq!(bench.state(running.id).await, "running");
    assert_eq!(bench.state(other.id).await, "completed");
    for count in 0..40 {
        let page = bench
            .get("viewer", &format!("{OPERATIONS}?key=k{count}&tenant=acme"))
            .await;
        assert_eq!(page.json()["operations"], json!([]));
    }
}
