//! Total and available memory of the machine.

use super::SystemFiles;
use super::groups::{self, Limit};
use super::machine::Machine;

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
    /// Reads the current state. Linux and Android report it in `files`; macOS, iOS, Windows and FreeBSD in
    /// calls, made only for the files of this machine. Returns `None` on other systems and on failure.
    pub fn read(files: &SystemFiles) -> Option<Self> {
        let native = || if files.are_this_machine() { native() } else { None };
        let Machine { total_bytes, available_bytes } = of_files(files).or_else(native)?;
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

/// Reads `/proc/meminfo`.
fn of_files(files: &SystemFiles) -> Option<Machine> {
    let info = files.read("/proc/meminfo")?;
    let of = |name: &str| -> Option<u64> {
        let line = info.lines().find_map(|line| line.strip_prefix(name))?;
        let kibibytes = line.trim_start_matches(':').trim().strip_suffix("kB")?;
        kibibytes.trim().parse::<u64>().ok()?.checked_mul(1024)
    };
    Some(Machine { total_bytes: of("MemTotal")?, available_bytes: of("MemAvailable")? })
}

#[cfg(any(windows, target_os = "macos", target_os = "ios", target_os = "freebsd"))]
fn native() -> Option<Machine> {
    super::native::read()
}

#[cfg(not(any(windows, target_os = "macos", target_os = "ios", target_os = "freebsd")))]
fn native() -> Option<Machine> {
    None
}
