//! Who is at the other end: the client's address and scheme, as far as they can
//! be believed.
//!
//! The socket always tells the truth about the direct peer. Whatever a header
//! says about others is a claim, and is believed only when a trusted proxy made
//! it: `X-Forwarded-For` is read from the right, and each entry counts only
//! while the one that wrote it is trusted, so a client cannot give itself an
//! address by sending the header too.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use http::Request;
use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use ipnet::IpNet;

use crate::listen::framing::is_host;

const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const X_FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
const X_FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");

/// The longest chain of proxies that is followed.
const HOPS_MAX: usize = 32;

/// How the client speaks to the outermost of our proxies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Scheme {
    #[default]
    Http,
    Https,
}

impl Scheme {
    /// As [`Peer::scheme`] writes it.
    pub(crate) fn parse(word: &str) -> Option<Self> {
        match word {
            "http" => Some(Self::Http),
            "https" => Some(Self::Https),
            _ => None,
        }
    }
}

/// Who sends a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Peer {
    address: SocketAddr,
    scheme: Scheme,
    trusted: bool,
    host: Option<HeaderValue>,
}

impl Peer {
    /// A peer of a connection without TLS, trusted with nothing.
    pub(crate) fn plain(address: SocketAddr) -> Self {
        Self {
            address: canonical(address),
            scheme: Scheme::Http,
            trusted: false,
            host: None,
        }
    }

    /// A peer that was written down, and has gone since.
    pub(crate) fn told(address: SocketAddr, scheme: Scheme, host: Option<HeaderValue>) -> Self {
        Self {
            scheme,
            host,
            ..Self::plain(address)
        }
    }

    /// The peer of a connection, before any request on it was read.
    pub(crate) fn connected(address: SocketAddr, scheme: Scheme, trusted: &Trusted) -> Self {
        Self {
            scheme,
            trusted: trusted.contains(address.ip()),
            ..Self::plain(address)
        }
    }

    /// The client's address. Its port is 0 where a proxy did not tell it.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// `http` or `https`, as the client speaks it.
    pub(crate) fn scheme(&self) -> &'static str {
        match self.scheme {
            Scheme::Http => "http",
            Scheme::Https => "https",
        }
    }

    /// Whether what stands directly before us is a trusted proxy. What it says
    /// has been taken into account by [`Peer::of_request`].
    #[cfg(test)]
    pub(crate) fn is_trusted(&self) -> bool {
        self.trusted
    }

    /// The host that the client asked a trusted proxy for, if it said so.
    pub(crate) fn host(&self) -> Option<&HeaderValue> {
        self.host.as_ref()
    }

    /// Makes `Host` the host that the client asked for: what it asked a trusted
    /// proxy for, or what HTTP/2 names in the request's target.
    pub(crate) fn name_host<B>(&self, request: &mut Request<B>) {
        let host = match (&self.host, request.headers().get(header::HOST)) {
            (Some(host), _) => Some(host.clone()),
            (None, Some(_)) => return,
            (None, None) => {
                let authority = request.uri().authority();
                authority.and_then(|authority| HeaderValue::from_str(authority.as_str()).ok())
            }
        };
        if let Some(host) = host {
            request.headers_mut().insert(header::HOST, host);
        }
    }

    /// Who sends the request with these headers on this peer's connection.
    /// Headers of an untrusted peer are not looked at.
    pub(crate) fn of_request(&self, headers: &HeaderMap, trusted: &Trusted) -> Self {
        if !self.trusted {
            return self.clone();
        }
        let chain = last_entries(headers, &X_FORWARDED_FOR);
        let client = client(self.address, &chain, trusted);
        let proto = last_entries(headers, &X_FORWARDED_PROTO);
        let scheme = match said_at(&proto, client.hops) {
            Some(proto) if proto.eq_ignore_ascii_case("https") => Scheme::Https,
            Some(proto) if proto.eq_ignore_ascii_case("http") => Scheme::Http,
            _ => self.scheme,
        };
        let hosts = last_entries(headers, &X_FORWARDED_HOST);
        let host = said_at(&hosts, client.hops).filter(|host| is_host(host.as_bytes()));
        Self {
            address: client.address,
            scheme,
            trusted: true,
            host: host.and_then(|host| HeaderValue::from_str(host).ok()),
        }
    }
}

/// What a chain of proxies comes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Client {
    address: SocketAddr,
    /// How many entries of the chain were believed.
    hops: usize,
}

/// The rightmost untrusted address, where `entries` come from the right and
/// `direct` is trusted. What is not an address ends the chain: who wrote it is
/// the farthest that is known.
fn client(direct: SocketAddr, entries: &[&str], trusted: &Trusted) -> Client {
    let mut client = Client {
        address: direct,
        hops: 0,
    };
    for entry in entries {
        let Some(address) = parse_address(entry) else {
            break;
        };
        client.address = address;
        client.hops += 1;
        if !trusted.contains(address.ip()) {
            break;
        }
    }
    client
}

/// What the outermost of so many proxies said. A proxy adds its word on the
/// right or puts it in place of all others; in either case nothing further left
/// was said by one of ours.
fn said_at<'a>(entries: &[&'a str], hops: usize) -> Option<&'a str> {
    let farthest = hops.max(1).min(entries.len());
    entries[..farthest].last().copied()
}

/// The entries of a list in all its lines, from the right. A line that is not
/// text counts as one entry that is nothing.
fn last_entries<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Vec<&'a str> {
    let mut lines: Vec<_> = headers.get_all(name).iter().collect();
    lines.reverse();
    lines
        .into_iter()
        .flat_map(|line| line.to_str().unwrap_or_default().rsplit(','))
        .map(str::trim)
        .take(HOPS_MAX)
        .collect()
}

/// An address, with or without a port, with or without brackets.
fn parse_address(text: &str) -> Option<SocketAddr> {
    if let Ok(address) = text.parse::<SocketAddr>() {
        return Some(canonical(address));
    }
    let bare = match text.strip_prefix('[') {
        Some(rest) => rest.strip_suffix(']')?,
        None => text,
    };
    let ip = bare.parse::<IpAddr>().ok()?;
    Some(canonical(SocketAddr::new(ip, 0)))
}

/// A listener for both families sees IPv4 addresses as IPv6 ones.
fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

/// The proxies that are believed. Clones share the list.
#[derive(Clone, Debug, Default)]
pub(crate) struct Trusted(Arc<[IpNet]>);

impl Trusted {
    #[cfg(test)]
    pub(crate) fn of(networks: &[&str]) -> Self {
        let networks = networks.iter().map(|text| text.parse::<IpNet>());
        let networks = networks.collect::<Result<Vec<_>, _>>();
        Self::from(networks.expect("networks"))
    }

    pub(crate) fn contains(&self, ip: IpAddr) -> bool {
        let ip = ip.to_canonical();
        self.0.iter().any(|network| network.contains(&ip))
    }
}

impl From<Vec<IpNet>> for Trusted {
    fn from(networks: Vec<IpNet>) -> Self {
        Self(networks.into())
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    const PROXY: &str = "10.0.0.1:5000";

    fn trusted() -> Trusted {
        Trusted::of(&["10.0.0.0/8", "192.0.2.7/32", "2001:db8::/32"])
    }

    fn socket(text: &str) -> SocketAddr {
        text.parse().expect("an address with a port")
    }

    fn headers(lines: &[(HeaderName, &str)]) -> HeaderMap {
        let lines = lines.iter().map(|(name, value)| {
            let value = HeaderValue::from_str(value).expect("a header's value");
            (name.clone(), value)
        });
        lines.collect()
    }

    fn peer(direct: &str, lines: &[(HeaderName, &str)]) -> Peer {
        let trusted = trusted();
        Peer::connected(socket(direct), Scheme::Http, &trusted)
            .of_request(&headers(lines), &trusted)
    }

    #[rstest]
    #[case::an_address_in_a_network("10.255.0.1", true)]
    #[case::a_single_address("192.0.2.7", true)]
    #[case::its_neighbour("192.0.2.8", false)]
    #[case::ipv6("2001:db8::1", true)]
    #[case::other_ipv6("2001:db9::1", false)]
    #[case::ipv4_seen_as_ipv6("::ffff:10.0.0.1", true)]
    fn the_list_says_who_is_trusted(#[case] ip: IpAddr, #[case] expected: bool) {
        assert_eq!(trusted().contains(ip), expected);
    }

    #[rstest]
    #[case::nobody_said_anything(PROXY, &[], "10.0.0.1:5000")]
    #[case::one_proxy(PROXY, &["203.0.113.9"], "203.0.113.9:0")]
    #[case::two_proxies(PROXY, &["203.0.113.9, 10.0.0.2"], "203.0.113.9:0")]
    #[case::two_lines_are_one_list(PROXY, &["203.0.113.9", "10.0.0.2"], "203.0.113.9:0")]
    #[case::a_forged_entry_stays_to_the_left(PROXY, &["1.1.1.1, 203.0.113.9"], "203.0.113.9:0")]
    #[case::a_forged_line_stays_above(PROXY, &["10.0.0.9", "203.0.113.9"], "203.0.113.9:0")]
    #[case::all_are_ours(PROXY, &["10.0.0.3, 10.0.0.2"], "10.0.0.3:0")]
    #[case::an_untrusted_peer_says_nothing("198.51.100.1:7", &["203.0.113.9"], "198.51.100.1:7")]
    #[case::what_is_no_address_ends_it(PROXY, &["203.0.113.9, unknown, 10.0.0.2"], "10.0.0.2:0")]
    #[case::nothing_ends_it(PROXY, &["203.0.113.9,"], "10.0.0.1:5000")]
    #[case::with_a_port(PROXY, &["203.0.113.9:4711"], "203.0.113.9:4711")]
    #[case::ipv6(PROXY, &["2001:db9::5"], "[2001:db9::5]:0")]
    #[case::ipv6_in_brackets(PROXY, &["[2001:db9::5]"], "[2001:db9::5]:0")]
    #[case::ipv6_with_a_port(PROXY, &["[2001:db9::5]:80"], "[2001:db9::5]:80")]
    #[case::ipv4_seen_as_ipv6(PROXY, &["203.0.113.9, ::ffff:10.0.0.2"], "203.0.113.9:0")]
    fn the_client_is_the_rightmost_that_is_not_ours(
        #[case] direct: &str,
        #[case] lines: &[&str],
        #[case] client: &str,
    ) {
        let lines: Vec<_> = lines.iter().map(|line| (X_FORWARDED_FOR, *line)).collect();
        assert_eq!(peer(direct, &lines).address(), socket(client));
    }

    #[test]
    fn a_chain_is_followed_only_so_far() {
        let chain = vec!["10.0.0.2"; 10 * HOPS_MAX].join(",");
        let headers = headers(&[(X_FORWARDED_FOR, &chain)]);
        assert_eq!(last_entries(&headers, &X_FORWARDED_FOR).len(), HOPS_MAX);
    }

    #[rstest]
    #[case::nothing_said("10.0.0.1:1", &[], &[], "http")]
    #[case::said(PROXY, &["203.0.113.9"], &["https"], "https")]
    #[case::said_without_a_client(PROXY, &[], &["https"], "https")]
    #[case::the_outermost_counts(PROXY, &["203.0.113.9, 10.0.0.2"], &["https, http"], "https")]
    #[case::a_forged_one_does_not(PROXY, &["203.0.113.9"], &["https, http"], "http")]
    #[case::something_else_is_nothing(PROXY, &["203.0.113.9"], &["gopher"], "http")]
    #[case::an_untrusted_peer_says_nothing("198.51.100.1:7", &[], &["https"], "http")]
    fn the_scheme_is_what_the_outermost_proxy_saw(
        #[case] direct: &str,
        #[case] chain: &[&str],
        #[case] proto: &[&str],
        #[case] scheme: &str,
    ) {
        let chain = chain.iter().map(|line| (X_FORWARDED_FOR, *line));
        let proto = proto.iter().map(|line| (X_FORWARDED_PROTO, *line));
        let lines: Vec<_> = chain.chain(proto).collect();
        assert_eq!(peer(direct, &lines).scheme(), scheme);
    }

    #[rstest]
    #[case::said(PROXY, "shop.example", Some("shop.example"))]
    #[case::no_host(PROXY, "shop.example/x", None)]
    #[case::an_untrusted_peer_says_nothing("198.51.100.1:7", "shop.example", None)]
    fn the_host_is_what_the_outermost_proxy_was_asked_for(
        #[case] direct: &str,
        #[case] line: &str,
        #[case] host: Option<&str>,
    ) {
        let peer = peer(direct, &[(X_FORWARDED_HOST, line)]);
        let said = peer.host().map(|host| host.to_str().expect("text"));
        assert_eq!(said, host);
    }

    #[test]
    fn tls_is_https_whoever_is_at_the_other_end() {
        let peer = Peer::connected(socket("198.51.100.1:7"), Scheme::Https, &trusted());
        assert_eq!(peer.scheme(), "https");
        assert!(!peer.is_trusted());
    }
}
