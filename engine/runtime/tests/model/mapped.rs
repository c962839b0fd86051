//! Damaged or changing mapped stores: an error occurs before invalid data is used.
#![expect(unsafe_code, reason = "maps files that the test alone knows")]

use std::fs;
use std::path::Path;
use std::sync::Arc;

use nestling_core::CancelToken;
use nestling_core::batch::Batch;
use nestling_core::error::EngineError;
use nestling_core::kv_cache::PageAllocator;
use nestling_core::runner::ModelRunner;
use nestling_cpu::Cpu;
use nestling_cpu::reference::Reference;
use nestling_experts::expert::{ExpertSource, StoreSource};
use nestling_formats::store::{MappedStore, Store, StoreError};
use nestling_formats::{Level, Plane};
use nestling_runtime::model::{Runner, RunnerOptions};
use nestling_testkit::runners::{Sequence, data, some_tokens};

use super::build::{Recipe, build_store};

/// Result of loading a model and computing one step.
enum Outcome {
    NotLoaded(EngineError),
    NotComputed(EngineError),
    Logits(Vec<u32>),
}

fn load<B: nestling_core::backend::Backend>(
    backend: B,
    path: &Path,
) -> Result<Runner<B>, EngineError> {
    let store = Arc::new(Store::open(path).unwrap());
    // SAFETY: a change of the mapped file is the case under test; the engine must notice it before reading.
    let mapped = unsafe { MappedStore::new(store) }.unwrap();
    let source: Arc<dyn ExpertSource> = Arc::new(StoreSource::mapped(mapped, None)?);
    let options = RunnerOptions::default();
    Runner::load(backend, source, &options, &CancelToken::new(), &mut |_, _| {})
}

fn step(runner: &mut dyn ModelRunner) -> Result<Vec<u32>, EngineError> {
    let limits = runner.limits();
    let mut allocator = PageAllocator::new(limits.pages as u32);
    let (mut sequence, mut batch) = (Sequence::new(Level::L8), Batch::default());
    sequence.push(&some_tokens(5, limits.vocab_size, 3), |_| true, &mut batch, &mut allocator);
    batch.own_states();
    let output = runner.step_blocking(&batch, &CancelToken::new())?;
    Ok(output.logits.iter().map(|logit| logit.to_bits()).collect())
}

fn outcome<B: nestling_core::backend::Backend>(backend: B, path: &Path) -> Outcome {
    match load(backend, path) {
        Err(error) => Outcome::NotLoaded(error),
        Ok(mut runner) => match step(&mut runner) {
            Err(error) => Outcome::NotComputed(error),
            Ok(logits) => Outcome::Logits(logits),
        },
    }
}

fn is_damage(error: &EngineError) -> bool {
    matches!(error, EngineError::Store(StoreError::Damaged { .. }))
}

#[test]
fn damage_is_found_before_it_is_used() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("whole.nest");
    build_store(&data("tiny-qwen3-moe"), &path, &Recipe::default());
    let (store, bytes) = (Store::open(&path).unwrap(), fs::read(&path).unwrap());
    let Outcome::Logits(expected) = outcome(Cpu::new(1), &path) else { panic!("a sound store") };
    let damaged = directory.path().join("damaged.nest");
    let (mut not_loaded, mut not_computed, mut unused) = (0, 0, 0);
    for group in store.groups() {
        for extent in Plane::ALL.into_iter().filter_map(|plane| store.extent(group, plane)) {
            let mut bytes = bytes.clone();
            // The highest bit of a byte in the middle, of codes or of adjacent data.
            bytes[(extent.offset + extent.length / 2) as usize] ^= 0x80;
            fs::write(&damaged, &bytes).unwrap();
            match outcome(Cpu::new(1), &damaged) {
                Outcome::NotLoaded(error) => {
                    assert!(is_damage(&error), "{}: {error}", group.id);
                    not_loaded += 1;
                }
                Outcome::NotComputed(error) => {
                    assert!(is_damage(&error), "{}: {error}", group.id);
                    not_computed += 1;
                }
                // An expert that this step does not use.
                Outcome::Logits(logits) => {
                    assert!(logits == expected, "{}: other logits", group.id);
                    unused += 1;
                }
            }
        }
    }
    assert!(not_loaded > 5 && not_computed > 5, "{not_loaded}, {not_computed}, {unused}");
    // Backends that copy weights verify all of them first.
    fs::write(&damaged, {
        let last = store.groups().iter().rev().find_map(|group| store.extent(group, Plane::P8));
        let mut bytes = bytes;
        bytes[last.unwrap().offset as usize] ^= 1;
        bytes
    })
    .unwrap();
    assert!(matches!(outcome(Reference, &damaged), Outcome::NotLoaded(error) if is_damage(&error)));
}

#[test]
fn a_file_that_is_cut_or_written_to_is_an_error_of_the_next_step() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("whole.nest");
    build_store(&data("tiny-qwen3-moe"), &path, &Recipe::default());
    for is_cut in [true, false] {
        let copy = directory.path().join(format!("copy-{is_cut}.nest"));
        fs::copy(&path, &copy).unwrap();
        let mut runner = load(Cpu::new(1), &copy).unwrap();
        step(&mut runner).unwrap();
        let file = fs::File::options().write(true).open(&copy).unwrap();
        if is_cut {
            file.set_len(file.metadata().unwrap().len() / 2).unwrap();
        } else {
            let later = file.metadata().unwrap().modified().unwrap();
            file.set_modified(later + std::time::Duration::from_secs(2)).unwrap();
        }
        let error = step(&mut runner).unwrap_err();
        assert!(matches!(error, EngineError::Store(StoreError::Changed { .. })), "{error}");
    }
}
