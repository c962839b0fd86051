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
mod encoder;
mod error;
mod expert_table;
mod graphs;
mod host_planes;
pub mod kernel;
mod link;
mod matrix;
mod memory;
mod needs;
mod pages;
pub mod params;
mod recorder;
mod scratch;
mod slabs;
mod slots;
mod staging;
mod states;
mod timer;

pub use backend::{CudaBackend, CudaOptions};
pub use devices::{CudaDeviceChoice, CudaDeviceDescription, CudaDeviceError, device, devices};
pub use driver::{GraphCounts, HostKernels, HostLaunch, MemoryNote};
#[cfg(feature = "emulation")]
pub use emulated_device::EmulationOptions;
pub use encoder::CudaEncoder;
pub use error::CudaError;
pub use expert_table::CudaExpertTable;
pub use matrix::CudaMatrix;
pub use memory::{CudaBuffer, CudaFloats, CudaRouting};
pub use pages::CudaPages;
pub use slots::CudaSlots;
pub use states::CudaStates;
pub use timer::{CudaTimer, TimedAs};
