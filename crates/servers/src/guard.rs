//! Ends a server whose test was killed.
//!
//! A test that is killed, or that is interrupted at the terminal, drops
//! nothing. So each server has a guard: a shell that waits for the end of a
//! pipe whose other end is in the test's process, and which the system closes
//! however that process ends. Then it ends the server and removes the
//! directory.
//!
//! Linux's signal at the parent's death would not do: it comes when the
//! *thread* ends that started the server, which in async tests is any.

use std::io::{self, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};

use rustix::process::Pid;

/// Reads ids of servers, of which the last counts (nothing: none runs). A
/// server that does not end by the given signal within ten seconds is killed.
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
    /// Gone when the guard has been let go.
    orders: Option<ChildStdin>,
}

impl Guard {
    /// A guard of servers in this directory, which end by this signal.
    pub(crate) fn new(directory: &Path, signal: &str) -> Self {
        let mut shell = Command::new("/bin/sh")
            .args(["-c", SCRIPT, "guard", signal])
            .arg(directory)
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // What ends the test's group, or comes from its terminal, must
            // leave the guard to its work.
            .process_group(0)
            .spawn()
            .expect("a shell can be started");
        let orders = shell.stdin.take();
        Self { shell, orders }
    }

    /// From now on this is the server that runs, if any.
    pub(crate) fn watch(&mut self, server: Option<Pid>) -> io::Result<()> {
        let line = server.map_or_else(String::new, |id| id.to_string());
        match &mut self.orders {
            Some(orders) => writeln!(orders, "{line}"),
            None => Ok(()),
        }
    }
}

impl Drop for Guard {
    /// Lets the guard go and waits for it. The server has ended before.
    fn drop(&mut self) {
        self.orders = None;
        // Only another wait for it could make this fail.
        let _ = self.shell.wait();
    }
}
