//! Where weights lie in the tensors of a checkpoint. Names of tensors are in this folder and nowhere
//! else, a file for every family that has names of its own.

mod bailing;
mod deepseek;
mod gemma4;
mod gguf;
mod gpt_oss;
mod granite_moe;
mod mixtral;
mod qwen;
mod qwen3_next;

pub(crate) use gguf::{FREQUENCY_FACTORS, split_into_heads};

use crate::config::{Architecture, ModelConfig};
use nestling_formats::{FloatId, FloatKind, MatrixId};

/// Runs of places: `length` of them from `start` on, again after every `stride`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Runs {
    /// The first place.
    pub start: usize,
    /// Places of a run.
    pub length: usize,
    /// From the start of a run to the start of the next.
    pub stride: usize,
}

impl Runs {
    /// Every place.
    pub const ALL: Self = Self { start: 0, length: usize::MAX, stride: usize::MAX };

    /// One run.
    pub const fn range(start: usize, length: usize) -> Self {
        Self { start, length, stride: usize::MAX }
    }

    /// How many of `size` places are taken; none if a run begins inside and ends outside.
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

    /// The place of the `index`th that is taken.
    pub fn place(&self, index: usize) -> usize {
        let run = index / self.length.max(1);
        self.start + run.saturating_mul(self.stride) + index % self.length.max(1)
    }
}

/// Places in an order of their own: those of runs, one after the other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Order(Vec<Runs>);

impl From<Runs> for Order {
    fn from(runs: Runs) -> Self {
        Self(vec![runs])
    }
}

impl Order {
    /// Every place in its own order.
    pub fn all() -> Self {
        Runs::ALL.into()
    }

    /// Those of each of `runs` in turn.
    pub fn of(runs: impl IntoIterator<Item = Runs>) -> Self {
        Self(runs.into_iter().collect())
    }

    /// Whether every place keeps its own order.
    pub fn is_all(&self) -> bool {
        self.single() == Some(Runs::ALL)
    }

    /// The runs, if they are of one kind.
    pub fn single(&self) -> Option<Runs> {
        match self.0[..] {
            [runs] => Some(runs),
            _ => None,
        }
    }

    /// How many of `size` places are taken; none if a run begins inside and ends outside.
    pub fn count(&self, size: usize) -> Option<usize> {
        self.0.iter().try_fold(0usize, |count, runs| count.checked_add(runs.count(size)?))
    }

    /// The places that are taken of `size`, in order; none if [`Self::count`] has none.
    pub fn places(&self, size: usize) -> Option<Vec<usize>> {
        let mut places = Vec::with_capacity(self.count(size)?);
        for runs in &self.0 {
            places.extend((0..runs.count(size)?).map(|index| runs.place(index)));
        }
        Some(places)
    }
}

/// Rows of a matrix: some rows and columns of a two-dimensional tensor, or of one of several in a
/// three-dimensional one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorSlice {
    /// The tensor's name.
    pub name: String,
    /// Position in the outermost dimension of a three-dimensional tensor.
    pub index: Option<usize>,
    /// The tensor's rows that are taken.
    pub rows: Runs,
    /// The tensor's columns that are taken.
    pub columns: Order,
    /// Whether what is taken is turned over: its columns are the matrix's rows.
    pub transposed: bool,
}

impl TensorSlice {
    /// A whole two-dimensional tensor.
    pub fn whole(name: impl Into<String>) -> Self {
        let (rows, columns) = (Runs::ALL, Order::all());
        Self { name: name.into(), index: None, rows, columns, transposed: false }
    }
}

/// What is done to the values of a float tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FloatChange {
    /// Nothing.
    Kept,
    /// One is added: norms whose weights are stored around zero.
    PlusOne,
    /// The negative of their exponential: decay rates that are stored as logarithms.
    NegativeExp,
}

/// A float tensor, or some rows or columns of one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FloatSource {
    /// Its name.
    pub name: String,
    /// Places of its outermost dimension that are taken.
    pub rows: Order,
    /// Places of its innermost dimension that are taken, of two or more.
    pub columns: Runs,
    /// What is done to its values.
    pub change: FloatChange,
}

impl FloatSource {
    /// A whole tensor as it is.
    pub fn kept(name: impl Into<String>) -> Self {
        let (rows, columns) = (Order::all(), Runs::ALL);
        Self { name: name.into(), rows, columns, change: FloatChange::Kept }
    }
}

/// How a checkpoint of a family names its tensors.
#[derive(Clone, Copy, Debug)]
pub struct Naming {
    /// What a matrix is made of, from its first row on; nothing for one that the family has not.
    pub matrix: fn(&ModelConfig, MatrixId) -> Vec<TensorSlice>,
    /// What it is made of where those tensors are not there; nothing if they must be.
    pub alternative: Option<fn(&ModelConfig, MatrixId) -> Vec<TensorSlice>>,
    /// Where a float tensor is; none for one that the family has not.
    pub float: fn(&ModelConfig, FloatId) -> Option<FloatSource>,
    /// Whether a tensor that no weight is made of may be left out without changing the model.
    pub is_redundant: fn(&ModelConfig, &str) -> bool,
}

/// The names in checkpoints as published on the Hugging Face Hub.
pub fn published(architecture: Architecture) -> Naming {
    match architecture {
        Architecture::Qwen3Moe | Architecture::Qwen2Moe | Architecture::Olmoe => qwen::NAMING,
        Architecture::Ernie45Moe => deepseek::ERNIE,
        Architecture::BailingMoeV2 => bailing::NAMING,
        Architecture::Qwen3Next => qwen3_next::NAMING,
        Architecture::Qwen35Moe => qwen3_next::WITH_IMAGES,
        Architecture::Qwen35MoeText => qwen3_next::TEXT_ALONE,
        Architecture::Mixtral => mixtral::NAMING,
        Architecture::GptOss => gpt_oss::NAMING,
        Architecture::GraniteMoe | Architecture::GraniteMoeShared => granite_moe::NAMING,
        Architecture::Qwen3VlMoe => qwen::WITH_IMAGES,
        Architecture::Qwen3OmniMoe => qwen::WITH_SOUND,
        Architecture::MiniMaxM2 => mixtral::WITH_DRAFTS,
        Architecture::DeepseekV2
        | Architecture::DeepseekV3
        | Architecture::KimiK2
        | Architecture::Dots1
        | Architecture::SolarOpen
        | Architecture::Glm4Moe
        | Architecture::Glm4MoeLite => deepseek::NAMING,
        Architecture::Gemma4 | Architecture::Gemma4Text => gemma4::NAMING,
    }
}

/// The names in one checkpoint of a family, by the tensors that it has: a text part that was loaded
/// out of a whole model may be saved under the whole model's names, and experts in one tensor may lie
/// either way.
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

/// The names in a GGUF file.
pub fn in_gguf(architecture: Architecture) -> Naming {
    gguf::naming(architecture)
}

/// The tensors that a matrix is made of in a published checkpoint.
pub fn matrix_tensors(config: &ModelConfig, id: MatrixId) -> Vec<TensorSlice> {
    (published(config.architecture).matrix)(config, id)
}

/// Where a float tensor is in a published checkpoint.
pub fn float_tensor(config: &ModelConfig, id: FloatId) -> Option<FloatSource> {
    (published(config.architecture).float)(config, id)
}

/// A tied head may be written out again; RoPE tables follow from the configuration.
fn is_redundant(config: &ModelConfig, name: &str) -> bool {
    (config.tie_word_embeddings && name == "lm_head.weight")
        || name.ends_with(".rotary_emb.inv_freq")
}

/// Layers beyond the last one, which predict further tokens for speculation, are left out too.
fn is_redundant_or_beyond(config: &ModelConfig, name: &str) -> bool {
    let layer = name.strip_prefix("model.layers.").and_then(|rest| rest.split('.').next());
    let layer = layer.and_then(|layer| layer.parse::<usize>().ok());
    layer.is_some_and(|layer| layer >= config.num_hidden_layers) || is_redundant(config, name)
}

/// The name of an attention matrix within its layer, as nearly all families have it.
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

/// The name of embedding or head.
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

/// The name of a float tensor within its layer, as nearly all families have it.
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

/// A float tensor of a family whose names differ from the usual ones by those of `own` alone.
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
        // Two heads of two elements for every one of three, stored one of each first.
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
