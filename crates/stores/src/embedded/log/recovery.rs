//! Reading the log at the start: what is not in the database yet.
//!
//! The segments in use form a chain by epoch and first sequence. A batch that was
//! durable and is not whole is damage, and the store does not start. The end of the
//! last segment may be torn, because the last batch may not have been synced; it was
//! not acknowledged, and is cut.

use std::collections::VecDeque;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use onceward_core::clock::Timestamp;

use super::append::{Files, Log, UsedSegment};
use super::batch::{self, Batch};
use super::entry::{self, Entry};
use super::mark::Mark;
use super::segment::{
    BLOCK_BYTES, FIRST_BYTES, LEAST_BYTES, LogIdentity, Segment, SegmentHeader, sync_parent,
};
use super::{LogError, MARK, SEGMENT};
use crate::embedded::disk::Disk;

/// A log that was read.
pub(in crate::embedded) struct Recovered {
    pub(in crate::embedded) log: Log,
    /// The entries that are not in the database.
    pub(in crate::embedded) entries: Vec<Entry>,
    /// The time of the last batch.
    pub(in crate::embedded) time: Timestamp,
}

/// Makes a new log in this directory. Segments that are there belong to no database
/// any more.
pub(in crate::embedded) fn create(
    disk: Arc<dyn Disk>,
    directory: &Path,
    identity: LogIdentity,
) -> Result<Log, LogError> {
    let failed = |source| LogError::File {
        path: directory.into(),
        source,
    };
    fs::create_dir_all(directory).map_err(failed)?;
    sync_parent(directory).map_err(failed)?;
    for (_, path) in segment_paths(directory).map_err(failed)? {
        fs::remove_file(path).map_err(failed)?;
    }
    let path = directory.join(format!("{SEGMENT}1"));
    let first = Segment::create(&*disk, &path, FIRST_BYTES, LEAST_BYTES);
    let first = first.map_err(failed)?;
    let header = SegmentHeader {
        identity,
        epoch: 1,
        salt: identity.0 as u64,
        first: 1,
    };
    first.begin(&*disk, &header).map_err(failed)?;
    disk.sync(&first.file, &first.path).map_err(failed)?;
    let mark = Mark::open(&directory.join(MARK), identity).map_err(failed)?;
    let files = Files {
        directory: directory.into(),
        identity,
        active: Some((first, header)),
        used: VecDeque::new(),
        free: Vec::new(),
        epoch: 1,
        last: 0,
        next_file: 2,
    };
    Log::new(disk, files, mark).map_err(failed)
}

/// Reads the log of a database that is filled up to this sequence.
pub(in crate::embedded) fn recover(
    disk: Arc<dyn Disk>,
    directory: &Path,
    identity: LogIdentity,
    filled: u64,
) -> Result<Recovered, LogError> {
    let failed = |source| LogError::File {
        path: directory.into(),
        source,
    };
    let durable = Mark::read(&directory.join(MARK), identity);
    let found = Found::read(directory, identity)?;
    // The process may have ended after it wrote a spare and before it synced its name.
    for spare in &found.free {
        spare.file.sync_all().map_err(failed)?;
        sync_parent(&spare.path).map_err(failed)?;
    }
    let chain = read_chain(&*disk, &found.chain, filled, durable)?;
    let last = chain.last;
    let free = keep_whole(found.free).map_err(failed)?;
    let mut ends = chain.ends.into_iter();
    let used = found.chain.into_iter().map(|(_, segment)| UsedSegment {
        segment,
        last: ends.next().unwrap_or(last),
    });
    let files = Files {
        directory: directory.into(),
        identity,
        active: None,
        used: used.collect(),
        free,
        epoch: found.epoch,
        last,
        next_file: found.next_file,
    };
    let mark = Mark::open(&directory.join(MARK), identity).map_err(failed)?;
    let mut entries = Vec::new();
    let mut time = Timestamp::default();
    for batch in chain.batches {
        time = time.max(batch.time);
        for entry in entry::entries(batch.payload) {
            entries.push(entry?);
        }
    }
    Ok(Recovered {
        log: Log::new(disk, files, mark).map_err(failed)?,
        entries,
        time,
    })
}

/// The files of a log.
struct Found {
    /// The segments in use, by epoch.
    chain: Vec<(SegmentHeader, Segment)>,
    free: Vec<Segment>,
    epoch: u64,
    next_file: u64,
}

impl Found {
    fn read(directory: &Path, identity: LogIdentity) -> Result<Self, LogError> {
        let failed = |path: &Path| {
            let path = path.to_owned();
            move |source| LogError::File { path, source }
        };
        let paths = match segment_paths(directory) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            paths => paths.map_err(failed(directory))?,
        };
        let next_file = paths.iter().map(|(number, _)| number + 1).max();
        let mut found = Self {
            chain: Vec::new(),
            free: Vec::new(),
            epoch: 0,
            next_file: next_file.unwrap_or(1),
        };
        for (_, path) in paths {
            let segment = Segment::open(&path).map_err(failed(&path))?;
            match segment.header()? {
                Some(header) if header.identity == identity => found.chain.push((header, segment)),
                // Made as a spare, begun and not synced, or of an earlier log.
                _ => found.free.push(segment),
            }
        }
        found.chain.sort_by_key(|(header, _)| header.epoch);
        found.epoch = found.chain.last().map_or(0, |(header, _)| header.epoch);
        Ok(found)
    }
}

/// Removes spare segments that were not finished: they would only take a place.
fn keep_whole(spares: Vec<Segment>) -> io::Result<Vec<Segment>> {
    let (whole, parts): (Vec<_>, Vec<_>) = spares
        .into_iter()
        .partition(|spare| spare.bytes >= LEAST_BYTES);
    for part in parts {
        fs::remove_file(&part.path)?;
    }
    Ok(whole)
}

/// The batches of a log that are not in the database.
struct Chain {
    batches: Vec<Batch>,
    /// The last sequence of each segment.
    ends: Vec<u64>,
    last: u64,
}

fn read_chain(
    disk: &dyn Disk,
    segments: &[(SegmentHeader, Segment)],
    filled: u64,
    durable: u64,
) -> Result<Chain, LogError> {
    let Some((oldest, _)) = segments.first() else {
        return Err(LogError::Missing);
    };
    // What the oldest segment does not have must be in the database.
    let lost = |sequence| LogError::Lost { sequence };
    if oldest.first > filled + 1 {
        return Err(lost(filled + 1));
    }
    let mut chain = Chain {
        batches: Vec::new(),
        ends: Vec::new(),
        last: filled,
    };
    for (place, (header, segment)) in segments.iter().enumerate() {
        let following = segments.get(place + 1).map(|(header, _)| header.first);
        if let Some(following) = following
            && following <= filled + 1
        {
            chain.ends.push(following - 1);
            continue;
        }
        let end = read_segment(disk, header, segment, filled, durable, &mut chain)?;
        match following {
            Some(following) if following != end + 1 => return Err(lost(end + 1)),
            None if durable > end.max(filled) => return Err(lost(end.max(filled) + 1)),
            _ => {}
        }
        chain.ends.push(end);
        chain.last = chain.last.max(end);
    }
    Ok(chain)
}

/// Reads the batches of a segment; returns the sequence of the last one.
fn read_segment(
    disk: &dyn Disk,
    header: &SegmentHeader,
    segment: &Segment,
    filled: u64,
    durable: u64,
    chain: &mut Chain,
) -> Result<u64, LogError> {
    let failed = |source| LogError::File {
        path: segment.path.clone(),
        source,
    };
    let content = Bytes::from(segment.read().map_err(failed)?);
    let mut offset = BLOCK_BYTES;
    let mut end = header.first - 1;
    let mut rewritten = false;
    while let Some(batch) = batch::read(&content, offset, header)
        && batch.sequence == end + 1
    {
        end = batch.sequence;
        let next = offset + batch.bytes;
        if end > durable {
            // It may be in the system's memory only, and a sync that failed before may
            // have marked it as written. So it is written and synced again.
            let bytes = content.get(offset..next).unwrap_or_default();
            let write = disk.write(&segment.file, &segment.path, bytes, offset as u64);
            write.map_err(failed)?;
            rewritten = true;
        }
        offset = next;
        if end > filled {
            chain.batches.push(batch);
        }
    }
    if rewritten {
        // A failed sync may have dropped the header too.
        segment.begin(disk, header).map_err(failed)?;
        disk.sync(&segment.file, &segment.path).map_err(failed)?;
    }
    // One batch is written at a time, after the one before it was synced: a whole batch
    // behind a bad one shows that the bad one was durable.
    let mut rest = (offset..content.len()).step_by(BLOCK_BYTES);
    if rest.any(|offset| batch::read(&content, offset, header).is_some()) {
        return Err(LogError::Lost { sequence: end + 1 });
    }
    Ok(end)
}

/// The segments of a directory, with the numbers in their names.
fn segment_paths(directory: &Path) -> io::Result<Vec<(u64, PathBuf)>> {
    let mut paths = Vec::new();
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let name = entry.file_name();
        let number = name.to_str().and_then(|name| name.strip_prefix(SEGMENT));
        if let Some(number) = number.and_then(|number| number.parse().ok()) {
            paths.push((number, entry.path()));
        }
    }
    Ok(paths)
}
