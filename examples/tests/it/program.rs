//! Programs as children that do not outlive the test, and requests to them.

use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::{HeaderMap, Request, StatusCode};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;

/// Longer than anything here takes, on any machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// A program that listens.
pub(crate) struct Service {
    child: Child,
    pub(crate) address: SocketAddr,
}

impl Service {
    /// Starts a program and waits until it prints its address.
    pub(crate) fn start(program: &str, arguments: &[&str]) -> Self {
        let mut child = Command::new(program)
            .args(arguments)
            .stdout(Stdio::piped())
            .spawn()
            .expect("an example can be started");
        let output = child.stdout.take().expect("it was asked for");
        let mut lines = BufReader::new(output).lines();
        let line = lines.next().expect("it says something");
        let line = line.expect("it says it in UTF-8");
        let address = line.strip_prefix("listening on ").expect(&line);
        // Further output must not fill the pipe.
        std::thread::spawn(move || lines.for_each(drop));
        Self {
            address: address.parse().expect("an address"),
            child,
        }
    }

    /// Kills it.
    pub(crate) fn kill(mut self) {
        self.child.kill().expect("the child is ours");
        self.child.wait().expect("the child ends");
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A response.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: String,
}

pub(crate) type Http = Client<HttpConnector, Full<Bytes>>;

pub(crate) fn http() -> Http {
    Client::builder(TokioExecutor::new()).build_http()
}

/// Posts JSON, under a key if there is one. `None` without an answer.
pub(crate) async fn post(
    http: &Http,
    address: SocketAddr,
    path: &str,
    key: Option<&str>,
    body: &str,
) -> Option<Answer> {
    let mut request =
        Request::post(format!("http://{address}{path}")).header("content-type", "application/json");
    if let Some(key) = key {
        request = request.header("idempotency-key", key);
    }
    let request = request.body(Full::from(body.to_owned()));
    let response = http.request(request.expect("a good request")).await.ok()?;
    let (head, body) = response.into_parts();
    let body = body.collect().await.ok()?.to_bytes();
    Some(Answer {
        status: head.status,
        headers: head.headers,
        body: String::from_utf8(body.to_vec()).expect("text"),
    })
}

/// Polls until there is a value.
pub(crate) async fn wait_until<T, F>(what: &str, mut look: impl FnMut() -> F) -> T
where
    F: Future<Output = Option<T>>,
{
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(seen) = look().await {
            return seen;
        }
        assert!(Instant::now() < deadline, "{what} never came");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
