//! Operators: authentication and roles of the admin API.
//!
//! A token has a name and a role. Only its digest is kept, and a presented token
//! is compared with every digest in constant time. Where no token is configured,
//! the listener is on loopback and every program on this machine is the operator
//! `local`. Browsers are excluded: a page of another site could make one send
//! requests here, from its own script or through a DNS name that points to this
//! machine.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use arc_swap::ArcSwap;
use axum::http::HeaderMap;
use axum::http::header::{AUTHORIZATION, HOST, HeaderName, ORIGIN};
use axum::http::uri::Authority;
use secrecy::{ExposeSecret, SecretString};
use sha2::{Digest, Sha256};
use subtle::{Choice, ConditionallySelectable, ConstantTimeEq};

use super::problem::Problem;
use crate::config::Role;

const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// The operator's name where no tokens are configured.
const LOCAL: &str = "local";

/// A token of the configuration, with its secret.
#[derive(Clone, Debug)]
pub(crate) struct OperatorToken {
    /// The operator's name in the audit log.
    pub(crate) name: String,
    /// What the operator may do.
    pub(crate) role: Role,
    /// The token.
    pub(crate) token: SecretString,
}

/// Every operator. A reload of the configuration replaces them.
pub(crate) struct Operators(ArcSwap<Vec<TokenDigest>>);

/// The digest of a token, with its name and role.
struct TokenDigest {
    name: Arc<str>,
    role: Role,
    digest: [u8; 32],
}

/// The authenticated operator of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Operator {
    pub(crate) name: Arc<str>,
    pub(crate) role: Role,
    pub(crate) from: IpAddr,
}

impl Operators {
    /// Without tokens, every program on this machine is an operator.
    pub(crate) fn new(tokens: Vec<OperatorToken>) -> Self {
        Self(ArcSwap::from_pointee(digests(tokens)))
    }

    /// Replaces all tokens. Requests in progress keep their operator.
    pub(crate) fn replace(&self, tokens: Vec<OperatorToken>) {
        self.0.store(Arc::new(digests(tokens)));
    }

    /// Authenticates a request and checks that its operator has the role.
    pub(crate) fn admit(
        &self,
        headers: &HeaderMap,
        peer: SocketAddr,
        needed: Role,
    ) -> Result<Operator, Problem> {
        let from = peer.ip().to_canonical();
        let tokens = self.0.load();
        if tokens.is_empty() {
            admit_local(headers, from)?;
            return Ok(Operator {
                name: LOCAL.into(),
                role: Role::Admin,
                from,
            });
        }
        let found = bearer(headers).and_then(|token| find(&tokens, token));
        let Some(operator) = found else {
            tracing::warn!(target: "onceward::audit", %from, "admin request without a known token");
            return Err(Problem::unauthenticated());
        };
        if operator.role < needed {
            let who = &*operator.name;
            let needed = needed.as_str();
            tracing::warn!(target: "onceward::audit", %from, who, needed, "admin request with an insufficient role");
            return Err(Problem::forbidden(
                "The role of this token does not allow this.",
            ));
        }
        Ok(Operator {
            name: operator.name.clone(),
            role: operator.role,
            from,
        })
    }
}

fn digests(tokens: Vec<OperatorToken>) -> Vec<TokenDigest> {
    let digests = tokens.into_iter().map(|token| TokenDigest {
        digest: digest(token.token.expose_secret().as_bytes()),
        name: token.name.into(),
        role: token.role,
    });
    digests.collect()
}

fn digest(token: &[u8]) -> [u8; 32] {
    Sha256::digest(token).into()
}

/// The bearer token of a request; two `Authorization` lines count as none.
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

/// Compares with every token, so that the time taken does not reveal a match.
fn find<'a>(operators: &'a [TokenDigest], token: &[u8]) -> Option<&'a TokenDigest> {
    let got = digest(token);
    // One more than the index: zero means that no token matched.
    let mut found = 0_u64;
    for (index, operator) in operators.iter().enumerate() {
        let same: Choice = operator.digest.ct_eq(&got);
        found.conditional_assign(&(index as u64 + 1), same);
    }
    let index = usize::try_from(found).ok()?.checked_sub(1)?;
    operators.get(index)
}

/// Without tokens, programs on this machine are admitted, but no browser that
/// acts for another site.
fn admit_local(headers: &HeaderMap, from: IpAddr) -> Result<(), Problem> {
    let site = headers.get(SEC_FETCH_SITE).map(|site| site.as_bytes());
    let other_site = matches!(site, Some(b"cross-site" | b"same-site"));
    let detail = if !from.is_loopback() {
        "Without tokens the admin API serves this machine only; configure server.admin_tokens."
    } else if !names_loopback(headers) {
        "Without tokens the admin API answers only to a loopback address or localhost as its host name; configure server.admin_tokens to use another name."
    } else if headers.contains_key(ORIGIN) || other_site {
        "Without tokens the admin API does not answer web pages; configure server.admin_tokens."
    } else {
        return Ok(());
    };
    Err(Problem::forbidden(detail))
}

/// Whether the one Host is a loopback address or `localhost`. A DNS name of an
/// attacker that points to this machine is neither.
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
        let operators = tokens.iter().map(|(name, role, token)| OperatorToken {
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
        let peer = peer.parse().expect("an address");
        match operators.admit(&headers(lines), peer, needed) {
            Ok(operator) => Ok(format!("{} {}", operator.name, operator.role.as_str())),
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
        operators.replace(vec![OperatorToken {
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
