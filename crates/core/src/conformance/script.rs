//! The random scripts of the differential test: steps by several actors.
//!
//! A step names an earlier claim by its place in the script, so a script means
//! the same on every store, and a shorter one is still a script.

use std::time::Duration;

use proptest::prelude::*;
use proptest::strategy::Union;
use proptest_state_machine::ReferenceStateMachine;

use super::trial::{LEASE, REMEMBER, RETENTION, identity, reply, terms};
use crate::class::{AfterLoss, Expiry, Terms, TtlBasis};
use crate::clock::Timestamp;
use crate::identity::Identity;
use crate::record::{Answer, Settlement, State};
use crate::store::{Filter, Force, Resolution};

/// How many keys the actors fight for.
pub(super) const KEYS: usize = 4;
/// The most that is asked to be due at once.
const DUE_MAX: usize = 3;

/// The identity behind the number of a key. Each pair of them differs in
/// something else.
pub(super) fn identity_of(key: usize) -> Identity {
    match key {
        0 => identity("acme", "shop", "payments.create", "k"),
        1 => identity("acme", "shop", "payments.create", "l"),
        2 => identity("acme", "shop", "refunds.create", "k"),
        _ => identity("evil", "till", "payments.create", "k"),
    }
}

/// One step of a script. `hold` is the place of an earlier claim among all.
#[derive(Clone, Debug)]
pub(super) enum Step {
    Claim {
        key: usize,
        request: u8,
        choices: Choices,
    },
    ClaimAgain {
        hold: usize,
    },
    Withdraw {
        hold: usize,
    },
    Renew {
        hold: usize,
    },
    Settle {
        hold: usize,
        word: Word,
    },
    Find {
        hold: usize,
    },
    Show {
        hold: usize,
    },
    Touch {
        key: usize,
    },
    Enqueue {
        key: usize,
        request: u8,
        choices: Choices,
        delay: Duration,
    },
    EnqueueAgain {
        hold: usize,
        delay: Duration,
    },
    Due {
        limit: usize,
    },
    List {
        choice: Choice,
        limit: usize,
    },
    Purge {
        key: usize,
        force: Force,
    },
    Resolve {
        key: usize,
        word: Word,
    },
    Resume {
        key: usize,
    },
    Redeliver {
        key: usize,
    },
    Sweep {
        limit: usize,
    },
    Advance {
        span: Duration,
    },
    Look,
    Reopen,
}

impl Step {
    /// How many holds it adds. What is due is not known beforehand, so it
    /// counts as much as was asked for.
    fn adds(&self) -> usize {
        match self {
            Self::Claim { .. } | Self::Enqueue { .. } => 1,
            Self::Due { limit } => *limit,
            _ => 0,
        }
    }

    /// The hold that must be there before.
    fn needs(&self) -> Option<usize> {
        match self {
            Self::ClaimAgain { hold }
            | Self::Withdraw { hold }
            | Self::Renew { hold }
            | Self::Settle { hold, .. }
            | Self::Find { hold }
            | Self::Show { hold }
            | Self::EnqueueAgain { hold, .. } => Some(*hold),
            _ => None,
        }
    }
}

/// What an ask chooses about time and doubt.
#[derive(Clone, Copy, Debug)]
pub(super) struct Choices {
    after_loss: AfterLoss,
    ttl_basis: TtlBasis,
    expiry: Expiry,
    keep_expired: Duration,
}

impl Choices {
    /// Nothing out of the ordinary.
    pub(super) const PLAIN: Self = Self {
        after_loss: AfterLoss::Hold,
        ttl_basis: TtlBasis::Completion,
        expiry: Expiry::Strict,
        keep_expired: Duration::ZERO,
    };

    /// The terms of an ask with this lease.
    pub(super) fn terms(self, lease: Duration) -> Terms {
        Terms {
            lease,
            ttl_basis: self.ttl_basis,
            expiry: self.expiry,
            keep_expired: self.keep_expired,
            ..terms(self.after_loss)
        }
    }
}

/// What is said of an operation.
#[derive(Clone, Copy, Debug)]
pub(super) enum Word {
    Kept(u16),
    NotKept(u16),
    Released,
    Requeued(Duration),
    Deferred(Duration),
    Lost,
    Paused,
}

impl Word {
    /// The holder's word. The reply names its hold, so that none passes for another.
    pub(super) fn settlement(self, hold: usize) -> Settlement {
        let outcome = |status, answer| match State::of_status(status) {
            State::Failed => Settlement::Failed(answer),
            _ => Settlement::Completed(answer),
        };
        match self {
            Self::Kept(status) => {
                outcome(status, Answer::Kept(reply(status, format!("reply {hold}"))))
            }
            Self::NotKept(status) => outcome(status, Answer::NotKept { status }),
            Self::Released => Settlement::Released,
            Self::Requeued(after) => Settlement::Requeued { after },
            Self::Deferred(after) => Settlement::Deferred { after },
            Self::Lost => Settlement::Lost,
            Self::Paused => Settlement::Paused,
        }
    }

    /// An operator's word: it ran, or it did not.
    pub(super) fn resolution(self) -> Resolution {
        match self {
            Self::Kept(status) | Self::NotKept(status) => Resolution::Ran(reply(status, "found")),
            _ => Resolution::NotRun,
        }
    }
}

/// What is listed.
#[derive(Clone, Copy, Debug)]
pub(super) enum Choice {
    All,
    Tenant,
    Project,
    Endpoint,
    Key,
    State(State),
    Since(Duration),
    Before(Duration),
}

impl Choice {
    /// The filter, as of now.
    pub(super) fn filter(self, now: Timestamp) -> Filter {
        let ago = |span: Duration| {
            let span = u64::try_from(span.as_millis()).unwrap_or(u64::MAX);
            Timestamp::from_unix_ms(now.unix_ms().saturating_sub(span))
        };
        let all = Filter::default();
        match self {
            Self::All => all,
            Self::Tenant => Filter {
                tenant: Some("acme".into()),
                ..all
            },
            Self::Project => Filter {
                project: Some("till".into()),
                ..all
            },
            Self::Endpoint => Filter {
                endpoint: Some("payments.create".into()),
                ..all
            },
            Self::Key => Filter {
                key: Some("k".into()),
                ..all
            },
            Self::State(state) => Filter {
                state: Some(state),
                ..all
            },
            Self::Since(span) => Filter {
                since: Some(ago(span)),
                ..all
            },
            Self::Before(span) => Filter {
                before: Some(ago(span)),
                ..all
            },
        }
    }
}

/// The scripts as a state machine whose state is the number of holds.
pub(super) struct Script;

impl ReferenceStateMachine for Script {
    type State = usize;
    type Transition = Step;

    fn init_state() -> BoxedStrategy<usize> {
        Just(0).boxed()
    }

    fn transitions(holds: &usize) -> BoxedStrategy<Step> {
        match *holds {
            0 => anybody(),
            holds => prop_oneof![3 => anybody(), 4 => holder(holds)].boxed(),
        }
    }

    fn preconditions(holds: &usize, step: &Step) -> bool {
        step.needs().is_none_or(|hold| hold < *holds)
    }

    fn apply(holds: usize, step: &Step) -> usize {
        holds + step.adds()
    }
}

/// What anybody can do.
fn anybody() -> BoxedStrategy<Step> {
    let claim = (key(), request(), choices()).prop_map(|(key, request, choices)| Step::Claim {
        key,
        request,
        choices,
    });
    let enqueue =
        (key(), request(), choices(), delay()).prop_map(|(key, request, choices, delay)| {
            Step::Enqueue {
                key,
                request,
                choices,
                delay,
            }
        });
    let force = prop_oneof![Just(Force::No), Just(Force::Yes)];
    Union::new_weighted(vec![
        (8, claim.boxed()),
        (4, enqueue.boxed()),
        (
            4,
            (1..=DUE_MAX).prop_map(|limit| Step::Due { limit }).boxed(),
        ),
        (
            2,
            (choice(), 1..6_usize)
                .prop_map(|(choice, limit)| Step::List { choice, limit })
                .boxed(),
        ),
        (
            1,
            (key(), force)
                .prop_map(|(key, force)| Step::Purge { key, force })
                .boxed(),
        ),
        (
            2,
            (key(), word())
                .prop_map(|(key, word)| Step::Resolve { key, word })
                .boxed(),
        ),
        (2, key().prop_map(|key| Step::Resume { key }).boxed()),
        (3, key().prop_map(|key| Step::Redeliver { key }).boxed()),
        (3, key().prop_map(|key| Step::Touch { key }).boxed()),
        (
            1,
            (1..100_usize)
                .prop_map(|limit| Step::Sweep { limit })
                .boxed(),
        ),
        (4, span().prop_map(|span| Step::Advance { span }).boxed()),
        (3, Just(Step::Look).boxed()),
        (1, Just(Step::Reopen).boxed()),
    ])
    .boxed()
}

/// The steps of a holder that asked before.
fn holder(holds: usize) -> BoxedStrategy<Step> {
    let hold = || prop_oneof![3 => holds.saturating_sub(3)..holds, 1 => 0..holds];
    prop_oneof![
        6 => (hold(), word()).prop_map(|(hold, word)| Step::Settle { hold, word }),
        2 => hold().prop_map(|hold| Step::Renew { hold }),
        2 => hold().prop_map(|hold| Step::ClaimAgain { hold }),
        1 => hold().prop_map(|hold| Step::Withdraw { hold }),
        1 => hold().prop_map(|hold| Step::Find { hold }),
        1 => hold().prop_map(|hold| Step::Show { hold }),
        1 => (hold(), delay()).prop_map(|(hold, delay)| Step::EnqueueAgain { hold, delay }),
    ]
    .boxed()
}

fn key() -> impl Strategy<Value = usize> {
    // The first key most often: few keys make many quarrels.
    prop_oneof![3 => Just(0), 2 => 0..KEYS]
}

fn request() -> impl Strategy<Value = u8> {
    prop_oneof![4 => Just(1), 1 => Just(2)]
}

fn choices() -> impl Strategy<Value = Choices> {
    (
        prop_oneof![Just(AfterLoss::Hold), Just(AfterLoss::Free)],
        prop_oneof![
            3 => Just(TtlBasis::Completion),
            2 => Just(TtlBasis::Creation),
            3 => Just(TtlBasis::Access),
        ],
        prop_oneof![3 => Just(Expiry::Strict), 1 => Just(Expiry::Lazy)],
        prop_oneof![3 => Just(Duration::ZERO), 1 => Just(RETENTION), 1 => Just(REMEMBER * 3)],
    )
        .prop_map(|(after_loss, ttl_basis, expiry, keep_expired)| Choices {
            after_loss,
            ttl_basis,
            expiry,
            keep_expired,
        })
}

fn delay() -> impl Strategy<Value = Duration> {
    prop_oneof![Just(Duration::ZERO), Just(LEASE / 6), Just(LEASE * 2)]
}

/// Spans that lead just past the moments at which something changes.
fn span() -> impl Strategy<Value = Duration> {
    prop_oneof![
        4 => Just(LEASE / 6),
        3 => Just(LEASE / 2),
        4 => Just(LEASE),
        1 => Just(RETENTION / 10),
        1 => Just(RETENTION - LEASE),
        1 => Just(RETENTION),
        1 => Just(REMEMBER - RETENTION),
        1 => Just(REMEMBER),
    ]
}

fn word() -> impl Strategy<Value = Word> {
    prop_oneof![
        3 => prop::sample::select(vec![200, 201, 422]).prop_map(Word::Kept),
        1 => prop::sample::select(vec![200, 422]).prop_map(Word::NotKept),
        2 => Just(Word::Released),
        1 => delay().prop_map(Word::Requeued),
        1 => delay().prop_map(Word::Deferred),
        3 => Just(Word::Lost),
        2 => Just(Word::Paused),
    ]
}

fn choice() -> impl Strategy<Value = Choice> {
    prop_oneof![
        Just(Choice::All),
        Just(Choice::Tenant),
        Just(Choice::Project),
        Just(Choice::Endpoint),
        Just(Choice::Key),
        prop::sample::select(State::ALL.to_vec()).prop_map(Choice::State),
        span().prop_map(Choice::Since),
        span().prop_map(Choice::Before),
    ]
}
