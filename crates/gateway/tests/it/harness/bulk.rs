//! A body of 64 MiB that must not be buffered: generated while it is sent, and
//! compared by its hash.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use data_encoding::HEXLOWER;
use http_body_util::channel::Channel;
use onceward_http::body::{Body, BoxError, boxed};
use sha2::{Digest, Sha256};

/// The size of the body.
pub(crate) const BULK_BYTES: usize = 64 << 20;
const BLOCK_BYTES: usize = 64 << 10;

/// How long the count must not change to count as stalled.
const STILL: Duration = Duration::from_millis(300);

/// The body, with a count of the bytes taken.
pub(crate) fn bulk(taken: Arc<AtomicUsize>) -> Body {
    let (mut sender, body) = Channel::<Bytes, BoxError>::new(1);
    tokio::spawn(async move {
        for block in blocks() {
            if sender.send_data(block).await.is_err() {
                return;
            }
            taken.fetch_add(BLOCK_BYTES, Ordering::SeqCst);
        }
    });
    boxed(body)
}

/// The hash of the whole body, in hexadecimal.
pub(crate) fn bulk_hash() -> String {
    let mut hash = Sha256::new();
    for block in blocks() {
        hash.update(&block);
    }
    HEXLOWER.encode(&hash.finalize())
}

/// No two blocks are equal, so that a lost, repeated or moved block is visible.
fn blocks() -> impl Iterator<Item = Bytes> {
    (0..BULK_BYTES / BLOCK_BYTES).map(|number| {
        let mut block = vec![number as u8; BLOCK_BYTES];
        block[..8].copy_from_slice(&number.to_be_bytes());
        block.into()
    })
}

/// Waits until a count has begun to change and has stalled; it is then the size of
/// all buffers in between. Returning too early only makes it smaller.
pub(crate) async fn settled(count: impl Fn() -> usize) -> usize {
    let mut last = 0;
    loop {
        tokio::time::sleep(STILL).await;
        match count() {
            now if now == last && now > 0 => return now,
            now => last = now,
        }
    }
}
