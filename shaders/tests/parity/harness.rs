//! One device for all tests.

use std::sync::{Mutex, OnceLock};

use nestling_testkit::{Device, OperationsDevice};
use nestling_wgpu::{
    AdapterChoice, DeviceLimits, Instructions, WgpuBackend, WgpuError, WgpuOptions,
};

/// The adapter that all of them are on: the first, software or not.
pub const ADAPTER: AdapterChoice = AdapterChoice::Index(0);

/// A device that tests share, or why there is none.
type Shared = OnceLock<Result<Mutex<WgpuBackend>, String>>;

/// Why nothing can be tested; an error where NESTLING_TEST_GPU is set, so that nothing is ignored.
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

/// A backend with no more than the limits that every adapter allows.
pub fn limited_device() -> WgpuBackend {
    static OPENED: Shared = OnceLock::new();
    again(opened(&OPENED, WgpuOptions { limits: DeviceLimits::Least, ..WgpuOptions::default() }))
}

/// Whether every shader was started by some test, and so compared with the CPU: of products, those with packed
/// instructions where the adapter has them.
pub fn every_shader_was_started() -> Result<(), String> {
    const PACKED: [&str; 3] = ["matmul_nested", "matmul_nested_rows", "matmul_scaled"];
    let (device, plain) = (Vulkan::device(), Vulkan::plain_device());
    let is_there = |name: &str| device.multiplies_packed() || !PACKED.contains(&name);
    let both = device.shaders().zip(plain.shaders());
    let rest = both.filter(|(own, other)| is_there(own.0) && !own.1 && !other.1);
    let rest: Vec<&str> = rest.map(|(own, _)| own.0).collect();
    if rest.is_empty() { Ok(()) } else { Err(format!("shaders that no test starts: {rest:?}")) }
}

/// What the suite of operations is told of the device.
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
    /// The last 44 of 300 rows are one dispatch with either activations of the first.
    const PRODUCT_LAUNCHES: [u64; 3] = [2, 6, 39];

    const ATTEND_LAUNCHES: u64 = 1;

    const KEEPS_NO_SUBNORMAL: bool = true;

    /// More than a dispatch has workgroups in one dimension.
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
