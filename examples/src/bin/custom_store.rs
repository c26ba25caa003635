//! A custom store, checked against every promise that the engine relies on.
//!
//! ```sh
//! cargo run -p onceward-examples --bin custom_store
//! ```
#![allow(clippy::print_stdout)]

use std::sync::Arc;

use onceward_core::clock::{ManualClock, Timestamp};
use onceward_core::conformance::{PROMISES, Trial, run_all};
use onceward_examples::journal::JournalStore;

#[tokio::main]
async fn main() {
    run_all(async || {
        let directory = tempfile::tempdir().expect("a temporary directory can be made");
        let clock = Arc::new(ManualClock::new(Timestamp::from_unix_ms(1_700_000_000_000)));
        let store = JournalStore::open(&directory.path().join("journal"), clock.clone());
        let store = Arc::new(store.expect("the journal can be written"));
        Trial::new(store, clock).holding(directory)
    })
    .await;
    println!("the journal keeps all {} promises", PROMISES.len());
}
