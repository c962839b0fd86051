//! Devices shared by all tests.

use std::sync::{Mutex, OnceLock};

use nestling_testkit::{Device, OperationsDevice};
use nestling_wgpu::{
    AdapterChoice, DeviceLimits, Instructions, WgpuBackend, WgpuError, WgpuOptions,
};

/// Adapter of all devices: the first one, including software.
pub const ADAPTER: AdapterChoice = AdapterChoice::Index(0);

/// A shared device, or the reason why there is none.
type Shared = OnceLock<Result<Mutex<WgpuBackend>, String>>;

/// Returns the reason why no device is available. Panics if NESTLING_TEST_GPU is set, so that no test is
/// skipped.
pub fn lacks_device() -> Option<String> {
    let error = shared().as_ref().err()?.clone();
    assert!(std::env::var_os("NESTLING_TEST_GPU").is_none(), "{error}");
    Some(error)
}

fn shared() -> &'static Result<Mutex<WgpuBackend>, String> {
    static OPENED: Shared = OnceLock::new();
    opened(&OPENED, WgpuOptions::default())
}

fn opened(
    opened: &'static Shared,
    options: WgpuOptions,
) -> &'static Result<Mutex<WgpuBackend>, String> {
    opened.get_or_init(|| {
        let options = WgpuOptions { adapter: ADAPTER, ..options };
        WgpuBackend::open(&options).map(Mutex::new).map_err(|error: WgpuError| error.to_string())
    })
}

fn again(opened: &Result<Mutex<WgpuBackend>, String>) -> WgpuBackend {
    opened.as_ref().unwrap().lock().unwrap().again().unwrap()
}

/// Returns a backend with only the limits that every adapter supports.
pub fn limited_device() -> WgpuBackend {
    static OPENED: Shared = OnceLock::new();
    again(opened(&OPENED, WgpuOptions { limits: DeviceLimits::Least, ..WgpuOptions::default() }))
}

/// Checks that every shader was recorded by some test, and so compared with the CPU. Packed product shaders
/// are required only if the adapter supports them.
pub fn every_shader_was_started() -> Result<(), String> {
    const PACKED: [&str; 3] = ["matmul_nested", "matmul_nested_rows", "matmul_scaled"];
    let (device, plain) = (Vulkan::device(), Vulkan::plain_device());
    let is_there = |name: &str| device.multiplies_packed() || !PACKED.contains(&name);
    let both = device.shaders().zip(plain.shaders());
    let rest = both.filter(|(own, other)| is_there(own.0) && !own.1 && !other.1);
    let rest: Vec<&str> = rest.map(|(own, _)| own.0).collect();
    if rest.is_empty() { Ok(()) } else { Err(format!("shaders that no test starts: {rest:?}")) }
}

pub struct Vulkan;

impl Device for Vulkan {
    type Backend = WgpuBackend;

    fn device() -> WgpuBackend {
        again(shared())
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
        static OPENED: Shared = OnceLock::new();
        let plain = WgpuOptions { instructions: Instructions::Plain, ..WgpuOptions::default() };
        again(opened(&OPENED, plain))
    }

    fn measure_work_rates(backend: &WgpuBackend) {
        backend.measured_work_rates().unwrap();
    }
}
