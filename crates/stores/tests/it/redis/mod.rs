//! The store on Redis, on servers of its own: what every store promises, and what
//! becomes of it when servers die, lag, fill up or are not what they should be.

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
