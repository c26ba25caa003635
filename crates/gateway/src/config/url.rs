//! URLs of services that the gateway calls.
//!
//! Messages about a URL never contain it, because it may contain a password.

use http::Uri;
use http::uri::Scheme;

/// Why a text is not a valid URL of a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum UrlError {
    #[error("is not a URL")]
    Malformed,
    #[error("has an unsupported scheme")]
    Scheme,
    #[error("names no host")]
    Host,
    #[error("holds a user or a password")]
    User,
    #[error("has a path, a query or a fragment")]
    Path,
    #[error("is sent unencrypted over a network")]
    Plain,
}

impl UrlError {
    /// What would be right.
    pub(super) fn right(self) -> &'static str {
        match self {
            Self::Malformed | Self::Host => "write https://HOST, with a port if need be",
            Self::Scheme => "begin with https:// or http://",
            Self::User => "write the URL without it, and credentials where they have a key",
            Self::Path => "write only scheme and host, such as https://example.com",
            Self::Plain => "write https://; http:// is allowed for 127.0.0.1 and localhost only",
        }
    }
}

/// A URL with a host, by HTTP or HTTPS.
pub(super) fn web(text: &str) -> Result<Uri, UrlError> {
    let url = parse(text)?;
    match url.scheme_str() {
        Some("http" | "https") => Ok(url),
        _ => Err(UrlError::Scheme),
    }
}

/// The same, encrypted unless it is loopback: its answers decide which callers are
/// authenticated.
pub(super) fn guarded(text: &str) -> Result<Uri, UrlError> {
    let url = web(text)?;
    if url.scheme() == Some(&Scheme::HTTP) && !is_loopback(host(&url)) {
        return Err(UrlError::Plain);
    }
    Ok(url)
}

/// A scheme and a host without a path.
pub(super) fn origin(text: &str, schemes: &[&str]) -> Result<Uri, UrlError> {
    let url = parse(text)?;
    if !schemes.contains(&url.scheme_str().unwrap_or_default()) {
        return Err(UrlError::Scheme);
    }
    let behind = text.split_once("://").map_or("", |(_, rest)| rest);
    match behind.find(['/', '?', '#']) {
        Some(at) if behind[at..] != *"/" => Err(UrlError::Path),
        _ => Ok(url),
    }
}

/// The host without the brackets of an IPv6 address.
pub(super) fn host(url: &Uri) -> &str {
    url.host().unwrap_or_default().trim_matches(['[', ']'])
}

/// Whether a host is certainly this machine.
pub(super) fn is_loopback(host: &str) -> bool {
    let host = host.trim_matches(['[', ']']);
    let by_address = host
        .parse::<std::net::IpAddr>()
        .is_ok_and(|address| address.to_canonical().is_loopback());
    by_address || host.eq_ignore_ascii_case("localhost")
}

fn parse(text: &str) -> Result<Uri, UrlError> {
    let url: Uri = text.parse().map_err(|_| UrlError::Malformed)?;
    let authority = match (url.scheme(), url.authority()) {
        (None, _) => return Err(UrlError::Scheme),
        (_, None) => return Err(UrlError::Host),
        (_, Some(authority)) => authority,
    };
    if authority.as_str().contains('@') {
        return Err(UrlError::User);
    }
    // An invalid port would silently become the scheme's default.
    let port = authority.as_str().rsplit_once(':').map(|(_, port)| port);
    let has_port = port.is_some_and(|port| !port.ends_with(']'));
    if authority.host().is_empty() {
        return Err(UrlError::Host);
    }
    if has_port && authority.port_u16().is_none_or(|port| port == 0) {
        return Err(UrlError::Malformed);
    }
    Ok(url)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::https("https://example.com/keys", None)]
    #[case::loopback("http://127.0.0.1:9/keys", None)]
    #[case::loopback_6("http://[::1]:9/keys", None)]
    #[case::localhost("http://LOCALHOST/keys", None)]
    #[case::plain("http://example.com/keys", Some(UrlError::Plain))]
    #[case::lookalike("http://localhost.example.com/keys", Some(UrlError::Plain))]
    #[case::other_scheme("ftp://example.com", Some(UrlError::Scheme))]
    #[case::no_scheme("example.com", Some(UrlError::Scheme))]
    #[case::path_alone("/keys", Some(UrlError::Scheme))]
    #[case::user("https://a:b@example.com", Some(UrlError::User))]
    #[case::port("https://example.com:99999", Some(UrlError::Malformed))]
    #[case::port_of_letters("https://example.com:http", Some(UrlError::Malformed))]
    #[case::empty("", Some(UrlError::Malformed))]
    #[case::blank("https://exa mple.com", Some(UrlError::Malformed))]
    fn guarded_urls(#[case] text: &str, #[case] want: Option<UrlError>) {
        assert_eq!(guarded(text).err(), want);
    }

    #[rstest]
    #[case::plain("http://127.0.0.1:3000", None)]
    #[case::slash("http://127.0.0.1:3000/", None)]
    #[case::h2c("h2c://127.0.0.1:3000", None)]
    #[case::path("http://127.0.0.1:3000/api", Some(UrlError::Path))]
    #[case::query("http://127.0.0.1:3000?a", Some(UrlError::Path))]
    #[case::fragment("http://127.0.0.1:3000/#a", Some(UrlError::Path))]
    #[case::scheme("ws://127.0.0.1:3000", Some(UrlError::Scheme))]
    fn origins(#[case] text: &str, #[case] want: Option<UrlError>) {
        assert_eq!(origin(text, &["http", "https", "h2c"]).err(), want);
    }
}
