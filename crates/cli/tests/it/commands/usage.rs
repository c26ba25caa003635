//! Wrong usage, an unreachable gateway, and completions.

use rstest::rstest;

use crate::fixture::command::run_at;

#[tokio::test]
async fn an_address_that_does_not_answer_is_named() {
    let nobody = std::net::TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let said = run_at(nobody, None, &["operations", "list"]).await;
    assert_eq!((said.code, said.out.as_str()), (1, ""));
    let words = format!(
        "Error: cannot reach the gateway's admin listener at http://{nobody} (set its URL with --admin or ONCEWARD_ADMIN): no answer from {nobody}"
    );
    assert!(said.err.starts_with(&words), "{said:?}");
}

#[rstest]
#[case::no_reason(&["operations", "purge", "--all"], "--why <REASON>")]
#[case::no_reason_to_resolve(&["operations", "resolve", "op_1", "--outcome", "unsure"], "--why <REASON>")]
#[case::no_reason_to_resume(&["operations", "resume", "op_1"], "--why <REASON>")]
#[case::no_reason_to_set(&["classes", "set", "financial", "retention=1d"], "--why <REASON>")]
#[case::no_outcome(&["operations", "resolve", "op_1", "--why", "x"], "--outcome <OUTCOME>")]
#[case::no_settings(&["classes", "set", "financial", "--why", "x"], "<SETTING=VALUE>")]
#[case::no_tenant(&["keys", "create", "--subject", "user:1", "--why", "x"], "--tenant <TENANT>")]
#[case::log_level(&["serve", "--upstream", "http://127.0.0.1:1", "--log", "warning"], "invalid value 'warning' for '--log <FILTER>': `warning` is not a level; write one of off, error, warn, info, debug, trace, or, if it is a target, warning=debug")]
#[case::log_level_of_a_target(&["serve", "--upstream", "http://127.0.0.1:1", "--log", "onceward=wrn"], "invalid value 'onceward=wrn' for '--log <FILTER>': `wrn` in `onceward=wrn` is not a level")]
#[case::log_empty(&["serve", "--upstream", "http://127.0.0.1:1", "--log", ""], "invalid value '' for '--log <FILTER>': a directive is empty; write one of off, error, warn, info, debug, trace")]
#[case::unknown(&["operations", "forget"], "unrecognized subcommand 'forget'")]
#[tokio::test]
async fn wrong_usage_exits_with_2(#[case] args: &[&str], #[case] words: &str) {
    let said = run_at("127.0.0.1:1", None, args).await;
    assert_eq!((said.code, said.out.as_str()), (2, ""));
    assert!(said.err.contains(words), "{said:?}");
}

#[rstest]
#[case("bash", "_onceward()")]
#[case("zsh", "#compdef onceward")]
#[case("fish", "complete -c onceward")]
#[tokio::test]
async fn completions_exist_for_every_shell(#[case] shell: &str, #[case] words: &str) {
    let said = run_at("127.0.0.1:1", None, &["completions", shell]).await;
    assert_eq!(said.code, 0);
    for word in [words, "operations", "resolve"] {
        assert!(said.out.contains(word), "{shell}: {word}");
    }
}
