//! `onceward operations` against a running gateway, with its output compared to the letter.

use std::ffi::OsString;

use serde_json::json;

use crate::fixture::BODY;
use crate::fixture::command::{CommandOutput, done, refused, run};
use crate::fixture::gateway::{Gateway, gateway};
use crate::fixture::origin::{Behaviour, Origin, Sequence, origin, origin_choosing};
use crate::fixture::until;

/// The ids of the operations that match a filter.
async fn ids(gateway: &Gateway, filter: &[&str]) -> Vec<String> {
    let args = [&["operations", "list", "--json"], filter].concat();
    let page = run(gateway, &args).await.json();
    let operations = page["operations"].as_array().unwrap().iter();
    let ids = operations.map(|operation| operation["operation_id"].as_str().unwrap().to_owned());
    ids.collect()
}

/// A service that does not finish its first response to keys that begin with `lost`.
async fn forgetful() -> Origin {
    origin_choosing(Sequence::default(), |key, times| {
        match key.starts_with("lost") && times == 1 {
            true => Behaviour::Half,
            false => Behaviour::PAY,
        }
    })
    .await
}

/// The command shows the operation, then its new state.
fn assert_resolved(said: &CommandOutput, id: &str, state: &str) {
    assert_eq!((said.code, said.err.as_str()), (0, ""), "{said:?}");
    let shown = format!("operation  {id}\nstate      unknown\n");
    assert!(said.out.starts_with(&shown), "{said:?}");
    let ends = format!("\n\n{id} is {state}.\n");
    assert!(said.out.ends_with(&ends), "{said:?}");
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
            "Error: Only an unknown operation can be resolved; this one is completed.\n"
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
async fn a_resolution_of_one_run_does_not_settle_a_later_one() {
    let origin = origin_choosing(Sequence::default(), |_, _| Behaviour::Half).await;
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
        refused(
            "The operation has run again under another fence since; look at it, and name that fence."
        )
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
async fn bulk_purge_counts_confirms_and_purges_matching_operations() {
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
        refused("give operation ids, a filter (such as --tenant T --state unknown), or --all")
    );
    let both = [
        "--all",
        "--state",
        "completed",
        "--tenant",
        "_local",
        "--yes",
    ];
    let said = run(&gateway, &with(&both)).await;
    assert_eq!(
        said,
        refused(
            "--all and a filter exclude each other: drop --all to purge the matching operations, or drop --tenant --state to purge every operation"
        )
    );
    let said = run(&gateway, &with(&["op_1", "--all", "--yes"])).await;
    assert_eq!(
        said,
        refused(
            "--all and operation ids exclude each other: drop --all to purge these operations, or drop the ids to purge every operation"
        )
    );
    let said = run(&gateway, &with(&["--state", "completed"])).await;
    assert_eq!(
        said,
        refused("this purges 3 operations; confirm with --yes")
    );
    assert_eq!(ids(&gateway, &[]).await.len(), 4);
    let said = run(
        &gateway,
        &with(&["--state", "completed", "--yes", "--json"]),
    )
    .await;
    assert_eq!(
        said.json(),
        json!({ "purged": 3, "refused": 0, "skipped": 0 })
    );
    let audit = run(&gateway, &["audit"]).await;
    assert!(audit.out.contains("  3 operations  done"), "{audit:?}");
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
            "{} was not purged: No operation has this id.",
            left[0]
        ))
    );
    let said = run(&gateway, &with(&["--tenant", "nobody", "--yes"])).await;
    assert_eq!(said, done("0 operations purged.\n"));
}

#[tokio::test]
async fn running_work_is_purged_only_by_force() {
    let origin = origin(Behaviour::Hold).await;
    let directory = tempfile::tempdir().unwrap();
    let gateway = gateway(&origin, directory.path()).run().await;
    let _asked = gateway.spawn_post("k", BODY);
    origin.called(1).await;
    let purge = ["operations", "purge", "--all", "--yes", "--why", "a test"];
    let said = run(&gateway, &purge).await;
    assert_eq!(
        said,
        CommandOutput {
            code: 1,
            out: "0 operations purged.\n".to_owned(),
            err: "Error: 1 running operations were not purged; use --force to purge them too\n"
                .to_owned(),
        }
    );
    let said = run(&gateway, &[&purge[..], &["--force"]].concat()).await;
    assert_eq!(said, done("1 operation purged.\n"));
    origin.open();
}

/// A key cannot write to the terminal of the operator.
#[tokio::test]
async fn text_of_clients_cannot_move_the_terminal_cursor() {
    let origin = origin(Behaviour::PAY).await;
    let directory = tempfile::tempdir().unwrap();
    let gateway = gateway(&origin, directory.path()).run().await;
    let args: Vec<OsString> = ["operations", "list", "--key", "\u{1b}[2J"]
        .map(OsString::from)
        .into();
    let args: Vec<_> = args.iter().map(|arg| arg.to_str().unwrap()).collect();
    assert_eq!(
        run(&gateway, &args).await,
        done("No matching operations.\n")
    );
    let said = run(&gateway, &["operations", "list", "--state", "\u{1b}[2J"]).await;
    assert!(!said.err.contains('\u{1b}'), "{said:?}");
    let said = run(&gateway, &["operations", "show", "\u{1b}[2J"]).await;
    assert_eq!(
        said,
        refused("An operation's id is `op_` and 32 hexadecimal digits.")
    );
}

#[tokio::test]
async fn without_space_for_the_audit_nothing_changes_and_the_gateway_is_not_ready() {
    let origin = origin(Behaviour::PAY).await;
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
            "{id} was not purged: Nothing was changed: the audit log cannot be written. Try again later."
        ))
    );
    gateway.limit_files(None);
    until("there is room again", async || {
        gateway.post("other", BODY).await.unwrap().status == 201
    })
    .await;
    assert_eq!(gateway.admin("/readyz").await.unwrap().status, 200);
    let said = run(&gateway, &["operations", "purge", id, "--why", "a test"]).await;
    assert_eq!(said, done("1 operation purged.\n"));
    assert_eq!(gateway.state("k").await, None);
}
