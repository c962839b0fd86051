//! One device for all tests: a GPU where there is one, the emulated device elsewhere.

use std::sync::{Mutex, OnceLock};

use nestling_core::backend::Backend;
use nestling_cuda::emulation::Schedule;
use nestling_cuda::{CudaBackend, CudaOptions, EmulationOptions};

/// What is tested.
pub type Gpu = CudaBackend;

/// A backend on a device that tests share.
pub fn device() -> Option<Gpu> {
    static OPENED: OnceLock<Option<Mutex<Gpu>>> = OnceLock::new();
    let opened = OPENED.get_or_init(|| own_device().map(Mutex::new));
    opened.as_ref().map(|backend| backend.lock().unwrap().again().unwrap())
}

/// What random schedules of the emulated device are drawn from, unless NESTLING_TEST_SEED has another
/// number.
const SEED: u64 = 1;

/// An emulated device that runs threads and blocks in random order; where NESTLING_TEST_CHECKED is set it
/// looks at every access of kernels, which takes its time.
fn emulated(vram_budget: Option<u64>) -> EmulationOptions {
    let given = std::env::var("NESTLING_TEST_SEED").ok();
    let seed = given.map_or(SEED, |seed| seed.parse().unwrap());
    let is_checked = std::env::var_os("NESTLING_TEST_CHECKED").is_some();
    let schedule = Schedule::Random(seed);
    EmulationOptions { schedule, is_checked, vram_budget, ..EmulationOptions::default() }
}

/// An emulated device whose streams run in an order drawn by the same number.
fn emulated_as(options: EmulationOptions) -> Gpu {
    let Schedule::Random(seed) = options.schedule else { unreachable!() };
    let device = CudaBackend::emulated_as(options).unwrap();
    device.reorder(seed);
    device
}

/// A backend on a device of its own. Without a GPU that is said loudly, and an error where
/// NESTLING_TEST_CUDA is set.
pub fn own_device() -> Option<Gpu> {
    match CudaBackend::open(&CudaOptions::default()) {
        Ok(backend) => Some(backend),
        Err(error) => {
            assert!(std::env::var_os("NESTLING_TEST_CUDA").is_none(), "{error}");
            let options = emulated(None);
            eprintln!("SKIPPED on a GPU, only emulated, {:?}: {error}", options.schedule);
            Some(emulated_as(options))
        }
    }
}

/// Tokens of a family's prompt: two pages, and convolutions and windows that lie in both. An emulated
/// device, which takes its time for each, passes a piece and one more.
pub fn family_tokens() -> usize {
    let is_emulated = device().is_some_and(|device| device.name().contains("emulated"));
    if is_emulated { 24 } else { 70 }
}

/// What a limit has room for beside experts: dense weights, and what steps and sessions work with.
pub const WORK_BYTES: u64 = 20 << 20;

/// A backend that may use so many bytes of the device's memory.
pub fn limited_device(bytes: u64) -> Gpu {
    let options = CudaOptions { vram_budget: Some(bytes), ..CudaOptions::default() };
    CudaBackend::open(&options).unwrap_or_else(|error| {
        assert!(std::env::var_os("NESTLING_TEST_CUDA").is_none(), "{error}");
        emulated_as(emulated(Some(bytes)))
    })
}
