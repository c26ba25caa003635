//! Parses as much of an HTTP/1.1 response as is needed to check it and to find its end.
//!
//! It is a pure function of the bytes received so far and is called again when more have arrived:
//! responses are small and nearly always arrive in one piece. The head is parsed by `httparse`; the
//! body is measured and skipped. Interim responses and bodies that end with the connection are
//! errors, because no measured server sends them.

use std::fmt;

const HEADERS_MAX: usize = 48;

/// What the bytes received so far contain.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Progress {
    Partial,
    Whole(Response),
}

/// A complete response at the front of the buffer.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Response {
    pub(super) status: u16,
    pub(super) source: Source,
    pub(super) connection: Connection,
    /// Head and body together.
    pub(super) length_bytes: usize,
}

/// Whether the response is marked as a replay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    Run,
    Replay,
}

/// Whether the connection stays open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Connection {
    Keep,
    Close,
}

/// A response that this parser does not accept.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Malformed {
    Head(httparse::Error),
    Chunk,
    /// Neither a length nor chunks: the body would end with the connection.
    Unframed,
    Interim,
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Malformed::Head(error) => write!(f, "malformed head: {error}"),
            Malformed::Chunk => f.write_str("malformed chunk"),
            Malformed::Unframed => f.write_str("body without a length"),
            Malformed::Interim => f.write_str("interim response"),
        }
    }
}

impl std::error::Error for Malformed {}

#[derive(Clone, Copy)]
enum Framing {
    Length(usize),
    Chunked,
}

pub(super) fn parse(bytes: &[u8]) -> Result<Progress, Malformed> {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut head = httparse::Response::new(&mut headers);
    let head_bytes = match head.parse(bytes).map_err(Malformed::Head)? {
        httparse::Status::Complete(length) => length,
        httparse::Status::Partial => return Ok(Progress::Partial),
    };
    let status = head.code.expect("a complete head has a status");
    let Some(body_bytes) = measure(framing(status, head.headers)?, &bytes[head_bytes..])? else {
        return Ok(Progress::Partial);
    };
    Ok(Progress::Whole(Response {
        status,
        source: source(head.headers),
        connection: connection(head.headers),
        length_bytes: head_bytes + body_bytes,
    }))
}

fn framing(status: u16, headers: &[httparse::Header<'_>]) -> Result<Framing, Malformed> {
    match status {
        100..200 => return Err(Malformed::Interim),
        204 | 304 => return Ok(Framing::Length(0)),
        _ => {}
    }
    if find(headers, "transfer-encoding").is_some_and(|value| value.ends_with(b"chunked")) {
        return Ok(Framing::Chunked);
    }
    find(headers, "content-length")
        .and_then(|value| std::str::from_utf8(value).ok()?.parse().ok())
        .map(Framing::Length)
        .ok_or(Malformed::Unframed)
}

/// The body's length on the wire, or `None` while it is incomplete.
fn measure(framing: Framing, rest: &[u8]) -> Result<Option<usize>, Malformed> {
    match framing {
        Framing::Length(length) => Ok((rest.len() >= length).then_some(length)),
        Framing::Chunked => measure_chunks(rest),
    }
}

fn measure_chunks(rest: &[u8]) -> Result<Option<usize>, Malformed> {
    let mut at = 0;
    while at < rest.len() {
        let (start, size) = match httparse::parse_chunk_size(&rest[at..]) {
            Ok(httparse::Status::Complete(found)) => found,
            Ok(httparse::Status::Partial) => return Ok(None),
            Err(_) => return Err(Malformed::Chunk),
        };
        if size == 0 {
            return measure_trailers(&rest[at + start..], at + start);
        }
        let size = usize::try_from(size).map_err(|_| Malformed::Chunk)?;
        at = at
            .checked_add(start)
            .and_then(|sum| sum.checked_add(size))
            .and_then(|sum| sum.checked_add(2))
            .ok_or(Malformed::Chunk)?;
    }
    Ok(None)
}

/// Trailers, usually none, and an empty line follow the last chunk.
fn measure_trailers(rest: &[u8], before: usize) -> Result<Option<usize>, Malformed> {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    match httparse::parse_headers(rest, &mut headers) {
        Ok(httparse::Status::Complete((length, _))) => Ok(Some(before + length)),
        Ok(httparse::Status::Partial) => Ok(None),
        Err(error) => Err(Malformed::Head(error)),
    }
}

fn source(headers: &[httparse::Header<'_>]) -> Source {
    match find(headers, "idempotent-replayed") {
        Some(b"true") => Source::Replay,
        _ => Source::Run,
    }
}

fn connection(headers: &[httparse::Header<'_>]) -> Connection {
    match find(headers, "connection") {
        Some(value) if value.eq_ignore_ascii_case(b"close") => Connection::Close,
        _ => Connection::Keep,
    }
}

fn find<'a>(headers: &[httparse::Header<'a>], name: &str) -> Option<&'a [u8]> {
    headers
        .iter()
        .find(|header| header.name.eq_ignore_ascii_case(name))
        .map(|header| header.value)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every proper prefix is partial, and bytes after the response are not consumed.
    fn check(wire: &str, status: u16, source: Source, connection: Connection) {
        for cut in 0..wire.len() {
            let progress = parse(&wire.as_bytes()[..cut]);
            assert_eq!(progress, Ok(Progress::Partial), "cut at {cut} of {wire:?}");
        }
        let response = Response {
            status,
            source,
            connection,
            length_bytes: wire.len(),
        };
        let followed = format!("{wire}HTTP/1.1 200 OK\r\n");
        assert_eq!(parse(followed.as_bytes()), Ok(Progress::Whole(response)));
    }

    #[test]
    fn a_response_is_complete_only_with_all_its_bytes() {
        let (run, replay) = (Source::Run, Source::Replay);
        let (keep, close) = (Connection::Keep, Connection::Close);
        check(
            "HTTP/1.1 201 Created\r\nContent-Length: 4\r\n\r\npaid",
            201,
            run,
            keep,
        );
        check("HTTP/1.1 204 No Content\r\nDate: x\r\n\r\n", 204, run, keep);
        check(
            "HTTP/1.1 201 Created\r\nIdempotent-Replayed: true\r\ncontent-length: 0\r\n\r\n",
            201,
            replay,
            keep,
        );
        check(
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n4\r\npaid\r\n0\r\n\r\n",
            200,
            run,
            keep,
        );
        check(
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n4;x=y\r\npaid\r\n0\r\nt: u\r\n\r\n",
            200,
            run,
            keep,
        );
        check(
            "HTTP/1.1 503 Busy\r\nconnection: Close\r\ncontent-length: 1\r\n\r\nx",
            503,
            run,
            close,
        );
    }

    #[test]
    fn a_response_without_a_measurable_end_is_an_error() {
        let cases = [
            ("HTTP/1.1 200 OK\r\n\r\n", Malformed::Unframed),
            (
                "HTTP/1.1 200 OK\r\ncontent-length: x\r\n\r\n",
                Malformed::Unframed,
            ),
            ("HTTP/1.1 100 Continue\r\n\r\n", Malformed::Interim),
            (
                "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
                Malformed::Chunk,
            ),
        ];
        for (wire, expected) in cases {
            assert_eq!(parse(wire.as_bytes()), Err(expected), "{wire:?}");
        }
    }
}
