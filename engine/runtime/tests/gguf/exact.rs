//! Exact stores of GGUF files: the file's weights, bit for bit.

use std::path::Path;
use std::sync::Arc;

use nestling_convert::convert::{
    ConvertError, ConvertOptions, ConvertReport, SourceBlocks, convert,
};
use nestling_core::CancelToken;
use nestling_core::weights::{ActivationMode, MatrixWeights};
use nestling_cpu::Cpu;
use nestling_experts::expert::StoreSource;
use nestling_experts::expert::source::ExpertSource;
use nestling_formats::nested::TILE_ROWS;
use nestling_formats::store::{GroupId, Store};
use nestling_formats::{ExpertId, Level, MatrixId, MatrixKind};
use nestling_import::Checkpoint;
use nestling_runtime::model::RunnerOptions;

use super::{MODELS, NVFP4, data, json};
use crate::logits::tolerance;
use nestling_testkit::runners::{all_logits, golden_tensors, runner, token_list};

fn options() -> ConvertOptions {
    let mut options = ConvertOptions::default();
    options.source_blocks = SourceBlocks::Exact;
    options
}

fn made(name: &str, path: &Path) -> ConvertReport {
    let checkpoint = Checkpoint::open(data(&format!("{name}.gguf"))).unwrap();
    convert(&checkpoint, path, &options(), &CancelToken::new(), &mut |_| {}).unwrap()
}

fn group(id: MatrixId) -> GroupId {
    match (id.kind, id.layer, id.expert) {
        (MatrixKind::Embedding, ..) => GroupId::Embedding,
        (MatrixKind::Head, ..) => GroupId::Head,
        (_, Some(layer), Some(expert)) => GroupId::Expert(ExpertId { layer, expert }),
        (_, Some(layer), None) => GroupId::Dense { layer },
        _ => panic!("{id:?}"),
    }
}

#[test]
fn every_weight_of_a_block_is_that_of_the_file() {
    for name in MODELS.iter().chain([&NVFP4]) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("exact.nest");
        let report = made(name, &path);
        let checkpoint = Checkpoint::open(data(&format!("{name}.gguf"))).unwrap();
        let source = StoreSource::owned(Arc::new(Store::open(&path).unwrap()), None).unwrap();
        let mut coded = 0;
        for shape in &checkpoint.shape().matrices {
            let is_exact = checkpoint.matrix(shape.id).unwrap().blocks().is_some();
            if !is_exact || shape.rows < TILE_ROWS {
                coded += usize::from(shape.rows >= TILE_ROWS);
                continue;
            }
            let matrices = source.matrices(&group(shape.id)).unwrap().list;
            let (_, matrix) = matrices.iter().find(|(kind, _)| *kind == shape.id.kind).unwrap();
            let MatrixWeights::Nested(matrix) = matrix else { panic!("{name} {:?}", shape.id) };
            let view = matrix.view();
            let expected = checkpoint.read_matrix(shape.id).unwrap();
            let mut row = vec![f32::NAN; view.cols()];
            for (index, expected) in expected.chunks(view.cols()).enumerate() {
                view.dequantize_row(view.level(), index, &mut row).unwrap();
                let bits = |row: &[f32]| row.iter().map(|w| w.to_bits()).collect::<Vec<_>>();
                assert!(bits(&row) == bits(expected), "{name} {:?} row {index}", shape.id);
            }
        }
        // Only quantized weights have an error.
        assert_eq!(report.errors.measured() == 0, coded == 0, "{name} {coded}");
        assert_eq!(report.errors.unknown(), 0, "{name}");
    }
}

/// Logits with float activations match llama.cpp on the same file.
#[test]
fn logits_of_exact_stores_are_those_of_llama_cpp() {
    for name in MODELS {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("exact.nest");
        if made(name, &path).errors.measured() > 0 {
            continue;
        }
        let tokens = token_list(&json(&format!("{name}.json"))["tokens"]);
        let store = Arc::new(Store::open(&path).unwrap());
        let top = store.level();
        let source: Arc<dyn ExpertSource> = Arc::new(StoreSource::owned(store, None).unwrap());
        let options =
            RunnerOptions { activations: ActivationMode::Float, ..RunnerOptions::default() };
        let mut exact = runner(Cpu::new(1), &source, &options);
        let logits = all_logits(&mut exact, &tokens, top, 512);
        let expected = &golden_tensors(&data(&format!("{name}.safetensors")))["logits"];
        let found = &logits[logits.len() - expected.len()..];
        let differences = found.iter().zip(expected).map(|(a, b)| (a - b).abs());
        let largest = differences.fold(0.0, f32::max);
        println!("{name}: max |Δlogit| {largest:e}");
        assert!(largest <= tolerance(name), "{name}: {largest}");
        // Int8 activations, at all levels.
        let mut shipped = runner(Cpu::new(1), &source, &RunnerOptions::default());
        for level in Level::ALL.into_iter().filter(|level| *level <= top) {
            let logits = all_logits(&mut shipped, &tokens, level, 512);
            assert!(logits.iter().all(|logit| logit.is_finite()), "{name} {level}");
        }
    }
}

#[test]
fn an_interrupted_exact_import_goes_on_to_the_same_bytes() {
    let folder = tempfile::tempdir().unwrap();
    let (whole, parts) = (folder.path().join("whole.nest"), folder.path().join("parts.nest"));
    made("k-quants", &whole);
    let checkpoint = Checkpoint::open(data("k-quants.gguf")).unwrap();
    for stop in [3, 6] {
        let cancel = CancelToken::new();
        let mut seen = 0;
        let stopped = convert(&checkpoint, &parts, &options(), &cancel, &mut |_| {
            seen += 1;
            if seen == stop {
                cancel.cancel();
            }
        });
        assert!(matches!(stopped, Err(ConvertError::Cancelled)), "{stop}");
    }
    let report = made("k-quants", &parts);
    assert!(report.resumed_bytes > 0);
    assert!(std::fs::read(&whole).unwrap() == std::fs::read(&parts).unwrap());
}

/// A requested level also limits exact matrices, by cutting their codes.
#[test]
fn a_top_level_cuts_codes() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cut.nest");
    let mut options = options();
    options.level = Level::L3;
    let checkpoint = Checkpoint::open(data("qwen3-moe.gguf")).unwrap();
    convert(&checkpoint, &path, &options, &CancelToken::new(), &mut |_| {}).unwrap();
    let store = Store::open(&path).unwrap();
    assert_eq!(store.level(), Level::L3);
}
