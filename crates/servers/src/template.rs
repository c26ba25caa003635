//! PostgreSQL's data directory, made once and copied for each server.
//!
//! `initdb` takes a second or two, a copy a tenth of that. The template is one
//! archive beside the test's program, so that it is removed with the build
//! directory. It appears atomically and never changes: a parallel test sees all of
//! it or nothing, and then makes its own.

use std::fs::{File, Permissions};
use std::io::ErrorKind;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::program;
use crate::server::Server;

/// The name of the data directory, in the archive and in a server's directory.
pub(crate) const DATA: &str = "data";

/// The options that the template is made with; a template with other options needs
/// another name.
const OPTIONS: &str = "trust-utf8-c";

/// Puts a data directory into the directory of a server.
pub(crate) fn copy(server: &Server) {
    let path = template();
    if !path.is_file() {
        return make(server, &path);
    }
    let archive = File::open(&path).expect("the template can be read");
    // Not by its path, because the server's account may not be able to reach it.
    let mut tar = server.command(&program::find("tar"));
    succeed(tar.arg("-xpf-").stdin(archive));
}

/// Creates the server's data directory, and the template from it.
fn make(server: &Server, path: &Path) {
    let mut initdb = server.command(&program::find_beside_postgres("initdb"));
    let options = ["-A", "trust", "-U", "postgres", "-E", "UTF8", "--locale=C"];
    // A copy is not synced either: only a crash of the machine could lose it.
    succeed(initdb.args(options).args(["--no-sync", "-D", DATA]));
    let beside = path.parent().expect("a file is in a directory");
    let archive = tempfile::Builder::new()
        .permissions(Permissions::from_mode(0o644))
        .tempfile_in(beside)
        .expect("the build directory can be written");
    let output = archive.as_file().try_clone();
    let output = output.expect("a file can be opened twice");
    let mut tar = server.command(&program::find("tar"));
    succeed(tar.args(["-cf-", DATA]).stdout(output));
    if let Err(error) = archive.persist_noclobber(path) {
        let already = error.error.kind() == ErrorKind::AlreadyExists;
        assert!(already, "the template cannot be kept: {error}");
    }
}

/// The path of the installed version's template.
fn template() -> PathBuf {
    let mut postgres = program::command(&program::find("postgres"));
    let output = succeed(postgres.arg("--version"));
    // `postgres (PostgreSQL) 15.18 (Debian …)`
    let version = String::from_utf8_lossy(&output.stdout).into_owned();
    let number = version.split_whitespace().nth(2);
    let number = number.expect("a version has a number");
    std::env::current_exe()
        .expect("a running program has a path")
        .with_file_name(format!("postgres-{number}-{OPTIONS}.tar"))
}

/// Runs a command to its end.
///
/// # Panics
///
/// If it fails, with its output.
fn succeed(command: &mut Command) -> Output {
    let program = command.get_program().to_owned();
    let output = command
        .output()
        .unwrap_or_else(|error| panic!("{} cannot be started: {error}", program.display()));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "{} failed: {said}",
        program.display()
    );
    output
}
