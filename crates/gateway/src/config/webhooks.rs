//! Settings of all webhooks. The settings of a single webhook are in the registry
//! and have precedence over these.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use onceward_webhooks::{Provider, Tolerance};

use super::words::SameBytes;

/// Settings of webhooks that do not have their own.
#[derive(Clone, Debug)]
pub struct Webhooks {
    /// The upstream that receives the events.
    pub upstream: Option<Arc<str>>,
    /// The path at the upstream; `{provider}` is the provider's name.
    pub path: String,
    /// The retention class.
    pub class: Arc<str>,
    /// The tolerated difference to a provider's clock.
    pub tolerance: Tolerance,
    /// What happens to an event with the bytes of an earlier one.
    pub same_bytes: SameBytes,
    /// How long an old secret is valid after a rotation.
    pub overlap: Duration,
    /// The largest number of concurrent deliveries.
    pub deliveries: usize,
    /// The largest number of concurrent deliveries to one upstream.
    pub deliveries_per_upstream: usize,
    /// Providers of the configuration, by name; no built-in ones.
    pub providers: BTreeMap<Arc<str>, Provider>,
}

impl Default for Webhooks {
    fn default() -> Self {
        Self {
            upstream: None,
            path: "/webhooks/{provider}".to_owned(),
            class: "webhook".into(),
            tolerance: Tolerance::default(),
            same_bytes: SameBytes::Deliver,
            overlap: Duration::from_secs(24 * 60 * 60),
            deliveries: 256,
            deliveries_per_upstream: 64,
            providers: BTreeMap::new(),
        }
    }
}

impl Webhooks {
    /// A provider by its name: a built-in one, or one of the configuration.
    pub fn provider(&self, name: &str) -> Option<Provider> {
        Provider::built_in(name).or_else(|| self.providers.get(name).cloned())
    }

    /// The path at the upstream for events of this provider.
    pub fn path_for(&self, provider: &str) -> String {
        self.path.replace("{provider}", provider)
    }
}

/// The longest path at an upstream.
const PATH_BYTES_MAX: usize = 1024;

/// The problem of a path at an upstream, if it has one.
pub(crate) fn path_problem(path: &str) -> Option<&'static str> {
    let Some(inside) = path.strip_prefix('/') else {
        return Some("does not begin with /");
    };
    if inside.starts_with('/') {
        return Some("begins with two slashes, which would mean a host");
    }
    if path.len() > PATH_BYTES_MAX {
        return Some("is longer than 1024 bytes");
    }
    if path.contains(['?', '#']) {
        return Some("has a query or a fragment");
    }
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~!$&'()*+,;=:@/%".contains(&byte);
    if !path.bytes().all(plain) {
        return Some("has a character that is not allowed unescaped in a path");
    }
    let mut after = path.split('%').skip(1);
    let hex =
        |text: &str| text.len() >= 2 && text.bytes().take(2).all(|byte| byte.is_ascii_hexdigit());
    // An escape could hide a line break, a slash or a dot segment.
    let hides = |text: &str| {
        let escaped = u8::from_str_radix(&text[..2], 16).unwrap_or_default();
        escaped.is_ascii_control() || matches!(escaped, b'.' | b'/' | b'\\')
    };
    if after.any(|text| !hex(text) || hides(text)) {
        return Some("has an escape that is invalid or not allowed");
    }
    let elsewhere = |segment: &str| matches!(segment, "." | "..");
    if inside.split('/').any(elsewhere) {
        return Some("has a . or .. segment");
    }
    None
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::plain("/hooks/stripe", None)]
    #[case::root("/", None)]
    #[case::escaped("/a%20b", None)]
    #[case::relative("hooks", Some("does not begin with /"))]
    #[case::empty("", Some("does not begin with /"))]
    #[case::query("/a?b=c", Some("has a query or a fragment"))]
    #[case::line_break(
        "/a\r\nX: y",
        Some("has a character that is not allowed unescaped in a path")
    )]
    #[case::umlaut("/ä", Some("has a character that is not allowed unescaped in a path"))]
    #[case::dots("/a/../b", Some("has a . or .. segment"))]
    #[case::hidden_dots("/a/%2e%2e/b", Some("has an escape that is invalid or not allowed"))]
    #[case::hidden_break("/a%0ab", Some("has an escape that is invalid or not allowed"))]
    #[case::half_an_escape("/a%2", Some("has an escape that is invalid or not allowed"))]
    #[case::escape_at_the_end("/a%", Some("has an escape that is invalid or not allowed"))]
    fn paths(#[case] path: &str, #[case] want: Option<&str>) {
        assert_eq!(path_problem(path), want);
    }

    #[test]
    fn a_path_has_its_length() {
        let long = format!("/{}", "a".repeat(PATH_BYTES_MAX - 1));
        assert_eq!(path_problem(&long), None);
        assert!(path_problem(&format!("{long}a")).is_some());
    }
}
