//! Redis.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use onceward_servers::Redis;

use crate::fixture::{as_child, check_drop, check_kill_of, processes_of, until};

#[test]
fn it_answers_with_the_settings_that_tests_rely_on() {
    let redis = Redis::start_with(&["--maxmemory-policy", "allkeys-lru"]);
    let cases = [
        ("appendonly", "yes"),
        ("appendfsync", "everysec"),
        ("save", ""),
        ("maxmemory-policy", "allkeys-lru"),
    ];
    for (name, value) in cases {
        let said = redis.cli(&["CONFIG", "GET", name]);
        assert_eq!(said, format!("{name}\n{value}").trim_end(), "{name}");
    }
    assert_eq!(redis.url(), format!("redis://127.0.0.1:{}", redis.port()));
    assert!(redis.log().contains("Ready to accept connections"));
}

#[test]
fn a_server_with_a_password_starts() {
    let redis = Redis::start_with(&["--requirepass", "sesame"]);
    assert!(redis.cli(&["PING"]).starts_with("NOAUTH"));
    assert_eq!(redis.cli(&["-a", "sesame", "PING"]), "PONG");
}

#[test]
fn acknowledged_writes_survive_kills_and_stops() {
    let mut redis = Redis::start_with(&["--appendfsync", "always"]);
    let port = redis.port();
    for round in 1..=4 {
        assert_eq!(redis.cli(&["INCR", "rounds"]), round.to_string());
        if round % 2 == 0 {
            redis.kill();
        } else {
            redis.stop();
        }
        assert_eq!(processes_of(redis.directory()).len(), 1);
        redis.restart();
        assert_eq!(redis.cli(&["GET", "rounds"]), round.to_string());
    }
    assert_eq!(redis.port(), port);
}

#[test]
fn a_paused_server_answers_when_it_is_resumed() {
    let redis = Redis::start();
    let mut stream = TcpStream::connect(("127.0.0.1", redis.port())).expect("it listens");
    let wait = |stream: &TcpStream, limit| stream.set_read_timeout(Some(limit)).expect("a limit");
    let mut answer = [0; 7];
    redis.pause();
    stream.write_all(b"PING\r\n").expect("the system takes it");
    wait(&stream, Duration::from_millis(300));
    assert!(stream.read_exact(&mut answer).is_err());
    redis.resume();
    wait(&stream, Duration::from_secs(30));
    stream.read_exact(&mut answer).expect("it goes on");
    assert_eq!(&answer, b"+PONG\r\n");
}

#[test]
fn a_replica_has_all_data_and_stays_promoted() {
    let mut primary = Redis::start();
    primary.cli(&["SET", "early", "1"]);
    let mut replica = primary.replica();
    assert_eq!(replica.cli(&["GET", "early"]), "1");
    assert!(replica.cli(&["SET", "late", "1"]).starts_with("READONLY"));
    primary.cli(&["SET", "late", "2"]);
    until("the replica has it", || {
        replica.cli(&["GET", "late"]) == "2"
    });
    primary.kill();
    replica.promote();
    assert_eq!(replica.cli(&["GET", "late"]), "2");
    assert_eq!(replica.cli(&["SET", "after", "3"]), "OK");
    replica.stop();
    replica.restart();
    assert_eq!(replica.cli(&["ROLE"]).lines().next(), Some("master"));
    assert_eq!(replica.cli(&["GET", "after"]), "3");
}

#[test]
fn nothing_is_left_after_a_drop() {
    let redis = Redis::start();
    let directory = redis.directory().to_owned();
    check_drop(redis, &directory);
}

#[test]
fn nothing_is_left_after_a_drop_of_a_paused_server() {
    let redis = Redis::start();
    redis.pause();
    let directory = redis.directory().to_owned();
    check_drop(redis, &directory);
}

#[test]
fn child_starts_two_from_a_thread_that_ends() {
    as_child(|| {
        // Servers belong to the process, and not to the thread that starts them.
        let start = || (Redis::start(), Redis::start());
        let (one, two) = std::thread::spawn(start).join().expect("it starts them");
        assert_eq!(one.cli(&["PING"]), "PONG");
        two.pause();
        let directories = [&one, &two].map(|redis| redis.directory().to_owned());
        ((one, two), directories.into())
    });
}

#[test]
fn nothing_is_left_when_the_test_itself_is_killed() {
    check_kill_of("redis::child_starts_two_from_a_thread_that_ends");
}
