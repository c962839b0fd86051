//! Errors for families that are not supported: what is lacking, and the most similar family.

use super::{FAMILIES, names_experts, nearest::Nearest};
use crate::ImportError;
use crate::json::Fields;

/// Operations that a known family needs and no supported one has, from the classes of transformers 5.23.
const NEEDS: &[(&str, &str)] = &[
    ("dbrx", "LayerNorm, and bounds of queries, keys and values (`clip_qkv`)"),
    ("deepseek_v4", "compressed attention, hyper-connections and a hash router"),
    ("falcon_h1", "attention and Mamba-2 side by side in one layer"),
    ("falcon_mamba", "a Mamba-1 mixer"),
    ("flex_olmo", "norms after parts without norms before them"),
    ("jamba", "a Mamba-1 mixer"),
    ("kimi_linear", "Kimi delta attention"),
    ("llama4_text", "attention within chunks, and the score on the input of an expert"),
    ("longcat_flash", "two attentions per layer, and experts that pass their inputs on"),
    ("mamba", "a Mamba-1 mixer"),
    ("mimo_v2_flash", "values narrower than keys"),
    ("minimax", "lightning attention"),
    ("phimoe", "LayerNorm, and sparsemixer's choice of experts"),
    ("zamba2", "attention blocks that layers share"),
];

/// Returns the error for a `model_type` that no family has.
pub(super) fn unknown_family(fields: &Fields, model_type: Option<&str>) -> ImportError {
    let needs = NEEDS.iter().find(|(name, _)| Some(*name) == model_type);
    let has_experts = fields.members().any(|(key, value)| names_experts(key, value));
    if let (Some(found), None, false) = (model_type, needs, has_experts) {
        let found = found.chars().filter(|c| !c.is_control()).take(60).collect();
        let dense = FAMILIES.iter().filter(|family| family.architecture.is_dense());
        let supported: Vec<&str> = dense.map(|family| family.model_type).collect();
        let (file, supported) = (fields.file().to_owned(), supported.join(", "));
        return ImportError::Dense { file, found, supported };
    }
    let known: Vec<&str> = FAMILIES.iter().map(|family| family.model_type).collect();
    let hint = match needs {
        Some((_, needs)) => format!("needs {needs}; "),
        // Default: an empty hint if no family is similar.
        None => Nearest::of(fields).map_or_else(String::new, |near| near.describe() + "; "),
    };
    fields.unsupported("model_type", &(hint + "supported: " + &known.join(", ")))
}
