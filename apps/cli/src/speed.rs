//! Speed of memory and disk, and the fastest number of threads. Each is measured, read from the cache, or
//! given by the user.

use crate::args::SpeedArgs;
use crate::bytes::ByteSize;
use crate::console::Console;
use crate::explain::explain;
use crate::failure::Result;
use crate::linux;
use crate::places;
use nestling::engine::bandwidth::read_bandwidth;
use nestling::engine::reads::{
    MeasureOptions, ReadChoice, ReadOptions, ReadSpeed, choose, measure, plane_sizes,
    plane_sizes_of_index,
};
use nestling::engine::thread_count::{CORES_FEW, best_thread_count};
use nestling::engine::threads::ThreadPool;
use nestling::formats::store::{Index, Store, StorePlan, StoreWriter};
use nestling::system::SystemFiles;
use nestling_hub::StoreAddress;
use nestling_plan::plan::{DiskSpeed, MachineSpeed};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Size of the buffer for measuring memory bandwidth: several times a large cache.
const BUFFER_BYTES: usize = 512 << 20;

/// Approximate duration of the memory measurement in seconds.
const SECONDS: f64 = 0.3;

/// Approximate duration in seconds of the measurement of each read method.
const DISK_SECONDS: f64 = 0.06;

/// Size of the trial file for disks without a store. Planes of large experts fit into it.
const TRIAL_BYTES: usize = 64 << 20;

/// Speed of the machine, as a plan uses it.
pub struct Machine {
    pub threads: usize,
    pub speed: MachineSpeed,
    /// Fastest read method for the disk; `None` if it was not measured.
    pub disk: Option<ReadChoice>,
}

/// Earlier measurements, stored in the cache folder.
#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(default)]
struct SpeedCache {
    /// Memory bandwidth in bytes per second, by number of threads.
    memory: BTreeMap<usize, f64>,
    /// Disk measurements, by name of the disk.
    reads: BTreeMap<String, Vec<ReadSpeed>>,
}

impl SpeedCache {
    /// Reads the stored measurements. Returns none if the file is missing or unreadable.
    fn load() -> Self {
        let text = places::speeds_file().ok().and_then(|file| std::fs::read_to_string(file).ok());
        // Default: unreadable measurements are repeated.
        text.and_then(|text| serde_json::from_str(&text).ok()).unwrap_or_default()
    }

    /// Stores the measurements. Errors are ignored.
    fn keep(&self) {
        // Default: measurements that cannot be stored are repeated.
        let (Ok(file), Ok(text)) = (places::speeds_file(), serde_json::to_string_pretty(self))
        else {
            return;
        };
        let _ = file.parent().map(std::fs::create_dir_all);
        let _ = std::fs::write(file, text + "\n");
    }
}

impl Machine {
    /// Returns the speeds for a store, measuring unknown ones.
    pub fn measure(args: &SpeedArgs, store: &Arc<Store>, console: &Console) -> Result<Self> {
        Self::measure_at(args, &StoreLocation::of_store(store), console)
    }

    /// Returns the speeds for a location where a store may not exist yet.
    pub fn measure_at(args: &SpeedArgs, place: &StoreLocation, console: &Console) -> Result<Self> {
        let cores = || std::thread::available_parallelism().map_or(1, usize::from);
        let threads = args.threads.map(|threads| threads as usize);
        let threads = threads.or_else(best_threads).unwrap_or_else(cores);
        let mut known = SpeedCache::load();
        if args.measure_again {
            known = SpeedCache::default();
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
        let measured = disk(place, &mut known, console)?;
        let choice = choose(&measured);
        let points = measured.iter().filter(|one| {
            let way = ReadChoice { method: one.method, direct: one.direct, depth: one.depth };
            choice.as_ref() == Some(&way)
        });
        let point = |one: &ReadSpeed| DiskSpeed {
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

    /// Describes the read speed for each size, and the read method.
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

/// Location of a present or future store, and the sizes of its reads in bytes.
pub struct StoreLocation {
    path: PathBuf,
    sizes: Vec<u64>,
    store: Option<Arc<Store>>,
}

impl StoreLocation {
    /// Returns the location of an open store. That of a store on the web is where its copy is, since measuring
    /// its reads would fetch it.
    pub fn of_store(store: &Arc<Store>) -> Self {
        if StoreAddress::is_address(store.name()) {
            // Default: without a cache, the current folder.
            let folder = places::nestling_cache().unwrap_or_else(|_| PathBuf::from("."));
            return Self::of_folder(&folder, store.index());
        }
        let (path, sizes) = (PathBuf::from(store.name()), plane_sizes(store));
        Self { path, sizes, store: Some(Arc::clone(store)) }
    }

    /// Returns the location of a future store with the given index.
    pub fn of_folder(folder: &Path, index: &Index) -> Self {
        let there = folder.ancestors().find(|folder| folder.is_dir());
        let path = there.unwrap_or(Path::new(".")).to_path_buf();
        Self { path, sizes: plane_sizes_of_index(index), store: None }
    }

    /// Returns the name under which the disk's measurements are stored.
    fn disk_name(&self) -> String {
        let folder = if self.store.is_some() { self.path.parent() } else { Some(&*self.path) };
        let folder = || folder.map_or(String::new(), |folder| folder.display().to_string());
        let disk = linux::disk_of(&SystemFiles::default(), &self.path);
        let name = disk.map_or_else(folder, |disk| disk.name);
        // Transcoding blocks of a GGUF file takes longer than reading a store's planes.
        let derived = self.store.as_ref().is_some_and(|store| store.is_derived());
        if derived { format!("{name}, GGUF in place") } else { name }
    }

    /// Measures reads of each size, from the store or from a trial file.
    fn measure(&self) -> Result<Vec<ReadSpeed>> {
        let read = |store: &Arc<Store>| {
            let options = MeasureOptions {
                seconds: DISK_SECONDS,
                block_bytes: self.sizes.clone(),
                ..MeasureOptions::of_store(store)
            };
            measure(store, &options).map_err(|error| explain(&error))
        };
        if let Some(store) = &self.store {
            return read(store);
        }
        let path = self.path.join(format!(".nestling-speed-{}.nest", std::process::id()));
        // If the trial file cannot be written, nothing is measured.
        let measured = trial_store(&path).map_or(Ok(Vec::new()), |store| read(&store));
        let _ = std::fs::remove_file(&path);
        measured
    }
}

/// Writes a store of pseudo-random numbers for measuring reads. Returns `None` if it cannot be written.
fn trial_store(path: &Path) -> Option<Arc<Store>> {
    let mut plan = StorePlan::new("speed", "{}");
    plan.add_asset("numbers", TRIAL_BYTES as u64);
    let mut numbers = vec![0; TRIAL_BYTES];
    for (at, bytes) in numbers.chunks_mut(8).enumerate() {
        // Pseudo-random, so that disks with compression do not appear faster.
        bytes.copy_from_slice(&(at as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes());
    }
    let writer = StoreWriter::create(path, &plan).ok()?;
    writer.write_asset("numbers", &numbers).ok()?;
    writer.finish().ok()?;
    Store::open(path).ok().map(Arc::new)
}

/// Returns the measured reads of the location's sizes, from the cache or by measuring them.
fn disk(
    place: &StoreLocation,
    known: &mut SpeedCache,
    console: &Console,
) -> Result<Vec<ReadSpeed>> {
    let name = place.disk_name();
    // Default: a new disk has not been measured.
    let held = known.reads.get(&name).map(Vec::as_slice).unwrap_or_default();
    let is_held = |size: &u64| held.iter().any(|one| one.block_bytes == *size);
    if !place.sizes.is_empty() && place.sizes.iter().all(is_held) {
        let of_store = |one: &&ReadSpeed| place.sizes.contains(&one.block_bytes);
        return Ok(held.iter().filter(of_store).cloned().collect());
    }
    console.note(format_args!("measuring reads of {name}..."));
    let measured = place.measure()?;
    let all = known.reads.entry(name).or_default();
    all.retain(|one| !place.sizes.contains(&one.block_bytes));
    all.extend(measured.iter().cloned());
    known.keep();
    Ok(measured)
}

/// Returns the read options for a streamed store: the fastest method, measured at first use.
pub fn read_options(store: &Arc<Store>, console: &Console) -> ReadOptions {
    let place = StoreLocation::of_store(store);
    // Default: empty if the measurement failed; the engine's default options are then used.
    let measured = disk(&place, &mut SpeedCache::load(), console).unwrap_or_default();
    match choose(&measured) {
        Some(choice) => ReadOptions::default().chosen(&choice),
        None => ReadOptions::default(),
    }
}

/// Returns the fastest number of threads on this machine. It is measured once and stored with the number of
/// cores. Returns `None` on machines with few cores.
pub fn best_threads() -> Option<usize> {
    let cores = std::thread::available_parallelism().ok()?.get();
    if cores <= CORES_FEW {
        return None;
    }
    let file = places::thread_count_file().ok();
    let text = file.as_deref().and_then(|file| std::fs::read_to_string(file).ok());
    let known = text.as_deref().and_then(|text| {
        let (measured, best) = text.trim().split_once(' ')?;
        let best: usize = best.parse().ok()?;
        (measured.parse() == Ok(cores) && (1..=cores).contains(&best)).then_some(best)
    });
    let best = known.unwrap_or_else(|| best_thread_count(cores));
    if let (None, Some(file)) = (known, file) {
        // If the result cannot be stored, it is measured again next time.
        let _ = file.parent().map(std::fs::create_dir_all);
        let _ = std::fs::write(file, format!("{cores} {best}\n"));
    }
    Some(best)
}
