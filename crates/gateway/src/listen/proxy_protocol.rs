//! The PROXY protocol, versions 1 and 2: a header in which a load balancer names
//! the client, sent before the client's first byte.
//!
//! The header proves nothing by itself, so it is read only on connections from
//! trusted proxies. There it is required: if it were optional, a client could
//! send one of its own through a proxy that sends none. Exactly the header is
//! read, since the bytes after it belong to TLS or HTTP.
//!
//! Extensions of version 2 are ignored. A proxy that runs a health check or does
//! not know the client says so in the header; the proxy itself is then the peer.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use tokio::io::{AsyncRead, AsyncReadExt};

const SIGNATURE: [u8; 12] = *b"\r\n\r\n\0\r\nQUIT\n";
/// The longest header of version 1, including the line ending.
const LINE_BYTES_MAX: usize = 107;
/// The most bytes of addresses and extensions in version 2.
const BLOCK_BYTES_MAX: usize = 4096;

/// The content of a PROXY header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProxyHeader {
    /// The connection is proxied for this client.
    Client(SocketAddr),
    /// The proxy connects on its own behalf, or does not name the client.
    NoClient,
}

/// Why the PROXY header could not be read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ProxyError {
    /// The connection was closed or failed before the header was complete.
    #[error("the connection ended before the PROXY header was complete")]
    Incomplete(#[from] io::Error),
    /// The first bytes are not those of a PROXY header.
    #[error("the connection does not begin with a PROXY header")]
    Missing,
    /// The connection begins like a PROXY header, which is then invalid.
    #[error("malformed PROXY header")]
    Malformed,
    /// The header exceeds its maximum length.
    #[error("PROXY header too long")]
    TooLong,
}

/// Reads the header and nothing after it. The caller bounds the time.
pub(crate) async fn read<S: AsyncRead + Unpin>(stream: &mut S) -> Result<ProxyHeader, ProxyError> {
    // No header of either version is shorter than this.
    let mut beginning = [0; SIGNATURE.len()];
    stream.read_exact(&mut beginning).await?;
    if beginning == SIGNATURE {
        return read_block(stream).await;
    }
    if beginning.starts_with(b"PROXY ") {
        return read_line(stream, &beginning).await;
    }
    Err(ProxyError::Missing)
}

/// Reads version 1: a line of text. Its length is not known in advance, so it is
/// read byte by byte.
async fn read_line<S: AsyncRead + Unpin>(
    stream: &mut S,
    beginning: &[u8],
) -> Result<ProxyHeader, ProxyError> {
    let mut line = Vec::with_capacity(LINE_BYTES_MAX);
    line.extend_from_slice(beginning);
    while !line.ends_with(b"\n") {
        if line.len() == LINE_BYTES_MAX {
            return Err(ProxyError::TooLong);
        }
        line.push(stream.read_u8().await?);
    }
    parse_line(&line).ok_or(ProxyError::Malformed)
}

fn parse_line(line: &[u8]) -> Option<ProxyHeader> {
    let line = std::str::from_utf8(line).ok()?.strip_suffix("\r\n")?;
    let mut words = line.split(' ');
    let header = match (words.next()?, words.next()?) {
        // The specification says to ignore the rest of the line.
        ("PROXY", "UNKNOWN") => return Some(ProxyHeader::NoClient),
        ("PROXY", family @ ("TCP4" | "TCP6")) => {
            let source = parse_ip(family, words.next()?)?;
            parse_ip(family, words.next()?)?;
            let port = words.next()?.parse().ok()?;
            words.next()?.parse::<u16>().ok()?;
            ProxyHeader::Client(SocketAddr::new(source, port))
        }
        _ => return None,
    };
    words.next().is_none().then_some(header)
}

fn parse_ip(family: &str, text: &str) -> Option<IpAddr> {
    match family {
        "TCP4" => text.parse::<Ipv4Addr>().ok().map(IpAddr::V4),
        _ => text.parse::<Ipv6Addr>().ok().map(IpAddr::V6),
    }
}

/// Reads version 2: binary, with its length.
async fn read_block<S: AsyncRead + Unpin>(stream: &mut S) -> Result<ProxyHeader, ProxyError> {
    let mut head = [0; 4];
    stream.read_exact(&mut head).await?;
    let [command, family, length @ ..] = head;
    let length = usize::from(u16::from_be_bytes(length));
    if length > BLOCK_BYTES_MAX {
        return Err(ProxyError::TooLong);
    }
    let mut block = vec![0; length];
    stream.read_exact(&mut block).await?;
    parse_block(command, family, &block).ok_or(ProxyError::Malformed)
}

fn parse_block(command: u8, family: u8, block: &[u8]) -> Option<ProxyHeader> {
    const LOCAL: u8 = 0x20;
    const PROXY: u8 = 0x21;
    const TCP4: u8 = 0x11;
    const TCP6: u8 = 0x21;
    match (command, family) {
        (PROXY, TCP4) => {
            let ip: [u8; 4] = block.get(..4)?.try_into().ok()?;
            let port: [u8; 2] = block.get(8..10)?.try_into().ok()?;
            // The block must also hold the destination's port.
            block.get(10..12)?;
            let port = u16::from_be_bytes(port);
            Some(ProxyHeader::Client(SocketAddr::new(ip.into(), port)))
        }
        (PROXY, TCP6) => {
            let ip: [u8; 16] = block.get(..16)?.try_into().ok()?;
            let port: [u8; 2] = block.get(32..34)?.try_into().ok()?;
            block.get(34..36)?;
            let port = u16::from_be_bytes(port);
            Some(ProxyHeader::Client(SocketAddr::new(ip.into(), port)))
        }
        // A health check, or a connection that is not TCP.
        (LOCAL | PROXY, _) => Some(ProxyHeader::NoClient),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    const REST: &[u8] = b"GET / HTTP/1.1\r\n";

    /// Returns the header and the unread bytes.
    async fn check(bytes: &[u8]) -> Result<(ProxyHeader, Vec<u8>), ProxyError> {
        let mut stream = bytes;
        let header = read(&mut stream).await?;
        Ok((header, stream.to_vec()))
    }

    fn version2(command: u8, family: u8, block: &[u8]) -> Vec<u8> {
        let length = u16::try_from(block.len()).expect("a short block");
        let mut bytes = SIGNATURE.to_vec();
        bytes.extend([command, family]);
        bytes.extend(length.to_be_bytes());
        bytes.extend(block);
        bytes
    }

    fn client(text: &str) -> ProxyHeader {
        ProxyHeader::Client(text.parse().expect("an address"))
    }

    #[rstest]
    #[case::ipv4(
        "PROXY TCP4 203.0.113.9 10.0.0.1 4711 443\r\n",
        client("203.0.113.9:4711")
    )]
    #[case::ipv6(
        "PROXY TCP6 2001:db8::9 ::1 4711 443\r\n",
        client("[2001:db8::9]:4711")
    )]
    #[case::unknown("PROXY UNKNOWN\r\n", ProxyHeader::NoClient)]
    #[case::unknown_with_addresses("PROXY UNKNOWN ffff::1 ffff::2 1 2\r\n", ProxyHeader::NoClient)]
    #[tokio::test]
    async fn version_1_names_the_client(#[case] text: &str, #[case] header: ProxyHeader) {
        let read = check(&[text.as_bytes(), REST].concat()).await;
        assert_eq!(read.expect("a header"), (header, REST.to_vec()));
    }

    const BLOCK4: &[u8] = &[203, 0, 113, 9, 10, 0, 0, 1, 0x12, 0x67, 1, 187];
    const BLOCK6: &[u8] = &[
        0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
        0, 0, 0, 1, 0x12, 0x67, 1, 187,
    ];

    #[rstest]
    #[case::ipv4(0x21, 0x11, BLOCK4.to_vec(), client("203.0.113.9:4711"))]
    #[case::ipv6(0x21, 0x21, BLOCK6.to_vec(), client("[2001:db8::9]:4711"))]
    #[case::with_an_extension(0x21, 0x11, [BLOCK4, &[4, 0, 1, 0]].concat(), client("203.0.113.9:4711"))]
    #[case::health_check(0x20, 0x00, vec![], ProxyHeader::NoClient)]
    #[case::health_check_with_an_address(0x20, 0x11, BLOCK4.to_vec(), ProxyHeader::NoClient)]
    #[case::not_tcp(0x21, 0x31, vec![0; 216], ProxyHeader::NoClient)]
    #[tokio::test]
    async fn version_2_names_the_client(
        #[case] command: u8,
        #[case] family: u8,
        #[case] block: Vec<u8>,
        #[case] header: ProxyHeader,
    ) {
        let bytes = version2(command, family, &block);
        let read = check(&[&bytes, REST].concat()).await;
        assert_eq!(read.expect("a header"), (header, REST.to_vec()));
    }

    #[rstest]
    #[case::http(
        b"GET / HTTP/1.1\r\n\r\n",
        "the connection does not begin with a PROXY header"
    )]
    #[case::tls(
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03abc",
        "the connection does not begin with a PROXY header"
    )]
    #[case::no_bytes(b"", "the connection ended before the PROXY header was complete")]
    #[case::incomplete(
        b"PROXY TCP4 203.0.113.9",
        "the connection ended before the PROXY header was complete"
    )]
    #[case::a_bare_line_feed(b"PROXY UNKNOWN\n", "malformed PROXY header")]
    #[case::no_address(b"PROXY TCP4 a 10.0.0.1 1 2\r\n", "malformed PROXY header")]
    #[case::wrong_family(b"PROXY TCP4 ::1 ::1 1 2\r\n", "malformed PROXY header")]
    #[case::no_port(b"PROXY TCP4 1.1.1.1 1.1.1.1 99999 2\r\n", "malformed PROXY header")]
    #[case::too_many_words(b"PROXY TCP4 1.1.1.1 1.1.1.1 1 2 3\r\n", "malformed PROXY header")]
    #[case::another_transport(b"PROXY UDP4 1.1.1.1 1.1.1.1 1 2\r\n", "malformed PROXY header")]
    #[tokio::test]
    async fn invalid_headers_are_refused_with_a_reason(#[case] bytes: &[u8], #[case] why: &str) {
        let error = check(bytes).await.expect_err("no header");
        assert_eq!(error.to_string(), why);
    }

    #[tokio::test]
    async fn header_length_is_bounded_and_checked() {
        let line = [b"PROXY UNKNOWN ", &[b'x'; 200][..]].concat();
        assert!(matches!(check(&line).await, Err(ProxyError::TooLong)));
        let block = version2(0x21, 0x11, &[0; BLOCK_BYTES_MAX + 1]);
        assert!(matches!(check(&block).await, Err(ProxyError::TooLong)));
        let short = version2(0x21, 0x11, &BLOCK4[..11]);
        assert!(matches!(check(&short).await, Err(ProxyError::Malformed)));
        let unknown = version2(0x22, 0x11, BLOCK4);
        assert!(matches!(check(&unknown).await, Err(ProxyError::Malformed)));
    }
}
