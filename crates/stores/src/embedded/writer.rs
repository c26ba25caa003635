//! The writer: one thread that owns the connection that writes.
//!
//! It takes all commands that wait, up to a bound, into one transaction, and
//! answers when one sync has made them all durable. Whoever comes meanwhile
//! waits for the next one, so the more callers there are the less each of them
//! costs. What depends on nothing unwritten is answered at once.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use bytes::Bytes;
use onceward_core::clock::Timestamp;
use onceward_core::identity::{Digest, OperationId};
use onceward_core::record::{Attempt, Fence, Record, Settled, Settlement};
use onceward_core::store::{
    Added, Changed, Claim, ClaimRequest, Collection, Due, Enqueued, Force, Resolution, Stats,
    StoreError,
};
use tokio::sync::{mpsc, oneshot};

use super::Shared;
use super::error::{Fault, Step};
use super::finished::Wanted;
use super::steps::{Shelf, Swept};

/// The most commands in one transaction.
const BATCH_MAX: usize = 512;
/// The most commands that wait for the writer; more callers wait to get in.
const WAITING_MAX: usize = 4096;

/// Where an answer goes.
pub(super) type Answer<T> = oneshot::Sender<Result<T, StoreError>>;

/// What the writer is asked to do. Replies come encoded, and requests sealed, so
/// that the one writer spends no time on it.
pub(super) enum Command {
    Claim(Box<ClaimRequest>, Answer<Claim>),
    Withdraw(Digest, Attempt, Answer<()>),
    Renew(Digest, Fence, Answer<Settled>),
    Settle(Digest, Fence, Settlement, Option<Vec<u8>>, Answer<Settled>),
    Get(Wanted, Answer<Option<Arc<Record>>>),
    Show(OperationId, Answer<Option<Arc<Record>>>),
    Touch(Digest, Answer<()>),
    Enqueue(Box<ClaimRequest>, Vec<u8>, Duration, Answer<Enqueued>),
    Due(usize, Answer<Vec<Due>>),
    NextDue(Answer<Option<Timestamp>>),
    Purge(OperationId, Force, Answer<Changed>),
    Resolve(
        OperationId,
        Option<Fence>,
        Resolution,
        Option<Vec<u8>>,
        Answer<Changed>,
    ),
    Resume(OperationId, Answer<Changed>),
    Redeliver(OperationId, Answer<Changed>),
    Put(Collection, String, Bytes, Answer<()>),
    Add(Collection, String, Bytes, Answer<Added>),
    Remove(Collection, String, Answer<()>),
    Sweep(usize, Answer<Swept>),
    Stats(Answer<Stats>),
}

/// The way to the writer. Dropping it ends the writer, after what waits is done.
pub(super) struct Writer {
    commands: Option<mpsc::Sender<Command>>,
    thread: Option<JoinHandle<()>>,
}

impl Writer {
    /// Starts the thread.
    pub(super) fn start(shelf: Shelf, shared: Arc<Shared>) -> std::io::Result<Self> {
        let (commands, inbox) = mpsc::channel(WAITING_MAX);
        let desk = Desk {
            shelf,
            shared,
            held: Vec::new(),
        };
        let thread = std::thread::Builder::new()
            .name("onceward-writer".into())
            .spawn(move || desk.run(inbox))?;
        Ok(Self {
            commands: Some(commands),
            thread: Some(thread),
        })
    }

    /// Sends a command and waits for its answer.
    pub(super) async fn ask<T>(
        &self,
        command: impl FnOnce(Answer<T>) -> Command,
    ) -> Result<T, StoreError> {
        let (answer, answered) = oneshot::channel();
        let commands = self.commands.as_ref().ok_or(Fault::Closed)?;
        let sent = commands.send(command(answer)).await;
        sent.map_err(|_| Fault::Closed)?;
        answered.await.map_err(|_| Fault::Closed)?
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.commands = None;
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the embedded store's writer had panicked");
        }
    }
}

/// The writer's own things.
struct Desk {
    shelf: Shelf,
    shared: Arc<Shared>,
    held: Vec<Box<dyn Held>>,
}

impl Desk {
    fn run(mut self, mut inbox: mpsc::Receiver<Command>) {
        let mut batch = Vec::with_capacity(BATCH_MAX);
        while inbox.blocking_recv_many(&mut batch, BATCH_MAX) > 0 {
            for command in batch.drain(..) {
                self.perform(command);
            }
            self.commit();
            self.shorten_log();
        }
        self.close();
    }

    fn perform(&mut self, command: Command) {
        match command {
            Command::Claim(ask, to) => self.step(to, |shelf| shelf.claim(&ask)),
            Command::Withdraw(digest, attempt, to) => {
                self.step(to, |shelf| shelf.withdraw(digest, attempt));
            }
            Command::Renew(digest, fence, to) => {
                self.step(to, |shelf| shelf.renew(digest, fence));
            }
            Command::Settle(digest, fence, settlement, reply, to) => self.step(to, |shelf| {
                shelf.settle(digest, fence, &settlement, reply.as_deref())
            }),
            Command::Get(wanted, to) => self.step(to, |shelf| shelf.get(wanted)),
            Command::Show(id, to) => self.step(to, |shelf| shelf.show(id)),
            Command::Touch(digest, to) => self.step(to, |shelf| shelf.touch(digest)),
            Command::Enqueue(ask, request, after, to) => {
                self.step(to, |shelf| shelf.enqueue(&ask, &request, after));
            }
            Command::Due(limit, to) => self.step(to, |shelf| shelf.due(limit)),
            Command::NextDue(to) => self.step(to, |shelf| Ok(shelf.next_due())),
            Command::Purge(id, force, to) => self.step(to, |shelf| shelf.purge(id, force)),
            Command::Resolve(id, fence, word, reply, to) => {
                self.step(to, |shelf| {
                    shelf.resolve(id, fence, &word, reply.as_deref())
                });
            }
            Command::Resume(id, to) => self.step(to, |shelf| shelf.resume(id)),
            Command::Redeliver(id, to) => self.step(to, |shelf| shelf.redeliver(id)),
            Command::Put(sheet, name, document, to) => {
                self.step(to, |shelf| shelf.put_document(sheet, &name, &document));
            }
            Command::Add(sheet, name, document, to) => {
                self.step(to, |shelf| shelf.add_document(sheet, &name, &document));
            }
            Command::Remove(sheet, name, to) => {
                self.step(to, |shelf| shelf.remove_document(sheet, &name));
            }
            Command::Sweep(limit, to) => self.step(to, |shelf| shelf.sweep(limit)),
            Command::Stats(to) => self.step(to, |shelf| Ok(shelf.stats())),
        }
    }

    /// Takes one step, and answers it now or with the commit.
    fn step<T: Send + 'static>(&mut self, to: Answer<T>, take: impl FnOnce(&mut Shelf) -> Step<T>) {
        if let Err(fault) = self.shared.check() {
            return tell(to, Err(fault));
        }
        self.shelf.begin_step();
        match take(&mut self.shelf) {
            Ok(value) if self.shelf.is_unsettled() => {
                self.held.push(Box::new(Waiting { to, value }));
            }
            Ok(value) => tell(to, Ok(value)),
            Err(fault) if fault.spoils_transaction() => {
                self.shelf.roll_back();
                let fault = self.fail(fault);
                tell(to, Err(Fault::RolledBack(fault)));
            }
            Err(fault) => tell(to, Err(fault)),
        }
    }

    fn commit(&mut self) {
        match self.shelf.commit() {
            Ok(()) => self.held.drain(..).for_each(|held| held.tell(None)),
            Err(fault) => {
                self.fail(fault);
            }
        }
    }

    fn shorten_log(&self) {
        if let Err(fault) = self.shelf.ledger.shorten_log() {
            self.shared.report_checkpoint(fault);
        }
    }

    fn close(self) {
        // What could not be synced once is left for the next start to judge.
        if self.shared.check().is_ok()
            && let Err(fault) = self.shelf.close()
        {
            self.shared.report_checkpoint(fault);
        }
    }

    /// The transaction is rolled back: says so to all who wait for it.
    fn fail(&mut self, fault: Fault) -> Arc<Fault> {
        tracing::error!(%fault, steps = self.held.len(), "the embedded store rolled back a transaction");
        let fault = Arc::new(fault);
        if fault.is_final() {
            self.shared.fail(fault.clone());
        }
        for held in self.held.drain(..) {
            held.tell(Some(&fault));
        }
        fault
    }
}

/// An answer that waits for the commit.
trait Held: Send {
    fn tell(self: Box<Self>, fault: Option<&Arc<Fault>>);
}

struct Waiting<T> {
    to: Answer<T>,
    value: T,
}

impl<T: Send> Held for Waiting<T> {
    fn tell(self: Box<Self>, fault: Option<&Arc<Fault>>) {
        match fault {
            None => tell(self.to, Ok(self.value)),
            Some(fault) => tell(self.to, Err(Fault::RolledBack(fault.clone()))),
        }
    }
}

fn tell<T>(to: Answer<T>, result: Step<T>) {
    // Whoever asked may have gone; what was done stays done.
    let _ = to.send(result.map_err(StoreError::from));
}
