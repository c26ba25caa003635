//! The library in the application's own transaction: by every binding, by both
//! drivers, on a real server.

mod ending;
mod errors;
mod flights;
mod joined;
mod killed;
mod outcomes;
mod pooler;
mod resources;
mod security;
mod statements;
