//! LongRoPE: separate frequency factors for short and long contexts.

use std::sync::Arc;

use nestling_cpu::Cpu;
use nestling_experts::expert::source::ExpertSource;
use nestling_formats::Level;
use nestling_runtime::model::RunnerOptions;
use nestling_testkit::runners::{
    LOGIT_TOLERANCE, all_logits, checkpoint, data, golden_json, runner, token_list,
};

use crate::harness::directory;

/// Returns a checkpoint with this RoPE scaling.
fn scaled(scaling: &serde_json::Value) -> (tempfile::TempDir, Arc<dyn ExpertSource>) {
    let folder = tempfile::tempdir().unwrap();
    for file in std::fs::read_dir(directory("qwen2-moe")).unwrap() {
        let path = file.unwrap().path();
        std::fs::copy(&path, folder.path().join(path.file_name().unwrap())).unwrap();
    }
    let mut config = golden_json(&folder.path().join("config.json"));
    config["rope_scaling"] = scaling.clone();
    std::fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
    let source = checkpoint(folder.path());
    (folder, source)
}

/// Golden data come from `scripts/make_longrope_goldens.py`.
#[test]
fn short_and_long_contexts_agree_with_transformers() {
    let golden = golden_json(&data("longrope.json"));
    let stride = golden["stride"].as_u64().unwrap() as usize;
    let mut scaling = golden["rope_scaling"].clone();
    for name in ["longrope", "su"] {
        scaling["rope_type"] = name.into();
        let (_folder, source) = scaled(&scaling);
        let vocab_size = source.config().vocab_size;
        for (sequence, context) in golden["sequences"].as_array().unwrap().iter().zip([32, 256]) {
            let options = RunnerOptions { context_max: Some(context), ..RunnerOptions::default() };
            let mut runner = runner(Cpu::new(2), &source, &options);
            let tokens = token_list(&sequence["tokens"]);
            let logits = all_logits(&mut runner, &tokens, Level::L8, 512);
            let mut largest = 0.0f32;
            for (position, row) in logits.chunks_exact(vocab_size).enumerate() {
                let expected = sequence["columns"][position].as_array().unwrap();
                let found = row.iter().skip(position % stride).step_by(stride);
                assert_eq!(found.len(), expected.len());
                for (found, expected) in found.zip(expected) {
                    largest = largest.max((found - expected.as_f64().unwrap() as f32).abs());
                }
            }
            println!("{name}, {context} positions: max |Δlogit| {largest:e}");
            assert!(largest <= LOGIT_TOLERANCE, "{context} positions: {largest}");
        }
    }
}
