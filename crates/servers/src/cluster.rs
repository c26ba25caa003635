//! A Redis Cluster.

use crate::redis::{Redis, cli};

/// The fewest masters of a cluster.
const MASTERS_MIN: usize = 3;

/// A Redis Cluster of masters without replicas.
#[derive(Debug)]
pub struct RedisCluster {
    nodes: Vec<Redis>,
}

impl RedisCluster {
    /// Starts this many masters, at least three, and makes them a cluster.
    pub fn start(masters: usize) -> Self {
        assert!(
            masters >= MASTERS_MIN,
            "a cluster has at least {MASTERS_MIN} masters"
        );
        let node = |_| Redis::start_with(&["--cluster-enabled", "yes"]);
        let nodes = (0..masters).map(node).collect::<Vec<_>>();
        let addresses = nodes
            .iter()
            .map(|node| format!("127.0.0.1:{}", node.port()));
        let addresses = addresses.collect::<Vec<_>>();
        let mut order = vec!["--cluster", "create"];
        order.extend(addresses.iter().map(String::as_str));
        order.extend(["--cluster-replicas", "0", "--cluster-yes"]);
        cli(nodes[0].port(), &order);
        let cluster = Self { nodes };
        cluster.wait_until_ok();
        cluster
    }

    /// Waits until every node knows every other and reports that all slots are
    /// served, for example after the restart of one.
    pub fn wait_until_ok(&self) {
        let size = self.nodes.len().to_string();
        let facts = [
            ("cluster_state", "ok"),
            ("cluster_slots_ok", "16384"),
            ("cluster_known_nodes", &size),
        ];
        let holds = |node: &Redis, (name, value)| node.cluster_info(name).as_deref() == Some(value);
        for node in &self.nodes {
            node.wait_for("did not join the cluster", |node| {
                facts.into_iter().all(|fact| holds(node, fact))
            });
        }
    }

    /// The URL of one node.
    pub fn url(&self) -> String {
        self.nodes[0].url()
    }

    /// The URLs of all nodes.
    pub fn urls(&self) -> Vec<String> {
        self.nodes.iter().map(Redis::url).collect()
    }

    /// The nodes.
    pub fn nodes(&self) -> &[Redis] {
        &self.nodes
    }

    /// The nodes, to stop and restart them.
    pub fn nodes_mut(&mut self) -> &mut [Redis] {
        &mut self.nodes
    }
}
