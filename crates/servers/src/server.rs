//! The common part of all servers: a process, its directory, log and guard; its
//! start on a free port, and its end.

use std::fmt;
use std::fs::{self, File};
use std::iter;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::directory::Directory;
use crate::guard::Guard;
use crate::port;
use crate::process;
use crate::program::{self, Account};

/// The deadline of a start, on a machine that is busy with other work.
const START_MAX: Duration = Duration::from_secs(60);
/// The deadline of a regular stop.
const END_MAX: Duration = Duration::from_secs(60);
/// How long a dropped server may take to end by itself.
const THROW_AWAY_MAX: Duration = Duration::from_secs(10);
/// The pause between two checks.
const PAUSE: Duration = Duration::from_millis(5);
/// How many ports may be lost to other processes.
const PORTS_MAX: usize = 20;
/// The log message of each server when another process listens on its port.
const PORT_TAKEN: &str = "Address already in use";

/// A server's process, running or not, and its directory.
pub(crate) struct Server {
    name: &'static str,
    account: Account,
    running: Option<Child>,
    on_drop: DropAction,
    /// The offset in the log where the current process began.
    log_start: usize,
    // The directory is dropped before the guard.
    directory: Directory,
    guard: Guard,
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server")
            .field("name", &self.name)
            .field("pid", &self.running.as_ref().map(Child::id))
            .finish_non_exhaustive()
    }
}

/// The result of a start.
enum Started {
    Ready,
    PortTaken,
}

/// How a server ends when it is dropped.
#[derive(Clone, Copy)]
pub(crate) enum DropAction {
    /// Killed, because it leaves nothing outside of its directory.
    Kill,
    /// Asked to quit at once, so that it removes what is outside of its directory.
    Quit,
}

impl Server {
    /// A server that does not run yet, in a new directory.
    pub(crate) fn new(name: &'static str, on_drop: DropAction) -> Self {
        let account = Account::choose();
        let directory = Directory::new(account);
        let signal = match on_drop {
            DropAction::Kill => "KILL",
            DropAction::Quit => "QUIT",
        };
        Self {
            name,
            account,
            running: None,
            on_drop,
            log_start: 0,
            guard: Guard::new(directory.whole(), signal),
            directory,
        }
    }

    pub(crate) fn directory(&self) -> &Path {
        self.directory.path()
    }

    pub(crate) fn id(&self) -> Option<Pid> {
        self.running.as_ref().map(Pid::from_child)
    }

    /// A command under the server's account, in its directory.
    pub(crate) fn command(&self, program: &Path) -> Command {
        let mut command = program::command(program);
        command.current_dir(self.directory());
        self.account.run(&mut command);
        command
    }

    /// Writes a file that the server may read and change.
    pub(crate) fn write(&self, name: &str, text: &str) {
        let path = self.directory().join(name);
        fs::write(&path, text).expect("the server's directory can be written");
        self.account.own(&path);
    }

    /// Starts the command on a free port, and waits until the server is ready.
    pub(crate) fn start(
        &mut self,
        command: impl Fn(&Self, u16) -> Command,
        ready: impl Fn(&Self, u16) -> bool,
    ) -> u16 {
        let ports = iter::repeat_with(port::free).take(PORTS_MAX);
        self.start_on(ports, command, ready)
    }

    /// Starts the command on the first of these ports that no other process takes
    /// meanwhile.
    pub(crate) fn start_on(
        &mut self,
        ports: impl IntoIterator<Item = u16>,
        command: impl Fn(&Self, u16) -> Command,
        ready: impl Fn(&Self, u16) -> bool,
    ) -> u16 {
        for port in ports {
            self.spawn(command(self, port));
            match self.wait_until_ready(|server| ready(server, port)) {
                Started::Ready => return port,
                Started::PortTaken => self.kill(),
            }
        }
        self.fail("lost every port to others");
    }

    /// Starts the server again on its port, and waits until it is ready.
    pub(crate) fn restart(&mut self, command: Command, ready: impl Fn(&Self) -> bool) {
        assert!(self.has_ended(), "{} still runs", self.name);
        self.forget();
        self.spawn(command);
        if let Started::PortTaken = self.wait_until_ready(ready) {
            self.fail("lost its port to another while it did not run");
        }
    }

    fn spawn(&mut self, mut command: Command) {
        self.log_start = self.log_bytes().len();
        let log = File::options()
            .append(true)
            .create(true)
            .open(self.log_path())
            .expect("the log can be written");
        let errors = log.try_clone().expect("a file can be opened twice");
        let child = command
            .stdin(Stdio::null())
            .stdout(log)
            .stderr(errors)
            // Signals to the test's process group, for example from its terminal,
            // must not end the server: a test may handle them and still need it.
            .process_group(0)
            .spawn()
            .unwrap_or_else(|error| panic!("{} cannot be started: {error}", self.name));
        self.running = Some(child);
        self.watch().expect("the guard lives as long as its server");
    }

    fn watch(&mut self) -> std::io::Result<()> {
        self.guard.watch(self.id())
    }

    fn wait_until_ready(&mut self, ready: impl Fn(&Self) -> bool) -> Started {
        let deadline = Instant::now() + START_MAX;
        loop {
            // In this order: a server that answers after it was seen running is
            // this one, and not another process on its port.
            let ended = self.has_ended();
            let ready = !ended && ready(self);
            if (ended || ready) && self.says_port_taken() {
                return Started::PortTaken;
            }
            if ready {
                return Started::Ready;
            }
            if ended {
                self.fail("ended before it was ready");
            }
            if Instant::now() > deadline {
                self.fail("was not ready in time");
            }
            thread::sleep(PAUSE);
        }
    }

    fn says_port_taken(&self) -> bool {
        let log = self.log_bytes();
        String::from_utf8_lossy(&log[self.log_start..]).contains(PORT_TAKEN)
    }

    fn has_ended(&mut self) -> bool {
        let status = self.running.as_mut().map(Child::try_wait);
        !matches!(status, Some(Ok(None)))
    }

    /// Sends a signal to the server's first process.
    pub(crate) fn signal(&self, signal: Signal) {
        let id = self.id().unwrap_or_else(|| self.fail("does not run"));
        kill_process(id, signal).expect("a process that was not waited for has its id");
    }

    /// Stops the server regularly with this signal.
    pub(crate) fn stop(&mut self, signal: Signal) {
        self.signal(signal);
        if !self.ends_within(END_MAX) {
            self.fail("did not end in time");
        }
        self.forget();
    }

    /// Kills the server and all its descendants at once, as a power failure would,
    /// and waits until they have ended. Does nothing if the server does not run.
    pub(crate) fn kill(&mut self) {
        let Some(id) = self.id() else { return };
        if self.has_ended() {
            return self.forget();
        }
        // An error means that the process has ended already.
        let _ = kill_process(id, Signal::STOP);
        // A stopped process starts no children while they are listed.
        wait_until(|| process::is_stopped(id));
        let others = process::descendants(id);
        let _ = kill_process(id, Signal::KILL);
        for other in &others {
            let _ = kill_process(other.id, Signal::KILL);
        }
        self.forget();
        wait_until(|| others.iter().all(process::Process::is_gone));
    }

    fn ends_within(&mut self, limit: Duration) -> bool {
        let deadline = Instant::now() + limit;
        while !self.has_ended() {
            if Instant::now() > deadline {
                return false;
            }
            thread::sleep(PAUSE);
        }
        true
    }

    /// Waits for an ending process, and reports to the guard that none runs.
    fn forget(&mut self) {
        let Some(mut child) = self.running.take() else {
            return;
        };
        // Before the id may be reused. A guard that has ended can do no harm.
        let _ = self.watch();
        child.wait().expect("only this waits for it");
    }

    pub(crate) fn log(&self) -> String {
        String::from_utf8_lossy(&self.log_bytes()).into_owned()
    }

    /// The log; empty if the server was never started.
    fn log_bytes(&self) -> Vec<u8> {
        fs::read(self.log_path()).unwrap_or_default()
    }

    fn log_path(&self) -> PathBuf {
        self.directory().join("log")
    }

    /// Panics with the server's log.
    pub(crate) fn fail(&self, what: &str) -> ! {
        panic!("{} {what}. Its log:\n{}", self.name, self.log());
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let (DropAction::Quit, Some(id)) = (self.on_drop, self.id()) {
            // An error means that the process has ended already.
            let _ = kill_process(id, Signal::QUIT);
            self.ends_within(THROW_AWAY_MAX);
        }
        self.kill();
    }
}

/// Waits for something that the system does without delay.
fn wait_until(done: impl Fn() -> bool) {
    let deadline = Instant::now() + END_MAX;
    while !done() {
        assert!(Instant::now() < deadline, "processes do not end");
        thread::sleep(PAUSE);
    }
}

/// Waits until a running server has reached a state.
pub(crate) fn wait_for(what: &str, server: &Server, done: impl Fn() -> bool) {
    let deadline = Instant::now() + START_MAX;
    while !done() {
        if Instant::now() > deadline {
            server.fail(what);
        }
        thread::sleep(PAUSE);
    }
}
