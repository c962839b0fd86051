//! Models from stores: the same output for all sources of one level.
#![expect(unsafe_code, reason = "maps files that the test alone knows")]

use std::fs;
use std::path::Path;
use std::sync::Arc;

use nestling_core::CancelToken;
use nestling_core::error::EngineError;
use nestling_core::runner::ModelRunner;
use nestling_core::weights::{ActivationMode, MatrixWeights};
use nestling_cpu::reference::Reference;
use nestling_experts::expert::StoreSource;
use nestling_experts::expert::source::ExpertSource;
use nestling_formats::nested::Layout;
use nestling_formats::store::{GroupId, MappedStore, OpenOptions, Store, StoreError};
use nestling_formats::{Level, MatrixKind, Plane};
use nestling_runtime::model::Runner;
use nestling_runtime::model::RunnerOptions;

use super::build::{Codes, Recipe, Tied, build_store, build_store_with};
use nestling_testkit::runners::{all_logits, checkpoint, data, runner, runners, some_tokens};

fn open(path: &Path) -> Arc<Store> {
    Arc::new(Store::open(path).unwrap())
}

fn owned(path: &Path, level: Level) -> Arc<dyn ExpertSource> {
    Arc::new(StoreSource::owned(open(path), Some(level)).unwrap())
}

fn mapped(path: &Path, level: Level) -> Arc<dyn ExpertSource> {
    // SAFETY: no other process knows the file, and this test no longer writes it.
    let mapped = unsafe { MappedStore::new(open(path)) }.unwrap();
    Arc::new(StoreSource::mapped(mapped, Some(level)).unwrap())
}

fn bits(source: &Arc<dyn ExpertSource>, level: Level) -> Vec<u32> {
    let tokens = some_tokens(40, source.config().vocab_size, 3);
    let mut runner = runner(Reference, source, &RunnerOptions::default());
    all_logits(&mut runner, &tokens, level, 40).iter().map(|logit| logit.to_bits()).collect()
}

/// Builds the store of a checkpoint, and copies cut at the end of each section.
fn stores(name: &str, recipe: &Recipe) -> (tempfile::TempDir, Vec<(Level, std::path::PathBuf)>) {
    let directory = tempfile::tempdir().unwrap();
    let whole = directory.path().join("whole.nest");
    build_store(&data(name), &whole, recipe);
    let store = open(&whole);
    let bytes = fs::read(&whole).unwrap();
    let sections = store.index().sections().iter().enumerate();
    let cuts = sections.map(|(number, section)| {
        let path = directory.path().join(format!("{}.nest", section.name));
        fs::write(&path, &bytes[..section.end as usize]).unwrap();
        (store.index().complete_level(number + 1).unwrap(), path)
    });
    let cuts = cuts.collect();
    (directory, cuts)
}

#[test]
fn whole_and_cut_owned_and_mapped_give_the_same_bits() {
    for (name, down_offset) in [("tiny-qwen3-moe", 1), ("tiny-tied", 0)] {
        let recipe = Recipe { down_offset, ..Recipe::default() };
        let (directory, cuts) = stores(name, &recipe);
        let whole = directory.path().join("whole.nest");
        let all = owned(&whole, Level::L8);
        let mut last = None;
        for (level, cut) in cuts {
            assert_eq!(open(&cut).level(), level);
            let expected = bits(&owned(&cut, level), level);
            assert!(bits(&owned(&whole, level), level) == expected, "{name} {level} whole");
            assert!(bits(&mapped(&cut, level), level) == expected, "{name} {level} mapped");
            assert!(bits(&all, level) == expected, "{name} {level} with more planes loaded");
            assert!(last.replace(expected.clone()) != Some(expected), "{name} {level} is new");
            let above = Level::ALL.into_iter().find(|above| *above > level);
            if let Some(above) = above {
                let error = StoreSource::owned(open(&cut), Some(above)).err().unwrap();
                assert!(matches!(error, EngineError::LevelMissing { .. }), "{error}");
            }
        }
    }
}

#[test]
fn every_encoder_gives_the_same_bits_at_every_level_and_chunking() {
    for name in ["tiny-qwen3-moe", "tiny-tied"] {
        let (directory, _) = stores(name, &Recipe::default());
        let path = directory.path().join("whole.nest");
        for source in [owned(&path, Level::L8), mapped(&path, Level::L8)] {
            let tokens = some_tokens(40, source.config().vocab_size, 4);
            for activations in [ActivationMode::Int8, ActivationMode::Float] {
                let options = RunnerOptions { activations, ..RunnerOptions::default() };
                let mut all = runners(&source, &options);
                for level in Level::ALL {
                    let mut expected = None;
                    for (encoder, runner) in &mut all {
                        // The reference is too slow for all chunkings.
                        let chunks: &[usize] =
                            if encoder == "reference" { &[40] } else { &[40, 1, 9] };
                        for &chunk in chunks {
                            let found = all_logits(&mut **runner, &tokens, level, chunk);
                            let expected = expected.get_or_insert_with(|| found.clone());
                            assert!(
                                found == *expected,
                                "{name} {encoder} {activations:?} level {level} chunk {chunk}"
                            );
                        }
                    }
                }
            }
        }
    }
}

/// Mean square difference of two lists of logits. The mean of each row is subtracted, since no distribution
/// depends on it.
fn distance(a: &[f32], b: &[f32]) -> f64 {
    let square = |(a, b): (&f32, &f32)| (f64::from(*a) - f64::from(*b)).powi(2);
    a.iter().zip(b).map(square).sum::<f64>() / a.len() as f64
}

#[test]
fn more_planes_come_closer_to_the_unquantized_model() {
    for name in ["tiny-qwen3-moe", "tiny-tied"] {
        let unquantized = checkpoint(&data(name));
        let tokens = some_tokens(60, unquantized.config().vocab_size, 9);
        let mut reference = runner(Reference, &unquantized, &RunnerOptions::default());
        let expected = all_logits(&mut reference, &tokens, Level::L8, 60);
        let (directory, _) = stores(name, &Recipe::default());
        let source = owned(&directory.path().join("whole.nest"), Level::L8);
        for activations in [ActivationMode::Float, ActivationMode::Int8] {
            let options = RunnerOptions { activations, ..RunnerOptions::default() };
            let mut runner = runner(Reference, &source, &options);
            let mut last = f64::INFINITY;
            for level in Level::ALL {
                let found = all_logits(&mut runner, &tokens, level, 60);
                let distance = distance(&found, &expected);
                assert!(distance < last, "{name} {activations:?} level {level}: {distance}");
                last = distance;
            }
        }
    }
}

#[test]
fn tied_weights_give_the_same_bits_in_each_form_and_are_held_once() {
    for codes in [Codes::Nested, Codes::Q8] {
        let form = |tied| stores("tiny-tied", &Recipe { tied, codes, ..Recipe::default() });
        let forms = [Tied::Twice, Tied::RowMajor, Tied::Tiled].map(form);
        let paths = forms.each_ref().map(|(folder, _)| folder.path().join("whole.nest"));
        let level_max = open(&paths[0]).level();
        for level in [Level::L2, level_max] {
            let expected = bits(&owned(&paths[0], level), level);
            for path in &paths {
                assert!(bits(&owned(path, level), level) == expected, "{codes:?} {level}");
                assert!(bits(&mapped(path, level), level) == expected, "{codes:?} {level} mapped");
            }
        }
        let sizes = paths.each_ref().map(|path| fs::metadata(path).unwrap().len());
        assert!(sizes[2] < sizes[0], "{sizes:?}");
        let source = owned(&paths[2], level_max);
        let of = |id, kind| source.matrices(&id).unwrap().take(kind, 512, 44).unwrap();
        let head = of(GroupId::Head, MatrixKind::Head);
        let MatrixWeights::Nested(head) = head else { panic!("{head:?}") };
        assert_eq!(head.layout(), Layout::Tile16);
        let ties = paths.each_ref().map(|path| owned(path, level_max).is_tied());
        assert_eq!(ties, [false, true, true]);
    }
}

#[test]
fn a_store_without_an_embedding_or_a_head_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("none.nest");
    let config = fs::read_to_string(data("tiny-tied").join("config.json")).unwrap();
    for (ties, tied, missing) in [
        ("true", Tied::Missing, "embedding"),
        ("true", Tied::HeadAlone, "embedding"),
        ("false", Tied::Tiled, "head"),
    ] {
        let (tie, key) = ("\"tie_word_embeddings\": true", "\"tie_word_embeddings\": ");
        let config = config.replace(tie, &format!("{key}{ties}"));
        let recipe = Recipe { tied, ..Recipe::default() };
        build_store_with(&data("tiny-tied"), &path, &recipe, config.as_bytes());
        let source = Arc::new(StoreSource::owned(open(&path), None).unwrap());
        let (options, cancel) = (RunnerOptions::default(), CancelToken::new());
        let loaded = Runner::load(Reference, source, &options, &cancel, &mut |_, _| {});
        let error = loaded.err().unwrap();
        let expected = EngineError::mismatch(missing, "in the store", "missing").to_string();
        assert_eq!(error.to_string(), expected);
        fs::remove_file(&path).unwrap();
    }
}

#[test]
fn levels_of_a_matrix_follow_the_sections_and_its_offset() {
    let recipe = Recipe { down_offset: 1, ..Recipe::default() };
    let (_directory, cuts) = stores("tiny-qwen3-moe", &recipe);
    for (level, cut) in cuts {
        let source = owned(&cut, level);
        let prefix = |group: &GroupId, kind: MatrixKind| {
            let matrices = source.matrices(group).unwrap().list;
            let (_, matrix) = matrices.into_iter().find(|(found, _)| *found == kind).unwrap();
            let MatrixWeights::Nested(matrix) = matrix else { panic!("{kind:?} is not nested") };
            matrix.prefix(level).unwrap()
        };
        let expert = GroupId::expert_of(0, 4);
        assert_eq!(prefix(&expert, MatrixKind::Gate), level);
        let down = Level::ALL[(level.index() + 1).min(4)];
        assert_eq!(prefix(&expert, MatrixKind::Down), down);
        let dense = if level == Level::L8 { Level::L8 } else { Level::L6 };
        assert_eq!(prefix(&GroupId::Dense { layer: 1 }, MatrixKind::Down), dense);
        assert_eq!(prefix(&GroupId::Embedding, MatrixKind::Embedding), dense);
        let head = if level >= Level::L4 { Level::L8 } else { Level::L6 };
        assert_eq!(prefix(&GroupId::Head, MatrixKind::Head), head);
    }
}

#[test]
fn a_store_with_a_lower_top_level_runs_there() {
    let recipe = Recipe { top: Level::L4, ..Recipe::default() };
    let (directory, cuts) = stores("tiny-qwen3-moe", &recipe);
    assert_eq!(cuts.last().unwrap().0, Level::L4);
    let whole = directory.path().join("whole.nest");
    assert_eq!(open(&whole).level(), Level::L4);
    let found = bits(&owned(&whole, Level::L4), Level::L4);
    assert!(found == bits(&mapped(&whole, Level::L4), Level::L4));
}

#[test]
fn a_damaged_plane_is_an_error_that_names_it() {
    let (directory, _) = stores("tiny-qwen3-moe", &Recipe::default());
    let path = directory.path().join("whole.nest");
    let store = open(&path);
    let group = store.group(&GroupId::expert_of(2, 3)).unwrap();
    let extent = store.extent(group, Plane::P4).unwrap().clone();
    let mut bytes = fs::read(&path).unwrap();
    bytes[extent.offset as usize + 11] ^= 4;
    let damaged = directory.path().join("damaged.nest");
    fs::write(&damaged, &bytes).unwrap();
    let load = |level| {
        let source = StoreSource::owned(open(&damaged), Some(level)).unwrap();
        let (options, cancel) = (RunnerOptions::default(), CancelToken::new());
        Runner::load(Reference, Arc::new(source), &options, &cancel, &mut |_, _| {})
    };
    assert_eq!(load(Level::L3).unwrap().limits().level_max, Some(Level::L3));
    let error = load(Level::L4).err().unwrap();
    assert!(matches!(error, EngineError::Store(StoreError::Damaged { .. })), "{error}");
    let text = error.to_string();
    assert!(text.contains("damaged.nest") && text.contains("expert 3 of layer 2"), "{text}");
}

#[test]
fn a_store_within_a_larger_file_gives_the_same_bits() {
    let (directory, _) = stores("tiny-tied", &Recipe::default());
    let whole = directory.path().join("whole.nest");
    let bytes = fs::read(&whole).unwrap();
    let bundle = directory.path().join("bundle");
    fs::write(&bundle, [&[1; 4096], bytes.as_slice(), &[2; 100]].concat()).unwrap();
    let length = Some(bytes.len() as u64);
    let options = OpenOptions { offset: 4096, length, partial: false };
    let store = Arc::new(Store::open_with(&bundle, &options).unwrap());
    let inside: Arc<dyn ExpertSource> = Arc::new(StoreSource::owned(store, None).unwrap());
    assert!(bits(&inside, Level::L8) == bits(&owned(&whole, Level::L8), Level::L8));
}

#[test]
fn a_store_whose_matrices_do_not_fit_its_configuration_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let copy = directory.path().join("checkpoint");
    fs::create_dir(&copy).unwrap();
    for entry in fs::read_dir(data("tiny-tied")).unwrap() {
        let path = entry.unwrap().path();
        fs::copy(&path, copy.join(path.file_name().unwrap())).unwrap();
    }
    for (from, to, names) in [
        ("\"hidden_size\": 44", "\"hidden_size\": 60", "[512, 60], found [512, 44]"),
        ("\"moe_intermediate_size\": 17", "\"moe_intermediate_size\": 18", "[18, 44]"),
        ("\"num_experts\": 9", "\"num_experts\": 10", "Router of layer 1: expected 440"),
        ("\"num_hidden_layers\": 5", "\"num_hidden_layers\": 6", "layer 5"),
        ("\"head_dim\": 18", "\"head_dim\": 16", "QueryBias of layer 0: expected 48"),
    ] {
        let path = directory.path().join("wrong.nest");
        let config = fs::read_to_string(data("tiny-tied").join("config.json")).unwrap();
        let config = config.replace(from, to).replace("\"layer_types\"", "\"_layer_types\"");
        assert!(config.contains(to), "{to}");
        build_store_with(&copy, &path, &Recipe::default(), config.as_bytes());
        let source = StoreSource::owned(open(&path), None).unwrap();
        let (options, cancel) = (RunnerOptions::default(), CancelToken::new());
        let loaded = Runner::load(Reference, Arc::new(source), &options, &cancel, &mut |_, _| {});
        let error = loaded.err().unwrap().to_string();
        assert!(error.contains(names), "{error}");
    }
}

#[test]
fn loading_stops_when_it_is_cancelled_and_does_not_depend_on_threads() {
    let (directory, _) = stores("tiny-qwen3-moe", &Recipe::default());
    let path = directory.path().join("whole.nest");
    let load = |threads, cancel: &CancelToken| {
        let source = Arc::new(StoreSource::owned(open(&path), None).unwrap());
        let options = RunnerOptions { load_threads: threads, ..RunnerOptions::default() };
        let mut heard = Vec::new();
        let mut progress = |done, all| heard.push((done, all));
        let runner = Runner::load(Reference, source, &options, cancel, &mut progress);
        (runner, heard)
    };
    let tokens = [5, 6, 7];
    let mut expected = None;
    for threads in [1, 2, 9] {
        let (runner, heard) = load(threads, &CancelToken::new());
        assert_eq!(heard, [(1, 4), (2, 4), (3, 4), (4, 4)]);
        let found = all_logits(&mut runner.unwrap(), &tokens, Level::L6, 3);
        assert!(*expected.get_or_insert_with(|| found.clone()) == found);
    }
    let cancel = CancelToken::new();
    cancel.cancel();
    assert!(matches!(load(2, &cancel).0, Err(EngineError::Cancelled)));
}
