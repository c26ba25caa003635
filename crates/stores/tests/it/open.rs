//! `open`: from a URL to a store, or to an error that names what to change.

use std::sync::Arc;

use onceward_core::clock::SystemClock;
use onceward_stores::{OpenError, open};

use crate::fixture::directory;

#[tokio::test]
async fn urls_name_a_store_or_are_refused_without_their_secrets() {
    let home = directory();
    let clock = Arc::new(SystemClock::new());
    assert!(open("memory:", clock.clone()).await.is_ok());
    let embedded = format!("embedded:{}", home.path().join("a/b").display());
    assert!(open(embedded.as_str(), clock.clone()).await.is_ok());
    let cases = [
        ("mysql://user:secret@host/db", "no store `mysql:`"),
        ("embedded", "has no directory"),
        ("embedded:", "has no directory"),
        ("memory:extra", "no store `memory:"),
        ("", "no store"),
    ];
    for (url, want) in cases {
        let Err(error) = open(url, clock.clone()).await else {
            panic!("{url} opened");
        };
        let words = error.to_string();
        assert!(words.contains(want), "{url}: {words}");
        assert!(!words.contains("secret"), "{words}");
        assert!(words.contains("embedded:"), "{words}");
        assert!(matches!(
            error,
            OpenError::Url { .. } | OpenError::NoDirectory
        ));
    }
}
