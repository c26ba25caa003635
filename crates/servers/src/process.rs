//! Information about processes, read from `/proc`.
//!
//! Process groups are not enough: PostgreSQL gives each of its children its own
//! session. Without `/proc` no children are known; PostgreSQL's children notice the
//! death of their parent by themselves.

use std::fs;

use rustix::process::Pid;

/// The state of a process at one moment.
pub(crate) struct Process {
    pub(crate) id: Pid,
    parent: i32,
    state: char,
    /// Distinguishes it from a later process with the same id.
    started: u64,
}

impl Process {
    fn read(id: Pid) -> Option<Self> {
        let line = fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
        Self::parse(id, &line)
    }

    /// Parses the line that `proc_pid_stat(5)` describes. The second field is the
    /// name in brackets, which may contain any characters, brackets included.
    fn parse(id: Pid, line: &str) -> Option<Self> {
        let (_, rest) = line.rsplit_once(") ")?;
        let fields = rest.split(' ').collect::<Vec<_>>();
        Some(Self {
            id,
            state: fields.first()?.chars().next()?,
            parent: fields.get(1)?.parse().ok()?,
            started: fields.get(19)?.parse().ok()?,
        })
    }

    /// Whether the process has ended. The exit status of an orphan may never be
    /// read, so a zombie counts as ended.
    pub(crate) fn is_gone(&self) -> bool {
        Self::read(self.id).is_none_or(|now| now.started != self.started || now.is_dead())
    }

    fn is_dead(&self) -> bool {
        matches!(self.state, 'Z' | 'X')
    }
}

/// Whether a process is stopped or has ended: in both cases it starts no others.
pub(crate) fn is_stopped(id: Pid) -> bool {
    Process::read(id).is_none_or(|process| matches!(process.state, 'T' | 't') || process.is_dead())
}

/// All descendants of a process.
pub(crate) fn descendants(id: Pid) -> Vec<Process> {
    let names = fs::read_dir("/proc").into_iter().flatten().flatten();
    let ids = names.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let mut others = ids
        .filter_map(|id| Process::read(Pid::from_raw(id)?))
        .collect::<Vec<_>>();
    let mut found = Vec::<Process>::new();
    let mut parents = vec![id.as_raw_pid()];
    while let Some(parent) = parents.pop() {
        let children = others.extract_if(.., |process| process.parent == parent);
        found.extend(children.inspect(|child| parents.push(child.id.as_raw_pid())));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_brackets_and_blanks_is_no_field() {
        let id = Pid::from_raw(7).expect("not zero");
        let line = "7 (a) S 1 (b) T 42 7 7 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 99 0 0";
        let process = Process::parse(id, line).expect("a whole line");
        assert_eq!(
            (process.state, process.parent, process.started),
            ('T', 42, 99)
        );
    }

    #[test]
    fn this_process_runs() {
        let own = rustix::process::getpid();
        assert!(!Process::read(own).expect("it runs").is_gone());
        assert!(!is_stopped(own));
    }
}
