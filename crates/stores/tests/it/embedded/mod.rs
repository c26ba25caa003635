//! The embedded store: the contract, crashes, damage, a full disk and older
//! layouts of the file.

mod conformance;
#[cfg(feature = "failpoints")]
mod crashing;
mod damage;
mod disk;
mod finding;
mod full;
mod killed;
mod opening;
mod power;
mod reclaiming;
mod surviving;
mod versions;
