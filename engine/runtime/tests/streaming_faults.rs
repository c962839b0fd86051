//! Streaming experts from a faulty disk: a typed error or the right tokens, and no effect on the next run.
#![expect(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on should say where")]

mod faults;

use std::io::ErrorKind;
use std::sync::Arc;
use std::time::Duration;

use faults::{Fault, FaultyStorage, faulty_store};
use nestling_core::{CancelToken, EngineError};
use nestling_experts::expert::Prefetch;
use nestling_experts::reads::ReadOptions;
use nestling_experts::residency::ExpertTable;
use nestling_formats::Level;
use nestling_formats::store::{Store, StoreError};
use nestling_runtime::options::Residence;
use nestling_runtime::{
    Engine, EngineOptions, Event, GenerateOptions, Model, ModelOptions, ModelSource,
};

const LEVEL: Level = Level::L4;

fn open(store: &Arc<Store>, residence: Residence, reads: ReadOptions) -> Model {
    let options = EngineOptions { threads: Some(1), ..EngineOptions::default() };
    let engine = Engine::new(options).unwrap();
    let options = ModelOptions {
        level: Some(LEVEL),
        residence,
        reads,
        prefetch: Prefetch::Off,
        context_length: Some(256),
        ..ModelOptions::default()
    };
    let source = ModelSource::Store(Arc::clone(store));
    Model::open_source(&engine, source, &options, &mut |_| {}, &CancelToken::new()).unwrap()
}

/// Returns greedy tokens after a short prompt, or the error.
fn run(model: &Model, tokens: usize) -> Result<Vec<u32>, EngineError> {
    let options = GenerateOptions {
        max_tokens: Some(tokens),
        ignore_end: true,
        token_events: true,
        ..GenerateOptions::greedy()
    };
    let prompt: Vec<u32> = (0..12).map(|at| at * 71 % 500).collect();
    let mut said = Vec::new();
    for event in model.session().generate(prompt, &options)? {
        if let Event::Token(token) = event? {
            said.push(token.token);
        }
    }
    Ok(said)
}

/// Returns a model with a budget for a third of its experts, and the expected tokens.
fn streamed(reads: ReadOptions, tokens: usize) -> (Arc<FaultyStorage>, Model, Vec<u32>) {
    let (storage, store) = faulty_store();
    let expected = run(&open(&store, Residence::Owned, ReadOptions::default()), tokens).unwrap();
    let model = open(&store, Residence::Streamed, reads);
    let table = ExpertTable::of_store(&store, LEVEL).unwrap();
    model.set_expert_budget(table.least_bytes().max(table.total_bytes() / 3)).unwrap();
    (storage, model, expected)
}

#[test]
fn any_read_of_a_run_may_go_wrong_once() {
    let tokens = 64;
    let (storage, model, expected) = streamed(ReadOptions::default(), tokens);
    storage.plan([]);
    assert_eq!(run(&model, tokens).unwrap(), expected);
    let reads = storage.offsets().len() as u64;
    assert!(reads > 100, "only {reads} reads");
    let faults = [
        Fault::Error(ErrorKind::Other),
        Fault::Corrupt,
        Fault::Delay(Duration::from_millis(3)),
        Fault::Short,
        Fault::Error(ErrorKind::Interrupted),
        Fault::Changed,
        Fault::Panic,
    ];
    let (mut errors, mut right) = (0, 0);
    // The first reads one by one, later ones with growing distance.
    let numbers = (0..40).map(|step: u64| step + step * step * reads / 1600);
    for (number, fault) in numbers.zip(faults.into_iter().cycle()) {
        model.shed_experts(u64::MAX);
        storage.plan([(number, fault)]);
        let result = run(&model, tokens);
        storage.plan([]);
        match (fault, result) {
            (_, Ok(said)) => {
                right += 1;
                assert_eq!(said, expected, "read {number}, {fault:?}");
            }
            (Fault::Panic, Err(EngineError::Panicked { .. }))
            | (Fault::Corrupt, Err(EngineError::Store(StoreError::Damaged { .. })))
            | (Fault::Changed, Err(EngineError::Store(StoreError::Changed { .. })))
            | (Fault::Error(_) | Fault::Short, Err(EngineError::Store(StoreError::Io { .. }))) => {
                errors += 1;
            }
            (_, Err(error)) => panic!("read {number}, {fault:?}: {error}"),
        }
        // The failed read is repeated when its plane is needed again.
        let short = tokens / 8;
        assert_eq!(run(&model, short).unwrap(), expected[..short], "after {number}, {fault:?}");
    }
    assert!(errors >= 10 && right >= 10, "{errors} errors, {right} runs without");
}

#[test]
fn a_disk_that_hangs_or_vanishes_is_an_error_and_may_come_back() {
    let tokens = 8;
    let timeout = Some(Duration::from_millis(60));
    let reads = ReadOptions { timeout, ..ReadOptions::default() };
    let (storage, model, expected) = streamed(reads, tokens);
    assert_eq!(run(&model, tokens).unwrap(), expected);
    model.shed_experts(u64::MAX);
    storage.vanish_at(5);
    let gone = run(&model, tokens).unwrap_err();
    assert!(matches!(gone, EngineError::Store(StoreError::Io { .. })), "{gone}");
    assert!(run(&model, tokens).is_err(), "experts came from nowhere");
    storage.plan([]);
    assert_eq!(run(&model, tokens).unwrap(), expected);
    model.shed_experts(u64::MAX);
    storage.hold();
    let stalled = run(&model, tokens).unwrap_err();
    assert!(matches!(stalled, EngineError::ReadStalled { .. }), "{stalled}");
    storage.wait_for_held(1);
    storage.release();
    assert_eq!(run(&model, tokens).unwrap(), expected);
}
