//! A Redis server.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use rustix::process::Signal;

use crate::program;
use crate::server::{DropAction, Server, wait_for};

/// The file is read at each start, before the arguments, and rewritten when a
/// replica is promoted: its replication settings must survive a restart.
const CONFIG: &str = "redis.conf";

/// The arguments of every server, unless a test changes them.
///
/// The append-only file is synced every second, which is Redis's recommendation and
/// the usual setting, so tests have the users' conditions. Replies wait until the
/// file is *written*, so a kill loses nothing, with one exception: while a sync is
/// slow, writes are delayed for up to two seconds. A test that relies on a killed
/// server having lost nothing sets `--appendfsync always`.
const ARGS: [&str; 12] = [
    "--bind",
    "127.0.0.1",
    "--save",
    "",
    "--appendonly",
    "yes",
    "--appendfsync",
    "everysec",
    "--dir",
    ".",
    // Otherwise a first replica waits five seconds for a second.
    "--repl-diskless-sync-delay",
    "0",
];

/// The deadline of an answer from a server.
const ANSWER_MAX: Duration = Duration::from_secs(2);

/// A Redis server.
#[derive(Debug)]
pub struct Redis {
    server: Server,
    port: u16,
    args: Vec<String>,
}

impl Redis {
    /// Starts a server.
    pub fn start() -> Self {
        Self::start_with(&[])
    }

    /// Starts a server with further arguments, such as `["--maxmemory-policy",
    /// "allkeys-lru"]`.
    pub fn start_with(args: &[&str]) -> Self {
        let args = args.iter().map(|&arg| arg.to_owned()).collect();
        Self::start_configured(args, "")
    }

    fn start_configured(args: Vec<String>, config: &str) -> Self {
        let mut server = Server::new("Redis", DropAction::Kill);
        server.write(CONFIG, config);
        let port = server.start(|server, port| command(server, port, &args), is_ready);
        Self { server, port, args }
    }

    /// The URL of database 0.
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// The port on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The server's directory.
    pub fn directory(&self) -> &Path {
        self.server.directory()
    }

    /// Starts a server with the same arguments that replicates this one, and waits
    /// until it has all the data that this one had at the call.
    pub fn replica(&self) -> Self {
        let config = format!("replicaof 127.0.0.1 {}\n", self.port);
        let replica = Self::start_configured(self.args.clone(), &config);
        let had = self.info("master_repl_offset");
        let had = had.and_then(|place| place.parse::<u64>().ok());
        let had = had.expect("a server tells how far it is, unless it asks for a password");
        wait_for("did not come into sync", &replica.server, || {
            self.sees(&replica) && replica.has(had)
        });
        replica
    }

    /// Whether a replica is connected and counts.
    fn sees(&self, replica: &Self) -> bool {
        let known = format!("port={},state=online", replica.port);
        ask(self.port, "INFO replication").is_ok_and(|text| text.contains(&known))
    }

    /// Whether this replica has received the primary's changes up to an offset.
    fn has(&self, offset: u64) -> bool {
        let up = self.info("master_link_status").as_deref() == Some("up");
        let at = self.info("slave_repl_offset");
        up && at.is_some_and(|at| at.parse::<u64>().is_ok_and(|at| at >= offset))
    }

    /// Makes this replica a primary, also after a restart.
    pub fn promote(&self) {
        for order in [&["REPLICAOF", "NO", "ONE"][..], &["CONFIG", "REWRITE"]] {
            assert_eq!(self.cli(order), "OK", "{order:?}");
        }
    }

    /// Runs a command with `redis-cli` and returns its output; for an error of the
    /// server, the text of the error.
    ///
    /// # Panics
    ///
    /// If the server cannot be reached.
    pub fn cli(&self, args: &[&str]) -> String {
        cli(self.port, args)
    }

    /// Kills the server, as a power failure would. It can be restarted.
    pub fn kill(&mut self) {
        self.server.kill();
    }

    /// Stops the server regularly.
    pub fn stop(&mut self) {
        // A replica writes a first file when it has all data of its primary, and
        // refuses to stop before that is done.
        self.wait_for("still writes its file", |redis| {
            redis.info("aof_rewrite_in_progress").as_deref() == Some("0")
        });
        self.server.stop(Signal::TERM);
    }

    /// Starts the server again after [`kill`](Self::kill) or
    /// [`stop`](Self::stop), with the same data, on the same port.
    pub fn restart(&mut self) {
        let command = command(&self.server, self.port, &self.args);
        let port = self.port;
        self.server
            .restart(command, |server| is_ready(server, port));
    }

    /// Pauses the server: it keeps its connections and answers nothing.
    pub fn pause(&self) {
        self.server.signal(Signal::STOP);
    }

    /// Resumes a paused server.
    pub fn resume(&self) {
        self.server.signal(Signal::CONT);
    }

    /// The server's log.
    pub fn log(&self) -> String {
        self.server.log()
    }

    /// A value of the server's INFO.
    fn info(&self, name: &str) -> Option<String> {
        let text = ask(self.port, "INFO").ok()?;
        fact(&text, name).map(str::to_owned)
    }

    /// A value of the server's CLUSTER INFO.
    pub(crate) fn cluster_info(&self, name: &str) -> Option<String> {
        let text = ask(self.port, "CLUSTER INFO").ok()?;
        fact(&text, name).map(str::to_owned)
    }

    /// Waits until this server has reached a state.
    pub(crate) fn wait_for(&self, what: &str, done: impl Fn(&Self) -> bool) {
        wait_for(what, &self.server, || done(self));
    }
}

fn command(server: &Server, port: u16, args: &[String]) -> Command {
    let mut command = server.command(&program::find("redis-server"));
    command.arg(CONFIG).args(ARGS);
    command.args(["--port", &port.to_string()]).args(args);
    command
}

/// Runs `redis-cli` to its end.
pub(crate) fn cli(port: u16, args: &[&str]) -> String {
    let output = program::command(&program::find("redis-cli"))
        .args(["-h", "127.0.0.1", "-p", &port.to_string()])
        .args(args)
        .output()
        .expect("redis-cli can be started");
    let printed = String::from_utf8_lossy(&output.stdout);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "redis-cli failed: {printed}{said}\nin: {args:?}"
    );
    printed.trim_end().to_owned()
}

/// Whether the server has read its data and answers, and is not another process on
/// its port. A server with a password answers only with an error, which is enough.
fn is_ready(server: &Server, port: u16) -> bool {
    let Ok(text) = ask(port, "INFO") else {
        return false;
    };
    let own = server.id().map(|id| id.to_string());
    let known = fact(&text, "process_id") == own.as_deref() && fact(&text, "loading") == Some("0");
    known || text.starts_with("-NOAUTH")
}

/// Sends a command whose answer is one string or an error.
fn ask(port: u16, question: &str) -> io::Result<String> {
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
    stream.set_read_timeout(Some(ANSWER_MAX))?;
    stream.set_write_timeout(Some(ANSWER_MAX))?;
    write!(stream, "{question}\r\n")?;
    let mut reader = BufReader::new(stream);
    let mut head = String::new();
    reader.read_line(&mut head)?;
    let Some(length) = head.strip_prefix('$') else {
        return Ok(head);
    };
    let length = length.trim().parse().map_err(io::Error::other)?;
    let mut text = String::new();
    reader.take(length).read_to_string(&mut text)?;
    Ok(text)
}

/// The value of a line `name:value`.
fn fact<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let value = |line: &'a str| line.strip_prefix(name)?.strip_prefix(':');
    text.lines().find_map(value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::port::taken_then_free;

    #[test]
    fn a_server_that_loses_its_port_starts_on_another() {
        let (_listener, ports) = taken_then_free();
        let mut server = Server::new("Redis", DropAction::Kill);
        server.write(CONFIG, "");
        let port = server.start_on(ports, |server, port| command(server, port, &[]), is_ready);
        assert_eq!(port, ports[1]);
        assert_eq!(cli(port, &["PING"]), "PONG");
    }

    #[test]
    #[should_panic(expected = "Bad directive or wrong number of arguments")]
    fn a_server_that_cannot_start_shows_its_log() {
        Redis::start_with(&["--no-such-setting", "on"]);
    }

    #[test]
    fn another_server_on_the_port_is_not_taken_for_it() {
        let (one, other) = (Redis::start(), Redis::start());
        assert!(is_ready(&one.server, one.port));
        assert!(!is_ready(&one.server, other.port));
    }
}
