//! PostgreSQL: the store that several processes share, and the library in the
//! application's own transaction. One table, one statement per step; leases and
//! expiry are judged by the server's clock.

mod address;
mod batch;
mod bound;
mod connect;
mod driver;
mod error;
mod listen;
pub mod migrate;
mod row;
mod session;
mod start;
mod statements;
mod store;
mod table;

pub use address::{Address, AddressError};
pub use bound::{BoundStore, Connection, JoinedRecords, JoinedStore, Records, Tx};
pub use connect::ConnectError;
pub use start::PostgresOpenError;
pub use store::PostgresStore;

pub use crate::time::Time;
pub use table::{Table, TableError};
