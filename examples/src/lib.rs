//! What the programs in `src/bin` share, or are too long to hold themselves.

pub mod journal;
