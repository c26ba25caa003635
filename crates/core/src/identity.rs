//! The identity of an operation: caller, endpoint and key, or fewer parts where a
//! route's keys are unique in a larger space.
//!
//! Stores find an operation by a digest over the length-prefixed parts, never
//! by joined strings; people and upstreams see the namespaced name, whose parts
//! are percent-encoded so that two different callers never share one.

use std::fmt;
use std::sync::Arc;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use sha2::{Digest as _, Sha256};

use crate::caller::Caller;
use crate::key::{Key, KeyError};

/// The longest namespaced name, in characters.
pub const NAME_LENGTH_MAX: usize = 640;

/// Everything but `[A-Za-z0-9._~-]`.
const ENCODED: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'.')
    .remove(b'_')
    .remove(b'~')
    .remove(b'-');

/// The name of a route: `service.handler`, or `{METHOD} {path}` where nothing
/// is configured.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Endpoint(Arc<str>);

impl Endpoint {
    /// An endpoint of this name.
    pub fn new(name: &str) -> Self {
        Self(name.into())
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The space in which a key is unique. In a larger space than the endpoint some
/// parts leave the digest, and the fingerprint compares them instead: see
/// [`Identity::compared_parts`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum KeySpace {
    /// The same key on another endpoint is another operation.
    #[default]
    Endpoint,
    /// A subject's key means one thing on all endpoints of a project.
    Project,
    /// A subject's key means one thing in all projects of a tenant.
    Tenant,
}

impl KeySpace {
    /// Every space.
    pub const ALL: [Self; 3] = [Self::Endpoint, Self::Project, Self::Tenant];

    /// The word in configurations.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Endpoint => "endpoint",
            Self::Project => "project",
            Self::Tenant => "tenant",
        }
    }

    /// Begins a digest, so that digests of different spaces are never equal.
    fn domain(self) -> &'static [u8] {
        match self {
            Self::Endpoint => b"onceward.operation.1",
            Self::Project => b"onceward.operation.project.1",
            Self::Tenant => b"onceward.operation.tenant.1",
        }
    }
}

/// The identity of an operation.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Identity {
    /// The sender.
    pub caller: Caller,
    /// The endpoint.
    pub endpoint: Endpoint,
    /// The sender's name for the intent.
    pub key: Key,
    /// The space in which the key is unique.
    pub space: KeySpace,
}

impl Identity {
    /// The digest by which stores look the operation up. Tenant, subject and
    /// key are always part of it.
    pub fn digest(&self) -> Digest {
        let (tenant, project) = (self.caller.tenant(), self.caller.project());
        let endpoint = self.endpoint.as_str();
        let key = self.key.as_str();
        let subject = self.caller.subject();
        let (kind, id) = (subject.kind().as_str(), subject.id());
        let domain = self.space.domain();
        match self.space {
            KeySpace::Endpoint => Digest::over(domain, [tenant, project, kind, id, endpoint, key]),
            KeySpace::Project => Digest::over(domain, [tenant, project, kind, id, key]),
            KeySpace::Tenant => Digest::over(domain, [tenant, kind, id, key]),
        }
    }

    /// The parts of the identity that are not in the digest. The fingerprint compares
    /// them, so that the same key on another endpoint is a reused key.
    pub fn compared_parts(&self) -> Vec<&str> {
        match self.space {
            KeySpace::Endpoint => Vec::new(),
            KeySpace::Project => vec![self.endpoint.as_str()],
            KeySpace::Tenant => vec![self.endpoint.as_str(), self.caller.project()],
        }
    }

    /// Checks that the name is not too long. Cheaper than making the name, because
    /// most are short.
    pub fn check_name(&self) -> Result<(), KeyError> {
        let caller = &self.caller;
        let raw = caller.tenant().len() + caller.project().len() + caller.subject().id().len();
        // Encoded, a byte takes three characters at most; the rest is below 32.
        if 3 * raw + self.key.as_str().len() + 32 <= NAME_LENGTH_MAX {
            return Ok(());
        }
        self.name().map(|_| ())
    }

    /// The namespaced name, `t-{tenant}:{project}:{subject}:{key}`.
    pub fn name(&self) -> Result<String, KeyError> {
        let subject = self.caller.subject();
        let name = format!(
            "t-{}:{}:{}:{}:{}",
            utf8_percent_encode(self.caller.tenant(), ENCODED),
            utf8_percent_encode(self.caller.project(), ENCODED),
            subject.kind().as_str(),
            utf8_percent_encode(subject.id(), ENCODED),
            self.key
        );
        if name.len() > NAME_LENGTH_MAX {
            return Err(KeyError::NameTooLong);
        }
        Ok(name)
    }
}

/// A SHA-256 over an operation's identity.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Digest([u8; 32]);

impl Digest {
    /// Each part enters behind its length, so that the bounds between parts are certain.
    fn over<const N: usize>(domain: &[u8], parts: [&str; N]) -> Self {
        let mut hash = Sha256::new();
        hash.update(domain);
        for part in parts {
            hash.update((part.len() as u64).to_be_bytes());
            hash.update(part.as_bytes());
        }
        Self(hash.finalize().into())
    }

    /// The digest with these bytes.
    pub const fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// The bytes.
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// The first eight bytes, which stores index.
    pub fn prefix(&self) -> u64 {
        let [a, b, c, d, e, f, g, h, ..] = self.0;
        u64::from_be_bytes([a, b, c, d, e, f, g, h])
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Digest({:016x}…)", self.prefix())
    }
}

/// The public id of an operation, `op_…`.
///
/// Half of it is the digest's prefix, so a store finds an operation by id
/// through the index it has; the other half is random, so that an operation
/// that was purged and ran again has another id.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OperationId([u8; 16]);

impl OperationId {
    /// The lowest and the highest digest that this id may belong to.
    pub fn digests(&self) -> (Digest, Digest) {
        let bound = |rest: u8| {
            let mut digest = [rest; 32];
            digest[..8].copy_from_slice(&self.0[..8]);
            Digest(digest)
        };
        (bound(0), bound(0xff))
    }

    /// A new id for the operation with this digest.
    pub fn new(digest: &Digest, entropy: u64) -> Self {
        let joined = (u128::from(digest.prefix()) << 64) | u128::from(entropy);
        Self(joined.to_be_bytes())
    }

    /// The id with these bytes.
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// The bytes.
    pub const fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }

    /// The prefix of the operation's digest.
    pub fn prefix(&self) -> u64 {
        let [a, b, c, d, e, f, g, h, ..] = self.0;
        u64::from_be_bytes([a, b, c, d, e, f, g, h])
    }

    /// Parses `op_…`; `None` for anything that this program never wrote.
    pub fn parse(text: &str) -> Option<Self> {
        let hex = text.strip_prefix("op_")?;
        let bytes = data_encoding::HEXLOWER.decode(hex.as_bytes()).ok()?;
        bytes.try_into().ok().map(Self)
    }
}

impl fmt::Display for OperationId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut digits = [0; 2 * size_of::<Self>()];
        f.write_str("op_")?;
        f.write_str(data_encoding::HEXLOWER.encode_mut_str(&self.0, &mut digits))
    }
}

impl fmt::Debug for OperationId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::caller::{Subject, SubjectKind};

    fn identity(tenant: &str, project: &str, subject: &str, key: &str) -> Identity {
        let subject = Subject::new(SubjectKind::User, subject).expect("a good subject");
        Identity {
            caller: Caller::trusted(tenant, project, subject).expect("a good caller"),
            endpoint: Endpoint::new("payments.create"),
            key: Key::parse(key).expect("a good key"),
            space: KeySpace::Endpoint,
        }
    }

    #[test]
    fn names_encode_separators() {
        let name = identity("a:b", "50%", "ü", "k").name();
        assert_eq!(name.as_deref(), Ok("t-a%3Ab:50%25:user:%C3%BC:k"));
    }

    #[test]
    fn names_are_bounded_at_640() {
        let long = "x".repeat(255);
        let good = identity(&long, "p", "s", &long);
        assert!(good.name().is_ok() && good.check_name().is_ok());
        let bad = identity(&long, &long, "s", &long);
        assert_eq!(bad.name(), Err(KeyError::NameTooLong));
        assert_eq!(bad.check_name(), Err(KeyError::NameTooLong));
    }

    #[test]
    fn operation_ids_read_back_and_differ_by_entropy() {
        let digest = identity("a", "b", "c", "k").digest();
        let id = OperationId::new(&digest, 7);
        assert_eq!(OperationId::parse(&id.to_string()), Some(id));
        assert_eq!(id.prefix(), digest.prefix());
        assert_ne!(id, OperationId::new(&digest, 8));
        assert_eq!(OperationId::parse("op_zz"), None);
        assert_eq!(OperationId::parse("op_"), None);
    }

    /// A record outlives the program that wrote it. The values were made with
    /// Python's `hashlib`.
    #[test]
    fn digests_are_fixed_for_ever() {
        let want = [
            "7b1266359106d6a2975e91f407a01b1efd05bc02ea951d01750abd8f1426607f",
            "2518b66a084e0cec8687af37c81c367e4d13111f8f7f1673b54fd7448ce840e3",
            "1d9aa3344185a250f5aa1f901935ba08d9014540147b9be9c8b11c264440e69c",
        ];
        for (space, want) in KeySpace::ALL.into_iter().zip(want) {
            let identity = Identity {
                space,
                ..identity("acme", "shop", "ü:1", "k")
            };
            let got = data_encoding::HEXLOWER.encode(identity.digest().as_bytes());
            assert_eq!(got, want, "{space:?}");
        }
    }

    #[test]
    fn parts_outside_the_digest_are_compared() {
        let compared = |space| {
            let identity = Identity {
                space,
                ..identity("acme", "shop", "1", "k")
            };
            identity.compared_parts().join(" ")
        };
        assert_eq!(
            KeySpace::ALL.map(compared),
            ["", "payments.create", "payments.create shop"]
        );
    }

    /// Of few letters, including separators, so that many parts are equal.
    fn any_identity() -> impl Strategy<Value = Identity> {
        let kinds = vec![SubjectKind::User, SubjectKind::Service, SubjectKind::Client];
        (
            ("[a:%_.é]{1,2}", "[a:%_]{1,2}", "[a._~-]{1,2}", "[a. ]{0,2}"),
            (prop::sample::select(kinds), "[a:%_]{1,2}"),
            prop::sample::select(KeySpace::ALL.to_vec()),
        )
            .prop_map(|((tenant, project, key, endpoint), (kind, id), space)| {
                let subject = Subject::new(kind, &id).expect("a good subject");
                Identity {
                    caller: Caller::trusted(&tenant, &project, subject).expect("a good caller"),
                    endpoint: Endpoint::new(&endpoint),
                    key: Key::parse(&key).expect("a good key"),
                    space,
                }
            })
    }

    /// The same identity with this part taken from another one.
    fn mixed(one: &Identity, other: &Identity, from_other: [bool; 6]) -> Identity {
        let pick = |part: usize| if from_other[part] { other } else { one };
        Identity {
            caller: Caller::trusted(
                pick(0).caller.tenant(),
                pick(1).caller.project(),
                pick(2).caller.subject().clone(),
            )
            .expect("a good caller"),
            endpoint: pick(3).endpoint.clone(),
            key: pick(4).key.clone(),
            space: pick(5).space,
        }
    }

    /// The parts that a name contains.
    fn named(identity: &Identity) -> (&str, &str, &Subject, &Key) {
        let caller = &identity.caller;
        let (tenant, project) = (caller.tenant(), caller.project());
        (tenant, project, caller.subject(), &identity.key)
    }

    /// The parts that a digest contains.
    fn spaced(identity: &Identity) -> (KeySpace, &str, &Subject, &Key, Option<&str>, Option<&str>) {
        let (tenant, project, subject, key) = named(identity);
        let endpoint = identity.endpoint.as_str();
        let (project, endpoint) = match identity.space {
            KeySpace::Endpoint => (Some(project), Some(endpoint)),
            KeySpace::Project => (Some(project), None),
            KeySpace::Tenant => (None, None),
        };
        (identity.space, tenant, subject, key, project, endpoint)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2_000))]

        #[test]
        fn names_and_digests_are_equal_only_for_equal_identities(
            a in any_identity(),
            other in any_identity(),
            from_other in any::<[bool; 6]>(),
        ) {
            let b = mixed(&a, &other, from_other);
            prop_assert_eq!(a.digest() == b.digest(), spaced(&a) == spaced(&b));
            prop_assert_eq!(a.name() == b.name(), named(&a) == named(&b));
            prop_assert_eq!(a.check_name().is_ok(), a.name().is_ok());
        }
    }
}
