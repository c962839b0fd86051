//! `config.json` and `generation_config.json`: what the files say becomes what the model is.
//!
//! A key that changes the graph is either understood or refused by name. A key that is not known at
//! all is refused too, unless its value switches nothing on. Every family has a file here: its keys,
//! and how they become the one [`ModelConfig`].

mod architecture;
mod bailing_moe_v2;
mod deepseek_v2;
mod deepseek_v3;
mod defaults;
mod delta_net;
mod dots1;
mod ernie4_5_moe;
mod gemma4;
mod generation;
mod glm4_moe;
mod glm4_moe_lite;
mod gpt_oss;
mod granite_moe;
mod keys;
mod latent;
mod minimax_m2;
mod mixtral;
pub(crate) mod nearest;
mod olmoe;
mod qwen2_moe;
mod qwen3_5_moe;
mod qwen3_moe;
mod qwen3_next;
mod qwen3_vl_moe;
mod rope;
mod routed;
mod solar_open;

use serde_json::Value;

use crate::ImportError;
use crate::json::Fields;
use crate::limits::MAX_CONFIG_BYTES;

pub use architecture::Architecture;
pub use delta_net::DeltaNetConfig;
pub use generation::GenerationDefaults;
pub use rope::{
    AngleFactors, Llama3Scaling, LongRopeScaling, RopeConfig, RopeScaling, YarnScaling,
};

impl Architecture {
    /// The `model_type` of the family.
    pub fn model_type(self) -> &'static str {
        let family = FAMILIES.iter().find(|family| family.architecture == self);
        family.map_or("", |family| family.model_type)
    }
}

/// How a family is known and read.
struct Family {
    architecture: Architecture,
    /// `model_type`.
    model_type: &'static str,
    /// The member of `architectures`.
    class: &'static str,
    /// Keys that `read` looks at, beside [`keys::COMMON`].
    keys: &'static [&'static str],
    read: fn(&Fields) -> Result<ModelConfig, ImportError>,
}

const FAMILIES: &[Family] = &[
    deepseek_v2::FAMILY,
    deepseek_v3::FAMILY,
    deepseek_v3::KIMI_FAMILY,
    bailing_moe_v2::FAMILY,
    bailing_moe_v2::OLD_FAMILY,
    dots1::FAMILY,
    ernie4_5_moe::FAMILY,
    glm4_moe::FAMILY,
    glm4_moe_lite::FAMILY,
    gemma4::FAMILY,
    gemma4::TEXT_FAMILY,
    gpt_oss::FAMILY,
    granite_moe::FAMILY,
    granite_moe::SHARED_FAMILY,
    minimax_m2::FAMILY,
    mixtral::FAMILY,
    olmoe::FAMILY,
    qwen2_moe::FAMILY,
    qwen3_moe::FAMILY,
    qwen3_next::FAMILY,
    qwen3_vl_moe::FAMILY,
    qwen3_vl_moe::OMNI_FAMILY,
    solar_open::FAMILY,
    qwen3_5_moe::FAMILY,
    qwen3_5_moe::TEXT_FAMILY,
];

/// The nonlinearity of every feed-forward part.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Activation {
    /// `silu(gate) * up`.
    Silu,
    /// `clamp(gate) * sigmoid(alpha * clamp(gate)) * (clamp(up) + 1)`: the gate at most `limit`, up
    /// within plus and minus `limit`.
    ClampedSwiglu {
        /// What the gate is multiplied by in the sigmoid.
        alpha: f32,
        /// What gate and up are clamped to.
        limit: f32,
    },
    /// `gelu(gate) * up`, with the approximation by tanh.
    GeluTanh,
}

/// How router logits become scores.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RouterScore {
    /// Softmax over all experts.
    Softmax,
    /// The sigmoid of each logit.
    Sigmoid,
}

/// What the best groups of experts are found by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum GroupScore {
    /// The best score of the group (DeepSeek-V2).
    Best,
    /// The sum of the two best (DeepSeek-V3).
    TwoBest,
}

/// Experts are chosen from the best groups alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ExpertGroups {
    /// Groups, of one size; divides the number of experts.
    pub n_group: usize,
    /// Groups that may be chosen from.
    pub topk_group: usize,
    /// What groups are compared by.
    pub score: GroupScore,
}

/// A float vector with one value for each expert, or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ExpertVector {
    /// There is none.
    Absent,
    /// The model has one for every mixture layer.
    Present,
}

/// What a router sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RouterInput {
    /// What the experts see.
    Shared,
    /// The residual stream behind an RMSNorm of its own, whose weights are
    /// `hidden_size^-1/2` times stored ones (Gemma 4).
    Own,
}

/// How experts are chosen and weighted: switches that families combine.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RouterConfig {
    /// How logits become scores.
    pub score: RouterScore,
    /// Whether the scores of the chosen experts are divided by their sum. Softmax over the logits
    /// of the chosen experts alone is the same as this with [`RouterScore::Softmax`].
    pub norm_topk_prob: bool,
    /// Expert weights are multiplied by this at the end (`routed_scaling_factor`).
    pub scale: f32,
    /// Added to the logits.
    pub logit_bias: ExpertVector,
    /// Added to the scores for the choice, not for the weights (`e_score_correction_bias`).
    pub selection_bias: ExpertVector,
    /// Restriction to the best groups of experts.
    pub groups: Option<ExpertGroups>,
    /// What logits are computed from.
    pub input: RouterInput,
    /// Expert weights are multiplied by these at the very end.
    pub expert_scale: ExpertVector,
}

impl RouterConfig {
    /// Softmax over all experts, nothing added.
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

/// What the output of a shared expert is multiplied by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SharedGate {
    /// Nothing.
    Open,
    /// The sigmoid of a product with the expert's input.
    Sigmoid,
}

/// A feed-forward part that every token passes beside its experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SharedExpert {
    /// Its inner width.
    pub intermediate_size: usize,
    /// What its output is multiplied by.
    pub gate: SharedGate,
}

/// The feed-forward part of a layer; all kinds have a gate, an up and a down projection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FeedForward {
    /// One feed-forward network for every token.
    Dense {
        /// Its inner width.
        intermediate_size: usize,
    },
    /// A mixture of experts.
    Moe {
        /// Experts of the layer.
        num_experts: usize,
        /// Experts that each token is sent to.
        num_experts_per_tok: usize,
        /// Inner width of an expert.
        moe_intermediate_size: usize,
        /// What every token passes beside them.
        shared: Option<SharedExpert>,
    },
}

impl FeedForward {
    /// Inner width of what every token passes: a dense part, or a shared expert.
    pub fn dense_size(&self) -> Option<usize> {
        match self {
            Self::Dense { intermediate_size } => Some(*intermediate_size),
            Self::Moe { shared, .. } => shared.map(|shared| shared.intermediate_size),
        }
    }
}

/// Which elements of a head RoPE rotates with each other, of R that it rotates.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum RopePairs {
    /// Element `i` with element `i + R / 2`.
    #[default]
    Halves,
    /// Element `2 i` with element `2 i + 1`.
    Adjacent,
}

/// What queries and keys are normalised over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum QkNorm {
    /// They are not.
    Absent,
    /// Each head, with one weight for all.
    PerHead,
    /// All heads together, each element with its weight.
    FullWidth,
}

/// Which projections of attention have biases.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AttentionBias {
    /// None.
    Absent,
    /// Those of queries, keys and values.
    QueryKeyValue,
    /// The output projection too.
    All,
}

/// Logits of query heads that take part in the softmax over positions and have no value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Sinks {
    /// There are none.
    Absent,
    /// Every head has one.
    Present,
}

/// Biases of the projections of routed experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ExpertBias {
    /// There are none.
    Absent,
    /// Gate, up and down have one each.
    Present,
}

/// How a checkpoint stores the matrices of routed experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ExpertFormat {
    /// As floats.
    Floats,
    /// In MXFP4, which stores keep exactly at level 4.
    Mxfp4,
}

/// What attended heads are multiplied by, element by element.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OutputGate {
    /// Nothing.
    Open,
    /// The sigmoid of a projection of the layer's input.
    Sigmoid,
}

/// Where the values of attention come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ValueSource {
    /// A projection of their own.
    Projection,
    /// The projection of keys, before their norm and rotation.
    Keys,
}

/// What values are normalised over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ValueNorm {
    /// They are not.
    Absent,
    /// Each head, without weights.
    PerHead,
}

/// Attention over keys and values of heads.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttentionConfig {
    /// Query heads.
    pub num_attention_heads: usize,
    /// Key and value heads; divides the number of query heads.
    pub num_key_value_heads: usize,
    /// Width of a head; even.
    pub head_dim: usize,
    /// Products of queries and keys are multiplied by this.
    pub scale: f32,
    /// Positions.
    pub rope: RopeConfig,
    /// Which elements are turned with each other.
    pub rope_pairs: RopePairs,
    /// Norms of queries and keys.
    pub qk_norm: QkNorm,
    /// Values.
    pub values: ValueSource,
    /// Their norm.
    pub value_norm: ValueNorm,
    /// Biases.
    pub bias: AttentionBias,
    /// How many positions are seen, the token's own included; none for all.
    pub sliding_window: Option<usize>,
    /// Logits without values.
    pub sinks: Sinks,
    /// A gate on what the heads give.
    pub output_gate: OutputGate,
}

/// Attention over latents that all heads share (DeepSeek-V2, arXiv 2405.04434).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LatentConfig {
    /// Heads.
    pub num_attention_heads: usize,
    /// Width of the latent that queries come from; none where they come from the hidden state.
    pub q_lora_rank: Option<usize>,
    /// Width of the latent that keys and values come from.
    pub kv_lora_rank: usize,
    /// Elements of a query that are not turned.
    pub qk_nope_head_dim: usize,
    /// Elements of a query that are, and of the key that heads share for them; even.
    pub qk_rope_head_dim: usize,
    /// Width of a head's values.
    pub v_head_dim: usize,
    /// Products of queries and keys are multiplied by this.
    pub scale: f32,
    /// Positions.
    pub rope: RopeConfig,
    /// Which elements are turned with each other.
    pub rope_pairs: RopePairs,
    /// Added to the mean square in the norms of latents.
    pub norm_eps: f32,
}

impl LatentConfig {
    /// What is kept of a position: its latent and its shared key.
    pub const fn key_dim(&self) -> usize {
        self.kv_lora_rank + self.qk_rope_head_dim
    }
}

/// What lets a token see others.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum TokenMixer {
    /// Attention over keys and values.
    Attention(AttentionConfig),
    /// Attention over latents.
    Latent(LatentConfig),
    /// Gated DeltaNet: a state of fixed size.
    DeltaNet(DeltaNetConfig),
}

impl TokenMixer {
    /// How positions turn its heads, if they do.
    pub fn rope(&self) -> Option<&RopeConfig> {
        match self {
            Self::Attention(attention) => Some(&attention.rope),
            Self::Latent(latent) => Some(&latent.rope),
            Self::DeltaNet(_) => None,
        }
    }
}

/// What differs from layer to layer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LayerConfig {
    /// The part that lets tokens see others.
    pub mixer: TokenMixer,
    /// The part after it.
    pub feed_forward: FeedForward,
}

/// Where the parts of a layer are normalised.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BlockNorms {
    /// Before each part.
    Before,
    /// Before and after each part; in a mixture, the dense part and the experts apart, which have
    /// norms of their own before, and then their sum. The layer's output is multiplied by a number
    /// (Gemma 4).
    Around,
}

/// Constants that activations are multiplied by.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Multipliers {
    /// Embeddings.
    pub embedding: f32,
    /// What a layer's parts add to the residual stream.
    pub residual: f32,
    /// Logits.
    pub logits: f32,
}

impl Multipliers {
    /// All 1.
    pub const NONE: Self = Self { embedding: 1.0, residual: 1.0, logits: 1.0 };
}

/// Validated hyper-parameters, by their Hugging Face names.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelConfig {
    /// The family.
    pub architecture: Architecture,
    /// Rows of the embedding and the head; may be more than the tokenizer has tokens.
    pub vocab_size: usize,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Layers.
    pub num_hidden_layers: usize,
    /// Positions that the model was trained for.
    pub max_position_embeddings: usize,
    /// Added to the mean square in every RMSNorm.
    pub rms_norm_eps: f32,
    /// Whether the head is the embedding.
    pub tie_word_embeddings: bool,
    /// Constant factors.
    pub multipliers: Multipliers,
    /// The nonlinearity of every feed-forward part.
    pub activation: Activation,
    /// Biases of routed experts.
    pub expert_bias: ExpertBias,
    /// How the checkpoint stores routed experts.
    pub expert_format: ExpertFormat,
    /// Norms of every layer.
    pub block_norms: BlockNorms,
    /// Logits are kept within this by a hyperbolic tangent.
    pub final_logit_softcapping: Option<f32>,
    /// One entry per layer.
    pub layers: Vec<LayerConfig>,
    /// The router of every mixture layer.
    pub router: RouterConfig,
    /// The token that begins a text, if the model has one.
    pub bos_token_id: Option<u32>,
    /// The tokens that end a text.
    pub eos_token_ids: Vec<u32>,
}

impl ModelConfig {
    /// What the layers have of a kind, each once, in the order of the first layer that has it.
    pub fn distinct<T: PartialEq>(&self, kind: impl FnMut(&LayerConfig) -> Option<T>) -> Vec<T> {
        let mut kinds: Vec<T> = Vec::new();
        for kind in self.layers.iter().filter_map(kind) {
            if !kinds.contains(&kind) {
                kinds.push(kind);
            }
        }
        kinds
    }

    /// Reads and checks a `config.json`; `file` names it in errors.
    ///
    /// # Errors
    /// [`ImportError`] that names the key: no JSON, a key missing or senseless, beyond a limit, not
    /// supported, or not known.
    pub fn from_json(file: &str, bytes: &[u8]) -> Result<Self, ImportError> {
        let fields = Fields::parse(file, bytes, MAX_CONFIG_BYTES)?;
        let family = family(&fields)?;
        let fields = defaults::complete(fields, family.model_type)?;
        keys::refuse_unsupported(&fields, family.keys)?;
        keys::refuse_unknown(&fields, family.keys)?;
        (family.read)(&fields)
    }

    /// Reads and checks the `config.json` of a checkpoint's folder, in which nothing may stand that
    /// transformers takes for something else.
    ///
    /// # Errors
    /// As [`Self::from_json`].
    pub(crate) fn of_folder(file: &str, bytes: &[u8]) -> Result<Self, ImportError> {
        let config = Self::from_json(file, bytes)?;
        if config.architecture == Architecture::Glm4MoeLite {
            glm4_moe_lite::refuse_unread(&Fields::parse(file, bytes, MAX_CONFIG_BYTES)?)?;
        }
        Ok(config)
    }

    /// Whether any layer is a mixture of experts.
    pub fn has_experts(&self) -> bool {
        self.layers.iter().any(|layer| matches!(layer.feed_forward, FeedForward::Moe { .. }))
    }

    /// Whether a layer is a mixture of experts.
    pub fn is_mixture(&self, layer: u32) -> bool {
        let layer = usize::try_from(layer).ok().and_then(|layer| self.layers.get(layer));
        layer.is_some_and(|layer| matches!(layer.feed_forward, FeedForward::Moe { .. }))
    }

    /// Most experts that a token uses in one layer.
    pub fn experts_per_token_max(&self) -> usize {
        let of_layer = |layer: &LayerConfig| match layer.feed_forward {
            FeedForward::Dense { .. } => 0,
            FeedForward::Moe { num_experts_per_tok, .. } => num_experts_per_tok,
        };
        // Default: a model without layers has no experts.
        self.layers.iter().map(of_layer).max().unwrap_or(0)
    }
}

/// Whether a key is about experts, or any key at any depth of its value is.
fn names_experts(key: &str, value: &Value) -> bool {
    let mut inner = value.as_object().into_iter().flatten();
    let named = key.contains("expert") || key.contains("moe");
    named || inner.any(|(key, value)| names_experts(key, value))
}

fn family(fields: &Fields) -> Result<&'static Family, ImportError> {
    let model_type = fields.text("model_type")?;
    let Some(family) = FAMILIES.iter().find(|family| Some(family.model_type) == model_type) else {
        let names_experts = || fields.members().any(|(key, value)| names_experts(key, value));
        if let Some(found) = model_type.filter(|_| !names_experts()) {
            let found = found.chars().filter(|c| !c.is_control()).take(60).collect();
            return Err(ImportError::Dense { file: fields.file().to_owned(), found });
        }
        let known: Vec<&str> = FAMILIES.iter().map(|family| family.model_type).collect();
        let nearest = nearest::Nearest::of(fields).map(|nearest| nearest.describe() + "; ");
        // Default: some are near to no family.
        let supported = nearest.unwrap_or_default() + "supported: " + &known.join(", ");
        return Err(fields.unsupported("model_type", &supported));
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
