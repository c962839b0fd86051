//! Properties of the machine: CPU, memory bandwidth and peak memory use.

use crate::console::Console;
use crate::failure::Result;
use crate::kernels::kernels;
use nestling::engine::bandwidth::read_bandwidth;
use nestling::engine::cpu::kernels::Kernels;
use nestling::engine::threads::ThreadPool;
use std::collections::BTreeMap;
use std::fs;

/// Size of the buffer for measuring memory bandwidth: several times a large cache.
const BUFFER_BYTES: usize = 512 << 20;

/// Approximate duration of the bandwidth measurement in seconds.
const SECONDS: f64 = 0.3;

/// The CPU, and its memory bandwidth by number of threads.
pub struct Machine {
    pub cpu: String,
    pub kernels: &'static Kernels,
    skip_bandwidth: bool,
    bandwidths: BTreeMap<usize, f64>,
}

impl Machine {
    pub fn new(skip_bandwidth: bool) -> Result<Self> {
        let kernels = kernels()?;
        Ok(Self { cpu: cpu_name(), kernels, skip_bandwidth, bandwidths: BTreeMap::new() })
    }

    /// Returns the memory bandwidth of `threads` threads in bytes per second. It is measured once per number
    /// of threads. Returns `None` if the measurement is disabled.
    pub fn bandwidth(&mut self, threads: usize, console: &Console) -> Option<f64> {
        if self.skip_bandwidth {
            return None;
        }
        let measure = || {
            let bandwidth = read_bandwidth(&ThreadPool::new(threads), BUFFER_BYTES, SECONDS);
            let plural = if threads == 1 { "" } else { "s" };
            let speed = bandwidth / 1e9;
            console.note(format_args!("memory: {speed:.1} GB/s read by {threads} thread{plural}"));
            bandwidth
        };
        Some(*self.bandwidths.entry(threads).or_insert_with(measure))
    }
}

fn cpu_name() -> String {
    // Default: the name of the architecture, if the system does not report the CPU.
    let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = info.lines().find_map(|line| line.strip_prefix("model name"));
    let name = name.and_then(|line| line.split_once(':')).map(|(_, name)| name.trim());
    name.unwrap_or(std::env::consts::ARCH).into()
}

/// Returns the peak resident memory of the program in bytes, including mapped files. Returns `None` if the
/// system does not report it.
pub fn peak_memory() -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok().map(|kilobytes| kilobytes * 1024)
}

/// Resets the peak memory counter, if the system supports it.
pub fn forget_peak_memory() {
    let _ = fs::write("/proc/self/clear_refs", "5");
}
