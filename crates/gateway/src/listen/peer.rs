//! The client's address, scheme and host, taken from sources that can be
//! trusted.
//!
//! The socket gives the address of the direct peer. Headers that name another
//! client are used only if a trusted proxy wrote them: `X-Forwarded-For` is read
//! from the right, and an entry counts only if the address to its right, which
//! added it, is a trusted proxy. A client therefore cannot choose its address by
//! sending the header itself.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use http::Request;
use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use ipnet::IpNet;

use crate::listen::framing::is_host;

const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const X_FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
const X_FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");

/// The most entries read from a forwarding header.
const HOPS_MAX: usize = 32;

/// The scheme that the client used towards the outermost trusted proxy, or
/// towards the gateway.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Scheme {
    #[default]
    Http,
    Https,
}

impl Scheme {
    /// Parses the form that [`Peer::scheme`] returns.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        match text {
            "http" => Some(Self::Http),
            "https" => Some(Self::Https),
            _ => None,
        }
    }
}

/// The sender of a request, or the other end of a connection. Made once per
/// connection where the headers of requests are not used; clones share it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Peer(Arc<PeerFacts>);

#[derive(Debug, PartialEq, Eq)]
struct PeerFacts {
    address: SocketAddr,
    /// The address as upstreams get it.
    forwarded_for: HeaderValue,
    scheme: Scheme,
    trusted: bool,
    host: Option<HeaderValue>,
}

impl Peer {
    fn new(address: SocketAddr, scheme: Scheme, trusted: bool, host: Option<HeaderValue>) -> Self {
        let address = canonical(address);
        let ip = HeaderValue::try_from(address.ip().to_string());
        Self(Arc::new(PeerFacts {
            address,
            forwarded_for: ip.expect("an address is visible ASCII"),
            scheme,
            trusted,
            host,
        }))
    }

    /// A peer restored from a stored request.
    pub(crate) fn recorded(address: SocketAddr, scheme: Scheme, host: Option<HeaderValue>) -> Self {
        Self::new(address, scheme, false, host)
    }

    /// The peer of a new connection, before its first request.
    pub(crate) fn connected(address: SocketAddr, scheme: Scheme, trusted: &TrustedProxies) -> Self {
        Self::new(address, scheme, trusted.contains(address.ip()), None)
    }

    /// The client's address. Its port is 0 if a proxy did not state it.
    pub(crate) fn address(&self) -> SocketAddr {
        self.0.address
    }

    /// The client's address without its port, as a header's value.
    pub(crate) fn forwarded_for(&self) -> &HeaderValue {
        &self.0.forwarded_for
    }

    /// `http` or `https`, as the client used it.
    pub(crate) fn scheme(&self) -> &'static str {
        match self.0.scheme {
            Scheme::Http => "http",
            Scheme::Https => "https",
        }
    }

    /// Whether the direct peer is a trusted proxy. [`Peer::for_request`] has
    /// already applied the headers that it sent.
    #[cfg(test)]
    pub(crate) fn is_trusted(&self) -> bool {
        self.0.trusted
    }

    /// The host that the client requested from a trusted proxy, if the proxy
    /// stated it.
    pub(crate) fn host(&self) -> Option<&HeaderValue> {
        self.0.host.as_ref()
    }

    /// Sets `Host` to the host that the client requested: the one that a trusted
    /// proxy states, or on HTTP/2 the authority of the request's target.
    pub(crate) fn set_host<B>(&self, request: &mut Request<B>) {
        let host = match (self.host(), request.headers().get(header::HOST)) {
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

    /// The sender of a request with these headers on this peer's connection.
    /// Headers from an untrusted peer are ignored.
    pub(crate) fn for_request(self, headers: &HeaderMap, trusted: &TrustedProxies) -> Self {
        if !self.0.trusted {
            return self;
        }
        let chain = last_entries(headers, &X_FORWARDED_FOR);
        let client = find_client(self.0.address, &chain, trusted);
        let proto = last_entries(headers, &X_FORWARDED_PROTO);
        let scheme = match outermost_entry(&proto, client.hops) {
            Some(proto) if proto.eq_ignore_ascii_case("https") => Scheme::Https,
            Some(proto) if proto.eq_ignore_ascii_case("http") => Scheme::Http,
            _ => self.0.scheme,
        };
        let hosts = last_entries(headers, &X_FORWARDED_HOST);
        let host = outermost_entry(&hosts, client.hops).filter(|host| is_host(host.as_bytes()));
        let host = host.and_then(|host| HeaderValue::from_str(host).ok());
        Self::new(client.address, scheme, true, host)
    }
}

/// The client found at the end of a chain of proxies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ForwardedClient {
    address: SocketAddr,
    /// How many entries of the chain were used.
    hops: usize,
}

/// Finds the rightmost untrusted address. `entries` are in order from the right,
/// and `direct` is trusted. An entry that is not an address ends the chain; the
/// proxy that added it is then taken as the client.
fn find_client(direct: SocketAddr, entries: &[&str], trusted: &TrustedProxies) -> ForwardedClient {
    let mut client = ForwardedClient {
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

/// The entry of the outermost of `hops` trusted proxies. A proxy either appends
/// its entry on the right or replaces the whole list; in both cases no trusted
/// proxy wrote an entry further to the left.
fn outermost_entry<'a>(entries: &[&'a str], hops: usize) -> Option<&'a str> {
    let farthest = hops.max(1).min(entries.len());
    entries[..farthest].last().copied()
}

/// The entries of a list header, over all its lines, from the right. A line that
/// is not text counts as one empty entry.
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

/// Parses an address with or without a port, with or without brackets.
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

/// A dual-stack listener reports IPv4 addresses as IPv4-mapped IPv6 addresses.
fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

/// The networks of the trusted proxies. Clones share the list.
#[derive(Clone, Debug, Default)]
pub(crate) struct TrustedProxies(Arc<[IpNet]>);

impl TrustedProxies {
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

impl From<Vec<IpNet>> for TrustedProxies {
    fn from(networks: Vec<IpNet>) -> Self {
        Self(networks.into())
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    const PROXY: &str = "10.0.0.1:5000";

    fn trusted() -> TrustedProxies {
        TrustedProxies::of(&["10.0.0.0/8", "192.0.2.7/32", "2001:db8::/32"])
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
            .for_request(&headers(lines), &trusted)
    }

    #[rstest]
    #[case::an_address_in_a_network("10.255.0.1", true)]
    #[case::a_single_address("192.0.2.7", true)]
    #[case::an_adjacent_address("192.0.2.8", false)]
    #[case::ipv6("2001:db8::1", true)]
    #[case::other_ipv6("2001:db9::1", false)]
    #[case::ipv4_mapped_to_ipv6("::ffff:10.0.0.1", true)]
    fn trusted_networks_contain_their_addresses(#[case] ip: IpAddr, #[case] expected: bool) {
        assert_eq!(trusted().contains(ip), expected);
    }

    #[rstest]
    #[case::no_header(PROXY, &[], "10.0.0.1:5000")]
    #[case::one_proxy(PROXY, &["203.0.113.9"], "203.0.113.9:0")]
    #[case::two_proxies(PROXY, &["203.0.113.9, 10.0.0.2"], "203.0.113.9:0")]
    #[case::two_lines_are_one_list(PROXY, &["203.0.113.9", "10.0.0.2"], "203.0.113.9:0")]
    #[case::a_forged_entry_stays_to_the_left(PROXY, &["1.1.1.1, 203.0.113.9"], "203.0.113.9:0")]
    #[case::a_forged_line_stays_above(PROXY, &["10.0.0.9", "203.0.113.9"], "203.0.113.9:0")]
    #[case::all_are_trusted(PROXY, &["10.0.0.3, 10.0.0.2"], "10.0.0.3:0")]
    #[case::an_untrusted_peer_is_ignored("198.51.100.1:7", &["203.0.113.9"], "198.51.100.1:7")]
    #[case::an_invalid_address_ends_the_chain(PROXY, &["203.0.113.9, unknown, 10.0.0.2"], "10.0.0.2:0")]
    #[case::an_empty_entry_ends_the_chain(PROXY, &["203.0.113.9,"], "10.0.0.1:5000")]
    #[case::with_a_port(PROXY, &["203.0.113.9:4711"], "203.0.113.9:4711")]
    #[case::ipv6(PROXY, &["2001:db9::5"], "[2001:db9::5]:0")]
    #[case::ipv6_in_brackets(PROXY, &["[2001:db9::5]"], "[2001:db9::5]:0")]
    #[case::ipv6_with_a_port(PROXY, &["[2001:db9::5]:80"], "[2001:db9::5]:80")]
    #[case::ipv4_mapped_to_ipv6(PROXY, &["203.0.113.9, ::ffff:10.0.0.2"], "203.0.113.9:0")]
    fn the_client_is_the_rightmost_untrusted_address(
        #[case] direct: &str,
        #[case] lines: &[&str],
        #[case] client: &str,
    ) {
        let lines: Vec<_> = lines.iter().map(|line| (X_FORWARDED_FOR, *line)).collect();
        assert_eq!(peer(direct, &lines).address(), socket(client));
    }

    #[test]
    fn the_length_of_a_chain_is_bounded() {
        let chain = vec!["10.0.0.2"; 10 * HOPS_MAX].join(",");
        let headers = headers(&[(X_FORWARDED_FOR, &chain)]);
        assert_eq!(last_entries(&headers, &X_FORWARDED_FOR).len(), HOPS_MAX);
    }

    #[rstest]
    #[case::no_header("10.0.0.1:1", &[], &[], "http")]
    #[case::stated(PROXY, &["203.0.113.9"], &["https"], "https")]
    #[case::stated_without_a_client(PROXY, &[], &["https"], "https")]
    #[case::the_outermost_entry_counts(PROXY, &["203.0.113.9, 10.0.0.2"], &["https, http"], "https")]
    #[case::a_forged_entry_does_not_count(PROXY, &["203.0.113.9"], &["https, http"], "http")]
    #[case::an_unknown_scheme_is_ignored(PROXY, &["203.0.113.9"], &["gopher"], "http")]
    #[case::an_untrusted_peer_is_ignored("198.51.100.1:7", &[], &["https"], "http")]
    fn the_scheme_is_the_one_the_outermost_proxy_states(
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
    #[case::stated(PROXY, "shop.example", Some("shop.example"))]
    #[case::an_invalid_host(PROXY, "shop.example/x", None)]
    #[case::an_untrusted_peer_is_ignored("198.51.100.1:7", "shop.example", None)]
    fn the_host_is_the_one_the_outermost_proxy_states(
        #[case] direct: &str,
        #[case] line: &str,
        #[case] host: Option<&str>,
    ) {
        let peer = peer(direct, &[(X_FORWARDED_HOST, line)]);
        let stated = peer.host().map(|host| host.to_str().expect("text"));
        assert_eq!(stated, host);
    }

    #[test]
    fn tls_from_an_untrusted_peer_is_https() {
        let peer = Peer::connected(socket("198.51.100.1:7"), Scheme::Https, &trusted());
        assert_eq!(peer.scheme(), "https");
        assert!(!peer.is_trusted());
    }
}
