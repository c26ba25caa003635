//! The end of the log, where batches are appended.

use std::collections::VecDeque;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use onceward_core::clock::Timestamp;
use onceward_core::entropy::Entropy;

use super::mark::Mark;
use super::segment::{
    BLOCK_BYTES, FIRST_BYTES, LogIdentity, SEGMENT_BYTES, Segment, SegmentHeader, is_full,
};
use super::{LogError, SEGMENT, SEGMENTS_MAX, batch, entry};
use crate::embedded::disk::Disk;
use crate::embedded::effect::Effect;

/// The pause before a write is tried again that found no room.
const FULL_PAUSE: Duration = Duration::from_millis(50);
/// From this size on the buffer of a large batch is not kept.
const BUFFER_KEPT_MAX: usize = 4 << 20;

/// The log, as its one writer uses it.
pub(in crate::embedded) struct Log {
    disk: Arc<dyn Disk>,
    directory: PathBuf,
    identity: LogIdentity,
    salts: Entropy,
    mark: Mark,
    /// The segment that batches go to; none before the first batch.
    active: Option<ActiveSegment>,
    /// Earlier segments, the oldest first: not all of their batches are known to be
    /// in the database file.
    used: VecDeque<UsedSegment>,
    free: Vec<Segment>,
    epoch: u64,
    /// The sequence of the last durable batch.
    last: u64,
    /// The number in the name of the next file.
    next_file: u64,
    /// Whether the disk had room when a segment was last created.
    can_grow: bool,
    /// The batch that is being made, behind room for its header.
    buffer: Vec<u8>,
}

struct ActiveSegment {
    segment: Segment,
    header: SegmentHeader,
    offset: u64,
}

impl ActiveSegment {
    fn left(&self) -> u64 {
        self.segment.bytes - self.offset
    }
}

/// A segment that takes no more batches.
pub(super) struct UsedSegment {
    pub(super) segment: Segment,
    /// Its last batch.
    pub(super) last: u64,
}

/// The files of a log as they were found or made.
pub(super) struct Files {
    pub(super) directory: PathBuf,
    pub(super) identity: LogIdentity,
    pub(super) active: Option<(Segment, SegmentHeader)>,
    pub(super) used: VecDeque<UsedSegment>,
    pub(super) free: Vec<Segment>,
    pub(super) epoch: u64,
    pub(super) last: u64,
    pub(super) next_file: u64,
}

/// A segment to be made beside the writer's work.
pub(in crate::embedded) struct SpareSegment {
    disk: Arc<dyn Disk>,
    path: PathBuf,
    bytes: u64,
}

impl SpareSegment {
    pub(in crate::embedded) fn create(self) -> io::Result<Segment> {
        Segment::create(&*self.disk, &self.path, self.bytes)
    }
}

/// Whether the disk had room for a whole segment. Where it had less, it has no room for
/// a further one, and new work must leave what there is to settlements.
fn is_whole(created: &io::Result<Segment>) -> bool {
    created.as_ref().is_ok_and(|segment| !segment.is_short)
}

impl Log {
    pub(super) fn new(disk: Arc<dyn Disk>, files: Files, mark: Mark) -> io::Result<Self> {
        let active = files.active.map(|(segment, header)| ActiveSegment {
            segment,
            header,
            offset: BLOCK_BYTES as u64,
        });
        Ok(Self {
            disk,
            directory: files.directory,
            identity: files.identity,
            salts: Entropy::system()?,
            mark,
            active,
            used: files.used,
            free: files.free,
            epoch: files.epoch,
            last: files.last,
            next_file: files.next_file,
            can_grow: true,
            buffer: Vec::new(),
        })
    }

    /// The sequence of the last durable batch.
    pub(in crate::embedded) fn last(&self) -> u64 {
        self.last
    }

    /// Adds an effect to the batch.
    pub(in crate::embedded) fn push(&mut self, effect: &Effect) {
        if self.buffer.is_empty() {
            self.buffer.resize(batch::HEADER_BYTES, 0);
        }
        entry::encode(effect, &mut self.buffer);
    }

    /// Whether the batch has no effects.
    pub(in crate::embedded) fn is_empty(&self) -> bool {
        self.buffer.is_empty()
    }

    /// The length of the batch so far.
    pub(in crate::embedded) fn batch_bytes(&self) -> u64 {
        self.buffer.len() as u64
    }

    /// How many bytes of the log are not given back.
    pub(in crate::embedded) fn used_bytes(&self) -> u64 {
        let used: u64 = self.used.iter().map(|used| used.segment.bytes).sum();
        used + self.active.as_ref().map_or(0, |active| active.offset)
    }

    /// How many bytes may still be appended before the log is at its bound.
    pub(in crate::embedded) fn room(&self) -> u64 {
        let active = self.active.as_ref().map_or(0, ActiveSegment::left);
        let free: u64 = self.free.iter().map(|segment| segment.bytes).sum();
        let growth = match self.can_grow {
            true => SEGMENTS_MAX.saturating_sub(self.count()) as u64 * SEGMENT_BYTES,
            false => 0,
        };
        (active + free + growth).saturating_sub(self.batch_bytes())
    }

    /// Whether a full segment waits to be given back.
    pub(in crate::embedded) fn wants_checkpoint(&self) -> bool {
        !self.used.is_empty()
    }

    fn count(&self) -> usize {
        self.used.len() + self.free.len() + usize::from(self.active.is_some())
    }

    /// Makes the batch durable; returns its sequence. A disk without room delays it
    /// until there is some, or until `gives_up`.
    pub(in crate::embedded) fn commit(
        &mut self,
        now: Timestamp,
        gives_up: impl Fn() -> bool,
    ) -> Result<u64, LogError> {
        let needed = (self.buffer.len() as u64).next_multiple_of(BLOCK_BYTES as u64);
        while self
            .active
            .as_ref()
            .is_none_or(|active| active.left() < needed)
        {
            match self.rotate(needed) {
                Err(LogError::Full(_)) if !gives_up() => std::thread::sleep(FULL_PAUSE),
                rotated => rotated?,
            }
        }
        let sequence = self.last + 1;
        let disk = &*self.disk;
        let Some(active) = &mut self.active else {
            return Err(LogError::Missing);
        };
        batch::seal(&mut self.buffer, &active.header, sequence, now);
        onceward_core::crash_point!("store-before-commit");
        let Segment { file, path, .. } = &active.segment;
        while let Err(error) = disk.write(file, path, &self.buffer, active.offset) {
            if !is_full(&error) || gives_up() {
                return Err(LogError::Unsynced(error));
            }
            std::thread::sleep(FULL_PAUSE);
        }
        onceward_core::crash_point!("store-after-append");
        disk.sync(file, path).map_err(LogError::Unsynced)?;
        onceward_core::crash_point!("store-after-commit");
        self.mark.write(disk, sequence);
        active.offset += self.buffer.len() as u64;
        self.last = sequence;
        self.buffer.clear();
        self.buffer.shrink_to(BUFFER_KEPT_MAX);
        Ok(sequence)
    }

    /// Goes on in another segment that has room for a batch of this size.
    fn rotate(&mut self, needed: u64) -> Result<(), LogError> {
        let fits = |segment: &Segment| segment.bytes >= needed + BLOCK_BYTES as u64;
        let segment = match self.free.iter().position(fits) {
            Some(place) => self.free.swap_remove(place),
            None => self.create(needed)?,
        };
        self.epoch += 1;
        let header = SegmentHeader {
            identity: self.identity,
            epoch: self.epoch,
            salt: self.salts.next_u64(),
            first: self.last + 1,
        };
        if let Err(error) = segment.begin(&*self.disk, &header) {
            self.free.push(segment);
            return Err(match is_full(&error) {
                true => LogError::Full(error),
                false => LogError::Unsynced(error),
            });
        }
        if self.active.is_none() {
            // It may be the last segment of the chain, with batches of its earlier use:
            // a batch without its header would look like damage of these.
            let synced = self.disk.sync(&segment.file, &segment.path);
            synced.map_err(LogError::Unsynced)?;
        }
        let active = ActiveSegment {
            segment,
            header,
            offset: BLOCK_BYTES as u64,
        };
        if let Some(before) = self.active.replace(active) {
            self.used.push_back(UsedSegment {
                segment: before.segment,
                last: self.last,
            });
        }
        Ok(())
    }

    fn create(&mut self, needed: u64) -> Result<Segment, LogError> {
        let spare = self.next_segment(needed);
        let path = spare.path.clone();
        let created = spare.create();
        self.can_grow = is_whole(&created);
        match created {
            // The disk had room for less.
            Ok(segment) if segment.bytes < needed + BLOCK_BYTES as u64 => {
                self.can_grow = false;
                self.free.push(segment);
                Err(LogError::Full(io::ErrorKind::StorageFull.into()))
            }
            Ok(segment) => Ok(segment),
            Err(error) if is_full(&error) => Err(LogError::Full(error)),
            Err(source) => Err(LogError::File { path, source }),
        }
    }

    fn next_segment(&mut self, needed: u64) -> SpareSegment {
        let path = self.directory.join(format!("{SEGMENT}{}", self.next_file));
        self.next_file += 1;
        let doubled = FIRST_BYTES << self.count().min(16);
        let needed = needed + BLOCK_BYTES as u64;
        SpareSegment {
            disk: self.disk.clone(),
            path,
            bytes: doubled
                .min(SEGMENT_BYTES)
                .max(needed.next_multiple_of(FIRST_BYTES)),
        }
    }

    /// A segment to be made now, so that the writer need not wait for it later.
    pub(in crate::embedded) fn wanted_spare(&mut self) -> Option<SpareSegment> {
        let is_half = |active: &ActiveSegment| active.left() < active.segment.bytes / 2;
        let wanted = self.free.is_empty()
            && self.can_grow
            && self.count() < SEGMENTS_MAX
            && self.active.as_ref().is_some_and(is_half);
        wanted.then(|| self.next_segment(0))
    }

    /// Takes a spare segment.
    pub(in crate::embedded) fn add_spare(&mut self, spare: io::Result<Segment>) {
        self.can_grow = is_whole(&spare);
        match spare {
            Ok(segment) => self.free.push(segment),
            Err(error) => tracing::warn!(%error, "no room for a segment of the commit log"),
        }
    }

    /// Tries to create a segment again after the disk had no room.
    pub(in crate::embedded) fn try_to_grow(&mut self) {
        if !self.can_grow
            && self.count() < SEGMENTS_MAX
            && let Ok(segment) = self.create(0)
        {
            self.free.push(segment);
        }
    }

    /// Gives back the segments whose batches are all in the database file, up to this
    /// sequence.
    pub(in crate::embedded) fn give_back(&mut self, through: u64) {
        while let Some(used) = self.used.pop_front_if(|used| used.last <= through) {
            onceward_core::crash_point!("log-before-give-back");
            if used.segment.bytes <= SEGMENT_BYTES && self.count() < SEGMENTS_MAX {
                self.free.push(used.segment);
            } else if let Err(error) = std::fs::remove_file(&used.segment.path) {
                tracing::warn!(%error, "a segment of the commit log could not be removed");
            }
        }
    }
}
