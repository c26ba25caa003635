//! The key of a look-up: a digest or an id.

use onceward_core::identity::{Digest, OperationId};
#[cfg(feature = "embedded")]
use onceward_core::record::Record;

/// A digest, or an operation id, which begins with the digest's first bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Lookup {
    Digest(Digest),
    Id(OperationId),
}

impl Lookup {
    /// The first eight bytes of the digest, which both forms contain.
    #[cfg(feature = "embedded")]
    pub(crate) fn prefix(self) -> u64 {
        match self {
            Self::Digest(digest) => digest.prefix(),
            Self::Id(id) => id.prefix(),
        }
    }

    /// Whether this is the record that is looked for; prefixes may collide.
    #[cfg(feature = "embedded")]
    pub(crate) fn matches(self, record: &Record) -> bool {
        match self {
            Self::Digest(digest) => record.digest == digest,
            Self::Id(id) => record.id == id,
        }
    }

    #[cfg(feature = "redis")]
    pub(crate) fn as_bytes(&self) -> &[u8] {
        match self {
            Self::Digest(digest) => digest.as_bytes(),
            Self::Id(id) => id.as_bytes(),
        }
    }
}
