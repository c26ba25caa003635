//! Servers start, answer, keep what they acknowledged over a kill, and leave
//! nothing behind, neither after a drop nor when the test itself is killed.

mod fixture;
mod pgbouncer;
mod postgres;
mod redis;
mod redis_cluster;
mod sdk;
