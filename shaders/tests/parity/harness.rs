//! One device for all tests.

use std::sync::{Mutex, OnceLock};

use nestling_wgpu::{AdapterChoice, DeviceLimits, Instructions, WgpuBackend, WgpuOptions};

pub use super::values::{EPSILON, buffer, expect_close, expect_rows_close, noise, read};

/// Most elements of a DeltaNet key.
pub const KEY_DIM_MAX: usize = 1024;

/// Dispatches of a product of 300 rows of a matrix and 70 of activations, and of what quantizes these: at once,
/// by 128 rows of the matrix and 64 of activations, by the least. Of the first, the last 44 rows are one with
/// either activations.
pub const PRODUCT_LAUNCHES: [u64; 3] = [2, 6, 39];

/// Dispatches of attention to a few positions.
pub const ATTEND_LAUNCHES: u64 = 1;

/// Whether a device may take numbers below the least normal one for 0.
pub const KEEPS_NO_SUBNORMAL: bool = true;

/// Query heads that one dispatch attends for at the least, of so many of a row.
pub const fn attended_at_least(_heads: u64) -> u64 {
    1
}

/// More rows than a dispatch has workgroups in one dimension.
pub const ROWS_MANY: usize = 70_000;

/// A backend on the first adapter, software or not; none, said loudly, where there is no adapter.
pub fn device() -> Option<WgpuBackend> {
    static OPENED: OnceLock<Option<Mutex<WgpuBackend>>> = OnceLock::new();
    share(&OPENED, WgpuOptions::default())
}

/// The same without instructions that some adapters lack.
pub fn plain_device() -> Option<WgpuBackend> {
    static OPENED: OnceLock<Option<Mutex<WgpuBackend>>> = OnceLock::new();
    share(&OPENED, WgpuOptions { instructions: Instructions::Plain, ..WgpuOptions::default() })
}

/// The same with no more than the limits that every adapter allows.
pub fn limited_device() -> Option<WgpuBackend> {
    static OPENED: OnceLock<Option<Mutex<WgpuBackend>>> = OnceLock::new();
    share(&OPENED, WgpuOptions { limits: DeviceLimits::Least, ..WgpuOptions::default() })
}

/// The adapter that all of them are on.
pub const ADAPTER: AdapterChoice = AdapterChoice::Index(0);

fn share(
    opened: &OnceLock<Option<Mutex<WgpuBackend>>>,
    options: WgpuOptions,
) -> Option<WgpuBackend> {
    let opened = opened.get_or_init(|| {
        let options = WgpuOptions { adapter: ADAPTER, ..options };
        match WgpuBackend::open(&options) {
            Ok(backend) => Some(Mutex::new(backend)),
            Err(error) => {
                // Set where nothing may be skipped.
                assert!(std::env::var_os("NESTLING_TEST_GPU").is_none(), "{error}");
                eprintln!("SKIPPED, nothing was tested: {error}");
                None
            }
        }
    });
    opened.as_ref().map(|backend| backend.lock().unwrap().again().unwrap())
}
