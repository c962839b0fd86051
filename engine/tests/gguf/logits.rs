//! Logits from a file are llama.cpp's own.

use std::sync::Arc;

use nestling_engine::cpu::Cpu;
use nestling_engine::expert::CheckpointSource;
use nestling_engine::expert::source::ExpertSource;
use nestling_engine::model::RunnerOptions;
use nestling_formats::{Checkpoint, Level};

use super::common::{all_logits, golden_tensors, runner, token_list};
use super::{MODELS, data, json};

/// Largest difference of a logit that passes, for logits that spread by about 2. llama.cpp computes
/// exponentials and sums of its own, in half precision nowhere: its weights were written as F32.
const LOGIT_TOLERANCE: f32 = 5e-5;

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
        assert!(largest <= LOGIT_TOLERANCE, "{name}: {largest}");
    }
}
