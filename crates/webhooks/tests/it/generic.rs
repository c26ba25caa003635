//! Providers from the configuration.

use data_encoding::{BASE64URL_NOPAD, HEXLOWER, HEXUPPER};
use onceward_webhooks::{
    Binding, Generic, GenericSettings, GenericTimestamp, Provider, Tolerance, Unidentified,
};
use ring::hmac;
use rstest::rstest;

use crate::request::{NOW, Request, acme, generic_provider, github, sha256_hex};

fn settings() -> GenericSettings {
    GenericSettings {
        name: "other".to_owned(),
        signature_header: "x-signature".to_owned(),
        id: "json:/id".to_owned(),
        ..GenericSettings::default()
    }
}

fn sign(content: &[u8]) -> hmac::Tag {
    hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, b"secret"), content)
}

/// A request of a provider with these settings, signed over the content.
fn request(settings: &GenericSettings, content: &[u8], body: &str) -> Request {
    let tag = HEXLOWER.encode(sign(content).as_ref());
    Request::new(&generic_provider(settings), "secret", body).with(
        &settings.signature_header,
        &format!("{}{tag}", settings.prefix),
    )
}

#[test]
fn github_can_be_described() {
    let real = github("g-1", r#"{"ref":"main"}"#);
    let mut described = real.clone();
    described.provider = generic_provider(&GenericSettings {
        name: "hub".to_owned(),
        signature_header: "X-Hub-Signature-256".to_owned(),
        prefix: "sha256=".to_owned(),
        id: "header:X-GitHub-Delivery".to_owned(),
        ..GenericSettings::default()
    });
    let [event] = &described.events()[..] else {
        panic!("one event")
    };
    let [wanted] = &real.events()[..] else {
        panic!("one event")
    };
    assert_eq!(event.key, wanted.key.replace("github-", "hub-"));
    assert_eq!(event.binding, wanted.binding);
    let untagged = HEXLOWER.encode(sign(b"").as_ref());
    let refused = described.with("x-hub-signature-256", &untagged).verify();
    assert_eq!(refused.expect_err("no prefix").reason(), "signature");
}

#[test]
fn a_scheme_like_stripes_can_be_described() {
    let settings = GenericSettings {
        prefix: "v1=".to_owned(),
        separator: Some(",".to_owned()),
        signed: "{timestamp}.{body}".to_owned(),
        timestamp: Some(GenericTimestamp {
            header: "x-time".to_owned(),
            unit: "s".to_owned(),
        }),
        ..settings()
    };
    let body = r#"{"id":"evt_1"}"#;
    let good = request(&settings, format!("{NOW}.{body}").as_bytes(), body)
        .with("x-time", &NOW.to_string());
    assert_eq!(good.event_key(), "other-evt_1");
    // One of several signatures; the others are ignored.
    let value = good.headers["x-signature"]
        .to_str()
        .expect("text")
        .to_owned();
    let among = good
        .clone()
        .with("x-signature", &format!("v0=00, v1=zz,{value}"));
    assert_eq!(among.verify(), Ok(()));
    let late = (NOW - 301).to_string();
    let old = request(&settings, format!("{late}.{body}").as_bytes(), body).with("x-time", &late);
    assert_eq!(old.verify().expect_err("old").reason(), "too-old");
    let moved = good.with("x-time", &(NOW - 1).to_string());
    assert_eq!(
        moved.verify().expect_err("the time is signed").reason(),
        "signature"
    );
}

#[test]
fn a_signed_header_is_a_signed_id() {
    let settings = GenericSettings {
        signed: "{header:X-Id}.{body}".to_owned(),
        id: "header:x-id".to_owned(),
        ..settings()
    };
    let good = request(&settings, b"a-1.{}", "{}").with("x-id", "a-1");
    assert_eq!(good.event_key(), "other-a-1");
    assert_eq!(good.events()[0].binding, Binding::Signed);
    assert_eq!(
        good.clone()
            .with("x-id", "a-2")
            .verify()
            .expect_err("signed")
            .reason(),
        "signature"
    );
    // The separator must not occur within the value.
    let moved = request(&settings, b"a.1.{}", "{}").with("x-id", "a.1");
    assert_eq!(moved.verify().expect_err("ambiguous").reason(), "malformed");
    let refusal = good.without("x-id").verify().expect_err("not there");
    assert_eq!(refusal.reason(), "missing-header");
}

#[test]
fn a_header_after_the_body_is_set_apart_before_it() {
    let settings = GenericSettings {
        signed: "{body}#{header:x-id}".to_owned(),
        id: "header:x-id".to_owned(),
        ..settings()
    };
    assert_eq!(
        request(&settings, b"x#y#1", "x#y")
            .with("x-id", "1")
            .verify(),
        Ok(())
    );
    let moved = request(&settings, b"x#y#1", "x")
        .with("x-id", "y#1")
        .verify();
    assert_eq!(moved.expect_err("ambiguous").reason(), "malformed");
}

#[test]
fn the_url_can_be_signed() {
    let settings = GenericSettings {
        signed: "POST{url}{body}".to_owned(),
        ..settings()
    };
    let body = r#"{"id":7}"#;
    let good = request(
        &settings,
        format!("POSThttps://hooks.example.com:443/api/v1/webhooks/x/wh_1{body}").as_bytes(),
        body,
    );
    assert!(good.provider.binds_url());
    assert_eq!(good.event_key(), "other-7");
    let mut elsewhere = good;
    elsewhere.url.push('2');
    assert_eq!(
        elsewhere.verify().expect_err("signed").reason(),
        "signature"
    );
}

/// Parts that are signed without a separator keep their bounds.
#[rstest]
#[case::as_sent("100", "1760000000", Ok(()))]
#[case::a_zero_moved("10", "01760000000", Err("malformed"))]
#[case::zeros_moved("1", "001760000000", Err("malformed"))]
#[case::digits_moved("1001", "760000000", Err("malformed"))]
fn bytes_do_not_move_between_the_body_and_the_time(
    #[case] amount: &str,
    #[case] time: &str,
    #[case] want: Result<(), &str>,
    #[values(Tolerance::default(), Tolerance::Off)] tolerance: Tolerance,
) {
    let settings = GenericSettings {
        signed: "{body}{timestamp}".to_owned(),
        timestamp: Some(GenericTimestamp {
            header: "x-time".to_owned(),
            unit: "s".to_owned(),
        }),
        id: "form:id".to_owned(),
        ..settings()
    };
    let content = format!("id=7&amount=100{NOW}");
    let body = format!("id=7&amount={amount}");
    let sent = request(&settings, content.as_bytes(), &body).with("x-time", time);
    let verified = sent.verify_with(&[sent.key()], NOW, tolerance);
    assert_eq!(verified.map_err(|refusal| refusal.reason()), want);
}

/// An attacker may extend the query by the first bytes of the body.
#[rstest]
#[case::no_query("{url}{body}", "form:id", "", "a=1&id=7", Ok(()))]
#[case::a_query("{url}{body}", "form:id", "?q=", "1&id=7", Err("malformed-url"))]
#[case::set_apart("{url}.{body}", "form:id", "?q=1", "id=7", Ok(()))]
#[case::a_point_in_it("{url}.{body}", "form:id", "?q=1.2", "id=7", Err("malformed-url"))]
#[case::by_a_header("{url}{body}", "header:x-id", "?q=", "1&id=7", Err("malformed-url"))]
#[case::after_the_body("{body}.{url}", "form:id", "?q=1", "id=7", Ok(()))]
// No other prefix of a JSON text is JSON.
#[case::json("{url}{body}", "json:/id", "?q=1", r#"{"id":7}"#, Ok(()))]
fn bytes_do_not_move_between_the_url_and_the_body(
    #[case] signed: &str,
    #[case] id: &str,
    #[case] query: &str,
    #[case] body: &str,
    #[case] want: Result<(), &str>,
) {
    let settings = GenericSettings {
        signed: signed.to_owned(),
        id: id.to_owned(),
        ..settings()
    };
    let url = format!("https://hooks.example.com/api/v1/webhooks/x/wh_1{query}");
    let content = signed.replace("{url}", &url).replace("{body}", body);
    let mut sent = request(&settings, content.as_bytes(), body).with("x-id", "7");
    sent.url = url;
    assert_eq!(sent.verify().map_err(|refusal| refusal.reason()), want);
}

#[test]
fn signatures_are_written_in_several_ways() {
    let upper = HEXUPPER.encode(sign(b"{}").as_ref());
    let hex = Request::new(&generic_provider(&settings()), "secret", "{}");
    assert_eq!(hex.with("x-signature", &upper).verify(), Ok(()));
    let settings = GenericSettings {
        encoding: "base64url".to_owned(),
        ..settings()
    };
    let tag = BASE64URL_NOPAD.encode(sign(b"{}").as_ref());
    let url = Request::new(&generic_provider(&settings), "secret", "{}");
    assert_eq!(url.with("x-signature", &tag).verify(), Ok(()));
}

#[rstest]
#[case::a_string("json:/id", r#"{"id":"a/b"}"#, Ok("other-a%2Fb"))]
#[case::all_digits_of_a_number(
    "json:/id",
    r#"{"id":12345678901234567890123}"#,
    Ok("other-12345678901234567890123")
)]
#[case::deeper("json:/a/1/b", r#"{"a":[0,{"b":"x"}]}"#, Ok("other-x"))]
#[case::escaped("json:/a~1b/~0", r#"{"a/b":{"~":"x"}}"#, Ok("other-x"))]
#[case::an_empty_name("json:/", r#"{"":"x"}"#, Ok("other-x"))]
#[case::absent("json:/id", "{}", Err(Unidentified::MissingId))]
#[case::empty("json:/id", r#"{"id":""}"#, Err(Unidentified::MissingId))]
#[case::null("json:/id", r#"{"id":null}"#, Err(Unidentified::MissingId))]
#[case::an_object("json:/id", r#"{"id":{}}"#, Err(Unidentified::MissingId))]
#[case::through_a_string("json:/id/x", r#"{"id":"x"}"#, Err(Unidentified::MissingId))]
#[case::past_the_end("json:/1", "[1]", Err(Unidentified::MissingId))]
#[case::no_index("json:/01", "[1,2]", Err(Unidentified::MissingId))]
#[case::twice("json:/id", r#"{"id":1,"id":2}"#, Err(Unidentified::MalformedBody))]
#[case::twice_deeper(
    "json:/a/id",
    r#"{"a":{"id":1,"id":2}}"#,
    Err(Unidentified::MalformedBody)
)]
#[case::not_json("json:/id", "id=1", Err(Unidentified::MalformedBody))]
#[case::a_field("form:id", "x=y&id=a+b", Ok("other-a%20b"))]
#[case::no_field("form:id", "x=y", Err(Unidentified::MissingId))]
#[case::an_empty_field("form:id", "id=", Err(Unidentified::MissingId))]
#[case::two_fields("form:id", "id=1&id=1", Err(Unidentified::RepeatedId))]
#[case::not_text("form:id", "id=%ff", Err(Unidentified::RepeatedId))]
fn the_id_is_where_the_settings_say(
    #[case] id: &str,
    #[case] body: &str,
    #[case] want: Result<&str, Unidentified>,
) {
    let request = request(
        &GenericSettings {
            id: id.to_owned(),
            ..settings()
        },
        body.as_bytes(),
        body,
    );
    match want {
        Ok(key) => assert_eq!(request.event_key(), key),
        Err(why) => assert_eq!(request.identify(), Err(why)),
    }
}

#[test]
fn an_unsigned_header_is_bound_to_the_body() {
    let settings = GenericSettings {
        id: "header:x-id".to_owned(),
        ..settings()
    };
    let good = request(&settings, b"{}", "{}").with("x-id", "1");
    assert_eq!(
        good.event_key(),
        format!("other-1.{}", &sha256_hex(b"{}")[..32])
    );
    assert_eq!(
        good.clone().without("x-id").identify(),
        Err(Unidentified::MissingId)
    );
    assert_eq!(
        good.and("x-id", "2").verify().expect_err("twice").reason(),
        "repeated-header"
    );
}

#[rstest]
#[case::no_name(GenericSettings { name: String::new(), ..settings() }, "name")]
#[case::upper_case(GenericSettings { name: "Acme".to_owned(), ..settings() }, "name")]
#[case::leading_hyphen(GenericSettings { name: "-a".to_owned(), ..settings() }, "name")]
#[case::long_name(GenericSettings { name: "a".repeat(65), ..settings() }, "name")]
#[case::built_in(GenericSettings { name: "stripe".to_owned(), ..settings() }, "name")]
#[case::no_header(GenericSettings { signature_header: String::new(), ..settings() }, "signature_header")]
#[case::prefix(GenericSettings { prefix: "é".to_owned(), ..settings() }, "prefix")]
#[case::separator(GenericSettings { separator: Some(String::new()), ..settings() }, "separator")]
#[case::algorithm(GenericSettings { algorithm: "md5".to_owned(), ..settings() }, "algorithm")]
#[case::encoding(GenericSettings { encoding: "rot13".to_owned(), ..settings() }, "encoding")]
#[case::secret(GenericSettings { secret: "plain".to_owned(), ..settings() }, "secret")]
#[case::no_body(GenericSettings { signed: "x".to_owned(), ..settings() }, "signed")]
#[case::two_bodies(GenericSettings { signed: "{body}{body}".to_owned(), ..settings() }, "signed")]
#[case::unknown(GenericSettings { signed: "{body}{method}".to_owned(), ..settings() }, "signed")]
#[case::open_brace(GenericSettings { signed: "{body}{".to_owned(), ..settings() }, "signed")]
#[case::closed_brace(GenericSettings { signed: "}{body}".to_owned(), ..settings() }, "signed")]
#[case::no_time(GenericSettings { signed: "{timestamp}.{body}".to_owned(), ..settings() }, "signed")]
#[case::header_name(GenericSettings { signed: "{header:a b}.{body}".to_owned(), ..settings() }, "signed")]
#[case::not_set_apart(GenericSettings { signed: "{header:a}{body}".to_owned(), ..settings() }, "signed")]
#[case::not_set_apart_after(GenericSettings { signed: "{body}{header:a}".to_owned(), ..settings() }, "signed")]
#[case::not_set_apart_from_the_url(GenericSettings { signed: "{url}{header:a}.{body}".to_owned(), ..settings() }, "signed")]
#[case::unsigned_time(
    GenericSettings { timestamp: Some(GenericTimestamp { header: "t".to_owned(), unit: "s".to_owned() }), ..settings() },
    "timestamp"
)]
#[case::no_id(GenericSettings { id: String::new(), ..settings() }, "id")]
#[case::unknown_id(GenericSettings { id: "cookie:x".to_owned(), ..settings() }, "id")]
#[case::pointer(GenericSettings { id: "json:id".to_owned(), ..settings() }, "id")]
#[case::whole_document(GenericSettings { id: "json:".to_owned(), ..settings() }, "id")]
#[case::pointer_escape(GenericSettings { id: "json:/~2".to_owned(), ..settings() }, "id")]
#[case::no_field(GenericSettings { id: "form:".to_owned(), ..settings() }, "id")]
fn a_mistake_names_its_setting(#[case] settings: GenericSettings, #[case] field: &str) {
    let mistakes = Generic::new(&settings).expect_err("a mistake");
    let fields: Vec<&str> = mistakes.iter().map(|mistake| mistake.field).collect();
    assert_eq!(fields, [field], "{mistakes:?}");
}

#[test]
fn all_mistakes_are_reported_at_once() {
    let settings = GenericSettings {
        algorithm: "md5".to_owned(),
        timestamp: Some(GenericTimestamp {
            header: String::new(),
            unit: "h".to_owned(),
        }),
        signed: "{timestamp}{x}{body}".to_owned(),
        ..GenericSettings::default()
    };
    let mistakes = Generic::new(&settings).expect_err("mistakes");
    let fields: Vec<&str> = mistakes.iter().map(|mistake| mistake.field).collect();
    let want = [
        "name",
        "signature_header",
        "algorithm",
        "timestamp.header",
        "timestamp.unit",
        "signed",
        "id",
    ];
    assert_eq!(fields, want);
    assert_eq!(
        mistakes[2].to_string(),
        "`algorithm` must be one of sha1, sha256, sha512"
    );
}

#[test]
fn a_generic_provider_has_its_own_name_and_secrets() {
    let acme = acme("{}").provider;
    assert_eq!(acme.name(), "acme");
    assert!(acme.key("not hexadecimal").is_err());
    assert!(matches!(acme, Provider::Generic(_)));
}
