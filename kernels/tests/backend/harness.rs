//! One device for all tests: a GPU where there is one, the emulated device elsewhere.

use std::sync::{Mutex, OnceLock};

use nestling_cuda::emulation::{Line, Schedule};
use nestling_cuda::{CudaBackend, CudaOptions, EmulationOptions};

pub use super::values::{EPSILON, buffer, expect_close, expect_rows_close, noise, read};

/// What random schedules and orders of streams of the emulated device are drawn from, unless NESTLING_TEST_SEED has another
/// number.
const SEED: u64 = 1;

/// The barrier that kernels are to lack: `.ci/barriers` expects tests to fail then.
fn ignored() -> Option<Line> {
    let given = std::env::var("NESTLING_TEST_WITHOUT").ok()?;
    let (file, line) = given.split_once(':').unwrap();
    Some((file.into(), line.parse().unwrap()))
}

fn seed() -> u64 {
    let given = std::env::var("NESTLING_TEST_SEED").ok();
    given.map_or(SEED, |seed| seed.parse().unwrap())
}

/// A backend on a device of its own: an emulated one looks at every access of kernels. Without a GPU that is said loudly, and an error where
/// NESTLING_TEST_CUDA is set.
pub fn own_device() -> Option<CudaBackend> {
    match CudaBackend::open(&CudaOptions::default()) {
        Ok(backend) => Some(backend),
        Err(error) => {
            assert!(std::env::var_os("NESTLING_TEST_CUDA").is_none(), "{error}");
            let schedule = Schedule::Random(seed());
            eprintln!("SKIPPED on a GPU, only emulated, {schedule:?}: {error}");
            let options = EmulationOptions {
                schedule,
                is_checked: true,
                ignored: ignored(),
                ..EmulationOptions::default()
            };
            let device = CudaBackend::emulated_as(options).unwrap();
            device.reorder(seed());
            Some(device)
        }
    }
}

/// A backend on a device that tests share.
pub fn device() -> Option<CudaBackend> {
    static OPENED: OnceLock<Option<Mutex<CudaBackend>>> = OnceLock::new();
    let opened = OPENED.get_or_init(|| own_device().map(Mutex::new));
    opened.as_ref().map(|backend| backend.lock().unwrap().again().unwrap())
}

/// Most elements of a DeltaNet key.
pub const KEY_DIM_MAX: usize = 1024;

/// Launches of a product of 300 rows of a matrix and 70 of activations, and of what quantizes these: at once, by
/// 128 rows of the matrix and 64 of activations, which is the least.
pub const PRODUCT_LAUNCHES: [u64; 3] = [2, 7, 7];

/// Launches of attention for few rows: splits, and what merges them.
pub const ATTEND_LAUNCHES: u64 = 2;

/// Whether a device may take numbers below the least normal one for 0.
pub const KEEPS_NO_SUBNORMAL: bool = false;

/// Query heads that one launch attends for at the least, of so many of a row.
pub const fn attended_at_least(heads: u64) -> u64 {
    heads
}

/// Rows that are many: an emulated device takes its time for each.
pub const ROWS_MANY: usize = 300;

/// As the cases that are shared call it: instructions are the same here.
pub fn plain_device() -> Option<CudaBackend> {
    device()
}
