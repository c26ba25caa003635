//! The endpoints of webhooks.

use rstest::rstest;
use serde_json::json;

use super::*;

const WEBHOOKS: &str = "/admin/v1/webhooks";
/// A part of every secret of a webhook.
const SECRET: &str = "whsec_Y2FuYXJ5Y2FuYXJ5Y2FuYXJ5";

fn wanted() -> Value {
    json!({
        "tenant": "acme", "project": "shop", "provider": "svix", "secrets": [SECRET],
        "why": "a new provider",
    })
}

fn with(edit: &[(&str, Value)]) -> Value {
    let mut wanted = wanted();
    for (name, value) in edit {
        wanted[name] = value.clone();
    }
    wanted
}

#[tokio::test]
async fn a_webhook_is_created_listed_rotated_and_deleted() {
    let bench = bench().await;
    let answer = bench.post("root", WEBHOOKS, &wanted()).await;
    assert_eq!(answer.status, 201, "{}", answer.text());
    let made = answer.json();
    let id = made["webhook_id"].as_str().expect("an id").to_owned();
    let url = format!("http://127.0.0.1:8080/api/v1/webhooks/svix/{id}");
    assert_eq!(made["url"], url.as_str());
    // A given secret is not shown again.
    assert!(made.get("secret").is_none() && !answer.text().contains("Y2FuYXJ5"));
    let signing = made["signing_secret"].as_str().expect("a secret");
    assert!(signing.starts_with("whsec_"), "{signing}");
    let shown = json!({
        "webhook_id": id,
        "url": url,
        "tenant": "acme",
        "project": "shop",
        "provider": "svix",
        "scheme": null,
        "upstream": "default",
        "path": "/webhooks/svix",
        "deliver": "async",
        "same_bytes": "deliver",
        "secrets": {
            "kept": "sealed", "path": null,
            "valid": [{ "created_at": "2026-09-21T14:13:20.000Z", "until": null }],
        },
        "problem": null,
        "created_at": "2026-09-21T14:13:20.000Z",
    });
    assert_eq!(made["webhook"], shown);
    let one = format!("{WEBHOOKS}/{id}");
    assert_eq!(bench.get("viewer", &one).await.json(), shown);
    let page = bench.get("viewer", WEBHOOKS).await.json();
    assert_eq!(page, json!({ "webhooks": [shown], "next": null }));

    let update = json!({ "path": "/hooks/right", "why": "mistyped" });
    let answer = bench.post("root", &format!("{one}/update"), &update).await;
    assert_eq!(answer.json()["path"], "/hooks/right");
    for wrong in [
        json!({ "why": "nothing is changed" }),
        json!({ "path": "no slash", "why": "mistyped" }),
        json!({ "upstream": "nowhere", "why": "mistyped" }),
    ] {
        let answer = bench.post("root", &format!("{one}/update"), &wrong).await;
        assert_eq!(answer.status, 400, "{wrong}");
    }
    let rotate = json!({ "generate": true, "overlap": "1h", "why": "it leaked" });
    let answer = bench.post("root", &format!("{one}/rotate"), &rotate).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    let rotated = answer.json();
    assert!(
        rotated["secret"]
            .as_str()
            .is_some_and(|text| text.starts_with("whsec_"))
    );
    assert_eq!(
        rotated["webhook"]["secrets"]["valid"],
        json!([
            { "created_at": "2026-09-21T14:13:20.000Z", "until": "2026-09-21T15:13:20.000Z" },
            { "created_at": "2026-09-21T14:13:20.000Z", "until": null },
        ])
    );
    let shown = bench.get("viewer", &one).await.text();
    let secret = rotated["secret"].as_str().expect("a secret");
    assert!(!shown.contains(secret) && !shown.contains(signing));

    let delete = json!({ "why": "over" });
    let answer = bench.post("root", &format!("{one}/delete"), &delete).await;
    assert_eq!(answer.json(), json!({ "webhook_id": id }));
    for answer in [
        bench.get("viewer", &one).await,
        bench.post("root", &format!("{one}/delete"), &delete).await,
        bench.post("root", &format!("{one}/update"), &update).await,
        bench.post("root", &format!("{one}/rotate"), &rotate).await,
    ] {
        assert_eq!((answer.status, answer.code().as_str()), (404, "not-found"));
    }
}

#[tokio::test]
async fn every_change_is_audited_without_its_secret() {
    let bench = bench().await;
    let made = bench.post("root", WEBHOOKS, &wanted()).await.json();
    let id = made["webhook_id"].as_str().expect("an id");
    let generated = with(&[("secrets", Value::Null), ("generate", json!(true))]);
    let made = bench.post("root", WEBHOOKS, &generated).await.json();
    let other = made["secret"].as_str().expect("a secret").to_owned();
    let signing = made["signing_secret"]
        .as_str()
        .expect("a secret")
        .to_owned();
    let rotate = json!({ "secret": "AAAA", "why": "it leaked" });
    bench
        .post("root", &format!("{WEBHOOKS}/{id}/rotate"), &rotate)
        .await;
    let refused = with(&[("secrets", json!(["not base64 Y2FuYXJ5!"]))]);
    assert_eq!(bench.post("root", WEBHOOKS, &refused).await.status, 400);
    let delete = json!({ "why": "over" });
    bench
        .post("root", &format!("{WEBHOOKS}/{id}/delete"), &delete)
        .await;
    let entries = bench.audit().await;
    let recorded: Vec<_> = entries
        .iter()
        .map(|entry| {
            let text = |name: &str| entry[name].as_str().unwrap_or("-").to_owned();
            format!("{} {} {}", text("action"), text("outcome"), text("why"))
        })
        .collect();
    assert_eq!(
        recorded,
        [
            "webhooks.delete done over",
            "webhooks.create refused a new provider",
            "webhooks.rotate done it leaked",
            "webhooks.create done a new provider",
            "webhooks.create done a new provider",
        ]
    );
    assert_eq!(entries[0]["target"], id);
    assert_eq!(
        entries[2]["asked"],
        json!({ "secret": "given", "overlap": null })
    );
    assert_eq!(entries[4]["asked"]["secrets"], "1 given");
    assert_eq!(entries[4]["result"], json!({ "webhook_id": id }));
    let all = serde_json::to_string(&entries).expect("JSON");
    for secret in ["Y2FuYXJ5", "AAAA", other.as_str(), signing.as_str()] {
        assert!(!all.contains(secret), "{secret} in {all}");
    }
}

#[rstest]
#[case::provider(
    with(&[("provider", json!("strip"))]),
    "Nothing was changed: provider: there is no provider \"strip\"; did you mean \"stripe\"?"
)]
#[case::upstream(
    with(&[("upstream", json!("ledger"))]),
    "Nothing was changed: upstream: there is no [upstreams.ledger]; write one of default."
)]
#[case::both(
    with(&[("generate", json!(true))]),
    "Send `secrets` or `generate`, not both."
)]
#[case::secrets_as_text(
    with(&[("secrets", json!(SECRET))]),
    "The body is not valid: `secrets` must be a list of strings"
)]
#[case::secret_as_number(
    with(&[("secrets", json!([SECRET, 7]))]),
    "The body is not valid: `secrets` must be a list of strings"
)]
#[case::deliver(
    with(&[("deliver", json!("later"))]),
    "The body is not valid: unknown variant `later`, expected `async` or `sync`"
)]
#[case::unknown_field(
    with(&[("secret", json!(SECRET))]),
    "The body is not valid: unknown field `secret`, expected one of"
)]
#[tokio::test]
async fn invalid_webhooks_are_refused_with_a_sentence(#[case] body: Value, #[case] want: &str) {
    let bench = bench().await;
    let answer = bench.post("root", WEBHOOKS, &body).await;
    assert_eq!(answer.status, 400);
    assert!(answer.detail().starts_with(want), "{}", answer.detail());
    assert!(!answer.text().contains("Y2FuYXJ5"), "{}", answer.text());
    assert!(bench.webhooks.list().is_empty());
}

#[rstest]
#[case::nothing(json!({}), 400, "Send the new `secret`, or `generate` if the provider accepts a generated one.")]
#[case::both(json!({ "secret": SECRET, "generate": true }), 400, "Send the new `secret`, or `generate` if the provider accepts a generated one.")]
#[case::overlap(json!({ "secret": SECRET, "overlap": "1" }), 400, "`overlap` has no unit; write 24h, for example.")]
#[case::malformed(json!({ "secret": "Y2FuYXJ5!" }), 400, "Nothing was changed: secret: the secret must be base64, with or without `whsec_` before it; give the signing secret that the provider shows for the webhook.")]
#[case::secret_as_list(json!({ "secret": [SECRET] }), 400, "The body is not valid: `secret` must be a string")]
#[tokio::test]
async fn an_invalid_rotation_is_refused(
    #[case] mut body: Value,
    #[case] status: u16,
    #[case] want: &str,
) {
    let bench = bench().await;
    let made = bench.post("root", WEBHOOKS, &wanted()).await.json();
    let id = made["webhook_id"].as_str().expect("an id");
    body["why"] = "because".into();
    let answer = bench
        .post("root", &format!("{WEBHOOKS}/{id}/rotate"), &body)
        .await;
    assert_eq!(answer.status, status);
    assert!(answer.detail().starts_with(want), "{}", answer.detail());
    assert!(!answer.text().contains("Y2FuYXJ5"), "{}", answer.text());
}

#[tokio::test]
async fn webhooks_are_found_by_every_filter_in_pages() {
    let bench = bench().await;
    for (tenant, project, provider) in [
        ("acme", "shop", "svix"),
        ("acme", "shop", "github"),
        ("acme", "blog", "svix"),
        ("zeta", "shop", "svix"),
    ] {
        let names = [
            ("tenant", json!(tenant)),
            ("project", json!(project)),
            ("provider", json!(provider)),
        ];
        bench.clock.advance(Duration::from_secs(1));
        let answer = bench.post("root", WEBHOOKS, &with(&names)).await;
        assert_eq!(answer.status, 201, "{}", answer.text());
    }
    let names = |page: &Value| -> Vec<String> {
        let webhooks = page["webhooks"].as_array().expect("a list").iter();
        let name = |one: &Value, name: &str| one[name].as_str().expect("a name").to_owned();
        let parts = ["tenant", "project", "provider"];
        webhooks
            .map(|one| parts.map(|part| name(one, part)).join("/"))
            .collect()
    };
    for (query, want) in [
        ("tenant=zeta", vec!["zeta/shop/svix"]),
        ("project=blog", vec!["acme/blog/svix"]),
        ("provider=github", vec!["acme/shop/github"]),
        (
            "tenant=acme&provider=svix",
            vec!["acme/shop/svix", "acme/blog/svix"],
        ),
        ("tenant=nobody", vec![]),
    ] {
        let page = bench
            .get("viewer", &format!("{WEBHOOKS}?{query}"))
            .await
            .json();
        assert_eq!(names(&page), want, "{query}");
    }
    let (mut seen, mut path) = (Vec::new(), format!("{WEBHOOKS}?limit=3"));
    loop {
        let page = bench.get("viewer", &path).await.json();
        seen.extend(names(&page));
        match page["next"].as_str() {
            Some(next) => path = format!("{WEBHOOKS}?limit=3&after={next}"),
            None => break,
        }
    }
    assert_eq!(
        seen,
        [
            "acme/shop/svix",
            "acme/shop/github",
            "acme/blog/svix",
            "zeta/shop/svix"
        ]
    );
    let answer = bench
        .get("viewer", &format!("{WEBHOOKS}?after=wh_nobody"))
        .await;
    assert_eq!(answer.status, 400);
}

#[tokio::test]
async fn no_webhook_is_created_while_the_store_fails() {
    let bench = bench().await;
    bench.registry.break_collection(Collection::Webhooks);
    let answer = bench.post("root", WEBHOOKS, &wanted()).await;
    assert_eq!(
        (answer.status, answer.code().as_str()),
        (503, "store-unavailable")
    );
    assert!(bench.webhooks.list().is_empty());
    bench.registry.mend();
    assert_eq!(bench.post("root", WEBHOOKS, &wanted()).await.status, 201);
}

#[tokio::test]
async fn an_operator_redelivers_a_failed_event() {
    let bench = bench().await;
    let id = bench.failed_event("svix").await;
    assert_eq!(bench.state(id).await, "failed");
    let path = format!("/admin/v1/operations/{id}/redeliver");
    let body = json!({ "why": "it is mended" });
    let answer = bench.post("ops", &path, &body).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    let standing = json!({ "operation_id": id.to_string(), "state": "queued" });
    assert_eq!(answer.json(), standing);
    let entry = &bench.audit().await[0];
    assert_eq!(entry["action"], "operations.redeliver");
    assert_eq!(
        (&entry["target"], &entry["outcome"]),
        (&json!(id.to_string()), &json!("done"))
    );
    // An event under way cannot be redelivered.
    let answer = bench.post("ops", &path, &body).await;
    assert_eq!((answer.status, answer.code().as_str()), (409, "conflict"));
    assert_eq!(
        answer.detail(),
        "The event is being delivered already: it is queued."
    );
    let due = bench.store.due(1).await.expect("the store answers");
    assert_eq!(due.len(), 1);
    assert_eq!(due[0].request, "the event");
}

#[tokio::test]
async fn an_operation_that_is_no_event_is_not_redelivered() {
    let bench = bench().await;
    let id = bench.completed("acme", "k").await.id;
    let path = format!("/admin/v1/operations/{id}/redeliver");
    let body = json!({ "why": "because" });
    let answer = bench.post("ops", &path, &body).await;
    assert_eq!(answer.status, 409);
    assert_eq!(
        answer.detail(),
        "Only an event that the gateway delivers by itself can be redelivered. This operation is completed, and its request is not stored; purge it to let the sender send it again."
    );
    let nobody = "/admin/v1/operations/op_00000000000000000000000000000000/redeliver";
    assert_eq!(bench.post("ops", nobody, &body).await.status, 404);
}
