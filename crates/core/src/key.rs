//! The key: the sender's name for one intent, the same over its retries.
//!
//! A [`Key`] is proof that a value obeyed a grammar: only the parsers and the
//! minter here make one. There are two grammars: a narrow one for the HTTP header
//! (no colon, so that a namespaced name cannot be forged), and a wide one for keys
//! that a program passes to the library.

use std::fmt;
use std::sync::Arc;

use sha2::{Digest as _, Sha256};

/// The longest key, in characters.
pub const KEY_LENGTH_MAX: usize = 255;

/// The prefix of namespaced names, which no raw key may begin with.
const RESERVED_PREFIX: &str = "t-";

/// A well-formed key.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(Arc<str>);

/// Why a value is not a key. The [`reason`](KeyError::reason) goes to the sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KeyError {
    /// It is empty.
    #[error("the key is empty; send 1 to 255 characters")]
    Empty,
    /// More than 255 characters.
    #[error("the key is longer than 255 characters")]
    TooLong,
    /// A character outside the grammar.
    #[error("the key may hold only A-Z a-z 0-9 . _ ~ and -")]
    Charset,
    /// It begins like a namespaced name.
    #[error("a key must not begin with `t-`")]
    ReservedPrefix,
    /// A quoted string that is not a structured-field string.
    #[error("the quoted key is not a well-formed structured-field string")]
    Malformed,
    /// More than one key.
    #[error("send exactly one Idempotency-Key")]
    Multiple,
    /// A grammar narrowed by the route is not met.
    #[error("the key does not have the format that this route demands")]
    Format,
    /// The namespaced name would be longer than 640 characters.
    #[error("key and caller together are too long: the namespaced name exceeds 640 characters")]
    NameTooLong,
}

impl KeyError {
    /// The word for programs, as in the `reason` member of a problem.
    pub fn reason(self) -> &'static str {
        match self {
            Self::Empty => "empty",
            Self::TooLong => "too-long",
            Self::Charset => "charset",
            Self::ReservedPrefix => "reserved-prefix",
            Self::Malformed => "malformed",
            Self::Multiple => "multiple",
            Self::Format => "format",
            Self::NameTooLong => "name-too-long",
        }
    }
}

/// Why parts do not make a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MintError {
    /// No part at all.
    #[error("a key is minted from at least one part")]
    NoParts,
    /// A part of nothing but white space.
    #[error("part {0} is blank")]
    Blank(usize),
    /// More parts, or a longer part, than the encoding can count.
    #[error("the parts are too many or too long")]
    TooLarge,
}

impl Key {
    /// Parses a raw value by the grammar of the HTTP header:
    /// `^[A-Za-z0-9._~-]{1,255}$`, not beginning with `t-`.
    pub fn parse(raw: &str) -> Result<Self, KeyError> {
        if raw.is_empty() {
            return Err(KeyError::Empty);
        }
        if !raw.bytes().all(is_unreserved) {
            return Err(KeyError::Charset);
        }
        if raw.len() > KEY_LENGTH_MAX {
            return Err(KeyError::TooLong);
        }
        if raw.starts_with(RESERVED_PREFIX) {
            return Err(KeyError::ReservedPrefix);
        }
        Ok(Self(raw.into()))
    }

    /// Parses the lines of the `Idempotency-Key` header. `k` and `"k"` (a
    /// structured-field string, parameters ignored) are the same key. No line
    /// at all is no key; anything but one good key is an error, so a malformed
    /// key is never passed on unprotected.
    pub fn from_header<'a>(
        lines: impl IntoIterator<Item = &'a [u8]>,
    ) -> Result<Option<Self>, KeyError> {
        let mut lines = lines.into_iter();
        let Some(line) = lines.next() else {
            return Ok(None);
        };
        if lines.next().is_some() {
            return Err(KeyError::Multiple);
        }
        let line = std::str::from_utf8(line)
            .map_err(|_| KeyError::Charset)?
            .trim_matches([' ', '\t']);
        if line.starts_with('"') {
            Self::parse(&unquote(line)?).map(Some)
        } else if line.contains(',') {
            // An intermediary may have joined two header lines.
            Err(KeyError::Multiple)
        } else {
            Self::parse(line).map(Some)
        }
    }

    /// Parses a key by the library's grammar: trimmed, 1 to 255 characters,
    /// no control characters (`stripe:ch_abc123` is one).
    pub fn parse_wide(raw: &str) -> Result<Self, KeyError> {
        let raw = raw.trim();
        if raw.is_empty() {
            return Err(KeyError::Empty);
        }
        if raw.chars().any(char::is_control) {
            return Err(KeyError::Charset);
        }
        if raw.chars().count() > KEY_LENGTH_MAX {
            return Err(KeyError::TooLong);
        }
        Ok(Self(raw.into()))
    }

    /// Mints a key from natural parts: the hexadecimal SHA-256 over a 4-byte
    /// big-endian part count, then per part a 4-byte big-endian length and the
    /// bytes. Lengths make `["ab", "c"]` and `["a", "bc"]` different keys.
    pub fn mint(parts: &[&str]) -> Result<Self, MintError> {
        if parts.is_empty() {
            return Err(MintError::NoParts);
        }
        let mut hash = Sha256::new();
        hash.update(length_prefix(parts.len())?);
        for (index, part) in parts.iter().enumerate() {
            if part.trim().is_empty() {
                return Err(MintError::Blank(index));
            }
            hash.update(length_prefix(part.len())?);
            hash.update(part.as_bytes());
        }
        let hex = data_encoding::HEXLOWER.encode(&hash.finalize());
        Ok(Self(hex.into()))
    }

    /// The key's text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// A key that a store wrote: it was checked before the write, and is
    /// checked again by the wider of the two grammars.
    pub(crate) fn from_record(raw: &str) -> Result<Self, KeyError> {
        Self::parse_wide(raw)
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

fn is_unreserved(byte: u8) -> bool {
    UNRESERVED[usize::from(byte)]
}

/// `[A-Za-z0-9._~-]`. A table, because every byte of every key is looked at.
static UNRESERVED: [bool; 256] = {
    let mut unreserved = [false; 256];
    let mut byte = 0_u8;
    while byte.is_ascii() {
        let is_mark = matches!(byte, b'.' | b'_' | b'~' | b'-');
        unreserved[byte as usize] = is_mark || byte.is_ascii_alphanumeric();
        byte += 1;
    }
    unreserved
};

fn length_prefix(length: usize) -> Result<[u8; 4], MintError> {
    u32::try_from(length)
        .map(u32::to_be_bytes)
        .map_err(|_| MintError::TooLarge)
}

fn unquote(line: &str) -> Result<String, KeyError> {
    match sfv::Parser::new(line).parse::<sfv::Item>() {
        Ok(item) => match item.bare_item {
            sfv::BareItem::String(value) => Ok(value.as_str().to_owned()),
            _ => Err(KeyError::Malformed),
        },
        Err(_) => match sfv::Parser::new(line).parse::<sfv::List>() {
            Ok(list) if list.len() > 1 => Err(KeyError::Multiple),
            _ => Err(KeyError::Malformed),
        },
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::bare(&["k-1"], Ok(Some("k-1")))]
    #[case::quoted(&["\"k-1\""], Ok(Some("k-1")))]
    #[case::parameters_are_ignored(&["\"k-1\";a=1;b"], Ok(Some("k-1")))]
    #[case::padded(&["  k-1\t"], Ok(Some("k-1")))]
    #[case::none(&[], Ok(None))]
    #[case::empty(&[""], Err("empty"))]
    #[case::empty_quoted(&["\"\""], Err("empty"))]
    #[case::two_lines(&["a", "b"], Err("multiple"))]
    #[case::same_line_twice(&["a", "a"], Err("multiple"))]
    #[case::joined_lines(&["a, b"], Err("multiple"))]
    #[case::joined_quoted_lines(&["\"a\", \"b\""], Err("multiple"))]
    #[case::colon(&["a:b"], Err("charset"))]
    #[case::tab_inside(&["a\tb"], Err("charset"))]
    #[case::space_inside(&["a b"], Err("charset"))]
    #[case::bare_parameters(&["a;b=1"], Err("charset"))]
    #[case::umlaut(&["ä"], Err("charset"))]
    #[case::slash_quoted(&["\"a/b\""], Err("charset"))]
    #[case::reserved(&["t-acme"], Err("reserved-prefix"))]
    #[case::reserved_quoted(&["\"t-acme\""], Err("reserved-prefix"))]
    #[case::open_quote(&["\"abc"], Err("malformed"))]
    #[case::after_quote(&["\"abc\"x"], Err("malformed"))]
    fn header_lines(#[case] lines: &[&str], #[case] want: Result<Option<&str>, &str>) {
        let got = Key::from_header(lines.iter().map(|line| line.as_bytes()));
        let got = got.as_ref().map(|key| key.as_ref().map(Key::as_str));
        assert_eq!(got.map_err(|error| error.reason()), want);
    }

    #[test]
    fn length_is_bounded_at_255() {
        assert!(Key::parse(&"k".repeat(255)).is_ok());
        assert_eq!(Key::parse(&"k".repeat(256)), Err(KeyError::TooLong));
        assert!(Key::parse_wide(&"ä".repeat(255)).is_ok());
        assert_eq!(Key::parse_wide(&"ä".repeat(256)), Err(KeyError::TooLong));
    }

    #[rstest]
    #[case("stripe:ch_abc123", Ok("stripe:ch_abc123"))]
    #[case("  padded  ", Ok("padded"))]
    #[case(" ", Err(KeyError::Empty))]
    #[case("a\u{0}b", Err(KeyError::Charset))]
    #[case("a\nb", Err(KeyError::Charset))]
    fn wide_grammar(#[case] raw: &str, #[case] want: Result<&str, KeyError>) {
        let got = Key::parse_wide(raw);
        assert_eq!(got.as_ref().map(Key::as_str).map_err(|e| *e), want);
    }

    #[test]
    fn minting_is_fixed_for_ever() {
        let key = Key::mint(&["order", "42"]).expect("two good parts");
        assert_eq!(
            key.as_str(),
            "8067e674cebb216a965d70d6ba2727fa9b715bd3c137b04fc37c73931de0b8ce"
        );
    }

    #[test]
    fn minting_refuses_nothing_and_blanks() {
        assert_eq!(Key::mint(&[]), Err(MintError::NoParts));
        assert_eq!(Key::mint(&["a", " \t"]), Err(MintError::Blank(1)));
    }

    #[test]
    fn minting_does_not_join_parts() {
        assert_ne!(Key::mint(&["ab", "c"]), Key::mint(&["a", "bc"]));
    }

    proptest! {
        #[test]
        fn any_header_gives_a_key_of_the_grammar_or_an_error(line in any::<Vec<u8>>()) {
            if let Ok(Some(key)) = Key::from_header([line.as_slice()]) {
                prop_assert!(key.as_str().bytes().all(is_unreserved));
                prop_assert!((1..=KEY_LENGTH_MAX).contains(&key.as_str().len()));
                prop_assert!(!key.as_str().starts_with(RESERVED_PREFIX));
            }
        }

        #[test]
        fn quoted_and_bare_are_the_same_key(raw in "[A-Za-z0-9._~-]{1,255}") {
            let quoted = format!("\"{raw}\"");
            prop_assert_eq!(
                Key::from_header([raw.as_bytes()]),
                Key::from_header([quoted.as_bytes()])
            );
        }
    }
}
