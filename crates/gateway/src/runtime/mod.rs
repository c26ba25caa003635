//! What a running gateway holds, and how that changes while it serves: the plan
//! made from the configuration, retention classes, reloads, and the questions
//! about unknown outcomes.

pub(crate) mod classes;
pub(crate) mod plan;
pub(crate) mod reconcile;
pub(crate) mod refresh;
pub(crate) mod reload;
