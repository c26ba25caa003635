//! Twilio messaging and voice: `X-Twilio-Signature`, an HMAC in base64 over the
//! URL and the form's parameters.
//!
//! Names and values are signed in order, without separators between them or before
//! the first: no boundary is signed. An attacker with a captured request can move
//! the boundaries and get other parameters with the same signed text, and part of
//! that text is the attacker's: a message's body, the parameters of a client's
//! call. So:
//!
//! * A message is identified by its Sid and status, which must have exactly
//!   Twilio's form; not by the unsigned idempotency token. If the text could also
//!   be read as another message's, its digest is part of the id: a message that
//!   contains `MessageSid…` does not use up another's id
//!   ([`Form::reads_one_way`]).
//! * A call makes many requests with one Sid and status, and two of them may be
//!   equal to the byte (the caller presses the same key again), as a retry is. Only
//!   the idempotency token tells them apart. So a call's request is identified by
//!   the token and the signed text, like every unsigned id.
//! * In both cases the digest of the signed text is recorded
//!   ([`Binding::Unsigned`]), for all boundaries: it detects a replay.
//! * A form that is neither has no id.
//!
//! A body that is not a form is signed through `bodySHA256`, which Twilio appends
//! to the URL, and identified by its digest. Without that parameter the body is not
//! bound. It is not bound either if forms are signed for the same URL and the query
//! has other parameters: the whole text of a form can be sent as the query, and the
//! author of a part of the form chose the digest. That Twilio appends it last does
//! not help: a client's call can name a parameter `z`. Alone it is safe: the
//! webhook's URL has no query, and a form's text directly after the path gives
//! another path.
//!
//! [`Binding::Unsigned`]: crate::Binding::Unsigned

use data_encoding::{BASE64, HEXLOWER};
use http::HeaderName;
use http::header::CONTENT_TYPE;
use ring::hmac;
use subtle::Choice;

use crate::form::{self, Pair};
use crate::identifier::{self, sha256};
use crate::identify::{Binding, Delivery, Unidentified};
use crate::key::{SigningKey, signed_by_any};
use crate::parts::{Authentic, Evidence, Parts, Verified};
use crate::refusal::Refusal;
use crate::url;

/// The HMAC of a webhook's signatures. A request that names another is refused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TwilioAlgorithm {
    /// HMAC-SHA1 with the account's auth token.
    #[default]
    Sha1,
    /// HMAC-SHA256 with a shared key.
    Sha256,
}

impl TwilioAlgorithm {
    pub(crate) fn hmac(self) -> hmac::Algorithm {
        match self {
            Self::Sha1 => hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY,
            Self::Sha256 => hmac::HMAC_SHA256,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Sha1 => "HMAC_SHA1",
            Self::Sha256 => "HMAC_SHA256",
        }
    }
}

/// The most parameters of a form.
const PARAMETERS_MAX: usize = 1000;

static SIGNATURE: HeaderName = HeaderName::from_static("x-twilio-signature");
static SETTINGS: HeaderName = HeaderName::from_static("x-twilio-webhooks-signature-settings");
static TOKEN: HeaderName = HeaderName::from_static("i-twilio-idempotency-token");

/// A form's parameters in signature order.
pub(crate) struct Form<'a>(Vec<Pair<'a>>);

impl<'a> Form<'a> {
    fn read(body: &'a [u8]) -> Result<Self, Refusal> {
        let mut pairs: Vec<_> = form::pairs(body).take(PARAMETERS_MAX + 1).collect();
        if pairs.len() > PARAMETERS_MAX {
            return Err(Refusal::TooManyItems);
        }
        pairs.sort_unstable();
        pairs.dedup();
        Ok(Self(pairs))
    }

    fn pieces<'s>(&'s self, url: &'s str) -> Vec<&'s [u8]> {
        let pairs = self
            .0
            .iter()
            .flat_map(|(name, value)| [name.as_ref(), value.as_ref()]);
        std::iter::once(url.as_bytes()).chain(pairs).collect()
    }

    /// The only value of the first name that is present.
    fn value(&self, names: &[&str]) -> Option<&str> {
        names.iter().find_map(|name| {
            let mut values = self
                .0
                .iter()
                .filter(|(key, _)| key.as_ref() == name.as_bytes());
            match (values.next(), values.next()) {
                (Some((_, value)), None) => std::str::from_utf8(value).ok(),
                _ => None,
            }
        })
    }

    /// Whether no other message's Sid or status can be read from the text, with any
    /// boundaries. It holds if every occurrence of one of their names is a
    /// parameter here, and all occurrences of a kind have the same value. Twilio's
    /// own parameter is among them, so that value is Twilio's.
    ///
    /// `Sid`, because calls, rooms and conversations use that suffix too. A form
    /// without any Sid, which a user composed, is not detected.
    fn reads_one_way(&self, query: &str) -> bool {
        // The path cannot be a form's text: it would be another path.
        let text = self.pieces(query).concat();
        let named = |names: &'static [&str]| {
            self.0
                .iter()
                .filter(|(name, _)| names.iter().any(|one| one.as_bytes() == name.as_ref()))
                .map(|(_, value)| value)
        };
        let all_named = |looks: &str, names| {
            let places = text.windows(looks.len());
            places.filter(|place| *place == looks.as_bytes()).count() == named(names).count()
        };
        let agree = |names| {
            let mut values = named(names);
            let first = values.next();
            values.all(|value| Some(value) == first)
        };
        all_named("Sid", &SIDS)
            && all_named("MessageStatus", &["MessageStatus"])
            && all_named("SmsStatus", &["SmsStatus"])
            && agree(&["MessageSid", "SmsMessageSid", "SmsSid"])
            && agree(&["MessageStatus", "SmsStatus"])
    }
}

/// The names of a message's Sids, each with one `Sid`. No other parameter's name
/// may end like one of them.
const SIDS: [&str; 6] = [
    "AccountSid",
    "ChannelInstallSid",
    "MessageSid",
    "MessagingServiceSid",
    "SmsMessageSid",
    "SmsSid",
];

pub(crate) fn verify<'a>(
    algorithm: TwilioAlgorithm,
    parts: &Parts<'a>,
    keys: &[SigningKey],
) -> Result<Authentic<'a>, Refusal> {
    parts.at_most_one(&TOKEN)?;
    // The URL is signed, so its digest of the body is Twilio's, unless the query
    // is a form's text.
    let query = url::query(parts.url);
    if names_digest(query) {
        return match query.contains('&') {
            true => Err(Refusal::UnsignedBody),
            false => verify_body(algorithm, parts, keys),
        };
    }
    if !is_form(parts) {
        return Err(Refusal::UnsignedBody);
    }
    let form = Form::read(parts.body)?;
    check(algorithm, parts, keys, &form)?;
    Ok(Authentic {
        evidence: Evidence::Form(form),
        signed_at: None,
    })
}

fn names_digest(query: &str) -> bool {
    form::pairs(query.as_bytes()).any(|(name, _)| name.as_ref() == b"bodySHA256")
}

/// The signature covers the URL, and the URL ends in the body's digest. The query
/// may contain more only if no form is signed for the same URL.
pub(crate) fn verify_body<'a>(
    algorithm: TwilioAlgorithm,
    parts: &Parts<'a>,
    keys: &[SigningKey],
) -> Result<Authentic<'a>, Refusal> {
    parts.one(&SIGNATURE)?;
    let query = url::query(parts.url);
    let (others, last) = query.rsplit_once('&').unwrap_or(("", query));
    // Of two, SDKs use the first; other parsers may use the last.
    let digest = last
        .strip_prefix("bodySHA256=")
        .filter(|_| !names_digest(others))
        .ok_or(Refusal::UnsignedBody)?;
    check(algorithm, parts, keys, &Form(Vec::new()))?;
    if digest == HEXLOWER.encode(&sha256(&[parts.body])) {
        Ok(Authentic::body())
    } else {
        Err(Refusal::Signature)
    }
}

fn check(
    algorithm: TwilioAlgorithm,
    parts: &Parts<'_>,
    keys: &[SigningKey],
    form: &Form<'_>,
) -> Result<(), Refusal> {
    let tag = BASE64.decode(parts.one(&SIGNATURE)?.as_bytes()).ok();
    if let Some(settings) = parts.at_most_one(&SETTINGS)? {
        let mut named = settings
            .split(',')
            .filter_map(|one| one.trim().strip_prefix("algorithm="));
        if (named.next(), named.next()) != (Some(algorithm.name()), None) {
            return Err(Refusal::Algorithm);
        }
    }
    let mut found = Choice::from(0);
    for url in url::spellings(parts.url) {
        found |= signed_by_any(keys, &form.pieces(&url), tag.as_slice());
    }
    if found.into() {
        Ok(())
    } else {
        Err(Refusal::Signature)
    }
}

/// Whether the upstream would read the body as a form.
fn is_form(parts: &Parts<'_>) -> bool {
    parts.headers.get_all(CONTENT_TYPE).iter().all(|value| {
        let essence = value
            .as_bytes()
            .split(|b| *b == b';')
            .next()
            .unwrap_or_default();
        essence
            .trim_ascii()
            .eq_ignore_ascii_case(b"application/x-www-form-urlencoded")
    })
}

pub(crate) fn identify(name: &str, verified: &Verified<'_>) -> Result<Delivery, Unidentified> {
    let parts = &verified.parts;
    let Evidence::Form(form) = &verified.evidence else {
        return identifier::one(identifier::by_content(name, sha256(&[parts.body])));
    };
    let bytes = sha256(&form.pieces(parts.url));
    let message = form.value(&["MessageSid", "SmsSid"]);
    let message_status = form.value(&["MessageStatus", "SmsStatus"]);
    if let (Some(sid), Some(status)) = (message, message_status)
        && is_sid(sid)
        && MESSAGE_STATUSES.contains(&status)
    {
        if !form.reads_one_way(url::query(parts.url)) {
            return identifier::one(identifier::unsigned(name, &[sid, status], bytes));
        }
        let mut event = identifier::signed(name, &[sid, status]);
        event.binding = Binding::Unsigned { bytes };
        return identifier::one(event);
    }
    let call = form.value(&["CallSid"]);
    let Some(sid) = call.or(message).filter(|sid| !sid.is_empty()) else {
        return Err(Unidentified::MissingId);
    };
    let token = parts.at_most_one(&TOKEN).ok().flatten();
    // Sid and status make the key readable; the digest of the signed text covers
    // them anyway.
    let status = form.value(&["CallStatus"]).filter(|status| is_word(status));
    let parts = [Some(sid).filter(|sid| is_sid(sid)), status, token];
    let parts: Vec<&str> = parts.into_iter().flatten().collect();
    identifier::one(identifier::unsigned(name, &parts, bytes))
}

/// The statuses of a message. None begins with another, so that moving a boundary
/// does not turn one into another.
const MESSAGE_STATUSES: [&str; 14] = [
    "accepted",
    "canceled",
    "delivered",
    "delivery_unknown",
    "failed",
    "partially_delivered",
    "queued",
    "read",
    "received",
    "receiving",
    "scheduled",
    "sending",
    "sent",
    "undelivered",
];

/// Two letters and 32 hexadecimal digits. The length is fixed, so that no boundary
/// can move.
fn is_sid(text: &str) -> bool {
    let bytes = text.as_bytes();
    bytes.len() == 34
        && bytes[..2].iter().all(u8::is_ascii_uppercase)
        && bytes[2..].iter().all(u8::is_ascii_hexdigit)
}

fn is_word(text: &str) -> bool {
    (1..=32).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_lowercase() || b == b'-')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_status_begins_with_another() {
        for status in MESSAGE_STATUSES {
            let begins = |other: &&str| *other != status && other.starts_with(status);
            assert_eq!(
                MESSAGE_STATUSES.iter().copied().find(|other| begins(other)),
                None
            );
        }
    }
}
