//! The gateway's own questions to other services: keys of an issuer, a secret,
//! a reconciler's verdict.
//!
//! It sits on [`Upstream`] for its connections and its TLS, and adds what a
//! question needs and a forwarded request does not: one deadline over all of it,
//! and a bound on the answer. Nothing is tried twice, and no redirect is
//! followed: the answer 302 is an answer like any other, so that who can make a
//! service redirect cannot choose whom the gateway asks next.
//!
//! Errors never hold the URL, since a query may be a secret; they name the host.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::uri::{Authority, PathAndQuery, Scheme};
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, Uri, header};
use http_body_util::{BodyExt, LengthLimitError, Limited};

use crate::upstream::{
    BoxError, Limits, RequestBody, ResponseBody, SendError, Tls, Upstream, UpstreamError,
};

/// How many unused connections to one service are kept.
const IDLE_MAX: usize = 16;
/// How many questions to one service may be under way. Further ones wait.
const CONNECTIONS_MAX: usize = 256;

/// The bounds of a question.
#[derive(Clone, Copy, Debug)]
pub struct FetchLimits {
    /// How long all of it may take, from looking up the host to the answer's
    /// last byte.
    pub deadline: Duration,
    /// The most bytes of an answer's body.
    pub answer_bytes_max: usize,
}

impl Default for FetchLimits {
    fn default() -> Self {
        Self {
            deadline: Duration::from_secs(3),
            answer_bytes_max: 256 * 1024,
        }
    }
}

/// Why there is no answer, or nobody to ask.
#[derive(Debug, thiserror::Error)]
pub enum FetchError {
    /// What should be a URL is none.
    #[error("not a URL")]
    Malformed(#[source] http::uri::InvalidUri),
    /// Another scheme, or none.
    #[error("a URL to ask begins with http:// or https://")]
    Scheme,
    /// There is no host in it.
    #[error("a URL to ask names a host")]
    Host,
    /// There is a user or a password before the host.
    #[error("a URL to ask has no user or password in it: use the settings meant for them")]
    Userinfo,
    /// The service cannot be asked as things are set up.
    #[error("the connection to {host} cannot be set up")]
    Setup {
        /// Whom it was to ask.
        host: Authority,
        /// What is wrong.
        source: UpstreamError,
    },
    /// A path to ask for is none.
    #[error("not a path to ask {host} for")]
    Target {
        /// Whom it was to ask.
        host: Authority,
        /// What is wrong.
        source: http::uri::InvalidUri,
    },
    /// The service was not reached, or broke off before it answered.
    #[error("no answer from {host}")]
    NoAnswer {
        /// Who was asked.
        host: Authority,
        /// What happened.
        source: SendError,
    },
    /// The answer broke off.
    #[error("the answer from {host} broke off")]
    BrokenOff {
        /// Who was asked.
        host: Authority,
        /// What happened.
        source: BoxError,
    },
    /// The deadline came first.
    #[error("no whole answer from {host} within {deadline:?}")]
    TooSlow {
        /// Who was asked.
        host: Authority,
        /// How long it had.
        deadline: Duration,
    },
    /// The answer outgrew its bound.
    #[error("the answer from {host} is larger than {bytes_max} bytes")]
    TooLarge {
        /// Who was asked.
        host: Authority,
        /// The bound.
        bytes_max: usize,
    },
}

/// A whole answer, whatever its status.
#[derive(Clone, Debug)]
pub struct Fetched {
    /// Its status.
    pub status: StatusCode,
    /// Its headers.
    pub headers: HeaderMap,
    /// Its body, whole.
    pub body: Bytes,
}

/// A service to ask. Clones share their connections.
#[derive(Clone, Debug)]
pub struct Fetch(Arc<Service>);

#[derive(Debug)]
struct Service {
    upstream: Upstream,
    host: Authority,
    own_path: PathAndQuery,
    limits: FetchLimits,
}

impl Fetch {
    /// Reads a URL, with a path and a query if need be. Opens no connection yet.
    pub fn new(url: &str, limits: FetchLimits) -> Result<Self, FetchError> {
        Self::with_tls(url, limits, &Tls::default())
    }

    /// The same with certificates of one's own.
    pub fn with_tls(url: &str, limits: FetchLimits, tls: &Tls) -> Result<Self, FetchError> {
        let parts = url
            .parse::<Uri>()
            .map_err(FetchError::Malformed)?
            .into_parts();
        let scheme = parts.scheme.ok_or(FetchError::Scheme)?;
        if scheme != Scheme::HTTP && scheme != Scheme::HTTPS {
            return Err(FetchError::Scheme);
        }
        let host = parts.authority.ok_or(FetchError::Host)?;
        if host.as_str().contains('@') {
            return Err(FetchError::Userinfo);
        }
        let usual = Limits::default();
        let bounds = Limits {
            connect_timeout: usual.connect_timeout.min(limits.deadline),
            idle_max: IDLE_MAX,
            connections_max: CONNECTIONS_MAX,
            ..usual
        };
        let upstream = Upstream::open(&format!("{scheme}://{host}"), bounds, tls);
        let upstream = upstream.map_err(|source| FetchError::Setup {
            host: host.clone(),
            source,
        })?;
        let own_path = parts.path_and_query;
        Ok(Self(Arc::new(Service {
            upstream,
            host,
            own_path: own_path.unwrap_or_else(|| PathAndQuery::from_static("/")),
            limits,
        })))
    }

    /// Asks by GET, for the URL's own path and query if no other is given.
    pub async fn get(
        &self,
        path_and_query: Option<&str>,
        headers: HeaderMap,
    ) -> Result<Fetched, FetchError> {
        let request = self.request(Method::GET, path_and_query, headers, RequestBody::Empty)?;
        self.ask(request).await
    }

    /// Asks by POST, at the URL's own path and query if no other is given.
    pub async fn post(
        &self,
        path_and_query: Option<&str>,
        mut headers: HeaderMap,
        body: Bytes,
    ) -> Result<Fetched, FetchError> {
        // Said also of an empty body, without which some servers refuse a POST.
        headers.insert(header::CONTENT_LENGTH, body.len().into());
        let request = self.request(Method::POST, path_and_query, headers, body.into())?;
        self.ask(request).await
    }

    fn request(
        &self,
        method: Method,
        path_and_query: Option<&str>,
        headers: HeaderMap,
        body: RequestBody,
    ) -> Result<Request<RequestBody>, FetchError> {
        let host = &self.0.host;
        let path = match path_and_query {
            None => self.0.own_path.clone(),
            Some(text) => text.parse().map_err(|source| FetchError::Target {
                host: host.clone(),
                source,
            })?,
        };
        let mut request = Request::new(body);
        *request.method_mut() = method;
        *request.uri_mut() = Uri::from(path);
        *request.headers_mut() = headers;
        let name = HeaderValue::from_str(host.as_str()).map_err(|_| FetchError::Host)?;
        request.headers_mut().insert(header::HOST, name);
        Ok(request)
    }

    async fn ask(&self, request: Request<RequestBody>) -> Result<Fetched, FetchError> {
        let deadline = self.0.limits.deadline;
        let asking = async { self.read(self.send(request).await?).await };
        let asked = tokio::time::timeout(deadline, asking).await;
        asked.unwrap_or_else(|_| {
            Err(FetchError::TooSlow {
                host: self.0.host.clone(),
                deadline,
            })
        })
    }

    async fn send(
        &self,
        request: Request<RequestBody>,
    ) -> Result<Response<ResponseBody>, FetchError> {
        let sent = self.0.upstream.send(request).await;
        sent.map_err(|source| FetchError::NoAnswer {
            host: self.0.host.clone(),
            source,
        })
    }

    async fn read(&self, response: Response<ResponseBody>) -> Result<Fetched, FetchError> {
        let bytes_max = self.0.limits.answer_bytes_max;
        let (parts, body) = response.into_parts();
        let read = Limited::new(body, bytes_max).collect().await;
        let body = read.map_err(|source| {
            let host = self.0.host.clone();
            if source.is::<LengthLimitError>() {
                FetchError::TooLarge { host, bytes_max }
            } else {
                FetchError::BrokenOff { host, source }
            }
        })?;
        Ok(Fetched {
            status: parts.status,
            headers: parts.headers,
            body: body.to_bytes(),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;

    use rstest::rstest;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpListener, TcpStream};

    use super::*;

    const SHORT: FetchLimits = FetchLimits {
        deadline: Duration::from_millis(200),
        answer_bytes_max: 1024,
    };
    const PATIENT: FetchLimits = FetchLimits {
        deadline: Duration::from_secs(5),
        answer_bytes_max: 1024,
    };

    /// A service that reads one request per connection, answers as told, and
    /// gives the URL to ask.
    async fn service<F>(answer: impl Fn(String, TcpStream) -> F + Send + 'static) -> String
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("bound");
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let mut seen = vec![0; 4096];
                let length = stream.read(&mut seen).await.unwrap_or(0);
                let seen = String::from_utf8_lossy(&seen[..length]).into_owned();
                tokio::spawn(answer(seen, stream));
            }
        });
        format!("http://{address}")
    }

    async fn say(mut stream: TcpStream, answer: impl AsRef<[u8]>) {
        let _ = stream.write_all(answer.as_ref()).await;
    }

    /// Says what it was asked.
    async fn echo(seen: String, stream: TcpStream) {
        let length = seen.len();
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n");
        say(stream, head + &seen).await;
    }

    fn fetch(url: &str, limits: FetchLimits) -> Fetch {
        Fetch::new(url, limits).expect("a URL to ask")
    }

    fn one(name: &'static str, value: &'static str) -> HeaderMap {
        HeaderMap::from_iter([(
            header::HeaderName::from_static(name),
            HeaderValue::from_static(value),
        )])
    }

    #[tokio::test]
    async fn a_get_asks_for_the_urls_own_path_or_another() {
        let url = service(echo).await;
        let host = url.trim_start_matches("http://").to_owned();
        let keys = fetch(&format!("{url}/keys?v=1"), PATIENT);
        for (other, path) in [(None, "/keys?v=1"), (Some("/else?x=2"), "/else?x=2")] {
            let fetched = keys.get(other, one("accept", "a/b")).await;
            let fetched = fetched.expect("an answer");
            assert_eq!(fetched.status, StatusCode::OK);
            let wanted = format!("GET {path} HTTP/1.1\r\naccept: a/b\r\nhost: {host}\r\n\r\n");
            assert_eq!(fetched.body, wanted);
        }
    }

    #[tokio::test]
    async fn a_post_says_its_length_also_of_nothing() {
        let url = service(echo).await;
        let verify = fetch(&format!("{url}/verify"), PATIENT);
        for (body, length) in [("{}", 2), ("", 0)] {
            let fetched = verify.post(None, HeaderMap::new(), Bytes::from_static(body.as_bytes()));
            let seen = fetched.await.expect("an answer").body;
            let seen = String::from_utf8_lossy(&seen);
            assert!(seen.starts_with("POST /verify HTTP/1.1\r\n"), "{seen}");
            assert!(seen.contains(&format!("content-length: {length}\r\n")));
            assert!(seen.ends_with(&format!("\r\n\r\n{body}")));
        }
    }

    #[tokio::test]
    async fn a_redirect_is_given_back_as_it_is() {
        let url = service(|seen, stream| async move {
            assert!(seen.starts_with("GET /keys "), "asked for more: {seen}");
            let answer =
                "HTTP/1.1 302 Found\r\nLocation: /elsewhere\r\nContent-Length: 4\r\n\r\naway";
            say(stream, answer).await;
        })
        .await;
        let fetched = fetch(&format!("{url}/keys"), PATIENT)
            .get(None, HeaderMap::new())
            .await
            .expect("an answer");
        assert_eq!(fetched.status, StatusCode::FOUND);
        assert_eq!(fetched.headers[header::LOCATION], "/elsewhere");
        assert_eq!(fetched.body, "away");
    }

    #[rstest]
    #[case::silent("")]
    #[case::half_a_body("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf")]
    #[tokio::test]
    async fn a_slow_answer_ends_at_the_deadline(#[case] beginning: &'static str) {
        let url = service(move |_, mut stream| async move {
            let _ = stream.write_all(beginning.as_bytes()).await;
            let _ = stream.read(&mut [0]).await;
        })
        .await;
        let fetched = fetch(&url, SHORT).get(None, HeaderMap::new()).await;
        assert!(matches!(fetched, Err(FetchError::TooSlow { .. })));
    }

    #[rstest]
    #[case::announced("HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n")]
    #[case::unannounced("HTTP/1.1 200 OK\r\n\r\n")]
    #[tokio::test]
    async fn a_huge_answer_is_not_read_to_its_end(#[case] head: &'static str) {
        let url = service(move |_, mut stream| async move {
            let _ = stream.write_all(head.as_bytes()).await;
            while stream.write_all(&[b'x'; 4096]).await.is_ok() {}
        })
        .await;
        let fetched = fetch(&url, PATIENT).get(None, HeaderMap::new()).await;
        assert!(matches!(
            fetched,
            Err(FetchError::TooLarge {
                bytes_max: 1024,
                ..
            })
        ));
    }

    #[tokio::test]
    async fn an_answer_that_breaks_off_is_none() {
        let url = service(|_, stream| async move {
            say(stream, "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf").await;
        })
        .await;
        let fetched = fetch(&url, PATIENT).get(None, HeaderMap::new()).await;
        assert!(matches!(fetched, Err(FetchError::BrokenOff { .. })));
    }

    #[tokio::test]
    async fn nobody_listening_is_no_answer_and_the_error_keeps_secrets() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("bound");
        drop(listener);
        let asked = fetch(&format!("http://{address}/keys?token=hush"), PATIENT);
        let error = asked.get(None, one("authorization", "hush")).await;
        let error = error.expect_err("nobody answers");
        assert!(matches!(error, FetchError::NoAnswer { .. }));
        assert_eq!(error.to_string(), format!("no answer from {address}"));
        assert!(!format!("{error:?}").contains("hush"));
    }

    #[rstest]
    #[case("ftp://a/hush", "a URL to ask begins with http:// or https://")]
    #[case("/hush", "a URL to ask begins with http:// or https://")]
    #[case(
        "http://me:hush@a/",
        "a URL to ask has no user or password in it: use the settings meant for them"
    )]
    #[case("http://a b/hush", "not a URL")]
    fn what_cannot_be_asked_says_why_and_keeps_secrets(#[case] url: &str, #[case] why: &str) {
        let error = Fetch::new(url, SHORT).expect_err("not a URL to ask");
        assert_eq!(error.to_string(), why);
        assert!(!format!("{error:?}").contains("hush"));
    }
}
