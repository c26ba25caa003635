//! Namespaces: several consumers of one store, each with its own keys.

use std::fmt;
use std::sync::Arc;

/// The longest namespace, in characters.
pub const NAMESPACE_LENGTH_MAX: usize = 64;

/// The name of one consumer of a store: 1 to 64 of `a-z`, `0-9`, `-`, `_`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Namespace(Arc<str>);

/// Why a text is not a namespace.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NamespaceError {
    /// It is empty.
    #[error("a namespace is empty; it needs 1 to 64 of a-z, 0-9, - and _")]
    Empty,
    /// More than 64 characters.
    #[error("a namespace has at most 64 characters, and this one has {0}")]
    TooLong(usize),
    /// A character outside the grammar.
    #[error("a namespace holds only a-z, 0-9, - and _, not {0:?}")]
    Charset(char),
}

impl Namespace {
    /// The namespace of this name.
    pub fn new(name: &str) -> Result<Self, NamespaceError> {
        let is_good =
            |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-' || c == '_';
        if name.is_empty() {
            return Err(NamespaceError::Empty);
        }
        if let Some(bad) = name.chars().find(|c| !is_good(*c)) {
            return Err(NamespaceError::Charset(bad));
        }
        if name.len() > NAMESPACE_LENGTH_MAX {
            return Err(NamespaceError::TooLong(name.len()));
        }
        Ok(Self(name.into()))
    }

    /// The namespace of gateways that do not name another.
    pub fn edge() -> Self {
        Self("edge".into())
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Namespace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::empty("", Err(NamespaceError::Empty))]
    #[case::one("a", Ok("a"))]
    #[case::all_sorts("a-z_09", Ok("a-z_09"))]
    #[case::upper("Payments", Err(NamespaceError::Charset('P')))]
    #[case::blank(" a", Err(NamespaceError::Charset(' ')))]
    #[case::dot("a.b", Err(NamespaceError::Charset('.')))]
    #[case::letter_elsewhere("zahlungsströme", Err(NamespaceError::Charset('ö')))]
    #[case::nul("a\0", Err(NamespaceError::Charset('\0')))]
    fn namespace(#[case] name: &str, #[case] want: Result<&str, NamespaceError>) {
        let got = Namespace::new(name);
        assert_eq!(got.as_ref().map(Namespace::as_str), want.as_ref().copied());
    }

    #[test]
    fn a_namespace_has_at_most_sixty_four_characters() {
        assert!(Namespace::new(&"a".repeat(64)).is_ok());
        let longer = Namespace::new(&"a".repeat(65));
        assert_eq!(longer, Err(NamespaceError::TooLong(65)));
    }
}
