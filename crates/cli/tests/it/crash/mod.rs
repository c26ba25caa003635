//! Gateways that are killed, at every step of a request and at random moments.

pub(crate) mod checker;
pub(crate) mod storm;

mod sweep;
