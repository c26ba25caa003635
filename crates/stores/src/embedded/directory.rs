//! The store's directory, and the lock that gives it to one process.
//!
//! Exclusive use is what allows the store to end the leases of an earlier process at
//! the start. The lock is the operating system's, so it is released however the
//! process ends; the process id in the file is for the error message of a second
//! process. The directory itself is locked too, where the system supports that: a
//! removed lock file would lock no process out.

use std::fs::{self, File, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::path::{Path, PathBuf};

use crate::OpenError;

/// The SQLite file.
const DATABASE: &str = "onceward.db";
/// The directory of the commit log.
const LOG: &str = "log";
/// The file that is locked.
const LOCK: &str = "lock";
/// The owner of a directory whose lock file has no process id.
const UNKNOWN_OWNER: &str = "unknown";

/// A directory that this process owns until the value is dropped.
#[derive(Debug)]
pub(super) struct Directory {
    path: PathBuf,
    _own: Option<File>,
    _lock: File,
}

impl Directory {
    /// Creates the directory if it is missing, and locks it.
    pub(super) fn take(path: &Path) -> Result<Self, OpenError> {
        make_directory(path).map_err(|source| OpenError::Directory {
            path: path.into(),
            source,
        })?;
        let own = lock_itself(path)?;
        let lock = lock(&path.join(LOCK))?;
        Ok(Self {
            path: path.into(),
            _own: own,
            _lock: lock,
        })
    }

    /// Where the SQLite file is.
    pub(super) fn database(&self) -> PathBuf {
        self.path.join(DATABASE)
    }

    /// Where the commit log is.
    pub(super) fn log(&self) -> PathBuf {
        self.path.join(LOG)
    }

    /// How many bytes the store takes on disk.
    pub(super) fn bytes(&self) -> u64 {
        let wal = self.path.join(format!("{DATABASE}-wal"));
        let segments = fs::read_dir(self.log()).into_iter().flatten().flatten();
        [self.database(), wal]
            .into_iter()
            .chain(segments.map(|segment| segment.path()))
            .filter_map(|file| fs::metadata(file).ok())
            .map(|file| file.len())
            .sum()
    }
}

/// Creates a store's directory if it is missing, accessible to its owner only,
/// because it holds unencrypted replies. An existing directory keeps its mode.
pub fn make_directory(path: &Path) -> io::Result<()> {
    if path.is_dir() {
        return Ok(());
    }
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(path)?;
    // A directory survives a power cut only once its parent is synced.
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => File::open(parent)?.sync_all(),
        _ => File::open(".")?.sync_all(),
    }
}

/// Locks the directory itself; `None` where the system has no such lock.
fn lock_itself(path: &Path) -> Result<Option<File>, OpenError> {
    let Ok(own) = File::open(path) else {
        return Ok(None);
    };
    match own.try_lock() {
        Ok(()) => Ok(Some(own)),
        Err(TryLockError::WouldBlock) => {
            let path = path.join(LOCK);
            let owner = File::open(&path).map(|mut file| owner(&mut file));
            Err(OpenError::InUse {
                path,
                owner: owner.unwrap_or_else(|_| UNKNOWN_OWNER.to_owned()),
            })
        }
        // Some network file systems lock files only.
        Err(TryLockError::Error(_)) => Ok(None),
    }
}

fn lock(path: &Path) -> Result<File, OpenError> {
    let refused = |source| OpenError::Directory {
        path: path.into(),
        source,
    };
    let mut file = File::options()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(path)
        .map_err(refused)?;
    match file.try_lock() {
        Ok(()) => sign(&mut file).map_err(refused)?,
        Err(TryLockError::WouldBlock) => {
            return Err(OpenError::InUse {
                path: path.into(),
                owner: owner(&mut file),
            });
        }
        Err(TryLockError::Error(source)) => return Err(refused(source)),
    }
    Ok(file)
}

fn sign(file: &mut File) -> io::Result<()> {
    file.set_len(0)?;
    file.rewind()?;
    writeln!(file, "{}", std::process::id())
}

/// The process id in the lock file; the owner may not have written it yet.
fn owner(file: &mut File) -> String {
    let mut text = String::new();
    match file.read_to_string(&mut text) {
        Ok(_) if !text.trim().is_empty() => text.trim().to_owned(),
        _ => UNKNOWN_OWNER.to_owned(),
    }
}
