//! What a load says and what it must hear: the request's bytes, the keys, the expected answer.
//!
//! All loads send the same JSON body to be comparable; they differ in the path and the key.
//! A key looks like a UUID, is unique over runs, and follows from a seed and a number, so that
//! the keys of an earlier load can be sent again without having been kept.

use std::sync::Arc;

use super::reply::{Origin, Reply};
use super::target::Target;

/// How many completed keys the replays are spread over.
pub(super) const REPLAY_KEYS: u64 = 1000;
const BODY: &str = r#"{"amount":4200,"currency":"EUR"}"#;
const TOO_MANY_REQUESTS: u16 = 429;
const KEY_BYTES: usize = 36;
const KEY_BLANK: &str = "00000000-0000-0000-0000-000000000000";

/// The kinds of load.
#[derive(Clone, Copy, Debug)]
pub(super) enum Script {
    /// No key: nothing to protect.
    PassThrough,
    /// A key that was never sent before.
    First(Seed),
    /// One of the first [`REPLAY_KEYS`] keys of a seed, all completed before.
    Replay(Seed),
    /// A key that was never sent before, to the service that runs behind Restate.
    Restate(Seed),
    /// A key that was never sent before, from a tenant that may be refused for asking too often.
    Flood(Seed),
}

/// An API key.
pub(super) type Pass = Arc<str>;

/// Where the keys of a load come from.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seed(pub(super) u64);

impl Script {
    fn path(self) -> &'static str {
        match self {
            Script::Restate(_) => "/Pay/charge",
            _ => "/payments",
        }
    }

    fn key(self, number: u64) -> Option<[u8; KEY_BYTES]> {
        match self {
            Script::PassThrough => None,
            Script::First(seed) | Script::Restate(seed) | Script::Flood(seed) => {
                Some(seed.key(number))
            }
            Script::Replay(seed) => Some(seed.key(number % REPLAY_KEYS)),
        }
    }

    /// Whether an answer is the one that this load is about. A rate of others means nothing.
    pub(super) fn judge(self, reply: &Reply) -> Result<(), Wrong> {
        match (self, reply.origin) {
            (Script::Flood(_), Origin::Run) if reply.status == TOO_MANY_REQUESTS => Ok(()),
            _ if !(200..300).contains(&reply.status) => Err(Wrong::Status(reply.status)),
            (Script::Replay(_), Origin::Run) => Err(Wrong::RanAgain),
            (Script::First(_) | Script::PassThrough | Script::Flood(_), Origin::Replay) => {
                Err(Wrong::ReplayedTooSoon)
            }
            _ => Ok(()),
        }
    }
}

/// What is wrong with an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wrong {
    Status(u16),
    RanAgain,
    ReplayedTooSoon,
}

/// The bytes of a request, built once; only the key changes.
pub(super) struct Request {
    script: Script,
    bytes: Vec<u8>,
    key_at: usize,
}

impl Request {
    pub(super) fn new(script: Script, target: &Target, pass: Option<&Pass>) -> Self {
        let mut head = format!(
            "POST {} HTTP/1.1\r\nHost: {}\r\n",
            script.path(),
            target.host()
        );
        head.push_str("Content-Type: application/json\r\n");
        if let Some(pass) = pass {
            head.push_str("Authorization: Bearer ");
            head.push_str(pass);
            head.push_str("\r\n");
        }
        let mut key_at = 0;
        if script.key(0).is_some() {
            head.push_str("Idempotency-Key: ");
            key_at = head.len();
            head.push_str(KEY_BLANK);
            head.push_str("\r\n");
        }
        let bytes = format!("{head}Content-Length: {}\r\n\r\n{BODY}", BODY.len()).into_bytes();
        Request {
            script,
            bytes,
            key_at,
        }
    }

    /// The bytes of the request with this number.
    pub(super) fn numbered(&mut self, number: u64) -> &[u8] {
        if let Some(key) = self.script.key(number) {
            self.bytes[self.key_at..self.key_at + KEY_BYTES].copy_from_slice(&key);
        }
        &self.bytes
    }
}

impl Seed {
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

    use super::super::reply::After;
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
        let target = Target::parse("http://127.0.0.1:8080").expect("a literal URL");
        let mut first = Request::new(Script::First(Seed(7)), &target, None);
        let mut replay = Request::new(Script::Replay(Seed(7)), &target, None);
        assert_eq!(replay.numbered(REPLAY_KEYS + 3), first.numbered(3));
        assert_ne!(replay.numbered(REPLAY_KEYS + 4), first.numbered(3));
    }

    #[test]
    fn a_request_is_whole() {
        let target = Target::parse("http://127.0.0.1:8080").expect("a literal URL");
        let mut request = Request::new(Script::PassThrough, &target, None);
        let wire = "POST /payments HTTP/1.1\r\nHost: 127.0.0.1:8080\r\n\
                    Content-Type: application/json\r\nContent-Length: 32\r\n\r\n\
                    {\"amount\":4200,\"currency\":\"EUR\"}";
        assert_eq!(request.numbered(1), wire.as_bytes());
        let pass = Pass::from("ow_key");
        let mut request = Request::new(Script::PassThrough, &target, Some(&pass));
        let line = "Authorization: Bearer ow_key\r\nContent-Length";
        let wire = wire.replace("Content-Length", line);
        assert_eq!(request.numbered(1), wire.as_bytes());
    }

    #[test]
    fn only_the_answer_that_is_measured_is_expected() {
        let (first, replay) = (Script::First(Seed(1)), Script::Replay(Seed(1)));
        let cases = [
            (first, 201, Origin::Run, Ok(())),
            (first, 201, Origin::Replay, Err(Wrong::ReplayedTooSoon)),
            (first, 503, Origin::Run, Err(Wrong::Status(503))),
            (replay, 201, Origin::Replay, Ok(())),
            (replay, 201, Origin::Run, Err(Wrong::RanAgain)),
            (
                Script::PassThrough,
                404,
                Origin::Run,
                Err(Wrong::Status(404)),
            ),
            (Script::Restate(Seed(1)), 200, Origin::Run, Ok(())),
            (Script::Flood(Seed(1)), 201, Origin::Run, Ok(())),
            (Script::Flood(Seed(1)), 429, Origin::Run, Ok(())),
            (first, 429, Origin::Run, Err(Wrong::Status(429))),
        ];
        for (script, status, origin, expected) in cases {
            let reply = Reply {
                status,
                origin,
                after: After::Keep,
                length_bytes: 0,
            };
            assert_eq!(
                script.judge(&reply),
                expected,
                "{script:?} {status} {origin:?}"
            );
        }
    }
}
