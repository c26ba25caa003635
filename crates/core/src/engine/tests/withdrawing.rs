//! Claims whose answer was lost.

use super::*;

#[tokio::test(start_paused = true)]
async fn a_claim_that_arrives_behind_its_withdrawal_is_taken_back() {
    for late in [3, 9, 30] {
        let memory = Arc::new(MemoryStore::new(Arc::new(ManualClock::new(START))));
        let store = Arc::new(CountingStore {
            memory: memory.clone(),
            waits: AtomicUsize::new(0),
            claims_late_by: Some(Duration::from_secs(late)),
        });
        let engine = Engine::new(store, Entropy::seeded(1), Limits::default());
        let Record {
            identity, terms, ..
        } = record(State::Running, AfterLoss::Hold);
        let digest = identity.digest();
        let entered = engine.enter(identity, fingerprint(1), terms).await;
        assert!(entered.is_err());
        sleep(Duration::from_millis(late * 1000 + 1)).await;
        let state = async || {
            let record = memory.get(&digest).await.expect("the store answers");
            record.map(|record| record.state)
        };
        assert_eq!(state().await, Some(State::Running), "{late} s late");
        sleep(Duration::from_secs(80)).await;
        assert!(
            matches!(state().await, None | Some(State::Released)),
            "{late} s late"
        );
    }
}
