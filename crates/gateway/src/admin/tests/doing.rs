//! Operations one by one, classes and keys.

use rstest::rstest;
use serde_json::json;

use super::*;

const OPERATIONS: &str = "/admin/v1/operations";

/// The keys on a page, in order.
fn keys(page: &Value) -> String {
    let operations = page["operations"].as_array().expect("a list");
    let keys = operations
        .iter()
        .map(|operation| operation["key"].as_str().unwrap_or_default());
    keys.collect::<Vec<_>>().join(" ")
}

#[tokio::test]
async fn operations_are_found_by_every_filter() {
    let bench = bench().await;
    bench.completed("acme", "a").await;
    bench.clock.advance(Duration::from_secs(60));
    bench.unknown("acme", "b").await;
    bench.claim("zeta", "c").await;
    let later = START.plus(Duration::from_secs(30));
    for (query, want) in [
        (String::new(), "c b a"),
        ("tenant=acme".to_owned(), "b a"),
        ("project=shop".to_owned(), "c b a"),
        ("project=other".to_owned(), ""),
        ("endpoint=payments.create".to_owned(), "c b a"),
        ("state=unknown".to_owned(), "b"),
        ("key=a".to_owned(), "a"),
        (format!("since={later}"), "c b"),
        (format!("before={later}"), "a"),
        ("tenant=acme&state=completed".to_owned(), "a"),
    ] {
        let answer = bench.get("viewer", &format!("{OPERATIONS}?{query}")).await;
        assert_eq!(keys(&answer.json()), want, "{query}");
    }
}

#[tokio::test]
async fn pages_together_are_the_whole_list() {
    let bench = bench().await;
    for count in 0..7 {
        bench.completed("acme", &format!("k{count}")).await;
    }
    let (mut seen, mut path) = (Vec::new(), format!("{OPERATIONS}?limit=3"));
    loop {
        let page = bench.get("viewer", &path).await.json();
        seen.push(keys(&page));
        match page["next"].as_str() {
            Some(next) => path = format!("{OPERATIONS}?limit=3&after={next}"),
            None => break,
        }
    }
    assert_eq!(seen.join(" "), "k6 k5 k4 k3 k2 k1 k0");
}

#[tokio::test]
async fn an_operation_is_shown_whole_and_its_body_only_when_asked() {
    let bench = bench().await;
    let id = bench.completed("ac:me", "k").await.id;
    let shown = bench
        .get("viewer", &format!("{OPERATIONS}/{id}"))
        .await
        .json();
    assert_eq!(
        shown,
        json!({
            "operation_id": id.to_string(),
            "tenant": "ac:me",
            "project": "shop",
            "subject": "user:1",
            "endpoint": "payments.create",
            "key": "k",
            "state": "completed",
            "class": "interactive",
            "attempts": 1,
            "created_at": "2026-09-21T14:13:20.000Z",
            "completed_at": "2026-09-21T14:13:20.000Z",
            "expires_at": "2026-09-22T14:13:20.000Z",
            "original_status": 201,
            "name": "t-ac%3Ame:shop:user:1:k",
            "fence": 1,
            "delivered": false,
            "lease_until": null,
            "due_at": null,
            "forgotten_at": "2026-09-22T14:13:20.000Z",
            "terms": {
                "lease": "1m", "retention": "24h", "remember": "24h", "on_unknown": "hold",
                "ttl_basis": "completion", "expiry": "strict", "keep_expired": "0s",
            },
            "fingerprint": "json-1",
            "reply": {
                "kept": "whole", "status": 201, "headers": [["content-type", "text/plain"]],
                "trailers": [], "body_bytes": 4,
            },
        })
    );
    let with_body = bench
        .get("viewer", &format!("{OPERATIONS}/{id}?body=1"))
        .await
        .json();
    assert_eq!(
        (
            &with_body["reply"]["body_text"],
            &with_body["reply"]["body_base64"]
        ),
        (&json!("paid"), &json!("cGFpZA=="))
    );
    bench.clock.advance(Duration::from_secs(25 * 60 * 60));
    assert_eq!(bench.state(id).await, "absent");
}

#[tokio::test]
async fn running_work_is_purged_only_by_force() {
    let bench = bench().await;
    let id = bench.claim("acme", "k").await.id;
    let path = format!("{OPERATIONS}/{id}/purge");
    let refused = bench.post("ops", &path, &json!({ "why": "a test" })).await;
    assert_eq!(
        (refused.status, refused.json()["state"].as_str()),
        (409, Some("running"))
    );
    let forced = bench
        .post("ops", &path, &json!({ "why": "a test", "force": true }))
        .await;
    assert_eq!(
        forced.json(),
        json!({ "operation_id": id.to_string(), "state": null })
    );
    assert_eq!(bench.state(id).await, "absent");
    let again = bench.post("ops", &path, &json!({ "why": "a test" })).await;
    assert_eq!(again.status, 404);
}

#[tokio::test]
async fn resolving_settles_or_frees() {
    let bench = bench().await;
    let resolve = async |id, body: Value| {
        let mut ask = body;
        ask["why"] = "the bank says so".into();
        bench
            .post("ops", &format!("{OPERATIONS}/{id}/resolve"), &ask)
            .await
    };
    let ran = bench.unknown("acme", "ran").await;
    let reply = json!({
        "status": 201,
        "headers": { "content-type": "text/plain", "set-cookie": "s=1", "connection": "close" },
        "body": "paid",
    });
    let answer = resolve(ran.id, json!({ "outcome": "ran", "reply": reply })).await;
    assert_eq!(
        answer.json(),
        json!({ "operation_id": ran.id.to_string(), "state": "completed" })
    );
    let shown = bench
        .get("viewer", &format!("{OPERATIONS}/{}?body=1", ran.id))
        .await
        .json();
    assert_eq!(
        shown["reply"]["headers"],
        json!([["content-type", "text/plain"]])
    );
    assert_eq!(shown["reply"]["body_text"], "paid");
    assert!(shown["fence"].as_u64() > Some(ran.fence.0), "{shown}");

    let failed = bench.unknown("acme", "failed").await;
    let answer = resolve(
        failed.id,
        json!({ "outcome": "ran", "reply": { "status": 422 } }),
    )
    .await;
    assert_eq!(answer.json()["state"], "failed");
    let not_run = bench.unknown("acme", "not-run").await;
    let answer = resolve(not_run.id, json!({ "outcome": "not_run" })).await;
    assert_eq!(answer.json()["state"], "released");
    let unsure = bench.unknown("acme", "unsure").await;
    let answer = resolve(unsure.id, json!({ "outcome": "unsure" })).await;
    assert_eq!(answer.json()["state"], "unknown");
    let answer = resolve(ran.id, json!({ "outcome": "not_run" })).await;
    assert_eq!(
        (answer.status, answer.detail().as_str()),
        (
            409,
            "Only an unknown operation can be resolved; this one is completed."
        )
    );
}

#[tokio::test]
async fn a_paused_operation_is_resumed() {
    let bench = bench().await;
    let paused = bench.paused("acme", "k").await;
    let ask = json!({ "why": "a test" });
    let path = format!("{OPERATIONS}/{}/resume", paused.id);
    let answer = bench.post("ops", &path, &ask).await;
    assert_eq!(answer.json()["state"], "released");
    let answer = bench.post("ops", &path, &ask).await;
    assert_eq!(
        answer.detail(),
        "Only a paused operation can be resumed; this one is released."
    );
}

const NO_ID: &str = "op_00000000000000000000000000000000";

#[rstest]
#[case::no_reason("{id}/purge", json!({}), 400, "The body is not valid: missing field `why` at line 1 column 2.")]
#[case::blank_reason("purge", json!({ "all": true, "why": " " }), 400, "`why` must be a reason of 1 to 1000 bytes on one line; the audit log keeps it.")]
#[case::nothing_to_purge("purge", json!({ "why": "x" }), 400, "Name the operations: a `filter` that is not empty, or `all`.")]
#[case::empty_filter("purge", json!({ "filter": {}, "why": "x" }), 400, "Name the operations: a `filter` that is not empty, or `all`.")]
#[case::two_ways("purge", json!({ "filter": { "key": "k" }, "all": true, "why": "x" }), 400, "`filter` and `all` exclude each other.")]
#[case::id_in_the_body("purge", json!({ "operation_id": NO_ID, "why": "x" }), 400, "unknown field `operation_id`")]
#[case::set_and_filter("purge", json!({ "set": "set_1", "filter": { "key": "k" }, "why": "x" }), 400, "`set` is sent with `why` only: the preview has fixed everything else.")]
#[case::set_and_force("purge", json!({ "set": "set_1", "force": true, "why": "x" }), 400, "`set` is sent with `why` only")]
#[case::set_and_outcome("resolve", json!({ "set": "set_1", "outcome": "not_run", "why": "x" }), 400, "`set` is sent with `why` only")]
#[case::no_such_set("resume", json!({ "set": "set_1", "why": "x" }), 404, "No set has this name")]
#[case::unknown_field("purge", json!({ "all": true, "reason": "x", "why": "x" }), 400, "unknown field `reason`")]
#[case::no_id("k/purge", json!({ "why": "x" }), 400, "An operation's id is `op_` and 32 hexadecimal digits.")]
#[case::many("purge", json!({ "all": true, "limit": 10_001, "why": "x" }), 400, "`limit` must be from 1 to 10000.")]
#[case::cursor("purge", json!({ "all": true, "after": "x", "why": "x" }), 400, "`after` must be the `next` cursor of the previous page.")]
#[case::state("purge", json!({ "filter": { "state": "lost" }, "why": "x" }), 400, "`state` must be one of queued, running, completed, failed, released, unknown, paused, expired.")]
#[case::state_of_another_verb("resume", json!({ "filter": { "state": "unknown" }, "why": "x" }), 400, "Only paused operations can be changed by `resume`: leave `state` out of the filter.")]
#[case::moment("purge", json!({ "filter": { "since": "yesterday" }, "why": "x" }), 400, "`since` must be an RFC 3339 time such as 2026-11-16T08:00:00Z.")]
#[case::no_outcome("resolve", json!({ "all": true, "why": "x" }), 400, "`outcome` is missing: `ran`, `not_run` or `unsure`.")]
#[case::no_reply("{id}/resolve", json!({ "outcome": "ran", "why": "x" }), 400, "`ran` needs the `reply` that retries will receive.")]
#[case::reply_of_nothing("{id}/resolve", json!({ "outcome": "not_run", "reply": { "status": 200 }, "why": "x" }), 400, "A `reply` is allowed with `ran` only.")]
#[case::status("{id}/resolve", json!({ "outcome": "ran", "reply": { "status": 101 }, "why": "x" }), 400, "`reply`: `status` is 101")]
#[case::body_of_204("{id}/resolve", json!({ "outcome": "ran", "reply": { "status": 204, "body": "x" }, "why": "x" }), 400, "`reply`: a response with status 204 has no body.")]
#[case::large_reply("{id}/resolve", json!({ "outcome": "ran", "reply": { "status": 200, "body": "x".repeat(1001) }, "why": "x" }), 400, "larger than the maximum of 1000 bytes")]
#[case::large_body("purge", json!({ "why": "x".repeat(70_000) }), 413, "The body is larger than 65536 bytes.")]
#[tokio::test]
async fn an_invalid_request_is_refused_with_its_mistake(
    #[case] path: &str,
    #[case] ask: Value,
    #[case] status: u16,
    #[case] words: &str,
) {
    let bench = bench().await;
    let path = path.replace("{id}", NO_ID);
    let answer = bench
        .post("ops", &format!("{OPERATIONS}/{path}"), &ask)
        .await;
    assert_eq!(answer.status, status, "{}", answer.text());
    assert!(answer.detail().contains(words), "{}", answer.detail());
    assert_eq!(answer.headers["content-type"], "application/problem+json");
    assert!(bench.audit().await.is_empty(), "nothing was begun");
}

#[tokio::test]
async fn queries_are_checked_too() {
    let bench = bench().await;
    for (query, words) in [
        ("tenent=acme", "unknown field `tenent`"),
        ("limit=0", "`limit` must be from 1 to 1000."),
        ("limit=x", "invalid digit"),
        (
            "after=x",
            "`after` must be the `next` cursor of the previous page.",
        ),
        ("key=a&key=b", "duplicate field `key`"),
    ] {
        let answer = bench.get("viewer", &format!("{OPERATIONS}?{query}")).await;
        assert_eq!(answer.status, 400, "{query}");
        assert!(
            answer.detail().contains(words),
            "{query}: {}",
            answer.detail()
        );
    }
}

#[rstest]
#[case::none(&[])]
#[case::a_form(&["application/x-www-form-urlencoded"])]
#[case::text(&["text/plain"])]
#[case::twice(&["application/json", "application/json"])]
#[tokio::test]
async fn only_json_is_read(#[case] types: &[&str]) {
    let bench = bench().await;
    let mut request = Request::post("/admin/v1/operations/purge")
        .header("authorization", format!("Bearer {}", token("ops")));
    for content_type in types {
        request = request.header("content-type", *content_type);
    }
    let request = request.body(Body::from(r#"{"all":true,"why":"x"}"#));
    let answer = bench.send(request.expect("a request")).await;
    assert_eq!(answer.status, 415);
}

#[tokio::test]
async fn a_class_changes_for_new_operations_only() {
    let bench = bench().await;
    let terms = || bench.classes.get("financial").expect("built in").terms();
    let before = bench.claim_under("acme", "before", terms()).await;
    let ask = json!({ "settings": { "retention": "10d", "remember": "60d" }, "why": "the auditors want it" });
    let answer = bench
        .post("root", "/admin/v1/classes/financial", &ask)
        .await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(answer.json()["settings"]["retention"], "10d");
    assert_eq!(answer.json()["sources"]["retention"], "changed");
    assert_eq!(answer.json()["sources"]["lease"], "built-in");
    let after = bench.claim_under("acme", "after", terms()).await;
    for (grant, retention, remember) in [(before, "7d", "30d"), (after, "10d", "60d")] {
        let shown = bench
            .get("viewer", &format!("{OPERATIONS}/{}", grant.id))
            .await
            .json();
        assert_eq!(
            (&shown["terms"]["retention"], &shown["terms"]["remember"]),
            (&json!(retention), &json!(remember))
        );
    }
    let why = json!({ "why": "a test" });
    let answer = bench
        .post("root", "/admin/v1/classes/financial/unset", &why)
        .await;
    assert_eq!(answer.json()["class"]["settings"]["retention"], "7d");
}

#[rstest]
#[case::lease("interactive", json!({ "lease": "10s" }), "lease: 10s is shorter than the 30s that an upstream of its routes may take")]
#[case::remember("financial", json!({ "remember": "1d" }), "remember: 24h is shorter than the retention of 7d")]
#[case::nothing("financial", json!({}), "`settings` is empty: there is nothing to change.")]
#[case::unknown("financial", json!({ "retain": "1d" }), "unknown field `retain`")]
#[case::name("a b", json!({ "wait": "1s" }), "the name of a class is 1 to 64 characters")]
#[tokio::test]
async fn an_invalid_class_is_refused(
    #[case] name: &str,
    #[case] settings: Value,
    #[case] words: &str,
) {
    let bench = bench().await;
    let ask = json!({ "settings": settings, "why": "a test" });
    let path = format!("/admin/v1/classes/{}", name.replace(' ', "%20"));
    let answer = bench.post("root", &path, &ask).await;
    assert_eq!(answer.status, 400, "{}", answer.text());
    assert!(answer.detail().contains(words), "{}", answer.detail());
}

#[tokio::test]
async fn keys_are_created_listed_in_pages_and_revoked() {
    let bench = bench().await;
    for (tenant, name) in [("acme", "one"), ("zeta", "two"), ("acme", "three")] {
        let ask = json!({
            "tenant": tenant, "project": "shop", "subject": "service:worker",
            "scopes": ["pay"], "name": name, "expires_at": "2026-09-22T00:00:00Z", "why": "a test",
        });
        assert_eq!(bench.post("root", "/admin/v1/keys", &ask).await.status, 201);
        bench.clock.advance(Duration::from_secs(1));
    }
    let names = |page: &Value| -> String {
        let keys = page["keys"].as_array().expect("a list").iter();
        keys.map(|key| {
            format!(
                "{} {}; ",
                key["name"].as_str().unwrap_or_default(),
                key["state"].as_str().unwrap_or_default()
            )
        })
        .collect()
    };
    let first = bench.get("viewer", "/admin/v1/keys?limit=2").await.json();
    assert_eq!(names(&first), "one active; two active; ");
    let next = first["next"].as_str().expect("there is more");
    let second = bench
        .get("viewer", &format!("/admin/v1/keys?limit=2&after={next}"))
        .await
        .json();
    assert_eq!(
        (names(&second), &second["next"]),
        ("three active; ".to_owned(), &Value::Null)
    );
    let acme = bench
        .get("viewer", "/admin/v1/keys?tenant=acme")
        .await
        .json();
    assert_eq!(names(&acme), "one active; three active; ");
    let id = acme["keys"][0]["id"].as_str().expect("an id");
    let revoke = format!("/admin/v1/keys/{id}/revoke");
    for already in [false, true] {
        let answer = bench
            .post("root", &revoke, &json!({ "why": "it leaked" }))
            .await;
        assert_eq!(answer.json()["already"], already);
    }
    bench.clock.advance(Duration::from_secs(24 * 60 * 60));
    let acme = bench
        .get("viewer", "/admin/v1/keys?tenant=acme")
        .await
        .json();
    assert_eq!(names(&acme), "one revoked; three expired; ");
}

#[rstest]
#[case::works(Ok("2 routes"), 200, "2 routes")]
#[case::fails(Err("line 3: no"), 409, "Nothing was changed: line 3: no")]
#[tokio::test]
async fn a_reload_answers_with_its_result(
    #[case] outcome: Result<&'static str, &'static str>,
    #[case] status: u16,
    #[case] detail: &str,
) {
    let root = OperatorToken {
        name: "root".to_owned(),
        role: Role::Admin,
        token: SecretString::from(token("root")),
    };
    let reload: Reload = Arc::new(move || {
        let result = outcome.map(ToOwned::to_owned).map_err(ToOwned::to_owned);
        Box::pin(async move { result })
    });
    let bench = bench_with(vec![root], Some(reload)).await;
    let answer = bench
        .post("root", "/admin/v1/reload", &json!({ "why": "a test" }))
        .await;
    assert_eq!((answer.status, answer.detail().as_str()), (status, detail));
}

/// The class keeps the operation for operators after its key is forgotten.
#[tokio::test]
async fn an_expired_operation_is_shown_without_its_reply() {
    let bench = bench().await;
    let terms = Class::interactive().with(|class| {
        class.keep_expired = Duration::from_secs(60 * 60);
        class.on_unknown = OnUnknown::Hold;
    });
    let grant = bench.claim_under("acme", "k", terms.terms()).await;
    let reply = Answer::NotKept { status: 201 };
    bench.settle(&grant, Settlement::Completed(reply)).await;
    bench.clock.advance(Duration::from_secs(24 * 60 * 60));
    let shown = bench
        .get("viewer", &format!("{OPERATIONS}/{}?body=1", grant.id))
        .await
        .json();
    assert_eq!(
        (
            &shown["state"],
            &shown["reply"]["kept"],
            &shown["reply"]["status"]
        ),
        (&json!("expired"), &json!("gone"), &json!(201))
    );
}
