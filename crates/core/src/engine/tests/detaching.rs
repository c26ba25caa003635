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

#[test]
fn work_is_recorded_when_its_caller_goes_outside_of_the_runtime() {
    let runtime = runtime();
    let fixture = Fixture::new();
    let go = Arc::new(Notify::new());
    let lead = runtime.block_on(fixture.lead(&fixture.here, 1));
    let (id, gone) = (lead.id(), go.clone());
    let (send, answer) = oneshot::channel();
    let work = async move {
        gone.notified().await;
        lead.finish(completed(), None).await;
        let _ = send.send(());
    };
    let mut waiting = {
        let _entered = runtime.enter();
        Box::pin(fixture.here.run_detached(id, work, answer))
    };
    assert!(runtime.block_on(poll_once(&mut waiting)).is_none());
    drop(waiting);
    go.notify_one();
    runtime.block_on(fixture.rest());
    let record = runtime.block_on(fixture.record());
    assert_eq!(record.state, State::Completed);
}

/// A claim that is granted after the end of a shutdown.
#[tokio::test]
async fn work_that_is_abandoned_before_it_begins_leaves_its_key_free() {
    let fixture = Fixture::new();
    fixture.here.abandon();
    let lead = fixture.new_lead(&fixture.here, 1).await;
    let (id, called) = (lead.id(), Arc::new(AtomicUsize::new(0)));
    let (send, answer) = oneshot::channel();
    let calling = called.clone();
    let work = async move {
        calling.fetch_add(1, Ordering::Relaxed);
        lead.begin().finish(completed(), None).await;
        let _ = send.send(());
    };
    assert_eq!(fixture.here.run_detached(id, work, answer).await, None);
    fixture.rest().await;
    assert_eq!(called.load(Ordering::Relaxed), 0);
    assert_eq!(fixture.record().await.state, State::Released);
    assert_eq!(fixture.here.running(), 0);
}
