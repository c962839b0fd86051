//! Memory requirements of a model, computed before it is loaded. A budget that is too small is refused at
//! that point, and experts leave space for later allocations.

use nestling_core::EngineError;
use nestling_core::backend::ModelNeeds;
use nestling_core::kv_cache::{KvShape, PAGE_POSITIONS};
use nestling_core::recurrent::StateShape;
use nestling_formats::nested::GROUP;
use nestling_gpu::{
    BufferSize, InnerSize, LayerExperts, MemorySizes, ModelBytes, RequestedMemory, WEIGHT_ALIGN,
};
use nestling_import::ModelConfig;

use crate::driver::Driver;
use crate::error::CudaError;
use crate::matrix_layout::{CODEC_OFFSET, CudaMatrixLayout};
use crate::params::{ARGMAX_PART_COLS, Block, ExpertEntry, Pair, SPLIT_POSITIONS};
use crate::record::GATE_UP_BYTES_MAX;

/// Granularity of allocations and ranges in bytes.
const ALIGN: u64 = WEIGHT_ALIGN;

/// Maximum number of ranges of a matrix or vector: its descriptor and planes.
const RANGES: u64 = 6;

/// Maximum number of split attention blocks, times the heads of each.
const SPLIT_BLOCKS: usize = 512 * 8;

/// Checks that a model fits in the budget, and sets memory aside for allocations after the weights. `has_peers` says that
/// the device may exchange columns with those of other ranks.
///
/// # Errors
/// Fails with [`CudaError::BudgetTooSmall`].
pub(crate) fn reserve(
    driver: &Driver,
    requested: &RequestedMemory,
    needs: &ModelNeeds<'_>,
    has_peers: bool,
) -> Result<(), EngineError> {
    let mut bytes = ModelBytes::of::<CudaSizes>(requested, needs)?;
    if has_peers {
        // Columns of a buffer, while they move between devices.
        let gathered = requested.buffers(needs.config).map(BufferSize::elements).max();
        // Default: a model without buffers gathers nothing.
        bytes.work += CudaSizes::scratch(4 * gathered.unwrap_or(0) as u64);
    }
    let ModelBytes { weights, expert, kv, work } = bytes;
    let least = driver.allocated_bytes() + weights + expert + work + kv;
    let given = driver.budget();
    if least > given {
        let refused: CudaError = bytes.refused(given, least);
        return Err(refused.into());
    }
    driver.reserve_work(work + kv);
    Ok(())
}

struct CudaSizes;

impl MemorySizes for CudaSizes {
    type MatrixLayout = CudaMatrixLayout;

    fn weights(needs: &ModelNeeds<'_>) -> u64 {
        let ranges = needs.weights as u64 * RANGES * (CODEC_OFFSET + ALIGN);
        // The end of each slab may be unused, up to the size of the largest range.
        needs.weight_bytes + needs.weight_bytes / 8 + ranges
    }

    fn pages(shape: &KvShape) -> u64 {
        shape.pages as u64 * (shape.page_bytes() as u64 + ALIGN)
    }

    fn states(shape: &StateShape) -> u64 {
        shape.states as u64 * (shape.state_bytes() as u64 + ALIGN)
    }

    fn attention(shape: &KvShape) -> u64 {
        let splits = (shape.pages * PAGE_POSITIONS).div_ceil(SPLIT_POSITIONS as usize);
        Self::scratch((4 * SPLIT_BLOCKS * splits * (shape.head_dim + 2)) as u64)
    }

    /// Includes the int8 form. Counts twice, because an old buffer is freed only at the end of a step.
    fn buffer(size: BufferSize) -> u64 {
        2 * (4 * size.elements() + (GROUP + 4) * size.groups()) as u64 + 4 * ALIGN
    }

    fn routing(elements: usize) -> u64 {
        2 * (4 * elements as u64 + ALIGN)
    }

    fn inputs(groups: u64) -> u64 {
        Self::scratch(GROUP as u64 * groups) + Self::scratch(4 * groups)
    }

    fn inner(size: InnerSize) -> u64 {
        let gate_up = size.gate_up_bytes(GATE_UP_BYTES_MAX);
        // Gates and ups, then the input of downs: f32, int8 values, and their scales.
        [1, 2, 8, 64].map(|part| Self::scratch(gate_up / part)).iter().sum()
    }

    fn router_logits(rows: usize, experts: usize) -> u64 {
        Self::scratch(4 * (rows * experts) as u64)
    }

    fn argmax_parts(cols: usize) -> usize {
        cols.div_ceil(ARGMAX_PART_COLS as usize)
    }

    /// Sizes are powers of two. Growing memory may exist twice until the end of a step.
    fn scratch(bytes: u64) -> u64 {
        3 * bytes.next_power_of_two().max(ALIGN)
    }

    fn experts(experts: &LayerExperts, _config: &ModelConfig) -> u64 {
        let entries = experts.count * (size_of::<ExpertEntry>() + 16);
        (entries + 4 * experts.all_bias_floats()) as u64 + 3 * ALIGN
    }

    /// Includes blocks that kernels build.
    fn others(_needs: &ModelNeeds<'_>) -> u64 {
        Self::scratch(1024 * (3 * size_of::<Block>() + 2 * size_of::<Pair>()) as u64)
    }
}
