//! Requests signed by the providers' own SDKs with new secrets, through a running gateway; and the
//! gateway's own signatures, verified by the receiver's SDK.

use bytes::Bytes;
use data_encoding::{BASE64, HEXLOWER};
use http_body_util::Full;
use hyper::Request;
use onceward_servers::{ProviderRequest, Signed, Signer, Verification};
use rstest::rstest;
use serde_json::{Value, json};
use tokio::task::block_in_place;

use crate::fixture::client::{Client, Response};
use crate::fixture::gateway::{Gateway, gateway_of};
use crate::fixture::origin::{Behaviour, Origin, Run, origin};
use crate::webhooks::provider::{configured, create, delivered, embedded, path};

/// The public URL of the gateway, which some providers sign.
const PUBLIC: &str = "https://hooks.example";
/// Part of every signed request; a forged request has another text in its place.
const AMOUNT: &str = "4200";
const OTHER_AMOUNT: &str = "9900";

const STRIPE: &str = r#"{"id":"evt_1","object":"event","data":{"amount":4200}}"#;
const GITHUB: &str = r#"{"ref":"refs/heads/main","number":4200}"#;
const STANDARD: &str = r#"{"type":"invoice.paid","data":{"amount":4200}}"#;
const SLACK: &str = r#"{"type":"event_callback","event_id":"Ev4200","event":{"text":"paid"}}"#;
const MESSAGE: &str = "MessageSid=SM4200&MessageStatus=delivered&From=%2B14158675309";
const CALL: &str = "CallSid=CA4200&CallStatus=ringing&From=%2B14158675309";
const EVENTS: &str = r#"[{"specversion":"1.0","id":"EZ1","type":"com.twilio.messaging.message.delivered","data":{"amount":4200}}]"#;
const SHOPIFY: &str = r#"{"id":820982911946154508,"total":4200}"#;
const SQUARE: &str = r#"{"event_id":"13b867cf","type":"payment.updated","amount":4200}"#;
const ADYEN: &str = r#"{"live":"true","notificationItems":[{"NotificationRequestItem":{"amount":{"value":4200,"currency":"EUR"},"pspReference":"7914073381342284","eventCode":"AUTHORISATION","merchantAccountCode":"Shop","merchantReference":"order-1","success":"true"}}]}"#;
const BANKING: &str = r#"{"type":"balancePlatform.transfer.created","data":{"amount":4200}}"#;

/// The format of a provider's secret.
#[derive(Clone, Copy)]
enum Secret {
    Text,
    Hex,
    Base64,
}
use Secret::{Base64, Hex, Text};

#[derive(Clone, Copy)]
enum Language {
    Python,
    Node,
}
use Language::{Node, Python};

#[rstest]
#[case::stripe(Python, "stripe", Text, STRIPE)]
#[case::stripe_by_node(Node, "stripe", Text, STRIPE)]
#[case::github(Node, "github", Text, GITHUB)]
#[case::standard_webhooks(Python, "standard-webhooks", Base64, STANDARD)]
#[case::standard_webhooks_by_node(Node, "standard-webhooks", Base64, STANDARD)]
#[case::svix(Python, "svix", Base64, STANDARD)]
#[case::svix_by_node(Node, "svix", Base64, STANDARD)]
#[case::slack(Python, "slack", Hex, SLACK)]
#[case::twilio_messaging(Python, "twilio", Hex, MESSAGE)]
#[case::twilio_messaging_by_node(Node, "twilio", Hex, MESSAGE)]
#[case::twilio_voice(Python, "twilio", Hex, CALL)]
#[case::twilio_shared_key(Python, "twilio/sha256", Text, MESSAGE)]
#[case::twilio_events(Python, "twilio-events", Hex, EVENTS)]
#[case::twilio_events_by_node(Node, "twilio-events", Hex, EVENTS)]
#[case::shopify(Node, "shopify", Hex, SHOPIFY)]
#[case::shopify_events(Node, "shopify/events", Hex, SHOPIFY)]
#[case::square(Python, "square", Text, SQUARE)]
#[case::adyen(Python, "adyen", Hex, ADYEN)]
#[case::adyen_platform(Python, "adyen/platform", Hex, BANKING)]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_signature_of_the_sdk_is_accepted(
    #[case] language: Language,
    #[case] provider: &str,
    #[case] kind: Secret,
    #[case] body: &str,
) {
    let signer = block_in_place(|| match language {
        Python => Signer::python(),
        Node => Signer::node(),
    });
    let directory = tempfile::tempdir().unwrap();
    let origin = origin(Behaviour::PAY).await;
    let gateway = serve(&origin, &directory).await;
    let secret = kind.fresh();
    let (name, scheme) = match provider.split_once('/') {
        Some((name, scheme)) => (name, Some(scheme)),
        None => (provider, None),
    };
    let wanted = json!({
        "tenant": "acme",
        "project": "shop",
        "provider": name,
        "scheme": scheme,
        "secrets": [secret],
        "why": "a test",
    });
    let made = create(&gateway, &wanted).await;
    let path = path(name, made["webhook_id"].as_str().unwrap());
    assert_eq!(made["url"], format!("{PUBLIC}{path}"));
    let request = ProviderRequest {
        provider,
        secret: &secret,
        url: &format!("{PUBLIC}{path}"),
        headers: &[],
        body: body.as_bytes(),
        id: None,
        timestamp: None,
    };
    let signed = block_in_place(|| signer.sign(&request));

    let tampered = String::from_utf8(signed.body.clone()).unwrap();
    let tampered = tampered.replace(AMOUNT, OTHER_AMOUNT).into_bytes();
    assert_ne!(tampered, signed.body);
    let refused = send(&gateway, &signed, tampered.clone()).await;
    assert_eq!(refused.status, 401, "{refused:?}");
    let other = block_in_place(|| {
        signer.sign(&ProviderRequest {
            secret: &kind.fresh(),
            ..request
        })
    });
    let refused = send(&gateway, &other, other.body.clone()).await;
    assert_eq!(refused.status, 401, "{refused:?}");
    assert_eq!(origin.runs().len(), 0);

    // Twilio's answer is part of the call, so it is the service's.
    let status = match name {
        "twilio" => 201,
        _ => 200,
    };
    let taken = send(&gateway, &signed, signed.body.clone()).await;
    assert_eq!(
        (taken.status, taken.is_replay()),
        (status, false),
        "{taken:?}"
    );
    delivered(&gateway).await;
    let again = send(&gateway, &signed, signed.body.clone()).await;
    assert_eq!(
        (again.status, again.is_replay()),
        (status, true),
        "{again:?}"
    );
    delivered(&gateway).await;
    let runs = origin.runs();
    let [run] = runs.as_slice() else {
        panic!("{runs:?}");
    };
    assert_eq!(run.body.as_bytes(), signed.body);
    assert_ours(&signer, run, &made);
}

/// The receiver's SDK accepts the gateway's signature of the unchanged request.
fn assert_ours(signer: &Signer, run: &Run, made: &Value) {
    let headers = run.headers.iter();
    let headers: Vec<_> = headers
        .filter(|(name, _)| name.as_str().starts_with("webhook-"))
        .map(|(name, value)| (name.as_str(), value.to_str().unwrap()))
        .collect();
    assert_eq!(headers.len(), 3, "{headers:?}");
    let received = ProviderRequest {
        provider: "standard-webhooks",
        secret: made["signing_secret"].as_str().unwrap(),
        url: "http://origin",
        headers: &headers,
        body: run.body.as_bytes(),
        id: None,
        timestamp: None,
    };
    let other = run.body.replace(AMOUNT, OTHER_AMOUNT);
    let other = ProviderRequest {
        body: other.as_bytes(),
        ..received
    };
    let [verification, on_other] =
        block_in_place(|| [signer.verify(&received), signer.verify(&other)]);
    assert_eq!(verification, Verification::Accepted);
    assert!(matches!(on_other, Verification::Refused(_)), "{on_other:?}");
}

async fn serve(origin: &Origin, directory: &tempfile::TempDir) -> Gateway {
    let store = embedded(directory.path());
    let upstreams = [("origin", origin.address())];
    gateway_of(&configured(directory.path(), &store, &upstreams, ""))
        .variable("ONCEWARD__SERVER__PUBLIC_URL", PUBLIC)
        .run()
        .await
}

/// Sends a signed request with this body instead of its own.
async fn send(gateway: &Gateway, signed: &Signed, body: Vec<u8>) -> Response {
    let path = signed.url.strip_prefix(PUBLIC).unwrap();
    let mut request = Request::post(path).header("host", "hooks.example");
    for (name, value) in &signed.headers {
        request = request.header(name, value);
    }
    let request = request.body(Full::from(Bytes::from(body))).unwrap();
    Client::new(gateway.listen()).send(request).await.unwrap()
}

impl Secret {
    fn fresh(self) -> String {
        let random: [u8; 32] = std::array::from_fn(|_| fastrand::u8(..));
        match self {
            Text => format!("secret_{}", HEXLOWER.encode(&random[..16])),
            Hex => HEXLOWER.encode(&random),
            Base64 => format!("whsec_{}", BASE64.encode(&random)),
        }
    }
}
