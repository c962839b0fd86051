//! Portable GPU backend: WGSL shaders through wgpu, on Vulkan, Metal, Direct3D 12 and a browser's WebGPU. See
//! ARCHITECTURE.md.
//!
//! [`WgpuBackend`] implements the engine's [`Backend`](nestling_core::Backend). Its operations match the CPU
//! reference within rounding. Sums run in trees determined by matrix sizes, so results depend neither on
//! which planes are resident nor on how a prompt is split into chunks.

mod adapters;
mod backend;
mod device;
mod engine_backend;
mod error;
mod expert_table;
mod found_blocks;
mod matrix;
mod matrix_image;
mod matrix_layout;
mod needs;
#[rustfmt::skip]
mod params;
mod pipeline_cache;
mod pipelines;
mod record;
mod recorder;
mod slabs;
mod slot_uses;
mod slots;
mod staging;
mod storage;
mod vulkan;
mod wait;

pub use adapters::{
    AdapterChoice, AdapterDescription, AdapterError, AdapterFeatures, AdapterKind, AdapterLimits,
    Refusal, Uploads, device, devices,
};
pub use backend::{DeviceLimits, Instructions, WgpuBackend, WgpuOptions};
pub use error::WgpuError;
pub use expert_table::WgpuEntries;
pub use matrix::{WgpuMatrix, WgpuWeights};
pub use matrix_layout::WgpuMatrixLayout;
pub use nestling_gpu::{BudgetTooSmall, in_group};

/// Encoder of one step on the device.
pub type WgpuEncoder<'a> = nestling_gpu::StepEncoder<'a, WgpuBackend>;
