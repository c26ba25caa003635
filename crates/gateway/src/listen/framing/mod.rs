//! Watches the bytes of HTTP/1 requests on their way into hyper and refuses
//! what must not be framed in two ways.
//!
//! Why before hyper: its parser repairs what an attacker relies on. It drops
//! `Content-Length` beside `Transfer-Encoding`, takes a bare line feed for a
//! line's end, merges repeated lengths and asks for no Host, and afterwards
//! nobody can tell. Two parties that see different ends of one request are how
//! a request is smuggled past a key, so whatever two parsers could read
//! differently is refused here, by the bytes.
//!
//! How it refuses: [`Watched`] lets through what came before the violation,
//! then gives hyper bytes that no parser accepts. hyper answers 400 and closes,
//! after the requests that came before. There is no second writer of answers.
//! hyper's `pipeline_flush` must stay off: with it hyper never writes an answer
//! while unread bytes follow, so the 400 and what came before it would be lost.
//!
//! It follows the ends of messages exactly, so a body is never taken for a
//! head. It does not judge what a request means: methods, targets, keys and
//! internal header names are the pipeline's. HTTP/2 has one framing only and
//! passes unwatched, and so does whatever follows a request to upgrade: such a
//! connection must not serve HTTP/1 again, so who does not grant the upgrade
//! answers with `Connection: close`.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use memchr::memchr;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// The longest request line. Above hyper's own limit for targets (64 KiB), so
/// that hyper says 414 to those.
pub(crate) const REQUEST_LINE_BYTES_MAX: usize = 128 * 1024;
/// The most bytes of a head's header lines, and of a body's trailers.
pub(crate) const HEADERS_BYTES_MAX: usize = 64 * 1024;
/// The most bytes of a whole head: what hyper's buffer must be able to hold.
pub(crate) const HEAD_BYTES_MAX: usize = REQUEST_LINE_BYTES_MAX + HEADERS_BYTES_MAX;
/// The most header lines of a head, and the most trailers of a body. It is
/// hyper's own number: for more it would need memory on every request.
pub(crate) const HEADERS_MAX: usize = 100;
/// The longest line that gives a chunk's size, with its extensions and its end.
pub(crate) const CHUNK_LINE_BYTES_MAX: usize = 256;

/// What an HTTP/2 connection begins with. No HTTP/1 method is called `PRI`.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// From here on a prefix of the preface is no longer a prefix of an honest
/// HTTP/1 request.
const PREFACE_METHOD_BYTES: usize = b"PRI ".len();

/// What hyper gets in place of a violation. The NUL is an error wherever it
/// lands in a head or a chunk's line. The empty line is for heads that come in
/// pieces: hyper does not look at those again before it has seen one.
const POISON: &[u8] = b"\0\n\n";

/// How much is read and thrown away when a connection ends. Closing a socket
/// with unread bytes resets the connection, and the answer may be lost with it.
const DRAIN_BYTES_MAX: usize = 256 * 1024;
const DRAIN_STEP_BYTES: usize = 4096;

/// Why bytes were refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum Fault {
    /// It begins like HTTP/2 and goes on differently.
    #[error("broken HTTP/2 preface")]
    Preface,
    /// A line ends with a line feed alone.
    #[error("bare line feed")]
    BareLineFeed,
    /// The first line does not end in a known version.
    #[error("malformed request line")]
    RequestLine,
    /// The first line outgrew [`REQUEST_LINE_BYTES_MAX`].
    #[error("request line too long")]
    RequestLineTooLong,
    /// No colon, no name, a blank beside the name, or a folded line.
    #[error("malformed header line")]
    HeaderLine,
    /// More than [`HEADERS_BYTES_MAX`].
    #[error("headers too large")]
    HeadersTooLarge,
    /// More than [`HEADERS_MAX`].
    #[error("too many headers")]
    TooManyHeaders,
    /// HTTP/1.1 needs a Host.
    #[error("no Host")]
    HostMissing,
    /// Two Host lines, alike or not.
    #[error("repeated Host")]
    HostRepeated,
    /// Host is not a name or address with an optional port.
    #[error("malformed Host")]
    HostMalformed,
    /// Two Content-Length lines, alike or not.
    #[error("repeated Content-Length")]
    LengthRepeated,
    /// Content-Length is not one number in digits.
    #[error("malformed Content-Length")]
    LengthMalformed,
    /// Two Transfer-Encoding lines, alike or not.
    #[error("repeated Transfer-Encoding")]
    CodingRepeated,
    /// A Transfer-Encoding that is not just `chunked`.
    #[error("unknown Transfer-Encoding")]
    CodingUnknown,
    /// HTTP/1.0 knows no Transfer-Encoding.
    #[error("Transfer-Encoding on HTTP/1.0")]
    CodingTooEarly,
    /// Content-Length and Transfer-Encoding in one head.
    #[error("both Content-Length and Transfer-Encoding")]
    TwoLengths,
    /// A chunk's size is not a hexadecimal number that fits, or its extensions
    /// hold control characters.
    #[error("malformed chunk size")]
    ChunkSize,
    /// A chunk's line outgrew [`CHUNK_LINE_BYTES_MAX`].
    #[error("chunk line too long")]
    ChunkLineTooLong,
    /// A chunk does not end where its size says.
    #[error("malformed end of chunk")]
    ChunkEnd,
}

/// The first refused byte and the reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Violation {
    /// Its place in the bytes that were fed.
    pub(crate) at: usize,
    /// Why.
    pub(crate) fault: Fault,
}

/// Follows the requests of one connection. The verdict depends on the bytes
/// alone, never on how they were cut.
#[derive(Debug)]
pub(crate) struct Framing {
    state: State,
    head: Head,
    /// The beginning of a line whose end has not come yet. Empty, and without
    /// memory, when lines come whole.
    carry: Vec<u8>,
}

#[derive(Debug, Clone, Copy)]
enum State {
    /// At the connection's first bytes, of which so many are those of the
    /// HTTP/2 preface.
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
    /// No longer HTTP/1.
    Opaque,
    Refused(Fault),
}

impl Default for Framing {
    fn default() -> Self {
        Self {
            state: State::Start { matched: 0 },
            head: Head::default(),
            carry: Vec::new(),
        }
    }
}

impl Framing {
    /// Takes the next bytes of the connection. After a violation every further
    /// byte is one.
    pub(crate) fn feed(&mut self, bytes: &[u8]) -> Result<(), Violation> {
        let mut at = 0;
        while at < bytes.len() {
            match self.step(&bytes[at..]) {
                Ok(used) => at += used,
                Err(violation) => {
                    self.state = State::Refused(violation.fault);
                    self.carry = Vec::new();
                    return Err(Violation {
                        at: at + violation.at,
                        ..violation
                    });
                }
            }
        }
        Ok(())
    }

    /// Whether the connection has left HTTP/1 and is no longer watched.
    #[must_use]
    pub(crate) fn is_opaque(&self) -> bool {
        matches!(self.state, State::Opaque)
    }

    /// Takes a part of `bytes`, which are not empty, and says how many. It
    /// takes none only when it changes the state.
    fn step(&mut self, bytes: &[u8]) -> Result<usize, Violation> {
        match self.state {
            State::Start { matched } => self.compare_preface(bytes, matched),
            State::RequestLine | State::Headers | State::ChunkSize | State::Trailers => {
                self.take_line(bytes)
            }
            State::Fixed { left } => {
                let (used, left) = skip(bytes, left);
                self.state = if left == 0 {
                    State::RequestLine
                } else {
                    State::Fixed { left }
                };
                Ok(used)
            }
            State::ChunkData { left } => {
                let (used, left) = skip(bytes, left);
                self.state = if left == 0 {
                    State::ChunkCr
                } else {
                    State::ChunkData { left }
                };
                Ok(used)
            }
            State::ChunkCr => self.expect(bytes, b'\r', State::ChunkLf),
            State::ChunkLf => self.expect(bytes, b'\n', State::ChunkSize),
            State::Opaque => Ok(bytes.len()),
            State::Refused(fault) => Err(Violation { at: 0, fault }),
        }
    }

    fn compare_preface(&mut self, bytes: &[u8], matched: usize) -> Result<usize, Violation> {
        let wanted = &PREFACE[matched..];
        let same = bytes
            .iter()
            .zip(wanted)
            .take_while(|(is, want)| is == want)
            .count();
        if same == wanted.len() {
            self.state = State::Opaque;
            return Ok(same);
        }
        if same == bytes.len() {
            self.state = State::Start {
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
        // `P` or `PR` of another method, perhaps from an earlier read: these
        // bytes begin the request line.
        self.carry.extend_from_slice(&PREFACE[..matched]);
        self.head.bytes = matched;
        self.state = State::RequestLine;
        Ok(0)
    }

    /// Takes bytes up to the line's end. A violation of a line is reported at
    /// its line feed: that byte has never been passed on, however the line was
    /// cut.
    fn take_line(&mut self, bytes: &[u8]) -> Result<usize, Violation> {
        let (max, outgrown) = self.line_limit();
        let end = memchr(b'\n', bytes);
        let length = end.map_or(bytes.len(), |end| end + 1);
        if self.head.bytes + length > max {
            return Err(Violation {
                at: max - self.head.bytes,
                fault: outgrown,
            });
        }
        self.head.bytes += length;
        let Some(end) = end else {
            self.carry.extend_from_slice(bytes);
            return Ok(length);
        };
        self.end_line(&bytes[..end])
            .map_err(|fault| Violation { at: end, fault })?;
        Ok(length)
    }

    /// How far the head's count of bytes may go in this state, and what it is
    /// called when it goes further.
    fn line_limit(&self) -> (usize, Fault) {
        match self.state {
            State::ChunkSize => (CHUNK_LINE_BYTES_MAX, Fault::ChunkLineTooLong),
            State::RequestLine => (REQUEST_LINE_BYTES_MAX, Fault::RequestLineTooLong),
            _ => (HEADERS_BYTES_MAX, Fault::HeadersTooLarge),
        }
    }

    /// Judges a line, given what this read brought of it without the line feed,
    /// and moves on.
    fn end_line(&mut self, rest: &[u8]) -> Result<(), Fault> {
        let mut carry = std::mem::take(&mut self.carry);
        let line = if carry.is_empty() {
            rest
        } else {
            carry.extend_from_slice(rest);
            &carry
        };
        let line = line.strip_suffix(b"\r").ok_or(Fault::BareLineFeed)?;
        self.state = match self.state {
            State::RequestLine => self.head.begin(line)?,
            State::Headers => self.head.add(line)?,
            State::ChunkSize => self.head.chunk(line)?,
            _ => self.head.add_trailer(line)?,
        };
        Ok(())
    }

    fn expect(&mut self, bytes: &[u8], wanted: u8, next: State) -> Result<usize, Violation> {
        if bytes.first() != Some(&wanted) {
            return Err(Violation {
                at: 0,
                fault: Fault::ChunkEnd,
            });
        }
        self.state = next;
        Ok(1)
    }
}

/// Passes over bytes that have no meaning here: how many of them are there, how
/// many are to come.
fn skip(bytes: &[u8], left: u64) -> (usize, u64) {
    let used = usize::try_from(left).map_or(bytes.len(), |left| left.min(bytes.len()));
    (used, left - used as u64)
}

/// What is known of the message at hand. Each step takes a line and says what
/// comes next.
#[derive(Debug, Default)]
struct Head {
    /// Bytes counted against the limit of the present part: request line,
    /// headers, chunk line or trailers.
    bytes: usize,
    /// Header lines, later trailers.
    lines: usize,
    version: Version,
    has_host: bool,
    length: Option<u64>,
    chunked: bool,
    upgrade: Upgrade,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Version {
    Http10,
    #[default]
    Http11,
}

/// A request to upgrade takes two headers, in any order.
#[derive(Debug, Default)]
struct Upgrade {
    named: bool,
    connected: bool,
}

impl Head {
    fn begin(&mut self, line: &[u8]) -> Result<State, Fault> {
        if line.is_empty() {
            // Old clients send an empty line after a body. The limit of the
            // request line bounds how many.
            return Ok(State::RequestLine);
        }
        let version = if line.ends_with(b" HTTP/1.1") {
            Version::Http11
        } else if line.ends_with(b" HTTP/1.0") {
            Version::Http10
        } else {
            return Err(Fault::RequestLine);
        };
        *self = Self {
            version,
            ..Self::default()
        };
        Ok(State::Headers)
    }

    fn add(&mut self, line: &[u8]) -> Result<State, Fault> {
        if line.is_empty() {
            return self.finish();
        }
        let (name, value) = self.split(line)?;
        // Most names differ in length from all that matter.
        match name.len() {
            4 if name.eq_ignore_ascii_case(b"host") => self.add_host(value)?,
            7 if name.eq_ignore_ascii_case(b"upgrade") => self.upgrade.named = true,
            10 if name.eq_ignore_ascii_case(b"connection") => {
                self.upgrade.connected |= names_upgrade(value);
            }
            14 if name.eq_ignore_ascii_case(b"content-length") => self.add_length(value)?,
            17 if name.eq_ignore_ascii_case(b"transfer-encoding") => self.add_coding(value)?,
            _ => {}
        }
        Ok(State::Headers)
    }

    /// Trailers have a shape but no meaning: none of them may change how a
    /// message is framed.
    fn add_trailer(&mut self, line: &[u8]) -> Result<State, Fault> {
        if line.is_empty() {
            self.bytes = 0;
            return Ok(State::RequestLine);
        }
        self.split(line)?;
        Ok(State::Trailers)
    }

    fn split<'a>(&mut self, line: &'a [u8]) -> Result<(&'a [u8], &'a [u8]), Fault> {
        self.lines += 1;
        if self.lines > HEADERS_MAX {
            return Err(Fault::TooManyHeaders);
        }
        let colon = memchr(b':', line).ok_or(Fault::HeaderLine)?;
        let name = &line[..colon];
        // A blank before the name folds the line into the one before; one after
        // it hides the name from some parsers. hyper checks the other
        // characters of names and values and finds the same line ends, so they
        // need no look.
        match (name.first(), name.last()) {
            (Some(first), Some(last)) if !is_blank(*first) && !is_blank(*last) => {}
            _ => return Err(Fault::HeaderLine),
        }
        Ok((name, trim(&line[colon + 1..])))
    }

    fn add_host(&mut self, value: &[u8]) -> Result<(), Fault> {
        if self.has_host {
            return Err(Fault::HostRepeated);
        }
        if !is_host(value) {
            return Err(Fault::HostMalformed);
        }
        self.has_host = true;
        Ok(())
    }

    fn add_length(&mut self, value: &[u8]) -> Result<(), Fault> {
        if self.length.is_some() {
            return Err(Fault::LengthRepeated);
        }
        if self.chunked {
            return Err(Fault::TwoLengths);
        }
        self.length = Some(parse_number(value, 10).ok_or(Fault::LengthMalformed)?);
        Ok(())
    }

    fn add_coding(&mut self, value: &[u8]) -> Result<(), Fault> {
        if self.version == Version::Http10 {
            return Err(Fault::CodingTooEarly);
        }
        if self.chunked {
            return Err(Fault::CodingRepeated);
        }
        if self.length.is_some() {
            return Err(Fault::TwoLengths);
        }
        if !value.eq_ignore_ascii_case(b"chunked") {
            return Err(Fault::CodingUnknown);
        }
        self.chunked = true;
        Ok(())
    }

    /// The head is whole: what follows it?
    fn finish(&mut self) -> Result<State, Fault> {
        if self.version == Version::Http11 && !self.has_host {
            return Err(Fault::HostMissing);
        }
        self.bytes = 0;
        self.lines = 0;
        // HTTP/1.0 knows no upgrades, and hyper grants it none.
        if self.version == Version::Http11 && self.upgrade.named && self.upgrade.connected {
            return Ok(State::Opaque);
        }
        if self.chunked {
            return Ok(State::ChunkSize);
        }
        Ok(match self.length {
            None | Some(0) => State::RequestLine,
            Some(left) => State::Fixed { left },
        })
    }

    fn chunk(&mut self, line: &[u8]) -> Result<State, Fault> {
        let (digits, extensions) = line.split_at(memchr(b';', line).unwrap_or(line.len()));
        let size = parse_number(digits, 16).ok_or(Fault::ChunkSize)?;
        if extensions
            .iter()
            .any(|byte| byte.is_ascii_control() && *byte != b'\t')
        {
            return Err(Fault::ChunkSize);
        }
        self.bytes = 0;
        Ok(match size {
            0 => State::Trailers,
            left => State::ChunkData { left },
        })
    }
}

/// A name or an address, perhaps with a port: nothing that could turn into a
/// path, a user or a list.
///
/// HTTP/2 carries it as `:authority`, which this module never sees.
#[must_use]
pub(crate) fn is_host(value: &[u8]) -> bool {
    !value.is_empty()
        && value
            .iter()
            .all(|byte| byte.is_ascii_alphanumeric() || b".-_~:%[]".contains(byte))
}

fn names_upgrade(value: &[u8]) -> bool {
    value
        .split(|byte| *byte == b',')
        .any(|token| trim(token).eq_ignore_ascii_case(b"upgrade"))
}

/// Digits and nothing else: no sign, no blank, no prefix. `None` also when it
/// does not fit.
fn parse_number(digits: &[u8], radix: u32) -> Option<u64> {
    if digits.is_empty() {
        return None;
    }
    digits.iter().try_fold(0u64, |number, byte| {
        let digit = char::from(*byte).to_digit(radix)?;
        number
            .checked_mul(u64::from(radix))?
            .checked_add(u64::from(digit))
    })
}

fn is_blank(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t')
}

/// Without the blanks around it. `trim_ascii` would take more than HTTP's two.
fn trim(mut value: &[u8]) -> &[u8] {
    while let [first, rest @ ..] = value
        && is_blank(*first)
    {
        value = rest;
    }
    while let [rest @ .., last] = value
        && is_blank(*last)
    {
        value = rest;
    }
    value
}

/// An accepted connection whose incoming bytes are watched. hyper reads from
/// this.
#[derive(Debug)]
pub(crate) struct Watched<S> {
    inner: S,
    framing: Framing,
    flow: Flow,
}

#[derive(Debug)]
enum Flow {
    Open,
    /// What hyper is still to read. Then the stream is at its end, whatever
    /// else the peer sends.
    Refused(&'static [u8]),
}

impl<S> Watched<S> {
    /// Watches a connection from its first byte.
    pub(crate) fn new(inner: S) -> Self {
        Self {
            inner,
            framing: Framing::default(),
            flow: Flow::Open,
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Watched<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if let Flow::Open = this.flow {
            let before = buf.filled().len();
            ready!(Pin::new(&mut this.inner).poll_read(cx, buf))?;
            if let Err(violation) = this.framing.feed(&buf.filled()[before..]) {
                tracing::debug!(fault = %violation.fault, "request refused by its framing");
                buf.set_filled(before + violation.at);
                this.flow = Flow::Refused(POISON);
            }
        }
        if let Flow::Refused(poison) = &mut this.flow {
            let (now, later) = poison.split_at(poison.len().min(buf.remaining()));
            buf.put_slice(now);
            *poison = later;
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Watched<S> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().inner).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().inner).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().inner).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        ready!(Pin::new(&mut this.inner).poll_shutdown(cx))?;
        // In a tunnel one side may end while the other goes on. In HTTP/1
        // nothing is read after this.
        if !this.framing.is_opaque() {
            drain(&mut this.inner, cx);
        }
        Poll::Ready(Ok(()))
    }
}

/// Throws away what has already come. It waits for nothing: a peer that goes on
/// sending has been told to stop.
fn drain<S: AsyncRead + Unpin>(stream: &mut S, cx: &mut Context<'_>) {
    let mut bytes = [0; DRAIN_STEP_BYTES];
    for _ in 0..DRAIN_BYTES_MAX / DRAIN_STEP_BYTES {
        let mut buf = ReadBuf::new(&mut bytes);
        match Pin::new(&mut *stream).poll_read(cx, &mut buf) {
            Poll::Ready(Ok(())) if !buf.filled().is_empty() => {}
            // The end, nothing more for now, or an error that no longer
            // matters: the connection closes next.
            _ => return,
        }
    }
}

#[cfg(test)]
mod tests;
