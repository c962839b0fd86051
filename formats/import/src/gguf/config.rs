//! Conversion of a GGUF file's hyperparameters to a `config.json`.

use serde_json::{Map, Value, json};

use super::families::{FAMILIES, GROUPED};
use super::family::{Family, SIGMOID};
use super::key::Key;
use super::keys::{Keys, whole};
use super::{BlockType, GgufHeader, frequencies, laguna};
use crate::names::FREQUENCY_FACTORS;
use crate::{ElementType, ImportError};

const ARCHITECTURE: &str = "general.architecture";

const GATING: &str = "expert_gating_func";

const GPT_OSS: &str = "gpt_oss";

const GEMMA3: &str = "gemma3_text";

/// Returns the family of a file. Families with the same name are distinguished by a marker key or by their
/// expert scoring.
fn family(header: &GgufHeader) -> Result<&'static Family, ImportError> {
    let metadata = &header.metadata;
    let name = metadata.text(ARCHITECTURE)?;
    let name = name.ok_or_else(|| metadata.wrong(ARCHITECTURE, "the name of a family"))?;
    let has = |key: &str| metadata.get(&format!("{name}.{key}")).is_some();
    let is_dense = matches!(metadata.unsigned(&format!("{name}.expert_count")), Ok(None | Some(0)));
    let is_named = |family: &&Family| {
        family.gguf == name && family.is_dense == is_dense && family.marked_by.is_none_or(has)
    };
    let named = || FAMILIES.iter().filter(is_named);
    // Older files lack the key, but only sigmoid scores come with a selection bias.
    let gating = match metadata.unsigned(&format!("{name}.{GATING}"))? {
        None | Some(0) => header
            .tensors
            .iter()
            .any(|tensor| tensor.name.ends_with(".exp_probs_b.bias"))
            .then_some(SIGMOID),
        said => said,
    };
    if is_dense && named().next().is_none() {
        let found: String = name.chars().filter(|c| !c.is_control()).take(60).collect();
        let dense = FAMILIES.iter().filter(|family| family.is_dense);
        let supported = dense.map(|family| family.gguf).collect::<Vec<&str>>().join(", ");
        return Err(ImportError::Dense { file: metadata.file().into(), found, supported });
    }
    let same = named().find(|family| Some(family.gating) == gating);
    same.or_else(|| named().next()).ok_or_else(|| {
        let mut names: Vec<&str> = FAMILIES.iter().map(|family| family.gguf).collect();
        names.dedup();
        ImportError::Unsupported {
            file: metadata.file().into(),
            key: ARCHITECTURE.into(),
            found: format!("{:?}", name.chars().take(60).collect::<String>()),
            supported: format!("supported: {}", names.join(", ")),
        }
    })
}

/// Returns a `config.json` with the contents of the header. Its values are interpreted and validated by
/// [`crate::ModelConfig::from_json`].
///
/// # Errors
/// Returns an [`ImportError`] for an unknown family or key, and for a value of a wrong type.
pub fn config_json(header: &GgufHeader) -> Result<Vec<u8>, ImportError> {
    let metadata = &header.metadata;
    let family = family(header)?;
    let keys = Keys { metadata, family };
    keys.refuse_unknown()?;
    let mut config = Map::new();
    for key in keys.all() {
        keys.insert(key, &mut config)?;
    }
    config.insert("num_hidden_layers".into(), json!(keys.layers()?));
    if !config.contains_key("n_group") {
        config.extend(published_groups(&config));
    }
    for (key, value) in family.absent {
        config.entry(*key).or_insert(value.json());
    }
    for (key, value) in family.fixed {
        config.insert((*key).into(), value.json());
    }
    for (part, key) in family.present {
        let is_part = |name: &str| {
            let of_layer = name.strip_prefix("blk.").and_then(|rest| rest.split_once('.'));
            of_layer.is_some_and(|(_, name)| name == *part)
        };
        let found = header.tensors.iter().any(|tensor| is_part(&tensor.name));
        config.insert((*key).into(), json!(found));
    }
    config.insert("vocab_size".into(), json!(vocabulary(header)?));
    let tied = !header.tensors.iter().any(|tensor| tensor.name == "output.weight");
    config.insert("tie_word_embeddings".into(), json!(tied));
    if config.contains_key("kv_lora_rank") {
        keys.latent(&mut config)?;
        keys.rope(&mut config)?;
    } else if config.contains_key("global_head_dim") {
        keys.windows(header, &mut config)?;
    } else {
        keys.heads(&mut config)?;
        keys.rope(&mut config)?;
        keys.frequencies(header, &mut config)?;
        match family.model_type {
            GEMMA3 => keys.gemma3(&mut config)?,
            laguna::NAME => keys.laguna(header, &mut config)?,
            _ => {}
        }
    }
    keys.router(&mut config)?;
    keys.tokens(&mut config)?;
    if family.model_type == GPT_OSS && has_mxfp4_experts(header) {
        config.insert("quantization_config".into(), json!({ "quant_method": "mxfp4" }));
    }
    let mut out = match family.part {
        Some(part) => Map::from_iter([
            (part.into(), Value::Object(config)),
            ("tie_word_embeddings".into(), json!(tied)),
        ]),
        None => config,
    };
    out.insert("architectures".into(), json!([family.class]));
    out.insert("model_type".into(), json!(family.model_type));
    Ok(Value::Object(out).to_string().into_bytes())
}

/// Returns the expert groups of known published models whose files lack them.
fn published_groups(config: &Map<String, Value>) -> Map<String, Value> {
    let is = |(key, size): &(&str, u64)| config.get(*key).and_then(Value::as_u64) == Some(*size);
    let known = GROUPED.iter().find(|known| known.sizes.iter().all(is));
    let keys = ["n_group", "topk_group"].map(String::from);
    let groups = known.map(|known| keys.into_iter().zip(known.groups.map(Value::from)));
    groups.into_iter().flatten().collect()
}

fn has_mxfp4_experts(header: &GgufHeader) -> bool {
    let of_experts = |name: &str| name.ends_with("_exps.weight");
    let mut experts = header.tensors.iter().filter(|tensor| of_experts(&tensor.name)).peekable();
    experts.peek().is_some()
        && experts.all(|tensor| tensor.element == ElementType::Block(BlockType::Mxfp4))
}

fn vocabulary(header: &GgufHeader) -> Result<u64, ImportError> {
    const EMBEDDING: &str = "token_embd.weight";
    let embedding = header.tensors.iter().find(|tensor| tensor.name == EMBEDDING);
    let rows = embedding.and_then(|tensor| tensor.shape.first()).copied();
    rows.ok_or_else(|| ImportError::MissingTensor {
        file: header.metadata.file().into(),
        tensor: EMBEDDING.into(),
    })
}

/// Returns the number of elements of a head that may be rotated.
fn head_width(config: &Map<String, Value>) -> Option<u64> {
    let size = |key: &str| config.get(key).and_then(Value::as_u64);
    let own = size("qk_rope_head_dim").or_else(|| size("head_dim"));
    own.or_else(|| size("hidden_size")?.checked_div(size("num_attention_heads")?))
}

impl Keys<'_> {
    fn insert(&self, key: &Key, config: &mut Map<String, Value>) -> Result<(), ImportError> {
        match key {
            Key::Same(theirs, ours) => {
                config.insert((*ours).into(), self.required(theirs)?);
            }
            Key::Optional(theirs, ours) => {
                if let Some(value) = self.value(theirs)?.filter(|value| value.as_u64() != Some(0)) {
                    config.insert((*ours).into(), value);
                }
            }
            Key::Quotient(theirs, divisor, ours) => {
                config.insert((*ours).into(), json!(self.quotient(theirs, divisor)?));
            }
            Key::Kinds(theirs, ours, names) => {
                if let Some(kinds) = self.layer_kinds(theirs, *names)? {
                    config.insert((*ours).into(), json!(kinds));
                }
            }
            Key::HeadsByLayer(theirs, heads, kinds, names) => {
                config.insert((*heads).into(), whole(self.value_of_layers(theirs)?));
                if let Some(found) = self.layer_kinds(theirs, *names)? {
                    config.insert((*kinds).into(), json!(found));
                }
            }
            Key::WidthsByLayer(theirs, width, kinds, name) => {
                config.insert((*width).into(), whole(self.value_of_layers(theirs)?));
                let has_part = self.layer_kinds(theirs, ["", name])?.into_iter().flatten();
                let layers = config.get_mut(*kinds).and_then(Value::as_array_mut);
                for (kind, name) in layers.into_iter().flatten().zip(has_part) {
                    if !name.is_empty() {
                        *kind = json!(name);
                    }
                }
            }
            Key::Choice(theirs, ours, [no, yes]) => {
                let is_no = self.metadata.boolean(&self.name(theirs))? == Some(false);
                let chosen = if is_no { no } else { yes };
                config.insert((*ours).into(), json!(chosen));
            }
            Key::EachLayer(theirs, [first, list]) => {
                self.insert_each(theirs, first, list, config)?
            }
            Key::ByWindow(theirs, ours) => {
                for (ours, value) in ours.iter().zip(self.by_window(theirs)?) {
                    if let Some(value) = value {
                        config.insert((*ours).into(), whole(value));
                    }
                }
            }
        }
        Ok(())
    }

    fn heads(&self, config: &mut Map<String, Value>) -> Result<(), ImportError> {
        const KEY: &str = "attention.key_length";
        let Some(keys) = self.unsigned(KEY)? else { return Ok(()) };
        if self.unsigned("attention.value_length")?.is_some_and(|values| values != keys) {
            let expected = format!("the same as `{}`, {keys}", self.name(KEY));
            return Err(self.metadata.wrong(&self.name("attention.value_length"), &expected));
        }
        config.insert("head_dim".into(), json!(keys));
        Ok(())
    }

    /// Inserts the head sizes of latent attention. Newer files have a single key head, the latent; older ones
    /// have the head sizes under the ordinary names.
    fn latent(&self, config: &mut Map<String, Value>) -> Result<(), ImportError> {
        const KEYS: [&str; 2] = ["attention.key_length_mla", "attention.key_length"];
        const VALUES: [&str; 2] = ["attention.value_length_mla", "attention.value_length"];
        let size = |names: [&str; 2]| match self.unsigned(names[0])? {
            Some(size) => Ok(size),
            None => {
                let wrong = || self.metadata.wrong(&self.name(names[1]), "the size of a head");
                self.unsigned(names[1])?.ok_or_else(wrong)
            }
        };
        const TURNED: &str = "rope.dimension_count";
        let wrong = || self.metadata.wrong(&self.name(TURNED), "less than a head's size");
        let turned = self.unsigned(TURNED)?.ok_or_else(wrong)?;
        let rest = size(KEYS)?.checked_sub(turned).filter(|rest| *rest > 0).ok_or_else(wrong)?;
        config.insert("qk_nope_head_dim".into(), json!(rest));
        config.insert("qk_rope_head_dim".into(), json!(turned));
        config.insert("v_head_dim".into(), json!(size(VALUES)?));
        let groups = config.get("n_group").cloned().unwrap_or(Value::Null);
        config.entry("topk_group").or_insert(groups);
        if let Some(heads) = config.get("num_attention_heads").cloned() {
            config.insert("num_key_value_heads".into(), heads);
        }
        Ok(())
    }

    fn rope(&self, config: &mut Map<String, Value>) -> Result<(), ImportError> {
        // llama.cpp's default.
        let theta = self.number("rope.freq_base")?.unwrap_or(10_000.0);
        config.insert("rope_theta".into(), json!(theta));
        if let (Some(dims), Some(width)) =
            (self.unsigned("rope.dimension_count")?, head_width(config))
            && dims != width
        {
            config.insert("partial_rotary_factor".into(), json!(dims as f64 / width as f64));
        }
        let kind = self.metadata.text(&self.name("rope.scaling.type"))?;
        match kind.filter(|kind| *kind != "none") {
            Some(kind) => config.insert("rope_scaling".into(), self.rope_scaling(kind)?),
            None => config.insert("rope_parameters".into(), json!({ "rope_type": "default" })),
        };
        Ok(())
    }

    /// Inserts the scaling that the divisors of the frequencies describe, in files that have them.
    fn frequencies(
        &self,
        header: &GgufHeader,
        config: &mut Map<String, Value>,
    ) -> Result<(), ImportError> {
        const KIND: &str = "rope.scaling.type";
        let (Some(divisors), true) = (&header.frequency_divisors, self.family.divides_frequencies)
        else {
            return Ok(());
        };
        // llama.cpp would apply both.
        if config.contains_key("rope_scaling") {
            let expected = format!("none, beside `{FREQUENCY_FACTORS}`");
            return Err(self.metadata.wrong(&self.name(KIND), &expected));
        }
        let dims = self.unsigned("rope.dimension_count")?.or_else(|| head_width(config));
        // Default: without a width, reading the configuration fails with the missing key.
        let dims = dims.unwrap_or(0);
        if let Some(scaling) = frequencies::rope_scaling(header, divisors, config, dims)? {
            config.remove("rope_parameters");
            config.insert("rope_scaling".into(), scaling);
        }
        Ok(())
    }

    fn rope_scaling(&self, kind: &str) -> Result<Value, ImportError> {
        // These types have factors in tensors, which are not read.
        if matches!(kind, "longrope" | "su") {
            let expected = "none, linear, yarn or another scaling without factors of its own";
            return Err(self.metadata.wrong(&self.name("rope.scaling.type"), expected));
        }
        let mut scaling = Map::new();
        scaling.insert("rope_type".into(), json!(kind));
        // Null means that the context lengths determine the factor.
        scaling.insert("factor".into(), Value::Null);
        for (theirs, ours) in [
            ("factor", "factor"),
            ("yarn_beta_fast", "beta_fast"),
            ("yarn_beta_slow", "beta_slow"),
            ("yarn_attn_factor", "attention_factor"),
            ("yarn_ext_factor", "extrapolation_factor"),
        ] {
            if let Some(value) = self.number(&format!("rope.scaling.{theirs}"))? {
                scaling.insert(ours.into(), json!(value));
            }
        }
        // The model was trained without rounded interpolation bounds, which the file does not record.
        if self.family.model_type == GPT_OSS && kind == "yarn" {
            scaling.insert("truncate".into(), json!(false));
        }
        // The file stores a tenth of both magnitudes, which llama.cpp assumes to be equal.
        if let Some(tenth) = self.number("rope.scaling.yarn_log_multiplier")? {
            for key in ["mscale", "mscale_all_dim"] {
                scaling.insert(key.into(), json!(10.0 * tenth));
            }
        }
        if let Some(length) = self.unsigned("rope.scaling.original_context_length")? {
            scaling.insert("original_max_position_embeddings".into(), json!(length));
        }
        Ok(Value::Object(scaling))
    }

    /// Checks that the router settings match the family.
    fn router(&self, config: &mut Map<String, Value>) -> Result<(), ImportError> {
        const NORM: &str = "expert_weights_norm";
        if let Some(norm) = self.metadata.boolean(&self.name(NORM))? {
            config.insert("norm_topk_prob".into(), json!(norm));
        }
        let own = self.family.gating;
        // 0 means the family's default.
        match self.unsigned(GATING)? {
            None | Some(0) => Ok(()),
            Some(found) if found == own => Ok(()),
            Some(_) => Err(self.metadata.wrong(&self.name(GATING), &own.to_string())),
        }
    }

    fn tokens(&self, config: &mut Map<String, Value>) -> Result<(), ImportError> {
        for name in ["bos", "eos"] {
            let key = format!("{name}_token_id");
            let id = self.metadata.unsigned(&format!("tokenizer.ggml.{key}"))?;
            config.insert(key, json!(id.filter(|id| *id < u64::from(u32::MAX))));
        }
        Ok(())
    }
}
