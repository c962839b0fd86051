//! Total and available memory of the machine.

use super::SystemFiles;
use super::groups::{self, Limit};

/// Divisor of the free memory: one part in `MARGIN` is left to other programs.
const MARGIN: u64 = 10;

/// Minimum memory left to other programs, in bytes.
const MARGIN_MIN: u64 = 256 << 20;

/// Memory of the machine and of the control groups of this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MemoryState {
    /// Total memory of the machine, in bytes.
    pub total_bytes: u64,
    /// Available memory in bytes: free, or reclaimable at once.
    pub available_bytes: u64,
    /// Tightest control-group limit, if any.
    pub group: Option<Limit>,
}

impl MemoryState {
    /// Reads the current state. Returns `None` if the system does not report it. Only Linux is supported so
    /// far.
    pub fn read(files: &SystemFiles) -> Option<Self> {
        let info = files.read("/proc/meminfo")?;
        let of = |name: &str| -> Option<u64> {
            let line = info.lines().find_map(|line| line.strip_prefix(name))?;
            let kibibytes = line.trim_start_matches(':').trim().strip_suffix("kB")?;
            kibibytes.trim().parse::<u64>().ok()?.checked_mul(1024)
        };
        let (total_bytes, available_bytes) = (of("MemTotal")?, of("MemAvailable")?);
        Some(Self { total_bytes, available_bytes, group: groups::tightest(files) })
    }

    /// Returns the bytes that a program can allocate at present.
    pub fn free_bytes(&self) -> u64 {
        self.group.map_or(self.available_bytes, |group| group.free_bytes.min(self.available_bytes))
    }

    /// Returns the default memory budget in bytes: the free memory less a margin.
    pub fn default_budget(&self) -> u64 {
        let free = self.free_bytes();
        free - (free / MARGIN).max(MARGIN_MIN.min(free / 2))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
