//! The head of an HTTP/1 message, as far as it determines the framing.

use memchr::memchr;

use super::{Fault, HEADERS_MAX, ParserState};

/// The state of the current message. Each method takes a line and returns
/// the next state.
#[derive(Debug, Default)]
pub(super) struct MessageHead {
    /// Bytes counted against the limit of the current part: request line,
    /// headers, chunk size line or trailers.
    pub(super) bytes: usize,
    /// The number of header lines, later of trailers.
    lines: usize,
    version: Http1Version,
    has_host: bool,
    length: Option<u64>,
    chunked: bool,
    upgrade: UpgradeHeaders,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Http1Version {
    Http10,
    #[default]
    Http11,
}

/// A request to upgrade consists of two headers, in any order.
#[derive(Debug, Default)]
struct UpgradeHeaders {
    has_upgrade: bool,
    is_connection_option: bool,
}

impl MessageHead {
    pub(super) fn add_request_line(&mut self, line: &[u8]) -> Result<ParserState, Fault> {
        if line.is_empty() {
            // Old clients send an empty line after a body. The limit of the
            // request line bounds their number.
            return Ok(ParserState::RequestLine);
        }
        let version = if line.ends_with(b" HTTP/1.1") {
            Http1Version::Http11
        } else if line.ends_with(b" HTTP/1.0") {
            Http1Version::Http10
        } else {
            return Err(Fault::RequestLine);
        };
        *self = Self {
            version,
            ..Self::default()
        };
        Ok(ParserState::Headers)
    }

    pub(super) fn add_header(&mut self, line: &[u8]) -> Result<ParserState, Fault> {
        if line.is_empty() {
            return self.finish();
        }
        let (name, value) = self.split_header(line)?;
        // Most other names are ruled out by their length.
        match name.len() {
            4 if name.eq_ignore_ascii_case(b"host") => self.add_host(value)?,
            7 if name.eq_ignore_ascii_case(b"upgrade") => self.upgrade.has_upgrade = true,
            10 if name.eq_ignore_ascii_case(b"connection") => {
                self.upgrade.is_connection_option |= contains_upgrade(value);
            }
            14 if name.eq_ignore_ascii_case(b"content-length") => self.add_content_length(value)?,
            17 if name.eq_ignore_ascii_case(b"transfer-encoding") => {
                self.add_transfer_encoding(value)?;
            }
            _ => {}
        }
        Ok(ParserState::Headers)
    }

    /// Only the syntax of trailers is checked: no trailer changes how a message
    /// is framed.
    pub(super) fn add_trailer(&mut self, line: &[u8]) -> Result<ParserState, Fault> {
        if line.is_empty() {
            self.bytes = 0;
            return Ok(ParserState::RequestLine);
        }
        self.split_header(line)?;
        Ok(ParserState::Trailers)
    }

    fn split_header<'a>(&mut self, line: &'a [u8]) -> Result<(&'a [u8], &'a [u8]), Fault> {
        self.lines += 1;
        if self.lines > HEADERS_MAX {
            return Err(Fault::TooManyHeaders);
        }
        let colon = memchr(b':', line).ok_or(Fault::HeaderLine)?;
        let name = &line[..colon];
        // A space before the name folds the line into the previous one; a space
        // after it hides the name from some parsers. The other characters of
        // names and values need no check here: hyper checks them and finds the
        // same line endings.
        match (name.first(), name.last()) {
            (Some(first), Some(last)) if !is_space_or_tab(*first) && !is_space_or_tab(*last) => {}
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

    fn add_content_length(&mut self, value: &[u8]) -> Result<(), Fault> {
        if self.length.is_some() {
            return Err(Fault::ContentLengthRepeated);
        }
        if self.chunked {
            return Err(Fault::LengthAmbiguous);
        }
        self.length = Some(parse_number(value, 10).ok_or(Fault::ContentLengthMalformed)?);
        Ok(())
    }

    fn add_transfer_encoding(&mut self, value: &[u8]) -> Result<(), Fault> {
        if self.version == Http1Version::Http10 {
            return Err(Fault::TransferEncodingOnHttp10);
        }
        if self.chunked {
            return Err(Fault::TransferEncodingRepeated);
        }
        if self.length.is_some() {
            return Err(Fault::LengthAmbiguous);
        }
        if !value.eq_ignore_ascii_case(b"chunked") {
            return Err(Fault::TransferEncodingUnknown);
        }
        self.chunked = true;
        Ok(())
    }

    /// Ends the head and returns the state for its body.
    fn finish(&mut self) -> Result<ParserState, Fault> {
        if self.version == Http1Version::Http11 && !self.has_host {
            return Err(Fault::HostMissing);
        }
        self.bytes = 0;
        self.lines = 0;
        // HTTP/1.0 has no upgrades, and hyper grants it none.
        if self.version == Http1Version::Http11
            && self.upgrade.has_upgrade
            && self.upgrade.is_connection_option
        {
            return Ok(ParserState::Unchecked);
        }
        if self.chunked {
            return Ok(ParserState::ChunkSize);
        }
        Ok(match self.length {
            None | Some(0) => ParserState::RequestLine,
            Some(left) => ParserState::Fixed { left },
        })
    }

    pub(super) fn add_chunk_size(&mut self, line: &[u8]) -> Result<ParserState, Fault> {
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
            0 => ParserState::Trailers,
            left => ParserState::ChunkData { left },
        })
    }
}

/// Whether a value is a host name or an address with an optional port, without
/// characters that could begin a path, user information or a list.
///
/// HTTP/2 carries the host as `:authority`, which this module does not see.
#[must_use]
pub(crate) fn is_host(value: &[u8]) -> bool {
    !value.is_empty()
        && value
            .iter()
            .all(|byte| byte.is_ascii_alphanumeric() || b".-_~:%[]".contains(byte))
}

fn contains_upgrade(value: &[u8]) -> bool {
    value
        .split(|byte| *byte == b',')
        .any(|token| trim(token).eq_ignore_ascii_case(b"upgrade"))
}

/// Parses digits only: no sign, no spaces, no prefix. `None` also if the number
/// exceeds 64 bits.
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

fn is_space_or_tab(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t')
}

/// Trims spaces and tabs, the whitespace of HTTP. `trim_ascii` trims more.
fn trim(mut value: &[u8]) -> &[u8] {
    while let [first, rest @ ..] = value
        && is_space_or_tab(*first)
    {
        value = rest;
    }
    while let [rest @ .., last] = value
        && is_space_or_tab(*last)
    {
        value = rest;
    }
    value
}
