//! A PostgreSQL server.

use std::fmt::Write as _;
use std::fs;
use std::io::{Seek, Write as _};
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::process::Signal;

use crate::program;
use crate::server::{DropAction, Server};
use crate::template::{self, DATA};

/// The settings of every server, unless a test changes them. An acknowledged commit
/// is on disk, as in production; these are PostgreSQL's own defaults, written down
/// because tests rely on them.
const SETTINGS: [(&str, &str); 8] = [
    ("fsync", "on"),
    ("synchronous_commit", "on"),
    ("listen_addresses", "127.0.0.1"),
    // The server runs in its data directory.
    ("unix_socket_directories", ".."),
    ("max_connections", "200"),
    ("shared_buffers", "32MB"),
    // In the data directory, so that a killed server leaves none behind.
    ("dynamic_shared_memory_type", "mmap"),
    ("timezone", "UTC"),
];

/// A PostgreSQL server of the installed version (the highest, if there are
/// several). Its superuser is `postgres`; no password is needed.
#[derive(Debug)]
pub struct Postgres {
    server: Server,
    port: u16,
}

impl Postgres {
    /// Starts a server.
    pub fn start() -> Self {
        Self::start_with(&[])
    }

    /// Starts a server with further settings, as in `postgresql.conf`.
    pub fn start_with(settings: &[(&str, &str)]) -> Self {
        let mut server = prepare(settings);
        let port = server.start(command, is_ready);
        Self { server, port }
    }

    /// The URL of the database `postgres` for the superuser.
    pub fn url(&self) -> String {
        self.url_of("postgres", "postgres")
    }

    /// The URL of a database for a user. The names are not escaped.
    pub fn url_of(&self, user: &str, database: &str) -> String {
        format!("postgres://{user}@127.0.0.1:{}/{database}", self.port)
    }

    /// The port on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The server's directory. Its data is in `data`.
    pub fn directory(&self) -> &Path {
        self.server.directory()
    }

    /// Creates a database and returns its URL for the superuser.
    pub fn database(&self, name: &str) -> String {
        let quoted = name.replace('"', "\"\"");
        self.sql("postgres", &format!("CREATE DATABASE \"{quoted}\""));
        self.url_of("postgres", name)
    }

    /// A program that is installed with the server, such as pgbench.
    pub fn program(name: &str) -> PathBuf {
        program::find_beside_postgres(name)
    }

    /// Runs a script of SQL with `psql`, as the superuser, each statement by
    /// itself, and returns its output: one line per row, columns separated by `|`,
    /// and nothing for statements without rows.
    ///
    /// # Panics
    ///
    /// At the first statement that fails, with the server's message.
    pub fn sql(&self, database: &str, sql: &str) -> String {
        let mut script = tempfile::tempfile().expect("a temporary file can be made");
        script
            .write_all(sql.as_bytes())
            .and_then(|()| script.rewind())
            .expect("a temporary file can be written");
        let output = program::command(&program::find_beside_postgres("psql"))
            .args(["-X", "-A", "-t", "-q", "-v", "ON_ERROR_STOP=1"])
            .args(["-h", "127.0.0.1", "-p", &self.port.to_string()])
            .args(["-U", "postgres", "-d", database])
            .stdin(script)
            .output()
            .expect("psql can be started");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "psql failed: {said}\nin: {sql}");
        let printed = String::from_utf8_lossy(&output.stdout);
        printed.trim_end().to_owned()
    }

    /// Kills all of the server's processes at once, as a power failure would, and
    /// waits until they have ended. It can be restarted.
    pub fn kill(&mut self) {
        self.server.kill();
        self.forget_killed();
    }

    /// Stops the server regularly, without waiting for its clients.
    pub fn stop(&mut self) {
        self.server.stop(Signal::INT);
    }

    /// Starts the server again after [`kill`](Self::kill) or
    /// [`stop`](Self::stop), with the same data, on the same port.
    pub fn restart(&mut self) {
        let command = command(&self.server, self.port);
        let port = self.port;
        self.server
            .restart(command, |server| is_ready(server, port));
    }

    /// The server's log.
    pub fn log(&self) -> String {
        self.server.log()
    }

    /// Removes what a killed server leaves behind: lock files, whose process ids
    /// may be reused, and a shared memory segment, which is outside of the
    /// directory and of which the system has few.
    fn forget_killed(&self) {
        let lock = data(&self.server).join("postmaster.pid");
        let Ok(text) = fs::read_to_string(&lock) else {
            return;
        };
        // The seventh line has the key and the id of the segment.
        let segment = text
            .lines()
            .nth(6)
            .and_then(|line| line.split(' ').next_back());
        if let Some(segment) = segment {
            // Without this program, or without a segment, nothing is removed, which
            // does no further harm.
            let _ = Command::new("ipcrm").args(["-m", segment]).output();
        }
        let socket = format!(".s.PGSQL.{}.lock", self.port);
        for path in [lock, self.directory().join(socket)] {
            fs::remove_file(path).expect("a killed server leaves its lock files");
        }
    }
}

/// A server with its data and settings, ready to be started.
fn prepare(settings: &[(&str, &str)]) -> Server {
    let server = Server::new("PostgreSQL", DropAction::Quit);
    template::copy(&server);
    configure(&server, settings);
    server
}

fn data(server: &Server) -> PathBuf {
    server.directory().join(DATA)
}

/// Writes the settings; of several with one name, the last counts.
fn configure(server: &Server, more: &[(&str, &str)]) {
    let path = data(server).join("postgresql.conf");
    let mut text = fs::read_to_string(&path).expect("initdb wrote a configuration");
    for (name, value) in SETTINGS.iter().chain(more) {
        let value = value.replace('\'', "''");
        writeln!(text, "{name} = '{value}'").expect("a string can be written to");
    }
    fs::write(path, text).expect("the server's directory can be written");
}

fn command(server: &Server, port: u16) -> Command {
    let mut command = server.command(&program::find("postgres"));
    command.args(["-D", DATA, "-p", &port.to_string()]);
    command
}

/// Whether it accepts connections, asked through the socket in its own directory,
/// so that no other server can answer. By then it listens on its port, or it would
/// have ended.
pub(crate) fn is_ready(server: &Server, port: u16) -> bool {
    let mut ask = server.command(&program::find_beside_postgres("pg_isready"));
    ask.arg("-q").arg("-h").arg(server.directory());
    ask.args(["-p", &port.to_string(), "-U", "postgres", "-t", "5"]);
    let status = ask.output().expect("pg_isready can be started").status;
    status.success()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::port::taken_then_free;

    #[test]
    fn a_server_that_loses_its_port_starts_on_another() {
        let (_listener, ports) = taken_then_free();
        let mut server = prepare(&[]);
        let port = server.start_on(ports, command, is_ready);
        assert_eq!(port, ports[1]);
        let postgres = Postgres { server, port };
        assert_eq!(postgres.sql("postgres", "SHOW port"), port.to_string());
    }

    #[test]
    #[should_panic(expected = "unrecognized configuration parameter \"no_such_setting\"")]
    fn a_server_that_cannot_start_shows_its_log() {
        Postgres::start_with(&[("no_such_setting", "on")]);
    }
}
