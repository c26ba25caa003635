//! The random scripts of the differential test: steps by several actors.
//!
//! A step refers to an earlier claim by its number in the script, so that a script
//! means the same on every store, and a shortened one is still a script.

use std::time::Duration;

use proptest::prelude::*;
use proptest::strategy::Union;
use proptest_state_machine::ReferenceStateMachine;

use super::super::trial::{LEASE, REMEMBER, RETENTION, identity, reply, terms};
use crate::class::{AfterLoss, Expiry, Terms, TtlBasis};
use crate::clock::Timestamp;
use crate::identity::Identity;
use crate::record::{Answer, Settlement, State};
use crate::store::{Filter, Force, Resolution};

/// How many keys the actors compete for.
pub(super) const KEYS: usize = 4;
/// The largest limit of a step that takes due work.
const DUE_MAX: usize = 3;

/// The identity of a key by its number. Each pair of identities differs in another
/// part.
pub(super) fn identity_of(key: usize) -> Identity {
    match key {
        0 => identity("acme", "shop", "payments.create", "k"),
        1 => identity("acme", "shop", "payments.create", "l"),
        2 => identity("acme", "shop", "refunds.create", "k"),
        _ => identity("evil", "till", "payments.create", "k"),
    }
}

/// One step of a script. `holder` is the number of an earlier claim.
#[derive(Clone, Debug)]
pub(super) enum Step {
    Claim {
        key: usize,
        request: u8,
        choices: TermsChoice,
    },
    ClaimAgain {
        holder: usize,
    },
    Withdraw {
        holder: usize,
    },
    Renew {
        holder: usize,
    },
    Settle {
        holder: usize,
        outcome: OutcomeChoice,
    },
    Find {
        holder: usize,
    },
    Show {
        holder: usize,
    },
    Touch {
        key: usize,
    },
    Enqueue {
        key: usize,
        request: u8,
        choices: TermsChoice,
        delay: Duration,
    },
    EnqueueAgain {
        holder: usize,
        delay: Duration,
    },
    Due {
        limit: usize,
    },
    List {
        choice: FilterChoice,
        limit: usize,
    },
    Purge {
        target: Target,
        force: Force,
    },
    Resolve {
        target: Target,
        outcome: OutcomeChoice,
    },
    Resume {
        target: Target,
    },
    Redeliver {
        target: Target,
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
    /// How many holders it adds. How much work is due is not known beforehand, so
    /// such a step adds as many as its limit.
    fn adds(&self) -> usize {
        match self {
            Self::Claim { .. } | Self::Enqueue { .. } => 1,
            Self::Due { limit } => *limit,
            _ => 0,
        }
    }

    /// The holder that the step needs.
    fn needs(&self) -> Option<usize> {
        match self {
            Self::ClaimAgain { holder }
            | Self::Withdraw { holder }
            | Self::Renew { holder }
            | Self::Settle { holder, .. }
            | Self::Find { holder }
            | Self::Show { holder }
            | Self::EnqueueAgain { holder, .. } => Some(*holder),
            Self::Purge { target, .. }
            | Self::Resolve { target, .. }
            | Self::Resume { target }
            | Self::Redeliver { target } => match target {
                Target::Of(holder) => Some(*holder),
                Target::OnRecord(_) => None,
            },
            _ => None,
        }
    }
}

/// The operation that an operator changes.
#[derive(Clone, Copy, Debug)]
pub(super) enum Target {
    /// The one that is on record under this key.
    OnRecord(usize),
    /// The one of this holder. Its key may have been forgotten and run again since.
    Of(usize),
}

/// The terms of a claim that a script varies.
#[derive(Clone, Copy, Debug)]
pub(super) struct TermsChoice {
    after_loss: AfterLoss,
    ttl_basis: TtlBasis,
    expiry: Expiry,
    keep_expired: Duration,
}

impl TermsChoice {
    /// The default terms.
    pub(super) const PLAIN: Self = Self {
        after_loss: AfterLoss::Hold,
        ttl_basis: TtlBasis::Completion,
        expiry: Expiry::Strict,
        keep_expired: Duration::ZERO,
    };

    /// The terms of a claim with this lease.
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

/// An outcome, as a holder or an operator reports it.
#[derive(Clone, Copy, Debug)]
pub(super) enum OutcomeChoice {
    Kept(u16),
    NotKept(u16),
    Released,
    Requeued(Duration),
    Deferred(Duration),
    Lost,
    Paused,
}

impl OutcomeChoice {
    /// The settlement by this holder. The reply contains its number, so that the
    /// replies of two holders differ.
    pub(super) fn settlement(self, holder: usize) -> Settlement {
        let outcome = |status, answer| match State::of_status(status) {
            State::Failed => Settlement::Failed(answer),
            _ => Settlement::Completed(answer),
        };
        match self {
            Self::Kept(status) => outcome(
                status,
                Answer::Kept(reply(status, format!("reply {holder}"))),
            ),
            Self::NotKept(status) => outcome(status, Answer::NotKept { status }),
            Self::Released => Settlement::Released,
            Self::Requeued(after) => Settlement::Requeued { after },
            Self::Deferred(after) => Settlement::Deferred { after },
            Self::Lost => Settlement::Lost,
            Self::Paused => Settlement::Paused,
        }
    }

    /// The resolution by an operator: it ran, or it did not.
    pub(super) fn resolution(self) -> Resolution {
        match self {
            Self::Kept(status) | Self::NotKept(status) => Resolution::Ran(reply(status, "found")),
            _ => Resolution::NotRun,
        }
    }
}

/// The filter of a listing.
#[derive(Clone, Copy, Debug)]
pub(super) enum FilterChoice {
    All,
    Tenant,
    Project,
    Endpoint,
    Key,
    State(State),
    Since(Duration),
    Before(Duration),
}

impl FilterChoice {
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

/// The scripts as a state machine whose state is the number of holders.
pub(super) struct Script;

impl ReferenceStateMachine for Script {
    type State = usize;
    type Transition = Step;

    fn init_state() -> BoxedStrategy<usize> {
        Just(0).boxed()
    }

    fn transitions(holders: &usize) -> BoxedStrategy<Step> {
        match *holders {
            0 => independent(),
            holders => prop_oneof![3 => independent(), 4 => by_holder(holders)].boxed(),
        }
    }

    fn preconditions(holders: &usize, step: &Step) -> bool {
        step.needs().is_none_or(|holder| holder < *holders)
    }

    fn apply(holders: usize, step: &Step) -> usize {
        holders + step.adds()
    }
}

/// The steps that need no earlier claim.
fn independent() -> BoxedStrategy<Step> {
    let claim =
        (key(), request(), terms_choice()).prop_map(|(key, request, choices)| Step::Claim {
            key,
            request,
            choices,
        });
    let enqueue =
        (key(), request(), terms_choice(), delay()).prop_map(|(key, request, choices, delay)| {
            Step::Enqueue {
                key,
                request,
                choices,
                delay,
            }
        });
    let target = || key().prop_map(Target::OnRecord);
    Union::new_weighted(vec![
        (8, claim.boxed()),
        (4, enqueue.boxed()),
        (
            4,
            (1..=DUE_MAX).prop_map(|limit| Step::Due { limit }).boxed(),
        ),
        (
            2,
            (filter_choice(), 1..6_usize)
                .prop_map(|(choice, limit)| Step::List { choice, limit })
                .boxed(),
        ),
        (
            1,
            (target(), force())
                .prop_map(|(target, force)| Step::Purge { target, force })
                .boxed(),
        ),
        (
            2,
            (target(), outcome())
                .prop_map(|(target, outcome)| Step::Resolve { target, outcome })
                .boxed(),
        ),
        (
            2,
            target().prop_map(|target| Step::Resume { target }).boxed(),
        ),
        (
            3,
            target()
                .prop_map(|target| Step::Redeliver { target })
                .boxed(),
        ),
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

/// The steps of an earlier holder.
fn by_holder(holders: usize) -> BoxedStrategy<Step> {
    let holder = || prop_oneof![3 => holders.saturating_sub(3)..holders, 1 => 0..holders];
    let target = || holder().prop_map(Target::Of);
    prop_oneof![
        6 => (holder(), outcome()).prop_map(|(holder, outcome)| Step::Settle { holder, outcome }),
        2 => holder().prop_map(|holder| Step::Renew { holder }),
        2 => holder().prop_map(|holder| Step::ClaimAgain { holder }),
        1 => holder().prop_map(|holder| Step::Withdraw { holder }),
        1 => holder().prop_map(|holder| Step::Find { holder }),
        1 => holder().prop_map(|holder| Step::Show { holder }),
        1 => (holder(), delay()).prop_map(|(holder, delay)| Step::EnqueueAgain { holder, delay }),
        2 => (target(), force()).prop_map(|(target, force)| Step::Purge { target, force }),
        1 => (target(), outcome()).prop_map(|(target, outcome)| Step::Resolve { target, outcome }),
        1 => target().prop_map(|target| Step::Redeliver { target }),
    ]
    .boxed()
}

fn key() -> impl Strategy<Value = usize> {
    // The first key most often: the fewer keys, the more conflicts.
    prop_oneof![3 => Just(0), 2 => 0..KEYS]
}

fn force() -> impl Strategy<Value = Force> {
    prop_oneof![Just(Force::No), Just(Force::Yes)]
}

fn request() -> impl Strategy<Value = u8> {
    prop_oneof![4 => Just(1), 1 => Just(2)]
}

fn terms_choice() -> impl Strategy<Value = TermsChoice> {
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
        .prop_map(
            |(after_loss, ttl_basis, expiry, keep_expired)| TermsChoice {
                after_loss,
                ttl_basis,
                expiry,
                keep_expired,
            },
        )
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

fn outcome() -> impl Strategy<Value = OutcomeChoice> {
    prop_oneof![
        3 => prop::sample::select(vec![200, 201, 422]).prop_map(OutcomeChoice::Kept),
        1 => prop::sample::select(vec![200, 422]).prop_map(OutcomeChoice::NotKept),
        2 => Just(OutcomeChoice::Released),
        1 => delay().prop_map(OutcomeChoice::Requeued),
        1 => delay().prop_map(OutcomeChoice::Deferred),
        3 => Just(OutcomeChoice::Lost),
        2 => Just(OutcomeChoice::Paused),
    ]
}

fn filter_choice() -> impl Strategy<Value = FilterChoice> {
    prop_oneof![
        Just(FilterChoice::All),
        Just(FilterChoice::Tenant),
        Just(FilterChoice::Project),
        Just(FilterChoice::Endpoint),
        Just(FilterChoice::Key),
        prop::sample::select(State::ALL.to_vec()).prop_map(FilterChoice::State),
        span().prop_map(FilterChoice::Since),
        span().prop_map(FilterChoice::Before),
    ]
}
