//! The checker of a run with events. From the providers' responses, the service's requests and the
//! times of the kills, it decides whether each acknowledged event arrived, and none twice except
//! those in delivery at a kill. It knows neither processes nor HTTP, so that it can itself be tested:
//! each rule has a history that breaks it.

use std::collections::{BTreeMap, HashMap, HashSet};

/// An event; providers number theirs.
pub(crate) type Event = usize;
/// A time by the logical clock of the test.
pub(crate) type LogicalTime = u64;

/// One request of a provider and its response.
#[derive(Clone, Debug)]
pub(crate) struct SentEvent {
    pub(crate) event: Event,
    pub(crate) sent: LogicalTime,
    pub(crate) heard_at: LogicalTime,
    pub(crate) heard: Acknowledgement,
}

/// What a provider got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Acknowledgement {
    /// 2xx: it need not send the event again.
    Acknowledged,
    /// 2xx, and the event was delivered before.
    Replayed,
    /// Nothing, or a refusal: it sends the event again.
    Nothing,
}

/// One request that the service got.
#[derive(Clone, Debug)]
pub(crate) struct Delivery {
    pub(crate) event: Event,
    pub(crate) at: LogicalTime,
    pub(crate) key: String,
    pub(crate) fence: u64,
    pub(crate) effect: DeliveryEffect,
}

/// What the service did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DeliveryEffect {
    /// It accepted the event.
    Taken,
    /// It asked for a retry.
    Refused,
}

/// The whole history.
#[derive(Clone, Debug, Default)]
pub(crate) struct History {
    pub(crate) told: Vec<SentEvent>,
    pub(crate) carried: Vec<Delivery>,
    /// When the gateway had died and all its requests were read. Requests between two of these
    /// times come from one process.
    pub(crate) deaths: Vec<LogicalTime>,
    /// When every event was acknowledged, and nothing was queued.
    pub(crate) settled: LogicalTime,
    /// How many deliveries one process has under way at most.
    pub(crate) under_way_max: usize,
}

/// A broken rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EventViolation {
    /// It was acknowledged, and the service had not accepted it at the end.
    Lost(Event),
    /// One process delivered an event again that the service had accepted.
    CarriedAgain(Event),
    /// It was delivered again after the provider was answered that it was delivered, or after the
    /// end.
    CarriedAfterTheEnd(Event),
    /// The provider was answered that it was delivered, and it was not.
    NotDelivered(Event),
    /// The provider was answered that it was delivered, and later that it was not.
    EndForgotten(Event),
    /// A later delivery did not have a higher fence.
    FenceDidNotRise(Event),
    /// A later delivery had another key.
    KeyChanged(Event),
    /// The service got an event that no provider sent.
    NeverSent(Event),
    /// After this kill more events were delivered again than can have been in delivery.
    TooManyAgain(LogicalTime),
}

/// Counts of what happened, so that an empty run does not pass.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct EventFigures {
    /// Events that a provider need not send again.
    pub(crate) acknowledged: usize,
    /// Of these, those with an earlier unanswered request.
    pub(crate) acknowledged_by_retry: usize,
    /// Requests that were not answered by a 2xx.
    pub(crate) unanswered: usize,
    /// Events that the service accepted.
    pub(crate) taken: usize,
    /// Of these, those that it accepted more than once: in delivery at a kill.
    pub(crate) ambiguous: usize,
    /// Deliveries that the service refused.
    pub(crate) refused: usize,
}

/// Checks a history.
pub(crate) fn check(history: &History) -> (EventFigures, Vec<EventViolation>) {
    let mut stories: BTreeMap<Event, EventStory<'_>> = BTreeMap::new();
    for told in &history.told {
        stories.entry(told.event).or_default().told.push(told);
    }
    for carried in &history.carried {
        let story = stories.entry(carried.event).or_default();
        story.carried.push(carried);
    }
    let mut figures = EventFigures::default();
    let mut violations = Vec::new();
    let mut again: HashMap<LogicalTime, HashSet<Event>> = HashMap::new();
    for (event, mut story) in stories {
        story.told.sort_by_key(|told| told.sent);
        story.carried.sort_by_key(|carried| carried.at);
        story.judge(event, history, &mut violations);
        story.count(&mut figures);
        for death in story.survived(&history.deaths) {
            again.entry(death).or_default().insert(event);
        }
    }
    let too_many = again
        .into_iter()
        .filter(|(_, events)| events.len() > history.under_way_max);
    violations.extend(too_many.map(|(death, _)| EventViolation::TooManyAgain(death)));
    (figures, violations)
}

/// The history of one event.
#[derive(Default)]
struct EventStory<'a> {
    told: Vec<&'a SentEvent>,
    carried: Vec<&'a Delivery>,
}

impl EventStory<'_> {
    fn judge(&self, event: Event, history: &History, violations: &mut Vec<EventViolation>) {
        let mut must = |holds: bool, violation: fn(Event) -> EventViolation| {
            if !holds {
                violations.push(violation(event));
            }
        };
        let (deaths, settled) = (&history.deaths, history.settled);
        let mut before = self.told.iter().filter(|told| told.heard_at < settled);
        let acknowledged = before.any(|told| told.heard != Acknowledgement::Nothing);
        let sent = self.told.iter().map(|told| told.sent).min();
        let ends = || {
            self.told
                .iter()
                .filter(|told| told.heard == Acknowledgement::Replayed)
        };
        let first_end = ends().map(|told| told.heard_at).min();
        let carried = &self.carried;

        must(
            !acknowledged || self.taken().any(|one| one.at < settled),
            EventViolation::Lost,
        );
        let repeated = carried.windows(2).any(|pair| {
            let [one, next] = pair else { return false };
            let by_one = process(deaths, one.at) == process(deaths, next.at);
            one.effect == DeliveryEffect::Taken && by_one
        });
        must(!repeated, EventViolation::CarriedAgain);
        let over_at = |moment: LogicalTime| first_end.is_some_and(|end| end < moment);
        must(
            !carried
                .iter()
                .any(|one| over_at(one.at) || acknowledged && one.at > settled),
            EventViolation::CarriedAfterTheEnd,
        );
        must(
            ends().all(|told| self.taken().any(|one| one.at < told.heard_at)),
            EventViolation::NotDelivered,
        );
        must(
            !self
                .told
                .iter()
                .any(|told| over_at(told.sent) && told.heard == Acknowledgement::Acknowledged),
            EventViolation::EndForgotten,
        );
        let rises = carried.is_sorted_by(|one, next| one.fence < next.fence);
        must(rises, EventViolation::FenceDidNotRise);
        let same = carried.is_sorted_by(|one, next| one.key == next.key);
        must(same, EventViolation::KeyChanged);
        let sent_before = |moment: LogicalTime| sent.is_some_and(|sent| sent < moment);
        must(
            carried.iter().all(|one| sent_before(one.at)),
            EventViolation::NeverSent,
        );
    }

    fn taken(&self) -> impl Iterator<Item = &Delivery> {
        let carried = self.carried.iter().copied();
        carried.filter(|carried| carried.effect == DeliveryEffect::Taken)
    }

    /// The kills at which it must have been in delivery: it was accepted before, and delivered
    /// again after.
    fn survived(&self, deaths: &[LogicalTime]) -> Vec<LogicalTime> {
        let Some((_, earlier)) = self.carried.split_last() else {
            return Vec::new();
        };
        let taken = earlier
            .iter()
            .filter(|one| one.effect == DeliveryEffect::Taken);
        taken.filter_map(|one| next_death(deaths, one.at)).collect()
    }

    fn count(&self, figures: &mut EventFigures) {
        let unanswered = self.told.iter();
        let unanswered = unanswered
            .filter(|told| told.heard == Acknowledgement::Nothing)
            .count();
        let acknowledged = unanswered < self.told.len();
        let taken = self.taken().count();
        figures.unanswered += unanswered;
        figures.acknowledged += usize::from(acknowledged);
        figures.acknowledged_by_retry += usize::from(acknowledged && unanswered > 0);
        figures.taken += usize::from(taken > 0);
        figures.ambiguous += usize::from(taken > 1);
        figures.refused += self.carried.len() - taken;
    }
}

/// The process that ran at a time: the number of earlier kills.
fn process(deaths: &[LogicalTime], at: LogicalTime) -> usize {
    deaths.iter().filter(|death| **death < at).count()
}

/// The first kill after a time.
fn next_death(deaths: &[LogicalTime], after: LogicalTime) -> Option<LogicalTime> {
    deaths.iter().copied().filter(|death| *death > after).min()
}

mod tests {
    use rstest::rstest;

    use super::Acknowledgement::{Acknowledged, Nothing, Replayed};
    use super::DeliveryEffect::{Refused, Taken};
    use super::EventViolation::{
        CarriedAfterTheEnd, CarriedAgain, EndForgotten, FenceDidNotRise, KeyChanged, Lost,
        NeverSent, NotDelivered,
    };
    use super::*;

    const SETTLED: LogicalTime = 10;

    fn told(sent: LogicalTime, heard_at: LogicalTime, heard: Acknowledgement) -> SentEvent {
        SentEvent {
            event: 1,
            sent,
            heard_at,
            heard,
        }
    }

    fn carried(at: LogicalTime, fence: u64, effect: DeliveryEffect) -> Delivery {
        Delivery {
            event: 1,
            at,
            key: "k".to_owned(),
            fence,
            effect,
        }
    }

    fn judge(
        told: Vec<SentEvent>,
        carried: Vec<Delivery>,
        deaths: &[LogicalTime],
    ) -> Vec<EventViolation> {
        let history = History {
            told,
            carried,
            deaths: deaths.to_vec(),
            settled: SETTLED,
            under_way_max: 1,
        };
        check(&history).1
    }

    #[rstest]
    #[case::it_came_and_went(
        vec![told(0, 1, Acknowledged), told(3, 4, Replayed)], vec![carried(2, 1, Taken)], &[])]
    #[case::it_came_again_because_nobody_answered(
        vec![told(0, 2, Nothing), told(3, 4, Acknowledged)], vec![carried(5, 1, Taken)], &[1])]
    #[case::it_was_never_heard_of(
        vec![told(0, 2, Nothing)], vec![], &[1])]
    #[case::it_was_refused_and_went_again(
        vec![told(0, 1, Acknowledged)], vec![carried(2, 1, Refused), carried(3, 2, Taken)], &[])]
    #[case::it_was_under_way_at_a_death(
        vec![told(0, 1, Acknowledged)], vec![carried(2, 1, Taken), carried(4, 2, Taken)], &[3])]
    #[case::it_was_under_way_at_two(
        vec![told(0, 1, Acknowledged)],
        vec![carried(2, 1, Taken), carried(4, 2, Taken), carried(6, 3, Taken)], &[3, 5])]
    fn a_good_history_passes(
        #[case] told: Vec<SentEvent>,
        #[case] carried: Vec<Delivery>,
        #[case] deaths: &[LogicalTime],
    ) {
        assert_eq!(judge(told, carried, deaths), []);
    }

    #[rstest]
    #[case::acknowledged_and_never_delivered(
        vec![told(0, 1, Acknowledged)], vec![], &[2], Lost)]
    #[case::acknowledged_and_only_refused(
        vec![told(0, 1, Acknowledged)], vec![carried(2, 1, Refused)], &[3], Lost)]
    #[case::delivered_only_when_it_was_told_again(
        vec![told(0, 1, Acknowledged), told(11, 12, Acknowledged)], vec![carried(13, 1, Taken)], &[2], Lost)]
    #[case::once_more_after_all_was_settled(
        vec![told(0, 1, Acknowledged), told(11, 12, Acknowledged)],
        vec![carried(2, 1, Taken), carried(13, 2, Taken)], &[3], CarriedAfterTheEnd)]
    #[case::twice_from_one_process(
        vec![told(0, 1, Acknowledged)], vec![carried(3, 1, Taken), carried(4, 2, Taken)], &[2, 5], CarriedAgain)]
    #[case::twice_from_the_last_process(
        vec![told(0, 1, Acknowledged)], vec![carried(3, 1, Taken), carried(4, 2, Taken)], &[2], CarriedAgain)]
    #[case::once_more_after_it_was_said_to_be_over(
        vec![told(0, 1, Acknowledged), told(3, 4, Replayed)],
        vec![carried(2, 1, Taken), carried(6, 2, Taken)], &[5], CarriedAfterTheEnd)]
    #[case::said_to_be_over_before_it_began(
        vec![told(0, 1, Acknowledged), told(2, 3, Replayed)], vec![carried(4, 1, Taken)], &[], NotDelivered)]
    #[case::said_to_be_over_and_then_taken_for_new(
        vec![told(0, 1, Acknowledged), told(3, 4, Replayed), told(5, 6, Acknowledged)],
        vec![carried(2, 1, Taken)], &[], EndForgotten)]
    #[case::one_fence_twice(
        vec![told(0, 1, Acknowledged)], vec![carried(2, 1, Taken), carried(4, 1, Taken)], &[3], FenceDidNotRise)]
    #[case::nobody_sent_it(
        vec![told(5, 6, Acknowledged)], vec![carried(2, 1, Taken)], &[], NeverSent)]
    fn a_bad_history_is_caught(
        #[case] told: Vec<SentEvent>,
        #[case] carried: Vec<Delivery>,
        #[case] deaths: &[LogicalTime],
        #[case] wanted: fn(Event) -> EventViolation,
    ) {
        let violations = judge(told, carried, deaths);
        assert!(violations.contains(&wanted(1)), "{violations:?}");
    }

    #[test]
    fn another_key_is_caught() {
        let other = Delivery {
            key: "other".to_owned(),
            ..carried(4, 2, Taken)
        };
        let history = vec![carried(2, 1, Taken), other];
        let violations = judge(vec![told(0, 1, Acknowledged)], history, &[3]);
        assert_eq!(violations, [KeyChanged(1)]);
    }

    /// One delivery ran at a time, and two events were delivered again.
    #[test]
    fn more_than_can_have_been_under_way_is_caught() {
        let of = |event, carried| Delivery { event, ..carried };
        let all = [1, 2].map(|event| SentEvent {
            event,
            ..told(0, 1, Acknowledged)
        });
        let twice = [1, 2].map(|event| {
            [
                of(event, carried(2, 1, Taken)),
                of(event, carried(4, 2, Taken)),
            ]
        });
        let violations = judge(all.into(), twice.concat(), &[3]);
        assert_eq!(violations, [EventViolation::TooManyAgain(3)]);
    }
}
