//! CUDA backend: kernels for NVIDIA's GPUs, through the driver that is found when it runs. See
//! ARCHITECTURE.md.
//!
//! [`CudaBackend`] implements the engine's [`Backend`](nestling_core::Backend).

mod backend;
mod behind;
pub mod compile;
mod devices;
mod driver;
#[cfg(feature = "emulation")]
mod emulated_device;
#[cfg(feature = "emulation")]
pub mod emulation;
mod error;
mod expert_table;
mod graphs;
mod host_planes;
pub mod kernel;
mod link;
mod matrix;
mod needs;
pub mod params;
mod record;
mod recorder;
mod slabs;
mod slots;
mod staging;
mod storage;
mod timer;

pub use backend::{CudaBackend, CudaOptions};
pub use devices::{CudaDeviceChoice, CudaDeviceDescription, CudaDeviceError, device, devices};
pub use driver::{GraphCounts, HostKernels, HostLaunch, MemoryNote};
#[cfg(feature = "emulation")]
pub use emulated_device::EmulationOptions;
pub use error::CudaError;
pub use expert_table::CudaEntries;
pub use matrix::CudaMatrix;
pub use slots::CudaMatrixRoom;
pub use timer::{CudaTimer, TimedAs};

/// Computes one step on the device.
pub type CudaEncoder<'a> =
    nestling_core::backend::Checked<nestling_gpu::GpuEncoder<'a, CudaBackend>>;
