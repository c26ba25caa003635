//! The servers' programs, and the account that they run as.

use std::env;
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::process::geteuid;

/// The directory of PostgreSQL's versions on Debian and its derivatives.
const VERSIONS: &str = "/usr/lib/postgresql";
/// Directories of servers that may not be on the path.
const SERVERS: [&str; 2] = ["/usr/sbin", "/usr/local/sbin"];
/// The accounts that run the servers if the test runs as root: PostgreSQL and
/// PgBouncer refuse root.
const ACCOUNTS: [&str; 2] = ["postgres", "nobody"];

/// The path of a program.
///
/// # Panics
///
/// If it is not installed.
pub(crate) fn find(name: &str) -> PathBuf {
    let path = env::var_os("PATH").unwrap_or_default();
    let path = env::split_paths(&path).collect::<Vec<_>>();
    path.into_iter()
        .chain(versions(VERSIONS.as_ref()))
        .chain(SERVERS.map(PathBuf::from))
        .map(|directory| directory.join(name))
        .find(|program| program.is_file())
        .unwrap_or_else(|| panic!("{name} is not installed: `make tools` installs it"))
}

/// The path of a program that comes with the server `postgres`.
///
/// It is taken from the server's directory, because Debian's program on the path is
/// a script that chooses among versions and takes longer than the program itself.
pub(crate) fn find_beside_postgres(name: &str) -> PathBuf {
    let beside = find("postgres").with_file_name(name);
    if beside.is_file() { beside } else { find(name) }
}

/// The directories of PostgreSQL's versions, the highest first.
fn versions(all: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(all).into_iter().flatten().flatten();
    let number = |path: &Path| path.file_name()?.to_str()?.parse::<u32>().ok();
    let mut versions = entries.map(|entry| entry.path()).collect::<Vec<_>>();
    versions.sort_by_key(|path| std::cmp::Reverse(number(path)));
    versions.iter().map(|path| path.join("bin")).collect()
}

/// A command in a clean environment: no settings of the developer's own PostgreSQL,
/// and messages in English, because some are parsed.
pub(crate) fn command(program: &Path) -> Command {
    let mut command = Command::new(program);
    let names = env::vars_os().map(|(name, _)| name);
    for name in names.filter(|name| name.as_encoded_bytes().starts_with(b"PG")) {
        command.env_remove(name);
    }
    command.env("LC_ALL", "C");
    command
}

/// The account under which servers run.
#[derive(Clone, Copy)]
pub(crate) enum Account {
    /// The test's own.
    Own,
    /// An unprivileged one, because the test runs as root.
    Other { user: u32, group: u32 },
}

impl Account {
    pub(crate) fn choose() -> Self {
        if !geteuid().is_root() {
            return Self::Own;
        }
        let list = fs::read_to_string("/etc/passwd").expect("the list of accounts can be read");
        let account = ACCOUNTS.iter().find_map(|name| find_account(&list, name));
        let (user, group) = account.expect("every system has an account named nobody");
        Self::Other { user, group }
    }

    /// Makes the command run under this account, without root's rights and without
    /// the supplementary groups.
    pub(crate) fn run(self, command: &mut Command) {
        if let Self::Other { user, group } = self {
            command.uid(user).gid(group);
        }
    }

    /// Gives a file or directory to the account.
    pub(crate) fn own(self, path: &Path) {
        if let Self::Other { user, group } = self {
            std::os::unix::fs::chown(path, Some(user), Some(group))
                .expect("root may give away what is its own");
        }
    }
}

/// The ids of a user and its group in the text of `/etc/passwd`.
fn find_account(list: &str, name: &str) -> Option<(u32, u32)> {
    let fields = |line: &str| {
        let mut fields = line.split(':');
        let named = fields.next() == Some(name);
        let mut numbers = fields.skip(1).map(str::parse);
        named.then_some((numbers.next()?.ok()?, numbers.next()?.ok()?))
    };
    list.lines().find_map(fields)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[should_panic(expected = "no-such-server is not installed: `make tools` installs it")]
    fn a_missing_server_is_a_failure_that_names_the_remedy() {
        find("no-such-server");
    }

    #[test]
    fn the_highest_version_comes_first() {
        let home = tempfile::tempdir().expect("a directory");
        for version in ["9.6", "13", "9", "15"] {
            fs::create_dir(home.path().join(version)).expect("a new directory can be written");
        }
        let expected =
            ["15", "13", "9", "9.6"].map(|version| home.path().join(version).join("bin"));
        assert_eq!(versions(home.path()), expected);
    }

    #[test]
    fn accounts_are_found_by_their_whole_name() {
        let list = "root:x:0:0:root:/root:/bin/sh\n\
                    nobody2:x:7:8::/:/bin/false\n\
                    nobody:x:65534:65533:nobody:/nonexistent:/usr/sbin/nologin\n";
        let cases = [
            ("root", Some((0, 0))),
            ("nobody", Some((65534, 65533))),
            ("body", None),
            ("postgres", None),
        ];
        for (name, expected) in cases {
            assert_eq!(find_account(list, name), expected, "{name}");
        }
    }
}
