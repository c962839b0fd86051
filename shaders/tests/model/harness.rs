//! A device shared by all tests.

use std::sync::{Mutex, OnceLock};

use nestling_testkit::{Device, ModelsDevice};
use nestling_wgpu::{AdapterChoice, Uploads, WgpuBackend, WgpuError, WgpuOptions};

/// Returns the reason why no device is available. Panics if NESTLING_TEST_GPU is set, so that no test is
/// skipped.
pub fn lacks_device() -> Option<String> {
    let error = shared().as_ref().err()?.clone();
    assert!(std::env::var_os("NESTLING_TEST_GPU").is_none(), "{error}");
    Some(error)
}

/// Returns the shared device, or the reason why there is none.
fn shared() -> &'static Result<Mutex<WgpuBackend>, String> {
    static OPENED: OnceLock<Result<Mutex<WgpuBackend>, String>> = OnceLock::new();
    OPENED.get_or_init(|| opened(None).map(Mutex::new).map_err(|error| error.to_string()))
}

/// Opens a separate device on the first adapter, including software.
fn opened(uploads: Option<Uploads>) -> Result<WgpuBackend, WgpuError> {
    let adapter = AdapterChoice::Index(0);
    WgpuBackend::open(&WgpuOptions { adapter, uploads, ..WgpuOptions::default() })
}

pub fn device_with(uploads: Option<Uploads>) -> WgpuBackend {
    opened(uploads).unwrap()
}

pub struct Vulkan;

impl Device for Vulkan {
    type Backend = WgpuBackend;

    fn device() -> WgpuBackend {
        shared().as_ref().unwrap().lock().unwrap().again().unwrap()
    }

    fn again(backend: &WgpuBackend) -> WgpuBackend {
        backend.again().unwrap()
    }

    fn with_work_rate(backend: &WgpuBackend, rate: u64) -> WgpuBackend {
        backend.with_work_rate(rate).unwrap()
    }
}

impl ModelsDevice for Vulkan {
    const WORK_BYTES: u64 = 8 << 20;

    fn own_device() -> WgpuBackend {
        device_with(None)
    }

    fn limited_device(bytes: u64) -> WgpuBackend {
        let (adapter, device_budget) = (AdapterChoice::Index(0), Some(bytes));
        WgpuBackend::open(&WgpuOptions { adapter, device_budget, ..WgpuOptions::default() })
            .unwrap()
    }

    fn destroy(backend: &WgpuBackend) {
        backend.destroy();
    }

    fn family_tokens() -> usize {
        70
    }
}
