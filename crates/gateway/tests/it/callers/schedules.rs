//! A scheduler that signs its requests and repeats them.

use rstest::rstest;
use serde_json::json;

use crate::harness::credentials::{API_KEYS, Issuer, Sent, Tick, api_key, now_ms, ready};
use crate::harness::fixture::{echo, payments, route, word};
use crate::harness::{ClientRequest, Origin, Running, configured};

const SECRET: &str = "a secret of the scheduler";
const NEXT_SECRET: &str = "the one that comes after it";
const BODY: &str = r#"{"day": 1}"#;

async fn house(origin: &Origin) -> Running {
    let scheduler = format!("[auth.scheduler]\nsecrets = [\"{SECRET}\", \"{NEXT_SECRET}\"]\n");
    let text = [
        API_KEYS,
        &scheduler,
        &route("reports.run", "POST", "/reports", "policy = \"REQUIRED_A\""),
        &route("reports.drop", "POST", "/drop", ""),
        &payments("auth = [\"api_keys\"]"),
    ];
    configured(origin, &text.concat()).run().await
}

fn tick(key: &str) -> Tick<'_> {
    Tick {
        secret: SECRET,
        tenant: "acme",
        project: "shop",
        endpoint: "reports.run",
        key,
        time_ms: now_ms(),
        body: BODY,
    }
}

/// A signed tick, sent to a path that may be wrong.
fn sent(gateway: &Running, path: &str, tick: &Tick<'_>) -> ClientRequest {
    let ask = gateway
        .request(&format!("POST {path}"))
        .body(tick.body.to_owned());
    let ask = ask.header("x-schedule-signature", tick.signature());
    if tick.key.is_empty() {
        ask
    } else {
        ask.key(tick.key)
    }
}

#[tokio::test]
async fn a_tick_with_a_large_body_is_verified_too() {
    let origin = echo().run().await;
    let gateway = house(&origin).await;
    let large = "x".repeat(100 << 10);
    let tick = Tick {
        body: &large,
        ..tick("sched:nightly:1700000000000")
    };
    assert_eq!(sent(&gateway, "/reports", &tick).send().await.status, 201);
    let forged = Tick {
        secret: "a secret of somebody else",
        ..tick
    };
    assert_eq!(sent(&gateway, "/reports", &forged).send().await.status, 401);
}

#[tokio::test]
async fn a_tick_sent_three_times_by_two_workers_runs_once() {
    let origin = echo().gated().run().await;
    let gateway = house(&origin).await;
    // Each worker signs at its own time and with its own secret, and every request
    // has its own connection.
    let key = "sched:nightly:1700000000000";
    let (first, second) = (
        tick(key),
        Tick {
            secret: NEXT_SECRET,
            time_ms: now_ms() - 1000,
            ..tick(key)
        },
    );
    let running = sent(&gateway, "/reports", &first).spawn();
    origin.called(1).await;
    let workers = [
        sent(&gateway, "/reports", &second).spawn(),
        sent(&gateway, "/reports", &first).h2c().spawn(),
    ];
    gateway.waiting(2).await;
    origin.open();
    let running = running.await.unwrap();
    assert_eq!(
        (running.status, running.text()),
        (201, "run 1 for acme shop service:scheduler")
    );
    for worker in workers {
        let answer = worker.await.unwrap();
        assert!(answer.is_replay());
        assert_eq!(answer.text(), running.text());
    }
    let seen = origin.only();
    assert_eq!(
        seen.header("idempotency-key"),
        format!("t-acme:shop:service:scheduler:{key}")
    );
    assert_eq!(seen.text(), BODY);
    assert_eq!(
        seen.header("x-schedule-signature"),
        "",
        "it opens our door and no other"
    );

    // Later, and quoted: the same tick. The next tick is another operation.
    let late = sent(
        &gateway,
        "/reports",
        &Tick {
            time_ms: now_ms(),
            ..first
        },
    )
    .send()
    .await;
    assert!(late.is_replay());
    origin.open();
    let next = sent(&gateway, "/reports", &tick("sched:nightly:1700000060000"))
        .send()
        .await;
    assert_eq!((next.status, next.is_replay()), (201, false));
}

#[tokio::test]
async fn schedules_of_two_tenants_are_separate() {
    let origin = echo().run().await;
    let gateway = house(&origin).await;
    let key = "sched:nightly:1";
    for (number, (tenant, project)) in [("acme", "shop"), ("acme", "blog"), ("globex", "shop")]
        .into_iter()
        .enumerate()
    {
        let tick = Tick {
            tenant,
            project,
            ..tick(key)
        };
        let answer = sent(&gateway, "/reports", &tick).send().await;
        let want = format!(
            "run {} for {tenant} {project} service:scheduler",
            number + 1
        );
        assert_eq!(answer.text(), want);
    }
}

#[tokio::test]
async fn a_request_that_differs_from_what_was_signed_is_refused() {
    let origin = echo().run().await;
    let gateway = house(&origin).await;
    let key = "sched:nightly:1700000000000";
    let good = tick(key);
    let signed = good.signature();
    let minute = 60_000;
    let with = |signature: &str| {
        let ask = gateway.post("/reports", key).body(BODY);
        ask.header("x-schedule-signature", signature)
    };
    let altered = match signed.strip_suffix("0\"") {
        Some(start) => format!("{start}1\""),
        None => format!("{}0\"", &signed[..signed.len() - 2]),
    };
    for (what, ask) in [
        ("another signature", with(&altered)),
        (
            "no signature",
            with("tenant=\"acme\", project=\"shop\", time=1"),
        ),
        ("nothing", with("")),
        ("words", with("trust me")),
        (
            "another secret",
            sent(
                &gateway,
                "/reports",
                &Tick {
                    secret: "a secret of somebody else",
                    ..good
                },
            ),
        ),
        (
            "too old",
            sent(
                &gateway,
                "/reports",
                &Tick {
                    time_ms: now_ms() - 6 * minute,
                    ..good
                },
            ),
        ),
        (
            "too new",
            sent(
                &gateway,
                "/reports",
                &Tick {
                    time_ms: now_ms() + 6 * minute,
                    ..good
                },
            ),
        ),
        ("another time", with(&signed.replace("time=1", "time=2"))),
        ("another tenant", with(&signed.replace("acme", "globex"))),
        ("another project", with(&signed.replace("shop", "bank"))),
        ("another endpoint", sent(&gateway, "/drop", &good)),
        (
            "another body",
            gateway
                .post("/reports", key)
                .body("{}")
                .header("x-schedule-signature", &signed),
        ),
        (
            "no body",
            gateway
                .post("/reports", key)
                .header("x-schedule-signature", &signed),
        ),
        (
            "another key",
            gateway
                .post("/reports", "sched:nightly:2")
                .body(BODY)
                .header("x-schedule-signature", &signed),
        ),
        (
            "no key",
            gateway
                .request("POST /reports")
                .body(BODY)
                .header("x-schedule-signature", &signed),
        ),
        (
            "twice",
            with(&signed).header("x-schedule-signature", &signed),
        ),
        (
            "a reserved tenant",
            sent(
                &gateway,
                "/reports",
                &Tick {
                    tenant: "_local",
                    ..good
                },
            ),
        ),
        (
            "a reserved project",
            sent(
                &gateway,
                "/reports",
                &Tick {
                    project: "_tenant",
                    ..good
                },
            ),
        ),
    ] {
        let answer = ask.send().await;
        assert_eq!(
            word(&answer),
            "401 unauthenticated",
            "{what}: {}",
            answer.text()
        );
    }
    assert_eq!(origin.begun(), 0);
    assert_eq!(
        with(&signed).send().await.status,
        201,
        "and the good one is good"
    );
    // On a route that does not allow it, the scheduler is authenticated but
    // refused.
    let elsewhere = Tick {
        endpoint: "payments.create",
        ..good
    };
    assert_eq!(
        word(&sent(&gateway, "/payments", &elsewhere).send().await),
        "403 forbidden"
    );
}

#[rstest]
#[case("sched:nightly:1700000000000")]
#[case("\"sched:nightly:1700000000000\"")]
#[case("sched:x:1")]
#[tokio::test]
async fn only_the_scheduler_may_use_a_schedules_key(#[case] key: &str) {
    let issuer = Issuer::new();
    let origin = echo().run().await;
    let scheduler = format!("[auth.scheduler]\nsecret = \"{SECRET}\"\n");
    let text = [API_KEYS, &scheduler, &issuer.section(), &payments("")];
    let gateway = configured(&origin, &text.concat()).run().await;
    ready(&gateway).await;
    let ann = api_key(&gateway, ("acme", "shop", "user:ann")).await;
    let token = issuer.token(&json!({"tenant": "acme", "project": "shop", "sub": "scheduler"}));
    for ask in [
        gateway.post("/payments", key).by(&ann),
        gateway.post("/payments", key).bearing(&token),
    ] {
        let refused = ask.send().await;
        assert_eq!(word(&refused), "400 key-invalid");
        assert_eq!(refused.json()["reason"], "charset");
    }
    let path = "/payments/by-idempotency-key/sched:nightly:1700000000000";
    assert_eq!(
        word(&gateway.get(path).by(&ann).send().await),
        "400 key-invalid"
    );
    assert_eq!(origin.begun(), 0);
}

/// A mistake by the authenticated scheduler is reported as such.
#[rstest]
#[case("sched:nightly", "format")]
#[case("sched::1", "format")]
#[case("sched:nightly:", "format")]
#[case("sched:nightly:soon", "format")]
#[case("sched:a b:1", "charset")]
#[case("nightly:1", "charset")]
#[tokio::test]
async fn a_malformed_schedules_key_is_refused(#[case] key: &str, #[case] reason: &str) {
    let origin = echo().run().await;
    let gateway = house(&origin).await;
    let refused = sent(&gateway, "/reports", &tick(key)).send().await;
    assert_eq!(word(&refused), "400 key-invalid");
    assert_eq!(refused.json()["reason"], reason);
    assert_eq!(origin.begun(), 0);
}

/// A scheduler may also send an ordinary key, or none where none is required; it
/// signs an empty body to recover its operations.
#[tokio::test]
async fn a_scheduler_recovers_its_own_operations() {
    let origin = echo().run().await;
    let gateway = house(&origin).await;
    let plain = sent(&gateway, "/reports", &tick("nightly-1")).send().await;
    assert_eq!(plain.status, 201);
    let without = Tick {
        endpoint: "reports.drop",
        ..tick("")
    };
    assert_eq!(sent(&gateway, "/drop", &without).send().await.status, 201);

    let key = "sched:nightly:1700000000000";
    let first = sent(&gateway, "/reports", &tick(key)).send().await;
    let question = Tick {
        body: "",
        ..tick(key)
    };
    let ask = |signature: String| {
        let path = format!("/reports/by-idempotency-key/{key}");
        gateway
            .get(&path)
            .header("x-schedule-signature", signature)
            .send()
    };
    let found = ask(question.signature()).await;
    assert_eq!((found.status, found.text()), (201, first.text()));
    let of_a_body = ask(tick(key).signature()).await;
    assert_eq!(word(&of_a_body), "401 unauthenticated");
    let other = ask(Tick {
        tenant: "globex",
        ..question
    }
    .signature())
    .await;
    assert_eq!(word(&other), "404 no-operation");
}
