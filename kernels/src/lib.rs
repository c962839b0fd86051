//! CUDA backend: kernels for NVIDIA GPUs, using the driver found at run time. See ARCHITECTURE.md.
//!
//! [`CudaBackend`] implements the engine's [`Backend`](nestling_core::Backend).

mod backend;
pub mod compile;
mod copy_queue;
mod device_list;
mod devices;
mod driver;
#[cfg(feature = "emulation")]
mod emulated_device;
#[cfg(feature = "emulation")]
mod emulated_peers;
#[cfg(feature = "emulation")]
pub mod emulation;
mod engine_backend;
mod error;
mod expert_table;
mod found_blocks;
mod graphs;
mod host_planes;
pub mod kernel;
mod link;
mod matrix;
mod matrix_layout;
#[cfg(feature = "nccl")]
mod nccl;
mod needs;
pub mod params;
mod record;
mod recorder;
mod slabs;
mod slots;
mod staging;
mod storage;
mod timer;
mod version;

pub use backend::{CudaBackend, CudaOptions};
pub use device_list::{device, devices};
pub use devices::{CudaDeviceChoice, CudaDeviceDescription, CudaDeviceError};
pub use driver::{GraphCounts, HostKernels, HostLaunch, MemoryNote};
#[cfg(feature = "emulation")]
pub use emulated_device::EmulationOptions;
#[cfg(feature = "emulation")]
pub use emulated_peers::{EmulatedPeers, PeerFault, PeerHub};
pub use error::CudaError;
pub use expert_table::CudaEntries;
pub use matrix::{CudaMatrix, CudaWeights};
pub use matrix_layout::CudaMatrixLayout;
#[cfg(feature = "nccl")]
pub use nccl::NcclLink;
pub use nestling_gpu::{BudgetTooSmall, in_group, with_peers};
pub use timer::{CudaTimer, TimedAs};
pub use version::Version;

/// Encoder of one step on the device.
pub type CudaEncoder<'a> = nestling_gpu::StepEncoder<'a, CudaBackend>;

/// Makes a backend a rank of a group, whose device exchanges activations with those of the other ranks through NCCL if the
/// build has the feature `nccl` and the machine the library, and through host memory otherwise. All ranks must be of the
/// same build.
///
/// # Errors
/// Returns an error if the device is lost.
pub fn rank_of(
    backend: CudaBackend,
    group: std::sync::Arc<dyn nestling_core::group::Group>,
) -> Result<CudaBackend, CudaError> {
    let backend = in_group(backend, group);
    #[cfg(feature = "nccl")]
    let backend = {
        let link = NcclLink::new(&backend)?;
        with_peers(backend, Box::new(link))
    };
    Ok(backend)
}
