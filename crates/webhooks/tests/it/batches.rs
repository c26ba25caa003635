//! Batches: each element is an event of its own, its bytes untouched.

use onceward_webhooks::{BESIDE_BYTES_MAX, EventBody, ITEMS_MAX, Refusal, Unidentified};

use crate::request::{adyen, adyen_item, adyen_item_least, twilio_body};

const TEST: &str = r#"{"id":"AC1","type":"com.twilio.eventstreams.test-event"}"#;

fn bodies(events: &[onceward_webhooks::Event]) -> Vec<(&str, String)> {
    let body = |body: &EventBody| match body {
        EventBody::Whole => "whole".to_owned(),
        EventBody::Part(part) => String::from_utf8(part.clone()).expect("text"),
    };
    events
        .iter()
        .map(|event| (event.key.as_str(), body(&event.body)))
        .collect()
}

#[test]
fn each_cloud_event_is_delivered_in_an_array_of_its_own() {
    let body = r#" [ {"id":"EZ1", "n": 820982911946154508.10} , {"id":"EZ2"} ] "#;
    let events = twilio_body("twilio-events", body).events();
    let want = [
        (
            "twilio-events-EZ1",
            r#"[{"id":"EZ1", "n": 820982911946154508.10}]"#.to_owned(),
        ),
        ("twilio-events-EZ2", r#"[{"id":"EZ2"}]"#.to_owned()),
    ];
    assert_eq!(bodies(&events), want);
}

#[test]
fn one_element_is_the_whole_body() {
    let events = twilio_body("twilio-events", r#"[{"id":"EZ1"}]"#).events();
    assert_eq!(bodies(&events), [("twilio-events-EZ1", "whole".to_owned())]);
    let events = adyen(&[adyen_item("1", "CAPTURE")]).events();
    assert_eq!(
        bodies(&events),
        [("adyen-1.CAPTURE.true", "whole".to_owned())]
    );
}

#[test]
fn of_the_same_element_twice_the_first_is_delivered() {
    let body = r#"[{"id":"EZ1","n":1},{"id":"EZ2"},{"id":"EZ1","n":2}]"#;
    let events = twilio_body("twilio-events", body).events();
    assert_eq!(events.len(), 2);
    assert_eq!(
        bodies(&events)[0],
        ("twilio-events-EZ1", r#"[{"id":"EZ1","n":1}]"#.to_owned())
    );
}

#[test]
fn real_events_beside_a_trial_are_delivered() {
    let body = format!(r#"[{TEST},{{"id":"EZ1"}}]"#);
    let events = twilio_body("twilio-events", body).events();
    assert_eq!(
        bodies(&events),
        [("twilio-events-EZ1", r#"[{"id":"EZ1"}]"#.to_owned())]
    );
    let items = [
        adyen_item("test_CAPTURE_1", "CAPTURE"),
        adyen_item("1", "CAPTURE"),
    ];
    assert_eq!(adyen(&items).events().len(), 1);
}

#[test]
fn each_adyen_item_keeps_its_neighbouring_members() {
    let items = [adyen_item("1", "CAPTURE"), adyen_item("2", "REFUND")];
    let body = format!(
        r#"{{"live":"false", "notificationItems":[{} , {}],"a\"b" : [ 1 ]}}"#,
        items[0], items[1]
    );
    let events = adyen(&[]).body(body).events();
    let part = |item| format!(r#"{{"live":"false","a\"b":[ 1 ],"notificationItems":[{item}]}}"#);
    let want = [
        ("adyen-1.CAPTURE.true", part(&items[0])),
        ("adyen-2.REFUND.true", part(&items[1])),
    ];
    assert_eq!(bodies(&events), want);
}

#[test]
fn a_part_is_a_delivery_the_provider_could_have_sent() {
    let items = [adyen_item("1", "CAPTURE"), adyen_item("2", "REFUND")];
    for event in adyen(&items).events() {
        let EventBody::Part(part) = event.body else {
            panic!("a part")
        };
        assert_eq!(adyen(&[]).body(part).event_key(), event.key);
    }
}

#[test]
fn a_batch_is_bounded() {
    let batch = |n: usize| {
        let elements: Vec<String> = (0..n).map(|i| format!(r#"{{"id":"EZ{i}"}}"#)).collect();
        twilio_body("twilio-events", format!("[{}]", elements.join(",")))
    };
    assert_eq!(batch(ITEMS_MAX).events().len(), ITEMS_MAX);
    assert_eq!(
        batch(ITEMS_MAX + 1).identify(),
        Err(Unidentified::TooManyItems)
    );
}

/// The members beside Adyen's items are not signed, and every part repeats them.
/// Without a limit, a captured item would be enough to make us write any amount.
#[test]
fn bytes_copied_into_every_part_are_bounded() {
    let batch = |items: &[String], beside: usize| {
        // The quotes, the colon and the comma count too.
        let filler = "x".repeat(beside - r#""filler":"","#.len());
        adyen(&[]).body(format!(
            r#"{{"filler":"{filler}","notificationItems":[{}]}}"#,
            items.join(",")
        ))
    };
    let once = [adyen_item("1", "CAPTURE")];
    let again = vec![once[0].clone(); ITEMS_MAX];
    for (beside, want) in [
        (BESIDE_BYTES_MAX, Ok(())),
        (BESIDE_BYTES_MAX + 1, Err(Unidentified::MalformedBody)),
        (750_000, Err(Unidentified::MalformedBody)),
    ] {
        let identified = batch(&again, beside).identify().map(|_| ());
        assert_eq!(identified, want, "{beside}");
    }
    // A body that is not split is not copied.
    assert_eq!(batch(&once, 750_000).events().len(), 1);
}

/// The largest expansion of one request: the maximum number of elements, each of
/// the smallest size, with the maximum of bytes beside them.
#[test]
fn all_parts_together_are_a_small_multiple_of_the_body() {
    let filler = "x".repeat(BESIDE_BYTES_MAX - r#""":"","#.len());
    let items = (0..ITEMS_MAX).map(|n| adyen_item_least(&n.to_string()));
    let items = items.collect::<Vec<_>>().join(",");
    let items = format!(r#"{{"":"{filler}","notificationItems":[{items}]}}"#);
    let elements = (0..ITEMS_MAX).map(|n| format!(r#"{{"id":{n}}}"#));
    let elements = elements.collect::<Vec<_>>().join(",");
    let elements = format!("[{elements}]");
    for (request, times) in [
        (adyen(&[]).body(items), 10),
        (twilio_body("twilio-events", elements), 2),
    ] {
        let events = request.events();
        assert_eq!(events.len(), ITEMS_MAX);
        let parts: usize = bodies(&events).iter().map(|(_, part)| part.len()).sum();
        let body = request.body.len();
        assert!(parts <= times * body, "{parts} bytes of {body}");
    }
}

#[test]
fn an_adyen_batch_is_bounded() {
    let items = vec![adyen_item("1", "CAPTURE"); ITEMS_MAX + 1];
    assert_eq!(adyen(&items).verify(), Err(Refusal::TooManyItems));
}
