//! The policies of routes: each policy with each kind of request, as one table.

use crate::harness::fixture::{LOCAL, route, word};
use crate::harness::{Answer, Origin, Running, configured, origin};

/// The result of a request in a few words:
///
/// * `400 key-missing`: refused, and the origin received nothing;
/// * `kept, named`: it ran under protection, and the origin received the key in its
///   namespaced form, its `raw` form, or `none`;
/// * `passed, raw`: it was forwarded unprotected, with the key as it was sent;
/// * `replayed`: the first reply again, and the origin received nothing.
const TABLE: &str = "
route              | without a key        | a good key           | a bad key            | the good key again
REQUIRED_A         | 400 key-missing      | kept, named          | 400 key-invalid      | replayed
ACCEPTED           | passed, none         | kept, named          | 400 key-invalid      | replayed
HANDLER_INTERNAL_C | passed, none         | passed, none         | passed, none         | passed, none
PROHIBITED         | passed, none         | 400 key-prohibited   | 400 key-prohibited   | 400 key-prohibited
raw                | 400 key-missing      | kept, raw            | 400 key-invalid      | replayed
none               | 400 key-missing      | kept, none           | 400 key-invalid      | replayed
GET                | passed, none         | passed, raw          | passed, raw          | passed, raw
POST               | passed, none         | kept, named          | 400 key-invalid      | replayed
PATCH              | passed, none         | kept, named          | 400 key-invalid      | replayed
PUT                | passed, none         | passed, raw          | passed, raw          | passed, raw
DELETE             | passed, none         | passed, raw          | passed, raw          | passed, raw
GET, wide          | passed, none         | 400 key-prohibited   | 400 key-prohibited   | 400 key-prohibited
POST, wide         | passed, none         | 400 key-prohibited   | 400 key-prohibited   | 400 key-prohibited
PATCH, wide        | passed, none         | 400 key-prohibited   | 400 key-prohibited   | 400 key-prohibited
PUT, wide          | passed, none         | 400 key-prohibited   | 400 key-prohibited   | 400 key-prohibited
DELETE, wide       | passed, none         | 400 key-prohibited   | 400 key-prohibited   | 400 key-prohibited
PUT, required      | 400 key-missing      | kept, named          | 400 key-invalid      | replayed
GET, accepted      | passed, none         | kept, named          | 400 key-invalid      | replayed
";

/// The configuration of each row's route: name, method, settings.
const ROUTES: [(&str, &str, &str); 18] = [
    ("REQUIRED_A", "POST", "policy = \"REQUIRED_A\""),
    ("ACCEPTED", "POST", "policy = \"ACCEPTED\""),
    (
        "HANDLER_INTERNAL_C",
        "POST",
        "policy = \"HANDLER_INTERNAL_C\"",
    ),
    ("PROHIBITED", "POST", "policy = \"PROHIBITED\""),
    (
        "raw",
        "POST",
        "policy = \"REQUIRED_A\"\nforward_key = \"raw\"",
    ),
    (
        "none",
        "POST",
        "policy = \"REQUIRED_A\"\nforward_key = \"none\"",
    ),
    ("GET", "GET", ""),
    ("POST", "POST", ""),
    ("PATCH", "PATCH", ""),
    ("PUT", "PUT", ""),
    ("DELETE", "DELETE", ""),
    ("GET, wide", "GET", "scope = \"tenant\""),
    ("POST, wide", "POST", "scope = \"tenant\""),
    ("PATCH, wide", "PATCH", "scope = \"platform\""),
    ("PUT, wide", "PUT", "scope = \"tenant\""),
    ("DELETE, wide", "DELETE", "scope = \"platform\""),
    ("PUT, required", "PUT", "policy = \"REQUIRED_A\""),
    ("GET, accepted", "GET", "policy = \"ACCEPTED\""),
];

#[tokio::test]
async fn each_policy_decides_each_kind_of_request() {
    let origin = origin().reply(201, "done").run().await;
    let text = ROUTES
        .iter()
        .enumerate()
        .map(|(number, (_, method, settings))| {
            route(
                &format!("row.n{number}"),
                method,
                &format!("/{number}"),
                settings,
            )
        });
    let gateway = configured(&origin, &text.collect::<String>()).run().await;
    let mut table = vec![row([
        "route",
        "without a key",
        "a good key",
        "a bad key",
        "the good key again",
    ])];
    for (number, (name, method, _)) in ROUTES.iter().enumerate() {
        let what = format!("{method} /{number}");
        let mut cells = [*name, "", "", "", ""].map(str::to_owned);
        for (cell, key) in cells[1..].iter_mut().zip(["", "good", "not good", "good"]) {
            *cell = outcome(&gateway, &origin, &what, key).await;
        }
        table.push(row(cells.each_ref().map(String::as_str)));
    }
    let table = table.join("\n");
    assert_eq!(table, TABLE.trim(), "\n{table}\n");
}

fn row([route, cells @ ..]: [&str; 5]) -> String {
    let cells = cells.map(|cell| format!("{cell:<20}"));
    format!("{route:<18} | {}", cells.join(" | "))
        .trim_end()
        .to_owned()
}

async fn outcome(gateway: &Running, origin: &Origin, what: &str, key: &str) -> String {
    let runs = origin.runs();
    let ask = gateway.request(what);
    let ask = if key.is_empty() { ask } else { ask.key(key) };
    let answer = ask.send().await;
    match origin.ledger().get(runs) {
        None if answer.is_replay() => "replayed".to_owned(),
        None => word(&answer),
        Some(seen) => format!(
            "{}, {}",
            manner(&answer),
            forwarded_form(seen.header("idempotency-key"), key)
        ),
    }
}

fn manner(answer: &Answer) -> &'static str {
    match answer.header("idempotency-status") {
        "" => "passed",
        _ => "kept",
    }
}

fn forwarded_form(seen: &str, sent: &str) -> &'static str {
    match seen {
        "" => "none",
        _ if seen == sent => "raw",
        _ if seen == format!("{LOCAL}:{sent}") => "named",
        _ => "something else",
    }
}

#[tokio::test]
async fn a_refused_key_names_its_reason() {
    let origin = origin().run().await;
    let text = [
        route("a.any", "POST", "/any", "policy = \"REQUIRED_A\""),
        route("a.uuid", "POST", "/uuid", "key_format = \"uuid\""),
        route("a.ulid", "POST", "/ulid", "key_format = \"ulid\""),
    ];
    let gateway = configured(&origin, &text.concat()).run().await;
    let long = "k".repeat(256);
    for (path, key, reason) in [
        ("/any", "", "empty"),
        ("/any", "\"\"", "empty"),
        ("/any", &*long, "too-long"),
        ("/any", "a b", "charset"),
        ("/any", "a/b", "charset"),
        ("/any", "\"a", "malformed"),
        ("/any", "t-1", "reserved-prefix"),
        ("/uuid", "order-1", "format"),
        ("/uuid", "0198f3a1c0de7000800000000000000a", "format"),
        ("/uuid", "{0198f3a1-c0de-7000-8000-00000000000a}", "charset"),
        ("/uuid", "0198f3a1-c0de-7000-8000-00000000000g", "format"),
        ("/ulid", "01ARZ3NDEKTSV4RRFFQ69G5FA", "format"),
        ("/ulid", "81ARZ3NDEKTSV4RRFFQ69G5FAV", "format"),
        ("/ulid", "01ARZ3NDEKTSV4RRFFQ69G5FAU", "format"),
    ] {
        let refused = gateway.post(path, key).send().await;
        assert_eq!(word(&refused), "400 key-invalid", "{path} {key}");
        assert_eq!(refused.json()["reason"], reason, "{path} {key}");
    }
    let two = gateway.post("/any", "a").key("a").send().await;
    assert_eq!(two.json()["reason"], "multiple");
    assert_eq!(origin.begun(), 0);

    for (path, key) in [
        ("/any", "A.b_c~d-1"),
        ("/any", &long[..255]),
        ("/uuid", "0198f3a1-c0de-7000-8000-00000000000a"),
        ("/uuid", "0198F3A1-C0DE-7000-8000-00000000000A"),
        ("/ulid", "01ARZ3NDEKTSV4RRFFQ69G5FAV"),
    ] {
        let first = gateway.post(path, key).send().await;
        assert_eq!(first.status, 200, "{path} {key}: {}", first.text());
        // Quoted, or with parameters, it is the same key.
        let again = gateway.post(path, &format!("\"{key}\";v=1")).send().await;
        assert!(again.is_replay(), "{path} {key}: {}", again.text());
    }
    // A UUID in capitals is a different key: keys are not case-folded.
    assert_eq!(origin.runs(), 5);
}
