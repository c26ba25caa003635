//! The providers' SDKs sign as the providers do, and accept what they should.

use std::time::{SystemTime, UNIX_EPOCH};

use onceward_servers::{ProviderRequest, Signed, Signer, Verification};

const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
const URL: &str = "https://example.com/webhook";

const GITHUB: ProviderRequest<'_> = ProviderRequest {
    provider: "github",
    secret: "It's a Secret to Everybody",
    url: URL,
    headers: &[],
    body: b"Hello, World!",
    id: None,
    timestamp: None,
};
const STANDARD: ProviderRequest<'_> = ProviderRequest {
    provider: "standard-webhooks",
    secret: SECRET,
    body: br#"{"test": 2432232314}"#,
    id: Some("msg_p5jXN8AQM9LWM0D4loKWxJek"),
    timestamp: Some(1_614_265_330),
    ..GITHUB
};
const SVIX: ProviderRequest<'_> = ProviderRequest {
    provider: "svix",
    ..STANDARD
};
const SLACK: ProviderRequest<'_> = ProviderRequest {
    provider: "slack",
    secret: "8f742231b10e8888abcd99yyyzzz85a5",
    body: b"token=xyzz0WbapA4vBCDEFasx0q6G&team_id=T1DC2JH3J&team_domain=testteamnow\
        &channel_id=G8PSS9T3V&channel_name=foobar&user_id=U2CERLKJA&user_name=roadrunner\
        &command=%2Fwebhook-collect&text=&response_url=https%3A%2F%2Fhooks.slack.com\
        %2Fcommands%2FT1DC2JH3J%2F397700885554%2F96rGlfmibIGlgcZRskXaIFfN\
        &trigger_id=398738663015.47445629121.803a0bc887a14d10d2c447fce8b6703c",
    timestamp: Some(1_531_420_618),
    ..GITHUB
};
const TWILIO: ProviderRequest<'_> = ProviderRequest {
    provider: "twilio",
    secret: "12345",
    url: "https://mycompany.com/myapp.php?foo=1&bar=2",
    body: b"CallSid=CA1234567890ABCDE&Caller=%2B14158675309&Digits=1234\
        &From=%2B14158675309&To=%2B18005551212",
    id: Some("a6c5f2b0-4d1e-4b7e-9a51-0f2e5b1c7d11"),
    ..GITHUB
};
const ADYEN: ProviderRequest<'_> = ProviderRequest {
    provider: "adyen",
    secret: "44782DEF547AAA06C910C43932B1EB0C71FC68D9D0C057550C48EC2ACF6BA056",
    body: br#"{"live": "false", "notificationItems": [{"NotificationRequestItem": {
        "amount": {"value": 1130, "currency": "EUR"}, "pspReference": "7914073381342284",
        "eventCode": "AUTHORISATION", "merchantAccountCode": "TestMerchant",
        "merchantReference": "TestPayment-1407325143704", "success": "true"}}]}"#,
    ..GITHUB
};
const SHOPIFY: ProviderRequest<'_> = ProviderRequest {
    provider: "shopify",
    secret: "hush-shopify-client-secret",
    body: "{\"id\":820982911946154508,\"email\":\"jon@example.com\",\"note\":\"café\"}".as_bytes(),
    ..GITHUB
};
const SQUARE: ProviderRequest<'_> = ProviderRequest {
    provider: "square",
    secret: "asdf1234-square-signature-key",
    body: br#"{"merchant_id":"MLEFBHHSJGVHD","type":"payment.updated","event_id":"13b867cf-db3d-4b1c-90b6-2f32a9d78124","created_at":"2025-10-09T08:53:20.000Z","data":{"type":"payment","id":"pay_1"}}"#,
    ..GITHUB
};

fn header<'a>(signed: &'a Signed, wanted: &str) -> &'a str {
    let found = signed.headers.iter().find(|(name, _)| name == wanted);
    &found.unwrap_or_else(|| panic!("{wanted} of {signed:?}")).1
}

fn check(signer: &Signer, request: &ProviderRequest<'_>, name: &str, expected: &str) {
    let signed = signer.sign(request);
    assert_eq!(header(&signed, name), expected, "{}", request.provider);
    assert_eq!((&*signed.url, &*signed.body), (request.url, request.body));
}

const STANDARD_SIGNATURE: &str = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=";
const TWILIO_SIGNATURE: &str = "RSOYDt4T1cUTdK1PDd93/VVr8B8=";

#[test]
fn python_signs_as_the_providers_have_published() {
    let python = Signer::python();
    let slack = "v0=a2114d57b48eac39b9ad189dd8316235a7b4a8d21a10bd27519666489c69b503";
    let square = "dCqC/LCO4nDkDNNwtN0ynUZungYpSmAkaY+7EyRXoZU=";
    check(&python, &STANDARD, "webhook-signature", STANDARD_SIGNATURE);
    check(&python, &SVIX, "svix-signature", STANDARD_SIGNATURE);
    check(&python, &SLACK, "X-Slack-Signature", slack);
    check(&python, &SQUARE, "x-square-hmacsha256-signature", square);
    check(&python, &TWILIO, "X-Twilio-Signature", TWILIO_SIGNATURE);

    let adyen = python.sign(&ADYEN).body;
    let adyen = serde_json::from_slice::<serde_json::Value>(&adyen).expect("JSON");
    let item = &adyen["notificationItems"][0]["NotificationRequestItem"];
    let signature = "coqCmt/IZ4E3CzPvMY8zTjQVL5hYJUiBRg8UU+iCWo0=";
    assert_eq!(item["additionalData"]["hmacSignature"], signature);
}

#[test]
fn node_signs_as_the_providers_have_published() {
    let node = Signer::node();
    let github = "sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17";
    let shopify = "I8WUXcrAqfm3yI42BAHoz9SEccbjx2DhCvWEMcJ7gc0=";
    check(&node, &GITHUB, "X-Hub-Signature-256", github);
    check(&node, &SHOPIFY, "X-Shopify-Hmac-Sha256", shopify);
    check(&node, &STANDARD, "webhook-signature", STANDARD_SIGNATURE);
    check(&node, &SVIX, "svix-signature", STANDARD_SIGNATURE);
    check(&node, &TWILIO, "X-Twilio-Signature", TWILIO_SIGNATURE);
}

#[test]
fn both_languages_send_the_same() {
    let (python, node) = (Signer::python(), Signer::node());
    let stripe = ProviderRequest {
        provider: "stripe",
        ..STANDARD
    };
    let events = ProviderRequest {
        provider: "twilio-events",
        body: "[{\"id\":\"EZ1\",\"text\":\"☃\"}]".as_bytes(),
        ..TWILIO
    };
    let form = ProviderRequest {
        body: b"Text=caf%C3%A9+%26&b=2&b=1&b=2&Empty=&a=%F0%9F%98%80",
        ..TWILIO
    };
    for request in [STANDARD, SVIX, stripe, TWILIO, form, events] {
        let mut both = [python.sign(&request), node.sign(&request)];
        both.iter_mut().for_each(|signed| signed.headers.sort());
        assert_eq!(both[0], both[1], "{}", request.provider);
    }
    let hash = "8870cc0cb6287b2390d9a41c44bc8629d60efc3a7bc95e7a9fce39fd00c56f70";
    assert_eq!(
        node.sign(&events).url,
        format!("{}&bodySHA256={hash}", TWILIO.url)
    );
}

#[test]
fn given_values_are_used_and_others_are_generated() {
    let node = Signer::node();
    let given = node.sign(&ProviderRequest {
        headers: &[("x-github-event", "ping")],
        id: Some("1234"),
        ..GITHUB
    });
    assert_eq!(header(&given, "x-github-event"), "ping");
    assert_eq!(header(&given, "X-GitHub-Delivery"), "1234");
    let names = given.headers.iter().map(|(name, _)| name.to_lowercase());
    assert_eq!(names.filter(|name| name == "x-github-event").count(), 1);

    let [one, other] = [node.sign(&GITHUB), node.sign(&GITHUB)];
    assert_ne!(
        header(&one, "X-GitHub-Delivery"),
        header(&other, "X-GitHub-Delivery")
    );
}

#[test]
fn a_receiver_accepts_only_current_valid_signatures() {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let now = now.expect("it is after 1970").as_secs();
    let (python, node) = (Signer::python(), Signer::node());
    for (sender, receiver) in [(&python, &node), (&node, &python)] {
        let verify = |secret, body, timestamp| {
            let signed = sender.sign(&ProviderRequest { timestamp, ..SVIX });
            // Svix signs as the standard says, with its own header names.
            let headers = signed.headers.iter();
            let headers = headers.map(|(name, value)| (name.replace("svix-", "webhook-"), value));
            let headers = headers.collect::<Vec<_>>();
            let headers = headers.iter().map(|(name, value)| (&**name, &***value));
            receiver.verify(&ProviderRequest {
                secret,
                headers: &headers.collect::<Vec<_>>(),
                body,
                ..STANDARD
            })
        };
        let refused = |reason: &str| Verification::Refused(reason.to_owned());
        let unmatched = refused("No matching signature found");
        let old = refused("Message timestamp too old");
        let other = "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD";
        assert_eq!(verify(SECRET, SVIX.body, None), Verification::Accepted);
        assert_eq!(verify(SECRET, b"{}", None), unmatched);
        assert_eq!(verify(other, SVIX.body, None), unmatched);
        assert_eq!(verify(SECRET, SVIX.body, Some(now - 310)), old);
    }
}

#[test]
fn an_error_does_not_end_the_program() {
    let python = Signer::python();
    let unknown = ProviderRequest {
        provider: "postmark",
        ..STANDARD
    };
    let refused = std::panic::catch_unwind(|| python.sign(&unknown));
    let said = refused.expect_err("there is no such SDK");
    let said = said.downcast_ref::<String>().expect("a message");
    assert!(said.contains("no SDK here signs for postmark"), "{said}");
    check(&python, &STANDARD, "webhook-signature", STANDARD_SIGNATURE);
}
