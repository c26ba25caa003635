//! The journal: one frame per change, behind its length and its checksum. A
//! frame that was cut short at the end was never acknowledged and is dropped;
//! one that is damaged elsewhere is an error, never an absent operation.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::{Buf as _, BufMut as _, Bytes};
use onceward_core::identity::Digest;
use onceward_core::record::Answer;
use onceward_core::wire::{decode_record, decode_reply, encode_record, encode_reply};

use super::Entry;

/// One change.
pub(super) enum Line {
    /// The new state of an operation.
    Put(Entry),
    /// The operation was removed, and numbers up to `last` were used.
    Forget { digest: Digest, last: u64 },
    /// The new content of a document.
    Document {
        place: (String, String),
        document: Bytes,
    },
    /// The document was removed.
    NoDocument { place: (String, String) },
}

pub(super) struct Journal {
    path: PathBuf,
    file: File,
    /// A write that failed may have left part of a frame: nothing may follow it.
    is_broken: bool,
}

impl Journal {
    /// Opens the journal and reads all its frames.
    pub(super) fn open(path: &Path) -> io::Result<(Self, Vec<Line>)> {
        let mut options = File::options();
        let file = options.append(true).create(true).open(path)?;
        let mut frames = Bytes::from(fs::read(path)?);
        let mut lines = Vec::new();
        while let Some(frame) = next_frame(&mut frames)? {
            lines.push(read(frame).ok_or_else(damaged)?);
        }
        let journal = Self {
            path: path.to_owned(),
            file,
            is_broken: false,
        };
        Ok((journal, lines))
    }

    /// Appends changes. Durable when it returns.
    pub(super) fn append(&mut self, lines: &[Line]) -> io::Result<()> {
        if self.is_broken {
            return Err(io::Error::other("an earlier write to the journal failed"));
        }
        self.is_broken = true;
        self.file.write_all(&frames(lines))?;
        self.file.sync_data()?;
        self.is_broken = false;
        Ok(())
    }

    /// Replaces the journal by one with these changes, all or nothing.
    pub(super) fn replace(&mut self, lines: &[Line]) -> io::Result<()> {
        let fresh = self.path.with_extension("fresh");
        let mut file = File::create(&fresh)?;
        file.write_all(&frames(lines))?;
        file.sync_all()?;
        fs::rename(&fresh, &self.path)?;
        let directory = self.path.parent().filter(|one| !one.as_os_str().is_empty());
        File::open(directory.unwrap_or(Path::new(".")))?.sync_all()?;
        self.file = File::options().append(true).open(&self.path)?;
        Ok(())
    }
}

fn frames(lines: &[Line]) -> Vec<u8> {
    let mut out = Vec::new();
    for line in lines {
        let frame = written(line);
        put_length(&mut out, frame.len());
        out.put_u32(crc32fast::hash(&frame));
        out.put_slice(&frame);
    }
    out
}

/// The next whole frame; `None` at the end, or where the last was cut short.
fn next_frame(bytes: &mut Bytes) -> io::Result<Option<Bytes>> {
    if bytes.len() < 8 {
        return Ok(None);
    }
    let (length, sum) = (bytes.get_u32() as usize, bytes.get_u32());
    if bytes.len() < length {
        return Ok(None);
    }
    let frame = bytes.split_to(length);
    if crc32fast::hash(&frame) == sum {
        Ok(Some(frame))
    } else if bytes.is_empty() {
        // The file grew before all of its content was written.
        Ok(None)
    } else {
        Err(damaged())
    }
}

fn damaged() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "the journal is damaged")
}

fn written(line: &Line) -> Vec<u8> {
    let mut out = Vec::new();
    match line {
        Line::Put(entry) => {
            out.put_u8(1);
            out.put_u64(entry.changed);
            put_bytes(&mut out, &encode_record(&entry.record));
            let reply = match &entry.record.answer {
                Some(Answer::Kept(reply)) => encode_reply(reply),
                _ => Vec::new(),
            };
            put_bytes(&mut out, &reply);
            put_bytes(&mut out, &entry.request);
        }
        Line::Forget { digest, last } => {
            out.put_u8(2);
            out.put_u64(*last);
            put_bytes(&mut out, digest.as_bytes());
        }
        Line::Document { place, document } => {
            out.put_u8(3);
            put_bytes(&mut out, place.0.as_bytes());
            put_bytes(&mut out, place.1.as_bytes());
            put_bytes(&mut out, document);
        }
        Line::NoDocument { place } => {
            out.put_u8(4);
            put_bytes(&mut out, place.0.as_bytes());
            put_bytes(&mut out, place.1.as_bytes());
        }
    }
    out
}

/// The change in a frame; `None` if this store never wrote it.
fn read(mut frame: Bytes) -> Option<Line> {
    Some(match frame.try_get_u8().ok()? {
        1 => {
            let changed = frame.try_get_u64().ok()?;
            let record = take_bytes(&mut frame)?;
            let reply = take_bytes(&mut frame)?;
            let reply = || match reply.is_empty() {
                true => Ok(None),
                false => decode_reply(&reply).map(|reply| Some(Arc::new(reply))),
            };
            Line::Put(Entry {
                record: Arc::new(decode_record(&record, reply).ok()?),
                request: take_bytes(&mut frame)?,
                changed,
            })
        }
        2 => {
            let last = frame.try_get_u64().ok()?;
            let digest = take_bytes(&mut frame)?;
            let digest = <[u8; 32]>::try_from(digest.as_ref()).ok()?;
            Line::Forget {
                digest: Digest::from_bytes(digest),
                last,
            }
        }
        3 => Line::Document {
            place: (take_text(&mut frame)?, take_text(&mut frame)?),
            document: take_bytes(&mut frame)?,
        },
        4 => Line::NoDocument {
            place: (take_text(&mut frame)?, take_text(&mut frame)?),
        },
        _ => return None,
    })
}

fn put_length(out: &mut Vec<u8>, length: usize) {
    out.put_u32(u32::try_from(length).expect("bodies are limited to far less"));
}

fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put_length(out, bytes.len());
    out.put_slice(bytes);
}

fn take_bytes(frame: &mut Bytes) -> Option<Bytes> {
    let length = frame.try_get_u32().ok()? as usize;
    (frame.len() >= length).then(|| frame.split_to(length))
}

fn take_text(frame: &mut Bytes) -> Option<String> {
    String::from_utf8(take_bytes(frame)?.to_vec()).ok()
}
