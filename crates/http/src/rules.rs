//! The settings of a route beside its class: everything that
//! [`run`](crate::run::run) needs to know of it.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use onceward_core::class::OnError;
use onceward_core::classify::{Hint, Meaning, classify, classify_event};
use onceward_core::fingerprint::Selection;
use onceward_core::identity::KeySpace;

/// Whether the credentials of a request are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Credentials {
    /// Yes: they were not checked, and one client must not read another's reply.
    Compared,
    /// No: the caller was authenticated, and tokens change between retries.
    Trusted,
}

/// Whether the Host of a request is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hosts {
    /// Yes: the service learns the client's Host, in some header, and may serve
    /// several virtual hosts, which never share a reply.
    Compared,
    /// No: the service answers alike under every Host.
    Ignored,
}

/// Which answers are final and kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum FinalAnswers {
    /// Those of [`classify`], and those of the route's own statuses.
    #[default]
    ByStatus,
    /// Those of [`classify_event`], because the sender repeats what was not
    /// accepted; server errors go by the class.
    Accepted,
}

/// The status of a replayed 201.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DuplicateCreate {
    /// The same status as the first time.
    #[default]
    Same,
    /// 200, for clients that expect it for a resource that exists.
    Ok,
}

impl DuplicateCreate {
    /// Every choice.
    pub const ALL: [Self; 2] = [Self::Same, Self::Ok];

    /// The word in configurations and documents.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Same => "same",
            Self::Ok => "200",
        }
    }
}

/// The settings of a route.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Rules {
    /// Whether credentials are compared.
    pub credentials: Credentials,
    /// Whether the Host is compared.
    pub hosts: Hosts,
    /// How far a key is unique.
    pub space: KeySpace,
    /// Whether the route serves many paths under one name. Then an operation is
    /// recovered beneath its own path only.
    pub many_paths: bool,
    /// Which parts of a request are compared.
    pub selection: Arc<Selection>,
    /// How long the upstream may take for its head, then for a body that is
    /// kept; and how long it may pause within one that streams.
    pub upstream_timeout: Duration,
    /// The largest reply that is kept, in bytes.
    pub reply_limit: usize,
    /// Which answers are final.
    pub final_answers: FinalAnswers,
    /// Statuses that are kept, instead of the default.
    pub keep: BTreeSet<u16>,
    /// Statuses that free the key, instead of the default.
    pub release: BTreeSet<u16>,
    /// The status of a replayed 201.
    pub duplicate_create: DuplicateCreate,
    /// Whether the upstream commits the outcome itself, in one transaction with
    /// its own rows; see [`joined`](crate::joined).
    pub joined: bool,
}

impl Rules {
    /// The default rules.
    pub fn new(credentials: Credentials) -> Self {
        Self {
            credentials,
            hosts: Hosts::Compared,
            space: KeySpace::Endpoint,
            many_paths: false,
            selection: Arc::default(),
            upstream_timeout: Duration::from_secs(30),
            reply_limit: 1 << 20,
            final_answers: FinalAnswers::ByStatus,
            keep: BTreeSet::new(),
            release: BTreeSet::new(),
            duplicate_create: DuplicateCreate::Same,
            joined: false,
        }
    }

    /// The same rules with changes:
    /// `Rules::new(credentials).with(|rules| rules.joined = true)`.
    #[must_use]
    pub fn with(mut self, change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        self
    }

    /// The meaning of an answer: by the upstream's hint, else by the route's
    /// statuses, else by its status and the class's `on_error`. An event is not
    /// lost to a refusal.
    pub(crate) fn classify(&self, status: u16, hint: Option<Hint>, on_error: OnError) -> Meaning {
        if self.final_answers == FinalAnswers::Accepted {
            return match (hint, status) {
                // A service that acts and then fails is no safer in a webhook.
                (None, 500..=599) => classify(status, None, on_error),
                _ => classify_event(status, hint),
            };
        }
        let on_error = match self.joined {
            // The record shows whether the application did its work: an error
            // without a commit means that nothing was done.
            true => OnError::Release,
            false => on_error,
        };
        match hint {
            None if self.keep.contains(&status) => Meaning::Keep,
            None if self.release.contains(&status) => Meaning::Release,
            hint => classify(status, hint, on_error),
        }
    }
}

/// Where a key came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeySource {
    /// The client sent it.
    Header,
    /// It was made of parts of the request, for clients that send none.
    Derived {
        /// How long such an operation is remembered.
        window: Duration,
    },
    /// A provider's id of an event, verified by its signature. Only the id is
    /// compared: providers may render the same event differently over time.
    Provider,
}
