//! Memory requested before a model is loaded. It allows refusing a budget that is too small for the model,
//! and sizing the expert budget to leave space for later allocations. The backend converts requests to device
//! bytes.

use nestling_core::EngineError;
use nestling_core::backend::ModelNeeds;
use nestling_core::kv_cache::KvShape;
use nestling_core::recurrent::StateShape;
use nestling_formats::nested::GROUP;
use nestling_import::{FeedForward, ModelConfig, TokenMixer};

use crate::error::ModelBytes;
use crate::notes::NOTES_BYTES;
use crate::slot_layout::{MatrixLayout, SlotLayout};

/// Number of rows of logits that memory is reserved for. Larger buffers are allocated only if they fit.
const LOGIT_ROWS: usize = 32;

/// Maximum size of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BufferSize {
    /// Number of rows.
    pub rows: usize,
    /// Columns of a row.
    pub cols: usize,
}

impl BufferSize {
    /// Returns the number of elements.
    pub fn elements(self) -> usize {
        self.rows * self.cols
    }

    /// Returns the number of quantization groups of all rows.
    pub fn groups(self) -> usize {
        self.rows * self.cols.div_ceil(GROUP)
    }
}

/// Size of joined gates and ups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InnerSize {
    /// Number of expert uses, or rows of a dense block.
    pub uses: usize,
    /// Columns of a gate.
    pub width: usize,
}

impl InnerSize {
    /// Returns the bytes of gates and ups that are computed together, which are limited to `most`.
    pub fn gate_up_bytes(self, most: u64) -> u64 {
        let pair = 8 * self.width.max(1) as u64;
        (self.uses as u64 * pair).min(most.max(pair))
    }
}

/// Sizes of a layer's experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayerExperts {
    /// Number of experts.
    pub count: usize,
    /// Bias floats of one expert: of gate, up and down.
    pub bias_floats: [usize; 3],
}

impl LayerExperts {
    /// Iterates over the layers that have experts.
    pub fn of(config: &ModelConfig) -> impl Iterator<Item = Self> + '_ {
        config.layers.iter().filter_map(|layer| match layer.feed_forward {
            FeedForward::Moe { num_experts: count, moe_intermediate_size: width, .. } => {
                Some(Self { count, bias_floats: [width, width, config.hidden_size] })
            }
            FeedForward::Absent | FeedForward::Dense { .. } => None,
        })
    }

    /// Returns the number of bias floats of all experts.
    pub fn all_bias_floats(&self) -> usize {
        self.count * self.bias_floats.iter().sum::<usize>()
    }
}

/// Memory requested before a model is loaded.
#[derive(Debug, Default)]
pub struct RequestedMemory {
    buffers: Vec<BufferSize>,
    /// Number of uses in each routing. Each use has an expert index and a weight.
    routings: Vec<usize>,
    pages: Vec<KvShape>,
    states: Vec<StateShape>,
}

impl RequestedMemory {
    /// Adds an activation buffer.
    pub fn buffer(&mut self, rows_max: usize, cols: usize) {
        self.buffers.push(BufferSize { rows: rows_max.max(1), cols });
    }

    /// Adds a routing.
    pub fn routing(&mut self, rows_max: usize, per_token: usize) {
        self.routings.push(rows_max * per_token);
    }

    /// Adds the KV cache of a layer.
    pub fn pages(&mut self, shape: KvShape) {
        self.pages.push(shape);
    }

    /// Adds the recurrent states of a layer.
    pub fn states(&mut self, shape: StateShape) {
        self.states.push(shape);
    }

    /// Iterates over all buffers, with logits limited to the rows that memory is reserved for.
    pub fn buffers<'a>(&'a self, config: &'a ModelConfig) -> impl Iterator<Item = BufferSize> + 'a {
        self.buffers.iter().map(|buffer| match buffer.cols == config.vocab_size {
            true => BufferSize { rows: buffer.rows.min(LOGIT_ROWS), cols: buffer.cols },
            false => *buffer,
        })
    }

    /// Returns the number of quantization groups of the largest product input.
    fn input_groups_max(&self, config: &ModelConfig) -> usize {
        let inputs = self.buffers.iter().filter(|buffer| buffer.cols != config.vocab_size);
        // Default: a model that requested no such buffer has no product inputs.
        inputs.map(|buffer| buffer.groups()).max().unwrap_or(0)
    }
}

/// Memory requirements of a backend. All functions return bytes of device memory unless stated otherwise.
pub trait MemorySizes {
    /// Layout of streamed experts in slots.
    type MatrixLayout: MatrixLayout;

    /// Returns the size of weights uploaded before the first step.
    fn weights(needs: &ModelNeeds<'_>) -> u64;

    /// Returns the size of a layer's KV cache.
    fn pages(shape: &KvShape) -> u64;

    /// Returns the size of a layer's recurrent states.
    fn states(shape: &StateShape) -> u64;

    /// Returns the size of the partial results that attention merges.
    fn attention(shape: &KvShape) -> u64;

    /// Returns the size of activations.
    fn buffer(size: BufferSize) -> u64;

    /// Returns the size of a routing with `elements` elements.
    fn routing(elements: usize) -> u64;

    /// Returns the size of `groups` quantization groups of a product's input.
    fn inputs(groups: u64) -> u64;

    /// Returns the size of gates and ups, and of the input of downs.
    fn inner(size: InnerSize) -> u64;

    /// Returns the size of a router's logits.
    fn router_logits(rows: usize, experts: usize) -> u64;

    /// Returns the number of parts of a row that `argmax` processes separately.
    fn argmax_parts(cols: usize) -> usize;

    /// Returns the size of other scratch memory.
    fn scratch(bytes: u64) -> u64;

    /// Returns the size of the table of a layer's experts and of their biases.
    fn experts(experts: &LayerExperts, config: &ModelConfig) -> u64;

    /// Returns the size of everything else.
    fn others(needs: &ModelNeeds<'_>) -> u64;
}

impl ModelBytes {
    /// Returns the memory requirements of a model.
    ///
    /// # Errors
    /// Returns an error if sizes overflow.
    pub fn of<S: MemorySizes>(
        requested: &RequestedMemory,
        needs: &ModelNeeds<'_>,
    ) -> Result<Self, EngineError> {
        let RequestedMemory { pages, states, .. } = requested;
        let pages: u64 = pages.iter().map(S::pages).sum();
        let kv = pages + states.iter().map(S::states).sum::<u64>();
        let work = step_bytes::<S>(requested, needs.config) + scratch_bytes::<S>(needs);
        let work = work + NOTES_BYTES + S::others(needs);
        Ok(Self { weights: S::weights(needs), expert: expert_bytes::<S>(needs)?, kv, work })
    }
}

/// Returns the size of one streamed expert, or 0 if no expert is streamed.
fn expert_bytes<S: MemorySizes>(needs: &ModelNeeds<'_>) -> Result<u64, EngineError> {
    match needs.experts.iter().any(Option::is_some) {
        true => Ok(SlotLayout::<S::MatrixLayout>::of(&needs.experts)?.slot_bytes()),
        false => Ok(0),
    }
}

/// Returns the size of activations, product inputs and partial results of attention.
fn step_bytes<S: MemorySizes>(requested: &RequestedMemory, config: &ModelConfig) -> u64 {
    let buffers: u64 = requested.buffers(config).map(S::buffer).sum();
    let routings: u64 = requested.routings.iter().map(|elements| S::routing(*elements)).sum();
    // Default: a model without attention has no partial results.
    let parts = requested.pages.iter().map(S::attention).max().unwrap_or(0);
    buffers + routings + parts + S::inputs(requested.input_groups_max(config) as u64)
}

/// Returns the size of scratch memory and expert tables.
fn scratch_bytes<S: MemorySizes>(needs: &ModelNeeds<'_>) -> u64 {
    let ModelNeeds { config, rows_max, .. } = needs;
    let tables: u64 = LayerExperts::of(config).map(|experts| S::experts(&experts, config)).sum();
    // Default: a model without experts has no router.
    let experts = LayerExperts::of(config).map(|experts| experts.count).max().unwrap_or(0);
    // Default: a model without layers has no gates and ups.
    let inner = inner_sizes(needs).map(S::inner).max().unwrap_or(0);
    let mixed = match mixed_floats_max(needs) {
        0 => 0,
        floats => S::scratch(4 * floats as u64),
    };
    // Maxima of parts of logits rows and their columns, and maxima of whole rows.
    let parts = LOGIT_ROWS * S::argmax_parts(config.vocab_size);
    let best = 2 * S::scratch(4 * parts as u64) + S::scratch(4 * LOGIT_ROWS as u64);
    inner + mixed + S::router_logits(*rows_max, experts) + best + tables
}

/// Iterates over the sizes of joined gates and ups, one for each layer.
fn inner_sizes<'a>(needs: &'a ModelNeeds<'_>) -> impl Iterator<Item = InnerSize> + 'a {
    let rows = needs.rows_max;
    needs.config.layers.iter().map(move |layer| match layer.feed_forward {
        FeedForward::Absent => InnerSize { uses: 0, width: 0 },
        FeedForward::Dense { intermediate_size } => {
            InnerSize { uses: rows, width: intermediate_size }
        }
        FeedForward::Moe { num_experts_per_tok, moe_intermediate_size, shared, .. } => {
            let shared = shared.map_or(0, |shared| shared.intermediate_size);
            InnerSize { uses: rows * num_experts_per_tok, width: moe_intermediate_size.max(shared) }
        }
    })
}

/// Returns the floats of the largest convolution of a DeltaNet or Mamba-2 layer, or 0 if there is none.
fn mixed_floats_max(needs: &ModelNeeds<'_>) -> usize {
    let floats = needs.config.layers.iter().map(|layer| match &layer.mixer {
        TokenMixer::DeltaNet(shape) => needs.rows_max * shape.channels(),
        TokenMixer::Mamba2(shape) => needs.rows_max * shape.channels(),
        TokenMixer::Attention(_) | TokenMixer::Latent(_) | TokenMixer::ShortConv(_) => 0,
    });
    // Default: a model without layers has no convolution.
    floats.max().unwrap_or(0)
}
