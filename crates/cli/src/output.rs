//! Standard output and standard error, the one way in which every command writes to them.
//!
//! `println!` panics when its reader has gone, as in `onceward audit | head -1`. Here a closed
//! standard output is an error of its own, [`Closed`], and `main` ends the process with
//! [`CLOSED_STATUS`] and without a message. Standard error carries what must not mix with a
//! command's result: notes, warnings, prompts. Nothing can report that it is closed, so that is
//! ignored.

use std::fmt;
use std::io::{self, ErrorKind, Write as _};

/// The exit status after a closed standard output: 128 + SIGPIPE, which shells also report for a
/// program that the signal ended. It is not 0, because the command may have had more to do.
pub(crate) const CLOSED_STATUS: u8 = 141;

/// Standard output has no reader any more.
#[derive(Debug)]
pub(crate) struct Closed;

impl fmt::Display for Closed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("standard output is closed")
    }
}

impl std::error::Error for Closed {}

/// Writes text to standard output and flushes it. The error is [`Closed`] when the reader has
/// gone; pass it on with `?`.
pub(crate) fn print(text: &str) -> anyhow::Result<()> {
    let mut stdout = io::stdout().lock();
    let written = stdout.write_all(text.as_bytes());
    match written.and_then(|()| stdout.flush()) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Err(Closed.into()),
        Err(error) => Err(anyhow::Error::from(error).context("cannot write to standard output")),
    }
}

/// Writes text to standard error.
pub(crate) fn note(text: &str) {
    let mut stderr = io::stderr().lock();
    let _ = stderr.write_all(text.as_bytes());
    let _ = stderr.flush();
}
