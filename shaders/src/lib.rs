//! Portable GPU backend: WGSL shaders through wgpu. See ARCHITECTURE.md.

mod adapters;
mod vulkan;

pub use adapters::{
    AdapterChoice, AdapterDescription, AdapterError, AdapterFeatures, AdapterKind, AdapterLimits,
    device, devices,
};
