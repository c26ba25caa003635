//! The approximate memory of a record that is kept for replays. The caches of the
//! stores are bounded by it.
//!
//! A record that is replayed also holds the head of its replays, which is made at the
//! first replay, after the record was weighed. So the head is counted from the start.

use onceward_core::record::{Answer, Record, Reply};

/// The size of a record without its reply.
pub(crate) const RECORD_BYTES: usize = 768;
/// The size of a header field in the reply, besides its text.
const FIELD_BYTES: usize = 64;
/// The size of the head of the replays, with the header fields that every replay has.
const HEAD_BYTES: usize = 768;
/// The size of a header field of the reply in that head. Both share the text.
const HEAD_FIELD_BYTES: usize = 112;

/// The approximate size of a record in memory, with its reply and the head of its
/// replays.
pub(crate) fn size_in_memory(record: &Record) -> usize {
    match &record.answer {
        Some(Answer::Kept(reply)) => RECORD_BYTES + HEAD_BYTES + reply_bytes(reply),
        _ => RECORD_BYTES,
    }
}

fn reply_bytes(reply: &Reply) -> usize {
    let fields = reply.headers.iter().chain(&reply.trailers);
    let fields: usize = fields
        .map(|(name, value)| FIELD_BYTES + HEAD_FIELD_BYTES + name.len() + value.len())
        .sum();
    fields + reply.body.len()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use bytes::Bytes;
    use onceward_core::caller::Caller;
    use onceward_core::class::Class;
    use onceward_core::clock::Timestamp;
    use onceward_core::fingerprint::{Algorithm, Fingerprint};
    use onceward_core::identity::{Endpoint, Identity, KeySpace, OperationId};
    use onceward_core::key::Key;
    use onceward_core::record::{Attempt, Fence, Settlement};
    use onceward_core::store::ClaimRequest;

    use super::*;

    const NOW: Timestamp = Timestamp::from_unix_ms(1_700_000_000_000);

    fn completed(answer: Answer) -> Record {
        let identity = Identity {
            caller: Caller::local(),
            endpoint: Endpoint::new("payments.create"),
            key: Key::parse("k").expect("a good key"),
            space: KeySpace::Endpoint,
        };
        let digest = identity.digest();
        let ask = ClaimRequest {
            digest,
            identity,
            fingerprint: Fingerprint {
                algorithm: Algorithm::Json1,
                digest: [1; 32],
                sender: [2; 16],
            },
            terms: Class::interactive().terms(),
            attempt: Attempt(3),
            id: OperationId::new(&digest, 4),
        };
        let mut record = ask.to_record_after(None, NOW);
        record.grant(Fence(1), ask.attempt, NOW);
        record.settle(Fence(1), &Settlement::Completed(answer), NOW);
        record
    }

    #[test]
    fn a_kept_reply_counts_with_the_head_of_its_replays() {
        let field = (Bytes::from_static(b"name"), Bytes::from_static(b"value"));
        for (headers, want) in [(0, 1_536 + 10), (4, 1_536 + 10 + 4 * (176 + 9))] {
            let record = completed(Answer::Kept(Arc::new(Reply {
                status: 201,
                headers: vec![field.clone(); headers],
                body: Bytes::from_static(b"0123456789"),
                trailers: Vec::new(),
            })));
            assert_eq!(size_in_memory(&record), want);
        }
        let not_kept = completed(Answer::NotKept { status: 200 });
        assert_eq!(size_in_memory(&not_kept), 768);
    }
}
