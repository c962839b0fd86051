//! Error type of the backend.

use nestling_gpu::GpuError;

use crate::adapters::AdapterError;

/// An error of the wgpu backend.
pub type WgpuError = GpuError<AdapterError>;
