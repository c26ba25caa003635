//! The target of a load: a plain HTTP origin on this machine.
//!
//! Only loopback addresses are accepted. A load generator that can be pointed anywhere is a weapon,
//! and figures over a network say nothing about the gateway.

use std::fmt;
use std::net::SocketAddr;
use std::str::FromStr;

use anyhow::{Context, bail, ensure};
use hyper::Uri;

/// An HTTP origin, `http://ADDRESS:PORT`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LoopbackOrigin {
    addr: SocketAddr,
}

impl LoopbackOrigin {
    pub(super) fn parse(url: &str) -> anyhow::Result<Self> {
        let uri = Uri::from_str(url).with_context(|| format!("{url} is not a URL"))?;
        ensure!(
            uri.scheme_str() == Some("http"),
            "{url} is not a plain http URL"
        );
        ensure!(
            matches!(uri.path(), "" | "/"),
            "{url} must be an origin, without a path"
        );
        let Some(authority) = uri.authority() else {
            bail!("{url} has no address")
        };
        let addr = authority.as_str().replacen("localhost", "127.0.0.1", 1);
        let addr = addr
            .parse()
            .with_context(|| format!("{url} needs an address and a port"))?;
        LoopbackOrigin::at(addr)
    }

    pub(super) fn at(addr: SocketAddr) -> anyhow::Result<Self> {
        ensure!(addr.ip().is_loopback(), "{addr} is not a loopback address");
        Ok(LoopbackOrigin { addr })
    }

    pub(super) fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// The value of the `Host` header.
    pub(super) fn host(&self) -> String {
        self.addr.to_string()
    }
}

impl fmt::Display for LoopbackOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "http://{}", self.addr)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_plain_origins_on_this_machine_are_accepted() {
        let taken = [
            "http://127.0.0.1:80",
            "http://localhost:8080/",
            "http://[::1]:9",
        ];
        let refused = [
            "127.0.0.1:80",
            "https://127.0.0.1:80",
            "http://127.0.0.1",
            "http://192.0.2.1:80",
            "http://[::1]:9/x",
        ];
        for url in taken {
            assert!(LoopbackOrigin::parse(url).is_ok(), "{url}");
        }
        for url in refused {
            assert!(LoopbackOrigin::parse(url).is_err(), "{url}");
        }
    }
}
