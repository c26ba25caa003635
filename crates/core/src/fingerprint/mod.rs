//! Fingerprints: digests of requests, to compare the requests under one key.
//!
//! Two requests under one key are the same if their fingerprints are equal. The
//! body is read by its content type, so that a retry may write the same JSON in
//! another order, or use another multipart boundary; a body that cannot be read
//! that way is compared byte for byte. Every part enters the digest behind its
//! length. The algorithm's name is stored with the digest, so that a later
//! version can use another algorithm. A route may compare fewer parts, or more:
//! see [`Selection`].
//!
//! Short bodies can be guessed from a bare hash, so a gateway that has a
//! secret keys its fingerprints with it.

mod content_type;
mod form;
mod json;
mod multipart;
mod selection;

use std::borrow::Cow;
use std::fmt;
use std::sync::{Arc, Mutex};

use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq;

use content_type::{ContentType, Media};
pub use json::{DEPTH_MAX, canonical_json};
use selection::SelectedJson;
pub use selection::{PART_BYTES_MAX, Part, PartError, Pointer, Selection};

/// Separates these digests from all others made with SHA-256 or the secret.
const DOMAIN: &[u8] = b"onceward.fingerprint.1";

/// How a digest was made. Each way to read a body has two algorithms: with the
/// Host that the client asked for, and without it.
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
    /// As [`Json1`](Self::Json1), with the Host.
    JsonHost1,
    /// As [`Form1`](Self::Form1), with the Host.
    FormHost1,
    /// As [`Multipart1`](Self::Multipart1), with the Host.
    MultipartHost1,
    /// As [`Raw1`](Self::Raw1), with the Host.
    RawHost1,
}

impl Algorithm {
    /// Every algorithm that a record may name.
    pub const ALL: [Self; 8] = [
        Self::Json1,
        Self::Form1,
        Self::Multipart1,
        Self::Raw1,
        Self::JsonHost1,
        Self::FormHost1,
        Self::MultipartHost1,
        Self::RawHost1,
    ];

    /// Whether the Host was compared.
    pub fn compares_host(self) -> bool {
        matches!(
            self,
            Self::JsonHost1 | Self::FormHost1 | Self::MultipartHost1 | Self::RawHost1
        )
    }

    /// The name in records.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Json1 => "json-1",
            Self::Form1 => "form-1",
            Self::Multipart1 => "multipart-1",
            Self::Raw1 => "raw-1",
            Self::JsonHost1 => "json-1+host",
            Self::FormHost1 => "form-1+host",
            Self::MultipartHost1 => "multipart-1+host",
            Self::RawHost1 => "raw-1+host",
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
    /// A separate digest of the request's credentials, and of its Host where that
    /// is compared, so that a recovery request can be compared without the first
    /// request.
    pub sender: [u8; 16],
}

impl PartialEq for Fingerprint {
    fn eq(&self, other: &Self) -> bool {
        let same_digest = words::<32, 4>(&self.digest).ct_eq(&words::<32, 4>(&other.digest));
        let same_sender = words::<16, 2>(&self.sender).ct_eq(&words::<16, 2>(&other.sender));
        let same = same_digest & same_sender;
        self.algorithm == other.algorithm && bool::from(same)
    }
}

/// A digest as words: a comparison in constant time takes as long for a byte as for a word.
fn words<const BYTES: usize, const WORDS: usize>(digest: &[u8; BYTES]) -> [u64; WORDS] {
    const { assert!(BYTES == 8 * WORDS, "every byte is compared") };
    let (eights, _) = digest.as_chunks();
    std::array::from_fn(|at| u64::from_ne_bytes(eights[at]))
}

impl Eq for Fingerprint {}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, ..] = self.digest;
        write!(f, "{}:{a:02x}{b:02x}…", self.algorithm.as_str())
    }
}

/// The parts of a request that are compared.
#[derive(Clone, Copy, Debug)]
pub struct ComparedParts<'a> {
    /// The method, as it was sent.
    pub method: &'a str,
    /// The path, as it was sent.
    pub path: &'a str,
    /// The query, without its question mark. Pairs are compared in the order of
    /// their names; pairs of one name keep their order.
    pub query: Option<&'a str>,
    /// The `Content-Type`; its boundary and the order of its parameters do not count.
    pub content_type: Option<&'a [u8]>,
    /// The whole body, as it was sent.
    pub body: &'a [u8],
    /// The Host that the client asked for, where it is compared: see
    /// [`Sender::host`].
    pub host: Option<&'a [u8]>,
    /// The headers that distinguish clients where callers are not known.
    pub credentials: &'a [(&'a str, &'a [u8])],
    /// The parts of the identity that the key space leaves to the fingerprint:
    /// [`Identity::compared_parts`](crate::identity::Identity::compared_parts).
    pub identity_parts: &'a [&'a str],
    /// Which parts of the request are compared.
    pub selection: &'a Selection,
    /// The lines of the headers that the selection names, in their order. Other
    /// lines are ignored.
    pub headers: &'a [(&'a str, &'a [u8])],
}

/// The sender of a recovery request, as far as the request identifies it.
#[derive(Clone, Copy, Debug)]
pub struct Sender<'a> {
    /// The headers that distinguish clients where callers are not known.
    pub credentials: &'a [(&'a str, &'a [u8])],
    /// The Host that it was sent to. Its name is compared without case, its port
    /// is not compared: virtual hosts differ in their names, and one of them may be
    /// reached by several ports.
    pub host: &'a [u8],
}

/// Makes fingerprints.
#[derive(Clone)]
pub struct Fingerprinter {
    /// With the secret, if there is one, and the domain.
    hash: Hash,
    /// Kept, because most requests come to the same host as the one before.
    last_host: Arc<Mutex<Option<HostSender>>>,
}

/// The digest of a sender without credentials.
struct HostSender {
    host: Vec<u8>,
    sender: [u8; 16],
}

impl Fingerprinter {
    /// Keyed by a secret (HMAC-SHA-256), so that a body cannot be guessed without it.
    pub fn keyed(secret: [u8; 32]) -> Self {
        let hash = Hmac::new_from_slice(&secret).expect("HMAC takes keys of any length");
        Self::new(Hash::Keyed(hash))
    }

    /// Without a secret (SHA-256).
    pub fn plain() -> Self {
        Self::new(Hash::Plain(Sha256::new()))
    }

    fn new(mut hash: Hash) -> Self {
        hash.update(DOMAIN);
        Self {
            hash,
            last_host: Arc::default(),
        }
    }

    /// The fingerprint of a request. Any bytes have one.
    pub fn fingerprint(&self, parts: &ComparedParts<'_>) -> Fingerprint {
        let content_type = parts.content_type.map(ContentType::parse);
        let content = Content::read(content_type.as_ref(), parts.body, parts.selection);
        let algorithm = content.algorithm(parts.host.is_some());
        let host = parts.host.map(host_name);

        let mut hash = self.hash.clone();
        if !parts.identity_parts.is_empty() || !parts.selection.is_everything() {
            hash_choice(&mut hash, parts);
        }
        hash.part(algorithm.as_str().as_bytes());
        if let Some(host) = &host {
            hash.part(host);
        }
        hash.part(parts.method.as_bytes());
        hash.part(parts.path.as_bytes());
        hash.list(&parts.selection.of_query(parts.query), |hash, pair| {
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
            sender: self.sender(parts.credentials, host.as_deref()),
        }
    }

    /// Whether a request with this fingerprint came with these credentials, and
    /// to this host where its algorithm compares hosts.
    pub fn is_from(&self, fingerprint: &Fingerprint, sender: Sender<'_>) -> bool {
        bool::from(
            fingerprint
                .sender
                .ct_eq(&self.sender_of(fingerprint, sender)),
        )
    }

    /// The same fingerprint with the path of its request: half of the sender's
    /// digest is replaced by half of the path's.
    #[must_use]
    pub fn sent_to(&self, path: &str, fingerprint: Fingerprint) -> Fingerprint {
        let mut sender = fingerprint.sender;
        let at = self.path(path);
        sender[8..].copy_from_slice(&at[..8]);
        Fingerprint {
            sender,
            ..fingerprint
        }
    }

    /// Whether a fingerprint from [`sent_to`](Self::sent_to) has this path.
    pub fn is_sent_to(&self, path: &str, fingerprint: &Fingerprint) -> bool {
        let at = self.path(path);
        bool::from(fingerprint.sender[8..].ct_eq(&at[..8]))
    }

    /// As [`is_from`](Self::is_from), for a fingerprint from
    /// [`sent_to`](Self::sent_to).
    pub fn is_from_any_path(&self, fingerprint: &Fingerprint, sender: Sender<'_>) -> bool {
        let sender = self.sender_of(fingerprint, sender);
        bool::from(fingerprint.sender[..8].ct_eq(&sender[..8]))
    }

    /// The digest of a sender, made as this fingerprint was.
    fn sender_of(&self, fingerprint: &Fingerprint, sender: Sender<'_>) -> [u8; 16] {
        let host = fingerprint.algorithm.compares_host();
        let host = host.then(|| host_name(sender.host));
        self.sender(sender.credentials, host.as_deref())
    }

    fn path(&self, path: &str) -> [u8; 16] {
        self.sender(&[(":path", path.as_bytes())], None)
    }

    fn sender(&self, credentials: &[(&str, &[u8])], host: Option<&[u8]>) -> [u8; 16] {
        match (credentials, host) {
            ([], None) => [0; 16],
            ([], Some(host)) => self.host_sender(host),
            (credentials, host) => self.hash_sender(credentials, host),
        }
    }

    /// The digest of a sender without credentials.
    fn host_sender(&self, host: &[u8]) -> [u8; 16] {
        let hashed = || self.hash_sender(&[], Some(host));
        // Waiting would cost more than hashing.
        let Ok(mut last) = self.last_host.try_lock() else {
            return hashed();
        };
        match &*last {
            Some(last) if last.host == host => last.sender,
            _ => {
                let (host, sender) = (host.to_vec(), hashed());
                *last = Some(HostSender { host, sender });
                sender
            }
        }
    }

    fn hash_sender(&self, credentials: &[(&str, &[u8])], host: Option<&[u8]>) -> [u8; 16] {
        let mut hash = self.hash.clone();
        hash.part(b"sender");
        hash.list(credentials, |hash, (name, value)| {
            hash.part(name.as_bytes());
            hash.part(value);
        });
        if let Some(host) = host {
            hash.part(b"host");
            hash.part(host);
        }
        let [sender @ .., _, _, _, _, _, _, _, _, _, _, _, _, _, _, _, _] = hash.finish();
        sender
    }
}

impl fmt::Debug for Fingerprinter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.hash {
            Hash::Plain(_) => "Fingerprinter(plain)",
            Hash::Keyed(_) => "Fingerprinter(keyed)",
        })
    }
}

/// Hashes the choices of the route. They come first and begin with a word that is
/// not the name of an algorithm, so that a digest with choices never equals one
/// without.
fn hash_choice(hash: &mut Hash, parts: &ComparedParts<'_>) {
    let selection = parts.selection;
    hash.part(b"chosen");
    hash.list(parts.identity_parts, |hash, part| {
        hash.part(part.as_bytes());
    });
    for parts in [&selection.ignore, &selection.include] {
        let written = Selection::written(parts);
        hash.list(&written, |hash, part| hash.part(part.as_bytes()));
    }
    let mut names: Vec<_> = selection.headers().collect();
    names.sort_unstable();
    names.dedup();
    hash.list(&names, |hash, name| {
        let lines = parts
            .headers
            .iter()
            .filter(|(line, _)| line.eq_ignore_ascii_case(name));
        let lines: Vec<_> = lines.map(|(_, value)| *value).collect();
        hash.list(&lines, |hash, line| hash.part(line));
    });
}

/// The name in a Host, in lower case and without its port.
fn host_name(host: &[u8]) -> Cow<'_, [u8]> {
    let port = host.iter().rposition(|byte| *byte == b':');
    let name = match port {
        Some(colon) if host[colon + 1..].iter().all(u8::is_ascii_digit) => &host[..colon],
        // None, or the last group of an address in brackets.
        _ => host,
    };
    match name.iter().any(u8::is_ascii_uppercase) {
        true => name.to_ascii_lowercase().into(),
        false => name.into(),
    }
}

/// The pairs by name. A repeated name keeps the order of its values, which may
/// matter.
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

/// A body, read by its content type: the parts that are compared.
enum Content<'a> {
    Json(SelectedJson),
    Form(Vec<form::Pair>),
    Multipart(Vec<multipart::BodyPart<'a>>),
    Raw(&'a [u8]),
}

impl<'a> Content<'a> {
    fn read(content_type: Option<&ContentType>, body: &'a [u8], selection: &Selection) -> Self {
        let Some(content_type) = content_type else {
            return Self::Raw(body);
        };
        let read = match content_type.media() {
            Media::Json => canonical_json(body).map(|text| Self::Json(selection.of_json(text))),
            Media::Form => Some(Self::Form(selection.of_form(form::pairs(body)))),
            Media::Multipart => content_type
                .boundary()
                .and_then(|boundary| multipart::parts(body, boundary))
                .map(Self::Multipart),
            Media::Other => None,
        };
        read.unwrap_or(Self::Raw(body))
    }

    fn algorithm(&self, with_host: bool) -> Algorithm {
        match (self, with_host) {
            (Self::Json(_), false) => Algorithm::Json1,
            (Self::Form(_), false) => Algorithm::Form1,
            (Self::Multipart(_), false) => Algorithm::Multipart1,
            (Self::Raw(_), false) => Algorithm::Raw1,
            (Self::Json(_), true) => Algorithm::JsonHost1,
            (Self::Form(_), true) => Algorithm::FormHost1,
            (Self::Multipart(_), true) => Algorithm::MultipartHost1,
            (Self::Raw(_), true) => Algorithm::RawHost1,
        }
    }

    fn hash_into(&self, hash: &mut Hash) {
        match self {
            Self::Json(SelectedJson::All(text)) => hash.part(text),
            Self::Json(SelectedJson::Some(values)) => hash.list(values, |hash, value| {
                hash.list(value.as_slice(), |hash, value| hash.part(value));
            }),
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

    /// Hashes bytes behind their length, so that the bounds between parts are certain.
    fn part(&mut self, bytes: &[u8]) {
        self.update(&(bytes.len() as u64).to_be_bytes());
        self.update(bytes);
    }

    /// Hashes items behind their number.
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

    const PAYMENT: ComparedParts<'_> = ComparedParts {
        method: "POST",
        path: "/payments",
        query: Some("a=1&b=2"),
        content_type: Some(b"application/json"),
        body: br#"{"amount":100,"currency":"EUR"}"#,
        host: None,
        credentials: &[("authorization", b"Bearer 1")],
        identity_parts: &[],
        selection: Selection::EVERYTHING,
        headers: &[],
    };

    fn json(body: &str) -> ComparedParts<'_> {
        ComparedParts {
            body: body.as_bytes(),
            ..PAYMENT
        }
    }

    fn of(parts: &ComparedParts<'_>) -> Fingerprint {
        let keyed = Fingerprinter::keyed([7; 32]).fingerprint(parts);
        let plain = Fingerprinter::plain().fingerprint(parts);
        assert_ne!(keyed, plain, "the secret counts");
        plain
    }

    #[rstest]
    #[case::the_same(PAYMENT)]
    #[case::members_in_another_order(json(r#"{ "currency": "EUR", "amount": 1e2 }"#))]
    #[case::query_in_another_order(ComparedParts { query: Some("b=2&a=1"), ..PAYMENT })]
    #[case::type_in_capitals(ComparedParts { content_type: Some(b"Application/JSON"), ..PAYMENT })]
    fn equal_requests_have_one_fingerprint(#[case] parts: ComparedParts<'_>) {
        assert_eq!(of(&parts), of(&PAYMENT));
        assert_eq!(of(&parts).algorithm, Algorithm::Json1);
    }

    #[test]
    fn every_byte_of_a_fingerprint_is_compared() {
        let one = of(&PAYMENT);
        for at in 0..one.digest.len() {
            let mut other = one;
            other.digest[at] ^= 1;
            assert_ne!(one, other, "byte {at} of the digest");
        }
        for at in 0..one.sender.len() {
            let mut other = one;
            other.sender[at] ^= 0x80;
            assert_ne!(one, other, "byte {at} of the sender");
        }
    }

    #[rstest]
    #[case::method(ComparedParts { method: "PATCH", ..PAYMENT })]
    #[case::method_in_lower_case(ComparedParts { method: "post", ..PAYMENT })]
    #[case::path(ComparedParts { path: "/payments/", ..PAYMENT })]
    #[case::query(ComparedParts { query: Some("a=1&b=3"), ..PAYMENT })]
    #[case::no_query(ComparedParts { query: None, ..PAYMENT })]
    #[case::query_in_the_path(ComparedParts { path: "/payments?a=1&b=2", query: None, ..PAYMENT })]
    #[case::pair_twice(ComparedParts { query: Some("a=1&a=1&b=2"), ..PAYMENT })]
    #[case::content_type(ComparedParts { content_type: Some(b"application/problem+json"), ..PAYMENT })]
    #[case::charset(ComparedParts { content_type: Some(b"application/json; charset=latin1"), ..PAYMENT })]
    #[case::no_content_type(ComparedParts { content_type: None, ..PAYMENT })]
    #[case::credential(ComparedParts { credentials: &[("authorization", b"Bearer 2")], ..PAYMENT })]
    #[case::other_credential(ComparedParts { credentials: &[("cookie", b"Bearer 1")], ..PAYMENT })]
    #[case::no_credentials(ComparedParts { credentials: &[], ..PAYMENT })]
    #[case::amount(json(r#"{"amount":101,"currency":"EUR"}"#))]
    #[case::amount_as_text(json(r#"{"amount":"100","currency":"EUR"}"#))]
    #[case::empty_body(json(""))]
    fn a_difference_in_any_part_changes_the_fingerprint(#[case] parts: ComparedParts<'_>) {
        assert_ne!(of(&parts), of(&PAYMENT));
    }

    #[rstest]
    #[case::duplicate_names(r#"{"a":1,"a":2}"#, r#"{"a":2,"a":1}"#)]
    #[case::not_json("{", "{ ")]
    #[case::large_integers(r#"{"a":9007199254740993}"#, r#"{"a":9007199254740992}"#)]
    #[case::large_integers_in_fractions(
        r#"{"a":9007199254740993.0}"#,
        r#"{"a":9007199254740992.0}"#
    )]
    #[case::fractions_of_one_double(r#"{"a":0.1}"#, r#"{"a":0.10000000000000001}"#)]
    #[case::large_integer_as_text(r#"{"a":9007199254740993}"#, r#"{"a":"9007199254740993"}"#)]
    fn different_bodies_have_different_fingerprints(#[case] a: &str, #[case] b: &str) {
        assert_ne!(of(&json(a)), of(&json(b)));
    }

    #[test]
    fn charset_is_compared_without_case() {
        let typed = |content_type: &'static str| {
            of(&ComparedParts {
                content_type: Some(content_type.as_bytes()),
                ..PAYMENT
            })
        };
        let lower = typed("application/json; charset=utf-8");
        assert_eq!(typed("application/json;charset=UTF-8"), lower);
        assert_eq!(typed("application/json; Charset=\"Utf-8\""), lower);
        assert_ne!(typed("application/json; charset=latin1"), lower);
    }

    fn selection(ignore: &[&str], include: &[&str]) -> Selection {
        let part = |part: &&str| Part::parse(part).expect("a part");
        Selection::new(
            ignore.iter().map(part).collect(),
            include.iter().map(part).collect(),
        )
    }

    const FORM: Option<&[u8]> = Some(b"application/x-www-form-urlencoded");

    /// Whether the request is the same as [`PAYMENT`] under a selection.
    #[rstest]
    #[case::ignored_member(&["/at"], &[], json(r#"{"at":1,"amount":100,"currency":"EUR"}"#), true)]
    #[case::other_member(&["/at"], &[], json(r#"{"amount":101,"currency":"EUR"}"#), false)]
    #[case::ignored_member_elsewhere(&["/at"], &[], json(r#"{"x":{"at":1},"amount":100,"currency":"EUR"}"#), false)]
    #[case::included_member(&[], &["/amount"], json(r#"{"amount":1e2,"currency":"USD","x":1}"#), true)]
    #[case::other_value_of_an_included(&[], &["/amount"], json(r#"{"amount":101,"currency":"EUR"}"#), false)]
    #[case::absent_included(&[], &["/amount"], json(r#"{"currency":"EUR"}"#), false)]
    #[case::null_for_an_absent(&[], &["/absent"], json(r#"{"absent":null}"#), false)]
    #[case::absent_in_both(&[], &["/absent"], json(r#"{"amount":1}"#), true)]
    #[case::scalar_body(&[], &["/absent"], json("1"), true)]
    #[case::ignored_within_an_included(&["/amount"], &["/amount", "/currency"], json(r#"{"amount":7,"currency":"EUR"}"#), true)]
    #[case::included_does_not_free_the_path(&[], &["/amount"], ComparedParts { path: "/refunds", ..PAYMENT }, false)]
    #[case::included_does_not_free_the_query(&[], &["/amount"], ComparedParts { query: None, ..PAYMENT }, false)]
    #[case::body_that_cannot_be_read(&["/at"], &[], json("{"), false)]
    #[case::ignored_pair(&["query:b"], &[], ComparedParts { query: Some("a=1&b=9&%62=8"), ..PAYMENT }, true)]
    #[case::no_ignored_pair(&["query:b"], &[], ComparedParts { query: Some("a=1"), ..PAYMENT }, true)]
    #[case::other_pair(&["query:b"], &[], ComparedParts { query: Some("a=2&b=2"), ..PAYMENT }, false)]
    #[case::included_pair(&[], &["query:b"], ComparedParts { query: Some("c=1&b=2"), ..PAYMENT }, true)]
    #[case::included_pair_twice(&[], &["query:b"], ComparedParts { query: Some("b=2&b=2"), ..PAYMENT }, false)]
    #[case::included_header(&[], &["header:X-A"], ComparedParts { headers: &[("x-a", b"1")], ..PAYMENT }, false)]
    #[case::other_header(&[], &["header:X-A"], ComparedParts { headers: &[("x-b", b"1")], ..PAYMENT }, true)]
    #[case::another_type(&["/at"], &[], ComparedParts { content_type: FORM, ..PAYMENT }, false)]
    fn a_selection_decides_which_differences_count(
        #[case] ignore: &[&str],
        #[case] include: &[&str],
        #[case] parts: ComparedParts<'_>,
        #[case] is_same: bool,
    ) {
        let selection = &selection(ignore, include);
        let payment = of(&ComparedParts {
            selection,
            ..PAYMENT
        });
        assert_eq!(
            of(&ComparedParts { selection, ..parts }) == payment,
            is_same
        );
        assert_ne!(payment, of(&PAYMENT), "the selection counts");
    }

    #[test]
    fn fields_of_forms_are_selected_by_name() {
        let form = |ignore: &[&str], include: &[&str], body: &'static str| {
            of(&ComparedParts {
                content_type: FORM,
                selection: &selection(ignore, include),
                ..json(body)
            })
        };
        let ignored = |body| form(&["/at"], &[], body);
        assert_eq!(ignored("a=1&at=2"), ignored("%61t=3&at=4&a=1"));
        assert_ne!(ignored("a=1&at=2"), ignored("a=2&at=2"));
        let included = |body| form(&[], &["/a", "/b~1c"], body);
        assert_eq!(included("a=1&b/c=2"), included("x=9&b%2Fc=2&a=1"));
        assert_ne!(included("a=1&b/c=2"), included("a=1"));
        assert_ne!(included("a=1&a=2"), included("a=2&a=1"));
    }

    #[test]
    fn lines_of_a_header_keep_their_order_and_their_name() {
        let selection = &selection(&[], &["header:a", "header:b"]);
        let with = |headers: &[(&str, &[u8])]| {
            of(&ComparedParts {
                selection,
                headers,
                ..PAYMENT
            })
        };
        let two = with(&[("a", b"1"), ("a", b"2")]);
        assert_ne!(two, with(&[("a", b"2"), ("a", b"1")]));
        assert_ne!(two, with(&[("a", b"1"), ("b", b"2")]));
        assert_ne!(two, with(&[("a", b"12")]));
        assert_eq!(two, with(&[("A", b"1"), ("c", b"3"), ("A", b"2")]));
    }

    #[test]
    fn order_of_a_selection_does_not_count_and_its_kind_does() {
        let with = |ignore: &[&str], include: &[&str]| {
            let selection = &selection(ignore, include);
            of(&ComparedParts {
                selection,
                ..PAYMENT
            })
        };
        assert_eq!(with(&["/x", "/y"], &[]), with(&["/y", "/x", "/y"], &[]));
        assert_ne!(with(&["/x"], &[]), with(&["/y"], &[]));
        assert_ne!(with(&["query:x"], &[]), with(&["/x"], &[]));
        assert_ne!(with(&[], &["/amount", "/currency"]), with(&[], &[]));
    }

    #[test]
    fn parts_of_the_identity_are_compared_one_by_one() {
        let with = |identity_parts: &[&str]| {
            of(&ComparedParts {
                identity_parts,
                ..PAYMENT
            })
        };
        let lists: [&[&str]; 5] = [&[], &["a.b"], &["a", "b"], &["b", "a"], &[""]];
        for (number, one) in lists.iter().enumerate() {
            for (other_number, other) in lists.iter().enumerate() {
                assert_eq!(with(one) == with(other), number == other_number);
            }
        }
    }

    #[test]
    fn a_body_without_a_canonical_form_is_compared_byte_for_byte() {
        for body in ["", "{", r#"{"a":1,"a":1}"#, r#""\ud800""#] {
            assert_eq!(of(&json(body)).algorithm, Algorithm::Raw1, "{body}");
        }
    }

    #[test]
    fn values_of_a_repeated_name_keep_their_order() {
        let query = |query| {
            of(&ComparedParts {
                query: Some(query),
                ..PAYMENT
            })
        };
        assert_eq!(query("sort=a&x=1&sort=b"), query("x=1&sort=a&sort=b"));
        assert_ne!(query("sort=a&sort=b"), query("sort=b&sort=a"));
        let form = |body: &'static str| {
            of(&ComparedParts {
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
            of(&ComparedParts {
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
    fn the_sender_is_compared_without_the_request() {
        let fingerprinter = Fingerprinter::keyed([7; 32]);
        let paid = fingerprinter.fingerprint(&PAYMENT);
        let bare = fingerprinter.fingerprint(&ComparedParts {
            credentials: &[],
            ..PAYMENT
        });
        let is_from = |fingerprint, credentials| {
            let host: &[u8] = b"any.example";
            fingerprinter.is_from(fingerprint, Sender { credentials, host })
        };
        assert!(is_from(&paid, PAYMENT.credentials));
        assert!(!is_from(&paid, &[("authorization", b"Bearer 2")]));
        assert!(!is_from(&paid, &[]));
        assert!(is_from(&bare, &[]));
        assert!(!is_from(&bare, PAYMENT.credentials));
    }

    #[test]
    fn a_fingerprint_with_its_path_still_identifies_the_sender() {
        let fingerprinter = Fingerprinter::keyed([7; 32]);
        let paid = fingerprinter.sent_to("/a/1", fingerprinter.fingerprint(&PAYMENT));
        assert!(fingerprinter.is_sent_to("/a/1", &paid));
        assert!(!fingerprinter.is_sent_to("/a/2", &paid));
        let is_from = |credentials| {
            let host: &[u8] = b"any.example";
            fingerprinter.is_from_any_path(&paid, Sender { credentials, host })
        };
        assert!(is_from(PAYMENT.credentials));
        assert!(!is_from(&[]));
    }

    fn at_host(host: &[u8]) -> Fingerprint {
        let host = Some(host);
        of(&ComparedParts { host, ..PAYMENT })
    }

    #[test]
    fn a_host_counts_where_it_is_compared() {
        let shop = at_host(b"shop.example");
        assert_eq!(shop.algorithm, Algorithm::JsonHost1);
        assert_ne!(
            shop,
            of(&PAYMENT),
            "a host that is compared is another algorithm"
        );
        for same in ["Shop.EXAMPLE", "shop.example:8080", "shop.example:"] {
            assert_eq!(at_host(same.as_bytes()), shop, "{same}");
        }
        for other in ["", "shop.example.org", "example", "shop.example:x"] {
            assert_ne!(at_host(other.as_bytes()), shop, "{other}");
        }
        assert_eq!(at_host(b"[::1]:80"), at_host(b"[::1]"));
        assert_ne!(at_host(b"[::1]"), at_host(b"[::2]"));
    }

    #[test]
    fn the_host_is_compared_without_the_request() {
        let fingerprinter = Fingerprinter::keyed([7; 32]);
        for credentials in [PAYMENT.credentials, &[]] {
            let host = Some(&b"a.example"[..]);
            let paid = fingerprinter.fingerprint(&ComparedParts {
                host,
                credentials,
                ..PAYMENT
            });
            let sent = fingerprinter.sent_to("/a/1", paid);
            for (host, want) in [("A.example:1", true), ("b.example", false), ("", false)] {
                let host = host.as_bytes();
                let sender = Sender { credentials, host };
                assert_eq!(fingerprinter.is_from(&paid, sender), want);
                assert_eq!(fingerprinter.is_from_any_path(&sent, sender), want);
            }
        }
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
        fn the_same_document_in_another_order_has_the_same_fingerprint(
            document in document(),
            seeds in any::<[u64; 2]>(),
        ) {
            let [a, b] = seeds.map(|seed| written(&document, seed));
            let [a, b] = [of(&json(&a)), of(&json(&b))];
            prop_assert_eq!(a, b);
            prop_assert_eq!(a.algorithm, Algorithm::Json1);
        }

        #[test]
        fn different_large_integers_have_different_fingerprints(a in any::<u128>(), b in any::<u128>()) {
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
                    of(&ComparedParts { content_type: Some(content_type), body, ..PAYMENT });
                }
            }
        }
    }
}
