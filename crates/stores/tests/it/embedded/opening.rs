//! A directory or file that cannot be opened is refused with a helpful message, and
//! is not changed.

use std::fs;
use std::path::Path;

use onceward_stores::embedded::EmbeddedStore;
use rusqlite::Connection;

use crate::fixture::*;

fn refusal(path: &Path) -> String {
    match EmbeddedStore::open(path, clock()) {
        Ok(_) => panic!("{} opened", path.display()),
        Err(error) => error.to_string(),
    }
}

/// Holds a store until its parent ends it.
#[test]
fn child_holds() {
    let Some(home) = directory_as_child() else {
        return;
    };
    let _store = open(&home.join("store"), &clock());
    fs::write(home.join("ready"), std::process::id().to_string()).expect("written");
    let mut line = String::new();
    std::io::stdin()
        .read_line(&mut line)
        .expect("the parent lives");
}

#[tokio::test]
async fn a_second_process_learns_which_process_holds_the_directory() {
    let home = directory();
    let mut child = child("embedded::opening::child_holds", home.path(), "");
    let owner = until("the child has the store", async || {
        fs::read_to_string(home.path().join("ready"))
            .ok()
            .filter(|id| !id.is_empty())
    })
    .await;
    let refused = refusal(&home.path().join("store"));
    assert!(
        refused.contains(&format!("held by process {owner}:")),
        "{refused}"
    );
    assert!(refused.contains("use another directory"), "{refused}");
    child.kill();
    drop(open(&home.path().join("store"), &clock()));
}

#[test]
fn same_process_cannot_open_twice() {
    let home = directory();
    let store = open(home.path(), &clock());
    let refused = refusal(home.path());
    let own = format!("held by process {}:", std::process::id());
    assert!(refused.contains(&own), "{refused}");
    drop(store);
    drop(open(home.path(), &clock()));
}

#[test]
fn a_removed_lock_file_lets_no_second_process_in() {
    let home = directory();
    let store = open(home.path(), &clock());
    fs::remove_file(home.path().join("lock")).expect("removed");
    for _ in 0..2 {
        let refused = refusal(home.path());
        assert!(refused.contains("is held by process unknown:"), "{refused}");
    }
    drop(store);
    drop(open(home.path(), &clock()));
}

/// Not even root can create files in /proc; the mode of a directory would not stop
/// root.
#[test]
fn directory_that_cannot_be_written_is_refused_by_name() {
    for path in ["/proc/self/fdinfo", "/proc/onceward"] {
        let refused = refusal(Path::new(path));
        assert!(refused.contains(path), "{refused}");
        assert!(
            refused.contains("a directory that this process may write"),
            "{refused}"
        );
    }
}

#[test]
fn file_in_place_of_the_directory_is_refused_by_name() {
    let home = directory();
    let path = home.path().join("store");
    fs::write(&path, "not a directory").expect("written");
    let refused = refusal(&path);
    assert!(
        refused.contains(path.to_str().expect("a plain path")),
        "{refused}"
    );
    assert_eq!(fs::read(&path).expect("it is there"), b"not a directory");
}

#[test]
fn directory_in_place_of_the_file_is_refused_by_name() {
    let home = directory();
    fs::create_dir(home.path().join("onceward.db")).expect("made");
    let refused = refusal(home.path());
    assert!(refused.contains("onceward.db"), "{refused}");
}

#[test]
fn newer_layout_is_refused() {
    let home = directory();
    drop(open(home.path(), &clock()));
    let db = Connection::open(home.path().join("onceward.db")).expect("SQLite opens it");
    db.pragma_update(None, "user_version", 9).expect("written");
    drop(db);
    let refused = refusal(home.path());
    assert!(
        refused.contains("layout 9, written by a newer Onceward"),
        "{refused}"
    );
}

#[test]
fn file_of_another_program_is_refused_and_left_alone() {
    let home = directory();
    let path = home.path().join("onceward.db");
    let db = Connection::open(&path).expect("SQLite opens it");
    db.execute_batch("CREATE TABLE theirs (x); INSERT INTO theirs VALUES (1)")
        .expect("written");
    drop(db);
    let refused = refusal(home.path());
    assert!(refused.contains("is not a store of Onceward"), "{refused}");
    let db = Connection::open(&path).expect("SQLite opens it");
    let rows: i64 = db
        .query_row("SELECT x FROM theirs", [], |row| row.get(0))
        .expect("theirs");
    assert_eq!(rows, 1);
}
