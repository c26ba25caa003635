//! A full disk: steps are refused, nothing is lost, and the store serves again when
//! there is space.

use std::fs::{self, File};
use std::io;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use onceward_core::clock::ManualClock;
use onceward_core::record::{Answer, Reply, Settlement, State};
use onceward_core::store::{
    Claim, Collection, Filter, Grant, Inspect, PageRequest, Queue, Registry, SortOrder, Store,
    StoreError,
};
use onceward_stores::embedded::{Disk, EmbeddedStore, Limits, SystemDisk};

use super::disk::RecordingDisk;
use crate::fixture::*;

/// Runs operations until the store refuses one; how many were completed.
async fn fill(store: &EmbeddedStore, from: u64) -> (u64, StoreError) {
    for number in from.. {
        let grant = match store.claim(&ask(number)).await {
            Ok(Claim::Granted(grant)) => grant,
            Ok(other) => panic!("number {number}: {other:?}"),
            Err(error) => return (number - 1, error),
        };
        let settled = store
            .settle(&grant.digest, grant.fence, completed(number))
            .await;
        if let Err(error) = settled {
            return (number - 1, error);
        }
    }
    unreachable!("numbers do not end")
}

#[tokio::test]
async fn a_full_file_refuses_writes_keeps_records_and_serves_again_after_a_sweep() {
    let (home, clock) = (directory(), clock());
    let limits = {
        let mut limits = Limits::default();
        limits.pages_max = Some(64);
        limits
    };
    let open = || EmbeddedStore::open_within(home.path(), clock.clone(), limits);
    let store = open().expect("the store opens");
    let (last, error) = fill(&store, 1).await;
    assert!(matches!(error, StoreError::Unavailable(_)), "{error:?}");
    assert!(error.to_string().contains("the disk is full"), "{error}");
    assert!(last > 100, "{last}");
    for number in 1..=last {
        assert!(is_replayed(&store, number).await, "number {number}");
    }
    drop(store);

    let store = open().expect("a full store opens");
    assert!(is_replayed(&store, last).await);
    clock.advance(Duration::from_secs(2 * 24 * 60 * 60));
    let swept = store
        .sweep(usize::MAX)
        .await
        .expect("sweeping needs no room");
    assert_eq!(swept as u64, last);
    complete(&store, last + 100).await;
}

/// The first step after a start raises the high-water mark of the numbers. If that
/// step fails, the next one must raise it: otherwise a later start would use the
/// numbers again, as fences and row ids.
#[tokio::test]
async fn numbers_rise_although_the_first_step_after_a_start_failed() {
    let (home, clock) = (directory(), clock());
    let limits = {
        let mut limits = Limits::default();
        limits.pages_max = Some(64);
        limits
    };
    let open = || EmbeddedStore::open_within(home.path(), clock.clone(), limits).expect("opens");
    let store = open();
    let too_large = Bytes::from(vec![0; 1 << 20]);
    let refused = store.enqueue(&ask(1), too_large, Duration::ZERO).await;
    assert!(refused.is_err(), "there is no room for it");
    for number in 2..22 {
        complete(&store, number).await;
    }
    let before = grant(&store, &ask(30)).await;
    drop(store);

    let store = open();
    let after = grant(&store, &ask(31)).await;
    assert!(after.fence > before.fence, "{after:?} after {before:?}");
    complete(&store, 40).await;
    drop(store);
    let store = open();
    for number in (2..22).chain([40]) {
        assert!(is_replayed(&store, number).await, "number {number}");
    }
}

/// Fills a store until the disk is full, waits for space, and continues.
#[tokio::test]
async fn child_fills() {
    let Some(home) = directory_as_child() else {
        return;
    };
    let store = open(&home.join("store"), &clock());
    let (last, error) = fill(&store, 1).await;
    fs::create_dir(home.join(format!("refused {last} {error}").replace('/', " "))).expect("told");
    for number in 1..=last {
        assert!(is_replayed(&store, number).await, "number {number}");
    }
    let mut number = last + 1000;
    while store.claim(&ask(number)).await.is_err() {
        number += 1;
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert!(is_replayed(&store, last).await);
    fs::create_dir(home.join("went on")).expect("told");
}

/// The system refuses to let the log grow, in the middle of a commit, and later
/// allows it: a limit on the size of files, which applies to root too.
#[tokio::test]
async fn refused_writes_are_rolled_back_and_accepted_when_there_is_space() {
    let home = directory();
    // Blocks of 512 bytes. The signal would end the process before the error does.
    let limit = "trap '' XFSZ; ulimit -S -f 600;";
    let mut child = child("embedded::full::child_fills", home.path(), limit);
    let told = |word: &str| {
        let names = fs::read_dir(home.path()).expect("listed").flatten();
        let mut names = names.map(|entry| entry.file_name().to_string_lossy().into_owned());
        names.find(|name| name.starts_with(word))
    };
    let refused = until("the child was refused", async || told("refused")).await;
    assert!(refused.contains("the store is unavailable"), "{refused}");
    let lifted = Command::new("prlimit")
        .arg(format!("--pid={}", child.0.id()))
        .arg("--fsize=unlimited")
        .status();
    assert!(lifted.expect("prlimit is part of util-linux").success());
    until("the child went on", async || told("went on")).await;
    let ended = child.0.wait().expect("the child ends");
    assert!(ended.success());
    assert_intact(&home.path().join("store"));
}

/// A disk whose files may have so many bytes together, as far as the commit log is
/// concerned.
struct SmallDisk {
    directory: std::path::PathBuf,
    bytes_max: AtomicU64,
    /// The disk of the database.
    database: Arc<RecordingDisk>,
}

impl SmallDisk {
    fn new(directory: &Path, bytes_max: u64) -> Arc<Self> {
        Arc::new(Self {
            directory: directory.join("log"),
            bytes_max: AtomicU64::new(bytes_max),
            database: RecordingDisk::over(directory),
        })
    }

    fn open(self: &Arc<Self>, clock: &Arc<ManualClock>) -> EmbeddedStore {
        let home = self.directory.parent().expect("the store's directory");
        let store = EmbeddedStore::open_on(home, clock.clone(), Limits::default(), self.clone());
        store.expect("the store opens")
    }

    fn set(&self, bytes_max: u64) {
        self.bytes_max.store(bytes_max, Ordering::SeqCst);
    }

    /// The lengths of the segments.
    fn segments(&self) -> Vec<u64> {
        let files = fs::read_dir(&self.directory)
            .into_iter()
            .flatten()
            .flatten();
        let segments =
            files.filter(|file| file.file_name().to_string_lossy().starts_with("segment-"));
        segments
            .map(|file| file.metadata().map_or(0, |data| data.len()))
            .collect()
    }
}

impl Disk for SmallDisk {
    fn write(&self, file: &File, path: &Path, bytes: &[u8], offset: u64) -> io::Result<()> {
        let grows = (offset + bytes.len() as u64).saturating_sub(file.metadata()?.len());
        let used: u64 = self.segments().iter().sum();
        if grows > 0 && used + grows > self.bytes_max.load(Ordering::SeqCst) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        SystemDisk.write(file, path, bytes, offset)
    }

    fn vfs(&self) -> Option<&str> {
        self.database.vfs()
    }
}

const MIB: u64 = 1 << 20;
const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// A settlement with a reply of this length.
fn long(reply_bytes: usize) -> Settlement {
    Settlement::Completed(Answer::Kept(Arc::new(Reply {
        status: 200,
        headers: Vec::new(),
        body: vec![7; reply_bytes].into(),
        trailers: Vec::new(),
    })))
}

/// Runs an operation whose reply has this length.
async fn complete_long(store: &EmbeddedStore, number: u64, reply_bytes: usize) {
    let grant = grant(store, &ask(number)).await;
    settle(store, &grant, long(reply_bytes)).await;
}

/// The disk has room for two segments. Operations that run at the same time settle with
/// longer replies than were expected, so that a batch must wait for room.
#[tokio::test]
async fn a_batch_that_waits_for_room_goes_on_with_what_is_given_back() {
    let (home, clock) = (directory(), clock());
    let disk = SmallDisk::new(home.path(), 3 * MIB);
    let store = disk.open(&clock);
    for number in 1..=100 {
        complete_long(&store, number, 20 << 10).await;
    }
    let mut segments = disk.segments();
    segments.sort_unstable();
    assert_eq!(segments, [MIB, 2 * MIB]);
    for round in 1..=3 {
        let mut grants = Vec::new();
        for number in 0..8 {
            grants.push(grant(&store, &ask(1000 * round + number)).await);
        }
        let settled = grants
            .iter()
            .map(|grant| settle(&store, grant, long(300 << 10)));
        let settled = futures_util::future::join_all(settled);
        let settled = tokio::time::timeout(Duration::from_secs(30), settled).await;
        assert!(settled.is_ok(), "the writer waits in vain");
    }
    for number in (1..=100).chain([1000, 3007]) {
        assert!(get(&store, &ask(number)).await.is_some(), "number {number}");
    }
}

/// Settles with replies of these lengths, in one turn. There is no room for all of them
/// until the database can be filled again.
async fn settle_once_filled(
    store: &EmbeddedStore,
    disk: &SmallDisk,
    grants: &[Grant],
    lengths: &[usize],
) {
    let settled = grants.iter().zip(lengths);
    let settled = settled.map(|(grant, length)| settle(store, grant, long(*length)));
    let mut settled = Box::pin(futures_util::future::join_all(settled));
    let early = tokio::time::timeout(Duration::from_secs(1), &mut settled).await;
    assert!(early.is_err(), "there was no room for all of them");
    disk.database.set_full(false);
    let settled = tokio::time::timeout(Duration::from_secs(30), settled).await;
    assert!(settled.is_ok(), "the writer waits in vain");
}

/// A fill found no room, and a batch waits for what it would give back. The fill must be
/// tried again meanwhile.
#[tokio::test]
async fn a_batch_that_waits_for_room_does_not_keep_a_fill_from_being_tried_again() {
    let (home, clock) = (directory(), clock());
    let disk = SmallDisk::new(home.path(), 3 * MIB);
    let store = disk.open(&clock);
    for number in 1..=100 {
        complete_long(&store, number, 20 << 10).await;
    }
    let mut grants = Vec::new();
    for number in 1000..1008 {
        grants.push(grant(&store, &ask(number)).await);
    }
    disk.database.set_full(true);
    complete(&store, 2000).await;
    let all = PageRequest::first(1);
    let listed = store.list(&Filter::default(), all).await;
    assert!(listed.is_err(), "a list waits for the fill, which fails");
    settle_once_filled(&store, &disk, &grants, &[600 << 10; 8]).await;
}

/// One turn brings two long batches, and only the segment that takes the first is long
/// enough for the second. It is given back once the first is filled, so the first must be
/// handed over before the second waits.
#[tokio::test]
async fn a_long_batch_is_handed_over_before_the_next_one_waits_for_its_segment() {
    let (home, clock) = (directory(), clock());
    let disk = SmallDisk::new(home.path(), 7 * MIB);
    let store = disk.open(&clock);
    let mut grants = Vec::new();
    for number in 0..156 {
        grants.push(grant(&store, &ask(number)).await);
    }
    let (short, last) = grants.split_at(152);
    disk.database.set_full(true);
    let all = PageRequest::first(1);
    let listed = store.list(&Filter::default(), all).await;
    assert!(
        listed.is_err(),
        "the fill fails, and no other is sent after it"
    );
    // A batch of 24 KiB each: two segments are full, and the third to a third.
    for grant in short {
        settle(&store, grant, long(20 << 10)).await;
    }
    let mut segments = disk.segments();
    segments.sort_unstable();
    assert_eq!(segments, [MIB, 2 * MIB, 4 * MIB]);

    let lengths = [700 << 10, 700 << 10, 1_047_400, 1_047_400];
    settle_once_filled(&store, &disk, last, &lengths).await;
}

/// Documents are read from the database, which need not have the operations for that.
#[tokio::test]
async fn documents_are_read_although_operations_cannot_be_filled() {
    let (home, clock) = (directory(), clock());
    let disk = SmallDisk::new(home.path(), u64::MAX);
    let store = disk.open(&clock);
    let read = async || store.read(Collection::ApiKeys, "k").await;
    let put = async |document: &'static [u8]| {
        let put = store.put(Collection::ApiKeys, "k", document.into()).await;
        put.expect("the log has room");
    };
    put(b"first").await;
    assert_eq!(read().await.ok(), Some(Some("first".into())));

    disk.database.set_full(true);
    complete(&store, 1).await;
    let listed = store.list(&Filter::default(), PageRequest::first(1)).await;
    assert!(listed.is_err(), "the operation is not filled");
    assert_eq!(read().await.ok(), Some(Some("first".into())));
    let all = store.documents(Collection::ApiKeys, SortOrder::Ascending, None, 10);
    assert_eq!(all.await.map(|all| all.len()).ok(), Some(1));

    put(b"second").await;
    assert!(read().await.is_err(), "the database has the first one");
    disk.database.set_full(false);
    let document = until("the fill is tried again", async || read().await.ok()).await;
    assert_eq!(document, Some("second".into()));

    let removed = store.remove(Collection::ApiKeys, "k").await;
    removed.expect("there is room again");
    assert_eq!(read().await.ok(), Some(None));
}

/// A segment of an unusual length is not kept once the database has its batches, unless
/// it is the newest: the next start must know how far the log went.
#[tokio::test]
async fn a_store_whose_newest_segment_is_short_or_long_opens_again_and_again() {
    for (bytes_max, reply_bytes) in [(u64::MAX, 9 << 20), (400 << 10, 20 << 10)] {
        let (home, clock) = (directory(), clock());
        let disk = SmallDisk::new(home.path(), bytes_max);
        complete_long(&disk.open(&clock), 1, reply_bytes).await;
        disk.set(u64::MAX);
        let is_usual = |bytes: &u64| bytes.is_multiple_of(MIB) && *bytes <= 8 * MIB;
        let is_there = |segments: Vec<u64>| !segments.iter().all(is_usual);
        for _ in 0..3 {
            let store = disk.open(&clock);
            // The checkpoint of the start is done before a sweep.
            store.sweep(1).await.expect("swept");
            assert!(get(&store, &ask(1)).await.is_some());
            assert!(is_there(disk.segments()), "{:?}", disk.segments());
        }
    }
}

/// The process was killed on a full disk. What the start writes fits into segments that
/// the database does not need any more.
#[tokio::test]
async fn a_store_opens_on_a_full_disk_where_its_log_has_room() {
    let (home, copy, clock) = (directory(), directory(), clock());
    let disk = SmallDisk::new(home.path(), u64::MAX);
    let store = disk.open(&clock);
    for number in 1..=100 {
        complete_long(&store, number, 20 << 10).await;
    }
    store.sweep(1).await.expect("everything is filled");
    grant(&store, &ask(101)).await;
    let copied = Command::new("cp")
        .arg("-r")
        .args([home.path().join("."), copy.path().into()])
        .status();
    assert!(copied.expect("cp runs").success());
    let store = SmallDisk::new(copy.path(), 0).open(&clock);
    let record = get(&store, &ask(101)).await.expect("it is known");
    assert_eq!(record.state, State::Unknown);
    assert!(get(&store, &ask(1)).await.is_some());
}

/// A full disk leaves a short segment. It is not kept when there is room again.
#[tokio::test]
async fn a_log_that_was_short_of_room_is_whole_again_when_there_is_some() {
    let (home, clock) = (directory(), clock());
    let disk = SmallDisk::new(home.path(), MIB + 400 * 1024);
    let store = disk.open(&clock);
    let short = |segments: Vec<u64>| segments.iter().filter(|bytes| *bytes % MIB != 0).count();
    let mut number = 0;
    while short(disk.segments()) == 0 {
        number += 1;
        complete_long(&store, number, 20 << 10).await;
    }
    for _ in 0..50 {
        number += 1;
        complete_long(&store, number, 20 << 10).await;
    }
    assert_eq!(short(disk.segments()), 1, "{:?}", disk.segments());
    disk.set(u64::MAX);
    until("the log is whole", async || {
        number += 1;
        complete_long(&store, number, 20 << 10).await;
        let segments = disk.segments();
        (short(segments.clone()) == 0 && segments.len() > 1).then_some(())
    })
    .await;
}

/// A program reads the database in one long transaction. Nothing can be given back of
/// the log meanwhile, and it must grow instead of holding up the callers.
#[tokio::test]
async fn a_long_reader_of_the_database_does_not_stop_new_work() {
    let (home, clock) = (directory(), clock());
    let disk = SmallDisk::new(home.path(), u64::MAX);
    let store = disk.open(&clock);
    complete(&store, 1).await;
    let filled = store.stats().await.expect("counting waits for a fill");
    assert_eq!(filled.operations, 1);
    let reader = rusqlite::Connection::open(home.path().join("onceward.db")).expect("opens");
    reader.execute_batch("BEGIN").expect("begins");
    let table = |db: &rusqlite::Connection| {
        db.query_row("SELECT count(*) FROM meta", [], |row| row.get::<_, i64>(0))
    };
    table(&reader).expect("reads");
    let request = Bytes::from(vec![7; 1 << 20]);
    for number in 2..=90 {
        let ask = ask(number);
        let enqueued = store.enqueue(&ask, request.clone(), DAY);
        let enqueued = tokio::time::timeout(Duration::from_secs(30), enqueued).await;
        enqueued.expect("it does not wait").expect("recorded");
    }
    let bytes: u64 = disk.segments().iter().sum();
    assert!(bytes > 64 * MIB, "the log grew: {bytes}");
    reader.execute_batch("COMMIT").expect("ends");
    let mut number = 90;
    until("the log is given back", async || {
        number += 1;
        complete(&store, number).await;
        (disk.segments().len() <= 8).then_some(())
    })
    .await;
}

fn assert_intact(home: &Path) {
    drop(open(home, &clock()));
    let db = rusqlite::Connection::open(home.join("onceward.db")).expect("SQLite opens it");
    let check: String = db
        .query_row("PRAGMA integrity_check", [], |row| row.get(0))
        .expect("SQLite checks");
    assert_eq!(check, "ok");
}
