//! How fast memory moves between pinned memory of the host and a device, measured when a model is opened.

use std::sync::Arc;
use std::time::Instant;

use nestling_core::backend::HostLink;

use crate::driver::commands::Commands;
use crate::driver::{Address, Driver};
use crate::error::CudaError;

/// Most bytes of a copy that is measured.
const BYTES_MAX: u64 = 16 << 20;

/// Bytes of activations, about those of a row.
const ROW_BYTES: usize = 8 << 10;

/// Times that everything is done; the fastest one counts, since links and clocks sleep while nothing is done.
const ROUNDS: usize = 5;

/// Measures with memory of the device whose contents nobody needs.
///
/// # Errors
/// A device that is lost, or pinned memory that the system does not give.
pub(crate) fn measure(
    driver: &Arc<Driver>,
    slots: Address,
    room: u64,
) -> Result<HostLink, CudaError> {
    let bytes = room.min(BYTES_MAX);
    let stream = driver.stream()?;
    let mut pinned = driver.allocate_pinned("measuring", bytes as usize)?;
    let size = pinned.len().min(bytes as usize);
    let mut link_s = f64::INFINITY;
    let mut round_trip_s = f64::INFINITY;
    let mut device_s = f64::INFINITY;
    let half = bytes / 2 / 256 * 256;
    let mut copy = Commands::default();
    copy.copy(slots, slots + half, half);
    for _ in 0..ROUNDS {
        link_s = link_s.min(seconds(|| {
            stream.copy_in(&pinned, 0, size, slots)?;
            stream.synchronize()
        })?);
        let row = size.min(ROW_BYTES);
        round_trip_s = round_trip_s.min(seconds(|| {
            stream.copy_out(slots, row, &mut pinned, 0)?;
            stream.synchronize()?;
            stream.copy_in(&pinned, 0, row, slots)?;
            stream.synchronize()
        })?);
        device_s = device_s.min(seconds(|| {
            stream.run(&copy)?;
            stream.synchronize()
        })?);
    }
    Ok(HostLink {
        bytes_per_s: size as f64 / link_s,
        round_trip_s,
        // What is copied is read and written.
        device_bytes_per_s: 2.0 * half as f64 / device_s,
    })
}

fn seconds(act: impl FnOnce() -> Result<(), CudaError>) -> Result<f64, CudaError> {
    let started = Instant::now();
    act()?;
    // A clock may be coarser than a copy is long.
    Ok(started.elapsed().as_secs_f64().max(1e-9))
}
