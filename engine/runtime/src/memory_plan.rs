//! Memory planning: divides one budget among dense weights, experts, KV cache and scratch memory before
//! loading.

use nestling_formats::store::{Group, GroupId, Index, Store};
use nestling_formats::{Level, Plane};
use nestling_import::{
    AttentionConfig, ExpertBias, FeedForward, LatentConfig, ModelConfig, TokenMixer,
};

use crate::options::{ModelOptions, Residence};
use nestling_core::error::{EngineError, MemoryTooSmall};
use nestling_core::float_bytes;
use nestling_core::group::{ExpertDivision, RankShare};
use nestling_core::kv_cache::pages_for;
use nestling_core::kv_heads::KvDivision;
use nestling_core::rank_bytes::{DenseDivision, sliced_bytes_elsewhere};
use nestling_core::recurrent::{STATES_PER_SEQUENCE, StateShape};
use nestling_experts::expert::rows_that_stay;
use nestling_experts::residency::{ExpertTable, Placement};
use nestling_levels::allocation::{self, Allocation, Counting};

/// Maximum context length unless the options set one.
const CONTEXT_DEFAULT_MAX: usize = 8192;

/// Minimum context length chosen when memory is short.
const CONTEXT_DEFAULT_MIN: usize = 512;

/// Divisor of the budget: maximum share of the KV cache of the chosen context if experts are streamed.
const KV_SHARE: u64 = 16;

/// Divisor of the budget: maximum share of a step's activations if experts are streamed.
const SCRATCH_SHARE: u64 = 32;

/// Maximum bytes kept free for uncounted memory: code, tokenizer, tables, allocator slack.
///
/// A process that streams OLMoE's shape has 45 MB of such memory and 11 MB of mapped code.
const PROGRAM_BYTES_MAX: u64 = 32 << 20;

/// Divisor of the budget: maximum share of the uncounted memory.
const PROGRAM_SHARE: u64 = 24;

/// Bytes retained per row of the embedding if experts are streamed.
///
/// They are the f16 scale (2), the hash (8), and a sixteenth of the tile's table number, rounded up.
const ROW_BYTES: u64 = 11;

/// Rows per step with memory for logits: one for each decoding session.
const LOGIT_ROWS: u64 = 32;

/// Maximum prompt rows per step if experts are streamed. All of them pass one layer before the next, so that
/// each expert is read once.
const STREAMED_ROWS_MAX: usize = 4096;

/// Planned memory of a model in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MemoryPlan {
    /// Residence of the experts.
    pub residence: PlannedResidence,
    /// Weights used by all tokens, plus all experts if they are not streamed.
    pub weight_bytes: u64,
    /// Budget for planes of streamed experts. 0 if all experts are loaded before the model is open.
    pub expert_bytes: u64,
    /// Size of all planes of experts at the model's level.
    pub expert_bytes_total: u64,
    /// KV pages and recurrent states.
    pub kv_bytes: u64,
    /// Activations of a step.
    pub scratch_bytes: u64,
    /// Memory kept free for the rest of the process. 0 if everything fits without further measures.
    pub program_bytes: u64,
    /// Maximum number of tokens per session.
    pub context_length: usize,
    /// Number of KV pages of all sessions.
    pub kv_pages: usize,
    /// Number of recurrent states of all sessions. 0 for a model without recurrent layers.
    pub states: usize,
    /// Maximum number of rows per step.
    pub rows_max: usize,
}

/// Planned residence of the experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlannedResidence {
    /// All experts in memory.
    Resident,
    /// Planes in memory as far as a budget allows.
    Streamed,
    /// All experts in memory eventually, read while the model runs.
    Lazy,
}

impl MemoryPlan {
    /// Returns the sum of all parts in bytes.
    pub fn total_bytes(&self) -> u64 {
        let held = [self.weight_bytes, self.expert_bytes, self.kv_bytes, self.scratch_bytes];
        held.iter().fold(self.program_bytes, |sum, bytes| sum.saturating_add(*bytes))
    }

    /// Plans the memory of a store within `available` bytes, the unreserved part of the budget.
    ///
    /// # Errors
    /// Fails with [`EngineError::MemoryTooSmall`] if the dense weights and one token's experts of one layer do
    /// not fit. The error reports the minimum.
    pub fn of_store(
        store: &Store,
        config: &ModelConfig,
        options: &ModelOptions,
        allocation: Option<&Allocation>,
        available: Option<u64>,
    ) -> Result<Self, EngineError> {
        let share = RankShare::default();
        Self::of_rank(store, config, options, allocation, available, share)
    }

    /// Plans the memory of one rank of several, which holds a share of the weights.
    ///
    /// # Errors
    /// Fails as [`Self::of_store`] does.
    pub fn of_rank(
        store: &Store,
        config: &ModelConfig,
        options: &ModelOptions,
        allocation: Option<&Allocation>,
        available: Option<u64>,
        share: RankShare,
    ) -> Result<Self, EngineError> {
        let level = options.level.unwrap_or(store.level()).min(store.level());
        Self::of_index(store.index(), config, level, options, allocation, available, share)
    }

    /// Plans the memory of a store at one of its levels, given only its index.
    ///
    /// # Errors
    /// Fails as [`Self::of_store`] does.
    pub fn of_index(
        index: &Index,
        config: &ModelConfig,
        level: Level,
        options: &ModelOptions,
        allocation: Option<&Allocation>,
        available: Option<u64>,
        share: RankShare,
    ) -> Result<Self, EngineError> {
        let bytes_of = |groups: &mut dyn Iterator<Item = &Group>| {
            groups.map(|group| group_bytes(index, group, level, allocation)).sum::<u64>()
        };
        let placement = Placement::of_index(index, config, share);
        let placement = placement.divided(options.expert_division, config);
        let placement = placement.replicated(options.expert_replicas, config);
        let owned = |group: &&Group| match group.id {
            GroupId::Expert(id) => placement.owns(id.layer, id.expert),
            _ => false,
        };
        let sliced = |group: &&Group| match group.id {
            GroupId::Expert(id) => placement.is_sliced(id.layer),
            _ => false,
        };
        let slices_elsewhere = index.groups().iter().filter(sliced).map(|group| {
            sliced_bytes_elsewhere(group, planes_of(index, group, level, allocation), share)
        });
        let size = |group: &Group| match group.id {
            GroupId::Expert(id) => Some((id, group_bytes(index, group, level, allocation))),
            _ => None,
        };
        let experts = bytes_of(&mut index.groups().iter().filter(owned))
            .saturating_sub(slices_elsewhere.sum())
            .saturating_add(placement.replica_bytes(index.groups().iter().filter_map(size)));
        let weights = |group: &&Group| !matches!(group.id, GroupId::Asset { .. });
        let dense = |group: &&Group| weights(group) && !matches!(group.id, GroupId::Expert(_));
        let widened = index.groups().iter().map(float_bytes::widened).sum::<u64>();
        let divided = DenseDivision { config, kv: options.kv_division, share };
        let elsewhere = divided.bytes_elsewhere(index, level);
        let dense = bytes_of(&mut index.groups().iter().filter(dense)).saturating_add(widened);
        let dense = dense.saturating_sub(elsewhere);
        // Memory allocated here holds only the planes in use; streamed extents are read whole.
        let weight_bytes = match allocation {
            Some(given) if !share.is_divided() => {
                allocation::weight_bytes(index, given, Counting::Memory)
            }
            _ => dense.saturating_add(experts),
        };
        let resident = Self {
            expert_bytes_total: experts,
            ..Self::resident(config, options, weight_bytes, share)
        };
        let fits = available.is_none_or(|available| resident.total_bytes() <= available);
        let may_stream = config.has_experts() && options.residence != Residence::Auto;
        if options.residence == Residence::Owned || (fits && !may_stream) {
            return Ok(resident);
        }
        let table = ExpertTable::of_index(index, config, level)?;
        if !config.has_experts() {
            // Only the sessions can take less, since each step reads all dense weights.
            let plan =
                Self::streamed(config, options, available, weight_bytes, &table, resident, share)?;
            return Ok(Self { residence: PlannedResidence::Resident, ..plan });
        }
        let dense = match rows_that_stay(index) {
            Some(rows) => {
                let held = |group| {
                    let whole = bytes_of(&mut std::iter::once(group));
                    whole.saturating_sub(divided.group_bytes_elsewhere(index, group, level))
                };
                // Default: a tied embedding has no group.
                let embedding = index.group(&GroupId::Embedding).map_or(0, held);
                dense.saturating_sub(embedding).saturating_add(rows.saturating_mul(ROW_BYTES))
            }
            None => dense,
        };
        let dense = dense.saturating_add(bound_biases(config));
        let lazy = resident.lazy(dense, table.held_bytes(&placement));
        let fits = available.is_none_or(|available| lazy.total_bytes() <= available);
        if fits && options.residence == Residence::Lazy {
            return Ok(lazy);
        }
        Self::streamed(config, options, available, dense, &table, resident, share)
    }

    /// Returns the plan of a resident model with experts read while it runs.
    fn lazy(self, weight_bytes: u64, expert_bytes: u64) -> Self {
        Self { residence: PlannedResidence::Lazy, weight_bytes, expert_bytes, ..self }
    }

    /// Plans streamed experts within the memory left beside the dense weights.
    fn streamed(
        config: &ModelConfig,
        options: &ModelOptions,
        available: Option<u64>,
        dense: u64,
        table: &ExpertTable,
        resident: Self,
        share: RankShare,
    ) -> Result<Self, EngineError> {
        let given = available.unwrap_or(u64::MAX);
        let program_bytes = PROGRAM_BYTES_MAX.min(given / PROGRAM_SHARE);
        let available = given - program_bytes;
        let least = table.least_bytes();
        let rest = |room: &SessionMemory| {
            dense.saturating_add(room.kv_bytes).saturating_add(room.scratch_bytes)
        };
        let mut room = SessionMemory::streamed(config, options, available, share);
        if available < rest(&room).saturating_add(least) {
            // The minimum possible, which an error reports.
            room = SessionMemory::streamed(config, options, 0, share);
        }
        let rest = rest(&room);
        // Planes occupy whole blocks in memory: in a tiny store, the planes of one token may exceed the
        // total.
        let expert_bytes = available.saturating_sub(rest);
        let expert_bytes = expert_bytes.min(resident.expert_bytes_total.max(least));
        if available < rest.saturating_add(least) {
            return Err(EngineError::MemoryTooSmall(Box::new(MemoryTooSmall {
                given,
                dense_bytes: dense,
                kv_bytes: room.kv_bytes,
                scratch_bytes: room.scratch_bytes,
                expert_bytes: least,
                program_bytes: program_bytes_beside(rest.saturating_add(least)),
                context_length: room.context_length,
            })));
        }
        Ok(Self {
            residence: PlannedResidence::Streamed,
            weight_bytes: dense,
            expert_bytes,
            kv_bytes: room.kv_bytes,
            scratch_bytes: room.scratch_bytes,
            program_bytes,
            context_length: room.context_length,
            kv_pages: room.kv_pages,
            states: room.states,
            rows_max: room.rows_max,
            ..resident
        })
    }

    /// Plans a model with all weights loaded. `weight_bytes` is 0 if they are mapped.
    pub(crate) fn resident(
        config: &ModelConfig,
        options: &ModelOptions,
        weight_bytes: u64,
        share: RankShare,
    ) -> Self {
        let room = SessionMemory::resident(config, options, share);
        Self {
            residence: PlannedResidence::Resident,
            weight_bytes,
            expert_bytes: 0,
            expert_bytes_total: 0,
            kv_bytes: room.kv_bytes,
            scratch_bytes: room.scratch_bytes,
            program_bytes: 0,
            context_length: room.context_length,
            kv_pages: room.kv_pages,
            states: room.states,
            rows_max: options.rows_max,
        }
    }
}

/// Returns the program share of the smallest budget that leaves `bytes` for the rest.
fn program_bytes_beside(bytes: u64) -> u64 {
    // The smallest b with b - b / PROGRAM_SHARE >= bytes exceeds bytes by this much.
    PROGRAM_BYTES_MAX.min(bytes.saturating_sub(1) / (PROGRAM_SHARE - 1))
}

/// Returns the bytes of a group's extents that a level or an allocation uses.
fn group_bytes(index: &Index, group: &Group, level: Level, allocation: Option<&Allocation>) -> u64 {
    let extents = Plane::ALL.into_iter().take(planes_of(index, group, level, allocation));
    extents.filter_map(|plane| index.extent(group, plane)).map(|extent| extent.length).sum()
}

/// Returns the number of a group's planes that a level or an allocation uses.
fn planes_of(index: &Index, group: &Group, level: Level, allocation: Option<&Allocation>) -> usize {
    // Default: a level without a section in the store uses no planes.
    let planes = index.planes_at(group, level).unwrap_or(0);
    allocation.map_or(planes, |given| given.extents(group).min(planes))
}

/// Memory required by the sessions of a model.
struct SessionMemory {
    context_length: usize,
    kv_pages: usize,
    states: usize,
    kv_bytes: u64,
    scratch_bytes: u64,
    rows_max: usize,
}

impl SessionMemory {
    /// Plans sessions beside resident weights: two of the default context length.
    fn resident(config: &ModelConfig, options: &ModelOptions, share: RankShare) -> Self {
        let trained = config.max_position_embeddings;
        let requested = options.context_length.filter(|length| *length > 0);
        // Default: the trained context length, at most `CONTEXT_DEFAULT_MAX`.
        let context_length = requested.unwrap_or(CONTEXT_DEFAULT_MAX).min(trained);
        let kv_tokens = options.kv_tokens.unwrap_or(context_length.saturating_mul(2));
        Self::with(config, options, context_length, kv_tokens, options.rows_max, share)
    }

    /// Plans sessions beside streamed experts.
    ///
    /// The context is shortened to leave memory for experts, and the rows per step are limited by a share of
    /// the budget.
    fn streamed(
        config: &ModelConfig,
        options: &ModelOptions,
        available: u64,
        rank: RankShare,
    ) -> Self {
        let trained = config.max_position_embeddings;
        let requested = options.context_length.filter(|length| *length > 0);
        // Default: the trained context length, at most `CONTEXT_DEFAULT_MAX`.
        let mut context_length = requested.unwrap_or(CONTEXT_DEFAULT_MAX).min(trained);
        // All ranks have the same context, for which the one with most heads has memory.
        let largest = RankShare { rank: rank.ranks.saturating_sub(1), ..rank };
        let kv = |length: usize| kv_bytes(config, options, pages_for(length), largest);
        while requested.is_none()
            && context_length > CONTEXT_DEFAULT_MIN
            && kv(context_length) > available / KV_SHARE
        {
            context_length = (context_length / 2).max(CONTEXT_DEFAULT_MIN);
        }
        let kv_tokens = options.kv_tokens.unwrap_or(context_length);
        let fixed = scratch_bytes(config, options, 0, rank);
        let per_row = scratch_bytes(config, options, 1, rank).saturating_sub(fixed).max(1);
        let share = (available / SCRATCH_SHARE).saturating_sub(fixed) / per_row;
        let rows = usize::try_from(share).unwrap_or(usize::MAX);
        let rows = rows.clamp(options.rows_max.min(64), STREAMED_ROWS_MAX.max(options.rows_max));
        Self::with(
            config,
            options,
            context_length,
            kv_tokens,
            rows.min(context_length).max(1),
            rank,
        )
    }

    fn with(
        config: &ModelConfig,
        options: &ModelOptions,
        context_length: usize,
        kv_tokens: usize,
        rows_max: usize,
        share: RankShare,
    ) -> Self {
        let kv_pages = pages_for(kv_tokens.max(context_length));
        let state_bytes = StateShape::model_state_bytes(config) as u64;
        let sessions = kv_tokens.div_ceil(context_length.max(1)).max(1);
        let states = match state_bytes {
            0 => 0,
            _ => options.recurrent_states.unwrap_or(sessions.saturating_mul(STATES_PER_SEQUENCE)),
        };
        let kv_bytes = kv_bytes(config, options, kv_pages, share)
            .saturating_add(state_bytes.saturating_mul(states as u64));
        let scratch_bytes = scratch_bytes(config, options, rows_max as u64, share);
        Self { context_length, kv_pages, states, kv_bytes, scratch_bytes, rows_max }
    }
}

fn kv_bytes(config: &ModelConfig, options: &ModelOptions, pages: usize, share: RankShare) -> u64 {
    let page_bytes = options.kv_division.page_bytes(config, options.kv_dtype, share);
    (page_bytes as u64).saturating_mul(pages as u64)
}

/// Returns the floats per row in the mixers' buffers, for the widest mixer kind: inputs, and outputs
/// including the angles.
fn mixer_floats(config: &ModelConfig) -> (usize, usize) {
    let kinds = config.distinct(|layer| {
        Some(match &layer.mixer {
            TokenMixer::Attention(attention) => attention_floats(attention),
            TokenMixer::Latent(latent) => latent_floats(latent),
            // Convolution outputs, decays and betas are held beside the projections.
            TokenMixer::DeltaNet(shape) => (shape.inputs(), 3 * shape.value_dim()),
            // Inputs times their gates are held beside the projections.
            TokenMixer::ShortConv(shape) => (shape.inputs(), 3 * shape.channels),
            // Convolved channels, decays and steps are held beside the projections.
            TokenMixer::Mamba2(shape) => (shape.inputs(), 2 * shape.inner() + shape.channels()),
        })
    });
    kinds.into_iter().fold((0, 0), |sum, kind| (sum.0 + kind.0, sum.1 + kind.1))
}

fn attention_floats(attention: &AttentionConfig) -> (usize, usize) {
    let AttentionConfig { num_attention_heads, num_key_value_heads, head_dim, .. } = *attention;
    let qkv = (num_attention_heads + 2 * num_key_value_heads) * head_dim;
    let gates = attention.output_gate.count(num_attention_heads, head_dim);
    (qkv, (num_attention_heads + 2) * head_dim + gates)
}

fn latent_floats(latent: &LatentConfig) -> (usize, usize) {
    let heads = latent.num_attention_heads;
    let queries = heads * (latent.qk_nope_head_dim + latent.qk_rope_head_dim);
    let query_latents = latent.q_lora_rank.map_or(0, |rank| 2 * rank);
    let absorbed = heads * latent.key_dim();
    let attended = heads * (latent.kv_lora_rank + latent.v_head_dim);
    // `scratch_bytes` counts the first sum twice: per-head products gather a second copy.
    (queries.max(absorbed), query_latents + queries + latent.key_dim() + attended)
}

/// Returns the bytes of the activations of one step.
fn scratch_bytes(config: &ModelConfig, options: &ModelOptions, rows: u64, share: RankShare) -> u64 {
    let (qkv, attended) = mixer_floats(config);
    let experts = config.layers.iter().map(|layer| match layer.feed_forward {
        FeedForward::Absent => (0, 0),
        FeedForward::Dense { intermediate_size } => (1, intermediate_size),
        FeedForward::Moe { num_experts_per_tok, moe_intermediate_size, shared, .. } => {
            let shared = shared.map_or(0, |shared| shared.intermediate_size);
            (num_experts_per_tok, shared.max(moe_intermediate_size * num_experts_per_tok))
        }
    });
    let experts: Vec<(usize, usize)> = experts.collect();
    let per_token = experts.iter().fold(0, |most, (count, _)| most.max(*count));
    let inner = experts.iter().fold(0, |most, (_, width)| most.max(*width));
    let hidden_rows = 6 + per_token;
    let dense = config.layers.iter().filter_map(|layer| layer.feed_forward.dense_size());
    // Default: without dense parts, none is divided.
    let dense = dense.max().unwrap_or(0);
    // Gate and up of a divided part, and the messages that complete them.
    let divided = match options.expert_division {
        _ if !share.is_divided() => 0,
        ExpertDivision::Whole => 4 * dense,
        // All uses of a row at once, which are at least as wide.
        ExpertDivision::Sliced => 4 * inner,
    };
    // Attended heads of all ranks, and the messages with them.
    let heads = match options.kv_division {
        KvDivision::ByHeads if share.is_divided() => 3 * attended,
        _ => 0,
    };
    let floats = hidden_rows * config.hidden_size + 2 * qkv + attended + divided + heads;
    // Inputs of products as int8, with a scale and a sum per 32 values.
    let int8 = (config.hidden_size + qkv + inner) * 5 / 4;
    // The same, gathered: the inputs of each expert use, and those of one product.
    let widest = inner.max(attended).max(config.hidden_size);
    let packed = (per_token * config.hidden_size + widest) * 5 / 4;
    let logits = 4 * LOGIT_ROWS * config.vocab_size as u64;
    logits.saturating_add(rows.saturating_mul((4 * floats + int8 + packed) as u64))
}

/// Returns the bytes of the second copy of the expert biases if experts are streamed.
///
/// The layer's tables hold the first copy, and each resident expert holds its own.
fn bound_biases(config: &ModelConfig) -> u64 {
    if config.expert_bias == ExpertBias::Absent {
        return 0;
    }
    let of_layer = |feed_forward| match feed_forward {
        FeedForward::Moe { num_experts, moe_intermediate_size, .. } => {
            num_experts as u64 * (2 * moe_intermediate_size + config.hidden_size) as u64
        }
        FeedForward::Absent | FeedForward::Dense { .. } => 0,
    };
    float_bytes::FLOAT_BYTES
        * config.layers.iter().map(|layer| of_layer(layer.feed_forward)).sum::<u64>()
}

#[cfg(test)]
mod tests {
    use super::{PROGRAM_BYTES_MAX, PROGRAM_SHARE, program_bytes_beside};

    #[test]
    fn the_least_budget_holds_what_it_is_for_and_one_byte_less_does_not() {
        let left = |budget: u64| budget - PROGRAM_BYTES_MAX.min(budget / PROGRAM_SHARE);
        let most = PROGRAM_BYTES_MAX * PROGRAM_SHARE;
        for bytes in (1..200).chain([most - 1, most, most + 1, 2 * most, 1 << 40]) {
            let least = bytes + program_bytes_beside(bytes);
            assert!(left(least) >= bytes, "{bytes}");
            assert!(left(least - 1) < bytes, "{bytes}");
        }
    }
}
