//! Lost answers: the step was taken, and a repeated step, by the Cluster client or
//! by the store itself, gets the same answer.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use onceward_core::record::{Settlement, State};
use onceward_core::store::{Changed, Force, Inspect, Queue, Resolution};
use onceward_servers::{Redis, RedisCluster};
use onceward_stores::redis::RedisStore;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use crate::fixture::redis::*;
use crate::fixture::{ask, get, grant, reply, settle};

/// A proxy in front of a server.
struct Wire {
    port: u16,
    _carrying: JoinSet<()>,
}

/// Which answer to drop: that to the next request that contains these bytes.
#[derive(Clone, Default)]
struct Loss(Arc<Mutex<Option<&'static [u8]>>>);

impl Loss {
    fn lock(&self) -> MutexGuard<'_, Option<&'static [u8]>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether it is the answer to this request.
    fn take(&self, request: &[u8]) -> Option<&'static [u8]> {
        let has = |what: &mut &[u8]| request.windows(what.len()).any(|part| part == *what);
        self.lock().take_if(has)
    }
}

impl Wire {
    async fn to(server: &Redis, loss: &Loss) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await;
        let listener = listener.expect("a free port");
        let port = listener.local_addr().expect("it is bound").port();
        let (there, loss) = (server.port(), loss.clone());
        let mut carrying = JoinSet::new();
        carrying.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((caller, _)) = listener.accept().await {
                let loss = loss.clone();
                connections.spawn(async move {
                    // Both sides see the end of the connection.
                    let _ = carry(caller, there, &loss).await;
                });
            }
        });
        Self {
            port,
            _carrying: carrying,
        }
    }
}

/// Copies bytes both ways until one side closes, or an answer is dropped.
async fn carry(mut caller: TcpStream, there: u16, loss: &Loss) -> io::Result<()> {
    let mut server = TcpStream::connect(("127.0.0.1", there)).await?;
    let (mut asked, mut answered) = (vec![0; 1 << 16], vec![0; 1 << 16]);
    let mut awaited = None;
    loop {
        tokio::select! {
            count = caller.read(&mut asked) => {
                let request = &asked[..count?];
                if request.is_empty() {
                    return Ok(());
                }
                awaited = awaited.or(loss.take(request));
                server.write_all(request).await?;
            }
            count = server.read(&mut answered) => {
                let answer = &answered[..count?];
                if answer.is_empty() {
                    return Ok(());
                }
                match awaited.take() {
                    // An error, such as for an unknown script, is not the answer of
                    // the step.
                    Some(what) if answer.starts_with(b"-") => {
                        *loss.lock() = Some(what);
                    }
                    Some(_) => return Ok(()),
                    None => {}
                }
                caller.write_all(answer).await?;
            }
        }
    }
}

/// A store whose every connection can be cut.
struct Cut {
    store: Arc<RedisStore>,
    loss: Loss,
    _wires: Vec<Wire>,
}

impl Cut {
    async fn server(server: &Redis) -> Self {
        let loss = Loss::default();
        let wire = Wire::to(server, &loss).await;
        let url = format!("redis://127.0.0.1:{}", wire.port);
        Self {
            store: open(&settings(&url)).await,
            loss,
            _wires: vec![wire],
        }
    }

    async fn cluster(cluster: &RedisCluster) -> Self {
        let loss = Loss::default();
        let mut wires = Vec::new();
        for node in cluster.nodes() {
            let wire = Wire::to(node, &loss).await;
            let bus = (node.port() + 10_000).to_string();
            // The address that the node announces to its clients.
            for (what, port) in [
                ("cluster-announce-bus-port", bus),
                ("cluster-announce-port", wire.port.to_string()),
            ] {
                assert_eq!(node.cli(&["CONFIG", "SET", what, &port]), "OK");
            }
            wires.push(wire);
        }
        for node in cluster.nodes() {
            until("all know where to go", async || {
                let slots = node.cli(&["CLUSTER", "SLOTS"]);
                let known = |wire: &Wire| slots.contains(&wire.port.to_string());
                wires.iter().all(known).then_some(())
            })
            .await;
        }
        let url = format!("redis://127.0.0.1:{}", wires[0].port);
        Self {
            store: open(&settings(&url)).await,
            loss,
            _wires: wires,
        }
    }

    /// Drops the answer to the next request with this argument.
    fn lose(&self, argument: &'static str) {
        *self.loss.lock() = Some(argument.as_bytes());
    }

    #[track_caller]
    fn assert_lost(&self) {
        assert_eq!(*self.loss.lock(), None, "no answer was lost");
    }
}

/// Only scripts that write a record have this argument.
const WRITES: &str = "move";
/// Only scripts that may remove an operation from the queue have this key.
const FORGETS: &str = ":queue";

async fn queued_work_is_given(cut: &Cut) {
    for number in 1..4 {
        let ask = ask(number);
        let enqueued = cut.store.enqueue(&ask, Bytes::new(), Duration::ZERO);
        enqueued.await.expect("the store records");
        cut.lose(WRITES);
        let due = cut.store.due(10).await.expect("the store delivers");
        cut.assert_lost();
        let given: Vec<_> = due.iter().map(|due| due.grant.digest).collect();
        assert_eq!(given, [ask.digest], "it is given once");
        settle(&*cut.store, &due[0].grant, Settlement::Released).await;
        let record = get(&*cut.store, &ask).await.expect("it is there");
        assert_eq!(record.state, State::Released);
    }
}

#[tokio::test]
async fn queued_work_is_given_although_the_answer_is_lost() {
    let server = Redis::start();
    queued_work_is_given(&Cut::server(&server).await).await;
}

#[tokio::test]
async fn queued_work_is_given_although_a_cluster_is_asked_twice() {
    let cluster = RedisCluster::start(3);
    queued_work_is_given(&Cut::cluster(&cluster).await).await;
}

#[tokio::test]
async fn an_operators_change_is_done_once_although_a_cluster_is_asked_twice() {
    let cluster = RedisCluster::start(3);
    let cut = Cut::cluster(&cluster).await;
    for number in 1..4 {
        let held = grant(&*cut.store, &ask(number)).await;
        settle(&*cut.store, &held, Settlement::Lost).await;
        cut.lose(WRITES);
        let word = Resolution::Ran(reply(number));
        let resolved = cut.store.resolve(held.id, None, word).await;
        cut.assert_lost();
        assert_eq!(resolved.ok(), Some(Changed::Done), "resolved");
        cut.lose(FORGETS);
        let purged = cut.store.purge(held.id, Force::No).await;
        cut.assert_lost();
        assert_eq!(purged.ok(), Some(Changed::Done), "purged");
        assert_eq!(get(&*cut.store, &ask(number)).await, None);

        let held = grant(&*cut.store, &ask(number)).await;
        settle(&*cut.store, &held, Settlement::Paused).await;
        cut.lose(WRITES);
        let resumed = cut.store.resume(held.id).await;
        cut.assert_lost();
        assert_eq!(resumed.ok(), Some(Changed::Done), "resumed");
    }
    let absent = cut.store.purge(ask(9).id, Force::No).await;
    assert_eq!(absent.ok(), Some(Changed::Absent));
}
