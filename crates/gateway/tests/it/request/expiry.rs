//! Expiry of replies and keys.

use std::time::Duration;

use onceward_core::class::Class;

use crate::harness::{Answer, Reply, Running, gateway, origin};

const SHORT: Duration = Duration::from_millis(200);

#[tokio::test]
async fn a_retry_after_the_reply_expired_is_refused_and_does_not_run() {
    let origin = origin().reply(201, "paid").run().await;
    let class = Class::interactive().with(|class| class.retention = SHORT);
    let gateway = gateway(&origin).class(class).run().await;
    gateway.post("/payments", "k").send().await;
    let late = ask_until(&gateway, |answer| answer.status != 201).await;
    assert_eq!(late.problem(), (410, "reply-expired".to_owned()));
    assert_eq!(late.json()["original_status"], 201);
    assert_eq!(late.json()["safe_new_key"], false);
    assert_eq!(origin.runs(), 1);
}

#[tokio::test]
async fn a_forgotten_key_is_free() {
    let origin = origin()
        .replying(|_, run| Reply::new(201, format!("run {run}")))
        .run()
        .await;
    let class = Class::interactive().with(|class| {
        class.retention = SHORT;
        class.remember = SHORT;
    });
    let gateway = gateway(&origin).class(class).run().await;
    gateway.post("/payments", "k").send().await;
    let late = ask_until(&gateway, |answer| !answer.is_replay()).await;
    assert_eq!((late.status, late.text()), (201, "run 2"));
}

async fn ask_until(gateway: &Running, mut holds: impl FnMut(&Answer) -> bool) -> Answer {
    loop {
        let answer = gateway.post("/payments", "k").send().await;
        if holds(&answer) {
            return answer;
        }
        tokio::time::sleep(SHORT / 10).await;
    }
}
