//! Settings that work but are probably not intended, and settings without a
//! warning.

use rstest::rstest;

use super::warnings;

#[rstest]
#[case::nothing_served(
    "[auth.api_keys]",
    " routes: there are no routes: every request receives 404; add [[routes]] with endpoint, method, path and upstream"
)]
#[case::unscoped_callers(
    "[upstreams.a]\nurl = 'http://127.0.0.1:1'\n[[routes]]\nendpoint = 'a.b'\nmethod = 'POST'\npath = '/a'\nupstream = 'a'\n",
    " auth: callers are not authenticated: all of them are one caller, distinguished only by the credentials they send; add [auth.api_keys], or [[auth.jwt]] for the tokens of your issuer"
)]
#[case::memory(
    "[auth.api_keys]\n[upstreams.a]\nurl = 'http://127.0.0.1:1'\n[[routes]]\nendpoint = 'a.b'\nmethod = 'POST'\npath = '/a'\nupstream = 'a'\n[store]\nurl = 'memory:'",
    "10:7: store.url: a restart loses every key, so retries of earlier requests run again; embedded:./onceward-data survives a restart"
)]
#[case::short_token(
    "[auth.api_keys]\n[upstreams.a]\nurl = 'http://127.0.0.1:1'\n[[routes]]\nendpoint = 'a.b'\nmethod = 'POST'\npath = '/a'\nupstream = 'a'\n[server]\nadmin_token = 'secret'",
    "10:15: server.admin_token: a token of 6 characters can be guessed; use 16 or more random characters: openssl rand -hex 32"
)]
#[case::short_token_of_a_list(
    "[auth.api_keys]\n[upstreams.a]\nurl = 'http://127.0.0.1:1'\n[[routes]]\nendpoint = 'a.b'\nmethod = 'POST'\npath = '/a'\nupstream = 'a'\n[server]\nadmin_token = '0123456789abcdef'\nadmin_tokens = [{ name = 'x', role = 'read', token = 'short' }]",
    "11:54: server.admin_tokens[0].token: a token of 5 characters can be guessed; use 16 or more random characters: openssl rand -hex 32"
)]
#[case::key_on_put(
    "[auth.api_keys]\n[upstreams.a]\nurl = 'http://127.0.0.1:1'\n[[routes]]\nendpoint = 'a.b'\nmethod = 'PUT'\npath = '/a'\nupstream = 'a'\npolicy = 'REQUIRED_A'",
    "9:10: routes[0].policy: a key is required for PUT, which can be retried without one; name the methods that create or add, such as POST; or write policy = \"ACCEPTED\""
)]
#[case::key_on_all_methods(
    "[auth.api_keys]\n[upstreams.a]\nurl = 'http://127.0.0.1:1'\n[[routes]]\nendpoint = 'a.b'\npath = '/a'\nupstream = 'a'\npolicy = 'REQUIRED_A'",
    "8:10: routes[0].policy: a key is required for GET, HEAD, PUT, DELETE, OPTIONS, which can be retried without one; name the methods that create or add, such as POST; or write policy = \"ACCEPTED\""
)]
#[case::short_retention(
    "[auth.api_keys]\n[upstreams.a]\nurl = 'http://127.0.0.1:1'\n[[routes]]\nendpoint = 'a.b'\nmethod = 'POST'\npath = '/a'\nupstream = 'a'\nclass = 'short'\n[classes.short]\nretention = '1h'",
    "11:13: classes.short.retention: callers are assumed to retry for 24h, but a reply is kept for 1h; write 24h or longer"
)]
#[case::short_retention_of_webhooks(
    "[auth.api_keys]\n[upstreams.a]\nurl = 'http://127.0.0.1:1'\n[[routes]]\nendpoint = 'a.b'\nmethod = 'POST'\npath = '/a'\nupstream = 'a'\nclass = 'webhook'\n[classes.webhook]\nretention = '2d'",
    "11:13: classes.webhook.retention: providers of webhooks retry for up to 3 days, but a reply is kept for 2d; write 3d or longer"
)]
#[case::financial_made_short(
    "[auth.api_keys]\n[upstreams.a]\nurl = 'http://127.0.0.1:1'\n[[routes]]\nendpoint = 'a.b'\nmethod = 'POST'\npath = '/a'\nupstream = 'a'\nclass = 'financial'\n[classes.financial]\nremember = '7d'",
    "9:9: routes[0].class: this route looks like money, but class financial remembers a key for 7d; write remember = \"30d\" in [classes.financial]: settlement takes as long"
)]
#[case::bypass_on_money(
    "[auth.api_keys]\n[upstreams.a]\nurl = 'http://127.0.0.1:1'\n[[routes]]\nendpoint = 'a.b'\nmethod = 'POST'\npath = '/a'\nupstream = 'a'\nclass = 'financial'\n[classes.financial]\non_store_failure = 'bypass'",
    "9:9: routes[0].class: this route looks like money, but class financial forwards it unprotected while the store is unavailable; write on_store_failure = \"reject\" in its class: a retry is safer than a second charge"
)]
#[case::retry_on_money(
    "[auth.api_keys]\n[upstreams.a]\nurl = 'http://127.0.0.1:1'\n[[routes]]\nendpoint = 'a.b'\nmethod = 'POST'\npath = '/a'\nupstream = 'a'\nclass = 'financial'\n[classes.financial]\non_unknown = 'retry'",
    "9:9: routes[0].class: this route looks like money, but class financial runs an operation again that may have run; write on_unknown = \"hold\" or \"reconcile\" in its class"
)]
#[case::error_on_money(
    "[auth.api_keys]\n[upstreams.a]\nurl = 'http://127.0.0.1:1'\n[[routes]]\nendpoint = 'a.b'\nmethod = 'POST'\npath = '/a'\nupstream = 'a'\nclass = 'financial'\n[classes.financial]\non_error = 'release'",
    "9:9: routes[0].class: this route looks like money, but class financial runs it again after a 500, though it may have been charged before the error; write on_error = \"unknown\" in [classes.financial]"
)]
#[case::error_released_on_money(
    "[auth.api_keys]\n[upstreams.a]\nurl = 'http://127.0.0.1:1'\n[[routes]]\nendpoint = 'a.b'\nmethod = 'POST'\npath = '/a'\nupstream = 'a'\nclass = 'financial'\nrelease_statuses = [500]",
    "10:20: routes[0].release_statuses: this route looks like money, but it runs again after a 500, though it may have been charged before the error; remove 500 from release_statuses, so that its class decides"
)]
#[case::bad_gateway_released_on_money(
    "[auth.api_keys]\n[upstreams.a]\nurl = 'http://127.0.0.1:1'\n[[routes]]\nendpoint = 'a.b'\nmethod = 'POST'\npath = '/a'\nupstream = 'a'\nclass = 'financial'\nrelease_statuses = [502]",
    "10:20: routes[0].release_statuses: this route looks like money, but it runs again after a 502, though it may have been charged before the error; remove 502 from release_statuses, so that its class decides"
)]
#[case::gateway_timeout_released_on_money(
    "[auth.api_keys]\n[upstreams.a]\nurl = 'http://127.0.0.1:1'\n[[routes]]\nendpoint = 'a.b'\nmethod = 'POST'\npath = '/a'\nupstream = 'a'\nclass = 'financial'\nrelease_statuses = [504]",
    "10:20: routes[0].release_statuses: this route looks like money, but it runs again after a 504, though it may have been charged before the error; remove 504 from release_statuses, so that its class decides"
)]
#[case::other_error_released_on_money(
    "[auth.api_keys]\n[upstreams.a]\nurl = 'http://127.0.0.1:1'\n[[routes]]\nendpoint = 'a.b'\nmethod = 'POST'\npath = '/a'\nupstream = 'a'\nclass = 'financial'\nrelease_statuses = [507]",
    "10:20: routes[0].release_statuses: this route looks like money, but it runs again after a 507, though it may have been charged before the error; remove 507 from release_statuses, so that its class decides"
)]
#[case::errors_released_on_money(
    "[auth.api_keys]\n[upstreams.a]\nurl = 'http://127.0.0.1:1'\n[[routes]]\nendpoint = 'a.b'\nmethod = 'POST'\npath = '/a'\nupstream = 'a'\nclass = 'financial'\nrelease_statuses = [404, 500, 501, 503, 504]",
    "10:20: routes[0].release_statuses: this route looks like money, but it runs again after a 500 or 504, though it may have been charged before the error; remove 500 and 504 from release_statuses, so that its class decides"
)]
#[case::class_releases_other_errors_on_money(
    "[auth.api_keys]\n[upstreams.a]\nurl = 'http://127.0.0.1:1'\n[[routes]]\nendpoint = 'a.b'\nmethod = 'POST'\npath = '/a'\nupstream = 'a'\nclass = 'financial'\nrelease_statuses = [507]\n[classes.financial]\non_error = 'release'",
    "9:9: routes[0].class: this route looks like money, but class financial runs it again after a 500, though it may have been charged before the error; write on_error = \"unknown\" in [classes.financial]"
)]
#[case::anyone_with_a_key(
    "[auth.api_keys]\n[upstreams.a]\nurl = 'http://127.0.0.1:1'\n[[routes]]\nendpoint = 'a.b'\nmethod = 'POST'\npath = '/a'\nupstream = 'a'\nauth = 'none'",
    "9:8: routes[0].auth: callers of this route are not authenticated: all of them are one caller, distinguished only by the credentials they send; remove auth, so that keys belong to authenticated callers"
)]
#[case::issuers_share_a_tenant(
    "[[auth.jwt]]\nissuer = 'one'\naudience = 'a'\njwks_url = 'https://i/keys'\ntenant = { value = 'acme' }\nproject = { value = 'shop' }\n[[auth.jwt]]\nissuer = 'two'\naudience = 'a'\njwks_url = 'https://i/keys'\ntenant = { value = 'acme' }\nproject = { value = 'shop' }\n[upstreams.a]\nurl = 'http://127.0.0.1:1'\n[[routes]]\nendpoint = 'a.b'\nmethod = 'POST'\npath = '/a'\nupstream = 'a'\n",
    "11:10: auth.jwt[1].tenant: another issuer has the same tenant and project, so the same subject id of both is one caller; give each issuer its own tenant or project"
)]
#[case::shadowed(
    "[auth.api_keys]\n[upstreams.a]\nurl = 'http://127.0.0.1:1'\n[[routes]]\nendpoint = 'a.b'\nmethod = 'POST'\npath = '/x/{*rest}'\nupstream = 'a'\n[[routes]]\nendpoint = 'a.c'\nmethod = 'POST'\npath = '/x/'\nupstream = 'a'",
    "12:8: routes[1].path: routes[0] with /x/{*rest} matches first, so no request reaches this route; move this route before it"
)]
#[case::unknown_way(
    "[auth.api_keys]\n[upstreams.a]\nurl = 'http://127.0.0.1:1'\n[[routes]]\nendpoint = 'a.b'\nmethod = 'POST'\npath = '/a'\nupstream = 'a'\nauth = ['jwt']",
    "9:8: routes[0].auth: none of these authentication methods is configured, so no request can be authorised; add one of them to [auth], or remove auth"
)]
#[case::scopes_nobody_has(
    "[[auth.jwt]]\nissuer = 'ISS'\naudience = 'a'\njwks_url = 'https://i/keys'\ntenant = { value = 'acme' }\nproject = { value = 'shop' }\n[upstreams.a]\nurl = 'http://127.0.0.1:1'\n[[routes]]\nendpoint = 'a.b'\nmethod = 'POST'\npath = '/a'\nupstream = 'a'\nscopes = ['write']",
    "14:10: routes[0].scopes: no caller can have a scope, so no request can be authorised; write scopes = \"/scope\" in [[auth.jwt]], or remove the scopes of the route"
)]
#[case::project_nobody_has(
    "[[auth.jwt]]\nissuer = 'ISS'\naudience = 'a'\njwks_url = 'https://i/keys'\ntenant = { value = 'acme' }\n[upstreams.a]\nurl = 'http://127.0.0.1:1'\n[[routes]]\nendpoint = 'a.b'\nmethod = 'POST'\npath = '/a'\nupstream = 'a'\n",
    "8:1: routes[0].scope: no token has a project, but this route requires one, so no request can be authorised; write project = \"/project_id\" in [[auth.jwt]], or scope = \"tenant\" here"
)]
#[case::unused_class(
    "[auth.api_keys]\n[upstreams.a]\nurl = 'http://127.0.0.1:1'\n[[routes]]\nendpoint = 'a.b'\nmethod = 'POST'\npath = '/a'\nupstream = 'a'\n[classes.other]\nretention = '2d'",
    "9:1: classes.other: no route uses this class; name it in a route, or remove it"
)]
#[case::unused_upstream(
    "[auth.api_keys]\n[upstreams.a]\nurl = 'http://127.0.0.1:1'\n[[routes]]\nendpoint = 'a.b'\nmethod = 'POST'\npath = '/a'\nupstream = 'a'\n[upstreams.b]\nurl = 'http://127.0.0.1:2'",
    "9:1: upstreams.b: no route uses this upstream; name it in a route, or remove it"
)]
#[case::replay_of_another(
    "[auth.api_keys]\n[upstreams.a]\nurl = 'http://127.0.0.1:1'\n[[routes]]\nendpoint = 'a.b'\nmethod = 'POST'\npath = '/a'\nupstream = 'a'\n[classes.interactive]\nmismatch = 'replay'",
    "10:12: classes.interactive.mismatch: a different request with the same key receives a reply that is not its own; mismatch = \"422\" tells the client of its mistake"
)]
#[case::body_as_key(
    "[auth.api_keys]\n[upstreams.a]\nurl = 'http://127.0.0.1:1'\n[[routes]]\nendpoint = 'a.b'\nmethod = 'POST'\npath = '/a'\nupstream = 'a'\nderived_key = { from = ['body'], window = '1m' }",
    "9:24: routes[0].derived_key.from: two equal orders look like one operation, and a retry with a new timestamp like two; name the fields that identify the operation, such as \"/order/id\""
)]
#[case::window_beyond_retention(
    "[auth.api_keys]\n[upstreams.a]\nurl = 'http://127.0.0.1:1'\n[[routes]]\nendpoint = 'a.b'\nmethod = 'POST'\npath = '/a'\nupstream = 'a'\nderived_key = { from = ['/id'], window = '2d' }",
    "9:42: routes[0].derived_key.window: within 2d the same parts are one operation, but class interactive keeps its reply for 24h; write a shorter window, or a class with a longer retention"
)]
#[case::tokens_in_the_clear(
    "[[auth.jwt]]\nissuer = 'ISS'\naudience = 'a'\njwks_url = 'https://i/keys'\ntenant = { value = 'acme' }\nproject = { value = 'shop' }\n[upstreams.a]\nurl = 'http://payments:1'\n[[routes]]\nendpoint = 'a.b'\nmethod = 'POST'\npath = '/a'\nupstream = 'a'\n",
    "8:7: upstreams.a.url: is sent unencrypted over a network; write https://, so that callers' tokens cannot be read in transit"
)]
#[case::lazy_with_a_trace(
    "[auth.api_keys]\n[upstreams.a]\nurl = 'http://127.0.0.1:1'\n[[routes]]\nendpoint = 'a.b'\nmethod = 'POST'\npath = '/a'\nupstream = 'a'\n[classes.interactive]\nexpiry = 'lazy'\nkeep_expired = '1d'",
    "10:10: classes.interactive.expiry: has no effect together with keep_expired, which makes expiry strict; remove one of the two"
)]
#[case::long_wait(
    "[auth.api_keys]\n[upstreams.a]\nurl = 'http://127.0.0.1:1'\n[[routes]]\nendpoint = 'a.b'\nmethod = 'POST'\npath = '/a'\nupstream = 'a'\n[classes.interactive]\nwait = '5m'",
    "10:8: classes.interactive.wait: most clients give up after 60s, but a duplicate waits 5m; write 30s, or in_flight = \"accept\""
)]
#[case::nobody_asks(
    "[auth.api_keys]\n[upstreams.a]\nurl = 'http://127.0.0.1:1'\n[[routes]]\nendpoint = 'a.b'\nmethod = 'POST'\npath = '/a'\nupstream = 'a'\n[classes.interactive]\nreconcile_url = 'https://a/b'",
    "10:17: classes.interactive.reconcile_url: is never used; write on_unknown = \"reconcile\", or remove the URL"
)]
#[case::joined_and_asked(
    "[auth.api_keys]\n[upstreams.a]\nurl = 'http://127.0.0.1:1'\n[store]\nurl = 'postgres://db/x'\n[secrets]\nkey = '0123456789abcdef'\n[[routes]]\nendpoint = 'payments.create'\nmethod = 'POST'\npath = '/a'\nupstream = 'a'\nclass = 'financial'\njoined = true\n[classes.financial]\non_unknown = 'reconcile'\nreconcile_url = 'https://a/b'",
    "14:10: routes[0].joined: class financial reconciles unknown operations, but a joined route has none: what is not committed has not run; name a class with on_unknown = \"hold\""
)]
#[case::joined_and_let_pass(
    "[auth.api_keys]\n[upstreams.a]\nurl = 'http://127.0.0.1:1'\n[store]\nurl = 'postgres://db/x'\n[secrets]\nkey = '0123456789abcdef'\n[[routes]]\nendpoint = 'payments.create'\nmethod = 'POST'\npath = '/a'\nupstream = 'a'\nclass = 'financial'\njoined = true\n[classes.financial]\non_store_failure = 'bypass'",
    "14:10: routes[0].joined: class financial bypasses an unavailable store, but a joined route cannot: there would be no record to commit to; name a class with on_store_failure = \"reject\""
)]
fn warned(#[case] text: &str, #[case] want: &str) {
    assert_eq!(warnings(text), [want]);
}

/// A route of class `interactive` that looks like money has two warnings.
#[rstest]
#[case::payment("payments.create", "/a")]
#[case::refund_by_its_path("a.b", "/orders/{id}/refunds")]
#[case::pay("a.b", "/carts/{id}/pay")]
#[case::order("orders.create", "/a")]
#[case::invoice("a.b", "/invoices")]
#[case::checkout("a.b", "/v1/checkout-sessions")]
#[case::subscription("billing.subscriptions", "/a")]
#[case::camel_case("a.createPayment", "/a")]
#[case::camel_case_after_a_service("x.createOrder", "/a")]
#[case::camel_case_path("a.b", "/api/createPayment")]
#[case::whole_word_in_camel_case("a.b", "/checkOut")]
#[case::word_in_camel_case("a.b", "/carts/{id}/payNow")]
#[case::after_capitals("a.ACHTransfer", "/a")]
#[case::method_of_a_service("a.b", "/shop.v1.Shop/CreatePayment")]
fn money_without_its_class(#[case] endpoint: &str, #[case] path: &str) {
    let text = format!(
        "[auth.api_keys]\n[upstreams.a]\nurl = 'http://127.0.0.1:1'\n[[routes]]\nendpoint = '{endpoint}'\nmethod = 'POST'\npath = '{path}'\nupstream = 'a'\n"
    );
    assert_eq!(
        warnings(&text),
        [
            "4:1: routes[0].class: this route looks like money, but class interactive remembers a key for 24h; write class = \"financial\", which remembers for 30d: settlement takes as long",
            "4:1: routes[0].class: this route looks like money, but class interactive runs it again after a 500, though it may have been charged before the error; write class = \"financial\", or on_error = \"unknown\" in its class"
        ]
    );
}

#[rstest]
#[case::plain(
    "[auth.api_keys]\n[upstreams.a]\nurl = 'http://127.0.0.1:1'\n[[routes]]\nendpoint = 'a.b'\nmethod = 'POST'\npath = '/a'\nupstream = 'a'\n"
)]
#[case::get_without_a_key(
    "[auth.api_keys]\n[upstreams.a]\nurl = 'http://127.0.0.1:1'\n[[routes]]\nendpoint = 'payments.list'\nmethod = 'GET'\npath = '/a'\nupstream = 'a'\n"
)]
#[case::financial_payment(
    "[auth.api_keys]\n[upstreams.a]\nurl = 'http://127.0.0.1:1'\n[[routes]]\nendpoint = 'payments.create'\nmethod = 'POST'\npath = '/a'\nupstream = 'a'\nclass = 'financial'"
)]
#[case::api_keys_in_the_clear(
    "[auth.api_keys]\n[upstreams.a]\nurl = 'http://payments:1'\n[[routes]]\nendpoint = 'a.b'\nmethod = 'POST'\npath = '/a'\nupstream = 'a'\n"
)]
#[case::issuers_with_tenants(
    "[[auth.jwt]]\nissuer = 'one'\naudience = 'a'\njwks_url = 'https://i/keys'\ntenant = { value = 'acme' }\nproject = { value = 'shop' }\n[[auth.jwt]]\nissuer = 'two'\naudience = 'a'\njwks_url = 'https://i/keys'\ntenant = { value = 'other' }\nproject = { value = 'shop' }\n[upstreams.a]\nurl = 'http://127.0.0.1:1'\n[[routes]]\nendpoint = 'a.b'\nmethod = 'POST'\npath = '/a'\nupstream = 'a'\n"
)]
#[case::scopes(
    "[[auth.jwt]]\nissuer = 'ISS'\naudience = 'a'\njwks_url = 'https://i/keys'\ntenant = { value = 'acme' }\nproject = { value = 'shop' }\nscopes = '/scope'\n[upstreams.a]\nurl = 'http://127.0.0.1:1'\n[[routes]]\nendpoint = 'a.b'\nmethod = 'POST'\npath = '/a'\nupstream = 'a'\nscopes = ['write']"
)]
#[case::remainder_last(
    "[auth.api_keys]\n[upstreams.a]\nurl = 'http://127.0.0.1:1'\n[[routes]]\nendpoint = 'a.b'\nmethod = 'POST'\npath = '/x/'\nupstream = 'a'\n[[routes]]\nendpoint = 'a.c'\nmethod = 'POST'\npath = '/x/{*rest}'\nupstream = 'a'"
)]
#[case::joined_and_retried(
    "[auth.api_keys]\n[upstreams.a]\nurl = 'http://127.0.0.1:1'\n[store]\nurl = 'postgres://db/x'\n[secrets]\nkey = '0123456789abcdef'\n[[routes]]\nendpoint = 'payments.create'\nmethod = 'POST'\npath = '/a'\nupstream = 'a'\nclass = 'financial'\njoined = true\n[classes.financial]\non_unknown = 'retry'"
)]
#[case::kept_errors(
    "[auth.api_keys]\n[upstreams.a]\nurl = 'http://127.0.0.1:1'\n[[routes]]\nendpoint = 'payments.create'\nmethod = 'POST'\npath = '/a'\nupstream = 'a'\nclass = 'financial'\n[classes.financial]\non_error = 'keep'"
)]
#[case::nothing_done_released(
    "[auth.api_keys]\n[upstreams.a]\nurl = 'http://127.0.0.1:1'\n[[routes]]\nendpoint = 'a.b'\nmethod = 'POST'\npath = '/a'\nupstream = 'a'\nclass = 'financial'\nrelease_statuses = [404, 501, 503]"
)]
#[case::payloads(
    "[auth.api_keys]\n[upstreams.a]\nurl = 'http://127.0.0.1:1'\n[[routes]]\nendpoint = 'a.b'\nmethod = 'POST'\npath = '/payloads'\nupstream = 'a'\n"
)]
#[case::payloads_in_camel_case(
    "[auth.api_keys]\n[upstreams.a]\nurl = 'http://127.0.0.1:1'\n[[routes]]\nendpoint = 'a.createPayload'\nmethod = 'POST'\npath = '/notes/{lastOrderId}'\nupstream = 'a'\n"
)]
fn not_warned(#[case] text: &str) {
    assert_eq!(warnings(text), [""; 0]);
}
