//! What a GPU backend does for the encoder that both share.

use nestling_core::EngineError;
use nestling_core::backend::Backend;

use crate::device_matrix::DeviceMatrix;
use crate::expert_table::{GpuExpertTable, TableEntries};
use crate::memory::{GpuBuffer, GpuFloats, GpuRouting, Quantized};
use crate::notes::Notes;
use crate::operation::{GatedProducts, Input, Operation};
use crate::pages::GpuPages;
use crate::scratch::{self, QuantizedRoom, Scratch, ScratchRoom};
use crate::states::GpuStates;
use crate::storage::Storage;
use crate::work::WorkRates;

/// Records operations of a step for a device, and reads what they gave.
pub trait Device:
    Storage<TableEntries: TableEntries<Self>>
    + Backend<
        Buffer = GpuBuffer<Self>,
        Routing = GpuRouting<Self>,
        Floats = GpuFloats<Self>,
        KvPool = GpuPages<Self>,
        StatePool = GpuStates<Self>,
        Matrix: DeviceMatrix,
        ExpertTable = GpuExpertTable<Self>,
    >
{
    /// Bytes of gates and ups that are computed together, at most.
    const GATE_UP_BYTES_MAX: u64;

    /// Columns of a part of a row that one block of `argmax` looks at.
    const ARGMAX_PART_COLS: usize;

    /// How fast the device is.
    fn rates(&self) -> &WorkRates;

    /// A step of so many rows begins.
    fn begin_step(&mut self, rows: usize);

    /// An operation begins: all tables that it takes last until it has ended.
    ///
    /// # Errors
    /// A device that is lost.
    fn begin_operation(&mut self) -> Result<(), EngineError>;

    /// Memory that operations use among themselves.
    fn scratch_memory(&mut self) -> &mut Scratch<Self>;

    /// Some of it, of at least so many elements of 4 bytes; it lasts for one operation.
    ///
    /// # Errors
    /// As [`Storage::allocate`].
    fn scratch(&mut self, room: ScratchRoom, count: usize) -> Result<Self::Binding, EngineError> {
        let mut memory = self.scratch_memory().room(room).take();
        let grown = scratch::grow(self, &mut memory, count);
        *self.scratch_memory().room(room) = memory;
        grown
    }

    /// Some of it for at least so many quantization groups.
    ///
    /// # Errors
    /// As [`Storage::allocate`].
    fn quantized_scratch(
        &mut self,
        room: QuantizedRoom,
        groups: usize,
    ) -> Result<Quantized<Self::Binding>, EngineError> {
        let values = self.scratch(room.values, 8 * groups)?;
        Ok(Quantized { values, scales: self.scratch(room.scales, groups)? })
    }

    /// Floats that arrive during a step, as [`Backend::upload_floats`].
    ///
    /// # Errors
    /// As [`Backend::upload_floats`].
    fn bind_floats(&mut self, values: &[f32]) -> Result<GpuFloats<Self>, EngineError>;

    /// Words that kernels of this operation read.
    ///
    /// # Errors
    /// A device that is lost or whose memory is full.
    fn table(&mut self, words: &[u32]) -> Result<Self::Binding, EngineError>;

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

    /// Records that memory gets these bytes, from an offset on.
    ///
    /// # Errors
    /// A device that is lost or whose memory is full.
    fn write(&mut self, bytes: &[u8], to: &Self::Binding, offset: u64) -> Result<(), EngineError>;

    /// Writes bytes of a snapshot behind all that was recorded, and starts the device on them.
    ///
    /// # Errors
    /// A device that is lost or whose memory is full.
    fn restore(&mut self, bytes: &[u8], to: &Self::Binding) -> Result<(), EngineError>;

    /// Copies from one place to another.
    ///
    /// # Errors
    /// A device that is lost or whose memory is full.
    fn copy(
        &mut self,
        from: &Self::Binding,
        to: &Self::Binding,
        bytes: u64,
    ) -> Result<(), EngineError>;

    /// Starts the device on all that was recorded.
    ///
    /// # Errors
    /// A device that is lost or refused a command.
    fn submit(&mut self) -> Result<(), EngineError>;

    /// Starts the device on all that was recorded, waits, and gives parts of memory, one after another,
    /// to `take`: each where it is, and its bytes.
    ///
    /// # Errors
    /// A device that is lost or refused a command.
    fn read(
        &mut self,
        parts: &[(Self::Binding, u64)],
        take: impl FnOnce(&[u8]),
    ) -> Result<(), EngineError>;

    /// Runs and waits for all that was recorded.
    ///
    /// # Errors
    /// A device that is lost or refused a command.
    fn finish(&mut self) -> Result<(), EngineError>;

    /// Forgets what was recorded and not submitted.
    fn discard(&mut self);

    /// Clears the miss flag, behind all that was recorded.
    ///
    /// # Errors
    /// A device that is lost.
    fn resume(&mut self) -> Result<(), EngineError>;

    /// The miss flag.
    fn miss_flag(&self) -> Self::Binding;

    /// The experts that kernels found in the step under way.
    fn notes(&mut self) -> &mut Notes<Self>;
}
