//! How fast this machine reads memory and disk: measured, or said by the person.

use crate::args::SpeedArgs;
use crate::bytes::ByteSize;
use crate::console::Console;
use crate::failure::Result;
use crate::opened::best_threads;
use nestling::engine::bandwidth::read_bandwidth;
use nestling::engine::plan::{DiskSpeed, MachineSpeed};
use nestling::engine::threads::ThreadPool;
use nestling::formats::store::Store;
use serde_json::{Value, json};
use std::sync::Arc;

/// Bytes that the bandwidth of memory is measured over: several times a large cache.
const BUFFER_BYTES: usize = 512 << 20;

/// About how long it is measured.
const SECONDS: f64 = 0.3;

/// The machine as a plan sees it.
pub struct Machine {
    pub threads: usize,
    pub speed: MachineSpeed,
    /// How the disk is read; none where that was not measured.
    pub disk: Option<DiskMethod>,
}

/// How reads of this disk are done best.
#[derive(Clone, Debug, PartialEq)]
pub struct DiskMethod {
    pub method: String,
    pub depth: usize,
    pub direct: bool,
}

impl Machine {
    /// Measures what nobody said.
    pub fn measure(args: &SpeedArgs, store: &Arc<Store>, console: &Console) -> Result<Self> {
        let cores = || std::thread::available_parallelism().map_or(1, usize::from);
        let threads = args.threads.map(|threads| threads as usize);
        let threads = threads.or_else(best_threads).unwrap_or_else(cores);
        let memory_bytes_per_s = match args.memory_speed {
            Some(speed) => speed.0 as f64,
            None => {
                console.note("measuring memory...");
                read_bandwidth(&ThreadPool::new(threads), BUFFER_BYTES, SECONDS)
            }
        };
        let (disk, method) = match args.disk_speed {
            Some(speed) => {
                let bytes_per_s = speed.0 as f64;
                (vec![DiskSpeed { read_bytes: 1 << 20, bytes_per_s }], None)
            }
            None => {
                let _ = store;
                (Vec::new(), None)
            }
        };
        Ok(Self { threads, speed: MachineSpeed { memory_bytes_per_s, disk }, disk: method })
    }
}

impl Machine {
    pub fn memory_words(&self) -> String {
        format!("{:.1} GB/s read", self.speed.memory_bytes_per_s / 1e9)
    }

    /// How fast reads of each size are, and how they are done.
    pub fn disk_lines(&self) -> Vec<String> {
        let speeds = self.speed.disk.iter().map(|point| {
            let size = ByteSize(point.read_bytes).to_string();
            format!("{:.2} GB/s at reads of {size}", point.bytes_per_s / 1e9)
        });
        let how = self.disk.as_ref().map(|disk| {
            let cache = if disk.direct { "past the page cache" } else { "through the page cache" };
            format!("read best by {}, {} at a time, {cache}", disk.method, disk.depth)
        });
        speeds.chain(how).collect()
    }

    pub fn as_json(&self) -> Value {
        let disk = self.speed.disk.iter().map(|point| {
            json!({"read_bytes": point.read_bytes, "bytes_per_s": point.bytes_per_s.round()})
        });
        json!({
            "threads": self.threads,
            "memory_bytes_per_s": self.speed.memory_bytes_per_s.round(),
            "disk": disk.collect::<Vec<_>>(),
            "disk_method": self.disk.as_ref().map(|disk| json!({
                "method": disk.method,
                "depth": disk.depth,
                "direct": disk.direct,
            })),
        })
    }
}
