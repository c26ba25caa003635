//! The payments service: rows and records in one transaction.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use hyper::StatusCode;
use onceward_servers::Postgres;

use crate::program::{Service, http, post, wait_until};

const PROGRAM: &str = env!("CARGO_BIN_EXE_payments");

fn payment(amount: u32) -> String {
    format!(r#"{{"account":1,"amount":{amount}}}"#)
}

/// The payments, the balance of the account, and the finished records.
fn books(postgres: &Postgres) -> String {
    postgres.sql(
        "postgres",
        "SELECT (SELECT count(*) FROM payment), (SELECT balance FROM account WHERE id = 1),
         (SELECT count(*) FROM idempotency_record WHERE state = 'completed'),
         (SELECT count(*) FROM idempotency_record WHERE state = 'failed'),
         (SELECT count(*) FROM idempotency_record WHERE state NOT IN ('completed', 'failed'))",
    )
}

#[tokio::test]
async fn payment_is_made_once_and_refused_once() {
    let postgres = Postgres::start();
    let service = Service::start(PROGRAM, &[&postgres.url(), "127.0.0.1:0"]);
    let http = http();
    let steps = [
        (
            "p-1",
            payment(30),
            StatusCode::CREATED,
            r#""kind":"Created","result":{"payment":1,"balance":70}"#,
        ),
        (
            "p-1",
            payment(30),
            StatusCode::OK,
            r#""kind":"PreExisting","result":{"payment":1,"balance":70}"#,
        ),
        (
            "p-1",
            payment(31),
            StatusCode::UNPROCESSABLE_ENTITY,
            r#""kind":"Mismatch""#,
        ),
        // The database refuses this one, and the refusal is recorded.
        (
            "p-2",
            payment(90),
            StatusCode::PAYMENT_REQUIRED,
            r#""code":"insufficient-funds""#,
        ),
        (
            "p-2",
            payment(90),
            StatusCode::PAYMENT_REQUIRED,
            r#""code":"insufficient-funds""#,
        ),
        (
            "p-3",
            r#"{"account":2,"amount":1}"#.to_owned(),
            StatusCode::PAYMENT_REQUIRED,
            r#""code":"no-account""#,
        ),
        (" ", payment(1), StatusCode::BAD_REQUEST, "the key is blank"),
        (
            "p-4",
            payment(0),
            StatusCode::BAD_REQUEST,
            "pay more than nothing",
        ),
    ];
    for (key, body, status, words) in steps {
        let answer = post(&http, service.address, "/payments", Some(key), &body).await;
        let answer = answer.expect("an answer");
        assert_eq!(answer.status, status, "{key}: {answer:?}");
        assert!(answer.body.contains(words), "{key}: {answer:?}");
    }
    assert_eq!(books(&postgres), "1|70|1|2|0");
    let without = post(&http, service.address, "/payments", None, &payment(1)).await;
    assert_eq!(without.expect("an answer").status, StatusCode::BAD_REQUEST);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_requests_pay_once() {
    let postgres = Postgres::start();
    let service = Service::start(PROGRAM, &[&postgres.url(), "127.0.0.1:0"]);
    let address = service.address;
    let callers = (0..20).map(|_| {
        tokio::spawn(async move {
            let http = http();
            wait_until("the payment", || async {
                let answer = post(&http, address, "/payments", Some("p"), &payment(30)).await;
                let answer = answer.expect("an answer");
                match answer.status {
                    StatusCode::CREATED | StatusCode::OK => Some(answer.status),
                    StatusCode::CONFLICT => None,
                    _ => panic!("{answer:?}"),
                }
            })
            .await
        })
    });
    let mut created = 0;
    for caller in callers.collect::<Vec<_>>() {
        let status = caller.await.expect("no caller panicked");
        created += u32::from(status == StatusCode::CREATED);
    }
    assert_eq!(created, 1);
    assert_eq!(books(&postgres), "1|70|1|0|0");
}

/// The service is killed repeatedly under load; clients retry until they are
/// answered.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_service_pays_each_key_once() {
    const KILLS: u64 = 12;
    const CALLERS: u64 = 4;
    let postgres = Postgres::start();
    let service = Service::start(PROGRAM, &[&postgres.url(), "127.0.0.1:0"]);
    postgres.sql(
        "postgres",
        "UPDATE account SET balance = 1000000 WHERE id = 1",
    );
    let address = Arc::new(std::sync::Mutex::new(service.address));
    let paid = Arc::new(AtomicU64::new(0));
    let ending = Arc::new(AtomicU64::new(0));
    let callers = (0..CALLERS).map(|caller| {
        let (address, paid, ending) = (address.clone(), paid.clone(), ending.clone());
        tokio::spawn(async move {
            let http = http();
            for number in 0.. {
                let key = format!("{caller}-{number}");
                wait_until("an answer", || async {
                    let now = *address.lock().expect("no panic");
                    let answer = post(&http, now, "/payments", Some(&key), &payment(1)).await?;
                    matches!(answer.status, StatusCode::CREATED | StatusCode::OK).then_some(())
                })
                .await;
                paid.fetch_add(1, Ordering::SeqCst);
                if ending.load(Ordering::SeqCst) == 1 {
                    break;
                }
            }
        })
    });
    let callers: Vec<_> = callers.collect();
    let mut service = service;
    for kill in 0..KILLS {
        let before = paid.load(Ordering::SeqCst);
        wait_until("some payments", || async {
            (paid.load(Ordering::SeqCst) > before + 8).then_some(())
        })
        .await;
        // Not always at the same point of a request.
        tokio::time::sleep(Duration::from_micros(kill * 370)).await;
        service.kill();
        service = Service::start(PROGRAM, &[&postgres.url(), "127.0.0.1:0"]);
        *address.lock().expect("no panic") = service.address;
    }
    ending.store(1, Ordering::SeqCst);
    for caller in callers {
        caller.await.expect("no caller panicked");
    }
    let paid = paid.load(Ordering::SeqCst);
    let left = 1_000_000 - paid;
    assert_eq!(books(&postgres), format!("{paid}|{left}|{paid}|0|0"));
}
