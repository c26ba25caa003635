//! A Redis server.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use rustix::process::Signal;

use crate::program;
use crate::server::{Last, Server, wait_for};

/// Read at each start, before the arguments, and rewritten when a replica is
/// promoted: what it says of replication must outlive a restart.
const CONFIG: &str = "redis.conf";

/// What every server here is started with, unless a test says otherwise.
///
/// Its log of changes is synced every second, which is what Redis recommends
/// and what most have, so tests meet what users meet. Replies wait for the log
/// to be *written*, so a kill loses nothing, but with one exception: while a
/// sync is slow, writes are put off for up to two seconds. A test that says that a
/// killed server has lost nothing asks for `--appendfsync always`.
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
    // Else a first replica waits five seconds for a second.
    "--repl-diskless-sync-delay",
    "0",
];

/// How long a server may take to answer when it is asked how it is.
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

    /// Starts a server with more arguments, such as
    /// `["--maxmemory-policy", "allkeys-lru"]`.
    pub fn start_with(args: &[&str]) -> Self {
        let args = args.iter().map(|&arg| arg.to_owned()).collect();
        Self::start_configured(args, "")
    }

    fn start_configured(args: Vec<String>, config: &str) -> Self {
        let mut server = Server::new("Redis", Last::Kill);
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

    /// The directory of all that is the server's.
    pub fn directory(&self) -> &Path {
        self.server.directory()
    }

    /// Starts a server with the same arguments that replicates from this one,
    /// and waits until it has all that this one had when it was asked for.
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

    /// Whether a replica is one that counts.
    fn sees(&self, replica: &Self) -> bool {
        let known = format!("port={},state=online", replica.port);
        ask(self.port, "INFO replication").is_ok_and(|text| text.contains(&known))
    }

    /// Whether this replica has what came before a place in the primary's changes.
    fn has(&self, offset: u64) -> bool {
        let up = self.info("master_link_status").as_deref() == Some("up");
        let at = self.info("slave_repl_offset");
        up && at.is_some_and(|at| at.parse::<u64>().is_ok_and(|at| at >= offset))
    }

    /// Makes a primary of this replica, also for the time after a restart.
    pub fn promote(&self) {
        for order in [&["REPLICAOF", "NO", "ONE"][..], &["CONFIG", "REWRITE"]] {
            assert_eq!(self.cli(order), "OK", "{order:?}");
        }
    }

    /// Runs a command by `redis-cli` and gives what it printed, which for an
    /// error of the server's is the text of that error.
    ///
    /// # Panics
    ///
    /// If the server is not reached.
    pub fn cli(&self, args: &[&str]) -> String {
        cli(self.port, args)
    }

    /// Kills the server, as a loss of power would. It can be started again.
    pub fn kill(&mut self) {
        self.server.kill();
    }

    /// Ends the server in order.
    pub fn stop(&mut self) {
        // A replica writes a first file when it has all from its primary, and
        // says no to any order to end before that is done.
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

    /// Makes the server stand still: it keeps its connections and answers
    /// nothing.
    pub fn pause(&self) {
        self.server.signal(Signal::STOP);
    }

    /// Lets a paused server go on.
    pub fn resume(&self) {
        self.server.signal(Signal::CONT);
    }

    /// What the server has written to its log.
    pub fn log(&self) -> String {
        self.server.log()
    }

    /// A fact that the server tells about itself.
    fn info(&self, name: &str) -> Option<String> {
        let text = ask(self.port, "INFO").ok()?;
        fact(&text, name).map(str::to_owned)
    }

    /// A fact that the server tells about its cluster.
    pub(crate) fn cluster_info(&self, name: &str) -> Option<String> {
        let text = ask(self.port, "CLUSTER INFO").ok()?;
        fact(&text, name).map(str::to_owned)
    }

    /// Waits until this server has come to something.
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

/// Whether it has read its data and answers, and is not another on its port.
/// One that asks for a password says no more than this, which must do.
fn is_ready(server: &Server, port: u16) -> bool {
    let Ok(text) = ask(port, "INFO") else {
        return false;
    };
    let own = server.id().map(|id| id.to_string());
    let known = fact(&text, "process_id") == own.as_deref() && fact(&text, "loading") == Some("0");
    known || text.starts_with("-NOAUTH")
}

/// Asks something that is answered by one text, or by an error.
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
    fn who_loses_a_port_starts_on_another() {
        let (_listener, ports) = taken_then_free();
        let mut server = Server::new("Redis", Last::Kill);
        server.write(CONFIG, "");
        let port = server.start_on(ports, |server, port| command(server, port, &[]), is_ready);
        assert_eq!(port, ports[1]);
        assert_eq!(cli(port, &["PING"]), "PONG");
    }

    #[test]
    #[should_panic(expected = "Bad directive or wrong number of arguments")]
    fn who_cannot_start_shows_its_log() {
        Redis::start_with(&["--no-such-setting", "on"]);
    }

    #[test]
    fn another_server_on_the_port_is_not_taken_for_it() {
        let (one, other) = (Redis::start(), Redis::start());
        assert!(is_ready(&one.server, one.port));
        assert!(!is_ready(&one.server, other.port));
    }
}
