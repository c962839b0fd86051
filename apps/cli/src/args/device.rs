//! What computes, and `nestling devices`.

use super::MachineFormatArgs;
use crate::bytes::ByteSize;
use clap::{Args, ValueEnum};
use nestling::Device;
use nestling::engine::expert::HostExperts;

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

/// Streamed experts beside a device. The heading is that of the arguments around it.
#[derive(Args, Clone, Copy, Debug)]
pub struct HostExpertsArgs {
    /// Where experts are computed for which a CUDA device has no room and that wait in the host's memory
    #[arg(long, value_enum, default_value_t = HostExpertsArg::WhenFaster)]
    #[arg(value_name = "WHEN", env = "NESTLING_HOST_EXPERTS")]
    pub host_experts: HostExpertsArg,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum HostExpertsArg {
    /// On the device, where they are brought
    Never,
    /// By the CPU where that takes less time, as measured
    WhenFaster,
    /// By the CPU
    Always,
}

impl From<HostExpertsArg> for HostExperts {
    fn from(choice: HostExpertsArg) -> Self {
        match choice {
            HostExpertsArg::Never => Self::Never,
            HostExpertsArg::WhenFaster => Self::WhenFaster,
            HostExpertsArg::Always => Self::Always,
        }
    }
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
