//! What suites must know of the device they run on.

use nestling_core::backend::Backend;

/// A device under test. Functions that fail where there is no device are called only by tests of suites that
/// are ignored there ([`Suite::unless`](crate::Suite::unless)).
pub trait Device: 'static {
    /// What is tested.
    type Backend: Backend + 'static;

    /// A backend on the device that tests share.
    fn device() -> Self::Backend;

    /// Another backend on the same device.
    fn again(backend: &Self::Backend) -> Self::Backend;

    /// Another one on the same device, which is taken to do so many multiplications a second.
    fn with_work_rate(backend: &Self::Backend, rate: u64) -> Self::Backend;
}

/// What the suite of operations must know besides.
pub trait OperationsDevice: Device {
    /// Most elements of a DeltaNet key.
    const KEY_DIM_MAX: usize = 1024;

    /// Launches of a product of 300 rows of a matrix and 70 of activations, and of what quantizes these: at
    /// once, by 128 rows of the matrix and 64 of activations, by the least.
    const PRODUCT_LAUNCHES: [u64; 3];

    /// Launches of attention for few rows.
    const ATTEND_LAUNCHES: u64;

    /// Whether a device may take numbers below the least normal one for 0.
    const KEEPS_NO_SUBNORMAL: bool;

    /// Rows that are many to the device.
    const ROWS_MANY: usize;

    /// Query heads that one launch attends for at the least, of so many of a row.
    fn attended_at_least(heads: u64) -> u64;

    /// A backend without instructions that some devices lack.
    fn plain_device() -> Self::Backend;

    /// Measures how fast the device computes; what it finds depends on the device.
    fn measure_work_rates(backend: &Self::Backend);
}

/// What the suite of models must know besides.
pub trait ModelsDevice: Device {
    /// What a limit has room for beside experts: dense weights, and what steps and sessions work with.
    const WORK_BYTES: u64;

    /// A backend on a device of its own.
    fn own_device() -> Self::Backend;

    /// A backend that may use so many bytes of the device's memory.
    fn limited_device(bytes: u64) -> Self::Backend;

    /// Loses the device.
    fn destroy(backend: &Self::Backend);

    /// Tokens of a family's prompt: two pages, and convolutions and windows that lie in both, where the device
    /// is quick enough for so many.
    fn family_tokens() -> usize;
}
