//! Two gateways on one shared store, PostgreSQL or Redis.

pub(crate) mod deployment;
pub(crate) mod relay;

mod crowd;
mod failover;
mod operators;
mod outage;
mod partition;
mod rolling;
mod secret;
mod storm;
mod suspended;
mod waiting;
mod webhooks;
