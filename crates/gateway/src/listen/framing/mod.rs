//! Checks the bytes of HTTP/1 requests before hyper reads them, and refuses
//! requests whose framing is ambiguous.
//!
//! Why before hyper: its parser silently repairs what request smuggling relies
//! on. It drops `Content-Length` beside `Transfer-Encoding`, accepts a bare line
//! feed as a line ending, merges repeated lengths and does not require Host;
//! afterwards no code can detect it. If two parties see different ends of one
//! request, an attacker can smuggle a request past the idempotency key. Bytes
//! that two parsers could read differently are therefore refused here.
//!
//! How it refuses: [`CheckedStream`] passes on the bytes before the violation,
//! then gives hyper bytes that no parser accepts. hyper responds with 400 and
//! closes the connection, after it has responded to the earlier requests. hyper
//! remains the only writer of responses. Its `pipeline_flush` must stay off:
//! with it, hyper writes no response while unread bytes follow, so the 400 and
//! the responses before it would be lost.
//!
//! The check follows the boundaries of messages exactly, so it never takes a
//! body for a head. It does not interpret requests: methods, targets, keys and
//! internal header names belong to `request`. HTTP/2 has unambiguous framing and
//! passes unchecked. So do the bytes after a request to upgrade: such a
//! connection must not serve HTTP/1 again, so a refused upgrade must be answered
//! with `Connection: close`.

mod head;
mod stream;
#[cfg(test)]
mod tests;

use memchr::memchr;

use self::head::MessageHead;

pub(crate) use self::head::is_host;
pub(crate) use self::stream::CheckedStream;

/// The longest request line. Above hyper's own limit for targets (64 KiB), so
/// that hyper responds to longer targets with 414.
pub(crate) const REQUEST_LINE_BYTES_MAX: usize = 128 * 1024;
/// The most bytes of a head's header lines, and of a body's trailers.
pub(crate) const HEADERS_BYTES_MAX: usize = 64 * 1024;
/// The most bytes of a whole head, which hyper's buffer must be able to hold.
pub(crate) const HEAD_BYTES_MAX: usize = REQUEST_LINE_BYTES_MAX + HEADERS_BYTES_MAX;
/// The most header lines of a head, and the most trailers of a body. It equals
/// hyper's default: a higher limit makes hyper allocate on every request.
pub(crate) const HEADERS_MAX: usize = 100;
/// The longest line with a chunk's size, including extensions and line ending.
pub(crate) const CHUNK_LINE_BYTES_MAX: usize = 256;

/// The first bytes of an HTTP/2 connection. No HTTP/1 method is called `PRI`.
pub(super) const HTTP2_PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// A valid HTTP/1 request shares fewer bytes than this with the preface.
const PREFACE_METHOD_BYTES: usize = b"PRI ".len();

/// Why bytes were refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum Fault {
    /// The first bytes begin like the HTTP/2 preface and then differ.
    #[error("broken HTTP/2 preface")]
    Preface,
    /// A line ends with a line feed alone.
    #[error("bare line feed")]
    BareLineFeed,
    /// The first line does not end with `HTTP/1.0` or `HTTP/1.1`.
    #[error("malformed request line")]
    RequestLine,
    /// The first line exceeds [`REQUEST_LINE_BYTES_MAX`].
    #[error("request line too long")]
    RequestLineTooLong,
    /// No colon, no name, a space or tab beside the name, or a folded line.
    #[error("malformed header line")]
    HeaderLine,
    /// More than [`HEADERS_BYTES_MAX`].
    #[error("headers too large")]
    HeadersTooLarge,
    /// More than [`HEADERS_MAX`].
    #[error("too many headers")]
    TooManyHeaders,
    /// HTTP/1.1 requires Host.
    #[error("missing Host")]
    HostMissing,
    /// Two Host lines, equal or not.
    #[error("repeated Host")]
    HostRepeated,
    /// Host is not a name or address with an optional port.
    #[error("malformed Host")]
    HostMalformed,
    /// Two Content-Length lines, equal or not.
    #[error("repeated Content-Length")]
    ContentLengthRepeated,
    /// Content-Length is not a single decimal number.
    #[error("malformed Content-Length")]
    ContentLengthMalformed,
    /// Two Transfer-Encoding lines, equal or not.
    #[error("repeated Transfer-Encoding")]
    TransferEncodingRepeated,
    /// A Transfer-Encoding other than exactly `chunked`.
    #[error("unknown Transfer-Encoding")]
    TransferEncodingUnknown,
    /// HTTP/1.0 has no Transfer-Encoding.
    #[error("Transfer-Encoding on HTTP/1.0")]
    TransferEncodingOnHttp10,
    /// Content-Length and Transfer-Encoding in one head.
    #[error("both Content-Length and Transfer-Encoding")]
    LengthAmbiguous,
    /// A chunk's size is not a hexadecimal number of 64 bits, or its extensions
    /// contain control characters.
    #[error("malformed chunk size")]
    ChunkSize,
    /// A chunk's size line exceeds [`CHUNK_LINE_BYTES_MAX`].
    #[error("chunk line too long")]
    ChunkLineTooLong,
    /// A chunk does not end with CRLF at the position that its size gives.
    #[error("malformed end of chunk")]
    ChunkEnd,
}

/// The first refused byte and the reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Violation {
    /// The position of the byte in the slice passed to [`Framing::feed`].
    pub(crate) at: usize,
    pub(crate) fault: Fault,
}

/// Checks the requests of one connection. The result depends only on the bytes,
/// never on how they are split into reads.
#[derive(Debug)]
pub(crate) struct Framing {
    state: ParserState,
    head: MessageHead,
    /// The beginning of a line whose end has not arrived. Empty, and without an
    /// allocation, while lines arrive whole.
    partial_line: Vec<u8>,
}

/// The part of a message that comes next.
#[derive(Debug, Clone, Copy)]
enum ParserState {
    /// The connection's first bytes, of which `matched` equal the HTTP/2
    /// preface.
    Start {
        matched: usize,
    },
    RequestLine,
    Headers,
    Fixed {
        left: u64,
    },
    ChunkSize,
    ChunkData {
        left: u64,
    },
    ChunkCr,
    ChunkLf,
    Trailers,
    /// No longer HTTP/1: the bytes are not checked.
    Unchecked,
    Refused(Fault),
}

impl Default for Framing {
    fn default() -> Self {
        Self {
            state: ParserState::Start { matched: 0 },
            head: MessageHead::default(),
            partial_line: Vec::new(),
        }
    }
}

impl Framing {
    /// Checks the next bytes of the connection. After a violation every further
    /// byte is refused too.
    pub(crate) fn feed(&mut self, bytes: &[u8]) -> Result<(), Violation> {
        let mut at = 0;
        while at < bytes.len() {
            match self.step(&bytes[at..]) {
                Ok(used) => at += used,
                Err(violation) => {
                    self.state = ParserState::Refused(violation.fault);
                    self.partial_line = Vec::new();
                    return Err(Violation {
                        at: at + violation.at,
                        ..violation
                    });
                }
            }
        }
        Ok(())
    }

    /// Whether the connection has left HTTP/1 and is no longer checked.
    #[must_use]
    pub(crate) fn is_unchecked(&self) -> bool {
        matches!(self.state, ParserState::Unchecked)
    }

    /// Consumes a part of `bytes`, which must not be empty, and returns its
    /// length. The length is 0 only if the state changes, so the caller's loop
    /// ends.
    fn step(&mut self, bytes: &[u8]) -> Result<usize, Violation> {
        match self.state {
            ParserState::Start { matched } => self.compare_preface(bytes, matched),
            ParserState::RequestLine
            | ParserState::Headers
            | ParserState::ChunkSize
            | ParserState::Trailers => self.take_line(bytes),
            ParserState::Fixed { left } => {
                let (used, left) = skip(bytes, left);
                self.state = if left == 0 {
                    ParserState::RequestLine
                } else {
                    ParserState::Fixed { left }
                };
                Ok(used)
            }
            ParserState::ChunkData { left } => {
                let (used, left) = skip(bytes, left);
                self.state = if left == 0 {
                    ParserState::ChunkCr
                } else {
                    ParserState::ChunkData { left }
                };
                Ok(used)
            }
            ParserState::ChunkCr => self.expect(bytes, b'\r', ParserState::ChunkLf),
            ParserState::ChunkLf => self.expect(bytes, b'\n', ParserState::ChunkSize),
            ParserState::Unchecked => Ok(bytes.len()),
            ParserState::Refused(fault) => Err(Violation { at: 0, fault }),
        }
    }

    fn compare_preface(&mut self, bytes: &[u8], matched: usize) -> Result<usize, Violation> {
        let expected = &HTTP2_PREFACE[matched..];
        let same = bytes
            .iter()
            .zip(expected)
            .take_while(|(byte, expected)| byte == expected)
            .count();
        if same == expected.len() {
            self.state = ParserState::Unchecked;
            return Ok(same);
        }
        if same == bytes.len() {
            self.state = ParserState::Start {
                matched: matched + same,
            };
            return Ok(same);
        }
        if matched + same >= PREFACE_METHOD_BYTES {
            return Err(Violation {
                at: same,
                fault: Fault::Preface,
            });
        }
        // The matched bytes, perhaps from an earlier read, are the `P` or `PR` of
        // another method: they begin the request line.
        self.partial_line
            .extend_from_slice(&HTTP2_PREFACE[..matched]);
        self.head.bytes = matched;
        self.state = ParserState::RequestLine;
        Ok(0)
    }

    /// Consumes bytes up to the line's end. A violation in a line is reported at
    /// its line feed: however the line is split into reads, that byte has not
    /// been passed on.
    fn take_line(&mut self, bytes: &[u8]) -> Result<usize, Violation> {
        let (max, fault) = self.line_limit();
        let end = memchr(b'\n', bytes);
        let length = end.map_or(bytes.len(), |end| end + 1);
        if self.head.bytes + length > max {
            return Err(Violation {
                at: max - self.head.bytes,
                fault,
            });
        }
        self.head.bytes += length;
        let Some(end) = end else {
            self.partial_line.extend_from_slice(bytes);
            return Ok(length);
        };
        self.end_line(&bytes[..end])
            .map_err(|fault| Violation { at: end, fault })?;
        Ok(length)
    }

    /// The limit of the head's byte count in this state, and the fault when it is
    /// exceeded.
    fn line_limit(&self) -> (usize, Fault) {
        match self.state {
            ParserState::ChunkSize => (CHUNK_LINE_BYTES_MAX, Fault::ChunkLineTooLong),
            ParserState::RequestLine => (REQUEST_LINE_BYTES_MAX, Fault::RequestLineTooLong),
            _ => (HEADERS_BYTES_MAX, Fault::HeadersTooLarge),
        }
    }

    /// Checks a complete line and changes the state. `rest` is the part of the
    /// line in the current read, without the line feed.
    fn end_line(&mut self, rest: &[u8]) -> Result<(), Fault> {
        let mut partial = std::mem::take(&mut self.partial_line);
        let line = if partial.is_empty() {
            rest
        } else {
            partial.extend_from_slice(rest);
            &partial
        };
        let line = line.strip_suffix(b"\r").ok_or(Fault::BareLineFeed)?;
        self.state = match self.state {
            ParserState::RequestLine => self.head.add_request_line(line)?,
            ParserState::Headers => self.head.add_header(line)?,
            ParserState::ChunkSize => self.head.add_chunk_size(line)?,
            _ => self.head.add_trailer(line)?,
        };
        Ok(())
    }

    fn expect(
        &mut self,
        bytes: &[u8],
        expected: u8,
        next: ParserState,
    ) -> Result<usize, Violation> {
        if bytes.first() != Some(&expected) {
            return Err(Violation {
                at: 0,
                fault: Fault::ChunkEnd,
            });
        }
        self.state = next;
        Ok(1)
    }
}

/// Skips bytes of a body. Returns how many of `bytes` belong to it, and how many
/// are still to come.
fn skip(bytes: &[u8], left: u64) -> (usize, u64) {
    let used = usize::try_from(left).map_or(bytes.len(), |left| left.min(bytes.len()));
    (used, left - used as u64)
}
