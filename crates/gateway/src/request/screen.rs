//! The first step: refuses requests that no proxy should forward, before any lookup
//! of a route.
//!
//! `listen::framing` has checked the bytes of the head; this step checks the
//! parsed request: its method, target, host and connection options.

use http::request::Parts;
use http::uri::Authority;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Version, header};
use hyper::body::Incoming;
use memchr::memchr;
use onceward_http::fields;
use onceward_http::problem::{Code, Problem};

use crate::config::METHODS;
use crate::listen::peer::Peer;

/// Headers that later steps check and that must reach the upstream, so
/// `Connection` may not name them.
const NOT_CONNECTION_OPTIONS: [HeaderName; 6] = [
    header::AUTHORIZATION,
    header::COOKIE,
    header::HOST,
    header::CONTENT_TYPE,
    fields::IDEMPOTENCY_KEY,
    HeaderName::from_static("x-api-key"),
];

/// A request that passed the screen. Only [`screen`] makes one.
#[derive(Debug)]
pub(crate) struct Screened<B = Incoming> {
    // Boxed: a head is large, and it moves with every step.
    head: Box<Parts>,
    body: B,
}

/// Refuses a request that no route may receive, and normalises the rest: one
/// `Host`, one `Cookie`.
pub(super) fn screen<B>(mut request: Request<B>, peer: &Peer) -> Result<Screened<B>, Problem> {
    check(&request)?;
    peer.set_host(&mut request);
    join_cookies(request.headers_mut());
    let (head, body) = request.into_parts();
    let head = Box::new(head);
    Ok(Screened { head, body })
}

fn check<B>(request: &Request<B>) -> Result<(), Problem> {
    check_method(request.method())?;
    check_target(request)?;
    check_host(request)?;
    check_connection(request.headers())
}

impl<B> Screened<B> {
    pub(crate) fn method(&self) -> &Method {
        &self.head.method
    }

    pub(crate) fn path(&self) -> &str {
        self.head.uri.path()
    }

    pub(crate) fn headers(&self) -> &HeaderMap {
        &self.head.headers
    }

    pub(crate) fn into_parts(self) -> (Box<Parts>, B) {
        (self.head, self.body)
    }
}

/// HTTP/2 clients may split a cookie over several lines. Upstreams and the
/// fingerprint get one.
fn join_cookies(headers: &mut HeaderMap) {
    if headers.get_all(header::COOKIE).iter().nth(1).is_none() {
        return;
    }
    let crumbs: Vec<_> = headers
        .get_all(header::COOKIE)
        .iter()
        .map(HeaderValue::as_bytes)
        .collect();
    if let Ok(cookies) = HeaderValue::from_bytes(&crumbs.join(&b"; "[..])) {
        headers.insert(header::COOKIE, cookies);
    }
}

fn check_method(method: &Method) -> Result<(), Problem> {
    if matches!(*method, Method::CONNECT | Method::TRACE) {
        return Err(Problem::new(
            Code::MethodNotAllowed,
            format!("{method} is not served."),
        ));
    }
    // `post` is another method than `POST`: it must not slip past a route for POST.
    if !METHODS.contains(method)
        && method
            .as_str()
            .bytes()
            .any(|byte| byte.is_ascii_lowercase())
    {
        return Err(Problem::new(
            Code::MethodNotAllowed,
            "Methods are case-sensitive; the usual ones are upper case.",
        ));
    }
    Ok(())
}

fn check_target<B>(request: &Request<B>) -> Result<(), Problem> {
    let path = request.uri().path();
    if !path.starts_with('/') && path != "*" {
        return Err(bad("the request target is not a path"));
    }
    let query = request.uri().query().unwrap_or_default();
    if !path.is_ascii() || !query.is_ascii() {
        return Err(bad(
            "the request target holds bytes outside ASCII; percent-encode them",
        ));
    }
    check_escapes(path)?;
    check_escapes(query)
}

/// Checks that two hexadecimal digits follow every `%`, and that no escape is a
/// NUL.
fn check_escapes(text: &str) -> Result<(), Problem> {
    let Some(first) = memchr(b'%', text.as_bytes()) else {
        return Ok(());
    };
    let mut bytes = text[first..].bytes();
    while let Some(byte) = bytes.next() {
        if byte != b'%' {
            continue;
        }
        match (bytes.next(), bytes.next()) {
            (Some(b'0'), Some(b'0')) => return Err(bad("the request target holds %00")),
            (Some(a), Some(b)) if a.is_ascii_hexdigit() && b.is_ascii_hexdigit() => {}
            _ => {
                return Err(bad(
                    "a % in the request target is not followed by two hexadecimal digits",
                ));
            }
        }
    }
    Ok(())
}

/// Checks the host: HTTP/1.1 requires exactly one valid Host; HTTP/2 carries it in
/// the target.
fn check_host<B>(request: &Request<B>) -> Result<(), Problem> {
    let named = request.uri().authority();
    if named.is_some_and(|host| host.as_str().contains('@')) {
        return Err(bad("there is a user before the host"));
    }
    let is_http2 = request.version() == Version::HTTP_2;
    let mut lines = request.headers().get_all(header::HOST).iter();
    match (lines.next(), lines.next()) {
        (Some(_), Some(_)) => Err(bad("there is more than one Host")),
        (Some(line), None) if line.is_empty() => Err(bad("the Host is empty")),
        (Some(line), None) if !is_http2 && is_plain_host(line.as_bytes()) => Ok(()),
        (Some(line), None) => match Authority::try_from(line.as_bytes()) {
            Ok(host) if is_http2 && named.is_some_and(|named| *named != host) => {
                Err(bad("Host and :authority are not the same"))
            }
            Ok(host) if !host.as_str().contains('@') => Ok(()),
            _ => Err(bad("the Host is not a host name with an optional port")),
        },
        (None, _) if request.version() == Version::HTTP_11 => Err(bad("the Host is missing")),
        (None, _) => Ok(()),
    }
}

/// Whether a host is a name or an IPv4 address with an optional port. Other valid
/// hosts are rare, and checking them takes an allocation.
fn is_plain_host(host: &[u8]) -> bool {
    let name_end = memchr(b':', host).unwrap_or(host.len());
    let (name, port) = host.split_at(name_end);
    let is_name = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-');
    let is_port =
        |port: &[u8]| (1..=5).contains(&port.len()) && port.iter().all(u8::is_ascii_digit);
    !name.is_empty() && name.iter().all(is_name) && port.get(1..).is_none_or(is_port)
}

fn check_connection(headers: &HeaderMap) -> Result<(), Problem> {
    let options = fields::connection_options(headers);
    match options
        .iter()
        .find(|name| NOT_CONNECTION_OPTIONS.contains(name))
    {
        Some(name) => Err(bad(&format!(
            "Connection names {name}, which is not its own"
        ))),
        None => Ok(()),
    }
}

fn bad(what: &str) -> Problem {
    Problem::new(
        Code::BadRequest,
        format!("The request is malformed: {what}."),
    )
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("/a/b?c=%20", true)]
    #[case("/a%2Fb", true)]
    #[case("/a%00b", false)]
    #[case("/a%zzb", false)]
    #[case("/a%2", false)]
    #[case("/a?x=%", false)]
    fn targets(#[case] target: &str, #[case] good: bool) {
        let request = Request::builder()
            .uri(target)
            .header("host", "a")
            .body(())
            .expect("a request");
        assert_eq!(check(&request).is_ok(), good, "{target}");
    }

    #[rstest]
    #[case("example.com", true)]
    #[case("example.com:8080", true)]
    #[case("[::1]:80", true)]
    #[case("a/../b", false)]
    #[case("user@a", false)]
    #[case("", false)]
    fn hosts(#[case] host: &str, #[case] good: bool) {
        let request = Request::builder()
            .header("host", host)
            .body(())
            .expect("a request");
        assert_eq!(check(&request).is_ok(), good, "{host}");
    }

    #[rstest]
    #[case("http://a/x", "a", true)]
    #[case("http://a/x", "b", false)]
    fn host_and_authority_must_agree(#[case] target: &str, #[case] host: &str, #[case] good: bool) {
        let request = Request::builder().version(Version::HTTP_2);
        let request = request.uri(target).header("host", host);
        assert_eq!(check(&request.body(()).expect("a request")).is_ok(), good);
    }

    proptest! {
        /// Every target that passes can be decoded: no escape is cut short, none is
        /// a NUL.
        #[test]
        fn whatever_passes_decodes(target in "/[a-z%0-9A-F?&=;.]{0,40}", host in any::<Vec<u8>>()) {
            let request = Request::builder().uri(&target).header("host", host).body(());
            if let Ok(request) = request
                && check(&request).is_ok()
            {
                let good = |part: &str| {
                    let digits = part.as_bytes().first_chunk::<2>();
                    digits.is_some_and(|d| d.iter().all(u8::is_ascii_hexdigit) && d != b"00")
                };
                prop_assert!(target.split('%').skip(1).all(good), "{}", target);
            }
        }
    }
}
