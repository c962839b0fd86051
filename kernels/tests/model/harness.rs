//! The device of the tests: a GPU if there is one, otherwise an emulated one per thread.

use std::convert::Infallible;
use std::sync::Arc;

use nestling_core::backend::Backend;
use nestling_core::group::Group;
use nestling_cuda::emulation::Schedule;
use nestling_cuda::{CudaBackend, CudaOptions, EmulationOptions};
use nestling_testkit::{Device, ModelsDevice, SharedDevices, note};

static DEVICES: SharedDevices<CudaBackend> = SharedDevices::new();

/// Default seed of the emulated device's random schedules. NESTLING_TEST_SEED overrides it.
const SEED: u64 = 1;

/// Returns options of an emulated device with a random schedule. If NESTLING_TEST_CHECKED is set, every
/// access of kernels is checked, which is slow.
fn emulated(device_budget: Option<u64>) -> EmulationOptions {
    let given = std::env::var("NESTLING_TEST_SEED").ok();
    let seed = given.map_or(SEED, |seed| seed.parse().unwrap());
    let is_checked = std::env::var_os("NESTLING_TEST_CHECKED").is_some();
    let schedule = Schedule::Random(seed);
    EmulationOptions { schedule, is_checked, device_budget, ..EmulationOptions::default() }
}

/// Opens an emulated device whose stream order uses the same seed.
fn emulated_as(options: EmulationOptions) -> CudaBackend {
    let Schedule::Random(seed) = options.schedule else { unreachable!() };
    let device = CudaBackend::emulated_as(options).unwrap();
    device.reorder(seed);
    device
}

pub fn is_emulated(device: &CudaBackend) -> bool {
    device.name().contains("emulated")
}

/// Returns the reason why the loss of a device within a step cannot be simulated.
pub fn lacks_losses() -> Option<String> {
    let is_gpu = !is_emulated(&Cuda::device());
    is_gpu.then(|| "a GPU cannot be told to be lost within a step".into())
}

/// The device under test: a GPU, or an emulated device if there is none. Panics without a GPU if
/// NESTLING_TEST_CUDA is set.
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

    fn in_group(backend: CudaBackend, group: Arc<dyn Group>) -> CudaBackend {
        nestling_cuda::in_group(backend, group)
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

    /// Kept small on the slow emulated device: one chunk and one more token.
    fn family_tokens() -> usize {
        if is_emulated(&Self::device()) { 24 } else { 70 }
    }
}
