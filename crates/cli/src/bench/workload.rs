//! The workloads: the bytes of the requests, their keys, and the expected responses.
//!
//! All workloads send the same payment as JSON, to be comparable. They differ in the path, the key,
//! and the header of the key. A key looks like a UUID and is unique over runs. It is computed from a
//! seed and a number, so that the keys of an earlier load can be sent again without being stored.
//! The body contains the key as the number of an order: bodies of one length, but different ones, as
//! those of real clients are. A replay therefore sends the body of its key.

use std::ops::Range;
use std::sync::Arc;

use super::loopback::LoopbackOrigin;
use super::response::{Response, Source};
use super::webhook::{EVENT, SIGNATURE_BLANK, SIGNATURE_BYTES, SigningTime, Webhook};

/// The number of completed keys that replays use.
pub(super) const REPLAY_KEYS: u64 = 1000;
const PAYMENT: &str =
    r#"{"amount":4200,"currency":"EUR","order":"00000000-0000-0000-0000-000000000000"}"#;
const OK: u16 = 200;
const TOO_MANY_REQUESTS: u16 = 429;
const KEY_BYTES: usize = 36;
const KEY_BLANK: &[u8; KEY_BYTES] = b"00000000-0000-0000-0000-000000000000";
/// The last digits of a key are its number in hexadecimal.
const NUMBER_AT: usize = 24;

/// The kinds of requests.
#[derive(Clone, Debug)]
pub(super) enum Workload {
    /// Without a key, and with the same body each time: nothing reads it.
    PassThrough,
    /// Each with a new key.
    First(Seed),
    /// With one of the first [`REPLAY_KEYS`] keys of a seed, all completed before.
    Replay(Seed),
    /// With a key that is drawn from many that were completed before.
    ReplayDrawn(DrawnKeys),
    /// Each with a new key, to the service behind Restate.
    Restate(Seed),
    /// Each with a new key, to a route whose records are kept for a short time.
    ShortLived(Seed),
    /// Each with a new key, from a tenant that may exceed its rate limit.
    Flood(Seed),
    /// New events, signed as by Stripe.
    Webhook(Seed, Arc<Webhook>),
}

/// An API key.
pub(super) type ApiKey = Arc<str>;

/// What the keys of a load are computed from.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seed(pub(super) u64);

/// The first `count` keys of a seed, in the order that `draw` gives.
#[derive(Clone, Copy, Debug)]
pub(super) struct DrawnKeys {
    pub(super) of: Seed,
    pub(super) count: u64,
    pub(super) draw: Seed,
}

impl Workload {
    pub(super) fn path(&self) -> &str {
        match self {
            Workload::Restate(_) => "/Pay/charge",
            Workload::ShortLived(_) => "/short",
            Workload::Webhook(_, webhook) => webhook.path(),
            _ => "/payments",
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
            Workload::ReplayDrawn(keys) => Some(keys.key(number)),
        }
    }

    /// The same kind with other keys, for a second load. Replays of a few keys keep theirs.
    pub(super) fn with_other_keys(&self) -> Self {
        match self {
            Workload::PassThrough => Workload::PassThrough,
            Workload::Replay(seed) => Workload::Replay(*seed),
            Workload::ReplayDrawn(keys) => Workload::ReplayDrawn(DrawnKeys {
                draw: keys.draw.other(),
                ..*keys
            }),
            Workload::First(seed) => Workload::First(seed.other()),
            Workload::Restate(seed) => Workload::Restate(seed.other()),
            Workload::ShortLived(seed) => Workload::ShortLived(seed.other()),
            Workload::Flood(seed) => Workload::Flood(seed.other()),
            Workload::Webhook(seed, webhook) => Workload::Webhook(seed.other(), webhook.clone()),
        }
    }

    pub(super) fn is_replay(&self) -> bool {
        matches!(self, Workload::Replay(_) | Workload::ReplayDrawn(_))
    }

    /// Whether a response is the one that this workload measures; a rate of others is meaningless.
    pub(super) fn check(&self, response: &Response) -> Result<(), Unexpected> {
        match (self, response.source) {
            (Workload::Flood(_), Source::Run) if response.status == TOO_MANY_REQUESTS => Ok(()),
            _ if !(200..300).contains(&response.status) => Err(Unexpected::Status(response.status)),
            (Workload::Webhook(..), _) if response.status != OK => {
                Err(Unexpected::Status(response.status))
            }
            (workload, Source::Run) if workload.is_replay() => Err(Unexpected::RanAgain),
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

/// The bytes of a request, built once; only the key and the signature change.
pub(super) struct Request {
    workload: Workload,
    bytes: Vec<u8>,
    /// Where the key is: in its header and in the body.
    keys_at: Vec<usize>,
    body_at: usize,
    signature: Option<Signature>,
}

/// Where the signature of an event is, and the time that it covers.
struct Signature {
    at: usize,
    time: SigningTime,
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
        let key_blank = str::from_utf8(KEY_BLANK).expect("digits and dashes are ASCII");
        let mut signature = None;
        let mut body = PAYMENT;
        match &workload {
            Workload::PassThrough => {}
            Workload::Webhook(..) => {
                let time = SigningTime::now();
                text.push_str(&time.signature_header());
                let at = text.find(SIGNATURE_BLANK);
                let at = at.expect("the header has a place for the signature");
                signature = Some(Signature { at, time });
                body = EVENT;
            }
            _ => {
                text.push_str(&format!("Idempotency-Key: {key_blank}\r\n"));
            }
        }
        text.push_str(&format!("Content-Length: {}\r\n\r\n", body.len()));
        let body_at = text.len();
        text.push_str(body);
        let keys = text.match_indices(key_blank);
        Request {
            workload,
            keys_at: keys.map(|(at, _)| at).collect(),
            bytes: text.into_bytes(),
            body_at,
            signature,
        }
    }

    /// The bytes of the request with this number.
    pub(super) fn numbered(&mut self, number: u64) -> &[u8] {
        if let Some(key) = self.workload.key(number) {
            for &at in &self.keys_at {
                self.bytes[at..at + KEY_BYTES].copy_from_slice(&key);
            }
        }
        if let (Workload::Webhook(_, webhook), Some(signature)) = (&self.workload, &self.signature)
        {
            let signed = webhook.sign(&signature.time, &self.bytes[self.body_at..]);
            self.bytes[signature.at..signature.at + SIGNATURE_BYTES].copy_from_slice(&signed);
        }
        &self.bytes
    }

    /// The body of the request whose bytes were asked for last.
    pub(super) fn body(&self) -> &[u8] {
        &self.bytes[self.body_at..]
    }

    /// The signature of the event whose bytes were asked for last.
    pub(super) fn signature(&self) -> &[u8] {
        let at = self.signature.as_ref().map_or(0..0, Signature::range);
        &self.bytes[at]
    }

    /// The bytes before, between and after the signature, if there is one, and the numbers that
    /// another program fills in. All other bytes are the same in all requests.
    pub(super) fn around_numbers(&mut self) -> Vec<&[u8]> {
        self.numbered(0);
        let signature = self.signature.as_ref().map(Signature::range);
        let numbers = self.keys_at.iter();
        let numbers = numbers.map(|at| at + NUMBER_AT..at + KEY_BYTES);
        let mut pieces = Vec::new();
        let mut from = 0;
        for filled_in in signature.into_iter().chain(numbers) {
            pieces.push(&self.bytes[from..filled_in.start]);
            from = filled_in.end;
        }
        pieces.push(&self.bytes[from..]);
        pieces
    }
}

impl Signature {
    fn range(&self) -> Range<usize> {
        self.at..self.at + SIGNATURE_BYTES
    }
}

impl DrawnKeys {
    fn key(&self, number: u64) -> [u8; KEY_BYTES] {
        let drawn = mix(mix(self.draw.0).wrapping_add(number));
        self.of.key(drawn % self.count.max(1))
    }
}

impl Seed {
    fn other(self) -> Self {
        Seed(mix(self.0.wrapping_add(1)))
    }

    /// The seed in its first groups of digits, then the number. Both are bijections.
    fn key(self, number: u64) -> [u8; KEY_BYTES] {
        let high = mix(self.0);
        let mut key = *KEY_BLANK;
        write_hex(&mut key[..8], high >> 32);
        write_hex(&mut key[9..13], high >> 16);
        write_hex(&mut key[14..18], high);
        write_hex(&mut key[NUMBER_AT..], number);
        key
    }
}

/// Writes the last digits of a value, as many as there is room for.
fn write_hex(digits: &mut [u8], mut value: u64) {
    const HEX: &[u8; 16] = b"0123456789abcdef";
    for digit in digits.iter_mut().rev() {
        *digit = HEX[(value & 15) as usize];
        value >>= 4;
    }
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

    fn request(workload: Workload) -> Request {
        let target = LoopbackOrigin::parse("http://127.0.0.1:8080").expect("a literal URL");
        Request::new(workload, &target, None)
    }

    fn body_of(request: &mut Request, number: u64) -> String {
        request.numbered(number);
        String::from_utf8_lossy(request.body()).into_owned()
    }

    fn event() -> Workload {
        Workload::Webhook(Seed(7), Arc::new(Webhook::new("wh_1", "secret")))
    }

    #[test]
    fn replays_send_the_keys_and_bodies_of_the_first_runs_again() {
        let mut first = request(Workload::First(Seed(7)));
        let mut replay = request(Workload::Replay(Seed(7)));
        assert_eq!(replay.numbered(REPLAY_KEYS + 3), first.numbered(3));
        assert_ne!(replay.numbered(REPLAY_KEYS + 4), first.numbered(3));
    }

    #[test]
    fn bodies_differ_from_request_to_request_but_not_in_length() {
        let workloads = [
            Workload::First(Seed(7)),
            Workload::Restate(Seed(7)),
            Workload::ShortLived(Seed(7)),
            Workload::Flood(Seed(7)),
            event(),
        ];
        for workload in workloads {
            let mut again = request(workload.with_other_keys());
            let mut request = request(workload);
            let bodies = (0..1000).map(|number| body_of(&mut request, number));
            let others = (0..1000).map(|number| body_of(&mut again, number));
            let all: HashSet<_> = bodies.chain(others).collect();
            assert_eq!(all.len(), 2000, "{:?}", request.workload);
            let lengths: HashSet<_> = all.iter().map(String::len).collect();
            assert_eq!(lengths.len(), 1, "{:?}", request.workload);
        }
    }

    #[test]
    fn drawn_replays_are_of_all_keys_and_other_ones_each_time() {
        let drawn = |draw| {
            Workload::ReplayDrawn(DrawnKeys {
                of: Seed(7),
                count: 100,
                draw: Seed(draw),
            })
        };
        let keys = |workload: &Workload| {
            let keys = (0..1000).map(|number| workload.key(number).expect("a replay has a key"));
            keys.collect::<Vec<_>>()
        };
        let all: HashSet<_> = (0..100).map(|number| Seed(7).key(number)).collect();
        let first = keys(&drawn(1));
        assert_eq!(HashSet::from_iter(first.clone()), all);
        assert_ne!(keys(&drawn(2)), first);
        assert_ne!(keys(&drawn(1).with_other_keys()), first);
    }

    #[test]
    fn a_request_is_complete() {
        let target = LoopbackOrigin::parse("http://127.0.0.1:8080").expect("a literal URL");
        let wire = "POST /payments HTTP/1.1\r\nHost: 127.0.0.1:8080\r\n\
                    Content-Type: application/json\r\nContent-Length: 79\r\n\r\n\
                    {\"amount\":4200,\"currency\":\"EUR\",\
                    \"order\":\"00000000-0000-0000-0000-000000000000\"}";
        assert_eq!(request(Workload::PassThrough).numbered(1), wire.as_bytes());
        let api_key = ApiKey::from("ow_key");
        let mut request = Request::new(Workload::PassThrough, &target, Some(&api_key));
        let line = "Authorization: Bearer ow_key\r\nContent-Length";
        let wire = wire.replace("Content-Length", line);
        assert_eq!(request.numbered(1), wire.as_bytes());
    }

    #[test]
    fn an_event_has_its_id_in_its_body_and_is_signed() {
        let mut request = request(event());
        for number in 0..3 {
            let wire = String::from_utf8_lossy(request.numbered(number)).into_owned();
            let (head, body) = wire.split_once("\r\n\r\n").expect("a head ends");
            assert!(head.starts_with("POST /api/v1/webhooks/stripe/wh_1 HTTP/1.1\r\n"));
            let key = Seed(7).key(number);
            let id = format!("\"id\":\"evt_{}\"", String::from_utf8_lossy(&key));
            assert!(body.contains(&id), "{body}");
            let signature = head
                .lines()
                .find_map(|line| line.strip_prefix("Stripe-Signature: t="));
            let (time, signature) = signature
                .and_then(|line| line.split_once(",v1="))
                .expect("an event has a time and a signature");
            let time = SigningTime(time.to_owned());
            let expected = Webhook::new("wh_1", "secret").sign(&time, body.as_bytes());
            assert_eq!(signature.as_bytes(), expected);
            assert_eq!(request.signature(), expected);
        }
    }

    #[test]
    fn another_program_can_fill_in_the_numbers() {
        for workload in [Workload::First(Seed(7)), Workload::Flood(Seed(7))] {
            let mut request = request(workload);
            let pieces = request.around_numbers();
            assert_eq!(pieces.len(), 3);
            let whole = pieces.join(format!("{:012x}", 77).as_bytes());
            assert_eq!(whole, request.numbered(77));
        }
        let mut request = request(event());
        request.numbered(77);
        let signature = request.signature().to_vec();
        let pieces = Vec::from_iter(request.around_numbers().into_iter().map(<[u8]>::to_vec));
        let [head, middle, tail] = &pieces[..] else {
            panic!("a signature and a number are filled in")
        };
        let number = format!("{:012x}", 77).into_bytes();
        let whole = [head, &signature, middle, &number, tail].map(|piece| &piece[..]);
        assert_eq!(whole.concat(), request.numbered(77));
    }

    #[test]
    fn only_the_measured_response_is_expected() {
        let first = || Workload::First(Seed(1));
        let replay = || Workload::Replay(Seed(1));
        let webhook = event;
        let drawn = Workload::ReplayDrawn(DrawnKeys {
            of: Seed(1),
            count: 9,
            draw: Seed(2),
        });
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
            (drawn, 201, Source::Run, Err(Unexpected::RanAgain)),
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
