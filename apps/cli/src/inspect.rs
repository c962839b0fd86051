//! `nestling inspect`: shows the contents of a store.

mod gguf;

use crate::args::InspectArgs;
use crate::bytes::ByteSize;
use crate::console::{Console, write_out};
use crate::failure::{Failure, Result};
use crate::interrupt::Interrupt;
use crate::levels::level_sizes;
use crate::located::NamedModel;
use crate::stores::open_store_with;
use crate::template_check::template_fault;
use crate::words::DENSE;
use nestling::engine::allocation::{Allocation, AllocationSummary};
use nestling::formats::Level;
use nestling::formats::store::{Group, GroupId, Store};
use nestling::import::{
    FeedForward, LatentConfig, Mamba2Config, ModelConfig, ModelShape, TokenMixer,
};
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::path::Path;

pub fn inspect(args: &InspectArgs, console: &Console, interrupt: &Interrupt) -> Result<()> {
    let named = NamedModel::of_files(args.path.as_ref().or(args.model.as_ref()), &args.hub);
    let path = named.locate(console, interrupt)?.path;
    let store = open_store_with(&path, args.partial)?;
    let config = config_of(&store)?;
    if args.json {
        let mut json = match &store.file {
            Some(file) => gguf::as_json(&path, file, &store, &config),
            None => as_json(&path, &store, &config),
        };
        json["chat_template_fault"] = json!(template_fault(&store)?);
        return write_out(&format!("{json:#}\n"));
    }
    let mut text = match &store.file {
        Some(file) => gguf::as_text(&path, file, &store, &config),
        None => as_text(&path, &store, &config),
    };
    if let Some(fault) = template_fault(&store)? {
        let _ = writeln!(text, "  the chat template cannot be used: {fault}");
    }
    write_out(&text)
}

fn config_of(store: &Store) -> Result<ModelConfig> {
    let json = store.config_json().map_err(|error| crate::explain::explain_store(&error))?;
    ModelConfig::from_json("config.json", &json).map_err(|error| {
        Failure::new(error.to_string()).advise("use a release of nestling that knows this model")
    })
}

fn as_json(path: &Path, store: &Store, config: &ModelConfig) -> Value {
    let index = store.index();
    let (present, whole) = store.lengths();
    let levels = level_sizes(store).into_iter().map(|size| {
        json!({
            "level": size.level.bits(),
            "bytes": size.bytes,
            "bits_per_weight": size.bits_per_weight,
            "present": size.level <= store.level(),
        })
    });
    let mut before = 0;
    let sections = index.sections().iter().map(|section| {
        let bytes = section.end - std::mem::replace(&mut before, section.end);
        json!({"name": section.name, "bytes": bytes, "end": section.end})
    });
    let parameters: Value = serde_json::from_str(index.parameters_json()).unwrap_or(Value::Null);
    let (sections, levels): (Vec<_>, Vec<_>) = (sections.collect(), levels.collect());
    json!({
        "path": path.display().to_string(),
        "store_path": path.display().to_string(),
        "id": index.id().to_string(),
        "bytes": whole,
        "bytes_present": present,
        "level": store.level().bits(),
        "alignment": index.alignment(),
        "shards": index.shards(),
        "model": model_json(config),
        "levels": levels,
        "sections": sections,
        "groups": index.groups().len(),
        "extents": index.extents().len(),
        "codecs": index.codecs().len(),
        "assets": assets(store),
        "allocation": allocation_json(store),
        "parameters": parameters,
    })
}

fn allocation_json(store: &Store) -> Value {
    let index = store.index();
    let allocation = Allocation::of_level(index, Level::L8);
    let summary = AllocationSummary::of(index, &allocation);
    let shares = summary.shares.iter().map(|share| {
        let levels = Level::ALL.iter().zip(share.matrices);
        let counts: serde_json::Map<String, Value> =
            levels.map(|(level, count)| (level.to_string(), json!(count))).collect();
        json!({
            "kind": format!("{:?}", share.kind).to_lowercase(),
            "of_experts": share.of_experts,
            "matrices_by_level": counts,
        })
    });
    let (measured, experts) = measured(store);
    json!({
        "hash": allocation.hash().to_string(),
        "expert_bits": summary.expert_bits,
        "matrices": shares.collect::<Vec<_>>(),
        "experts": experts,
        "experts_measured": measured,
    })
}

fn model_json(config: &ModelConfig) -> Value {
    let experts: Vec<Value> = config
        .layers
        .iter()
        .map(|layer| match layer.feed_forward {
            FeedForward::Absent => json!({}),
            FeedForward::Dense { intermediate_size } => {
                json!({"intermediate_size": intermediate_size})
            }
            FeedForward::Moe {
                num_experts,
                num_experts_per_tok,
                moe_intermediate_size,
                shared,
            } => json!({
                "num_experts": num_experts,
                "num_experts_per_tok": num_experts_per_tok,
                "moe_intermediate_size": moe_intermediate_size,
                "shared_expert_intermediate_size": shared.map(|shared| shared.intermediate_size),
            }),
        })
        .collect();
    json!({
        "model_type": config.architecture.model_type(),
        "dense": !config.has_experts(),
        "weights": ModelShape::new(config).weights(),
        "hidden_size": config.hidden_size,
        "num_hidden_layers": config.num_hidden_layers,
        "mixers": mixers(config).into_iter().map(mixer_json).collect::<Vec<_>>(),
        "vocab_size": config.vocab_size,
        "max_position_embeddings": config.max_position_embeddings,
        "tie_word_embeddings": config.tie_word_embeddings,
        "layers": experts,
    })
}

fn assets(store: &Store) -> Value {
    let index = store.index();
    let bytes = |name: &str| {
        let group = index.group(&GroupId::asset(name))?;
        Some(index.extent(group, nestling::formats::Plane::P2)?.length)
    };
    store.asset_names().map(|name| (name.to_owned(), json!(bytes(name)))).collect()
}

fn as_text(path: &Path, store: &Store, config: &ModelConfig) -> String {
    let index = store.index();
    let (present, whole) = store.lengths();
    let mut out = format!("{}\n", path.display());
    let files = match index.shards().len() {
        1 => "one file".into(),
        count => format!("{count} files"),
    };
    let (size, alignment) = (ByteSize(whole), index.alignment());
    let _ = writeln!(out, "  store     {} ({files}, {size}, aligned to {alignment})", index.id());
    if present < whole {
        let (present, level) = (ByteSize(present), store.level());
        let _ = writeln!(out, "            {present} of it are here: complete up to level {level}");
    }
    let _ = writeln!(out, "  model     {}", model_text(config));
    let _ = writeln!(
        out,
        "  holds     {} groups, {} extents, {} codecs",
        index.groups().len(),
        index.extents().len(),
        index.codecs().len()
    );
    let assets: Vec<&str> = store.asset_names().collect();
    let _ = writeln!(out, "  assets    {}", assets.join(", "));
    out += &made_with(index.parameters_json());
    let _ = writeln!(out, "\n  level   bits/weight   store size   here");
    for size in level_sizes(store) {
        let here = if size.level <= store.level() { "yes" } else { "no" };
        let (level, bits, bytes) = (size.level, size.bits_per_weight, ByteSize(size.bytes));
        let _ =
            writeln!(out, "  {level:>5}   {bits:>11.3}   {:>10}   {here:>4}", bytes.to_string());
    }
    let _ = writeln!(out, "\n  section        size          end");
    let mut before = 0;
    for section in index.sections() {
        let size = section.end - std::mem::replace(&mut before, section.end);
        let (size, end) = (ByteSize(size).to_string(), ByteSize(section.end).to_string());
        let _ = writeln!(out, "  {:<8} {size:>10}   {end:>10}", section.name);
    }
    out += &measured_text(store);
    let matrices = counted_matrices(config);
    out + &format!("\n  bits/weight counts {matrices} with scales, tables and padding\n")
}

/// Names the matrices that bits per weight are counted over.
fn counted_matrices(config: &ModelConfig) -> &'static str {
    match config.has_experts() {
        true => "attention, feed-forward and expert matrices",
        false => "attention and feed-forward matrices",
    }
}

/// Formats the number of matrices of each kind by highest level, and their measured errors.
fn measured_text(store: &Store) -> String {
    let index = store.index();
    let summary = AllocationSummary::of(index, &Allocation::of_level(index, Level::L8));
    let mut out =
        String::from("\n  matrices            top level 2       3       4       6       8\n");
    for share in &summary.shares {
        let name = format!("{}{:?}", if share.of_experts { "expert " } else { "" }, share.kind);
        let _ = write!(out, "  {:<18}", name.to_lowercase());
        for (column, count) in share.matrices.iter().enumerate() {
            let width = if column == 0 { 13 } else { 8 };
            let _ = write!(out, "{count:>width$}");
        }
        out.push('\n');
    }
    let (measured, all) = measured(store);
    match all {
        0 => out += &format!("\n  {DENSE}\n"),
        all => {
            let _ =
                writeln!(out, "\n  measured  {measured} of {all} experts: use, and error by level");
        }
    }
    out
}

/// Returns the number of experts with measured frequency and errors, and the number of all experts.
fn measured(store: &Store) -> (usize, usize) {
    let experts = store.groups().iter().filter(|group| group.id.expert().is_some());
    let known = |group: &&Group| {
        let drops = group.error_drops.iter().flatten().all(Option::is_some);
        group.frequency.is_some() && !group.error_drops.is_empty() && drops
    };
    (experts.clone().filter(known).count(), experts.count())
}

fn mixers(config: &ModelConfig) -> Vec<TokenMixer> {
    config.distinct(|layer| Some(layer.mixer))
}

fn mixer_json(mixer: TokenMixer) -> Value {
    match mixer {
        TokenMixer::Attention(attention) => json!({
            "kind": "attention",
            "num_attention_heads": attention.num_attention_heads,
            "num_key_value_heads": attention.num_key_value_heads,
            "head_dim": attention.head_dim,
            "sliding_window": attention.sliding_window,
        }),
        TokenMixer::Latent(latent) => json!({
            "kind": "latent attention",
            "num_attention_heads": latent.num_attention_heads,
            "q_lora_rank": latent.q_lora_rank,
            "kv_lora_rank": latent.kv_lora_rank,
            "qk_nope_head_dim": latent.qk_nope_head_dim,
            "qk_rope_head_dim": latent.qk_rope_head_dim,
            "v_head_dim": latent.v_head_dim,
        }),
        TokenMixer::DeltaNet(shape) => json!({
            "kind": "gated_delta_net",
            "num_key_heads": shape.num_key_heads,
            "num_value_heads": shape.num_value_heads,
            "key_head_dim": shape.key_head_dim,
            "value_head_dim": shape.value_head_dim,
            "conv_kernel_dim": shape.conv_kernel_dim,
        }),
        TokenMixer::ShortConv(shape) => json!({
            "kind": "gated_short_convolution",
            "channels": shape.channels,
            "conv_L_cache": shape.taps,
        }),
        TokenMixer::Mamba2(shape) => json!({
            "kind": "mamba2",
            "num_heads": shape.num_heads,
            "head_dim": shape.head_dim,
            "n_groups": shape.n_groups,
            "state_size": shape.state_size,
            "conv_kernel": shape.conv_kernel,
        }),
    }
}

fn mixer_text(mixer: &TokenMixer) -> String {
    let attention = match mixer {
        TokenMixer::Attention(attention) => attention,
        TokenMixer::Latent(latent) => {
            let LatentConfig { num_attention_heads, kv_lora_rank, qk_rope_head_dim, .. } = latent;
            return format!(
                "{num_attention_heads} heads over latents of {kv_lora_rank} + {qk_rope_head_dim}"
            );
        }
        TokenMixer::DeltaNet(shape) => {
            let (heads, width) = (shape.num_value_heads, shape.value_head_dim);
            return format!("gated DeltaNet of {heads} heads of {width}");
        }
        TokenMixer::ShortConv(shape) => {
            return format!("gated short convolution of {} positions", shape.taps);
        }
        TokenMixer::Mamba2(shape) => {
            let Mamba2Config { num_heads, head_dim, state_size, .. } = shape;
            return format!("Mamba-2 of {num_heads} heads of {head_dim}, states of {state_size}");
        }
    };
    let mut text = format!(
        "{} heads / {} KV heads of {}",
        attention.num_attention_heads, attention.num_key_value_heads, attention.head_dim
    );
    if let Some(window) = attention.sliding_window {
        let _ = write!(text, " (window {window})");
    }
    text
}

/// Formats the conversion settings of a store, one line for each.
fn made_with(parameters: &str) -> String {
    let parameters: Value = serde_json::from_str(parameters).unwrap_or(Value::Null);
    let mut lines = Vec::new();
    settings("", &parameters, &mut lines);
    let starts = std::iter::once("  made with").chain(std::iter::repeat("           "));
    let shown = starts.zip(lines).map(|(start, line)| format!("{start} {line}\n"));
    shown.collect()
}

/// Flattens an object into lines of `name: value`. Names of nested objects are prefixed with the outer name.
fn settings(name: &str, value: &Value, lines: &mut Vec<String>) {
    match value {
        Value::Object(members) => {
            for (key, value) in members {
                let name = if name.is_empty() { key.clone() } else { format!("{name}, {key}") };
                settings(&name.replace('_', " "), value, lines);
            }
        }
        _ if name.is_empty() => {}
        value => lines.push(format!("{name}: {}", setting(value))),
    }
}

fn setting(value: &Value) -> String {
    match value {
        Value::Null => "none".into(),
        Value::String(text) => text.clone(),
        // The settings were chosen in single precision; further digits are meaningless.
        Value::Number(number) if number.is_f64() => {
            number.as_f64().map_or(String::new(), |number| (number as f32).to_string())
        }
        Value::Array(values) => values.iter().map(setting).collect::<Vec<_>>().join(", "),
        other => other.to_string(),
    }
}

/// Formats a number of weights with about three digits.
pub fn weights_words(weights: u64) -> String {
    let millions = weights as f64 / 1e6;
    match millions {
        0.0..1.0 => format!("{:.0} k weights", millions * 1e3),
        1.0..1000.0 => format!("{millions:.1} M weights"),
        _ => format!("{:.1} B weights", millions / 1e3),
    }
}

fn model_text(config: &ModelConfig) -> String {
    let weights = weights_words(ModelShape::new(config).weights());
    let mut text = format!(
        "{}, {weights}: {} layers, hidden {}",
        config.architecture.model_type(),
        config.num_hidden_layers,
        config.hidden_size,
    );
    for mixer in mixers(config) {
        let _ = write!(text, ", {}", mixer_text(&mixer));
    }
    let moe = config.layers.iter().find_map(|layer| match layer.feed_forward {
        FeedForward::Moe { num_experts, num_experts_per_tok, moe_intermediate_size, .. } => {
            Some((num_experts, num_experts_per_tok, moe_intermediate_size))
        }
        FeedForward::Absent | FeedForward::Dense { .. } => None,
    });
    if let Some((experts, chosen, width)) = moe {
        let _ = write!(text, ", {experts} experts of {width} (top {chosen})");
    }
    if moe.is_none() {
        text += ", dense";
    }
    let head = if config.tie_word_embeddings { "tied" } else { "untied" };
    let (vocabulary, context) = (config.vocab_size, config.max_position_embeddings);
    let _ = write!(text, ", vocabulary {vocabulary} ({head} head), context {context}");
    text
}
