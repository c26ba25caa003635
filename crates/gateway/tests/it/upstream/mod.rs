//! Requests as upstreams get them, protected and not.

mod forwarding;
mod unprotected;
