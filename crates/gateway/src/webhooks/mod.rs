//! Webhooks: which exist (`registry`), how an event is received (`ingest`), and
//! how it reaches its upstream (`delivery`). `event` is the stored form that
//! `ingest` writes and `delivery` reads.

pub(crate) mod delivery;
pub(crate) mod event;
pub(crate) mod ingest;
pub(crate) mod registry;
