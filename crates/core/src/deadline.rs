//! The one place that bounds how long something may take.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use pin_project_lite::pin_project;
use tokio::task::coop::{self, Unconstrained};
use tokio::time::Sleep;

use crate::store::StoreError;

/// The work did not end in time, and was given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no answer within {0:?}")]
pub struct DeadlineExceeded(pub Duration);

/// Waits for work to end, at most this long from the first poll. Work that does not
/// end in time is dropped where it stands.
pub fn within<F: Future>(limit: Duration, work: F) -> Within<F> {
    Within {
        limit,
        work,
        timer: None,
    }
}

pin_project! {
    /// The future of [`within`]. It has a name and is no `async fn`, which would
    /// hold the work twice, as its argument and where it waits, and would make the
    /// future of every request larger.
    #[must_use = "futures do nothing unless they are awaited"]
    pub struct Within<F> {
        limit: Duration,
        #[pin]
        work: F,
        // None until the work has to be waited for: much of it is done at once, and
        // needs neither a timer nor the clock.
        #[pin]
        timer: Option<Unconstrained<Sleep>>,
    }
}

impl<F> fmt::Debug for Within<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Within")
            .field("limit", &self.limit)
            .finish_non_exhaustive()
    }
}

impl<F: Future> Future for Within<F> {
    type Output = Result<F::Output, DeadlineExceeded>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        if let Poll::Ready(done) = this.work.poll(cx) {
            return Poll::Ready(Ok(done));
        }
        let limit = *this.limit;
        if this.timer.is_none() {
            // Unconstrained, so that work which always uses up the task's budget
            // cannot keep the timer from being polled.
            let timer = coop::unconstrained(tokio::time::sleep(limit));
            this.timer.set(Some(timer));
        }
        let timer = this.timer.as_pin_mut().expect("it is set above");
        timer.poll(cx).map(|()| Err(DeadlineExceeded(limit)))
    }
}

/// The same for a step of a store. A step that takes longer is
/// [`StoreError::Unavailable`]: whether it took effect is not known.
pub async fn store_within<T, E: From<StoreError>>(
    limit: Duration,
    step: impl Future<Output = Result<T, E>>,
) -> Result<T, E> {
    let unavailable = |error| StoreError::Unavailable(Box::new(error));
    within(limit, step).await.map_err(unavailable)?
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(2);

    #[tokio::test(start_paused = true)]
    async fn work_is_given_up_at_its_limit() {
        let begun = tokio::time::Instant::now();
        let never = within(LIMIT, std::future::pending::<()>()).await;
        assert_eq!(never, Err(DeadlineExceeded(LIMIT)));
        assert_eq!(begun.elapsed(), LIMIT);
        assert_eq!(within(LIMIT, async { 7 }).await, Ok(7));
    }

    /// Work may be large, and every request waits for some.
    #[tokio::test]
    async fn a_deadline_adds_only_itself() {
        let work = std::future::ready([0_u8; 4096]);
        let size = size_of_val(&work);
        let limited = size_of_val(&within(LIMIT, work));
        assert!(limited < size + 512, "{limited} around {size}");
    }

    /// The work uses up its task's budget in every turn.
    #[tokio::test(start_paused = true)]
    async fn busy_work_is_given_up_too() {
        let busy = async {
            for _ in 0..2 * LIMIT.as_millis() {
                while coop::has_budget_remaining() {
                    coop::consume_budget().await;
                }
                tokio::time::advance(Duration::from_millis(1)).await;
            }
        };
        let ended: Result<(), _> = within(LIMIT, busy).await;
        assert_eq!(ended, Err(DeadlineExceeded(LIMIT)));
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_store_is_unavailable() {
        let step = std::future::pending::<Result<(), StoreError>>();
        let error = store_within(LIMIT, step).await.expect_err("it is too slow");
        let text = "the store is unavailable: no answer within 2s";
        assert_eq!(error.to_string(), text);
    }
}
