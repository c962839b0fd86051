//! How fast this machine reads memory and disk: measured, remembered, or said by the person.

use crate::args::SpeedArgs;
use crate::bytes::ByteSize;
use crate::console::Console;
use crate::explain::explain;
use crate::failure::Result;
use crate::opened::best_threads;
use crate::places;
use crate::system::SystemFiles;
use crate::system::linux;
use nestling::engine::bandwidth::read_bandwidth;
use nestling::engine::plan::{DiskSpeed, MachineSpeed};
use nestling::engine::reads::{MeasureOptions, Measured, ReadChoice, ReadOptions, choose, measure};
use nestling::engine::threads::ThreadPool;
use nestling::formats::store::Store;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

/// Bytes that the bandwidth of memory is measured over: several times a large cache.
const BUFFER_BYTES: usize = 512 << 20;

/// About how long memory is measured.
const SECONDS: f64 = 0.3;

/// About how long each way of reading the disk is measured.
const DISK_SECONDS: f64 = 0.06;

/// The machine as a plan sees it.
pub struct Machine {
    pub threads: usize,
    pub speed: MachineSpeed,
    /// How the disk is read best; none where that was not measured.
    pub disk: Option<ReadChoice>,
}

/// What was measured before, in the cache's folder.
#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(default)]
struct Remembered {
    /// Bytes of memory per second, by the number of threads.
    memory: BTreeMap<usize, f64>,
    /// Reads, by the name of the disk.
    disks: BTreeMap<String, Vec<Measured>>,
}

impl Remembered {
    /// Nothing where nothing can be read.
    fn load() -> Self {
        let text = places::speeds_file().ok().and_then(|file| std::fs::read_to_string(file).ok());
        text.and_then(|text| serde_json::from_str(&text).ok()).unwrap_or_default()
    }

    /// Where nothing can be kept, it is measured again.
    fn keep(&self) {
        let (Ok(file), Ok(text)) = (places::speeds_file(), serde_json::to_string_pretty(self))
        else {
            return;
        };
        let _ = file.parent().map(std::fs::create_dir_all);
        let _ = std::fs::write(file, text + "\n");
    }
}

impl Machine {
    /// What is known, with measurements of what is not.
    pub fn measure(args: &SpeedArgs, store: &Arc<Store>, console: &Console) -> Result<Self> {
        let cores = || std::thread::available_parallelism().map_or(1, usize::from);
        let threads = args.threads.map(|threads| threads as usize);
        let threads = threads.or_else(best_threads).unwrap_or_else(cores);
        let mut known = Remembered::load();
        if args.measure_again {
            known = Remembered::default();
        }
        let memory_bytes_per_s = match (args.memory_speed, known.memory.get(&threads)) {
            (Some(said), _) => said.0 as f64,
            (None, Some(known)) => *known,
            (None, None) => {
                console.note("measuring memory...");
                let speed = read_bandwidth(&ThreadPool::new(threads), BUFFER_BYTES, SECONDS);
                known.memory.insert(threads, speed);
                known.keep();
                speed
            }
        };
        if let Some(said) = args.disk_speed {
            let disk = vec![DiskSpeed { read_bytes: 1 << 20, bytes_per_s: said.0 as f64 }];
            return Ok(Self {
                threads,
                speed: MachineSpeed { memory_bytes_per_s, disk },
                disk: None,
            });
        }
        let measured = disk(store, &mut known, console)?;
        let choice = choose(&measured);
        let points = measured.iter().filter(|one| {
            let way = ReadChoice { method: one.method, direct: one.direct, depth: one.depth };
            choice.as_ref() == Some(&way)
        });
        let point = |one: &Measured| DiskSpeed {
            read_bytes: one.block_bytes,
            bytes_per_s: one.bytes_per_second,
        };
        let mut disk: Vec<DiskSpeed> = points.map(point).collect();
        disk.sort_by_key(|point| point.read_bytes);
        Ok(Self { threads, speed: MachineSpeed { memory_bytes_per_s, disk }, disk: choice })
    }

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
            "disk_method": self.disk,
        })
    }
}

/// The name that a store's disk is remembered by.
fn disk_name(store: &Store) -> String {
    let path = Path::new(store.name());
    let folder = || path.parent().map_or(String::new(), |folder| folder.display().to_string());
    linux::disk_of(&SystemFiles::default(), path).map_or_else(folder, |disk| disk.name)
}

/// Reads of this store's sizes: remembered, or measured now and remembered.
fn disk(store: &Arc<Store>, known: &mut Remembered, console: &Console) -> Result<Vec<Measured>> {
    let options = MeasureOptions { seconds: DISK_SECONDS, ..MeasureOptions::of_store(store) };
    let name = disk_name(store);
    let held = known.disks.get(&name).map(Vec::as_slice).unwrap_or_default();
    let is_held = |size: &u64| held.iter().any(|one| one.block_bytes == *size);
    if !options.block_bytes.is_empty() && options.block_bytes.iter().all(is_held) {
        let of_store = |one: &&Measured| options.block_bytes.contains(&one.block_bytes);
        return Ok(held.iter().filter(of_store).cloned().collect());
    }
    console.note(format_args!("measuring how {name} is read best..."));
    let measured = measure(store, &options).map_err(|error| explain(&error))?;
    let all = known.disks.entry(name).or_default();
    all.retain(|one| !options.block_bytes.contains(&one.block_bytes));
    all.extend(measured.iter().cloned());
    known.keep();
    Ok(measured)
}

/// How a store that is streamed is read: as was found best, measured at first use.
pub fn read_options(store: &Arc<Store>, console: &Console) -> ReadOptions {
    // Without a measurement, the engine's own choice serves.
    let measured = disk(store, &mut Remembered::load(), console).unwrap_or_default();
    match choose(&measured) {
        Some(choice) => ReadOptions::default().chosen(&choice),
        None => ReadOptions::default(),
    }
}
