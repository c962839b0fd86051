//! The device of the tests: a GPU if there is one, otherwise an emulated one per thread.

use std::convert::Infallible;

use nestling_core::backend::Backend;
use nestling_cuda::emulation::{Line, Schedule};
use nestling_cuda::kernel::Kernel;
use nestling_cuda::{CudaBackend, CudaOptions, EmulationOptions};
use nestling_testkit::{Device, OperationsDevice, SharedDevices, note};

static DEVICES: SharedDevices<CudaBackend> = SharedDevices::new();

/// Default seed of the emulated device's random schedules and stream orders. NESTLING_TEST_SEED overrides it.
const SEED: u64 = 1;

/// Returns the barrier that kernels skip. `.ci/barriers` expects tests to fail then.
fn ignored() -> Option<Line> {
    let given = std::env::var("NESTLING_TEST_WITHOUT").ok()?;
    let (file, line) = given.split_once(':').unwrap();
    Some((file.into(), line.parse().unwrap()))
}

fn seed() -> u64 {
    let given = std::env::var("NESTLING_TEST_SEED").ok();
    given.map_or(SEED, |seed| seed.parse().unwrap())
}

/// Opens a separate device, emulated with checked accesses if there is no GPU. Panics without a GPU if
/// NESTLING_TEST_CUDA is set.
pub fn own_device() -> CudaBackend {
    CudaBackend::open(&CudaOptions::default()).unwrap_or_else(|error| {
        assert!(std::env::var_os("NESTLING_TEST_CUDA").is_none(), "{error}");
        let schedule = Schedule::Random(seed());
        note!("no GPU, emulated, {schedule:?}: {error}");
        let options = EmulationOptions {
            schedule,
            is_checked: true,
            ignored: ignored(),
            ..EmulationOptions::default()
        };
        let device = CudaBackend::emulated_as(options).unwrap();
        device.reorder(seed());
        device
    })
}

/// Checks that every kernel was recorded by some test, and so compared with the CPU.
pub fn every_kernel_was_started() -> Result<(), String> {
    let devices = DEVICES.all(Cuda::again);
    let started: Vec<Kernel> = devices.iter().flat_map(CudaBackend::recorded_kernels).collect();
    let rest = Kernel::ALL.iter().filter(|kernel| !started.contains(kernel));
    let rest: Vec<&str> = rest.map(|kernel| kernel.name()).collect();
    if rest.is_empty() { Ok(()) } else { Err(format!("kernels that no test starts: {rest:?}")) }
}

pub struct Cuda;

impl Device for Cuda {
    type Backend = CudaBackend;

    fn device() -> CudaBackend {
        let is_emulated = |device: &CudaBackend| device.name().contains("emulated");
        let Ok(device) =
            DEVICES.get(is_emulated, || Ok::<_, Infallible>(own_device()), Self::again);
        device
    }

    fn again(backend: &CudaBackend) -> CudaBackend {
        backend.again().unwrap()
    }

    fn with_work_rate(backend: &CudaBackend, rate: u64) -> CudaBackend {
        backend.with_work_rate(rate).unwrap()
    }
}

impl OperationsDevice for Cuda {
    /// The minimum launch has 128 rows of the matrix and 64 of activations.
    const PRODUCT_LAUNCHES: [u64; 3] = [2, 7, 7];

    /// Splits, and the kernel that merges them.
    const ATTEND_LAUNCHES: u64 = 2;

    const KEEPS_NO_SUBNORMAL: bool = false;

    /// Kept small, since an emulated device is slow.
    const ROWS_MANY: usize = 300;

    fn attended_at_least(heads: u64) -> u64 {
        heads
    }

    /// CUDA has no variant with other instructions.
    fn plain_device() -> CudaBackend {
        Self::device()
    }

    fn measure_work_rates(backend: &CudaBackend) {
        backend.measured_work_rates().unwrap();
    }
}
