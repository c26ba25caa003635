//! The store on Redis, on servers of its own: the promises of every store, and
//! their behaviour when servers die, lag, are full or are not usable.

mod claiming;
mod cluster;
mod conformance;
mod damage;
mod encrypted;
mod evicting;
mod failing_over;
mod lost;
mod opening;
mod surviving;
mod sweeping;
mod twins;
mod waiting;
