//! `onceward classes` and `onceward reload` against a running gateway.

use crate::fixture::BODY;
use crate::fixture::client::hours_kept;
use crate::fixture::command::{refused, run, run_at};
use crate::fixture::gateway::{gateway, gateway_of};
use crate::fixture::origin::{Behaviour, origin};

use super::{configured, token};

#[tokio::test]
async fn changed_class_holds_for_new_operations_and_after_a_restart() {
    let origin = origin(Behaviour::PAY).await;
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
    assert_eq!((hours_kept(&before), hours_kept(&after)), (24, 2));
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
            "Nothing was changed: lease: 1s is shorter than the 30s that an upstream of its routes may take, so a running request could be treated as lost; write 30s or longer."
        )
    );
    serving.kill().await;
    let serving = plan.run().await;
    assert_eq!(hours_kept(&serving.post("later", BODY).await.unwrap()), 2);
    let said = run(
        &serving,
        &["classes", "unset", "interactive", "--why", "a test"],
    )
    .await;
    assert_eq!(said.code, 0, "{said:?}");
    assert_eq!(hours_kept(&serving.post("last", BODY).await.unwrap()), 24);
}

#[tokio::test]
async fn reload_command_reads_the_configuration_again() {
    let origin = origin(Behaviour::PAY).await;
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
async fn reload_without_a_configuration_file_is_refused() {
    let origin = origin(Behaviour::PAY).await;
    let directory = tempfile::tempdir().unwrap();
    let gateway = gateway(&origin, directory.path()).run().await;
    assert_eq!(
        run(&gateway, &["reload", "--why", "a test"]).await,
        refused("This gateway runs without a configuration file, so there is nothing to reload.")
    );
}
