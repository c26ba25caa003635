//! The process `onceward serve`: how it starts, stops, logs, and meets a full disk.

mod disk_full;
mod drain;
mod log;
mod start_and_stop;
mod suspended;
