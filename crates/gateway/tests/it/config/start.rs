//! Settings that cannot work are refused at the start, with a helpful message.

use std::time::Duration;

use onceward_gateway::Gateway;
use onceward_gateway::config::Config;
use rstest::rstest;

use crate::harness::gateway_to;

fn upstream(config: &mut Config, url: &str) {
    config.upstreams.get_mut("default").unwrap().url = url.to_owned();
}

#[rstest]
#[case::no_url(|s: &mut Config| upstream(s, "not a url"), "the upstream is not a valid URL")]
#[case::no_scheme(|s: &mut Config| upstream(s, "localhost:3000"), "the URL of an upstream must begin with http://, https:// or h2c://")]
#[case::another_scheme(|s: &mut Config| upstream(s, "ftp://a"), "the URL of an upstream must begin with http://, https:// or h2c://")]
#[case::path(|s: &mut Config| upstream(s, "http://a/b"), "the URL of an upstream must have no path or query: requests keep their own")]
#[case::user(|s: &mut Config| upstream(s, "http://u@a"), "the URL of an upstream must have a host and may have a port, but no user name")]
#[case::exposed_admin(
    |s: &mut Config| s.server.admin = "0.0.0.0:0".into(),
    "is not a loopback address, and there is no token to protect it; use 127.0.0.1"
)]
#[case::listen(|s: &mut Config| s.server.listen = "nowhere".into(), "cannot listen on nowhere: ")]
#[case::short_lease(
    |s: &mut Config| s.classes.get_mut("interactive").unwrap().lease = Duration::from_secs(29),
    "the lease of class interactive (29s) is shorter than the upstream timeout (30s); make it longer"
)]
#[case::store(
    |s: &mut Config| s.store = "mysql://user:password@a".into(),
    "there is no store `mysql:`; use `embedded:DIR`, `postgres://…`, `redis://…` or `memory:`"
)]
#[case::shared_store_without_a_secret(
    |s: &mut Config| s.store = "postgres://user:password@a/b".into(),
    "gateways that share a store need the same secrets.key, and none is given: set key in [secrets] of the configuration, or ONCEWARD_KEY, to 16 characters or more"
)]
#[case::directory(
    |s: &mut Config| s.store = "embedded:".into(),
    "`embedded:` has no directory; write `embedded:./onceward-data`, for example"
)]
#[tokio::test]
async fn a_start_error_names_its_correction(#[case] mistake: fn(&mut Config), #[case] words: &str) {
    let (mut config, _directory) = gateway_to("http://127.0.0.1:1").config();
    mistake(&mut config);
    let error = Gateway::start(config, None)
        .await
        .err()
        .unwrap()
        .to_string();
    assert!(error.contains(words), "{error}");
    assert!(!error.contains("password"), "{error}");
}

#[tokio::test]
async fn a_port_that_is_taken_is_named() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let (mut config, _directory) = gateway_to("http://127.0.0.1:1").config();
    config.server.listen = address.to_string();
    let error = Gateway::start(config, None)
        .await
        .err()
        .unwrap()
        .to_string();
    assert!(
        error.starts_with(&format!("cannot listen on {address}: ")),
        "{error}"
    );
}
