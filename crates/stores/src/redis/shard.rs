//! Shards: the keys in Redis that hold an operation.
//!
//! All data of an operation is in one shard, and all keys of a shard have the same
//! hash tag, so that a script changes them atomically, in a Cluster too. The first
//! byte of a digest determines the shard; an id begins with the same bytes as its
//! digest.

use onceward_core::namespace::Namespace;
use onceward_core::store::Collection;

use crate::lookup::Lookup;

/// The number of shards of a namespace: enough to spread over a dozen primaries, and
/// few enough for the recently written data of each to stay in the processor's cache
/// (256 take a tenth more of the server's time than 64).
pub(super) const SHARDS: usize = 64;

/// The shards of a namespace.
pub(super) struct Shards {
    shards: Vec<Shard>,
    /// The pattern of the channels on which the shards publish.
    pub(super) pattern: String,
    namespace: Namespace,
}

/// The keys of a shard.
pub(super) struct Shard {
    pub(super) number: usize,
    /// `operations`, `index` and `queue`, as `KEYS` of scripts.
    pub(super) keys: [String; 3],
    /// The key of the small write that replicas confirm; see `connection`.
    pub(super) confirmed: String,
}

impl Shards {
    pub(super) fn of(namespace: &Namespace) -> Self {
        let shard = |number: usize| Shard {
            number,
            keys: ["operations", "index", "queue"]
                .map(|what| format!("onceward:{{{namespace}.{number}}}:{what}")),
            confirmed: format!("onceward:{{{namespace}.{number}}}:confirmed"),
        };
        Self {
            shards: (0..SHARDS).map(shard).collect(),
            pattern: format!("onceward:{{{namespace}.*}}:operations"),
            namespace: namespace.clone(),
        }
    }

    /// All of them.
    pub(super) fn all(&self) -> &[Shard] {
        &self.shards
    }

    /// The shard of an operation.
    pub(super) fn with(&self, lookup: Lookup) -> &Shard {
        &self.shards[usize::from(lookup.as_bytes()[0]) % SHARDS]
    }

    /// The keys of a collection's documents: by name, and in order.
    pub(super) fn sheet(&self, sheet: Collection) -> [String; 2] {
        let (namespace, sheet) = (&self.namespace, sheet.as_str());
        ["documents", "names"].map(|what| format!("onceward:{{{namespace}}}:{what}:{sheet}"))
    }

    /// As [`Shard::confirmed`], for documents.
    pub(super) fn documents_confirmed(&self) -> String {
        format!("onceward:{{{}}}:confirmed", self.namespace)
    }
}

impl Shard {
    pub(super) fn operations(&self) -> &str {
        &self.keys[0]
    }

    pub(super) fn index(&self) -> &str {
        &self.keys[1]
    }

    pub(super) fn queue(&self) -> &str {
        &self.keys[2]
    }
}

#[cfg(test)]
mod tests {
    use onceward_core::identity::{Digest, OperationId};

    use super::*;

    #[test]
    fn all_keys_of_an_operation_have_one_hash_tag() {
        let shards = Shards::of(&Namespace::edge());
        let digest = Digest::from_bytes([7; 32]);
        let id = OperationId::new(&digest, 1);
        let shard = shards.with(Lookup::Digest(digest));
        assert_eq!(shard.keys, shards.with(Lookup::Id(id)).keys);
        assert_eq!(
            shard.keys,
            [
                "onceward:{edge.7}:operations",
                "onceward:{edge.7}:index",
                "onceward:{edge.7}:queue"
            ]
        );
        assert_eq!(shards.all().len(), SHARDS);
    }
}
