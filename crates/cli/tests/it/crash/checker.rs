//! The checker of a randomised run. From the responses that clients got and the requests that the
//! service got, it decides whether each operation ran at most once and was always answered alike.
//! It knows neither processes nor HTTP, so that it can itself be tested: each rule has a history
//! that breaks it.

use std::collections::HashMap;

/// A key; clients number theirs.
pub(crate) type Key = usize;

/// One request of a client and its outcome.
#[derive(Clone, Debug)]
pub(crate) struct RequestRecord {
    pub(crate) key: Key,
    pub(crate) body: Body,
    /// When it was sent and answered, by the logical clock.
    pub(crate) sent: u64,
    pub(crate) heard_at: u64,
    pub(crate) heard: Outcome,
}

/// Which request was sent with a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Body {
    /// The request that the key belongs to.
    Own,
    /// A different request, after the first was answered.
    Other,
}

/// The answer to a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The service's response, first or replayed.
    Final(Vec<u8>),
    /// It may have run.
    Unknown,
    /// The key belongs to a different request.
    Reused,
    /// To be retried: nothing was done, or it still runs.
    Later,
    /// No information: the connection broke, or the store was unavailable.
    Nothing,
}

/// One request that the service got.
#[derive(Clone, Debug)]
pub(crate) struct RunRecord {
    pub(crate) key: Key,
    pub(crate) at: u64,
    pub(crate) fence: u64,
    pub(crate) body: Body,
    pub(crate) effect: Effect,
}

/// What the service did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    /// The work, with this response.
    Done(Vec<u8>),
    /// Nothing; it asked for a retry.
    Refused,
}

/// A broken rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Violation {
    /// It ran again although an earlier run had not been refused.
    RanAgain(Key),
    /// It ran after a client had got the outcome.
    RanAfterTheEnd(Key),
    /// A later run did not have a higher fence.
    FenceDidNotRise(Key),
    /// A different request ran with the key.
    OtherRan(Key),
    /// A client got a response that the service did not give.
    NotDone(Key),
    /// Two clients got different outcomes.
    EndsDiffer(Key),
    /// The outcome was given, and later not given any more.
    EndForgotten(Key),
    /// A different request with the key was not refused as such.
    OtherNotRefused(Key),
    /// The key's own request was refused as a different one.
    OwnRefused(Key),
    /// The last response was not final.
    NotEnded(Key),
}

/// Counts of what happened, so that an empty run does not pass.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Figures {
    /// Operations whose response a client got.
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

/// Checks a history.
pub(crate) fn check(asked: &[RequestRecord], ran: &[RunRecord]) -> (Figures, Vec<Violation>) {
    let mut stories: HashMap<Key, KeyHistory<'_>> = HashMap::new();
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

/// All events of one key.
#[derive(Default)]
struct KeyHistory<'a> {
    asked: Vec<&'a RequestRecord>,
    ran: Vec<&'a RunRecord>,
}

impl KeyHistory<'_> {
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
                .all(|asked| matches!(asked.heard, Outcome::Reused | Outcome::Nothing)),
            Violation::OtherNotRefused,
        );
        must(
            self.own().all(|asked| asked.heard != Outcome::Reused),
            Violation::OwnRefused,
        );
        must(
            self.own().last().is_none_or(|last| last.heard.is_end()),
            Violation::NotEnded,
        );
    }

    /// Whether a request got the outcome that a client had got before it was sent.
    fn remembers(&self, asked: &RequestRecord) -> bool {
        let mut before = self.own().filter(|other| other.heard_at < asked.sent);
        let end = before.find_map(|other| other.heard.answer());
        match (end, &asked.heard) {
            (None, _) | (_, Outcome::Nothing) => true,
            (Some(end), heard) => heard.answer() == Some(end),
        }
    }

    fn did(&self, answer: &[u8]) -> bool {
        self.ran
            .iter()
            .any(|ran| matches!(&ran.effect, Effect::Done(done) if done == answer))
    }

    fn own(&self) -> impl Iterator<Item = &RequestRecord> {
        self.asked
            .iter()
            .copied()
            .filter(|asked| asked.body == Body::Own)
    }

    fn others(&self) -> impl Iterator<Item = &RequestRecord> {
        self.asked
            .iter()
            .copied()
            .filter(|asked| asked.body == Body::Other)
    }

    fn count(&self, figures: &mut Figures) {
        let unanswered = self
            .asked
            .iter()
            .filter(|asked| asked.heard == Outcome::Nothing);
        let unanswered = unanswered.count();
        let done = self.ran.iter().any(|ran| ran.effect != Effect::Refused);
        figures.unanswered += unanswered;
        figures.reused += self
            .others()
            .filter(|asked| asked.heard == Outcome::Reused)
            .count();
        figures.refused += self
            .ran
            .iter()
            .filter(|ran| ran.effect == Effect::Refused)
            .count();
        if self.own().any(|asked| asked.heard.answer().is_some()) {
            figures.completed += 1;
            figures.completed_by_retry += usize::from(unanswered > 0);
        } else if self.own().any(|asked| asked.heard == Outcome::Unknown) {
            figures.unknown += 1;
            figures.unknown_and_done += usize::from(done);
        }
    }
}

impl Outcome {
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
    fn own(sent: u64, heard_at: u64, heard: Outcome) -> RequestRecord {
        RequestRecord {
            key: 1,
            body: Body::Own,
            sent,
            heard_at,
            heard,
        }
    }

    fn other(sent: u64, heard_at: u64, heard: Outcome) -> RequestRecord {
        RequestRecord {
            body: Body::Other,
            ..own(sent, heard_at, heard)
        }
    }

    fn paid(answer: &str) -> Outcome {
        Outcome::Final(answer.into())
    }

    fn done(at: u64, fence: u64, answer: &str) -> RunRecord {
        RunRecord {
            key: 1,
            at,
            fence,
            body: Body::Own,
            effect: Effect::Done(answer.into()),
        }
    }

    fn refused(at: u64, fence: u64) -> RunRecord {
        RunRecord {
            effect: Effect::Refused,
            ..done(at, fence, "")
        }
    }

    #[rstest]
    #[case::it_ran_and_was_replayed(
        vec![own(0, 2, paid("a")), own(3, 4, paid("a"))], vec![done(1, 1, "a")])]
    #[case::it_was_lost_and_found(
        vec![own(0, 2, Outcome::Nothing), own(3, 4, paid("a"))], vec![done(1, 1, "a")])]
    #[case::it_was_refused_and_ran(
        vec![own(0, 2, Outcome::Later), own(3, 5, paid("a"))], vec![refused(1, 1), done(4, 2, "a")])]
    #[case::it_is_unknown_and_had_run(
        vec![own(0, 2, Outcome::Nothing), own(3, 4, Outcome::Unknown)], vec![done(1, 1, "a")])]
    #[case::another_was_refused(
        vec![own(0, 2, paid("a")), other(3, 4, Outcome::Reused), own(5, 6, paid("a"))], vec![done(1, 1, "a")])]
    fn a_good_history_passes(#[case] asked: Vec<RequestRecord>, #[case] ran: Vec<RunRecord>) {
        assert_eq!(check(&asked, &ran).1, []);
    }

    #[rstest]
    #[case::ran_twice(
        vec![own(0, 4, paid("b"))], vec![done(1, 1, "a"), done(2, 2, "b")], RanAgain)]
    #[case::ran_after_it_was_called_unknown(
        vec![own(0, 1, Outcome::Unknown)], vec![done(2, 1, "a")], RanAfterTheEnd)]
    #[case::one_fence_twice(
        vec![own(0, 4, paid("b"))], vec![refused(1, 1), done(2, 1, "b")], FenceDidNotRise)]
    #[case::a_different_request_ran(
        vec![own(0, 4, paid("a"))], vec![RunRecord { body: Body::Other, ..done(1, 1, "a") }], OtherRan)]
    #[case::answered_and_never_ran(
        vec![own(0, 1, paid("a"))], vec![], NotDone)]
    #[case::two_answers(
        vec![own(0, 5, paid("a")), own(1, 6, paid("b"))], vec![refused(2, 1), done(3, 2, "a")], EndsDiffer)]
    #[case::answered_then_unknown(
        vec![own(0, 2, paid("a")), own(3, 4, Outcome::Unknown)], vec![done(1, 1, "a")], EndForgotten)]
    #[case::answered_then_running(
        vec![own(0, 2, paid("a")), own(3, 4, Outcome::Later), own(5, 6, paid("a"))], vec![done(1, 1, "a")], EndForgotten)]
    #[case::a_different_request_was_answered(
        vec![own(0, 2, paid("a")), other(3, 4, paid("a"))], vec![done(1, 1, "a")], OtherNotRefused)]
    #[case::taken_for_a_different_request(
        vec![own(0, 2, paid("a")), own(3, 4, Outcome::Reused)], vec![done(1, 1, "a")], OwnRefused)]
    #[case::still_running_at_the_end(
        vec![own(0, 2, Outcome::Later)], vec![done(1, 1, "a")], NotEnded)]
    fn a_bad_history_is_caught(
        #[case] asked: Vec<RequestRecord>,
        #[case] ran: Vec<RunRecord>,
        #[case] wanted: fn(Key) -> Violation,
    ) {
        let (_, violations) = check(&asked, &ran);
        assert!(violations.contains(&wanted(1)), "{violations:?}");
    }
}
