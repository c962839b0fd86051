//! Hidden rows against the logits of transformers.

use std::path::Path;

use nestling_core::batch::{Batch, StepOutputKind};
use nestling_core::kv_cache::PageAllocator;
use nestling_core::runner::ModelRunner;
use nestling_cpu::Cpu;
use nestling_formats::{DType, Level};
use nestling_runtime::model::RunnerOptions;
use nestling_testkit::runners::{
    LOGIT_TOLERANCE, Sequence, checkpoint, golden_json, golden_tensors, runner, step, token_list,
};

use crate::harness::directory;

/// Reads a BF16 tensor from a safetensors file.
fn bf16_tensor(path: &Path, name: &str) -> Vec<f32> {
    let bytes = std::fs::read(path).unwrap();
    let (length, rest) = bytes.split_first_chunk().unwrap();
    let (header, data) = rest.split_at(u64::from_le_bytes(*length) as usize);
    let header: serde_json::Value = serde_json::from_slice(header).unwrap();
    assert_eq!(header[name]["dtype"], "BF16");
    let at = |i: usize| header[name]["data_offsets"][i].as_u64().unwrap() as usize;
    let mut values = vec![0.0; (at(1) - at(0)) / 2];
    DType::Bf16.decode(&data[at(0)..at(1)], &mut values);
    values
}

/// Multiplied by the head's weights from the file, hidden rows yield the logits of the golden file.
#[test]
fn hidden_rows_times_the_head_are_the_logits_of_transformers() {
    let name = "olmoe";
    let golden = directory(&format!("{name}-golden"));
    let texts = golden_json(&golden.join("golden.json"));
    let columns = &golden_tensors(&golden.join("golden.safetensors"))["columns"];
    let stride = texts["stride"].as_u64().unwrap() as usize;
    let index = golden_json(&directory(name).join("model.safetensors.index.json"));
    let shard = index["weight_map"]["lm_head.weight"].as_str().unwrap();
    let head = bf16_tensor(&directory(name).join(shard), "lm_head.weight");
    let source = checkpoint(&directory(name));
    let config = source.config();
    let (vocab_size, hidden_size) = (config.vocab_size, config.hidden_size);
    assert_eq!(head.len(), vocab_size * hidden_size);
    let mut runner = runner(Cpu::new(2), &source, &RunnerOptions::default());
    let mut position = 0;
    for tokens in texts["sequences"].as_array().unwrap().iter().map(token_list) {
        let mut allocator = PageAllocator::new(runner.limits().pages as u32);
        let mut batch = Batch { output: StepOutputKind::Hidden, ..Batch::default() };
        Sequence::new(Level::L8).push(&tokens, |_| true, &mut batch, &mut allocator);
        for hidden in step(&mut runner, &batch).hidden.chunks_exact(hidden_size) {
            for column in 0..vocab_size / stride {
                let token = (position + column * stride) % vocab_size;
                let weights = &head[token * hidden_size..][..hidden_size];
                let products =
                    weights.iter().zip(hidden).map(|(w, x)| f64::from(*w) * f64::from(*x));
                let expected = f64::from(columns[position * (vocab_size / stride) + column]);
                let found = products.sum::<f64>();
                assert!(
                    (found - expected).abs() <= f64::from(LOGIT_TOLERANCE),
                    "{found}, {expected}"
                );
            }
            position += 1;
        }
    }
    assert!(position > 10);
}
