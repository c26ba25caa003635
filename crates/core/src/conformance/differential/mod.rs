//! The differential test: random steps of several actors over few keys, under
//! one manual clock, on the store under test and on the memory store, which is
//! the model. Every answer must be the same.
//!
//! - [`script`] draws the steps.
//! - [`comparison`] takes each step on both stores.
//! - [`equality`] defines when two answers are the same.
//!
//! A failing run prints its seed and the shortest script that still fails.
//! To run it again: `PROPTEST_RNG_SEED={seed} cargo test {the test's name}`.

mod comparison;
mod equality;
mod script;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use proptest::test_runner::{Config, RngSeed, TestCaseError, TestError, TestRunner};
use proptest_state_machine::ReferenceStateMachine as _;

use self::comparison::Comparison;
use self::equality::Compared;
use self::script::{Script, Step};
use super::trial::Trial;
use crate::clock::{ManualClock, Timestamp};
use crate::memory::MemoryStore;

/// The maximum number of steps in a script.
const STEPS_MAX: usize = 100;
/// The maximum number of runs in the search for a shorter script.
const SHRINK_MAX: u32 = 2_000;

/// Every step takes this long. It is longer than the largest
/// [`offset`](comparison::offset) of a key, so that no two operations are due at
/// the same moment: no store promises their order.
const TICK: Duration = Duration::from_millis(16);

/// The effect of a restart of the store under test on leases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Restart {
    /// The store does not outlive its handle: it is never opened again.
    Forgets,
    /// None: the store is shared by processes, and others may still run.
    KeepsLeases,
    /// They end at once: one process owns the store, so its restart ended every holder.
    EndsLeases,
}

/// Compares a store with the model over `cases` random scripts.
///
/// `make` returns, for each case, a function that opens the store: empty at
/// first, and later with its earlier content, unless the store
/// [`Forgets`](Restart::Forgets). Every handle of the store is dropped before it
/// is opened again.
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
        // Shrinking first removes the steps after the last one that ran.
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

/// The seed is always chosen here, or taken from the environment, so that a
/// failure can print it.
#[expect(
    clippy::disallowed_methods,
    reason = "tests draw their seed and print it"
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

async fn play<Open>(steps: &[Step], restart: Restart, open: Open) -> Compared
where
    Open: AsyncFn(Arc<ManualClock>) -> Trial,
{
    let clock = Arc::new(ManualClock::new(Timestamp::from_unix_ms(1_600_000_000_000)));
    let model = Arc::new(MemoryStore::new(clock.clone()));
    let subject = open(clock.clone()).await;
    let mut comparison = Comparison::new(model.clone(), subject, clock.clone());
    for (number, step) in steps.iter().enumerate() {
        clock.advance(TICK);
        if matches!(step, Step::Reopen) {
            comparison.reopen(&model, restart, &open).await;
        }
        let compared = comparison.take(step).await;
        compared.map_err(|why| TestCaseError::fail(format!("step {number}, {step:?}: {why}")))?;
    }
    comparison.compare_everything().await
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    #[test]
    fn memory_equals_the_model() {
        differential(96, Restart::Forgets, || {
            async |clock: Arc<ManualClock>| {
                Trial::new(Arc::new(MemoryStore::new(clock.clone())), clock)
            }
        });
    }

    #[test]
    fn memory_that_restarts_equals_the_model() {
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
    fn a_store_that_forgets_fails_and_the_seed_is_printed() {
        let outcome = std::panic::catch_unwind(|| {
            differential(96, Restart::KeepsLeases, || {
                async |clock: Arc<ManualClock>| {
                    Trial::new(Arc::new(MemoryStore::new(clock.clone())), clock)
                }
            });
        });
        let message = outcome.expect_err("it differs");
        let message = message.downcast::<String>().expect("a message");
        assert!(message.contains("the stores differ"), "{message}");
        assert!(message.contains("PROPTEST_RNG_SEED="), "{message}");
    }
}
