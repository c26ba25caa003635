//! Twilio messaging and voice: `X-Twilio-Signature`, an HMAC in base64 over the
//! URL and the form's parameters.
//!
//! The parameters are signed by name and value in their order, with nothing
//! between them nor before the first: no boundary is signed. Somebody who holds
//! a request can move them and make other parameters of the same text, and the
//! text is in part theirs: a message's body, what a client gives a call. So:
//!
//! * A message is identified by its Sid and status, which are taken only where
//!   they are exactly what Twilio makes; not by the idempotency token, which
//!   nothing signs. Where the text could be read as another message's, its
//!   digest is part of the id: who writes `MessageSid…` into a message does not
//!   use up another's id ([`Form::reads_one_way`]).
//! * A call makes many requests with one Sid and status, and two of them may be
//!   alike to the byte (the caller presses the same key again); a retry repeats
//!   them too. What tells the two apart is the idempotency token. So a call's
//!   request is identified by the token and the signed text, as every unsigned
//!   id is.
//! * In both cases the digest of the signed text goes along
//!   ([`Binding::Unsigned`]), whatever the boundaries: it tells who comes again.
//! * A form that is neither has no id.
//!
//! A body that is not a form is signed by way of `bodySHA256`, which Twilio
//! appends to the URL, and identified by its digest. Without that parameter
//! nothing binds it. Nor does it where forms are signed for the same URL and
//! anything else is in the query: the whole text of a form can be sent as the
//! query, and who wrote a part of the form chose the digest. What Twilio appends
//! comes last, but so does what a client's call names `z`. Alone it is safe: the
//! webhook's URL as it was given out has no query, and a form's text right after
//! the path is another path.
//!
//! [`Binding::Unsigned`]: crate::Binding::Unsigned

use data_encoding::{BASE64, HEXLOWER};
use http::HeaderName;
use http::header::CONTENT_TYPE;
use ring::hmac;
use subtle::Choice;

use crate::delivery::{Binding, Delivery, Unidentified};
use crate::form::{self, Pair};
use crate::identifier::{self, sha256};
use crate::key::{SigningKey, signed_by_any};
use crate::parts::{Authentic, Evidence, Parts, Verified};
use crate::refusal::Refusal;
use crate::url;

/// Which HMAC a webhook's signatures are. A request that names another is
/// refused.
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

/// How many parameters of a form are looked at.
const PARAMETERS_MAX: usize = 1000;

static SIGNATURE: HeaderName = HeaderName::from_static("x-twilio-signature");
static SETTINGS: HeaderName = HeaderName::from_static("x-twilio-webhooks-signature-settings");
static TOKEN: HeaderName = HeaderName::from_static("i-twilio-idempotency-token");

/// A form's parameters in the order they are signed.
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

    /// The one value of the first of the names that is there.
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

    /// Whether no other message's Sid or status can be read from the text,
    /// wherever its boundaries are. Then each place that looks like a name of
    /// theirs is one here, and all of a kind say the same. The sender's own is
    /// among these places, so what they say is what it said.
    ///
    /// `Sid`, because a call, a room and a conversation name theirs so too. What
    /// has no Sid at all, a form that somebody composed themselves, is not told.
    fn reads_one_way(&self, query: &str) -> bool {
        // The path cannot have come from a form: it would lead elsewhere.
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

/// What a message's Sids are called, each with one `Sid`. Other names than the
/// message's own must not end as one of them does.
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
    // The URL is signed, so what it says of the body is the sender's word, if
    // it is not a form's text.
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

/// The signature is over the URL, and the URL ends in the body's digest. Only
/// where no form is signed for the same URL may more be in the query.
pub(crate) fn verify_body<'a>(
    algorithm: TwilioAlgorithm,
    parts: &Parts<'a>,
    keys: &[SigningKey],
) -> Result<Authentic<'a>, Refusal> {
    parts.one(&SIGNATURE)?;
    let query = url::query(parts.url);
    let (others, last) = query.rsplit_once('&').unwrap_or(("", query));
    // Of two, SDKs take the first; others may take the last.
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

/// Whether the body is read as a form by whoever gets it.
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
    // Sid and status are for people who look for them: the signed text holds
    // them anyway.
    let status = form.value(&["CallStatus"]).filter(|status| is_word(status));
    let parts = [Some(sid).filter(|sid| is_sid(sid)), status, token];
    let parts: Vec<&str> = parts.into_iter().flatten().collect();
    identifier::one(identifier::unsigned(name, &parts, bytes))
}

/// The statuses of a message. None begins with another: a boundary that moves
/// does not turn one into the other.
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

/// Two letters and 32 hexadecimal digits. Of a fixed length, so no boundary
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
