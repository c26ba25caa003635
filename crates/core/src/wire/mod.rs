//! Records and replies as bytes: a version, the fields, a checksum.
//!
//! Used by the stores that keep bytes. Every version that was ever written can be
//! read; a newer one is refused with its number. The checksum turns a damaged
//! record into an error rather than into a wrong answer. The reply stands apart
//! from its record, so that it can be deleted earlier.

mod codes;
mod reader;

use std::sync::Arc;
use std::time::Duration;

use bytes::{BufMut, Bytes};

use self::codes::{
    algorithm, algorithm_code, basis, basis_code, space, space_code, state, state_code,
    subject_code, subject_kind,
};
use self::reader::Reader;
use crate::caller::{Caller, Subject};
use crate::class::{AfterLoss, Expiry, Terms, TtlBasis};
use crate::clock::Timestamp;
use crate::fingerprint::Fingerprint;
use crate::identity::{Digest, Endpoint, Identity, KeySpace, OperationId};
use crate::key::Key;
use crate::record::{Answer, Attempt, Fence, Field, Record, Reply};

/// The version of records that is written. Fields that version 1 lacks have their
/// defaults: the endpoint's own key space, retention from completion, strict
/// expiry and no trace.
pub const VERSION: u8 = 2;
/// The version of replies that is written.
pub const REPLY_VERSION: u8 = 1;

/// Why bytes are not a record or a reply.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WireError {
    /// A later version wrote it.
    #[error(
        "record version {0} was written by a newer Onceward; this one reads records up to version {VERSION} and replies up to version {REPLY_VERSION}"
    )]
    Newer(u8),
    /// The checksum is wrong.
    #[error("the checksum does not match: the bytes are damaged")]
    Checksum,
    /// The checksum is right, and a field is invalid.
    #[error("the field {0} cannot be read")]
    Field(&'static str),
}

/// Writes a record, all but the reply it may carry.
pub fn encode_record(record: &Record) -> Vec<u8> {
    let mut out = Vec::with_capacity(320);
    out.put_u8(VERSION);
    out.put_slice(record.id.as_bytes());
    out.put_slice(record.digest.as_bytes());
    let caller = &record.identity.caller;
    put_bytes(&mut out, caller.tenant().as_bytes());
    put_bytes(&mut out, caller.project().as_bytes());
    out.put_u8(subject_code(caller.subject().kind()));
    put_bytes(&mut out, caller.subject().id().as_bytes());
    put_bytes(&mut out, record.identity.endpoint.as_str().as_bytes());
    put_bytes(&mut out, record.identity.key.as_str().as_bytes());
    out.put_u8(algorithm_code(record.fingerprint.algorithm));
    out.put_slice(&record.fingerprint.digest);
    out.put_slice(&record.fingerprint.sender);
    put_bytes(&mut out, record.terms.class.as_bytes());
    put_duration(&mut out, record.terms.lease);
    put_duration(&mut out, record.terms.retention);
    put_duration(&mut out, record.terms.remember);
    out.put_u8(match record.terms.after_loss {
        AfterLoss::Hold => 0,
        AfterLoss::Free => 1,
    });
    out.put_u8(state_code(record.state));
    out.put_u64(record.fence.0);
    out.put_u128(record.attempt.0);
    out.put_u32(record.attempts);
    out.put_u8(u8::from(record.delivered));
    out.put_u64(record.created_at.unix_ms());
    out.put_u64(record.until.unix_ms());
    out.put_u64(record.completed_at.map_or(0, Timestamp::unix_ms));
    let (kind, status) = match &record.answer {
        None => (0, 0),
        Some(Answer::Kept(reply)) => (1, reply.status),
        Some(Answer::NotKept { status }) => (2, *status),
        Some(Answer::Gone { status }) => (3, *status),
    };
    out.put_u8(kind);
    out.put_u16(status);
    // From here on since version 2.
    out.put_u8(space_code(record.identity.space));
    out.put_u8(basis_code(record.terms.ttl_basis));
    out.put_u8(match record.terms.expiry {
        Expiry::Strict => 0,
        Expiry::Lazy => 1,
    });
    put_duration(&mut out, record.terms.keep_expired);
    out.put_u64(record.touched_at.map_or(0, Timestamp::unix_ms));
    seal(out)
}

/// Reads a record. Where it says that a reply is kept, `reply` supplies it; a
/// reply that is no longer there makes the answer [`Answer::Gone`].
pub fn decode_record(
    bytes: &[u8],
    reply: impl FnOnce() -> Result<Option<Arc<Reply>>, WireError>,
) -> Result<Record, WireError> {
    let (version, content) = unseal(bytes, VERSION)?;
    let mut input = Reader(content);
    let id = OperationId::from_bytes(input.array("id")?);
    let digest = Digest::from_bytes(input.array("digest")?);
    let tenant = input.text("tenant")?;
    let project = input.text("project")?;
    let kind = subject_kind(input.u8("subject type")?)?;
    let subject =
        Subject::new(kind, input.text("subject")?).map_err(|_| WireError::Field("subject"))?;
    let caller =
        Caller::trusted(tenant, project, subject).map_err(|_| WireError::Field("caller"))?;
    let endpoint = Endpoint::new(input.text("endpoint")?);
    let key = Key::from_record(input.text("key")?).map_err(|_| WireError::Field("key"))?;
    let fingerprint = Fingerprint {
        algorithm: algorithm(input.u8("algorithm")?)?,
        digest: input.array("fingerprint")?,
        sender: input.array("sender")?,
    };
    let class = input.text("class")?.into();
    let lease = input.duration("lease")?;
    let retention = input.duration("retention")?;
    let remember = input.duration("remember")?;
    let after_loss = match input.u8("after_loss")? {
        0 => AfterLoss::Hold,
        1 => AfterLoss::Free,
        _ => return Err(WireError::Field("after_loss")),
    };
    let state = state(input.u8("state")?)?;
    let fence = Fence(input.u64("fence")?);
    let attempt = Attempt(u128::from_be_bytes(input.array("attempt")?));
    let attempts = u32::from_be_bytes(input.array("attempts")?);
    let delivered = input.u8("delivered")? != 0;
    let created_at = Timestamp::from_unix_ms(input.u64("created_at")?);
    let until = Timestamp::from_unix_ms(input.u64("until")?);
    let completed_at = input.moment("completed_at")?;
    let kind = input.u8("answer")?;
    let status = input.u16("status")?;
    let later = SinceVersion2::read(&mut input, version)?;
    input.end()?;
    let answer = match kind {
        0 => None,
        1 => Some(reply()?.map_or(Answer::Gone { status }, Answer::Kept)),
        2 => Some(Answer::NotKept { status }),
        3 => Some(Answer::Gone { status }),
        _ => return Err(WireError::Field("answer")),
    };
    Ok(Record {
        id,
        digest,
        identity: Identity {
            caller,
            endpoint,
            key,
            space: later.space,
        },
        fingerprint,
        terms: Terms {
            class,
            lease,
            retention,
            remember,
            after_loss,
            ttl_basis: later.ttl_basis,
            expiry: later.expiry,
            keep_expired: later.keep_expired,
        },
        state,
        fence,
        attempt,
        attempts,
        delivered,
        created_at,
        until,
        completed_at,
        touched_at: later.touched_at,
        answer,
        rendered: Default::default(),
    })
}

/// The fields that version 2 added.
struct SinceVersion2 {
    space: KeySpace,
    ttl_basis: TtlBasis,
    expiry: Expiry,
    keep_expired: Duration,
    touched_at: Option<Timestamp>,
}

impl SinceVersion2 {
    fn read(input: &mut Reader<'_>, version: u8) -> Result<Self, WireError> {
        if version < 2 {
            return Ok(Self {
                space: KeySpace::Endpoint,
                ttl_basis: TtlBasis::Completion,
                expiry: Expiry::Strict,
                keep_expired: Duration::ZERO,
                touched_at: None,
            });
        }
        Ok(Self {
            space: space(input.u8("key space")?)?,
            ttl_basis: basis(input.u8("ttl_basis")?)?,
            expiry: match input.u8("expiry")? {
                0 => Expiry::Strict,
                1 => Expiry::Lazy,
                _ => return Err(WireError::Field("expiry")),
            },
            keep_expired: input.duration("keep_expired")?,
            touched_at: input.moment("touched_at")?,
        })
    }
}

/// Writes a reply.
pub fn encode_reply(reply: &Reply) -> Vec<u8> {
    let mut out = Vec::with_capacity(128 + reply.body.len());
    out.put_u8(REPLY_VERSION);
    out.put_u16(reply.status);
    put_fields(&mut out, &reply.headers);
    put_fields(&mut out, &reply.trailers);
    put_bytes(&mut out, &reply.body);
    seal(out)
}

/// Reads a reply.
pub fn decode_reply(bytes: &[u8]) -> Result<Reply, WireError> {
    let (_, content) = unseal(bytes, REPLY_VERSION)?;
    let mut input = Reader(content);
    let reply = Reply {
        status: input.u16("status")?,
        headers: input.fields("headers")?,
        trailers: input.fields("trailers")?,
        body: Bytes::copy_from_slice(input.bytes("body")?),
    };
    input.end()?;
    Ok(reply)
}

fn seal(mut out: Vec<u8>) -> Vec<u8> {
    let sum = crc32fast::hash(&out);
    out.put_u32(sum);
    out
}

/// Checks version and checksum; returns the version and the bytes in between.
fn unseal(bytes: &[u8], newest: u8) -> Result<(u8, &[u8]), WireError> {
    let (content, sum) = bytes.split_last_chunk().ok_or(WireError::Checksum)?;
    if crc32fast::hash(content) != u32::from_be_bytes(*sum) {
        return Err(WireError::Checksum);
    }
    match content.split_first() {
        Some((&version, _)) if version > newest => Err(WireError::Newer(version)),
        Some((&version @ 1.., fields)) => Ok((version, fields)),
        _ => Err(WireError::Field("version")),
    }
}

fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    // Everything written here was bounded far below 4 GiB when it came in.
    out.put_u32(bytes.len() as u32);
    out.put_slice(bytes);
}

fn put_duration(out: &mut Vec<u8>, duration: Duration) {
    out.put_u64(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX));
}

fn put_fields(out: &mut Vec<u8>, fields: &[Field]) {
    out.put_u32(fields.len() as u32);
    for (name, value) in fields {
        put_bytes(out, name);
        put_bytes(out, value);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::caller::SubjectKind;
    use crate::fingerprint::Algorithm;
    use crate::record::State;

    fn name() -> impl Strategy<Value = String> {
        "[^\\p{Cc}]{1,20}"
    }

    fn key() -> impl Strategy<Value = Key> {
        name().prop_filter_map("not blank", |text| Key::parse_wide(&text).ok())
    }

    fn subject() -> impl Strategy<Value = Subject> {
        let kinds = [
            SubjectKind::User,
            SubjectKind::Service,
            SubjectKind::TenantMember,
            SubjectKind::Client,
        ];
        (prop::sample::select(kinds.to_vec()), name())
            .prop_map(|(kind, id)| Subject::new(kind, &id).expect("a good subject"))
    }

    fn identity() -> impl Strategy<Value = Identity> {
        let space = prop::sample::select(KeySpace::ALL.to_vec());
        (name(), name(), subject(), any::<String>(), key(), space).prop_map(
            |(tenant, project, subject, endpoint, key, space)| Identity {
                caller: Caller::trusted(&tenant, &project, subject).expect("a good caller"),
                endpoint: Endpoint::new(&endpoint),
                key,
                space,
            },
        )
    }

    fn duration() -> impl Strategy<Value = Duration> {
        any::<u64>().prop_map(Duration::from_millis)
    }

    fn terms() -> impl Strategy<Value = Terms> {
        let bases = vec![TtlBasis::Completion, TtlBasis::Creation, TtlBasis::Access];
        (
            any::<String>(),
            [duration(), duration(), duration(), duration()],
            prop::sample::select(vec![AfterLoss::Hold, AfterLoss::Free]),
            prop::sample::select(bases),
            prop::sample::select(vec![Expiry::Strict, Expiry::Lazy]),
        )
            .prop_map(|(class, spans, after_loss, ttl_basis, expiry)| {
                let [lease, retention, remember, keep_expired] = spans;
                Terms {
                    class: class.into(),
                    lease,
                    retention,
                    remember,
                    after_loss,
                    ttl_basis,
                    expiry,
                    keep_expired,
                }
            })
    }

    fn fields() -> impl Strategy<Value = Vec<Field>> {
        let bytes = || any::<Vec<u8>>().prop_map(Bytes::from);
        prop::collection::vec((bytes(), bytes()), 0..4)
    }

    fn reply() -> impl Strategy<Value = Reply> {
        (any::<u16>(), fields(), any::<Vec<u8>>(), fields()).prop_map(
            |(status, headers, body, trailers)| Reply {
                status,
                headers,
                body: body.into(),
                trailers,
            },
        )
    }

    fn answer() -> impl Strategy<Value = Option<Answer>> {
        prop_oneof![
            Just(None),
            reply().prop_map(|reply| Some(Answer::Kept(Arc::new(reply)))),
            any::<u16>().prop_map(|status| Some(Answer::NotKept { status })),
            any::<u16>().prop_map(|status| Some(Answer::Gone { status })),
        ]
    }

    fn moment() -> impl Strategy<Value = Timestamp> {
        // The epoch itself stands for an absent time.
        (1..=u64::MAX).prop_map(Timestamp::from_unix_ms)
    }

    prop_compose! {
        fn record()(
            id in any::<[u8; 16]>(),
            digest in any::<[u8; 32]>(),
            identity in identity(),
            terms in terms(),
            algorithm in prop::sample::select(Algorithm::ALL.to_vec()),
            (fingerprint, sender) in any::<([u8; 32], [u8; 16])>(),
            state in prop::sample::select(State::ALL.to_vec()),
            (fence, attempt, attempts, delivered) in any::<(u64, u128, u32, bool)>(),
            (created_at, until) in (moment(), moment()),
            [completed_at, touched_at] in [prop::option::of(moment()), prop::option::of(moment())],
            answer in answer(),
        ) -> Record {
            Record {
                id: OperationId::from_bytes(id),
                digest: Digest::from_bytes(digest),
                identity,
                fingerprint: Fingerprint { algorithm, digest: fingerprint, sender },
                terms,
                state,
                fence: Fence(fence),
                attempt: Attempt(attempt),
                attempts,
                delivered,
                created_at,
                until,
                completed_at,
                touched_at,
                answer,
                rendered: Default::default(),
            }
        }
    }

    /// Decodes a record whose reply, if it has one, is not there.
    fn decoded(bytes: &[u8]) -> Result<Record, WireError> {
        decode_record(bytes, || Ok(None))
    }

    fn reply_of(record: &Record) -> Option<Arc<Reply>> {
        match &record.answer {
            Some(Answer::Kept(reply)) => Some(reply.clone()),
            _ => None,
        }
    }

    /// The content of a sealed text with another version, sealed again.
    fn with_version(sealed: &[u8], version: u8) -> Vec<u8> {
        let (_, content) = sealed[..sealed.len() - 4].split_first().expect("a version");
        seal([&[version], content].concat())
    }

    proptest! {
        #[test]
        fn any_record_reads_back(record in record()) {
            let reply = reply_of(&record);
            prop_assert_eq!(decode_record(&encode_record(&record), || Ok(reply)), Ok(record));
        }

        #[test]
        fn any_reply_reads_back(reply in reply()) {
            prop_assert_eq!(decode_reply(&encode_reply(&reply)), Ok(reply));
        }

        #[test]
        fn reply_that_is_no_longer_there_leaves_its_status(record in record()) {
            let Ok(read) = decoded(&encode_record(&record)) else {
                panic!("a record is read without its reply");
            };
            prop_assert_eq!(
                read.answer.map(|answer| answer.status()),
                record.answer.map(|answer| answer.status())
            );
        }

        #[test]
        fn any_flipped_bit_is_noticed(record in record(), reply in reply(), bit in 0..8_u8) {
            let mut bytes = encode_record(&record);
            for at in 0..bytes.len() {
                bytes[at] ^= 1 << bit;
                prop_assert!(decoded(&bytes).is_err(), "byte {at}");
                bytes[at] ^= 1 << bit;
            }
            let mut bytes = encode_reply(&reply);
            for at in 0..bytes.len() {
                bytes[at] ^= 1 << bit;
                prop_assert!(decode_reply(&bytes).is_err(), "byte {at}");
                bytes[at] ^= 1 << bit;
            }
        }

        #[test]
        fn any_cut_is_noticed(record in record(), reply in reply()) {
            let bytes = encode_record(&record);
            for length in 0..bytes.len() {
                prop_assert!(decoded(&bytes[..length]).is_err(), "cut to {length}");
            }
            let bytes = encode_reply(&reply);
            for length in 0..bytes.len() {
                prop_assert!(decode_reply(&bytes[..length]).is_err(), "cut to {length}");
            }
        }

        #[test]
        fn any_bytes_are_read_without_a_panic(bytes in any::<Vec<u8>>()) {
            prop_assert!(decoded(&bytes).is_err());
            prop_assert!(decode_reply(&bytes).is_err());
        }

        /// As a program with a mistake would write them: the checksum is right.
        #[test]
        fn any_sealed_bytes_are_read_without_a_panic(record in record(), noise in any::<Vec<u8>>(), at in any::<prop::sample::Index>()) {
            let sealed = seal([&[VERSION], noise.as_slice()].concat());
            let _record = decoded(&sealed);
            let _reply = decode_reply(&sealed);
            let mut content = encode_record(&record);
            content.truncate(content.len() - 4);
            let at = at.index(content.len());
            content.splice(at.., noise);
            let _record = decoded(&seal(content));
        }

        #[test]
        fn any_newer_version_is_named(record in record(), reply in reply(), version in VERSION + 1..) {
            let newer = with_version(&encode_record(&record), version);
            prop_assert_eq!(decoded(&newer), Err(WireError::Newer(version)));
            let newer = with_version(&encode_reply(&reply), version);
            prop_assert_eq!(decode_reply(&newer), Err(WireError::Newer(version)));
        }
    }

    #[test]
    fn an_unknown_version_is_refused() {
        let reply = Reply {
            status: 200,
            headers: Vec::new(),
            body: Bytes::new(),
            trailers: Vec::new(),
        };
        let never = with_version(&encode_reply(&reply), 0);
        assert_eq!(decode_reply(&never), Err(WireError::Field("version")));
    }

    #[test]
    fn bytes_after_the_last_field_are_refused() {
        let reply = Reply {
            status: 200,
            headers: Vec::new(),
            body: Bytes::new(),
            trailers: Vec::new(),
        };
        let mut longer = encode_reply(&reply);
        longer.truncate(longer.len() - 4);
        longer.push(0);
        assert_eq!(decode_reply(&seal(longer)), Err(WireError::Field("end")));
    }

    #[test]
    fn states_and_algorithms_have_codes_of_their_own() {
        for wanted in State::ALL {
            assert_eq!(state(state_code(wanted)), Ok(wanted));
        }
        for wanted in Algorithm::ALL {
            assert_eq!(algorithm(algorithm_code(wanted)), Ok(wanted));
        }
        assert!(state(State::ALL.len() as u8).is_err());
        assert!(algorithm(Algorithm::ALL.len() as u8).is_err());
    }
}
