//! Mistakes and warnings about webhooks, and the values of valid settings.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use onceward_gateway::config::{self, SameBytes};
use onceward_webhooks::Tolerance;
use rstest::rstest;

use super::{ROUTE, mistakes, warnings};

/// An upstream alone; further text begins in line 3.
const UPSTREAM: &str = "[upstreams.a]\nurl = 'http://127.0.0.1:1'\n";
/// OpenBao, in three lines.
const OPENBAO: &str = "[secrets.openbao]\naddress = 'https://bao'\ntoken = 't'\n";

#[rstest]
#[case::unknown_key(
    "[webhooks]\nupstreem = 'a'",
    "4:1: webhooks.upstreem: unknown key; did you mean upstream?"
)]
#[case::no_such_upstream(
    "[webhooks]\nupstream = 'payments'",
    "4:12: webhooks.upstream: [upstreams.payments] does not exist; add it, or write one of a"
)]
#[case::no_such_class(
    "[webhooks]\nclass = 'webhok'",
    "4:9: webhooks.class: [classes.webhok] does not exist; did you mean \"webhook\"?"
)]
#[case::relative_path(
    "[webhooks]\npath = 'hooks'",
    "4:8: webhooks.path: \"hooks\" does not begin with /; write \"/webhooks/{provider}\", for example"
)]
#[case::path_elsewhere(
    "[webhooks]\npath = '/a/../{provider}'",
    "4:8: webhooks.path: \"/a/../{provider}\" has a . or .. segment; write \"/webhooks/{provider}\", for example"
)]
#[case::unknown_place_in_the_path(
    "[webhooks]\npath = '/{tenant}'",
    "4:8: webhooks.path: \"/{tenant}\" has a character that is not allowed unescaped in a path; write \"/webhooks/{provider}\", for example"
)]
#[case::tolerance_without_unit(
    "[webhooks]\ntolerance = '300'",
    "4:13: webhooks.tolerance: \"300\" has no unit; write a duration such as \"30s\", \"1h30m\" or \"7d\""
)]
#[case::tolerance_as_number(
    "[webhooks]\ntolerance = 300",
    "4:13: webhooks.tolerance: is an integer; write a duration or \"off\", such as \"5m\""
)]
#[case::tolerance_of_days(
    "[webhooks]\ntolerance = '2d'",
    "4:13: webhooks.tolerance: \"2d\" is out of range; write 0s to 24h"
)]
#[case::same_bytes(
    "[webhooks]\nsame_bytes = 'drop'",
    "4:14: webhooks.same_bytes: \"drop\" is not a valid value; write \"deliver\" or \"refuse\""
)]
#[case::no_deliveries(
    "[webhooks]\ndeliveries = 0",
    "4:14: webhooks.deliveries: 0 is out of range; write a number from 1 to 100000"
)]
#[case::provider_without_id(
    "[webhooks.providers.acme]\nsignature_header = 'X-Sig'",
    "3:1: webhooks.providers.acme.id: is missing; add it: an event's id: \"json:/id\", a JSON Pointer into the body; \"header:X-Event-Id\"; or \"form:id\""
)]
#[case::provider_that_is_built_in(
    "[webhooks.providers.stripe]\nsignature_header = 'X-Sig'\nid = 'json:/id'",
    "3:1: webhooks.providers.stripe: is the name of a provider that is built in; give it another name, such as [webhooks.providers.acme]"
)]
#[case::provider_in_capitals(
    "[webhooks.providers.Acme]\nsignature_header = 'X-Sig'\nid = 'json:/id'",
    "3:1: webhooks.providers.Acme: must be 1 to 64 of a-z, 0-9 and hyphen, and not begin with a hyphen; give it another name, such as [webhooks.providers.acme]"
)]
#[case::provider_by_md5(
    "[webhooks.providers.acme]\nsignature_header = 'X-Sig'\nalgorithm = 'md5'\nid = 'json:/id'",
    "5:13: webhooks.providers.acme.algorithm: \"md5\" is not a valid value; write \"sha1\", \"sha256\" or \"sha512\""
)]
#[case::provider_that_signs_no_body(
    "[webhooks.providers.acme]\nsignature_header = 'X-Sig'\nsigned = '{url}'\nid = 'json:/id'",
    "5:10: webhooks.providers.acme.signed: must have {body} once; write \"{timestamp}.{body}\", for example"
)]
#[case::provider_with_time_unsigned(
    "[webhooks.providers.acme]\nsignature_header = 'X-Sig'\ntimestamp = { header = 'X-Time' }\nid = 'json:/id'",
    "5:13: webhooks.providers.acme.timestamp: is not signed: put {timestamp} into `signed`, or omit it; give it exactly where the provider signs a time"
)]
#[case::provider_with_id_nowhere(
    "[webhooks.providers.acme]\nsignature_header = 'X-Sig'\nid = 'body.id'",
    "5:6: webhooks.providers.acme.id: must be `json:/pointer`, `header:NAME` or `form:field`; write \"json:/id\", \"header:X-Event-Id\" or \"form:id\", for example"
)]
#[case::signing_secret_that_is_none(
    "signing_secret = 'not base64 at all!'",
    "3:18: upstreams.a.signing_secret: the secret must be base64, with or without `whsec_` before it; write whsec_ and base64, such as `openssl rand -base64 32` gives"
)]
#[case::signing_secret_in_openbao_nowhere(
    "signing_secret = { openbao = 'x', field = 'y' }",
    "3:18: upstreams.a.signing_secret: is in OpenBao, which is not configured; add [secrets.openbao] with its address and a login"
)]
#[case::lease_of_the_class(
    "timeout = '2m'\n[webhooks]\nupstream = 'a'",
    "3:11: upstreams.a.timeout: 2m is longer than the lease of class webhook, 1m, so a running request could be treated as lost; write 1m or less, or lease = \"2m\" in [classes.webhook]"
)]
#[case::short_lease(
    "[webhooks]\nupstream = 'a'\n[classes.webhook]\nlease = '10s'",
    "6:9: classes.webhook.lease: 10s is shorter than the 30s that the upstream of webhooks may take, so a running request could be treated as lost; write 30s or longer"
)]
#[case::unkey_without_openbao(
    "[auth.unkey]\nroot_key = 'one'\nwebhook_root_key = 'two'",
    "5:20: auth.unkey.webhook_root_key: requires OpenBao, which holds the secrets of these webhooks; add [secrets.openbao] with its address and a login, or remove the key"
)]
fn one_mistake(#[case] text: &str, #[case] want: &str) {
    assert_eq!(mistakes(&format!("{UPSTREAM}{text}")), [want]);
}

#[rstest]
#[case::one_root_key_for_both(
    "[auth.unkey]\nroot_key = 'one'\nwebhook_root_key = 'one'",
    "6:20: auth.unkey.webhook_root_key: is also the root key of callers, so a webhook id would be an API key; create a root key that verifies webhook ids only"
)]
#[case::names_side_by_side(
    "path = '{tenant}{project}/{provider}'",
    "4:8: secrets.openbao.path: has two placeholders without a separator, so that two tenants could share a secret; separate them by / or :, which names never contain unescaped"
)]
#[case::names_with_a_hyphen_between(
    "path = '{tenant}-{project}/{provider}'",
    "4:8: secrets.openbao.path: has two placeholders without a separator, so that two tenants could share a secret; separate them by / or :, which names never contain unescaped"
)]
fn one_mistake_about_openbao(#[case] text: &str, #[case] want: &str) {
    assert_eq!(mistakes(&format!("{OPENBAO}{text}")), [want]);
}

#[rstest]
#[case::tolerance_off(
    "[webhooks]\ntolerance = 'off'",
    "4:13: webhooks.tolerance: a captured event is accepted again once its id is forgotten; write the tolerated clock difference, such as 5m"
)]
#[case::url_that_nobody_knows(
    "[webhooks.providers.acme]\nsignature_header = 'X-Sig'\nsigned = '{url}{body}'\nid = 'json:/id'",
    "5:10: webhooks.providers.acme.signed: the URL is signed, but server.public_url is missing: no webhook of this provider can be created; set server.public_url to the URL that the provider uses"
)]
#[case::short_retention_without_a_route(
    "[webhooks]\n[classes.webhook]\nretention = '2d'",
    "5:13: classes.webhook.retention: providers of webhooks retry for up to 3 days, but a reply is kept for 2d; write 3d or longer"
)]
#[case::one_upstream_holds_all(
    "[upstreams.b]\nurl = 'http://127.0.0.1:2'\n[webhooks]\ndeliveries = 8\ndeliveries_per_upstream = 4",
    "7:27: webhooks.deliveries_per_upstream: as many again can wait, so one slow upstream could occupy all 8 deliveries; write 3, or deliveries = 9 or more"
)]
#[case::one_upstream_holds_the_only_one(
    "[upstreams.b]\nurl = 'http://127.0.0.1:2'\n[webhooks]\ndeliveries = 2\ndeliveries_per_upstream = 1",
    "7:27: webhooks.deliveries_per_upstream: as many again can wait, so one slow upstream could occupy all 2 deliveries; write deliveries = 3 or more"
)]
#[case::one_secret_for_all_projects(
    "[webhooks]\n[secrets.openbao]\naddress = 'https://bao'\ntoken = 't'\npath = '{tenant}/{provider}'",
    "7:8: secrets.openbao.path: {project} is not in it, so webhooks that differ in it share their secrets; write webhooks/{tenant}/{project}/{provider}, for example"
)]
fn one_warning(#[case] text: &str, #[case] want: &str) {
    assert_eq!(
        warnings(&format!("{UPSTREAM}{text}\n[auth.api_keys]")),
        [want]
    );
}

#[rstest]
#[case::upstream_for_webhooks_alone("[webhooks]\nupstream = 'a'")]
#[case::one_upstream_may_hold_all("[webhooks]\ndeliveries = 8\ndeliveries_per_upstream = 8")]
#[case::room_for_others(
    "[upstreams.b]\nurl = 'http://127.0.0.1:2'\n[webhooks]\ndeliveries = 9\ndeliveries_per_upstream = 4"
)]
fn not_warned(#[case] text: &str) {
    let text = format!("{UPSTREAM}{text}\n[auth.api_keys]");
    assert_eq!(warnings(&text), [""; 0]);
}

#[test]
fn configured_values_are_used() {
    let text = format!(
        "{ROUTE}[webhooks]\nupstream = 'a'\npath = '/in/{{provider}}'\nclass = 'financial'\ntolerance = '0s'\nsame_bytes = 'refuse'\noverlap = '1h'\ndeliveries = 3\ndeliveries_per_upstream = 2\n[webhooks.providers.acme]\nsignature_header = 'X-Sig'\nid = 'json:/id'"
    );
    let loaded = config::parse(&text, Path::new("onceward.toml"), &BTreeMap::new());
    let said = loaded.expect("no mistakes").config.webhooks;
    assert_eq!(said.upstream.as_deref(), Some("a"));
    assert_eq!(said.path_for("stripe"), "/in/stripe");
    assert_eq!(&*said.class, "financial");
    // Only an explicit "off" turns it off.
    assert_eq!(said.tolerance, Tolerance::Within(Duration::ZERO));
    assert_eq!(said.same_bytes, SameBytes::Refuse);
    assert_eq!(said.overlap, Duration::from_secs(3600));
    assert_eq!((said.deliveries, said.deliveries_per_upstream), (3, 2));
    for (name, known) in [("acme", true), ("stripe", true), ("zeta", false)] {
        let provider = said.provider(name);
        assert_eq!(provider.is_some(), known, "{name}");
        assert!(provider.is_none_or(|provider| provider.name() == name));
    }
}
