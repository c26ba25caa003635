//! The commit log: every change is appended here and synced once, together with all
//! that wait; then it is acknowledged. The database is filled from memory, behind the
//! log, and the log is read again only when the store is opened.
//!
//! - `segment`: the files, written with zeros beforehand and used again and again
//! - `batch`: what one sync makes durable
//! - `entry`: effects as bytes
//! - `append`: the end of the log
//! - `mark`: how far the log was durable for certain
//! - `recovery`: what is read at the start, and what refuses the start

mod append;
mod batch;
mod entry;
mod mark;
mod recovery;
mod segment;

use std::io;
use std::path::PathBuf;

use onceward_core::wire::WireError;

pub(super) use self::append::{Log, SpareSegment};
pub(super) use self::entry::{ENTRY_BYTES_MAX, Entry};
pub(super) use self::recovery::{Recovered, create, recover};
pub(super) use self::segment::{LogIdentity, SEGMENT_BYTES, Segment};

/// The most segments before claims wait for the database to be filled.
const SEGMENTS_MAX: usize = 8;
/// The same while a reader keeps the database from taking over what is in the log.
const SEGMENTS_BLOCKED_MAX: usize = 128;
/// The file of the durable mark.
const MARK: &str = "mark";
/// How the names of segments begin.
const SEGMENT: &str = "segment-";

/// Why the log cannot be used.
#[derive(Debug, thiserror::Error)]
pub(super) enum LogError {
    /// There is no room for another segment.
    #[error("the disk is full; nothing was recorded: service resumes when there is room")]
    Full(#[source] io::Error),
    /// It is not known what reached the disk.
    #[error("the disk did not confirm a write ({0}); restart the process to continue")]
    Unsynced(#[source] io::Error),
    /// A file of the log cannot be read or written.
    #[error("{}: {source}", path.display())]
    File {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    /// No segment of the database's log is there.
    #[error(
        "the commit log of the database is missing; restore the whole directory, or, to go on without what the log held, run: sqlite3 onceward.db \"UPDATE meta SET log = NULL\""
    )]
    Missing,
    /// A segment with a damaged header may have batches that were acknowledged.
    #[error("the header of {} is damaged", path.display())]
    Header { path: PathBuf },
    /// A newer version wrote this segment.
    #[error("{} has version {version}, written by a newer Onceward", path.display())]
    Newer { path: PathBuf, version: u32 },
    /// Something that was acknowledged is not in the log.
    #[error("the commit log lacks batch {sequence}, which was durable")]
    Lost { sequence: u64 },
    /// The checksum of a batch is right and its content is not: a newer version wrote
    /// it.
    #[error("an entry of the commit log cannot be read; a newer Onceward may have written it")]
    Entry,
    /// The same for a record.
    #[error("a record of the commit log cannot be read: {0}")]
    Record(#[from] WireError),
}
