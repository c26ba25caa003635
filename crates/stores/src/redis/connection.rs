//! Lines to Redis: one server, or a Cluster.
//!
//! Many callers share a line; what they ask goes out together and comes back in
//! order. A line that was lost is made again by whoever needs it next.
//!
//! Where writes must reach replicas, a step is followed, on the same line, by a
//! small write and by `WAIT`. The write is there because `WAIT` covers what its
//! own line wrote: a step that found everything done already, by an earlier try
//! or by somebody else, would otherwise be confirmed by nobody. For the same
//! reason it is not left out where the server is full: then it is written in the
//! one way that a full server allows.

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

use super::error::{Fault, Step};
use super::pipeline::Post;
use super::response;
use super::script::{CONFIRM, spelled_out};
use super::shard::Shard;
use crate::Durability;

/// The rest before a line that could not be made is tried again.
const PAUSE: Duration = Duration::from_millis(100);
/// How much a line holds back before its callers wait.
const BUFFER: usize = 1_024;

/// All lines of a store.
pub(super) struct Lines {
    lines: Vec<Line>,
    next: AtomicUsize,
    durability: Durability,
    /// How long `WAIT` may take.
    patience: Duration,
}

/// A line to where the data is.
pub(super) enum Line {
    Server(Box<ServerLine>),
    Cluster(ClusterConnection),
}

impl Lines {
    pub(super) fn new(lines: Vec<Line>, durability: Durability, deadline: Duration) -> Self {
        Self {
            lines,
            next: AtomicUsize::default(),
            durability,
            // Soon enough for its answer to come before the step is given up.
            patience: deadline / 2,
        }
    }

    /// Any line.
    fn line(&self) -> &Line {
        self.line_of(self.next.fetch_add(1, Ordering::Relaxed))
    }

    /// Always the same one for a shard: what is said there later must not
    /// overtake what was said before.
    fn line_of(&self, number: usize) -> &Line {
        &self.lines[number % self.lines.len()]
    }

    /// Takes a step on a shard, and sees it confirmed by as many as must.
    pub(super) async fn take(&self, shard: &Shard, step: Cmd) -> Step<Value> {
        self.take_with(shard.number, &shard.confirmed, step).await
    }

    /// The same, with what stands for a shard, and the key of the small write.
    pub(super) async fn take_with(&self, number: usize, confirmed: &str, step: Cmd) -> Step<Value> {
        let line = self.line_of(number);
        let wanted = match self.durability {
            Durability::Primary => return Self::ask_on(line, step).await,
            Durability::Replicas(wanted) => wanted,
        };
        let answer = self.send_confirmed(line, confirmed, wanted, &step).await;
        match answer {
            Err(Fault::Redis(error)) if is_unknown_script(&error) => {
                let step = spelled_out(&step).ok_or(Fault::Redis(error))?;
                self.send_confirmed(line, confirmed, wanted, &step).await
            }
            answer => answer,
        }
    }

    async fn send_confirmed(
        &self,
        line: &Line,
        confirmed: &str,
        wanted: u32,
        step: &Cmd,
    ) -> Step<Value> {
        let mut all = Pipeline::with_capacity(3);
        all.add_command(step.clone());
        all.cmd("SET").arg(confirmed).arg(1);
        all.add_command(self.wait_for(wanted));
        let [answer, written, reached] = exactly(line.send_all(&all, 3).await?)?;
        let answer = answer.extract_error()?;
        let reached = match written.extract_error().map_err(Fault::from) {
            Ok(_) => reached,
            Err(Fault::Full(_)) => self.confirm_on_full(line, confirmed, wanted).await?,
            Err(fault) => return Err(fault),
        };
        let reached = response::number(reached.extract_error()?)?;
        if reached < u64::from(wanted) {
            return Err(Fault::Unconfirmed { reached, wanted });
        }
        Ok(answer)
    }

    /// How many replicas have all that a full server was told before.
    async fn confirm_on_full(&self, line: &Line, confirmed: &str, wanted: u32) -> Step<Value> {
        let keys = [confirmed.to_owned(), format!("{confirmed}:none")];
        let mut all = Pipeline::with_capacity(2);
        all.add_command(CONFIRM.in_full_on(&keys));
        all.add_command(self.wait_for(wanted));
        let [written, reached] = exactly(line.send_all(&all, 2).await?)?;
        written.extract_error()?;
        Ok(reached)
    }

    fn wait_for(&self, wanted: u32) -> Cmd {
        let patience = u64::try_from(self.patience.as_millis()).unwrap_or(u64::MAX);
        let mut wait = cmd("WAIT");
        wait.arg(wanted).arg(patience.max(1));
        wait
    }

    /// Asks something about a shard that need not be confirmed.
    pub(super) async fn ask_about(&self, shard: &Shard, question: Cmd) -> Step<Value> {
        Self::ask_on(self.line_of(shard.number), question).await
    }

    /// Which connection a shard is reached by: another number is another one,
    /// and may lead to another server. The client of a Cluster does not tell.
    pub(super) fn connection_of(&self, shard: &Shard) -> u64 {
        match self.line_of(shard.number) {
            Line::Server(server) => server.connected.current().number,
            Line::Cluster(_) => 0,
        }
    }

    /// Asks something that need not be confirmed.
    pub(super) async fn ask(&self, question: Cmd) -> Step<Value> {
        Self::ask_on(self.line(), question).await
    }

    async fn ask_on(line: &Line, question: Cmd) -> Step<Value> {
        match line.send(&question).await {
            Err(error) if is_unknown_script(&error) => {
                let question = spelled_out(&question).ok_or(Fault::Redis(error))?;
                Ok(line.send(&question).await?)
            }
            answer => Ok(answer?),
        }
    }

    /// Asks many things at once: one round trip, or one to each node of a Cluster.
    pub(super) async fn ask_all(&self, questions: Vec<Cmd>) -> Step<Vec<Value>> {
        if questions.is_empty() {
            return Ok(Vec::new());
        }
        let line = self.line();
        let mut all = Pipeline::with_capacity(questions.len());
        let answers = match line {
            Line::Server(server) => {
                for question in &questions {
                    all.add_command(question.clone());
                }
                server.send_all(&all, questions.len()).await?
            }
            Line::Cluster(cluster) => {
                try_join_all(questions.iter().map(|question| async {
                    match cluster.clone().req_packed_command(question).await {
                        // Told one by one, below.
                        Err(error) => match redis::ServerError::try_from(error) {
                            Ok(error) => Ok(Value::ServerError(error)),
                            Err(error) => Err(error),
                        },
                        answer => answer,
                    }
                }))
                .await?
            }
        };
        let mut told = Vec::with_capacity(answers.len());
        for (question, answer) in questions.iter().zip(answers) {
            told.push(match answer.extract_error() {
                Err(error) if is_unknown_script(&error) => {
                    let question = spelled_out(question).ok_or(Fault::Redis(error))?;
                    line.send(&question).await?
                }
                answer => answer?,
            });
        }
        Ok(told)
    }

    /// Takes many steps at once.
    pub(super) async fn take_all(&self, steps: Vec<(&Shard, Cmd)>) -> Step<Vec<Value>> {
        match self.durability {
            Durability::Primary => {
                let steps = steps.into_iter().map(|(_, step)| step);
                self.ask_all(steps.collect()).await
            }
            Durability::Replicas(_) => {
                try_join_all(
                    steps
                        .into_iter()
                        .map(|(shard, step)| self.take(shard, step)),
                )
                .await
            }
        }
    }
}

fn exactly<const COUNT: usize>(answers: Vec<Value>) -> Step<[Value; COUNT]> {
    let answers = <[Value; COUNT]>::try_from(answers);
    answers.map_err(|_| Fault::Answer("the number of answers"))
}

fn is_unknown_script(error: &redis::RedisError) -> bool {
    error.kind() == ErrorKind::Server(ServerErrorKind::NoScript)
}

impl Line {
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
}

/// A line to one server.
pub(super) struct ServerLine {
    connected: Arc<Connected>,
    post: Post,
}

impl ServerLine {
    pub(super) fn new(client: Client, deadline: Duration) -> Self {
        let connected = Arc::new(Connected::new(client, deadline));
        Self {
            post: Post::new(connected.clone()),
            connected,
        }
    }

    async fn send(&self, command: &Cmd) -> RedisResult<Value> {
        self.post.ask(command.clone()).await
    }

    async fn send_all(&self, all: &Pipeline, count: usize) -> RedisResult<Vec<Value>> {
        let live = self.connected.live().await?;
        self.connected.send_all(live, all, count).await
    }
}

/// A connection to one server, made again when it was lost.
pub(super) struct Connected {
    client: Client,
    deadline: Duration,
    made: Mutex<Made>,
}

type Making = Shared<BoxFuture<'static, RedisResult<MultiplexedConnection>>>;

/// A connection that is made, or is being made.
#[derive(Clone)]
struct Made {
    number: u64,
    making: Making,
    /// Set when it ends, so that nobody sends anything into the void.
    ended: Arc<AtomicBool>,
}

/// A connection that was made.
pub(super) struct Live {
    made: Made,
    connection: MultiplexedConnection,
}

impl Connected {
    fn new(client: Client, deadline: Duration) -> Self {
        let made = Made::make(0, client.clone(), deadline, Duration::ZERO);
        Self {
            client,
            deadline,
            made: Mutex::new(made),
        }
    }

    /// The connection, which is made if there is none.
    pub(super) async fn live(&self) -> RedisResult<Live> {
        let made = self.current().clone();
        match made.making.clone().await {
            Ok(connection) => Ok(Live { made, connection }),
            Err(error) => {
                self.replace(&made, PAUSE);
                Err(error)
            }
        }
    }

    pub(super) async fn send_all(
        &self,
        live: Live,
        all: &Pipeline,
        count: usize,
    ) -> RedisResult<Vec<Value>> {
        let Live {
            made,
            mut connection,
        } = live;
        let answers = connection.send_packed_commands(all, 0, count).await;
        let answers = self.look_at(&made, answers)?;
        for answer in &answers {
            self.look_for_replica(&made, answer);
        }
        Ok(answers)
    }

    fn lock(&self) -> MutexGuard<'_, Made> {
        self.made.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The one that was not seen to end.
    fn current(&self) -> MutexGuard<'_, Made> {
        let mut made = self.lock();
        if made.ended.load(Ordering::Acquire) {
            *made = self.make_again(made.number, Duration::ZERO);
        }
        made
    }

    fn look_at<T>(&self, made: &Made, answer: RedisResult<T>) -> RedisResult<T> {
        // Whoever does not answer may never do: behind the address somebody else
        // may stand by now.
        if let Err(error) = &answer
            && (error.is_unrecoverable_error() || error.is_timeout())
        {
            self.replace(made, Duration::ZERO);
        }
        answer
    }

    /// A primary that became a replica answers and helps nobody: the address may
    /// lead to another one by now.
    fn look_for_replica(&self, made: &Made, answer: &Value) {
        if let Value::ServerError(error) = answer
            && let Fault::Replica(_) = Fault::from(redis::RedisError::from(error.clone()))
        {
            self.replace(made, Duration::ZERO);
        }
    }

    fn replace(&self, lost: &Made, pause: Duration) {
        let mut made = self.lock();
        if made.number == lost.number {
            *made = self.make_again(lost.number, pause);
        }
    }

    fn make_again(&self, number: u64, pause: Duration) -> Made {
        Made::make(number + 1, self.client.clone(), self.deadline, pause)
    }
}

impl Made {
    /// Made when the first one waits for it.
    fn make(number: u64, client: Client, deadline: Duration, pause: Duration) -> Self {
        let ended = Arc::new(AtomicBool::default());
        let tell = ended.clone();
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(deadline))
            .set_response_timeout(Some(deadline))
            .set_pipeline_buffer_size(BUFFER)
            .set_push_sender(move |push: PushInfo| {
                if push.kind == PushKind::Disconnection {
                    tell.store(true, Ordering::Release);
                }
                Ok::<(), redis::aio::SendError>(())
            });
        let making = async move {
            tokio::time::sleep(pause).await;
            client
                .get_multiplexed_async_connection_with_config(&config)
                .await
        };
        Self {
            number,
            making: making.boxed().shared(),
            ended,
        }
    }
}
