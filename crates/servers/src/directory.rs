//! The directory of a server.

use std::env;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use crate::program::Account;

/// A directory for a server, removed when dropped.
///
/// It is a directory in a directory. The outer one asks ext4 to place the files
/// created in it far from all others, at a place that depends on its name. For some
/// minutes ext4 does not reuse the inodes of deleted files, but scans them whenever
/// a file is created nearby. A test run that creates and deletes the thousand files
/// of a PostgreSQL again and again in one place would soon need a second to create
/// them, instead of less than a tenth.
pub(crate) struct Directory {
    outer: TempDir,
    inner: PathBuf,
}

impl Directory {
    /// A directory that belongs to this account.
    pub(crate) fn new(account: Account) -> Self {
        let outer = tempfile::Builder::new()
            .prefix("onceward-")
            .tempdir_in(temporary(account))
            .expect("a temporary directory can be made");
        spread(outer.path());
        let name = outer.path().file_name().expect("it was given a name");
        let inner = outer.path().join(name);
        fs::create_dir(&inner).expect("a new directory can be written");
        account.own(outer.path());
        account.own(&inner);
        Self { outer, inner }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.inner
    }

    /// The outer directory, to be removed in the end.
    pub(crate) fn whole(&self) -> &Path {
        self.outer.path()
    }
}

/// The parent of temporary directories: the system's, if the account can enter it.
fn temporary(account: Account) -> PathBuf {
    let usual = env::temp_dir();
    let passable = |path: &Path| fs::metadata(path).is_ok_and(|meta| meta.mode() & 0o001 != 0);
    match account {
        Account::Other { .. } if !usual.ancestors().all(passable) => "/tmp".into(),
        Account::Own | Account::Other { .. } => usual,
    }
}

/// Asks the file system to place the contents of a directory far from others. File
/// systems other than ext4 do not support this and do not need it.
#[cfg(target_os = "linux")]
fn spread(path: &Path) {
    use rustix::fs::{IFlags, ioctl_getflags, ioctl_setflags};

    let directory = fs::File::open(path).expect("a new directory can be read");
    if let Ok(flags) = ioctl_getflags(&directory) {
        let _ = ioctl_setflags(&directory, flags | IFlags::TOPDIR);
    }
}

#[cfg(not(target_os = "linux"))]
fn spread(_: &Path) {}
