//! Work that runs in its caller's task until the caller goes.

use tokio::sync::{Notify, oneshot};

use super::*;

/// Work that waits for `go`, then sends its answer, then waits for `end`.
struct Steps {
    go: Arc<Notify>,
    end: Arc<Notify>,
    ended: Arc<AtomicUsize>,
}

impl Steps {
    fn new() -> Self {
        Self {
            go: Arc::default(),
            end: Arc::default(),
            ended: Arc::default(),
        }
    }

    fn start(&self, engine: &Engine) -> crate::engine::Detached<&'static str> {
        let (send, answer) = oneshot::channel();
        let (go, end, ended) = (self.go.clone(), self.end.clone(), self.ended.clone());
        let work = async move {
            go.notified().await;
            let _ = send.send("done");
            end.notified().await;
            ended.fetch_add(1, Ordering::Relaxed);
        };
        engine.run_detached(OperationId::from_bytes([7; 16]), work, answer)
    }

    fn ended(&self) -> bool {
        self.ended.load(Ordering::Relaxed) == 1
    }
}

#[tokio::test]
async fn work_goes_on_when_its_caller_goes() {
    let fixture = Fixture::new();
    let steps = Steps::new();
    let mut waiting = Box::pin(steps.start(&fixture.here));
    assert!(poll_once(&mut waiting).await.is_none());
    drop(waiting);
    steps.go.notify_one();
    steps.end.notify_one();
    until(|| steps.ended()).await;
    fixture.here.tasks().close();
    fixture.here.tasks().wait().await;
}

#[tokio::test]
async fn an_answer_comes_before_the_end_of_its_work() {
    let fixture = Fixture::new();
    let steps = Steps::new();
    steps.go.notify_one();
    assert_eq!(steps.start(&fixture.here).await, Some("done"));
    assert!(!steps.ended() && !fixture.here.tasks().is_empty());
    steps.end.notify_one();
    until(|| steps.ended()).await;
}

#[tokio::test]
async fn abandoned_work_ends_without_an_answer() {
    let fixture = Fixture::new();
    let steps = Steps::new();
    let waiting = tokio::spawn(steps.start(&fixture.here));
    tokio::task::yield_now().await;
    fixture.here.abandon();
    assert_eq!(waiting.await.expect("no panic"), None);
    fixture.here.tasks().close();
    fixture.here.tasks().wait().await;
    assert!(!steps.ended());
}

#[tokio::test]
async fn a_panic_ends_the_work_and_not_its_caller() {
    let fixture = Fixture::new();
    let (send, answer) = oneshot::channel::<()>();
    let work = async move {
        let _send = send;
        tokio::task::yield_now().await;
        panic!("in the work");
    };
    let id = OperationId::from_bytes([7; 16]);
    assert_eq!(fixture.here.run_detached(id, work, answer).await, None);
    assert!(fixture.here.tasks().is_empty());
}

/// Polls once; `None` while it waits.
async fn poll_once<T>(future: &mut std::pin::Pin<Box<impl Future<Output = T>>>) -> Option<T> {
    std::future::poll_fn(|cx| match future.as_mut().poll(cx) {
        std::task::Poll::Ready(done) => std::task::Poll::Ready(Some(done)),
        std::task::Poll::Pending => std::task::Poll::Ready(None),
    })
    .await
}
