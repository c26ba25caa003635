//! When two answers are the same.
//!
//! Fences are compared by rank within a key, because a store may number them as
//! it likes; ids are equal, because the claims carry them. What no promise covers
//! is not compared: how many operations a sweep removed, the bytes that a store
//! occupies, the bodies of replies in listings.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Debug;

use proptest::test_runner::TestCaseError;

use super::super::trial::describe;
use crate::clock::Timestamp;
use crate::identity::Digest;
use crate::record::{Attempt, Fence, Record, State};
use crate::store::{Claim, Grant};

/// An error describes the difference.
pub(super) type Compared = Result<(), TestCaseError>;

/// Compares answers; remembers the fences that it has seen.
#[derive(Default)]
pub(super) struct Equality {
    ranks: HashMap<Digest, FenceRanks>,
}

impl Equality {
    /// Compares two claims; returns both grants where they were granted.
    pub(super) fn same_claim(
        &mut self,
        model: &Claim,
        subject: &Claim,
    ) -> Result<Option<(Grant, Grant)>, TestCaseError> {
        if let (Claim::Granted(model), Claim::Granted(subject)) = (model, subject) {
            return self.same_grant(model, subject).map(Some);
        }
        let (model, seen_by_model) = describe(model);
        let (subject, seen_by_subject) = describe(subject);
        same("claim", &model, &subject)?;
        self.same_record(
            "claim",
            seen_by_model.as_deref(),
            seen_by_subject.as_deref(),
        )?;
        Ok(None)
    }

    pub(super) fn same_grant(
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

    pub(super) fn same_record(
        &mut self,
        what: &str,
        model: Option<&Record>,
        subject: Option<&Record>,
    ) -> Compared {
        same(what, &model.map(without_fence), &subject.map(without_fence))?;
        match (model, subject) {
            // Queued work may never have been granted, so it has no fence to compare.
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

/// The fences of one key: those of the model, each with the corresponding fence of
/// the store under test.
#[derive(Default)]
struct FenceRanks(BTreeMap<Fence, Fence>);

impl FenceRanks {
    /// Whether both fences have the same rank among all that were seen.
    fn agree(&mut self, model: Fence, subject: Fence) -> bool {
        let known = *self.0.entry(model).or_insert(subject);
        let below = self.0.range(..model).next_back();
        let above = self.0.range(model..).nth(1);
        known == subject
            && below.is_none_or(|(_, below)| *below < subject)
            && above.is_none_or(|(_, above)| *above > subject)
    }
}

/// The record without its fence, which is compared by rank, and without the fields
/// that have no meaning in its state.
pub(super) fn without_fence(record: &Record) -> Record {
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

pub(super) fn same<T: PartialEq + Debug>(what: &str, model: &T, subject: &T) -> Compared {
    if model == subject {
        Ok(())
    } else {
        differ(what, model, subject)
    }
}

pub(super) fn differ(what: &str, model: &impl Debug, subject: &impl Debug) -> Compared {
    Err(TestCaseError::fail(format!(
        "{what}\n  the model: {model:?}\n  the store: {subject:?}"
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fences_are_compared_by_rank() {
        let mut ranks = FenceRanks::default();
        assert!(ranks.agree(Fence(5), Fence(50)));
        assert!(ranks.agree(Fence(9), Fence(51)));
        assert!(ranks.agree(Fence(5), Fence(50)), "the same again");
        assert!(
            !ranks.agree(Fence(9), Fence(50)),
            "another fence of the store"
        );
        assert!(!ranks.agree(Fence(10), Fence(51)), "used again");
        let mut ranks = FenceRanks::default();
        assert!(ranks.agree(Fence(5), Fence(50)));
        assert!(!ranks.agree(Fence(6), Fence(49)), "it fell");
    }
}
