//! Connections of clients: protocols, attacks on framing, slow readers, upgrades.

mod payloads;
mod protocols;
mod slow_clients;
mod tunnels;
