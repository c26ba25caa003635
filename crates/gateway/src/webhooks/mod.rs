//! Webhooks: which exist (`registry`), how an event is received (`ingest`), and
//! how it reaches its upstream (`delivery`). `queued_event` is the stored form
//! that `ingest` writes and `delivery` reads.

pub(crate) mod delivery;
pub(crate) mod ingest;
pub(crate) mod queued_event;
pub(crate) mod registry;
pub(crate) mod warnings;
