//! Conversion of GGUF files: bits per matrix, reported errors, and resumption with the same bytes.

use std::path::Path;
use std::sync::Arc;

use nestling_convert::convert::{ConvertError, ConvertOptions, ConvertReport, SourceBits, convert};
use nestling_core::CancelToken;
use nestling_core::weights::MatrixWeights;
use nestling_cpu::Cpu;
use nestling_experts::expert::StoreSource;
use nestling_experts::expert::source::ExpertSource;
use nestling_formats::store::{GroupId, Store};
use nestling_formats::{Level, MatrixId, MatrixKind};
use nestling_import::{Checkpoint, ExpertFormat};
use nestling_runtime::model::RunnerOptions;
use nestling_runtime::{Engine, EngineOptions, GenerateOptions, Input, Model, ModelOptions};

use super::{MODELS, data, json};
use nestling_testkit::runners::{all_logits, runner, token_list};

fn made(name: &str, path: &Path, options: &ConvertOptions) -> ConvertReport {
    let checkpoint = Checkpoint::open(data(&format!("{name}.gguf"))).unwrap();
    convert(&checkpoint, path, options, &CancelToken::new(), &mut |_| {}).unwrap()
}

fn top(store: &Store, id: &GroupId, kind: MatrixKind) -> Level {
    let group = store.groups().iter().find(|group| group.id == *id).unwrap();
    let matrix = group.matrices.iter().find(|matrix| matrix.kind == kind).unwrap();
    matrix.levels.iter().flatten().max().copied().unwrap()
}

#[test]
fn every_matrix_has_at_most_the_bits_of_its_source() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("k.nest");
    let report = made("k-quants", &path, &ConvertOptions::default());
    let store = Store::open(&path).unwrap();
    let (dense, expert) = (GroupId::Dense { layer: 0 }, GroupId::expert_of(0, 1));
    for (id, kind, level) in [
        (&GroupId::Embedding, MatrixKind::Embedding, Level::L3), // Q3_K
        (&GroupId::Head, MatrixKind::Head, Level::L6),           // Q6_K
        (&dense, MatrixKind::Query, Level::L4),                  // Q5_K
        (&dense, MatrixKind::Key, Level::L4),                    // IQ4_XS
        (&dense, MatrixKind::Value, Level::L6),                  // Q8_0, with experts of level 4
        (&expert, MatrixKind::Gate, Level::L2),                  // Q2_K
        (&expert, MatrixKind::Up, Level::L4),                    // Q4_K
        (&expert, MatrixKind::Down, Level::L4),                  // IQ4_XS
    ] {
        assert_eq!(top(&store, id, kind), level, "{id:?} {kind:?}");
    }
    assert_eq!(store.level(), Level::L4);
    let errors: Vec<_> = report.errors.by_kind().collect();
    let of = |kind, expert| errors.iter().find(|e| (e.0, e.1) == (kind, expert)).unwrap().2;
    // With two bits, normally distributed weights lose a third; with eight, almost nothing.
    let (two, four, six) =
        (of(MatrixKind::Gate, true), of(MatrixKind::Up, true), of(MatrixKind::Head, false));
    assert!(two < 0.4 && four < 0.11 && six < 0.03, "{two} {four} {six}");
    assert!(two > 2.0 * four && four > 2.0 * six && six > 0.0);
    let overall = report.errors.overall().unwrap();
    assert!(overall > six && overall < two);
}

#[test]
fn more_bits_are_given_when_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("all.nest");
    let mut options = ConvertOptions::default();
    options.source_bits = SourceBits::Any;
    let report = made("k-quants", &path, &options);
    let store = Store::open(&path).unwrap();
    assert_eq!(store.level(), Level::L8);
    assert_eq!(top(&store, &GroupId::expert_of(0, 1), MatrixKind::Gate), Level::L8);
    assert!(report.errors.overall().unwrap() < 0.01);
}

#[test]
fn every_store_runs_at_its_levels() {
    for name in MODELS {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tiny.nest");
        made(name, &path, &ConvertOptions::default());
        let store = Arc::new(Store::open(&path).unwrap());
        let tokens = token_list(&json(&format!("{name}.json"))["tokens"]);
        for level in Level::ALL.into_iter().filter(|level| *level <= store.level()) {
            let source = StoreSource::owned(Arc::clone(&store), Some(level)).unwrap();
            let source: Arc<dyn ExpertSource> = Arc::new(source);
            let mut runner = runner(Cpu::new(1), &source, &RunnerOptions::default());
            let logits = all_logits(&mut runner, &tokens, level, 512);
            assert!(logits.iter().all(|logit| logit.is_finite()), "{name} {level}");
        }
        let engine = Engine::new(EngineOptions::default()).unwrap();
        let model =
            Model::open(&engine, &path, &ModelOptions::default(), &mut |_| {}, &CancelToken::new())
                .unwrap();
        let options = GenerateOptions { max_tokens: Some(4), ..GenerateOptions::greedy() };
        let mut session = model.session();
        let generation = session.generate(Input::Text("Once upon".into()), &options).unwrap();
        assert!(generation.count() > 0, "{name}");
    }
}

#[test]
fn an_interrupted_import_goes_on_to_the_same_bytes() {
    let folder = tempfile::tempdir().unwrap();
    let (whole, parts) = (folder.path().join("whole.nest"), folder.path().join("parts.nest"));
    let options = ConvertOptions::default();
    made("qwen3-moe", &whole, &options);
    let checkpoint = Checkpoint::open(data("qwen3-moe.gguf")).unwrap();
    for stop in [3, 8] {
        let cancel = CancelToken::new();
        let mut seen = 0;
        let stopped = convert(&checkpoint, &parts, &options, &cancel, &mut |_| {
            seen += 1;
            if seen == stop {
                cancel.cancel();
            }
        });
        assert!(matches!(stopped, Err(ConvertError::Cancelled)), "{stop}");
    }
    let report = made("qwen3-moe", &parts, &options);
    assert!(report.resumed_bytes > 0);
    assert!(std::fs::read(&whole).unwrap() == std::fs::read(&parts).unwrap());
}

/// MXFP4 experts are exact at level 4, and the store has no planes above it.
#[test]
fn mxfp4_experts_are_exact_at_level_4() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("mxfp4.nest");
    made("gpt-oss", &path, &ConvertOptions::default());
    let checkpoint = Checkpoint::open(data("gpt-oss.gguf")).unwrap();
    assert_eq!(checkpoint.config().expert_format, ExpertFormat::Mxfp4);
    let store = Arc::new(Store::open(&path).unwrap());
    assert_eq!(store.level(), Level::L4);
    let source = StoreSource::owned(store, None).unwrap();
    for (layer, expert) in (0..2).flat_map(|layer| (0..5).map(move |expert| (layer, expert))) {
        for (kind, matrix) in source.matrices(&GroupId::expert_of(layer, expert)).unwrap().list {
            let id = MatrixId { kind, layer: Some(layer), expert: Some(expert) };
            let expected = checkpoint.read_matrix(id).unwrap();
            let MatrixWeights::Nested(matrix) = matrix else { panic!("{id:?} is not nested") };
            let view = matrix.view();
            assert_eq!(view.level(), Level::L4);
            let mut row = vec![f32::NAN; view.cols()];
            for (index, expected) in expected.chunks(view.cols()).enumerate() {
                view.dequantize_row(Level::L4, index, &mut row).unwrap();
                assert_eq!(row, expected, "{id:?} row {index}");
            }
        }
    }
}
