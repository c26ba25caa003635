//! Answers on their way from the driver of a connection, or from the embedded store's
//! writer, to the callers.
//!
//! A wake from another thread costs a system call: tokio writes an eventfd for it. So the
//! driver does not wake each caller of a batch. It puts the answers into the mailbox of
//! the callers' thread and wakes one task there, which gives them to the callers; a wake
//! within a thread is a push to a queue.
//!
//! The other way it is the same: a thread that sleeps is woken by a system call. So on a
//! runtime with one thread the callers leave their questions in their mailbox too, and
//! its task sends all of one turn together ([`at_end_of_turn`]).
//!
//! A thread gets its mailbox with its first call. The task belongs to the runtime that
//! the thread was in then. When that runtime ends, what the mailbox holds is given out at
//! once, and the thread gets another mailbox with its next call.

use std::cell::RefCell;
use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

#[cfg(feature = "embedded")]
use tokio::runtime::RuntimeFlavor;
use tokio::runtime::{Handle, Id};
use tokio::sync::{Notify, oneshot};

thread_local! {
    static MAILBOX: RefCell<Option<OwnMailbox>> = const { RefCell::new(None) };
}

/// The mailbox of a thread. It closes when the thread ends.
struct OwnMailbox {
    runtime: Id,
    mailbox: Arc<Mailbox>,
}

impl Drop for OwnMailbox {
    fn drop(&mut self) {
        self.mailbox.close();
    }
}

/// Gives an answer to its caller, or sends what a caller asks.
type Letter = Box<dyn FnOnce() + Send>;

/// The letters of the callers of one thread.
#[derive(Default)]
struct Mailbox {
    letters: Mutex<Letters>,
    arrived: Notify,
}

#[derive(Default)]
struct Letters {
    is_closed: bool,
    waiting: Vec<Letter>,
}

impl Mailbox {
    /// That of the present thread; `None` outside of a runtime.
    fn of_this_thread() -> Option<Arc<Self>> {
        Self::in_runtime(&Handle::try_current().ok()?)
    }

    /// That of the present thread in this runtime.
    fn in_runtime(handle: &Handle) -> Option<Arc<Self>> {
        let of = |own: &RefCell<Option<OwnMailbox>>| {
            let mut own = own.borrow_mut();
            if let Some(own) = &*own
                && own.runtime == handle.id()
                && !own.mailbox.is_closed()
            {
                return (own.mailbox.clone(), None);
            }
            let mailbox = Arc::<Self>::default();
            handle.spawn(give_out(ClosedOnDrop(mailbox.clone())));
            let before = own.replace(OwnMailbox {
                runtime: handle.id(),
                mailbox: mailbox.clone(),
            });
            (mailbox, before)
        };
        // The one before is closed after the borrow: closing gives its letters out.
        MAILBOX.try_with(of).ok().map(|(mailbox, _before)| mailbox)
    }

    /// Takes letters and wakes the task that gives them out.
    fn deliver(&self, letters: impl IntoIterator<Item = Letter>) {
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
        let waiting = mem::take(&mut own.waiting);
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
        let waiting = mem::take(&mut mailbox.letters().waiting);
        give(waiting);
    }
}

fn give(letters: impl IntoIterator<Item = Letter>) {
    for letter in letters {
        letter();
    }
}

/// Does something a moment later in the present thread's runtime, in the order of the
/// calls, together with what other tasks do there until then: the first call of a turn
/// puts the task that does all of it behind the tasks that are ready. On a runtime with
/// several threads, and outside of one, it is done at once: there, what is asked first on
/// one thread and then on another could arrive in the other order.
#[cfg(feature = "embedded")]
pub(crate) fn at_end_of_turn(send: impl FnOnce() + Send + 'static) {
    let handle = Handle::try_current().ok();
    let single = handle.filter(|one| one.runtime_flavor() == RuntimeFlavor::CurrentThread);
    match single.and_then(|handle| Mailbox::in_runtime(&handle)) {
        Some(mailbox) => mailbox.deliver([Box::new(send) as Letter]),
        None => send(),
    }
}

/// Does now what this thread left for the end of its turn.
#[cfg(feature = "embedded")]
pub(crate) fn end_turn() {
    let of = |own: &RefCell<Option<OwnMailbox>>| {
        let own = own.borrow();
        own.as_ref().map(|own| own.mailbox.clone())
    };
    if let Ok(Some(mailbox)) = MAILBOX.try_with(of) {
        let waiting = mem::take(&mut mailbox.letters().waiting);
        give(waiting);
    }
}

/// The way of an answer to its caller.
pub(crate) struct Responder<T> {
    caller: oneshot::Sender<T>,
    mailbox: Option<Arc<Mailbox>>,
}

/// A responder, and what the caller waits on.
pub(crate) fn responder<T>() -> (Responder<T>, oneshot::Receiver<T>) {
    let (caller, answered) = oneshot::channel();
    let mailbox = Mailbox::of_this_thread();
    (Responder { caller, mailbox }, answered)
}

impl<T> Responder<T> {
    /// Whether the caller has given up.
    pub(crate) fn is_gone(&self) -> bool {
        self.caller.is_closed()
    }
}

/// The answers of a batch, by mailbox. They are given when it is dropped, unless its
/// thread panics: what they say may not be durable then, and their callers learn that
/// there is no answer.
#[derive(Default)]
pub(crate) struct Outbox {
    /// As many as threads call the store: few, so a list does.
    by_mailbox: Vec<(Option<Arc<Mailbox>>, Vec<Letter>)>,
}

impl Outbox {
    /// Adds an answer; `unheard` gets it if the caller has gone.
    pub(crate) fn add<T: Send + 'static>(
        &mut self,
        to: Responder<T>,
        answer: T,
        unheard: impl FnOnce(T) + Send + 'static,
    ) {
        let caller = to.caller;
        let letter: Letter = Box::new(move || {
            if let Err(answer) = caller.send(answer) {
                unheard(answer);
            }
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

    /// Gives none of the answers: their callers learn that there is none.
    #[cfg(feature = "embedded")]
    pub(crate) fn discard(&mut self) {
        self.by_mailbox.clear();
    }
}

impl Drop for Outbox {
    fn drop(&mut self) {
        if std::thread::panicking() {
            return;
        }
        for (mailbox, letters) in self.by_mailbox.drain(..) {
            match mailbox {
                Some(mailbox) => mailbox.deliver(letters),
                None => give(letters),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use tokio::runtime::{Builder, Runtime};

    use super::*;

    fn runtime() -> Runtime {
        Builder::new_current_thread().build().expect("a runtime")
    }

    /// Answers from another thread, as a driver does; returns what was not heard.
    fn answer(to: Vec<Responder<usize>>) -> Vec<usize> {
        let (unheard, heard) = mpsc::channel();
        let driver = std::thread::spawn(move || {
            let mut outbox = Outbox::default();
            for (number, to) in to.into_iter().enumerate() {
                let unheard = unheard.clone();
                outbox.add(to, number, move |number| {
                    unheard.send(number).expect("the test listens");
                });
            }
        });
        driver.join().expect("no panic");
        heard.try_iter().collect()
    }

    #[test]
    fn answers_arrive_in_every_runtime_of_a_thread_and_outside_of_them() {
        for _ in 0..2 {
            runtime().block_on(async {
                let [(first, one), (second, two)] = [responder(), responder()];
                answer(vec![first, second]);
                assert_eq!([one.await, two.await], [Ok(0), Ok(1)]);
            });
        }
        let (to, answered) = responder();
        answer(vec![to]);
        assert_eq!(answered.blocking_recv(), Ok(0));
    }

    #[test]
    fn answer_that_is_not_heard_is_given_back() {
        let (to, given_up) = responder();
        drop(given_up);
        assert!(to.is_gone());
        assert_eq!(answer(vec![to]), [0]);
    }

    #[test]
    fn answers_of_a_thread_that_panics_are_not_given() {
        let (to, answered) = responder();
        let driver = std::thread::spawn(move || {
            let mut outbox = Outbox::default();
            outbox.add(to, 1, drop);
            panic!("before the commit");
        });
        assert!(driver.join().is_err());
        assert!(answered.blocking_recv().is_err());
    }

    #[test]
    fn answer_for_a_runtime_that_has_ended_arrives() {
        let (before, waiting) = runtime().block_on(async { responder() });
        answer(vec![before]);
        assert_eq!(waiting.blocking_recv(), Ok(0));
        let other = runtime();
        let (to, waiting) = other.block_on(async { responder() });
        // Delivered, but its task does not run any more.
        answer(vec![to]);
        drop(other);
        assert_eq!(waiting.blocking_recv(), Ok(0));
    }

    #[cfg(feature = "embedded")]
    #[test]
    fn what_one_turn_asks_is_sent_together_after_its_tasks() {
        let (send, done) = mpsc::channel();
        let ask = |number: usize| {
            let (ran, sent) = (send.clone(), send.clone());
            async move {
                ran.send(("ran", number)).expect("the test listens");
                at_end_of_turn(move || sent.send(("sent", number)).expect("the test listens"));
            }
        };
        let one_thread = runtime();
        one_thread.block_on(async {
            let tasks = [1, 2, 3].map(|number| tokio::spawn(ask(number)));
            for task in tasks {
                task.await.expect("no panic");
            }
        });
        // What is left is sent at the latest when the runtime ends.
        drop(one_thread);
        let expected = ["ran", "sent"].map(|step| [1, 2, 3].map(|number| (step, number)));
        assert_eq!(done.try_iter().collect::<Vec<_>>(), expected.concat());

        let several = Builder::new_multi_thread().worker_threads(2).build();
        several.expect("a runtime").block_on(ask(4));
        let at_once = [("ran", 4), ("sent", 4)];
        assert_eq!(done.try_iter().collect::<Vec<_>>(), at_once);
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 3)]
    async fn many_callers_on_many_threads_are_answered() {
        let callers = (0..200).map(|_| {
            tokio::spawn(async {
                let (to, answered) = responder();
                answer(vec![to]);
                answered.await
            })
        });
        for caller in callers.collect::<Vec<_>>() {
            assert_eq!(caller.await.expect("no panic"), Ok(0));
        }
    }
}
