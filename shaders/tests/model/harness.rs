//! One device for all tests.

use std::sync::{Mutex, OnceLock};

use nestling_wgpu::{AdapterChoice, Uploads, WgpuBackend, WgpuOptions};

/// What is tested.
pub type Gpu = WgpuBackend;

/// A backend on the first adapter, software or not; none, said loudly, where there is no adapter.
pub fn device() -> Option<Gpu> {
    static OPENED: OnceLock<Option<Mutex<Gpu>>> = OnceLock::new();
    let opened = OPENED.get_or_init(|| own_device().map(Mutex::new));
    opened.as_ref().map(|backend| backend.lock().unwrap().again().unwrap())
}

/// A backend on a device of its own.
pub fn own_device() -> Option<Gpu> {
    device_with(None)
}

/// A backend on a device of its own whose slots are filled in this way.
pub fn device_with(uploads: Option<Uploads>) -> Option<Gpu> {
    let adapter = AdapterChoice::Index(0);
    match WgpuBackend::open(&WgpuOptions { adapter, uploads, ..WgpuOptions::default() }) {
        Ok(backend) => Some(backend),
        Err(error) => {
            // Set where nothing may be skipped.
            assert!(std::env::var_os("NESTLING_TEST_GPU").is_none(), "{error}");
            eprintln!("SKIPPED, nothing was tested: {error}");
            None
        }
    }
}

/// What a limit has room for beside experts: dense weights, and what steps and sessions work with.
pub const WORK_BYTES: u64 = 8 << 20;

/// A backend that may use so many bytes of the device's memory.
pub fn limited_device(bytes: u64) -> Gpu {
    let (adapter, vram_budget) = (AdapterChoice::Index(0), Some(bytes));
    WgpuBackend::open(&WgpuOptions { adapter, vram_budget, ..WgpuOptions::default() }).unwrap()
}

/// Tokens of a family's prompt: two pages, and convolutions and windows that lie in both.
pub fn family_tokens() -> usize {
    70
}
