//! The device of the tests: the first adapter's, once per thread if it is software.

use std::sync::Arc;

use nestling_core::backend::Backend;
use nestling_core::group::Group;
use nestling_testkit::{Device, ModelsDevice, SharedDevices};
use nestling_wgpu::{AdapterChoice, Uploads, WgpuBackend, WgpuError, WgpuOptions};

fn is_software(device: &WgpuBackend) -> bool {
    device.name().contains("llvmpipe")
}

/// Why nothing can be tested; an error where NESTLING_TEST_GPU is set, so that nothing is ignored.
pub fn lacks_device() -> Option<String> {
    let error = shared().err()?.to_string();
    assert!(std::env::var_os("NESTLING_TEST_GPU").is_none(), "{error}");
    Some(error)
}

fn shared() -> Result<WgpuBackend, WgpuError> {
    static DEVICES: SharedDevices<WgpuBackend> = SharedDevices::new();
    DEVICES.get(is_software, || opened(None), Vulkan::again)
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
        shared().unwrap()
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

    fn in_group(backend: WgpuBackend, group: Arc<dyn Group>) -> WgpuBackend {
        nestling_wgpu::in_group(backend, group)
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
