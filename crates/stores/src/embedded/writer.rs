//! The writer: one thread that owns the connection that writes.
//!
//! It runs all waiting commands, up to a limit, in one transaction, and answers
//! them when one sync has made them durable. Commands that arrive meanwhile wait
//! for the next transaction, so with more callers each costs less. A command that
//! depends on nothing uncommitted is answered at once.

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
use super::error::{Error, Result};
use super::steps::{Steps, SweepSlice};
use crate::lookup::Lookup;

/// The most commands in one transaction.
const BATCH_MAX: usize = 512;
/// The most commands that wait for the writer; further callers wait to enter.
const WAITING_MAX: usize = 4096;

/// The channel of an answer.
pub(super) type Responder<T> = oneshot::Sender<Result<T, StoreError>>;

/// A command for the writer. Replies are already encoded and requests sealed, so
/// that the one writer spends no time on that.
pub(super) enum Command {
    Claim(Box<ClaimRequest>, Responder<Claim>),
    Withdraw(Digest, Attempt, Responder<()>),
    Renew(Digest, Fence, Responder<Settled>),
    Settle(
        Digest,
        Fence,
        Settlement,
        Option<Vec<u8>>,
        Responder<Settled>,
    ),
    Get(Lookup, Responder<Option<Arc<Record>>>),
    Show(OperationId, Responder<Option<Arc<Record>>>),
    Touch(Digest, Responder<()>),
    Enqueue(Box<ClaimRequest>, Vec<u8>, Duration, Responder<Enqueued>),
    Due(usize, Responder<Vec<Due>>),
    NextDue(Responder<Option<Timestamp>>),
    Purge(OperationId, Force, Responder<Changed>),
    Resolve(
        OperationId,
        Option<Fence>,
        Resolution,
        Option<Vec<u8>>,
        Responder<Changed>,
    ),
    Resume(OperationId, Responder<Changed>),
    Redeliver(OperationId, Responder<Changed>),
    Put(Collection, String, Bytes, Responder<()>),
    Add(Collection, String, Bytes, Responder<Added>),
    Remove(Collection, String, Responder<()>),
    Sweep(usize, Responder<SweepSlice>),
    Stats(Responder<Stats>),
}

/// The way to the writer. Dropping it ends the writer, after what waits is done.
pub(super) struct Writer {
    commands: Option<mpsc::Sender<Command>>,
    thread: Option<JoinHandle<()>>,
}

impl Writer {
    /// Starts the thread.
    pub(super) fn start(steps: Steps, shared: Arc<Shared>) -> std::io::Result<Self> {
        let (commands, inbox) = mpsc::channel(WAITING_MAX);
        let thread_state = WriterThread {
            steps,
            shared,
            deferred: Vec::new(),
        };
        let thread = std::thread::Builder::new()
            .name("onceward-writer".into())
            .spawn(move || thread_state.run(inbox))?;
        Ok(Self {
            commands: Some(commands),
            thread: Some(thread),
        })
    }

    /// Sends a command and waits for its answer.
    pub(super) async fn ask<T>(
        &self,
        command: impl FnOnce(Responder<T>) -> Command,
    ) -> Result<T, StoreError> {
        let (answer, answered) = oneshot::channel();
        let commands = self.commands.as_ref().ok_or(Error::Closed)?;
        let sent = commands.send(command(answer)).await;
        sent.map_err(|_| Error::Closed)?;
        answered.await.map_err(|_| Error::Closed)?
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.commands = None;
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("writer thread of the embedded store panicked");
        }
    }
}

/// The state of the writer's thread.
struct WriterThread {
    steps: Steps,
    shared: Arc<Shared>,
    deferred: Vec<Box<dyn Deferred>>,
}

impl WriterThread {
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
            Command::Claim(ask, to) => self.step(to, |steps| steps.claim(&ask)),
            Command::Withdraw(digest, attempt, to) => {
                self.step(to, |steps| steps.withdraw(digest, attempt));
            }
            Command::Renew(digest, fence, to) => {
                self.step(to, |steps| steps.renew(digest, fence));
            }
            Command::Settle(digest, fence, settlement, reply, to) => self.step(to, |steps| {
                steps.settle(digest, fence, &settlement, reply.as_deref())
            }),
            Command::Get(lookup, to) => self.step(to, |steps| steps.get(lookup)),
            Command::Show(id, to) => self.step(to, |steps| steps.show(id)),
            Command::Touch(digest, to) => self.step(to, |steps| steps.touch(digest)),
            Command::Enqueue(ask, request, after, to) => {
                self.step(to, |steps| steps.enqueue(&ask, &request, after));
            }
            Command::Due(limit, to) => self.step(to, |steps| steps.due(limit)),
            Command::NextDue(to) => self.step(to, |steps| Ok(steps.next_due())),
            Command::Purge(id, force, to) => self.step(to, |steps| steps.purge(id, force)),
            Command::Resolve(id, fence, word, reply, to) => {
                self.step(to, |steps| {
                    steps.resolve(id, fence, &word, reply.as_deref())
                });
            }
            Command::Resume(id, to) => self.step(to, |steps| steps.resume(id)),
            Command::Redeliver(id, to) => self.step(to, |steps| steps.redeliver(id)),
            Command::Put(sheet, name, document, to) => {
                self.step(to, |steps| steps.put_document(sheet, &name, &document));
            }
            Command::Add(sheet, name, document, to) => {
                self.step(to, |steps| steps.add_document(sheet, &name, &document));
            }
            Command::Remove(sheet, name, to) => {
                self.step(to, |steps| steps.remove_document(sheet, &name));
            }
            Command::Sweep(limit, to) => self.step(to, |steps| steps.sweep(limit)),
            Command::Stats(to) => self.step(to, |steps| Ok(steps.stats())),
        }
    }

    /// Takes one step, and answers it now or with the commit.
    fn step<T: Send + 'static>(
        &mut self,
        to: Responder<T>,
        take: impl FnOnce(&mut Steps) -> Result<T>,
    ) {
        if let Err(error) = self.shared.check() {
            return respond(to, Err(error));
        }
        self.steps.begin_step();
        match take(&mut self.steps) {
            Ok(value) if self.steps.waits_for_commit() => {
                self.deferred.push(Box::new(DeferredAnswer { to, value }));
            }
            Ok(value) => respond(to, Ok(value)),
            Err(error) if error.spoils_transaction() => {
                self.steps.roll_back();
                let error = self.fail(error);
                respond(to, Err(Error::RolledBack(error)));
            }
            Err(error) => respond(to, Err(error)),
        }
    }

    fn commit(&mut self) {
        match self.steps.commit() {
            Ok(()) => self.deferred.drain(..).for_each(|answer| answer.send(None)),
            Err(error) => {
                self.fail(error);
            }
        }
    }

    fn shorten_log(&self) {
        if let Err(error) = self.steps.transaction.shorten_log() {
            self.shared.report_checkpoint(error);
        }
    }

    fn close(self) {
        // A transaction that could not be synced is left for the next start to
        // examine.
        if self.shared.check().is_ok()
            && let Err(error) = self.steps.close()
        {
            self.shared.report_checkpoint(error);
        }
    }

    /// The transaction is rolled back: answers all its waiters with the error.
    fn fail(&mut self, error: Error) -> Arc<Error> {
        tracing::error!(%error, steps = self.deferred.len(), "transaction of the embedded store rolled back; its steps failed");
        let error = Arc::new(error);
        if error.is_final() {
            self.shared.fail(error.clone());
        }
        for answer in self.deferred.drain(..) {
            answer.send(Some(&error));
        }
        error
    }
}

/// An answer that is sent once the commit has succeeded or failed.
trait Deferred: Send {
    fn send(self: Box<Self>, error: Option<&Arc<Error>>);
}

struct DeferredAnswer<T> {
    to: Responder<T>,
    value: T,
}

impl<T: Send> Deferred for DeferredAnswer<T> {
    fn send(self: Box<Self>, error: Option<&Arc<Error>>) {
        match error {
            None => respond(self.to, Ok(self.value)),
            Some(error) => respond(self.to, Err(Error::RolledBack(error.clone()))),
        }
    }
}

fn respond<T>(to: Responder<T>, result: Result<T>) {
    // The caller may have gone; the step stays done.
    let _ = to.send(result.map_err(StoreError::from));
}
