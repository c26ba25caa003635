//! Records of earlier versions. These bytes never change: every version stays
//! readable.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use data_encoding::HEXLOWER;
use onceward_core::class::{Expiry, TtlBasis};
use onceward_core::clock::Clock;
use onceward_core::identity::KeySpace;
use onceward_core::record::Record;
use onceward_core::store::{Changed, Collection, Filter, Force, Inspect, PageRequest, Registry};
use onceward_core::wire::{self, WireError};
use rusqlite::Connection;

use crate::fixture::*;

/// A record of version 1: the operation 1, completed.
const RECORD_1: &str = include_str!("record-1.hex");
/// The same in version 2.
const RECORD_2: &str = include_str!("record-2.hex");
/// The same with everything that version 2 added, and nothing at its default.
const RECORD_2_CHOSEN: &str = include_str!("record-2-chosen.hex");
/// Its reply.
const REPLY_1: &str = include_str!("reply-1.hex");
/// The same record with version 255 and a checksum that is right.
const RECORD_255: &str = include_str!("record-255.hex");

fn bytes(hex: &str) -> Vec<u8> {
    HEXLOWER.decode(hex.trim().as_bytes()).expect("hex")
}

/// The record of the operation 1, completed, as this program makes it.
async fn completed_record() -> Arc<Record> {
    let home = directory();
    let store = open(home.path(), &clock());
    complete(&store, 1).await;
    get(&store, &ask(1)).await.expect("it is on record")
}

fn decode(hex: &str) -> Result<Record, WireError> {
    let reply = wire::decode_reply(&bytes(REPLY_1)).map(Arc::new);
    wire::decode_record(&bytes(hex), || reply.map(Some))
}

#[tokio::test]
async fn version_1_is_read_with_defaults_for_missing_fields() {
    assert_eq!(
        decode(RECORD_1),
        Ok(Record::clone(&*completed_record().await))
    );
}

#[tokio::test]
async fn version_2_is_read_and_written() {
    let plain = Record::clone(&*completed_record().await);
    let mut chosen = plain.clone();
    chosen.identity.space = KeySpace::Tenant;
    chosen.terms.ttl_basis = TtlBasis::Access;
    chosen.terms.expiry = Expiry::Lazy;
    chosen.terms.keep_expired = Duration::from_secs(90 * 24 * 60 * 60);
    chosen.touched_at = Some(clock().now().plus(Duration::from_secs(60 * 60)));
    for (record, hex) in [(plain, RECORD_2), (chosen, RECORD_2_CHOSEN)] {
        assert_eq!(HEXLOWER.encode(&wire::encode_record(&record)), hex.trim());
        assert_eq!(decode(hex), Ok(record));
    }
    assert_eq!(
        HEXLOWER.encode(&wire::encode_reply(&reply(1))),
        REPLY_1.trim()
    );
    assert_eq!(wire::decode_reply(&bytes(REPLY_1)).as_ref(), Ok(&*reply(1)));
}

/// The tables of layout 1 with the operation 1 in them, as they were written.
const LAYOUT_1: &str = include_str!("layout-1.sql");

/// What layout 2 added to it.
const LAYOUT_2: &str = concat!(
    include_str!("../../../src/embedded/sql/upgrade_1.sql"),
    "PRAGMA user_version = 2;"
);

#[tokio::test]
async fn a_file_of_layout_1_is_read_and_upgraded() {
    is_read_and_upgraded(&[LAYOUT_1]).await;
}

#[tokio::test]
async fn a_file_of_layout_2_is_read_and_upgraded() {
    is_read_and_upgraded(&[LAYOUT_1, LAYOUT_2]).await;
}

/// The layout is raised before anything is in the log, which older programs do not
/// know.
#[test]
fn the_layout_is_raised_at_once() {
    let home = directory();
    let store = open(home.path(), &clock());
    let db = Connection::open(home.path().join("onceward.db")).expect("SQLite opens it");
    let layout: i32 = db
        .pragma_query_value(None, "user_version", |row| row.get(0))
        .expect("a number");
    assert_eq!(layout, 3);
    drop(store);
}

async fn is_read_and_upgraded(layout: &[&str]) {
    let home = directory();
    let db = Connection::open(home.path().join("onceward.db")).expect("SQLite opens it");
    for tables in layout {
        db.execute_batch(tables).expect("it runs");
    }
    drop(db);
    for _ in 0..2 {
        let store = open(home.path(), &clock());
        assert!(is_replayed(&store, 1).await);
        complete(&store, 2).await;
        let document = Bytes::from_static(b"new");
        let put = store.put(Collection::Classes, "a", document.clone()).await;
        put.expect("the store takes a document");
        let read = store.read(Collection::Classes, "a").await;
        assert_eq!(read.expect("the store answers"), Some(document));
        let listed = store.list(&Filter::default(), ALL).await.expect("listed");
        assert_eq!(listed.records.len(), 2);
        let purged = store.purge(ask(2).id, Force::No).await;
        assert_eq!(purged.expect("the store answers"), Changed::Done);
    }
}

const ALL: PageRequest = PageRequest::first(10);

#[test]
fn version_255_is_refused_by_name() {
    let read = wire::decode_record(&bytes(RECORD_255), || Ok(None));
    assert_eq!(read, Err(WireError::Newer(255)));
    let words = WireError::Newer(255).to_string();
    assert!(
        words.contains("record version 255 was written by a newer Onceward"),
        "{words}"
    );
}
