//! The store on PostgreSQL, and the library in its transactions, on real servers.

#[cfg(feature = "sqlx")]
mod bound;
mod conformance;
mod house;
mod migrating;
mod locked;
mod sharing;
mod starting;
mod surviving;
