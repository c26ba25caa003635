//! The commands that wait for the writer.
//!
//! A caller takes a place before it leaves a command, so that the number of waiting
//! commands is bounded and none is refused. This is not a channel of tokio: a channel
//! ends with its last sender, and a command that waits for the end of a turn would hold
//! one. A store that is dropped in that turn, on the same thread, would then wait for
//! itself.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use tokio::sync::Semaphore;

/// The queue of one writer, for commands of type `T`.
pub(super) struct Inbox<T> {
    queue: Mutex<Queue<T>>,
    arrived: Condvar,
    places: Semaphore,
}

struct Queue<T> {
    commands: Vec<T>,
    /// How many of them take a place.
    placed: usize,
    is_closed: bool,
    /// Whether the writer sleeps: only then it is woken, which takes a system call.
    is_asleep: bool,
}

impl<T> Inbox<T> {
    /// A queue of at most `places` commands of callers.
    pub(super) fn new(places: usize) -> Arc<Self> {
        Arc::new(Self {
            queue: Mutex::new(Queue {
                commands: Vec::new(),
                placed: 0,
                is_closed: false,
                is_asleep: false,
            }),
            arrived: Condvar::new(),
            places: Semaphore::new(places),
        })
    }

    /// Waits for a place; `None` where the queue is closed.
    pub(super) async fn place(self: &Arc<Self>) -> Option<Place<T>> {
        self.places.acquire().await.ok()?.forget();
        Some(Place(Some(self.clone())))
    }

    /// Adds a command without a place: those of the store's own threads are few. A
    /// closed queue drops it.
    pub(super) fn push(&self, command: T) {
        self.add(command, 0);
    }

    /// Takes the commands that wait, at most `most`, and sleeps while there are none.
    /// Returns whether there are any: not in a closed queue that is empty.
    pub(super) fn take(&self, most: usize, batch: &mut Vec<T>) -> bool {
        let mut queue = self.queue();
        while queue.commands.is_empty() && !queue.is_closed {
            queue.is_asleep = true;
            queue = (self.arrived.wait(queue)).unwrap_or_else(PoisonError::into_inner);
        }
        queue.is_asleep = false;
        match queue.commands.len() <= most && batch.is_empty() {
            true => std::mem::swap(&mut queue.commands, batch),
            false => {
                let most = most.min(queue.commands.len());
                batch.extend(queue.commands.drain(..most));
            }
        }
        let freed = batch.len().min(queue.placed);
        queue.placed -= freed;
        drop(queue);
        self.places.add_permits(freed);
        !batch.is_empty()
    }

    /// Takes no further commands.
    pub(super) fn close(&self) {
        self.queue().is_closed = true;
        self.places.close();
        self.arrived.notify_one();
    }

    /// Closes the queue and drops the commands that wait.
    pub(super) fn discard(&self) {
        self.close();
        let waiting = std::mem::take(&mut self.queue().commands);
        drop(waiting);
    }

    fn add(&self, command: T, places: usize) {
        let mut queue = self.queue();
        if queue.is_closed {
            drop(queue);
            drop(command);
            return;
        }
        queue.commands.push(command);
        queue.placed += places;
        let is_asleep = std::mem::take(&mut queue.is_asleep);
        drop(queue);
        if is_asleep {
            self.arrived.notify_one();
        }
    }

    fn queue(&self) -> MutexGuard<'_, Queue<T>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A place for one command; dropped without a command, it is free again.
pub(super) struct Place<T>(Option<Arc<Inbox<T>>>);

impl<T> Place<T> {
    /// Leaves the command. A closed queue drops it.
    pub(super) fn leave(mut self, command: T) {
        if let Some(inbox) = self.0.take() {
            inbox.add(command, 1);
        }
    }
}

impl<T> Drop for Place<T> {
    fn drop(&mut self) {
        if let Some(inbox) = &self.0 {
            inbox.places.add_permits(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use futures_util::FutureExt as _;

    use super::*;

    fn place(inbox: &Arc<Inbox<usize>>) -> Option<Place<usize>> {
        inbox.place().now_or_never().expect("there is a place")
    }

    #[test]
    fn commands_are_taken_in_their_order_and_at_most_so_many() {
        let inbox = Inbox::new(10);
        for number in 0..5 {
            place(&inbox).expect("it is open").leave(number);
        }
        let mut batch = Vec::new();
        assert!(inbox.take(3, &mut batch));
        assert_eq!(batch, [0, 1, 2]);
        batch.clear();
        inbox.push(5);
        assert!(inbox.take(3, &mut batch));
        assert_eq!(batch, [3, 4, 5]);
    }

    #[test]
    fn caller_waits_until_a_place_is_taken_or_given_back() {
        let inbox = Inbox::new(2);
        let unused = place(&inbox);
        place(&inbox).expect("it is open").leave(1);
        let mut third = Box::pin(inbox.place());
        assert!(third.as_mut().now_or_never().is_none());
        drop(unused);
        assert!(third.as_mut().now_or_never().flatten().is_some());
        let mut batch = Vec::new();
        assert!(inbox.take(9, &mut batch));
        let both = [place(&inbox), place(&inbox)];
        assert!(both.iter().all(Option::is_some));
        assert!(inbox.place().now_or_never().is_none(), "no place was made");
    }

    #[test]
    fn closed_queue_gives_what_waits_and_takes_nothing_more() {
        let inbox = Inbox::new(2);
        let late = place(&inbox).expect("it is open");
        place(&inbox).expect("it is open").leave(1);
        inbox.close();
        late.leave(2);
        inbox.push(3);
        assert!(place(&inbox).is_none());
        let mut batch = Vec::new();
        assert!(inbox.take(9, &mut batch));
        assert_eq!(batch, [1]);
        batch.clear();
        assert!(!inbox.take(9, &mut batch));
    }

    #[test]
    fn sleeping_writer_is_woken_by_a_command_and_by_the_end() {
        let inbox = Inbox::new(2);
        let writer = thread::spawn({
            let inbox = inbox.clone();
            move || {
                let (mut all, mut batch) = (Vec::new(), Vec::new());
                while inbox.take(1, &mut batch) {
                    all.append(&mut batch);
                }
                all
            }
        });
        for number in 0..100 {
            let place = inbox.place().now_or_never();
            match place.flatten() {
                Some(place) => place.leave(number),
                None => inbox.push(number),
            }
            thread::yield_now();
        }
        inbox.close();
        let taken = writer.join().expect("no panic");
        assert_eq!(taken, (0..100).collect::<Vec<_>>());
    }
}
