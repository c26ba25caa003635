//! `onceward webhooks` against a running gateway: its output is compared, and its secrets are searched
//! for where they must not be.

use std::path::Path;
use std::process::Stdio;

use rstest::rstest;
use rustix::process::Signal;
use tokio::io::AsyncWriteExt;

use crate::fixture::command::{CommandOutput, command_at, run};
use crate::fixture::gateway::{Gateway, gateway, gateway_of, onceward};
use crate::fixture::origin::{Behaviour, origin};
use crate::fixture::until;
use crate::webhooks::provider::{Provider, Webhook, delivered};

/// Part of every secret in these tests, so that a leak is found.
const CANARY: &str = "Y2FuYXJ5N2U0MQ";
const WHO: [&str; 4] = ["--tenant", "acme", "--project", "shop"];

/// Runs a command with text on its standard input.
async fn run_with(gateway: &Gateway, input: &str, args: &[&str]) -> CommandOutput {
    let mut command = command_at(gateway.admin_address(), None, args);
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(input.as_bytes()).await.unwrap();
    drop(stdin);
    child.wait_with_output().await.unwrap().into()
}

#[tokio::test]
async fn commands_create_list_rotate_and_delete_a_webhook_and_leave_no_secret() {
    let origin = origin(Behaviour::PAY).await;
    let directory = tempfile::tempdir().unwrap();
    let gateway = gateway(&origin, directory.path()).run().await;
    assert_eq!(
        run(&gateway, &["webhooks", "list"]).await.out,
        "No webhooks.\n"
    );

    let create = ["webhooks", "create", "--provider", "svix", "--secret", "-"];
    let input = format!("whsec_{CANARY}aa\nwhsec_{CANARY}bb\n");
    let said = run_with(&gateway, &input, &[&create[..], &WHO].concat()).await;
    assert_eq!(said.code, 0, "{said:?}");
    // A script captures the URL alone.
    let url = said.out.trim_end();
    assert_eq!(said.out, format!("{url}\n"));
    let id = url.rsplit('/').next().unwrap().to_owned();
    let listen = gateway.listen();
    assert_eq!(url, format!("http://{listen}/api/v1/webhooks/svix/{id}"));
    let (notes, signing) = said.err.rsplit_once(' ').unwrap();
    assert_eq!(
        notes,
        format!(
            "Webhook id: {id}. Give the URL to svix.\n\
             Events are delivered to default/webhooks/svix, signed as Standard Webhooks with"
        )
    );
    assert!(signing.starts_with("whsec_"), "{signing}");

    let file = directory.path().join("secret");
    std::fs::write(&file, format!("whsec_{CANARY}cc\n")).unwrap();
    let file = file.to_str().unwrap();
    let rotate = [
        "webhooks",
        "rotate",
        &id,
        "--secret-file",
        file,
        "--overlap",
        "0s",
    ];
    let said = run(&gateway, &rotate).await;
    assert_eq!(
        said.out,
        format!("{id} has a new secret; the old secrets are no longer valid.\n")
    );
    let rotate = ["webhooks", "rotate", &id, "--generate", "--json"];
    let rotated = run(&gateway, &rotate).await.json();
    let made = rotated["secret"].as_str().unwrap().to_owned();
    let listed = run(&gateway, &["webhooks", "list", "--provider", "svix"]).await;
    assert!(listed.out.contains("2, 1 expiring"), "{listed:?}");

    let delete = ["webhooks", "delete", &id, "--why", "over"];
    let deleted = run(&gateway, &delete).await;
    assert_eq!(deleted.out, format!("{id} is deleted.\n"));
    let again = run(&gateway, &delete).await;
    assert_eq!(
        again.err,
        "Error: No webhook in this gateway's registry has this id.\n"
    );
    let audit = run(&gateway, &["audit"]).await;
    for action in ["webhooks.create", "webhooks.rotate", "webhooks.delete"] {
        assert!(audit.out.contains(action), "{}", audit.out);
    }

    // A webhook that is not deleted, so that its secret is in the store.
    let kept = ["webhooks", "create", "--provider", "svix", "--secret", "-"];
    let input = format!("whsec_{CANARY}dd\n");
    run_with(&gateway, &input, &[&kept[..], &WHO].concat()).await;
    gateway.signal(Signal::TERM);
    let (_, log) = gateway.ended().await;
    std::fs::remove_file(file).unwrap();
    let stored = contents(directory.path());
    assert!(stored.len() > 1_000, "{} bytes", stored.len());
    for secret in [
        CANARY.as_bytes(),
        made.as_bytes(),
        signing.trim().as_bytes(),
    ] {
        let stands_in = |bytes: &[u8]| bytes.windows(secret.len()).any(|part| part == secret);
        assert!(!stands_in(&stored), "in the store");
        assert!(!stands_in(log.join("\n").as_bytes()), "{log:?}");
        assert!(!stands_in(audit.out.as_bytes()), "{}", audit.out);
        assert!(!stands_in(listed.out.as_bytes()), "{}", listed.out);
    }
}

/// The contents of all files in a directory.
fn contents(directory: &Path) -> Vec<u8> {
    let mut bytes = Vec::new();
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => bytes.append(&mut contents(&path)),
            false => bytes.append(&mut std::fs::read(&path).unwrap()),
        }
    }
    bytes
}

#[tokio::test]
async fn a_delivered_event_is_redelivered_by_an_operator() {
    let origin = origin(Behaviour::PAY).await;
    let directory = tempfile::tempdir().unwrap();
    let gateway = gateway(&origin, directory.path()).run().await;
    let webhook = Webhook::create(&gateway, Provider::Stripe, serde_json::json!({})).await;
    let answer = webhook.tell(&gateway, "once").await;
    delivered(&gateway).await;
    let id = answer.header("x-operation-id").to_owned();
    let redeliver = [
        "webhooks",
        "redeliver",
        &id,
        "--why",
        "the handler is mended",
    ];
    let said = run(&gateway, &redeliver).await;
    // The delivery may already be running, or even done.
    assert!(said.out.starts_with(&format!("{id} is ")), "{said:?}");
    until("it is delivered again", async || {
        webhook.carried(&origin, "once").len() == 2
    })
    .await;
    let audit = run(&gateway, &["audit"]).await;
    assert!(audit.out.contains("operations.redeliver"), "{}", audit.out);
}

#[tokio::test]
async fn a_configuration_without_the_upstream_of_a_webhook_is_refused() {
    let origin = origin(Behaviour::PAY).await;
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("onceward.toml");
    let text = format!(
        "[server]\nlisten = \"127.0.0.1:0\"\nadmin = \"127.0.0.1:0\"\n\
         [store]\nurl = \"memory:\"\n[upstreams.one]\nurl = \"http://{}\"\n",
        origin.address()
    );
    let other = "[upstreams.other]\nurl = \"http://127.0.0.1:1\"\n";
    std::fs::write(&file, format!("{text}{other}")).unwrap();
    let gateway = gateway_of(&file).run().await;
    let create = [
        "webhooks",
        "create",
        "--provider",
        "svix",
        "--generate",
        "--json",
    ];
    let create = [&create[..], &WHO, &["--upstream", "other"]].concat();
    let made = run(&gateway, &create).await.json();
    let id = made["webhook_id"].as_str().unwrap();
    std::fs::write(&file, &text).unwrap();
    let said = run(&gateway, &["reload", "--why", "a test"]).await;
    assert_eq!(said.code, 1, "{said:?}");
    let want = format!(
        "the webhook {id} could not be served: upstream: there is no [upstreams.other]; write one of one"
    );
    assert!(said.err.contains(&want), "{said:?}");
    run(&gateway, &["webhooks", "delete", id]).await;
    let said = run(&gateway, &["reload", "--why", "a test"]).await;
    assert_eq!(said.code, 0, "{said:?}");
}

#[rstest]
#[case::two_ways_to_give_a_secret(
    &["webhooks", "create", "--tenant", "a", "--project", "b", "--provider", "svix", "--generate", "--secret", "x"],
    "cannot be used with"
)]
#[case::nothing_to_rotate_to(
    &["webhooks", "rotate", "wh_x"],
    "give the new secret with --secret - or --secret-file, or use --generate"
)]
#[case::two_to_rotate_to(
    &["webhooks", "rotate", "wh_x", "--secret", "a", "--secret", "b"],
    "give one secret, the new one"
)]
#[case::standard_input_beside_another(
    &["webhooks", "rotate", "wh_x", "--secret", "-", "--secret", "b"],
    "--secret - reads all secrets from standard input; give no other --secret"
)]
#[case::no_such_file(
    &["webhooks", "rotate", "wh_x", "--secret-file", "/nowhere/secret"],
    "cannot read /nowhere/secret"
)]
#[case::no_reason(&["webhooks", "redeliver", "op_x"], "--why <REASON>")]
#[case::no_such_delivery(
    &["webhooks", "create", "--tenant", "a", "--project", "b", "--provider", "svix", "--deliver", "later"],
    "[possible values: async, sync]"
)]
#[tokio::test]
async fn contradictory_options_are_refused_before_any_request(
    #[case] args: &[&str],
    #[case] want: &str,
) {
    let output = onceward().args(args).output().await.unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success());
    assert!(said.contains(want), "{said}");
}
