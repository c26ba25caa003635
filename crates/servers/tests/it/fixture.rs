//! The tests' shared functions: finding processes, and a child process that can be
//! killed.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const WAIT_MAX: Duration = Duration::from_secs(60);

/// The variable with the file in which a child lists its directories.
const CHILD: &str = "ONCEWARD_SERVERS_CHILD";

/// The ids of the processes of a directory: those that run in it, and those that
/// have it as an argument. Its name is unique.
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

/// Drops a server, and checks that nothing of it remains.
pub(crate) fn check_drop<T>(server: T, directory: &Path) {
    let directory = directory.to_owned();
    let before = processes_of(&directory);
    // At least the server and its guard.
    assert!(before.len() >= 2, "{before:?}");
    drop(server);
    check_gone(&directory);
}

/// Checks that nothing remains of a server with this directory.
pub(crate) fn check_gone(directory: &Path) {
    assert_eq!(processes_of(directory), Vec::<u32>::new());
    assert!(is_removed(directory));
}

/// Whether a directory and its parent are removed.
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

/// A process that is killed when this is dropped, also when the test panics.
struct KilledOnDrop(Child);

impl Drop for KilledOnDrop {
    fn drop(&mut self) {
        // An error means that the process has ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs a test of this binary in a child process, which starts servers and reports
/// their directories; kills it, and checks that all of them end.
pub(crate) fn check_kill_of(test: &str) {
    let home = tempfile::tempdir().expect("a directory");
    let report = home.path().join("report");
    let program = std::env::current_exe().expect("a running program has a path");
    let child = Command::new(program)
        .args(["--exact", test])
        .env(CHILD, &report)
        .stdout(Stdio::null())
        .spawn()
        .expect("the own program can be started");
    let mut child = KilledOnDrop(child);
    until("the child has reported", || {
        let ended = child.0.try_wait().expect("no other wait");
        assert_eq!(ended, None, "the child ended by itself");
        report.exists()
    });
    let list = fs::read_to_string(&report).expect("the child reported");
    let directories = list.lines().map(PathBuf::from).collect::<Vec<_>>();
    for directory in &directories {
        assert!(processes_of(directory).len() >= 2, "{directory:?}");
    }
    drop(child);
    let is_gone = |directory: &PathBuf| is_removed(directory) && processes_of(directory).is_empty();
    until("nothing is left", || directories.iter().all(is_gone));
}

/// Starts servers, reports their directories and waits to be killed. Only in the
/// child process, which has the variable for the report.
pub(crate) fn as_child<T>(start: impl FnOnce() -> (T, Vec<PathBuf>)) {
    let Some(report) = std::env::var_os(CHILD) else {
        return;
    };
    let report = Path::new(&report);
    let (_server, directories) = start();
    let lines = directories.iter().map(|path| path.display().to_string());
    let written = report.with_extension("new");
    fs::write(&written, lines.collect::<Vec<_>>().join("\n")).expect("it can be written");
    fs::rename(written, report).expect("it can be renamed");
    loop {
        std::thread::park();
    }
}
