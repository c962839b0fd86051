//! What computes, and `nestling devices`.

use super::MachineFormatArgs;
use crate::bytes::ByteSize;
use clap::Args;
use nestling::Device;

/// What computes. The heading is that of the arguments around it.
#[derive(Args, Clone, Debug)]
pub struct DeviceArgs {
    /// Device that computes: auto (a GPU, or the CPU where there is none), cpu, cuda (a GPU of
    /// NVIDIA's), wgpu (a GPU through Vulkan, Metal or Direct3D 12); cuda:INDEX, wgpu:INDEX or
    /// with a part of the name, as `nestling devices` lists them
    #[arg(long, value_name = "DEVICE", default_value = "auto", env = "NESTLING_DEVICE")]
    pub device: Device,

    /// Memory of the GPU that may be used, such as 8GiB [default: what it has]
    #[arg(long, value_name = "SIZE", env = "NESTLING_VRAM_BUDGET")]
    pub vram_budget: Option<ByteSize>,
}

#[derive(Args, Debug)]
#[command(
    after_help = "A device is chosen with --device: by number, as cuda:0 or wgpu:0, or by a \
part of its name. `auto` takes CUDA before other GPUs, and never software."
)]
pub struct DevicesArgs {
    #[command(flatten)]
    pub format: MachineFormatArgs,
}
