//! The judge of a randomised run: from what the clients heard and what the
//! service got, whether each operation ran at most once and was answered alike
//! ever after. It knows neither processes nor HTTP, so that it can be put to
//! the test itself: each rule has a history that breaks it.

use std::collections::HashMap;

/// A key; clients number theirs.
pub(crate) type Key = usize;

/// One request of a client, and what came of it.
#[derive(Clone, Debug)]
pub(crate) struct Asked {
    pub(crate) key: Key,
    pub(crate) body: Body,
    /// When it was sent, and when it was answered, in the order of all things.
    pub(crate) sent: u64,
    pub(crate) heard_at: u64,
    pub(crate) heard: Heard,
}

/// Which request was sent under a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Body {
    /// The one that the key stands for.
    Own,
    /// A different one, when the key's own had been answered.
    Other,
}

/// What a client heard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Heard {
    /// The service's answer, first or replayed.
    Final(Vec<u8>),
    /// It may have run.
    Unknown,
    /// The key belongs to a different request.
    Reused,
    /// To come again: nothing was done, or it still runs.
    Later,
    /// No word on the operation: the connection broke, or the store was away.
    Nothing,
}

/// One request that the service got.
#[derive(Clone, Debug)]
pub(crate) struct Ran {
    pub(crate) key: Key,
    pub(crate) at: u64,
    pub(crate) fence: u64,
    pub(crate) body: Body,
    pub(crate) effect: Effect,
}

/// What the service did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    /// The work, and this is its answer.
    Done(Vec<u8>),
    /// Nothing: it asked to come again.
    Refused,
}

/// What must not be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Violation {
    /// It ran again although an earlier run had not been refused.
    RanAgain(Key),
    /// It ran after a client had been told the end.
    RanAfterTheEnd(Key),
    /// A later run did not have a higher fence.
    FenceDidNotRise(Key),
    /// A request ran under the key of another.
    OtherRan(Key),
    /// A client was told of work that was not done, or not so.
    NotDone(Key),
    /// Two clients were told different ends.
    EndsDiffer(Key),
    /// The end was told, and not told any more.
    EndForgotten(Key),
    /// A different request under the key was not refused as such.
    OtherNotRefused(Key),
    /// The key's own request was refused as a different one.
    OwnRefused(Key),
    /// The last word on it was no end.
    NotEnded(Key),
}

/// How much was seen, so that nobody takes an empty run for a good one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Figures {
    /// Operations whose answer a client heard.
    pub(crate) completed: usize,
    /// Operations that ended as unknown.
    pub(crate) unknown: usize,
    /// Of these, those that had run.
    pub(crate) unknown_and_done: usize,
    /// Requests whose connection broke.
    pub(crate) unanswered: usize,
    /// Operations completed although a request of theirs broke off before.
    pub(crate) completed_by_retry: usize,
    /// Requests refused because of a different body.
    pub(crate) reused: usize,
    /// Runs that the service refused.
    pub(crate) refused: usize,
}

/// Judges a history.
pub(crate) fn check(asked: &[Asked], ran: &[Ran]) -> (Figures, Vec<Violation>) {
    let mut stories: HashMap<Key, Story<'_>> = HashMap::new();
    for one in asked {
        stories.entry(one.key).or_default().asked.push(one);
    }
    for one in ran {
        stories.entry(one.key).or_default().ran.push(one);
    }
    let mut figures = Figures::default();
    let mut violations = Vec::new();
    for (key, mut story) in stories {
        story.asked.sort_by_key(|asked| asked.sent);
        story.ran.sort_by_key(|ran| ran.at);
        story.judge(key, &mut violations);
        story.count(&mut figures);
    }
    (figures, violations)
}

/// All that happened under one key.
#[derive(Default)]
struct Story<'a> {
    asked: Vec<&'a Asked>,
    ran: Vec<&'a Ran>,
}

impl Story<'_> {
    fn judge(&self, key: Key, violations: &mut Vec<Violation>) {
        let mut must = |holds: bool, violation: fn(Key) -> Violation| {
            if !holds {
                violations.push(violation(key));
            }
        };
        let ends = Vec::from_iter(self.own().filter(|asked| asked.heard.is_end()));
        let first_end = ends.iter().map(|asked| asked.heard_at).min();

        let earlier = self
            .ran
            .split_last()
            .map_or(&[][..], |(_, earlier)| earlier);
        must(
            earlier.iter().all(|ran| ran.effect == Effect::Refused),
            Violation::RanAgain,
        );
        must(
            self.ran
                .iter()
                .all(|ran| first_end.is_none_or(|end| ran.at < end)),
            Violation::RanAfterTheEnd,
        );
        must(
            self.ran.is_sorted_by(|one, next| one.fence < next.fence),
            Violation::FenceDidNotRise,
        );
        must(
            self.ran.iter().all(|ran| ran.body == Body::Own),
            Violation::OtherRan,
        );

        let answers = || ends.iter().filter_map(|asked| asked.heard.answer());
        must(answers().all(|answer| self.did(answer)), Violation::NotDone);
        must(
            answers().all(|answer| Some(answer) == answers().next()),
            Violation::EndsDiffer,
        );
        must(
            self.own().all(|asked| self.remembers(asked)),
            Violation::EndForgotten,
        );
        must(
            self.others()
                .all(|asked| matches!(asked.heard, Heard::Reused | Heard::Nothing)),
            Violation::OtherNotRefused,
        );
        must(
            self.own().all(|asked| asked.heard != Heard::Reused),
            Violation::OwnRefused,
        );
        must(
            self.own().last().is_none_or(|last| last.heard.is_end()),
            Violation::NotEnded,
        );
    }

    /// Whether a request was told the end that somebody had heard before it was sent.
    fn remembers(&self, asked: &Asked) -> bool {
        let mut before = self.own().filter(|other| other.heard_at < asked.sent);
        let end = before.find_map(|other| other.heard.answer());
        match (end, &asked.heard) {
            (None, _) | (_, Heard::Nothing) => true,
            (Some(end), heard) => heard.answer() == Some(end),
        }
    }

    fn did(&self, answer: &[u8]) -> bool {
        self.ran
            .iter()
            .any(|ran| matches!(&ran.effect, Effect::Done(done) if done == answer))
    }

    fn own(&self) -> impl Iterator<Item = &Asked> {
        self.asked
            .iter()
            .copied()
            .filter(|asked| asked.body == Body::Own)
    }

    fn others(&self) -> impl Iterator<Item = &Asked> {
        self.asked
            .iter()
            .copied()
            .filter(|asked| asked.body == Body::Other)
    }

    fn count(&self, figures: &mut Figures) {
        let unanswered = self
            .asked
            .iter()
            .filter(|asked| asked.heard == Heard::Nothing);
        let unanswered = unanswered.count();
        let done = self.ran.iter().any(|ran| ran.effect != Effect::Refused);
        figures.unanswered += unanswered;
        figures.reused += self
            .others()
            .filter(|asked| asked.heard == Heard::Reused)
            .count();
        figures.refused += self
            .ran
            .iter()
            .filter(|ran| ran.effect == Effect::Refused)
            .count();
        if self.own().any(|asked| asked.heard.answer().is_some()) {
            figures.completed += 1;
            figures.completed_by_retry += usize::from(unanswered > 0);
        } else if self.own().any(|asked| asked.heard == Heard::Unknown) {
            figures.unknown += 1;
            figures.unknown_and_done += usize::from(done);
        }
    }
}

impl Heard {
    fn is_end(&self) -> bool {
        matches!(self, Self::Final(_) | Self::Unknown)
    }

    fn answer(&self) -> Option<&[u8]> {
        match self {
            Self::Final(answer) => Some(answer),
            _ => None,
        }
    }
}

mod tests {
    use rstest::rstest;

    use super::Violation::{
        EndForgotten, EndsDiffer, FenceDidNotRise, NotDone, NotEnded, OtherNotRefused, OtherRan,
        OwnRefused, RanAfterTheEnd, RanAgain,
    };
    use super::*;

    /// A request with the key's own body, sent and heard at these times.
    fn own(sent: u64, heard_at: u64, heard: Heard) -> Asked {
        Asked {
            key: 1,
            body: Body::Own,
            sent,
            heard_at,
            heard,
        }
    }

    fn other(sent: u64, heard_at: u64, heard: Heard) -> Asked {
        Asked {
            body: Body::Other,
            ..own(sent, heard_at, heard)
        }
    }

    fn paid(answer: &str) -> Heard {
        Heard::Final(answer.into())
    }

    fn done(at: u64, fence: u64, answer: &str) -> Ran {
        Ran {
            key: 1,
            at,
            fence,
            body: Body::Own,
            effect: Effect::Done(answer.into()),
        }
    }

    fn refused(at: u64, fence: u64) -> Ran {
        Ran {
            effect: Effect::Refused,
            ..done(at, fence, "")
        }
    }

    #[rstest]
    #[case::it_ran_and_was_replayed(
        vec![own(0, 2, paid("a")), own(3, 4, paid("a"))], vec![done(1, 1, "a")])]
    #[case::it_was_lost_and_found(
        vec![own(0, 2, Heard::Nothing), own(3, 4, paid("a"))], vec![done(1, 1, "a")])]
    #[case::it_was_refused_and_ran(
        vec![own(0, 2, Heard::Later), own(3, 5, paid("a"))], vec![refused(1, 1), done(4, 2, "a")])]
    #[case::it_is_unknown_and_had_run(
        vec![own(0, 2, Heard::Nothing), own(3, 4, Heard::Unknown)], vec![done(1, 1, "a")])]
    #[case::another_was_refused(
        vec![own(0, 2, paid("a")), other(3, 4, Heard::Reused), own(5, 6, paid("a"))], vec![done(1, 1, "a")])]
    fn a_good_history_passes(#[case] asked: Vec<Asked>, #[case] ran: Vec<Ran>) {
        assert_eq!(check(&asked, &ran).1, []);
    }

    #[rstest]
    #[case::ran_twice(
        vec![own(0, 4, paid("b"))], vec![done(1, 1, "a"), done(2, 2, "b")], RanAgain)]
    #[case::ran_after_it_was_called_unknown(
        vec![own(0, 1, Heard::Unknown)], vec![done(2, 1, "a")], RanAfterTheEnd)]
    #[case::one_fence_twice(
        vec![own(0, 4, paid("b"))], vec![refused(1, 1), done(2, 1, "b")], FenceDidNotRise)]
    #[case::a_different_request_ran(
        vec![own(0, 4, paid("a"))], vec![Ran { body: Body::Other, ..done(1, 1, "a") }], OtherRan)]
    #[case::answered_and_never_ran(
        vec![own(0, 1, paid("a"))], vec![], NotDone)]
    #[case::two_answers(
        vec![own(0, 5, paid("a")), own(1, 6, paid("b"))], vec![refused(2, 1), done(3, 2, "a")], EndsDiffer)]
    #[case::answered_then_unknown(
        vec![own(0, 2, paid("a")), own(3, 4, Heard::Unknown)], vec![done(1, 1, "a")], EndForgotten)]
    #[case::answered_then_running(
        vec![own(0, 2, paid("a")), own(3, 4, Heard::Later), own(5, 6, paid("a"))], vec![done(1, 1, "a")], EndForgotten)]
    #[case::a_different_request_was_answered(
        vec![own(0, 2, paid("a")), other(3, 4, paid("a"))], vec![done(1, 1, "a")], OtherNotRefused)]
    #[case::taken_for_a_different_request(
        vec![own(0, 2, paid("a")), own(3, 4, Heard::Reused)], vec![done(1, 1, "a")], OwnRefused)]
    #[case::still_running_at_the_end(
        vec![own(0, 2, Heard::Later)], vec![done(1, 1, "a")], NotEnded)]
    fn a_bad_history_is_caught(
        #[case] asked: Vec<Asked>,
        #[case] ran: Vec<Ran>,
        #[case] wanted: fn(Key) -> Violation,
    ) {
        let (_, violations) = check(&asked, &ran);
        assert!(violations.contains(&wanted(1)), "{violations:?}");
    }
}
