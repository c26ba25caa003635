//! Exact bytes, on both sides of the gateway.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// A connection to the gateway.
pub(crate) struct RawClient {
    stream: TcpStream,
    heard: Vec<u8>,
}

impl RawClient {
    pub(crate) fn new(stream: TcpStream) -> Self {
        stream.set_nodelay(true).unwrap();
        let heard = Vec::new();
        Self { stream, heard }
    }

    pub(crate) async fn say(&mut self, bytes: impl AsRef<[u8]>) {
        self.stream.write_all(bytes.as_ref()).await.unwrap();
    }

    /// Reads until the received bytes end with this text, and returns all of them.
    pub(crate) async fn hear(&mut self, end: &str) -> String {
        while !self.heard.ends_with(end.as_bytes()) {
            assert!(self.listen().await, "closed after {:?}", self.text());
        }
        let text = self.text();
        self.heard.clear();
        text
    }

    /// Reads until this many answers are complete or the connection closes.
    pub(crate) async fn answers(&mut self, wanted: usize) -> Vec<RawAnswer> {
        loop {
            let answers = parse_answers(&self.heard);
            let last = answers.iter().filter(|answer| answer.status >= 200).count();
            if last >= wanted || !self.listen().await {
                return parse_answers(&self.heard);
            }
        }
    }

    /// Reads until the gateway closes, and returns all bytes.
    pub(crate) async fn hear_out(&mut self) -> String {
        while self.listen().await {}
        self.text()
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.heard).into_owned()
    }

    /// Reads the next bytes; a reset ends the connection too.
    async fn listen(&mut self) -> bool {
        let read = self.stream.read_buf(&mut self.heard).await;
        read.is_ok_and(|count| count > 0)
    }
}

/// An answer as bytes.
#[derive(Clone, Debug)]
pub(crate) struct RawAnswer {
    pub(crate) status: u16,
    pub(crate) message: RawMessage,
}

fn parse_answers(mut bytes: &[u8]) -> Vec<RawAnswer> {
    let mut answers = Vec::new();
    while let Some((message, rest)) = take_message(bytes) {
        let status = message.head.split(' ').nth(1).unwrap();
        answers.push(RawAnswer {
            status: status.parse().unwrap(),
            message,
        });
        bytes = rest;
    }
    answers
}

/// A message as received: its head as text, its body without chunks.
#[derive(Clone, Debug)]
pub(crate) struct RawMessage {
    pub(crate) head: String,
    pub(crate) body: String,
    /// The trailers after the last chunk.
    pub(crate) trailers: String,
}

impl RawMessage {
    pub(crate) fn method(&self) -> &str {
        self.head.split(' ').next().unwrap()
    }

    pub(crate) fn target(&self) -> &str {
        self.head.split(' ').nth(1).unwrap()
    }

    /// The values of a header.
    pub(crate) fn headers(&self, name: &str) -> Vec<&str> {
        header_values(&self.head, name)
    }
}

fn header_values<'a>(head: &'a str, name: &str) -> Vec<&'a str> {
    head.lines()
        .filter_map(|line| line.split_once(':'))
        .filter(|(is, _)| is.eq_ignore_ascii_case(name))
        .map(|(_, value)| value.trim())
        .collect()
}

/// Takes a complete message from the front, if there is one.
fn take_message(bytes: &[u8]) -> Option<(RawMessage, &[u8])> {
    let end = find(bytes, b"\r\n\r\n")? + 4;
    // One byte per character, whatever the encoding.
    let head: String = bytes[..end].iter().map(|byte| char::from(*byte)).collect();
    let rest = &bytes[end..];
    let length = header_values(&head, "content-length")
        .first()
        .map(|value| value.parse::<usize>().unwrap());
    let (body, trailers, rest) = if header_values(&head, "transfer-encoding").is_empty() {
        let length = length.unwrap_or(0);
        (rest.get(..length)?.to_vec(), Vec::new(), &rest[length..])
    } else {
        take_chunks(rest)?
    };
    let message = RawMessage {
        head,
        body: String::from_utf8(body).unwrap(),
        trailers: String::from_utf8(trailers).unwrap(),
    };
    Some((message, rest))
}

type Chunks<'a> = (Vec<u8>, Vec<u8>, &'a [u8]);

fn take_chunks(mut bytes: &[u8]) -> Option<Chunks<'_>> {
    let mut body = Vec::new();
    loop {
        let end = find(bytes, b"\r\n")?;
        let line = std::str::from_utf8(&bytes[..end]).unwrap();
        let size = usize::from_str_radix(line.split(';').next().unwrap(), 16).unwrap();
        bytes = &bytes[end + 2..];
        if size == 0 {
            let trailers = if bytes.starts_with(b"\r\n") {
                0
            } else {
                find(bytes, b"\r\n\r\n")? + 2
            };
            let rest = bytes.get(trailers + 2..)?;
            return Some((body, bytes[..trailers].to_vec(), rest));
        }
        body.extend_from_slice(bytes.get(..size)?);
        bytes = bytes.get(size + 2..)?;
    }
}

fn find(bytes: &[u8], wanted: &[u8]) -> Option<usize> {
    bytes
        .windows(wanted.len())
        .position(|window| window == wanted)
}

/// An origin that reads complete requests from its connections and answers each
/// with exact bytes.
pub(crate) struct RawOrigin {
    address: SocketAddr,
    ledger: Arc<Mutex<Vec<RawMessage>>>,
}

/// Answers each request with these bytes, in which `{target}` is replaced.
pub(crate) async fn raw_origin(answer: &'static str) -> RawOrigin {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let origin = RawOrigin {
        address: listener.local_addr().unwrap(),
        ledger: Arc::default(),
    };
    let ledger = origin.ledger.clone();
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            tokio::spawn(answer_each(stream, answer, ledger.clone()));
        }
    });
    origin
}

async fn answer_each(
    mut stream: TcpStream,
    answer: &'static str,
    ledger: Arc<Mutex<Vec<RawMessage>>>,
) {
    let mut heard = Vec::new();
    while stream
        .read_buf(&mut heard)
        .await
        .is_ok_and(|count| count > 0)
    {
        while let Some((message, rest)) = take_message(&heard) {
            heard = rest.to_vec();
            let answer = answer.replace("{target}", message.target());
            ledger.lock().unwrap().push(message);
            // A client that has disconnected needs no answer.
            let _ = stream.write_all(answer.as_bytes()).await;
        }
    }
}

impl RawOrigin {
    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// The complete requests, in order.
    pub(crate) fn ledger(&self) -> Vec<RawMessage> {
        self.ledger.lock().unwrap().clone()
    }

    /// The only request.
    pub(crate) fn only(&self) -> RawMessage {
        let mut ledger = self.ledger();
        assert_eq!(ledger.len(), 1, "{ledger:?}");
        ledger.remove(0)
    }
}
