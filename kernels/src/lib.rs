//! CUDA backend: kernels for NVIDIA GPUs, using the driver found at run time. See ARCHITECTURE.md.
//!
//! [`CudaBackend`] implements the engine's [`Backend`](nestling_core::Backend).

mod backend;
pub mod compile;
mod copy_queue;
mod device_list;
mod devices;
mod driver;
#[cfg(feature = "emulation")]
mod emulated_device;
#[cfg(feature = "emulation")]
pub mod emulation;
mod engine_backend;
mod error;
mod expert_table;
mod found_blocks;
mod graphs;
mod host_planes;
pub mod kernel;
mod link;
mod matrix;
mod matrix_layout;
mod needs;
pub mod params;
mod record;
mod recorder;
mod slabs;
mod slots;
mod staging;
mod storage;
mod timer;
mod version;

pub use backend::{CudaBackend, CudaOptions};
pub use device_list::{device, devices};
pub use devices::{CudaDeviceChoice, CudaDeviceDescription, CudaDeviceError};
pub use driver::{GraphCounts, HostKernels, HostLaunch, MemoryNote};
#[cfg(feature = "emulation")]
pub use emulated_device::EmulationOptions;
pub use error::CudaError;
pub use expert_table::CudaEntries;
pub use matrix::{CudaMatrix, CudaWeights};
pub use matrix_layout::CudaMatrixLayout;
pub use nestling_gpu::{BudgetTooSmall, in_group};
pub use timer::{CudaTimer, TimedAs};
pub use version::Version;

/// Encoder of one step on the device.
pub type CudaEncoder<'a> = nestling_gpu::StepEncoder<'a, CudaBackend>;
