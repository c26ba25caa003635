//! Operating a gateway, and several on one store.

mod operating;
mod shared;
