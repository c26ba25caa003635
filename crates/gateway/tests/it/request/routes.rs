//! The effect of each setting of a route, and which route a path matches.

use rstest::rstest;
use serde_json::json;

use crate::harness::credentials::{API_KEYS, Sent, api_key};
use crate::harness::fixture::{answering, payments, route, without_store, word};
use crate::harness::{Origin, Reply, Running, configured, origin};

async fn one(origin: &Origin, settings: &str) -> Running {
    configured(origin, &payments(settings)).run().await
}

/// Each key space against the same key on another endpoint, in another project and
/// by another subject: `own` is a separate operation, `same` is the first one.
#[rstest]
#[case("endpoint", ["own", "own", "own", "own"])]
#[case("project", ["422 key-reused", "own", "own", "own"])]
#[case("tenant", ["422 key-reused", "422 key-reused", "own", "own"])]
#[tokio::test]
async fn key_space(#[case] space: &str, #[case] want: [&str; 4]) {
    let origin = origin().reply(201, "paid").run().await;
    let settings = format!("key_space = \"{space}\"");
    let text = [
        API_KEYS,
        &payments(&settings),
        &route("refunds.create", "POST", "/refunds", &settings),
    ];
    let gateway = configured(&origin, &text.concat()).run().await;
    let ann = api_key(&gateway, ("acme", "shop", "user:ann")).await;
    let blog = api_key(&gateway, ("acme", "blog", "user:ann")).await;
    let bob = api_key(&gateway, ("acme", "shop", "user:bob")).await;
    let globex = api_key(&gateway, ("globex", "shop", "user:ann")).await;
    let first = gateway.post("/payments", "k").by(&ann).send().await;
    let id = first.header("x-operation-id");
    for (number, (path, key)) in [
        ("/refunds", &ann),
        ("/payments", &blog),
        ("/payments", &bob),
        ("/payments", &globex),
    ]
    .into_iter()
    .enumerate()
    {
        // It is not found there before it is used there, for any caller.
        let place = format!("{path}/by-idempotency-key/k");
        let found = gateway.get(&place).by(key).send().await;
        assert_eq!(word(&found), "404 no-operation", "{number}");
        let answer = gateway.post(path, "k").by(key).send().await;
        let got = match (answer.status, answer.is_replay()) {
            (201, false) => "own".to_owned(),
            (201, true) => "same".to_owned(),
            _ => word(&answer),
        };
        assert_eq!(got, want[number], "{number}");
        if got != "own" {
            assert!(
                !answer.text().contains(id),
                "the first operation is not revealed"
            );
            let found = gateway.get(&place).by(key).send().await;
            assert_eq!(word(&found), "404 no-operation", "{number}");
        }
    }
    let again = gateway.post("/payments", "k").by(&ann).send().await;
    assert!(again.is_replay());
    let found = gateway
        .get("/payments/by-idempotency-key/k")
        .by(&ann)
        .send()
        .await;
    assert_eq!(found.status, 201);
}

#[rstest]
#[case("same", 201, 201)]
#[case("200", 201, 200)]
#[case("200", 202, 202)]
#[case("200", 422, 422)]
#[tokio::test]
async fn duplicate_create(#[case] setting: &str, #[case] first: u16, #[case] again: u16) {
    let origin = origin().reply(first, "made").run().await;
    let gateway = one(&origin, &format!("duplicate_create = \"{setting}\"")).await;
    let ask = || gateway.post("/payments", "k").send();
    assert_eq!(ask().await.status, first);
    let replay = ask().await;
    assert_eq!((replay.status, replay.text()), (again, "made"));
    let id = replay.header("x-operation-id");
    for path in [
        "/payments/by-idempotency-key/k",
        &format!("/api/v1/operations/{id}"),
    ] {
        assert_eq!(gateway.get(path).send().await.status, again, "{path}");
    }
    let status = gateway
        .get("/payments/by-idempotency-key/k/status")
        .send()
        .await;
    assert_eq!(status.json()["original_status"], first);
}

/// The outcome by status, route and the upstream's hint: `kept`, `released`, or
/// `unknown`.
#[rstest]
#[case::created(201, "", "", "kept")]
#[case::redirect(303, "", "", "kept")]
#[case::refused(422, "", "", "kept")]
#[case::conflict(409, "", "", "released")]
#[case::error(500, "", "", "released")]
#[case::between(502, "", "", "unknown")]
#[case::between(504, "", "", "unknown")]
#[case::keep(409, "keep_statuses = [409]", "", "kept")]
#[case::keep_error(500, "keep_statuses = [409, 500]", "", "kept")]
#[case::keep_doubtful(502, "keep_statuses = [502]", "", "kept")]
#[case::release(404, "release_statuses = [404]", "", "released")]
#[case::release_doubtful(504, "release_statuses = [504]", "", "released")]
#[case::not_named(410, "release_statuses = [404]\nkeep_statuses = [409]", "", "kept")]
#[case::permanent(503, "", "permanent", "kept")]
#[case::transient(201, "", "transient", "released")]
#[case::permanent_wins(404, "release_statuses = [404]", "permanent", "kept")]
#[case::transient_wins(409, "keep_statuses = [409]", "Transient", "released")]
#[case::nonsense(201, "", "perhaps", "kept")]
#[tokio::test]
async fn status_route_and_hint_decide_whether_a_reply_is_kept(
    #[case] status: u16,
    #[case] settings: &str,
    #[case] hint: &'static str,
    #[case] want: &str,
) {
    let origin = origin().replying(move |_, run| {
        let reply = Reply::new(status, format!("run {run}"));
        match hint {
            "" => reply,
            hint => reply.header("idempotency-outcome", hint),
        }
    });
    let origin = origin.run().await;
    let gateway = one(&origin, settings).await;
    let ask = || gateway.post("/payments", "k").send();
    let (first, again) = (ask().await, ask().await);
    assert_eq!((first.status, first.text()), (status, "run 1"));
    assert_eq!(
        first.header("idempotency-outcome"),
        "",
        "it goes no further"
    );
    let kept = if status < 400 { "completed" } else { "failed" };
    match want {
        "kept" => {
            assert_eq!(first.header("idempotency-status"), kept);
            assert_eq!((again.status, again.text()), (status, "run 1"));
            assert!(again.is_replay());
        }
        "released" => {
            assert_eq!(first.header("idempotency-status"), "released");
            assert_eq!((again.status, again.text()), (status, "run 2"));
        }
        _ => {
            assert_eq!(first.header("idempotency-status"), "unknown");
            assert_eq!(word(&again), "409 outcome-unknown");
        }
    }
}

/// The changes that make a request different, by what the route compares.
#[rstest]
#[case::all("", ["differs", "differs", "differs", "same"])]
#[case::ignored("fingerprint = { ignore = [\"/sent_at\", \"query:trace\"] }", ["same", "differs", "same", "same"])]
#[case::included("fingerprint = { include = [\"/amount\"] }", ["same", "differs", "differs", "same"])]
#[case::with_a_header("fingerprint = { include = [\"header:X-Currency\"] }", ["differs", "differs", "differs", "differs"])]
#[tokio::test]
async fn fingerprint(#[case] settings: &str, #[case] want: [&str; 4]) {
    let origin = origin().reply(201, "paid").run().await;
    let gateway = one(&origin, settings).await;
    let ask = |key: &str, query: &str, currency: &'static str, body: &'static str| {
        gateway
            .post(&format!("/payments?{query}"), key)
            .header("x-currency", currency)
            .json(body)
            .send()
    };
    let changes: [(&str, &'static str, &'static str); 4] = [
        ("trace=1", "EUR", r#"{"amount": 10, "sent_at": 2}"#),
        ("trace=1", "EUR", r#"{"amount": 20, "sent_at": 1}"#),
        ("trace=2", "EUR", r#"{"amount": 10, "sent_at": 1}"#),
        ("trace=1", "USD", r#"{"amount": 10, "sent_at": 1}"#),
    ];
    for (number, (query, currency, body)) in changes.into_iter().enumerate() {
        let key = format!("k{number}");
        ask(&key, "trace=1", "EUR", r#"{"amount": 10, "sent_at": 1}"#).await;
        let other = ask(&key, query, currency, body).await;
        let got = match other.status {
            201 if other.is_replay() => "same",
            422 => "differs",
            status => panic!("{status}: {}", other.text()),
        };
        assert_eq!(got, want[number], "{number}");
    }
}

#[tokio::test]
async fn a_routes_limits_replace_the_servers() {
    let origin = origin().reply(201, "x".repeat(2000)).run().await;
    let server = "server: body_limit = \"100B\"; reply_limit = \"10KiB\"";
    let text = [
        server,
        &route("a.usual", "POST", "/usual", ""),
        &route("a.large", "POST", "/large", "body_limit = \"1KiB\""),
        &route("a.short", "POST", "/short", "reply_limit = \"1KiB\""),
    ];
    let gateway = configured(&origin, &text.concat()).run().await;
    let ask = |path: &str, bytes: usize| gateway.post(path, "k").body(vec![b'x'; bytes]).send();
    for (path, bytes, want) in [
        ("/usual", 101, "413 body-too-large"),
        ("/usual", 100, "201"),
        ("/large", 1025, "413 body-too-large"),
        ("/large", 1024, "201"),
        ("/short", 100, "201"),
    ] {
        assert_eq!(word(&ask(path, bytes).await), want, "{path} {bytes}");
    }
    assert!(ask("/usual", 100).await.is_replay());
    let not_kept = ask("/short", 100).await;
    assert_eq!(word(&not_kept), "410 reply-not-kept");
    assert_eq!(not_kept.json()["original_status"], 201);
    assert_eq!(origin.runs(), 3);
}

#[tokio::test]
async fn a_routes_timeout_replaces_the_upstreams() {
    let origin = origin().reply(201, "paid").gated().run().await;
    let text = [
        route("a.quick", "POST", "/quick", "timeout = \"50ms\""),
        route("a.open", "PUT", "/open", "timeout = \"50ms\""),
        route("a.usual", "POST", "/usual", ""),
    ];
    let gateway = configured(&origin, &text.concat()).run().await;
    let usual = gateway.post("/usual", "k").spawn();
    origin.called(1).await;
    let quick = gateway.post("/quick", "k").send().await;
    assert_eq!(word(&quick), "504 outcome-unknown");
    assert_eq!(quick.header("idempotency-status"), "unknown");
    let open = gateway.request("PUT /open").send().await;
    assert_eq!(word(&open), "504 outcome-unknown");
    assert_eq!(
        open.header("idempotency-status"),
        "",
        "it was not protected"
    );
    origin.open();
    assert_eq!(usual.await.unwrap().status, 201);
}

#[tokio::test]
async fn header_rules_change_requests_and_responses() {
    let origin = origin()
        .reply(201, "paid")
        .header("x-powered-by", "php")
        .header("server", "nginx")
        .run()
        .await;
    let rules = r#"
        request_headers = { set = { X-Via = "onceward", X-Region = "eu" }, remove = ["X-Debug"] }
        response_headers = { set = { Strict-Transport-Security = "max-age=1" }, remove = ["X-Powered-By"] }
    "#;
    let gateway = one(&origin, rules).await;
    let ask = |key: &str| {
        gateway
            .post("/payments", key)
            .header("x-debug", "1")
            .header("x-region", "us")
            .header("x-kept", "1")
            .send()
    };
    for (what, answer) in [
        ("the first", ask("k").await),
        ("a replay", ask("k").await),
        ("a problem", ask("a b").await),
    ] {
        assert_eq!(
            answer.header("strict-transport-security"),
            "max-age=1",
            "{what}"
        );
        assert_eq!(answer.header("x-powered-by"), "", "{what}");
    }
    let recovered = gateway.get("/payments/by-idempotency-key/k").send().await;
    assert_eq!(recovered.header("strict-transport-security"), "max-age=1");
    let seen = origin.only();
    for (name, value) in [
        ("x-debug", ""),
        ("x-via", "onceward"),
        ("x-region", "eu"),
        ("x-kept", "1"),
    ] {
        assert_eq!(seen.header(name), value, "{name}");
    }
}

#[tokio::test]
async fn each_route_goes_to_its_own_upstream() {
    let (a, b) = (
        origin().reply(201, "a").run().await,
        origin().reply(201, "b").run().await,
    );
    let to_b = route("b.create", "POST", "/b", "").replace("\"origin\"", "\"other\"");
    let other = format!(
        "[upstreams.other]\nurl = \"{}\"\nhost = \"b.internal\"\n",
        b.url()
    );
    let text = [other, route("a.create", "POST", "/a", ""), to_b];
    let gateway = configured(&a, &text.concat()).run().await;
    for (path, body) in [("/a", "a"), ("/b", "b")] {
        let answer = gateway.post(path, "k").send().await;
        assert_eq!(answer.text(), body);
    }
    assert_eq!(a.only().header("host"), "shop.example");
    assert_eq!(b.only().header("host"), "b.internal");
    assert_eq!(b.only().header("x-forwarded-host"), "shop.example");
}

/// The endpoint that a path matches; a header rule of the route sends it to the
/// origin.
#[tokio::test]
async fn the_most_exact_pattern_wins() {
    let origin = origin().replying(|seen, _| Reply::new(200, seen.header("x-route").to_owned()));
    let origin = origin.run().await;
    let named = |endpoint: &str, path: &str, method: &str| {
        let rule = format!("request_headers = {{ set = {{ X-Route = \"{endpoint}\" }} }}");
        route(endpoint, method, path, &rule)
    };
    let text = [
        named("pay.list", "/pay", "GET"),
        named("pay.create", "/pay", "POST"),
        named("pay.mine", "/pay/mine", "POST"),
        named("pay.one", "/pay/{id}", "POST"),
        named("pay.part", "/pay/{id}/parts/{part}", "POST"),
        named("pay.confirm", "/pay:confirm", "POST"),
        named("files.put", "/files/{*rest}", "POST"),
    ];
    let gateway = configured(&origin, &text.concat()).run().await;
    for (what, want) in [
        ("GET /pay", "pay.list"),
        ("GET /pay?page=2", "pay.list"),
        ("POST /pay", "pay.create"),
        ("POST /p%61y", "pay.create"),
        ("POST /%70%61%79", "pay.create"),
        ("POST /pay/mine", "pay.mine"),
        ("POST /pay/m%69ne", "pay.mine"),
        ("POST /pay/7", "pay.one"),
        ("POST /pay/a%2Fb", "pay.one"),
        ("POST /pay/..a", "pay.one"),
        ("POST /pay/7/parts/8", "pay.part"),
        ("POST /pay:confirm", "pay.confirm"),
        ("POST /pay%3Aconfirm", "pay.confirm"),
        ("POST /pay%3aconfirm", "pay.confirm"),
        ("POST /files", "404 no-route"),
        ("POST /files/", "files.put"),
        ("POST /files/a", "files.put"),
        ("POST /files/a/b/c.txt", "files.put"),
        ("POST /", "404 no-route"),
        ("POST /PAY", "404 no-route"),
        ("POST /pay/", "404 no-route"),
        ("POST /pay/7/8", "404 no-route"),
        ("POST /payments", "404 no-route"),
        ("POST /pay%2Fmine", "404 no-route"),
        ("PUT /pay", "405 method-not-allowed"),
        ("GET /pay/7", "405 method-not-allowed"),
        ("POST /pay/./7", "400 bad-request"),
        ("POST /pay/../files/a", "400 bad-request"),
        ("POST /files/../pay", "400 bad-request"),
        ("POST /files/%2e%2E/pay", "400 bad-request"),
        ("POST /files/.%2e/pay", "400 bad-request"),
        ("POST /files/..%2fpay", "400 bad-request"),
        ("POST /files/a%2F..%2F..%2Fpay", "400 bad-request"),
        ("POST /files/..%5cpay", "400 bad-request"),
        ("POST /files/..", "400 bad-request"),
        ("POST /files/%", "400 bad-request"),
        ("POST /files/%zz", "400 bad-request"),
        ("POST /files/a%00b", "400 bad-request"),
    ] {
        let answer = gateway.request(what).send().await;
        let got = match answer.status {
            200 => answer.text().to_owned(),
            _ => word(&answer),
        };
        assert_eq!(got, want, "{what}");
    }
}

/// A catch-all route beside a stricter one never serves a path that an upstream
/// would read as the stricter route's.
#[rstest]
#[case("/payments")]
#[case("/payment%73")]
#[case("/%70ayments")]
#[case("/v1:pay")]
#[case("/v1%3Apay")]
#[case("/a(b)")]
#[case("/a%28b%29")]
#[tokio::test]
async fn another_spelling_does_not_slip_past_a_route(#[case] path: &str) {
    let origin = origin().run().await;
    let strict = "policy = \"REQUIRED_A\"";
    let text = [
        payments(strict),
        route("a.colon", "POST", "/v1:pay", strict),
        route("a.braces", "POST", "/a(b)", strict),
        route(
            "a.rest",
            "POST",
            "/{*rest}",
            "policy = \"HANDLER_INTERNAL_C\"",
        ),
    ];
    let gateway = configured(&origin, &text.concat()).run().await;
    let answer = gateway.request(&format!("POST {path}")).send().await;
    assert_eq!(word(&answer), "400 key-missing");
    assert_eq!(origin.begun(), 0);
    assert_eq!(gateway.request("POST /other").send().await.status, 200);
}

#[tokio::test]
async fn a_405_lists_the_allowed_methods() {
    let origin = origin().run().await;
    let text = [
        route("a.get", "GET", "/a", ""),
        route("a.post", "POST", "/a", ""),
        route("b.post", "POST", "/b", ""),
    ];
    let gateway = configured(&origin, &text.concat()).run().await;
    for (what, allow) in [
        ("PUT /a", vec!["GET", "POST"]),
        ("DELETE /a", vec!["GET", "POST"]),
        ("GET /b", vec!["POST"]),
        ("OPTIONS /b", vec!["POST"]),
        ("PROPFIND /b", vec!["POST"]),
    ] {
        let refused = gateway.request(what).send().await;
        assert_eq!(word(&refused), "405 method-not-allowed", "{what}");
        let mut allowed: Vec<_> = refused.header("allow").split(", ").collect();
        allowed.retain(|method| *method != "HEAD");
        assert_eq!(allowed, allow, "{what}");
    }
    assert_eq!(
        gateway.request("HEAD /a").send().await.status,
        200,
        "HEAD is served where GET is"
    );
    assert_eq!(origin.runs(), 1);
}

/// A pattern is one endpoint with one key space; recovery uses the concrete path,
/// and the path is compared.
#[tokio::test]
async fn a_pattern_is_one_endpoint() {
    let origin = origin().replying(|seen, run| Reply::new(201, format!("{} {run}", seen.target)));
    let origin = origin.run().await;
    let text = [
        route("pay.capture", "POST", "/pay/{id}/capture", ""),
        route("files.put", "POST", "/files/{*rest}", ""),
    ];
    let gateway = configured(&origin, &text.concat()).run().await;
    let first = gateway.post("/pay/1/capture", "k").send().await;
    let other = gateway.post("/pay/2/capture", "k").send().await;
    assert_eq!(word(&other), "422 key-reused");
    let found = gateway
        .get("/pay/1/capture/by-idempotency-key/k")
        .send()
        .await;
    assert_eq!(found.text(), first.text());
    let file = gateway.post("/files/a/b", "k").send().await;
    let found = gateway.get("/files/a/b/by-idempotency-key/k").send().await;
    assert_eq!((found.status, found.text()), (201, file.text()));
}

#[tokio::test]
async fn a_declared_route_beats_the_gateways_own_paths_unless_it_is_a_remainder() {
    let origin = origin().reply(200, "theirs").run().await;
    let text = [
        payments(""),
        route(
            "own.by_key",
            "GET",
            "/payments/by-idempotency-key/{key}",
            "",
        ),
        route("own.operation", "GET", "/api/v1/operations/{id}", ""),
        route("own.rest", "GET", "/{*rest}", ""),
    ];
    let gateway = configured(&origin, &text.concat()).run().await;
    gateway.post("/payments", "k").send().await;
    for (path, theirs) in [
        ("/payments/by-idempotency-key/k", true),
        ("/payments/by-idempotency-key/k/status", false),
        ("/api/v1/operations/op_1", true),
        ("/api/v1/operations/op_1/status", false),
        ("/.well-known/idempotency", false),
        ("/elsewhere", true),
        ("/api/v1/operations/list", true),
    ] {
        let answer = gateway.get(path).send().await;
        assert_eq!(
            answer.text() == "theirs",
            theirs,
            "{path}: {}",
            answer.text()
        );
    }
}

/// The store fails because its deadline is too short for any store.
#[rstest]
#[case("reject", "503 store-unavailable")]
#[case("bypass", "201")]
#[tokio::test]
async fn on_store_failure(#[case] setting: &str, #[case] want: &str) {
    let origin = answering(&[201]).run().await;
    let class = format!("on_store_failure = \"{setting}\"");
    let (_gateway, failed) = without_store(&origin, &class).await;
    assert_eq!(word(&failed), want);
    match setting {
        "reject" => {
            assert_eq!(failed.header("retry-after"), "1");
            assert_eq!(failed.json()["retryable"], json!(true));
        }
        _ => {
            assert_eq!(failed.header("idempotency-status"), "bypassed");
            let ledger = origin.ledger();
            // The key is forwarded, so that the upstream can recognise a retry.
            let bare = |name: &str| ledger.iter().any(|seen| seen.header(name).is_empty());
            let received = ["idempotency-key", "idempotency-fence", "x-operation-id"].map(bare);
            assert_eq!(
                received,
                [false, true, true],
                "without a grant no grant is sent"
            );
        }
    }
}

/// The location in a 202 is the operation's own, for any path.
#[rstest]
#[case::plain("POST", "/pay", "/pay")]
#[case::slash("POST", "/pay/", "/pay/")]
#[case::root("POST", "/", "/")]
#[case::pattern("POST", "/pay/{id}", "/pay/a%20b")]
#[case::remainder("POST", "/files/{*rest}", "/files/a/b/")]
#[case::empty_remainder("POST", "/files/{*rest}", "/files/")]
#[case::with_a_query("POST", "/pay", "/pay?a=1")]
#[case::not_a_host("POST", "/{*rest}", "//evil.example/pay")]
#[case::put("PUT", "/pay", "/pay")]
#[case::get("GET", "/pay", "/pay")]
#[tokio::test]
async fn the_location_of_a_202_is_valid(
    #[case] method: &str,
    #[case] pattern: &str,
    #[case] target: &str,
    #[values("", API_KEYS)] auth: &str,
) {
    let origin = origin().reply(201, "paid").gated().run().await;
    let class = "[classes.own]\nin_flight = \"accept\"\n";
    let settings = "policy = \"ACCEPTED\"\nclass = \"own\"";
    let text = [auth, class, &route("a.one", method, pattern, settings)];
    let gateway = configured(&origin, &text.concat()).run().await;
    let ann = api_key(&gateway, ("acme", "shop", "user:ann")).await;
    let what = format!("{method} {target}");
    let ask = || gateway.request(&what).by(&ann).key("k");
    let first = ask().spawn();
    origin.called(1).await;
    let again = ask().send().await;
    assert_eq!(again.status, 202, "{}", again.text());
    let place = again.header("location").to_owned();
    assert!(!place.starts_with("//"), "{place} is on another host");
    let status = gateway.get(&place).by(&ann).send().await;
    assert_eq!(
        (status.status, status.json()),
        (200, again.json()),
        "{place}"
    );
    origin.open();
    first.await.unwrap();
    let reply = gateway.get(place.strip_suffix("/status").unwrap());
    let reply = reply.by(&ann).send().await;
    assert_eq!((reply.status, reply.text()), (201, "paid"), "{place}");
    assert_eq!(origin.runs(), 1);
}

/// With authenticated callers, a key is found below the path that it was sent to,
/// and below no other path of the same route.
#[tokio::test]
async fn recovery_uses_the_concrete_path() {
    let origin = origin().reply(201, "paid").run().await;
    let text = [
        API_KEYS,
        &route("pay.capture", "POST", "/pay/{id}/capture", ""),
    ];
    let gateway = configured(&origin, &text.concat()).run().await;
    let ann = api_key(&gateway, ("acme", "shop", "user:ann")).await;
    gateway.post("/pay/1/capture", "k").by(&ann).send().await;
    for (path, want) in [
        ("/pay/1/capture", "201"),
        ("/pay/2/capture", "404 no-operation"),
        ("/pay/{id}/capture", "404 no-operation"),
    ] {
        let path = format!("{}/by-idempotency-key/k", path.replace(['{', '}'], "~"));
        assert_eq!(
            word(&gateway.get(&path).by(&ann).send().await),
            want,
            "{path}"
        );
    }
}
