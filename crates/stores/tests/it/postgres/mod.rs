//! The store on PostgreSQL, and the library in its transactions, on real servers.

mod conformance;
mod house;
