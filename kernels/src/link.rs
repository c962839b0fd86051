//! Measures transfers between pinned host memory and a device when a model is opened.

use std::sync::Arc;
use std::time::Instant;

use nestling_core::backend::HostLink;

use crate::driver::commands::Commands;
use crate::driver::{Address, Driver};
use crate::error::CudaError;

/// Maximum size of a measured copy in bytes.
const BYTES_MAX: u64 = 16 << 20;

/// Bytes of activations in the round trip, about one row.
const ROW_BYTES: usize = 8 << 10;

/// Number of repetitions. The fastest counts, since idle links and clocks are slow at first.
const ROUNDS: usize = 5;

/// Measures transfers, overwriting `room` bytes of device memory at `slots`.
///
/// # Errors
/// Returns an error if the device is lost or pinned memory is unavailable.
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
        // Each byte is read and written.
        device_bytes_per_s: 2.0 * half as f64 / device_s,
    })
}

fn seconds(act: impl FnOnce() -> Result<(), CudaError>) -> Result<f64, CudaError> {
    let started = Instant::now();
    act()?;
    // The clock may be coarser than the duration of a copy.
    Ok(started.elapsed().as_secs_f64().max(1e-9))
}
