//! Raw requests that attack proxies, each with its expected result
//! (`http-payloads.json`). The origin reads raw sockets and counts the complete
//! requests that it receives.

use std::time::Duration;

use data_encoding::BASE64;
use serde::Deserialize;

use crate::harness::{RawAnswer, RawMessage, gateway_to, raw_origin};

const VECTORS: &str = include_str!("http-payloads.json");

const OK: &str = "HTTP/1.1 200 OK\r\nx-target: {target}\r\ncontent-length: 2\r\n\r\nok";

/// After this time without an answer there is none.
const ANSWER_DEADLINE: Duration = Duration::from_secs(20);

#[derive(Deserialize)]
struct Vectors {
    payloads: Vec<Payload>,
}

#[derive(Deserialize)]
struct Payload {
    id: String,
    want: String,
    raw_b64: String,
}

/// The result of a payload.
#[derive(Debug)]
struct Seen {
    answers: Vec<RawAnswer>,
    forwarded: Vec<RawMessage>,
}

#[tokio::test]
async fn every_payload_gets_its_expected_result() {
    let vectors: Vectors = serde_json::from_str(VECTORS).unwrap();
    assert!(!vectors.payloads.is_empty());
    let mut wrong = Vec::new();
    for payload in vectors.payloads {
        let seen = send(&payload).await;
        if !is_as_wanted(&payload.want, &seen) {
            wrong.push(format!("{} ({}): {seen:#?}", payload.id, payload.want));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Sends a payload over one connection to a new gateway.
async fn send(payload: &Payload) -> Seen {
    let origin = raw_origin(OK).await;
    let gateway = gateway_to(&origin.url()).in_memory().run().await;
    let mut client = gateway.raw().await;
    client
        .say(BASE64.decode(payload.raw_b64.as_bytes()).unwrap())
        .await;
    let wanted = if payload.want == "2-responses-in-order" {
        2
    } else {
        1
    };
    let answers = tokio::time::timeout(ANSWER_DEADLINE, client.answers(wanted)).await;
    let Ok(answers) = answers else {
        panic!("{}: neither an answer nor a closed connection", payload.id);
    };
    Seen {
        answers,
        forwarded: origin.ledger(),
    }
}

fn is_as_wanted(want: &str, seen: &Seen) -> bool {
    match want {
        "reject" | "reject-414" => seen.is_rejected(),
        "accept" => seen.is_accepted(),
        "reject-or-accept" | "reject-or-merge" => seen.is_rejected() || seen.is_accepted(),
        "400" => seen.is_rejected_with(400),
        "reject-405" => seen.is_rejected_with(405),
        "not-treated-as-POST" => {
            seen.is_rejected()
                || seen
                    .forwarded
                    .iter()
                    .all(|request| request.method() == "post")
        }
        "trailers-not-merged" => seen.is_accepted() && seen.forwarded.iter().all(has_no_trailers),
        // There are no routes here: an accepted request is forwarded unchanged.
        "not-normalised-differently-than-upstream" => seen.is_forwarded_as("/a/../admin"),
        "decode-once-only" => seen.is_forwarded_as("/v1/recover/k%252Fother"),
        "exact" => seen.is_forwarded_as("/v1/recover/k;x=1"),
        "404-no-collapse" => seen.is_forwarded_as("//v1//recover/k"),
        "400-or-exact-bytes" => {
            seen.is_rejected_with(400) || seen.is_forwarded_as("/v1/recover/\u{c3}\u{a9}")
        }
        "400-or-drop" => seen.is_rejected_with(400) || seen.is_forwarded_as("/x"),
        "100-then-final; never store 100" => {
            seen.statuses() == [100, 200] && seen.forwarded.len() == 1
        }
        "strip-internal-headers" => seen.is_accepted() && seen.forwarded.iter().all(is_not_spoofed),
        "2-responses-in-order" => {
            seen.statuses() == [200, 200]
                && seen.targets() == ["/a", "/smuggled"]
                && seen.answered_targets() == ["/a", "/smuggled"]
        }
        unknown => panic!("nobody has said what {unknown:?} means"),
    }
}

impl Seen {
    fn statuses(&self) -> Vec<u16> {
        self.answers.iter().map(|answer| answer.status).collect()
    }

    fn targets(&self) -> Vec<&str> {
        self.forwarded.iter().map(RawMessage::target).collect()
    }

    /// The request that each answer belongs to.
    fn answered_targets(&self) -> Vec<&str> {
        let answers = self.answers.iter();
        answers
            .flat_map(|answer| answer.message.headers("x-target"))
            .collect()
    }

    /// An error or a closed connection, and no complete answer after it.
    fn is_rejected(&self) -> bool {
        self.statuses().iter().all(|status| *status >= 400) && self.forwarded.is_empty()
    }

    fn is_rejected_with(&self, status: u16) -> bool {
        self.statuses() == [status] && self.forwarded.is_empty()
    }

    fn is_accepted(&self) -> bool {
        self.statuses() == [200] && self.forwarded.len() == 1
    }

    fn is_forwarded_as(&self, target: &str) -> bool {
        self.is_accepted() && self.targets() == [target]
    }
}

fn has_no_trailers(request: &RawMessage) -> bool {
    let names = ["authorization", "idempotency-key", "content-length"];
    request.body == "abc"
        && request.trailers.is_empty()
        && names.iter().all(|name| request.headers(name).is_empty())
}

fn is_not_spoofed(request: &RawMessage) -> bool {
    request.headers("x-tenant-id").is_empty() && request.headers("x-forwarded-for") == ["127.0.0.1"]
}
