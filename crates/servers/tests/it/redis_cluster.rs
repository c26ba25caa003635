//! Redis Cluster.

use onceward_servers::RedisCluster;

use crate::fixture::{check_gone, processes_of};

#[test]
fn every_node_serves_its_slots_and_redirects_the_others() {
    let cluster = RedisCluster::start(3);
    assert_eq!(cluster.urls().len(), 3);
    assert_eq!(cluster.url(), cluster.urls()[0]);
    for number in 0..30 {
        let (key, value) = (format!("key-{number}"), number.to_string());
        let answers = cluster
            .nodes()
            .iter()
            .map(|node| node.cli(&["SET", &key, &value]));
        let answers = answers.collect::<Vec<_>>();
        let served = answers.iter().filter(|answer| *answer == "OK").count();
        let sent_on = answers
            .iter()
            .filter(|answer| answer.starts_with("MOVED "))
            .count();
        assert_eq!((served, sent_on), (1, 2), "{answers:?}");
        for node in cluster.nodes() {
            assert_eq!(node.cli(&["-c", "GET", &key]), value);
        }
    }
    let held = cluster.nodes().iter().map(|node| node.cli(&["DBSIZE"]));
    let held = held.map(|count| count.parse::<u32>().expect("a number"));
    let held = held.collect::<Vec<_>>();
    assert!(held.iter().all(|count| *count > 0), "{held:?}");
}

#[test]
fn a_node_comes_back_with_its_data() {
    let mut cluster = RedisCluster::start(3);
    let foreign = |answer: &str| answer.starts_with("MOVED ");
    let home = cluster
        .nodes()
        .iter()
        .position(|node| !foreign(&node.cli(&["SET", "key", "1"])));
    let home = home.expect("every slot is served");
    cluster.nodes()[home].cli(&["CONFIG", "SET", "appendfsync", "always"]);
    cluster.nodes()[home].cli(&["SET", "key", "2"]);
    cluster.nodes_mut()[home].kill();
    cluster.nodes_mut()[home].restart();
    cluster.wait_until_ok();
    for node in cluster.nodes() {
        assert_eq!(node.cli(&["-c", "GET", "key"]), "2");
    }
}

#[test]
fn nothing_is_left_after_a_drop() {
    let cluster = RedisCluster::start(3);
    let directories = cluster
        .nodes()
        .iter()
        .map(|node| node.directory().to_owned());
    let directories = directories.collect::<Vec<_>>();
    for directory in &directories {
        assert_eq!(processes_of(directory).len(), 2, "the server and its guard");
    }
    drop(cluster);
    for directory in &directories {
        check_gone(directory);
    }
}
