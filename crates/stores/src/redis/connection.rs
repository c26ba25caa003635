//! Connections to Redis: to one server, or to a Cluster.
//!
//! Many callers share a connection; their commands are sent together and
//! answered in order. A lost connection is replaced by the next caller.
//!
//! Where writes must reach replicas, a step is followed on the same connection
//! by a small write and by `WAIT`. The small write is necessary because `WAIT`
//! only covers what its own connection wrote: a step that finds everything done
//! already, by an earlier try or by another process, would otherwise be
//! acknowledged without confirmation. A full server refuses the plain `SET`; then
//! a script writes in the one way that a full server accepts.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared, try_join_all};
use redis::aio::{ConnectionLike, MultiplexedConnection};
use redis::cluster_async::ClusterConnection;
use redis::{
    AsyncConnectionConfig, Client, Cmd, ErrorKind, Pipeline, PushInfo, PushKind, RedisResult,
    ServerErrorKind, Value, cmd,
};
use tokio::runtime::Handle;
use tokio_util::task::AbortOnDropHandle;

use super::error::{Error, Result};
use super::pipeline::CommandPipeline;
use super::response;
use super::script::{CONFIRM, with_source};
use super::shard::Shard;
use crate::Durability;

/// The pause before a failed connection attempt is repeated.
const RECONNECT_PAUSE: Duration = Duration::from_millis(100);
/// How many commands a connection buffers before its callers wait.
const BUFFER: usize = 1_024;

/// All connections of a store.
pub(super) struct Connections {
    connections: Vec<SharedConnection>,
    next: AtomicUsize,
    durability: Durability,
    /// How long `WAIT` may take.
    wait_max: Duration,
}

/// A connection to the data: to one server, or to all nodes of a Cluster.
pub(super) enum SharedConnection {
    Server(Box<ServerConnection>),
    Cluster(ClusterConnection),
}

impl Connections {
    pub(super) fn new(
        connections: Vec<SharedConnection>,
        durability: Durability,
        deadline: Duration,
    ) -> Self {
        Self {
            connections,
            next: AtomicUsize::default(),
            durability,
            // Short enough for its answer to arrive before the step's deadline.
            wait_max: deadline / 2,
        }
    }

    fn any_connection(&self) -> &SharedConnection {
        self.connection_for(self.next.fetch_add(1, Ordering::Relaxed))
    }

    /// Always the same connection for a shard: a later command must not overtake
    /// an earlier one.
    fn connection_for(&self, number: usize) -> &SharedConnection {
        &self.connections[number % self.connections.len()]
    }

    /// Runs a step on a shard and waits until enough replicas have confirmed it.
    pub(super) async fn run_confirmed(&self, shard: &Shard, step: Cmd) -> Result<Value> {
        self.run_confirmed_with(shard.number, &shard.confirmed, step)
            .await
    }

    /// The same with a number in place of a shard, and the key of the small write.
    pub(super) async fn run_confirmed_with(
        &self,
        number: usize,
        confirmed: &str,
        step: Cmd,
    ) -> Result<Value> {
        let connection = self.connection_for(number);
        let wanted = match self.durability {
            Durability::Primary => return Self::send(connection, step).await,
            Durability::Replicas(wanted) => wanted,
        };
        let answer = self
            .send_confirmed(connection, confirmed, wanted, &step)
            .await;
        match answer {
            Err(Error::Redis(error)) if is_unknown_script(&error) => {
                let step = with_source(&step).ok_or(Error::Redis(error))?;
                self.send_confirmed(connection, confirmed, wanted, &step)
                    .await
            }
            answer => answer,
        }
    }

    async fn send_confirmed(
        &self,
        connection: &SharedConnection,
        confirmed: &str,
        wanted: u32,
        step: &Cmd,
    ) -> Result<Value> {
        let mut all = Pipeline::with_capacity(3);
        all.add_command(step.clone());
        all.cmd("SET").arg(confirmed).arg(1);
        all.add_command(self.wait_for(wanted));
        let [answer, written, reached] = exactly(connection.send_all(&all, 3).await?)?;
        let answer = answer.extract_error()?;
        let reached = match written.extract_error().map_err(Error::from) {
            Ok(_) => reached,
            Err(Error::Full(_)) => self.confirm_on_full(connection, confirmed, wanted).await?,
            Err(error) => return Err(error),
        };
        let reached = response::number(reached.extract_error()?)?;
        if reached < u64::from(wanted) {
            return Err(Error::Unconfirmed { reached, wanted });
        }
        Ok(answer)
    }

    /// How many replicas have everything that was sent to a full server so far.
    async fn confirm_on_full(
        &self,
        connection: &SharedConnection,
        confirmed: &str,
        wanted: u32,
    ) -> Result<Value> {
        let keys = [confirmed.to_owned(), format!("{confirmed}:none")];
        let mut all = Pipeline::with_capacity(2);
        all.add_command(CONFIRM.with_source_on(&keys));
        all.add_command(self.wait_for(wanted));
        let [written, reached] = exactly(connection.send_all(&all, 2).await?)?;
        written.extract_error()?;
        Ok(reached)
    }

    fn wait_for(&self, wanted: u32) -> Cmd {
        let wait_ms = u64::try_from(self.wait_max.as_millis()).unwrap_or(u64::MAX);
        let mut wait = cmd("WAIT");
        wait.arg(wanted).arg(wait_ms.max(1));
        wait
    }

    /// Runs a command on the connection of a shard, without confirmation.
    pub(super) async fn run_on(&self, shard: &Shard, command: Cmd) -> Result<Value> {
        Self::send(self.connection_for(shard.number), command).await
    }

    /// The number of the connection to a shard. A new number means a new
    /// connection, which may lead to another server. The Cluster client manages
    /// its connections itself and always has 0.
    pub(super) fn connection_number(&self, shard: &Shard) -> u64 {
        match self.connection_for(shard.number) {
            SharedConnection::Server(server) => server.reconnecting.current().number,
            SharedConnection::Cluster(_) => 0,
        }
    }

    /// Runs a command on any connection, without confirmation.
    pub(super) async fn run(&self, command: Cmd) -> Result<Value> {
        Self::send(self.any_connection(), command).await
    }

    async fn send(connection: &SharedConnection, command: Cmd) -> Result<Value> {
        match connection.send(&command).await {
            Err(error) if is_unknown_script(&error) => {
                let command = with_source(&command).ok_or(Error::Redis(error))?;
                Ok(connection.send(&command).await?)
            }
            answer => Ok(answer?),
        }
    }

    /// Runs many commands at once: one round trip, or one to each node of a Cluster.
    pub(super) async fn run_all(&self, commands: Vec<Cmd>) -> Result<Vec<Value>> {
        if commands.is_empty() {
            return Ok(Vec::new());
        }
        let connection = self.any_connection();
        let answers = connection.send_each(&commands).await?;
        let mut values = Vec::with_capacity(answers.len());
        for (command, answer) in commands.iter().zip(answers) {
            values.push(match answer.extract_error() {
                Err(error) if is_unknown_script(&error) => {
                    let command = with_source(command).ok_or(Error::Redis(error))?;
                    connection.send(&command).await?
                }
                answer => answer?,
            });
        }
        Ok(values)
    }

    /// Runs many steps at once, each confirmed.
    pub(super) async fn run_all_confirmed(&self, steps: Vec<(&Shard, Cmd)>) -> Result<Vec<Value>> {
        match self.durability {
            Durability::Primary => {
                let steps = steps.into_iter().map(|(_, step)| step);
                self.run_all(steps.collect()).await
            }
            Durability::Replicas(_) => {
                let steps = steps.into_iter();
                try_join_all(steps.map(|(shard, step)| self.run_confirmed(shard, step))).await
            }
        }
    }
}

fn exactly<const COUNT: usize>(answers: Vec<Value>) -> Result<[Value; COUNT]> {
    let answers = <[Value; COUNT]>::try_from(answers);
    answers.map_err(|_| Error::Response("the number of answers"))
}

fn is_unknown_script(error: &redis::RedisError) -> bool {
    error.kind() == ErrorKind::Server(ServerErrorKind::NoScript)
}

impl SharedConnection {
    async fn send(&self, command: &Cmd) -> RedisResult<Value> {
        match self {
            Self::Server(server) => server.send(command).await,
            Self::Cluster(cluster) => cluster.clone().req_packed_command(command).await,
        }?
        .extract_error()
    }

    async fn send_all(&self, all: &Pipeline, count: usize) -> RedisResult<Vec<Value>> {
        match self {
            Self::Server(server) => server.send_all(all, count).await,
            Self::Cluster(cluster) => cluster.clone().req_packed_commands(all, 0, count).await,
        }
    }

    /// Sends commands that may belong to different nodes. An error that a server
    /// returns for one of them is its value.
    async fn send_each(&self, commands: &[Cmd]) -> RedisResult<Vec<Value>> {
        match self {
            Self::Server(server) => {
                let mut all = Pipeline::with_capacity(commands.len());
                for command in commands {
                    all.add_command(command.clone());
                }
                server.send_all(&all, commands.len()).await
            }
            Self::Cluster(cluster) => {
                try_join_all(commands.iter().map(|command| async {
                    match cluster.clone().req_packed_command(command).await {
                        Err(error) => match redis::ServerError::try_from(error) {
                            Ok(error) => Ok(Value::ServerError(error)),
                            Err(error) => Err(error),
                        },
                        answer => answer,
                    }
                }))
                .await
            }
        }
    }
}

/// A connection to one server.
pub(super) struct ServerConnection {
    reconnecting: Arc<Reconnecting>,
    pipeline: CommandPipeline,
}

impl ServerConnection {
    pub(super) fn new(client: Client, deadline: Duration) -> Self {
        let reconnecting = Arc::new(Reconnecting::new(client, deadline));
        Self {
            pipeline: CommandPipeline::new(reconnecting.clone()),
            reconnecting,
        }
    }

    async fn send(&self, command: &Cmd) -> RedisResult<Value> {
        self.pipeline.send(command.clone()).await
    }

    async fn send_all(&self, all: &Pipeline, count: usize) -> RedisResult<Vec<Value>> {
        let live = self.reconnecting.live().await?;
        self.reconnecting.send_all(live, all, count).await
    }
}

/// A connection to one server that is replaced when it is lost.
pub(super) struct Reconnecting {
    client: Client,
    /// Drives every connection, whichever runtime asks for it: that one may end before
    /// the connection, or has requests to serve.
    runtime: Handle,
    deadline: Duration,
    attempt: Mutex<ConnectionAttempt>,
}

type ConnectionFuture = Shared<BoxFuture<'static, RedisResult<MultiplexedConnection>>>;

/// A connection that is established, or being established.
#[derive(Clone)]
struct ConnectionAttempt {
    number: u64,
    established: ConnectionFuture,
    /// Set when the connection ends, so that nothing more is sent on it.
    ended: Arc<AtomicBool>,
}

/// An established connection.
pub(super) struct LiveConnection {
    attempt: ConnectionAttempt,
    connection: MultiplexedConnection,
}

impl Reconnecting {
    fn new(client: Client, deadline: Duration) -> Self {
        let runtime = Handle::current();
        let attempt = ConnectionAttempt::new(0, &runtime, &client, deadline, Duration::ZERO);
        Self {
            client,
            runtime,
            deadline,
            attempt: Mutex::new(attempt),
        }
    }

    /// The established connection; establishes one if necessary.
    pub(super) async fn live(&self) -> RedisResult<LiveConnection> {
        let attempt = self.current().clone();
        match attempt.established.clone().await {
            Ok(connection) => Ok(LiveConnection {
                attempt,
                connection,
            }),
            Err(error) => {
                self.replace(&attempt, RECONNECT_PAUSE);
                Err(error)
            }
        }
    }

    pub(super) async fn send_all(
        &self,
        live: LiveConnection,
        all: &Pipeline,
        count: usize,
    ) -> RedisResult<Vec<Value>> {
        let LiveConnection {
            attempt,
            mut connection,
        } = live;
        let answers = connection.send_packed_commands(all, 0, count).await;
        if let Err(error) = &answers {
            self.replace_if_lost(&attempt, error);
        }
        let answers = answers?;
        for answer in &answers {
            self.replace_if_replica(&attempt, answer);
        }
        Ok(answers)
    }

    fn lock(&self) -> MutexGuard<'_, ConnectionAttempt> {
        self.attempt.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The latest attempt that has not been seen to end.
    fn current(&self) -> MutexGuard<'_, ConnectionAttempt> {
        let mut attempt = self.lock();
        if attempt.ended.load(Ordering::Acquire) {
            *attempt = self.next_attempt(attempt.number, Duration::ZERO);
        }
        attempt
    }

    /// A server that does not answer in time may never answer: its address may
    /// belong to another one by now.
    fn replace_if_lost(&self, attempt: &ConnectionAttempt, error: &redis::RedisError) {
        if error.is_unrecoverable_error() || error.is_timeout() {
            self.replace(attempt, Duration::ZERO);
        }
    }

    /// A primary that became a replica still answers, but takes no writes: the
    /// address may lead to another server by now.
    fn replace_if_replica(&self, attempt: &ConnectionAttempt, answer: &Value) {
        if let Value::ServerError(error) = answer
            && let Error::Replica(_) = Error::from(redis::RedisError::from(error.clone()))
        {
            self.replace(attempt, Duration::ZERO);
        }
    }

    fn replace(&self, lost: &ConnectionAttempt, pause: Duration) {
        let mut attempt = self.lock();
        if attempt.number == lost.number {
            *attempt = self.next_attempt(lost.number, pause);
        }
    }

    fn next_attempt(&self, number: u64, pause: Duration) -> ConnectionAttempt {
        ConnectionAttempt::new(
            number + 1,
            &self.runtime,
            &self.client,
            self.deadline,
            pause,
        )
    }
}

impl ConnectionAttempt {
    /// Prepares an attempt; it connects when it is first awaited.
    fn new(
        number: u64,
        runtime: &Handle,
        client: &Client,
        deadline: Duration,
        pause: Duration,
    ) -> Self {
        let (runtime, client) = (runtime.clone(), client.clone());
        let ended = Arc::new(AtomicBool::default());
        let set_ended = ended.clone();
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(deadline))
            .set_response_timeout(Some(deadline))
            .set_pipeline_buffer_size(BUFFER)
            .set_push_sender(move |push: PushInfo| {
                if push.kind == PushKind::Disconnection {
                    set_ended.store(true, Ordering::Release);
                }
                Ok::<(), redis::aio::SendError>(())
            });
        let connect = async move {
            tokio::time::sleep(pause).await;
            client
                .get_multiplexed_async_connection_with_config(&config)
                .await
        };
        let established = async move {
            let connecting = AbortOnDropHandle::new(runtime.spawn(connect));
            let ending = (ErrorKind::Io, "the runtime of the store is ending");
            connecting.await.unwrap_or_else(|_| Err(ending.into()))
        };
        Self {
            number,
            established: established.boxed().shared(),
            ended,
        }
    }
}
