//! Memory limits of control groups (Linux, versions 1 and 2), as set for containers and services.

use super::SystemFiles;
use std::path::{Path, PathBuf};

/// Lower bound of values that mean "unlimited": version 1 reports a huge number where no limit is set.
const NO_LIMIT: u64 = 1 << 60;

/// Memory limit of a control group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Limit {
    /// Limit of the group in bytes.
    pub limit_bytes: u64,
    /// Free bytes of the group, including its reclaimable page cache.
    pub free_bytes: u64,
}

/// File names of one control-group version.
struct Names {
    limit: &'static str,
    usage: &'static str,
    /// Lines of `memory.stat` that count the page cache.
    files: [&'static str; 2],
}

const V1: Names = Names {
    limit: "memory.limit_in_bytes",
    usage: "memory.usage_in_bytes",
    files: ["total_inactive_file", "total_active_file"],
};

const V2: Names =
    Names { limit: "memory.max", usage: "memory.current", files: ["inactive_file", "active_file"] };

/// Returns the limit of this process's groups with the least free memory, if any group has a limit.
pub(super) fn tightest(files: &SystemFiles) -> Option<Limit> {
    let own = files.read("/proc/self/cgroup")?;
    let mounts = files.read("/proc/self/mountinfo")?;
    let mut tightest: Option<Limit> = None;
    for line in own.lines() {
        let mut fields = line.splitn(3, ':');
        let (Some(_), Some(controllers), Some(path)) =
            (fields.next(), fields.next(), fields.next())
        else {
            continue;
        };
        let (kind, names) = match controllers {
            "" => ("cgroup2", V2),
            some if some.split(',').any(|name| name == "memory") => ("cgroup", V1),
            _ => continue,
        };
        let Some((mount, root)) = mount_of(&mounts, kind) else { continue };
        // The path is relative to the mounted group: a container may see only part of the hierarchy.
        let below = Path::new(path).strip_prefix(&root).unwrap_or(Path::new(""));
        let mut group = mount.join(below.strip_prefix("/").unwrap_or(below));
        loop {
            let limit = limit(files, &group, &names);
            tightest = [tightest, limit].into_iter().flatten().min_by_key(|limit| limit.free_bytes);
            if group == mount || !group.pop() {
                break;
            }
        }
    }
    tightest
}

/// Returns the mount point of the hierarchy and the group that is mounted there.
fn mount_of(mounts: &str, kind: &str) -> Option<(PathBuf, PathBuf)> {
    mounts.lines().find_map(|line| {
        let (before, after) = line.split_once(" - ")?;
        let mut after = after.split(' ');
        // Default: a mount without options is not a memory hierarchy.
        let (found, options) = (after.next()?, after.nth(1).unwrap_or_default());
        let is_memory = kind == "cgroup2" || options.split(',').any(|option| option == "memory");
        let fields: Vec<&str> = before.split(' ').collect();
        (found == kind && is_memory)
            .then(|| Some((PathBuf::from(fields.get(4)?), PathBuf::from(fields.get(3)?))))?
    })
}

fn limit(files: &SystemFiles, group: &Path, names: &Names) -> Option<Limit> {
    // An unlimited group has the text "max", which does not parse.
    let limit_bytes = files.number(group.join(names.limit)).filter(|limit| *limit < NO_LIMIT)?;
    let usage = files.number(group.join(names.usage))?;
    // Default: without `memory.stat`, no page cache counts as free.
    let stat = files.read(group.join("memory.stat")).unwrap_or_default();
    let of = |line: &str| -> Option<u64> {
        let (name, bytes) = line.split_once(' ')?;
        names.files.contains(&name).then(|| bytes.trim().parse().ok())?
    };
    let cached: u64 = stat.lines().filter_map(of).sum();
    let free_bytes = limit_bytes.saturating_sub(usage.saturating_sub(cached));
    Some(Limit { limit_bytes, free_bytes })
}
