//! Each possible mistake of a configuration, with its message: the location, the
//! key, the problem, and the correction.

use std::path::Path;

use onceward_gateway::config;
use onceward_stores::Durability;
use rstest::rstest;

use super::{ROUTE, environment, mistakes, report};

#[rstest]
#[case::unknown_key(
    "[server]\nlistn = '127.0.0.1:1'",
    "2:1: server.listn: unknown key; did you mean listen?"
)]
#[case::far_from_any_key(
    "[store]\nzzzzzz = 1",
    "2:1: store.zzzzzz: unknown key; the valid keys are connections, durability, listen_url, namespace, table, url"
)]
#[case::unknown_section(
    "[sever]\nlisten = '127.0.0.1:1'",
    "1:2: sever: unknown key; did you mean server?"
)]
#[case::number_for_text(
    "[server]\nlisten = 8080",
    "2:10: server.listen: is an integer; write a string in quotes"
)]
#[case::text_for_list(
    "[server]\ntrusted_proxies = '10.0.0.0/8'",
    "2:19: server.trusted_proxies: is a string; write a list in which each element is a string in quotes"
)]
#[case::text_for_boolean(
    "[server]\nproxy_protocol = 'yes'",
    "2:18: server.proxy_protocol: is a string; write true or false"
)]
#[case::date(
    "[server]\nlisten = 2026-01-01",
    "2:10: server.listen: is a date; write a string in quotes"
)]
#[case::table_for_text(
    "[server]\nlisten = { host = 'x' }",
    "2:10: server.listen: is a table; write a string in quotes"
)]
#[case::no_port(
    "[server]\nlisten = 'localhost'",
    "2:10: server.listen: \"localhost\" is not an address with a port; write \"127.0.0.1:8080\" or \"[::1]:8080\", for example"
)]
#[case::port_too_large(
    "[server]\nlisten = '127.0.0.1:99999'",
    "2:10: server.listen: \"127.0.0.1:99999\" is not an address with a port; write \"127.0.0.1:8080\" or \"[::1]:8080\", for example"
)]
#[case::one_listener_for_both(
    "[server]\nlisten = '127.0.0.1:8081'",
    "1:1: server.admin: is the same address as server.listen; use another port"
)]
#[case::admin_exposed(
    "[server]\nadmin = '0.0.0.0:8081'",
    "2:9: server.admin: is reachable by other machines without a token; add admin_token = \"${ONCEWARD_ADMIN_TOKEN}\", or use 127.0.0.1"
)]
#[case::empty_token(
    "[server]\nadmin_token = ''",
    "2:15: server.admin_token: the secret is empty; write one, or remove the key"
)]
#[case::unknown_role(
    "[server]\nadmin_tokens = [{ name = 'x', role = 'boss', token = 't' }]",
    "2:38: server.admin_tokens[0].role: \"boss\" is not a valid value; write \"read\", \"operate\" or \"admin\""
)]
#[case::incomplete_token(
    "[server]\nadmin_tokens = [{ role = 'read', token = 't' }]",
    "2:17: server.admin_tokens[0].name: is missing; add it: the name in the audit log"
)]
#[case::no_public_url(
    "[server]\npublic_url = 'api.example.com'",
    "2:14: server.public_url: has an unsupported scheme; begin with https:// or http://"
)]
#[case::bare_time(
    "[server]\ndrain = '30'",
    "2:9: server.drain: \"30\" has no unit; write a duration such as \"30s\", \"1h30m\" or \"7d\""
)]
#[case::unknown_unit(
    "[server]\ndrain = '1w'",
    "2:9: server.drain: \"1w\" has an unknown unit; write a duration such as \"30s\", \"1h30m\" or \"7d\""
)]
#[case::no_time(
    "[server]\nhead_deadline = '0s'",
    "2:17: server.head_deadline: \"0s\" is out of range; write 1ms or longer"
)]
#[case::eternity(
    "[server]\ndrain = '99999d'",
    "2:9: server.drain: \"99999d\" is too large; write ten years or less"
)]
#[case::bare_size(
    "[server]\nbody_limit = '1024'",
    "2:14: server.body_limit: \"1024\" has no unit; write a size such as \"64KiB\" or \"1MiB\""
)]
#[case::size_of_letters(
    "[server]\nbody_limit = '1M'",
    "2:14: server.body_limit: \"1M\" has an unknown unit; write a size such as \"64KiB\" or \"1MiB\""
)]
#[case::no_size(
    "[server]\nbody_limit = '0B'",
    "2:14: server.body_limit: \"0B\" is zero; write a size such as \"64KiB\" or \"1MiB\""
)]
#[case::certificate_without_key(
    "[server]\ntls = { cert = 'Cargo.toml' }",
    "2:7: server.tls.key: is missing; add it: the file with the private key, PEM"
)]
#[case::client_auth_without_ca(
    "[server]\ntls = { cert = 'Cargo.toml', key = 'Cargo.toml', client_auth = 'optional' }",
    "2:64: server.tls.client_auth: requires client_ca, the authority of client certificates; add client_ca = \"…\", or remove client_auth"
)]
#[case::no_network(
    "[server]\ntrusted_proxies = ['10.0.0.0/99']",
    "2:20: server.trusted_proxies[0]: \"10.0.0.0/99\" is not an address or a network; write \"10.0.0.7\" or \"10.0.0.0/8\", for example"
)]
#[case::proxy_protocol_from_nobody(
    "[server]\nproxy_protocol = true",
    "2:18: server.proxy_protocol: requires trusted proxies; list their addresses in trusted_proxies"
)]
#[case::unknown_store(
    "[store]\nurl = 'sqlite:x'",
    "2:7: store.url: names no store; write \"embedded:./onceward-data\", \"postgres://…\", \"redis://…\", or \"memory:\" which loses everything at the end"
)]
#[case::store_without_directory(
    "[store]\nurl = 'embedded:'",
    "2:7: store.url: names no directory; write \"embedded:./onceward-data\", \"postgres://…\", \"redis://…\", or \"memory:\" which loses everything at the end"
)]
fn listeners_and_stores(#[case] text: &str, #[case] want: &str) {
    assert_eq!(mistakes(text), [want]);
}

/// Settings of another kind of store, and settings that a store requires.
#[rstest]
#[case::memory_with_more(
    "[store]\nurl = 'memory:x'",
    "2:7: store.url: has something behind memory:; write \"embedded:./onceward-data\", \"postgres://…\", \"redis://…\", or \"memory:\" which loses everything at the end"
)]
#[case::no_server(
    "[store]\nurl = 'postgres:x'",
    "2:7: store.url: names no server; write \"embedded:./onceward-data\", \"postgres://…\", \"redis://…\", or \"memory:\" which loses everything at the end"
)]
#[case::namespace_of_one_process(
    "[store]\nnamespace = 'shop'",
    "2:13: store.namespace: is a setting of postgres:// and redis://, but the store is embedded:; remove it"
)]
#[case::connections_of_one_process(
    "[store]\nurl = 'memory:'\nconnections = 3",
    "3:15: store.connections: is a setting of postgres:// and redis://, but the store is memory:; remove it"
)]
#[case::table_of_redis(
    "[secrets]\nkey = '0123456789abcdef'\n[store]\nurl = 'redis://cache'\ntable = 'a'",
    "5:9: store.table: is a setting of postgres://, but the store is redis://; remove it"
)]
#[case::listening_to_redis(
    "[secrets]\nkey = '0123456789abcdef'\n[store]\nurl = 'rediss://cache'\nlisten_url = 'postgres://db/x'",
    "5:14: store.listen_url: is a setting of postgres://, but the store is redis://; remove it"
)]
#[case::durability_of_postgres(
    "[secrets]\nkey = '0123456789abcdef'\n[store]\nurl = 'postgres://db/x'\ndurability = 'wait:1'",
    "5:14: store.durability: is a setting of redis://, but the store is postgres://; remove it"
)]
#[case::namespace_that_is_none(
    "[secrets]\nkey = '0123456789abcdef'\n[store]\nurl = 'postgres://db/x'\nnamespace = 'Shop'",
    "5:13: store.namespace: a namespace holds only a-z, 0-9, - and _, not 'S'; write 1 to 64 of a-z, 0-9, - and _"
)]
#[case::table_that_is_none(
    "[secrets]\nkey = '0123456789abcdef'\n[store]\nurl = 'postgres://db/x'\ntable = 'a;b'",
    "5:9: store.table: \"a;b\" is not a table name; write \"idempotency_record\" or \"schema.idempotency_record\", of lower-case letters, digits and _, 40 at most"
)]
#[case::listening_elsewhere(
    "[secrets]\nkey = '0123456789abcdef'\n[store]\nurl = 'postgres://db/x'\nlisten_url = 'redis://cache'",
    "5:14: store.listen_url: is not a PostgreSQL server; write the server's own URL, past the pooler: \"postgres://…\""
)]
#[case::no_connections(
    "[secrets]\nkey = '0123456789abcdef'\n[store]\nurl = 'postgres://db/x'\nconnections = 0",
    "5:15: store.connections: 0 is out of range; write a number from 1 to 1000"
)]
#[case::durability_that_is_none(
    "[secrets]\nkey = '0123456789abcdef'\n[store]\nurl = 'redis://cache'\ndurability = 'fsync'",
    "5:14: store.durability: \"fsync\" is not known; write \"none\", or \"wait:1\" for one replica"
)]
#[case::parameter(
    "[secrets]\nkey = '0123456789abcdef'\n[store]\nurl = 'postgres://u:hush@db/x?sslmode=maybe'",
    "4:7: store.url: sslmode in the URL is \"maybe\"; it is one of disable, prefer, require and verify-full; correct it, or remove it"
)]
#[case::no_shared_key(
    "[store]\nurl = 'postgres://u:hush@db/x'",
    "2:7: store.url: gateways that share a store need the same secrets.key, and none is given; write key = \"${ONCEWARD_KEY}\" in [secrets], 16 or more random characters: openssl rand -hex 32"
)]
#[case::no_shared_key_for_redis(
    "[store]\nurl = 'redis://cache'",
    "2:7: store.url: gateways that share a store need the same secrets.key, and none is given; write key = \"${ONCEWARD_KEY}\" in [secrets], 16 or more random characters: openssl rand -hex 32"
)]
fn stores(#[case] text: &str, #[case] want: &str) {
    assert_eq!(mistakes(text), [want]);
}

#[test]
fn every_setting_of_a_store_is_passed_on() {
    let text = "[store]\nurl = 'postgres://db/x'\nnamespace = 'shop'\ntable = 'ops.records'\n\
                listen_url = 'postgres://direct/x'\nconnections = 7\n\
                [secrets]\nkey = '0123456789abcdef'\n[limits]\nstore_deadline = '3s'";
    let loaded = parsed(text);
    let store = loaded.store;
    assert_eq!(store.url, "postgres://db/x");
    assert_eq!(store.namespace.as_str(), "shop");
    assert_eq!(store.table, "ops.records");
    assert_eq!(store.listen_url.as_deref(), Some("postgres://direct/x"));
    assert_eq!((store.connections, store.deadline.as_secs()), (7, 3));
    let text = "[store]\nurl = 'redis://cache'\ndurability = 'wait:2'\n\
                [secrets]\nkey = '0123456789abcdef'";
    assert_eq!(parsed(text).store.durability, Durability::Replicas(2));
}

fn parsed(text: &str) -> config::Config {
    match config::parse(text, Path::new("onceward.toml"), &environment(&[])) {
        Ok(loaded) => loaded.config,
        Err(mistakes) => panic!("{mistakes:#?}"),
    }
}

/// A joined route, and settings that conflict with it.
#[rstest]
#[case::embedded_store("method = 'POST'\njoined = true", "", &["8:10: routes[0].joined: requires PostgreSQL, because the application commits to the store's database; write url = \"postgres://…\" in [store], the application's own database; or remove joined"])]
#[case::redis("method = 'POST'\njoined = true", "[store]\nurl = 'redis://cache'", &["8:10: routes[0].joined: requires PostgreSQL, because the application commits to the store's database; write url = \"postgres://…\" in [store], the application's own database; or remove joined"])]
#[case::postgres("method = 'POST'\njoined = true", "[store]\nurl = 'postgres://db/x'", &[])]
#[case::not_joined("method = 'POST'\njoined = false", "", &[])]
#[case::without_keys("method = 'POST'\njoined = true\npolicy = 'PROHIBITED'", "[store]\nurl = 'postgres://db/x'", &["8:10: routes[0].joined: no request of this route has a key, so there is no record to share; write policy = \"REQUIRED_A\" or \"ACCEPTED\", or remove joined"])]
#[case::handled_inside("method = 'POST'\njoined = true\npolicy = 'HANDLER_INTERNAL_C'", "[store]\nurl = 'postgres://db/x'", &["8:10: routes[0].joined: no request of this route has a key, so there is no record to share; write policy = \"REQUIRED_A\" or \"ACCEPTED\", or remove joined"])]
#[case::only_read("method = 'GET'\njoined = true", "[store]\nurl = 'postgres://db/x'", &["8:10: routes[0].joined: no request of this route has a key, so there is no record to share; write policy = \"REQUIRED_A\" or \"ACCEPTED\", or remove joined"])]
#[case::no_key_forwarded("method = 'POST'\njoined = true\nforward_key = 'none'", "[store]\nurl = 'postgres://db/x'", &["9:15: routes[0].forward_key: a joined application needs the key; remove it, or write \"namespaced\" or \"raw\""])]
fn joined_routes(#[case] route: &str, #[case] rest: &str, #[case] want: &[&str]) {
    let text = format!("{ROUTE}{route}\n{rest}\n[secrets]\nkey = '0123456789abcdef'");
    assert_eq!(mistakes(&text), want);
}

#[rstest]
#[case::short_key(
    "[secrets]\nkey = 'short'",
    "2:7: secrets.key: the secret has 5 characters; use 16 or more random characters"
)]
#[case::unreadable_file(
    "[secrets]\nkey = { file = 'no.key' }",
    "2:16: secrets.key.file: no.key cannot be read: No such file or directory (os error 2); name a file that the gateway can read; paths are relative to the configuration's directory"
)]
#[case::key_in_openbao(
    "[secrets]\nkey = { openbao = 'x', field = 'y' }",
    "2:7: secrets.key: must not be in OpenBao, because it is needed before OpenBao can be reached; write \"${NAME}\", or { file = \"…\" }"
)]
#[case::openbao_nowhere(
    "[server]\nadmin_token = { openbao = 'x', field = 'y' }",
    "2:15: server.admin_token: is in OpenBao, which is not configured; add [secrets.openbao] with its address and a login"
)]
#[case::openbao_without_login(
    "[secrets.openbao]\naddress = 'https://bao'",
    "1:1: secrets.openbao: has no login; write token = \"${BAO_TOKEN}\", or role_id and secret_id"
)]
#[case::openbao_with_two_logins(
    "[secrets.openbao]\naddress = 'https://bao'\ntoken = 't'\nrole_id = 'r'\nsecret_id = 's'",
    "3:9: secrets.openbao.token: is given together with role_id or secret_id; write token = \"${BAO_TOKEN}\", or role_id and secret_id"
)]
#[case::openbao_in_the_clear(
    "[secrets.openbao]\naddress = 'http://bao:8200'\ntoken = 't'",
    "2:11: secrets.openbao.address: is sent unencrypted over a network; write https://; http:// is allowed for 127.0.0.1 and localhost only"
)]
#[case::openbao_path(
    "[secrets.openbao]\naddress = 'https://bao'\ntoken = 't'\npath = 'webhooks/{tenent}'",
    "4:8: secrets.openbao.path: contains an unknown placeholder; use only {tenant}, {project} and {provider}"
)]
#[case::variable_not_set(
    "[secrets]\nkey = '${NO_SUCH}'",
    "2:7: secrets.key: the environment variable NO_SUCH is not set; set it, or write $${NO_SUCH} for the literal text"
)]
#[case::variable_unfinished(
    "[secrets]\nkey = 'x${NO_SUCH'",
    "2:7: secrets.key: ${ is not followed by a variable name and }; write ${NAME}, or $${ for a literal ${"
)]
fn secrets(#[case] text: &str, #[case] want: &str) {
    assert_eq!(mistakes(text), [want]);
}

#[rstest]
#[case::unknown_method(
    "[auth.oidc]",
    "1:7: auth.oidc: unknown key; the valid keys are api_keys, jwt, scheduler, unkey"
)]
#[case::nothing_to_choose(
    "[auth.api_keys]\nprefix = 'x'",
    "2:1: auth.api_keys.prefix: unknown key; this table has no keys"
)]
#[case::no_issuer(
    "[[auth.jwt]]\naudience = 'a'\ntenant = '/t'\njwks_url = 'https://i/keys'",
    "1:1: auth.jwt[0].issuer: is missing; add it: the value of `iss`"
)]
#[case::no_audience(
    "[[auth.jwt]]\nissuer = 'i'\naudience = []\ntenant = '/t'\njwks_url = 'https://i/keys'\n",
    "3:12: auth.jwt[0].audience: is empty; write the value of aud in the issuer's tokens for this service"
)]
#[case::no_keys(
    "[[auth.jwt]]\nissuer = 'i'\naudience = 'a'\ntenant = '/t'\n",
    "1:1: auth.jwt[0]: the issuer's keys are not given; write jwks_url = \"https://…\" or jwks_file = \"…\""
)]
#[case::keys_twice(
    "[[auth.jwt]]\nissuer = 'i'\naudience = 'a'\ntenant = '/t'\njwks_url = 'https://i/keys'\njwks_file = 'x'",
    "6:13: auth.jwt[0].jwks_file: jwks_url is given too; write jwks_url = \"https://…\" or jwks_file = \"…\""
)]
#[case::plain_keys(
    "[[auth.jwt]]\nissuer = 'i'\naudience = 'a'\ntenant = '/t'\njwks_url = 'http://example.com/keys'",
    "5:12: auth.jwt[0].jwks_url: is sent unencrypted over a network; write https://; http:// is allowed for 127.0.0.1 and localhost only"
)]
#[case::missing_keys(
    "[[auth.jwt]]\nissuer = 'i'\naudience = 'a'\ntenant = '/t'\njwks_file = 'no.json'",
    "5:13: auth.jwt[0].jwks_file: no.json cannot be read: No such file or directory (os error 2); name a file that the gateway can read; paths are relative to the configuration's directory"
)]
#[case::symmetric(
    "[[auth.jwt]]\nissuer = 'i'\naudience = 'a'\ntenant = '/t'\njwks_url = 'https://i/keys'\nalgorithms = ['HS256']",
    "6:15: auth.jwt[0].algorithms[0]: \"HS256\" is symmetric: a verifier could forge tokens; write RS256, RS384, RS512, PS256, PS384, PS512, ES256, ES384 or EdDSA"
)]
#[case::unsigned(
    "[[auth.jwt]]\nissuer = 'i'\naudience = 'a'\ntenant = '/t'\njwks_url = 'https://i/keys'\nalgorithms = ['none']",
    "6:15: auth.jwt[0].algorithms[0]: \"none\" is not an algorithm; write RS256, RS384, RS512, PS256, PS384, PS512, ES256, ES384 or EdDSA"
)]
#[case::no_algorithm(
    "[[auth.jwt]]\nissuer = 'i'\naudience = 'a'\ntenant = '/t'\njwks_url = 'https://i/keys'\nalgorithms = []",
    "6:14: auth.jwt[0].algorithms: is empty, so no token would be valid; write RS256, RS384, RS512, PS256, PS384, PS512, ES256, ES384 or EdDSA"
)]
#[case::no_pointer(
    "[[auth.jwt]]\nissuer = 'i'\naudience = 'a'\ntenant = '/t'\njwks_url = 'https://i/keys'\nscopes = 'scope'",
    "6:10: auth.jwt[0].scopes: \"scope\" is not a JSON Pointer; begin with /, such as \"/order/id\"; ~1 stands for / and ~0 for ~"
)]
#[case::name_for_pointer(
    "[[auth.jwt]]\nissuer = 'i'\naudience = 'a'\ntenant = 'acme'\njwks_url = 'https://i/keys'\n",
    "4:10: auth.jwt[0].tenant: \"acme\" is not a JSON Pointer; write \"/acme\" for a claim, or { value = \"acme\" } for a fixed name"
)]
#[case::bad_escape(
    "[[auth.jwt]]\nissuer = 'i'\naudience = 'a'\ntenant = '/t'\njwks_url = 'https://i/keys'\nproject = '/a~2'",
    "6:11: auth.jwt[0].project: \"/a~2\" is not a JSON Pointer; begin with /, such as \"/order/id\"; ~1 stands for / and ~0 for ~"
)]
#[case::reserved_tenant(
    "[[auth.jwt]]\nissuer = 'i'\naudience = 'a'\ntenant = { value = '_local' }\njwks_url = 'https://i/keys'\n",
    "4:20: auth.jwt[0].tenant.value: the tenant is a name reserved for the gateway; write another name; names that begin with _ are reserved"
)]
#[case::reserved_subject(
    "[[auth.jwt]]\nissuer = 'i'\naudience = 'a'\ntenant = '/t'\njwks_url = 'https://i/keys'\nsubject = { value = 'scheduler' }\nsubject_type = 'service'",
    "6:21: auth.jwt[0].subject.value: the subject is a name reserved for the gateway; write another name; names that begin with _ are reserved"
)]
#[case::leeway(
    "[[auth.jwt]]\nissuer = 'i'\naudience = 'a'\ntenant = '/t'\njwks_url = 'https://i/keys'\nleeway = '2m'",
    "6:10: auth.jwt[0].leeway: \"2m\" is out of range; write 0s to 1m"
)]
#[case::issuer_twice(
    "[[auth.jwt]]\nissuer = 'i'\naudience = 'a'\ntenant = '/t'\njwks_url = 'https://i/keys'\n[[auth.jwt]]\nissuer = 'i'\naudience = 'a'\ntenant = '/t'\njwks_url = 'https://i/keys'\n",
    "7:10: auth.jwt[1].issuer: the issuer has another entry; use one entry per issuer, with its audiences as a list"
)]
#[case::unkey_without_key(
    "[auth.unkey]",
    "1:1: auth.unkey.root_key: is missing; add it: the root key that verifies callers' keys"
)]
#[case::unkey_in_the_clear(
    "[auth.unkey]\nroot_key = 'x'\nurl = 'http://unkey:1'",
    "3:7: auth.unkey.url: is sent unencrypted over a network; write https://; http:// is allowed for 127.0.0.1 and localhost only"
)]
#[case::unkey_cache(
    "[auth.unkey]\nroot_key = 'x'\ncache = '60s'",
    "3:9: auth.unkey.cache: \"60s\" is out of range; write 0s to 59s"
)]
#[case::scheduler_without_secret(
    "[auth.scheduler]",
    "1:1: auth.scheduler: has no secret; write secret = \"${SCHEDULER_SECRET}\", or secrets while they rotate"
)]
#[case::scheduler_short_secret(
    "[auth.scheduler]\nsecret = 'short'",
    "2:10: auth.scheduler.secret: the secret has 5 characters; use 16 or more random characters"
)]
fn callers(#[case] text: &str, #[case] want: &str) {
    assert_eq!(mistakes(text), [want]);
}

#[rstest]
#[case::word(
    "[classes.mine]\nin_flight = 'wiat'",
    "2:13: classes.mine.in_flight: \"wiat\" is not a valid value; write \"wait\", \"reject\" or \"accept\""
)]
#[case::time(
    "[classes.mine]\nretention = '24'",
    "2:13: classes.mine.retention: \"24\" has no unit; write a duration such as \"30s\", \"1h30m\" or \"7d\""
)]
#[case::remember(
    "[classes.financial]\nremember = '1d'",
    "2:12: classes.financial.remember: 24h is shorter than the retention of 7d; write the retention or longer"
)]
#[case::reconcile(
    "[classes.mine]\non_unknown = 'reconcile'",
    "2:14: classes.mine.on_unknown: requires reconcile_url; add reconcile_url = \"https://…\", or write on_unknown = \"hold\""
)]
#[case::reconcile_url(
    "[classes.mine]\nreconcile_url = 'x'",
    "2:17: classes.mine.reconcile_url: has an unsupported scheme; begin with https:// or http://"
)]
#[case::attempts(
    "[classes.mine]\nmax_attempts = 0",
    "2:16: classes.mine.max_attempts: 0 is out of range; write a number from 1 to 1000"
)]
#[case::backoff(
    "[classes.mine]\nbackoff = { first = '2m', max = '1m' }",
    "2:33: classes.mine.backoff.max: 1m is shorter than the first pause of 2m; write the first pause or longer"
)]
#[case::backoff_key(
    "[classes.mine]\nbackoff = { frist = '2m' }",
    "2:13: classes.mine.backoff.frist: unknown key; did you mean first?"
)]
#[case::name(
    "[classes.'my class']\nretention = '1d'",
    "1:1: classes.\"my class\": is not a valid name; write 1 to 64 of the characters A-Z a-z 0-9 . _ -"
)]
fn classes(#[case] text: &str, #[case] want: &str) {
    assert_eq!(mistakes(text), [want]);
}

#[rstest]
#[case::no_url(
    "[upstreams.b]\ntimeout = '1s'",
    "1:1: upstreams.b.url: is missing; add it: http://, https:// or h2c://, with host and port and without a path"
)]
#[case::scheme(
    "[upstreams.b]\nurl = 'ws://127.0.0.1:1'",
    "2:7: upstreams.b.url: has an unsupported scheme; begin with http://, https://, or h2c:// for HTTP/2 without TLS"
)]
#[case::path(
    "[upstreams.b]\nurl = 'http://127.0.0.1:1/api'",
    "2:7: upstreams.b.url: has a path, a query or a fragment; write only scheme, host and port: requests keep their own path"
)]
#[case::user(
    "[upstreams.b]\nurl = 'http://user:password@127.0.0.1:1'",
    "2:7: upstreams.b.url: holds a user or a password; write the URL without it, and credentials where they have a key"
)]
#[case::connections(
    "[upstreams.b]\nurl = 'http://127.0.0.1:1'\nconnections_max = 0",
    "3:19: upstreams.b.connections_max: 0 is out of range; write a number from 1 to 1000000"
)]
#[case::host(
    "[upstreams.b]\nurl = 'http://127.0.0.1:1'\nhost = 'a b'",
    "3:8: upstreams.b.host: \"a b\" is not a host; write \"api.example.com\", with a port if need be"
)]
#[case::tls_without_tls(
    "[upstreams.b]\nurl = 'http://127.0.0.1:1'\ntls = { server_name = 'b' }",
    "3:7: upstreams.b.tls: the upstream does not use TLS; write an https:// URL, or remove tls"
)]
#[case::certificate_alone(
    "[upstreams.b]\nurl = 'https://127.0.0.1:1'\ntls = { cert = 'Cargo.toml' }",
    "3:7: upstreams.b.tls: cert and key must be given together; write both, or neither"
)]
fn upstreams(#[case] text: &str, #[case] want: &str) {
    assert_eq!(mistakes(text), [want]);
}

#[rstest]
#[case::zero(
    "[limits]\nconnections = 0",
    "2:15: limits.connections: 0 is out of range; write a number from 1 to 1000000"
)]
#[case::negative(
    "[limits]\nstreams = -1",
    "2:11: limits.streams: -1 is out of range; write a number from 1 to 100000"
)]
#[case::fraction(
    "[limits]\nwaiters = 1.5",
    "2:11: limits.waiters: is a number; write an integer"
)]
#[case::rate(
    "[limits]\nrequests_per_tenant = { burst = 1 }",
    "2:23: limits.requests_per_tenant.per_second: is missing; add it: the sustained rate, in requests per second"
)]
#[case::deadline(
    "[limits]\nstore_deadline = '2h'",
    "2:18: limits.store_deadline: \"2h\" is out of range; write 1ms to 1m"
)]
#[case::room(
    "[limits]\nbuffered_bytes = '64KiB'",
    "2:18: limits.buffered_bytes: a body within body_limit is larger than limits.buffered_bytes; lower body_limit, or raise limits.buffered_bytes"
)]
#[case::keys(
    "[telemetry]\nkeys = 'plain'",
    "2:8: telemetry.keys: \"plain\" is not a valid value; write \"hashed\" or \"clear\""
)]
#[case::sample(
    "[telemetry]\notlp = { endpoint = 'http://127.0.0.1:1', sample = 1.5 }",
    "2:52: telemetry.otlp.sample: 1.5 is out of range; write a number from 0 to 1"
)]
#[case::cors_for_all(
    "[cors]\norigins = ['*']\ncredentials = true",
    "3:15: cors.credentials: browsers do not allow cookies for every origin; list the origins, or write credentials = false"
)]
fn limits_telemetry_and_cors(#[case] text: &str, #[case] want: &str) {
    assert_eq!(mistakes(text), [want]);
}

#[rstest]
#[case::unknown_key(
    "polcy = 'ACCEPTED'",
    "7:1: routes[0].polcy: unknown key; did you mean policy?"
)]
#[case::unknown_policy(
    "policy = 'REQUIRED'",
    "7:10: routes[0].policy: \"REQUIRED\" is not a valid value; write \"REQUIRED_A\", \"REQUIRED_B\", \"ACCEPTED\", \"HANDLER_INTERNAL_C\" or \"PROHIBITED\""
)]
#[case::webhooks_have_no_route(
    "policy = 'REQUIRED_B'",
    "7:10: routes[0].policy: REQUIRED_B is the policy of webhooks, which are received at /api/v1/webhooks/{provider}/{webhook_id} without a route; create a webhook with `onceward webhooks create`; for this route write \"REQUIRED_A\", or derived_key with an id from the request"
)]
#[case::unknown_class(
    "class = 'finance'",
    "7:9: routes[0].class: [classes.finance] does not exist; did you mean \"financial\"?"
)]
#[case::method_in_small_letters(
    "method = 'post'",
    "7:10: routes[0].method: \"post\" is not a supported method; write GET, HEAD, POST, PUT, PATCH, DELETE or OPTIONS"
)]
#[case::method_twice(
    "method = ['POST', 'POST']",
    "7:10: routes[0].method: \"POST\" is listed twice; write it once"
)]
#[case::no_method(
    "method = []",
    "7:10: routes[0].method: is empty; write the methods, or remove the key for all"
)]
#[case::unknown_scope(
    "scope = 'global'",
    "7:9: routes[0].scope: \"global\" is not a valid value; write \"project\", \"tenant\" or \"platform\""
)]
#[case::unknown_auth(
    "auth = ['apikeys']",
    "7:9: routes[0].auth[0]: \"apikeys\" is not a valid value; write \"api_keys\", \"jwt\", \"unkey\" or \"scheduler\""
)]
#[case::auth_of_nobody(
    "auth = []",
    "7:8: routes[0].auth: is empty, so no request could be authorised; write \"none\" to let every client call, or remove the key to let all authenticated callers call"
)]
#[case::auth_word(
    "auth = 'anyone'",
    "7:8: routes[0].auth: \"anyone\" is not a valid value; write \"none\", or a list in which each element is \"api_keys\", \"jwt\", \"unkey\" or \"scheduler\""
)]
#[case::scopes_of_nobody(
    "auth = 'none'\nscopes = ['x']",
    "8:10: routes[0].scopes: has no effect, because callers of this route are not authenticated; remove it, or remove auth = \"none\""
)]
#[case::subject(
    "subjects = ['billing']",
    "7:13: routes[0].subjects[0]: \"billing\" is not a subject; write \"user:*\" or \"service:billing\"; the types are user, service, tenant_member and client"
)]
#[case::blank_scope(
    "scopes = ['a b']",
    "7:11: routes[0].scopes[0]: \"a b\" is not a scope; write one word per scope"
)]
#[case::key_format(
    "key_format = 'uuid4'",
    "7:14: routes[0].key_format: \"uuid4\" is not a valid value; write \"any\", \"uuid\" or \"ulid\""
)]
#[case::derived_of_nothing(
    "derived_key = { from = ['caller', 'endpoint'], window = '1m' }",
    "7:24: routes[0].derived_key.from: contains no part of the request, so all requests of a caller would be one operation; add a part that identifies the operation, such as \"/order/id\""
)]
#[case::derived_without_window(
    "derived_key = { from = ['/id'] }",
    "7:15: routes[0].derived_key.window: is missing; add it: how long requests with the same parts are the same operation"
)]
#[case::derived_of_unknown(
    "derived_key = { from = ['id'], window = '1m' }",
    "7:25: routes[0].derived_key.from[0]: \"id\" is not a part of a request; write \"caller\", \"endpoint\", \"/order/id\", \"header:X-Order\", \"query:order\" or \"body\""
)]
#[case::derived_twice(
    "derived_key = { from = ['/id', '/id'], window = '1m' }",
    "7:32: routes[0].derived_key.from[1]: is listed twice; write it once"
)]
#[case::derived_where_no_key_is(
    "policy = 'PROHIBITED'\nderived_key = { from = ['/id'], window = '1m' }",
    "8:15: routes[0].derived_key: the policy of this route ignores keys; write policy = \"ACCEPTED\" or \"REQUIRED_A\", or remove derived_key"
)]
#[case::key_space(
    "key_space = 'global'",
    "7:13: routes[0].key_space: \"global\" is not a valid value; write \"endpoint\", \"project\" or \"tenant\""
)]
#[case::ignored_header(
    "fingerprint = { ignore = ['header:X-A'] }",
    "7:27: routes[0].fingerprint.ignore[0]: headers are compared only if included; remove it"
)]
#[case::ignored_and_included(
    "fingerprint = { ignore = ['/a'], include = ['/a'] }",
    "7:44: routes[0].fingerprint.include: /a is in both ignore and include; write it in one of the two lists"
)]
#[case::no_part(
    "fingerprint = { ignore = ['a'] }",
    "7:27: routes[0].fingerprint.ignore[0]: \"a\" is not a part of a request; write \"/order/id\", \"query:trace\" or \"header:X-Currency\""
)]
#[case::status(
    "keep_statuses = [99]",
    "7:18: routes[0].keep_statuses[0]: 99 is out of range; write a number from 200 to 599"
)]
#[case::status_of_letters(
    "keep_statuses = ['4xx']",
    "7:18: routes[0].keep_statuses[0]: is a string; write an integer"
)]
#[case::kept_and_released(
    "keep_statuses = [404]\nrelease_statuses = [404]",
    "8:20: routes[0].release_statuses: 404 is in keep_statuses and in release_statuses; write it in one of the two lists"
)]
#[case::duplicate_create(
    "duplicate_create = '201'",
    "7:20: routes[0].duplicate_create: \"201\" is not a valid value; write \"same\" or \"200\""
)]
#[case::timeout_beyond_the_lease(
    "timeout = '90s'",
    "7:11: routes[0].timeout: 1m30s is longer than the lease of class interactive, 1m, so a running request could be treated as lost; write 1m or less, or lease = \"1m30s\" in [classes.interactive]"
)]
#[case::no_timeout(
    "timeout = '0s'",
    "7:11: routes[0].timeout: \"0s\" is out of range; write 1ms or longer"
)]
#[case::cors_with_cookies_for_all(
    "cors = { origins = ['*'], credentials = true }",
    "7:41: routes[0].cors.credentials: browsers do not allow cookies for every origin; list the origins, or write credentials = false"
)]
#[case::cors_for_nobody(
    "cors = { origins = [] }",
    "7:20: routes[0].cors.origins: is empty, so no site could call; list the origins, or remove cors"
)]
#[case::cors_with_a_path(
    "cors = { origins = ['https://a.example/'] }",
    "7:21: routes[0].cors.origins[0]: \"https://a.example/\" is not an origin; write scheme and host in lower case without a trailing slash: \"https://app.example.com\""
)]
#[case::framing(
    "request_headers = { set = { Content-Length = '1' } }",
    "7:46: routes[0].request_headers.set.Content-Length: content-length belongs to the connection and is managed by the gateway; remove it"
)]
#[case::hop_by_hop(
    "response_headers = { remove = ['Connection'] }",
    "7:32: routes[0].response_headers.remove[0]: connection belongs to the connection and is managed by the gateway; remove it"
)]
#[case::ours(
    "request_headers = { remove = ['Idempotency-Key'] }",
    "7:31: routes[0].request_headers.remove[0]: idempotency-key is set by the gateway itself; remove it"
)]
#[case::ours_to_upstreams(
    "request_headers = { set = { X-Tenant-Id = 'x' } }",
    "7:43: routes[0].request_headers.set.X-Tenant-Id: x-tenant-id is set by the gateway itself; remove it"
)]
#[case::host(
    "request_headers = { set = { Host = 'x' } }",
    "7:36: routes[0].request_headers.set.Host: host cannot be changed by a route; set host in the upstream instead"
)]
#[case::header_name(
    "request_headers = { remove = ['a b'] }",
    "7:31: routes[0].request_headers.remove[0]: \"a b\" is not the name of a header; write a name such as \"X-Request-Id\""
)]
#[case::header_value(
    "response_headers = { set = { X-A = \"a\\nb\" } }",
    "7:36: routes[0].response_headers.set.X-A: contains characters that are not allowed in a header value; use visible characters and spaces only"
)]
#[case::header_in_two_spellings(
    "request_headers = { set = { X-A = '1', x-a = '2' } }",
    "7:46: routes[0].request_headers.set.x-a: is already set in another case; write it once"
)]
fn keys_of_routes(#[case] line: &str, #[case] want: &str) {
    assert_eq!(mistakes(&format!("{ROUTE}{line}")), [want]);
}

#[rstest]
#[case::endpoint_without_a_handler(
    "[upstreams.a]\nurl = 'http://127.0.0.1:1'\n[[routes]]\nendpoint = 'payments'\npath = '/a'\nupstream = 'a'\n",
    "4:12: routes[0].endpoint: \"payments\" is not of the form service.handler; write for example \"payments.create\", with the characters A-Z a-z 0-9 _ -"
)]
#[case::endpoint_with_a_colon(
    "[upstreams.a]\nurl = 'http://127.0.0.1:1'\n[[routes]]\nendpoint = 'a.b:c'\npath = '/a'\nupstream = 'a'\n",
    "4:12: routes[0].endpoint: \"a.b:c\" is not of the form service.handler; write for example \"payments.create\", with the characters A-Z a-z 0-9 _ -"
)]
#[case::no_upstream(
    "[upstreams.a]\nurl = 'http://127.0.0.1:1'\n[[routes]]\nendpoint = 'a.b'\npath = '/a'\n",
    "3:1: routes[0].upstream: is missing; add it: the upstream of its requests"
)]
#[case::unknown_upstream(
    "[upstreams.a]\nurl = 'http://127.0.0.1:1'\n[[routes]]\nendpoint = 'a.b'\npath = '/a'\nupstream = 'aa'\n",
    "6:12: routes[0].upstream: [upstreams.aa] does not exist; did you mean \"a\"?"
)]
#[case::path_without_a_slash(
    "[upstreams.a]\nurl = 'http://127.0.0.1:1'\n[[routes]]\nendpoint = 'a.b'\npath = 'a'\nupstream = 'a'\n",
    "5:8: routes[0].path: \"a\" does not begin with /; write \"/api/v1/payments/{id}\", for example; {*rest} is allowed only at the end"
)]
#[case::path_with_half_a_segment(
    "[upstreams.a]\nurl = 'http://127.0.0.1:1'\n[[routes]]\nendpoint = 'a.b'\npath = '/a{b}'\nupstream = 'a'\n",
    "5:8: routes[0].path: \"/a{b}\" has a {name} that is not a whole segment; write \"/api/v1/payments/{id}\", for example; {*rest} is allowed only at the end"
)]
#[case::path_beyond_the_remainder(
    "[upstreams.a]\nurl = 'http://127.0.0.1:1'\n[[routes]]\nendpoint = 'a.b'\npath = '/{*a}/b'\nupstream = 'a'\n",
    "5:8: routes[0].path: \"/{*a}/b\" continues after {*rest}; write \"/api/v1/payments/{id}\", for example; {*rest} is allowed only at the end"
)]
#[case::path_with_a_name_twice(
    "[upstreams.a]\nurl = 'http://127.0.0.1:1'\n[[routes]]\nendpoint = 'a.b'\npath = '/{a}/{a}'\nupstream = 'a'\n",
    "5:8: routes[0].path: \"/{a}/{a}\" has the same name twice; write \"/api/v1/payments/{id}\", for example; {*rest} is allowed only at the end"
)]
#[case::path_with_dots(
    "[upstreams.a]\nurl = 'http://127.0.0.1:1'\n[[routes]]\nendpoint = 'a.b'\npath = '/a/../b'\nupstream = 'a'\n",
    "5:8: routes[0].path: \"/a/../b\" has a . or .. segment; write \"/api/v1/payments/{id}\", for example; {*rest} is allowed only at the end"
)]
#[case::path_with_a_query(
    "[upstreams.a]\nurl = 'http://127.0.0.1:1'\n[[routes]]\nendpoint = 'a.b'\npath = '/a?b'\nupstream = 'a'\n",
    "5:8: routes[0].path: \"/a?b\" has a character that is not allowed unescaped in a path; write \"/api/v1/payments/{id}\", for example; {*rest} is allowed only at the end"
)]
#[case::endpoint_twice(
    "[upstreams.a]\nurl = 'http://127.0.0.1:1'\n[[routes]]\nendpoint = 'a.b'\npath = '/a'\nupstream = 'a'\n[[routes]]\nendpoint = 'a.b'\npath = '/b'\nupstream = 'a'",
    "8:12: routes[1].endpoint: \"a.b\" is already the endpoint of routes[0]; give each route its own endpoint; one route can have several methods"
)]
#[case::same_method_and_path(
    "[upstreams.a]\nurl = 'http://127.0.0.1:1'\n[[routes]]\nendpoint = 'a.b'\npath = '/a'\nupstream = 'a'\n[[routes]]\nendpoint = 'a.c'\nmethod = 'POST'\npath = '/a'\nupstream = 'a'",
    "10:8: routes[1].path: routes[0] already serves POST /a; remove one of the two, or give them different methods or paths"
)]
#[case::conflicting_patterns(
    "[upstreams.a]\nurl = 'http://127.0.0.1:1'\n[[routes]]\nendpoint = 'a.b'\npath = '/{a}'\nupstream = 'a'\n[[routes]]\nendpoint = 'a.c'\npath = '/{b}'\nupstream = 'a'",
    "9:8: routes[1].path: conflicts with /{a} of routes[0], which also serves GET; remove one of the two, or give them different methods or paths"
)]
#[case::lease_below_timeout(
    "[upstreams.a]\nurl = 'http://127.0.0.1:1'\n[[routes]]\nendpoint = 'a.b'\npath = '/a'\nupstream = 'a'\n[classes.interactive]\nlease = '10s'",
    "8:9: classes.interactive.lease: 10s is shorter than the 30s that the upstream of routes[0] may take, so a running request could be treated as lost; write 30s or longer"
)]
#[case::timeout_above_lease(
    "[upstreams.a]\nurl = 'http://127.0.0.1:1'\ntimeout = '2m'\n[[routes]]\nendpoint = 'a.b'\npath = '/a'\nupstream = 'a'\n",
    "3:11: upstreams.a.timeout: 2m is longer than the lease of class interactive, 1m, so a running request could be treated as lost; write 1m or less, or lease = \"2m\" in [classes.interactive]"
)]
fn routes(#[case] text: &str, #[case] want: &str) {
    assert_eq!(mistakes(text), [want]);
}

#[rstest]
#[case::broken_value("[server]\nlisten =\ndrain = '1x'\n", &[
    "2:9: invalid TOML: string values must be quoted, expected literal string; see https://toml.io",
    "3:9: server.drain: \"1x\" has an unknown unit; write a duration such as \"30s\", \"1h30m\" or \"7d\"",
])]
#[case::nothing_is_missing_in_what_was_lost("[[routes]]\npath = '/a'\nendpoint = a.b'\n[server]\nlistn = ''\n", &[
    "3:12: invalid TOML: missing opening quote, expected `'`; see https://toml.io",
    "5:1: server.listn: unknown key; did you mean listen?",
])]
#[case::key_twice("[server]\nlisten = '127.0.0.1:1'\nlisten = '127.0.0.1:2'\n", &[
    "3:1: invalid TOML: duplicate key; see https://toml.io",
])]
fn text_that_is_not_toml(#[case] text: &str, #[case] want: &[&str]) {
    assert_eq!(mistakes(text), want);
}

#[test]
fn columns_count_characters() {
    let text = "[server]\nadmin_tokens = [{ name = 'zoë', role = 'x', token = 't' }]";
    assert_eq!(
        mistakes(text),
        [
            "2:26: server.admin_tokens[0].name: is not a valid name; write 1 to 64 of the characters A-Z a-z 0-9 . _ -",
            "2:40: server.admin_tokens[0].role: \"x\" is not a valid value; write \"read\", \"operate\" or \"admin\"",
        ]
    );
}

/// A file with a mistake in nearly every line: none of them hides another.
#[test]
fn every_mistake_is_reported_at_once() {
    let environment = environment(&[
        ("ONCEWARD__SERVER__X", "1"),
        ("ONCEWARD__ROUTES__9__CLASS", "x"),
    ]);
    assert_eq!(
        report(include_str!("wrong.toml"), &environment),
        include_str!("wrong.txt")
    );
}

#[test]
fn the_value_of_a_variable_is_never_shown() {
    let text = "[server]\nlisten = '${S}'\ndrain = '${S}'\nadmin_tokens = [{ name = '${S}', role = '${S}', token = '${S}' }]\n\
                trusted_proxies = ['${S}']\npublic_url = '${S}'\n[store]\nurl = '${S}'\n[secrets]\nkey = '${S}'\n\
                [[auth.jwt]]\nissuer = '${S}'\naudience = '${S}'\njwks_url = '${S}'\ntenant = '${S}'\nalgorithms = ['${S}']\n\
                [upstreams.a]\nurl = '${S}'\nhost = '${S}'\n\
                [[routes]]\nendpoint = '${S}'\npath = '${S}'\nupstream = '${S}'\nclass = '${S}'\nmethod = '${S}'\npolicy = '${S}'\n\
                cors = { origins = ['${S}'], headers = ['${S}'] }\nderived_key = { from = ['${S}'], window = '${S}' }\n";
    let environment = environment(&[
        ("S", "hush hush"),
        ("ONCEWARD__LIMITS__STORE_DEADLINE", "hush hush"),
        ("ONCEWARD__TELEMETRY__KEYS", "hush hush"),
    ]);
    let report = report(text, &environment);
    assert!(!report.contains("hush"), "{report}");
    assert!(report.lines().count() > 20, "{report}");
}
