//! A full disk, simulated by a limit on the size of files, which applies to root too and can be
//! lifted while the process runs. The tests of the stores cover the store itself.

use crate::fixture::BODY;
use crate::fixture::gateway::gateway;
use crate::fixture::origin::{Behaviour, Sequence, origin_choosing};
use crate::fixture::until;

#[tokio::test]
async fn without_room_nothing_is_forwarded_and_with_room_service_goes_on() {
    let choice = |key: &str, _| match key {
        "under-way" => Behaviour::Hold,
        _ => Behaviour::PAY,
    };
    let origin = origin_choosing(Sequence::default(), choice).await;
    let directory = tempfile::tempdir().unwrap();
    let plan = gateway(&origin, directory.path()).surviving_the_file_limit();
    let gateway = plan.run().await;
    let earlier = gateway.post("earlier", BODY).await.unwrap();
    assert_eq!(earlier.status, 201);
    let under_way = gateway.spawn_post("under-way", BODY);
    origin.called(2).await;

    gateway.limit_files(Some(0));
    for _ in 0..2 {
        let refused = gateway.post("k", BODY).await.unwrap();
        assert_eq!(
            (refused.status, refused.code().as_str()),
            (503, "store-unavailable")
        );
        assert_ne!(refused.header("retry-after"), "");
        let told = refused.json();
        assert_eq!(
            (&told["retryable"], &told["safe_new_key"]),
            (&true.into(), &false.into())
        );
    }
    assert_eq!(origin.runs_of("k").len(), 0);
    let again = gateway.post("earlier", BODY).await.unwrap();
    assert_eq!(again.kept(), earlier.kept(), "what is there is still given");
    // The running operation is answered, and recorded when there is room.
    origin.open();
    let under_way = under_way.await.unwrap().unwrap();
    assert_eq!(
        (under_way.status, under_way.header("idempotency-status")),
        (201, "unknown")
    );

    gateway.limit_files(None);
    until("it is recorded", || async {
        gateway.state("under-way").await.as_deref() == Some("completed")
    })
    .await;
    let again = gateway.post("under-way", BODY).await.unwrap();
    assert_eq!(again.kept(), under_way.kept());
    let ran = gateway.post("k", BODY).await.unwrap();
    assert_eq!((ran.status, ran.is_replay()), (201, false), "{ran:?}");
    gateway.kill().await;

    let restarted = plan.run().await;
    for (key, first) in [("earlier", earlier), ("under-way", under_way), ("k", ran)] {
        let again = restarted.post(key, BODY).await.unwrap();
        assert_eq!(again.kept(), first.kept(), "{key}");
        assert_eq!(origin.runs_of(key).len(), 1);
    }
}
