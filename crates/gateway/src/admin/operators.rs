//! Who may use the admin API, and for what.
//!
//! A token has a name and a role. Of a token only its digest is kept, and a
//! token that comes in is compared with all of them in constant time. Where no
//! token is configured the listener is on loopback, and everybody on this
//! machine is `local`, but a browser is not: a page of another site could make
//! one send requests here, by its own script or by a name that it lets point to
//! this machine.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use arc_swap::ArcSwap;
use axum::http::HeaderMap;
use axum::http::header::{AUTHORIZATION, HOST, HeaderName, ORIGIN};
use axum::http::uri::Authority;
use secrecy::{ExposeSecret, SecretString};
use sha2::{Digest, Sha256};
use subtle::{Choice, ConditionallySelectable, ConstantTimeEq};

use super::problem::{Kind, Problem};
use crate::config::Role;

const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// Who everybody on this machine is when there are no tokens.
const LOCAL: &str = "local";

/// The word for a role.
pub(crate) fn role_word(role: Role) -> &'static str {
    match role {
        Role::Read => "read",
        Role::Operate => "operate",
        Role::Admin => "admin",
    }
}

/// A token of the configuration, with its secret at hand.
#[derive(Clone, Debug)]
pub(crate) struct Operator {
    /// Who it is, for the audit.
    pub(crate) name: String,
    /// What it may do.
    pub(crate) role: Role,
    /// The token.
    pub(crate) token: SecretString,
}

/// All who may use the API. A reload of the configuration puts others in their place.
pub(crate) struct Operators(ArcSwap<Vec<Known>>);

/// What is kept of a token.
struct Known {
    name: Arc<str>,
    role: Role,
    digest: [u8; 32],
}

/// Who asks, and from where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Who {
    pub(crate) name: Arc<str>,
    pub(crate) role: Role,
    pub(crate) from: IpAddr,
}

/// What is known of a request before anything is done for it.
pub(crate) struct Approach<'a> {
    pub(crate) headers: &'a HeaderMap,
    pub(crate) peer: SocketAddr,
}

impl Operators {
    /// These, and nobody else. Without any, everybody on loopback.
    pub(crate) fn new(operators: Vec<Operator>) -> Self {
        Self(ArcSwap::from_pointee(known(operators)))
    }

    /// Puts others in their place. Requests under way keep who they are.
    pub(crate) fn replace(&self, operators: Vec<Operator>) {
        self.0.store(Arc::new(known(operators)));
    }

    /// Whether this request may do what needs this role, and who sends it.
    pub(crate) fn admit(&self, approach: &Approach<'_>, needed: Role) -> Result<Who, Problem> {
        let from = approach.peer.ip().to_canonical();
        let operators = self.0.load();
        if operators.is_empty() {
            admit_local(approach, from)?;
            return Ok(Who {
                name: LOCAL.into(),
                role: Role::Admin,
                from,
            });
        }
        let found = bearer(approach.headers).and_then(|token| find(&operators, token));
        let Some(operator) = found else {
            tracing::warn!(target: "onceward::audit", %from, "a request without a known token");
            return Err(Problem::new(
                Kind::Unauthenticated,
                "Send a token as `Authorization: Bearer …`.",
            ));
        };
        if operator.role < needed {
            let who = &*operator.name;
            let needed = role_word(needed);
            tracing::warn!(target: "onceward::audit", %from, who, needed, "a token of too small a role");
            return Err(Problem::new(
                Kind::Forbidden,
                "The role of this token does not allow this.",
            ));
        }
        Ok(Who {
            name: operator.name.clone(),
            role: operator.role,
            from,
        })
    }
}

fn known(operators: Vec<Operator>) -> Vec<Known> {
    let known = operators.into_iter().map(|operator| Known {
        digest: digest(operator.token.expose_secret().as_bytes()),
        name: operator.name.into(),
        role: operator.role,
    });
    known.collect()
}

fn digest(token: &[u8]) -> [u8; 32] {
    Sha256::digest(token).into()
}

/// The one token that a request brings; two are none.
fn bearer(headers: &HeaderMap) -> Option<&[u8]> {
    let mut lines = headers.get_all(AUTHORIZATION).iter();
    let line = lines.next()?.as_bytes();
    if lines.next().is_some() {
        return None;
    }
    let (scheme, token) = line.split_at_checked("Bearer ".len())?;
    let token = token.trim_ascii();
    (scheme.eq_ignore_ascii_case(b"Bearer ") && !token.is_empty()).then_some(token)
}

/// Compares with all of them, whichever it is: time tells nothing.
fn find<'a>(operators: &'a [Known], token: &[u8]) -> Option<&'a Known> {
    let got = digest(token);
    // One more than the index, so that zero is nobody.
    let mut found = 0_u64;
    for (index, operator) in operators.iter().enumerate() {
        let same: Choice = operator.digest.ct_eq(&got);
        found.conditional_assign(&(index as u64 + 1), same);
    }
    let index = usize::try_from(found).ok()?.checked_sub(1)?;
    operators.get(index)
}

/// Without tokens: programs on this machine, and no browser for another site.
fn admit_local(approach: &Approach<'_>, from: IpAddr) -> Result<(), Problem> {
    let headers = approach.headers;
    let site = headers.get(SEC_FETCH_SITE).map(|site| site.as_bytes());
    let other_site = matches!(site, Some(b"cross-site" | b"same-site"));
    let detail = if !from.is_loopback() {
        "Without tokens this API is for this machine only."
    } else if !names_loopback(headers) {
        "Without tokens this API is asked by a loopback address or as localhost; configure server.admin_tokens to use another name."
    } else if headers.contains_key(ORIGIN) || other_site {
        "Without tokens this API is not for web pages; configure server.admin_tokens."
    } else {
        return Ok(());
    };
    Err(Problem::new(Kind::Forbidden, detail))
}

/// Whether the one Host is a loopback address or `localhost`. A name that an
/// attacker lets point here is neither.
fn names_loopback(headers: &HeaderMap) -> bool {
    let mut lines = headers.get_all(HOST).iter();
    let (Some(line), None) = (lines.next(), lines.next()) else {
        return false;
    };
    let Ok(authority) = Authority::try_from(line.as_bytes()) else {
        return false;
    };
    if authority.as_str().contains('@') {
        return false;
    }
    let host = authority.host();
    let address = host.trim_start_matches('[').trim_end_matches(']');
    host.eq_ignore_ascii_case("localhost")
        || address
            .parse::<IpAddr>()
            .is_ok_and(|address| address.to_canonical().is_loopback())
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;
    use rstest::rstest;

    use super::*;

    fn headers(lines: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            headers.append(*name, HeaderValue::from_static(value));
        }
        headers
    }

    fn operators(tokens: &[(&str, Role, &str)]) -> Operators {
        let operators = tokens.iter().map(|(name, role, token)| Operator {
            name: (*name).to_owned(),
            role: *role,
            token: SecretString::from(*token),
        });
        Operators::new(operators.collect())
    }

    fn admit(
        operators: &Operators,
        lines: &[(&'static str, &'static str)],
        peer: &str,
        needed: Role,
    ) -> Result<String, &'static str> {
        let approach = Approach {
            headers: &headers(lines),
            peer: peer.parse().expect("an address"),
        };
        match operators.admit(&approach, needed) {
            Ok(who) => Ok(format!("{} {}", who.name, role_word(who.role))),
            Err(problem) => Err(problem.kind().as_str()),
        }
    }

    const HERE: &str = "127.0.0.1:5";

    #[rstest]
    #[case::known(&[("authorization", "Bearer two")], Role::Operate, Ok("ops operate"))]
    #[case::any_case(&[("authorization", "bEaReR two")], Role::Read, Ok("ops operate"))]
    #[case::larger_role(&[("authorization", "Bearer three")], Role::Read, Ok("root admin"))]
    #[case::too_small(&[("authorization", "Bearer one")], Role::Operate, Err("forbidden"))]
    #[case::none(&[], Role::Read, Err("unauthenticated"))]
    #[case::unknown(&[("authorization", "Bearer four")], Role::Read, Err("unauthenticated"))]
    #[case::prefix(&[("authorization", "Bearer tw")], Role::Read, Err("unauthenticated"))]
    #[case::longer(&[("authorization", "Bearer twoo")], Role::Read, Err("unauthenticated"))]
    #[case::empty(&[("authorization", "Bearer ")], Role::Read, Err("unauthenticated"))]
    #[case::basic(&[("authorization", "Basic two")], Role::Read, Err("unauthenticated"))]
    #[case::bare(&[("authorization", "two")], Role::Read, Err("unauthenticated"))]
    #[case::twice(
        &[("authorization", "Bearer two"), ("authorization", "Bearer two")],
        Role::Read,
        Err("unauthenticated")
    )]
    fn tokens(
        #[case] lines: &[(&'static str, &'static str)],
        #[case] needed: Role,
        #[case] want: Result<&str, &str>,
    ) {
        let operators = operators(&[
            ("viewer", Role::Read, "one"),
            ("ops", Role::Operate, "two"),
            ("root", Role::Admin, "three"),
        ]);
        let got = admit(&operators, lines, "203.0.113.9:5", needed);
        assert_eq!(got.as_deref().map_err(|kind| *kind), want);
    }

    #[rstest]
    #[case::address(&[("host", "127.0.0.1:8081")], HERE, Ok("local admin"))]
    #[case::other_address(&[("host", "127.9.9.9")], HERE, Ok("local admin"))]
    #[case::name(&[("host", "LocalHost:8081")], HERE, Ok("local admin"))]
    #[case::six(&[("host", "[::1]:8081")], "[::1]:5", Ok("local admin"))]
    #[case::mapped(&[("host", "127.0.0.1")], "[::ffff:127.0.0.1]:5", Ok("local admin"))]
    #[case::own_page(
        &[("host", "localhost"), ("sec-fetch-site", "same-origin")], HERE, Ok("local admin")
    )]
    #[case::typed_in(&[("host", "localhost"), ("sec-fetch-site", "none")], HERE, Ok("local admin"))]
    #[case::rebound(&[("host", "evil.example:8081")], HERE, Err("forbidden"))]
    #[case::lookalike(&[("host", "127.0.0.1.evil.example")], HERE, Err("forbidden"))]
    #[case::hidden(&[("host", "evil.example@127.0.0.1")], HERE, Err("forbidden"))]
    #[case::no_host(&[], HERE, Err("forbidden"))]
    #[case::two_hosts(&[("host", "localhost"), ("host", "localhost")], HERE, Err("forbidden"))]
    #[case::origin(&[("host", "localhost"), ("origin", "https://evil.example")], HERE, Err("forbidden"))]
    #[case::null_origin(&[("host", "localhost"), ("origin", "null")], HERE, Err("forbidden"))]
    #[case::cross(&[("host", "localhost"), ("sec-fetch-site", "cross-site")], HERE, Err("forbidden"))]
    #[case::same(&[("host", "localhost"), ("sec-fetch-site", "same-site")], HERE, Err("forbidden"))]
    #[case::elsewhere(&[("host", "localhost")], "203.0.113.9:5", Err("forbidden"))]
    fn without_tokens(
        #[case] lines: &[(&'static str, &'static str)],
        #[case] peer: &str,
        #[case] want: Result<&str, &str>,
    ) {
        let got = admit(&operators(&[]), lines, peer, Role::Admin);
        assert_eq!(got.as_deref().map_err(|kind| *kind), want);
    }

    #[test]
    fn a_reload_takes_tokens_away() {
        let operators = operators(&[("ops", Role::Operate, "two")]);
        let token = &[("authorization", "Bearer two")];
        assert!(admit(&operators, token, HERE, Role::Read).is_ok());
        operators.replace(vec![Operator {
            name: "ops".to_owned(),
            role: Role::Operate,
            token: SecretString::from("new"),
        }]);
        assert_eq!(
            admit(&operators, token, HERE, Role::Read),
            Err("unauthenticated")
        );
    }
}
