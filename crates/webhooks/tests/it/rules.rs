//! The checks of every request before it is accepted.

use std::time::Duration;

use onceward_webhooks::{KEYS_MAX, Refusal, SIGNATURES_MAX, SigningKey, Tolerance, sign};
use rstest::rstest;

use crate::request::{
    MESSAGE, NOW, Request, acme, adyen, adyen_item, adyen_platform, github, one_of_each, postmark,
    provider, shopify, slack, square, standard, stripe, stripe_at, twilio, twilio_body, twilio_by,
};

fn check(request: &Request, reason: &str) {
    let refusal = request.verify().expect_err("refused");
    assert_eq!(refusal.reason(), reason, "{refusal}");
}

#[test]
fn a_signed_request_of_each_provider_is_accepted() {
    for (name, _, request) in one_of_each() {
        assert_eq!(request.verify(), Ok(()), "{name}");
    }
    assert_eq!(adyen(&[adyen_item("1", "CAPTURE")]).verify(), Ok(()));
}

#[test]
fn a_changed_body_is_refused() {
    // Postmark signs nothing.
    for (name, _, request) in one_of_each()
        .into_iter()
        .filter(|(name, ..)| *name != "postmark")
    {
        let mut body = request.body.clone();
        body.push(b' ');
        assert_eq!(
            request.body(body).verify(),
            Err(Refusal::Signature),
            "{name}"
        );
    }
    let forged = adyen_item("1", "CAPTURE").replace("1130", "9999");
    assert_eq!(adyen(&[forged]).verify(), Err(Refusal::Signature));
}

#[test]
fn another_secret_is_refused() {
    for (name, _, mut request) in one_of_each() {
        request.secret = match name {
            "adyen-platform" | "acme" => "abcdef".to_owned(),
            "postmark" => "user:other".to_owned(),
            _ => "b3RoZXI=".to_owned(),
        };
        assert_eq!(request.verify(), Err(Refusal::Signature), "{name}");
    }
}

#[test]
fn any_of_several_keys_is_enough_and_none_is_not() {
    for (name, _, request) in one_of_each() {
        let other = match name {
            "adyen-platform" | "acme" => "abcdef",
            "postmark" => "user:other",
            _ => "b3RoZXI=",
        };
        let other: SigningKey = request.provider.key(other).expect("a secret");
        let tolerance = Tolerance::default();
        for keys in [
            [request.key(), other.clone()],
            [other.clone(), request.key()],
        ] {
            assert_eq!(request.verify_with(&keys, NOW, tolerance), Ok(()), "{name}");
        }
        assert_eq!(
            request.verify_with(&[], NOW, tolerance),
            Err(Refusal::NoKey),
            "{name}"
        );
        let mut keys = vec![other; KEYS_MAX];
        keys.push(request.key());
        assert_eq!(
            request.verify_with(&keys, NOW, tolerance),
            Err(Refusal::Signature),
            "{name}"
        );
    }
}

#[test]
fn a_signature_comes_once_and_not_empty() {
    for (name, header, request) in one_of_each() {
        let value = request.headers[header].to_str().expect("text").to_owned();
        let refusal = request
            .clone()
            .without(header)
            .verify()
            .expect_err("no signature");
        assert_eq!(
            (refusal.reason(), refusal.is_shape()),
            ("missing-header", false),
            "{name}"
        );
        let refusal = request
            .clone()
            .and(header, &value)
            .verify()
            .expect_err("two");
        assert_eq!(
            (refusal.reason(), refusal.is_shape()),
            ("repeated-header", true),
            "{name}"
        );
        let refusal = request
            .with(header, "")
            .verify()
            .expect_err("an empty signature");
        assert!(
            ["signature", "malformed"].contains(&refusal.reason()),
            "{name}: {refusal}"
        );
    }
}

#[rstest]
#[case::github_id(github("1", "{}").and("x-github-delivery", "2"))]
#[case::shopify_id(shopify("webhooks", "1", "t", "{}").and("x-shopify-event-id", "2"))]
#[case::shopify_topic(shopify("webhooks", "1", "t", "{}").and("x-shopify-topic", "u"))]
#[case::standard_id(standard("webhook", "m", NOW, "{}").and("webhook-id", "m"))]
#[case::standard_time(standard("webhook", "m", NOW, "{}").and("webhook-timestamp", "1"))]
#[case::slack_time(slack("{}").and("x-slack-request-timestamp", "1"))]
#[case::twilio_token(twilio(&[("A", "b")]).with("i-twilio-idempotency-token", "1").and("i-twilio-idempotency-token", "2"))]
#[case::acme_time(acme("{}").and("x-acme-time", "1"))]
fn what_decides_comes_once(#[case] request: Request) {
    check(&request, "repeated-header");
}

#[rstest]
#[case::svix_id(standard("webhook", "m", NOW, "{}").with("svix-id", "m"))]
#[case::svix_signature(standard("webhook", "m", NOW, "{}").with("svix-signature", "v1,AAAA"))]
#[case::webhook_id(standard("svix", "m", NOW, "{}").with("webhook-id", "m"))]
#[case::webhook_time(standard("svix", "m", NOW, "{}").with("webhook-timestamp", "1"))]
#[case::shopify_hmac(shopify("webhooks", "1", "t", "{}").with("shopify-hmac-sha256", "AAAA"))]
#[case::shopify_id(shopify("webhooks", "1", "t", "{}").with("shopify-webhook-id", "2"))]
#[case::x_shopify_id(shopify("events", "1", "t", "{}").with("x-shopify-event-id", "2"))]
#[case::x_shopify_topic(shopify("events", "1", "t", "{}").with("x-shopify-topic", "2"))]
fn families_do_not_mix(#[case] request: Request) {
    let refusal = request.verify().expect_err("mixed");
    assert_eq!(
        (refusal.reason(), refusal.is_shape()),
        ("mixed-families", true)
    );
}

/// A request for a nonexistent webhook is verified by the usual scheme. A request
/// must be malformed under both schemes or under none: otherwise the answer would
/// show which webhooks exist.
#[rstest]
#[case::another_family(shopify("events", "1", "t", "{}"))]
#[case::mixed(shopify("events", "1", "t", "{}").with("x-shopify-topic", "t"))]
#[case::repeated(shopify("events", "1", "t", "{}").and("shopify-topic", "u"))]
#[case::x_repeated(shopify("webhooks", "1", "t", "{}").and("x-shopify-topic", "u"))]
fn shopifys_shape_is_the_same_by_either_scheme(#[case] mut request: Request) {
    request.secret = "another".to_owned();
    let [one, other] = ["webhooks", "events"].map(|scheme| {
        request.provider = provider("shopify").with_scheme(scheme).expect("a scheme");
        let refusal = request.verify().expect_err("signed with another secret");
        refusal.is_shape().then_some(refusal)
    });
    assert_eq!(one, other);
}

#[test]
fn the_scheme_of_the_webhook_counts_not_that_of_the_request() {
    let mut request = standard("webhook", "m", NOW, "{}");
    request.provider = provider("svix");
    check(&request, "mixed-families");
    let mut request = shopify("events", "1", "t", "{}");
    request.provider = provider("shopify");
    check(&request, "missing-header");
    let mut request = adyen_platform("{}");
    request.provider = provider("adyen");
    check(&request, "signature");
}

/// Ages of a signature, and the tolerance.
#[rstest]
#[case::now(0, 300, None)]
#[case::oldest(300, 300, None)]
#[case::too_old(301, 300, Some("too-old"))]
#[case::newest(-300, 300, None)]
#[case::too_new(-301, 300, Some("too-new"))]
#[case::zero_is_not_off(1, 0, Some("too-old"))]
#[case::zero_is_this_second(0, 0, None)]
#[case::an_hour_ahead(-3600, 300, Some("too-new"))]
#[case::the_end_of_time(i64::MAX - NOW, 300, Some("too-old"))]
#[case::before_time(i64::MIN, 300, Some("too-new"))]
fn a_signature_is_of_its_time(
    #[case] age: i64,
    #[case] tolerance: u64,
    #[case] refused: Option<&str>,
) {
    let requests = one_of_each();
    for (name, _, request) in requests.iter().filter(|(.., r)| r.provider.has_time()) {
        let tolerance = Tolerance::Within(Duration::from_secs(tolerance));
        let now = NOW.saturating_add(age);
        let verdict = request.verify_with(&[request.key()], now, tolerance);
        assert_eq!(
            verdict.err().map(|refusal| refusal.reason()),
            refused,
            "{name}"
        );
        assert_eq!(
            request.verify_with(&[request.key()], now, Tolerance::Off),
            Ok(()),
            "{name}"
        );
    }
}

#[test]
fn the_time_is_checked_after_the_signature() {
    let request = stripe_at(NOW - 9999, "{}");
    check(&request, "too-old");
    check(&request.body("other"), "signature");
}

#[rstest]
#[case::no_time("v1=00", "malformed")]
#[case::two_times("t=1,t=1,v1=00", "malformed")]
#[case::no_name("t=1,00", "malformed")]
#[case::letters("t=abc,v1=00", "malformed")]
#[case::negative("t=-1,v1=00", "malformed")]
#[case::a_fraction("t=1.5,v1=00", "malformed")]
#[case::too_many_digits("t=1234567890123,v1=00", "malformed")]
#[case::no_signature("t=1760000000", "signature")]
#[case::not_hexadecimal("t=1760000000,v1=zz", "signature")]
#[case::too_short("t=1760000000,v1=00", "signature")]
fn stripes_header_has_its_form(#[case] value: &str, #[case] reason: &str) {
    check(&stripe("{}").with("stripe-signature", value), reason);
}

#[rstest]
#[case::letters("abc")]
#[case::a_fraction("1760000000.9")]
#[case::a_plus("+1760000000")]
#[case::a_space("1760000000 ")]
#[case::empty("")]
fn a_time_is_digits(#[case] time: &str) {
    check(
        &standard("webhook", "m", NOW, "{}").with("webhook-timestamp", time),
        "malformed",
    );
    check(
        &slack("{}").with("x-slack-request-timestamp", time),
        "malformed",
    );
    check(&acme("{}").with("x-acme-time", time), "malformed");
}

#[test]
fn at_most_ten_signatures_are_checked() {
    let good = stripe("{}");
    let value = good.headers["stripe-signature"]
        .to_str()
        .expect("text")
        .to_owned();
    let filled = |n: usize| format!("{}{value}", "v1=00,".repeat(n));
    let most = SIGNATURES_MAX - 1;
    assert_eq!(
        good.clone()
            .with("stripe-signature", &filled(most))
            .verify(),
        Ok(())
    );
    check(
        &good.with("stripe-signature", &filled(most + 1)),
        "too-many-signatures",
    );

    let good = standard("webhook", "m", NOW, "{}");
    let value = good.headers["webhook-signature"]
        .to_str()
        .expect("text")
        .to_owned();
    let filled = |n: usize| format!("{}{value}", "v1a,AAAA ".repeat(n));
    assert_eq!(
        good.clone()
            .with("webhook-signature", &filled(most))
            .verify(),
        Ok(())
    );
    check(
        &good.with("webhook-signature", &filled(most + 1)),
        "too-many-signatures",
    );

    let good = acme("{}");
    let value = good.headers["x-acme-signature"]
        .to_str()
        .expect("text")
        .to_owned();
    let filled = |n: usize| format!("{}{value}", "s=AAAA;".repeat(n));
    assert_eq!(
        good.clone()
            .with("x-acme-signature", &filled(most))
            .verify(),
        Ok(())
    );
    check(
        &good.with("x-acme-signature", &filled(most + 1)),
        "too-many-signatures",
    );
}

#[test]
fn an_id_cannot_be_read_as_an_id_and_a_time() {
    // Signed as `m` at NOW over `1.{}`; read as `m.NOW` at 1 over `{}`.
    let signed = standard("webhook", "m", NOW, "1.{}");
    assert_eq!(signed.verify(), Ok(()));
    let moved = signed
        .with("webhook-id", &format!("m.{NOW}"))
        .with("webhook-timestamp", "1")
        .body("{}");
    check(&moved, "malformed");
    assert_eq!(standard("webhook", "evt.a.b", NOW, "{}").verify(), Ok(()));
    check(&standard("webhook", "", NOW, "{}"), "malformed");
}

#[test]
fn our_own_signature_is_a_standard_one() {
    let standard = provider("standard-webhooks");
    let key = standard
        .key("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
        .expect("a secret");
    assert_eq!(
        sign(
            &key,
            "msg_p5jXN8AQM9LWM0D4loKWxJek",
            1_614_265_330,
            br#"{"test": 2432232314}"#
        ),
        "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
    );
}

#[rstest]
#[case::as_configured("https://example.com/x", "https://example.com/x", true)]
#[case::port_added("https://example.com/x?a=b", "https://example.com:443/x?a=b", true)]
#[case::port_removed("https://example.com:8443/x", "https://example.com/x", true)]
#[case::plain_port_added("http://example.com", "http://example.com:80", true)]
#[case::credentials_kept("https://u:p@example.com:8443/x", "https://u:p@example.com/x", true)]
#[case::password_is_no_port("https://u:p@example.com/x", "https://u:p@example.com:443/x", true)]
#[case::ipv6("https://[::1]/x", "https://[::1]:443/x", true)]
#[case::ipv6_port("https://[::1]:8443/x", "https://[::1]/x", true)]
#[case::colon_in_the_path("https://example.com/a:1", "https://example.com:443/a:1", true)]
#[case::another_scheme("http://example.com/x", "https://example.com/x", false)]
#[case::another_query("https://example.com/x?a=b", "https://example.com/x", false)]
#[case::another_host("https://example.com/x", "https://example.org/x", false)]
fn a_url_is_signed_with_or_without_its_port(
    #[case] ours: &str,
    #[case] theirs: &str,
    #[case] believed: bool,
) {
    use data_encoding::BASE64;
    use ring::hmac;
    let key = hmac::Key::new(hmac::HMAC_SHA256, b"squared");
    let tag = hmac::sign(&key, format!("{theirs}{{}}").as_bytes());
    let mut request = square("{}").with(
        "x-square-hmacsha256-signature",
        &BASE64.encode(tag.as_ref()),
    );
    request.url = ours.to_owned();
    assert_eq!(request.verify().is_ok(), believed);
}

#[test]
fn a_body_that_twilio_does_not_sign_is_refused() {
    // The signature is right: over the URL and no parameters.
    let request = twilio(&[]);
    assert_eq!(request.verify(), Ok(()));
    check(
        &request
            .clone()
            .with("content-type", "application/json")
            .body("{}"),
        "unsigned-body",
    );
    check(&request.clone().body("{}"), "signature");
    let mut events = request;
    events.provider = provider("twilio-events");
    check(&events, "unsigned-body");
    // Two digests are ambiguous.
    let mut two = twilio_body("twilio", "{}");
    two.url.push_str("&bodySHA256=00");
    check(&two, "unsigned-body");
}

#[test]
fn twilios_algorithm_is_the_webhooks() {
    let settings = "x-twilio-webhooks-signature-settings";
    let old = twilio(&[("A", "b")]);
    let new = twilio_by("sha256", &[("A", "b")]);
    assert_eq!(
        new.clone()
            .with(settings, "key=k,algorithm=HMAC_SHA256")
            .verify(),
        Ok(())
    );
    check(
        &new.clone().with(settings, "key=k,algorithm=HMAC_SHA1"),
        "algorithm",
    );
    check(
        &new.clone()
            .with(settings, "algorithm=HMAC_SHA256,algorithm=HMAC_MD5"),
        "algorithm",
    );
    check(&new.clone().with(settings, "key=k"), "algorithm");
    check(
        &old.clone().with(settings, "key=k,algorithm=HMAC_SHA256"),
        "algorithm",
    );
    let mut downgraded = old;
    downgraded.provider = new.provider;
    check(&downgraded, "signature");
}

#[test]
fn bytes_that_are_not_utf_8_are_verified_unchanged() {
    let good = twilio(&[("Body", "\u{fffd}")]);
    assert_eq!(good.verify(), Ok(()));
    check(&good.body("Body=%ff"), "signature");
}

#[test]
fn every_adyen_item_is_verified() {
    let items = [adyen_item("1", "CAPTURE"), adyen_item("2", "CAPTURE")];
    assert_eq!(adyen(&items).verify(), Ok(()));
    let forged = items[1].replace("order-1", "order-2");
    check(&adyen(&[items[0].clone(), forged.clone()]), "signature");
    check(&adyen(&[forged, items[0].clone()]), "signature");
    check(&adyen(&[]), "signature");
    check(&adyen(&[]).body("[]"), "malformed-body");
    check(&adyen(&[]).body(r#"{"live":"true"}"#), "signature");
    let twice = format!(
        r#"{{"notificationItems":[{0}],"notificationItems":[{0}]}}"#,
        items[0]
    );
    check(&adyen(&[]).body(twice), "malformed-body");
}

#[test]
fn a_colon_moves_nothing_of_an_adyen_items_identity() {
    // `1:` and no original reference are signed as `1` and an empty one are.
    let moved = adyen_item("1", "CAPTURE")
        .replace(r#""pspReference":"1""#, r#""pspReference":"1:""#)
        .replace(
            r#""merchantAccountCode":"Shop""#,
            r#""merchantAccountCode":"x""#,
        );
    check(&adyen(&[moved]), "malformed-body");
}

#[test]
fn adyen_items_are_bounded() {
    let item = adyen_item("1", "CAPTURE");
    let most = onceward_webhooks::ITEMS_MAX;
    assert_eq!(adyen(&vec![item.clone(); most]).verify(), Ok(()));
    check(&adyen(&vec![item; most + 1]), "too-many-items");
}

#[rstest]
#[case::lower_case("basic dXNlcjpwYXNzOndvcmQ=", None)]
#[case::two_spaces("Basic  dXNlcjpwYXNzOndvcmQ=", None)]
#[case::another_scheme("Bearer dXNlcjpwYXNzOndvcmQ=", Some("signature"))]
#[case::another_password("Basic dXNlcjpwYXNz", Some("signature"))]
#[case::nothing("Basic ", Some("signature"))]
#[case::no_scheme("dXNlcjpwYXNzOndvcmQ=", Some("malformed"))]
#[case::not_base64("Basic !", Some("malformed"))]
fn postmark_knows_the_password(#[case] value: &str, #[case] refused: Option<&str>) {
    let verdict = postmark("{}").with("authorization", value).verify();
    assert_eq!(verdict.err().map(|refusal| refusal.reason()), refused);
}

#[test]
fn a_moved_boundary_makes_no_other_message_of_the_same_signature() {
    // `…MessageStatus=sent&To=+1` is signed as `…MessageStatus=sentTo+1` is.
    let signed = twilio(&[
        ("MessageSid", MESSAGE),
        ("MessageStatus", "sent"),
        ("To", "+1"),
    ]);
    let moved = |body: &str| signed.clone().body(body);
    let merged = moved(&format!("MessageSid={MESSAGE}&MessageStatus=sentTo%2B1"));
    let split = moved(&format!("MessageSid={MESSAGE}&MessageStatus=sen&tTo=%2B1"));
    let [first] = &signed.events()[..] else {
        panic!("one event")
    };
    for other in [merged, split] {
        let [second] = &other.events()[..] else {
            panic!("one event")
        };
        // It is recognised as a duplicate of the same signed bytes.
        assert_eq!(first.binding, second.binding);
    }
}
