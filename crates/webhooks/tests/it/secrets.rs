//! Secrets: the format of each provider, and that they are never shown.

use onceward_webhooks::{Provider, SecretError};
use rstest::rstest;

use crate::request::{acme, one_of_each, provider};

#[rstest]
#[case::stripe("stripe", "whsec_x", None)]
#[case::empty("stripe", "", Some(SecretError::Empty))]
#[case::line_end("github", "secret\n", Some(SecretError::Surrounded))]
#[case::standard("standard-webhooks", "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", None)]
#[case::no_prefix("svix", "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", None)]
#[case::no_padding("svix", "whsec_c3RhbmRhcmQ", None)]
#[case::not_base64("svix", "whsec_!", Some(SecretError::NotBase64))]
#[case::nothing_after_the_prefix("svix", "whsec_", Some(SecretError::Empty))]
#[case::asymmetric("standard-webhooks", "whpk_AAAA", Some(SecretError::Asymmetric))]
#[case::hex("adyen", "0aFF", None)]
#[case::odd_hex("adyen", "0aF", Some(SecretError::NotHex))]
#[case::credentials("postmark", "user:pass:word", None)]
#[case::no_password("postmark", "user:", Some(SecretError::NotCredentials))]
#[case::no_colon("postmark", "user", Some(SecretError::NotCredentials))]
fn a_secret_has_its_providers_form(
    #[case] name: &str,
    #[case] secret: &str,
    #[case] wrong: Option<SecretError>,
) {
    assert_eq!(provider(name).key(secret).err(), wrong);
}

#[test]
fn a_secret_is_shown_neither_by_its_key_nor_by_its_error() {
    let key = provider("stripe").key("whsec_canary").expect("a secret");
    assert_eq!(format!("{key:?}"), "SigningKey(…)");
    let mistake = provider("adyen")
        .key("canary")
        .expect_err("not hexadecimal");
    assert!(!format!("{mistake:?} {mistake}").contains("canary"));
}

#[test]
fn a_generated_secret_is_one_the_provider_takes() {
    let generated: Vec<&str> = Provider::BUILT_IN
        .into_iter()
        .filter(|name| {
            let provider = provider(name);
            let secret = provider.generate(&[7; 32]);
            if let Some(secret) = &secret {
                provider.key(secret).expect("its own secret");
                assert_ne!(provider.generate(&[8; 32]).as_ref(), Some(secret));
            }
            secret.is_some()
        })
        .collect();
    assert_eq!(
        generated,
        ["github", "standard-webhooks", "svix", "postmark"]
    );
    let acme = acme("{}").provider;
    acme.key(&acme.generate(&[7; 32]).expect("ours to choose"))
        .expect("its own secret");
}

#[test]
fn every_built_in_name_is_its_providers() {
    for name in Provider::BUILT_IN {
        assert_eq!(provider(name).name(), name);
    }
    assert!(Provider::built_in("Stripe").is_none());
}

#[test]
fn each_provider_declares_its_requirements() {
    let told = |ask: fn(&Provider) -> bool| -> Vec<&str> {
        one_of_each()
            .iter()
            .filter(|(.., r)| ask(&r.provider))
            .map(|(name, ..)| *name)
            .collect()
    };
    assert_eq!(
        told(Provider::has_time),
        ["stripe", "standard-webhooks", "svix", "slack", "acme"]
    );
    assert_eq!(
        told(Provider::binds_url),
        [
            "twilio",
            "twilio-sha256",
            "twilio-body",
            "twilio-events",
            "square"
        ]
    );
    assert_eq!(
        told(Provider::sync_by_default),
        ["twilio", "twilio-sha256", "twilio-body"]
    );
    assert_eq!(provider("adyen").acknowledgement().body, "[accepted]");
    assert_eq!(
        provider("twilio").acknowledgement().content_type,
        Some("text/xml")
    );
    assert_eq!(provider("stripe").acknowledgement().body, "");
}

#[test]
fn a_scheme_is_one_of_the_providers() {
    for name in Provider::BUILT_IN {
        let provider = provider(name);
        for scheme in provider.schemes() {
            provider.with_scheme(scheme).expect("its own scheme");
        }
        let mistake = provider.with_scheme("md5").expect_err("no such scheme");
        assert_eq!(mistake.known, provider.schemes());
    }
    let mistake = provider("twilio")
        .with_scheme("md5")
        .expect_err("no such scheme");
    assert_eq!(
        mistake.to_string(),
        "the provider has no such scheme; it has: sha1, sha256"
    );
}
