//! From a method and a path to the route that serves them.
//!
//! A path is matched as an upstream would read it: escapes of characters that may
//! appear unescaped in a path are decoded first, so that `/payment%73` does not
//! slip past the route for `/payments`, nor `/pay%3Aconfirm` past `/pay:confirm`.
//! Each method has a separate table, so a route for GET does not hide a less exact
//! route for POST. An exact segment beats `{name}`, and `{name}` beats `{*rest}`.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;

use foldhash::fast::RandomState;
use http::Method;
use matchit::{InsertError, Router};

use crate::config::{self, METHODS};
use crate::runtime::cores::CopyForCore;
use crate::runtime::plan::PlannedRoute;

/// The characters that may appear unescaped in a segment, beside letters and
/// digits.
const PLAIN: &[u8] = b"-._~!$&'()*+,;=:@";

/// All routes.
pub(crate) struct RouteTable {
    by_method: HashMap<Method, Router<usize>, RandomState>,
    /// For all other methods: only the routes for every method.
    others: Router<usize>,
    routes: Vec<Arc<PlannedRoute>>,
}

/// The result of a lookup.
pub(crate) enum RouteMatch<'a> {
    /// A route.
    Route(&'a Arc<PlannedRoute>),
    /// Routes exist for this path, but only for these methods.
    OtherMethods(Vec<Method>),
    /// No route matches the path.
    Nothing,
}

impl RouteTable {
    /// Makes the table, or returns the index of the route that conflicts with an
    /// earlier one.
    pub(crate) fn new(routes: Vec<Arc<PlannedRoute>>) -> Result<Self, (usize, InsertError)> {
        let mut by_method = HashMap::default();
        let mut others = Router::new();
        for (index, planned) in routes.iter().enumerate() {
            for path in paths(&planned.route) {
                for method in planned.route.served_methods() {
                    let table: &mut Router<usize> = by_method.entry(method.clone()).or_default();
                    insert(table, &path, index)?;
                }
                if planned.route.methods.is_empty() {
                    insert(&mut others, &path, index)?;
                }
            }
        }
        Ok(Self {
            by_method,
            others,
            routes,
        })
    }

    /// The route for a request. HEAD is served where GET is.
    pub(crate) fn find(&self, method: &Method, path: &str) -> RouteMatch<'_> {
        let path = plain(path);
        let own = self.at_plain(method, &path);
        let head = || (*method == Method::HEAD).then(|| self.at_plain(&Method::GET, &path));
        if let Some(route) = own.or_else(|| head().flatten()) {
            return RouteMatch::Route(route);
        }
        let others: Vec<_> = METHODS
            .iter()
            .filter(|method| self.at_plain(method, &path).is_some())
            .cloned()
            .collect();
        if others.is_empty() {
            RouteMatch::Nothing
        } else {
            RouteMatch::OtherMethods(others)
        }
    }

    /// The route for exactly this method.
    pub(crate) fn at(&self, method: &Method, path: &str) -> Option<&Arc<PlannedRoute>> {
        self.at_plain(method, &plain(path))
    }

    /// The same for a path of [`plain`].
    fn at_plain(&self, method: &Method, path: &str) -> Option<&Arc<PlannedRoute>> {
        let table = self.by_method.get(method);
        let table = table.or_else(|| (!METHODS.contains(method)).then_some(&self.others))?;
        self.routes.get(*table.at(path).ok()?.value)
    }

    /// The route whose operations have this endpoint.
    pub(crate) fn named(&self, endpoint: &str) -> Option<&Arc<PlannedRoute>> {
        self.routes.iter().find(|planned| {
            matches!(&planned.route.endpoint, config::EndpointName::Fixed(name) if name.as_str() == endpoint)
        })
    }

    /// Every route.
    pub(crate) fn all(&self) -> &[Arc<PlannedRoute>] {
        &self.routes
    }
}

impl CopyForCore for RouteTable {
    fn copy_for_core(&self) -> Self {
        let routes = self.routes.iter();
        Self {
            by_method: self.by_method.clone(),
            others: self.others.clone(),
            routes: routes
                .map(|route| Arc::new(route.copy_for_core()))
                .collect(),
        }
    }
}

/// If two routes have the same path and method, the first one serves; `check`
/// reports the second.
fn insert(table: &mut Router<usize>, path: &str, index: usize) -> Result<(), (usize, InsertError)> {
    match table.insert(path, index) {
        Ok(()) => Ok(()),
        Err(InsertError::Conflict { with }) if with == path => Ok(()),
        Err(error) => Err((index, error)),
    }
}

/// A remainder may be empty, but the table treats the path without it as a
/// different path.
fn paths(route: &config::Route) -> Vec<String> {
    let path = route.path.as_str();
    match path.find("{*") {
        Some(at) => vec![path.to_owned(), path[..at].to_owned()],
        None => vec![path.to_owned()],
    }
}

/// Decodes the escapes of characters that may appear unescaped in a segment:
/// unreserved ones (RFC 3986, 6.2.2.2) and those that a route's own path may
/// contain. A slash stays escaped. A request for the whole server (`*`) counts as
/// one for its root.
fn plain(path: &str) -> Cow<'_, str> {
    if path == "*" {
        return "/".into();
    }
    if !path.contains('%') {
        return path.into();
    }
    let mut plain = String::with_capacity(path.len());
    let mut rest = path;
    while let Some(at) = rest.find('%') {
        let (before, escape) = rest.split_at(at);
        plain.push_str(before);
        let (escape, after) = escape.split_at_checked(3).unwrap_or((escape, ""));
        match u8::from_str_radix(escape.trim_start_matches('%'), 16) {
            Ok(byte) if byte.is_ascii_alphanumeric() || PLAIN.contains(&byte) => {
                plain.push(char::from(byte));
            }
            _ => plain.push_str(escape),
        }
        rest = after;
    }
    plain.push_str(rest);
    plain.into()
}

/// Whether a path contains a `.` or `..` segment, in any spelling.
pub(crate) fn has_dot_segment(path: &str) -> bool {
    if !path.contains("/.") && !path.contains(['%', '\\']) {
        return false;
    }
    let mut path = plain(path).into_owned();
    // Some upstreams treat these as a slash.
    for slash in ["%2F", "%2f", "%5C", "%5c", "\\"] {
        path = path.replace(slash, "/");
    }
    // Others drop what follows a semicolon before they resolve dots.
    path.split('/')
        .map(|segment| segment.split(';').next().unwrap_or_default())
        .any(|segment| matches!(segment, "." | ".."))
}

/// Whether an upstream may split a path into other segments: some upstreams merge
/// slashes, some decode escaped ones.
pub(crate) fn has_doubtful_slash(path: &str) -> bool {
    let slashes = ["//", "\\", "%2F", "%2f", "%5C", "%5c"];
    slashes.iter().any(|slash| path.contains(slash))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("/payments", "/payments")]
    #[case("/payment%73", "/payments")]
    #[case("/a%2Fb", "/a%2Fb")]
    #[case("/%7Ea%20b", "/~a%20b")]
    #[case("/pay%3aconfirm%28now%29", "/pay:confirm(now)")]
    #[case("/%257E%7B%3F%23", "/%257E%7B%3F%23")]
    #[case("/%", "/%")]
    fn escapes_of_what_stands_plainly_are_undone(#[case] path: &str, #[case] want: &str) {
        assert_eq!(plain(path), want);
    }

    #[rstest]
    #[case("/a/../b", true)]
    #[case("/a/%2e%2E/b", true)]
    #[case("/a/.", true)]
    #[case("/a/..%2Fb", true)]
    #[case("/a%2f.%2e/b", true)]
    #[case("/a/..%5cb", true)]
    #[case("/a\\..\\b", true)]
    #[case("/a%2Fb/c..%2Fd", false)]
    #[case("/a/..;/b", true)]
    #[case("/a/.;x=1", true)]
    #[case("/a/..b/c.d", false)]
    #[case("/", false)]
    fn dot_segments(#[case] path: &str, #[case] want: bool) {
        assert_eq!(has_dot_segment(path), want);
    }
}
