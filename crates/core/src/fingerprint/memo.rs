//! Fingerprints made a moment ago.
//!
//! A retry usually sends the same bytes as the request before, often while that one
//! still runs, and clients that lost many answers send them again and again.
//! Comparing bytes costs a tenth of reading and hashing them. A fingerprint depends
//! on its input alone, so equal inputs have equal fingerprints; nothing else is
//! assumed of them.

use std::sync::{Arc, Mutex};

use super::{ComparedParts, Fingerprint};

/// The number of fingerprints that are kept.
const PLACES: usize = 256;
/// The longest input that is kept, in bytes: with all places taken, 512 KiB.
const INPUT_BYTES_MAX: usize = 2 * 1024;

/// The last fingerprints, each in the place that its input's checksum gives.
#[derive(Clone)]
pub(super) struct Memo(Arc<[Mutex<Option<Made>>; PLACES]>);

struct Made {
    input: Vec<u8>,
    fingerprint: Fingerprint,
}

impl Memo {
    pub(super) fn new() -> Self {
        Self(Arc::new([const { Mutex::new(None) }; PLACES]))
    }

    /// The fingerprint of these parts: one that was made before, or a new one.
    pub(super) fn get_or_make(
        &self,
        parts: &ComparedParts<'_>,
        make: impl FnOnce() -> Fingerprint,
    ) -> Fingerprint {
        let Some(input) = flatten(parts) else {
            return make();
        };
        let place = &self.0[crc32fast::hash(&input) as usize % PLACES];
        // Waiting would cost more than hashing.
        let Ok(mut made) = place.try_lock() else {
            return make();
        };
        match &*made {
            Some(made) if made.input == input => made.fingerprint,
            _ => {
                let fingerprint = make();
                *made = Some(Made { input, fingerprint });
                fingerprint
            }
        }
    }
}

/// All parts, each behind its length; `None` where they are too long, or the route
/// chooses the parts that are compared.
fn flatten(parts: &ComparedParts<'_>) -> Option<Vec<u8>> {
    let ComparedParts {
        method,
        path,
        query,
        content_type,
        body,
        host,
        credentials,
        identity_parts,
        selection,
        headers,
    } = *parts;
    if !selection.is_everything() || !headers.is_empty() || !identity_parts.is_empty() {
        return None;
    }
    if body.len() + path.len() > INPUT_BYTES_MAX {
        return None;
    }
    let mut input = Vec::with_capacity(body.len() + path.len() + 256);
    let mut put = |part: Option<&[u8]>| {
        // An absent part differs from an empty one.
        let length = part.map_or(u32::MAX, |part| {
            u32::try_from(part.len()).unwrap_or(u32::MAX - 1)
        });
        input.extend_from_slice(&length.to_be_bytes());
        input.extend_from_slice(part.unwrap_or_default());
    };
    put(Some(method.as_bytes()));
    put(Some(path.as_bytes()));
    put(query.map(str::as_bytes));
    put(content_type);
    put(host);
    put(Some(body));
    for (name, value) in credentials {
        put(Some(name.as_bytes()));
        put(Some(value));
    }
    (input.len() <= INPUT_BYTES_MAX).then_some(input)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fingerprint::{Fingerprinter, Selection};

    const PARTS: ComparedParts<'_> = ComparedParts {
        method: "POST",
        path: "/payments",
        query: None,
        content_type: Some(b"application/json"),
        body: b"{}",
        host: Some(b"shop.example"),
        credentials: &[("cookie", b"a")],
        identity_parts: &[],
        selection: Selection::EVERYTHING,
        headers: &[],
    };

    fn made(memo: &Memo, parts: &ComparedParts<'_>) -> bool {
        let mut made = false;
        memo.get_or_make(parts, || {
            made = true;
            Fingerprinter::plain().fingerprint(parts)
        });
        made
    }

    #[test]
    fn the_same_parts_are_hashed_once() {
        let memo = Memo::new();
        assert!(made(&memo, &PARTS));
        assert!(!made(&memo, &PARTS));
        let others = [
            ComparedParts {
                method: "PATCH",
                ..PARTS
            },
            ComparedParts {
                path: "/payment",
                ..PARTS
            },
            ComparedParts {
                query: Some(""),
                ..PARTS
            },
            ComparedParts {
                content_type: None,
                ..PARTS
            },
            ComparedParts {
                content_type: Some(b""),
                ..PARTS
            },
            ComparedParts {
                body: b"{ }",
                ..PARTS
            },
            ComparedParts {
                host: None,
                ..PARTS
            },
            ComparedParts {
                credentials: &[],
                ..PARTS
            },
            ComparedParts {
                credentials: &[("cookie", b"b")],
                ..PARTS
            },
        ];
        for parts in &others {
            assert!(made(&memo, parts), "{parts:?}");
        }
    }

    #[test]
    fn choices_and_long_parts_are_always_hashed() {
        let memo = Memo::new();
        let long = vec![b'a'; INPUT_BYTES_MAX];
        let others = [
            ComparedParts {
                body: &long,
                ..PARTS
            },
            ComparedParts {
                credentials: &[("cookie", &long)],
                ..PARTS
            },
            ComparedParts {
                identity_parts: &["payments.create"],
                ..PARTS
            },
        ];
        for parts in &others {
            assert!(made(&memo, parts) && made(&memo, parts));
        }
    }
}
