//! An axum service with the layer on the embedded store.

use hyper::StatusCode;

use crate::program::{Service, http, post};

const PROGRAM: &str = env!("CARGO_BIN_EXE_axum_service");

#[tokio::test]
async fn note_is_written_once_also_across_a_crash() {
    let home = tempfile::tempdir().expect("a temporary directory can be made");
    let directory = home.path().to_str().expect("a path in UTF-8");
    let http = http();
    let note = r#"{"text":"hi"}"#;

    let service = Service::start(PROGRAM, &["127.0.0.1:0", directory]);
    let first = post(&http, service.address, "/notes", Some("n-1"), note).await;
    let first = first.expect("an answer");
    assert_eq!(first.status, StatusCode::CREATED, "{first:?}");
    assert!(first.body.contains(r#""number":1"#), "{first:?}");
    let again = post(&http, service.address, "/notes", Some("n-1"), note).await;
    let again = again.expect("an answer");
    assert_eq!(again.headers["idempotent-replayed"], "true");
    assert_eq!((again.status, &again.body), (first.status, &first.body));
    let other = post(&http, service.address, "/notes", Some("n-1"), "{}").await;
    assert_eq!(
        other.expect("an answer").status,
        StatusCode::UNPROCESSABLE_ENTITY
    );
    let without = post(&http, service.address, "/notes", None, note).await;
    assert_eq!(without.expect("an answer").status, StatusCode::BAD_REQUEST);
    service.kill();

    let service = Service::start(PROGRAM, &["127.0.0.1:0", directory]);
    let after = post(&http, service.address, "/notes", Some("n-1"), note).await;
    let after = after.expect("an answer");
    assert_eq!(after.headers["idempotent-replayed"], "true");
    assert_eq!(after.body, first.body);
}
