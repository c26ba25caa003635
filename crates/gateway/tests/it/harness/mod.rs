//! An origin, a gateway in front of it, and clients, each in one statement:
//!
//! ```ignore
//! let origin = origin().reply(201, "paid").run().await;
//! let gateway = gateway(&origin).run().await;
//! let answer = gateway.post("/payments", "k").body("a").send().await;
//! ```

mod bulk;
mod client;
pub(crate) mod credentials;
pub(crate) mod fixture;
mod gateway;
mod origin;
mod raw;

use std::time::Duration;

pub(crate) use self::bulk::{BULK_BYTES, bulk, bulk_hash, settled};
pub(crate) use self::client::{Answer, Answering, ClientRequest};
pub(crate) use self::gateway::{Running, configured, configured_to, gateway, gateway_to};
pub(crate) use self::origin::{Origin, OriginBuilder, Reply, Reserved, Seen, origin};
pub(crate) use self::raw::{RawAnswer, RawClient, RawMessage, raw_origin};

/// Waits until a condition holds; the test runner's timeout is the limit.
pub(crate) async fn until(mut holds: impl AsyncFnMut() -> bool) {
    while !holds().await {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}
