//! What a GPU backend does for the encoder that both share.

use nestling_core::EngineError;
use nestling_core::backend::Backend;

use crate::command_recorder::CommandRecorder;
use crate::encoder_state::EncoderState;
use crate::expert_table::{GpuExpertTable, TableEntries};
use crate::matrix::GpuMatrix;
use crate::memory::{GpuBuffer, GpuFloats, GpuRouting};
use crate::operation::{FindExperts, FoundExperts, GatedProducts, Input, Operation};
use crate::pages::GpuPages;
use crate::plane_memory::PlaneMemory;
use crate::states::GpuStates;
use crate::storage::Storage;

/// Records operations of a step for a device.
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
    /// What records its commands.
    type Recorder: CommandRecorder<Binding = Self::Binding>;
    /// Where the planes of a matrix lie.
    type Weights: PlaneMemory<Recorder = Self::Recorder, Binding = Self::Binding>;

    /// Bytes of gates and ups that are computed together, at most.
    const GATE_UP_BYTES_MAX: u64;

    /// Columns of a part of a row that one block of `argmax` looks at.
    const ARGMAX_PART_COLS: usize;

    /// What records its commands.
    fn recorder(&mut self) -> &mut Self::Recorder;

    /// What the encoder keeps here between steps.
    fn state(&mut self) -> &mut EncoderState<Self>;

    /// Has kernels make blocks of products from a routing.
    ///
    /// # Errors
    /// As [`Device::record`].
    fn find_experts(
        &mut self,
        find: &FindExperts<'_, Self>,
    ) -> Result<FoundExperts<Self::FoundBlocks>, EngineError>;

    /// Records an operation.
    ///
    /// # Errors
    /// A device that is lost or whose memory is full; more than kernels count.
    fn record(&mut self, operation: Operation<'_, Self>) -> Result<(), EngineError>;

    /// Records gates and ups as one operation with what joins them, where a kernel can: the input of
    /// downs. None where they are computed one after the other.
    ///
    /// # Errors
    /// As [`Device::record`].
    fn record_gated(
        &mut self,
        products: &GatedProducts<'_, Self>,
    ) -> Result<Option<Input<Self::Binding>>, EngineError>;
}
