//! The machine that was measured on, without which rates mean little. The report includes the file
//! system of the store, because durability costs nothing in memory, and the load average, because
//! other work slows the scenarios unequally.

use std::fs;
use std::path::Path;
use std::thread;

use serde::Serialize;

const UNKNOWN: &str = "unknown";

#[derive(Serialize)]
pub(super) struct Machine {
    pub(super) cores: usize,
    pub(super) processor: String,
    pub(super) kernel: String,
    pub(super) store_file_system: String,
    /// The load average over the minute before the start.
    pub(super) load_average_before: String,
    pub(super) date: String,
}

impl Machine {
    pub(super) fn inspect(store: &Path) -> Self {
        Machine {
            cores: thread::available_parallelism().map_or(1, usize::from),
            processor: read("/proc/cpuinfo", processor),
            kernel: read("/proc/sys/kernel/osrelease", |text| {
                Some(text.trim().to_owned())
            }),
            store_file_system: read("/proc/self/mounts", |mounts| file_system(mounts, store)),
            load_average_before: read("/proc/loadavg", load_average),
            date: jiff::Timestamp::now().to_string(),
        }
    }
}

/// A value from a file of the Linux kernel; elsewhere `unknown`.
fn read(path: &str, find: impl FnOnce(&str) -> Option<String>) -> String {
    let text = fs::read_to_string(path).ok();
    text.and_then(|text| find(&text))
        .unwrap_or_else(|| UNKNOWN.to_owned())
}

fn processor(cpuinfo: &str) -> Option<String> {
    let line = cpuinfo
        .lines()
        .find(|line| line.starts_with("model name"))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

fn load_average(loadavg: &str) -> Option<String> {
    loadavg.split(' ').next().map(str::to_owned)
}

/// The type of the file system with the longest mount point above `store`.
fn file_system(mounts: &str, store: &Path) -> Option<String> {
    let store = store.canonicalize().ok()?;
    mounts
        .lines()
        .filter_map(|line| {
            let mut fields = line.split(' ').skip(1);
            Some((fields.next()?, fields.next()?))
        })
        .filter(|(point, _)| store.starts_with(point))
        .max_by_key(|(point, _)| point.len())
        .map(|(_, kind)| kind.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_mount_point_names_the_file_system() {
        let mounts = "/dev/vda / ext4 rw 0 0\nproc /proc proc rw 0 0\nnone /nowhere tmpfs rw 0 0\n";
        assert_eq!(file_system(mounts, Path::new("/")).as_deref(), Some("ext4"));
        assert_eq!(
            file_system(mounts, Path::new("/proc/self/")).as_deref(),
            Some("proc")
        );
    }

    #[test]
    fn the_processor_has_a_name() {
        let cpuinfo = "processor\t: 0\nmodel name\t: Quick 9000\n";
        assert_eq!(processor(cpuinfo).as_deref(), Some("Quick 9000"));
    }
}
