//! Parts of the programs in `src/bin` that are shared or long.

pub mod journal;
