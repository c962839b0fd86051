//! Mapping from model weights to the tensors of a checkpoint. Tensor names occur only in this module, with
//! one file per family that has its own names.

mod afmoe;
mod bailing;
mod deepseek;
mod gemma4;
mod gguf;
mod gpt_oss;
mod granite_moe;
mod hunyuan;
mod laguna;
mod lfm2;
mod mixtral;
mod nemotron_h;
mod qwen;
mod qwen3_next;

pub(crate) use gguf::{FREQUENCY_FACTORS, split_into_heads};

use crate::config::{Architecture, ModelConfig};
use nestling_formats::{FloatId, FloatKind, MatrixId};

/// Periodic index runs: `length` indices starting at `start`, repeated after each `stride`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Runs {
    /// First index.
    pub start: usize,
    /// Number of indices per run.
    pub length: usize,
    /// Distance between the starts of two runs.
    pub stride: usize,
}

impl Runs {
    /// All indices.
    pub const ALL: Self = Self { start: 0, length: usize::MAX, stride: usize::MAX };

    /// Returns a single run.
    pub const fn range(start: usize, length: usize) -> Self {
        Self { start, length, stride: usize::MAX }
    }

    /// Returns the number of selected indices below `size`, or `None` if a run starts inside and ends
    /// outside.
    pub fn count(&self, size: usize) -> Option<usize> {
        if *self == Self::ALL {
            return Some(size);
        }
        let (mut count, mut start) = (0, self.start);
        while start < size {
            let end = start.checked_add(self.length).filter(|&end| end <= size);
            count += end? - start;
            match start.checked_add(self.stride) {
                Some(next) if self.stride > 0 => start = next,
                _ => break,
            }
        }
        Some(count)
    }

    /// Returns the selected index at position `index`.
    pub fn place(&self, index: usize) -> usize {
        let run = index / self.length.max(1);
        self.start + run.saturating_mul(self.stride) + index % self.length.max(1)
    }
}

/// An ordered selection of indices: the concatenation of several runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Order(Vec<Runs>);

impl From<Runs> for Order {
    fn from(runs: Runs) -> Self {
        Self(vec![runs])
    }
}

impl Order {
    /// Selects all indices in order.
    pub fn all() -> Self {
        Runs::ALL.into()
    }

    /// Concatenates `runs`.
    pub fn of(runs: impl IntoIterator<Item = Runs>) -> Self {
        Self(runs.into_iter().collect())
    }

    /// Returns true if all indices are selected in order.
    pub fn is_all(&self) -> bool {
        self.single() == Some(Runs::ALL)
    }

    /// Returns the runs if the selection consists of a single [`Runs`].
    pub fn single(&self) -> Option<Runs> {
        match self.0[..] {
            [runs] => Some(runs),
            _ => None,
        }
    }

    /// Returns the number of selected indices below `size`, or `None` if a run starts inside and ends
    /// outside.
    pub fn count(&self, size: usize) -> Option<usize> {
        self.0.iter().try_fold(0usize, |count, runs| count.checked_add(runs.count(size)?))
    }

    /// Returns the selected indices below `size`, in order. Returns `None` if [`Self::count`] does.
    pub fn places(&self, size: usize) -> Option<Vec<usize>> {
        let mut places = Vec::with_capacity(self.count(size)?);
        for runs in &self.0 {
            places.extend((0..runs.count(size)?).map(|index| runs.place(index)));
        }
        Some(places)
    }
}

/// Rows of a matrix, taken from a tensor. They are some rows and columns of a two-dimensional tensor, or of
/// one matrix of a three-dimensional tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorSlice {
    /// Name of the tensor.
    pub name: String,
    /// Index in the outermost dimension of a three-dimensional tensor.
    pub index: Option<usize>,
    /// Selected rows of the tensor.
    pub rows: Runs,
    /// Selected columns of the tensor.
    pub columns: Order,
    /// True if the selection is transposed: its columns are the matrix's rows.
    pub transposed: bool,
}

impl TensorSlice {
    /// Selects a whole two-dimensional tensor.
    pub fn whole(name: impl Into<String>) -> Self {
        let (rows, columns) = (Runs::ALL, Order::all());
        Self { name: name.into(), index: None, rows, columns, transposed: false }
    }
}

/// Transformation of the values of a float tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FloatChange {
    /// Unchanged values.
    Kept,
    /// Addition of one, for norms whose weights are stored relative to 1.
    PlusOne,
    /// Negated exponential, for decay rates that are stored as logarithms.
    NegativeExp,
}

/// A float tensor, or some rows or columns of one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FloatSource {
    /// Name of the tensor.
    pub name: String,
    /// Selected indices of the outermost dimension.
    pub rows: Order,
    /// Selected indices of the innermost dimension, if there are two or more dimensions.
    pub columns: Runs,
    /// Transformation of the values.
    pub change: FloatChange,
}

impl FloatSource {
    /// Selects a whole tensor without transformation.
    pub fn kept(name: impl Into<String>) -> Self {
        let (rows, columns) = (Order::all(), Runs::ALL);
        Self { name: name.into(), rows, columns, change: FloatChange::Kept }
    }
}

/// Tensor naming scheme of a model family.
#[derive(Clone, Copy, Debug)]
pub struct Naming {
    /// Returns the slices of a matrix, stacked in row order; empty for a matrix that the family does not
    /// have.
    pub matrix: fn(&ModelConfig, MatrixId) -> Vec<TensorSlice>,
    /// Alternative slices, used if the tensors of `matrix` are missing.
    pub alternative: Option<fn(&ModelConfig, MatrixId) -> Vec<TensorSlice>>,
    /// Returns the source of a float tensor, or `None` if the family does not have it.
    pub float: fn(&ModelConfig, FloatId) -> Option<FloatSource>,
    /// Returns true if an unused tensor may be ignored without changing the model.
    pub is_redundant: fn(&ModelConfig, &str) -> bool,
}

/// Returns the naming scheme of checkpoints published on the Hugging Face Hub.
pub fn published(architecture: Architecture) -> Naming {
    match architecture {
        Architecture::Llama
        | Architecture::Granite
        | Architecture::Mistral
        | Architecture::Qwen2
        | Architecture::Qwen3
        | Architecture::Qwen3Moe
        | Architecture::Qwen2Moe
        | Architecture::Olmoe => qwen::NAMING,
        Architecture::Afmoe => afmoe::NAMING,
        Architecture::DeepseekV32 | Architecture::GlmMoeDsa => deepseek::SPARSE,
        Architecture::Ernie45Moe => deepseek::ERNIE,
        Architecture::ExaoneMoe => deepseek::EXAONE,
        Architecture::BailingMoeV2 => bailing::NAMING,
        Architecture::Qwen3Next => qwen3_next::NAMING,
        Architecture::Qwen35Moe => qwen3_next::WITH_IMAGES,
        Architecture::Qwen35MoeText => qwen3_next::TEXT_ALONE,
        Architecture::Mixtral => mixtral::NAMING,
        Architecture::GptOss => gpt_oss::NAMING,
        Architecture::GraniteMoe
        | Architecture::GraniteMoeShared
        | Architecture::GraniteMoeHybrid => granite_moe::NAMING,
        Architecture::Qwen3VlMoe => qwen::WITH_IMAGES,
        Architecture::Qwen3OmniMoe => qwen::WITH_SOUND,
        Architecture::MiniMaxM2 => mixtral::WITH_DRAFTS,
        Architecture::HunyuanV1Moe => hunyuan::NAMING,
        Architecture::Laguna => laguna::NAMING,
        Architecture::Lfm2 | Architecture::Lfm2Moe => lfm2::NAMING,
        Architecture::NemotronH => nemotron_h::NAMING,
        Architecture::DeepseekV2
        | Architecture::DeepseekV3
        | Architecture::KimiK2
        | Architecture::Dots1
        | Architecture::SolarOpen
        | Architecture::Glm4Moe
        | Architecture::Glm4MoeLite => deepseek::NAMING,
        Architecture::Gemma3Text | Architecture::Gemma4 | Architecture::Gemma4Text => {
            gemma4::NAMING
        }
    }
}

/// Returns the naming scheme of a checkpoint, chosen by its tensors. A text part loaded from a multimodal
/// model may be saved under the names of the whole model, and fused expert tensors occur in two orientations.
pub fn in_checkpoint<'a>(
    config: &ModelConfig,
    shape: impl Fn(&str) -> Option<&'a [u64]>,
) -> Naming {
    match config.architecture {
        Architecture::Qwen35MoeText if shape(qwen3_next::OF_WHOLE).is_some() => {
            qwen3_next::WITH_IMAGES
        }
        Architecture::Qwen3VlMoe if qwen::is_upright(config, shape) => qwen::WITH_IMAGES_UPRIGHT,
        architecture => published(architecture),
    }
}

/// Returns the naming scheme of GGUF files.
pub fn in_gguf(architecture: Architecture) -> Naming {
    gguf::naming(architecture)
}

/// Returns the source tensors of a matrix in a published checkpoint.
pub fn matrix_tensors(config: &ModelConfig, id: MatrixId) -> Vec<TensorSlice> {
    (published(config.architecture).matrix)(config, id)
}

/// Returns the source of a float tensor in a published checkpoint.
pub fn float_tensor(config: &ModelConfig, id: FloatId) -> Option<FloatSource> {
    (published(config.architecture).float)(config, id)
}

/// Returns true for tensors that may be ignored. These are a stored copy of a tied head, and RoPE tables,
/// which follow from the configuration.
fn is_redundant(config: &ModelConfig, name: &str) -> bool {
    (config.tie_word_embeddings && name == "lm_head.weight")
        || name.ends_with(".rotary_emb.inv_freq")
}

/// Returns true for tensors that may be ignored, including layers after the last one, which are used for
/// multi-token prediction.
fn is_redundant_or_beyond(config: &ModelConfig, name: &str) -> bool {
    let layer = name.strip_prefix("model.layers.").and_then(|rest| rest.split('.').next());
    let layer = layer.and_then(|layer| layer.parse::<usize>().ok());
    layer.is_some_and(|layer| layer >= config.num_hidden_layers) || is_redundant(config, name)
}

/// Returns the name of an attention matrix within its layer, as used by nearly all families.
fn attention_matrix(kind: nestling_formats::MatrixKind) -> Option<&'static str> {
    use nestling_formats::MatrixKind::{Key, Output, Query, Value};
    Some(match kind {
        Query => "self_attn.q_proj.weight",
        Key => "self_attn.k_proj.weight",
        Value => "self_attn.v_proj.weight",
        Output => "self_attn.o_proj.weight",
        _ => return None,
    })
}

fn table(id: MatrixId) -> Option<&'static str> {
    use nestling_formats::MatrixKind::{Embedding, Head};
    match id {
        MatrixId { kind: Embedding, layer: None, expert: None } => {
            Some("model.embed_tokens.weight")
        }
        MatrixId { kind: Head, layer: None, expert: None } => Some("lm_head.weight"),
        _ => None,
    }
}

/// Returns the name of a float tensor within its layer, as used by nearly all families.
fn layer_float(kind: FloatKind) -> Option<&'static str> {
    Some(match kind {
        FloatKind::AttentionNorm => "input_layernorm.weight",
        FloatKind::FeedForwardNorm => "post_attention_layernorm.weight",
        FloatKind::QueryNorm => "self_attn.q_norm.weight",
        FloatKind::KeyNorm => "self_attn.k_norm.weight",
        FloatKind::QueryBias => "self_attn.q_proj.bias",
        FloatKind::KeyBias => "self_attn.k_proj.bias",
        FloatKind::ValueBias => "self_attn.v_proj.bias",
        FloatKind::OutputBias => "self_attn.o_proj.bias",
        _ => return None,
    })
}

/// Returns a float tensor, named by `own` if that returns a name, otherwise by the common scheme.
fn float_with(id: FloatId, own: fn(FloatKind) -> Option<&'static str>) -> Option<FloatSource> {
    let Some(layer) = id.layer else {
        return (id.kind == FloatKind::FinalNorm).then(|| FloatSource::kept("model.norm.weight"));
    };
    let part = own(id.kind).or_else(|| layer_float(id.kind))?;
    Some(FloatSource::kept(format!("model.layers.{layer}.{part}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places(runs: Runs, size: usize) -> Option<Vec<usize>> {
        Some((0..runs.count(size)?).map(|index| runs.place(index)).collect())
    }

    #[test]
    fn runs_take_what_they_say() {
        assert_eq!(places(Runs::ALL, 4), Some(vec![0, 1, 2, 3]));
        assert_eq!(places(Runs::range(3, 2), 8), Some(vec![3, 4]));
        let odd = Runs { start: 1, length: 1, stride: 2 };
        assert_eq!(places(odd, 6), Some(vec![1, 3, 5]));
        let pairs = Runs { start: 2, length: 2, stride: 5 };
        assert_eq!(places(pairs, 10), Some(vec![2, 3, 7, 8]));
        assert_eq!(places(pairs, 2), Some(vec![]));
    }

    #[test]
    fn orders_take_one_after_another() {
        // Three groups of two heads with two elements each; the file has the first head of each group first.
        let heads = |head: usize| Runs { start: 2 * head, length: 2, stride: 6 };
        let order = Order::of((0..3).map(heads));
        let places = [0, 1, 6, 7, 2, 3, 8, 9, 4, 5, 10, 11];
        assert_eq!(order.places(12), Some(places.to_vec()));
        assert!(!order.is_all() && Order::all().is_all());
        assert_eq!(Order::all().places(3), Some(vec![0, 1, 2]));
        assert_eq!(order.places(11), None);
        let again = Runs::range(0, usize::MAX);
        assert_eq!(Order::of([again, again]).count(usize::MAX), None);
    }

    #[test]
    fn a_run_that_does_not_fit_takes_nothing() {
        assert_eq!(Runs::range(6, 3).count(8), None);
        assert_eq!(Runs { start: 0, length: 3, stride: 4 }.count(6), None);
        assert_eq!(Runs { start: usize::MAX, length: 2, stride: 1 }.count(usize::MAX), Some(0));
        assert_eq!(Runs { start: 0, length: 1, stride: 0 }.count(9), Some(1));
    }
}
