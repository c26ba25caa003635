//! Ends a server whose test was killed.
//!
//! A test that is killed, or interrupted at the terminal, drops nothing. So each
//! server has a guard: a shell that reads from a pipe whose other end is in the
//! test's process. The system closes the pipe however that process ends; the shell
//! then ends the server and removes the directory.
//!
//! Linux's parent-death signal would not work: it is sent when the *thread* that
//! started the server ends, which in async tests can be any.

use std::io::{self, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};

use rustix::process::Pid;

/// Reads ids of servers; the last one counts (an empty line: none runs). A server
/// that does not end within ten seconds of the given signal is killed.
const SCRIPT: &str = r#"
server=
while read -r line; do server=$line; done
if [ -n "$server" ]; then
    kill -s "$1" "$server"
    tries=0
    while kill -s 0 "$server" && [ $tries -lt 200 ]; do sleep 0.05; tries=$((tries + 1)); done
    kill -s KILL "$server"
fi
rm -rf "$2"
"#;

pub(crate) struct Guard {
    shell: Child,
    /// `None` when the guard has been released.
    orders: Option<ChildStdin>,
}

impl Guard {
    /// A guard for servers in this directory, which this signal ends.
    pub(crate) fn new(directory: &Path, signal: &str) -> Self {
        let mut shell = Command::new("/bin/sh")
            .args(["-c", SCRIPT, "guard", signal])
            .arg(directory)
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // A signal to the test's process group, or from its terminal, must not
            // end the guard.
            .process_group(0)
            .spawn()
            .expect("a shell can be started");
        let orders = shell.stdin.take();
        Self { shell, orders }
    }

    /// Sets the running server, if any.
    pub(crate) fn watch(&mut self, server: Option<Pid>) -> io::Result<()> {
        let line = server.map_or_else(String::new, |id| id.to_string());
        match &mut self.orders {
            Some(orders) => writeln!(orders, "{line}"),
            None => Ok(()),
        }
    }
}

impl Drop for Guard {
    /// Releases the guard and waits for it. The server has ended before.
    fn drop(&mut self) {
        self.orders = None;
        // This fails only after another wait.
        let _ = self.shell.wait();
    }
}
