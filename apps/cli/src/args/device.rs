//! Arguments that choose a compute device, and arguments of `nestling devices`.

use super::MachineFormatArgs;
use crate::bytes::ByteSize;
use clap::{Args, ValueEnum};
use nestling::Device;
use nestling::engine::expert::HostExperts;
use std::num::NonZero;

/// The compute device. These arguments appear under the heading of the surrounding group.
#[derive(Args, Clone, Debug)]
pub struct DeviceArgs {
    /// Compute device: auto (a GPU, or the CPU if there is none), cpu, cuda (an NVIDIA GPU), wgpu (a GPU
    /// through Vulkan, Metal or Direct3D 12); cuda:INDEX, wgpu:INDEX, or a part of the name after the colon,
    /// as listed by `nestling devices`
    #[arg(long, value_name = "DEVICE", default_value = "auto", env = "NESTLING_DEVICE")]
    pub device: Device,

    /// GPU memory budget, such as 8GiB [default: all memory of the GPU]
    #[arg(long, value_name = "SIZE", env = "NESTLING_VRAM_BUDGET")]
    pub vram_budget: Option<ByteSize>,

    /// Number of ranks that share a GPU and its memory budget; each further group of as many takes the next GPU
    #[arg(long, value_name = "N", default_value = "1", env = "NESTLING_RANKS_PER_DEVICE")]
    pub ranks_per_device: NonZero<usize>,
}

/// Streamed experts when a GPU is used. This argument appears under the heading of the surrounding group.
#[derive(Args, Clone, Copy, Debug)]
pub struct HostExpertsArgs {
    /// Use of the CPU for experts that do not fit into a CUDA device's memory and reside in host memory
    #[arg(long, value_enum, default_value_t = HostExpertsArg::WhenFaster)]
    #[arg(value_name = "WHEN", env = "NESTLING_HOST_EXPERTS")]
    pub host_experts: HostExpertsArg,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum HostExpertsArg {
    /// Copy them to the device and compute there
    Never,
    /// Compute them on the CPU if that is faster, as measured
    WhenFaster,
    /// Compute them on the CPU
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
