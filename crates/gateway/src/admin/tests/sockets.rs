//! The listener itself: the connection determines the source of a request.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::*;
use crate::admin::serve;

/// The first line of the answer to a request without a body.
async fn ask(to: SocketAddr, head: &str) -> String {
    let mut stream = TcpStream::connect(to).await.expect("it listens");
    let request = format!("{head}Connection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.expect("written");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.expect("text");
    answer.lines().next().unwrap_or_default().to_owned()
}

#[tokio::test]
async fn without_tokens_only_local_programs_are_admitted() {
    let bench = bench_with(Vec::new(), None).await;
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let to = listener.local_addr().expect("bound");
    let serving = tokio::spawn(serve(listener, bench.router));
    let list = "GET /admin/v1/operations HTTP/1.1\r\n";
    for (head, status) in [
        (format!("{list}Host: {to}\r\n"), "200 OK"),
        (format!("{list}Host: evil.example\r\n"), "403 Forbidden"),
        (
            format!("{list}Host: {to}\r\nOrigin: https://evil.example\r\n"),
            "403 Forbidden",
        ),
        (
            format!("{list}Host: {to}\r\nSec-Fetch-Site: cross-site\r\n"),
            "403 Forbidden",
        ),
        (
            "GET /readyz HTTP/1.1\r\nHost: evil.example\r\n".to_owned(),
            "200 OK",
        ),
    ] {
        assert_eq!(ask(to, &head).await, format!("HTTP/1.1 {status}"), "{head}");
    }
    serving.abort();
}
