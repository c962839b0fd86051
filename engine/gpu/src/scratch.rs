//! Memory that operations use among themselves, by what it is for.

use nestling_core::EngineError;

use crate::allocation::Allocation;
use crate::storage::Storage;

/// What memory between operations holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScratchRoom {
    /// Values and scales of the input of a product.
    InputValues,
    /// Its scales.
    InputScales,
    /// Gates and ups of feed-forward parts, `[rows, 2 I]`.
    GateUp,
    /// The input of their second product, in int8.
    InnerValues,
    /// Its scales.
    InnerScales,
    /// The same input as floats.
    InnerFloats,
    /// Blocks that kernels make for experts, and their pairs of rows.
    Blocks,
    /// What parts of attention leave to be merged.
    AttendParts,
    /// Queries, keys and values of DeltaNet layers after their convolution, `[rows, channels]`.
    Mixed,
    /// What the router's choice is made from, `[rows, experts]`.
    RouterLogits,
    /// The largest of parts of rows, `[rows, parts]`.
    Orders,
    /// Their columns, `[rows, parts]`.
    Columns,
    /// The columns of the largest of rows, `[rows]`.
    Best,
    /// Stands in where a kernel has nothing to read.
    Nothing,
}

impl ScratchRoom {
    const COUNT: usize = Self::Nothing as usize + 1;
}

/// Memory of every purpose. It grows; what it holds lasts for one operation.
pub struct Scratch<S: Storage> {
    rooms: [Option<S::Memory>; ScratchRoom::COUNT],
}

impl<S: Storage> Default for Scratch<S> {
    fn default() -> Self {
        Self { rooms: std::array::from_fn(|_| None) }
    }
}

impl<S: Storage> Scratch<S> {
    /// Memory of a purpose.
    pub(crate) fn room(&mut self, room: ScratchRoom) -> &mut Option<S::Memory> {
        &mut self.rooms[room as usize]
    }
}

/// At least so many elements of 4 bytes, in what memory of a purpose becomes.
///
/// # Errors
/// As [`Storage::allocate`].
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

/// Rooms of quantized activations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QuantizedRoom {
    /// Of values.
    pub values: ScratchRoom,
    /// Of scales.
    pub scales: ScratchRoom,
}

impl QuantizedRoom {
    /// The input of a product.
    pub const INPUT: Self =
        Self { values: ScratchRoom::InputValues, scales: ScratchRoom::InputScales };

    /// The input of a feed-forward part's second product.
    pub const INNER: Self =
        Self { values: ScratchRoom::InnerValues, scales: ScratchRoom::InnerScales };
}
