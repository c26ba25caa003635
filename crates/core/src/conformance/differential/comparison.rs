//! Takes each step of a script on the model and on the store under test.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use super::super::trial::{LEASE, REMEMBER, Trial, fingerprint};
use super::Restart;
use super::equality::{Compared, Equality, differ, same, without_fence};
use super::script::{FilterChoice, KEYS, OutcomeChoice, Step, Target, TermsChoice, identity_of};
use crate::clock::{Clock as _, ManualClock};
use crate::identity::{Digest, OperationId};
use crate::memory::MemoryStore;
use crate::record::{Answer, Attempt, Fence, Record, Settlement};
use crate::store::{
    ClaimRequest, Cursor, Enqueued, Filter, Grant, Page, PageRequest, Stats, StoreError,
};

/// Both stores, and what the actors remember.
pub(super) struct Comparison {
    clock: Arc<ManualClock>,
    model: Trial,
    subject: Trial,
    /// The actors, in the order in which the script claimed, enqueued or took work.
    holders: Vec<Holder>,
    equality: Equality,
    order: DueOrder,
}

/// What an actor remembers of its claim, its enqueueing or the work that it took.
#[derive(Clone)]
struct Holder {
    ask: ClaimRequest,
    id: OperationId,
    /// The fence by the model, and by the store under test.
    fence: Option<(Fence, Fence)>,
    life: Life,
}

/// Whether the actor still runs.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Life {
    Alive,
    /// A restart ended its process.
    Ended,
}

/// Whether the order of due work, and so of listings, is determined.
#[derive(Clone, Copy, PartialEq, Eq)]
enum DueOrder {
    Promised,
    /// It is not: a restart made several operations due at the same moment.
    Random,
}

impl Comparison {
    /// Compares `subject` with the model.
    pub(super) fn new(model: Arc<MemoryStore>, subject: Trial, clock: Arc<ManualClock>) -> Self {
        Self {
            model: Trial::new(model, clock.clone()),
            subject,
            clock,
            holders: Vec::new(),
            equality: Equality::default(),
            order: DueOrder::Promised,
        }
    }

    /// Closes and opens the store under test, unless it forgets.
    pub(super) async fn reopen<Open>(&mut self, model: &MemoryStore, restart: Restart, open: &Open)
    where
        Open: AsyncFn(Arc<ManualClock>) -> Trial,
    {
        if restart == Restart::Forgets {
            return;
        }
        // The field needs a value while the store is closed: the model.
        drop(std::mem::replace(&mut self.subject, self.model.clone()));
        self.subject = open(self.clock.clone()).await;
        if restart == Restart::EndsLeases {
            model.end_leases();
            self.order = DueOrder::Random;
            for holder in &mut self.holders {
                holder.life = Life::Ended;
            }
        }
    }

    /// Takes a step on both stores.
    pub(super) async fn take(&mut self, step: &Step) -> Compared {
        match *step {
            Step::Claim {
                key,
                request,
                choices,
            } => {
                let holder = self.add_holder(key, request, choices);
                self.claim(holder).await
            }
            Step::ClaimAgain { holder } => self.claim(holder).await,
            Step::Withdraw { holder } => self.withdraw(holder).await,
            Step::Renew { holder } => self.renew(holder).await,
            Step::Settle { holder, outcome } => self.settle(holder, outcome).await,
            Step::Find { holder } => self.find(holder).await,
            Step::Show { holder } => self.show(holder).await,
            Step::Touch { key } => {
                let digest = identity_of(key).digest();
                answer(self.model.store.touch(&digest).await);
                answer(self.subject.store.touch(&digest).await);
                Ok(())
            }
            Step::Enqueue {
                key,
                request,
                choices,
                delay,
            } => {
                let holder = self.add_holder(key, request, choices);
                self.enqueue(holder, delay).await
            }
            Step::EnqueueAgain { holder, delay } => self.enqueue(holder, delay).await,
            Step::Due { limit } => self.due(limit).await,
            Step::List { choice, limit } => self.list(choice, limit).await,
            Step::Purge { target, force } => {
                let id = self.id_of(target).await;
                let model = self.model.inspect.purge(id, force).await;
                let subject = self.subject.inspect.purge(id, force).await;
                same("purge", &answer(model), &answer(subject))
            }
            Step::Resolve { target, outcome } => {
                let id = self.id_of(target).await;
                let model = self
                    .model
                    .inspect
                    .resolve(id, None, outcome.resolution())
                    .await;
                let subject = self
                    .subject
                    .inspect
                    .resolve(id, None, outcome.resolution())
                    .await;
                same("resolve", &answer(model), &answer(subject))
            }
            Step::Resume { target } => {
                let id = self.id_of(target).await;
                let model = self.model.inspect.resume(id).await;
                let subject = self.subject.inspect.resume(id).await;
                same("resume", &answer(model), &answer(subject))
            }
            Step::Redeliver { target } => {
                let id = self.id_of(target).await;
                let model = self.model.inspect.redeliver(id).await;
                let subject = self.subject.inspect.redeliver(id).await;
                same("redeliver", &answer(model), &answer(subject))
            }
            Step::Sweep { limit } => {
                self.sweep(limit).await;
                Ok(())
            }
            Step::Advance { span } => {
                self.clock.advance(span);
                Ok(())
            }
            Step::Look => self.compare_everything().await,
            Step::Reopen => Ok(()),
        }
    }

    /// Adds an actor, and returns its number.
    fn add_holder(&mut self, key: usize, request: u8, choices: TermsChoice) -> usize {
        let number = self.holders.len();
        let identity = identity_of(key);
        let digest = identity.digest();
        let id = OperationId::new(&digest, number as u64);
        let ask = ClaimRequest {
            digest,
            identity,
            fingerprint: fingerprint(request),
            terms: choices.terms(LEASE + offset(key)),
            attempt: Attempt(number as u128),
            id,
        };
        self.holders.push(Holder {
            ask,
            id,
            fence: None,
            life: Life::Alive,
        });
        number
    }

    /// The holder with this number, if it still runs.
    fn alive(&self, holder: usize) -> Option<Holder> {
        let holder = self.holders.get(holder)?;
        (holder.life == Life::Alive).then(|| holder.clone())
    }

    async fn claim(&mut self, number: usize) -> Compared {
        let Some(holder) = self.alive(number) else {
            return Ok(());
        };
        let model = self.model.claim(&holder.ask).await;
        let subject = self.subject.claim(&holder.ask).await;
        if let Some(granted) = self.equality.same_claim(&model, &subject)? {
            self.granted(number, granted);
        }
        Ok(())
    }

    async fn withdraw(&mut self, number: usize) -> Compared {
        if let Some(holder) = self.alive(number) {
            self.model.withdraw(&holder.ask).await;
            self.subject.withdraw(&holder.ask).await;
        }
        Ok(())
    }

    async fn renew(&mut self, number: usize) -> Compared {
        let Some((model, subject)) = self.grants(number) else {
            return Ok(());
        };
        same(
            "renew",
            &self.model.renew(&model).await,
            &self.subject.renew(&subject).await,
        )
    }

    async fn settle(&mut self, number: usize, outcome: OutcomeChoice) -> Compared {
        let Some((model, subject)) = self.grants(number) else {
            return Ok(());
        };
        let mut settlement = outcome.settlement(number);
        if let Settlement::Requeued { after } | Settlement::Deferred { after } = &mut settlement {
            *after += offset(key_of(&model.digest));
        }
        let settled = self.model.settle(&model, settlement.clone()).await;
        same(
            "settle",
            &settled,
            &self.subject.settle(&subject, settlement).await,
        )
    }

    async fn find(&mut self, number: usize) -> Compared {
        let Some(id) = self.holders.get(number).map(|holder| holder.id) else {
            return Ok(());
        };
        let model = self.model.find(id).await;
        let subject = self.subject.find(id).await;
        self.equality
            .same_record("find", model.as_deref(), subject.as_deref())
    }

    async fn show(&mut self, number: usize) -> Compared {
        let Some(id) = self.holders.get(number).map(|holder| holder.id) else {
            return Ok(());
        };
        let model = answer(self.model.inspect.show(id).await);
        let subject = answer(self.subject.inspect.show(id).await);
        self.equality
            .same_record("show", model.as_deref(), subject.as_deref())
    }

    /// Sweeps only where the result is determined. A store may sweep lazily expired
    /// operations in any order and at any time; only when all of them are long
    /// overdue does every store remove all of them.
    async fn sweep(&self, limit: usize) {
        let now = self.clock.now();
        let slack = REMEMBER / 4;
        let mut overdue = Vec::new();
        for key in 0..KEYS {
            let record = answer(self.model.store.get(&identity_of(key).digest()).await);
            overdue.extend(record.filter(|record| record.is_overdue(now)));
        }
        let is_long_past = |record: &Arc<Record>| {
            let ends = [record.expires_at(), record.over_at()];
            let mut past = ends.into_iter().flatten().filter(|end| *end <= now);
            past.all(|end| now.since(end) > slack)
        };
        if !overdue.iter().all(is_long_past) {
            return;
        }
        let limit = if overdue.is_empty() {
            limit
        } else {
            usize::MAX
        };
        answer(self.model.inspect.sweep(limit).await);
        answer(self.subject.inspect.sweep(limit).await);
    }

    async fn enqueue(&mut self, number: usize, delay: Duration) -> Compared {
        let Some(Holder { ask, .. }) = self.alive(number) else {
            return Ok(());
        };
        let delay = delay + offset(key_of(&ask.digest));
        let request = Bytes::from(format!("request {number}"));
        let model = answer(self.model.queue.enqueue(&ask, request.clone(), delay).await);
        let subject = answer(self.subject.queue.enqueue(&ask, request, delay).await);
        match (&model, &subject) {
            (Enqueued::Accepted(model), Enqueued::Accepted(subject)) => {
                same("enqueue", model, subject)
            }
            (Enqueued::Known(model), Enqueued::Known(subject)) => {
                self.equality.same_claim(model, subject).map(drop)
            }
            _ => differ("enqueue", &model, &subject),
        }
    }

    /// Each delivery that is granted gets a holder. Where the order is random, both
    /// stores grant all due work, so that the same operations are compared.
    async fn due(&mut self, limit: usize) -> Compared {
        let asked = match self.order {
            DueOrder::Promised => limit,
            DueOrder::Random => KEYS,
        };
        let mut model = answer(self.model.queue.due(asked).await);
        let mut subject = answer(self.subject.queue.due(asked).await);
        if self.order == DueOrder::Random {
            model.sort_by_key(|due| due.grant.digest);
            subject.sort_by_key(|due| due.grant.digest);
        }
        same("due", &model.len(), &subject.len())?;
        let first = self.holders.len();
        for _ in 0..limit {
            // Without a grant until one of the deliveries below fills it.
            self.add_holder(0, 1, TermsChoice::PLAIN);
        }
        for (number, (model, subject)) in model.iter().zip(&subject).enumerate() {
            same("due request", &model.request, &subject.request)?;
            self.equality
                .same_record("due", Some(&model.record), Some(&subject.record))?;
            let granted = self.equality.same_grant(&model.grant, &subject.grant)?;
            if number < limit {
                self.granted(first + number, granted);
            }
        }
        Ok(())
    }

    async fn list(&mut self, choice: FilterChoice, limit: usize) -> Compared {
        let filter = choice.filter(self.clock.now());
        let mut model = pages(&self.model, &filter, limit).await;
        let mut subject = pages(&self.subject, &filter, limit).await;
        if self.order == DueOrder::Random {
            model.sort_by_key(|record| record.id);
            subject.sort_by_key(|record| record.id);
        }
        let listed = |records: &[Record]| -> Vec<_> { records.iter().map(without_fence).collect() };
        same("list", &listed(&model), &listed(&subject))
    }

    /// Compares every answer that changes nothing.
    pub(super) async fn compare_everything(&mut self) -> Compared {
        for key in 0..KEYS {
            let digest = identity_of(key).digest();
            let model = answer(self.model.store.get(&digest).await);
            let subject = answer(self.subject.store.get(&digest).await);
            self.equality
                .same_record("get", model.as_deref(), subject.as_deref())?;
        }
        let model = answer(self.model.queue.next_due().await);
        same(
            "next_due",
            &model,
            &answer(self.subject.queue.next_due().await),
        )?;
        let (model, subject) = (self.model.stats().await, self.subject.stats().await);
        // Each store occupies its own number of bytes, and may count operations that
        // are over until it reclaims their space.
        let counted = |stats| Stats {
            bytes: 0,
            operations: subject.operations.max(model.operations),
            ..stats
        };
        same(
            "stats",
            &counted(model),
            &Stats {
                bytes: 0,
                ..subject
            },
        )
    }

    /// The id of an operation, or an unused id.
    async fn id_of(&self, target: Target) -> OperationId {
        let key = match target {
            Target::OnRecord(key) => key,
            Target::Of(holder) => return self.holders[holder].id,
        };
        let digest = identity_of(key).digest();
        let record = answer(self.model.store.get(&digest).await);
        record.map_or(OperationId::new(&digest, u64::MAX), |record| record.id)
    }

    /// The holder's grant in both stores, if it has one and still runs.
    fn grants(&self, number: usize) -> Option<(Grant, Grant)> {
        let holder = self.alive(number)?;
        let (model, subject) = holder.fence?;
        let grant = |fence| Grant {
            digest: holder.ask.digest,
            id: holder.id,
            fence,
        };
        Some((grant(model), grant(subject)))
    }

    fn granted(&mut self, number: usize, (model, subject): (Grant, Grant)) {
        if let Some(holder) = self.holders.get_mut(number) {
            // Due work may have any key: its holder continues with that key.
            holder.ask.digest = model.digest;
            holder.ask.identity = identity_of(key_of(&model.digest));
            holder.ask.id = OperationId::new(&model.digest, number as u64);
            holder.id = model.id;
            holder.fence = Some((model.fence, subject.fence));
        }
    }
}

/// All pages of a listing, without the bodies of replies: no store promises them.
async fn pages(trial: &Trial, filter: &Filter, limit: usize) -> Vec<Record> {
    let mut records = Vec::new();
    let mut after: Option<Cursor> = None;
    loop {
        let Page {
            records: page,
            next,
        } = answer(
            trial
                .inspect
                .list(filter, PageRequest::first(limit).after(after))
                .await,
        );
        records.extend(page.iter().map(|record| Record {
            answer: record.answer.as_ref().map(|answer| Answer::Gone {
                status: answer.status(),
            }),
            ..Record::clone(record)
        }));
        after = next;
        if after.is_none() {
            return records;
        }
    }
}

/// Added to the lease and to delays of a key, so that its times differ from those of
/// other keys.
pub(super) fn offset(key: usize) -> Duration {
    Duration::from_millis(key as u64 + 1)
}

fn key_of(digest: &Digest) -> usize {
    let mut keys = 0..KEYS;
    keys.find(|key| identity_of(*key).digest() == *digest)
        .unwrap_or(KEYS)
}

fn answer<T>(answer: Result<T, StoreError>) -> T {
    answer.expect("the store answers")
}
