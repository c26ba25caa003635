//! Settings whose value is one of a few words. Each enum is defined once: the raw
//! and the checked configuration use the same type, and so do the admin API and
//! the JSON Schema.
//!
//! The gateway's own enums are here. Those of `onceward_core` and
//! `onceward_http` do not know serde; [`Word`] reads and writes them by their
//! `as_str`.

use std::borrow::Cow;

use onceward_core::caller::SubjectKind;
use onceward_core::class::{
    Expiry, InFlight, OnError, OnExhausted, OnMismatch, OnStoreFailure, OnUnknown, TtlBasis,
};
use onceward_core::identity::KeySpace;
use onceward_http::rules::DuplicateCreate;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::json;

/// What an operator may do. Each role includes the roles before it.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Read everything.
    Read,
    /// Also purge, resolve, resume and redeliver operations.
    Operate,
    /// Also change classes, keys and webhooks, and reload the configuration.
    Admin,
}

impl Role {
    /// The word in the file, in the audit log and in the API.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Operate => "operate",
            Self::Admin => "admin",
        }
    }
}

/// What a key means on a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum Policy {
    /// The sender must send a key.
    RequiredA,
    /// The gateway takes the key from what a provider sends.
    RequiredB,
    /// The sender may send a key.
    Accepted,
    /// The upstream's handler sees to idempotency; the header is ignored.
    HandlerInternalC,
    /// The sender must not send a key.
    Prohibited,
}

impl Policy {
    /// Every policy.
    pub const ALL: [Self; 5] = [
        Self::RequiredA,
        Self::RequiredB,
        Self::Accepted,
        Self::HandlerInternalC,
        Self::Prohibited,
    ];

    /// The word in the file, in logs and in the published policy.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::RequiredA => "REQUIRED_A",
            Self::RequiredB => "REQUIRED_B",
            Self::Accepted => "ACCEPTED",
            Self::HandlerInternalC => "HANDLER_INTERNAL_C",
            Self::Prohibited => "PROHIBITED",
        }
    }

    /// The case of the policy in logs and metrics: A, B or C.
    pub fn case(self) -> &'static str {
        match self {
            Self::RequiredA | Self::Accepted | Self::Prohibited => "A",
            Self::RequiredB => "B",
            Self::HandlerInternalC => "C",
        }
    }
}

/// Whose keys a route's keys are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Scope {
    /// Those of the caller's project.
    Project,
    /// Those of the caller's tenant, above its projects.
    Tenant,
    /// Those of the platform's operators.
    Platform,
}

impl Scope {
    /// The name that stands in place of a project, where the scope is wider.
    pub fn sentinel(self) -> Option<&'static str> {
        match self {
            Self::Project => None,
            Self::Tenant => Some("_tenant"),
            Self::Platform => Some("_platform"),
        }
    }
}

/// How a caller is authenticated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum KnownBy {
    /// By an API key of this gateway.
    #[serde(rename = "api_keys")]
    ApiKey,
    /// By a token of an issuer.
    Jwt,
    /// By a key of Unkey.
    Unkey,
    /// By the signature of the scheduler.
    Scheduler,
}

/// The format of a key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum KeyFormat {
    /// 1 to 255 characters of A-Z a-z 0-9 . _ ~ -
    #[default]
    Any,
    /// A UUID, hyphens included.
    Uuid,
    /// A ULID.
    Ulid,
}

/// The key that the upstream receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ForwardKey {
    /// The namespaced name of the key.
    Namespaced,
    /// The key that the client sent.
    Raw,
    /// None.
    None,
}

/// How keys are written to logs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum LoggedKeys {
    /// As a keyed hash.
    #[default]
    Hashed,
    /// As they are.
    Clear,
}

/// What happens to an event with the bytes of an earlier one and a new id that
/// is not signed: a second event that looks the same, or a captured request that
/// is sent again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum SameBytes {
    /// It is delivered, marked and counted.
    Deliver,
    /// It is acknowledged and not delivered.
    Refuse,
}

impl SameBytes {
    /// Every choice.
    pub const ALL: [Self; 2] = [Self::Deliver, Self::Refuse];

    /// The word in the file and in documents.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Deliver => "deliver",
            Self::Refuse => "refuse",
        }
    }

    /// The choice with this word.
    pub fn parse(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|one| one.as_str() == word)
    }
}

/// When an event is forwarded to its upstream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Deliver {
    /// After it was recorded and acknowledged.
    Async,
    /// Within the provider's request; the upstream's response is the response.
    Sync,
}

impl Deliver {
    /// Every choice.
    pub const ALL: [Self; 2] = [Self::Async, Self::Sync];

    /// The word in the file and in documents.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Async => "async",
            Self::Sync => "sync",
        }
    }

    /// The choice with this word.
    pub fn parse(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|one| one.as_str() == word)
    }
}

/// An enum of another crate whose values have words.
pub trait Choice: Copy + 'static {
    /// The name of its definition in the JSON Schema.
    const NAME: &'static str;
    /// What it chooses.
    const ABOUT: &'static str;
    /// Every value with its description.
    const VALUES: &'static [(Self, &'static str)];

    /// The word of a value.
    fn word(self) -> &'static str;
}

/// A [`Choice`] in the file, in the admin API and in the JSON Schema.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Word<T>(pub T);

impl<T: Choice> Serialize for Word<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.0.word())
    }
}

impl<'de, T: Choice> Deserialize<'de> for Word<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Cow::<str>::deserialize(deserializer)?;
        let mut values = T::VALUES.iter().map(|(value, _)| *value);
        let found = values.find(|value| value.word() == text);
        found.map(Self).ok_or_else(|| {
            let words = T::VALUES
                .iter()
                .map(|(value, _)| format!("`{}`", value.word()));
            let words = words.collect::<Vec<_>>().join(", ");
            D::Error::custom(format!("unknown value `{text}`, expected one of {words}"))
        })
    }
}

impl<T: Choice> JsonSchema for Word<T> {
    fn schema_name() -> Cow<'static, str> {
        T::NAME.into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        let values = T::VALUES.iter().map(|(value, about)| {
            json!({ "type": "string", "const": value.word(), "description": about })
        });
        json_schema!({
            "description": T::ABOUT,
            "oneOf": values.collect::<Vec<_>>(),
        })
    }
}

macro_rules! choice {
    ($name:ident: $about:literal { $($variant:ident: $description:literal),+ $(,)? }) => {
        impl Choice for $name {
            const NAME: &'static str = stringify!($name);
            const ABOUT: &'static str = $about;
            const VALUES: &'static [(Self, &'static str)] =
                &[$((Self::$variant, $description)),+];

            fn word(self) -> &'static str {
                self.as_str()
            }
        }
    };
}

choice! {
    InFlight: "What a duplicate receives while the first request is running." {
        Wait: "It waits for the reply.",
        Reject: "409 at once.",
        Accept: "202, with the URL of the status.",
    }
}
choice! {
    OnMismatch: "What a different request with the same key receives." {
        Unprocessable: "422.",
        Conflict: "409.",
        Replay: "The stored reply all the same.",
    }
}
choice! {
    OnUnknown: "What happens to an operation that may have run." {
        Hold: "It stays unknown until an operator resolves it.",
        Retry: "The next request runs it again.",
        Reconcile: "The gateway asks reconcile_url first.",
    }
}
choice! {
    OnError: "What an answered 500, or another 5xx except 501 to 504, means for the key." {
        Release: "The key is free: a retry runs again.",
        Unknown: "The operation may have run: later requests receive 409 outcome-unknown.",
        Keep: "The response is kept and replayed.",
    }
}
choice! {
    OnExhausted: "What happens to an operation whose attempts are used up." {
        Pause: "It waits for an operator.",
        Kill: "The key is free, and the last response is the response.",
    }
}
choice! {
    OnStoreFailure: "What happens to requests while the store is unavailable." {
        Reject: "They receive 503, and nothing is forwarded.",
        Bypass: "They are forwarded unprotected, and the response says so.",
    }
}
choice! {
    TtlBasis: "When retention begins." {
        Completion: "When the reply is recorded.",
        Creation: "When the operation is first claimed.",
        Access: "When the reply was last replayed.",
    }
}
choice! {
    Expiry: "When a reply is gone." {
        Strict: "When its retention is over.",
        Lazy: "When it is swept after that.",
    }
}
choice! {
    KeySpace: "Where a key is unique." {
        Endpoint: "The same key on another endpoint is another operation.",
        Project: "A caller's key is unique in the project.",
        Tenant: "A caller's key is unique in the tenant.",
    }
}
choice! {
    SubjectKind: "The kind of a subject." {
        User: "A person.",
        Service: "A program.",
        TenantMember: "A person as a member of the tenant.",
        Client: "An application that acts for itself.",
    }
}
choice! {
    DuplicateCreate: "The status of a replayed 201." {
        Same: "201 again.",
        Ok: "200, for clients that expect it.",
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Debug;

    use rstest::rstest;
    use serde_json::{from_value, to_value};

    use super::*;

    fn lists_all<T: Choice + Debug + PartialEq>(all: &[T]) {
        let listed: Vec<_> = T::VALUES.iter().map(|(value, _)| *value).collect();
        assert_eq!(listed, all, "{}", T::NAME);
    }

    #[test]
    fn every_value_of_another_crate_is_listed() {
        lists_all(InFlight::ALL);
        lists_all(OnMismatch::ALL);
        lists_all(OnUnknown::ALL);
        lists_all(OnError::ALL);
        lists_all(OnExhausted::ALL);
        lists_all(OnStoreFailure::ALL);
        lists_all(TtlBasis::ALL);
        lists_all(Expiry::ALL);
        lists_all(&KeySpace::ALL);
        lists_all(&SubjectKind::ALL);
        lists_all(&DuplicateCreate::ALL);
    }

    #[rstest]
    #[case(Role::Read, Role::as_str)]
    #[case(Role::Operate, Role::as_str)]
    #[case(Role::Admin, Role::as_str)]
    #[case(Policy::RequiredA, Policy::as_str)]
    #[case(Policy::HandlerInternalC, Policy::as_str)]
    #[case(Policy::Prohibited, Policy::as_str)]
    #[case(SameBytes::Refuse, SameBytes::as_str)]
    #[case(Deliver::Async, Deliver::as_str)]
    #[case(Word(OnMismatch::Conflict), |word: Word<OnMismatch>| word.0.as_str())]
    fn what_is_written_is_read_back<T>(#[case] value: T, #[case] word: fn(T) -> &'static str)
    where
        T: Copy + Debug + PartialEq + Serialize + for<'de> Deserialize<'de>,
    {
        let written = to_value(value).expect("a string");
        assert_eq!(written, word(value));
        assert_eq!(from_value::<T>(written).expect("the same"), value);
    }

    #[test]
    fn an_unknown_word_is_named_with_the_known_ones() {
        let error = from_value::<Word<OnUnknown>>("hope".into()).expect_err("unknown");
        assert_eq!(
            error.to_string(),
            "unknown value `hope`, expected one of `hold`, `retry`, `reconcile`"
        );
    }
}
