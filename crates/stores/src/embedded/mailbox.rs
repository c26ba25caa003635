//! Answers on their way from the writer to the callers.
//!
//! A wake from another thread costs a system call: tokio writes an eventfd for it. So
//! the writer does not wake each caller. It puts the answers into the mailbox of the
//! callers' thread and wakes one task there per commit, which gives the answers to
//! their callers; a wake within a thread is a push to a queue.
//!
//! A thread gets its mailbox with its first call. The task belongs to the runtime that
//! the thread was in then; when that runtime ends, what the mailbox holds is given out
//! at once and the thread gets another mailbox with its next call. Answers to threads
//! outside of a runtime, or of a runtime that has ended, wake their callers directly.

use std::cell::RefCell;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use onceward_core::store::StoreError;
use tokio::runtime::{self, Handle};
use tokio::sync::{Notify, oneshot};

use super::error::{Error, Result};

thread_local! {
    static MAILBOX: RefCell<Option<OwnMailbox>> = const { RefCell::new(None) };
}

/// The mailbox of a thread. It closes when the thread ends.
struct OwnMailbox {
    runtime: runtime::Id,
    mailbox: Arc<Mailbox>,
}

impl Drop for OwnMailbox {
    fn drop(&mut self) {
        self.mailbox.close();
    }
}

/// Where the answers for the callers of one thread arrive.
#[derive(Default)]
pub(super) struct Mailbox {
    letters: Mutex<Letters>,
    arrived: Notify,
}

#[derive(Default)]
struct Letters {
    is_closed: bool,
    waiting: Vec<Letter>,
}

/// An answer for one caller.
type Letter = Box<dyn Answer>;

impl Mailbox {
    /// That of the present thread; `None` outside of a runtime.
    fn of_this_thread() -> Option<Arc<Self>> {
        let handle = Handle::try_current().ok()?;
        MAILBOX
            .try_with(|own| {
                let mut own = own.borrow_mut();
                match &*own {
                    Some(own) if own.runtime == handle.id() && !own.mailbox.is_closed() => {
                        own.mailbox.clone()
                    }
                    _ => {
                        let mailbox = Arc::<Self>::default();
                        handle.spawn(give_out(ClosedOnDrop(mailbox.clone())));
                        *own = Some(OwnMailbox {
                            runtime: handle.id(),
                            mailbox: mailbox.clone(),
                        });
                        mailbox
                    }
                }
            })
            .ok()
    }

    /// Takes answers and wakes the task that gives them out.
    fn deliver(&self, letters: Vec<Letter>) {
        let mut own = self.letters();
        if own.is_closed {
            drop(own);
            return give(letters);
        }
        own.waiting.extend(letters);
        drop(own);
        self.arrived.notify_one();
    }

    /// No task gives answers out any more.
    fn close(&self) {
        let mut own = self.letters();
        own.is_closed = true;
        let waiting = std::mem::take(&mut own.waiting);
        drop(own);
        give(waiting);
        self.arrived.notify_one();
    }

    fn is_closed(&self) -> bool {
        self.letters().is_closed
    }

    fn letters(&self) -> MutexGuard<'_, Letters> {
        self.letters.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The end of the task, with its runtime at the latest, closes the mailbox.
struct ClosedOnDrop(Arc<Mailbox>);

impl Drop for ClosedOnDrop {
    fn drop(&mut self) {
        self.0.close();
    }
}

/// The task of a mailbox.
async fn give_out(own: ClosedOnDrop) {
    let mailbox = &own.0;
    while !mailbox.is_closed() {
        mailbox.arrived.notified().await;
        let waiting = std::mem::take(&mut mailbox.letters().waiting);
        give(waiting);
    }
}

fn give(letters: Vec<Letter>) {
    for letter in letters {
        letter.give();
    }
}

/// The way of an answer to its caller.
pub(super) struct Responder<T> {
    caller: oneshot::Sender<Result<T, StoreError>>,
    mailbox: Option<Arc<Mailbox>>,
}

/// A responder, and what the caller waits on.
pub(super) fn responder<T>() -> (Responder<T>, oneshot::Receiver<Result<T, StoreError>>) {
    let (caller, answered) = oneshot::channel();
    let mailbox = Mailbox::of_this_thread();
    (Responder { caller, mailbox }, answered)
}

impl<T> Responder<T> {
    /// Whether the caller has given up.
    pub(super) fn is_gone(&self) -> bool {
        self.caller.is_closed()
    }
}

/// An answer that waits to be given.
trait Answer: Send {
    /// The step failed after all.
    fn fail(&mut self, error: &Arc<Error>);
    fn give(self: Box<Self>);
}

struct OneAnswer<T> {
    caller: oneshot::Sender<Result<T, StoreError>>,
    result: Result<T>,
}

impl<T: Send> Answer for OneAnswer<T> {
    fn fail(&mut self, error: &Arc<Error>) {
        self.result = Err(Error::Shared(error.clone()));
    }

    fn give(self: Box<Self>) {
        // The caller may have gone; the step stays done.
        let _ = self.caller.send(self.result.map_err(StoreError::from));
    }
}

/// Answers by mailbox, until they may be given.
#[derive(Default)]
pub(super) struct Outbox {
    /// As many as threads call the store: few, so a list does.
    by_mailbox: Vec<(Option<Arc<Mailbox>>, Vec<Letter>)>,
}

impl Outbox {
    pub(super) fn add<T: Send + 'static>(&mut self, to: Responder<T>, result: Result<T>) {
        let letter = Box::new(OneAnswer {
            caller: to.caller,
            result,
        });
        let is_own = |mailbox: &Option<Arc<Mailbox>>| match (mailbox, &to.mailbox) {
            (Some(one), Some(other)) => Arc::ptr_eq(one, other),
            (None, None) => true,
            _ => false,
        };
        let known = self
            .by_mailbox
            .iter_mut()
            .find(|(mailbox, _)| is_own(mailbox));
        match known {
            Some((_, letters)) => letters.push(letter),
            None => self.by_mailbox.push((to.mailbox, vec![letter])),
        }
    }

    /// Gives all answers.
    pub(super) fn send(&mut self) {
        for (mailbox, letters) in self.by_mailbox.drain(..) {
            match mailbox {
                Some(mailbox) => mailbox.deliver(letters),
                None => give(letters),
            }
        }
    }

    /// Gives this error in place of all answers; returns how many these were.
    pub(super) fn send_failed(&mut self, error: &Arc<Error>) -> usize {
        let letters = self.by_mailbox.iter_mut().flat_map(|(_, letters)| letters);
        let count = letters.map(|letter| letter.fail(error)).count();
        self.send();
        count
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn runtime() -> tokio::runtime::Runtime {
        tokio::runtime::Builder::new_current_thread()
            .build()
            .expect("a runtime")
    }

    /// Sends from another thread, as the writer does.
    fn send(to: Vec<Responder<u32>>) {
        let sender = std::thread::spawn(move || {
            let mut outbox = Outbox::default();
            for (number, to) in (0..).zip(to) {
                outbox.add(to, Ok(number));
            }
            outbox.send();
        });
        sender.join().expect("no panic");
    }

    #[test]
    fn answers_arrive_in_every_runtime_of_a_thread_and_outside_of_them() {
        for _ in 0..2 {
            runtime().block_on(async {
                let (to, answered) = responder();
                let (gone, given_up) = responder();
                drop(given_up);
                assert!(gone.is_gone());
                send(vec![to, gone]);
                assert_eq!(answered.await.expect("answered").expect("good"), 0);
            });
        }
        let (to, answered) = responder();
        send(vec![to]);
        let answer = answered.blocking_recv().expect("answered");
        assert_eq!(answer.expect("good"), 0);
    }

    #[test]
    fn an_answer_for_a_runtime_that_has_ended_arrives() {
        let (before, waiting) = runtime().block_on(async { responder() });
        send(vec![before]);
        assert_eq!(waiting.blocking_recv().expect("answered").expect("good"), 0);
        let other = runtime();
        let (to, waiting) = other.block_on(async { responder() });
        // Delivered, but its task does not run any more.
        send(vec![to]);
        drop(other);
        assert_eq!(waiting.blocking_recv().expect("answered").expect("good"), 0);
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 3)]
    async fn many_callers_on_many_threads_are_answered() {
        let callers = (0..200).map(|_| {
            tokio::spawn(async {
                let (to, answered) = responder();
                send(vec![to]);
                answered.await.expect("answered").expect("good")
            })
        });
        for caller in callers.collect::<Vec<_>>() {
            assert_eq!(caller.await.expect("no panic"), 0);
        }
    }
}
