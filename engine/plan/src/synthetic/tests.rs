use std::sync::Arc;

use nestling_formats::store::Store;
use nestling_formats::{Level, MatrixKind};
use nestling_import::ModelShape;

use super::*;
use nestling_core::batch::{Batch, LevelPolicy, Row, SequenceRef};
use nestling_core::kv_cache::PageId;
use nestling_core::recurrent::{StateId, StateTrack};
use nestling_core::runner::{ModelRunner, StepStats};
use nestling_cpu::Cpu;
use nestling_experts::expert::{ExpertSource, StoreSource};
use nestling_runtime::model::{Runner, RunnerOptions};

fn options() -> SyntheticOptions {
    let shape = SyntheticShape::TINY;
    SyntheticOptions { shape, top_level: Level::L4, router_skew: 0.5, seed: 1 }
}

fn write(options: &SyntheticOptions) -> (Arc<Store>, SyntheticReport) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tiny.nest");
    let report = write_synthetic_store(&path, options, &CancelToken::new(), &mut |_, _| {});
    // The open file stays readable after its folder is removed.
    (Arc::new(Store::open(&path).unwrap()), report.unwrap())
}

/// Runs one step over tokens of one sequence, starting at position 0.
fn step(store: &Arc<Store>, tokens: impl ExactSizeIterator<Item = u32>) -> StepStats {
    let source: Arc<dyn ExpertSource> =
        Arc::new(StoreSource::owned(Arc::clone(store), None).unwrap());
    let options = RunnerOptions { kv_pages: Some(2), states: Some(1), ..RunnerOptions::default() };
    let cancel = CancelToken::new();
    let mut runner = Runner::load(Cpu::new(1), source, &options, &cancel, &mut |_, _| {}).unwrap();
    let row = |(position, token)| Row {
        token,
        position,
        sequence: 0,
        wants_logits: true,
        levels: LevelPolicy::Fixed(store.level()),
    };
    let states = StateTrack::in_place(StateId(0), 0, tokens.len());
    let sequences = vec![SequenceRef { pages: vec![PageId(0), PageId(1)], states }];
    let batch = Batch::new((0..).zip(tokens).map(row).collect(), sequences);
    let output = runner.step_blocking(&batch, &cancel).unwrap();
    assert!(output.failures.is_empty() && output.logits.iter().all(|logit| logit.is_finite()));
    output.stats
}

#[test]
fn a_store_is_whole_and_the_same_for_the_same_seed() {
    let (store, report) = write(&options());
    let damage = store.verify(&mut |_| std::ops::ControlFlow::Continue(())).unwrap().damage;
    assert!(damage.is_empty(), "{damage:?}");
    assert_eq!(store.lengths().0, report.store_bytes);
    assert_eq!(write(&options()).0.id(), store.id());
    assert_ne!(write(&SyntheticOptions { seed: 2, ..options() }).0.id(), store.id());
}

#[test]
fn every_matrix_has_the_top_level_and_the_head_six() {
    for (top, head) in [(Level::L2, Level::L6), (Level::L4, Level::L6), (Level::L8, Level::L8)] {
        let (store, _) = write(&SyntheticOptions { top_level: top, ..options() });
        assert_eq!(store.level(), top);
        let matrices = store.groups().iter().flat_map(|group| &group.matrices);
        for matrix in matrices {
            let expected = if matrix.kind == MatrixKind::Head { head } else { top };
            assert_eq!(matrix.levels.iter().flatten().max(), Some(&expected), "{:?}", matrix.kind);
        }
    }
}

/// A step reads the planned bytes per token, and 64 tokens do not all choose the same experts.
#[test]
fn tokens_read_what_the_report_says_and_choose_different_experts() {
    let (store, report) = write(&options());
    let one = step(&store, [7].into_iter()).weight_bytes as f64;
    let expected = report.token_bytes as f64;
    assert!((one / expected - 1.0).abs() < 0.02, "{one} of {expected}");
    let many = step(&store, (0..64u32).map(|token| token * 13)).weight_bytes as f64;
    let (all, four) = (32.0, 8.0); // of both layers
    let per_expert = report.bytes_per_expert as f64;
    let used = four + (many - one) / per_expert;
    assert!(used > 0.7 * all, "64 tokens use only {used} of {all} experts");
}

/// Published parameter counts of complete models, in billions. The last two have a head of their own here, of 0.134
/// and 0.154 billion, which is published as the embedding.
#[test]
fn shapes_are_those_of_published_models() {
    let published = [6.92, 30.5, 15.7, 29.94, 20.91, 80.0, 8.34 + 0.134, 6.94 + 0.154];
    for (shape, billions) in SyntheticShape::ALL.iter().zip(published) {
        let config = text::config(&text::assets(shape).unwrap()).unwrap();
        assert_eq!(config.num_hidden_layers, shape.num_hidden_layers);
        let found = ModelShape::new(&config).weights() as f64 / 1e9;
        assert!((found / billions - 1.0).abs() < 0.01, "{}: {found} of {billions}", shape.name);
    }
}

/// Returns a small shape: another shape with some keys changed.
fn small(shape: &SyntheticShape, layers: usize, changes: &str) -> SyntheticShape {
    let object = |json: &str| -> serde_json::Map<String, serde_json::Value> {
        serde_json::from_str(json).unwrap()
    };
    let mut keys = object(shape.keys);
    keys.extend(object(changes));
    let keys = serde_json::Value::Object(keys).to_string();
    SyntheticShape { num_hidden_layers: layers, keys: keys.leak(), ..shape.clone() }
}

/// All kinds of layers are written, compute finite numbers, and spread tokens over experts.
#[test]
fn every_family_of_the_shapes_runs() {
    let shapes = [
        small(
            &SyntheticShape::DEEPSEEK_V2_LITE,
            3,
            r#"{"hidden_size": 256, "intermediate_size": 128, "kv_lora_rank": 64,
                "moe_intermediate_size": 64, "n_routed_experts": 16, "num_experts_per_tok": 4,
                "num_attention_heads": 2, "num_key_value_heads": 2, "qk_nope_head_dim": 32,
                "qk_rope_head_dim": 16, "v_head_dim": 32, "vocab_size": 1024}"#,
        ),
        small(
            &SyntheticShape::GLM_4_7_FLASH,
            3,
            r#"{"hidden_size": 256, "intermediate_size": 128, "kv_lora_rank": 64,
                "moe_intermediate_size": 64, "n_routed_experts": 16, "q_lora_rank": 96,
                "num_attention_heads": 2, "num_key_value_heads": 2, "qk_nope_head_dim": 32,
                "qk_rope_head_dim": 16, "v_head_dim": 32, "vocab_size": 1024}"#,
        ),
        small(
            &SyntheticShape::GPT_OSS_20B,
            2,
            r#"{"hidden_size": 256, "intermediate_size": 64, "num_local_experts": 16,
                "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32,
                "vocab_size": 1024}"#,
        ),
        small(
            &SyntheticShape::QWEN3_NEXT_80B_A3B,
            4,
            r#"{"hidden_size": 256, "intermediate_size": 64, "moe_intermediate_size": 64,
                "num_experts": 16, "num_experts_per_tok": 4, "num_attention_heads": 2,
                "num_key_value_heads": 1, "head_dim": 32, "linear_num_key_heads": 4,
                "linear_num_value_heads": 8, "linear_key_head_dim": 16,
                "linear_value_head_dim": 16, "shared_expert_intermediate_size": 32,
                "vocab_size": 1024}"#,
        ),
        small(
            &SyntheticShape::LFM2_8B_A1B,
            3,
            r#"{"hidden_size": 256, "intermediate_size": 128, "moe_intermediate_size": 64,
                "layer_types": ["conv", "full_attention", "conv"], "num_dense_layers": 1,
                "num_experts": 16, "num_attention_heads": 4, "num_key_value_heads": 2,
                "vocab_size": 1024}"#,
        ),
        small(
            &SyntheticShape::GRANITE_4_H_TINY,
            3,
            r#"{"hidden_size": 256, "intermediate_size": 64, "mamba_d_head": 32,
                "layer_types": ["mamba", "attention", "mamba"], "mamba_d_state": 16,
                "mamba_n_heads": 16, "num_local_experts": 16, "num_experts_per_tok": 4,
                "num_attention_heads": 4, "num_key_value_heads": 2,
                "shared_intermediate_size": 32, "vocab_size": 1024}"#,
        ),
    ];
    for shape in shapes {
        let name = shape.name;
        let (store, report) = write(&SyntheticOptions { shape, ..options() });
        let one = step(&store, [7].into_iter()).weight_bytes as f64;
        let expected = report.token_bytes as f64;
        // Matrices are small here, and steps count neither padding nor biases of experts.
        assert!((one / expected - 1.0).abs() < 0.05, "{name}: {one} of {expected}");
        let tokens: Vec<u32> = (0..64).map(|token| token * 13).collect();
        let many = step(&store, tokens.into_iter()).weight_bytes as f64;
        let all = report.expert_bytes as f64;
        let used = (many - report.dense_bytes as f64) / all;
        assert!(used > 0.7, "{name}: 64 tokens use only {used} of all experts");
    }
}

#[test]
fn skew_makes_some_experts_busier() {
    let share =
        |router_skew| write(&SyntheticOptions { router_skew, ..options() }).1.busiest_shares[1];
    let (even, half, one) = (share(0.0), share(0.5), share(1.0));
    assert!((0.25..0.3).contains(&even), "{even}");
    assert!(even + 0.1 < half && half + 0.1 < one, "{even} {half} {one}");
}

#[test]
fn a_cancelled_store_leaves_nothing_behind() {
    let folder = tempfile::tempdir().unwrap();
    let cancel = CancelToken::new();
    cancel.cancel();
    let path = folder.path().join("tiny.nest");
    let result = write_synthetic_store(&path, &options(), &cancel, &mut |_, _| {});
    assert!(matches!(result, Err(EngineError::Cancelled)));
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}
