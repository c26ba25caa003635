//! Queued work: its leader, and the answers to its waiters.

use tokio::time::Instant;

use super::*;
use crate::clock::Timestamp;
use crate::engine::Recorded;
use crate::store::{Due, Grant};

const LIMIT: Duration = Duration::from_secs(60);

#[tokio::test(start_paused = true)]
async fn enqueued_work_is_led_by_the_gateway_that_takes_it() {
    let fixture = Fixture::after_loss(AfterLoss::Free);
    fixture.enqueue_new().await;
    let early = fixture.waiter(LIMIT).await;
    let lead = fixture.take().await;
    let late = fixture.waiter(LIMIT).await;
    assert_eq!(fixture.here.running(), 1);
    assert_eq!(lead.fingerprint(), fixture.operation.fingerprint);
    let known = fixture.enqueue(&*fixture.memory).await;
    assert!(matches!(known, Ok(Enqueued::Known(Claim::Busy(_)))));
    let recorded = lead.finish(completed(), None).await;
    assert!(matches!(recorded, Recorded::Finished(_)));
    assert_eq!(fixture.here.running(), 0);
    for waiter in [early, late] {
        let waited = waiter.await.expect("no waiter panics");
        assert!(matches!(waited, Ok(Awaited::Settled(_))));
    }
    let known = fixture.enqueue(&*fixture.memory).await;
    assert!(matches!(known, Ok(Enqueued::Known(Claim::Finished(_)))));
}

/// A queue that takes its step and never answers.
struct SilentQueue(Arc<MemoryStore>);

#[async_trait::async_trait]
impl Queue for SilentQueue {
    async fn enqueue(
        &self,
        claim: &ClaimRequest,
        request: Bytes,
        after: Duration,
    ) -> Result<Enqueued, StoreError> {
        self.0.enqueue(claim, request, after).await?;
        std::future::pending().await
    }

    async fn due(&self, limit: usize) -> Result<Vec<Due>, StoreError> {
        self.0.due(limit).await
    }

    async fn next_due(&self) -> Result<Option<Timestamp>, StoreError> {
        self.0.next_due().await
    }
}

#[tokio::test(start_paused = true)]
async fn an_enqueueing_whose_answer_is_lost_is_delivered_once() {
    let fixture = Fixture::after_loss(AfterLoss::Free);
    let begun = Instant::now();
    let enqueued = fixture.enqueue(&SilentQueue(fixture.memory.clone())).await;
    assert!(matches!(enqueued, Err(StoreError::Unavailable(_))));
    assert_eq!(begun.elapsed(), fixture.here.limits().store_deadline);
    sleep(Duration::from_secs(100)).await;
    fixture.rest().await;
    let again = fixture.enqueue(&*fixture.memory).await;
    assert!(matches!(again, Ok(Enqueued::Known(Claim::Busy(_)))));
    fixture.take().await.finish(completed(), None).await;
    let due = fixture.memory.due(10).await;
    assert!(due.expect("the store answers").is_empty());
}

/// Waiters go on waiting, and get the outcome in the end: of a delivery here, or of
/// one elsewhere.
#[tokio::test(start_paused = true)]
async fn a_waiter_for_a_delivery_waits_while_it_is_put_back() {
    for elsewhere in [false, true] {
        let fixture = Fixture::after_loss(AfterLoss::Free);
        fixture.enqueue_new().await;
        let first = fixture.take().await;
        let waiting = fixture.waiter(LIMIT).await;
        assert_eq!(first.requeue(Duration::ZERO).await, Recorded::Durably);
        let second = fixture.take_new().await;
        assert_eq!(second.defer(Duration::ZERO).await, Recorded::Durably);
        assert_eq!(fixture.record().await.attempts, 1);
        let third = fixture.take().await;
        assert_eq!(third.lose().await, Recorded::Durably);
        drop(fixture.take().await);
        fixture.rest().await;
        assert_eq!(fixture.here.running(), 0);
        let record = fixture.record().await;
        assert_eq!((record.state, record.attempts), (State::Queued, 3));
        sleep(Duration::from_secs(30)).await;
        assert!(!waiting.is_finished());
        if elsewhere {
            let due = fixture.memory.due(1).await.expect("the store answers");
            let Grant { digest, fence, .. } = due[0].grant;
            let settled = fixture.memory.settle(&digest, fence, completed()).await;
            assert!(settled.expect("the store answers").is_recorded());
        } else {
            fixture.take().await.finish(completed(), None).await;
        }
        let waited = waiting.await.expect("no waiter panics");
        let Ok(Awaited::Settled(record)) = waited else {
            panic!("it was to be settled, elsewhere {elsewhere}: {waited:?}");
        };
        assert_eq!(record.attempts, 4);
    }
}

#[tokio::test(start_paused = true)]
async fn a_waiter_for_a_delivery_that_is_put_back_is_answered_at_its_limit() {
    let fixture = Fixture::after_loss(AfterLoss::Hold);
    fixture.enqueue_new().await;
    let lead = fixture.take().await;
    let begun = Instant::now();
    let waiting = fixture.waiter(LIMIT).await;
    lead.requeue(Duration::ZERO).await;
    let waited = waiting.await.expect("no waiter panics");
    assert!(matches!(waited, Ok(Awaited::StillRunning)));
    assert_eq!(begun.elapsed(), LIMIT);
}

#[tokio::test(start_paused = true)]
async fn a_delivery_that_ends_before_it_begins_is_due_again_and_not_counted() {
    for after_loss in [AfterLoss::Hold, AfterLoss::Free] {
        let fixture = Fixture::after_loss(after_loss);
        fixture.enqueue_new().await;
        drop(fixture.take_new().await);
        fixture.rest().await;
        let record = fixture.record().await;
        assert_eq!((record.state, record.attempts), (State::Queued, 0));
        fixture.clock.advance(Duration::from_secs(1));
        fixture.take().await.finish(completed(), None).await;
        assert_eq!(fixture.record().await.attempts, 1);
    }
}

#[tokio::test(start_paused = true)]
async fn a_lost_delivery_is_unknown_where_loss_is_held() {
    for dropped in [false, true] {
        let fixture = Fixture::after_loss(AfterLoss::Hold);
        fixture.enqueue_new().await;
        let lead = fixture.take().await;
        let waiting = fixture.waiter(LIMIT).await;
        match dropped {
            true => drop(lead),
            false => assert_eq!(lead.lose().await, Recorded::Durably),
        }
        fixture.rest().await;
        let waited = waiting.await.expect("no waiter panics");
        assert!(matches!(waited, Ok(Awaited::Lost)), "{dropped}");
        assert_eq!(fixture.record().await.state, State::Unknown);
    }
}
