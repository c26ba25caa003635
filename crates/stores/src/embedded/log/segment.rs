//! Segments: the files of the log.
//!
//! A segment is written with zeros and synced once, so that later writes change no
//! metadata of the file system and their sync is a sync of data alone. When all its
//! batches are in the database file, it is used again under a new epoch. The salt of
//! each use goes into the checksums of its batches, so that no batch of an earlier
//! use, and none whose header was lost, is ever taken for one of this use.

use std::fs::File;
use std::io::{self, ErrorKind, Read as _};
use std::path::{Path, PathBuf};

use bytes::BufMut as _;

use super::LogError;
use crate::embedded::disk::Disk;

/// Batches begin at multiples of this: the unit in which disks and page caches write.
pub(super) const BLOCK_BYTES: usize = 4096;
/// Segments grow from the first length to the usual one: a store that records little
/// takes little space.
pub(super) const FIRST_BYTES: u64 = 1 << 20;
pub(in crate::embedded) const SEGMENT_BYTES: u64 = 8 << 20;
/// A segment that the disk has no room for is shorter, but not below this.
pub(super) const LEAST_BYTES: u64 = 64 << 10;
/// The size of one write of zeros.
const ZEROS_BYTES: usize = 64 << 10;

const MAGIC: [u8; 8] = *b"once-log";
const VERSION: u32 = 1;
const HEADER_BYTES: usize = 8 + 4 + 16 + 8 + 8 + 8;

/// The name of a log: a database is filled from one log only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::embedded) struct LogIdentity(pub(in crate::embedded) u128);

/// The first block of a segment in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SegmentHeader {
    pub(super) identity: LogIdentity,
    /// Rises with each use of any segment.
    pub(super) epoch: u64,
    /// Random for each use.
    pub(super) salt: u64,
    /// The sequence of the first batch.
    pub(super) first: u64,
}

impl SegmentHeader {
    /// The whole block.
    fn encode(&self) -> Vec<u8> {
        let mut block = Vec::with_capacity(BLOCK_BYTES);
        block.put_slice(&MAGIC);
        block.put_u32(VERSION);
        block.put_u128(self.identity.0);
        block.put_u64(self.epoch);
        block.put_u64(self.salt);
        block.put_u64(self.first);
        block.put_u32(crc32c::crc32c(&block));
        block.resize(BLOCK_BYTES, 0);
        block
    }

    /// The header in the first block of a file; `None` if the segment is not in use.
    /// A header is in one sector, so it is never torn.
    fn decode(block: &[u8]) -> Result<Option<Self>, HeaderError> {
        if block.iter().all(|byte| *byte == 0) {
            return Ok(None);
        }
        let (content, rest) = block
            .split_at_checked(HEADER_BYTES)
            .ok_or(HeaderError::Damaged)?;
        let mut input = content.strip_prefix(&MAGIC).ok_or(HeaderError::Damaged)?;
        let mut take = |bytes: usize| {
            let (head, rest) = input.split_at(bytes);
            input = rest;
            let mut wide = [0; 16];
            wide[16 - bytes..].copy_from_slice(head);
            u128::from_be_bytes(wide)
        };
        // Before the checksum: another version may have another header.
        let version = take(4) as u32;
        if version != VERSION {
            return Err(HeaderError::Newer(version));
        }
        if !rest.starts_with(&crc32c::crc32c(content).to_be_bytes()) {
            return Err(HeaderError::Damaged);
        }
        Ok(Some(Self {
            identity: LogIdentity(take(16)),
            epoch: take(8) as u64,
            salt: take(8) as u64,
            first: take(8) as u64,
        }))
    }
}

/// Why the header of a segment cannot be read.
#[derive(Debug, PartialEq, Eq)]
enum HeaderError {
    Damaged,
    /// This program does not know this version.
    Newer(u32),
}

/// A file of the log.
#[derive(Debug)]
pub(in crate::embedded) struct Segment {
    pub(super) path: PathBuf,
    pub(super) file: File,
    pub(super) bytes: u64,
}

impl Segment {
    /// A new segment of zeros, durable with its name. Where the disk has no room for
    /// all of it, it takes half of the room there is, though not less than `least`, and
    /// leaves the rest to the database.
    pub(super) fn create(disk: &dyn Disk, path: &Path, bytes: u64, least: u64) -> io::Result<Self> {
        let created = Self::write_zeros(disk, path, bytes, least);
        if created.is_err() {
            // A file that is not whole would only take space.
            let _ = std::fs::remove_file(path);
        }
        created
    }

    fn write_zeros(disk: &dyn Disk, path: &Path, bytes: u64, least: u64) -> io::Result<Self> {
        let file = File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .open(path)?;
        let zeros = vec![0; ZEROS_BYTES];
        let mut written = 0;
        while written < bytes {
            match disk.write(&file, path, &zeros, written) {
                Ok(()) => written += ZEROS_BYTES as u64,
                Err(error) if is_full(&error) && written >= least.max(2 * LEAST_BYTES) => {
                    written = (written / 2).next_multiple_of(LEAST_BYTES).max(least);
                    file.set_len(written)?;
                    break;
                }
                Err(error) => return Err(error),
            }
        }
        disk.sync(&file, path)?;
        file.sync_all()?;
        sync_parent(path)?;
        Ok(Self {
            path: path.into(),
            file,
            bytes: written,
        })
    }

    /// A segment that is there already.
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        let file = File::options().read(true).write(true).open(path)?;
        let bytes = file.metadata()?.len();
        Ok(Self {
            path: path.into(),
            file,
            bytes,
        })
    }

    /// Whether the disk had no room for all of it: whole ones are multiples of the first
    /// length.
    pub(super) fn is_short(&self) -> bool {
        !self.bytes.is_multiple_of(FIRST_BYTES)
    }

    /// All of it.
    pub(super) fn read(&self) -> io::Result<Vec<u8>> {
        let mut content = Vec::with_capacity(self.bytes as usize);
        File::open(&self.path)?.read_to_end(&mut content)?;
        Ok(content)
    }

    /// Its header, if it is in use.
    pub(super) fn header(&self) -> Result<Option<SegmentHeader>, LogError> {
        let path = || self.path.clone();
        let read = || -> io::Result<Vec<u8>> {
            let mut block = Vec::with_capacity(BLOCK_BYTES);
            let file = File::open(&self.path)?;
            file.take(BLOCK_BYTES as u64).read_to_end(&mut block)?;
            Ok(block)
        };
        let block = read().map_err(|source| LogError::File {
            path: path(),
            source,
        })?;
        SegmentHeader::decode(&block).map_err(|error| match error {
            HeaderError::Damaged => LogError::Header { path: path() },
            HeaderError::Newer(version) => LogError::Newer {
                path: path(),
                version,
            },
        })
    }

    /// Begins a new use. It is durable with the first batch.
    pub(super) fn begin(&self, disk: &dyn Disk, header: &SegmentHeader) -> io::Result<()> {
        disk.write(&self.file, &self.path, &header.encode(), 0)
    }
}

/// Whether the disk, a quota or a limit has no room, or the process no file
/// descriptor: a later attempt may succeed.
pub(super) fn is_full(error: &io::Error) -> bool {
    /// ENFILE and EMFILE.
    const NO_DESCRIPTOR: [i32; 2] = [23, 24];
    let is_out_of_files = |code| NO_DESCRIPTOR.contains(&code);
    matches!(
        error.kind(),
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::FileTooLarge
    ) || error.raw_os_error().is_some_and(is_out_of_files)
}

/// A new file survives a power cut only once its directory is synced.
pub(super) fn sync_parent(path: &Path) -> io::Result<()> {
    match path.parent() {
        Some(parent) => File::open(parent)?.sync_all(),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_is_read_back_whole_or_not_at_all() {
        let header = SegmentHeader {
            identity: LogIdentity(u128::MAX - 7),
            epoch: 3,
            salt: u64::MAX - 1,
            first: 99,
        };
        let block = header.encode();
        assert_eq!(block.len(), BLOCK_BYTES);
        assert_eq!(SegmentHeader::decode(&block), Ok(Some(header)));
        for place in 0..HEADER_BYTES + 4 {
            let mut damaged = block.clone();
            damaged[place] ^= 1;
            assert!(SegmentHeader::decode(&damaged).is_err(), "byte {place}");
            let cut = SegmentHeader::decode(&block[..place]);
            assert!(place == 0 || cut.is_err(), "cut at {place}");
        }
        for unused in [&[][..], &[0; BLOCK_BYTES]] {
            assert_eq!(SegmentHeader::decode(unused), Ok(None));
        }
    }
}
