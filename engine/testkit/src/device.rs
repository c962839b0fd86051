//! Properties of a device that the suites need.

use std::sync::Arc;

use nestling_core::backend::Backend;
use nestling_core::group::Group;

/// A device under test. Methods that fail without a device are only called by tests of suites that are
/// ignored in that case ([`Suite::unless`](crate::Suite::unless)).
pub trait Device: 'static {
    type Backend: Backend + 'static;

    /// Returns a backend on the device that tests share.
    fn device() -> Self::Backend;

    /// Returns another backend on the same device.
    fn again(backend: &Self::Backend) -> Self::Backend;

    /// Returns another backend on the same device, with an assumed speed in multiplications per second.
    fn with_work_rate(backend: &Self::Backend, rate: u64) -> Self::Backend;
}

/// Additional properties needed by the suite of operations.
pub trait OperationsDevice: Device {
    /// Maximum number of elements of a DeltaNet key.
    const KEY_DIM_MAX: usize = 1024;

    /// Launches of a product of 300 matrix rows and 70 activation rows, including quantization. For a single
    /// launch, for chunks of 128 matrix rows and 64 activation rows, and for minimal chunks.
    const PRODUCT_LAUNCHES: [u64; 3];

    /// Launches of attention for few rows.
    const ATTEND_LAUNCHES: u64;

    /// True if the device may flush subnormal numbers to zero.
    const KEEPS_NO_SUBNORMAL: bool;

    /// Number of rows that the device treats as many.
    const ROWS_MANY: usize;

    /// Returns the minimum number of query heads per launch of attention, of `heads` heads per row.
    fn attended_at_least(heads: u64) -> u64;

    /// Returns a backend that does not use optional instructions.
    fn plain_device() -> Self::Backend;

    /// Measures the speed of the device. The results depend on the device.
    fn measure_work_rates(backend: &Self::Backend);
}

/// Additional properties needed by the suite of models.
pub trait ModelsDevice: Device {
    /// Memory for everything but experts: dense weights, and the buffers of steps and sessions.
    const WORK_BYTES: u64;

    /// Returns a backend on a separate device.
    fn own_device() -> Self::Backend;

    /// Makes a backend a rank of a group.
    fn in_group(backend: Self::Backend, group: Arc<dyn Group>) -> Self::Backend;

    /// Returns a backend that may use `bytes` bytes of the device's memory.
    fn limited_device(bytes: u64) -> Self::Backend;

    /// Causes a loss of the device.
    fn destroy(backend: &Self::Backend);

    /// Returns the number of tokens in a family's prompt: two pages, so that convolutions and windows cross
    /// pages, unless the device is too slow.
    fn family_tokens() -> usize;
}
