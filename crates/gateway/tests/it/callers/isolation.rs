//! No reply ever crosses from one caller to another, whatever their names and
//! credentials.

use std::collections::BTreeSet;

use rstest::rstest;
use serde_json::json;

use crate::harness::credentials::{
    API_KEYS, ApiKey, Issuer, Sent, Who, api_key, ready, revoke, scoped_key,
};
use crate::harness::fixture::{echo, look, operate, payments, route, word};
use crate::harness::{Answer, Origin, Running, configured};

const ANN: Who<'_> = ("acme", "shop", "user:ann");

/// Each name differs from another in one part, or would equal another if parts were
/// joined, decoded or case-folded.
const CALLERS: [Who<'_>; 19] = [
    ANN,
    ("globex", "shop", "user:ann"),
    ("acme", "blog", "user:ann"),
    ("acme", "shop", "user:bob"),
    ("acme", "shop", "service:ann"),
    ("acme", "shop", "client:ann"),
    ("acme", "shop", "tenant_member:ann"),
    ("ACME", "shop", "user:ann"),
    ("acme", "shop", "user:Ann"),
    ("acme:shop", "user", "user:ann"),
    ("acme", "shop:user", "user:ann"),
    ("acme", "shop", "user:user:ann"),
    ("acme", "shop", "user:ann:order-1"),
    ("acme%3Ashop", "user", "user:ann"),
    ("acme%253Ashop", "user", "user:ann"),
    ("acme%3ashop", "user", "user:ann"),
    ("acme", "shop", "user:%61nn"),
    ("acme", "shop", "user:a/n n"),
    ("t-acme", "shop", "user:ann"),
];

async fn house(origin: &Origin) -> Running {
    let text = [
        API_KEYS,
        &payments("policy = \"REQUIRED_A\""),
        &route("refunds.create", "POST", "/refunds", ""),
    ];
    configured(origin, &text.concat()).run().await
}

#[tokio::test]
async fn the_same_key_of_each_caller_on_each_endpoint_is_a_separate_operation() {
    let origin = echo().run().await;
    let gateway = house(&origin).await;
    let mut firsts = Vec::new();
    for who in CALLERS {
        let key = api_key(&gateway, who).await;
        for path in ["/payments", "/refunds"] {
            let ask = || gateway.post(path, "order-1").by(&key).body("10").send();
            let first = ask().await;
            let own = format!("run {} for {} {} {}", firsts.len() + 1, who.0, who.1, who.2);
            assert_eq!((first.status, first.text()), (201, &*own));
            firsts.push((key.secret.clone(), path, first));
        }
    }
    // Only when all operations exist could a caller get another's.
    for (secret, path, first) in &firsts {
        let again = gateway.post(path, "order-1").bearing(secret).body("10");
        let again = again.send().await;
        assert!(again.is_replay());
        assert_eq!(again.text(), first.text());
        let by_key = format!("{path}/by-idempotency-key/order-1");
        let id = first.header("x-operation-id");
        for recovery in [by_key, format!("/api/v1/operations/{id}")] {
            let found = gateway.get(&recovery).bearing(secret).send().await;
            assert_eq!((found.status, found.text()), (201, first.text()));
        }
    }
    let ledger = origin.ledger();
    assert_eq!(ledger.len(), 2 * CALLERS.len(), "nothing ran twice");
    let names: BTreeSet<_> = ledger
        .iter()
        .filter(|seen| seen.target == "/payments")
        .map(|seen| seen.header("idempotency-key"))
        .collect();
    assert_eq!(
        names.len(),
        CALLERS.len(),
        "the upstream can distinguish them"
    );
    let ids: BTreeSet<_> = ledger
        .iter()
        .map(|seen| seen.header("x-operation-id"))
        .collect();
    assert_eq!(ids.len(), ledger.len());
}

#[tokio::test]
async fn the_upstream_receives_a_namespaced_key_with_unambiguous_parts() {
    let origin = echo().run().await;
    let gateway = house(&origin).await;
    for (who, name) in [
        (ANN, "t-acme:shop:user:ann:k"),
        (("a:b", "c%", "user:d:e"), "t-a%3Ab:c%25:user:d%3Ae:k"),
    ] {
        let key = api_key(&gateway, who).await;
        gateway.post("/payments", "k").by(&key).send().await;
        let seen = origin.ledger().pop().unwrap();
        assert_eq!(seen.header("idempotency-key"), name);
        let received = ["x-tenant-id", "x-project-id", "x-subject"].map(|name| seen.header(name));
        assert_eq!(received, [who.0, who.1, who.2]);
    }
}

/// An answer as bytes, without its date.
fn bytes(answer: &Answer) -> (u16, Vec<(String, Vec<u8>)>, String) {
    let headers = answer.headers.iter().filter(|(name, _)| *name != "date");
    let headers = headers.map(|(name, value)| (name.to_string(), value.as_bytes().to_vec()));
    (answer.status, headers.collect(), answer.text().to_owned())
}

#[tokio::test]
async fn another_callers_operation_looks_absent() {
    let origin = echo().run().await;
    let gateway = house(&origin).await;
    let ann = api_key(&gateway, ANN).await;
    let mut others = Vec::new();
    for who in &CALLERS[1..] {
        others.push(api_key(&gateway, *who).await);
    }
    let paths =
        ["", "/output", "/status"].map(|end| format!("/payments/by-idempotency-key/k{end}"));
    let ask = async |path: &str, key: &ApiKey| gateway.get(path).by(key).send().await;

    let mut before = Vec::new();
    for other in &others {
        for path in &paths {
            before.push(bytes(&ask(path, other).await));
        }
    }
    let first = gateway.post("/payments", "k").by(&ann).send().await;
    assert_eq!(first.status, 201);
    let mut after = Vec::new();
    for other in &others {
        for path in &paths {
            after.push(bytes(&ask(path, other).await));
        }
    }
    assert_eq!(before, after);
    assert!(after.iter().all(|(status, ..)| *status == 404));

    // By id, beside a purged operation, which no caller has.
    let purged = gateway.post("/payments", "purged").by(&ann).send().await;
    let purged = purged.header("x-operation-id").to_owned();
    let why = json!({ "why": "a test" });
    operate(
        &gateway,
        &format!("/admin/v1/operations/{purged}/purge"),
        why,
    )
    .await;
    let there = first.header("x-operation-id");
    for end in ["", "/output", "/status"] {
        let own = ask(&format!("/api/v1/operations/{there}{end}"), &ann).await;
        assert!(own.status < 300, "{}", own.text());
        let nobodys = ask(&format!("/api/v1/operations/{purged}{end}"), &ann).await;
        let (status, headers, text) = bytes(&nobodys);
        let nobodys = (status, headers, text.replace(&purged, there));
        assert_eq!(
            word(&ask(&format!("/api/v1/operations/{purged}{end}"), &ann).await),
            "404 no-operation"
        );
        for other in &others {
            let got = ask(&format!("/api/v1/operations/{there}{end}"), other).await;
            assert_eq!(bytes(&got), nobodys);
        }
    }
    // The same key on the other endpoint was never used.
    let other = ask("/refunds/by-idempotency-key/k", &ann).await;
    assert_eq!(word(&other), "404 no-operation");
}

#[rstest]
#[case("t-acme:shop:user:ann:order-1", "charset")]
#[case("t-order-1", "reserved-prefix")]
#[case("\"t-order-1\"", "reserved-prefix")]
#[case("acme:shop:user:ann:order-1", "charset")]
#[case("user:ann:order-1", "charset")]
#[case("%74-acme", "charset")]
#[case("T%2Dacme", "charset")]
#[tokio::test]
async fn a_forged_namespaced_key_is_refused(#[case] key: &str, #[case] reason: &str) {
    let origin = echo().run().await;
    let gateway = house(&origin).await;
    let mallory = api_key(&gateway, ("globex", "shop", "user:mallory")).await;
    for path in ["/payments", "/refunds"] {
        let refused = gateway.post(path, key).by(&mallory).send().await;
        assert_eq!(word(&refused), "400 key-invalid");
        assert_eq!(refused.json()["reason"], reason);
    }
    assert_eq!(origin.begun(), 0);
}

#[tokio::test]
async fn a_clients_copies_of_the_gateways_headers_are_ignored() {
    let origin = echo().run().await;
    let text = [
        API_KEYS,
        &payments("policy = \"REQUIRED_A\""),
        &route("notes.put", "PUT", "/notes", ""),
        &route(
            "hooks.in",
            "POST",
            "/hooks",
            "policy = \"HANDLER_INTERNAL_C\"",
        ),
    ];
    let gateway = configured(&origin, &text.concat()).run().await;
    let ann = api_key(&gateway, ANN).await;
    let victim = api_key(&gateway, ("globex", "bank", "user:victim")).await;
    let theirs = gateway.post("/payments", "k").by(&victim).send().await;
    let theirs = theirs.header("x-operation-id").to_owned();

    for what in ["POST /payments", "PUT /notes", "POST /hooks"] {
        let mut ask = gateway
            .request(what)
            .by(&ann)
            .header("x-operation-id", &theirs);
        for (name, value) in [
            ("x-tenant-id", "globex"),
            ("x-project-id", "bank"),
            ("x-subject", "user:victim"),
            ("idempotency-fence", "999999"),
            ("x_tenant_id", "globex"),
            ("x_operation_id", "op_forged"),
            ("x-tenant_id", "globex"),
            ("idempotency_key", "t-globex:bank:user:victim:k"),
            ("idempotency_fence", "999999"),
            ("x-forwarded-user", "victim"),
        ] {
            ask = ask.header(name, value);
        }
        let ask = match what {
            "POST /payments" => ask.key("k"),
            _ => ask.key("t-globex:bank:user:victim:k"),
        };
        let answer = ask.send().await;
        assert_eq!(answer.status, 201, "{what}: {}", answer.text());
        assert!(!answer.is_replay());
        let seen = origin.ledger().pop().unwrap();
        let received = ["x-tenant-id", "x-project-id", "x-subject"].map(|name| seen.header(name));
        assert_eq!(received, [ANN.0, ANN.1, ANN.2], "{what}");
        let protected = what == "POST /payments";
        let key = if protected {
            "t-acme:shop:user:ann:k"
        } else {
            ""
        };
        assert_eq!(seen.header("idempotency-key"), key, "{what}");
        assert_eq!(seen.headers.contains_key("idempotency-fence"), protected);
        assert_eq!(seen.headers.contains_key("x-operation-id"), protected);
        assert_ne!(seen.header("x-operation-id"), theirs);
        for (name, value) in &seen.headers {
            assert!(!name.as_str().contains('_'), "{what}: {name}");
            let value = String::from_utf8_lossy(value.as_bytes());
            for forged in ["globex", "victim", "999999", "forged"] {
                assert!(!value.contains(forged), "{what}: {name}: {value}");
            }
        }
    }
}

#[tokio::test]
async fn api_keys_are_removed_and_tokens_are_forwarded() {
    let issuer = Issuer::new();
    let origin = echo().run().await;
    let open = "auth = \"none\"\npolicy = \"HANDLER_INTERNAL_C\"";
    let text = [
        API_KEYS,
        &issuer.section(),
        &payments(""),
        &route("open.page", "POST", "/open", open),
    ];
    let gateway = configured(&origin, &text.concat()).run().await;
    ready(&gateway).await;
    let ann = api_key(&gateway, ANN).await;
    let token = issuer.token(&json!({"tenant": "acme", "project": "shop", "sub": "ann"}));
    for path in ["/payments", "/open"] {
        gateway.post(path, "k1").by(&ann).send().await;
        gateway
            .post(path, "k2")
            .header("x-api-key", &ann.secret)
            .send()
            .await;
        for seen in origin.ledger() {
            for name in ["authorization", "x-api-key"] {
                assert_eq!(seen.header(name), "", "{path}");
            }
        }
    }
    for path in ["/payments", "/open"] {
        gateway.post(path, "k3").bearing(&token).send().await;
        let seen = origin.ledger().pop().unwrap();
        assert_eq!(
            seen.header("authorization"),
            format!("Bearer {token}"),
            "{path}"
        );
    }
    // On an open route, other credentials are forwarded to the upstream.
    gateway
        .post("/open", "k4")
        .header("x-api-key", "theirs")
        .send()
        .await;
    assert_eq!(origin.ledger().pop().unwrap().header("x-api-key"), "theirs");
}

#[tokio::test]
async fn a_revoked_key_reads_no_earlier_reply() {
    let origin = echo().run().await;
    let gateway = house(&origin).await;
    let (leaked, spare) = (api_key(&gateway, ANN).await, api_key(&gateway, ANN).await);
    let first = gateway.post("/payments", "k").by(&leaked).send().await;
    assert_eq!(first.status, 201);
    let id = first.header("x-operation-id").to_owned();
    revoke(&gateway, &leaked).await;
    let by_key = "/payments/by-idempotency-key/k";
    let by_id = format!("/api/v1/operations/{id}");
    for (with, want) in [(&leaked, "401 unauthenticated"), (&spare, "201")] {
        let retry = gateway.post("/payments", "k").by(with).send().await;
        assert_eq!(word(&retry), want);
        let in_the_other_header = gateway.post("/payments", "k");
        let other = in_the_other_header
            .header("x-api-key", &with.secret)
            .send()
            .await;
        assert_eq!(word(&other), want);
        for path in [by_key, &by_id] {
            for end in ["", "/output", "/status"] {
                let got = gateway.get(&format!("{path}{end}")).by(with).send().await;
                let want = match (want, end) {
                    ("201", "/status") => "200",
                    _ => want,
                };
                assert_eq!(word(&got), want, "{path}{end}");
            }
        }
    }
    assert_eq!(origin.runs(), 1);
}

#[tokio::test]
async fn a_route_admits_only_the_callers_that_it_names() {
    let issuer = Issuer::new();
    let origin = echo().run().await;
    let text = [
        API_KEYS,
        &issuer.section(),
        &route("a.keys", "POST", "/keys", "auth = [\"api_keys\"]"),
        &route("a.tokens", "POST", "/tokens", "auth = [\"jwt\"]"),
        &route("a.both", "POST", "/both", "auth = [\"jwt\", \"api_keys\"]"),
        &route("a.users", "POST", "/users", "subjects = [\"user:*\"]"),
        &route(
            "a.ann",
            "POST",
            "/ann",
            "subjects = [\"user:ann\", \"service:billing\"]",
        ),
        &route("a.write", "POST", "/write", "scopes = [\"write\"]"),
        &route("a.two", "POST", "/two", "scopes = [\"write\", \"pay\"]"),
        &route("a.tenant", "POST", "/tenant", "scope = \"tenant\""),
    ];
    let gateway = configured(&origin, &text.concat()).run().await;
    ready(&gateway).await;
    let ann = api_key(&gateway, ANN).await.secret;
    let writes = scoped_key(&gateway, ANN, &["write"]).await.secret;
    let pays = scoped_key(&gateway, ANN, &["pay", "write"]).await.secret;
    let billing = api_key(&gateway, ("acme", "shop", "service:billing"))
        .await
        .secret;
    let service_ann = api_key(&gateway, ("acme", "shop", "service:ann"))
        .await
        .secret;
    let homeless = api_key(&gateway, ("acme", "", "user:ann")).await.secret;
    let token = issuer.token(&json!({"tenant": "acme", "project": "shop", "sub": "ann"}));
    let scoped = json!({"tenant": "acme", "project": "shop", "sub": "bob", "scope": "pay write"});
    let scoped = issuer.token(&scoped);
    let homeless_token = issuer.token(&json!({"tenant": "acme", "sub": "ann"}));

    for (path, who, credential, want) in [
        ("/keys", "an API key", &ann, "201"),
        ("/keys", "a token", &token, "403 forbidden"),
        ("/tokens", "a token", &token, "201"),
        ("/tokens", "an API key", &ann, "403 forbidden"),
        ("/both", "an API key", &ann, "201"),
        ("/both", "a token", &token, "201"),
        ("/users", "a user", &ann, "201"),
        ("/users", "a service", &billing, "403 forbidden"),
        ("/ann", "Ann", &ann, "201"),
        ("/ann", "Ann by token", &token, "201"),
        ("/ann", "billing", &billing, "201"),
        (
            "/ann",
            "a service called ann",
            &service_ann,
            "403 forbidden",
        ),
        ("/ann", "Bob", &scoped, "403 forbidden"),
        ("/write", "without the scope", &ann, "403 forbidden"),
        ("/write", "with it", &writes, "201"),
        ("/two", "with one of two", &writes, "403 forbidden"),
        ("/two", "with both", &pays, "201"),
        ("/two", "with both, by token", &scoped, "201"),
        (
            "/keys",
            "a key without a project",
            &homeless,
            "403 forbidden",
        ),
        (
            "/both",
            "a token without a project",
            &homeless_token,
            "403 forbidden",
        ),
        ("/tenant", "a key without a project", &homeless, "201"),
        (
            "/tenant",
            "a token without a project",
            &homeless_token,
            "201",
        ),
    ] {
        let runs = origin.runs();
        let answer = gateway.request(&format!("POST {path}")).bearing(credential);
        let answer = answer.send().await;
        assert_eq!(word(&answer), want, "{path}: {who}");
        assert_eq!(
            origin.runs() - runs,
            usize::from(want == "201"),
            "{path}: {who}"
        );
        if want == "201" {
            continue;
        }
        // A caller that may not write may not read either, by key or by id.
        let recovery = gateway.get(&format!("{path}/by-idempotency-key/k"));
        assert_eq!(
            word(&recovery.bearing(credential).send().await),
            want,
            "{path}: {who}"
        );
    }
}

/// A caller that has lost access to a route cannot read its own earlier operations
/// there by id either.
#[tokio::test]
async fn recovery_by_id_requires_access_to_the_operations_route() {
    let origin = echo().run().await;
    let with = |more: &str| [API_KEYS, &payments(more)].concat();
    let gateway = configured(&origin, &with("")).run().await;
    let ann = api_key(&gateway, ANN).await;
    let first = gateway.post("/payments", "k").by(&ann).send().await;
    let path = format!("/api/v1/operations/{}", first.header("x-operation-id"));
    assert_eq!(gateway.get(&path).by(&ann).send().await.status, 201);
    gateway
        .reload(&origin.url(), &with("scopes = [\"pay\"]"))
        .await
        .unwrap();
    assert_eq!(
        word(&gateway.get(&path).by(&ann).send().await),
        "404 no-operation"
    );
    let by_key = gateway.get("/payments/by-idempotency-key/k").by(&ann);
    assert_eq!(word(&by_key.send().await), "403 forbidden");
}

#[tokio::test]
async fn an_unauthenticated_request_is_refused_everywhere() {
    let issuer = Issuer::new();
    let origin = echo().run().await;
    let text = [API_KEYS, &issuer.section(), &payments("")];
    let gateway = configured(&origin, &text.concat()).run().await;
    ready(&gateway).await;
    let ann = api_key(&gateway, ANN).await.secret;
    let token = |claims: serde_json::Value| issuer.token(&claims);
    let reserved = json!({"tenant": "_local", "project": "shop", "sub": "ann"});
    let sentinel = json!({"tenant": "acme", "project": "_tenant", "sub": "ann"});
    let platform = json!({"tenant": "acme", "project": "_platform", "sub": "ann"});
    let expired = json!({"tenant": "acme", "project": "shop", "sub": "ann", "exp": 1_000_000});
    let other = json!({"tenant": "acme", "project": "shop", "sub": "ann", "aud": "other"});
    let number = json!({"tenant": 7, "project": "shop", "sub": "ann"});
    let changed = {
        let mut letters = ann.clone().into_bytes();
        letters[30] = if letters[30] == b'a' { b'b' } else { b'a' };
        String::from_utf8(letters).unwrap()
    };
    for (what, credential) in [
        ("a reserved tenant", token(reserved)),
        ("a sentinel", token(sentinel)),
        ("another sentinel", token(platform)),
        ("an expired token", token(expired)),
        ("another audience", token(other)),
        ("a number for a name", token(number)),
        ("a changed key", changed),
        ("half a key", ann[..30].to_owned()),
        ("a foreign key", "sk_live_1".to_owned()),
    ] {
        let refused = gateway
            .post("/payments", "k")
            .bearing(&credential)
            .send()
            .await;
        assert_eq!(word(&refused), "401 unauthenticated", "{what}");
        assert_eq!(refused.header("www-authenticate"), "Bearer", "{what}");
    }
    let nothing = gateway.post("/payments", "k").send().await;
    assert_eq!(word(&nothing), "401 unauthenticated");
    let two = gateway
        .post("/payments", "k")
        .bearing(&ann)
        .header("x-api-key", &ann);
    assert_eq!(word(&two.send().await), "401 unauthenticated");
    let twice = gateway.post("/payments", "k").bearing(&ann).bearing(&ann);
    assert_eq!(word(&twice.send().await), "401 unauthenticated");
    assert_eq!(origin.begun(), 0);
    let page = look(&gateway, "/admin/v1/operations").await;
    assert_eq!(page.json()["operations"], json!([]), "nothing is stored");
}

#[tokio::test]
async fn reserved_names_cannot_be_given_to_a_key() {
    let origin = echo().run().await;
    let gateway = house(&origin).await;
    for who in [
        ("_local", "shop", "user:ann"),
        ("acme", "_tenant", "user:ann"),
        ("acme", "_platform", "user:ann"),
        ("acme", "shop", "service:scheduler"),
        ("acme", "shop", "service:webhook-ingest"),
        ("acme", "shop", "ann"),
        ("", "shop", "user:ann"),
    ] {
        let wish = json!({
            "tenant": who.0, "project": who.1, "subject": who.2, "why": "a test",
        });
        let refused = gateway.change("/admin/v1/keys", &wish.to_string());
        let refused = refused.host("localhost").send().await;
        assert_eq!(refused.status, 400, "{who:?}: {}", refused.text());
    }
}

#[tokio::test]
async fn routes_with_a_wider_scope_use_a_sentinel_and_protect_only_if_configured() {
    let origin = echo().run().await;
    let text = [
        API_KEYS,
        &route("tenants.change", "POST", "/tenant", "scope = \"tenant\""),
        &route(
            "platform.change",
            "POST",
            "/platform",
            "scope = \"platform\"",
        ),
        &route(
            "tenants.keyed",
            "POST",
            "/keyed",
            "scope = \"tenant\"\npolicy = \"REQUIRED_A\"",
        ),
        &route(
            "platform.keyed",
            "POST",
            "/top",
            "scope = \"platform\"\npolicy = \"ACCEPTED\"",
        ),
    ];
    let gateway = configured(&origin, &text.concat()).run().await;
    let shop = api_key(&gateway, ANN).await;
    let blog = api_key(&gateway, ("acme", "blog", "user:ann")).await;
    let globex = api_key(&gateway, ("globex", "shop", "user:ann")).await;

    for (path, sentinel) in [("/tenant", "_tenant"), ("/platform", "_platform")] {
        let refused = gateway.post(path, "k").by(&shop).send().await;
        assert_eq!(word(&refused), "400 key-prohibited", "{path}");
        let passed = gateway
            .request(&format!("POST {path}"))
            .by(&shop)
            .send()
            .await;
        assert_eq!(passed.status, 201);
        let seen = origin.ledger().pop().unwrap();
        assert_eq!(seen.header("x-project-id"), sentinel);
        assert_eq!(seen.header("x-tenant-id"), "acme");
    }
    for (path, name) in [
        ("/keyed", "t-acme:_tenant:user:ann:k"),
        ("/top", "t-acme:_platform:user:ann:k"),
    ] {
        let first = gateway.post(path, "k").by(&shop).send().await;
        assert_eq!(
            origin.ledger().pop().unwrap().header("idempotency-key"),
            name
        );
        let again = gateway.post(path, "k").by(&blog).send().await;
        assert!(again.is_replay(), "the project does not count here");
        assert_eq!(again.text(), first.text());
        let other = gateway.post(path, "k").by(&globex).send().await;
        assert!(!other.is_replay(), "the tenant does");
    }
}

/// On an open route the clients' credentials are compared, and operations are found
/// by id as well as by key.
#[tokio::test]
async fn on_an_open_route_each_credential_is_a_different_request() {
    let origin = echo().run().await;
    let text = [API_KEYS, &payments("auth = \"none\"")];
    let gateway = configured(&origin, &text.concat()).run().await;
    let ann = api_key(&gateway, ANN).await.secret;
    for (key, mine, theirs) in [
        ("k1", Some("Bearer session-a"), Some("Bearer session-b")),
        ("k2", Some("Basic YTpi"), None),
        ("k3", None, Some("Bearer session-b")),
        (
            "k4",
            Some(&*format!("Bearer {ann}")),
            Some("Bearer session-b"),
        ),
    ] {
        let with = |ask: crate::harness::ClientRequest, line: Option<&str>| match line {
            Some(line) => ask.header("authorization", line),
            None => ask,
        };
        let first = with(gateway.post("/payments", key), mine).send().await;
        assert_eq!(first.status, 201, "{key}");
        let reused = with(gateway.post("/payments", key), theirs).send().await;
        assert_eq!(word(&reused), "422 key-reused", "{key}");
        let path = format!("/payments/by-idempotency-key/{key}");
        assert_eq!(
            with(gateway.get(&path), mine).send().await.status,
            201,
            "{key}"
        );
        let other = with(gateway.get(&path), theirs).send().await;
        assert_eq!(word(&other), "404 no-operation", "{key}");
    }
    // By id: without a credential, and with an API key.
    for line in [None, Some(format!("Bearer {ann}"))] {
        let key = if line.is_some() { "by-id-2" } else { "by-id-1" };
        let with = |ask: crate::harness::ClientRequest| match &line {
            Some(line) => ask.header("authorization", line),
            None => ask,
        };
        let first = with(gateway.post("/payments", key)).send().await;
        let path = format!("/api/v1/operations/{}", first.header("x-operation-id"));
        let found = with(gateway.get(&path)).send().await;
        assert_eq!((found.status, found.text()), (201, first.text()), "{key}");
    }
}

/// Closing a route that was open closes its earlier operations too.
#[tokio::test]
async fn operations_from_before_authentication_are_not_readable_without_it() {
    let origin = echo().run().await;
    let open = route("open.create", "POST", "/open", "auth = \"none\"");
    let before = payments("");
    let gateway = configured(&origin, &before).run().await;
    let first = gateway.post("/payments", "k").send().await;
    let path = format!("/api/v1/operations/{}", first.header("x-operation-id"));
    assert_eq!(gateway.get(&path).send().await.status, 201);

    let after = [API_KEYS, &before, &open].concat();
    gateway.reload(&origin.url(), &after).await.unwrap();
    assert_eq!(word(&gateway.get(&path).send().await), "404 no-operation");
    let by_key = gateway.get("/payments/by-idempotency-key/k").send().await;
    assert_eq!(word(&by_key), "401 unauthenticated");
    let ann = api_key(&gateway, ANN).await;
    assert_eq!(
        word(&gateway.get(&path).by(&ann).send().await),
        "404 no-operation"
    );
}

/// A configuration may be read while it is half written: without `[auth]` every
/// client would be let in.
#[tokio::test]
async fn a_reload_does_not_remove_authentication() {
    let origin = echo_nothing().await;
    let text = [API_KEYS, &payments("")].concat();
    let gateway = configured(&origin, &text).run().await;
    let refused = gateway.reload(&origin.url(), &payments("")).await;
    let refused = refused.expect_err("the last method of [auth] is gone");
    assert!(
        refused.starts_with("auth cannot change while the gateway runs"),
        "{refused}"
    );
    let answer = gateway.post("/payments", "k").send().await;
    assert_eq!(word(&answer), "401 unauthenticated");
    assert_eq!(origin.runs(), 0);
}

/// Names with non-ASCII characters are encoded; a name that is too long is refused
/// before any lookup.
#[tokio::test]
async fn non_ascii_names_are_encoded_and_long_names_are_refused() {
    let origin = echo_nothing().await;
    let gateway = house(&origin).await;
    let zurich = api_key(&gateway, ("Zürich", "größe", "user:ü")).await;
    let first = gateway.post("/payments", "k").by(&zurich).send().await;
    assert_eq!(first.status, 201);
    let seen = origin.only();
    let name = "t-Z%C3%BCrich:gr%C3%B6%C3%9Fe:user:%C3%BC:k";
    assert_eq!(seen.header("idempotency-key"), name);
    assert_eq!(seen.headers["x-tenant-id"].as_bytes(), "Zürich".as_bytes());

    let long = ":".repeat(200);
    let who = (&*long, "shop", "user:ann");
    let long = api_key(&gateway, who).await;
    let fits = gateway.post("/payments", "k").by(&long).send().await;
    assert_eq!(fits.status, 201, "600 characters of a tenant fit");
    let refused = gateway.post("/payments", &"k".repeat(255)).by(&long);
    let refused = refused.send().await;
    assert_eq!(word(&refused), "400 key-invalid");
    assert_eq!(refused.json()["reason"], "name-too-long");
    assert_eq!(origin.runs(), 2);
}

/// An origin that accepts header values with any characters.
async fn echo_nothing() -> Origin {
    crate::harness::origin().reply(201, "paid").run().await
}

/// A caller's identity does not depend on its credential: a retry may use a new
/// token or another key.
#[tokio::test]
async fn one_caller_with_two_credentials_has_one_operation() {
    let issuer = Issuer::new();
    let origin = echo().run().await;
    let text = [API_KEYS, &issuer.section(), &payments("")];
    let gateway = configured(&origin, &text.concat()).run().await;
    ready(&gateway).await;
    let (key, spare) = (api_key(&gateway, ANN).await, api_key(&gateway, ANN).await);
    let claims = json!({"tenant": "acme", "project": "shop", "sub": "ann"});
    let fresh = json!({"tenant": "acme", "project": "shop", "sub": "ann", "jti": "2"});
    let tokens = [issuer.token(&claims), issuer.token(&fresh)];
    let first = gateway.post("/payments", "k").by(&key).send().await;
    for credential in [&spare.secret, &tokens[0], &tokens[1]] {
        let again = gateway.post("/payments", "k").bearing(credential);
        let again = again.send().await;
        assert_eq!((again.text(), again.is_replay()), (first.text(), true));
    }
    assert_eq!(origin.runs(), 1);
}
