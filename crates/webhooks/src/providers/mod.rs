//! One file per provider: how its signature is verified, and where the id is.

pub(crate) mod adyen;
pub(crate) mod generic;
pub(crate) mod github;
pub(crate) mod postmark;
pub(crate) mod shopify;
pub(crate) mod slack;
pub(crate) mod square;
pub(crate) mod standard;
pub(crate) mod stripe;
pub(crate) mod twilio;
pub(crate) mod twilio_events;
