//! What waits for the writer: the commands of callers, and the reports of the filler.
//!
//! A caller takes a place before it leaves a command, and the command keeps the place
//! until it is done. So the commands in memory are bounded, in number and in bytes, and
//! none is refused. New work has places of its own, so that nothing else waits behind
//! what waits for room. Reports take no place and can be read alone: they tell of room
//! that the commands wait for.
//!
//! This is not a channel of tokio: a channel ends with its last sender, and a command
//! that waits for the end of a turn would hold one. A store that is dropped in that
//! turn, on the same thread, would then wait for itself.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// A command takes a further place for each so many bytes. A caller that has given up
/// may repeat a command that still waits, with all its bytes.
const BYTES_PER_PLACE: u64 = 16 << 10;

/// The queues of one writer, for commands of type `C` and reports of type `R`.
pub(super) struct Inbox<C, R> {
    queue: Mutex<Queue<C, R>>,
    arrived: Condvar,
    places: usize,
    new_work: Arc<Semaphore>,
    others: Arc<Semaphore>,
}

/// The commands that share places.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// It may wait for room.
    NewWork,
    /// It never waits for room: a settlement above all.
    Other,
}

struct Queue<C, R> {
    commands: Vec<Placed<C>>,
    reports: Vec<R>,
    is_closed: bool,
    /// Whether the writer sleeps: only then it is woken, which takes a system call.
    is_asleep: bool,
}

impl<C, R> Queue<C, R> {
    fn is_empty(&self) -> bool {
        self.commands.is_empty() && self.reports.is_empty()
    }
}

/// The place of one command, or the places of a long one.
pub(super) type Place = OwnedSemaphorePermit;

/// A command with its place, which is free again when this is dropped.
pub(super) struct Placed<C> {
    pub(super) command: C,
    _place: Place,
}

/// What the writer took.
pub(super) struct Taken<C, R> {
    pub(super) commands: Vec<Placed<C>>,
    pub(super) reports: Vec<R>,
}

impl<C, R> Taken<C, R> {
    /// Nothing, with memory for as many commands.
    pub(super) fn with_capacity(commands: usize) -> Self {
        Self {
            commands: Vec::with_capacity(commands),
            reports: Vec::new(),
        }
    }
}

impl<C, R> Inbox<C, R> {
    /// Queues with at most `places` commands of a kind.
    pub(super) fn new(places: usize) -> Arc<Self> {
        Arc::new(Self {
            queue: Mutex::new(Queue {
                commands: Vec::new(),
                reports: Vec::new(),
                is_closed: false,
                is_asleep: false,
            }),
            arrived: Condvar::new(),
            places,
            new_work: Arc::new(Semaphore::new(places)),
            others: Arc::new(Semaphore::new(places)),
        })
    }

    /// Waits for a place for a command with so many bytes; `None` where the inbox is
    /// closed. The longest command takes all places of its kind.
    pub(super) async fn place(&self, kind: Kind, bytes: u64) -> Option<Place> {
        let needed = (1 + bytes / BYTES_PER_PLACE).min(self.places as u64);
        let places = match kind {
            Kind::NewWork => &self.new_work,
            Kind::Other => &self.others,
        };
        let needed = u32::try_from(needed).ok()?;
        places.clone().acquire_many_owned(needed).await.ok()
    }

    /// Leaves a command. A closed inbox drops it.
    pub(super) fn leave(&self, command: C, place: Place) {
        self.add(
            |queue| &mut queue.commands,
            Placed {
                command,
                _place: place,
            },
        );
    }

    /// Adds a report. A closed inbox drops it.
    pub(super) fn report(&self, report: R) {
        self.add(|queue| &mut queue.reports, report);
    }

    fn add<T>(&self, list: impl FnOnce(&mut Queue<C, R>) -> &mut Vec<T>, one: T) {
        let mut queue = self.queue();
        if queue.is_closed {
            // Dropping it may wake a caller, which needs no lock.
            drop(queue);
            return drop(one);
        }
        list(&mut queue).push(one);
        let is_asleep = std::mem::take(&mut queue.is_asleep);
        drop(queue);
        if is_asleep {
            self.arrived.notify_one();
        }
    }

    /// Sleeps until there are commands or reports, and returns the number of commands;
    /// `None` for a closed inbox that is empty.
    pub(super) fn wait(&self) -> Option<usize> {
        let mut queue = self.queue();
        while queue.is_empty() && !queue.is_closed {
            queue.is_asleep = true;
            queue = (self.arrived.wait(queue)).unwrap_or_else(PoisonError::into_inner);
        }
        queue.is_asleep = false;
        (!queue.is_empty()).then_some(queue.commands.len())
    }

    /// Takes all reports and the commands that wait, at most `most`.
    pub(super) fn take(&self, most: usize, taken: &mut Taken<C, R>) {
        let mut queue = self.queue();
        taken.reports.append(&mut queue.reports);
        if queue.commands.len() <= most && taken.commands.is_empty() {
            std::mem::swap(&mut queue.commands, &mut taken.commands);
        } else {
            let most = most.min(queue.commands.len());
            taken.commands.extend(queue.commands.drain(..most));
        }
    }

    /// Takes the reports alone; waits this long for one.
    pub(super) fn take_reports(&self, within: Duration) -> Vec<R> {
        let waits = |queue: &mut Queue<C, R>| {
            queue.is_asleep = queue.reports.is_empty() && !queue.is_closed;
            queue.is_asleep
        };
        let woken = self.arrived.wait_timeout_while(self.queue(), within, waits);
        let mut queue = woken.unwrap_or_else(PoisonError::into_inner).0;
        queue.is_asleep = false;
        std::mem::take(&mut queue.reports)
    }

    /// Whether nothing waits.
    pub(super) fn is_empty(&self) -> bool {
        self.queue().is_empty()
    }

    /// Takes no further commands and reports.
    pub(super) fn close(&self) {
        self.queue().is_closed = true;
        self.new_work.close();
        self.others.close();
        self.arrived.notify_one();
    }

    /// Closes the inbox and drops what waits.
    pub(super) fn discard(&self) {
        self.close();
        let mut queue = self.queue();
        let commands = std::mem::take(&mut queue.commands);
        let reports = std::mem::take(&mut queue.reports);
        drop(queue);
        drop((commands, reports));
    }

    fn queue(&self) -> MutexGuard<'_, Queue<C, R>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use futures_util::FutureExt as _;

    use super::*;

    type TestInbox = Inbox<usize, &'static str>;

    fn place(inbox: &TestInbox) -> Option<Place> {
        let place = inbox.place(Kind::NewWork, 0);
        place.now_or_never().expect("there is a place")
    }

    fn has_place(inbox: &TestInbox, kind: Kind, bytes: u64) -> bool {
        inbox.place(kind, bytes).now_or_never().is_some()
    }

    fn leave(inbox: &TestInbox, number: usize) {
        inbox.leave(number, place(inbox).expect("it is open"));
    }

    /// The next commands, at most so many, and the reports.
    fn take(inbox: &TestInbox, most: usize) -> (Vec<usize>, Vec<&'static str>) {
        let mut taken = Taken::with_capacity(0);
        inbox.take(most, &mut taken);
        let commands = taken.commands.into_iter().map(|placed| placed.command);
        (commands.collect(), taken.reports)
    }

    #[test]
    fn commands_are_taken_in_their_order_and_at_most_so_many() {
        let inbox = TestInbox::new(10);
        for number in 0..5 {
            leave(&inbox, number);
        }
        assert_eq!(inbox.wait(), Some(5));
        assert_eq!(take(&inbox, 3), (vec![0, 1, 2], vec![]));
        leave(&inbox, 5);
        inbox.report("filled");
        assert_eq!(take(&inbox, 3), (vec![3, 4, 5], vec!["filled"]));
    }

    #[test]
    fn a_command_keeps_its_place_until_it_is_done() {
        let inbox = TestInbox::new(2);
        let unused = place(&inbox);
        leave(&inbox, 1);
        let mut third = Box::pin(inbox.place(Kind::NewWork, 0));
        assert!(third.as_mut().now_or_never().is_none());
        drop(unused);
        assert!(third.as_mut().now_or_never().flatten().is_some());
        leave(&inbox, 2);
        let mut taken = Taken::with_capacity(0);
        inbox.take(9, &mut taken);
        assert!(!has_place(&inbox, Kind::NewWork, 0), "both are held");
        drop(taken);
        let both = [place(&inbox), place(&inbox)];
        assert!(both.iter().all(Option::is_some));
        assert!(!has_place(&inbox, Kind::NewWork, 0), "no place was made");
    }

    #[test]
    fn new_work_takes_no_place_of_a_settlement() {
        let inbox = TestInbox::new(2);
        leave(&inbox, 1);
        leave(&inbox, 2);
        assert!(!has_place(&inbox, Kind::NewWork, 0));
        assert!(has_place(&inbox, Kind::Other, 0));
    }

    #[test]
    fn long_commands_take_more_places_and_the_longest_all() {
        let inbox = TestInbox::new(4);
        let bytes = 2 * BYTES_PER_PLACE;
        let long = inbox.place(Kind::Other, bytes).now_or_never();
        assert!(long.flatten().is_some());
        let three = inbox.place(Kind::Other, bytes).now_or_never().flatten();
        assert!(!has_place(&inbox, Kind::Other, bytes));
        assert!(has_place(&inbox, Kind::Other, 0), "the fourth place");
        drop(three);
        assert!(has_place(&inbox, Kind::Other, u64::MAX));
    }

    #[test]
    fn reports_are_read_while_commands_wait() {
        let inbox = TestInbox::new(2);
        leave(&inbox, 1);
        assert!(inbox.take_reports(Duration::ZERO).is_empty());
        let filler = thread::spawn({
            let inbox = inbox.clone();
            move || inbox.report("checkpointed")
        });
        let reports = inbox.take_reports(Duration::from_secs(60));
        filler.join().expect("no panic");
        assert_eq!(reports, ["checkpointed"]);
        assert_eq!(take(&inbox, 9), (vec![1], vec![]));
        assert!(inbox.is_empty());
    }

    #[test]
    fn closed_inbox_gives_what_waits_and_takes_nothing_more() {
        let inbox = TestInbox::new(2);
        let late = place(&inbox).expect("it is open");
        leave(&inbox, 1);
        inbox.close();
        inbox.leave(2, late);
        inbox.report("filled");
        assert!(place(&inbox).is_none());
        assert_eq!(take(&inbox, 9), (vec![1], vec![]));
        assert_eq!(inbox.wait(), None);
    }

    #[test]
    fn sleeping_writer_is_woken_by_a_command_and_by_the_end() {
        let inbox = TestInbox::new(2);
        let writer = thread::spawn({
            let inbox = inbox.clone();
            move || {
                let (mut all, mut taken) = (Vec::new(), Taken::with_capacity(0));
                while inbox.wait().is_some() {
                    inbox.take(1, &mut taken);
                    all.extend(taken.commands.drain(..).map(|placed| placed.command));
                }
                all
            }
        });
        for number in 0..100 {
            let place = loop {
                match inbox.place(Kind::NewWork, 0).now_or_never() {
                    Some(place) => break place.expect("it is open"),
                    None => thread::yield_now(),
                }
            };
            inbox.leave(number, place);
        }
        inbox.close();
        let taken = writer.join().expect("no panic");
        assert_eq!(taken, (0..100).collect::<Vec<_>>());
    }
}
