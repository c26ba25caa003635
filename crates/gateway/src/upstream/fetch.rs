//! The client for the gateway's own requests to other services: for an issuer's
//! keys, a secret, or the outcome that a reconciler knows.
//!
//! It uses [`UpstreamClient`] for connections and TLS, and adds one deadline for
//! the whole request and a limit on the size of the response. Nothing is retried,
//! and redirects are not followed: a 302 is returned like any other response, so
//! that no service can redirect the gateway to an address of an attacker's choice.
//!
//! Errors contain only the host, never the URL, because a query may hold a secret.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::uri::{Authority, PathAndQuery, Scheme};
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, Uri, header};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use onceward_core::deadline::within;

use crate::upstream::{
    BoxError, OutgoingBody, ResponseBody, SendError, Tls, UpstreamClient, UpstreamError,
    UpstreamLimits,
};

/// How many idle connections to one service are kept.
const IDLE_MAX: usize = 16;
/// How many requests to one service may run at the same time. Further ones wait.
const CONNECTIONS_MAX: usize = 256;

/// The limits of a request.
#[derive(Clone, Copy, Debug)]
pub struct FetchLimits {
    /// How long it may take, from name resolution to the last byte of the
    /// response.
    pub deadline: Duration,
    /// The largest response body, in bytes.
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

/// Why a request failed, or cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum FetchError {
    /// The URL is malformed.
    #[error("not a valid URL")]
    Malformed(#[source] http::uri::InvalidUri),
    /// The scheme is missing or not supported.
    #[error("the URL must begin with http:// or https://")]
    Scheme,
    /// The host is missing.
    #[error("the URL must have a host")]
    Host,
    /// There is a user name or a password before the host.
    #[error("the URL must not contain a user name or password: use the settings for credentials")]
    Userinfo,
    /// The URL or the TLS settings cannot be used.
    #[error("the connection to {host} cannot be set up")]
    Setup {
        /// The service.
        host: Authority,
        /// The cause.
        source: UpstreamError,
    },
    /// The path is malformed.
    #[error("not a valid path for a request to {host}")]
    Target {
        /// The service.
        host: Authority,
        /// The cause.
        source: http::uri::InvalidUri,
    },
    /// The service was not reached, or the connection failed before it answered.
    #[error("no answer from {host}")]
    NoAnswer {
        /// The service.
        host: Authority,
        /// The cause.
        source: SendError,
    },
    /// The connection failed within the response.
    #[error("the answer from {host} is incomplete")]
    Incomplete {
        /// The service.
        host: Authority,
        /// The cause.
        source: BoxError,
    },
    /// The response was not complete at the deadline.
    #[error("no complete answer from {host} within {deadline:?}")]
    TooSlow {
        /// The service.
        host: Authority,
        /// The time limit.
        deadline: Duration,
    },
    /// The response is larger than the limit.
    #[error("the answer from {host} is larger than {bytes_max} bytes")]
    TooLarge {
        /// The service.
        host: Authority,
        /// The limit.
        bytes_max: usize,
    },
}

/// A complete response with any status.
#[derive(Clone, Debug)]
pub struct Fetched {
    /// The status.
    pub status: StatusCode,
    /// The headers.
    pub headers: HeaderMap,
    /// The whole body.
    pub body: Bytes,
}

/// A client for one service. Clones share their connections.
#[derive(Clone, Debug)]
pub struct Fetch(Arc<Service>);

#[derive(Debug)]
struct Service {
    upstream: UpstreamClient,
    host: Authority,
    default_path: PathAndQuery,
    limits: FetchLimits,
}

impl Fetch {
    /// Parses a URL, which may have a path and a query. Opens no connection yet.
    pub fn new(url: &str, limits: FetchLimits) -> Result<Self, FetchError> {
        Self::with_tls(url, limits, &Tls::default())
    }

    /// The same with TLS settings.
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
        let defaults = UpstreamLimits::default();
        let upstream_limits = UpstreamLimits {
            connect_timeout: defaults.connect_timeout.min(limits.deadline),
            idle_max: IDLE_MAX,
            connections_max: CONNECTIONS_MAX,
            ..defaults
        };
        let upstream = UpstreamClient::open(&format!("{scheme}://{host}"), upstream_limits, tls);
        let upstream = upstream.map_err(|source| FetchError::Setup {
            host: host.clone(),
            source,
        })?;
        let path = parts.path_and_query;
        Ok(Self(Arc::new(Service {
            upstream,
            host,
            default_path: path.unwrap_or_else(|| PathAndQuery::from_static("/")),
            limits,
        })))
    }

    /// Sends a GET to this path and query; `None` stands for those of the URL.
    pub async fn get(
        &self,
        path_and_query: Option<&str>,
        headers: HeaderMap,
    ) -> Result<Fetched, FetchError> {
        let request = self.request(Method::GET, path_and_query, headers, OutgoingBody::Empty)?;
        self.fetch(request).await
    }

    /// Sends a POST to this path and query; `None` stands for those of the URL.
    pub async fn post(
        &self,
        path_and_query: Option<&str>,
        mut headers: HeaderMap,
        body: Bytes,
    ) -> Result<Fetched, FetchError> {
        // An empty body gets one too: some servers refuse a POST without it.
        headers.insert(header::CONTENT_LENGTH, body.len().into());
        let request = self.request(Method::POST, path_and_query, headers, body.into())?;
        self.fetch(request).await
    }

    fn request(
        &self,
        method: Method,
        path_and_query: Option<&str>,
        headers: HeaderMap,
        body: OutgoingBody,
    ) -> Result<Request<OutgoingBody>, FetchError> {
        let host = &self.0.host;
        let path = match path_and_query {
            None => self.0.default_path.clone(),
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

    // Boxed, so that the clients of HTTP/1 and HTTP/2 are compiled in this crate
    // once and not again in each program that fetches, and so that the types of all
    // callers do not contain that of a whole connection.
    fn fetch(&self, request: Request<OutgoingBody>) -> BoxFuture<'_, Result<Fetched, FetchError>> {
        Box::pin(self.fetch_within_deadline(request))
    }

    /// Sends a request and reads the response.
    async fn fetch_within_deadline(
        &self,
        request: Request<OutgoingBody>,
    ) -> Result<Fetched, FetchError> {
        let deadline = self.0.limits.deadline;
        let fetching = async { self.read(self.send(request).await?).await };
        let fetched = within(deadline, fetching).await;
        fetched.unwrap_or_else(|_| {
            Err(FetchError::TooSlow {
                host: self.0.host.clone(),
                deadline,
            })
        })
    }

    async fn send(
        &self,
        request: Request<OutgoingBody>,
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
                FetchError::Incomplete { host, source }
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
    const LONG: FetchLimits = FetchLimits {
        deadline: Duration::from_secs(5),
        answer_bytes_max: 1024,
    };

    /// Runs a service that reads one request per connection and answers with
    /// `answer`; returns its URL.
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

    async fn write(mut stream: TcpStream, answer: impl AsRef<[u8]>) {
        let _ = stream.write_all(answer.as_ref()).await;
    }

    /// Answers with the request that it received.
    async fn echo(seen: String, stream: TcpStream) {
        let length = seen.len();
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n");
        write(stream, head + &seen).await;
    }

    fn fetch(url: &str, limits: FetchLimits) -> Fetch {
        Fetch::new(url, limits).expect("a valid URL")
    }

    fn one_header(name: &'static str, value: &'static str) -> HeaderMap {
        HeaderMap::from_iter([(
            header::HeaderName::from_static(name),
            HeaderValue::from_static(value),
        )])
    }

    #[tokio::test]
    async fn a_get_uses_the_urls_path_or_another() {
        let url = service(echo).await;
        let host = url.trim_start_matches("http://").to_owned();
        let keys = fetch(&format!("{url}/keys?v=1"), LONG);
        for (other, path) in [(None, "/keys?v=1"), (Some("/else?x=2"), "/else?x=2")] {
            let fetched = keys.get(other, one_header("accept", "a/b")).await;
            let fetched = fetched.expect("an answer");
            assert_eq!(fetched.status, StatusCode::OK);
            let wanted = format!("GET {path} HTTP/1.1\r\naccept: a/b\r\nhost: {host}\r\n\r\n");
            assert_eq!(fetched.body, wanted);
        }
    }

    #[tokio::test]
    async fn a_post_has_a_content_length_even_without_a_body() {
        let url = service(echo).await;
        let verify = fetch(&format!("{url}/verify"), LONG);
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
    async fn a_redirect_is_returned_and_not_followed() {
        let url = service(|seen, stream| async move {
            assert!(seen.starts_with("GET /keys "), "followed: {seen}");
            let answer =
                "HTTP/1.1 302 Found\r\nLocation: /elsewhere\r\nContent-Length: 4\r\n\r\naway";
            write(stream, answer).await;
        })
        .await;
        let fetched = fetch(&format!("{url}/keys"), LONG)
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
        let fetched = fetch(&url, LONG).get(None, HeaderMap::new()).await;
        assert!(matches!(
            fetched,
            Err(FetchError::TooLarge {
                bytes_max: 1024,
                ..
            })
        ));
    }

    #[tokio::test]
    async fn an_incomplete_answer_is_an_error() {
        let url = service(|_, stream| async move {
            write(stream, "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf").await;
        })
        .await;
        let fetched = fetch(&url, LONG).get(None, HeaderMap::new()).await;
        assert!(matches!(fetched, Err(FetchError::Incomplete { .. })));
    }

    #[tokio::test]
    async fn a_refused_connection_is_no_answer_and_the_error_keeps_secrets() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("bound");
        drop(listener);
        let keys = fetch(&format!("http://{address}/keys?token=hush"), LONG);
        let error = keys.get(None, one_header("authorization", "hush")).await;
        let error = error.expect_err("nothing listens there");
        assert!(matches!(error, FetchError::NoAnswer { .. }));
        assert_eq!(error.to_string(), format!("no answer from {address}"));
        assert!(!format!("{error:?}").contains("hush"));
    }

    #[rstest]
    #[case("ftp://a/hush", "the URL must begin with http:// or https://")]
    #[case("/hush", "the URL must begin with http:// or https://")]
    #[case(
        "http://me:hush@a/",
        "the URL must not contain a user name or password: use the settings for credentials"
    )]
    #[case("http://a b/hush", "not a valid URL")]
    fn an_unusable_url_is_explained_without_its_secrets(#[case] url: &str, #[case] why: &str) {
        let error = Fetch::new(url, SHORT).expect_err("unusable");
        assert_eq!(error.to_string(), why);
        assert!(!format!("{error:?}").contains("hush"));
    }
}
