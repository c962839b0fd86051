//! Memory for weights: how large the slabs are that they lie in.

use std::sync::Arc;

use nestling_gpu::{WeightRange, WeightSlabs};

use crate::driver::{Address, DeviceMemory, Driver};
use crate::error::CudaError;

/// Bytes of the smallest and the largest slab, unless one thing is larger.
const SLAB_BYTES_MIN: u64 = 16 << 20;
const SLAB_BYTES_MAX: u64 = 1 << 30;

/// Bytes in a slab; others may have them once it is dropped.
pub(crate) type SlabRange = WeightRange<DeviceMemory>;

/// All slabs of a device.
pub(crate) type Slabs = WeightSlabs<DeviceMemory>;

/// Whether a range may be written at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Readers {
    /// Nothing reads it.
    None,
    /// Work that was recorded or given to the device may still read what was there.
    Earlier,
}

/// Where a range is.
pub(crate) fn address(range: &SlabRange) -> Address {
    range.memory().address() + range.offset()
}

/// A range of so many bytes, with unspecified contents: one that nobody reads if there is one.
///
/// # Errors
/// [`CudaError::OutOfMemory`], [`CudaError::OverBudget`].
pub(crate) fn range(
    slabs: &Slabs,
    driver: &Arc<Driver>,
    bytes: u64,
) -> Result<(SlabRange, Readers), CudaError> {
    if let Some(range) = slabs.take(bytes) {
        return Ok((range, Readers::None));
    }
    // As large as all before it together within bounds: little of a budget must lie unused.
    let most = SLAB_BYTES_MAX.min(driver.budget() / 16);
    let size = slabs.bytes().max(SLAB_BYTES_MIN).min(most);
    match slabs.grow(size, bytes, |bytes| driver.allocate("weights", bytes)) {
        Err(error) if error.is_full() && slabs.has_released() => {
            slabs.settle(|_, _| {});
            let range = slabs.take(bytes);
            let range = range.ok_or(CudaError::OutOfMemory { what: "weights", bytes })?;
            Ok((range, Readers::Earlier))
        }
        grown => Ok((grown?, Readers::None)),
    }
}
