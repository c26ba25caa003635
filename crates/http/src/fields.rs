//! The names of Onceward's headers, and which headers are forwarded, kept or
//! removed.

use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use onceward_core::record::Field;

/// The sender's key; towards the upstream, the namespaced one.
pub const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
/// The status of the operation.
pub const IDEMPOTENCY_STATUS: HeaderName = HeaderName::from_static("idempotency-status");
/// When the kept reply expires.
pub const IDEMPOTENCY_EXPIRES: HeaderName = HeaderName::from_static("idempotency-expires");
/// The fence of the run, towards the upstream.
pub const IDEMPOTENCY_FENCE: HeaderName = HeaderName::from_static("idempotency-fence");
/// The upstream's hint about its answer; not forwarded.
pub const IDEMPOTENCY_OUTCOME: HeaderName = HeaderName::from_static("idempotency-outcome");
/// `true` on a replay.
pub const IDEMPOTENT_REPLAYED: HeaderName = HeaderName::from_static("idempotent-replayed");
/// Where the key came from, when the client did not send it.
pub const IDEMPOTENCY_KEY_SOURCE: HeaderName = HeaderName::from_static("idempotency-key-source");
/// The operation's id.
pub const OPERATION_ID: HeaderName = HeaderName::from_static("x-operation-id");
/// The caller's tenant, towards the upstream.
pub const TENANT_ID: HeaderName = HeaderName::from_static("x-tenant-id");
/// The caller's project, towards the upstream.
pub const PROJECT_ID: HeaderName = HeaderName::from_static("x-project-id");
/// The caller's subject, towards the upstream.
pub const SUBJECT: HeaderName = HeaderName::from_static("x-subject");
/// The caller's preferences (RFC 7240), such as how long to wait.
pub const PREFER: HeaderName = HeaderName::from_static("prefer");

/// Headers that only a gateway may send to an upstream: removed from every request.
const FROM_GATEWAY_ONLY: [&str; 5] = [
    "idempotency-fence",
    "x-operation-id",
    "x-tenant-id",
    "x-project-id",
    "x-subject",
];

/// Headers that only a gateway may send to a client: removed from every protected
/// answer.
const TO_CLIENT_ONLY: [&str; 7] = [
    "idempotency-status",
    "idempotency-key-source",
    "idempotency-expires",
    "idempotency-outcome",
    "idempotent-replayed",
    "x-operation-id",
    "x-restate-id",
];

/// How many headers `answer::again` adds to a reply: room for them is made at once.
const ADDED_TO_REPLAYS: usize = 5;

/// Headers that describe the first answer only, or its time.
const NOT_REPLAYED: [&str; 13] = [
    "set-cookie",
    "date",
    "age",
    "server",
    "via",
    "alt-svc",
    "server-timing",
    "www-authenticate",
    "proxy-authenticate",
    "authentication-info",
    "proxy-authentication-info",
    "retry-after",
    // Each answer gets its own framing.
    "content-length",
];

/// The same by prefix: rate limits, CORS and trace context.
const NOT_REPLAYED_PREFIXES: [&str; 6] = [
    "ratelimit",
    "x-ratelimit",
    "x-rate-limit",
    "access-control-",
    "traceparent",
    "tracestate",
];

/// Removes the headers of one connection, and those that `Connection` names.
pub fn strip_hop_by_hop(headers: &mut HeaderMap) {
    strip_hop_by_hop_and(headers, |_, _| false);
}

/// The same, and removes further headers in the same pass: one pass costs less than
/// a look-up for each name.
pub fn strip_hop_by_hop_and(
    headers: &mut HeaderMap,
    is_removed: impl Fn(&HeaderName, &HeaderValue) -> bool,
) {
    for name in connection_options(headers) {
        headers.remove(name);
    }
    remove_where(headers, |name, value| {
        is_hop_by_hop(name) || is_removed(name, value)
    });
}

fn remove_where(headers: &mut HeaderMap, is_removed: impl Fn(&HeaderName, &HeaderValue) -> bool) {
    // Most heads have no such header, and then nothing is allocated.
    let removed: Vec<HeaderName> = headers
        .iter()
        .filter(|(name, value)| is_removed(name, value))
        .map(|(name, _)| name.clone())
        .collect();
    for name in removed {
        headers.remove(name);
    }
}

/// Whether a header belongs to one connection.
fn is_hop_by_hop(name: &HeaderName) -> bool {
    matches!(
        name.as_str(),
        "connection" | "keep-alive" | "proxy-connection" | "te" | "transfer-encoding" | "upgrade"
    )
}

/// The header names that `Connection` lists, except `keep-alive`, which every
/// message may have and which is removed in any case.
pub fn connection_options(headers: &HeaderMap) -> Vec<HeaderName> {
    headers
        .get_all(header::CONNECTION)
        .iter()
        .flat_map(|line| line.as_bytes().split(|byte| *byte == b','))
        .map(<[u8]>::trim_ascii)
        .filter(|option| !option.eq_ignore_ascii_case(b"keep-alive"))
        .filter_map(|option| HeaderName::from_bytes(option).ok())
        .collect()
}

/// Removes the preferred wait, which the gateway itself applies, and keeps the
/// other preferences.
pub fn strip_preferred_wait(headers: &mut HeaderMap) {
    let http::header::Entry::Occupied(mut entry) = headers.entry(PREFER) else {
        return;
    };
    let kept: Vec<&[u8]> = entry
        .iter()
        .flat_map(|line| line.as_bytes().split(|byte| *byte == b','))
        .filter(|preference| {
            let name = preference.split(|byte| b"=;".contains(byte)).next();
            !name.is_some_and(|name| name.trim_ascii().eq_ignore_ascii_case(b"wait"))
        })
        .collect();
    match HeaderValue::from_bytes(kept.join(&b","[..]).trim_ascii()) {
        Ok(kept) if !kept.is_empty() => drop(entry.insert(kept)),
        _ => drop(entry.remove()),
    }
}

/// Whether an upstream sends this header to a gateway only.
pub fn is_internal(name: &HeaderName) -> bool {
    matches!(name.as_str(), "x-restate-id" | "idempotency-outcome")
}

/// Removes the headers that only a gateway may send to a client.
pub fn strip_ours(headers: &mut HeaderMap) {
    remove_where(headers, |name, _| is_to_client_only(name));
}

fn is_to_client_only(name: &HeaderName) -> bool {
    TO_CLIENT_ONLY.contains(&name.as_str())
}

/// Whether only a gateway may send this header to an upstream.
pub fn is_from_gateway_only(name: &HeaderName) -> bool {
    FROM_GATEWAY_ONLY.contains(&name.as_str())
}

/// The lines of an answer that a replay repeats, in order. Hop-by-hop headers must
/// have been removed.
pub fn kept(headers: &HeaderMap) -> impl Iterator<Item = (&[u8], &[u8])> {
    headers
        .iter()
        .filter(|(name, _)| is_replayed(name))
        .map(|(name, value)| (name.as_str().as_bytes(), value.as_bytes()))
}

/// Adds the headers that describe one answer only and are never kept, except its
/// framing.
pub(crate) fn add_not_replayed(headers: &mut HeaderMap, from: &HeaderMap) {
    for (name, value) in from {
        if !is_replayed(name) && *name != header::CONTENT_LENGTH {
            headers.append(name.clone(), value.clone());
        }
    }
}

fn is_replayed(name: &HeaderName) -> bool {
    let name = name.as_str();
    !NOT_REPLAYED.contains(&name)
        && !NOT_REPLAYED_PREFIXES
            .iter()
            .any(|prefix| name.starts_with(prefix))
}

/// Kept lines as a header map. An application may have written the record, so
/// headers that a reply must not contain are left out here too.
pub fn to_headers(fields: &[Field]) -> HeaderMap {
    if fields.is_empty() {
        return HeaderMap::new();
    }
    let mut headers = HeaderMap::with_capacity(fields.len() + ADDED_TO_REPLAYS);
    for (name, value) in fields {
        let name = HeaderName::from_bytes(name);
        let value = HeaderValue::from_maybe_shared(value.clone());
        if let (Ok(name), Ok(value)) = (name, value)
            && is_replayed(&name)
            && !is_hop_by_hop(&name)
            && !is_to_client_only(&name)
        {
            headers.append(name, value);
        }
    }
    headers
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    fn headers(lines: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            headers.append(*name, HeaderValue::from_static(value));
        }
        headers
    }

    #[test]
    fn headers_that_connection_names_are_removed() {
        let mut map = headers(&[
            ("connection", "close, X-Secret"),
            ("connection", "x-other"),
            ("x-secret", "1"),
            ("x-other", "1"),
            ("keep-alive", "5"),
            ("x-kept", "1"),
        ]);
        strip_hop_by_hop(&mut map);
        assert_eq!(map, headers(&[("x-kept", "1")]));
    }

    #[test]
    fn only_the_wait_is_removed_from_preferences() {
        let stripped = |lines| {
            let mut map = headers(lines);
            strip_preferred_wait(&mut map);
            map
        };
        assert_eq!(stripped(&[("prefer", "Wait = 5")]), headers(&[]));
        assert_eq!(
            stripped(&[
                ("prefer", "return=minimal, wait=5"),
                ("prefer", "x=\"a, b\"")
            ]),
            headers(&[("prefer", "return=minimal,x=\"a, b\"")])
        );
    }

    #[test]
    fn headers_that_a_reply_must_not_contain_are_not_replayed() {
        let lines = [
            ("set-cookie", "s=1"),
            ("transfer-encoding", "chunked"),
            ("content-length", "7"),
            ("connection", "close"),
            ("idempotency-status", "failed"),
            ("x-operation-id", "op_1"),
            ("not a name", "1"),
            ("x-odd", "a\nb"),
            ("location", "/payments/1"),
        ];
        let fields = lines.map(|(name, value)| (Bytes::from(name), Bytes::from(value)));
        assert_eq!(to_headers(&fields), headers(&[("location", "/payments/1")]));
    }

    #[test]
    fn headers_of_one_exchange_are_added_to_the_first_answer() {
        let mut map = headers(&[("location", "/payments/1"), ("x-kept", "1")]);
        let live = headers(&[
            ("set-cookie", "a=1"),
            ("set-cookie", "b=2"),
            ("content-length", "7"),
            ("access-control-allow-origin", "*"),
            ("x-kept", "2"),
        ]);
        add_not_replayed(&mut map, &live);
        let want = headers(&[
            ("location", "/payments/1"),
            ("x-kept", "1"),
            ("set-cookie", "a=1"),
            ("set-cookie", "b=2"),
            ("access-control-allow-origin", "*"),
        ]);
        assert_eq!(map, want);
    }

    #[test]
    fn kept_headers_keep_order_and_repetition() {
        let map = headers(&[
            ("link", "<a>"),
            ("set-cookie", "s=1"),
            ("link", "<b>"),
            ("date", "now"),
            ("x-ratelimit-remaining", "3"),
            ("access-control-allow-origin", "*"),
            ("content-type", "text/plain"),
        ]);
        let fields: Vec<_> = kept(&map)
            .map(|(name, value)| (Bytes::copy_from_slice(name), Bytes::copy_from_slice(value)))
            .collect();
        let again = to_headers(&fields);
        assert_eq!(
            again,
            headers(&[
                ("link", "<a>"),
                ("link", "<b>"),
                ("content-type", "text/plain")
            ])
        );
    }
}
