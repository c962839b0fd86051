//! Error type of the backend.

use nestling_gpu::GpuError;

use crate::devices::CudaDeviceError;

/// An error of the CUDA backend.
pub type CudaError = GpuError<CudaDeviceError>;
