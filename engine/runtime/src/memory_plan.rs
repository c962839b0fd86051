//! What goes where: one budget in bytes, divided among dense weights, experts, keys and values,
//! and scratch, before anything is loaded.

use nestling_formats::store::{Group, GroupId, Index, Store};
use nestling_formats::{Level, Plane};
use nestling_import::{
    AttentionConfig, ExpertBias, FeedForward, LatentConfig, ModelConfig, OutputGate, TokenMixer,
};

use crate::options::{ModelOptions, Residence};
use nestling_core::error::{EngineError, MemoryTooSmall};
use nestling_core::float_bytes;
use nestling_core::kv_cache::{KvDtype, KvShape, pages_for};
use nestling_core::recurrent::{STATES_PER_SEQUENCE, StateShape};
use nestling_experts::allocation::{self, Allocation, Counting};
use nestling_experts::expert::rows_that_stay;
use nestling_experts::residency::ExpertTable;

/// Longest context that is made room for unless more is asked for.
const CONTEXT_DEFAULT_MAX: usize = 8192;

/// Shortest context that is chosen for want of memory.
const CONTEXT_DEFAULT_MIN: usize = 512;

/// Part of a budget that keys and values of the chosen context may take where experts are streamed.
const KV_SHARE: u64 = 16;

/// Part of a budget that a step's activations may take where experts are streamed.
const SCRATCH_SHARE: u64 = 32;

/// Most bytes that are kept free for what nobody counts: code, tokenizer, tables, the allocator's
/// slack. Of a process that streams OLMoE's shape it is 45 MB of memory and 11 MB of mapped code.
const PROGRAM_BYTES_MAX: u64 = 32 << 20;

/// Part of a budget that this may take.
const PROGRAM_SHARE: u64 = 24;

/// What is kept of a row of the embedding where experts are streamed: its scale and its checksum, and
/// what its tile names, rounded up.
const ROW_BYTES: u64 = 11;

/// Rows of a step whose logits there is room for: one for each session that decodes.
const LOGIT_ROWS: u64 = 32;

/// Rows of a prompt that pass one layer before the next where experts are streamed, so that an
/// expert is read once for all of them.
const STREAMED_ROWS_MAX: usize = 4096;

/// Bytes of a model that is to be opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MemoryPlan {
    /// Whether experts are streamed.
    pub residence: PlannedResidence,
    /// Weights that every token uses, and all experts where they are not streamed.
    pub weight_bytes: u64,
    /// Planes of experts that are held at a time; 0 where all are loaded before the model is open.
    pub expert_bytes: u64,
    /// All planes of experts at the model's level.
    pub expert_bytes_total: u64,
    /// Pages of keys and values, and recurrent states.
    pub kv_bytes: u64,
    /// Activations of a step.
    pub scratch_bytes: u64,
    /// Kept free for what the process has beside; 0 where experts are not streamed.
    pub program_bytes: u64,
    /// Most tokens of a session.
    pub context_length: usize,
    /// Pages of keys and values of all sessions.
    pub kv_pages: usize,
    /// Recurrent states of all sessions; 0 for a model without recurrent layers.
    pub states: usize,
    /// Most rows of a step.
    pub rows_max: usize,
}

/// Where experts are while a model runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlannedResidence {
    /// In memory, all of them.
    Resident,
    /// Some in memory, within a budget.
    Streamed,
    /// In memory in the end, all of them; read while the model runs.
    Lazy,
}

impl MemoryPlan {
    /// Bytes of everything.
    pub fn total_bytes(&self) -> u64 {
        let held = [self.weight_bytes, self.expert_bytes, self.kv_bytes, self.scratch_bytes];
        held.iter().fold(self.program_bytes, |sum, bytes| sum.saturating_add(*bytes))
    }

    /// Divides `available` bytes, all that the budget has left, for a store.
    ///
    /// # Errors
    /// [`EngineError::MemoryTooSmall`] where experts are streamed and not even one token's of one
    /// layer fit; it names the least that would do.
    pub fn of_store(
        store: &Store,
        config: &ModelConfig,
        options: &ModelOptions,
        allocation: Option<&Allocation>,
        available: Option<u64>,
    ) -> Result<Self, EngineError> {
        let level = options.level.unwrap_or(store.level()).min(store.level());
        Self::of_index(store.index(), config, level, options, allocation, available)
    }

    /// The same for a store of which only the index is there, or planned, at one of its levels.
    ///
    /// # Errors
    /// As [`Self::of_store`].
    pub fn of_index(
        index: &Index,
        config: &ModelConfig,
        level: Level,
        options: &ModelOptions,
        allocation: Option<&Allocation>,
        available: Option<u64>,
    ) -> Result<Self, EngineError> {
        let is_expert = |group: &&Group| matches!(group.id, GroupId::Expert(_));
        let bytes_of = |groups: &mut dyn Iterator<Item = &Group>| {
            groups.map(|group| group_bytes(index, group, level, allocation)).sum::<u64>()
        };
        let experts = bytes_of(&mut index.groups().iter().filter(is_expert));
        let weights = |group: &&Group| !matches!(group.id, GroupId::Asset { .. });
        let dense = |group: &&Group| weights(group) && !is_expert(group);
        let widened = index.groups().iter().map(float_bytes::widened).sum::<u64>();
        let dense = bytes_of(&mut index.groups().iter().filter(dense)).saturating_add(widened);
        // Memory of our own holds the planes that are used; streamed extents come whole.
        let weight_bytes = match allocation {
            Some(given) => allocation::weight_bytes(index, given, Counting::Memory),
            None => dense.saturating_add(experts),
        };
        let resident =
            Self { expert_bytes_total: experts, ..Self::resident(config, options, weight_bytes) };
        let fits = available.is_none_or(|available| resident.total_bytes() <= available);
        if experts == 0
            || options.residence == Residence::Owned
            || (fits && options.residence == Residence::Auto)
        {
            return Ok(resident);
        }
        let table = ExpertTable::of_index(index, config, level)?;
        let dense = match rows_that_stay(index) {
            Some(rows) => {
                let embedding = bytes_of(&mut index.group(&GroupId::Embedding).into_iter());
                dense.saturating_sub(embedding).saturating_add(rows.saturating_mul(ROW_BYTES))
            }
            None => dense,
        };
        let dense = dense.saturating_add(bound_biases(config));
        let lazy = resident.lazy(dense, table.total_bytes());
        let fits = available.is_none_or(|available| lazy.total_bytes() <= available);
        if fits && options.residence == Residence::Lazy {
            return Ok(lazy);
        }
        Self::streamed(config, options, available, dense, &table, resident)
    }

    /// The plan of a resident model whose experts are read while it runs, beside such dense weights.
    fn lazy(self, weight_bytes: u64, expert_bytes: u64) -> Self {
        Self { residence: PlannedResidence::Lazy, weight_bytes, expert_bytes, ..self }
    }

    /// As many experts as have room beside such dense weights.
    fn streamed(
        config: &ModelConfig,
        options: &ModelOptions,
        available: Option<u64>,
        dense: u64,
        table: &ExpertTable,
        resident: Self,
    ) -> Result<Self, EngineError> {
        let given = available.unwrap_or(u64::MAX);
        let program_bytes = PROGRAM_BYTES_MAX.min(given / PROGRAM_SHARE);
        let available = given - program_bytes;
        let least = table.least_bytes();
        let rest =
            |room: &Room| dense.saturating_add(room.kv_bytes).saturating_add(room.scratch_bytes);
        let mut room = Room::streamed(config, options, available);
        if available.saturating_sub(rest(&room)) < least {
            // The least that is possible, and what a refusal names.
            room = Room::streamed(config, options, 0);
        }
        let rest = rest(&room);
        // In memory, planes take whole blocks: of a tiny store, one token's may be more than all.
        let expert_bytes = available.saturating_sub(rest);
        let expert_bytes = expert_bytes.min(resident.expert_bytes_total.max(least));
        if expert_bytes < least {
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

    /// What a model takes whose weights are all loaded, or none of our memory where they are
    /// mapped.
    pub(crate) fn resident(
        config: &ModelConfig,
        options: &ModelOptions,
        weight_bytes: u64,
    ) -> Self {
        let room = Room::resident(config, options);
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

/// What is kept free in the least budget that holds so many bytes.
fn program_bytes_beside(bytes: u64) -> u64 {
    // The least b with b - b / PROGRAM_SHARE >= bytes is this much more.
    PROGRAM_BYTES_MAX.min(bytes.saturating_sub(1) / (PROGRAM_SHARE - 1))
}

/// Bytes of the extents of a group that a level, or an allocation, needs.
fn group_bytes(index: &Index, group: &Group, level: Level, allocation: Option<&Allocation>) -> u64 {
    // Default: a level that the store has no section for takes no planes.
    let planes = index.planes_at(group, level).unwrap_or(0);
    let planes = allocation.map_or(planes, |given| given.extents(group).min(planes));
    let extents = Plane::ALL.into_iter().take(planes);
    extents.filter_map(|plane| index.extent(group, plane)).map(|extent| extent.length).sum()
}

/// What a model's sessions need of memory.
struct Room {
    context_length: usize,
    kv_pages: usize,
    states: usize,
    kv_bytes: u64,
    scratch_bytes: u64,
    rows_max: usize,
}

impl Room {
    /// Beside weights that fit: two sessions of the default context.
    fn resident(config: &ModelConfig, options: &ModelOptions) -> Self {
        let trained = config.max_position_embeddings;
        let context_length = match options.context_length {
            Some(length) => length.clamp(1, trained),
            None => trained.min(CONTEXT_DEFAULT_MAX),
        };
        let kv_tokens = options.kv_tokens.unwrap_or(context_length.saturating_mul(2));
        Self::with(config, options, context_length, kv_tokens, options.rows_max)
    }

    /// Beside experts that do not: a context that leaves room for them, and as many rows a step as
    /// a part of the budget bounds.
    fn streamed(config: &ModelConfig, options: &ModelOptions, available: u64) -> Self {
        let trained = config.max_position_embeddings;
        let mut context_length = match options.context_length {
            Some(length) => length.clamp(1, trained),
            None => trained.min(CONTEXT_DEFAULT_MAX),
        };
        let kv = |length: usize| kv_bytes(config, options.kv_dtype, pages_for(length));
        while options.context_length.is_none()
            && context_length > CONTEXT_DEFAULT_MIN
            && kv(context_length) > available / KV_SHARE
        {
            context_length = (context_length / 2).max(CONTEXT_DEFAULT_MIN);
        }
        let kv_tokens = options.kv_tokens.unwrap_or(context_length);
        let fixed = scratch_bytes(config, 0);
        let per_row = scratch_bytes(config, 1).saturating_sub(fixed).max(1);
        let share = (available / SCRATCH_SHARE).saturating_sub(fixed) / per_row;
        let rows = usize::try_from(share).unwrap_or(usize::MAX);
        let rows = rows.clamp(options.rows_max.min(64), STREAMED_ROWS_MAX.max(options.rows_max));
        Self::with(config, options, context_length, kv_tokens, rows.min(context_length).max(1))
    }

    fn with(
        config: &ModelConfig,
        options: &ModelOptions,
        context_length: usize,
        kv_tokens: usize,
        rows_max: usize,
    ) -> Self {
        let kv_pages = pages_for(kv_tokens.max(context_length));
        let state_bytes = StateShape::model_state_bytes(config) as u64;
        let sessions = kv_tokens.div_ceil(context_length.max(1)).max(1);
        let states = match state_bytes {
            0 => 0,
            _ => options.recurrent_states.unwrap_or(sessions.saturating_mul(STATES_PER_SEQUENCE)),
        };
        let kv_bytes = kv_bytes(config, options.kv_dtype, kv_pages)
            .saturating_add(state_bytes.saturating_mul(states as u64));
        let scratch_bytes = scratch_bytes(config, rows_max as u64);
        Self { context_length, kv_pages, states, kv_bytes, scratch_bytes, rows_max }
    }
}

fn kv_bytes(config: &ModelConfig, dtype: KvDtype, pages: usize) -> u64 {
    (KvShape::model_page_bytes(config, dtype) as u64).saturating_mul(pages as u64)
}

/// Floats of a row in the buffers of all kinds of mixers: what goes in, and what comes out with the
/// angles.
fn mixer_floats(config: &ModelConfig) -> (usize, usize) {
    let kinds = config.distinct(|layer| {
        Some(match &layer.mixer {
            TokenMixer::Attention(attention) => attention_floats(attention),
            TokenMixer::Latent(latent) => latent_floats(latent),
            // What was convolved, decays and betas are held beside the projections.
            TokenMixer::DeltaNet(shape) => (shape.inputs(), 3 * shape.value_dim()),
        })
    });
    kinds.into_iter().fold((0, 0), |sum, kind| (sum.0 + kind.0, sum.1 + kind.1))
}

fn attention_floats(attention: &AttentionConfig) -> (usize, usize) {
    let AttentionConfig { num_attention_heads, num_key_value_heads, head_dim, .. } = *attention;
    let qkv = (num_attention_heads + 2 * num_key_value_heads) * head_dim;
    let gates = if attention.output_gate == OutputGate::Open { 0 } else { num_attention_heads };
    (qkv, (num_attention_heads + gates + 2) * head_dim)
}

fn latent_floats(latent: &LatentConfig) -> (usize, usize) {
    let heads = latent.num_attention_heads;
    let queries = heads * (latent.qk_nope_head_dim + latent.qk_rope_head_dim);
    let query_latents = latent.q_lora_rank.map_or(0, |rank| 2 * rank);
    let absorbed = heads * latent.key_dim();
    let attended = heads * (latent.kv_lora_rank + latent.v_head_dim);
    // The first is counted twice: once more for what products with heads gather.
    (queries.max(absorbed), query_latents + queries + latent.key_dim() + attended)
}

/// Bytes of the activations of one step.
fn scratch_bytes(config: &ModelConfig, rows: u64) -> u64 {
    let (qkv, attended) = mixer_floats(config);
    let experts = config.layers.iter().map(|layer| match layer.feed_forward {
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
    let floats = hidden_rows * config.hidden_size + 2 * qkv + attended;
    // Inputs of products as int8, with a scale and a sum for every 32 of them.
    let int8 = (config.hidden_size + qkv + inner) * 5 / 4;
    // The same beside each other: for every use of an expert its inputs, and those of one product.
    let widest = inner.max(attended).max(config.hidden_size);
    let packed = (per_token * config.hidden_size + widest) * 5 / 4;
    let logits = 4 * LOGIT_ROWS * config.vocab_size as u64;
    logits.saturating_add(rows.saturating_mul((4 * floats + int8 + packed) as u64))
}

/// What the biases of all experts take a second time where experts are streamed: beside the
/// tables of their layers, every expert that is there has its own.
fn bound_biases(config: &ModelConfig) -> u64 {
    if config.expert_bias == ExpertBias::Absent {
        return 0;
    }
    let of_layer = |feed_forward| match feed_forward {
        FeedForward::Moe { num_experts, moe_intermediate_size, .. } => {
            num_experts as u64 * (2 * moe_intermediate_size + config.hidden_size) as u64
        }
        FeedForward::Dense { .. } => 0,
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
