//! The interface between the shared encoder and a GPU backend.

use std::sync::Arc;

use nestling_core::EngineError;
use nestling_core::backend::{Backend, RankLink};
use nestling_core::group::Group;

use crate::command_recorder::CommandRecorder;
use crate::encoder_state::EncoderState;
use crate::expert_table::{GpuExpertTable, TableEntries};
use crate::matrix::GpuMatrix;
use crate::memory::{GpuBuffer, GpuFloats, GpuRouting};
use crate::operation::{FindExperts, FoundExperts, GatedProducts, Input, Operation};
use crate::pages::GpuPages;
use crate::peers::PeerLink;
use crate::plane_memory::PlaneMemory;
use crate::states::GpuStates;
use crate::storage::Storage;

/// A GPU backend that records the operations of a step.
pub trait Device:
    Storage<TableEntries: TableEntries<Self>>
    + Backend<
        Buffer = GpuBuffer<Self>,
        Routing = GpuRouting<Self>,
        Floats = GpuFloats<Self>,
        KvPool = GpuPages<Self>,
        StatePool = GpuStates<Self>,
        Matrix = GpuMatrix<Self::Weights>,
        ExpertTable = GpuExpertTable<Self>,
    >
{
    /// Recorder of the device's commands.
    type Recorder: CommandRecorder<Binding = Self::Binding>;
    /// Device memory of a matrix's planes.
    type Weights: PlaneMemory<Recorder = Self::Recorder, Binding = Self::Binding>;

    /// Maximum size of the gate and up outputs computed together, in bytes.
    const GATE_UP_BYTES_MAX: u64;

    /// Columns that one block of `argmax` compares.
    const ARGMAX_PART_COLS: usize;

    /// Returns the command recorder.
    fn recorder(&mut self) -> &mut Self::Recorder;

    /// Returns the encoder's state between steps.
    fn state(&mut self) -> &mut EncoderState<Self>;

    /// Records the kernels that turn a routing into blocks of products.
    ///
    /// # Errors
    /// Fails like [`Device::record`].
    fn find_experts(
        &mut self,
        find: &FindExperts<'_, Self>,
    ) -> Result<FoundExperts<Self::FoundBlocks>, EngineError>;

    /// Records an operation.
    ///
    /// # Errors
    /// Returns an error if the device is lost or out of memory, or if a size exceeds what kernels can count.
    fn record(&mut self, operation: Operation<'_, Self>) -> Result<(), EngineError>;

    /// Records gates, ups and the activation that joins them as one fused operation. Returns the input of the
    /// down products, or `None` if no fused kernel exists for them.
    ///
    /// # Errors
    /// Fails like [`Device::record`].
    fn record_gated(
        &mut self,
        products: &GatedProducts<'_, Self>,
    ) -> Result<Option<Input<Self::Binding>>, EngineError>;
}

/// Makes a device a rank of a group: it holds a share of each model, and all ranks run the same steps. Activations are
/// exchanged through host memory, or by [`with_peers`].
#[must_use]
pub fn in_group<D: Device>(mut device: D, group: Arc<dyn Group>) -> D {
    device.state().ranks = Some(Arc::new(RankLink::new(group)));
    device
}

/// Lets a rank's device exchange columns of activations with the devices of the other ranks, once all are connected.
/// Either all ranks have a link or none.
#[must_use]
pub fn with_peers<D: Device>(mut device: D, link: Box<dyn PeerLink<D::Binding>>) -> D {
    device.state().peers = Some(link);
    device
}
