//! What a model takes of a device, counted before it is loaded: a budget too small for it is refused then,
//! and experts leave room for what comes later.

use nestling_core::EngineError;
use nestling_core::backend::ModelNeeds;
use nestling_core::kv_cache::KvShape;
use nestling_core::recurrent::StateShape;
use nestling_formats::nested::GROUP;
use nestling_gpu::{NOTES_BYTES, SlotLayout};
use nestling_import::{FeedForward, TokenMixer};

use crate::driver::Driver;
use crate::error::CudaError;
use crate::matrix::CODEC_OFFSET;
use crate::params::{ARGMAX_PART_COLS, Block, ExpertEntry, Pair, SPLIT_POSITIONS};
use crate::record::GATE_UP_BYTES_MAX;
use crate::slots::CudaMatrixRoom;

/// Bytes that an allocation or a place is a multiple of.
const ALIGN: u64 = 256;

/// Allocations of a matrix or vector: its description and each of its planes.
const PLACES: u64 = 6;

/// Rows of a step whose logits there is room for; more only where they fit.
const LOGIT_ROWS: usize = 32;

/// Blocks of attention that are split at the most, and heads of each.
const SPLIT_BLOCKS: usize = 512 * 8;

/// What was asked for before a model is loaded, in bytes that come later.
#[derive(Debug, Default)]
pub(crate) struct Asked {
    /// Rows, at most, and columns of each buffer.
    buffers: Vec<(usize, usize)>,
    kv_bytes: u64,
    /// What splits of attention leave.
    parts_bytes: u64,
}

/// Memory that grows may be there twice until a step ends, and is a power of two.
fn growing(bytes: usize) -> u64 {
    3 * (bytes as u64).next_power_of_two().max(ALIGN)
}

impl Asked {
    pub fn buffer(&mut self, rows_max: usize, cols: usize) {
        self.buffers.push((rows_max.max(1), cols));
    }

    pub fn pages(&mut self, shape: &KvShape) {
        self.kv_bytes +=
            shape.pages as u64 * shape.page_bytes() as u64 + shape.pages as u64 * ALIGN;
        let splits = (shape.pages * 64).div_ceil(SPLIT_POSITIONS as usize);
        let parts = growing(4 * SPLIT_BLOCKS * splits * (shape.head_dim + 2));
        self.parts_bytes = self.parts_bytes.max(parts);
    }

    pub fn states(&mut self, shape: &StateShape) {
        self.kv_bytes += shape.states as u64 * (shape.state_bytes() as u64 + ALIGN);
    }

    /// Activations, also in int8, and what operations use among themselves.
    fn work_bytes(&self, needs: &ModelNeeds<'_>) -> u64 {
        let vocabulary = needs.config.vocab_size;
        let of = |&(rows, cols): &(usize, usize)| {
            let rows = if cols == vocabulary { rows.min(LOGIT_ROWS) } else { rows };
            let cells = rows * cols.div_ceil(GROUP);
            2 * (4 * (rows * cols) + (GROUP + 4) * cells) as u64 + 4 * ALIGN
        };
        let activations: u64 = self.buffers.iter().map(of).sum();
        let widest = self.buffers.iter().filter(|(_, cols)| *cols != vocabulary);
        // Default: a model that asked for no such buffer has no inputs of products.
        let cells = widest.map(|(rows, cols)| rows * cols.div_ceil(GROUP)).max().unwrap_or(0);
        let inputs = growing(GROUP * cells) + growing(4 * cells);
        activations + inputs + self.parts_bytes + scratch_bytes(needs) + NOTES_BYTES
    }

    /// Checks that there is room for a model, and keeps it for what comes after the weights.
    ///
    /// # Errors
    /// [`CudaError::BudgetTooSmall`].
    pub fn reserve(&mut self, driver: &Driver, needs: &ModelNeeds<'_>) -> Result<(), EngineError> {
        let asked = std::mem::take(self);
        let work = asked.work_bytes(needs) + asked.kv_bytes;
        let is_streamed = needs.experts.iter().any(Option::is_some);
        let experts = match is_streamed {
            true => SlotLayout::<CudaMatrixRoom>::of(&needs.experts)?.slot_bytes(),
            false => 0,
        };
        let places = needs.weights as u64 * PLACES * (CODEC_OFFSET + ALIGN);
        // Of each slab the end may lie unused: no more than the largest thing takes.
        let weights = needs.weight_bytes + needs.weight_bytes / 8 + places;
        let least = driver.allocated_bytes() + weights + experts + work;
        let given = driver.budget();
        if least > given {
            let error = CudaError::BudgetTooSmall { given, least, weights, experts, work };
            return Err(error.into());
        }
        driver.reserve_work(work);
        Ok(())
    }
}

/// What operations of a step use among themselves, and the tables of experts.
fn scratch_bytes(ModelNeeds { config, rows_max, .. }: &ModelNeeds<'_>) -> u64 {
    let (mut inner, mut mixed, mut experts_max, mut tables) = (0, 0, 0, 0);
    for layer in &config.layers {
        if let TokenMixer::DeltaNet(shape) = &layer.mixer {
            mixed = mixed.max(growing(4 * rows_max * shape.channels()));
        }
        let (uses, width) = match layer.feed_forward {
            FeedForward::Dense { intermediate_size } => (*rows_max, intermediate_size),
            FeedForward::Moe {
                num_experts,
                num_experts_per_tok,
                moe_intermediate_size,
                shared,
                ..
            } => {
                let entries = num_experts * (size_of::<ExpertEntry>() + 16);
                let biases = 4 * num_experts * (2 * moe_intermediate_size + config.hidden_size);
                tables += (entries + biases) as u64 + 3 * ALIGN;
                experts_max = experts_max.max(num_experts);
                let shared = shared.map_or(0, |shared| shared.intermediate_size);
                (rows_max * num_experts_per_tok, moe_intermediate_size.max(shared))
            }
        };
        let pair = 8 * width.max(1);
        let joined = (uses * pair).min(GATE_UP_BYTES_MAX.max(pair));
        // Gates and ups, and half as many floats or as many integers with scales.
        let all =
            growing(joined) + growing(joined / 2) + growing(joined / 8) + growing(joined / 64);
        inner = inner.max(all);
    }
    let blocks = growing(1024 * (3 * size_of::<Block>() + 2 * size_of::<Pair>()));
    let parts = config.vocab_size.div_ceil(ARGMAX_PART_COLS as usize);
    let columns = 2 * growing(4 * LOGIT_ROWS * parts) + growing(4 * LOGIT_ROWS);
    inner + mixed + tables + blocks + columns + growing(4 * rows_max * experts_max)
}
