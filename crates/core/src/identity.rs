//! What makes two requests the same operation: caller, endpoint and key.
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

/// The identity of an operation.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Identity {
    /// Who sends.
    pub caller: Caller,
    /// Where to.
    pub endpoint: Endpoint,
    /// The sender's name for the intent.
    pub key: Key,
}

impl Identity {
    /// The digest by which stores look the operation up.
    pub fn digest(&self) -> Digest {
        let subject = self.caller.subject();
        let parts = [
            self.caller.tenant(),
            self.caller.project(),
            subject.kind().as_str(),
            subject.id(),
            self.endpoint.as_str(),
            self.key.as_str(),
        ];
        let mut hash = Sha256::new();
        hash.update(b"onceward.operation.1");
        for part in parts {
            hash.update((part.len() as u64).to_be_bytes());
            hash.update(part.as_bytes());
        }
        Digest(hash.finalize().into())
    }

    /// Whether the identity has a name at all: one that is not too long.
    /// Cheaper than the name itself, because most are short.
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
    /// The digest with these bytes.
    pub const fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// The bytes.
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// The first eight bytes: what stores index.
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
        write!(f, "op_{}", data_encoding::HEXLOWER.encode(&self.0))
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
        }
    }

    #[test]
    fn names_encode_what_could_be_mistaken() {
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

    proptest! {
        #[test]
        fn different_identities_share_neither_name_nor_digest(
            a in ("[a:%_.é]{1,6}", "[a:%_]{1,6}", "[a:%_]{1,6}", "[a._~-]{1,6}"),
            b in ("[a:%_.é]{1,6}", "[a:%_]{1,6}", "[a:%_]{1,6}", "[a._~-]{1,6}"),
        ) {
            prop_assume!(a != b);
            let a = identity(&a.0, &a.1, &a.2, &a.3);
            let b = identity(&b.0, &b.1, &b.2, &b.3);
            prop_assert_ne!(a.digest(), b.digest());
            prop_assert_ne!(a.name(), b.name());
            prop_assert_eq!(a.check_name().is_ok(), a.name().is_ok());
        }
    }
}
