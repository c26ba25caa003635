//! Starts a PostgreSQL and a Redis for a benchmark, prints their URLs, one per line, and runs until
//! it is ended. However it ends, its guards end the servers.

#![allow(clippy::print_stdout, reason = "a program that prints URLs")]

use std::thread;

use onceward_servers::{Postgres, Redis};

fn main() {
    let postgres = Postgres::start_with(&[("shared_buffers", "512MB"), ("max_wal_size", "4GB")]);
    // A rewrite of the log would slow down one scenario of many.
    let redis = Redis::start_with(&["--auto-aof-rewrite-percentage", "0"]);
    println!("{}\n{}\nready", postgres.url(), redis.url());
    loop {
        thread::park();
    }
}
