//! Claims whose answer was lost.

use super::*;
use crate::identity::Identity;
use crate::key::Key;

/// An engine on a store that grants every claim and never answers.
struct Unanswered {
    memory: Arc<MemoryStore>,
    engine: Arc<Engine>,
}

impl Unanswered {
    fn new(limits: Limits) -> Self {
        let memory = Arc::new(MemoryStore::new(Arc::new(ManualClock::new(START))));
        let store = Arc::new(CountingStore::new(&memory, ClaimFault::Silent));
        let engine = Engine::new(store, Entropy::seeded(1), limits);
        Self { memory, engine }
    }

    /// Claims the key of this number, and returns the claim while it waits.
    async fn claim(&self, number: usize) -> Pin<Box<impl Future<Output = ()>>> {
        let (engine, identity) = (self.engine.clone(), identity(number));
        let terms = record(State::Running, AfterLoss::Hold).terms;
        let mut claiming =
            Box::pin(async move { drop(engine.enter(identity, fingerprint(1), terms).await) });
        assert!(poll_once(&mut claiming).await.is_none());
        assert_eq!(self.state(number).await, Some(State::Running));
        claiming
    }

    async fn state(&self, number: usize) -> Option<State> {
        let record = self.memory.get(&identity(number).digest()).await;
        let record = record.expect("the store answers");
        record.map(|record| record.state)
    }

    async fn is_free(&self, number: usize) -> bool {
        matches!(self.state(number).await, None | Some(State::Released))
    }
}

fn identity(number: usize) -> Identity {
    let mut identity = record(State::Running, AfterLoss::Hold).identity;
    identity.key = Key::parse(&format!("key-{number}")).expect("a good key");
    identity
}

#[tokio::test(start_paused = true)]
async fn more_claims_are_withdrawn_within_a_second_than_at_once() {
    let limits = Limits::default().with(|limits| limits.withdrawals = 2);
    let unanswered = Unanswered::new(limits);
    for number in 0..10 {
        drop(unanswered.claim(number).await);
        sleep(Duration::from_millis(50)).await;
    }
    for number in 0..10 {
        assert!(unanswered.is_free(number).await, "{number}");
    }
}

#[test]
fn a_claim_that_is_dropped_outside_of_the_runtime_is_withdrawn() {
    let runtime = runtime();
    let unanswered = Unanswered::new(Limits::default());
    let claiming = runtime.block_on(unanswered.claim(1));
    drop(claiming);
    unanswered.engine.tasks().close();
    runtime.block_on(unanswered.engine.tasks().wait());
    assert!(runtime.block_on(unanswered.is_free(1)));
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_arrives_behind_its_withdrawal_is_taken_back() {
    for late in [3, 9, 30] {
        let memory = Arc::new(MemoryStore::new(Arc::new(ManualClock::new(START))));
        let late_by = ClaimFault::Late(Duration::from_secs(late));
        let store = Arc::new(CountingStore::new(&memory, late_by));
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
