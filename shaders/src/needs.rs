//! What a model takes of a device, counted before it is loaded: a budget too small for it is refused
//! then, and weights leave room for what comes later.

use nestling_core::EngineError;
use nestling_core::backend::ModelNeeds;
use nestling_core::kv_cache::KvShape;
use nestling_core::recurrent::StateShape;
use nestling_formats::nested::GROUP;
use nestling_gpu::{DeviceBudget, NOTES_BYTES, SlotLayout, WorkReservation};
use nestling_import::{ExpertBias, FeedForward, ModelConfig, TokenMixer};

use crate::device::size_of;
use crate::error::{BudgetTooSmall, WgpuError};
use crate::expert_table::table_bytes;
use crate::record::{ARGMAX_PART_COLS, GATE_UP_BYTES_MAX, parts_bytes_max};
use crate::recorder::ARENA_BYTES;
use crate::slabs::ALIGN as PLACE_ALIGN;
use crate::slots::WgpuMatrixRoom;
use crate::storage::pool_bytes;

/// Bytes of a matrix or vector beside its planes and its codec: its header, and that its parts and it
/// begin at multiples of some bytes.
const WEIGHT_BYTES: u64 = 1024;

/// Rows of a step whose logits there is room for; more only where they fit.
const LOGIT_ROWS: usize = 32;

/// Tables of rows that lie in buffers of their own, blocks that shaders make, and small things.
const TABLES_BYTES: u64 = 4 << 20;

/// Bytes of a quantized group: its values and its scale.
const GROUP_BYTES: usize = GROUP + 4;

/// What was asked for before a model is loaded.
#[derive(Debug, Default)]
pub(crate) struct Asked {
    /// Rows, at most, and columns of each buffer.
    buffers: Vec<(usize, usize)>,
    kv_bytes: u64,
    routing_bytes: u64,
    /// What heads of few rows leave that are split over blocks of pages, and a page on its way.
    parts_bytes: u64,
}

/// What a model has on a device beside its weights.
pub(crate) struct Kept {
    /// Bytes that are kept free for it.
    pub reservation: WorkReservation,
    /// Bytes of weights that are loaded.
    pub weight_bytes: u64,
    /// Bytes of the biases that streamed experts bring.
    pub bias_bytes: u64,
}

impl Asked {
    pub fn buffer(&mut self, rows_max: usize, cols: usize) {
        self.buffers.push((rows_max, cols));
    }

    pub fn routing(&mut self, rows_max: usize, per_token: usize) {
        self.routing_bytes += 2 * size_of(4 * (rows_max * per_token) as u64);
    }

    pub fn pages(&mut self, shape: &KvShape) {
        self.kv_bytes += pool_bytes(shape);
        let parts = parts_bytes_max(shape) + size_of(shape.page_bytes() as u64);
        self.parts_bytes = self.parts_bytes.max(parts);
    }

    pub fn states(&mut self, shape: &StateShape) {
        self.kv_bytes += shape.states as u64 * size_of(shape.state_bytes() as u64);
    }

    /// Activations and what operations use among themselves, at most.
    fn work_bytes(&self, needs: &ModelNeeds<'_>) -> u64 {
        let vocabulary = needs.config.vocab_size;
        let bytes = |&(rows, cols): &(usize, usize)| {
            let rows = if cols == vocabulary { rows.min(LOGIT_ROWS) } else { rows };
            size_of(4 * (rows * cols) as u64)
        };
        let activations: u64 = self.buffers.iter().map(bytes).sum();
        let inputs = self.buffers.iter().filter(|(_, cols)| *cols != vocabulary);
        // Inputs of products, quantized: of all rows of the widest buffer.
        let quantized = inputs.map(|(rows, cols)| rows * cols.div_ceil(GROUP) * GROUP_BYTES);
        // Default: a model that asked for no such buffer quantizes nothing.
        let quantized = size_of(quantized.max().unwrap_or(0) as u64) + 32;
        let fixed = ARENA_BYTES as u64 + NOTES_BYTES + TABLES_BYTES;
        let asked = activations + self.routing_bytes + self.parts_bytes;
        asked + quantized + fixed + scratch_bytes(needs) + own_biases(needs)
    }

    /// Keeps memory for a model.
    ///
    /// # Errors
    /// [`WgpuError::BudgetTooSmall`].
    pub fn reserve(
        &mut self,
        budget: &DeviceBudget,
        needs: &ModelNeeds<'_>,
    ) -> Result<Kept, EngineError> {
        let asked = std::mem::take(self);
        let (work_bytes, kv_bytes) = (asked.work_bytes(needs), asked.kv_bytes);
        let weight_bytes = needs.weight_bytes + needs.weights as u64 * WEIGHT_BYTES;
        let weight_bytes = weight_bytes.next_multiple_of(PLACE_ALIGN);
        let is_streamed = needs.experts.iter().any(Option::is_some);
        let expert_bytes = match is_streamed {
            true => SlotLayout::<WgpuMatrixRoom>::of(&needs.experts)?.slot_bytes(),
            false => 0,
        };
        let kept = budget.reserve_work(work_bytes + kv_bytes, weight_bytes + expert_bytes);
        let reservation = kept.map_err(|least| {
            let given = budget.total_bytes().unwrap_or(u64::MAX);
            WgpuError::BudgetTooSmall(Box::new(BudgetTooSmall {
                given,
                least,
                weight_bytes,
                expert_bytes,
                kv_bytes,
                work_bytes,
            }))
        })?;
        let is_known = needs.weight_bytes > 0;
        let weight_bytes = if is_known { weight_bytes } else { 0 };
        Ok(Kept { reservation, weight_bytes, bias_bytes: own_biases(needs) })
    }
}

/// What operations of a step use among themselves, and the tables of experts.
fn scratch_bytes(needs: &ModelNeeds<'_>) -> u64 {
    let ModelNeeds { config, rows_max, .. } = needs;
    let layers = config.layers.iter();
    let inner = layers.clone().map(|layer| inner_bytes(*rows_max, &layer.feed_forward));
    let mixed = layers.clone().map(|layer| match &layer.mixer {
        TokenMixer::DeltaNet(shape) => size_of(4 * (rows_max * shape.channels()) as u64),
        TokenMixer::Attention(_) | TokenMixer::Latent(_) => 0,
    });
    let experts = layers.map(|layer| match layer.feed_forward {
        FeedForward::Moe { num_experts, .. } => num_experts,
        FeedForward::Dense { .. } => 0,
    });
    let tables: u64 = experts.clone().map(table_bytes).sum();
    // The largest of parts of rows of logits and their columns, and of whole rows.
    let parts =
        size_of(4 * (LOGIT_ROWS * config.vocab_size.div_ceil(ARGMAX_PART_COLS).max(1)) as u64);
    let best = 2 * parts + size_of(4 * LOGIT_ROWS as u64);
    // Default: a model without layers has no experts and none of what follows.
    let logits = 4 * rows_max.next_power_of_two() * experts.max().unwrap_or(0);
    // Default: as above.
    inner.max().unwrap_or(0)
        + mixed.max().unwrap_or(0)
        + size_of(logits as u64)
        + best
        + tables
        + joined_biases(config)
}

/// The biases of each layer's experts, where the experts have some.
fn joined_biases(config: &ModelConfig) -> u64 {
    let of_layer = |feed_forward: &FeedForward| match *feed_forward {
        FeedForward::Moe { num_experts, moe_intermediate_size, .. } => {
            size_of(4 * (num_experts * (2 * moe_intermediate_size + config.hidden_size)) as u64)
        }
        FeedForward::Dense { .. } => 0,
    };
    match config.expert_bias {
        ExpertBias::Absent => 0,
        _ => config.layers.iter().map(|layer| of_layer(&layer.feed_forward)).sum(),
    }
}

/// The biases of streamed experts, which each has beside the tables of its layer when it is there.
fn own_biases(needs: &ModelNeeds<'_>) -> u64 {
    let of_layer = |feed_forward: &FeedForward| match *feed_forward {
        FeedForward::Moe { num_experts, moe_intermediate_size, .. } => {
            let place = |floats: usize| (4 * floats as u64).next_multiple_of(PLACE_ALIGN);
            let bytes = 2 * place(moe_intermediate_size) + place(needs.config.hidden_size);
            num_experts as u64 * bytes
        }
        FeedForward::Dense { .. } => 0,
    };
    let is_streamed = needs.experts.iter().any(Option::is_some);
    match needs.config.expert_bias {
        ExpertBias::Absent => 0,
        _ if !is_streamed => 0,
        _ => needs.config.layers.iter().map(|layer| of_layer(&layer.feed_forward)).sum(),
    }
}

/// Gates and ups that are computed together, and the input of downs, in floats at most.
fn inner_bytes(rows_max: usize, feed_forward: &FeedForward) -> u64 {
    let (uses, width) = match *feed_forward {
        FeedForward::Dense { intermediate_size } => (rows_max, intermediate_size),
        FeedForward::Moe { num_experts_per_tok, moe_intermediate_size, shared, .. } => {
            let shared = shared.map_or(0, |shared| shared.intermediate_size);
            (rows_max * num_experts_per_tok, moe_intermediate_size.max(shared))
        }
    };
    let pair = 8 * width as u64;
    let gate_up = (uses as u64 * pair).min(GATE_UP_BYTES_MAX.max(pair));
    // Half as many floats, or as many integers with scales.
    gate_up + gate_up / 2 + (gate_up / 8).next_multiple_of(32) + 256
}
