//! Free ports.
//!
//! They are taken from below the range that systems give to outgoing
//! connections. From within it, a client that keeps trying to reach a killed
//! server would sooner or later be given the server's own port to call from,
//! and the server could not come back on it.

use std::hash::{BuildHasher, RandomState};
use std::net::{Ipv4Addr, TcpListener};
use std::ops::Range;

const PORTS: Range<u16> = 12_000..22_000;
/// A Redis of a cluster listens on a second port, this far above its own.
const BUS: u16 = 10_000;
/// How many are tried before the machine is taken to have none.
const TRIES_MAX: usize = 1_000;

/// A port on which no process listens now, nor on that of its bus. Another process
/// may take it first; then the start of a server is repeated with another.
pub(crate) fn free() -> u16 {
    (0..TRIES_MAX)
        .map(|_| any())
        .find(|port| is_free(*port) && is_free(port + BUS))
        .expect("one of many ports is free")
}

/// Chosen at random, so that tests in parallel seldom choose the same.
fn any() -> u16 {
    let number = RandomState::new().hash_one(()) % PORTS.len() as u64;
    PORTS.start + u16::try_from(number).expect("the range is one of u16")
}

fn is_free(port: u16) -> bool {
    TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok()
}

/// A port that is taken, and a free one: what a server is given in
/// tests that loses the first.
#[cfg(test)]
pub(crate) fn taken_then_free() -> (TcpListener, [u16; 2]) {
    let taken = free();
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, taken)).expect("it is free");
    let other = (0..TRIES_MAX).map(|_| free()).find(|port| *port != taken);
    (listener, [taken, other.expect("there are many")])
}
