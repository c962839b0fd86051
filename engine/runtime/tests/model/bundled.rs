//! The bundled store, if the source tree has it, and the demo checkpoint that it was built from.
#![expect(unsafe_code, reason = "maps the bundled store, which nobody writes")]

use std::path::{Path, PathBuf};
use std::sync::Arc;

use nestling_core::kv_cache::KvDtype;
use nestling_cpu::Cpu;
use nestling_cpu::kernels::Kernels;
use nestling_cpu::threads::ThreadPool;
use nestling_experts::expert::StoreSource;
use nestling_experts::expert::source::ExpertSource;
use nestling_formats::Level;
use nestling_formats::store::{MappedStore, Store};
use nestling_runtime::model::RunnerOptions;

use super::demo::demo_checkpoint;
use nestling_testkit::runners::{
    all_logits, checkpoint, data, golden_json, greedy, runner, token_list,
};

/// Maximum mean divergence of level 8 with int8 activations, in nats.
const LEVEL_8_KL_MAX: f64 = 0.001;

fn bundled_store() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/nestling-storyteller.nest")
}

fn open(path: &Path, mapped: bool, level: Level) -> Arc<dyn ExpertSource> {
    let store = Arc::new(Store::open(path).unwrap());
    let source = if mapped {
        // SAFETY: the bundled store is part of the source tree, and no test writes it.
        let mapped = unsafe { MappedStore::new(store) }.unwrap();
        StoreSource::mapped(mapped, Some(level))
    } else {
        StoreSource::owned(store, Some(level))
    };
    Arc::new(source.unwrap())
}

/// Returns the greedy continuation and the bits of a prompt's logits.
fn output(
    source: &Arc<dyn ExpertSource>,
    level: Level,
    (kernels, threads): (&'static Kernels, usize),
    chunk: usize,
) -> (Vec<u32>, Vec<u32>) {
    let cpu = Cpu::with(Arc::new(ThreadPool::new(threads)), kernels);
    let options = RunnerOptions { kv_dtype: KvDtype::F16, ..RunnerOptions::default() };
    let mut runner = runner(cpu, source, &options);
    let texts = golden_json(&data("demo-golden").join("golden.json"));
    let prompt = token_list(&texts["sequences"][0]);
    let logits = all_logits(&mut runner, &prompt[..100], level, chunk);
    let text = greedy(&mut runner, &prompt[..20], level, 48);
    (text, logits.iter().map(|logit| logit.to_bits()).collect())
}

#[test]
fn one_text_from_every_kernel_thread_count_and_load_mode() {
    let path = bundled_store();
    let whole = Store::open(&path).unwrap().level();
    for level in [Level::L2, Level::L4, Level::L8].into_iter().filter(|level| *level <= whole) {
        let (owned, mapped) = (open(&path, false, level), open(&path, true, level));
        let expected = output(&owned, level, (Kernels::detect(), 2), 100);
        for kernels in Kernels::available() {
            let found = output(&mapped, level, (kernels, 1), 33);
            assert!(found == expected, "level {level}, {}, mapped", kernels.name());
        }
        let found = output(&owned, level, (Kernels::detect(), 3), 64);
        assert!(found == expected, "level {level}, three threads");
    }
}

/// KL divergence of two distributions given as logits, in nats.
fn divergence(reference: &[f32], logits: &[f32]) -> f64 {
    let normalised = |logits: &[f32]| {
        let logits: Vec<f64> = logits.iter().map(|&logit| f64::from(logit)).collect();
        let max = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let log_sum = logits.iter().map(|logit| (logit - max).exp()).sum::<f64>().ln() + max;
        logits.into_iter().map(move |logit| logit - log_sum).collect::<Vec<f64>>()
    };
    let (p, q) = (normalised(reference), normalised(logits));
    p.iter().zip(&q).map(|(p, q)| p.exp() * (p - q)).sum()
}

#[test]
#[ignore = "needs the demo checkpoint, whose folder NESTLING_DEMO_HF names"]
fn divergence_from_the_checkpoint_is_small_and_rises_with_every_lower_level() {
    let (path, directory) = (bundled_store(), demo_checkpoint());
    let texts = golden_json(&data("demo-golden").join("golden.json"));
    let sequences = texts["sequences"].as_array().unwrap().iter().take(3).map(token_list);
    let sequences: Vec<Vec<u32>> = sequences.collect();
    let unquantized = checkpoint(&directory);
    let vocab_size = unquantized.config().vocab_size;
    let mut reference = runner(Cpu::new(2), &unquantized, &RunnerOptions::default());
    let expected: Vec<Vec<f32>> =
        sequences.iter().map(|tokens| all_logits(&mut reference, tokens, Level::L8, 256)).collect();
    let top = Store::open(&path).unwrap().level();
    let options = RunnerOptions { kv_dtype: KvDtype::F16, ..RunnerOptions::default() };
    let mut shipped = runner(Cpu::new(2), &open(&path, false, top), &options);
    let mut last = f64::INFINITY;
    for level in Level::ALL.into_iter().filter(|level| *level <= top) {
        let (mut sum, mut count) = (0.0, 0);
        for (tokens, expected) in sequences.iter().zip(&expected) {
            let found = all_logits(&mut shipped, tokens, level, 256);
            for (p, q) in expected.chunks(vocab_size).zip(found.chunks(vocab_size)) {
                sum += divergence(p, q);
                count += 1;
            }
        }
        let mean = sum / f64::from(count);
        println!("level {level}: mean KL {mean:.6} over {count} positions, as shipped");
        assert!(mean < last, "level {level}: {mean}, the level below has {last}");
        assert!(level != Level::L8 || mean <= LEVEL_8_KL_MAX, "level 8: {mean}");
        last = mean;
    }
}

/// Maximum mean divergence added by an int8 KV cache, in nats.
const INT8_KV_KL_MAX: f64 = 0.001;

#[test]
fn integers_for_keys_and_values_cost_little() {
    let path = bundled_store();
    let source = open(&path, false, Level::L8);
    let texts = golden_json(&data("demo-golden").join("golden.json"));
    let tokens = token_list(&texts["sequences"][0]);
    let logits = |kv_dtype| {
        let options = RunnerOptions { kv_dtype, ..RunnerOptions::default() };
        all_logits(&mut runner(Cpu::new(2), &source, &options), &tokens, Level::L8, 256)
    };
    let vocab_size = source.config().vocab_size;
    let exact = logits(KvDtype::F32);
    let mean = |kv_dtype| {
        let found = logits(kv_dtype);
        let rows = exact.chunks(vocab_size).zip(found.chunks(vocab_size));
        rows.map(|(p, q)| divergence(p, q)).sum::<f64>() / tokens.len() as f64
    };
    let (half, int8) = (mean(KvDtype::F16), mean(KvDtype::Int8));
    println!("mean KL beside f32 keys and values: f16 {half:.7}, int8 {int8:.7}");
    assert!(half < int8 && int8 <= INT8_KV_KL_MAX, "f16 {half}, int8 {int8}");
}
