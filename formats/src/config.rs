//! `config.json` and `generation_config.json`: what the files say becomes what the model is.
//!
//! A key that changes the graph is either understood or refused by name. A key that is not known at
//! all is refused too, unless its value switches nothing on.

use serde_json::Value;

use crate::ImportError;
use crate::json::{Fields, shown};
use crate::limits::{
    MAX_CONFIG_BYTES, MAX_EOS_TOKENS, MAX_EXPERTS, MAX_EXPERTS_PER_TOKEN, MAX_HEAD_DIM, MAX_HEADS,
    MAX_LAYERS, MAX_POSITIONS, MAX_VOCABULARY, MAX_WIDTH,
};

/// A family of models: one forward pass and one set of tensor names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Architecture {
    /// `Qwen3MoeForCausalLM`.
    Qwen3Moe,
}

impl Architecture {
    /// The `model_type` of the family.
    pub const fn model_type(self) -> &'static str {
        match self {
            Self::Qwen3Moe => "qwen3_moe",
        }
    }
}

/// How router logits become scores.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RouterScore {
    /// Softmax over all experts.
    Softmax,
}

/// How experts are chosen and weighted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RouterConfig {
    /// How logits become scores.
    pub score: RouterScore,
    /// Whether the scores of the chosen experts are divided by their sum.
    pub norm_topk_prob: bool,
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

/// The feed-forward part of a layer; both kinds are SwiGLU.
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
    },
}

/// What differs from layer to layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LayerConfig {
    /// The part after attention.
    pub feed_forward: FeedForward,
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
    /// Query heads.
    pub num_attention_heads: usize,
    /// Key and value heads; divides the number of query heads.
    pub num_key_value_heads: usize,
    /// Width of a head; even.
    pub head_dim: usize,
    /// Positions that the model was trained for.
    pub max_position_embeddings: usize,
    /// Added to the mean square in every RMSNorm.
    pub rms_norm_eps: f32,
    /// Base of the rotary angles.
    pub rope_theta: f64,
    /// Whether the head is the embedding.
    pub tie_word_embeddings: bool,
    /// Whether the attention projections have biases.
    pub attention_bias: bool,
    /// Whether queries and keys are normalised head by head.
    pub qk_norm: bool,
    /// One entry per layer.
    pub layers: Vec<LayerConfig>,
    /// The router of every mixture layer.
    pub router: RouterConfig,
    /// The token that begins a text, if the model has one.
    pub bos_token_id: Option<u32>,
    /// The tokens that end a text.
    pub eos_token_ids: Vec<u32>,
}

/// Keys that are read.
const READ: &[&str] = &[
    "architectures",
    "attention_bias",
    "bos_token_id",
    "decoder_sparse_step",
    "eos_token_id",
    "head_dim",
    "hidden_act",
    "hidden_size",
    "intermediate_size",
    "layer_types",
    "max_position_embeddings",
    "mlp_only_layers",
    "model_type",
    "moe_intermediate_size",
    "norm_topk_prob",
    "num_attention_heads",
    "num_experts",
    "num_experts_per_tok",
    "num_hidden_layers",
    "num_key_value_heads",
    "num_local_experts",
    "partial_rotary_factor",
    "quantization_config",
    "rms_norm_eps",
    "rope_parameters",
    "rope_scaling",
    "rope_theta",
    "sliding_window",
    "tie_word_embeddings",
    "use_sliding_window",
    "vocab_size",
];

/// Keys that change nothing at inference: bookkeeping, training, and windows that are switched off.
const IGNORED: &[&str] = &[
    "attention_dropout",
    "chunk_size_feed_forward",
    "dtype",
    "id2label",
    "initializer_range",
    "label2id",
    "max_window_layers",
    "name_or_path",
    "output_attentions",
    "output_hidden_states",
    "output_router_logits",
    "pad_token_id",
    "problem_type",
    "return_dict",
    "router_aux_loss_coef",
    "tokenizer_class",
    "torch_dtype",
    "transformers_version",
    "unsloth_fixed",
    "unsloth_version",
    "use_cache",
];

impl ModelConfig {
    /// Reads and checks a `config.json`; `file` names it in errors.
    ///
    /// # Errors
    /// [`ImportError`] that names the key: no JSON, a key missing or senseless, beyond a limit, not
    /// supported, or not known.
    pub fn from_json(file: &str, bytes: &[u8]) -> Result<Self, ImportError> {
        let fields = Fields::parse(file, bytes, MAX_CONFIG_BYTES)?;
        let architecture = architecture(&fields)?;
        refuse_unsupported(&fields)?;
        refuse_unknown(&fields)?;
        let heads = Heads::read(&fields)?;
        let config = Self {
            architecture,
            vocab_size: fields.required_size("vocab_size", MAX_VOCABULARY)?,
            hidden_size: heads.hidden_size,
            num_hidden_layers: fields.required_size("num_hidden_layers", MAX_LAYERS)?,
            num_attention_heads: heads.num_attention_heads,
            num_key_value_heads: heads.num_key_value_heads,
            head_dim: heads.head_dim,
            max_position_embeddings: fields
                .required_size("max_position_embeddings", MAX_POSITIONS)?,
            rms_norm_eps: epsilon(&fields)?,
            rope_theta: rope_theta(&fields)?,
            tie_word_embeddings: fields.boolean("tie_word_embeddings")?.unwrap_or(false),
            attention_bias: fields.boolean("attention_bias")?.unwrap_or(false),
            qk_norm: true,
            layers: layers(&fields)?,
            router: RouterConfig {
                score: RouterScore::Softmax,
                norm_topk_prob: fields.boolean("norm_topk_prob")?.unwrap_or(false),
            },
            bos_token_id: fields.numbers("bos_token_id", 1)?.first().copied(),
            eos_token_ids: fields.numbers("eos_token_id", MAX_EOS_TOKENS)?,
        };
        check_tokens(&fields, "bos_token_id", config.bos_token_id.as_slice(), config.vocab_size)?;
        check_tokens(&fields, "eos_token_id", &config.eos_token_ids, config.vocab_size)?;
        Ok(config)
    }

    /// Whether any layer is a mixture of experts.
    pub fn has_experts(&self) -> bool {
        self.layers.iter().any(|layer| matches!(layer.feed_forward, FeedForward::Moe { .. }))
    }
}

struct Heads {
    hidden_size: usize,
    num_attention_heads: usize,
    num_key_value_heads: usize,
    head_dim: usize,
}

impl Heads {
    fn read(fields: &Fields) -> Result<Self, ImportError> {
        let hidden_size = fields.required_size("hidden_size", MAX_WIDTH)?;
        let num_attention_heads = fields.required_size("num_attention_heads", MAX_HEADS)?;
        let key_value_heads = fields.size("num_key_value_heads", MAX_HEADS)?;
        let num_key_value_heads = key_value_heads.unwrap_or(num_attention_heads);
        if !num_attention_heads.is_multiple_of(num_key_value_heads) {
            let expected = format!("a divisor of `num_attention_heads` = {num_attention_heads}");
            return Err(fields.wrong("num_key_value_heads", expected));
        }
        let head_dim = match fields.size("head_dim", MAX_HEAD_DIM)? {
            Some(head_dim) => head_dim,
            None if hidden_size.is_multiple_of(num_attention_heads) => {
                hidden_size / num_attention_heads
            }
            None => return Err(fields.wrong("head_dim", "an even number")),
        };
        if !head_dim.is_multiple_of(2) || head_dim > MAX_HEAD_DIM {
            return Err(fields.wrong("head_dim", format!("an even number up to {MAX_HEAD_DIM}")));
        }
        Ok(Self { hidden_size, num_attention_heads, num_key_value_heads, head_dim })
    }
}

fn architecture(fields: &Fields) -> Result<Architecture, ImportError> {
    const SUPPORTED: &str = "supported: qwen3_moe, Qwen3MoeForCausalLM";
    if fields.text("model_type")? != Some("qwen3_moe") {
        return Err(fields.unsupported("model_type", SUPPORTED));
    }
    match fields.get("architectures") {
        None => Ok(Architecture::Qwen3Moe),
        Some(Value::Array(names)) if names.iter().any(|name| name == "Qwen3MoeForCausalLM") => {
            Ok(Architecture::Qwen3Moe)
        }
        Some(_) => Err(fields.unsupported("architectures", SUPPORTED)),
    }
}

/// Refuses options that are known and change the graph in a way that is not computed here.
fn refuse_unsupported(fields: &Fields) -> Result<(), ImportError> {
    if !matches!(fields.text("hidden_act")?, None | Some("silu")) {
        return Err(fields.unsupported("hidden_act", "supported: silu"));
    }
    if fields.boolean("use_sliding_window")? == Some(true) {
        return Err(fields.unsupported("use_sliding_window", "supported: false"));
    }
    if fields.get("quantization_config").is_some() {
        let supported = "only checkpoints in bf16, f16 or f32 can be read";
        return Err(fields.unsupported("quantization_config", supported));
    }
    match fields.get("layer_types") {
        None => {}
        Some(Value::Array(types)) if types.iter().all(|kind| kind == "full_attention") => {}
        Some(_) => return Err(fields.unsupported("layer_types", "supported: full_attention")),
    }
    if !matches!(fields.number("partial_rotary_factor")?, None | Some(1.0)) {
        return Err(fields.unsupported("partial_rotary_factor", "supported: 1.0"));
    }
    for key in ["rope_scaling", "rope_parameters"] {
        let Some(rope) = fields.object(key)? else { continue };
        for kind in ["rope_type", "type"] {
            if !matches!(rope.text(kind)?, None | Some("default")) {
                return Err(rope.unsupported(kind, "supported: default"));
            }
        }
        let known = ["rope_type", "type", "rope_theta"];
        if let Some((key, value)) = rope.members().find(|(key, _)| !known.contains(key)) {
            return Err(unknown(rope.file(), key, value));
        }
    }
    Ok(())
}

fn unknown(file: &str, key: &str, value: &Value) -> ImportError {
    ImportError::UnknownOption { file: file.into(), key: key.into(), found: shown(value) }
}

fn refuse_unknown(fields: &Fields) -> Result<(), ImportError> {
    for (key, value) in fields.members() {
        let known = key.starts_with('_') || READ.contains(&key) || IGNORED.contains(&key);
        let inert = match value {
            Value::Bool(on) => !on,
            Value::Array(list) => list.is_empty(),
            Value::Object(map) => map.is_empty(),
            _ => false,
        };
        if !known && !inert {
            return Err(unknown(fields.file(), key, value));
        }
    }
    Ok(())
}

fn epsilon(fields: &Fields) -> Result<f32, ImportError> {
    let epsilon = fields.number("rms_norm_eps")?.unwrap_or(1e-6) as f32;
    if epsilon > 0.0 && epsilon < 1.0 {
        return Ok(epsilon);
    }
    Err(fields.wrong("rms_norm_eps", "a number between 0 and 1"))
}

fn rope_theta(fields: &Fields) -> Result<f64, ImportError> {
    let mut theta = fields.number("rope_theta")?;
    for key in ["rope_scaling", "rope_parameters"] {
        if let Some(rope) = fields.object(key)?
            && let Some(nested) = rope.number("rope_theta")?
        {
            if theta.is_some_and(|theta| theta != nested) {
                return Err(rope.wrong("rope_theta", "the value that is given elsewhere too"));
            }
            theta = Some(nested);
        }
    }
    let theta = theta.unwrap_or(10_000.0);
    if (1.0..1e15).contains(&theta) {
        return Ok(theta);
    }
    Err(fields.wrong("rope_theta", "a number from 1 to 1e15"))
}

fn layers(fields: &Fields) -> Result<Vec<LayerConfig>, ImportError> {
    let count = fields.required_size("num_hidden_layers", MAX_LAYERS)?;
    let step = fields.size("decoder_sparse_step", MAX_LAYERS)?.unwrap_or(1);
    let dense_layers = fields.numbers("mlp_only_layers", MAX_LAYERS)?;
    // Some versions of the library write the number of experts by its other name.
    let experts_key = match fields.get("num_experts") {
        Some(_) => "num_experts",
        None => "num_local_experts",
    };
    let no_experts = fields.get("num_experts").is_some_and(|n| n.as_u64() == Some(0));
    let is_dense = |layer: u32| {
        no_experts || dense_layers.contains(&layer) || !(layer as usize + 1).is_multiple_of(step)
    };
    (0u32..)
        .take(count)
        .map(|layer| {
            let feed_forward =
                if is_dense(layer) { dense(fields)? } else { mixture(fields, experts_key)? };
            Ok(LayerConfig { feed_forward })
        })
        .collect()
}

fn dense(fields: &Fields) -> Result<FeedForward, ImportError> {
    let intermediate_size = fields.required_size("intermediate_size", MAX_WIDTH)?;
    Ok(FeedForward::Dense { intermediate_size })
}

fn mixture(fields: &Fields, experts_key: &str) -> Result<FeedForward, ImportError> {
    let num_experts = fields.required_size(experts_key, MAX_EXPERTS)?;
    let num_experts_per_tok = fields.required_size("num_experts_per_tok", MAX_EXPERTS_PER_TOKEN)?;
    if num_experts_per_tok > num_experts {
        let expected = format!("at most `{experts_key}` = {num_experts}");
        return Err(fields.wrong("num_experts_per_tok", expected));
    }
    let moe_intermediate_size = fields.required_size("moe_intermediate_size", MAX_WIDTH)?;
    Ok(FeedForward::Moe { num_experts, num_experts_per_tok, moe_intermediate_size })
}

fn check_tokens(
    fields: &Fields,
    key: &str,
    tokens: &[u32],
    vocabulary: usize,
) -> Result<(), ImportError> {
    if tokens.iter().all(|&token| (token as usize) < vocabulary) {
        return Ok(());
    }
    Err(fields.wrong(key, format!("token ids below `vocab_size` = {vocabulary}")))
}

/// What `generation_config.json` recommends; `None` where it says nothing.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GenerationDefaults {
    /// False asks for greedy decoding.
    pub do_sample: Option<bool>,
    /// Softmax temperature.
    pub temperature: Option<f32>,
    /// How many tokens are kept; 0 keeps all.
    pub top_k: Option<u32>,
    /// The probability mass that is kept.
    pub top_p: Option<f32>,
    /// The least probability that is kept, relative to the largest.
    pub min_p: Option<f32>,
    /// Divides the logits of tokens that were seen.
    pub repetition_penalty: Option<f32>,
    /// The token that begins a text.
    pub bos_token_id: Option<u32>,
    /// The tokens that end a text; when not empty they replace those of the model configuration.
    pub eos_token_ids: Vec<u32>,
}

impl GenerationDefaults {
    /// Reads and checks a `generation_config.json`; `file` names it in errors. Keys without a field
    /// here are ignored: they steer the caller's sampling, not the model.
    ///
    /// # Errors
    /// [`ImportError`] that names the key and what is wrong with it.
    pub fn from_json(file: &str, bytes: &[u8]) -> Result<Self, ImportError> {
        let fields = Fields::parse(file, bytes, MAX_CONFIG_BYTES)?;
        let ranged = |key: &str, low: f64, high: f64| match fields.number(key)? {
            Some(value) if value < low || value > high => {
                Err(fields.wrong(key, format!("a number from {low} to {high}")))
            }
            value => Ok(value.map(|value| value as f32)),
        };
        let top_k = match fields.number("top_k")? {
            Some(value) if !(0.0..=4e9).contains(&value) || value.fract() != 0.0 => {
                return Err(fields.wrong("top_k", "a whole number"));
            }
            value => value.map(|value| value as u32),
        };
        Ok(Self {
            do_sample: fields.boolean("do_sample")?,
            temperature: ranged("temperature", 0.0, 100.0)?,
            top_k,
            top_p: ranged("top_p", 0.0, 1.0)?,
            min_p: ranged("min_p", 0.0, 1.0)?,
            repetition_penalty: ranged("repetition_penalty", 0.001, 1000.0)?,
            bos_token_id: fields.numbers("bos_token_id", 1)?.first().copied(),
            eos_token_ids: fields.numbers("eos_token_id", MAX_EOS_TOKENS)?,
        })
    }
}
