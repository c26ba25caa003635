//! Free ports.
//!
//! They are below the range that systems use for outgoing connections. Within that
//! range, a client that keeps trying to reach a killed server would eventually get
//! the server's own port as its source port, and the server could not listen on it
//! again.

use std::hash::{BuildHasher, RandomState};
use std::net::{Ipv4Addr, TcpListener};
use std::ops::Range;

const PORTS: Range<u16> = 12_000..22_000;
/// A Redis of a cluster listens on a second port, this far above its own.
const BUS: u16 = 10_000;
/// How many ports are tried before the test fails.
const TRIES_MAX: usize = 1_000;

/// A port on which no process listens now, and whose bus port is free too. Another
/// process may take it first; then the server starts again with another port.
pub(crate) fn free() -> u16 {
    (0..TRIES_MAX)
        .map(|_| any())
        .find(|port| is_free(*port) && is_free(port + BUS))
        .expect("one of many ports is free")
}

/// Chosen at random, so that parallel tests seldom choose the same.
fn any() -> u16 {
    let number = RandomState::new().hash_one(()) % PORTS.len() as u64;
    PORTS.start + u16::try_from(number).expect("the range is one of u16")
}

fn is_free(port: u16) -> bool {
    TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok()
}

/// A taken port and a free one, for tests of a server that loses the first.
#[cfg(test)]
pub(crate) fn taken_then_free() -> (TcpListener, [u16; 2]) {
    let taken = free();
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, taken)).expect("it is free");
    let other = (0..TRIES_MAX).map(|_| free()).find(|port| *port != taken);
    (listener, [taken, other.expect("there are many")])
}
