//! Webhooks: signed events, their delivery, and the commands for them.

pub(crate) mod checker;
pub(crate) mod provider;

mod commands;
mod lifecycle;
mod outage;
mod sdk;
mod storm;
mod sweep;
