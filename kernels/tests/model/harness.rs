//! One device for all tests: a GPU where there is one, the emulated device elsewhere.

use std::sync::{Mutex, OnceLock};

use nestling_cuda::{CudaBackend, CudaOptions};
use nestling_engine::backend::Backend;

/// What is tested.
pub type Gpu = CudaBackend;

/// A backend on a device that tests share.
pub fn device() -> Option<Gpu> {
    static OPENED: OnceLock<Option<Mutex<Gpu>>> = OnceLock::new();
    let opened = OPENED.get_or_init(|| own_device().map(Mutex::new));
    opened.as_ref().map(|backend| backend.lock().unwrap().again().unwrap())
}

/// An emulated device with the order of its streams drawn by NESTLING_TEST_SEED, which a test that fails tells.
fn reordered(device: CudaBackend) -> CudaBackend {
    let seed = std::env::var("NESTLING_TEST_SEED").ok().map_or(0, |seed| seed.parse().unwrap());
    eprintln!("NESTLING_TEST_SEED={seed}");
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
            eprintln!("SKIPPED on a GPU, only emulated: {error}");
            Some(reordered(CudaBackend::emulated().unwrap()))
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
        reordered(CudaBackend::emulated_within(bytes).unwrap())
    })
}
