//! What is asked for before a model is loaded: a budget too small for it is refused then, and experts leave
//! room for what comes later. How many bytes of a device that takes is the backend's.

use nestling_core::EngineError;
use nestling_core::backend::ModelNeeds;
use nestling_core::kv_cache::KvShape;
use nestling_core::recurrent::StateShape;
use nestling_formats::nested::GROUP;
use nestling_import::{FeedForward, ModelConfig, TokenMixer};

use crate::error::ModelBytes;
use crate::notes::NOTES_BYTES;
use crate::slot_layout::{MatrixRoom, SlotLayout};

/// Rows of a step whose logits there is room for; more only where they fit.
const LOGIT_ROWS: usize = 32;

/// The most that a buffer holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BufferSize {
    /// Rows.
    pub rows: usize,
    /// Columns of a row.
    pub cols: usize,
}

impl BufferSize {
    /// Its elements.
    pub fn elements(self) -> usize {
        self.rows * self.cols
    }

    /// Quantization groups of all rows.
    pub fn groups(self) -> usize {
        self.rows * self.cols.div_ceil(GROUP)
    }
}

/// Rows and columns of what joins gates and ups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InnerSize {
    /// Uses of experts, or rows of a dense part.
    pub uses: usize,
    /// Columns of a gate.
    pub width: usize,
}

impl InnerSize {
    /// Bytes of gates and ups that are computed together, of which there are at most so many.
    pub fn gate_up_bytes(self, most: u64) -> u64 {
        let pair = 8 * self.width.max(1) as u64;
        (self.uses as u64 * pair).min(most.max(pair))
    }
}

/// The experts of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayerExperts {
    /// How many.
    pub count: usize,
    /// Floats of the biases of one: of its gate, of its up and of its down.
    pub bias_floats: [usize; 3],
}

impl LayerExperts {
    /// Those of each layer that has some.
    pub fn of(config: &ModelConfig) -> impl Iterator<Item = Self> + '_ {
        config.layers.iter().filter_map(|layer| match layer.feed_forward {
            FeedForward::Moe { num_experts: count, moe_intermediate_size: width, .. } => {
                Some(Self { count, bias_floats: [width, width, config.hidden_size] })
            }
            FeedForward::Dense { .. } => None,
        })
    }

    /// Floats of the biases of all of them.
    pub fn all_bias_floats(&self) -> usize {
        self.count * self.bias_floats.iter().sum::<usize>()
    }
}

/// What was asked for before a model is loaded.
#[derive(Debug, Default)]
pub struct RequestedMemory {
    buffers: Vec<BufferSize>,
    /// Elements of each routing: of numbers, and as many of weights.
    routings: Vec<usize>,
    /// Keys and values of layers.
    pages: Vec<KvShape>,
    /// Recurrent states of layers.
    states: Vec<StateShape>,
}

impl RequestedMemory {
    /// Activations.
    pub fn buffer(&mut self, rows_max: usize, cols: usize) {
        self.buffers.push(BufferSize { rows: rows_max.max(1), cols });
    }

    /// A routing.
    pub fn routing(&mut self, rows_max: usize, per_token: usize) {
        self.routings.push(rows_max * per_token);
    }

    /// Keys and values of a layer.
    pub fn pages(&mut self, shape: KvShape) {
        self.pages.push(shape);
    }

    /// Recurrent states of a layer.
    pub fn states(&mut self, shape: StateShape) {
        self.states.push(shape);
    }

    /// All buffers, but of logits no more than [`LOGIT_ROWS`] rows.
    fn buffers<'a>(&'a self, config: &'a ModelConfig) -> impl Iterator<Item = BufferSize> + 'a {
        self.buffers.iter().map(|buffer| match buffer.cols == config.vocab_size {
            true => BufferSize { rows: buffer.rows.min(LOGIT_ROWS), cols: buffer.cols },
            false => *buffer,
        })
    }

    /// Quantization groups of the largest input of a product.
    fn input_groups_max(&self, config: &ModelConfig) -> usize {
        let inputs = self.buffers.iter().filter(|buffer| buffer.cols != config.vocab_size);
        // Default: a model that asked for no such buffer has no inputs of products.
        inputs.map(|buffer| buffer.groups()).max().unwrap_or(0)
    }
}

/// Bytes that a backend takes of a device for what a model has.
pub trait MemorySizes {
    /// How streamed experts lie in slots.
    type Room: MatrixRoom;

    /// Weights that are uploaded before the first step.
    fn weights(needs: &ModelNeeds<'_>) -> u64;

    /// Keys and values of a layer.
    fn pages(shape: &KvShape) -> u64;

    /// Recurrent states of a layer.
    fn states(shape: &StateShape) -> u64;

    /// What parts of attention leave to be merged.
    fn attention(shape: &KvShape) -> u64;

    /// Activations.
    fn buffer(size: BufferSize) -> u64;

    /// A routing of so many elements.
    fn routing(elements: usize) -> u64;

    /// So many quantization groups of the input of a product.
    fn inputs(groups: u64) -> u64;

    /// Gates and ups, and the input of downs.
    fn inner(size: InnerSize) -> u64;

    /// Logits of a router.
    fn router_logits(rows: usize, experts: usize) -> u64;

    /// Parts of rows that `argmax` looks at, each for itself.
    fn argmax_parts(cols: usize) -> usize;

    /// Other memory between operations.
    fn scratch(bytes: u64) -> u64;

    /// The table of a layer's experts, and their biases.
    fn experts(experts: &LayerExperts, config: &ModelConfig) -> u64;

    /// All else.
    fn others(needs: &ModelNeeds<'_>) -> u64;
}

impl ModelBytes {
    /// Those of a model that asked for this.
    ///
    /// # Errors
    /// Sizes that overflow.
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

/// One streamed expert; 0 where all stay.
fn expert_bytes<S: MemorySizes>(needs: &ModelNeeds<'_>) -> Result<u64, EngineError> {
    match needs.experts.iter().any(Option::is_some) {
        true => Ok(SlotLayout::<S::Room>::of(&needs.experts)?.slot_bytes()),
        false => Ok(0),
    }
}

/// Activations, inputs of products and what parts of attention leave.
fn step_bytes<S: MemorySizes>(requested: &RequestedMemory, config: &ModelConfig) -> u64 {
    let buffers: u64 = requested.buffers(config).map(S::buffer).sum();
    let routings: u64 = requested.routings.iter().map(|elements| S::routing(*elements)).sum();
    // Default: a model without attention leaves no parts of it.
    let parts = requested.pages.iter().map(S::attention).max().unwrap_or(0);
    buffers + routings + parts + S::inputs(requested.input_groups_max(config) as u64)
}

/// What operations of a step use among themselves, and the tables of experts.
fn scratch_bytes<S: MemorySizes>(needs: &ModelNeeds<'_>) -> u64 {
    let ModelNeeds { config, rows_max, .. } = needs;
    let tables: u64 = LayerExperts::of(config).map(|experts| S::experts(&experts, config)).sum();
    // Default: a model without experts has no router.
    let experts = LayerExperts::of(config).map(|experts| experts.count).max().unwrap_or(0);
    // Default: a model without layers joins nothing.
    let inner = inner_sizes(needs).map(S::inner).max().unwrap_or(0);
    let mixed = match mixed_floats_max(needs) {
        0 => 0,
        floats => S::scratch(4 * floats as u64),
    };
    // The largest of parts of rows of logits and their columns, and of whole rows.
    let parts = LOGIT_ROWS * S::argmax_parts(config.vocab_size);
    let best = 2 * S::scratch(4 * parts as u64) + S::scratch(4 * LOGIT_ROWS as u64);
    inner + mixed + S::router_logits(*rows_max, experts) + best + tables
}

/// What joins gates and ups, of each layer.
fn inner_sizes<'a>(needs: &'a ModelNeeds<'_>) -> impl Iterator<Item = InnerSize> + 'a {
    let rows = needs.rows_max;
    needs.config.layers.iter().map(move |layer| match layer.feed_forward {
        FeedForward::Dense { intermediate_size } => {
            InnerSize { uses: rows, width: intermediate_size }
        }
        FeedForward::Moe { num_experts_per_tok, moe_intermediate_size, shared, .. } => {
            let shared = shared.map_or(0, |shared| shared.intermediate_size);
            InnerSize { uses: rows * num_experts_per_tok, width: moe_intermediate_size.max(shared) }
        }
    })
}

/// Floats of the largest convolution of a DeltaNet layer; 0 where there is none.
fn mixed_floats_max(needs: &ModelNeeds<'_>) -> usize {
    let floats = needs.config.layers.iter().map(|layer| match &layer.mixer {
        TokenMixer::DeltaNet(shape) => needs.rows_max * shape.channels(),
        TokenMixer::Attention(_) | TokenMixer::Latent(_) => 0,
    });
    // Default: a model without layers mixes nothing.
    floats.max().unwrap_or(0)
}
