//! The store on Redis, on servers of its own: what every store promises, and what
//! becomes of it when servers die, lag, fill up or are not what they should be.

mod conformance;
mod house;
