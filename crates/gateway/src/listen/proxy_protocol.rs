//! The PROXY protocol, versions 1 and 2: what a load balancer says about the
//! client before the client's first byte.
//!
//! It is a claim like any header, so the server listens for it only on
//! connections from trusted peers, and there insists on it: a connection that
//! may begin in two ways is one that a client can forge. Exactly the header is
//! read, since what follows it belongs to TLS or HTTP.
//!
//! Extensions of version 2 are passed over. A proxy that checks on us, or that
//! does not know the client, says so, and is then the peer itself.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use tokio::io::{AsyncRead, AsyncReadExt};

const SIGNATURE: [u8; 12] = *b"\r\n\r\n\0\r\nQUIT\n";
/// The longest header of version 1, with its line's end.
const LINE_BYTES_MAX: usize = 107;
/// The most bytes of addresses and extensions in version 2.
const BLOCK_BYTES_MAX: usize = 4096;

/// What the proxy said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Said {
    /// It speaks for this client.
    Client(SocketAddr),
    /// It speaks for itself, or does not know for whom.
    Nothing,
}

/// Why there is no header.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ProxyError {
    /// The connection ended or broke.
    #[error("the connection ended within the PROXY header")]
    BrokenOff(#[from] io::Error),
    /// It begins with something else.
    #[error("the connection does not begin with a PROXY header")]
    Missing,
    /// It begins like one.
    #[error("malformed PROXY header")]
    Malformed,
    /// It is longer than it may be.
    #[error("PROXY header too long")]
    TooLong,
}

/// Reads the header and nothing after it. The caller bounds the time.
pub(crate) async fn read<S: AsyncRead + Unpin>(stream: &mut S) -> Result<Said, ProxyError> {
    // No header is shorter than this.
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

/// Version 1: a line of text. It does not say its length, so it is read byte by
/// byte.
async fn read_line<S: AsyncRead + Unpin>(
    stream: &mut S,
    beginning: &[u8],
) -> Result<Said, ProxyError> {
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

fn parse_line(line: &[u8]) -> Option<Said> {
    let line = std::str::from_utf8(line).ok()?.strip_suffix("\r\n")?;
    let mut words = line.split(' ');
    let said = match (words.next()?, words.next()?) {
        // Whatever follows is to be ignored.
        ("PROXY", "UNKNOWN") => return Some(Said::Nothing),
        ("PROXY", family @ ("TCP4" | "TCP6")) => {
            let source = parse_ip(family, words.next()?)?;
            parse_ip(family, words.next()?)?;
            let port = words.next()?.parse().ok()?;
            words.next()?.parse::<u16>().ok()?;
            Said::Client(SocketAddr::new(source, port))
        }
        _ => return None,
    };
    words.next().is_none().then_some(said)
}

fn parse_ip(family: &str, text: &str) -> Option<IpAddr> {
    match family {
        "TCP4" => text.parse::<Ipv4Addr>().ok().map(IpAddr::V4),
        _ => text.parse::<Ipv6Addr>().ok().map(IpAddr::V6),
    }
}

/// Version 2: binary, with its length.
async fn read_block<S: AsyncRead + Unpin>(stream: &mut S) -> Result<Said, ProxyError> {
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

fn parse_block(command: u8, family: u8, block: &[u8]) -> Option<Said> {
    const LOCAL: u8 = 0x20;
    const PROXY: u8 = 0x21;
    const TCP4: u8 = 0x11;
    const TCP6: u8 = 0x21;
    match (command, family) {
        (PROXY, TCP4) => {
            let ip: [u8; 4] = block.get(..4)?.try_into().ok()?;
            let port: [u8; 2] = block.get(8..10)?.try_into().ok()?;
            // The other end's port is there too, or the block is too short.
            block.get(10..12)?;
            let port = u16::from_be_bytes(port);
            Some(Said::Client(SocketAddr::new(ip.into(), port)))
        }
        (PROXY, TCP6) => {
            let ip: [u8; 16] = block.get(..16)?.try_into().ok()?;
            let port: [u8; 2] = block.get(32..34)?.try_into().ok()?;
            block.get(34..36)?;
            let port = u16::from_be_bytes(port);
            Some(Said::Client(SocketAddr::new(ip.into(), port)))
        }
        // Not a TCP connection's client, so none that we can name.
        (LOCAL | PROXY, _) => Some(Said::Nothing),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    const REST: &[u8] = b"GET / HTTP/1.1\r\n";

    /// What was said, and what is left for who reads next.
    async fn check(bytes: &[u8]) -> Result<(Said, Vec<u8>), ProxyError> {
        let mut stream = bytes;
        let said = read(&mut stream).await?;
        Ok((said, stream.to_vec()))
    }

    fn version2(command: u8, family: u8, block: &[u8]) -> Vec<u8> {
        let length = u16::try_from(block.len()).expect("a short block");
        let mut bytes = SIGNATURE.to_vec();
        bytes.extend([command, family]);
        bytes.extend(length.to_be_bytes());
        bytes.extend(block);
        bytes
    }

    fn client(text: &str) -> Said {
        Said::Client(text.parse().expect("an address"))
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
    #[case::unknown("PROXY UNKNOWN\r\n", Said::Nothing)]
    #[case::unknown_with_words("PROXY UNKNOWN ffff::1 ffff::2 1 2\r\n", Said::Nothing)]
    #[tokio::test]
    async fn version_1_names_the_client(#[case] header: &str, #[case] said: Said) {
        let read = check(&[header.as_bytes(), REST].concat()).await;
        assert_eq!(read.expect("a header"), (said, REST.to_vec()));
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
    #[case::a_check_by_the_proxy(0x20, 0x00, vec![], Said::Nothing)]
    #[case::a_check_with_an_address(0x20, 0x11, BLOCK4.to_vec(), Said::Nothing)]
    #[case::not_tcp(0x21, 0x31, vec![0; 216], Said::Nothing)]
    #[tokio::test]
    async fn version_2_names_the_client(
        #[case] command: u8,
        #[case] family: u8,
        #[case] block: Vec<u8>,
        #[case] said: Said,
    ) {
        let header = version2(command, family, &block);
        let read = check(&[&header, REST].concat()).await;
        assert_eq!(read.expect("a header"), (said, REST.to_vec()));
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
    #[case::silence(b"", "the connection ended within the PROXY header")]
    #[case::half(
        b"PROXY TCP4 203.0.113.9",
        "the connection ended within the PROXY header"
    )]
    #[case::a_bare_line_feed(b"PROXY UNKNOWN\n", "malformed PROXY header")]
    #[case::no_address(b"PROXY TCP4 a 10.0.0.1 1 2\r\n", "malformed PROXY header")]
    #[case::the_other_family(b"PROXY TCP4 ::1 ::1 1 2\r\n", "malformed PROXY header")]
    #[case::no_port(b"PROXY TCP4 1.1.1.1 1.1.1.1 99999 2\r\n", "malformed PROXY header")]
    #[case::a_word_too_many(b"PROXY TCP4 1.1.1.1 1.1.1.1 1 2 3\r\n", "malformed PROXY header")]
    #[case::another_transport(b"PROXY UDP4 1.1.1.1 1.1.1.1 1 2\r\n", "malformed PROXY header")]
    #[tokio::test]
    async fn what_is_no_header_says_why(#[case] bytes: &[u8], #[case] why: &str) {
        let error = check(bytes).await.expect_err("no header");
        assert_eq!(error.to_string(), why);
    }

    #[tokio::test]
    async fn every_header_has_an_end() {
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
