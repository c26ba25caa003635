//! The durable mark: the sequence of the last batch that was synced, in a small file
//! that is not synced itself.
//!
//! It can only lag behind the log. So a bad batch at or below the mark was durable
//! once and is damaged; one above it may be torn, and was never acknowledged.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use bytes::BufMut as _;

use super::segment::LogIdentity;
use crate::embedded::disk::Disk;

const MARK_BYTES: usize = 16 + 8;

/// The file with the mark.
#[derive(Debug)]
pub(super) struct Mark {
    path: PathBuf,
    file: File,
    identity: LogIdentity,
}

impl Mark {
    /// The mark of this log, which is created if it is missing.
    pub(super) fn open(path: &Path, identity: LogIdentity) -> io::Result<Self> {
        let file = File::options()
            .write(true)
            .create(true)
            .truncate(false)
            .open(path)?;
        Ok(Self {
            path: path.into(),
            file,
            identity,
        })
    }

    /// The last sequence that was durable for certain; zero if the mark is missing,
    /// torn, or that of another log.
    pub(super) fn read(path: &Path, identity: LogIdentity) -> u64 {
        let Ok(bytes) = fs::read(path) else { return 0 };
        let Some((content, sum)) = bytes.split_last_chunk() else {
            return 0;
        };
        if content.len() != MARK_BYTES || crc32c::crc32c(content) != u32::from_be_bytes(*sum) {
            return 0;
        }
        match (content.first_chunk(), content.last_chunk()) {
            (Some(log), Some(durable)) if u128::from_be_bytes(*log) == identity.0 => {
                u64::from_be_bytes(*durable)
            }
            _ => 0,
        }
    }

    /// Moves the mark. Without it the log is as durable as with it, so a failure is
    /// not one of the step.
    pub(super) fn write(&self, disk: &dyn Disk, durable: u64) {
        let mut bytes = Vec::with_capacity(MARK_BYTES + 4);
        bytes.put_u128(self.identity.0);
        bytes.put_u64(durable);
        bytes.put_u32(crc32c::crc32c(&bytes));
        if let Err(error) = disk.write(&self.file, &self.path, &bytes, 0) {
            tracing::debug!(%error, "the mark of the commit log could not be moved");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::embedded::disk::SystemDisk;

    #[test]
    fn a_mark_is_read_by_its_own_log_and_lags_when_it_is_torn() {
        let home = tempfile::tempdir().expect("a directory");
        let path = home.path().join("mark");
        let (own, other) = (LogIdentity(7), LogIdentity(8));
        assert_eq!(Mark::read(&path, own), 0);
        let mark = Mark::open(&path, own).expect("created");
        mark.write(&SystemDisk, 300);
        mark.write(&SystemDisk, 301);
        assert_eq!(Mark::read(&path, own), 301);
        assert_eq!(Mark::read(&path, other), 0);
        let mut torn = fs::read(&path).expect("there");
        torn[20] ^= 1;
        fs::write(&path, torn).expect("written");
        assert_eq!(Mark::read(&path, own), 0);
    }
}
