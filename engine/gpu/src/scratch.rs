//! Scratch memory of operations, by purpose.

use nestling_core::EngineError;

use crate::allocation::Allocation;
use crate::storage::Storage;

/// Purpose of scratch memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScratchRoom {
    /// Int8 values of a product's input.
    InputValues,
    /// Scales of a product's input.
    InputScales,
    /// Gates and ups of feed-forward blocks, `[rows, 2 I]`.
    GateUp,
    /// Int8 values of the down products' input.
    InnerValues,
    /// Scales of the down products' input.
    InnerScales,
    /// The down products' input in f32.
    InnerFloats,
    /// Blocks of expert products built by kernels, and their row pairs.
    Blocks,
    /// Partial results of attention, which are merged later.
    AttendParts,
    /// Channels of DeltaNet and Mamba-2 layers after the convolution, `[rows, channels]`.
    Mixed,
    /// Router logits, `[rows, experts]`.
    RouterLogits,
    /// Order keys of the maxima of row parts, `[rows, parts]`.
    Orders,
    /// Columns of the maxima of row parts, `[rows, parts]`.
    Columns,
    /// Columns of the maxima of rows, `[rows]`.
    Best,
    /// Columns of all ranks, those of each rank contiguous, while they move between devices.
    Gathered,
    /// Placeholder for an unused kernel argument.
    Nothing,
}

impl ScratchRoom {
    const COUNT: usize = Self::Nothing as usize + 1;
}

/// Scratch memory by purpose. It grows as needed; its contents are valid during one operation.
pub struct Scratch<S: Storage> {
    rooms: [Option<S::Memory>; ScratchRoom::COUNT],
}

impl<S: Storage> Default for Scratch<S> {
    fn default() -> Self {
        Self { rooms: std::array::from_fn(|_| None) }
    }
}

impl<S: Storage> Scratch<S> {
    pub(crate) fn room(&mut self, room: ScratchRoom) -> &mut Option<S::Memory> {
        &mut self.rooms[room as usize]
    }
}

/// Grows scratch memory to at least `count` elements of 4 bytes.
///
/// # Errors
/// Fails like [`Storage::allocate`].
pub(crate) fn grow<S: Storage>(
    storage: &mut S,
    room: &mut Option<S::Memory>,
    count: usize,
) -> Result<S::Binding, EngineError> {
    let bytes = 4 * count as u64;
    match room {
        Some(memory) if memory.bytes() >= bytes => Ok(memory.binding()),
        Some(memory) => {
            storage.reallocate(memory, "scratch", storage.roomy_bytes(bytes))?;
            Ok(memory.binding())
        }
        none => {
            let memory = storage.allocate("scratch", storage.roomy_bytes(bytes))?;
            Ok(none.insert(memory).binding())
        }
    }
}

/// Scratch memory of quantized activations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QuantizedRoom {
    /// Purpose of the values.
    pub values: ScratchRoom,
    /// Purpose of the scales.
    pub scales: ScratchRoom,
}

impl QuantizedRoom {
    /// Input of a product.
    pub const INPUT: Self =
        Self { values: ScratchRoom::InputValues, scales: ScratchRoom::InputScales };

    /// Input of a feed-forward block's down products.
    pub const INNER: Self =
        Self { values: ScratchRoom::InnerValues, scales: ScratchRoom::InnerScales };
}
