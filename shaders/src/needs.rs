//! Memory requirements of a model, computed before it is loaded. A budget that is too small is refused at
//! that point, and weights leave space for later allocations.

use nestling_core::EngineError;
use nestling_core::backend::ModelNeeds;
use nestling_core::kv_cache::KvShape;
use nestling_core::recurrent::StateShape;
use nestling_formats::nested::GROUP;
use nestling_gpu::{
    BufferSize, DeviceBudget, InnerSize, LayerExperts, MemorySizes, ModelBytes, RequestedMemory,
    WEIGHT_ALIGN, WorkReservation,
};
use nestling_import::{ExpertBias, ModelConfig};

use crate::device::size_of;
use crate::error::WgpuError;
use crate::expert_table::table_bytes;
use crate::matrix_layout::WgpuMatrixLayout;
use crate::record::{ARGMAX_PART_COLS, GATE_UP_BYTES_MAX, parts_bytes_max};
use crate::recorder::ARENA_BYTES;
use crate::storage::pool_bytes;

/// Bytes of a matrix or vector in addition to its planes and codec: header and alignment.
const WEIGHT_BYTES: u64 = 1024;

/// Bytes of row tables in separate buffers, blocks built by shaders, and small allocations.
const TABLES_BYTES: u64 = 4 << 20;

/// Bytes of a quantized group: its values and its scale.
const GROUP_BYTES: u64 = GROUP as u64 + 4;

/// Memory set aside for a model.
pub(crate) struct ReservedMemory {
    /// Bytes set aside for allocations after the weights, until dropped.
    pub reservation: WorkReservation,
    /// Bytes of the weights, which are uploaded next, or 0 if unknown.
    pub weight_bytes: u64,
    /// Bytes of biases that streamed experts upload in addition to their matrices.
    pub bias_bytes: u64,
}

/// Checks that a model fits in the budget, and sets memory aside for allocations after the weights.
///
/// # Errors
/// Fails with [`WgpuError::BudgetTooSmall`].
pub(crate) fn reserve(
    budget: &DeviceBudget,
    requested: &RequestedMemory,
    needs: &ModelNeeds<'_>,
) -> Result<ReservedMemory, EngineError> {
    let bytes = ModelBytes::of::<WgpuSizes>(requested, needs)?;
    let kept = budget.reserve_work(bytes.work + bytes.kv, bytes.weights + bytes.expert);
    let reservation = kept.map_err(|least| -> WgpuError {
        bytes.refused(budget.total_bytes().unwrap_or(u64::MAX), least)
    })?;
    let weight_bytes = if needs.weight_bytes > 0 { bytes.weights } else { 0 };
    Ok(ReservedMemory { reservation, weight_bytes, bias_bytes: own_biases(needs) })
}

struct WgpuSizes;

impl MemorySizes for WgpuSizes {
    type MatrixLayout = WgpuMatrixLayout;

    fn weights(needs: &ModelNeeds<'_>) -> u64 {
        let bytes = needs.weight_bytes + needs.weights as u64 * WEIGHT_BYTES;
        bytes.next_multiple_of(WEIGHT_ALIGN)
    }

    fn pages(shape: &KvShape) -> u64 {
        pool_bytes(shape)
    }

    fn states(shape: &StateShape) -> u64 {
        shape.states as u64 * size_of(shape.state_bytes() as u64)
    }

    /// Includes partial results of attention that is split over blocks of pages, and a buffer for copying a
    /// page.
    fn attention(shape: &KvShape) -> u64 {
        parts_bytes_max(shape) + size_of(shape.page_bytes() as u64)
    }

    fn buffer(size: BufferSize) -> u64 {
        size_of(4 * size.elements() as u64)
    }

    fn routing(elements: usize) -> u64 {
        2 * size_of(4 * elements as u64)
    }

    fn inputs(groups: u64) -> u64 {
        size_of(groups * GROUP_BYTES) + 32
    }

    fn inner(size: InnerSize) -> u64 {
        let gate_up = size.gate_up_bytes(GATE_UP_BYTES_MAX);
        // Gates and ups, then the input of downs: f32, or int8 values with scales.
        gate_up + gate_up / 2 + (gate_up / 8).next_multiple_of(32) + 256
    }

    fn router_logits(rows: usize, experts: usize) -> u64 {
        size_of(4 * (rows.next_power_of_two() * experts) as u64)
    }

    fn argmax_parts(cols: usize) -> usize {
        cols.div_ceil(ARGMAX_PART_COLS).max(1)
    }

    fn scratch(bytes: u64) -> u64 {
        size_of(bytes)
    }

    fn experts(experts: &LayerExperts, config: &ModelConfig) -> u64 {
        let biases = match config.expert_bias {
            ExpertBias::Absent => 0,
            _ => size_of(4 * experts.all_bias_floats() as u64),
        };
        table_bytes(experts.count) + biases
    }

    fn others(needs: &ModelNeeds<'_>) -> u64 {
        ARENA_BYTES as u64 + TABLES_BYTES + own_biases(needs)
    }
}

/// Returns the size of streamed experts' biases. A loaded expert stores them in addition to the table of its
/// layer.
fn own_biases(needs: &ModelNeeds<'_>) -> u64 {
    let range = |floats: usize| (4 * floats as u64).next_multiple_of(WEIGHT_ALIGN);
    let of_layer = |experts: LayerExperts| {
        experts.count as u64 * experts.bias_floats.into_iter().map(range).sum::<u64>()
    };
    match needs.config.expert_bias {
        ExpertBias::Absent => 0,
        _ if needs.experts.iter().all(Option::is_none) => 0,
        _ => LayerExperts::of(needs.config).map(of_layer).sum(),
    }
}
