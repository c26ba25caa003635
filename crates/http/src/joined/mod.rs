//! Joined operations: a gateway and an application share one record.
//!
//! The gateway claims and forwards operation id, fence and key. The application
//! takes them as a [`Joined`], does its work in a transaction of the same
//! database, and commits the reply with it under that fence. So the record shows
//! exactly what was done: on a joined route the gateway answers by the record, and
//! releases an operation whose outcome it does not know (`settle`).
//!
//! Trust a [`Joined`] only behind a gateway, which removes these headers from the
//! requests of clients. An application that clients can reach directly must not
//! use it.

mod settle;

use http::header::{HeaderMap, HeaderName};
use onceward_core::identity::OperationId;
use onceward_core::record::Fence;

use crate::fields::{IDEMPOTENCY_FENCE, IDEMPOTENCY_KEY, OPERATION_ID};

pub(crate) use self::settle::record;

/// The longest key that a gateway forwards, in bytes: a namespaced one.
const KEY_LENGTH_MAX: usize = 640;

/// The operation for which a gateway forwarded a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Joined {
    /// Identifies the record.
    pub id: OperationId,
    /// The fence under which the outcome is committed. If it is stale, the operation
    /// was granted again or released: roll back.
    pub fence: Fence,
    /// The key as the gateway forwards it: the namespaced one, unless the route
    /// says `forward_key = "raw"`. For calls to other services; it does
    /// not identify the record.
    pub key: String,
}

/// Why the headers of a request name no operation.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum JoinedError {
    /// Some of the headers are present, and this one is missing.
    #[error("{0} is missing, although other headers of an operation are present")]
    Missing(HeaderName),
    /// This header occurs more than once.
    #[error("{0} occurs more than once")]
    Repeated(HeaderName),
    /// The value of this header is not one that a gateway sends.
    #[error("{0} is not what a gateway sends")]
    Malformed(HeaderName),
}

impl Joined {
    /// The operation that these headers name; `None` where they name none,
    /// because the request came without a key or past the gateway.
    ///
    /// # Errors
    ///
    /// Headers that no gateway sends.
    pub fn from_headers(headers: &HeaderMap) -> Result<Option<Self>, JoinedError> {
        // A key alone is a client's, on its way past the gateway's protection.
        if !headers.contains_key(OPERATION_ID) && !headers.contains_key(IDEMPOTENCY_FENCE) {
            return Ok(None);
        }
        Ok(Some(Self {
            id: parsed(headers, OPERATION_ID, OperationId::parse)?,
            fence: parsed(headers, IDEMPOTENCY_FENCE, fence)?,
            key: parsed(headers, IDEMPOTENCY_KEY, key)?,
        }))
    }
}

/// The value of a header that must occur once.
fn parsed<T>(
    headers: &HeaderMap,
    name: HeaderName,
    parse: impl FnOnce(&str) -> Option<T>,
) -> Result<T, JoinedError> {
    let mut lines = headers.get_all(&name).iter();
    let (Some(line), None) = (lines.next(), lines.next()) else {
        return Err(match headers.contains_key(&name) {
            true => JoinedError::Repeated(name),
            false => JoinedError::Missing(name),
        });
    };
    let said = line.to_str().ok().and_then(parse);
    said.ok_or(JoinedError::Malformed(name))
}

/// Digits alone: `+7` is a number too, but none that a gateway sends.
fn fence(text: &str) -> Option<Fence> {
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    digits.then(|| text.parse().ok().map(Fence)).flatten()
}

fn key(text: &str) -> Option<String> {
    let good = (1..=KEY_LENGTH_MAX).contains(&text.len())
        && text.bytes().all(|byte| byte.is_ascii_graphic());
    good.then(|| text.to_owned())
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;
    use rstest::rstest;

    use super::*;

    const ID: &str = "op_0f8b4c1d2e3a59687f60718293a4b5c6";

    /// The headers of a request, of which one may be absent, empty or doubled.
    #[rstest]
    #[case::all(&[ID], &["7"], &["t-a:b:user:c:k"], "op_0f8b4c1d2e3a59687f60718293a4b5c6 7 t-a:b:user:c:k")]
    #[case::raw_key(&[ID], &["18446744073709551615"], &["k"], "op_0f8b4c1d2e3a59687f60718293a4b5c6 18446744073709551615 k")]
    #[case::none(&[], &[], &[], "none")]
    #[case::a_clients_key_alone(&[], &[], &["k"], "none")]
    #[case::no_id(&[], &["7"], &["k"], "x-operation-id is missing, although other headers of an operation are present")]
    #[case::no_fence(&[ID], &[], &["k"], "idempotency-fence is missing, although other headers of an operation are present")]
    #[case::no_key(&[ID], &["7"], &[], "idempotency-key is missing, although other headers of an operation are present")]
    #[case::two_ids(&[ID, ID], &["7"], &["k"], "x-operation-id occurs more than once")]
    #[case::two_fences(&[ID], &["7", "8"], &["k"], "idempotency-fence occurs more than once")]
    #[case::two_keys(&[ID], &["7"], &["k", "l"], "idempotency-key occurs more than once")]
    #[case::odd_id(&["op_1"], &["7"], &["k"], "x-operation-id is not what a gateway sends")]
    #[case::loud_id(&["OP_0F8B4C1D2E3A59687F60718293A4B5C6"], &["7"], &["k"], "x-operation-id is not what a gateway sends")]
    #[case::signed_fence(&[ID], &["+7"], &["k"], "idempotency-fence is not what a gateway sends")]
    #[case::blank_fence(&[ID], &[""], &["k"], "idempotency-fence is not what a gateway sends")]
    #[case::huge_fence(&[ID], &["18446744073709551616"], &["k"], "idempotency-fence is not what a gateway sends")]
    #[case::empty_key(&[ID], &["7"], &[""], "idempotency-key is not what a gateway sends")]
    #[case::spaced_key(&[ID], &["7"], &["a b"], "idempotency-key is not what a gateway sends")]
    fn headers(
        #[case] ids: &[&'static str],
        #[case] fences: &[&'static str],
        #[case] keys: &[&'static str],
        #[case] want: &str,
    ) {
        let mut headers = HeaderMap::new();
        let names = [OPERATION_ID, IDEMPOTENCY_FENCE, IDEMPOTENCY_KEY];
        for (name, lines) in names.into_iter().zip([ids, fences, keys]) {
            for line in lines {
                headers.append(name.clone(), HeaderValue::from_static(line));
            }
        }
        let got = match Joined::from_headers(&headers) {
            Ok(Some(Joined { id, fence, key })) => format!("{id} {} {key}", fence.0),
            Ok(None) => "none".to_owned(),
            Err(error) => error.to_string(),
        };
        assert_eq!(got, want);
    }

    #[test]
    fn a_key_that_no_gateway_forwards_is_refused() {
        for (key, good) in [("k".repeat(640), true), ("k".repeat(641), false)] {
            assert_eq!(super::key(&key).is_some(), good);
        }
    }
}
