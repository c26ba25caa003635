//! Keys that belong to a namespace. Only the parser and the minter make one, so a
//! [`ScopedKey`] is always well-formed.

use std::fmt;

use crate::key::{Key, KeyError, MintError};
use crate::namespace::Namespace;

/// A key in a namespace.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ScopedKey {
    namespace: Namespace,
    key: Key,
}

impl ScopedKey {
    /// The namespace.
    pub fn namespace(&self) -> &Namespace {
        &self.namespace
    }

    /// The key without its namespace.
    pub fn key(&self) -> &Key {
        &self.key
    }

    /// The key's text, as it may be sent to another service.
    pub fn as_str(&self) -> &str {
        self.key.as_str()
    }
}

impl fmt::Display for ScopedKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.key.fmt(f)
    }
}

/// Makes keys from natural parts: the same parts in the same order give the
/// same key, in every process and every version.
///
/// ```
/// use onceward_core::application::Minter;
/// use onceward_core::namespace::Namespace;
///
/// let minter = Minter::new(Namespace::new("mail")?);
/// assert_eq!(minter.mint(&["job-7", "1"])?, minter.mint(&["job-7", "1"])?);
/// assert_ne!(minter.mint(&["job-7", "1"])?, minter.mint(&["job-71"])?);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Minter {
    namespace: Namespace,
}

impl Minter {
    /// A minter for this namespace.
    pub fn new(namespace: Namespace) -> Self {
        Self { namespace }
    }

    /// The key of these parts. An empty list and blank parts are refused: they
    /// would map different intents to one key.
    pub fn mint(&self, parts: &[&str]) -> Result<ScopedKey, MintError> {
        Ok(ScopedKey {
            namespace: self.namespace.clone(),
            key: Key::mint(parts)?,
        })
    }
}

/// Why a caller's value is not a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KeyRefused {
    /// It is blank.
    #[error("the key is blank; send 1 to 255 characters, or none at all")]
    Blank,
    /// It is too long.
    #[error("the key is longer than 255 characters")]
    TooLong,
    /// It holds a control character.
    #[error("the key holds a control character")]
    Control,
}

/// The key that a caller sent, if any: trimmed, 1 to 255 characters, none of
/// them a control character.
///
/// ```
/// use onceward_core::application::{KeyRefused, parse_key};
/// use onceward_core::namespace::Namespace;
///
/// let mail = Namespace::new("mail")?;
/// let key = parse_key(&mail, Some(" stripe:ch_1 "))?;
/// assert_eq!(key.as_ref().map(|key| key.as_str()), Some("stripe:ch_1"));
/// assert_eq!(parse_key(&mail, None)?, None);
/// assert_eq!(parse_key(&mail, Some("  ")), Err(KeyRefused::Blank));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn parse_key(
    namespace: &Namespace,
    raw: Option<&str>,
) -> Result<Option<ScopedKey>, KeyRefused> {
    let Some(raw) = raw else {
        return Ok(None);
    };
    let key = Key::parse_wide(raw).map_err(|error| match error {
        KeyError::Empty => KeyRefused::Blank,
        KeyError::TooLong => KeyRefused::TooLong,
        _ => KeyRefused::Control,
    })?;
    Ok(Some(ScopedKey {
        namespace: namespace.clone(),
        key,
    }))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn mail() -> Namespace {
        Namespace::new("mail").expect("a good name")
    }

    #[rstest]
    #[case::none(None, Ok(None))]
    #[case::plain(Some("k"), Ok(Some("k")))]
    #[case::colon(Some("stripe:ch_1"), Ok(Some("stripe:ch_1")))]
    #[case::blank_within(Some("a b"), Ok(Some("a b")))]
    #[case::padded(Some("\t k \n"), Ok(Some("k")))]
    #[case::other_letters(Some("schlüssel"), Ok(Some("schlüssel")))]
    #[case::empty(Some(""), Err(KeyRefused::Blank))]
    #[case::blank(Some(" \t"), Err(KeyRefused::Blank))]
    #[case::nul(Some("a\0b"), Err(KeyRefused::Control))]
    #[case::line(Some("a\nb"), Err(KeyRefused::Control))]
    #[case::delete(Some("a\u{7f}b"), Err(KeyRefused::Control))]
    #[case::next_line(Some("a\u{85}b"), Err(KeyRefused::Control))]
    fn keys_of_callers(#[case] raw: Option<&str>, #[case] want: Result<Option<&str>, KeyRefused>) {
        let got = parse_key(&mail(), raw);
        let got = got.as_ref().map(|key| key.as_ref().map(ScopedKey::as_str));
        assert_eq!(got, want.as_ref().copied());
    }

    #[rstest]
    #[case::as_long_as_it_gets(255, true)]
    #[case::longer(256, false)]
    fn length_is_counted_in_characters(#[case] length: usize, #[case] good: bool) {
        let raw = format!("  {}  ", "ä".repeat(length));
        let got = parse_key(&mail(), Some(&raw));
        assert_eq!(got.is_ok(), good);
        assert!(good || got == Err(KeyRefused::TooLong));
    }

    #[rstest]
    #[case::no_part(&[], Err(MintError::NoParts))]
    #[case::blank(&["a", ""], Err(MintError::Blank(1)))]
    #[case::white(&["\u{2003}"], Err(MintError::Blank(0)))]
    #[case::one(&["a"], Ok(64))]
    fn natural_parts(#[case] parts: &[&str], #[case] want: Result<usize, MintError>) {
        let got = Minter::new(mail()).mint(parts);
        assert_eq!(got.map(|key| key.as_str().len()), want);
    }

    #[test]
    fn the_same_key_elsewhere_is_another() {
        let elsewhere = Minter::new(Namespace::new("sms").expect("a good name"));
        let (here, there) = (Minter::new(mail()).mint(&["a"]), elsewhere.mint(&["a"]));
        let (here, there) = (here.expect("minted"), there.expect("minted"));
        assert_ne!(here, there);
        assert_eq!(here.key(), there.key());
        assert_eq!(here.to_string(), here.as_str());
    }
}
