//! `onceward schema`: the configuration's JSON Schema, for editors and checks.

use std::io::{self, ErrorKind, Write as _};
use std::process::ExitCode;

use onceward_gateway::config;

pub(crate) fn run() -> anyhow::Result<ExitCode> {
    print(&(serde_json::to_string_pretty(&config::schema())? + "\n"))?;
    Ok(ExitCode::SUCCESS)
}

/// Writes a long text to standard output. Who reads only its beginning, as
/// `head` does, has read enough: that is no error.
pub(crate) fn print(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        ended => ended,
    }
}
