//! Model configuration from `config.json` and `generation_config.json`.
//!
//! A key that changes the graph is either supported or rejected by name. Unknown keys are rejected too,
//! unless their value enables nothing. Each family has a file in this module that maps its keys to the common
//! [`ModelConfig`].

mod activation;
mod afmoe;
mod architecture;
mod bailing_moe_v2;
mod context_limit;
mod deepseek_v2;
mod deepseek_v3;
mod deepseek_v32;
mod defaults;
mod delta_net;
mod dots1;
mod ernie4_5_moe;
mod exaone_moe;
mod gemma3;
mod gemma4;
mod generation;
mod glm4_moe;
mod glm4_moe_lite;
mod gpt_oss;
mod granite_moe;
mod granite_moe_hybrid;
mod hunyuan_v1_moe;
mod keys;
mod laguna;
mod latent;
mod lfm2;
mod lfm2_moe;
mod llama;
mod mamba2;
mod minimax_m2;
mod mixtral;
mod multipliers;
pub(crate) mod nearest;
mod nemotron_h;
mod olmoe;
mod output_gate;
mod qwen2;
mod qwen2_moe;
mod qwen3;
mod qwen3_5_moe;
mod qwen3_moe;
mod qwen3_next;
mod qwen3_vl_moe;
mod rope;
mod routed;
mod short_conv;
mod solar_open;
mod unknown_family;

use serde_json::Value;

use crate::ImportError;
use crate::json::Fields;
use crate::limits::MAX_CONFIG_BYTES;

pub use activation::Activation;
pub use architecture::Architecture;
pub use context_limit::ContextLimit;
pub use delta_net::DeltaNetConfig;
pub use generation::GenerationDefaults;
pub use latent::LatentConfig;
pub use mamba2::Mamba2Config;
pub use multipliers::Multipliers;
pub use output_gate::{GateFunction, OutputGate};
pub use rope::{
    AngleFactors, Llama3Scaling, LongRopeScaling, RopeConfig, RopeScaling, YarnScaling,
};
pub use short_conv::ShortConvConfig;

impl Architecture {
    /// Returns the `model_type` of the family.
    pub fn model_type(self) -> &'static str {
        let family = FAMILIES.iter().find(|family| family.architecture == self);
        family.map_or("", |family| family.model_type)
    }
}

/// Identification and reader of a family.
struct Family {
    architecture: Architecture,
    model_type: &'static str,
    class: &'static str,
    /// Keys that `read` uses, in addition to [`keys::COMMON`].
    keys: &'static [&'static str],
    read: fn(&Fields) -> Result<ModelConfig, ImportError>,
}

const FAMILIES: &[Family] = &[
    deepseek_v2::FAMILY,
    deepseek_v3::FAMILY,
    deepseek_v3::KIMI_FAMILY,
    deepseek_v32::FAMILY,
    deepseek_v32::GLM_FAMILY,
    bailing_moe_v2::FAMILY,
    bailing_moe_v2::OLD_FAMILY,
    afmoe::FAMILY,
    dots1::FAMILY,
    ernie4_5_moe::FAMILY,
    exaone_moe::FAMILY,
    glm4_moe::FAMILY,
    glm4_moe_lite::FAMILY,
    gemma3::TEXT_FAMILY,
    gemma4::FAMILY,
    gemma4::TEXT_FAMILY,
    gpt_oss::FAMILY,
    granite_moe::FAMILY,
    granite_moe::SHARED_FAMILY,
    granite_moe::DENSE_FAMILY,
    granite_moe_hybrid::FAMILY,
    hunyuan_v1_moe::FAMILY,
    laguna::FAMILY,
    lfm2::FAMILY,
    lfm2_moe::FAMILY,
    llama::FAMILY,
    llama::MISTRAL_FAMILY,
    minimax_m2::FAMILY,
    mixtral::FAMILY,
    nemotron_h::FAMILY,
    olmoe::FAMILY,
    qwen2::FAMILY,
    qwen2_moe::FAMILY,
    qwen3::FAMILY,
    qwen3_moe::FAMILY,
    qwen3_next::FAMILY,
    qwen3_vl_moe::FAMILY,
    qwen3_vl_moe::OMNI_FAMILY,
    solar_open::FAMILY,
    qwen3_5_moe::FAMILY,
    qwen3_5_moe::TEXT_FAMILY,
];

/// Function that converts router logits to scores.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RouterScore {
    /// Softmax over all experts.
    Softmax,
    /// Sigmoid of each logit.
    Sigmoid,
}

/// Criterion for ranking expert groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum GroupScore {
    /// Best score of the group (DeepSeek-V2).
    Best,
    /// Sum of the two best scores (DeepSeek-V3).
    TwoBest,
}

/// Restriction of the selection to the best expert groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ExpertGroups {
    /// Number of groups of equal size; divides the number of experts.
    pub n_group: usize,
    /// Number of groups to select from.
    pub topk_group: usize,
    /// Criterion for ranking the groups.
    pub score: GroupScore,
}

/// Presence of a float vector with one value per expert.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ExpertVector {
    /// Absent vector.
    Absent,
    /// One vector per mixture layer.
    Present,
}

/// Input of a router.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RouterInput {
    /// The input of the experts.
    Shared,
    /// The residual stream after a separate RMSNorm, whose weights are the stored ones times
    /// `hidden_size^-1/2` (Gemma 4).
    Own,
}

/// Selection and weighting of experts, as options that families combine.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RouterConfig {
    /// Function that converts logits to scores.
    pub score: RouterScore,
    /// True if the scores of the selected experts are divided by their sum. A softmax over the logits of the
    /// selected experts is equivalent to this option with [`RouterScore::Softmax`].
    pub norm_topk_prob: bool,
    /// Factor of the expert weights (`routed_scaling_factor`).
    pub scale: f32,
    /// Bias added to the logits.
    pub logit_bias: ExpertVector,
    /// Bias added to the scores for selection only, not for the weights (`e_score_correction_bias`).
    pub selection_bias: ExpertVector,
    /// Restriction to the best groups of experts.
    pub groups: Option<ExpertGroups>,
    /// Input of the logits.
    pub input: RouterInput,
    /// Per-expert factors of the expert weights, applied last.
    pub expert_scale: ExpertVector,
}

impl RouterConfig {
    /// Returns a router with a softmax over all experts and no biases.
    pub const fn softmax(norm_topk_prob: bool) -> Self {
        Self {
            score: RouterScore::Softmax,
            norm_topk_prob,
            scale: 1.0,
            logit_bias: ExpertVector::Absent,
            selection_bias: ExpertVector::Absent,
            groups: None,
            input: RouterInput::Shared,
            expert_scale: ExpertVector::Absent,
        }
    }
}

/// Gate of a shared expert's output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SharedGate {
    /// Ungated output.
    Open,
    /// Sigmoid of a projection of the expert's input.
    Sigmoid,
}

/// A shared expert: a feed-forward part that processes all tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SharedExpert {
    /// Inner width.
    pub intermediate_size: usize,
    /// Gate of the output.
    pub gate: SharedGate,
}

/// Feed-forward part of a layer. All kinds have an up and a down projection, and a gate unless the activation
/// has none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FeedForward {
    /// Absence of a feed-forward part: the layer is a mixer alone.
    Absent,
    /// A dense feed-forward network.
    Dense {
        /// Inner width.
        intermediate_size: usize,
    },
    /// A mixture of experts.
    Moe {
        /// Number of experts in the layer.
        num_experts: usize,
        /// Number of experts per token.
        num_experts_per_tok: usize,
        /// Inner width of an expert.
        moe_intermediate_size: usize,
        /// Shared expert.
        shared: Option<SharedExpert>,
    },
}

impl FeedForward {
    /// Returns the inner width of the dense part or the shared expert.
    pub fn dense_size(&self) -> Option<usize> {
        match self {
            Self::Absent => None,
            Self::Dense { intermediate_size } => Some(*intermediate_size),
            Self::Moe { shared, .. } => shared.map(|shared| shared.intermediate_size),
        }
    }
}

/// Pairing of the elements that RoPE rotates together, of R rotated elements.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum RopePairs {
    /// Element `i` with element `i + R / 2`.
    #[default]
    Halves,
    /// Element `2 i` with element `2 i + 1`.
    Adjacent,
}

/// Normalization of queries and keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum QkNorm {
    /// Queries and keys without norms.
    Absent,
    /// A norm per head, with weights shared by all heads.
    PerHead,
    /// The same norm after RoPE.
    PerHeadAfterRope,
    /// A norm over all heads together, with a weight per element.
    FullWidth,
}

/// Biases of the attention projections.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AttentionBias {
    /// Projections without biases.
    Absent,
    /// Biases of queries, keys and values.
    QueryKeyValue,
    /// Biases of queries, keys, values and the output projection.
    All,
}

/// Attention sinks: logits per query head that take part in the softmax over positions and have no value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Sinks {
    /// Heads without sinks.
    Absent,
    /// One sink per head.
    Present,
}

/// Biases of the projections of routed experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ExpertBias {
    /// Experts without biases.
    Absent,
    /// Biases of gate, up and down.
    Present,
}

/// Storage format of the routed experts in a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ExpertFormat {
    /// Floats.
    Floats,
    /// MXFP4, which stores represent exactly at level 4.
    Mxfp4,
}

/// Source of the attention values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ValueSource {
    /// A separate projection.
    Projection,
    /// The projection of keys, before norm and RoPE.
    Keys,
}

/// Normalization of values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ValueNorm {
    /// Values without norms.
    Absent,
    /// A norm per head, without weights.
    PerHead,
}

/// Attention with keys and values per head.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttentionConfig {
    /// Number of query heads.
    pub num_attention_heads: usize,
    /// Number of key and value heads; divides the number of query heads.
    pub num_key_value_heads: usize,
    /// Width of a head; even.
    pub head_dim: usize,
    /// Factor of the products of queries and keys.
    pub scale: f32,
    /// RoPE settings.
    pub rope: RopeConfig,
    /// RoPE pairing.
    pub rope_pairs: RopePairs,
    /// Norms of queries and keys.
    pub qk_norm: QkNorm,
    /// Source of the values.
    pub values: ValueSource,
    /// Norm of the values.
    pub value_norm: ValueNorm,
    /// Biases of the projections.
    pub bias: AttentionBias,
    /// Size of the sliding window in positions, including the current token; `None` for full attention.
    pub sliding_window: Option<usize>,
    /// Attention sinks.
    pub sinks: Sinks,
    /// Gate of the output.
    pub output_gate: OutputGate,
}

/// Token mixer of a layer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum TokenMixer {
    /// Attention with keys and values per head.
    Attention(AttentionConfig),
    /// Attention with shared latents.
    Latent(LatentConfig),
    /// Gated DeltaNet, with a state of fixed size.
    DeltaNet(DeltaNetConfig),
    /// Gated short convolution, with a state of fixed size.
    ShortConv(ShortConvConfig),
    /// Mamba-2, with a state of fixed size.
    Mamba2(Mamba2Config),
}

impl TokenMixer {
    /// Returns the RoPE settings, if the mixer uses RoPE.
    pub fn rope(&self) -> Option<&RopeConfig> {
        match self {
            Self::Attention(attention) => Some(&attention.rope),
            Self::Latent(latent) => Some(&latent.rope),
            Self::DeltaNet(_) | Self::ShortConv(_) | Self::Mamba2(_) => None,
        }
    }
}

/// Configuration of one layer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LayerConfig {
    /// Token mixer.
    pub mixer: TokenMixer,
    /// Feed-forward part.
    pub feed_forward: FeedForward,
}

impl LayerConfig {
    /// Returns true if the layer is a mixture of experts.
    pub fn is_mixture(&self) -> bool {
        matches!(self.feed_forward, FeedForward::Moe { .. })
    }
}

/// Placement of the norms in a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BlockNorms {
    /// Norms before each part.
    Before,
    /// Norms before and after each part (Gemma 3, Trinity). A mixture is one part, shared expert included.
    Around,
    /// The same with separate norms of experts, and a scalar for the layer's output (Gemma 4).
    AroundScaled,
}

/// Validated hyperparameters, with their Hugging Face names.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelConfig {
    /// Model family.
    pub architecture: Architecture,
    /// Number of rows of the embedding and the head; may exceed the tokenizer's vocabulary.
    pub vocab_size: usize,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Number of layers.
    pub num_hidden_layers: usize,
    /// Maximum length of contexts in positions.
    pub max_position_embeddings: usize,
    /// Reason for `max_position_embeddings`.
    pub context_limit: ContextLimit,
    /// Epsilon of the RMSNorms.
    pub rms_norm_eps: f32,
    /// True if the head is tied to the embedding.
    pub tie_word_embeddings: bool,
    /// Constant factors.
    pub multipliers: Multipliers,
    /// Activation of the feed-forward parts.
    pub activation: Activation,
    /// Biases of routed experts.
    pub expert_bias: ExpertBias,
    /// Storage format of the routed experts in the checkpoint.
    pub expert_format: ExpertFormat,
    /// Placement of the norms in the layers.
    pub block_norms: BlockNorms,
    /// Soft cap of the logits, applied with tanh.
    pub final_logit_softcapping: Option<f32>,
    /// Configuration of each layer.
    pub layers: Vec<LayerConfig>,
    /// Router of the mixture layers; `None` if all layers are dense.
    pub router: Option<RouterConfig>,
    /// Begin-of-sequence token, if the model has one.
    pub bos_token_id: Option<u32>,
    /// End-of-sequence tokens.
    pub eos_token_ids: Vec<u32>,
}

impl ModelConfig {
    /// Returns the distinct values of `kind` over all layers, in order of first occurrence.
    pub fn distinct<T: PartialEq>(&self, kind: impl FnMut(&LayerConfig) -> Option<T>) -> Vec<T> {
        let mut kinds: Vec<T> = Vec::new();
        for kind in self.layers.iter().filter_map(kind) {
            if !kinds.contains(&kind) {
                kinds.push(kind);
            }
        }
        kinds
    }

    /// Parses and validates a `config.json`; `file` is its name in errors.
    ///
    /// ```
    /// use nestling_import::ModelConfig;
    ///
    /// # let data = concat!(env!("CARGO_MANIFEST_DIR"), "/../../engine/runtime/tests/data");
    /// let bytes = std::fs::read(format!("{data}/tiny-qwen3-moe/config.json"))?;
    /// let config = ModelConfig::from_json("config.json", &bytes)?;
    /// assert_eq!(config.architecture.model_type(), "qwen3_moe");
    /// assert!(config.is_mixture(0) && !config.is_mixture(1)); // layer 1 is dense
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Returns an [`ImportError`] that names the key, for invalid JSON and for a missing, invalid,
    /// unsupported or unknown key.
    pub fn from_json(file: &str, bytes: &[u8]) -> Result<Self, ImportError> {
        let fields = Fields::parse(file, bytes, MAX_CONFIG_BYTES)?;
        let family = family(&fields)?;
        let fields = defaults::complete(fields, family.model_type)?;
        keys::refuse_unsupported(&fields, family.keys)?;
        keys::refuse_unknown(&fields, family.keys)?;
        (family.read)(&fields)
    }

    /// Parses and validates the `config.json` of a checkpoint directory. Keys that transformers would
    /// interpret differently are rejected.
    ///
    /// # Errors
    /// The errors of [`Self::from_json`].
    pub(crate) fn of_folder(file: &str, bytes: &[u8]) -> Result<Self, ImportError> {
        let config = Self::from_json(file, bytes)?;
        if config.architecture == Architecture::Glm4MoeLite {
            glm4_moe_lite::refuse_unread(&Fields::parse(file, bytes, MAX_CONFIG_BYTES)?)?;
        }
        Ok(config)
    }

    /// Returns true if any layer is a mixture of experts.
    pub fn has_experts(&self) -> bool {
        self.layers.iter().any(LayerConfig::is_mixture)
    }

    /// Returns true if a layer is a mixture of experts.
    pub fn is_mixture(&self, layer: u32) -> bool {
        let layer = usize::try_from(layer).ok().and_then(|layer| self.layers.get(layer));
        layer.is_some_and(LayerConfig::is_mixture)
    }

    /// Returns the maximum number of experts per token in any layer.
    pub fn experts_per_token_max(&self) -> usize {
        let of_layer = |layer: &LayerConfig| match layer.feed_forward {
            FeedForward::Absent | FeedForward::Dense { .. } => 0,
            FeedForward::Moe { num_experts_per_tok, .. } => num_experts_per_tok,
        };
        // Default: a model without layers has no experts.
        self.layers.iter().map(of_layer).max().unwrap_or(0)
    }
}

/// Returns true if a key, or any nested key of its value, refers to experts.
fn names_experts(key: &str, value: &Value) -> bool {
    let mut inner = value.as_object().into_iter().flatten();
    let named = key.contains("expert") || key.contains("moe");
    named || inner.any(|(key, value)| names_experts(key, value))
}

fn family(fields: &Fields) -> Result<&'static Family, ImportError> {
    let model_type = fields.text("model_type")?;
    let Some(family) = FAMILIES.iter().find(|family| Some(family.model_type) == model_type) else {
        return Err(unknown_family::unknown_family(fields, model_type));
    };
    match fields.get("architectures") {
        None => Ok(family),
        Some(Value::Array(names)) if names.iter().any(|name| name == family.class) => Ok(family),
        Some(_) => {
            let supported = format!("supported: {}", family.class);
            Err(fields.unsupported("architectures", &supported))
        }
    }
}
