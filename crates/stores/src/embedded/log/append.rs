//! The end of the log, where batches are appended.

use std::collections::VecDeque;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use onceward_core::clock::Timestamp;
use onceward_core::entropy::Entropy;

use super::mark::Mark;
use super::segment::{
    BLOCK_BYTES, FIRST_BYTES, LEAST_BYTES, LogIdentity, SEGMENT_BYTES, Segment, SegmentHeader,
    is_full,
};
use super::{LogError, SEGMENT, SEGMENTS_BLOCKED_MAX, SEGMENTS_MAX, batch, entry};
use crate::embedded::disk::Disk;
use crate::embedded::effect::Effect;

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
    /// The batches up to this one are known to be in the database file.
    checkpointed: u64,
    /// The number in the name of the next file.
    next_file: u64,
    growth: Growth,
    /// Whether a reader of the database keeps segments from being given back. The log
    /// may then be longer: only the disk bounds how long a reader takes.
    is_blocked: bool,
    /// The batch that is being made, behind room for its header.
    buffer: Vec<u8>,
}

/// Whether the disk has room for further segments, as far as is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Growth {
    Possible,
    /// The last segment could not be made, or not whole.
    Refused,
    /// The same, and another is to be tried.
    Retried,
}

impl Growth {
    /// What the result of making a segment shows. Where the disk had room for a part of
    /// it, it has no room for a further one, and new work must leave what there is to
    /// settlements.
    fn after(created: &io::Result<Segment>) -> Self {
        match created {
            Ok(segment) if !segment.is_short() => Self::Possible,
            _ => Self::Refused,
        }
    }
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
    /// The length that is still of use where the disk has no room for all.
    least: u64,
}

impl SpareSegment {
    pub(in crate::embedded) fn create(self) -> io::Result<Segment> {
        Segment::create(&*self.disk, &self.path, self.bytes, self.least)
    }
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
            checkpointed: 0,
            next_file: files.next_file,
            growth: Growth::Possible,
            is_blocked: false,
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

    /// How many bytes may still be appended to the segments that there are.
    pub(in crate::embedded) fn room(&self) -> u64 {
        let active = self.active.as_ref().map_or(0, ActiveSegment::left);
        let free: u64 = self.free.iter().map(|segment| segment.bytes).sum();
        (active + free).saturating_sub(self.batch_bytes())
    }

    /// Whether there may be a further segment, as far as is known.
    pub(in crate::embedded) fn can_grow(&self) -> bool {
        self.growth != Growth::Refused && self.count() < self.segments_max()
    }

    /// Whether a full segment waits to be given back.
    pub(in crate::embedded) fn wants_checkpoint(&self) -> bool {
        !self.used.is_empty()
    }

    /// Whether the disk had no room for a further segment.
    pub(in crate::embedded) fn is_stuck(&self) -> bool {
        self.growth != Growth::Possible
    }

    /// The longest batch that a segment has room for.
    pub(in crate::embedded) fn batch_bytes_max(&self) -> u64 {
        let active = self.active.as_ref().map_or(0, ActiveSegment::left);
        let free = self.free.iter().map(|free| free.bytes - BLOCK_BYTES as u64);
        free.fold(active, u64::max)
    }

    fn segments_max(&self) -> usize {
        if self.is_blocked {
            SEGMENTS_BLOCKED_MAX
        } else {
            SEGMENTS_MAX
        }
    }

    fn count(&self) -> usize {
        self.used.len() + self.free.len() + usize::from(self.active.is_some())
    }

    /// Makes the batch durable; returns its sequence. Where the disk has no room
    /// ([`LogError::Full`]), the batch is kept for another try.
    pub(in crate::embedded) fn commit(&mut self, now: Timestamp) -> Result<u64, LogError> {
        let length = self.buffer.len();
        let needed = (length as u64).next_multiple_of(BLOCK_BYTES as u64);
        let fits = |active: &ActiveSegment| active.left() >= needed;
        if !self.active.as_ref().is_some_and(fits) {
            self.rotate(needed)?;
        }
        let active = self.active.as_mut().expect("rotation gives a segment");
        let (sequence, disk) = (self.last + 1, &*self.disk);
        batch::seal(&mut self.buffer, &active.header, sequence, now);
        onceward_core::crash_point!("store-before-commit");
        let Segment { file, path, .. } = &active.segment;
        if let Err(error) = disk.write(file, path, &self.buffer, active.offset) {
            self.buffer.truncate(length);
            return Err(unwritten(error));
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
            None => self
                .create(needed)
                .inspect_err(|_| self.retire_active_early())?,
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
            return Err(unwritten(error));
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
        self.retire_active();
        self.active = Some(active);
        Ok(())
    }

    /// Without room for another segment, the active one may be the one that the next
    /// batch fits into. So it is given back as soon as the database file has its
    /// batches, which may be so already.
    fn retire_active_early(&mut self) {
        self.retire_active();
        self.give_back(self.checkpointed);
    }

    /// The active segment takes no more batches.
    fn retire_active(&mut self) {
        let active = self.active.take();
        self.used.extend(active.map(|active| UsedSegment {
            segment: active.segment,
            last: self.last,
        }));
    }

    fn create(&mut self, needed: u64) -> Result<Segment, LogError> {
        let spare = self.next_segment(needed);
        let path = spare.path.clone();
        let created = spare.create();
        self.growth = Growth::after(&created);
        created.map_err(|source| {
            if is_full(&source) {
                LogError::Full(source)
            } else {
                LogError::File { path, source }
            }
        })
    }

    /// A further segment, for a batch of this size if there is one.
    fn next_segment(&mut self, needed: u64) -> SpareSegment {
        let path = self.directory.join(format!("{SEGMENT}{}", self.next_file));
        self.next_file += 1;
        let needed = needed + BLOCK_BYTES as u64;
        let bytes = usual_bytes(self.count()).max(needed.next_multiple_of(FIRST_BYTES));
        // One short segment is enough: each takes half of the disk's room, which the
        // database needs in order to give log back.
        let is_spare = needed == BLOCK_BYTES as u64;
        let least = if is_spare && self.has_short() {
            bytes
        } else {
            needed.max(LEAST_BYTES)
        };
        SpareSegment {
            disk: self.disk.clone(),
            path,
            bytes,
            least,
        }
    }

    fn has_short(&self) -> bool {
        let active = self.active.iter().map(|active| &active.segment);
        let used = self.used.iter().map(|used| &used.segment);
        let mut segments = active.chain(used).chain(&self.free);
        segments.any(Segment::is_short)
    }

    /// A segment to be made now, so that the writer need not wait for it later: where
    /// the last one is half used, or where little is left beside what is reserved; and one
    /// in place of a short one, if a disk that was full has room again.
    pub(in crate::embedded) fn wanted_spare(
        &mut self,
        reserved: u64,
        lacks_room: bool,
    ) -> Option<SpareSegment> {
        let is_half = |active: &ActiveSegment| active.left() < active.segment.bytes / 2;
        let is_low = lacks_room || self.room() < 2 * reserved;
        let is_last = self.free.is_empty() && self.active.as_ref().is_some_and(is_half);
        let is_replaced = self.growth == Growth::Retried && self.has_short();
        let wanted = (is_low || is_last || is_replaced) && self.can_grow();
        wanted.then(|| self.next_segment(0))
    }

    /// Takes a spare segment.
    pub(in crate::embedded) fn add_spare(&mut self, spare: io::Result<Segment>) {
        let was_stuck = self.is_stuck();
        self.growth = Growth::after(&spare);
        match spare {
            Ok(segment) => self.free.push(segment),
            Err(error) if was_stuck => {
                tracing::debug!(%error, "still no room for a segment of the commit log");
            }
            Err(error) => tracing::warn!(%error, "no room for a segment of the commit log"),
        }
    }

    /// The disk may have room again; a further spare segment shows it.
    pub(in crate::embedded) fn retry_growth(&mut self) {
        if self.is_stuck() {
            self.growth = Growth::Retried;
        }
    }

    /// The log may be longer until segments are given back again.
    pub(in crate::embedded) fn grow_beyond(&mut self) {
        self.is_blocked = true;
    }

    /// Gives back the segments whose batches are all in the database file, up to this
    /// sequence.
    pub(in crate::embedded) fn give_back(&mut self, through: u64) {
        self.is_blocked &= through <= self.checkpointed;
        self.checkpointed = self.checkpointed.max(through);
        while let Some(used) = self.used.pop_front_if(|used| used.last <= through) {
            onceward_core::crash_point!("log-before-give-back");
            // Short ones were made when the disk was full, and larger ones for large
            // batches.
            let is_usual = used.segment.bytes <= SEGMENT_BYTES && !used.segment.is_short();
            // A place is left for the segment that shows whether the disk has room again.
            let kept_max = SEGMENTS_MAX - usize::from(self.growth == Growth::Retried);
            let is_kept = (is_usual || self.is_stuck()) && self.count() < kept_max;
            // The newest one stays until another has begun: its header shows the next
            // start how far the log went.
            let is_newest = self.active.is_none() && self.used.is_empty();
            if is_kept || is_newest {
                self.free.push(used.segment);
            } else if let Err(error) = std::fs::remove_file(&used.segment.path) {
                tracing::warn!(%error, "a segment of the commit log could not be removed");
            }
        }
    }
}

/// The usual length of a further segment beside so many: they grow, so that a store
/// that records little takes little space.
fn usual_bytes(count: usize) -> u64 {
    (FIRST_BYTES << count.min(16)).min(SEGMENT_BYTES)
}

/// Why a write failed: nothing of it counts, whatever part of it was done.
fn unwritten(error: io::Error) -> LogError {
    if is_full(&error) {
        LogError::Full(error)
    } else {
        LogError::Unsynced(error)
    }
}
