//! Where a request's idempotency key comes from, and what the route's policy
//! makes of it.

use std::collections::HashMap;

use http::{HeaderMap, HeaderValue, Method};
use onceward_core::caller::Caller;
use onceward_core::fingerprint::{Pointer, canonical_json};
use onceward_core::identity::Endpoint;
use onceward_core::key::{Key, KeyError};
use onceward_http::fields::IDEMPOTENCY_KEY;
use onceward_http::problem::{Code, Problem};

use super::read::{WholeRequest, WhyUnprotected};
use crate::callers::schedule_key;
use crate::config::{DerivedKey, KeyFormat, KeyPart, KnownBy, Policy, Route};
use crate::observe::report::{Cause, Refused};

/// Whether a request is protected, and under which key.
pub(super) enum KeyDecision<'a> {
    /// The request is forwarded without a claim.
    Unprotected(WhyUnprotected),
    /// The request is protected under this key.
    Given(Key),
    /// The request is protected under a key made from its parts, once its body
    /// is read.
    Derived(&'a DerivedKey),
}

/// Why a request is refused for its key, or for the lack of one.
#[derive(Debug)]
pub(super) enum KeyRefusal {
    Missing,
    Invalid(KeyError),
    Prohibited,
    /// The request does not hold the provider's identifier.
    Untranslated,
}

impl From<KeyRefusal> for Refused {
    fn from(refusal: KeyRefusal) -> Self {
        match refusal {
            KeyRefusal::Missing => Self::new(
                Problem::new(
                    Code::KeyMissing,
                    "Send an Idempotency-Key: a value of your own for this intent, the same over its retries.",
                ),
                Cause::KeyMissing,
            ),
            KeyRefusal::Invalid(error) => {
                let cause = Cause::KeyInvalid(error.reason());
                Self::new(Problem::invalid_key(error), cause)
            }
            KeyRefusal::Prohibited => Problem::new(
                Code::KeyProhibited,
                "This route takes no Idempotency-Key. Send the request without one.",
            )
            .into(),
            KeyRefusal::Untranslated => Self::new(
                Problem::new(
                    Code::TranslationFailed,
                    "The provider's identifier is not where it should be in this request.",
                ),
                Cause::Untranslated {
                    provider: "none".to_owned(),
                    reason: None,
                },
            ),
        }
    }
}

/// Decides by a route's policy whether a request is protected. The key is read
/// only where the policy asks for one.
pub(super) fn decide<'a>(
    route: &'a Route,
    method: &Method,
    headers: &HeaderMap,
    by: Option<KnownBy>,
) -> Result<KeyDecision<'a>, KeyRefusal> {
    let unprotected = KeyDecision::Unprotected(WhyUnprotected::Policy);
    let Some(policy) = route.policy_for(method) else {
        return Ok(unprotected);
    };
    match policy {
        Policy::HandlerInternalC => Ok(KeyDecision::Unprotected(WhyUnprotected::Handler)),
        Policy::Prohibited if headers.contains_key(IDEMPOTENCY_KEY) => Err(KeyRefusal::Prohibited),
        Policy::Prohibited => Ok(unprotected),
        Policy::RequiredB => Err(KeyRefusal::Untranslated),
        Policy::RequiredA | Policy::Accepted => {
            match (
                from_header(headers, by, route.key_format),
                &route.derived_key,
            ) {
                (Err(error), _) => Err(KeyRefusal::Invalid(error)),
                (Ok(Some(key)), _) => Ok(KeyDecision::Given(key)),
                (Ok(None), Some(derived)) => Ok(KeyDecision::Derived(derived)),
                (Ok(None), None) => without(policy).map(KeyDecision::Unprotected),
            }
        }
    }
}

/// Decides about a request that has no key although its route protects.
pub(super) fn without(policy: Policy) -> Result<WhyUnprotected, KeyRefusal> {
    match policy {
        Policy::RequiredA => Err(KeyRefusal::Missing),
        _ => Ok(WhyUnprotected::NoKey),
    }
}

/// Reads the key from the header. Only the scheduler may send keys in the form of a
/// schedule.
fn from_header(
    headers: &HeaderMap,
    by: Option<KnownBy>,
    format: KeyFormat,
) -> Result<Option<Key>, KeyError> {
    let lines = headers.get_all(IDEMPOTENCY_KEY);
    if by == Some(KnownBy::Scheduler)
        && let Some(text) = schedule_text(headers)
    {
        return schedule_key(text).map(Some);
    }
    let key = Key::from_header(lines.iter().map(HeaderValue::as_bytes))?;
    match key {
        Some(key) if !has_format(format, key.as_str()) => Err(KeyError::Format),
        key => Ok(key),
    }
}

/// The key in a recovery path.
pub(super) fn from_path(text: &str, by: Option<KnownBy>) -> Result<Key, KeyError> {
    if by == Some(KnownBy::Scheduler) && text.starts_with("sched:") {
        return schedule_key(text);
    }
    Key::parse(text)
}

/// The value of the only key line, without quotes, if it begins like a
/// schedule's key.
fn schedule_text(headers: &HeaderMap) -> Option<&str> {
    let mut lines = headers.get_all(IDEMPOTENCY_KEY).iter();
    let (line, None) = (lines.next()?, lines.next()) else {
        return None;
    };
    let text = unquoted(line.to_str().ok()?);
    text.starts_with("sched:").then_some(text)
}

/// The value of the first key line, without quotes, as a scheduler signs it;
/// empty without one.
pub(super) fn signed_text(headers: &HeaderMap) -> &str {
    let line = headers.get(IDEMPOTENCY_KEY);
    line.and_then(|line| line.to_str().ok())
        .map_or("", unquoted)
}

fn unquoted(line: &str) -> &str {
    let line = line.trim();
    let inner = line
        .strip_prefix('"')
        .and_then(|line| line.strip_suffix('"'));
    inner.unwrap_or(line)
}

fn has_format(format: KeyFormat, key: &str) -> bool {
    match format {
        KeyFormat::Any => true,
        KeyFormat::Uuid => is_uuid(key),
        KeyFormat::Ulid => is_ulid(key),
    }
}

fn is_uuid(key: &str) -> bool {
    key.len() == 36
        && key.bytes().enumerate().all(|(at, byte)| match at {
            8 | 13 | 18 | 23 => byte == b'-',
            _ => byte.is_ascii_hexdigit(),
        })
}

/// Crockford's base 32, at most 128 bits.
fn is_ulid(key: &str) -> bool {
    key.len() == 26
        && key.as_bytes()[0] <= b'7'
        && key
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() && !b"ILOUilou".contains(&byte))
}

/// Makes a key from the parts of a request that a route names; `None` if one of
/// them is missing or empty, because then two intents would look the same.
pub(super) fn derive(
    derived: &DerivedKey,
    caller: &Caller,
    endpoint: &Endpoint,
    request: &WholeRequest,
) -> Option<Key> {
    let in_body = |part: &KeyPart| matches!(part, KeyPart::Pointer(_));
    let body = derived
        .parts
        .iter()
        .any(in_body)
        .then(|| canonical_json(&request.body))
        .flatten();
    let mut parts: Vec<String> = Vec::with_capacity(derived.parts.len());
    for part in &derived.parts {
        let part = match part {
            KeyPart::Caller => format!(
                "{}\n{}\n{}",
                caller.tenant(),
                caller.project(),
                caller.subject()
            ),
            KeyPart::Endpoint => endpoint.as_str().to_owned(),
            KeyPart::Header(name) => {
                let mut lines = request.head.headers.get_all(name).iter();
                let (line, None) = (lines.next()?, lines.next()) else {
                    return None;
                };
                line.to_str().ok()?.to_owned()
            }
            KeyPart::Query(name) => query_value(request.head.uri.query()?, name)?,
            KeyPart::Pointer(pointer) => value_at(pointer, body.as_deref()?)?,
            KeyPart::Body if request.body.is_empty() => return None,
            KeyPart::Body => data_encoding::HEXLOWER.encode(&request.body),
        };
        parts.push(part);
    }
    let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
    Key::mint(&parts).ok()
}

/// A string, number or boolean in a canonical body, in its JSON form: `1` and
/// `"1"` make two keys, and large numbers keep all their digits.
fn value_at(pointer: &str, canonical: &[u8]) -> Option<String> {
    let value = Pointer::parse(pointer).ok()?.value_in(canonical)?;
    let value = std::str::from_utf8(value).ok()?;
    match value.as_bytes().first()? {
        b'{' | b'[' | b'n' => None,
        b'"' if value.trim_matches('"').trim().is_empty() => None,
        _ => Some(value.to_owned()),
    }
}

/// The only value of a parameter, decoded.
fn query_value(query: &str, name: &str) -> Option<String> {
    let mut values: HashMap<String, Vec<String>> = HashMap::new();
    for pair in query.split('&') {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        values
            .entry(decoded(key)?)
            .or_default()
            .push(decoded(value)?);
    }
    match values.remove(name)?.as_mut_slice() {
        [value] => Some(std::mem::take(value)),
        _ => None,
    }
}

fn decoded(text: &str) -> Option<String> {
    let text = text.replace('+', " ");
    let decoded = percent_encoding::percent_decode_str(&text).decode_utf8();
    decoded.ok().map(std::borrow::Cow::into_owned)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use bytes::Bytes;
    use http::Request;
    use rstest::rstest;

    use super::*;
    use crate::config::Limits;
    use crate::request::limits::Limiter;

    #[rstest]
    #[case(KeyFormat::Any, "k", true)]
    #[case(KeyFormat::Uuid, "8e03978e-40d5-43e8-bc93-6894a57f9324", true)]
    #[case(KeyFormat::Uuid, "8e03978e40d543e8bc936894a57f9324", false)]
    #[case(KeyFormat::Uuid, "8e03978e-40d5-43e8-bc93-6894a57f932g", false)]
    #[case(KeyFormat::Ulid, "01ARZ3NDEKTSV4RRFFQ69G5FAV", true)]
    #[case(KeyFormat::Ulid, "81ARZ3NDEKTSV4RRFFQ69G5FAV", false)]
    #[case(KeyFormat::Ulid, "01ARZ3NDEKTSV4RRFFQ69G5FAI", false)]
    fn formats(#[case] format: KeyFormat, #[case] key: &str, #[case] want: bool) {
        assert_eq!(has_format(format, key), want);
    }

    fn derived(parts: Vec<KeyPart>, query: &str, body: &str) -> Option<String> {
        let derived = DerivedKey {
            parts,
            window: Duration::from_secs(600),
        };
        let request = Request::post(format!("/orders?{query}"))
            .header("x-order", "7")
            .body(())
            .expect("a good request");
        let limiter = Limiter::new(&Limits::default());
        let request = WholeRequest {
            head: Box::new(request.into_parts().0),
            body: Bytes::copy_from_slice(body.as_bytes()),
            buffered: limiter.buffer(),
        };
        let key = derive(&derived, &Caller::local(), &Endpoint::new("a.b"), &request);
        key.map(|key| key.as_str().to_owned())
    }

    fn pointer(pointer: &str) -> Vec<KeyPart> {
        vec![KeyPart::Pointer(pointer.to_owned())]
    }

    #[rstest]
    #[case::another_value(r#"{"order":{"id":8}}"#)]
    #[case::another_type(r#"{"order":{"id":"7"}}"#)]
    #[case::not_there(r#"{"order":{}}"#)]
    #[case::null(r#"{"order":{"id":null}}"#)]
    #[case::a_list(r#"{"order":{"id":[7]}}"#)]
    #[case::not_json("order=7")]
    #[case::empty("")]
    fn only_the_same_value_makes_the_same_key(#[case] body: &str) {
        let first = derived(pointer("/order/id"), "", r#"{"order":{"id":7},"at":1}"#);
        let again = derived(pointer("/order/id"), "", r#"{"at":2,"order":{"id":7}}"#);
        assert!(first.is_some());
        assert_eq!(first, again);
        assert_ne!(derived(pointer("/order/id"), "", body), first);
    }

    #[rstest]
    #[case::header(vec![KeyPart::Header(http::HeaderName::from_static("x-order"))], "", "", true)]
    #[case::no_header(vec![KeyPart::Header(http::HeaderName::from_static("x-none"))], "", "", false)]
    #[case::query(vec![KeyPart::Query("q".into())], "a=1&q=2%20", "", true)]
    #[case::query_twice(vec![KeyPart::Query("q".into())], "q=1&q=2", "", false)]
    #[case::no_query(vec![KeyPart::Query("q".into())], "", "", false)]
    #[case::empty_query(vec![KeyPart::Query("q".into())], "q=", "", false)]
    #[case::body(vec![KeyPart::Body], "", "x", true)]
    #[case::empty_body(vec![KeyPart::Body], "", "", false)]
    #[case::blank(pointer("/a"), "", r#"{"a":" "}"#, false)]
    fn a_part_that_is_missing_or_empty_makes_no_key(
        #[case] parts: Vec<KeyPart>,
        #[case] query: &str,
        #[case] body: &str,
        #[case] want: bool,
    ) {
        assert_eq!(derived(parts, query, body).is_some(), want);
    }
}
