//! The devices of the tests: the first adapter's, once per thread if it is software.

use nestling_core::backend::Backend;
use nestling_testkit::{Device, OperationsDevice, SharedDevices};
use nestling_wgpu::{
    AdapterChoice, DeviceLimits, Instructions, WgpuBackend, WgpuError, WgpuOptions,
};

/// Adapter of all devices: the first one, including software.
pub const ADAPTER: AdapterChoice = AdapterChoice::Index(0);

type DeviceSlot = SharedDevices<WgpuBackend>;

static DEVICES: DeviceSlot = DeviceSlot::new();
static PLAIN_DEVICES: DeviceSlot = DeviceSlot::new();
static LIMITED_DEVICES: DeviceSlot = DeviceSlot::new();

fn is_software(device: &WgpuBackend) -> bool {
    device.name().contains("llvmpipe")
}

/// Returns the reason why no device is available. Panics if NESTLING_TEST_GPU is set, so that no test is
/// skipped.
pub fn lacks_device() -> Option<String> {
    let error = get(&DEVICES, WgpuOptions::default()).err()?.to_string();
    assert!(std::env::var_os("NESTLING_TEST_GPU").is_none(), "{error}");
    Some(error)
}

fn get(devices: &DeviceSlot, options: WgpuOptions) -> Result<WgpuBackend, WgpuError> {
    let open = || WgpuBackend::open(&WgpuOptions { adapter: ADAPTER, ..options });
    devices.get(is_software, open, Vulkan::again)
}

/// Returns a backend with only the limits that every adapter supports.
pub fn limited_device() -> WgpuBackend {
    let options = WgpuOptions { limits: DeviceLimits::Least, ..WgpuOptions::default() };
    get(&LIMITED_DEVICES, options).unwrap()
}

/// Checks that every shader was recorded by some test, and so compared with the CPU. Packed product shaders
/// are required only if the adapter supports them.
pub fn every_shader_was_started() -> Result<(), String> {
    const PACKED: [&str; 3] = ["matmul_nested", "matmul_nested_rows", "matmul_scaled"];
    let (device, plain) = (Vulkan::device(), Vulkan::plain_device());
    let opened = [&DEVICES, &PLAIN_DEVICES].map(|devices| devices.all(Vulkan::again));
    let was_started = |name: &str| {
        opened.iter().flatten().flat_map(WgpuBackend::shaders).any(|shader| shader == (name, true))
    };
    let is_there = |name: &&str| device.multiplies_packed() || !PACKED.contains(name);
    let names = plain.shaders().map(|shader| shader.0).filter(is_there);
    let rest: Vec<&str> = names.filter(|name| !was_started(name)).collect();
    if rest.is_empty() { Ok(()) } else { Err(format!("shaders that no test starts: {rest:?}")) }
}

pub struct Vulkan;

impl Device for Vulkan {
    type Backend = WgpuBackend;

    fn device() -> WgpuBackend {
        get(&DEVICES, WgpuOptions::default()).unwrap()
    }

    fn again(backend: &WgpuBackend) -> WgpuBackend {
        backend.again().unwrap()
    }

    fn with_work_rate(backend: &WgpuBackend, rate: u64) -> WgpuBackend {
        backend.with_work_rate(rate).unwrap()
    }
}

impl OperationsDevice for Vulkan {
    /// The last 44 of 300 rows are one dispatch, for both kinds of activations of the first matrix.
    const PRODUCT_LAUNCHES: [u64; 3] = [2, 6, 39];

    const ATTEND_LAUNCHES: u64 = 1;

    const KEEPS_NO_SUBNORMAL: bool = true;

    /// Exceeds the maximum number of workgroups in one dimension.
    const ROWS_MANY: usize = 70_000;

    fn attended_at_least(_heads: u64) -> u64 {
        1
    }

    fn plain_device() -> WgpuBackend {
        let plain = WgpuOptions { instructions: Instructions::Plain, ..WgpuOptions::default() };
        get(&PLAIN_DEVICES, plain).unwrap()
    }

    fn measure_work_rates(backend: &WgpuBackend) {
        backend.measured_work_rates().unwrap();
    }
}
