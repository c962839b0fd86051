//! What can go wrong with a device.

use nestling_gpu::GpuError;

use crate::adapters::AdapterError;

/// An error of the GPU backend.
pub type WgpuError = GpuError<AdapterError>;
