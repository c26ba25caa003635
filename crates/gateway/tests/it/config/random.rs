//! No text and no variable makes the parser panic, and every mistake has a
//! correction.

use std::collections::BTreeMap;
use std::path::Path;

use onceward_gateway::config;
use proptest::prelude::*;

const MANUAL: &str = include_str!("../../../../../onceward.toml");

/// A line of the manual, active, perhaps with another value.
fn known_line() -> impl Strategy<Value = String> {
    let lines: Vec<&str> = MANUAL
        .lines()
        .map(|line| line.trim_start_matches("#or ").trim_start_matches('#'))
        .filter(|line| line.starts_with(|first: char| first.is_ascii_lowercase() || first == '['))
        .collect();
    let value = prop_oneof![
        3 => Just(None),
        1 => value().prop_map(Some),
    ];
    (proptest::sample::select(lines), value).prop_map(|(line, value)| {
        match (line.split_once(" = "), value) {
            (Some((key, _)), Some(value)) => format!("{key} = {value}"),
            _ => line.to_owned(),
        }
    })
}

fn value() -> impl Strategy<Value = String> {
    prop_oneof![
        Just("''".to_owned()),
        Just("[]".to_owned()),
        Just("{}".to_owned()),
        Just("[[], {}]".to_owned()),
        Just("nan".to_owned()),
        Just("-9999999999999999999999".to_owned()),
        Just("1979-05-27".to_owned()),
        any::<i64>().prop_map(|number| number.to_string()),
        any::<bool>().prop_map(|boolean| boolean.to_string()),
        "[a-z/{}*:$.]{0,12}".prop_map(|text| format!("'{text}'")),
        "\\PC{0,12}",
    ]
}

fn text() -> impl Strategy<Value = String> {
    let line = prop_oneof![
        8 => known_line(),
        1 => ("[a-z_.]{1,12}", value()).prop_map(|(key, value)| format!("{key} = {value}")),
        1 => "\\PC{0,24}",
    ];
    proptest::collection::vec(line, 0..24).prop_map(|lines| lines.join("\n"))
}

fn variables() -> impl Strategy<Value = BTreeMap<String, String>> {
    let part = proptest::sample::select(vec![
        "SERVER",
        "LISTEN",
        "ROUTES",
        "0",
        "1",
        "CLASSES",
        "AUTH",
        "JWT",
        "TLS",
        "UPSTREAMS",
        "",
        "PAYMENTS",
        "URL",
        "99999999999999999999",
    ]);
    let name = proptest::collection::vec(part, 1..6);
    let name = name.prop_map(|parts| format!("ONCEWARD__{}", parts.join("__")));
    proptest::collection::btree_map(name, prop_oneof![value(), "\\PC{0,12}"], 0..4)
}

fn judge(text: &str, variables: &BTreeMap<String, String>) -> Result<(), TestCaseError> {
    if let Err(mistakes) = config::parse(text, Path::new("onceward.toml"), variables) {
        prop_assert!(!mistakes.is_empty());
        for mistake in mistakes {
            let text_shown = mistake.to_string();
            prop_assert!(
                !mistake.problem.is_empty() && !mistake.right.is_empty(),
                "{text_shown}"
            );
            // The schema and the types agree.
            prop_assert!(!text_shown.contains("fault of Onceward"), "{text_shown}");
        }
    }
    Ok(())
}

proptest! {
    #[test]
    fn no_text_like_a_configuration_panics(text in text(), variables in variables()) {
        judge(&text, &variables)?;
    }

    #[test]
    fn no_text_panics(text in "\\PC{0,200}") {
        judge(&text, &BTreeMap::new())?;
    }
}
