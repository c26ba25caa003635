//! The processor time of servers and what they write to disk, from `/proc`.
//!
//! The total is the scheduler's own count of nanoseconds for each thread. The kernel splits time
//! into user and system by samples, so the split is less exact than the total. Time of a server is
//! counted until it is idle: what it does behind, after its last response, is part of the cost.
//! On other systems than Linux there are no figures.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::net::SocketAddr;
use std::str::FromStr;
use std::time::{Duration, Instant};

use serde::Serialize;
use tokio::time::sleep;

/// A clock tick of `/proc/PID/stat`; it has been this long on all of Linux's architectures.
const TICK_NS: u64 = 10_000_000;
/// A server is idle when it used less than `IDLE_NS` in each of `IDLE_CHECKS` consecutive pauses.
const IDLE_PAUSE: Duration = Duration::from_millis(200);
const IDLE_NS: u64 = 2_000_000;
const IDLE_CHECKS: u32 = 2;
/// Waiting for that ends after this time, which is reported.
const IDLE_WAIT_MAX: Duration = Duration::from_secs(30);
/// The state of a listening socket in `/proc/net/tcp`.
const TCP_LISTEN: &str = "0A";

/// Processor time and bytes written to disk, per request.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(super) struct Cost {
    pub(super) user_us: f64,
    pub(super) system_us: f64,
    pub(super) written_bytes: f64,
}

impl Cost {
    /// Processor time.
    pub(super) fn total_us(self) -> f64 {
        self.user_us + self.system_us
    }
}

/// A server: some processes, with all of their descendants.
#[derive(Clone, Debug)]
pub(super) struct Server {
    roots: Vec<u32>,
}

impl Server {
    pub(super) fn process(id: u32) -> Self {
        Server { roots: vec![id] }
    }

    /// The processes that listen on this address. `None` if no visible process does.
    pub(super) fn listening_on(addr: SocketAddr) -> Option<Self> {
        let tables = ["/proc/net/tcp", "/proc/net/tcp6"].map(fs::read_to_string);
        let inodes = tables.iter().flatten();
        let inodes = inodes.flat_map(|table| listening_inodes(table, addr.port()));
        let links = inodes.map(|inode| format!("socket:[{inode}]"));
        let links = HashSet::<String>::from_iter(links);
        let roots = Vec::from_iter(processes().filter(|&id| holds_any(id, &links)));
        (!roots.is_empty()).then_some(Server { roots })
    }

    /// The ids of its first processes, separated by commas.
    pub(super) fn ids(&self) -> String {
        let ids = self.roots.iter().map(u32::to_string);
        Vec::from_iter(ids).join(",")
    }

    /// The time used so far.
    pub(super) fn usage(&self) -> Usage {
        let mut usage = Usage::default();
        for id in self.with_descendants() {
            let stat = fs::read_to_string(format!("/proc/{id}/stat"));
            let Some(stat) = stat.ok().and_then(|text| Stat::parse(&text)) else {
                continue;
            };
            usage.ticks.insert(id, (stat.user, stat.system));
            let io = fs::read_to_string(format!("/proc/{id}/io"));
            if let Some(written) = io.ok().as_deref().and_then(written_bytes) {
                usage.written_bytes.insert(id, written);
            }
            for thread in numbered_entries(&format!("/proc/{id}/task")) {
                let text = fs::read_to_string(format!("/proc/{id}/task/{thread}/schedstat"));
                if let Some(used_ns) = text.ok().as_deref().and_then(first_number) {
                    usage.threads_ns.insert(thread, used_ns);
                }
            }
        }
        usage
    }

    /// Waits until it is idle, up to a limit.
    pub(super) async fn settle(&self) -> Settled {
        let start = Instant::now();
        let mut usage = self.usage();
        let mut idle = 0;
        while idle < IDLE_CHECKS && start.elapsed() < IDLE_WAIT_MAX {
            sleep(IDLE_PAUSE).await;
            let now = self.usage();
            idle = match now.since_ns(&usage) {
                0..IDLE_NS => idle + 1,
                _ => 0,
            };
            usage = now;
        }
        Settled {
            usage,
            is_idle: idle == IDLE_CHECKS,
        }
    }

    fn with_descendants(&self) -> Vec<u32> {
        let parent = |id: &u32| {
            let stat = fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
            Some((*id, Stat::parse(&stat)?.parent))
        };
        let parents = processes().filter_map(|id| parent(&id));
        descendants(&self.roots, &Vec::from_iter(parents))
    }
}

/// A server after the wait for it.
#[derive(Debug)]
pub(super) struct Settled {
    pub(super) usage: Usage,
    /// If it is not idle yet, its time is incomplete, and it slows what is measured next.
    pub(super) is_idle: bool,
}

/// The time that a server has used so far.
#[derive(Debug, Default)]
pub(super) struct Usage {
    threads_ns: HashMap<u32, u64>,
    /// User and system time of each process.
    ticks: HashMap<u32, (u64, u64)>,
    /// What each process has written to disk.
    written_bytes: HashMap<u32, u64>,
}

impl Usage {
    /// The time used since `before`, per request. `None` if it cannot be read here.
    pub(super) fn since(&self, before: &Usage, requests: u64) -> Option<Cost> {
        let total_ns = self.since_ns(before);
        if total_ns == 0 || requests == 0 {
            return None;
        }
        let (user, system) = self.ticks_since(before);
        let user_share = match user + system {
            0 => 1.0,
            all => user as f64 / all as f64,
        };
        let total_us = total_ns as f64 / 1000.0 / requests as f64;
        let written = increase(&self.written_bytes, &before.written_bytes);
        Some(Cost {
            user_us: total_us * user_share,
            system_us: total_us * (1.0 - user_share),
            written_bytes: written as f64 / requests as f64,
        })
    }

    /// Threads that ended in between are left out of the exact count.
    fn since_ns(&self, before: &Usage) -> u64 {
        if self.threads_ns.is_empty() {
            let (user, system) = self.ticks_since(before);
            return (user + system) * TICK_NS;
        }
        increase(&self.threads_ns, &before.threads_ns)
    }

    fn ticks_since(&self, before: &Usage) -> (u64, u64) {
        let mut sum = (0, 0);
        for (id, now) in &self.ticks {
            let then = before.ticks.get(id).copied().unwrap_or_default();
            sum.0 += now.0.saturating_sub(then.0);
            sum.1 += now.1.saturating_sub(then.1);
        }
        sum
    }
}

/// The sum of what each entry has grown by.
fn increase(now: &HashMap<u32, u64>, before: &HashMap<u32, u64>) -> u64 {
    let grown = |(id, now): (&u32, &u64)| {
        let then = before.get(id).copied().unwrap_or_default();
        now.saturating_sub(then)
    };
    now.iter().map(grown).sum()
}

/// The part of `/proc/PID/stat` that is used here.
#[derive(Debug, PartialEq, Eq)]
struct Stat {
    parent: u32,
    user: u64,
    system: u64,
}

impl Stat {
    fn parse(text: &str) -> Option<Self> {
        // The name before the last parenthesis may contain anything.
        let mut fields = text.rsplit_once(')')?.1.split_whitespace();
        Some(Stat {
            parent: number(fields.nth(1))?,
            user: number(fields.nth(9))?,
            system: number(fields.next())?,
        })
    }
}

fn number<T: FromStr>(field: Option<&str>) -> Option<T> {
    field?.parse().ok()
}

/// The bytes written to disk, in the format of `/proc/PID/io`.
fn written_bytes(io: &str) -> Option<u64> {
    let line = io
        .lines()
        .find_map(|line| line.strip_prefix("write_bytes:"));
    number(line.map(str::trim))
}

fn first_number(text: &str) -> Option<u64> {
    number(text.split_whitespace().next())
}

fn processes() -> impl Iterator<Item = u32> {
    numbered_entries("/proc")
}

fn numbered_entries(directory: &str) -> impl Iterator<Item = u32> + use<> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// Whether a process has one of these sockets open.
fn holds_any(id: u32, links: &HashSet<String>) -> bool {
    let handles = fs::read_dir(format!("/proc/{id}/fd"));
    let handles = handles.into_iter().flatten().flatten();
    let mut targets = handles.filter_map(|handle| fs::read_link(handle.path()).ok());
    targets.any(|target| target.to_str().is_some_and(|target| links.contains(target)))
}

/// The inodes of the sockets that listen on a port, in the format of `/proc/net/tcp`.
fn listening_inodes(table: &str, port: u16) -> Vec<u64> {
    let suffix = format!(":{port:04X}");
    let rows = table.lines().skip(1).filter_map(|line| {
        let mut fields = line.split_whitespace();
        let local = fields.nth(1)?;
        let state = fields.nth(1)?;
        let listens = local.ends_with(&suffix) && state == TCP_LISTEN;
        listens.then(|| number(fields.nth(5)))?
    });
    rows.collect()
}

fn descendants(roots: &[u32], parents: &[(u32, u32)]) -> Vec<u32> {
    let mut found = Vec::new();
    let mut next = roots.to_vec();
    while let Some(id) = next.pop() {
        if !found.contains(&id) {
            found.push(id);
            let children = parents.iter().filter(|(_, parent)| *parent == id);
            next.extend(children.map(|(child, _)| *child));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stat_line_is_read_whatever_the_name() {
        let text = "42 (a) b (c)) S 7 42 42 0 -1 4194560 100 0 0 0 123 45 0 0 20 0 3 0 99 1 2";
        let expected = Stat {
            parent: 7,
            user: 123,
            system: 45,
        };
        assert_eq!(Stat::parse(text), Some(expected));
        assert_eq!(Stat::parse("42 (a) S"), None);
    }

    #[test]
    fn written_bytes_have_a_line_of_their_own() {
        let io = "rchar: 1\nwchar: 2\nread_bytes: 3\nwrite_bytes: 4096\ncancelled_write_bytes: 0\n";
        assert_eq!(written_bytes(io), Some(4096));
    }

    #[test]
    fn only_listening_sockets_of_the_port_are_found() {
        let table = "\
  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 111 1 x
   1: 0100007F:1F90 0100007F:C350 01 00000000:00000000 00:00000000 00000000     0        0 222 1 x
   2: 0100007F:1F91 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 333 1 x
";
        assert_eq!(listening_inodes(table, 8080), [111]);
    }

    #[test]
    fn children_of_children_belong_to_a_server() {
        let parents = [(2, 1), (3, 2), (4, 9), (5, 1)];
        let mut found = descendants(&[1], &parents);
        found.sort_unstable();
        assert_eq!(found, [1, 2, 3, 5]);
    }

    #[test]
    fn time_is_exact_in_total_and_split_as_the_ticks_are() {
        let before = Usage {
            threads_ns: HashMap::from([(1, 1_000_000), (2, 5_000_000)]),
            ticks: HashMap::from([(1, (10, 10))]),
            written_bytes: HashMap::from([(1, 1000)]),
        };
        let after = Usage {
            threads_ns: HashMap::from([(1, 21_000_000), (3, 20_000_000)]),
            ticks: HashMap::from([(1, (13, 11))]),
            written_bytes: HashMap::from([(1, 51_000), (9, 50_000)]),
        };
        let cost = after.since(&before, 1000).expect("time was used");
        assert_eq!((cost.user_us, cost.system_us), (30.0, 10.0));
        assert!((cost.total_us() - 40.0).abs() < 1e-9);
        assert_eq!(cost.written_bytes, 100.0);
        assert_eq!(after.since(&after, 1000), None);
    }

    #[test]
    fn a_listener_is_found_and_its_time_grows() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("loopback has free ports");
        let addr = listener.local_addr().expect("it is bound");
        let server = Server::listening_on(addr).expect("this process listens");
        assert!(server.roots.contains(&std::process::id()));
        let before = server.usage();
        let start = Instant::now();
        while start.elapsed() < Duration::from_millis(30) {
            std::hint::spin_loop();
        }
        assert!(server.usage().since_ns(&before) > 0);
    }
}
