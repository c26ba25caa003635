//! The store on PostgreSQL, and the library in its transactions, on real servers.

#[cfg(feature = "sqlx")]
mod bound;
mod conformance;
mod damage;
mod locked;
mod migrating;
mod planning;
mod sharing;
mod starting;
mod surviving;
mod sweeping;
