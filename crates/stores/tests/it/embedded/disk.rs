//! A disk of our own under the commit log and SQLite: it records every write and sync,
//! and makes from the record what a power cut may leave of it. What was synced stays;
//! every other sector may be there, be missing, or have an older content.
//!
//! It can also refuse to sync, and have no room for the database.

#![allow(unsafe_code, reason = "a VFS of SQLite is a table of C functions")]

use std::collections::{BTreeMap, HashMap};
use std::ffi::{CStr, c_char, c_int, c_void};
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};

use onceward_core::entropy::Entropy;
use onceward_stores::embedded::{Disk, SystemDisk};
use rusqlite::ffi;

/// What disks write as a whole.
const SECTOR: u64 = 512;

/// What happened, in its order.
#[derive(Clone, Debug)]
enum Event {
    Wrote(PathBuf, u64, Vec<u8>),
    Truncated(PathBuf, u64),
    Synced(PathBuf),
    Deleted(PathBuf),
    /// The test was told that a step is done.
    Acknowledged,
}

/// A disk that records what is done in one directory.
#[derive(Debug)]
pub(super) struct RecordingDisk {
    events: Mutex<Vec<Event>>,
    /// How many syncs succeed from now on; negative for all.
    syncs_left: AtomicI64,
    /// Whether SQLite's syncs fail.
    refuses_database: AtomicBool,
    /// Whether SQLite's writes find no room.
    is_full: AtomicBool,
}

impl RecordingDisk {
    /// A disk for everything that is in this directory.
    pub(super) fn over(directory: &Path) -> Arc<Self> {
        register_vfs();
        let disk = Arc::new(Self {
            events: Mutex::default(),
            syncs_left: AtomicI64::new(-1),
            refuses_database: AtomicBool::new(false),
            is_full: AtomicBool::new(false),
        });
        lock(&DISKS).insert(directory.into(), disk.clone());
        disk
    }

    /// The test was told that a step is done.
    pub(super) fn acknowledge(&self) {
        self.record(Event::Acknowledged);
    }

    /// After so many more syncs, all fail.
    pub(super) fn fail_after(&self, syncs: i64) {
        self.syncs_left.store(syncs, Ordering::SeqCst);
    }

    /// From now on all syncs of the database fail.
    pub(super) fn fail_database_syncs(&self) {
        self.refuses_database.store(true, Ordering::SeqCst);
    }

    /// Whether the database finds no room from now on.
    pub(super) fn set_full(&self, is_full: bool) {
        self.is_full.store(is_full, Ordering::SeqCst);
    }

    /// How many events there were.
    pub(super) fn length(&self) -> usize {
        lock(&self.events).len()
    }

    /// The places right before and after each sync of a file whose name contains this.
    pub(super) fn syncs_of(&self, name: &str) -> Vec<usize> {
        let events = lock(&self.events);
        let is_meant = |event: &Event| matches!(event, Event::Synced(path) if path.to_string_lossy().contains(name));
        let places = events
            .iter()
            .enumerate()
            .filter(|(_, event)| is_meant(event));
        places.flat_map(|(place, _)| [place, place + 1]).collect()
    }

    /// Leaves in `copy` what a power cut after so many events may leave of
    /// `directory`; returns how many steps were acknowledged before it.
    pub(super) fn cut(&self, until: usize, directory: &Path, copy: &Path, luck: Luck) -> usize {
        let events = lock(&self.events);
        let mut files: BTreeMap<PathBuf, CutFile> = BTreeMap::new();
        let mut acknowledged = 0;
        for event in events.iter().take(until) {
            match event {
                Event::Wrote(path, offset, bytes) => {
                    files.entry(path.clone()).or_default().write(*offset, bytes);
                }
                Event::Truncated(path, length) => {
                    files.entry(path.clone()).or_default().truncate(*length);
                }
                Event::Synced(path) => files.entry(path.clone()).or_default().sync(),
                // SQLite deletes a file when it starts or ends, and syncs the directory.
                Event::Deleted(path) => drop(files.remove(path)),
                Event::Acknowledged => acknowledged += 1,
            }
        }
        let entropy = Entropy::seeded(luck.seed ^ until as u64);
        for (path, file) in files {
            let place = copy.join(path.strip_prefix(directory).expect("in the directory"));
            fs::create_dir_all(place.parent().expect("a directory")).expect("made");
            fs::write(place, file.left(&entropy, luck.kept_of_four)).expect("written");
        }
        acknowledged
    }

    fn record(&self, event: Event) {
        lock(&self.events).push(event);
    }

    fn may_sync(&self) -> bool {
        let left = |left: i64| (left > 0).then_some(left - 1);
        self.syncs_left.load(Ordering::SeqCst) < 0
            || self
                .syncs_left
                .fetch_update(Ordering::SeqCst, Ordering::SeqCst, left)
                .is_ok()
    }
}

/// How much of what was not synced is left.
#[derive(Clone, Copy, Debug)]
pub(super) struct Luck {
    pub(super) seed: u64,
    /// Of four sectors this many have their new content.
    pub(super) kept_of_four: u64,
}

impl Disk for RecordingDisk {
    fn write(&self, file: &File, path: &Path, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.record(Event::Wrote(path.into(), offset, bytes.into()));
        SystemDisk.write(file, path, bytes, offset)
    }

    fn sync(&self, file: &File, path: &Path) -> io::Result<()> {
        if !self.may_sync() {
            return Err(io::Error::other("the disk is gone"));
        }
        SystemDisk.sync(file, path)?;
        self.record(Event::Synced(path.into()));
        Ok(())
    }

    fn vfs(&self) -> Option<&str> {
        VFS_NAME.to_str().ok()
    }
}

/// A file, and what was done since its last sync.
#[derive(Default)]
struct CutFile {
    synced: Vec<u8>,
    pending: Vec<Pending>,
}

enum Pending {
    Write(u64, Vec<u8>),
    Truncate(u64),
}

impl CutFile {
    fn write(&mut self, offset: u64, bytes: &[u8]) {
        self.pending.push(Pending::Write(offset, bytes.into()));
    }

    fn truncate(&mut self, length: u64) {
        self.pending.push(Pending::Truncate(length));
    }

    fn sync(&mut self) {
        for pending in std::mem::take(&mut self.pending) {
            match pending {
                Pending::Write(offset, bytes) => put(&mut self.synced, offset, &bytes),
                Pending::Truncate(length) => self.synced.resize(length as usize, 0),
            }
        }
    }

    /// What is left of it.
    fn left(self, entropy: &Entropy, kept_of_four: u64) -> Vec<u8> {
        let mut left = self.synced;
        for pending in self.pending {
            match pending {
                Pending::Write(offset, bytes) => {
                    for (at, sector) in sectors(offset, &bytes) {
                        if entropy.next_u64() % 4 < kept_of_four {
                            put(&mut left, at, sector);
                        }
                    }
                }
                Pending::Truncate(length) => {
                    if entropy.next_u64() % 4 < kept_of_four {
                        left.resize(length as usize, 0);
                    }
                }
            }
        }
        left
    }
}

/// The bytes of a write, cut at the bounds of sectors.
fn sectors(offset: u64, bytes: &[u8]) -> Vec<(u64, &[u8])> {
    let mut all = Vec::new();
    let (mut at, mut rest) = (offset, bytes);
    while !rest.is_empty() {
        let length = ((SECTOR - at % SECTOR) as usize).min(rest.len());
        let (sector, after) = rest.split_at(length);
        all.push((at, sector));
        (at, rest) = (at + length as u64, after);
    }
    all
}

fn put(content: &mut Vec<u8>, offset: u64, bytes: &[u8]) {
    let (start, end) = (offset as usize, offset as usize + bytes.len());
    if content.len() < end {
        content.resize(end, 0);
    }
    content[start..end].copy_from_slice(bytes);
}

/// The disks by their directories.
static DISKS: LazyLock<Mutex<HashMap<PathBuf, Arc<RecordingDisk>>>> = LazyLock::new(Mutex::default);
/// SQLite's open files, by their addresses.
static FILES: LazyLock<Mutex<HashMap<usize, SqliteFile>>> = LazyLock::new(Mutex::default);
/// The system's VFS, as a number so that threads may share it.
static SYSTEM_VFS: Mutex<usize> = Mutex::new(0);

const VFS_NAME: &CStr = c"onceward-recorded";

#[derive(Clone)]
struct SqliteFile {
    path: PathBuf,
    disk: Arc<RecordingDisk>,
    methods: usize,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Registers a VFS that is the system's, and records writes, truncations, syncs and
/// deletions.
fn register_vfs() {
    let mut system = lock(&SYSTEM_VFS);
    if *system != 0 {
        return;
    }
    // SAFETY: SQLite's own VFS lives as long as the process, and so does the copy.
    unsafe {
        let default = ffi::sqlite3_vfs_find(std::ptr::null());
        let mut copy = *default;
        copy.zName = VFS_NAME.as_ptr();
        copy.pNext = std::ptr::null_mut();
        copy.xOpen = Some(open);
        copy.xDelete = Some(delete);
        let code = ffi::sqlite3_vfs_register(Box::leak(Box::new(copy)), 0);
        assert_eq!(code, ffi::SQLITE_OK);
        *system = default as usize;
    }
}

unsafe extern "C" fn open(
    _: *mut ffi::sqlite3_vfs,
    name: *const c_char,
    file: *mut ffi::sqlite3_file,
    flags: c_int,
    out: *mut c_int,
) -> c_int {
    let system = *lock(&SYSTEM_VFS) as *mut ffi::sqlite3_vfs;
    // SAFETY: the arguments are SQLite's own, handed on as they are; the methods of an
    // opened file live as long as the process, as their copies do.
    unsafe {
        let open = (*system).xOpen.expect("every VFS opens files");
        let code = open(system, name, file, flags, out);
        if code != ffi::SQLITE_OK || name.is_null() || (*file).pMethods.is_null() {
            return code;
        }
        let path = PathBuf::from(CStr::from_ptr(name).to_string_lossy().into_owned());
        let disk = path
            .parent()
            .and_then(|home| lock(&DISKS).get(home).cloned());
        if let Some(disk) = disk {
            let mut methods = *(*file).pMethods;
            let known = SqliteFile {
                path,
                disk,
                methods: (*file).pMethods as usize,
            };
            lock(&FILES).insert(file as usize, known);
            methods.xWrite = Some(write);
            methods.xTruncate = Some(truncate);
            methods.xSync = Some(sync);
            (*file).pMethods = Box::leak(Box::new(methods));
        }
        code
    }
}

unsafe extern "C" fn delete(
    _: *mut ffi::sqlite3_vfs,
    name: *const c_char,
    syncs_directory: c_int,
) -> c_int {
    let system = *lock(&SYSTEM_VFS) as *mut ffi::sqlite3_vfs;
    // SAFETY: the arguments are SQLite's own, handed on as they are.
    unsafe {
        let path = PathBuf::from(CStr::from_ptr(name).to_string_lossy().into_owned());
        let disk = path
            .parent()
            .and_then(|home| lock(&DISKS).get(home).cloned());
        let code =
            (*system).xDelete.expect("every VFS deletes files")(system, name, syncs_directory);
        if let Some(disk) = disk {
            disk.record(Event::Deleted(path));
        }
        code
    }
}

fn known(file: *mut ffi::sqlite3_file) -> (SqliteFile, &'static ffi::sqlite3_io_methods) {
    let known = lock(&FILES).get(&(file as usize)).cloned();
    let known = known.expect("it was opened here");
    // SAFETY: the system's methods are static.
    let methods = unsafe { &*(known.methods as *const ffi::sqlite3_io_methods) };
    (known, methods)
}

unsafe extern "C" fn write(
    file: *mut ffi::sqlite3_file,
    bytes: *const c_void,
    length: c_int,
    offset: i64,
) -> c_int {
    let (known, methods) = known(file);
    if known.disk.is_full.load(Ordering::SeqCst) {
        return ffi::SQLITE_FULL;
    }
    // SAFETY: SQLite's arguments, handed on as they are.
    unsafe {
        let content = std::slice::from_raw_parts(bytes.cast::<u8>(), length as usize);
        let event = Event::Wrote(known.path, offset as u64, content.into());
        known.disk.record(event);
        methods.xWrite.expect("files can be written")(file, bytes, length, offset)
    }
}

unsafe extern "C" fn truncate(file: *mut ffi::sqlite3_file, length: i64) -> c_int {
    let (known, methods) = known(file);
    known
        .disk
        .record(Event::Truncated(known.path, length as u64));
    // SAFETY: SQLite's arguments, handed on as they are.
    unsafe { methods.xTruncate.expect("files can be truncated")(file, length) }
}

unsafe extern "C" fn sync(file: *mut ffi::sqlite3_file, flags: c_int) -> c_int {
    let (known, methods) = known(file);
    if known.disk.refuses_database.load(Ordering::SeqCst) || !known.disk.may_sync() {
        return ffi::SQLITE_IOERR_FSYNC;
    }
    // SAFETY: SQLite's arguments, handed on as they are.
    let code = unsafe { methods.xSync.expect("files can be synced")(file, flags) };
    if code == ffi::SQLITE_OK {
        known.disk.record(Event::Synced(known.path));
    }
    code
}
