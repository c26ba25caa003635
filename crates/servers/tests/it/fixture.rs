//! What the tests here share: which processes there are, and a process of
//! one's own that can be killed.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const WAIT_MAX: Duration = Duration::from_secs(60);

/// Names the file in which a child says what it started.
const CHILD: &str = "ONCEWARD_SERVERS_CHILD";

/// The ids of the processes of a directory: those that run in it, and those
/// that were started with it as an argument. Its name is one of a kind.
pub(crate) fn processes_of(directory: &Path) -> Vec<u32> {
    let name = directory.file_name().expect("it has a name");
    let name = name.to_str().expect("it is made of plain letters");
    let entries = fs::read_dir("/proc").expect("the system has a /proc");
    let ids = entries.flatten().filter_map(|entry| {
        let id = entry.file_name().to_str()?.parse().ok()?;
        let place = fs::read_link(entry.path().join("cwd")).unwrap_or_default();
        let place = place.to_string_lossy().into_owned();
        let args = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let args = String::from_utf8_lossy(&args).into_owned();
        (place.contains(name) || args.contains(name)).then_some(id)
    });
    ids.collect()
}

/// Drops a server, and checks that nothing of it is left.
pub(crate) fn check_drop<T>(server: T, directory: &Path) {
    let directory = directory.to_owned();
    let before = processes_of(&directory);
    // The server and its guard at least.
    assert!(before.len() >= 2, "{before:?}");
    drop(server);
    check_gone(&directory);
}

/// Checks that there is nothing of a server that had this directory.
pub(crate) fn check_gone(directory: &Path) {
    assert_eq!(processes_of(directory), Vec::<u32>::new());
    assert!(is_removed(directory));
}

/// Whether a directory is gone, and the one that was made for it.
fn is_removed(directory: &Path) -> bool {
    !directory.parent().expect("it has a parent").exists()
}

pub(crate) fn until(what: &str, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + WAIT_MAX;
    while !done() {
        assert!(Instant::now() < deadline, "never came: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A process that ends with the test, also when the test panics.
struct Mortal(Child);

impl Drop for Mortal {
    fn drop(&mut self) {
        // An error means that it has ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs a test of this binary in a process of its own, which starts something
/// and tells its directories, kills it, and checks that all of it ends.
pub(crate) fn check_kill_of(test: &str) {
    let home = tempfile::tempdir().expect("a directory");
    let told = home.path().join("told");
    let program = std::env::current_exe().expect("a running program has a path");
    let child = Command::new(program)
        .args(["--exact", test])
        .env(CHILD, &told)
        .stdout(Stdio::null())
        .spawn()
        .expect("the own program can be started");
    let mut child = Mortal(child);
    until("the child has told", || {
        let ended = child.0.try_wait().expect("nobody else waits");
        assert_eq!(ended, None, "the child ended by itself");
        told.exists()
    });
    let list = fs::read_to_string(&told).expect("the child told");
    let directories = list.lines().map(PathBuf::from).collect::<Vec<_>>();
    for directory in &directories {
        assert!(processes_of(directory).len() >= 2, "{directory:?}");
    }
    drop(child);
    let is_gone = |directory: &PathBuf| is_removed(directory) && processes_of(directory).is_empty();
    until("nothing is left", || directories.iter().all(is_gone));
}

/// Starts something, tells its directories and waits to be killed. Only the child
/// does: nobody else is told where to tell.
pub(crate) fn as_child<T>(start: impl FnOnce() -> (T, Vec<PathBuf>)) {
    let Some(told) = std::env::var_os(CHILD) else {
        return;
    };
    let told = Path::new(&told);
    let (_server, directories) = start();
    let lines = directories.iter().map(|path| path.display().to_string());
    let written = told.with_extension("new");
    fs::write(&written, lines.collect::<Vec<_>>().join("\n")).expect("it can be told");
    fs::rename(written, told).expect("it can be told at once");
    loop {
        std::thread::park();
    }
}
