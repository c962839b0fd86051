//! The device of the tests: a GPU if there is one, otherwise an emulated one per thread.

use std::convert::Infallible;

use nestling_core::backend::Backend;
use nestling_cuda::emulation::Schedule;
use nestling_cuda::{CudaBackend, CudaOptions, EmulationOptions};
use nestling_testkit::{Device, ModelsDevice, SharedDevices, note};

static DEVICES: SharedDevices<CudaBackend> = SharedDevices::new();

/// What random schedules of the emulated device are drawn from, unless NESTLING_TEST_SEED has another
/// number.
const SEED: u64 = 1;

/// An emulated device that runs threads and blocks in random order; where NESTLING_TEST_CHECKED is set it
/// looks at every access of kernels, which takes its time.
fn emulated(device_budget: Option<u64>) -> EmulationOptions {
    let given = std::env::var("NESTLING_TEST_SEED").ok();
    let seed = given.map_or(SEED, |seed| seed.parse().unwrap());
    let is_checked = std::env::var_os("NESTLING_TEST_CHECKED").is_some();
    let schedule = Schedule::Random(seed);
    EmulationOptions { schedule, is_checked, device_budget, ..EmulationOptions::default() }
}

/// An emulated device whose streams run in an order drawn by the same number.
fn emulated_as(options: EmulationOptions) -> CudaBackend {
    let Schedule::Random(seed) = options.schedule else { unreachable!() };
    let device = CudaBackend::emulated_as(options).unwrap();
    device.reorder(seed);
    device
}

/// Whether it is no GPU.
pub fn is_emulated(device: &CudaBackend) -> bool {
    device.name().contains("emulated")
}

/// Why a device cannot be lost within a step.
pub fn lacks_losses() -> Option<String> {
    let is_gpu = !is_emulated(&Cuda::device());
    is_gpu.then(|| "a GPU cannot be told to be lost within a step".into())
}

/// What the suite of models is told of the device: a GPU, or an emulated one where there is none, which is an
/// error where NESTLING_TEST_CUDA is set.
pub struct Cuda;

impl Device for Cuda {
    type Backend = CudaBackend;

    fn device() -> CudaBackend {
        let open = || Ok::<_, Infallible>(Self::own_device());
        let Ok(device) = DEVICES.get(is_emulated, open, Self::again);
        device
    }

    fn again(backend: &CudaBackend) -> CudaBackend {
        backend.again().unwrap()
    }

    fn with_work_rate(backend: &CudaBackend, rate: u64) -> CudaBackend {
        backend.with_work_rate(rate).unwrap()
    }
}

impl ModelsDevice for Cuda {
    const WORK_BYTES: u64 = 20 << 20;

    fn own_device() -> CudaBackend {
        CudaBackend::open(&CudaOptions::default()).unwrap_or_else(|error| {
            assert!(std::env::var_os("NESTLING_TEST_CUDA").is_none(), "{error}");
            let options = emulated(None);
            note!("no GPU, emulated, {:?}: {error}", options.schedule);
            emulated_as(options)
        })
    }

    fn limited_device(bytes: u64) -> CudaBackend {
        let options = CudaOptions { device_budget: Some(bytes), ..CudaOptions::default() };
        CudaBackend::open(&options).unwrap_or_else(|error| {
            assert!(std::env::var_os("NESTLING_TEST_CUDA").is_none(), "{error}");
            emulated_as(emulated(Some(bytes)))
        })
    }

    fn destroy(backend: &CudaBackend) {
        backend.destroy();
    }

    /// An emulated device, which takes its time for each, passes a piece and one more.
    fn family_tokens() -> usize {
        if is_emulated(&Self::device()) { 24 } else { 70 }
    }
}
