//! Evaluation of a whole model: results that must hold for any weights.

use std::sync::Arc;

use nestling_convert::convert::{ConvertOptions, convert};
use nestling_convert::judge::{
    JudgeOpenOptions, JudgeOptions, JudgePaths, JudgePoint, JudgeReport, JudgeRow, JudgeSet,
    allocated_point, judge, level_point, mean_level_point,
};
use nestling_core::EngineError;
use nestling_core::cancel::CancelToken;
use nestling_core::kv_cache::KvDtype;
use nestling_cpu::Cpu;
use nestling_experts::expert::{HostOptions, Prefetch, StreamOptions};
use nestling_experts::reads::ReadOptions;
use nestling_experts::residency::ExpertTable;
use nestling_formats::store::Store;
use nestling_formats::{Level, MatrixKind};
use nestling_import::checkpoint::Checkpoint;
use nestling_levels::allocation::Allocation;
use nestling_levels::dual::LevelMode;
use nestling_text::{EncodeOptions, Tokenizer};

use crate::build::{Recipe, build_store};
use crate::demo::demo_checkpoint;
use nestling_testkit::runners::{data, some_tokens};

fn options(store: &Store, sequence_length: usize) -> JudgeOpenOptions {
    let levels = Level::ALL.into_iter().filter(|level| *level <= store.level());
    let points = levels.map(|level| level_point(store, level, None).unwrap()).collect();
    let (kv_dtype, paths) = (KvDtype::F16, JudgePaths::Both);
    let sample = (0..sequence_length as u32).map(|at| at * 7 % 40).collect();
    let (streaming, mode) = (None, LevelMode::Strict);
    JudgeOpenOptions { sequence_length, kv_dtype, paths, streaming, mode, sample, points }
}

fn set(
    store: &Arc<Store>,
    options: &JudgeOpenOptions,
    reference: &str,
    threads: usize,
) -> Result<JudgeSet, EngineError> {
    let checkpoint = Checkpoint::open(data(reference)).unwrap();
    let backend = || Ok(Cpu::new(threads));
    let go = CancelToken::new();
    JudgeSet::open(backend, Arc::clone(store), checkpoint, options, &go, &mut |_, _| {})
}

fn report(store: &Arc<Store>, name: &str, threads: usize) -> JudgeReport {
    judged(store, &options(store, 32), name, threads)
}

fn judged(
    store: &Arc<Store>,
    options: &JudgeOpenOptions,
    name: &str,
    threads: usize,
) -> JudgeReport {
    let mut set = set(store, options, name, threads).unwrap();
    let options = JudgeOptions { sequence_length: 32, sequences_max: None };
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
            assert!(kl(&pair[0]) > kl(&pair[1]), "{name}: {pair:?}");
            assert!(kl_shipped(&pair[0]) > kl_shipped(&pair[1]), "{name}: {pair:?}");
            assert!(pair[0].bits_per_weight < pair[1].bits_per_weight, "{name}: {pair:?}");
        }
        for row in &found.rows {
            let (float, int8) = (row.weights_only, row.shipped.unwrap());
            assert!(kl(row) > 0.0 && float.kl_median <= float.kl_p99, "{name}: {row:?}");
            assert!([float, int8].iter().all(|found| (0.0..=1.0).contains(&found.top1.mean)));
            assert!(float.kl.standard_error.unwrap() > 0.0);
            // Quantizing everything, and int8 activations, can only add to the error.
            assert!(kl_shipped(row) > 0.0, "{name}: {row:?}");
            assert!(row.bits_per_weight > f64::from(row.level.unwrap().bits()), "{row:?}");
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
    let mut options = options_of(&store, vec![level_point(&store, Level::L4, None).unwrap()]);
    let error = set(&store, &options, "tiny-qwen3-moe", 1).err().unwrap();
    assert!(matches!(error, EngineError::Mismatch { .. }), "{error}");
    let error = level_point(&store, Level::L6, None).unwrap_err();
    assert!(matches!(error, EngineError::LevelMissing { asked: 6, held: 4 }), "{error}");
    build_store(&data("tiny-tied"), &path, &Recipe::default());
    options.points.push(level_point(&Store::open(&path).unwrap(), Level::L2, None).unwrap());
    let error = set(&store, &options, "tiny-tied", 1).err().unwrap();
    assert!(error.to_string().contains("store of an allocation"), "{error}");
}

fn options_of(store: &Store, points: Vec<JudgePoint>) -> JudgeOpenOptions {
    JudgeOpenOptions { points, paths: JudgePaths::WeightsOnly, ..options(store, 32) }
}

#[test]
fn allocations_lie_between_the_levels() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("tiny.nest");
    build_store(&data("tiny-qwen3-moe"), &path, &Recipe::default());
    let store = Arc::new(Store::open(&path).unwrap());
    let index = store.index();
    let two = Allocation::of_level(index, Level::L2);
    let down = Allocation::new(index, Level::L8, |group, place| {
        match (group.id.expert(), group.matrices[place].kind) {
            (Some(_), MatrixKind::Down) => Level::L4,
            (Some(_), _) => Level::L2,
            (None, _) => Level::L6,
        }
    });
    let point = |allocation| allocated_point(&store, "mixed".into(), allocation);
    let points = vec![
        level_point(&store, Level::L2, None).unwrap(),
        point(two),
        point(down),
        level_point(&store, Level::L4, None).unwrap(),
        level_point(&store, Level::L4, Some(Level::L2)).unwrap(),
    ];
    let found = judged(&store, &options_of(&store, points), "tiny-qwen3-moe", 1);
    let [level, two, down, four, coarse] = &found.rows[..] else { panic!() };
    assert_eq!((kl(level), level.bytes), (kl(two), two.bytes));
    assert_eq!((level.level, two.level, level.shipped), (Some(Level::L2), None, None));
    assert!(kl(two) > kl(down) && kl(down) > kl(four), "{found:?}");
    // Planes this small occupy a whole page of the file each.
    assert!(two.bytes < down.bytes && down.bytes <= four.bytes);
    assert!(kl(coarse) > kl(four) && coarse.bytes < four.bytes);
    assert_ne!(down.allocation, four.allocation);
}

fn kl(row: &JudgeRow) -> f64 {
    row.weights_only.kl.mean
}

fn kl_shipped(row: &JudgeRow) -> f64 {
    row.shipped.map_or(f64::NAN, |found| found.kl.mean)
}

#[test]
#[ignore = "needs the demo checkpoint, whose folder NESTLING_DEMO_HF names"]
fn the_demo_model_by_level() {
    let directory = demo_checkpoint();
    let checkpoint = Checkpoint::open(&directory).unwrap();
    let tokenizer = checkpoint.asset("tokenizer.json").unwrap().unwrap();
    let tokenizer = Tokenizer::from_bytes("tokenizer.json", &tokenizer).unwrap();
    let text = data("../../../../data/validation.txt");
    let text = std::fs::read_to_string(text).unwrap();
    let tokens = tokenizer.encode(&text, EncodeOptions::default()).unwrap();

    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("demo.nest");
    let go = CancelToken::new();
    convert(&checkpoint, &path, &ConvertOptions::default(), &go, &mut |_| {}).unwrap();
    let store = Arc::new(Store::open(&path).unwrap());
    let options = options(&store, 512);
    let backend = || Ok(Cpu::new(2));
    let mut set =
        JudgeSet::open(backend, store, checkpoint, &options, &go, &mut |_, _| {}).unwrap();
    let options = JudgeOptions { sequence_length: 512, sequences_max: Some(2) };
    let report = judge(set.models(), &tokens, &options, &go, &mut |_| {}).unwrap();
    println!("{report:#?}");

    for pair in report.rows.windows(2) {
        assert!(kl(&pair[0]) > kl(&pair[1]), "{pair:?}");
        assert!(kl_shipped(&pair[0]) > kl_shipped(&pair[1]), "{pair:?}");
    }
    let best = report.rows.last().unwrap();
    assert!(kl(best) <= 0.0005 && kl_shipped(best) <= 0.001, "{best:?}");
    // A 2-bit model that still knows its words.
    assert!(
        report.rows[0].weights_only.perplexity < 1.3 * report.reference_perplexity,
        "{report:?}"
    );
}

#[test]
fn mixes_by_dual_routing_lie_between_the_levels() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("tiny.nest");
    build_store(&data("tiny-qwen3-moe"), &path, &Recipe::default());
    let store = Arc::new(Store::open(&path).unwrap());
    let mean = |mean, highest| mean_level_point(&store, mean, highest, Some(Level::L4)).unwrap();
    let level = |level| level_point(&store, level, Some(Level::L4)).unwrap();
    let points = vec![
        level(Level::L2),
        mean(2.6, Level::L4),
        mean(3.2, Level::L4),
        level(Level::L4),
        mean(8.0, Level::L4),
    ];
    let found = judged(&store, &options_of(&store, points), "tiny-qwen3-moe", 1);
    for pair in found.rows[..4].windows(2) {
        let [a, b] = [&pair[0], &pair[1]];
        assert!(kl(a) > kl(b), "{found:?}");
        let read = |row: &JudgeRow| row.weights_only.expert_bytes_per_token.unwrap();
        assert!(read(a) < read(b), "{found:?}");
    }
    for row in &found.rows[1..3] {
        let (asked, served) =
            (row.mean_level.unwrap(), row.weights_only.expert_mean_level.unwrap());
        assert!((f64::from(asked) - served).abs() < 0.15, "{row:?}");
        assert!(row.threshold.unwrap() > 0.0);
    }
    let [.., four, all] = &found.rows[..] else { panic!() };
    assert_eq!((kl(four), all.threshold), (kl(all), Some(0.0)), "threshold 0 is the level itself");
    let options = options_of(&store, vec![mean(1.9, Level::L4)]);
    let error = set(&store, &options, "tiny-qwen3-moe", 1).err().unwrap();
    assert!(error.to_string().contains("mean level of experts: expected 2 to 4"), "{error}");
}

#[test]
fn a_level_is_judged_with_the_head_that_it_runs_with() {
    let directory = tempfile::tempdir().unwrap();
    let (name, path) = ("families/granite-moe", directory.path().join("tied.nest"));
    let checkpoint = Checkpoint::open(data(name)).unwrap();
    assert!(checkpoint.config().tie_word_embeddings);
    let go = CancelToken::new();
    convert(&checkpoint, &path, &ConvertOptions::default(), &go, &mut |_| {}).unwrap();
    let store = Arc::new(Store::open(&path).unwrap());
    let points = vec![
        level_point(&store, Level::L2, None).unwrap(),
        mean_level_point(&store, 2.0, Level::L2, None).unwrap(),
    ];
    let found = judged(&store, &JudgeOpenOptions { points, ..options(&store, 32) }, name, 1);
    let [level, mean] = &found.rows[..] else { panic!() };
    assert_eq!(kl_shipped(level), kl_shipped(mean), "a mean of 2 up to 2 is level 2");
}

#[test]
fn a_streamed_store_is_judged_as_a_resident_one_and_elastic_serves_no_more() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("tiny.nest");
    build_store(&data("tiny-qwen3-moe"), &path, &Recipe::default());
    let store = Arc::new(Store::open(&path).unwrap());
    let table = ExpertTable::of_store(&store, store.level()).unwrap();
    let budget_bytes = table.least_bytes();
    let streaming = StreamOptions {
        budget_bytes,
        reads: ReadOptions::default(),
        prefetch: Prefetch::default(),
        host: HostOptions::default(),
    };
    let points = vec![mean_level_point(&store, 3.4, Level::L4, None).unwrap()];
    let resident = JudgeOpenOptions { points, ..options(&store, 32) };
    let streamed = JudgeOpenOptions { streaming: Some(streaming), ..resident.clone() };
    let elastic = JudgeOpenOptions { mode: LevelMode::Elastic, ..streamed.clone() };
    let shipped = [resident, streamed, elastic].map(|options| {
        let report = judged(&store, &options, "tiny-qwen3-moe", 1);
        report.rows[0].shipped.unwrap()
    });
    assert_eq!(shipped[0], shipped[1]);
    let [strict, elastic] =
        [&shipped[1], &shipped[2]].map(|found| found.expert_mean_level.unwrap());
    assert!(elastic < strict && elastic >= 2.0, "{elastic} of {strict}");
}
