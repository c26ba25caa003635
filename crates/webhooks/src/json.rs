//! The few values of a JSON body that identify it.
//!
//! They are read from the raw text: numbers keep all their digits, and a repeated
//! name is an error, because another parser may use the other value.

use std::fmt;

use serde::de::{Deserialize, Deserializer, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

use crate::identify::{ITEMS_MAX, Unidentified};

/// Reads a body. All of it must be UTF-8: the upstream reads the rest.
pub(crate) fn read<'a, T: Deserialize<'a>>(body: &'a [u8]) -> Result<T, Unidentified> {
    let text = std::str::from_utf8(body).map_err(|_| Unidentified::MalformedBody)?;
    serde_json::from_str(text).map_err(|_| Unidentified::MalformedBody)
}

/// The elements of an array as raw text: all, or enough to see that there are too
/// many.
#[derive(Default)]
pub(crate) struct Elements<'a>(pub(crate) Vec<&'a RawValue>);

impl<'de> Deserialize<'de> for Elements<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_seq(FirstElements)
    }
}

struct FirstElements;

impl<'de> Visitor<'de> for FirstElements {
    type Value = Elements<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an array")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
        let mut elements = Vec::new();
        while elements.len() <= ITEMS_MAX {
            match seq.next_element()? {
                Some(element) => elements.push(element),
                None => return Ok(Elements(elements)),
            }
        }
        while seq.next_element::<IgnoredAny>()?.is_some() {}
        Ok(Elements(elements))
    }
}

/// A string, or the digits of a number, or `true` or `false`, as text.
pub(crate) struct Scalar(pub(crate) String);

impl<'de> Deserialize<'de> for Scalar {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let raw = <&RawValue>::deserialize(deserializer)?;
        scalar(raw)
            .map(Self)
            .ok_or_else(|| D::Error::custom("not a scalar"))
    }
}

/// The text of a required id.
pub(crate) fn required(value: &Option<Scalar>) -> Result<&str, Unidentified> {
    match value {
        Some(Scalar(text)) if !text.is_empty() => Ok(text),
        _ => Err(Unidentified::MissingId),
    }
}

fn scalar(raw: &RawValue) -> Option<String> {
    match raw.get().as_bytes().first()? {
        b'"' => serde_json::from_str(raw.get()).ok(),
        b'{' | b'[' | b'n' => None,
        _ => Some(raw.get().to_owned()),
    }
}

/// Whether the body may be a JSON object rather than a form.
pub(crate) fn looks_like_object(body: &[u8]) -> bool {
    body.trim_ascii_start().first() == Some(&b'{')
}

/// A JSON Pointer (RFC 6901).
#[derive(Clone, Debug)]
pub(crate) struct Pointer(Vec<String>);

impl Pointer {
    /// Parses a pointer. It must point into the document: the whole document is not
    /// an id.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let mut tokens = text.split('/');
        if tokens.next() != Some("") {
            return None;
        }
        let tokens: Option<Vec<String>> = tokens.map(unescape).collect();
        tokens.filter(|tokens| !tokens.is_empty()).map(Self)
    }

    /// The scalar it points to, as text.
    pub(crate) fn find(&self, body: &[u8]) -> Result<Option<String>, Unidentified> {
        let mut at: &RawValue = read(body)?;
        for token in &self.0 {
            match step(at, token)? {
                Some(next) => at = next,
                None => return Ok(None),
            }
        }
        Ok(scalar(at))
    }
}

fn unescape(token: &str) -> Option<String> {
    let mut out = String::with_capacity(token.len());
    let mut chars = token.chars();
    while let Some(c) = chars.next() {
        out.push(match c {
            '~' => match chars.next()? {
                '0' => '~',
                '1' => '/',
                _ => return None,
            },
            c => c,
        });
    }
    Some(out)
}

fn step<'a>(at: &'a RawValue, token: &str) -> Result<Option<&'a RawValue>, Unidentified> {
    let mut deserializer = serde_json::Deserializer::from_str(at.get());
    let found = match at.get().as_bytes().first() {
        Some(b'{') => deserializer.deserialize_map(Member(token)),
        Some(b'[') => match index(token) {
            Some(index) => deserializer.deserialize_seq(Element(index)),
            None => return Ok(None),
        },
        _ => return Ok(None),
    };
    found.map_err(|_| Unidentified::MalformedBody)
}

fn index(token: &str) -> Option<usize> {
    let plain = token == "0" || !token.starts_with(['0', '+']);
    if plain { token.parse().ok() } else { None }
}

struct Member<'t>(&'t str);

impl<'de> Visitor<'de> for Member<'_> {
    type Value = Option<&'de RawValue>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object that has the name once at most")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut found = None;
        while let Some(name) = map.next_key::<String>()? {
            if name != self.0 {
                map.next_value::<IgnoredAny>()?;
            } else if found.replace(map.next_value()?).is_some() {
                return Err(A::Error::custom("a name came twice"));
            }
        }
        Ok(found)
    }
}

struct Element(usize);

impl<'de> Visitor<'de> for Element {
    type Value = Option<&'de RawValue>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an array")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
        let mut found = None;
        let mut at = 0;
        while let Some(value) = seq.next_element()? {
            if at == self.0 {
                found = Some(value);
            }
            at += 1;
        }
        Ok(found)
    }
}
