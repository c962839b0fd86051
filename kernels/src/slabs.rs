//! Slabs of weights and their sizes.

use std::sync::Arc;

use nestling_gpu::{WeightRange, WeightSlabs};

use crate::driver::{Address, DeviceMemory, Driver};
use crate::error::CudaError;

/// Minimum and maximum size of a slab in bytes, unless one weight is larger.
const SLAB_BYTES_MIN: u64 = 16 << 20;
const SLAB_BYTES_MAX: u64 = 1 << 30;

/// A byte range of a slab, released on drop.
pub(crate) type SlabRange = WeightRange<DeviceMemory>;

/// All slabs of a device.
pub(crate) type Slabs = WeightSlabs<DeviceMemory>;

/// Pending readers of a new range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Readers {
    /// The range has no readers.
    None,
    /// Recorded or submitted commands that may still read the previous contents.
    Earlier,
}

/// Returns the address of a range.
pub(crate) fn address(range: &SlabRange) -> Address {
    range.memory().address() + range.offset()
}

/// Allocates a range with unspecified contents, preferring one without readers.
///
/// # Errors
/// Fails with [`CudaError::OutOfMemory`] or [`CudaError::OverBudget`].
pub(crate) fn range(
    slabs: &Slabs,
    driver: &Arc<Driver>,
    bytes: u64,
) -> Result<(SlabRange, Readers), CudaError> {
    if let Some(range) = slabs.take(bytes) {
        return Ok((range, Readers::None));
    }
    // As large as all previous slabs together, within bounds. Under a budget, little memory may be left
    // unused.
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
