//! Entries: effects as bytes.
//!
//! A kind, a length, and a body. What concerns an operation begins with its digest,
//! so that recovery can leave out what was overwritten later without reading it.

use std::sync::Arc;

use bytes::{Buf as _, BufMut as _, Bytes};
use onceward_core::identity::Digest;
use onceward_core::store::Collection;
use onceward_core::wire;

use super::LogError;
use crate::embedded::bucket::BucketEnd;
use crate::embedded::effect::{
    DocumentChange, Effect, Finished, FinishedRequest, Opened, OpenedRequest, Unkept,
};

/// The most that an entry takes besides a reply, a request or a document: names and
/// keys are bounded when they come in.
pub(in crate::embedded) const ENTRY_BYTES_MAX: u64 = 4 << 10;

/// Stands for the length of something that is not there.
const ABSENT: u32 = u32::MAX;

/// The kinds. A byte that was ever written keeps its meaning.
mod kind {
    pub(super) const OPENED: u8 = 1;
    pub(super) const FINISHED: u8 = 2;
    pub(super) const CLOSED: u8 = 3;
    pub(super) const UNKEPT: u8 = 4;
    pub(super) const DOCUMENT: u8 = 5;
    pub(super) const NUMBERS: u8 = 6;
}

/// Appends an effect.
pub(super) fn encode(effect: &Effect, out: &mut Vec<u8>) {
    let start = out.len();
    // The kind and room for the length.
    out.put_slice(&[0; 5]);
    let kind = match effect {
        Effect::Opened(opened) => {
            out.put_slice(opened.record.digest.as_bytes());
            out.put_u64(opened.row);
            put_opened_request(out, opened.request.as_ref());
            out.put_slice(&wire::encode_record(&opened.record));
            kind::OPENED
        }
        Effect::Finished(finished) => {
            out.put_slice(finished.record.digest.as_bytes());
            out.put_u64(finished.row);
            put_optional(out, finished.reply.as_deref());
            match &finished.request {
                FinishedRequest::None => out.put_u8(0),
                FinishedRequest::AsOpen => out.put_u8(1),
                FinishedRequest::Body(body) => {
                    out.put_u8(2);
                    put_optional(out, Some(body));
                }
            }
            out.put_slice(&finished.encoded);
            kind::FINISHED
        }
        Effect::Closed(digest) => {
            out.put_slice(digest.as_bytes());
            kind::CLOSED
        }
        Effect::Unkept(unkept) => {
            out.put_slice(unkept.digest.as_bytes());
            out.put_u64(unkept.row);
            out.put_u64(unkept.end.0);
            // No bucket ends at zero.
            out.put_u64(unkept.replied.map_or(0, |end| end.0));
            kind::UNKEPT
        }
        Effect::Document(document) => {
            put_optional(out, Some(document.sheet.as_str().as_bytes()));
            put_optional(out, Some(document.name.as_bytes()));
            put_optional(out, document.body.as_deref());
            kind::DOCUMENT
        }
        Effect::Numbers(last) => {
            out.put_u64(*last);
            kind::NUMBERS
        }
    };
    let length = (out.len() - start - 5) as u32;
    out[start] = kind;
    out[start + 1..start + 5].copy_from_slice(&length.to_be_bytes());
}

fn put_opened_request(out: &mut Vec<u8>, request: Option<&OpenedRequest>) {
    // Rows begin with one.
    out.put_u64(request.map_or(0, |request| request.row));
    if let Some(request) = request {
        put_optional(out, request.body.as_deref());
    }
}

fn put_optional(out: &mut Vec<u8>, bytes: Option<&[u8]>) {
    out.put_u32(bytes.map_or(ABSENT, |bytes| bytes.len() as u32));
    out.put_slice(bytes.unwrap_or_default());
}

/// An entry that is not decoded yet.
#[derive(Clone, Debug)]
pub(in crate::embedded) struct Entry {
    kind: u8,
    body: Bytes,
}

impl Entry {
    /// The operation whose state this entry replaces.
    pub(in crate::embedded) fn digest(&self) -> Option<Digest> {
        match self.kind {
            kind::OPENED | kind::FINISHED | kind::CLOSED => {
                self.body.first_chunk().copied().map(Digest::from_bytes)
            }
            _ => None,
        }
    }

    /// Whether nothing of this entry is needed where a later one replaces it. A
    /// request is: later entries only name it.
    pub(in crate::embedded) fn is_overwritten_whole(&self) -> bool {
        let request = self.body.get(40..48);
        self.kind == kind::OPENED && request.is_some_and(|row| row == [0; 8])
    }

    /// The effect.
    pub(in crate::embedded) fn decode(self) -> Result<Effect, LogError> {
        let mut body = self.body;
        let effect = match self.kind {
            kind::OPENED => {
                take_digest(&mut body)?;
                let row = take_u64(&mut body)?;
                let request = match take_u64(&mut body)? {
                    0 => None,
                    row => Some(OpenedRequest {
                        row,
                        body: take_optional(&mut body)?,
                    }),
                };
                let record = wire::decode_record(&body, || Ok(None))?;
                Effect::Opened(Opened {
                    row,
                    record: Arc::new(record),
                    request,
                })
            }
            kind::FINISHED => {
                take_digest(&mut body)?;
                let row = take_u64(&mut body)?;
                let reply = take_optional(&mut body)?;
                let request = match take_u8(&mut body)? {
                    0 => FinishedRequest::None,
                    1 => FinishedRequest::AsOpen,
                    2 => FinishedRequest::Body(take_bytes(&mut body)?),
                    _ => return Err(LogError::Entry),
                };
                let decoded = reply.as_deref().map(wire::decode_reply).transpose()?;
                let record = wire::decode_record(&body, || Ok(decoded.map(Arc::new)))?;
                Effect::Finished(Finished {
                    row,
                    record: Arc::new(record),
                    encoded: body,
                    reply,
                    request,
                })
            }
            kind::CLOSED => Effect::Closed(take_digest(&mut body)?),
            kind::UNKEPT => Effect::Unkept(Unkept {
                digest: take_digest(&mut body)?,
                row: take_u64(&mut body)?,
                end: BucketEnd(take_u64(&mut body)?),
                replied: match take_u64(&mut body)? {
                    0 => None,
                    end => Some(BucketEnd(end)),
                },
            }),
            kind::DOCUMENT => {
                let sheet = take_bytes(&mut body)?;
                let mut sheets = Collection::ALL.into_iter();
                let sheet = sheets.find(|known| known.as_str().as_bytes() == sheet);
                let name = take_bytes(&mut body)?;
                Effect::Document(DocumentChange {
                    sheet: sheet.ok_or(LogError::Entry)?,
                    name: String::from_utf8(name.into()).map_err(|_| LogError::Entry)?,
                    body: take_optional(&mut body)?,
                })
            }
            kind::NUMBERS => Effect::Numbers(take_u64(&mut body)?),
            _ => return Err(LogError::Entry),
        };
        Ok(effect)
    }
}

/// The entries of a batch.
pub(in crate::embedded) fn entries(
    mut payload: Bytes,
) -> impl Iterator<Item = Result<Entry, LogError>> {
    std::iter::from_fn(move || {
        if payload.is_empty() {
            return None;
        }
        let entry = take_entry(&mut payload);
        if entry.is_err() {
            payload.clear();
        }
        Some(entry)
    })
}

fn take_entry(payload: &mut Bytes) -> Result<Entry, LogError> {
    let kind = take_u8(payload)?;
    Ok(Entry {
        kind,
        body: take_bytes(payload)?,
    })
}

fn take_digest(body: &mut Bytes) -> Result<Digest, LogError> {
    let digest = *body.first_chunk().ok_or(LogError::Entry)?;
    body.advance(32);
    Ok(Digest::from_bytes(digest))
}

fn take_u8(body: &mut Bytes) -> Result<u8, LogError> {
    body.try_get_u8().map_err(|_| LogError::Entry)
}

fn take_u64(body: &mut Bytes) -> Result<u64, LogError> {
    body.try_get_u64().map_err(|_| LogError::Entry)
}

fn take_bytes(body: &mut Bytes) -> Result<Bytes, LogError> {
    take_optional(body)?.ok_or(LogError::Entry)
}

fn take_optional(body: &mut Bytes) -> Result<Option<Bytes>, LogError> {
    match body.try_get_u32().map_err(|_| LogError::Entry)? {
        ABSENT => Ok(None),
        length if length as usize <= body.len() => Ok(Some(body.split_to(length as usize))),
        _ => Err(LogError::Entry),
    }
}

#[cfg(test)]
mod tests {
    use onceward_core::clock::Timestamp;
    use onceward_core::record::{Answer, Reply, State};

    use super::*;
    use crate::embedded::effect::tests::record;

    fn effects() -> Vec<Effect> {
        let opened = |request| {
            Effect::Opened(Opened {
                row: 7,
                record: Arc::new(record(1)),
                request,
            })
        };
        let reply = Arc::new(Reply {
            status: 201,
            headers: Vec::new(),
            body: Bytes::from_static(b"paid"),
            trailers: Vec::new(),
        });
        let mut done = record(1);
        done.finish(
            State::Completed,
            Answer::Kept(reply.clone()),
            Timestamp::from_unix_ms(8),
        );
        let reply = Bytes::from(wire::encode_reply(&reply));
        let finished = |request| {
            let record = Arc::new(done.clone());
            Effect::Finished(Finished::new(8, record, Some(reply.clone()), request))
        };
        let request = |body| Some(OpenedRequest { row: 3, body });
        let unkept = |replied| {
            Effect::Unkept(Unkept {
                digest: done.digest,
                row: 8,
                end: BucketEnd(99),
                replied,
            })
        };
        let document = |body| {
            Effect::Document(DocumentChange {
                sheet: Collection::Audit,
                name: "a\0é".to_owned(),
                body,
            })
        };
        vec![
            opened(None),
            opened(request(None)),
            opened(request(Some(Bytes::from_static(b"request")))),
            finished(FinishedRequest::None),
            finished(FinishedRequest::AsOpen),
            finished(FinishedRequest::Body(Bytes::from_static(b"request"))),
            Effect::Closed(done.digest),
            unkept(None),
            unkept(Some(BucketEnd(50))),
            document(None),
            document(Some(Bytes::new())),
            Effect::Numbers(u64::MAX),
        ]
    }

    #[test]
    fn every_effect_is_read_back_as_it_was_written() {
        let effects = effects();
        let mut payload = Vec::new();
        for effect in &effects {
            encode(effect, &mut payload);
        }
        let read: Vec<_> = entries(payload.into())
            .map(|entry| entry.and_then(Entry::decode).expect("whole"))
            .collect();
        assert_eq!(read, effects);
    }

    #[test]
    fn only_an_open_operation_without_a_request_is_overwritten_whole() {
        let overwritten = effects().into_iter().map(|effect| {
            let mut payload = Vec::new();
            encode(&effect, &mut payload);
            let mut all = entries(payload.into());
            let entry = all.next().expect("one").expect("whole");
            entry.is_overwritten_whole()
        });
        let places: Vec<_> = overwritten.enumerate().filter(|(_, is)| *is).collect();
        assert_eq!(places, [(0, true)]);
    }

    #[test]
    fn a_cut_entry_is_an_error() {
        for effect in effects() {
            let mut payload = Vec::new();
            encode(&effect, &mut payload);
            for cut in 1..payload.len() {
                let cut = Bytes::copy_from_slice(&payload[..cut]);
                let read = entries(cut).next().expect("something");
                assert!(read.and_then(Entry::decode).is_err());
            }
        }
    }
}
