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
    RECORD_BYTES + record.answer.as_ref().map_or(0, answer_bytes)
}

fn answer_bytes(answer: &Answer) -> usize {
    match answer {
        Answer::Kept(reply) => HEAD_BYTES + reply_bytes(reply),
        _ => 0,
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

    use super::*;

    #[test]
    fn a_kept_reply_counts_with_the_head_of_its_replays() {
        let field = (Bytes::from_static(b"name"), Bytes::from_static(b"value"));
        for (headers, want) in [(0, 768 + 10), (4, 768 + 10 + 4 * (176 + 9))] {
            let kept = Answer::Kept(Arc::new(Reply {
                status: 201,
                headers: vec![field.clone(); headers],
                body: Bytes::from_static(b"0123456789"),
                trailers: Vec::new(),
            }));
            assert_eq!(answer_bytes(&kept), want);
        }
        assert_eq!(answer_bytes(&Answer::NotKept { status: 200 }), 0);
    }
}
