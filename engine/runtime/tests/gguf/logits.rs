//! Logits of GGUF files against llama.cpp.

use std::sync::Arc;

use nestling_cpu::Cpu;
use nestling_experts::expert::CheckpointSource;
use nestling_experts::expert::source::ExpertSource;
use nestling_formats::Level;
use nestling_import::{Checkpoint, ModelConfig};
use nestling_runtime::model::RunnerOptions;

use super::{MODELS, data, json};
use nestling_testkit::runners::{LOGIT_TOLERANCE, all_logits, golden_tensors, runner, token_list};

/// Tolerance for Gemma's GELU, which llama.cpp looks up in a half-precision table.
///
/// Input and output are rounded to a relative 2^-11 in each of 2 layers, and logits are capped to 4.
const GELU_TOLERANCE: f32 = 2.0 * 2.0 / 2048.0 * 4.0;

/// Returns the tolerance for the logits of a model.
pub fn tolerance(name: &str) -> f32 {
    if name == "gemma4" { GELU_TOLERANCE } else { LOGIT_TOLERANCE }
}

#[test]
fn logits_are_those_of_llama_cpp() {
    for name in MODELS {
        let expected = &golden_tensors(&data(&format!("{name}.safetensors")))["logits"];
        let tokens = token_list(&json(&format!("{name}.json"))["tokens"]);
        let checkpoint = Checkpoint::open(data(&format!("{name}.gguf"))).unwrap();
        let source: Arc<dyn ExpertSource> = Arc::new(CheckpointSource::new(checkpoint));
        let mut runner = runner(Cpu::new(1), &source, &RunnerOptions::default());
        let logits = all_logits(&mut runner, &tokens, Level::L8, 512);
        let found = &logits[logits.len() - expected.len()..];
        let differences = found.iter().zip(expected).map(|(a, b)| (a - b).abs());
        let largest = differences.fold(0.0, f32::max);
        println!("{name}: max |Δlogit| {largest:e}");
        assert!(largest <= tolerance(name), "{name}: {largest}");
    }
}

/// The tiny Gemma as published, and its conversion to BF16 by llama.cpp: the same model, bit for bit.
#[test]
fn weights_are_those_of_the_published_layout() {
    let published = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/families/gemma4");
    let published = Checkpoint::open(published).unwrap();
    let found = Checkpoint::open(data("gemma4-bf16.gguf")).unwrap();
    // The end-of-message tokens are stored elsewhere in the file.
    let eos_token_ids = published.config().eos_token_ids.clone();
    assert_eq!(&ModelConfig { eos_token_ids, ..found.config().clone() }, published.config());
    let ends = published.config().eos_token_ids.iter();
    assert!(ends.clone().all(|id| found.generation().eos_token_ids.contains(id)));
    for shape in &published.shape().matrices {
        let read = |checkpoint: &Checkpoint| checkpoint.read_matrix(shape.id).unwrap();
        assert!(read(&found) == read(&published), "{:?}", shape.id);
    }
    for shape in &published.shape().floats {
        let read = |checkpoint: &Checkpoint| checkpoint.read_float(shape.id).unwrap();
        assert!(read(&found) == read(&published), "{:?}", shape.id);
    }
}
