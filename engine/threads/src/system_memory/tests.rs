//! Tests of readings of the system's memory.

use super::groups::tightest;
use super::machine::Machine;
use super::{Limit, MemoryState, SystemFiles, native};
use std::path::Path;

/// Bytes by which the free memory may change between two readings.
const CHANGE_MAX: u64 = 1 << 30;

fn write(root: &Path, files: &[(&str, &str)]) {
    for (path, text) in files {
        let path = root.join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }
}

#[test]
fn version_1_is_read_up_to_the_root() {
    let root = tempfile::tempdir().unwrap();
    let mounts = "31 28 0:34 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n\
                  35 28 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n";
    let groups = "5:cpu:/a\n4:memory:/a/b\n0::/\n";
    write(
        root.path(),
        &[
            ("proc/self/mountinfo", mounts),
            ("proc/self/cgroup", groups),
            ("sys/fs/cgroup/memory/a/b/memory.limit_in_bytes", "9223372036854771712\n"),
            ("sys/fs/cgroup/memory/a/b/memory.usage_in_bytes", "1000\n"),
            ("sys/fs/cgroup/memory/a/memory.limit_in_bytes", "5000\n"),
            ("sys/fs/cgroup/memory/a/memory.usage_in_bytes", "3000\n"),
            (
                "sys/fs/cgroup/memory/a/memory.stat",
                "cache 9\ntotal_inactive_file 700\ntotal_active_file 300\n",
            ),
        ],
    );
    let found = tightest(&SystemFiles::below(root.path()));
    assert_eq!(found, Some(Limit { limit_bytes: 5000, free_bytes: 3000 }));
}

#[test]
fn version_2_of_a_container_is_seen_from_its_mount() {
    let root = tempfile::tempdir().unwrap();
    let mounts = "40 28 0:28 /pods/x /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n";
    write(
        root.path(),
        &[
            ("proc/self/mountinfo", mounts),
            ("proc/self/cgroup", "0::/pods/x\n"),
            ("sys/fs/cgroup/memory.max", "8000\n"),
            ("sys/fs/cgroup/memory.current", "6000\n"),
            ("sys/fs/cgroup/memory.stat", "anon 5\ninactive_file 1000\nactive_file 500\n"),
        ],
    );
    let files = SystemFiles::below(root.path());
    let expected = Limit { limit_bytes: 8000, free_bytes: 3500 };
    assert_eq!(tightest(&files), Some(expected));
    write(root.path(), &[("sys/fs/cgroup/memory.max", "max\n")]);
    assert_eq!(tightest(&files), None);
}

#[test]
fn without_groups_there_is_no_limit() {
    let root = tempfile::tempdir().unwrap();
    assert_eq!(tightest(&SystemFiles::below(root.path())), None);
}

#[test]
fn pages_of_other_programs_are_not_available() {
    let machine = Machine { total_bytes: 100, available_bytes: 30 };
    assert_eq!(Machine::unused(100, 80, 70), Some(machine));
    assert_eq!(Machine::unused(100, 30, 40), Some(machine));
}

#[test]
fn a_failed_call_reports_nothing() {
    assert_eq!(Machine::unused(0, 0, 0), None);
    assert_eq!(Machine::unused(100, 0, 0), None);
    assert_eq!(Machine::unused(100, 50, 200), None);
}

#[test]
fn a_process_limit_bounds_the_available_memory() {
    let machine = Machine { total_bytes: 100, available_bytes: 30 };
    assert_eq!(machine.within_process(20).available_bytes, 20);
    assert_eq!(machine.within_process(50), machine);
    assert_eq!(machine.within_process(0), machine);
}

#[test]
fn what_is_free_less_a_margin() {
    let root = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(root.path().join("proc")).unwrap();
    let text = "MemTotal:       24684084 kB\nMemFree: 1 kB\nMemAvailable:   20000000 kB\n";
    std::fs::write(root.path().join("proc/meminfo"), text).unwrap();
    let state = MemoryState::read(&SystemFiles::below(root.path())).unwrap();
    assert_eq!(state.available_bytes, 20_000_000 * 1024);
    assert_eq!(state.default_budget(), 18_000_000 * 1024);
    let group = Some(Limit { limit_bytes: 2 << 30, free_bytes: 1 << 30 });
    let state = MemoryState { group, ..state };
    assert_eq!(state.default_budget(), (1 << 30) - (256 << 20));
    let tiny = Limit { limit_bytes: 2 << 20, free_bytes: 1 << 20 };
    let state = MemoryState { group: Some(tiny), ..state };
    assert_eq!(state.default_budget(), 1 << 19);
}

#[test]
fn a_silent_system_gives_no_number() {
    let root = tempfile::tempdir().unwrap();
    assert_eq!(MemoryState::read(&SystemFiles::below(root.path())), None);
}

#[test]
fn the_library_and_the_files_of_this_machine_agree() {
    // Default: the files exist on Linux only.
    let Some(files) = MemoryState::read(&SystemFiles::default()) else { return };
    let machine = native::read().unwrap();
    assert_eq!(machine.total_bytes, files.total_bytes);
    assert!(machine.available_bytes > 0);
    assert!(machine.available_bytes.abs_diff(files.available_bytes) < CHANGE_MAX);
}
