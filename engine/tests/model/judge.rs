//! The judge on a whole model: what it must find whatever the weights are.

use std::sync::Arc;

use nestling_engine::EngineError;
use nestling_engine::cancel::CancelToken;
use nestling_engine::convert::{ConvertOptions, convert};
use nestling_engine::cpu::Cpu;
use nestling_engine::judge::{
    JudgeOpenOptions, JudgeOptions, JudgeReport, JudgeSet, bits_per_weight, judge,
};
use nestling_engine::kv_cache::KvDtype;
use nestling_engine::text::{EncodeOptions, Tokenizer};
use nestling_formats::Level;
use nestling_formats::checkpoint::Checkpoint;
use nestling_formats::store::Store;

use crate::build::{Recipe, build_store};
use crate::common::{data, demo_checkpoint, some_tokens};

const OPTIONS: JudgeOpenOptions =
    JudgeOpenOptions { sequence_length: 32, level_max: None, kv_dtype: KvDtype::F16 };

fn set(store: &Arc<Store>, reference: &str, threads: usize) -> Result<JudgeSet, EngineError> {
    let checkpoint = Checkpoint::open(data(reference)).unwrap();
    let backend = || Cpu::new(threads);
    let go = CancelToken::new();
    JudgeSet::open(backend, Arc::clone(store), checkpoint, &OPTIONS, &go, &mut |_, _| {})
}

fn report(store: &Arc<Store>, name: &str, threads: usize) -> JudgeReport {
    let mut set = set(store, name, threads).unwrap();
    let levels = set.levels(&Level::ALL).unwrap();
    let options = JudgeOptions { levels, sequence_length: 32, sequences_max: None };
    let vocab_size = set.models().reference.limits().vocab_size;
    let tokens = some_tokens(32 * 6 + 1, vocab_size, 9);
    judge(set.models(), &tokens, &options, &CancelToken::new(), &mut |_| {}).unwrap()
}

#[test]
fn divergence_falls_with_every_level_both_ways() {
    for name in ["tiny-qwen3-moe", "tiny-tied"] {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("tiny.nest");
        build_store(&data(name), &path, &Recipe::default());
        let store = Arc::new(Store::open(&path).unwrap());
        let found = report(&store, name, 1);
        assert_eq!((found.sequences, found.tokens, found.rows.len()), (6, 192, 5));
        for pair in found.rows.windows(2) {
            assert!(pair[0].kl_mean > pair[1].kl_mean, "{name}: {pair:?}");
            assert!(pair[0].kl_mean_int8 > pair[1].kl_mean_int8, "{name}: {pair:?}");
            assert!(pair[0].bits_per_weight < pair[1].bits_per_weight, "{name}: {pair:?}");
        }
        for row in &found.rows {
            assert!(row.kl_mean > 0.0 && row.kl_median <= row.kl_p99, "{name}: {row:?}");
            assert!((0.0..=1.0).contains(&row.top1) && (0.0..=1.0).contains(&row.top1_int8));
            // Everything from the store, and int8 activations, can only add to the error.
            assert!(row.kl_mean_int8 > 0.0, "{name}: {row:?}");
            assert!(row.bits_per_weight > f64::from(row.level.bits()), "{name}: {row:?}");
            assert_eq!(row.bits_per_weight, bits_per_weight(store.index(), row.level));
        }
        assert_eq!(report(&store, name, 2), found, "{name}: threads change nothing");
    }
}

#[test]
fn a_store_is_judged_against_its_own_checkpoint_only() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("tiny.nest");
    build_store(&data("tiny-tied"), &path, &Recipe { top: Level::L4, ..Recipe::default() });
    let store = Arc::new(Store::open(&path).unwrap());
    let error = set(&store, "tiny-qwen3-moe", 1).err().unwrap();
    assert!(matches!(error, EngineError::Mismatch { .. }), "{error}");
    let set = set(&store, "tiny-tied", 1).unwrap();
    let error = set.levels(&[Level::L2, Level::L6]).unwrap_err();
    assert!(matches!(error, EngineError::LevelMissing { asked: 6, held: 4 }), "{error}");
}

#[test]
fn the_demo_model_by_level() {
    let Some(directory) = demo_checkpoint() else { return };
    let checkpoint = Checkpoint::open(&directory).unwrap();
    let tokenizer = checkpoint.asset("tokenizer.json").unwrap().unwrap();
    let tokenizer = Tokenizer::from_bytes("tokenizer.json", &tokenizer).unwrap();
    let text = data("../../../data/validation.txt");
    let text = std::fs::read_to_string(text).unwrap();
    let tokens = tokenizer.encode(&text, EncodeOptions::default()).unwrap();

    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("demo.nest");
    let go = CancelToken::new();
    convert(&checkpoint, &path, &ConvertOptions::default(), &go, &mut |_| {}).unwrap();
    let store = Arc::new(Store::open(&path).unwrap());
    let options = JudgeOpenOptions { sequence_length: 512, ..OPTIONS };
    let backend = || Cpu::new(2);
    let mut set =
        JudgeSet::open(backend, store, checkpoint, &options, &go, &mut |_, _| {}).unwrap();
    let levels = set.levels(&Level::ALL).unwrap();
    let options = JudgeOptions { levels, sequence_length: 512, sequences_max: Some(2) };
    let report = judge(set.models(), &tokens, &options, &go, &mut |_| {}).unwrap();
    println!("{report:#?}");

    for pair in report.rows.windows(2) {
        assert!(pair[0].kl_mean > pair[1].kl_mean, "{pair:?}");
        assert!(pair[0].kl_mean_int8 > pair[1].kl_mean_int8, "{pair:?}");
    }
    let best = report.rows.last().unwrap();
    assert!(best.kl_mean <= 0.0005 && best.kl_mean_int8 <= 0.001, "{best:?}");
    // A 2-bit model that still knows its words.
    assert!(report.rows[0].perplexity < 1.3 * report.reference_perplexity, "{report:?}");
}
