//! The promises of every store, one function each, and the [`differential`] test
//! against the memory store.
//!
//! A store's test creates a [`Trial`] and calls [`run_all`], which checks all
//! [`PROMISES`] and reports every broken one by its name. Each promise uses
//! operations of its own, so that all of them can be checked one after the other
//! on one store that is never emptied.
//!
//! ```no_run
//! # use std::sync::Arc;
//! # use onceward_core::clock::{ManualClock, Timestamp};
//! # use onceward_core::conformance::{Trial, run_all};
//! # use onceward_core::memory::MemoryStore;
//! # async fn test() {
//! run_all(async || {
//!     let clock = Arc::new(ManualClock::new(Timestamp::from_unix_ms(1_700_000_000_000)));
//!     Trial::new(Arc::new(MemoryStore::new(clock.clone())), clock)
//! })
//! .await;
//! # }
//! ```

use std::future::Future;
use std::pin::Pin;

pub mod claiming;
mod differential;
pub mod inspecting;
pub mod passing;
pub mod queueing;
pub mod registering;
pub mod settling;
mod trial;
pub mod waiting;

pub use differential::{Restart, differential};
pub use trial::{LEASE, REMEMBER, RETENTION, Trial};

/// Checks one promise of the store on trial. It panics when the promise is broken.
pub type Promise = for<'a> fn(&'a Trial) -> Pin<Box<dyn Future<Output = ()> + Send + 'a>>;

/// Makes a table of promises whose names are those of their functions.
macro_rules! promises {
    ($($room:ident: $($promise:ident),+ $(,)?;)+) => {
        &[$($((
            concat!(stringify!($room), "::", stringify!($promise)),
            |trial| Box::pin($room::$promise(trial)),
        )),+),+]
    };
}

/// Every promise, by name.
pub const PROMISES: &[(&str, Promise)] = promises! {
    claiming:
        first_claim_is_granted,
        second_claim_is_busy,
        same_attempt_is_granted_again_under_the_same_fence,
        mismatch_beats_every_state,
        released_key_is_free_for_any_request,
        fence_rises_with_every_grant,
        fence_is_never_used_again,
        withdrawing_frees_the_own_attempt,
        withdrawing_leaves_others_alone,
        sixty_four_claims_at_once_grant_one,
        identities_never_mix;
    settling:
        stale_fence_changes_nothing,
        purged_holder_is_stale,
        late_settlement_counts,
        same_settlement_again_is_done,
        outcome_is_answered_with_its_times,
        late_outcome_is_answered_with_its_times,
        outcome_of_a_delivery_is_answered_with_its_times,
        other_settlement_after_the_end_is_stale,
        first_outcome_stays,
        completed_replays_byte_for_byte,
        failed_replays_byte_for_byte,
        large_reply_is_kept_whole,
        reply_not_kept_leaves_its_status,
        reply_not_kept_and_then_lost_is_unknown,
        lost_is_unknown_and_held,
        lost_is_granted_again_where_that_is_safe,
        paused_is_answered_until_resumed;
    passing:
        end_of_lease_is_unknown,
        end_of_lease_frees_where_that_is_safe,
        only_the_clock_of_the_store_ends_a_lease,
        renewal_extends_the_lease,
        renewal_lets_an_unknown_operation_run_again,
        released_is_shown_for_one_lease,
        reply_expires_and_then_the_key_is_forgotten,
        retention_may_count_from_creation,
        late_completion_is_remembered,
        retention_may_count_from_the_last_replay,
        noted_replays_are_bounded,
        lazy_reply_is_replayed_until_swept,
        lazy_reply_goes_before_its_key,
        trace_is_shown_when_the_key_is_forgotten,
        trace_gives_way_to_the_next_operation,
        trace_is_purged_like_an_operation;
    waiting:
        waiting_ends_when_settled,
        waiting_ends_when_purged,
        waiting_ends_at_its_limit,
        waiting_ends_at_once_when_nothing_runs;
    queueing:
        enqueued_request_comes_back_as_it_was,
        enqueueing_again_is_answered_like_a_claim,
        enqueueing_again_never_grants,
        queued_work_is_given_when_due_and_once,
        queued_work_is_given_oldest_first,
        queued_work_is_given_once_to_concurrent_takers,
        requeued_work_is_due_again_later,
        deferred_work_does_not_count_as_tried,
        lost_delivery_is_due_again_where_that_is_safe,
        delivery_that_its_holder_lost_is_due_again_where_that_is_safe,
        lost_delivery_is_unknown_otherwise,
        paused_delivery_is_due_when_resumed,
        delivery_that_did_not_run_is_due_again,
        redelivered_work_is_due_at_once,
        redelivered_work_begins_anew,
        redelivery_is_refused_otherwise,
        request_is_kept_as_long_as_the_reply,
        next_due_is_the_earliest;
    inspecting:
        get_and_find_return_the_same,
        list_filters_by_every_field,
        list_pages_without_gap_or_repeat,
        list_shows_states_as_of_now,
        purge_refuses_what_runs_unless_forced,
        purged_operation_is_absent_and_runs_under_a_new_id,
        resolve_ran_is_replayed,
        resolve_not_run_frees_the_key,
        resolve_is_about_the_grant_that_is_named,
        resolve_and_resume_refuse_other_states,
        sweep_takes_only_what_is_over,
        stats_count_by_state;
    registering:
        documents_are_read_as_they_were_written,
        putting_replaces,
        adding_happens_once,
        adding_at_once_happens_once,
        removed_documents_are_absent,
        documents_are_listed_in_the_order_of_their_names,
        documents_are_paged_both_ways,
        collections_do_not_mix;
};

/// Checks every promise on the trial that `make` returns: a new store each time, or
/// a shared one. Panics at the end with the name of each broken promise.
pub async fn run_all(make: impl AsyncFn() -> Trial) {
    let mut broken = Vec::new();
    for (name, promise) in PROMISES {
        let trial = make().await;
        if let Err(why) = run(*promise, trial).await {
            broken.push(format!("{name}: {why}"));
        }
    }
    assert!(
        broken.is_empty(),
        "{} of {} promises are broken:\n{}",
        broken.len(),
        PROMISES.len(),
        broken.join("\n")
    );
}

/// Runs the promise in a task, which turns its panic into a value.
async fn run(promise: Promise, trial: Trial) -> Result<(), String> {
    let task = tokio::spawn(async move { promise(&trial).await });
    match task.await {
        Ok(()) => Ok(()),
        Err(error) => Err(message_of(error)),
    }
}

fn message_of(error: tokio::task::JoinError) -> String {
    let Ok(panic) = error.try_into_panic() else {
        return "cancelled".to_owned();
    };
    match panic.downcast::<String>() {
        Ok(message) => *message,
        Err(panic) => match panic.downcast::<&'static str>() {
            Ok(message) => (*message).to_owned(),
            Err(_) => "panicked without a message".to_owned(),
        },
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::clock::{ManualClock, Timestamp};
    use crate::memory::MemoryStore;

    fn memory() -> Trial {
        let clock = Arc::new(ManualClock::new(Timestamp::from_unix_ms(1_700_000_000_000)));
        Trial::new(Arc::new(MemoryStore::new(clock.clone())), clock)
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn memory_keeps_every_promise() {
        run_all(async || memory()).await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn memory_keeps_every_promise_when_it_is_never_emptied() {
        let shared = memory();
        run_all(async || shared.clone()).await;
    }

    #[tokio::test]
    async fn a_broken_promise_is_reported_with_its_message() {
        let reported = run(|_| Box::pin(async { panic!("fence {} fell", 7) }), memory()).await;
        assert_eq!(reported, Err("fence 7 fell".to_owned()));
    }
}
