//! Settings of retention classes, in the file and in the admin API.
//!
//! A setting that is not given is that of the base class: `interactive`, the
//! built-in class of the same name, or the class that is being changed.

use std::fmt;
use std::time::Duration;

use onceward_core::class::{
    Backoff, Class, Expiry, InFlight, OnError, OnExhausted, OnMismatch, OnStoreFailure, OnUnknown,
    TtlBasis,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Config;
use super::mistake::Mistake;
use super::units::{Time, UnitError};
use super::words::Word;

/// The largest number of attempts of one operation.
const ATTEMPTS_MAX: u32 = 1000;
/// The longest wait of a duplicate.
const WAIT_MAX: Duration = Duration::from_secs(60 * 60);

/// How long replies and keys are kept, and how duplicates, errors and unknown outcomes are handled.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ClassSettings {
    /// How long a reply is kept. Default: 24h.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retention: Option<Time>,
    /// How long a key is remembered; not less than retention. When the reply is gone, a late retry is refused with 410 and does not run again. Default: retention.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remember: Option<Time>,
    /// How long a claim lasts without renewal; at least the upstream's timeout. Default: 60s.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lease: Option<Time>,
    /// What a duplicate receives while the first request is running. Default: wait.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub in_flight: Option<Word<InFlight>>,
    /// The longest wait of a duplicate. Default: 30s.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wait: Option<Time>,
    /// What a different request with the same key receives. Default: 422.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mismatch: Option<Word<OnMismatch>>,
    /// What happens to an operation that may have run. Default: hold.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub on_unknown: Option<Word<OnUnknown>>,
    /// The URL for on_unknown = "reconcile". Default: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reconcile_url: Option<String>,
    /// How often the gateway itself runs an operation within one claim. Default: 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = ATTEMPTS_MAX))]
    pub max_attempts: Option<u32>,
    /// How long the gateway rests between its own attempts: the first pause, or the first and the longest. Default: 500ms, doubling up to 60s.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backoff: Option<BackoffSettings>,
    /// What happens to an operation whose attempts are used up. Default: pause.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub on_exhausted: Option<Word<OnExhausted>>,
    /// What an answered 500, or another 5xx but 501 to 504, means for the key. Default: release.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub on_error: Option<Word<OnError>>,
    /// What happens to requests while the store is unavailable. Default: reject.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub on_store_failure: Option<Word<OnStoreFailure>>,
    /// When retention begins. Default: completion.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ttl_basis: Option<Word<TtlBasis>>,
    /// Whether a reply is gone when its retention is over, or when it is swept after that. Default: strict.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expiry: Option<Word<Expiry>>,
    /// How long operators can still see the operation, without its reply, after its key is forgotten. Default: 0s.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub keep_expired: Option<Time>,
}

/// How long the gateway rests between its own attempts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum BackoffSettings {
    /// The first pause; the longest stays as it is.
    First(Time),
    /// The first pause and the longest.
    Both(BackoffRange),
}

/// The first pause and the longest.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct BackoffRange {
    /// Before the second attempt. Default: 500ms.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first: Option<Time>,
    /// Before any attempt. Default: 60s.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max: Option<Time>,
}

impl ClassSettings {
    /// All settings of a class, in the words of the file.
    pub fn of(class: &Class) -> Self {
        Self {
            retention: Some(Time::of(class.retention)),
            remember: Some(Time::of(class.remember)),
            lease: Some(Time::of(class.lease)),
            in_flight: Some(Word(class.in_flight)),
            wait: Some(Time::of(class.wait)),
            mismatch: Some(Word(class.mismatch)),
            on_unknown: Some(Word(class.on_unknown)),
            reconcile_url: class.reconcile_url.as_deref().map(ToOwned::to_owned),
            max_attempts: Some(class.max_attempts),
            backoff: Some(BackoffSettings::Both(BackoffRange {
                first: Some(Time::of(class.backoff.first)),
                max: Some(Time::of(class.backoff.max)),
            })),
            on_exhausted: Some(Word(class.on_exhausted)),
            on_error: Some(Word(class.on_error)),
            on_store_failure: Some(Word(class.on_store_failure)),
            ttl_basis: Some(Word(class.ttl_basis)),
            expiry: Some(Word(class.expiry)),
            keep_expired: Some(Time::of(class.keep_expired)),
        }
    }
}

/// Builds a class from `base` and the settings in `raw`. The keys of mistakes are
/// relative to the class: `retention`.
pub fn build_class(name: &str, raw: &ClassSettings, base: &Class) -> Result<Class, Vec<Mistake>> {
    let mut mistakes = Vec::new();
    let mut time = |key, raw: &Option<Time>, base| match raw {
        None => base,
        Some(text) => parse_time(key, text).unwrap_or_else(|mistake| {
            mistakes.push(mistake);
            base
        }),
    };
    let retention = time("retention", &raw.retention, base.retention);
    // A key whose `remember` was set is not forgotten sooner because replies
    // expire sooner.
    let follows = match !base.remember_chosen && base.remember == base.retention {
        true => retention,
        false => base.remember.max(retention),
    };
    let remember = time("remember", &raw.remember, follows);
    let lease = time("lease", &raw.lease, base.lease);
    let wait = time("wait", &raw.wait, base.wait);
    let keep_expired = time("keep_expired", &raw.keep_expired, base.keep_expired);
    let backoff = match &raw.backoff {
        None => base.backoff,
        Some(BackoffSettings::First(first)) => {
            let first = time("backoff", &Some(first.clone()), base.backoff.first);
            Backoff::new(first, base.backoff.max.max(first))
        }
        Some(BackoffSettings::Both(rests)) => {
            let first = time("backoff.first", &rests.first, base.backoff.first);
            let max = time("backoff.max", &rests.max, base.backoff.max.max(first));
            Backoff::new(first, max)
        }
    };
    let class = base.clone().with(|class| {
        class.name = name.into();
        class.retention = retention;
        class.remember = remember;
        class.remember_chosen |= raw.remember.is_some();
        class.lease = lease;
        class.in_flight = raw.in_flight.map_or(base.in_flight, |word| word.0);
        class.wait = wait;
        class.mismatch = raw.mismatch.map_or(base.mismatch, |word| word.0);
        class.on_unknown = raw.on_unknown.map_or(base.on_unknown, |word| word.0);
        if let Some(url) = &raw.reconcile_url {
            class.reconcile_url = Some(url.as_str().into());
        }
        class.max_attempts = raw.max_attempts.unwrap_or(base.max_attempts);
        class.backoff = backoff;
        class.on_exhausted = raw.on_exhausted.map_or(base.on_exhausted, |word| word.0);
        class.on_error = raw.on_error.map_or(base.on_error, |word| word.0);
        let on_store_failure = raw.on_store_failure.map(|word| word.0);
        class.on_store_failure = on_store_failure.unwrap_or(base.on_store_failure);
        class.ttl_basis = raw.ttl_basis.map_or(base.ttl_basis, |word| word.0);
        class.expiry = raw.expiry.map_or(base.expiry, |word| word.0);
        class.keep_expired = keep_expired;
    });
    check_consistency(&class, &mut mistakes);
    match mistakes.is_empty() {
        true => Ok(class),
        false => Err(mistakes),
    }
}

/// Checks settings of one class against each other.
fn check_consistency(class: &Class, mistakes: &mut Vec<Mistake>) {
    let mut wrong = |key: &str, problem: String, right: &str| {
        // A value that is not a duration has already been reported.
        if !mistakes.iter().any(|known| known.key == key) {
            mistakes.push(Mistake::given(key, problem, right.to_owned()));
        }
    };
    for (key, time) in [
        ("retention", class.retention),
        ("lease", class.lease),
        ("backoff.first", class.backoff.first),
    ] {
        if time.is_zero() {
            wrong(key, "is zero".to_owned(), "write a duration above zero");
        }
    }
    if class.remember < class.retention {
        let problem = format!(
            "{} is shorter than the retention of {}",
            Time::of(class.remember).0,
            Time::of(class.retention).0
        );
        wrong("remember", problem, "write the retention or longer");
    }
    if class.wait > WAIT_MAX {
        let problem = format!("{} is too long for a request", Time::of(class.wait).0);
        wrong("wait", problem, "write 1h or less");
    }
    if class.backoff.max < class.backoff.first {
        let problem = format!(
            "{} is shorter than the first pause of {}",
            Time::of(class.backoff.max).0,
            Time::of(class.backoff.first).0
        );
        wrong("backoff.max", problem, "write the first pause or longer");
    }
    if class.max_attempts == 0 || class.max_attempts > ATTEMPTS_MAX {
        let problem = format!("{} attempts are not possible", class.max_attempts);
        wrong("max_attempts", problem, "write a number from 1 to 1000");
    }
    match &class.reconcile_url {
        None if class.on_unknown == OnUnknown::Reconcile => wrong(
            "on_unknown",
            "requires reconcile_url".to_owned(),
            "add reconcile_url = \"https://…\", or write on_unknown = \"hold\"",
        ),
        Some(url) => {
            if let Err(problem) = super::url::web(url) {
                wrong("reconcile_url", problem.to_string(), problem.right());
            }
        }
        None => {}
    }
}

/// The conflict of a class with the routes that use it: a lease must be at least as
/// long as the upstream's timeout. The key of the mistake is relative to the class.
pub(super) fn find_conflict(class: &Class, config: &Config) -> Option<Mistake> {
    let (user, timeout) = find_slowest_user(class, config)?;
    find_short_lease(class, timeout, &format!("the upstream of {user}"))
}

/// The mistake of a lease that is shorter than an upstream may take.
pub(crate) fn find_short_lease(
    class: &Class,
    timeout: Duration,
    upstream: &str,
) -> Option<Mistake> {
    let [lease, longest] = [class.lease, timeout].map(|time| Time::of(time).0);
    (class.lease < timeout).then(|| {
        let problem = format!(
            "{lease} is shorter than the {longest} that {upstream} may take, so a running request could be treated as lost"
        );
        Mistake::given("lease", problem, format!("write {longest} or longer"))
    })
}

/// The user of a class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ClassUser {
    /// The route with this index.
    Route(usize),
    /// The webhooks.
    Webhooks,
}

impl fmt::Display for ClassUser {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Route(at) => write!(f, "routes[{at}]"),
            Self::Webhooks => f.write_str("webhooks"),
        }
    }
}

/// The user of this class with the longest upstream timeout, and that timeout.
pub(super) fn find_slowest_user(class: &Class, config: &Config) -> Option<(ClassUser, Duration)> {
    let timeout = |name| Some(config.upstreams.get(name)?.timeout);
    let routes = config.routes.iter().enumerate();
    let routes = routes
        .filter(|(_, route)| route.class == class.name)
        .filter_map(|(at, route)| {
            let timeout = route.timeout.or_else(|| timeout(&route.upstream))?;
            Some((ClassUser::Route(at), timeout))
        });
    let webhooks = Some(&config.webhooks).filter(|webhooks| webhooks.class == class.name);
    let webhooks = webhooks.and_then(|webhooks| timeout(webhooks.upstream.as_ref()?));
    let webhooks = webhooks.map(|timeout| (ClassUser::Webhooks, timeout));
    webhooks
        .into_iter()
        .chain(routes)
        .max_by_key(|(_, timeout)| *timeout)
}

fn parse_time(key: &str, text: &Time) -> Result<Duration, Mistake> {
    text.parse().map_err(|error| {
        let problem = format!("{:?} {error}", text.0);
        let right = match error {
            UnitError::TooLarge => "write ten years or less",
            _ => "write a duration such as \"30s\", \"1h30m\" or \"7d\"",
        };
        Mistake::given(key, problem, right.to_owned())
    })
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn changed(toml: &str, base: &Class) -> Result<Class, Vec<String>> {
        let raw: ClassSettings = toml::from_str(toml).expect("the words are known");
        build_class("mine", &raw, base)
            .map_err(|mistakes| mistakes.iter().map(ToString::to_string).collect())
    }

    #[rstest]
    #[case(Class::interactive())]
    #[case(Class::webhook())]
    #[case(Class::financial())]
    fn the_settings_of_a_class_build_it_again(#[case] built_in: Class) {
        let raw = ClassSettings::of(&built_in);
        let all_chosen = built_in.with(|class| class.remember_chosen = true);
        assert_eq!(
            build_class(&all_chosen.name, &raw, &Class::interactive()),
            Ok(all_chosen.clone())
        );
    }

    #[rstest]
    #[case::remember_follows("retention = '1h'", "interactive", 3600, 3600)]
    #[case::remember_stays("retention = '8d'", "financial", 8 * 86_400, 30 * 86_400)]
    #[case::remember_grows("retention = '60d'", "financial", 60 * 86_400, 60 * 86_400)]
    #[case::remember_said("remember = '2d'", "interactive", 86_400, 2 * 86_400)]
    fn remember(#[case] toml: &str, #[case] base: &str, #[case] kept: u64, #[case] known: u64) {
        let base = match base {
            "financial" => Class::financial(),
            _ => Class::interactive(),
        };
        let class = changed(toml, &base).expect("right");
        assert_eq!(class.retention.as_secs(), kept);
        assert_eq!(class.remember.as_secs(), known);
    }

    #[rstest]
    #[case::never_said("retention = '2d'", 3600)]
    #[case::said("remember = '24h'", 86_400)]
    #[case::said_with_retention("retention = '2d'\nremember = '2d'", 2 * 86_400)]
    fn a_shorter_retention_shortens_only_a_default_remember(
        #[case] file: &str,
        #[case] known: u64,
    ) {
        let of_the_file = changed(file, &Class::interactive()).expect("right");
        let class = changed("retention = '1h'", &of_the_file).expect("right");
        assert_eq!(class.retention.as_secs(), 3600);
        assert_eq!(class.remember.as_secs(), known);
    }

    #[rstest]
    #[case::both("retention = '1x'\nlease = '0s'", &[
        "retention: \"1x\" has an unknown unit; write a duration such as \"30s\", \"1h30m\" or \"7d\"",
        "lease: is zero; write a duration above zero",
    ])]
    #[case::forgotten_too_soon("remember = '1h'", &[
        "remember: 1h is shorter than the retention of 24h; write the retention or longer",
    ])]
    #[case::nobody_to_ask("on_unknown = 'reconcile'", &[
        "on_unknown: requires reconcile_url; add reconcile_url = \"https://…\", or write on_unknown = \"hold\"",
    ])]
    #[case::rests("backoff = { first = '10s', max = '1s' }", &[
        "backoff.max: 1s is shorter than the first pause of 10s; write the first pause or longer",
    ])]
    #[case::attempts("max_attempts = 0", &[
        "max_attempts: 0 attempts are not possible; write a number from 1 to 1000",
    ])]
    fn mistakes(#[case] toml: &str, #[case] want: &[&str]) {
        assert_eq!(
            changed(toml, &Class::interactive()).expect_err("wrong"),
            want
        );
    }
}
