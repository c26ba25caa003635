//! Forged tokens, which must be refused, and valid ones.

use std::time::Duration;

use onceward_core::caller::CallerError;
use rstest::rstest;
use serde_json::{Value, json};

use super::forge::{
    Signer, claims, claims_with, claims_without, encode, header, jwks, with_secret,
};
use super::stub_server::{self, StubServer};
use super::{
    AUDIENCE, ISSUER, NOW_S, TestClock, callers, issuer, parts, quick_timing, send_bearer,
};
use crate::callers::{AuthError, Callers, Refusal};
use crate::config::{self, JwksSource, KnownBy, Scope};

/// An issuer with a key of each type.
struct TestIssuer {
    rsa: Signer,
    p256: Signer,
    p384: Signer,
    ed: Signer,
    endpoint: StubServer,
}

impl TestIssuer {
    async fn new() -> Self {
        let (rsa, p256) = (Signer::rsa(), Signer::p256());
        let (p384, ed) = (Signer::p384(), Signer::ed25519());
        let keys = jwks(&[rsa.jwk("r"), p256.jwk("e"), p384.jwk("f"), ed.jwk("d")]);
        let endpoint = StubServer::new(move |_| stub_server::json(200, &keys)).await;
        Self {
            rsa,
            p256,
            p384,
            ed,
            endpoint,
        }
    }

    fn rules(&self) -> config::Jwt {
        issuer(JwksSource::Url(format!("{}/jwks", self.endpoint.url())))
    }

    async fn callers(&self) -> Callers {
        callers(&config::Auth {
            jwt: vec![self.rules()],
            ..config::Auth::default()
        })
        .await
    }
}

async fn refused(token: &str, from: &TestIssuer) -> AuthError {
    let callers = from.callers().await;
    send_bearer(&callers, token)
        .await
        .expect_err("a forged token")
}

#[tokio::test]
async fn valid_tokens_of_each_algorithm_authenticate_their_caller() {
    let issuer = TestIssuer::new().await;
    let callers = issuer.callers().await;
    for (signer, alg, kid) in [
        (&issuer.rsa, "RS256", "r"),
        (&issuer.rsa, "PS256", "r"),
        (&issuer.p256, "ES256", "e"),
        (&issuer.p384, "ES384", "f"),
        (&issuer.ed, "EdDSA", "d"),
    ] {
        let token = signer.token(&header(alg, kid), &claims());
        let known = send_bearer(&callers, &token).await.expect(alg);
        assert_eq!(known.tenant(), "acme");
        assert_eq!(known.project(), Some("shop"));
        assert_eq!(known.subject().to_string(), "user:u-1");
        assert_eq!(known.scopes(), ["pay", "refund"]);
        assert_eq!(known.by(), KnownBy::Jwt);
        // And again, from the cache.
        assert_eq!(send_bearer(&callers, &token).await, Ok(known));
    }
    assert_eq!(issuer.endpoint.count(), 1);
}

#[rstest]
#[case("none")]
#[case("None")]
#[case("NONE")]
#[case("nOnE")]
#[case("")]
#[case("HS256")]
#[case("hs256")]
#[case("rs256")]
#[case("RS256 ")]
#[case("RS1")]
#[tokio::test]
async fn an_algorithm_that_is_not_the_issuers_is_refused(#[case] alg: &str) {
    let issuer = TestIssuer::new().await;
    let signed = issuer.rsa.token(&header(alg, "r"), &claims());
    let (message, _) = signed.rsplit_once('.').expect("three parts");
    for token in [signed.clone(), format!("{message}.")] {
        let error = refused(&token, &issuer).await;
        assert_eq!(error, Refusal::Algorithm.into());
    }
}

#[tokio::test]
async fn a_token_signed_with_the_public_key_as_a_secret_is_refused() {
    let issuer = TestIssuer::new().await;
    let jwk = issuer.rsa.jwk("r").to_string();
    for secret in [issuer.rsa.public_bytes(), jwk.into_bytes()] {
        for alg in ["HS256", "RS256", "ES256"] {
            let token = with_secret(&secret, &header(alg, "r"), &claims());
            let error = refused(&token, &issuer).await;
            assert!(matches!(
                error,
                AuthError::Refused(Refusal::Algorithm | Refusal::Signature | Refusal::NoKey)
            ));
        }
    }
}

#[rstest]
#[case::rsa_key_as_ec("ES256", "r")]
#[case::ec_key_as_rsa("RS256", "e")]
#[case::another_curve("ES384", "e")]
#[case::ed_as_ec("ES256", "d")]
#[tokio::test]
async fn a_key_of_another_type_is_not_used(#[case] alg: &str, #[case] kid: &str) {
    let issuer = TestIssuer::new().await;
    for signer in [&issuer.rsa, &issuer.p256, &issuer.ed] {
        let token = signer.token(&header(alg, kid), &claims());
        assert_eq!(refused(&token, &issuer).await, Refusal::NoKey.into());
    }
}

#[tokio::test]
async fn an_unconfigured_algorithm_is_refused_although_the_key_fits() {
    let issuer = TestIssuer::new().await;
    let mut rules = issuer.rules();
    rules.algorithms = vec![jsonwebtoken::Algorithm::ES256];
    let callers = callers(&config::Auth {
        jwt: vec![rules],
        ..config::Auth::default()
    })
    .await;
    let token = issuer.rsa.token(&header("RS256", "r"), &claims());
    assert_eq!(
        send_bearer(&callers, &token).await,
        Err(Refusal::Algorithm.into())
    );
}

#[rstest]
#[case::traversal("../../../../dev/null")]
#[case::sql("r' OR '1'='1")]
#[case::command("r;id")]
#[case::nothing("")]
#[case::nul("r\u{0}")]
#[case::url("https://evil.example/jwks.json")]
#[tokio::test]
async fn an_unusual_key_id_is_only_looked_up(#[case] kid: &str) {
    let issuer = TestIssuer::new().await;
    let token = issuer.rsa.token(&header("RS256", kid), &claims());
    assert_eq!(refused(&token, &issuer).await, Refusal::NoKey.into());
}

#[rstest]
#[case::huge(json!("k".repeat(129)))]
#[case::number(json!(1))]
#[case::list(json!(["r"]))]
#[case::null(Value::Null)]
#[tokio::test]
async fn a_key_id_of_another_type_is_malformed(#[case] kid: Value) {
    let issuer = TestIssuer::new().await;
    let mut header = header("RS256", "r");
    header["kid"] = kid;
    let token = issuer.rsa.token(&header, &claims());
    assert_eq!(
        refused(&token, &issuer).await,
        Refusal::Malformed("kid").into()
    );
}

#[rstest]
#[case::expired(claims_with("exp", json!(NOW_S - 31)), Refusal::Expired)]
#[case::expired_long_ago(claims_with("exp", json!(0)), Refusal::Expired)]
#[case::not_yet(claims_with("nbf", json!(NOW_S + 31)), Refusal::NotYetValid)]
#[case::from_the_future(claims_with("iat", json!(NOW_S + 31)), Refusal::NotYetValid)]
#[case::no_end(claims_without("exp"), Refusal::Claim("exp"))]
#[case::end_in_words(claims_with("exp", json!("9999999999")), Refusal::Claim("exp"))]
#[case::endless(claims_with("exp", json!(1e300)), Refusal::Claim("exp"))]
#[case::end_below_zero(claims_with("exp", json!(-1)), Refusal::Claim("exp"))]
#[case::end_is_null(claims_with("exp", Value::Null), Refusal::Claim("exp"))]
#[case::begin_in_words(claims_with("nbf", json!("0")), Refusal::Claim("nbf"))]
#[case::other_audience(claims_with("aud", json!("billing")), Refusal::Audience)]
#[case::audience_in_part(claims_with("aud", json!("payments2")), Refusal::Audience)]
#[case::audience_in_capitals(claims_with("aud", json!("Payments")), Refusal::Audience)]
#[case::no_audience(claims_without("aud"), Refusal::Claim("aud"))]
#[case::empty_audience(claims_with("aud", json!([])), Refusal::Audience)]
#[case::nested_audience(claims_with("aud", json!([[AUDIENCE]])), Refusal::Audience)]
#[case::other_issuer(claims_with("iss", json!("https://evil.example/")), Refusal::Issuer)]
#[case::issuer_without_slash(claims_with("iss", json!("https://id.example.com")), Refusal::Issuer)]
#[case::issuers(claims_with("iss", json!([ISSUER])), Refusal::Claim("iss"))]
#[case::no_issuer(claims_without("iss"), Refusal::Claim("iss"))]
#[case::no_subject(claims_without("sub"), Refusal::Claim("subject"))]
#[case::no_tenant(claims_without("tenant_id"), Refusal::Claim("tenant"))]
#[case::tenant_is_null(claims_with("tenant_id", Value::Null), Refusal::Claim("tenant"))]
#[case::tenant_is_a_number(claims_with("tenant_id", json!(42)), Refusal::Claim("tenant"))]
#[case::tenant_is_a_list(claims_with("tenant_id", json!(["acme"])), Refusal::Claim("tenant"))]
#[case::project_is_true(claims_with("project_id", json!(true)), Refusal::Claim("project"))]
#[case::scopes_are_numbers(claims_with("scope", json!([1])), Refusal::Claim("scopes"))]
#[case::reserved_tenant(
    claims_with("tenant_id", json!("_local")),
    Refusal::Caller(CallerError::Reserved("tenant"))
)]
#[case::reserved_project(
    claims_with("project_id", json!("_tenant")),
    Refusal::Caller(CallerError::Reserved("project"))
)]
#[case::platform(
    claims_with("project_id", json!("_platform")),
    Refusal::Caller(CallerError::Reserved("project"))
)]
#[case::empty_tenant(
    claims_with("tenant_id", json!("")),
    Refusal::Caller(CallerError::Empty("tenant"))
)]
#[case::long_subject(
    claims_with("sub", json!("s".repeat(257))),
    Refusal::Caller(CallerError::TooLong("subject"))
)]
#[case::newline_in_subject(
    claims_with("sub", json!("u\nX-Admin: 1")),
    Refusal::Caller(CallerError::Control("subject"))
)]
#[tokio::test]
async fn invalid_claims_are_refused(#[case] claims: Value, #[case] want: Refusal) {
    let issuer = TestIssuer::new().await;
    let token = issuer.p256.token(&header("ES256", "e"), &claims);
    assert_eq!(refused(&token, &issuer).await, want.into());
}

#[rstest]
#[case::within_leeway(claims_with("exp", json!(NOW_S - 29)))]
#[case::fractions(claims_with("exp", json!(NOW_S as f64 + 0.5)))]
#[case::several_audiences(claims_with("aud", json!(["billing", AUDIENCE])))]
#[case::no_begin(claims_without("nbf"))]
#[case::scopes_as_a_list(claims_with("scope", json!(["pay"])))]
#[case::no_scopes(claims_without("scope"))]
#[case::colons_and_percents(claims_with("tenant_id", json!("a:b%3Ac")))]
#[tokio::test]
async fn valid_claims_are_accepted(#[case] claims: Value) {
    let issuer = TestIssuer::new().await;
    let callers = issuer.callers().await;
    let token = issuer.p256.token(&header("ES256", "e"), &claims);
    send_bearer(&callers, &token)
        .await
        .expect("an honest token");
}

#[tokio::test]
async fn a_service_of_an_issuer_is_never_the_scheduler() {
    let issuer = TestIssuer::new().await;
    let mut rules = issuer.rules();
    rules.subject_type = onceward_core::caller::SubjectKind::Service;
    let callers = callers(&config::Auth {
        jwt: vec![rules],
        ..config::Auth::default()
    })
    .await;
    for name in ["scheduler", "webhook-ingest"] {
        let claims = claims_with("sub", json!(name));
        let token = issuer.p256.token(&header("ES256", "e"), &claims);
        let want = Refusal::Caller(CallerError::Reserved("subject"));
        assert_eq!(send_bearer(&callers, &token).await, Err(want.into()));
    }
}

#[tokio::test]
async fn a_token_without_a_project_may_only_use_routes_with_a_wider_scope() {
    let issuer = TestIssuer::new().await;
    let callers = issuer.callers().await;
    let claims = claims_without("project_id");
    let token = issuer.p256.token(&header("ES256", "e"), &claims);
    let known = send_bearer(&callers, &token).await.expect("known");
    let error = known.caller(Scope::Project).expect_err("no project");
    assert!(matches!(error, AuthError::Forbidden(_)));
    let caller = known.caller(Scope::Tenant).expect("the tenant's");
    assert_eq!(caller.project(), "_tenant");
    let caller = known.caller(Scope::Platform).expect("the platform's");
    assert_eq!(caller.project(), "_platform");
}

#[tokio::test]
async fn keys_inside_a_token_are_ignored() {
    let issuer = TestIssuer::new().await;
    let evil = Signer::p256();
    let keys = jwks(&[evil.jwk("x")]);
    let endpoint = StubServer::new(move |_| stub_server::json(200, &keys)).await;
    for kid in ["x", "e"] {
        let mut header = header("ES256", kid);
        header["jwk"] = evil.jwk(kid);
        header["jku"] = json!(format!("{}/jwks", endpoint.url()));
        header["x5u"] = json!(format!("{}/x5u", endpoint.url()));
        header["x5c"] = json!(["MIIB"]);
        let error = refused(&evil.token(&header, &claims()), &issuer).await;
        assert!(matches!(
            error,
            AuthError::Refused(Refusal::NoKey | Refusal::Signature)
        ));
    }
    assert_eq!(endpoint.count(), 0);
}

#[rstest]
#[case::unknown(json!(["exp2"]))]
#[case::empty(json!([]))]
#[case::unencoded(json!(["b64"]))]
#[tokio::test]
async fn critical_extensions_are_refused(#[case] crit: Value) {
    let issuer = TestIssuer::new().await;
    let mut header = header("ES256", "e");
    header["crit"] = crit;
    let token = issuer.p256.token(&header, &claims());
    assert_eq!(refused(&token, &issuer).await, Refusal::Critical.into());
}

#[rstest]
#[case("logout+jwt")]
#[case("secevent+jwt")]
#[case("dpop+jwt")]
#[tokio::test]
async fn other_kinds_of_tokens_are_refused(#[case] kind: &str) {
    let issuer = TestIssuer::new().await;
    let mut header = header("ES256", "e");
    header["typ"] = json!(kind);
    let token = issuer.p256.token(&header, &claims());
    assert_eq!(
        refused(&token, &issuer).await,
        Refusal::Malformed("typ").into()
    );
}

#[tokio::test]
async fn duplicate_members_are_refused() {
    let issuer = TestIssuer::new().await;
    let honest = claims().to_string();
    let twice = honest.replacen('{', r#"{"tenant_id":"victim","#, 1);
    let deep = honest.replacen('{', r#"{"x":{"a":1,"a":2},"#, 1);
    let head = header("ES256", "e").to_string();
    let heads = head.replacen('{', r#"{"alg":"none","#, 1);
    for (header, claims) in [(&head, &twice), (&head, &deep), (&heads, &honest)] {
        let token = issuer.p256.token_of_texts(header, claims);
        let error = refused(&token, &issuer).await;
        assert!(matches!(error, AuthError::Refused(Refusal::Malformed(_))));
    }
}

#[tokio::test]
async fn malformed_tokens_are_refused() {
    let issuer = TestIssuer::new().await;
    let token = issuer.p256.token(&header("ES256", "e"), &claims());
    let parts: Vec<_> = token.split('.').collect();
    let deep = format!("{{\"a\":{}", "[".repeat(2000));
    let padded = data_encoding::BASE64URL.encode(header("ES256", "e").to_string().as_bytes());
    for bad in [
        "a.b.c".to_owned(),
        "..".to_owned(),
        format!("{}.{}", parts[0], parts[1]),
        format!("{token}.{}", parts[2]),
        format!("{}==.{}.{}", parts[0], parts[1], parts[2]),
        format!("{padded}=.{}.{}", parts[1], parts[2]),
        format!("{}.{}.{}", encode(b"[]"), parts[1], parts[2]),
        format!("{}.{}.{}", parts[0], encode(deep.as_bytes()), parts[2]),
        format!("{}.{}.{}", parts[0], encode(b"\xff\xfe"), parts[2]),
    ] {
        let error = refused(&bad, &issuer).await;
        assert!(
            matches!(error, AuthError::Refused(Refusal::Malformed(_))),
            "{bad}: {error:?}"
        );
    }
}

#[tokio::test]
async fn an_oversized_token_is_not_parsed() {
    let issuer = TestIssuer::new().await;
    let claims = claims_with("more", json!("x".repeat(8 * 1024)));
    let token = issuer.p256.token(&header("ES256", "e"), &claims);
    assert_eq!(refused(&token, &issuer).await, Refusal::TooLong.into());
}

#[tokio::test]
async fn a_token_changed_in_any_part_is_refused() {
    let issuer = TestIssuer::new().await;
    let callers = issuer.callers().await;
    let token = issuer.p256.token(&header("ES256", "e"), &claims());
    let other = issuer
        .p256
        .token(&header("ES256", "e"), &claims_with("sub", json!("u-2")));
    let ours: Vec<_> = token.split('.').collect();
    let theirs: Vec<_> = other.split('.').collect();
    // Valid tokens first, so that the cache could do harm.
    send_bearer(&callers, &token).await.expect("honest");
    send_bearer(&callers, &other).await.expect("honest");
    let mixed = format!("{}.{}.{}", ours[0], theirs[1], ours[2]);
    assert_eq!(
        send_bearer(&callers, &mixed).await,
        Err(Refusal::Signature.into())
    );
    let none = format!("{}.{}.", ours[0], ours[1]);
    assert_eq!(
        send_bearer(&callers, &none).await,
        Err(Refusal::Signature.into())
    );
    // Some libraries once accepted a signature of zeros.
    let zeros = format!("{}.{}.{}", ours[0], ours[1], encode(&[0; 64]));
    assert_eq!(
        send_bearer(&callers, &zeros).await,
        Err(Refusal::Signature.into())
    );
}

#[tokio::test]
async fn a_cached_token_expires_on_time() {
    let issuer = TestIssuer::new().await;
    let test_clock = TestClock::new();
    let auth = config::Auth {
        jwt: vec![issuer.rules()],
        ..config::Auth::default()
    };
    let callers = Callers::open_with_timing(&auth, parts(&test_clock), quick_timing()).await;
    let callers = callers.expect("callers");
    let claims = claims_with("exp", json!(NOW_S + 5));
    let token = issuer.p256.token(&header("ES256", "e"), &claims);
    send_bearer(&callers, &token).await.expect("honest");
    test_clock.advance(Duration::from_secs(34));
    send_bearer(&callers, &token)
        .await
        .expect("within the leeway");
    test_clock.advance(Duration::from_secs(1));
    assert_eq!(
        send_bearer(&callers, &token).await,
        Err(Refusal::Expired.into())
    );
}

#[tokio::test]
async fn each_issuer_has_its_own_keys() {
    let (one, other) = (TestIssuer::new().await, TestIssuer::new().await);
    let mut second = other.rules();
    second.issuer = "https://other.example/".to_owned();
    let callers = callers(&config::Auth {
        jwt: vec![one.rules(), second],
        ..config::Auth::default()
    })
    .await;
    let honest = claims_with("iss", json!("https://other.example/"));
    let token = other.p256.token(&header("ES256", "e"), &honest);
    send_bearer(&callers, &token)
        .await
        .expect("the second issuer's");
    let crossed = other.p256.token(&header("ES256", "e"), &claims());
    assert_eq!(
        send_bearer(&callers, &crossed).await,
        Err(Refusal::Signature.into())
    );
}

/// As Firebase documents it: the issuer and the audience are the Firebase project,
/// `sub` is the user, and custom claims are beside them.
#[tokio::test]
async fn firebase_id_tokens_work_by_configuration_alone() {
    let issuer = TestIssuer::new().await;
    let rules = config::Jwt {
        issuer: "https://securetoken.google.com/my-app".to_owned(),
        audience: vec!["my-app".to_owned()],
        algorithms: vec![jsonwebtoken::Algorithm::RS256],
        tenant: config::ClaimSource::Fixed("my-app".to_owned()),
        project: Some(config::ClaimSource::Fixed("main".to_owned())),
        scopes: None,
        ..issuer.rules()
    };
    let callers = callers(&config::Auth {
        jwt: vec![rules],
        ..config::Auth::default()
    })
    .await;
    let claims = json!({
        "iss": "https://securetoken.google.com/my-app",
        "aud": "my-app",
        "auth_time": NOW_S - 300,
        "user_id": "Zk3Jq0",
        "sub": "Zk3Jq0",
        "iat": NOW_S - 10,
        "exp": NOW_S + 3590,
        "email": "ann@example.com",
        "email_verified": true,
        "firebase": { "identities": { "email": ["ann@example.com"] }, "sign_in_provider": "password" },
    });
    let token = issuer.rsa.token(&header("RS256", "r"), &claims);
    let known = send_bearer(&callers, &token)
        .await
        .expect("a Firebase user");
    let caller = known.caller(Scope::Project).expect("a caller");
    assert_eq!(caller.tenant(), "my-app");
    assert_eq!(caller.project(), "main");
    assert_eq!(caller.subject().to_string(), "user:Zk3Jq0");
}
