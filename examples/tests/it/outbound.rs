//! Repeated calls that are charged once.

use std::process::Command;

#[test]
fn downstream_is_called_three_times_and_charges_once() {
    let output = Command::new(env!("CARGO_BIN_EXE_outbound")).output();
    let output = output.expect("the example can be started");
    let said = String::from_utf8(output.stdout).expect("text");
    assert!(output.status.success(), "{said}");
    let last = said.lines().last();
    assert_eq!(
        last,
        Some(r#"called 3 times, charged 1 time: {"amount":100,"charge":1}"#)
    );
}
