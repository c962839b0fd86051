//! Measured speed of memory and disk, for forecasts.

use std::sync::Arc;

use nestling::EngineError;
use nestling::engine::bandwidth::read_bandwidth;
use nestling::engine::reads::{MeasureOptions, choose, measure};
use nestling::engine::threads::ThreadPool;
use nestling::formats::store::Store;
use nestling_plan::plan::{DiskSpeed, MachineSpeed};

/// Size of the buffer for measuring memory, several times a large cache.
const BUFFER_BYTES: usize = 512 << 20;

/// Approximate duration of the measurement of memory in seconds.
const MEMORY_SECONDS: f64 = 0.3;

/// Approximate duration of the measurement of each way to read in seconds.
const DISK_SECONDS: f64 = 0.06;

/// Returns the bytes per second that all threads together read from memory.
pub fn memory_speed(threads: usize) -> f64 {
    read_bandwidth(&ThreadPool::new(threads), BUFFER_BYTES, MEMORY_SECONDS)
}

/// Measures reads of a store's planes, and returns the speed of the machine for it.
///
/// # Errors
/// Fails if the store cannot be read.
pub fn machine_speed(
    memory_bytes_per_s: f64,
    store: &Arc<Store>,
) -> Result<MachineSpeed, EngineError> {
    let options = MeasureOptions { seconds: DISK_SECONDS, ..MeasureOptions::of_store(store) };
    let measured = measure(store, &options)?;
    let choice = choose(&measured);
    let points = measured.iter().filter(|one| {
        let way = choice.as_ref();
        way.is_some_and(|way| {
            (one.method, one.direct, one.depth) == (way.method, way.direct, way.depth)
        })
    });
    let point = |one: &nestling::engine::reads::ReadSpeed| DiskSpeed {
        read_bytes: one.block_bytes,
        bytes_per_s: one.bytes_per_second,
    };
    let mut disk: Vec<DiskSpeed> = points.map(point).collect();
    disk.sort_by_key(|point| point.read_bytes);
    Ok(MachineSpeed { memory_bytes_per_s, disk })
}
