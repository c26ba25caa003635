//! The sources of values: the text, variables in it, and variables that override
//! it.

use std::fs;
use std::path::Path;
use std::time::Duration;

use onceward_gateway::config::{self, Config, SecretValue};
use rstest::rstest;
use secrecy::ExposeSecret as _;

use super::{ROUTE, environment, lines};

fn config(text: &str, variables: &[(&str, &str)]) -> Config {
    let loaded = config::parse(text, Path::new("onceward.toml"), &environment(variables));
    loaded
        .unwrap_or_else(|mistakes| panic!("{}", lines(&mistakes)))
        .config
}

fn first_token(config: &Config) -> &str {
    match &config.server.admin_tokens[0].token {
        SecretValue::Given(secret) => secret.expose_secret(),
        SecretValue::OpenBao { .. } => panic!("the token is at hand"),
    }
}

#[rstest]
#[case::whole("${TOKEN}", "value")]
#[case::within("a-${TOKEN}-b", "a-value-b")]
#[case::twice("${TOKEN}${TOKEN}", "valuevalue")]
#[case::literal("$${TOKEN}", "${TOKEN}")]
#[case::both("$${TOKEN}${TOKEN}", "${TOKEN}value")]
#[case::dollar("$TOKEN$", "$TOKEN$")]
#[case::not_expanded_again("${NESTED}", "${TOKEN}")]
fn variables_in_texts(#[case] text: &str, #[case] want: &str) {
    let text = format!("[server]\nadmin_token = '{text}'");
    let variables = [("TOKEN", "value"), ("NESTED", "${TOKEN}")];
    assert_eq!(first_token(&config(&text, &variables)), want);
}

#[test]
fn variables_override_the_text() {
    let text =
        format!("[server]\nlisten = '127.0.0.1:1'\n{ROUTE}[classes.my-class]\nretention = '1d'\n");
    let config = config(
        &text,
        &[
            ("ONCEWARD__SERVER__LISTEN", "127.0.0.1:2"),
            ("ONCEWARD__SERVER__PROXY_PROTOCOL", "true"),
            ("ONCEWARD__SERVER__TRUSTED_PROXIES", "['10.0.0.0/8']"),
            ("ONCEWARD__LIMITS__CONNECTIONS", "7"),
            (
                "ONCEWARD__LIMITS__REQUESTS_PER_TENANT",
                "{ per_second = 3 }",
            ),
            ("ONCEWARD__CLASSES__MY_CLASS__RETENTION", "2d"),
            ("ONCEWARD__ROUTES__0__CLASS", "my-class"),
            ("ONCEWARD__ROUTES__0__METHOD__0", "POST"),
            (
                "ONCEWARD__ROUTES__1",
                "{ endpoint = 'a.c', path = '/c', upstream = 'a' }",
            ),
            ("ONCEWARD_ADMIN_TOKEN", "not one of them"),
        ],
    );
    assert_eq!(config.server.listen, "127.0.0.1:2");
    assert!(config.server.proxy_protocol);
    assert_eq!(config.server.trusted_proxies.len(), 1);
    assert_eq!(config.limits.connections, 7);
    let rate = config.limits.requests_per_tenant.unwrap();
    assert_eq!((rate.per_second, rate.burst), (3, 3));
    assert_eq!(
        config.classes["my-class"].retention,
        Duration::from_secs(2 * 86_400)
    );
    assert_eq!(&*config.routes[0].class, "my-class");
    assert_eq!(config.routes[0].methods, ["POST"]);
    assert_eq!(config.routes[1].path, "/c");
}

/// Tokens that look like numbers, dates or TOML keywords stay strings.
#[rstest]
#[case("12345678")]
#[case("1e5")]
#[case("true")]
#[case("2026-01-01")]
#[case("plain text")]
#[case("")]
fn a_variable_for_a_string_is_a_string(#[case] value: &str) {
    let text = "[server]\nadmin_token = 'from the file'";
    let variables = environment(&[("ONCEWARD__SERVER__ADMIN_TOKEN", value)]);
    match config::parse(text, Path::new("onceward.toml"), &variables) {
        Ok(loaded) => assert_eq!(first_token(&loaded.config), value),
        Err(mistakes) => {
            assert_eq!(value, "");
            assert_eq!(
                lines(&mistakes),
                "ONCEWARD__SERVER__ADMIN_TOKEN: server.admin_token: the secret is empty; write one, or remove the key\n"
            );
        }
    }
}

#[rstest]
#[case::unknown("ONCEWARD__SERVER__LISTNE", "x", &["ONCEWARD__SERVER__LISTNE: server.listne: unknown key; did you mean listen?"])]
#[case::unknown_section("ONCEWARD__SEVER__LISTEN", "x", &["ONCEWARD__SEVER__LISTEN: sever: unknown key; did you mean server?"])]
#[case::no_key("ONCEWARD__", "x", &["ONCEWARD__: it does not name a key; write ONCEWARD__SERVER__LISTEN for server.listen, and ONCEWARD__ROUTES__0__CLASS for the class of the first route"])]
#[case::empty_part("ONCEWARD__SERVER____LISTEN", "x", &["ONCEWARD__SERVER____LISTEN: it does not name a key; write ONCEWARD__SERVER__LISTEN for server.listen, and ONCEWARD__ROUTES__0__CLASS for the class of the first route"])]
#[case::bad_value("ONCEWARD__SERVER__DRAIN", "30", &["ONCEWARD__SERVER__DRAIN: server.drain: \"…\" has no unit; write a duration such as \"30s\", \"1h30m\" or \"7d\""])]
#[case::wrong_kind("ONCEWARD__LIMITS__CONNECTIONS", "many", &["ONCEWARD__LIMITS__CONNECTIONS: limits.connections: is a string; write an integer"])]
#[case::no_such_entry("ONCEWARD__ROUTES__7__CLASS", "financial", &["ONCEWARD__ROUTES__7__CLASS: entry 7 does not exist; the next new entry is 1; write ONCEWARD__SERVER__LISTEN for server.listen, and ONCEWARD__ROUTES__0__CLASS for the class of the first route"])]
#[case::no_number("ONCEWARD__ROUTES__FIRST__CLASS", "financial", &["ONCEWARD__ROUTES__FIRST__CLASS: FIRST is not an index of the list; write ONCEWARD__SERVER__LISTEN for server.listen, and ONCEWARD__ROUTES__0__CLASS for the class of the first route"])]
#[case::unknown_class("ONCEWARD__ROUTES__0__CLASS", "hidden", &["ONCEWARD__ROUTES__0__CLASS: routes[0].class: [classes.…] does not exist; add it, or write one of financial, interactive, webhook"])]
#[case::too_deep("ONCEWARD__A__B__C__D__E__F__G__H__I", "x", &["ONCEWARD__A__B__C__D__E__F__G__H__I: it does not name a key; write ONCEWARD__SERVER__LISTEN for server.listen, and ONCEWARD__ROUTES__0__CLASS for the class of the first route"])]
#[case::through_a_value("ONCEWARD__UPSTREAMS__A__URL__X", "1", &["ONCEWARD__UPSTREAMS__A__URL__X: upstreams.a.url: is a table; write a string in quotes"])]
#[case::incomplete_entry("ONCEWARD__ROUTES__1__PATH", "/b", &["ONCEWARD__ROUTES__1__PATH: routes[1].endpoint: is missing; add it: the name of its operations, service.handler; part of their identity, so do not change it", "ONCEWARD__ROUTES__1__PATH: routes[1].upstream: is missing; add it: the upstream of its requests"])]
fn wrong_overrides(#[case] name: &str, #[case] value: &str, #[case] want: &[&str]) {
    let variables = environment(&[(name, value)]);
    let mistakes = config::parse(ROUTE, Path::new("onceward.toml"), &variables).unwrap_err();
    assert_eq!(lines(&mistakes), want.join("\n") + "\n");
}

#[test]
fn secrets_are_read_from_files_beside_the_configuration() {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("admin.token"), "from its file\r\n").unwrap();
    let file = directory.path().join("onceward.toml");
    fs::write(&file, "[server]\nadmin_token = { file = 'admin.token' }\n").unwrap();
    let config = config::load(&file, &environment(&[])).unwrap().config;
    assert_eq!(first_token(&config), "from its file");
}

#[test]
fn an_empty_secret_file_is_a_mistake() {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("admin.token"), "\n").unwrap();
    let file = directory.path().join("onceward.toml");
    fs::write(&file, "[server]\nadmin_token = { file = 'admin.token' }\n").unwrap();
    let mistakes = config::load(&file, &environment(&[])).unwrap_err();
    assert!(
        lines(&mistakes).ends_with(
            "onceward.toml:2:15: server.admin_token: the secret is empty; write one, or remove the key\n"
        ),
        "{mistakes:?}"
    );
}

#[test]
fn a_missing_file_is_named() {
    let mistakes = config::load(Path::new("no/such.toml"), &environment(&[])).unwrap_err();
    assert_eq!(
        lines(&mistakes),
        "no/such.toml: the file cannot be read: No such file or directory (os error 2); name a file that the gateway can read\n"
    );
}

#[test]
fn secrets_are_not_shown_by_debug() {
    let text = "[server]\nadmin_token = 'hush hush hush'\n[secrets]\nkey = 'hush hush hush hush'\n";
    let shown = format!("{:?}", config(text, &[]));
    assert!(!shown.contains("hush"), "{shown}");
}
