//! What a request asks for, as a digest.
//!
//! Two requests under one key are the same if their fingerprints are. The body
//! is read as what its content type says, so that a client that writes the
//! same JSON in another order, or draws another multipart boundary, still
//! repeats itself; what cannot be read that way counts byte for byte. Every
//! part enters the digest behind its length, all of the body does, and the
//! algorithm's name is stored with the digest, so that it can change one day.
//!
//! Short bodies can be guessed from a bare hash, so a gateway that has a
//! secret keys its fingerprints with it.

mod content_type;
mod form;
mod json;
mod multipart;

use std::fmt;

use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq;

use content_type::{ContentType, Media};
pub use json::{DEPTH_MAX, canonical_json};

/// Separates these digests from all others made with SHA-256 or the secret.
const DOMAIN: &[u8] = b"onceward.fingerprint.1";

/// How a digest was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Algorithm {
    /// The body as canonical JSON (RFC 8785, large integers by their digits).
    Json1,
    /// The body as sorted form pairs.
    Form1,
    /// The body as multipart parts without their boundary.
    Multipart1,
    /// The body as it is.
    Raw1,
}

impl Algorithm {
    /// Every algorithm that a record may name.
    pub const ALL: [Self; 4] = [Self::Json1, Self::Form1, Self::Multipart1, Self::Raw1];

    /// The name in records.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Json1 => "json-1",
            Self::Form1 => "form-1",
            Self::Multipart1 => "multipart-1",
            Self::Raw1 => "raw-1",
        }
    }
}

/// A request's fingerprint. Comparison takes constant time.
#[derive(Clone, Copy)]
pub struct Fingerprint {
    /// How the digest was made.
    pub algorithm: Algorithm,
    /// The digest.
    pub digest: [u8; 32],
    /// A digest of the credentials that came with it, on its own, so that who
    /// asks for the reply later can be compared without the request.
    pub sender: [u8; 16],
}

impl PartialEq for Fingerprint {
    fn eq(&self, other: &Self) -> bool {
        let same = self.digest.ct_eq(&other.digest) & self.sender.ct_eq(&other.sender);
        self.algorithm == other.algorithm && bool::from(same)
    }
}

impl Eq for Fingerprint {}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, ..] = self.digest;
        write!(f, "{}:{a:02x}{b:02x}…", self.algorithm.as_str())
    }
}

/// What of a request is compared.
#[derive(Clone, Copy, Debug)]
pub struct Asked<'a> {
    /// The method, as it was sent.
    pub method: &'a str,
    /// The path, as it was sent.
    pub path: &'a str,
    /// What follows the question mark. Pairs are compared in the order of
    /// their names, several of one name in their own.
    pub query: Option<&'a str>,
    /// The `Content-Type`; its boundary and the order of its parameters do not count.
    pub content_type: Option<&'a [u8]>,
    /// The whole body, as it was sent.
    pub body: &'a [u8],
    /// The headers that tell clients apart where callers are not known.
    pub credentials: &'a [(&'a str, &'a [u8])],
}

/// Makes fingerprints.
#[derive(Clone)]
pub struct Fingerprinter(Hash);

impl Fingerprinter {
    /// Keyed by a secret (HMAC-SHA-256): nobody without it can guess a body.
    pub fn keyed(secret: [u8; 32]) -> Self {
        let hash = Hmac::new_from_slice(&secret).expect("HMAC takes keys of any length");
        Self(Hash::Keyed(hash)).begun()
    }

    /// Without a secret (SHA-256).
    pub fn plain() -> Self {
        Self(Hash::Plain(Sha256::new())).begun()
    }

    fn begun(mut self) -> Self {
        self.0.update(DOMAIN);
        self
    }

    /// The fingerprint of a request. Any bytes have one.
    pub fn fingerprint(&self, asked: &Asked<'_>) -> Fingerprint {
        let content_type = asked.content_type.map(ContentType::parse);
        let content = Content::read(content_type.as_ref(), asked.body);
        let algorithm = content.algorithm();

        let mut hash = self.0.clone();
        hash.part(algorithm.as_str().as_bytes());
        hash.part(asked.method.as_bytes());
        hash.part(asked.path.as_bytes());
        hash.list(&sorted_query(asked.query), |hash, pair| {
            hash.part(pair.as_bytes());
        });
        hash.list(content_type.as_slice(), |hash, content_type| {
            hash.part(content_type.media_type());
            hash.list(content_type.parameters(), |hash, (name, value)| {
                hash.part(name);
                hash.part(value);
            });
        });
        content.hash_into(&mut hash);
        Fingerprint {
            algorithm,
            digest: hash.finish(),
            sender: self.sender(asked.credentials),
        }
    }

    /// Whether a request with this fingerprint came with these credentials.
    pub fn is_from(&self, fingerprint: &Fingerprint, credentials: &[(&str, &[u8])]) -> bool {
        bool::from(fingerprint.sender.ct_eq(&self.sender(credentials)))
    }

    fn sender(&self, credentials: &[(&str, &[u8])]) -> [u8; 16] {
        if credentials.is_empty() {
            return [0; 16];
        }
        let mut hash = self.0.clone();
        hash.part(b"sender");
        hash.list(credentials, |hash, (name, value)| {
            hash.part(name.as_bytes());
            hash.part(value);
        });
        let [sender @ .., _, _, _, _, _, _, _, _, _, _, _, _, _, _, _, _] = hash.finish();
        sender
    }
}

impl fmt::Debug for Fingerprinter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            Hash::Plain(_) => "Fingerprinter(plain)",
            Hash::Keyed(_) => "Fingerprinter(keyed)",
        })
    }
}

/// By name; a repeated name keeps the order of its values, which may matter.
fn sorted_query(query: Option<&str>) -> Vec<&str> {
    let mut pairs: Vec<_> = query
        .map(|query| query.split('&').collect())
        .unwrap_or_default();
    pairs.sort_by_key(|pair| {
        pair.split_once('=')
            .map_or(*pair, |(name, _)| name)
            .as_bytes()
    });
    pairs
}

/// A body, read as what it is.
enum Content<'a> {
    Json(Vec<u8>),
    Form(Vec<form::Pair>),
    Multipart(Vec<multipart::Part<'a>>),
    Raw(&'a [u8]),
}

impl<'a> Content<'a> {
    fn read(content_type: Option<&ContentType>, body: &'a [u8]) -> Self {
        let Some(content_type) = content_type else {
            return Self::Raw(body);
        };
        let read = match content_type.media() {
            Media::Json => canonical_json(body).map(Self::Json),
            Media::Form => Some(Self::Form(form::pairs(body))),
            Media::Multipart => content_type
                .boundary()
                .and_then(|boundary| multipart::parts(body, boundary))
                .map(Self::Multipart),
            Media::Other => None,
        };
        read.unwrap_or(Self::Raw(body))
    }

    fn algorithm(&self) -> Algorithm {
        match self {
            Self::Json(_) => Algorithm::Json1,
            Self::Form(_) => Algorithm::Form1,
            Self::Multipart(_) => Algorithm::Multipart1,
            Self::Raw(_) => Algorithm::Raw1,
        }
    }

    fn hash_into(&self, hash: &mut Hash) {
        match self {
            Self::Json(text) => hash.part(text),
            Self::Raw(bytes) => hash.part(bytes),
            Self::Form(pairs) => hash.list(pairs, |hash, (name, value)| {
                hash.part(name);
                hash.part(value);
            }),
            Self::Multipart(parts) => hash.list(parts, |hash, part| {
                hash.list(&part.headers, |hash, (name, value)| {
                    hash.part(name);
                    hash.part(value);
                });
                hash.part(part.body);
            }),
        }
    }
}

#[derive(Clone)]
enum Hash {
    Plain(Sha256),
    Keyed(Hmac<Sha256>),
}

impl Hash {
    fn update(&mut self, bytes: &[u8]) {
        match self {
            Self::Plain(hash) => hash.update(bytes),
            Self::Keyed(hash) => hash.update(bytes),
        }
    }

    /// Bytes behind their length, so that nothing can pass into its neighbour.
    fn part(&mut self, bytes: &[u8]) {
        self.update(&(bytes.len() as u64).to_be_bytes());
        self.update(bytes);
    }

    /// Items behind their number.
    fn list<T>(&mut self, items: &[T], item: impl Fn(&mut Self, &T)) {
        self.update(&(items.len() as u64).to_be_bytes());
        for each in items {
            item(self, each);
        }
    }

    fn finish(self) -> [u8; 32] {
        match self {
            Self::Plain(hash) => hash.finalize().into(),
            Self::Keyed(hash) => hash.finalize().into_bytes().into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rstest::rstest;
    use serde_json::Value;

    use super::*;

    const PAYMENT: Asked<'_> = Asked {
        method: "POST",
        path: "/payments",
        query: Some("a=1&b=2"),
        content_type: Some(b"application/json"),
        body: br#"{"amount":100,"currency":"EUR"}"#,
        credentials: &[("authorization", b"Bearer 1")],
    };

    fn json(body: &str) -> Asked<'_> {
        Asked {
            body: body.as_bytes(),
            ..PAYMENT
        }
    }

    fn of(asked: &Asked<'_>) -> Fingerprint {
        let keyed = Fingerprinter::keyed([7; 32]).fingerprint(asked);
        let plain = Fingerprinter::plain().fingerprint(asked);
        assert_ne!(keyed, plain, "the secret counts");
        plain
    }

    #[rstest]
    #[case::the_same(PAYMENT)]
    #[case::members_in_another_order(json(r#"{ "currency": "EUR", "amount": 1e2 }"#))]
    #[case::query_in_another_order(Asked { query: Some("b=2&a=1"), ..PAYMENT })]
    #[case::type_in_capitals(Asked { content_type: Some(b"Application/JSON"), ..PAYMENT })]
    fn the_same_question(#[case] asked: Asked<'_>) {
        assert_eq!(of(&asked), of(&PAYMENT));
        assert_eq!(of(&asked).algorithm, Algorithm::Json1);
    }

    #[rstest]
    #[case::method(Asked { method: "PATCH", ..PAYMENT })]
    #[case::method_in_lower_case(Asked { method: "post", ..PAYMENT })]
    #[case::path(Asked { path: "/payments/", ..PAYMENT })]
    #[case::query(Asked { query: Some("a=1&b=3"), ..PAYMENT })]
    #[case::no_query(Asked { query: None, ..PAYMENT })]
    #[case::query_in_the_path(Asked { path: "/payments?a=1&b=2", query: None, ..PAYMENT })]
    #[case::pair_twice(Asked { query: Some("a=1&a=1&b=2"), ..PAYMENT })]
    #[case::content_type(Asked { content_type: Some(b"application/problem+json"), ..PAYMENT })]
    #[case::charset(Asked { content_type: Some(b"application/json; charset=latin1"), ..PAYMENT })]
    #[case::no_content_type(Asked { content_type: None, ..PAYMENT })]
    #[case::credential(Asked { credentials: &[("authorization", b"Bearer 2")], ..PAYMENT })]
    #[case::other_credential(Asked { credentials: &[("cookie", b"Bearer 1")], ..PAYMENT })]
    #[case::no_credentials(Asked { credentials: &[], ..PAYMENT })]
    #[case::amount(json(r#"{"amount":101,"currency":"EUR"}"#))]
    #[case::amount_as_text(json(r#"{"amount":"100","currency":"EUR"}"#))]
    #[case::empty_body(json(""))]
    fn another_question(#[case] asked: Asked<'_>) {
        assert_ne!(of(&asked), of(&PAYMENT));
    }

    #[rstest]
    #[case::duplicate_names(r#"{"a":1,"a":2}"#, r#"{"a":2,"a":1}"#)]
    #[case::not_json("{", "{ ")]
    #[case::large_integers(r#"{"a":9007199254740993}"#, r#"{"a":9007199254740992}"#)]
    #[case::large_integer_as_text(r#"{"a":9007199254740993}"#, r#"{"a":"9007199254740993"}"#)]
    fn bodies_that_must_not_meet(#[case] a: &str, #[case] b: &str) {
        assert_ne!(of(&json(a)), of(&json(b)));
    }

    #[test]
    fn what_has_no_canonical_form_counts_byte_for_byte() {
        for body in ["", "{", r#"{"a":1,"a":1}"#, r#""\ud800""#] {
            assert_eq!(of(&json(body)).algorithm, Algorithm::Raw1, "{body}");
        }
    }

    #[test]
    fn values_of_a_repeated_name_keep_their_order() {
        let query = |query| {
            of(&Asked {
                query: Some(query),
                ..PAYMENT
            })
        };
        assert_eq!(query("sort=a&x=1&sort=b"), query("x=1&sort=a&sort=b"));
        assert_ne!(query("sort=a&sort=b"), query("sort=b&sort=a"));
        let form = |body: &'static str| {
            of(&Asked {
                content_type: Some(b"application/x-www-form-urlencoded"),
                ..json(body)
            })
        };
        assert_eq!(form("sort=a&x=%31&sort=b"), form("x=1&sort=a&sort=b"));
        assert_ne!(form("sort=a&sort=b"), form("sort=b&sort=a"));
        assert_eq!(form("").algorithm, Algorithm::Form1);
    }

    #[test]
    fn multipart_boundary_does_not_count() {
        let upload = |boundary: &str, content: &str| {
            let content_type = format!("multipart/form-data; boundary={boundary}");
            let body = format!(
                "--{boundary}\r\nContent-Disposition: form-data; name=\"a\"\r\n\r\n{content}\r\n--{boundary}--\r\n"
            );
            of(&Asked {
                content_type: Some(content_type.as_bytes()),
                ..json(&body)
            })
        };
        assert_eq!(upload("x", "1"), upload("yy", "1"));
        assert_ne!(upload("x", "1"), upload("x", "2"));
        assert_eq!(upload("x", "1").algorithm, Algorithm::Multipart1);
        assert_eq!(upload("x", "\r\n--x\r\n").algorithm, Algorithm::Raw1);
    }

    /// A record outlives the program that wrote it. The values were made with
    /// Python's `hashlib` and `hmac`.
    #[rstest]
    #[case::plain(
        Fingerprinter::plain(),
        "75bf65b440933ddf383c8ce8aecd34a1e6eb738bfd2463bf2184b601ab2916f3",
        "3885da9b638e125c1d34ed98b0d8a305"
    )]
    #[case::keyed(
        Fingerprinter::keyed([7; 32]),
        "a9276cf40540c74fa5a71621d991bfa27399cdf7a6e247d53268e37f2877d3bc",
        "4928b458789ae44e113d74af0d0aa77b"
    )]
    fn fingerprints_are_fixed_for_ever(
        #[case] fingerprinter: Fingerprinter,
        #[case] digest: &str,
        #[case] sender: &str,
    ) {
        let got = fingerprinter.fingerprint(&PAYMENT);
        assert_eq!(data_encoding::HEXLOWER.encode(&got.digest), digest);
        assert_eq!(data_encoding::HEXLOWER.encode(&got.sender), sender);
    }

    #[test]
    fn sender_is_known_without_the_request() {
        let fingerprinter = Fingerprinter::keyed([7; 32]);
        let paid = fingerprinter.fingerprint(&PAYMENT);
        let bare = fingerprinter.fingerprint(&Asked {
            credentials: &[],
            ..PAYMENT
        });
        assert!(fingerprinter.is_from(&paid, PAYMENT.credentials));
        assert!(!fingerprinter.is_from(&paid, &[("authorization", b"Bearer 2")]));
        assert!(!fingerprinter.is_from(&paid, &[]));
        assert!(fingerprinter.is_from(&bare, &[]));
        assert!(!fingerprinter.is_from(&bare, PAYMENT.credentials));
    }

    #[test]
    fn secret_is_not_shown() {
        assert_eq!(
            format!("{:?}", Fingerprinter::keyed([7; 32])),
            "Fingerprinter(keyed)"
        );
    }

    /// The document as text, its members in an order and with spaces of the seed's choice.
    fn written(document: &Value, seed: u64) -> String {
        let space = ["", " ", "\n\t", "\r\n  "][(seed % 4) as usize];
        let seed = seed.rotate_right(3).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        match document {
            Value::Array(items) => {
                let items: Vec<_> = items.iter().map(|item| written(item, seed)).collect();
                format!("{space}[{}{space}]", items.join(","))
            }
            Value::Object(members) => {
                let mut members: Vec<_> = members
                    .iter()
                    .map(|(name, value)| {
                        let name = Value::from(name.as_str());
                        format!("{space}{name}{space}:{}", written(value, seed))
                    })
                    .collect();
                let turn = seed as usize % members.len().max(1);
                members.rotate_left(turn);
                if seed.is_multiple_of(2) {
                    members.reverse();
                }
                format!("{{{}{space}}}", members.join(","))
            }
            leaf => format!("{space}{leaf}{space}"),
        }
    }

    fn document() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<i64>().prop_map(Value::from),
            any::<u64>().prop_map(Value::from),
            any::<String>().prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 32, 6, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
                prop::collection::hash_map(".{0,3}", inner, 0..6)
                    .prop_map(|map| Value::Object(map.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn the_same_document_written_otherwise_is_the_same_question(
            document in document(),
            seeds in any::<[u64; 2]>(),
        ) {
            let [a, b] = seeds.map(|seed| written(&document, seed));
            let [a, b] = [of(&json(&a)), of(&json(&b))];
            prop_assert_eq!(a, b);
            prop_assert_eq!(a.algorithm, Algorithm::Json1);
        }

        #[test]
        fn different_large_integers_are_different_questions(a in any::<u128>(), b in any::<u128>()) {
            prop_assume!(a != b);
            let [a, b] = [a, b].map(|n| format!("{{\"amount\":{n}}}"));
            prop_assert_ne!(of(&json(&a)), of(&json(&b)));
        }

        #[test]
        fn any_bytes_have_a_fingerprint(
            body in any::<Vec<u8>>(),
            kind in prop::sample::select(vec![
                "application/json",
                "application/x-www-form-urlencoded",
                "multipart/form-data; boundary=B",
                "multipart/form-data",
                "text/plain",
            ]),
            noise in any::<Vec<u8>>(),
        ) {
            let typed = [kind.as_bytes(), &noise].concat();
            let delimited = [b"--B\r\n", body.as_slice(), b"\r\n--B--"].concat();
            for content_type in [kind.as_bytes(), &typed, &noise] {
                for body in [&body, &delimited] {
                    of(&Asked { content_type: Some(content_type), body, ..PAYMENT });
                }
            }
        }
    }
}
