//! The spellings of one URL that a provider may have signed.

use std::borrow::Cow;

/// The URL itself, and the URL with the scheme's port added or its port removed:
/// products differ in which of them they sign.
pub(crate) fn spellings(url: &str) -> impl Iterator<Item = Cow<'_, str>> {
    [Some(Cow::Borrowed(url)), other_port(url).map(Cow::Owned)]
        .into_iter()
        .flatten()
}

/// Everything after the path: the query's text. It would include a fragment,
/// which would be signed; no request has one.
pub(crate) fn query(url: &str) -> &str {
    url.find(['?', '#']).map_or("", |at| &url[at + 1..])
}

fn other_port(url: &str) -> Option<String> {
    let (scheme, rest) = url.split_once("://")?;
    let port = match scheme {
        "https" => "443",
        "http" => "80",
        _ => return None,
    };
    let (authority, rest) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
    // The port follows the last colon, unless that is in the user's password
    // or within the brackets of an IPv6 address.
    let host_at = authority.rfind('@').map_or(0, |at| at + 1);
    let port_at = authority.rfind(':').filter(|at| *at >= host_at);
    match port_at.filter(|at| !authority[*at..].contains(']')) {
        Some(at) => Some(format!("{scheme}://{}{rest}", &authority[..at])),
        None => Some(format!("{scheme}://{authority}:{port}{rest}")),
    }
}
