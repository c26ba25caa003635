//! A provider from the configuration: an HMAC in a header, over a text made of
//! parts of the request.
//!
//! [`GenericSettings`] is the configuration, [`Generic`] the checked form. All
//! mistakes are reported at once.
//!
//! The parts of the signed text must have unambiguous boundaries. Otherwise an
//! attacker with a captured request could move bytes between them, and the
//! signature would still match. So a header is separated by text that its value
//! does not contain, and a time has a fixed number of digits. A query, which a
//! sender can extend, is separated too, except before JSON: JSON without its
//! beginning is not JSON.

use std::fmt;

use data_encoding::{BASE64, BASE64URL, BASE64URL_NOPAD, HEXLOWER_PERMISSIVE};
use http::HeaderName;
use ring::hmac;
use subtle::Choice;

use crate::form::{self, Field};
use crate::identifier::{self, sha256};
use crate::identify::{Delivery, Unidentified};
use crate::json::Pointer;
use crate::key::{SIGNATURES_MAX, SecretEncoding, SigningKey, signed_by_any};
use crate::parts::{Authentic, Parts, Verified};
use crate::provider::Provider;
use crate::refusal::Refusal;
use crate::time;
use crate::url;

/// The configuration of a provider.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GenericSettings {
    /// The name in paths and keys: `[a-z0-9][a-z0-9-]{0,63}`, and not that of a
    /// built-in provider.
    pub name: String,
    /// The header of the signature.
    pub signature_header: String,
    /// The prefix of each signature, such as `sha256=`.
    pub prefix: String,
    /// The separator of several signatures in the header. Without one, the header
    /// is one signature.
    pub separator: Option<String>,
    /// `sha1`, `sha256` or `sha512`.
    pub algorithm: String,
    /// The encoding of the signature: `hex`, `base64` or `base64url`.
    pub encoding: String,
    /// The encoding of the secret: `text`, `base64` or `hex`.
    pub secret: String,
    /// The signed text: a template with `{body}` once, and optionally
    /// `{timestamp}`, `{url}` and `{header:NAME}`.
    pub signed: String,
    /// The signed time.
    pub timestamp: Option<GenericTimestamp>,
    /// The location of the id: `json:/pointer`, `header:NAME` or `form:field`.
    pub id: String,
}

/// The location of the signed time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GenericTimestamp {
    /// Its header.
    pub header: String,
    /// `s` or `ms` since 1970.
    pub unit: String,
}

impl Default for GenericSettings {
    /// HMAC-SHA256 in hexadecimal over the body; the names and the id are required.
    fn default() -> Self {
        Self {
            name: String::new(),
            signature_header: String::new(),
            prefix: String::new(),
            separator: None,
            algorithm: "sha256".to_owned(),
            encoding: "hex".to_owned(),
            secret: "text".to_owned(),
            signed: "{body}".to_owned(),
            timestamp: None,
            id: String::new(),
        }
    }
}

/// A mistake in a provider's settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GenericMistake {
    /// The setting, by its name in [`GenericSettings`].
    pub field: &'static str,
    /// A correct value.
    pub problem: String,
}

impl fmt::Display for GenericMistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}` {}", self.field, self.problem)
    }
}

impl std::error::Error for GenericMistake {}

/// A checked provider from the configuration.
#[derive(Clone, Debug)]
pub struct Generic {
    name: String,
    signature_header: HeaderName,
    prefix: String,
    separator: Option<String>,
    algorithm: hmac::Algorithm,
    encoding: Encoding,
    secret: SecretEncoding,
    signed: Vec<Piece>,
    timestamp: Option<(HeaderName, Unit)>,
    id: Id,
}

#[derive(Clone, Copy, Debug)]
enum Encoding {
    Hex,
    Base64,
    Base64Url,
}

impl Encoding {
    fn decode(self, text: &str) -> Option<Vec<u8>> {
        let text = text.as_bytes();
        match self {
            Self::Hex => HEXLOWER_PERMISSIVE.decode(text).ok(),
            Self::Base64 => BASE64.decode(text).ok(),
            Self::Base64Url => BASE64URL
                .decode(text)
                .or_else(|_| BASE64URL_NOPAD.decode(text))
                .ok(),
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum Unit {
    Seconds,
    Milliseconds,
}

impl Unit {
    /// The time in seconds, if it is between 2001 and 2286, when it has a constant
    /// number of digits.
    fn seconds(self, text: &str) -> Option<i64> {
        let (digits, seconds) = match self {
            Self::Seconds => (10, time::seconds(text)),
            Self::Milliseconds => (13, time::milliseconds(text)),
        };
        seconds.filter(|_| text.len() == digits && !text.starts_with('0'))
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Piece {
    Text(String),
    Body,
    Timestamp,
    Url,
    Header(HeaderName),
}

#[derive(Clone, Debug)]
enum Id {
    Json(Pointer),
    Form(String),
    SignedHeader(HeaderName),
    UnsignedHeader(HeaderName),
}

impl Generic {
    /// Checks the settings and reports all mistakes.
    pub fn new(settings: &GenericSettings) -> Result<Self, Vec<GenericMistake>> {
        let mut mistakes = Mistakes(Vec::new());
        mistakes.name(&settings.name);
        let signature_header = mistakes.header("signature_header", &settings.signature_header);
        if !settings.prefix.bytes().all(|b| (b' '..=b'~').contains(&b)) {
            mistakes.add("prefix", "must be printable ASCII");
        }
        if settings.separator.as_ref().is_some_and(String::is_empty) {
            mistakes.add("separator", "must not be empty: omit it for one signature");
        }
        let algorithm = mistakes.choice(
            "algorithm",
            &settings.algorithm,
            &[
                ("sha1", hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY),
                ("sha256", hmac::HMAC_SHA256),
                ("sha512", hmac::HMAC_SHA512),
            ],
        );
        let encoding = mistakes.choice(
            "encoding",
            &settings.encoding,
            &[
                ("hex", Encoding::Hex),
                ("base64", Encoding::Base64),
                ("base64url", Encoding::Base64Url),
            ],
        );
        let secret = mistakes.choice(
            "secret",
            &settings.secret,
            &[
                ("text", SecretEncoding::Text),
                ("base64", SecretEncoding::Base64),
                ("hex", SecretEncoding::Hex),
            ],
        );
        let timestamp = settings.timestamp.as_ref().map(|timestamp| {
            let header = mistakes.header("timestamp.header", &timestamp.header);
            let units = [("s", Unit::Seconds), ("ms", Unit::Milliseconds)];
            let unit = mistakes.choice("timestamp.unit", &timestamp.unit, &units);
            header.zip(unit)
        });
        let signed = mistakes.signed(&settings.signed, settings.timestamp.is_some());
        let id = mistakes.id(&settings.id, signed.as_deref().unwrap_or_default());
        match (signature_header, algorithm, encoding, secret, signed, id) {
            (
                Some(signature_header),
                Some(algorithm),
                Some(encoding),
                Some(secret),
                Some(signed),
                Some(id),
            ) if mistakes.0.is_empty() => Ok(Self {
                name: settings.name.clone(),
                signature_header,
                prefix: settings.prefix.clone(),
                separator: settings.separator.clone(),
                algorithm,
                encoding,
                secret,
                signed,
                timestamp: timestamp.flatten(),
                id,
            }),
            _ => Err(mistakes.0),
        }
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn algorithm(&self) -> hmac::Algorithm {
        self.algorithm
    }

    pub(crate) fn secret_encoding(&self) -> SecretEncoding {
        self.secret
    }

    pub(crate) fn has_time(&self) -> bool {
        self.timestamp.is_some()
    }

    pub(crate) fn binds_url(&self) -> bool {
        self.signed.contains(&Piece::Url)
    }

    fn tags(&self, parts: &Parts<'_>) -> Result<Vec<Vec<u8>>, Refusal> {
        let header = parts.one(&self.signature_header)?;
        let signatures: Vec<&str> = match &self.separator {
            Some(separator) => header
                .split(separator.as_str())
                .take(SIGNATURES_MAX + 1)
                .collect(),
            None => vec![header],
        };
        if signatures.len() > SIGNATURES_MAX {
            return Err(Refusal::TooManySignatures);
        }
        let tags = signatures.into_iter().filter_map(|signature| {
            self.encoding
                .decode(signature.trim().strip_prefix(self.prefix.as_str())?)
        });
        Ok(tags.collect())
    }

    /// The header's value, if it does not contain its separator.
    fn set_apart<'a>(
        &self,
        parts: &Parts<'a>,
        header: &HeaderName,
        at: usize,
    ) -> Result<&'a str, Refusal> {
        let value = parts.one(header)?;
        match self.text_beside(at) {
            Some(text) if !value.contains(text) => Ok(value),
            _ => Err(Refusal::Malformed(header.clone())),
        }
    }

    /// Whether no part of the body can have moved into the URL.
    fn is_set_apart(&self, url: &str, at: usize) -> bool {
        let query = url::query(url);
        let apart = || {
            self.text_beside(at)
                .is_some_and(|text| !query.contains(text))
        };
        query.is_empty() || matches!(self.id, Id::Json(_)) || apart()
    }

    /// The text between this piece and the body, which may contain anything.
    fn text_beside(&self, at: usize) -> Option<&str> {
        let beside = match self.signed[..at].contains(&Piece::Body) {
            true => at - 1,
            false => at + 1,
        };
        match self.signed.get(beside) {
            Some(Piece::Text(text)) => Some(text),
            _ => None,
        }
    }
}

pub(crate) fn verify<'a>(
    generic: &Generic,
    parts: &Parts<'a>,
    keys: &[SigningKey],
) -> Result<Authentic<'a>, Refusal> {
    let tags = generic.tags(parts)?;
    if let Id::UnsignedHeader(header) = &generic.id {
        parts.at_most_one(header)?;
    }
    let (timestamp, signed_at) = match &generic.timestamp {
        None => ("", None),
        Some((header, unit)) => {
            let text = parts.one(header)?;
            let signed_at = unit.seconds(text);
            (
                text,
                Some(signed_at.ok_or_else(|| Refusal::Malformed(header.clone()))?),
            )
        }
    };
    let mut pieces: Vec<&[u8]> = Vec::with_capacity(generic.signed.len());
    let mut url_at = None;
    for (at, piece) in generic.signed.iter().enumerate() {
        pieces.push(match piece {
            Piece::Text(text) => text.as_bytes(),
            Piece::Body => parts.body,
            Piece::Timestamp => timestamp.as_bytes(),
            Piece::Header(header) => generic.set_apart(parts, header, at)?.as_bytes(),
            Piece::Url if !generic.is_set_apart(parts.url, at) => {
                return Err(Refusal::MalformedUrl);
            }
            Piece::Url => {
                url_at = Some(at);
                parts.url.as_bytes()
            }
        });
    }
    let mut found = Choice::from(0);
    match url_at {
        None => found |= signed_by_any(keys, &pieces, &tags),
        Some(at) => {
            for url in url::spellings(parts.url) {
                let mut pieces = pieces.clone();
                pieces[at] = url.as_bytes();
                found |= signed_by_any(keys, &pieces, &tags);
            }
        }
    }
    if found.into() {
        Ok(Authentic {
            signed_at,
            ..Authentic::body()
        })
    } else {
        Err(Refusal::Signature)
    }
}

pub(crate) fn identify(
    generic: &Generic,
    verified: &Verified<'_>,
) -> Result<Delivery, Unidentified> {
    let parts = &verified.parts;
    let of_header = |header| match parts.at_most_one(header) {
        Ok(Some(id)) if !id.is_empty() => Ok(id.to_owned()),
        _ => Err(Unidentified::MissingId),
    };
    let id = match &generic.id {
        Id::Json(pointer) => pointer.find(parts.body)?.filter(|id| !id.is_empty()),
        Id::Form(name) => match form::field(parts.body, name) {
            Field::One(id) => Some(id).filter(|id| !id.is_empty()),
            Field::Absent => None,
            Field::Unclear => return Err(Unidentified::RepeatedId),
        },
        Id::SignedHeader(header) => Some(of_header(header)?),
        Id::UnsignedHeader(header) => {
            let bytes = sha256(&[parts.body]);
            let event = identifier::unsigned(&generic.name, &[&of_header(header)?], bytes);
            return identifier::one(event);
        }
    };
    let id = id.ok_or(Unidentified::MissingId)?;
    identifier::one(identifier::signed(&generic.name, &[&id]))
}

struct Mistakes(Vec<GenericMistake>);

impl Mistakes {
    fn add(&mut self, field: &'static str, problem: impl Into<String>) {
        self.0.push(GenericMistake {
            field,
            problem: problem.into(),
        });
    }

    fn name(&mut self, name: &str) {
        let first = name.bytes().next().is_some_and(|b| b != b'-');
        let all = name
            .bytes()
            .all(|b| matches!(b, b'a'..=b'z' | b'0'..=b'9' | b'-'));
        if !(first && all && name.len() <= 64) {
            self.add(
                "name",
                "must be 1 to 64 of a-z, 0-9 and hyphen, and not begin with a hyphen",
            );
        }
        if Provider::BUILT_IN.contains(&name) {
            self.add("name", "is the name of a provider that is built in");
        }
    }

    fn header(&mut self, field: &'static str, name: &str) -> Option<HeaderName> {
        let header = HeaderName::from_bytes(name.as_bytes()).ok();
        if header.is_none() {
            self.add(field, "must be the name of a header");
        }
        header
    }

    fn choice<T: Copy>(
        &mut self,
        field: &'static str,
        given: &str,
        choices: &[(&str, T)],
    ) -> Option<T> {
        let choice = choices
            .iter()
            .find(|(name, _)| *name == given)
            .map(|(_, choice)| *choice);
        if choice.is_none() {
            let names: Vec<&str> = choices.iter().map(|(name, _)| *name).collect();
            self.add(field, format!("must be one of {}", names.join(", ")));
        }
        choice
    }

    fn signed(&mut self, template: &str, has_time: bool) -> Option<Vec<Piece>> {
        let before = self.0.len();
        let mut pieces = Vec::new();
        let mut rest = template;
        while let Some(at) = rest.find(['{', '}']) {
            if at > 0 {
                pieces.push(Piece::Text(rest[..at].to_owned()));
            }
            let Some((inner, after)) = rest[at..].strip_prefix('{').and_then(|r| r.split_once('}'))
            else {
                self.add("signed", "has a brace that belongs to no placeholder");
                return None;
            };
            match inner.split_once(':') {
                None if inner == "body" => pieces.push(Piece::Body),
                None if inner == "timestamp" => pieces.push(Piece::Timestamp),
                None if inner == "url" => pieces.push(Piece::Url),
                Some(("header", name)) => {
                    pieces.extend(self.header("signed", name).map(Piece::Header));
                }
                _ => self.add(
                    "signed",
                    "has a placeholder other than {body}, {timestamp}, {url} and {header:NAME}",
                ),
            }
            rest = after;
        }
        if !rest.is_empty() {
            pieces.push(Piece::Text(rest.to_owned()));
        }
        let count = |wanted: &Piece| pieces.iter().filter(|piece| *piece == wanted).count();
        if count(&Piece::Body) != 1 {
            self.add("signed", "must have {body} once");
        }
        if count(&Piece::Url) > 1 || count(&Piece::Timestamp) > 1 {
            self.add("signed", "must not have {url} or {timestamp} twice");
        }
        match (has_time, count(&Piece::Timestamp)) {
            (true, 0) => self.add(
                "timestamp",
                "is not signed: put {timestamp} into `signed`, or omit it",
            ),
            (false, 1..) => self.add(
                "signed",
                "has {timestamp}, but `timestamp` does not say where it is",
            ),
            _ => {}
        }
        self.set_apart(&pieces);
        (self.0.len() == before).then_some(pieces)
    }

    fn set_apart(&mut self, pieces: &[Piece]) {
        let body_at = pieces
            .iter()
            .position(|piece| *piece == Piece::Body)
            .unwrap_or(0);
        let is_text = |piece: Option<&Piece>| matches!(piece, Some(Piece::Text(_)));
        for (at, piece) in pieces.iter().enumerate() {
            let before = at.checked_sub(1).and_then(|at| pieces.get(at));
            let after = pieces.get(at + 1);
            let (towards, away) = if at < body_at {
                (after, before)
            } else {
                (before, after)
            };
            let apart = is_text(towards) && (away.is_none() || is_text(away));
            if matches!(piece, Piece::Header(_)) && !apart {
                self.add(
                    "signed",
                    "has a {header:NAME} that no text separates from its neighbour",
                );
            }
        }
    }

    fn id(&mut self, id: &str, signed: &[Piece]) -> Option<Id> {
        match id.split_once(':') {
            Some(("json", pointer)) => {
                let pointer = Pointer::parse(pointer);
                if pointer.is_none() {
                    self.add(
                        "id",
                        "must have a JSON Pointer into the body, as `json:/data/id`",
                    );
                }
                pointer.map(Id::Json)
            }
            Some(("form", name)) if !name.is_empty() => Some(Id::Form(name.to_owned())),
            Some(("header", name)) => {
                let header = self.header("id", name)?;
                Some(if signed.contains(&Piece::Header(header.clone())) {
                    Id::SignedHeader(header)
                } else {
                    Id::UnsignedHeader(header)
                })
            }
            _ => {
                self.add(
                    "id",
                    "must be `json:/pointer`, `header:NAME` or `form:field`",
                );
                None
            }
        }
    }
}
