//! `onceward keys` against a running gateway, and the roles of tokens.

use crate::fixture::BODY;
use crate::fixture::client::{Client, post_request};
use crate::fixture::command::{done, refused, run_at};
use crate::fixture::gateway::gateway_of;
use crate::fixture::origin::{Behaviour, origin};

use super::{CANARY, configured, token};

#[tokio::test]
async fn a_token_is_limited_to_its_role_and_a_refusal_names_the_needed_one() {
    let origin = origin(Behaviour::PAY).await;
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
        refused("the gateway requires a token; set ONCEWARD_ADMIN_TOKEN")
    );
    assert_eq!(
        ask(Some("nonsense"), &list).await,
        refused("the gateway rejected the token in ONCEWARD_ADMIN_TOKEN")
    );
    assert_eq!(
        ask(Some(&token("viewer")), &list).await,
        done("No matching operations.\n")
    );
    for name in ["viewer", "ops"] {
        assert_eq!(
            ask(Some(&token(name)), &revoke).await,
            refused(
                "the role of the token in ONCEWARD_ADMIN_TOKEN is not sufficient; this command requires `admin`"
            )
        );
    }
    assert_eq!(
        ask(Some(&token("root")), &revoke).await,
        refused("No key has this id.")
    );
    let audit = ask(Some(&token("viewer")), &["audit", "--json"])
        .await
        .json();
    assert_eq!(audit["entries"].as_array().unwrap().len(), 1);
    assert_eq!(audit["entries"][0]["who"], "root");
    assert_eq!(audit["entries"][0]["why"], "revoked on the command line");
}

#[tokio::test]
async fn a_created_key_is_accepted_until_it_is_revoked() {
    let origin = origin(Behaviour::PAY).await;
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
    // A script captures the key alone.
    let key = said.out.trim_end().to_owned();
    assert!(key.starts_with("ow_"), "{said:?}");
    assert_eq!(said.out, format!("{key}\n"));
    let id = key.split('_').nth(1).unwrap();
    assert_eq!(
        said.err,
        format!("Key id: {id}. The key is stored as a hash and cannot be shown again.\n")
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
