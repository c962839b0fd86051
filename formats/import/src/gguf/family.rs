//! Description of a model family by its llama.cpp names, and the values that most families share.

use serde_json::{Value, json};

use super::key::Key;

/// A family in both formats.
pub struct Family {
    /// Value of `general.architecture`, which is also the prefix of its keys.
    pub gguf: &'static str,
    /// Value of `model_type`.
    pub model_type: &'static str,
    /// Class name in `architectures`.
    pub class: &'static str,
    /// Keys in addition to [`COMMON`], or replacing one of them, without the prefix.
    pub keys: &'static [Key],
    /// Fixed `config.json` values of the family.
    pub fixed: &'static [(&'static str, Fixed)],
    /// `config.json` values for keys that the file lacks, if an absent key in `config.json` would mean
    /// something else.
    pub absent: &'static [(&'static str, Fixed)],
    /// `config.json` flags that are true if the first layer has a certain tensor.
    pub present: &'static [(&'static str, &'static str)],
    /// Redundant keys.
    pub ignored: &'static [&'static str],
    /// Value of `expert_gating_func` for the family's scoring.
    pub gating: u64,
    /// True if the family has no experts. Other families may have the same name.
    pub is_dense: bool,
    /// True if files may have a tensor with divisors of the RoPE frequencies.
    pub divides_frequencies: bool,
    /// Key that distinguishes the family from others with the same name.
    pub marked_by: Option<&'static str>,
    /// `config.json` object that holds these keys in multimodal models.
    pub part: Option<&'static str>,
}

/// A fixed value.
#[derive(Clone, Copy)]
pub enum Fixed {
    /// Boolean.
    Bool(bool),
    /// Text.
    Text(&'static str),
    /// Integer.
    Whole(u64),
    /// Null.
    Null,
}

impl Fixed {
    /// Returns the value as JSON.
    pub fn json(self) -> Value {
        match self {
            Self::Bool(value) => json!(value),
            Self::Text(value) => json!(value),
            Self::Whole(value) => json!(value),
            Self::Null => Value::Null,
        }
    }
}

/// Softmax over all experts.
pub const SOFTMAX: u64 = 1;

/// Sigmoid of each logit.
pub const SIGMOID: u64 = 2;

/// Softmax over the selected experts. It equals a softmax over all experts with renormalization.
pub const SOFTMAX_OF_CHOSEN: u64 = 3;

/// Activation of all families but a few.
pub const SILU: (&str, Fixed) = ("hidden_act", Fixed::Text("silu"));

/// Defaults for most families.
pub const PLAIN: Family = Family {
    gguf: "",
    model_type: "",
    class: "",
    keys: &[],
    fixed: &[],
    absent: &[],
    present: &[],
    ignored: &[],
    gating: SOFTMAX,
    is_dense: false,
    divides_frequencies: false,
    marked_by: None,
    part: None,
};

/// Defaults for families without experts. Some files have the numbers of experts, which are 0.
pub const DENSE: Family = Family {
    keys: &[Key::Same("feed_forward_length", "intermediate_size")],
    fixed: &[SILU],
    ignored: &["expert_count", "expert_used_count"],
    is_dense: true,
    ..PLAIN
};
