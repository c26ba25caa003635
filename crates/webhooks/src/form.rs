//! `application/x-www-form-urlencoded`, decoded to bytes.
//!
//! To bytes, because signatures cover bytes: a decoder that replaces invalid UTF-8
//! makes two different bodies equal.

use std::borrow::Cow;

use percent_encoding::percent_decode;

/// A name and its value.
pub(crate) type Pair<'a> = (Cow<'a, [u8]>, Cow<'a, [u8]>);

/// The pairs of a form or a query, in their order.
pub(crate) fn pairs(text: &[u8]) -> impl Iterator<Item = Pair<'_>> {
    text.split(|b| *b == b'&')
        .filter(|pair| !pair.is_empty())
        .map(|pair| {
            let (name, value) = match pair.iter().position(|b| *b == b'=') {
                Some(at) => (&pair[..at], &pair[at + 1..]),
                None => (pair, &pair[pair.len()..]),
            };
            (decode(name), decode(value))
        })
}

/// The values of a name in a form.
pub(crate) enum Field {
    Absent,
    One(String),
    /// Repeated, or not UTF-8.
    Unclear,
}

/// Looks a name up.
pub(crate) fn field(text: &[u8], name: &str) -> Field {
    let mut found = Field::Absent;
    for (_, value) in pairs(text).filter(|(key, _)| key.as_ref() == name.as_bytes()) {
        found = match (found, String::from_utf8(value.into_owned())) {
            (Field::Absent, Ok(value)) => Field::One(value),
            _ => Field::Unclear,
        };
    }
    found
}

fn decode(text: &[u8]) -> Cow<'_, [u8]> {
    if !text.iter().any(|b| matches!(b, b'+' | b'%')) {
        return Cow::Borrowed(text);
    }
    let spaced: Vec<u8> = text
        .iter()
        .map(|b| if *b == b'+' { b' ' } else { *b })
        .collect();
    Cow::Owned(percent_decode(&spaced).collect())
}
