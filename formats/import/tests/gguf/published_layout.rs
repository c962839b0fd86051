//! Tiny checkpoints in the published layout, and their BF16 conversions by llama.cpp. Both give the same
//! model, bit for bit.

use std::path::{Path, PathBuf};

use nestling_import::{Checkpoint, ModelConfig, TokenMixer};

use super::data;

fn published(name: &str) -> PathBuf {
    let families = "../../engine/runtime/tests/data/families";
    Path::new(env!("CARGO_MANIFEST_DIR")).join(families).join(name)
}

/// Compares the weights and configurations of both, except names and end-of-sequence tokens, of which a GGUF
/// file has only one.
fn is_the_same_model(name: &str, change: fn(&mut ModelConfig)) {
    is_the_model_of(&format!("{name}.gguf"), name, change);
}

fn is_the_model_of(file: &str, name: &str, change: fn(&mut ModelConfig)) {
    let published = Checkpoint::open(published(name)).unwrap();
    let found = Checkpoint::open(data(file)).unwrap();
    let mut expected = published.config().clone();
    change(&mut expected);
    let own = found.config().clone();
    let (architecture, bos_token_id) = (expected.architecture, expected.bos_token_id);
    let eos_token_ids = expected.eos_token_ids.clone();
    let own = ModelConfig { architecture, bos_token_id, eos_token_ids, ..own };
    assert_eq!(own, expected, "{name}");
    for shape in &published.shape().matrices {
        let read = |checkpoint: &Checkpoint| checkpoint.read_matrix(shape.id).unwrap();
        assert!(read(&found) == read(&published), "{name}: {:?}", shape.id);
    }
    for shape in &published.shape().floats {
        let read = |checkpoint: &Checkpoint| checkpoint.read_float(shape.id).unwrap();
        assert!(read(&found) == read(&published), "{name}: {:?}", shape.id);
    }
}

/// The kinds of layers follow from the family.
#[test]
fn afmoe() {
    is_the_same_model("afmoe", |_| {});
}

#[test]
fn bailing_moe_v2() {
    is_the_model_of("bailing-moe-v2-bf16.gguf", "bailing-moe-v2", |_| {});
}

#[test]
fn ernie4_5_moe() {
    is_the_model_of("ernie4-5-moe-bf16.gguf", "ernie4-5-moe", |_| {});
}

#[test]
fn deepseek_v32() {
    is_the_same_model("deepseek-v32", |_| {});
}

#[test]
fn glm_moe_dsa() {
    is_the_same_model("glm-moe-dsa", |_| {});
}

/// Files have the stretched base, in single precision.
#[test]
fn hunyuan_v1_moe() {
    is_the_same_model("hunyuan-v1-moe", |config| {
        for layer in &mut config.layers {
            if let TokenMixer::Attention(attention) = &mut layer.mixer {
                attention.rope.theta = f64::from(attention.rope.theta as f32);
            }
        }
    });
}

/// The kinds of layers follow from the family, and the kind of gates from their tensors.
#[test]
fn laguna() {
    is_the_same_model("laguna", |_| {});
}

#[test]
fn exaone_moe() {
    is_the_same_model("exaone-moe", |_| {});
}

#[test]
fn glm4_moe() {
    is_the_same_model("glm4-moe", |_| {});
}

/// GGUF files have no key for the windows.
fn without_windows(config: &mut ModelConfig) {
    for layer in &mut config.layers {
        if let TokenMixer::Attention(attention) = &mut layer.mixer {
            attention.sliding_window = None;
        }
    }
}

#[test]
fn dots1() {
    is_the_same_model("dots1", without_windows);
}

/// GGUF files have no key for the scale of Gemma 3's attention. llama.cpp uses the size of a head.
#[test]
fn gemma3() {
    is_the_same_model("gemma3", |config| {
        for layer in &mut config.layers {
            if let TokenMixer::Attention(attention) = &mut layer.mixer {
                attention.scale = 0.25;
            }
        }
    });
}

#[test]
fn granite() {
    is_the_same_model("granite", |_| {});
}

#[test]
fn granite_moe_shared() {
    is_the_same_model("granite-moe-shared", |_| {});
}

#[test]
fn kimi_k2() {
    is_the_same_model("kimi-k2", |_| {});
}

/// The scaling of the frequencies is in a tensor, and rows of queries and keys are permuted.
#[test]
fn llama() {
    is_the_same_model("llama", |_| {});
}

/// Biases of queries and keys are permuted like their rows.
#[test]
fn llama_bias() {
    is_the_same_model("llama-bias", |_| {});
}

/// llama.cpp's converter writes this context for every model of the family.
#[test]
fn granite_moe_hybrid() {
    is_the_same_model("granite-moe-hybrid", |config| config.max_position_embeddings = 1 << 20);
}

/// Blocks of one part have lists of key heads and of widths. The context is the converter's.
#[test]
fn nemotron_h() {
    is_the_same_model("nemotron-h", |config| config.max_position_embeddings = 1 << 20);
}

/// The width is the adjusted one.
#[test]
fn lfm2() {
    is_the_same_model("lfm2", |_| {});
}

/// The number of key heads is a list, which also gives the kinds of the layers.
#[test]
fn lfm2_moe() {
    is_the_same_model("lfm2-moe", |_| {});
}

#[test]
fn minimax_m2() {
    is_the_same_model("minimax-m2", |_| {});
}

#[test]
fn qwen2() {
    is_the_same_model("qwen2", without_windows);
}

#[test]
fn qwen3() {
    is_the_same_model("qwen3", |_| {});
}

#[test]
fn qwen3_vl_moe() {
    is_the_same_model("qwen3-vl-moe", |_| {});
}

/// llama.cpp treats it as a GLM-4.5 with full rotation of heads.
#[test]
fn solar_open() {
    is_the_same_model("solar-open", |_| {});
}
