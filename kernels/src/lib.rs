//! CUDA backend: kernels for NVIDIA's GPUs, through the driver that is found when it runs. See
//! ARCHITECTURE.md.
//!
//! [`CudaBackend`] implements the engine's [`Backend`](nestling_engine::Backend).

#![expect(dead_code, reason = "what records kernels comes with them")]

mod backend;
mod devices;
mod driver;
#[cfg(feature = "emulation")]
pub mod emulation;
mod encoder;
mod error;
mod graphs;
pub mod kernel;
mod matrix;
mod memory;
mod pages;
pub mod params;
mod recorder;
mod slabs;
mod staging;
mod states;

pub use backend::{CudaBackend, CudaOptions};
pub use devices::{CudaDeviceChoice, CudaDeviceDescription, CudaDeviceError, device, devices};
pub use encoder::CudaEncoder;
pub use error::CudaError;
pub use matrix::CudaMatrix;
pub use memory::{CudaBuffer, CudaFloats, CudaRouting};
pub use pages::CudaPages;
pub use states::CudaStates;
