//! The differential test: the same random steps, by several actors over few
//! keys under one manual clock, on the store under test and on the memory
//! store, which is the model. Every answer must be the same.
//!
//! Fences are compared by rank within a key, because a store numbers them as
//! it likes; ids are equal because the asks carry them. What no promise speaks
//! of is not compared: how many operations a sweep took, the bytes that are
//! occupied, the reply's body in listings.
//!
//! A failing run prints its seed and the shortest script that still fails.
//! To run it again: `PROPTEST_RNG_SEED={seed} cargo test {the test's name}`.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use proptest::test_runner::{Config, RngSeed, TestCaseError, TestError, TestRunner};
use proptest_state_machine::ReferenceStateMachine as _;

use super::script::{Choice, Choices, KEYS, Script, Step, Word, identity_of};
use super::trial::{LEASE, REMEMBER, Trial, fingerprint, told};
use crate::clock::{Clock as _, ManualClock, Timestamp};
use crate::identity::{Digest, OperationId};
use crate::memory::MemoryStore;
use crate::record::{Answer, Attempt, Fence, Record, Settlement, State};
use crate::store::{
    Claim, ClaimRequest, Cursor, Enqueued, Filter, Grant, Page, PageRequest, Stats, StoreError,
};

/// How many steps a script has at most.
const STEPS_MAX: usize = 100;
/// How many runs the search for a shorter script may take.
const SHRINK_MAX: u32 = 2_000;

/// Every step takes this long. Leases and delays differ by key by less, so no
/// two things are ever due at the same moment, whose order is not promised.
const TICK: Duration = Duration::from_millis(16);

/// What closing and opening the store under test does to leases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Restart {
    /// The store does not outlive its handle: it is never opened again.
    Forgets,
    /// Nothing: the store is shared by processes, and others may still run.
    KeepsLeases,
    /// They end at once: one process owns the store, so their holders are gone.
    EndsLeases,
}

/// Compares a store with the model over `cases` random scripts.
///
/// `make` gives, per case, what opens the store: at first empty, and later,
/// unless it [`Forgets`](Restart::Forgets), with what it held. Every handle on
/// the store is dropped before it is opened again.
///
/// # Panics
///
/// At the first difference, with the seed and the shortest script found.
pub fn differential<Open>(cases: u32, restart: Restart, make: impl Fn() -> Open)
where
    Open: AsyncFn(Arc<ManualClock>) -> Trial,
{
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime can be made");
    let (config, seed) = config(cases);
    let script = Script::sequential_strategy(1..=STEPS_MAX);
    let outcome = TestRunner::new(config).run(&script, |(_, steps, seen)| {
        // Shrinking begins by leaving out steps that were not seen.
        if let Some(seen) = seen {
            seen.store(steps.len(), Ordering::SeqCst);
        }
        runtime.block_on(play(&steps, restart, make()))
    });
    match outcome {
        Ok(()) => {}
        Err(TestError::Abort(why)) => panic!("the scripts could not be made: {why}"),
        Err(TestError::Fail(why, (_, steps, _))) => panic!(
            "the stores differ: {why}\nshortest script: {steps:#?}\n\
             run it again with PROPTEST_RNG_SEED={seed}"
        ),
    }
}

/// A seed is always chosen here, or taken from the environment, so that it
/// can be told.
#[expect(
    clippy::disallowed_methods,
    reason = "tests draw their seed and tell it"
)]
fn config(cases: u32) -> (Config, u64) {
    let default = Config::default();
    let seed = match default.rng_seed {
        RngSeed::Fixed(seed) => seed,
        RngSeed::Random => getrandom::u64().expect("the system has randomness"),
    };
    let config = Config {
        cases,
        rng_seed: RngSeed::Fixed(seed),
        failure_persistence: None,
        max_shrink_iters: SHRINK_MAX,
        ..default
    };
    (config, seed)
}

type Compared = Result<(), TestCaseError>;

async fn play<Open>(steps: &[Step], restart: Restart, open: Open) -> Compared
where
    Open: AsyncFn(Arc<ManualClock>) -> Trial,
{
    let clock = Arc::new(ManualClock::new(Timestamp::from_unix_ms(1_600_000_000_000)));
    let model = Arc::new(MemoryStore::new(clock.clone()));
    let subject = open(clock.clone()).await;
    let mut comparison = Comparison {
        model: Trial::new(model.clone(), clock.clone()),
        subject,
        clock,
        holds: Vec::new(),
        ranks: HashMap::new(),
        order: DueOrder::Promised,
    };
    for (number, step) in steps.iter().enumerate() {
        comparison.clock.advance(TICK);
        if matches!(step, Step::Reopen) {
            comparison.reopen(&model, restart, &open).await;
        }
        let verdict = comparison.take(step).await;
        verdict.map_err(|why| TestCaseError::fail(format!("step {number}, {step:?}: {why}")))?;
    }
    comparison.look().await
}

/// Both stores, and what the actors remember.
struct Comparison {
    clock: Arc<ManualClock>,
    model: Trial,
    subject: Trial,
    /// What was claimed, enqueued or given, in the order of the script.
    holds: Vec<Hold>,
    ranks: HashMap<Digest, Ranks>,
    order: DueOrder,
}

/// What an actor remembers of something it asked for.
#[derive(Clone)]
struct Hold {
    ask: ClaimRequest,
    id: OperationId,
    /// The fence by the model, and by the store under test.
    fence: Option<(Fence, Fence)>,
    life: Life,
}

/// Whether the actor is still there.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Life {
    Alive,
    /// It died with the process that a restart ended.
    Gone,
}

/// Whether the order of what is due, and so of listings, is determined.
#[derive(Clone, Copy, PartialEq, Eq)]
enum DueOrder {
    Promised,
    /// A restart made several pieces of work due at the same moment.
    Chance,
}

impl Comparison {
    async fn reopen<Open>(&mut self, model: &MemoryStore, restart: Restart, open: &Open)
    where
        Open: AsyncFn(Arc<ManualClock>) -> Trial,
    {
        if restart == Restart::Forgets {
            return;
        }
        // The model stands in while the store is closed.
        drop(std::mem::replace(&mut self.subject, self.model.clone()));
        self.subject = open(self.clock.clone()).await;
        if restart == Restart::EndsLeases {
            model.end_leases();
            self.order = DueOrder::Chance;
            for hold in &mut self.holds {
                hold.life = Life::Gone;
            }
        }
    }

    async fn take(&mut self, step: &Step) -> Compared {
        match *step {
            Step::Claim {
                key,
                request,
                choices,
            } => {
                let hold = self.hold(key, request, choices);
                self.claim(hold).await
            }
            Step::ClaimAgain { hold } => self.claim(hold).await,
            Step::Withdraw { hold } => self.withdraw(hold).await,
            Step::Renew { hold } => self.renew(hold).await,
            Step::Settle { hold, word } => self.settle(hold, word).await,
            Step::Find { hold } => self.find(hold).await,
            Step::Show { hold } => self.show(hold).await,
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
                let hold = self.hold(key, request, choices);
                self.enqueue(hold, delay).await
            }
            Step::EnqueueAgain { hold, delay } => self.enqueue(hold, delay).await,
            Step::Due { limit } => self.due(limit).await,
            Step::List { choice, limit } => self.list(choice, limit).await,
            Step::Purge { key, force } => {
                let id = self.id_of(key).await;
                let model = self.model.inspect.purge(id, force).await;
                let subject = self.subject.inspect.purge(id, force).await;
                same("purge", &answer(model), &answer(subject))
            }
            Step::Resolve { key, word } => {
                let id = self.id_of(key).await;
                let model = self
                    .model
                    .inspect
                    .resolve(id, None, word.resolution())
                    .await;
                let subject = self
                    .subject
                    .inspect
                    .resolve(id, None, word.resolution())
                    .await;
                same("resolve", &answer(model), &answer(subject))
            }
            Step::Resume { key } => {
                let id = self.id_of(key).await;
                let model = self.model.inspect.resume(id).await;
                let subject = self.subject.inspect.resume(id).await;
                same("resume", &answer(model), &answer(subject))
            }
            Step::Redeliver { key } => {
                let id = self.id_of(key).await;
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
            Step::Look => self.look().await,
            Step::Reopen => Ok(()),
        }
    }

    /// A new actor asks for something; its place among the holds.
    fn hold(&mut self, key: usize, request: u8, choices: Choices) -> usize {
        let number = self.holds.len();
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
        self.holds.push(Hold {
            ask,
            id,
            fence: None,
            life: Life::Alive,
        });
        number
    }

    /// The actor of this hold, if it can still speak.
    fn alive(&self, hold: usize) -> Option<Hold> {
        let hold = self.holds.get(hold)?;
        (hold.life == Life::Alive).then(|| hold.clone())
    }

    async fn claim(&mut self, number: usize) -> Compared {
        let Some(hold) = self.alive(number) else {
            return Ok(());
        };
        let model = self.model.claim(&hold.ask).await;
        let subject = self.subject.claim(&hold.ask).await;
        if let Some(granted) = self.same_claim(&model, &subject)? {
            self.granted(number, granted);
        }
        Ok(())
    }

    async fn withdraw(&mut self, number: usize) -> Compared {
        if let Some(hold) = self.alive(number) {
            self.model.withdraw(&hold.ask).await;
            self.subject.withdraw(&hold.ask).await;
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

    async fn settle(&mut self, number: usize, word: Word) -> Compared {
        let Some((model, subject)) = self.grants(number) else {
            return Ok(());
        };
        let mut settlement = word.settlement(number);
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
        let Some(id) = self.holds.get(number).map(|hold| hold.id) else {
            return Ok(());
        };
        let model = self.model.find(id).await;
        let subject = self.subject.find(id).await;
        self.same_record("find", model.as_deref(), subject.as_deref())
    }

    async fn show(&mut self, number: usize) -> Compared {
        let Some(id) = self.holds.get(number).map(|hold| hold.id) else {
            return Ok(());
        };
        let model = answer(self.model.inspect.show(id).await);
        let subject = answer(self.subject.inspect.show(id).await);
        self.same_record("show", model.as_deref(), subject.as_deref())
    }

    /// Of what expires lazily each store takes what it likes, when it likes;
    /// only all of it, long after its time, is taken by every one.
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
        let Some(Hold { ask, .. }) = self.alive(number) else {
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
                self.same_claim(model, subject).map(drop)
            }
            _ => differ("enqueue", &model, &subject),
        }
    }

    /// Work that is due becomes a hold of its deliverer. Where the order is random,
    /// everything that is due is taken.
    async fn due(&mut self, limit: usize) -> Compared {
        let asked = match self.order {
            DueOrder::Promised => limit,
            DueOrder::Chance => KEYS,
        };
        let mut model = answer(self.model.queue.due(asked).await);
        let mut subject = answer(self.subject.queue.due(asked).await);
        if self.order == DueOrder::Chance {
            model.sort_by_key(|due| due.grant.digest);
            subject.sort_by_key(|due| due.grant.digest);
        }
        same("due", &model.len(), &subject.len())?;
        let first = self.holds.len();
        for _ in 0..limit {
            // A claim without a holder, until something due takes the place.
            self.hold(0, 1, Choices::PLAIN);
        }
        for (number, (model, subject)) in model.iter().zip(&subject).enumerate() {
            same("due request", &model.request, &subject.request)?;
            self.same_record("due", Some(&model.record), Some(&subject.record))?;
            let granted = self.same_grant(&model.grant, &subject.grant)?;
            if number < limit {
                self.granted(first + number, granted);
            }
        }
        Ok(())
    }

    async fn list(&mut self, choice: Choice, limit: usize) -> Compared {
        let filter = choice.filter(self.clock.now());
        let mut model = pages(&self.model, &filter, limit).await;
        let mut subject = pages(&self.subject, &filter, limit).await;
        if self.order == DueOrder::Chance {
            model.sort_by_key(|record| record.id);
            subject.sort_by_key(|record| record.id);
        }
        let listed = |records: &[Record]| -> Vec<_> { records.iter().map(compared).collect() };
        same("list", &listed(&model), &listed(&subject))
    }

    /// Compares all that can be asked without changing anything.
    async fn look(&mut self) -> Compared {
        for key in 0..KEYS {
            let digest = identity_of(key).digest();
            let model = answer(self.model.store.get(&digest).await);
            let subject = answer(self.subject.store.get(&digest).await);
            self.same_record("get", model.as_deref(), subject.as_deref())?;
        }
        let model = answer(self.model.queue.next_due().await);
        same(
            "next_due",
            &model,
            &answer(self.subject.queue.next_due().await),
        )?;
        let (model, subject) = (self.model.stats().await, self.subject.stats().await);
        // Bytes are a store's own; what is over may count for longer than here.
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

    /// The id of what is on record under this key; else an unused one.
    async fn id_of(&self, key: usize) -> OperationId {
        let digest = identity_of(key).digest();
        let record = answer(self.model.store.get(&digest).await);
        record.map_or(OperationId::new(&digest, u64::MAX), |record| record.id)
    }

    /// The hold's grant in both stores, if it was granted and can still speak.
    fn grants(&self, number: usize) -> Option<(Grant, Grant)> {
        let hold = self.alive(number)?;
        let (model, subject) = hold.fence?;
        let grant = |fence| Grant {
            digest: hold.ask.digest,
            id: hold.id,
            fence,
        };
        Some((grant(model), grant(subject)))
    }

    fn granted(&mut self, number: usize, (model, subject): (Grant, Grant)) {
        if let Some(hold) = self.holds.get_mut(number) {
            // The work that was due may have any key: its holder asks for that one.
            hold.ask.digest = model.digest;
            hold.ask.identity = identity_of(key_of(&model.digest));
            hold.ask.id = OperationId::new(&model.digest, number as u64);
            hold.id = model.id;
            hold.fence = Some((model.fence, subject.fence));
        }
    }

    /// Gives both grants where the claim was granted.
    fn same_claim(
        &mut self,
        model: &Claim,
        subject: &Claim,
    ) -> Result<Option<(Grant, Grant)>, TestCaseError> {
        if let (Claim::Granted(model), Claim::Granted(subject)) = (model, subject) {
            return self.same_grant(model, subject).map(Some);
        }
        let (model, seen_by_model) = told(model);
        let (subject, seen_by_subject) = told(subject);
        same("claim", &model, &subject)?;
        self.same_record(
            "claim",
            seen_by_model.as_deref(),
            seen_by_subject.as_deref(),
        )?;
        Ok(None)
    }

    fn same_grant(
        &mut self,
        model: &Grant,
        subject: &Grant,
    ) -> Result<(Grant, Grant), TestCaseError> {
        same(
            "grant",
            &(model.digest, model.id),
            &(subject.digest, subject.id),
        )?;
        self.same_rank(model.digest, model.fence, subject.fence)?;
        Ok((*model, *subject))
    }

    fn same_record(
        &mut self,
        what: &str,
        model: Option<&Record>,
        subject: Option<&Record>,
    ) -> Compared {
        same(what, &model.map(compared), &subject.map(compared))?;
        match (model, subject) {
            // What is queued may never have been granted.
            (Some(model), Some(subject)) if model.state != State::Queued => {
                self.same_rank(model.digest, model.fence, subject.fence)
            }
            _ => Ok(()),
        }
    }

    fn same_rank(&mut self, digest: Digest, model: Fence, subject: Fence) -> Compared {
        let ranks = self.ranks.entry(digest).or_default();
        if ranks.agree(model, subject) {
            Ok(())
        } else {
            differ("the fence's rank", &model, &subject)
        }
    }
}

/// The fences of one key: the model's, and what they are called by the store
/// under test.
#[derive(Default)]
struct Ranks(BTreeMap<Fence, Fence>);

impl Ranks {
    /// Whether both numbers have the same place among all that were seen.
    fn agree(&mut self, model: Fence, subject: Fence) -> bool {
        let called = *self.0.entry(model).or_insert(subject);
        let below = self.0.range(..model).next_back();
        let above = self.0.range(model..).nth(1);
        called == subject
            && below.is_none_or(|(_, below)| *below < subject)
            && above.is_none_or(|(_, above)| *above > subject)
    }
}

/// The record without what only means something in other states, and without
/// its fence, which is compared by rank.
fn compared(record: &Record) -> Record {
    let mut record = record.clone();
    record.fence = Fence(0);
    if !matches!(
        record.state,
        State::Running | State::Queued | State::Released
    ) {
        record.until = Timestamp::default();
    }
    if !matches!(record.state, State::Running | State::Unknown) {
        record.attempt = Attempt(0);
    }
    record
}

/// All pages of a listing. Bodies are not promised in it.
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
                .list(filter, PageRequest { limit, after })
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

/// What makes the times of one key differ from those of the others.
fn offset(key: usize) -> Duration {
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

fn same<T: PartialEq + Debug>(what: &str, model: &T, subject: &T) -> Compared {
    if model == subject {
        Ok(())
    } else {
        differ(what, model, subject)
    }
}

fn differ(what: &str, model: &impl Debug, subject: &impl Debug) -> Compared {
    Err(TestCaseError::fail(format!(
        "{what}\n  the model: {model:?}\n  the store: {subject:?}"
    )))
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    #[test]
    fn memory_is_like_itself() {
        differential(96, Restart::Forgets, || {
            async |clock: Arc<ManualClock>| {
                Trial::new(Arc::new(MemoryStore::new(clock.clone())), clock)
            }
        });
    }

    #[test]
    fn memory_that_restarts_is_like_the_model() {
        differential(96, Restart::EndsLeases, || {
            let kept: Mutex<Option<Arc<MemoryStore>>> = Mutex::default();
            async move |clock: Arc<ManualClock>| {
                let mut kept = kept.lock().expect("no panic");
                if let Some(store) = &*kept {
                    store.end_leases();
                }
                let store = kept.get_or_insert_with(|| Arc::new(MemoryStore::new(clock.clone())));
                Trial::new(store.clone(), clock)
            }
        });
    }

    #[test]
    fn store_that_forgets_is_found_out_and_the_seed_told() {
        let outcome = std::panic::catch_unwind(|| {
            differential(96, Restart::KeepsLeases, || {
                async |clock: Arc<ManualClock>| {
                    Trial::new(Arc::new(MemoryStore::new(clock.clone())), clock)
                }
            });
        });
        let words = outcome.expect_err("it differs");
        let words = words.downcast::<String>().expect("words");
        assert!(words.contains("the stores differ"), "{words}");
        assert!(words.contains("PROPTEST_RNG_SEED="), "{words}");
    }

    #[test]
    fn fences_agree_by_rank() {
        let mut ranks = Ranks::default();
        assert!(ranks.agree(Fence(5), Fence(50)));
        assert!(ranks.agree(Fence(9), Fence(51)));
        assert!(ranks.agree(Fence(5), Fence(50)), "the same again");
        assert!(!ranks.agree(Fence(9), Fence(50)), "another name");
        assert!(!ranks.agree(Fence(10), Fence(51)), "used again");
        let mut ranks = Ranks::default();
        assert!(ranks.agree(Fence(5), Fence(50)));
        assert!(!ranks.agree(Fence(6), Fence(49)), "it fell");
    }
}
