//! The workloads: the bytes of the requests, their keys, and the expected responses.
//!
//! All workloads send the same payment as JSON, to be comparable. They differ in the path, the key,
//! and the header of the key. A key looks like a UUID, is unique over runs, and is computed from a seed and a number, so that the keys of an
//! earlier load can be sent again without being stored.

use std::sync::Arc;

use super::loopback::LoopbackOrigin;
use super::response::{Response, Source};
use super::webhook::{self, Webhook};

/// The number of completed keys that replays use.
pub(super) const REPLAY_KEYS: u64 = 1000;
pub(super) const PAYMENT: &str = r#"{"amount":4200,"currency":"EUR"}"#;
const OK: u16 = 200;
const TOO_MANY_REQUESTS: u16 = 429;
const KEY_BYTES: usize = 36;
const KEY_BLANK: &str = "00000000-0000-0000-0000-000000000000";

/// The kinds of requests.
#[derive(Clone, Debug)]
pub(super) enum Workload {
    /// Without a key.
    PassThrough,
    /// Each with a new key.
    First(Seed),
    /// With one of the first [`REPLAY_KEYS`] keys of a seed, all completed before.
    Replay(Seed),
    /// Each with a new key, to the service behind Restate.
    Restate(Seed),
    /// Each with a new key, to a route whose records are kept for a short time.
    ShortLived(Seed),
    /// Each with a new key, from a tenant that may exceed its rate limit.
    Flood(Seed),
    /// New events, signed as by GitHub.
    Webhook(Seed, Arc<Webhook>),
}

/// An API key.
pub(super) type ApiKey = Arc<str>;

/// What the keys of a load are computed from.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seed(pub(super) u64);

impl Workload {
    pub(super) fn path(&self) -> &str {
        match self {
            Workload::Restate(_) => "/Pay/charge",
            Workload::ShortLived(_) => "/short",
            Workload::Webhook(_, webhook) => webhook.path(),
            _ => "/payments",
        }
    }

    pub(super) fn body(&self) -> &'static str {
        match self {
            Workload::Webhook(..) => webhook::EVENT,
            _ => PAYMENT,
        }
    }

    pub(super) fn key(&self, number: u64) -> Option<[u8; KEY_BYTES]> {
        match self {
            Workload::PassThrough => None,
            Workload::First(seed)
            | Workload::Restate(seed)
            | Workload::ShortLived(seed)
            | Workload::Flood(seed)
            | Workload::Webhook(seed, _) => Some(seed.key(number)),
            Workload::Replay(seed) => Some(seed.key(number % REPLAY_KEYS)),
        }
    }

    /// The same kind with other new keys, for a second load. Replays keep theirs.
    pub(super) fn with_other_keys(&self) -> Self {
        match self {
            Workload::PassThrough => Workload::PassThrough,
            Workload::Replay(seed) => Workload::Replay(*seed),
            Workload::First(seed) => Workload::First(seed.other()),
            Workload::Restate(seed) => Workload::Restate(seed.other()),
            Workload::ShortLived(seed) => Workload::ShortLived(seed.other()),
            Workload::Flood(seed) => Workload::Flood(seed.other()),
            Workload::Webhook(seed, webhook) => Workload::Webhook(seed.other(), webhook.clone()),
        }
    }

    /// Whether a response is the one that this workload measures; a rate of others is meaningless.
    pub(super) fn check(&self, response: &Response) -> Result<(), Unexpected> {
        match (self, response.source) {
            (Workload::Flood(_), Source::Run) if response.status == TOO_MANY_REQUESTS => Ok(()),
            _ if !(200..300).contains(&response.status) => Err(Unexpected::Status(response.status)),
            (Workload::Webhook(..), _) if response.status != OK => {
                Err(Unexpected::Status(response.status))
            }
            (Workload::Replay(_), Source::Run) => Err(Unexpected::RanAgain),
            (
                Workload::First(_)
                | Workload::PassThrough
                | Workload::Flood(_)
                | Workload::Webhook(..),
                Source::Replay,
            ) => Err(Unexpected::ReplayedTooSoon),
            _ => Ok(()),
        }
    }
}

/// Why a response is not the expected one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unexpected {
    Status(u16),
    RanAgain,
    ReplayedTooSoon,
}

/// The bytes of a request, built once; only the key changes.
pub(super) struct Request {
    workload: Workload,
    bytes: Vec<u8>,
    key_at: usize,
}

impl Request {
    pub(super) fn new(
        workload: Workload,
        target: &LoopbackOrigin,
        api_key: Option<&ApiKey>,
    ) -> Self {
        let mut text = format!(
            "POST {} HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\n",
            workload.path(),
            target.host()
        );
        if let Some(api_key) = api_key {
            text.push_str(&format!("Authorization: Bearer {api_key}\r\n"));
        }
        let key_header = match &workload {
            Workload::PassThrough => None,
            Workload::Webhook(_, webhook) => {
                text.push_str(&webhook.signature_header());
                Some(webhook::ID_HEADER)
            }
            _ => Some("Idempotency-Key"),
        };
        if let Some(name) = key_header {
            text.push_str(&format!("{name}: {KEY_BLANK}\r\n"));
        }
        let body = workload.body();
        text.push_str(&format!("Content-Length: {}\r\n\r\n{body}", body.len()));
        Request {
            workload,
            // Without a key nothing is ever filled in.
            key_at: text.find(KEY_BLANK).unwrap_or_default(),
            bytes: text.into_bytes(),
        }
    }

    /// The bytes of the request with this number.
    pub(super) fn numbered(&mut self, number: u64) -> &[u8] {
        if let Some(key) = self.workload.key(number) {
            self.bytes[self.key_at..self.key_at + KEY_BYTES].copy_from_slice(&key);
        }
        &self.bytes
    }

    /// The bytes before and after the key.
    pub(super) fn around_key(&self) -> (&[u8], &[u8]) {
        let after = self.key_at + KEY_BYTES;
        (&self.bytes[..self.key_at], &self.bytes[after..])
    }
}

impl Seed {
    fn other(self) -> Self {
        Seed(mix(self.0.wrapping_add(1)))
    }

    /// The first three groups of keys that another program completes: two more groups, of four and
    /// twelve digits.
    pub(super) fn prefix(self) -> String {
        let high = mix(self.0);
        let (first, second, third) = (high >> 32, (high >> 16) & 0xffff, high & 0xffff);
        format!("{first:08x}-{second:04x}-{third:04x}-")
    }

    /// Different numbers give different keys, because the second half is a bijection of the number.
    fn key(self, number: u64) -> [u8; KEY_BYTES] {
        let high = mix(self
            .0
            .wrapping_add(number.wrapping_mul(0x9E37_79B9_7F4A_7C15)));
        let low = mix(mix(self.0) ^ number);
        let mut hex = [high, low]
            .into_iter()
            .flat_map(u64::to_be_bytes)
            .flat_map(digits);
        let mut key = [b'-'; KEY_BYTES];
        for (at, byte) in key.iter_mut().enumerate() {
            if !matches!(at, 8 | 13 | 18 | 23) {
                *byte = hex.next().expect("a key has 32 digits beside its dashes");
            }
        }
        key
    }
}

fn digits(byte: u8) -> [u8; 2] {
    const HEX: &[u8; 16] = b"0123456789abcdef";
    [HEX[usize::from(byte >> 4)], HEX[usize::from(byte & 15)]]
}

/// The finaliser of SplitMix64: a bijection that spreads every bit.
fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::super::response::Connection;
    use super::*;

    #[test]
    fn keys_differ_within_a_seed_and_between_seeds() {
        let keys: HashSet<_> = (0..3)
            .flat_map(|seed| (0..10_000).map(move |number| Seed(seed).key(number)))
            .collect();
        assert_eq!(keys.len(), 30_000);
    }

    #[test]
    fn replays_send_the_keys_of_the_first_runs_again() {
        let target = LoopbackOrigin::parse("http://127.0.0.1:8080").expect("a literal URL");
        let mut first = Request::new(Workload::First(Seed(7)), &target, None);
        let mut replay = Request::new(Workload::Replay(Seed(7)), &target, None);
        assert_eq!(replay.numbered(REPLAY_KEYS + 3), first.numbered(3));
        assert_ne!(replay.numbered(REPLAY_KEYS + 4), first.numbered(3));
    }

    #[test]
    fn a_request_is_complete() {
        let target = LoopbackOrigin::parse("http://127.0.0.1:8080").expect("a literal URL");
        let mut request = Request::new(Workload::PassThrough, &target, None);
        let wire = "POST /payments HTTP/1.1\r\nHost: 127.0.0.1:8080\r\n\
                    Content-Type: application/json\r\nContent-Length: 32\r\n\r\n\
                    {\"amount\":4200,\"currency\":\"EUR\"}";
        assert_eq!(request.numbered(1), wire.as_bytes());
        let api_key = ApiKey::from("ow_key");
        let mut request = Request::new(Workload::PassThrough, &target, Some(&api_key));
        let line = "Authorization: Bearer ow_key\r\nContent-Length";
        let wire = wire.replace("Content-Length", line);
        assert_eq!(request.numbered(1), wire.as_bytes());
    }

    #[test]
    fn an_event_has_its_id_in_a_header_and_its_signature() {
        let target = LoopbackOrigin::parse("http://127.0.0.1:8080").expect("a literal URL");
        let webhook = Arc::new(Webhook::new("wh_1", "secret"));
        let signature = webhook.signature_header();
        let mut request = Request::new(Workload::Webhook(Seed(7), webhook), &target, None);
        let mut ids = HashSet::new();
        for number in 0..3 {
            let wire = std::str::from_utf8(request.numbered(number)).expect("it is all ASCII");
            let (head, body) = wire.split_once("\r\n\r\n").expect("a head ends");
            assert!(head.starts_with("POST /api/v1/webhooks/github/wh_1 HTTP/1.1\r\n"));
            assert!(head.contains(&signature), "{head}");
            assert_eq!(body, webhook::EVENT);
            let id = head
                .lines()
                .find_map(|line| line.strip_prefix("X-GitHub-Delivery: "));
            ids.insert(id.expect("an event has an id").to_owned());
        }
        assert_eq!(ids.len(), 3);
    }

    #[test]
    fn a_key_can_be_completed_by_another_program() {
        let target = LoopbackOrigin::parse("http://127.0.0.1:8080").expect("a literal URL");
        let mut request = Request::new(Workload::First(Seed(7)), &target, None);
        let (head, tail) = request.around_key();
        let key = format!("{}{:04x}-{:012x}", Seed(7).prefix(), 1, 2);
        assert_eq!(key.len(), KEY_BYTES);
        let whole = [head, key.as_bytes(), tail].concat();
        assert_eq!(whole.len(), request.numbered(1).len());
        assert_ne!(Seed(7).prefix(), Seed(8).prefix());
        assert_ne!(Seed(7).prefix(), Seed(7).other().prefix());
    }

    #[test]
    fn only_the_measured_response_is_expected() {
        let first = || Workload::First(Seed(1));
        let replay = || Workload::Replay(Seed(1));
        let webhook = || Workload::Webhook(Seed(1), Arc::new(Webhook::new("wh_1", "secret")));
        let cases = [
            (first(), 201, Source::Run, Ok(())),
            (
                first(),
                201,
                Source::Replay,
                Err(Unexpected::ReplayedTooSoon),
            ),
            (first(), 503, Source::Run, Err(Unexpected::Status(503))),
            (replay(), 201, Source::Replay, Ok(())),
            (replay(), 201, Source::Run, Err(Unexpected::RanAgain)),
            (
                Workload::PassThrough,
                404,
                Source::Run,
                Err(Unexpected::Status(404)),
            ),
            (Workload::Restate(Seed(1)), 200, Source::Run, Ok(())),
            (Workload::Flood(Seed(1)), 201, Source::Run, Ok(())),
            (Workload::Flood(Seed(1)), 429, Source::Run, Ok(())),
            (first(), 429, Source::Run, Err(Unexpected::Status(429))),
            (webhook(), 200, Source::Run, Ok(())),
            (webhook(), 201, Source::Run, Err(Unexpected::Status(201))),
            (webhook(), 401, Source::Run, Err(Unexpected::Status(401))),
            (
                webhook(),
                200,
                Source::Replay,
                Err(Unexpected::ReplayedTooSoon),
            ),
        ];
        for (workload, status, source, expected) in cases {
            let response = Response {
                status,
                source,
                connection: Connection::Keep,
                length_bytes: 0,
            };
            assert_eq!(
                workload.check(&response),
                expected,
                "{workload:?} {status} {source:?}"
            );
        }
    }
}
