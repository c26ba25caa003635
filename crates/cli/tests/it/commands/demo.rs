//! `onceward demo --exit`: every step of the walk-through, checked by the program itself.

use std::ffi::OsString;

use crate::fixture::gateway::run_to_end;

#[tokio::test]
async fn demo_walks_through_all_steps() {
    let output = run_to_end(&["demo", "--exit"].map(OsString::from)).await;
    let said = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(0), "{said}");
    assert!(said.contains("All steps went as expected."), "{said}");
    assert_eq!(said.matches("✓ as expected").count(), 7, "{said}");
}
