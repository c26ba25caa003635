//! Settings that cannot be right are refused at the start, in words that help.

use std::time::Duration;

use onceward_gateway::{Gateway, Settings};
use rstest::rstest;

use crate::harness::gateway_to;

#[rstest]
#[case::no_url(|s: &mut Settings| s.upstream = "not a url".into(), "the upstream is not a URL")]
#[case::no_scheme(|s: &mut Settings| s.upstream = "localhost:3000".into(), "an upstream begins with http:// or h2c://")]
#[case::another_scheme(|s: &mut Settings| s.upstream = "ftp://a".into(), "an upstream begins with http:// or h2c://")]
#[case::tls(|s: &mut Settings| s.upstream = "https://a".into(), "TLS to upstreams is not there yet: use http:// or h2c://")]
#[case::path(|s: &mut Settings| s.upstream = "http://a/b".into(), "an upstream has no path: requests keep their own")]
#[case::user(|s: &mut Settings| s.upstream = "http://u@a".into(), "an upstream names a host and, if need be, a port")]
#[case::exposed_admin(
    |s: &mut Settings| s.admin = "0.0.0.0:0".into(),
    "is not a loopback address, and there is no token to protect it; use 127.0.0.1"
)]
#[case::listen(|s: &mut Settings| s.listen = "nowhere".into(), "cannot listen on nowhere: ")]
#[case::short_lease(
    |s: &mut Settings| s.class.lease = Duration::from_secs(29),
    "the lease of class interactive (29s) is shorter than the upstream timeout (30s); make it longer"
)]
#[case::store(
    |s: &mut Settings| s.store = "mysql://user:password@a".into(),
    "there is no store `mysql:` in this build; use `embedded:DIR` or `memory:`"
)]
#[case::directory(
    |s: &mut Settings| s.store = "embedded:".into(),
    "`embedded:` lacks its directory; write `embedded:./onceward-data`, for example"
)]
#[tokio::test]
async fn a_mistake_is_named_with_its_cure(#[case] mistake: fn(&mut Settings), #[case] words: &str) {
    let (mut settings, _directory) = gateway_to("http://127.0.0.1:1").settings();
    mistake(&mut settings);
    let error = Gateway::start(settings).await.err().unwrap().to_string();
    assert!(error.contains(words), "{error}");
    assert!(!error.contains("password"), "{error}");
}

#[tokio::test]
async fn a_port_that_is_taken_is_named() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let (mut settings, _directory) = gateway_to("http://127.0.0.1:1").settings();
    settings.listen = address.to_string();
    let error = Gateway::start(settings).await.err().unwrap().to_string();
    assert!(
        error.starts_with(&format!("cannot listen on {address}: ")),
        "{error}"
    );
}
