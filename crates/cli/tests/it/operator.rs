//! The operator's hand as an operator has it: the program itself against a
//! running gateway, its words compared to the letter.

use std::ffi::OsString;
use std::path::Path;
use std::process::Output;
use std::time::Duration;

use rstest::rstest;
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::client::{Answer, Client, post_request};
use crate::gateway::{Gateway, gateway, gateway_of, onceward};
use crate::origin::{Manner, Order, Origin, origin, origin_choosing};

const BODY: &str = r#"{"amount":4200}"#;
/// Stands in every secret of these tests.
const CANARY: &str = "canary7e41";

/// What a command came to.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Said {
    pub(crate) code: i32,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Said {
    pub(crate) fn json(&self) -> Value {
        assert_eq!((self.code, self.err.as_str()), (0, ""), "{self:?}");
        assert_eq!(self.out.lines().count(), 1, "one document: {self:?}");
        serde_json::from_str(&self.out).unwrap()
    }
}

fn done(out: &str) -> Said {
    Said {
        code: 0,
        out: out.to_owned(),
        err: String::new(),
    }
}

/// The operation first, then what became of it.
fn assert_resolved(said: &Said, id: &str, state: &str) {
    assert_eq!((said.code, said.err.as_str()), (0, ""), "{said:?}");
    let shown = format!("operation  {id}\nstate      unknown\n");
    assert!(said.out.starts_with(&shown), "{said:?}");
    let ends = format!("\n\n{id} is {state}.\n");
    assert!(said.out.ends_with(&ends), "{said:?}");
}

fn refused(err: &str) -> Said {
    Said {
        code: 1,
        out: String::new(),
        err: format!("Error: {err}\n"),
    }
}

/// Runs the program against an address, with a token or without.
async fn run_at(address: impl std::fmt::Display, token: Option<&str>, args: &[&str]) -> Said {
    let mut command = onceward();
    command
        .args(args)
        .env_remove("ONCEWARD_ADMIN_TOKEN")
        .env("ONCEWARD_ADMIN", format!("http://{address}"));
    if let Some(token) = token {
        command.env("ONCEWARD_ADMIN_TOKEN", token);
    }
    let output = timeout(Duration::from_secs(60), command.output()).await;
    let Output {
        status,
        stdout,
        stderr,
    } = output.unwrap().unwrap();
    Said {
        code: status.code().unwrap(),
        out: String::from_utf8(stdout).unwrap(),
        err: String::from_utf8(stderr).unwrap(),
    }
}

/// Runs the program against a gateway of this machine.
pub(crate) async fn run(gateway: &Gateway, args: &[&str]) -> Said {
    run_at(gateway.admin_address(), None, args).await
}

/// The ids of what matches, by the API's own words.
async fn ids(gateway: &Gateway, filter: &[&str]) -> Vec<String> {
    let args = [&["operations", "list", "--json"], filter].concat();
    let page = run(gateway, &args).await.json();
    let operations = page["operations"].as_array().unwrap().iter();
    let ids = operations.map(|operation| operation["operation_id"].as_str().unwrap().to_owned());
    ids.collect()
}

/// A service that leaves keys beginning with `lost` in doubt the first time.
async fn forgetful() -> Origin {
    origin_choosing(Order::default(), |key, times| {
        match key.starts_with("lost") && times == 1 {
            true => Manner::Half,
            false => Manner::PAY,
        }
    })
    .await
}

#[tokio::test]
async fn unknown_operation_is_found_resolved_and_replayed() {
    let origin = forgetful().await;
    let directory = tempfile::tempdir().unwrap();
    let plan = gateway(&origin, directory.path()).option("--upstream-timeout-ms", "500");
    let gateway = plan.run().await;
    for key in ["lost-1", "lost-2"] {
        let lost = gateway.post(key, BODY).await.unwrap();
        assert_eq!(
            (lost.status, lost.code().as_str()),
            (504, "outcome-unknown")
        );
    }
    let found = ids(&gateway, &["--state", "unknown", "--key", "lost-1"]).await;
    let [id] = found.as_slice() else {
        panic!("{found:?}");
    };
    let table = run(
        &gateway,
        &[
            "operations",
            "list",
            "--state",
            "unknown",
            "--key",
            "lost-1",
        ],
    )
    .await;
    let lines: Vec<_> = table.out.lines().collect();
    assert_eq!(lines.len(), 2, "{table:?}");
    assert!(lines[0].starts_with("OPERATION  "), "{table:?}");
    let cells: Vec<_> = lines[1]
        .split("  ")
        .filter(|cell| !cell.is_empty())
        .collect();
    let wanted = [
        id,
        "unknown",
        "_local",
        "_local",
        "POST /payments",
        "lost-1",
        "-",
    ];
    assert_eq!(
        cells[..7]
            .iter()
            .map(|cell| cell.trim())
            .collect::<Vec<_>>(),
        wanted
    );

    let resolve = [
        "operations",
        "resolve",
        id,
        "--outcome",
        "ran",
        "--status",
        "201",
    ];
    let reply = [
        "--header",
        "content-type: text/plain",
        "--body",
        "paid",
        "--why",
        "the bank says so",
    ];
    let said = run(&gateway, &[&resolve[..], &reply].concat()).await;
    assert_resolved(&said, id, "completed");
    let replayed = gateway.post("lost-1", BODY).await.unwrap();
    assert_eq!((replayed.status, &replayed.body[..]), (201, &b"paid"[..]));
    assert!(replayed.is_replay());
    assert_eq!(replayed.header("content-type"), "text/plain");
    assert_eq!(origin.runs_of("lost-1").len(), 1, "it did not run again");
    let again = run(&gateway, &[&resolve[..], &reply].concat()).await;
    assert_eq!(
        (again.code, again.err.as_str()),
        (
            1,
            "Error: Only an unknown operation is resolved; this one is completed.\n"
        )
    );

    let other = &ids(&gateway, &["--key", "lost-2"]).await[0];
    let freed = [
        "operations",
        "resolve",
        other,
        "--outcome",
        "not-run",
        "--why",
        "the bank says so",
    ];
    assert_resolved(&run(&gateway, &freed).await, other, "released");
    let second = gateway.post("lost-2", BODY).await.unwrap();
    assert_eq!((second.status, second.is_replay()), (201, false));
    let runs = origin.runs_of("lost-2");
    assert!(runs.len() == 2 && runs[1].fence > runs[0].fence, "{runs:?}");

    let shown = run(&gateway, &["operations", "show", id, "--body"]).await;
    assert_eq!(shown.code, 0);
    for line in [
        format!("operation  {id}\n"),
        "state      completed\n".to_owned(),
        "name       t-_local:_local:client:anonymous:lost-1\n".to_owned(),
        "reply      201 (whole, 4 bytes)\n           content-type: text/plain\n\npaid\n".to_owned(),
    ] {
        assert!(shown.out.contains(&line), "{}", shown.out);
    }
    let audit = run(&gateway, &["audit", "--json"]).await.json();
    let entries = audit["entries"].as_array().unwrap().iter();
    let told: Vec<_> = entries
        .map(|entry| ["action", "who", "outcome", "why"].map(|name| entry[name].as_str().unwrap()))
        .collect();
    let entry = |outcome| ["operations.resolve", "local", outcome, "the bank says so"];
    assert_eq!(told, [entry("done"), entry("refused"), entry("done")]);
}

#[tokio::test]
async fn word_on_one_run_does_not_settle_a_later_one() {
    let origin = origin_choosing(Order::default(), |_, _| Manner::Half).await;
    let directory = tempfile::tempdir().unwrap();
    let plan = gateway(&origin, directory.path()).option("--upstream-timeout-ms", "300");
    let gateway = plan.run().await;
    let resolve = async |more: &[&str]| {
        let id = &ids(&gateway, &[]).await[0];
        let word = ["operations", "resolve", id, "--why", "a test"];
        (id.clone(), run(&gateway, &[&word[..], more].concat()).await)
    };
    gateway.post("lost", BODY).await.unwrap();
    let first = origin.runs_of("lost")[0].fence.to_string();
    let (id, said) = resolve(&["--outcome", "not-run", "--fence", &first]).await;
    assert_eq!(said, done(&format!("{id} is released.\n")));
    gateway.post("lost", BODY).await.unwrap();
    let (_, late) = resolve(&["--outcome", "not-run", "--fence", &first]).await;
    assert_eq!(
        late,
        refused("The operation ran again under another fence since; look at it, and name that.")
    );
    let second = origin.runs_of("lost")[1].fence;
    let ran = ["--outcome", "ran", "--status", "201"];
    let (id, said) = resolve(&ran).await;
    assert_resolved(&said, &id, "completed");
    assert!(
        said.out.contains(&format!("\nfence      {second}\n")),
        "{said:?}"
    );
    let audit = run(&gateway, &["audit", "--json"]).await.json();
    assert_eq!(audit["entries"][0]["asked"]["fence"], second);
    let (id, said) = resolve(&[&ran[..], &["--json"]].concat()).await;
    assert_eq!(said.code, 1, "{said:?}");
    assert_eq!(said.out.lines().count(), 1, "{id}: one document: {said:?}");
}

#[tokio::test]
async fn bulk_purge_counts_asks_and_purges_what_matches() {
    let origin = forgetful().await;
    let directory = tempfile::tempdir().unwrap();
    let plan = gateway(&origin, directory.path()).option("--upstream-timeout-ms", "300");
    let gateway = plan.run().await;
    for key in ["a", "b", "c"] {
        assert_eq!(gateway.post(key, BODY).await.unwrap().status, 201);
    }
    gateway.post("lost", BODY).await.unwrap();
    let purge = ["operations", "purge", "--why", "a test"];
    let with = |more: &[&'static str]| [&purge[..], more].concat();

    let said = run(&gateway, &with(&[])).await;
    assert_eq!(
        said,
        refused(
            "say which operations: their ids, what they match (such as --tenant T --state unknown), or --all"
        )
    );
    let said = run(&gateway, &with(&["--state", "completed"])).await;
    assert_eq!(said, refused("this purges 3 operations: say --yes"));
    assert_eq!(ids(&gateway, &[]).await.len(), 4);
    let said = run(
        &gateway,
        &with(&["--state", "completed", "--yes", "--json"]),
    )
    .await;
    assert_eq!(
        said.json(),
        json!({ "purged": 3, "refused": 0, "more": false, "after": null })
    );
    let left = ids(&gateway, &[]).await;
    assert_eq!(left, ids(&gateway, &["--state", "unknown"]).await);
    assert_eq!(gateway.post("a", BODY).await.unwrap().status, 201);
    assert_eq!(origin.runs_of("a").len(), 2, "its key was free");
    let said = run(&gateway, &[&purge[..], &[&left[0]]].concat()).await;
    assert_eq!(said, done("1 operation purged.\n"));
    let said = run(&gateway, &[&purge[..], &[&left[0]]].concat()).await;
    assert_eq!(
        said,
        refused(&format!(
            "{} was not purged: There is no operation with this id.",
            left[0]
        ))
    );
    let said = run(&gateway, &with(&["--tenant", "nobody", "--yes"])).await;
    assert_eq!(said, done("0 operations purged.\n"));
}

#[tokio::test]
async fn running_work_is_left_unless_forced() {
    let origin = origin(Manner::Hold).await;
    let directory = tempfile::tempdir().unwrap();
    let gateway = gateway(&origin, directory.path()).run().await;
    let _asked = gateway.spawn_post("k", BODY);
    origin.called(1).await;
    let purge = ["operations", "purge", "--all", "--yes", "--why", "a test"];
    let said = run(&gateway, &purge).await;
    assert_eq!(
        said,
        Said {
            code: 1,
            out: "0 operations purged.\n".to_owned(),
            err: "Error: 1 were left because they run; --force purges them all the same\n"
                .to_owned(),
        }
    );
    let said = run(&gateway, &[&purge[..], &["--force"]].concat()).await;
    assert_eq!(said, done("1 operation purged.\n"));
    origin.open();
}

#[tokio::test]
async fn changed_class_holds_for_new_operations_and_after_a_restart() {
    let origin = origin(Manner::PAY).await;
    let directory = tempfile::tempdir().unwrap();
    let plan = gateway(&origin, directory.path());
    let serving = plan.run().await;
    let before = serving.post("before", BODY).await.unwrap();
    let set = [
        "classes",
        "set",
        "interactive",
        "retention=2h",
        "--why",
        "a test",
    ];
    let said = run(&serving, &set).await;
    assert_eq!(said.code, 0, "{said:?}");
    assert!(said.out.starts_with("interactive\n"), "{said:?}");
    assert!(
        said.out
            .contains("retention         2h                   changed\n"),
        "{}",
        said.out
    );
    let after = serving.post("after", BODY).await.unwrap();
    let hours = |answer: &Answer| kept_hours(answer);
    assert_eq!((hours(&before), hours(&after)), (24, 2));
    let again = serving.post("before", BODY).await.unwrap();
    assert_eq!(
        again.header("idempotency-expires"),
        before.header("idempotency-expires")
    );

    let wrong = [
        "classes",
        "set",
        "interactive",
        "lease=1s",
        "--why",
        "a test",
    ];
    assert_eq!(
        run(&serving, &wrong).await,
        refused(
            "Nothing was changed: lease: 1s is shorter than the 30s that an upstream of its routes may take, so a running request would be taken for lost; write 30s or longer."
        )
    );
    serving.kill().await;
    let serving = plan.run().await;
    assert_eq!(kept_hours(&serving.post("later", BODY).await.unwrap()), 2);
    let said = run(
        &serving,
        &["classes", "unset", "interactive", "--why", "a test"],
    )
    .await;
    assert_eq!(said.code, 0, "{said:?}");
    assert_eq!(kept_hours(&serving.post("last", BODY).await.unwrap()), 24);
}

/// How long a reply just kept is kept.
pub(crate) fn kept_hours(answer: &Answer) -> i64 {
    let expires: jiff::Timestamp = answer.header("idempotency-expires").parse().unwrap();
    let left = expires.duration_since(jiff::Timestamp::now());
    (left.as_secs() + 1_800) / 3_600
}

fn configured(origin: &Origin, directory: &Path) -> std::path::PathBuf {
    let file = directory.join("onceward.toml");
    let text = format!(
        r#"
[server]
listen = "127.0.0.1:0"
admin = "127.0.0.1:0"
admin_tokens = [
    {{ name = "viewer", role = "read", token = "{CANARY}-viewer-0123456789abcdef" }},
    {{ name = "ops", role = "operate", token = "{CANARY}-ops-0123456789abcdef" }},
    {{ name = "root", role = "admin", token = "{CANARY}-root-0123456789abcdef" }},
]

[store]
url = "embedded:{}"

[auth.api_keys]

[upstreams.payments]
url = "http://{}"

[[routes]]
endpoint = "payments.create"
method = "POST"
path = "/payments"
upstream = "payments"
policy = "REQUIRED_A"
class = "financial"
"#,
        directory.join("data").display(),
        origin.address(),
    );
    std::fs::write(&file, text).unwrap();
    file
}

fn token(name: &str) -> String {
    format!("{CANARY}-{name}-0123456789abcdef")
}

#[tokio::test]
async fn tokens_let_in_by_their_role_and_the_program_says_which_is_needed() {
    let origin = origin(Manner::PAY).await;
    let directory = tempfile::tempdir().unwrap();
    let gateway = gateway_of(&configured(&origin, directory.path()))
        .run()
        .await;
    let address = gateway.admin_address();
    let ask = async |token: Option<&str>, args: &[&str]| run_at(address, token, args).await;
    let list = ["operations", "list"];
    let revoke = ["keys", "revoke", "nobody"];
    assert_eq!(
        ask(None, &list).await,
        refused("the gateway wants a token: put one into ONCEWARD_ADMIN_TOKEN")
    );
    assert_eq!(
        ask(Some("nonsense"), &list).await,
        refused("the gateway does not know the token in ONCEWARD_ADMIN_TOKEN")
    );
    assert_eq!(
        ask(Some(&token("viewer")), &list).await,
        done("No operation matches.\n")
    );
    for name in ["viewer", "ops"] {
        assert_eq!(
            ask(Some(&token(name)), &revoke).await,
            refused(
                "the role of the token in ONCEWARD_ADMIN_TOKEN is too small: this needs `admin`"
            )
        );
    }
    assert_eq!(
        ask(Some(&token("root")), &revoke).await,
        refused("There is no key with this id.")
    );
    let audit = ask(Some(&token("viewer")), &["audit", "--json"])
        .await
        .json();
    assert_eq!(audit["entries"].as_array().unwrap().len(), 1);
    assert_eq!(audit["entries"][0]["who"], "root");
    assert_eq!(audit["entries"][0]["why"], "revoked on the command line");
}

#[tokio::test]
async fn made_key_lets_in_until_it_is_revoked() {
    let origin = origin(Manner::PAY).await;
    let directory = tempfile::tempdir().unwrap();
    let gateway = gateway_of(&configured(&origin, directory.path()))
        .run()
        .await;
    let root = token("root");
    let ask = async |args: &[&str]| run_at(gateway.admin_address(), Some(&root), args).await;
    let create = [
        "keys",
        "create",
        "--tenant",
        "acme",
        "--project",
        "shop",
        "--subject",
        "service:worker",
    ];
    let said = ask(&create).await;
    assert_eq!(said.code, 0, "{said:?}");
    let key = said.out.lines().next().unwrap().to_owned();
    assert!(key.starts_with("ow_"), "{said:?}");
    let id = key.split('_').nth(1).unwrap();
    assert_eq!(
        said.out,
        format!("{key}\n\nThis is shown once and kept nowhere. Its id is {id}.\n")
    );

    let pay = async |key: &str| {
        let mut request = post_request("k", BODY);
        let value = format!("Bearer {key}").parse().unwrap();
        request.headers_mut().insert("authorization", value);
        Client::new(gateway.listen()).send(request).await.unwrap()
    };
    assert_eq!(gateway.post("k", BODY).await.unwrap().status, 401);
    assert_eq!(pay(&key).await.status, 201);
    let listed = ask(&["operations", "list", "--tenant", "acme", "--json"])
        .await
        .json();
    assert_eq!(listed["operations"][0]["subject"], "service:worker");
    assert_eq!(listed["operations"][0]["endpoint"], "payments.create");
    let revoked = ask(&["keys", "revoke", id, "--why", "it leaked"]).await;
    assert_eq!(revoked, done(&format!("{id} is revoked.\n")));
    assert_eq!(pay(&key).await.status, 401, "not even a replay");
    let keys = ask(&["keys", "list"]).await;
    assert!(
        keys.out
            .contains("revoked  acme    shop     service:worker"),
        "{}",
        keys.out
    );

    let audit = ask(&["audit"]).await;
    for why in ["created on the command line", "it leaked"] {
        assert!(audit.out.contains(why), "{}", audit.out);
    }
    gateway.signal(rustix::process::Signal::TERM);
    let (_, log) = gateway.ended().await;
    let audited = log
        .iter()
        .filter(|line| line.contains("onceward::audit"))
        .count();
    assert!(audited >= 2, "{log:?}");
    for told in [&keys.out, &audit.out, &log.join("\n")] {
        assert!(!told.contains(CANARY) && !told.contains(&key), "{told}");
    }
}

#[tokio::test]
async fn configuration_is_read_again_at_an_operators_word() {
    let origin = origin(Manner::PAY).await;
    let directory = tempfile::tempdir().unwrap();
    let file = configured(&origin, directory.path());
    let gateway = gateway_of(&file).run().await;
    let root = token("root");
    let reload = ["reload", "--why", "a test"];
    let said = run_at(gateway.admin_address(), Some(&root), &reload).await;
    assert_eq!((said.code, said.err.as_str()), (0, ""), "{said:?}");
    assert!(said.out.starts_with("1 routes are served"), "{said:?}");
    std::fs::write(&file, "[server]\nlisten = 7\n").unwrap();
    let said = run_at(gateway.admin_address(), Some(&root), &reload).await;
    assert_eq!(said.code, 1);
    assert!(
        said.err.starts_with("Error: Nothing was changed: "),
        "{said:?}"
    );
}

#[tokio::test]
async fn gateway_without_a_file_has_nothing_to_read_again() {
    let origin = origin(Manner::PAY).await;
    let directory = tempfile::tempdir().unwrap();
    let gateway = gateway(&origin, directory.path()).run().await;
    assert_eq!(
        run(&gateway, &["reload", "--why", "a test"]).await,
        refused("This gateway runs without a configuration file: there is nothing to read again.")
    );
}

#[tokio::test]
async fn who_does_not_answer_is_named() {
    let nobody = std::net::TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let said = run_at(nobody, None, &["operations", "list"]).await;
    assert_eq!((said.code, said.out.as_str()), (1, ""));
    let words = format!(
        "Error: the gateway at http://{nobody} cannot be reached (is it running there? --admin or ONCEWARD_ADMIN says where): no answer from {nobody}"
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
#[case::no_tenant(&["keys", "create", "--subject", "user:1", "--why", "x"], "--tenant <T>")]
#[case::unknown(&["operations", "forget"], "unrecognized subcommand 'forget'")]
#[tokio::test]
async fn wrong_usage_is_2(#[case] args: &[&str], #[case] words: &str) {
    let said = run_at("127.0.0.1:1", None, args).await;
    assert_eq!((said.code, said.out.as_str()), (2, ""));
    assert!(said.err.contains(words), "{said:?}");
}

#[rstest]
#[case("bash", "_onceward()")]
#[case("zsh", "#compdef onceward")]
#[case("fish", "complete -c onceward")]
#[tokio::test]
async fn shells_complete(#[case] shell: &str, #[case] words: &str) {
    let said = run_at("127.0.0.1:1", None, &["completions", shell]).await;
    assert_eq!(said.code, 0);
    for word in [words, "operations", "resolve"] {
        assert!(said.out.contains(word), "{shell}: {word}");
    }
}

/// A key cannot write to the terminal, whoever looks at it.
#[tokio::test]
async fn nothing_that_a_client_sent_moves_the_cursor() {
    let origin = origin(Manner::PAY).await;
    let directory = tempfile::tempdir().unwrap();
    let gateway = gateway(&origin, directory.path()).run().await;
    let args: Vec<OsString> = ["operations", "list", "--key", "\u{1b}[2J"]
        .map(OsString::from)
        .into();
    let args: Vec<_> = args.iter().map(|arg| arg.to_str().unwrap()).collect();
    assert_eq!(run(&gateway, &args).await, done("No operation matches.\n"));
    let said = run(&gateway, &["operations", "list", "--state", "\u{1b}[2J"]).await;
    assert!(!said.err.contains('\u{1b}'), "{said:?}");
    let said = run(&gateway, &["operations", "show", "\u{1b}[2J"]).await;
    assert_eq!(
        said,
        refused("An operation's id is `op_` and 32 hexadecimal digits.")
    );
}

#[tokio::test]
async fn without_room_for_the_audit_nothing_is_changed_and_it_is_not_ready() {
    let origin = origin(Manner::PAY).await;
    let directory = tempfile::tempdir().unwrap();
    let plan = gateway(&origin, directory.path()).surviving_the_file_limit();
    let gateway = plan.run().await;
    assert_eq!(gateway.post("k", BODY).await.unwrap().status, 201);
    let id = &ids(&gateway, &[]).await[0];
    gateway.limit_files(Some(0));
    assert_eq!(gateway.post("other", BODY).await.unwrap().status, 503);
    assert_eq!(gateway.admin("/readyz").await.unwrap().status, 503);
    let said = run(&gateway, &["operations", "purge", id, "--why", "a test"]).await;
    assert_eq!(
        said,
        refused(&format!(
            "{id} was not purged: Nothing was changed: the audit cannot be written. Try again later."
        ))
    );
    gateway.limit_files(None);
    crate::until(async || gateway.post("other", BODY).await.unwrap().status == 201).await;
    assert_eq!(gateway.admin("/readyz").await.unwrap().status, 200);
    let said = run(&gateway, &["operations", "purge", id, "--why", "a test"]).await;
    assert_eq!(said, done("1 operation purged.\n"));
    assert_eq!(gateway.state("k").await, None);
}
