//! A gateway process, `onceward serve`, on the embedded store of a directory.
//!
//! Dropping one ends it by its id.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{ExitStatus, Output, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use hyper::header::HeaderValue;
use rustix::process::{Pid, Resource, Rlimit, Signal, kill_process, prlimit};
use tokio::io::{AsyncBufReadExt, AsyncRead, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::client::{Answer, Client, Gone, PATH, get_request};
use crate::origin::Origin;

/// How long a start may take on a slow machine.
const START_MAX: Duration = Duration::from_secs(30);
/// How long an end may take that nothing holds up.
const END_MAX: Duration = Duration::from_secs(20);

/// The program.
pub(crate) fn onceward() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_onceward"));
    command
        .env_remove("FAILPOINTS")
        .stdin(Stdio::null())
        .kill_on_drop(true);
    command
}

/// Runs the program to its end.
pub(crate) async fn run_to_end(args: &[OsString]) -> Output {
    let run = onceward().args(args).output();
    timeout(Duration::from_secs(60), run)
        .await
        .unwrap()
        .unwrap()
}

/// How a gateway is to be started.
#[derive(Clone)]
pub(crate) struct Plan {
    args: Vec<OsString>,
    environment: Vec<(&'static str, OsString)>,
    failpoints: Option<String>,
    survives_file_limit: bool,
}

/// A gateway in front of this service, on the store in this directory.
pub(crate) fn gateway(origin: &Origin, directory: &Path) -> Plan {
    let mut store = OsString::from("embedded:");
    store.push(directory);
    gateway_on(origin, store)
}

/// A gateway in front of this service, on this store.
pub(crate) fn gateway_on(origin: &Origin, store: impl Into<OsString>) -> Plan {
    let args = ["serve", "--admin", "127.0.0.1:0", "--upstream"].map(OsString::from);
    Plan {
        args: args.into(),
        environment: Vec::new(),
        failpoints: None,
        survives_file_limit: false,
    }
    .with(format!("http://{}", origin.address()))
    .option("--store", store)
}

/// A gateway with this configuration.
pub(crate) fn gateway_of(config: &Path) -> Plan {
    Plan {
        args: ["serve", "--config"].map(OsString::from).into(),
        environment: Vec::new(),
        failpoints: None,
        survives_file_limit: false,
    }
    .with(config)
}

impl Plan {
    /// On this address, and not on a free port.
    pub(crate) fn at(self, listen: SocketAddr) -> Self {
        self.option("--listen", listen.to_string())
    }

    /// With an option and its value.
    pub(crate) fn option(self, name: &str, value: impl Into<OsString>) -> Self {
        self.with(name).with(value)
    }

    /// With a variable in its environment.
    pub(crate) fn variable(mut self, name: &'static str, value: impl Into<OsString>) -> Self {
        self.environment.push((name, value.into()));
        self
    }

    fn with(mut self, arg: impl Into<OsString>) -> Self {
        self.args.push(arg.into());
        self
    }

    /// With fail points, in the words of the `fail` crate.
    pub(crate) fn failing(mut self, failpoints: &str) -> Self {
        self.failpoints = Some(failpoints.to_owned());
        self
    }

    /// So that a write beyond the file size limit is an error and not the end.
    pub(crate) fn surviving_the_file_limit(mut self) -> Self {
        self.survives_file_limit = true;
        self
    }

    /// The arguments, to be tried by hand.
    pub(crate) fn args(&self) -> Vec<OsString> {
        let mut args = self.args.clone();
        let said = ["--listen", "--config"].map(OsString::from);
        if !args.iter().any(|arg| said.contains(arg)) {
            args.extend(["--listen", "127.0.0.1:0"].map(OsString::from));
        }
        args
    }

    /// Starts it and waits until it serves.
    pub(crate) async fn run(&self) -> Gateway {
        let starting = self.start();
        timeout(START_MAX, starting.ready()).await.unwrap()
    }

    /// Starts it.
    pub(crate) fn start(&self) -> Starting {
        let mut command = onceward();
        if self.survives_file_limit {
            // What a shell ignores stays ignored in what it becomes.
            command = Command::new("sh");
            command
                .args(["-c", r#"trap "" XFSZ; exec "$0" "$@""#])
                .arg(env!("CARGO_BIN_EXE_onceward"))
                .env_remove("FAILPOINTS")
                .stdin(Stdio::null())
                .kill_on_drop(true);
        }
        command.args(self.args()).envs(self.environment.clone());
        if let Some(failpoints) = &self.failpoints {
            command.env("FAILPOINTS", failpoints);
        }
        let mut child = command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap()).lines();
        let log = Arc::new(Mutex::default());
        let reading = tokio::spawn(read_log(child.stderr.take().unwrap(), log.clone()));
        Starting {
            child,
            stdout,
            log,
            reading,
        }
    }
}

type Log = Arc<Mutex<Vec<String>>>;

async fn read_log(from: impl AsyncRead + Unpin, log: Log) {
    let mut lines = BufReader::new(from).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        log.lock().unwrap().push(line);
    }
}

/// A gateway that has been started and does not serve yet.
pub(crate) struct Starting {
    child: Child,
    stdout: Lines<BufReader<ChildStdout>>,
    log: Log,
    reading: JoinHandle<()>,
}

impl Starting {
    /// Waits for the line that says where it listens.
    pub(crate) async fn ready(mut self) -> Gateway {
        let line = self.stdout.next_line().await.unwrap();
        let Some(line) = line else {
            panic!("it ended: {:?}", self.log.lock().unwrap());
        };
        let said: serde_json::Value = serde_json::from_str(&line).unwrap();
        let address = |name: &str| said[name].as_str().unwrap().parse().unwrap();
        Gateway {
            listen: address("listen"),
            admin: address("admin"),
            child: self.child,
            log: self.log,
            reading: self.reading,
        }
    }

    /// Kills it, and returns when it is gone.
    pub(crate) async fn kill(mut self) {
        self.child.kill().await.unwrap();
    }

    /// Waits for the end of one that does not come to serve.
    pub(crate) async fn ended(self) -> (ExitStatus, Vec<String>) {
        ended(self.child, self.log, self.reading).await
    }
}

/// A gateway that serves.
pub(crate) struct Gateway {
    listen: SocketAddr,
    admin: SocketAddr,
    child: Child,
    log: Log,
    reading: JoinHandle<()>,
}

impl Gateway {
    pub(crate) fn listen(&self) -> SocketAddr {
        self.listen
    }

    pub(crate) fn admin_address(&self) -> SocketAddr {
        self.admin
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id().unwrap()
    }

    /// `POST /payments` on a connection of its own.
    pub(crate) async fn post(&self, key: &str, body: &str) -> Result<Answer, Gone> {
        Client::new(self.listen).post(key, body).await
    }

    /// `POST /payments` in a task of its own.
    pub(crate) fn spawn_post(&self, key: &str, body: &str) -> JoinHandle<Result<Answer, Gone>> {
        let (mut client, key, body) = (Client::new(self.listen), key.to_owned(), body.to_owned());
        tokio::spawn(async move { client.post(&key, &body).await })
    }

    /// What recovery says of a key: its state, or `None` if there is no such
    /// operation.
    pub(crate) async fn state(&self, key: &str) -> Option<String> {
        let path = format!("{PATH}/by-idempotency-key/{key}/status");
        let request = get_request(&path);
        let answer = Client::new(self.listen).send(request).await.unwrap();
        match answer.status {
            200 => Some(answer.json()["state"].as_str().unwrap().to_owned()),
            404 => None,
            _ => panic!("{answer:?}"),
        }
    }

    /// A page of the admin listener.
    pub(crate) async fn admin(&self, path: &str) -> Result<Answer, Gone> {
        let mut request = get_request(path);
        // Without tokens no other name is answered.
        let host = HeaderValue::from_static("localhost");
        request.headers_mut().insert("host", host);
        Client::new(self.admin).send(request).await
    }

    /// A line of the metrics, as a number.
    pub(crate) async fn counted(&self, name: &str) -> usize {
        let page = self.admin("/metrics").await.unwrap();
        let page = String::from_utf8(page.body.into()).unwrap();
        let mut lines = page.lines().filter_map(|line| line.rsplit_once(' '));
        let value = lines.find_map(|(is, value)| (is == name).then(|| value.parse().unwrap()));
        value.unwrap_or_default()
    }

    /// Whether `/readyz` says so.
    pub(crate) async fn is_ready(&self) -> bool {
        let told = self.admin("/readyz").await;
        told.is_ok_and(|told| told.status == 200)
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(self.id(), signal).unwrap();
    }

    /// From now on no file may grow beyond this; `None` lifts the limit.
    pub(crate) fn limit_files(&self, bytes: Option<u64>) {
        let before = prlimit(
            Some(self.id()),
            Resource::Fsize,
            Rlimit {
                current: bytes,
                maximum: None,
            },
        );
        before.unwrap();
    }

    fn id(&self) -> Pid {
        Pid::from_raw(self.pid().cast_signed()).unwrap()
    }

    /// Kills it, and returns when it is gone.
    pub(crate) async fn kill(mut self) {
        self.child.kill().await.unwrap();
    }

    /// Waits for its end; gives how it ended and its whole log.
    pub(crate) async fn ended(self) -> (ExitStatus, Vec<String>) {
        ended(self.child, self.log, self.reading).await
    }
}

async fn ended(mut child: Child, log: Log, reading: JoinHandle<()>) -> (ExitStatus, Vec<String>) {
    let status = timeout(END_MAX, child.wait()).await;
    let status = status.expect("nothing holds it up").unwrap();
    reading.await.unwrap();
    let log = std::mem::take(&mut *log.lock().unwrap());
    (status, log)
}
