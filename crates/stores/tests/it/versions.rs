//! Records as earlier programs wrote them. These bytes never change: what was
//! once written is read for ever.

use std::sync::Arc;

use data_encoding::HEXLOWER;
use onceward_core::record::Answer;
use onceward_core::wire::{self, WireError};

use crate::house::*;

/// A record of version 1: the operation 1, completed.
const RECORD_1: &str = include_str!("record-1.hex");
/// Its reply.
const REPLY_1: &str = include_str!("reply-1.hex");
/// The same record with version 255 and a checksum that is right.
const RECORD_255: &str = include_str!("record-255.hex");

fn bytes(hex: &str) -> Vec<u8> {
    HEXLOWER.decode(hex.trim().as_bytes()).expect("hex")
}

#[tokio::test]
async fn version_1_reads_today_and_is_what_is_written() {
    let home = directory();
    let store = open(home.path(), &clock());
    complete(&store, 1).await;
    let record = get(&store, &ask(1)).await.expect("it is on record");
    assert_eq!(
        HEXLOWER.encode(&wire::encode_record(&record)),
        RECORD_1.trim()
    );
    assert_eq!(
        HEXLOWER.encode(&wire::encode_reply(&reply(1))),
        REPLY_1.trim()
    );
    let reply = wire::decode_reply(&bytes(REPLY_1))
        .map(Arc::new)
        .expect("version 1");
    assert_eq!(record.answer, Some(Answer::Kept(reply.clone())));
    let read = wire::decode_record(&bytes(RECORD_1), || Ok(Some(reply.clone())));
    assert_eq!(read.as_ref(), Ok(&*record));
}

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
