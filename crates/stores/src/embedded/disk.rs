//! The writes and syncs of the commit log's files.
//!
//! A layer of its own, so that tests can put a disk below it that records, refuses,
//! drops, reorders and tears. The same disk may name an SQLite VFS, so that the
//! database's files are on it too.

use std::fs::File;
use std::io;
use std::path::Path;

/// Where the bytes of a store go. The methods do what the system does; a test's disk
/// does more.
pub trait Disk: Send + Sync {
    /// Writes all bytes at this position of the file.
    fn write(&self, file: &File, _path: &Path, bytes: &[u8], offset: u64) -> io::Result<()> {
        write_all_at(file, bytes, offset)
    }

    /// Makes everything that was written to the file durable.
    fn sync(&self, file: &File, _path: &Path) -> io::Result<()> {
        file.sync_data()
    }

    /// The name of the SQLite VFS for the database; `None` for the system's.
    fn vfs(&self) -> Option<&str> {
        None
    }
}

/// The files of the operating system.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemDisk;

impl Disk for SystemDisk {}

#[cfg(unix)]
fn write_all_at(file: &File, bytes: &[u8], offset: u64) -> io::Result<()> {
    std::os::unix::fs::FileExt::write_all_at(file, bytes, offset)
}

#[cfg(not(unix))]
fn write_all_at(mut file: &File, bytes: &[u8], offset: u64) -> io::Result<()> {
    use std::io::{Seek as _, SeekFrom, Write as _};
    file.seek(SeekFrom::Start(offset))?;
    file.write_all(bytes)
}
