//! The gateway end to end: real sockets, a real origin that keeps a ledger of
//! what it got, and the embedded store in a directory of the test's own.

// A test that fails says what it wanted; a panic is how.
#![allow(clippy::unwrap_used)]

mod attempts;
mod callers;
mod clients;
mod configuration;
mod crowds;
mod dashboards;
mod edge;
mod expiry;
mod fields;
mod forwarding;
mod harness;
mod keys;
mod large;
mod loss;
mod observing;
mod operating;
mod outcomes;
mod pages;
mod passing;
mod payloads;
mod protocols;
mod recovery;
mod refusals;
mod replay;
mod settings;
mod shared;
mod trailers;
mod tunnels;
mod waiting;
mod webhooks;
