//! Sessions on a tiny real model: the output must not depend on the way it is computed.
#![expect(clippy::unwrap_used, reason = "helpers of tests may panic")]

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nestling_convert::convert::{ConvertOptions, convert};
use nestling_core::{ActivationMode, CancelToken, EngineError, KvDtype};
use nestling_formats::Level;
use nestling_formats::store::Store;
use nestling_import::checkpoint::Checkpoint;
use nestling_levels::dual::{LevelRouter, PlaneScores, RoutedToken};
use nestling_runtime::{
    Engine, EngineOptions, Event, FinishReason, GenerateOptions, Generation, Input, Model,
    ModelOptions, ModelSource, PageReads, PageStore, PageStoreOptions, PlannedResidence, Residence,
    SnapshotContents,
};

/// Models with experts and without, which snapshots, shared prefixes and the page store must restore.
const MODELS: [&str; 4] = ["tiny-qwen3-moe", "families/llama", "families/qwen3", "families/gemma3"];

fn data(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name)
}

fn checkpoint() -> PathBuf {
    data("tiny-qwen3-moe")
}

fn engine(threads: usize) -> Engine {
    Engine::new(EngineOptions { threads: Some(threads), ..EngineOptions::default() }).unwrap()
}

fn open_path(engine: &Engine, path: PathBuf, options: &ModelOptions) -> Model {
    Model::open(engine, path, options, &mut |_| {}, &CancelToken::new()).unwrap()
}

fn open_with(engine: &Engine, options: &ModelOptions) -> Model {
    open_path(engine, checkpoint(), options)
}

fn open(engine: &Engine) -> Model {
    open_with(engine, &ModelOptions::default())
}

fn greedy(max_tokens: usize) -> GenerateOptions {
    GenerateOptions {
        max_tokens: Some(max_tokens),
        ignore_end: true,
        token_events: true,
        ..GenerateOptions::greedy()
    }
}

/// Returns the tokens with the bits of their log-probabilities, if requested.
fn read(generation: Generation) -> Vec<(u32, Option<u32>)> {
    tokens_of(&generation.map(Result::unwrap).collect::<Vec<_>>())
}

fn tokens_of(events: &[Event]) -> Vec<(u32, Option<u32>)> {
    let token = |event: &Event| match event {
        Event::Token(token) => Some((token.token, token.log_prob.map(f32::to_bits))),
        _ => None,
    };
    events.iter().filter_map(token).collect()
}

/// Returns options for greedy decoding with log-probabilities: equal ones mean bit-identical logits.
fn exact(max_tokens: usize) -> GenerateOptions {
    let mut options = greedy(max_tokens);
    options.sampling.top_logprobs = Some(4);
    options
}

fn prompt(model: &Model, seed: usize, length: usize) -> Vec<u32> {
    let vocab_size = model.tokenizer().unwrap().vocab_size().min(model.config().vocab_size);
    (0..length).map(|i| ((i * 37 + seed * 101 + i * i * 3) % vocab_size) as u32).collect()
}

/// Converts the tiny checkpoint to a store. Also returns its directory.
fn store() -> (tempfile::TempDir, Arc<Store>) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tiny.nest");
    let source = Checkpoint::open(checkpoint()).unwrap();
    let options = ConvertOptions::default();
    convert(&source, &path, &options, &CancelToken::new(), &mut |_| {}).unwrap();
    (folder, Arc::new(Store::open(path).unwrap()))
}

fn open_source(engine: &Engine, source: ModelSource, level: Option<Level>) -> Model {
    let options = ModelOptions { level, ..ModelOptions::default() };
    Model::open_source(engine, source, &options, &mut |_| {}, &CancelToken::new()).unwrap()
}

#[test]
fn levels_may_meet_in_one_batch_and_stay_themselves() {
    let (_folder, store) = store();
    let engine = engine(2);
    let whole = open_source(&engine, ModelSource::Store(Arc::clone(&store)), None);
    let prompt = prompt(&whole, 3, 40);
    let at = |level| GenerateOptions { level: Some(level), ..exact(16) };
    let together: Vec<_> = Level::ALL
        .into_iter()
        .map(|level| whole.session().generate(prompt.clone(), &at(level)).unwrap())
        .collect();
    let together: Vec<_> = together.into_iter().map(read).collect();
    for (level, said) in Level::ALL.into_iter().zip(&together) {
        let source = ModelSource::Store(Arc::clone(&store));
        let lower = open_source(&engine, source, Some(level));
        assert!(lower.weight_bytes() <= whole.weight_bytes());
        let alone = lower.session().generate(prompt.clone(), &exact(16)).unwrap();
        assert_eq!(&read(alone), said, "level {level}");
        let above = Level::ALL.into_iter().find(|other| *other > level);
        if let Some(above) = above {
            let refused = lower.session().generate(prompt.clone(), &at(above));
            assert!(matches!(refused, Err(EngineError::LevelMissing { .. })));
        }
    }
    assert_ne!(together[0], together[4], "level 2 says what level 8 says");
}

#[test]
fn one_session_at_two_levels_computes_its_history_again() {
    let (_folder, store) = store();
    let engine = engine(1);
    let model = open_source(&engine, ModelSource::Store(store), None);
    let prompt = prompt(&model, 3, 40);
    let at = |level| GenerateOptions { level: Some(level), ..exact(16) };
    let fresh = read(model.session().generate(prompt.clone(), &at(Level::L2)).unwrap());
    let mut session = model.session();
    read(session.generate(prompt, &at(Level::L8)).unwrap());
    session.truncate(40).unwrap();
    let mut mean_level = None;
    let mut said = Vec::new();
    for event in session.generate(Input::History, &at(Level::L2)).unwrap() {
        match event.unwrap() {
            Event::Token(token) => said.push((token.token, token.log_prob.map(f32::to_bits))),
            Event::Finished(finished) => {
                assert_eq!(finished.stats.prompt_tokens, 40);
                mean_level = finished.stats.mean_level();
            }
            _ => {}
        }
    }
    assert_eq!(said, fresh);
    assert_eq!(mean_level, Some(2.0));
}

#[test]
fn alone_and_in_a_batch_are_the_same() {
    let engine = engine(2);
    let model = open(&engine);
    let prompts: Vec<_> = (0..5).map(|seed| prompt(&model, seed, 3 + 17 * seed)).collect();
    let alone: Vec<_> = prompts
        .iter()
        .map(|prompt| read(model.session().generate(prompt.clone(), &exact(24)).unwrap()))
        .collect();
    let together: Vec<_> = prompts
        .iter()
        .map(|prompt| model.session().generate(prompt.clone(), &exact(24)).unwrap())
        .collect();
    let together: Vec<_> = together.into_iter().map(read).collect();
    assert_eq!(alone, together);
    assert!(alone.iter().all(|tokens| tokens.len() == 24));
    // Greedy decoding without log-probabilities gives the same tokens.
    for (prompt, exact) in prompts.iter().zip(alone) {
        let tokens = read(model.session().generate(prompt.clone(), &greedy(24)).unwrap());
        assert!(tokens.iter().map(|token| token.0).eq(exact.iter().map(|token| token.0)));
    }
}

#[test]
fn a_prompt_in_one_piece_and_in_chunks_is_the_same_on_any_number_of_threads() {
    let mut answers = Vec::new();
    for (rows_max, threads) in [(512, 1), (7, 2), (33, 3)] {
        let engine = engine(threads);
        let model = open_with(&engine, &ModelOptions { rows_max, ..ModelOptions::default() });
        let prompt = prompt(&model, 9, 64);
        answers.push(read(model.session().generate(prompt, &exact(16)).unwrap()));
    }
    assert_eq!(answers[0], answers[1]);
    assert_eq!(answers[0], answers[2]);
}

#[test]
fn a_fork_a_snapshot_and_a_kept_prefix_equal_computing_afresh() {
    for name in MODELS {
        let engine = engine(1);
        let options = ModelOptions { kv_dtype: KvDtype::F32, ..ModelOptions::default() };
        let model = open_path(&engine, data(name), &options);
        assert_eq!(model.config().router.is_none(), name != "tiny-qwen3-moe", "{name}");
        let history = prompt(&model, 2, 90);
        let tail = prompt(&model, 3, 5);
        let whole = [history.clone(), tail.clone()].concat();
        let fresh = read(model.session().generate(whole, &exact(12)).unwrap());

        let mut session = model.session();
        read(session.generate(history, &greedy(8)).unwrap());
        session.truncate(90).unwrap();
        let snapshot = session.snapshot(SnapshotContents::TokensAndPages).unwrap();
        let mut fork = session.fork().unwrap();
        let mut restored = model.restore(&snapshot).unwrap();
        // The fork writes first. It must not change the pages shared with the session.
        read(fork.generate(prompt(&model, 4, 9), &greedy(9)).unwrap());
        fork.truncate(90).unwrap();
        for session in [&mut session, &mut fork, &mut restored] {
            assert_eq!(read(session.generate(tail.clone(), &exact(12)).unwrap()), fresh, "{name}");
        }
    }
}

/// Pages of a real model, from memory and from disk, give the bits of a computation without them.
#[test]
fn pages_in_memory_and_on_disk_equal_computing_afresh() {
    for name in MODELS {
        let folder = tempfile::tempdir().unwrap();
        let store = || {
            let (directory, reads) = (folder.path().join("pages"), PageReads::Always);
            PageStore::open(PageStoreOptions { directory, bytes_max: 1 << 24, reads }).unwrap()
        };
        let open = |engine: &Engine, page_store| {
            let options = ModelOptions { page_store, ..ModelOptions::default() };
            open_path(engine, data(name), &options)
        };
        let ask = |model: &Model| {
            let prompt = prompt(model, 5, 150);
            let generation = model.session().generate(prompt, &exact(12)).unwrap();
            let events: Vec<Event> = generation.map(Result::unwrap).collect();
            let Some(Event::Finished(finished)) = events.last() else { panic!("{events:?}") };
            (finished.usage.cached_tokens, tokens_of(&events))
        };
        let first = engine(1);
        let (cached, expected) = ask(&open(&first, None));
        assert_eq!(cached, 0, "{name}");
        {
            let engine = engine(1);
            let model = open(&engine, Some(store()));
            assert_eq!(ask(&model), (0, expected.clone()), "{name}");
            assert_eq!(ask(&model), (128, expected.clone()), "{name}: in memory");
        }
        let later = engine(1);
        let store = store();
        assert_eq!(ask(&open(&later, Some(store.clone()))), (128, expected), "{name}: on disk");
        assert_eq!((store.status().hits, store.status().damaged), (2, 0), "{name}");
    }
}

/// Stands for one of several routers: uses only the first plane of all experts.
struct LowestLevel(u128);

impl LevelRouter for LowestLevel {
    fn plane_scores(&self, _: RoutedToken<'_>, _: Level, _: &mut [PlaneScores]) {}

    fn identity(&self) -> u128 {
        self.0
    }
}

#[test]
fn a_snapshot_is_refused_by_a_model_with_another_router_of_levels() {
    let engine = engine(1);
    let open = |identity: Option<u128>| {
        let router =
            identity.map(|identity| -> Arc<dyn LevelRouter> { Arc::new(LowestLevel(identity)) });
        open_with(&engine, &ModelOptions { level_router: router, ..ModelOptions::default() })
    };
    let model = open(Some(7));
    let mut session = model.session();
    read(session.generate(prompt(&model, 2, 70), &greedy(2)).unwrap());
    let snapshot = session.snapshot(SnapshotContents::TokensAndPages).unwrap();
    assert!(open(Some(7)).restore(&snapshot).is_ok());
    for other in [None, Some(8)] {
        let refused = open(other).restore(&snapshot).unwrap_err();
        assert!(matches!(refused, EngineError::Snapshot { .. }), "{refused:?}");
    }
}

#[test]
fn a_refused_snapshot_says_what_differs() {
    let engine = engine(1);
    let mut session = open_with(&engine, &ModelOptions::default()).session();
    session.append(&[1, 2, 3]).unwrap();
    let snapshot = session.snapshot(SnapshotContents::Tokens).unwrap();
    let refused = |options: ModelOptions| {
        open_with(&engine, &options).restore(&snapshot).unwrap_err().to_string()
    };
    let exact = ModelOptions { kv_dtype: KvDtype::F32, ..ModelOptions::default() };
    assert_eq!(
        refused(exact.clone()),
        "session snapshot, the model it was made with: expected F32 keys and values, found F16 keys and values"
    );
    let float = ModelOptions { activation_mode: ActivationMode::Float, ..exact };
    assert!(refused(float).ends_with("found Int8 activations, F16 keys and values"));
}

#[test]
fn cancelling_takes_a_quarter_of_a_second_at_most() {
    let engine = engine(1);
    let model = open_with(&engine, &ModelOptions { rows_max: 64, ..ModelOptions::default() });
    let mut session = model.session();
    let length = model.context_length() - 8;
    let mut generation = session.generate(prompt(&model, 1, length), &greedy(8)).unwrap();
    std::thread::sleep(Duration::from_millis(3));
    let start = Instant::now();
    generation.cancel();
    let last = generation.find_map(|event| match event.unwrap() {
        Event::Finished(finished) => Some(finished.reason),
        _ => None,
    });
    assert!(start.elapsed() < Duration::from_millis(250), "{:?}", start.elapsed());
    // A fast machine may have finished before.
    assert!(matches!(last, Some(FinishReason::Cancelled | FinishReason::Length)), "{last:?}");
    drop((session, generation));
    assert_eq!(model.free_pages(), model.limits().pages);
}

#[test]
fn opening_can_be_cancelled_and_reports_progress() {
    let engine = engine(1);
    let cancel = CancelToken::new();
    let mut seen = Vec::new();
    let stop = cancel.clone();
    let mut report = |progress: nestling_runtime::OpenProgress| {
        seen.push(progress.parts_done);
        stop.cancel();
    };
    let opened = Model::open(&engine, checkpoint(), &ModelOptions::default(), &mut report, &cancel);
    assert!(matches!(opened, Err(EngineError::Cancelled)), "{opened:?}");
    assert_eq!(seen.len(), 1);
    assert_eq!(engine.budget().used_bytes(), 0);
}

#[test]
fn two_models_share_one_budget() {
    let wide = engine(1);
    let first = open(&wide);
    let one = wide.budget().used_bytes();
    assert!(one > first.weight_bytes() && first.weight_bytes() > 0);
    let options = EngineOptions {
        memory_budget: Some(one * 3 / 2),
        threads: Some(1),
        ..EngineOptions::default()
    };
    let narrow = Engine::new(options).unwrap();
    let first = open(&narrow);
    let refused = || {
        let options = ModelOptions::default();
        Model::open(&narrow, checkpoint(), &options, &mut |_| {}, &CancelToken::new())
    };
    let Err(EngineError::Budget(refusal)) = refused() else { panic!("there was room") };
    assert!(refusal.needed_bytes > refusal.available_bytes, "{refusal}");
    assert_eq!(narrow.budget().used_bytes(), one, "a refusal takes nothing");
    let mut session = first.session();
    drop(first);
    let answer = read(session.generate(vec![1, 2, 3], &greedy(4)).unwrap());
    assert_eq!(answer.len(), 4);
    assert!(refused().is_err(), "a session keeps its model");
    drop(session);
    let second = refused().unwrap();
    assert_eq!(read(second.session().generate(vec![1, 2, 3], &greedy(4)).unwrap()), answer);
}

#[test]
fn a_memory_budget_below_what_is_held_is_refused_with_that_number() {
    let engine = engine(1);
    let model = open(&engine);
    let held = engine.budget().used_bytes();
    let refused = model.set_memory_budget(held - 1).unwrap_err();
    let EngineError::MemoryHeld { asked, held: named } = refused else { panic!("{refused}") };
    assert_eq!((asked, named), (held - 1, held));
    assert_eq!(engine.budget().total_bytes(), None, "nothing has changed");
    let said = EngineError::MemoryHeld { asked: 1 << 20, held: 44 << 20 }.to_string();
    assert!(said.contains("budget of 1.0 MiB is too small: 44.0 MiB (46137344 bytes)"), "{said}");
    model.set_memory_budget(held).unwrap();
    assert_eq!(engine.budget().total_bytes(), Some(held));

    // Minimum of a streamed model: one byte less is rejected.
    let memory_budget = Some(64 << 20);
    let engine = Engine::new(EngineOptions { memory_budget, ..EngineOptions::default() }).unwrap();
    let options = ModelOptions { residence: Residence::Streamed, ..ModelOptions::default() };
    let source = ModelSource::Store(store().1);
    let cancel = CancelToken::new();
    let model = Model::open_source(&engine, source, &options, &mut |_| {}, &cancel).unwrap();
    let refused = model.set_memory_budget(1 << 10).unwrap_err();
    let EngineError::MemoryHeld { asked: 1024, held } = refused else { panic!("{refused}") };
    let before = engine.budget().used_bytes();
    assert!(model.set_memory_budget(held - 1).is_err());
    assert_eq!(engine.budget().used_bytes(), before, "nothing has changed");
    model.set_memory_budget(held).unwrap();
    assert_eq!(engine.budget().used_bytes(), held);
    assert_eq!(read(model.session().generate(vec![1, 2, 3], &greedy(4)).unwrap()).len(), 4);
}

#[test]
fn a_model_that_is_open_before_its_experts_are_there_says_the_same() {
    let answer = |residence, memory_budget| {
        let engine = EngineOptions { memory_budget, ..EngineOptions::default() };
        let engine = Engine::new(engine).unwrap();
        let options = ModelOptions { residence, ..ModelOptions::default() };
        let source = ModelSource::Store(store().1);
        let cancel = CancelToken::new();
        let model = Model::open_source(&engine, source, &options, &mut |_| {}, &cancel).unwrap();
        let plan = *model.memory_plan().unwrap();
        assert!(plan.total_bytes() <= memory_budget.unwrap_or(u64::MAX));
        let first = read(model.session().generate(vec![1, 2, 3], &greedy(12)).unwrap());
        // Less memory stops the background reads.
        let experts = plan.expert_bytes / 2;
        if plan.residence == PlannedResidence::Lazy {
            model.set_memory_budget(plan.total_bytes() - experts).unwrap();
        }
        let second = read(model.session().generate(vec![4, 5, 6], &greedy(12)).unwrap());
        (plan, first, second)
    };
    let (_, first, second) = answer(Residence::Owned, None);
    let lazy = answer(Residence::Lazy, None);
    assert_eq!(lazy.0.residence, PlannedResidence::Lazy);
    assert_eq!((&lazy.1, &lazy.2), (&first, &second));
    // Without memory for all experts, they are streamed.
    let less = lazy.0.total_bytes() - lazy.0.expert_bytes / 4;
    let streamed = answer(Residence::Lazy, Some(less));
    assert_eq!(streamed.0.residence, PlannedResidence::Streamed);
    assert_eq!((&streamed.1, &streamed.2), (&first, &second));
}

#[test]
fn text_comes_out_as_the_tokenizer_would_write_it() {
    let engine = engine(1);
    let model = open(&engine);
    let mut session = model.session();
    let mut options = greedy(40);
    let (mut text, mut tokens) = (String::new(), Vec::new());
    for event in session.generate("The ship", &options).unwrap() {
        match event.unwrap() {
            Event::Text(more) => text.push_str(&more),
            Event::Token(token) => tokens.push(token.token),
            _ => {}
        }
    }
    assert_eq!(text, model.tokenizer().unwrap().decode(&tokens, false).unwrap());

    // A stop string ends the output before its first character, wherever tokens start.
    let (middle, _) = text.char_indices().nth(text.chars().count() / 2).unwrap();
    let stop: String = text[middle..].chars().take(3).collect();
    options.stop = vec![stop.clone()];
    let (cut, finished) =
        model.session().generate("The ship", &options).unwrap().into_answer().unwrap();
    assert_eq!(cut, text[..text.find(&stop).unwrap()]);
    assert_eq!(finished.reason, FinishReason::Stop);
}

#[test]
fn a_wrong_path_says_what_would_be_right() {
    let engine = engine(1);
    let open = |path: &str| {
        let options = ModelOptions::default();
        let opened = Model::open(&engine, path, &options, &mut |_| {}, &CancelToken::new());
        opened.unwrap_err().to_string()
    };
    assert!(open("/nowhere/at/all.nest").contains("no such file or folder"));
    assert!(open(env!("CARGO_MANIFEST_DIR")).contains("config.json"));
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml");
    assert!(open(file).contains("Cargo.toml"));
}

#[test]
fn the_history_can_be_gone_on_from_without_anything_new() {
    let engine = engine(1);
    let model = open(&engine);
    let prompt = prompt(&model, 5, 20);
    let whole = read(model.session().generate(prompt.clone(), &exact(12)).unwrap());
    let mut session = model.session();
    let mut parts = read(session.generate(prompt, &exact(5)).unwrap());
    parts.extend(read(session.generate(Input::History, &exact(7)).unwrap()));
    assert_eq!(parts, whole);
}

fn demo() -> PathBuf {
    let beside = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../shared/demo-model/hf");
    let path = std::env::var_os("NESTLING_DEMO_HF").map_or(beside, PathBuf::from);
    assert!(path.join("config.json").is_file(), "no checkpoint at {}", path.display());
    path
}

#[test]
#[ignore = "needs the demo checkpoint, whose folder NESTLING_DEMO_HF names"]
fn cancelling_the_demo_model_in_a_long_prompt() {
    let path = demo();
    let engine = engine(2);
    let options = ModelOptions::default();
    let model = Model::open(&engine, path, &options, &mut |_| {}, &CancelToken::new()).unwrap();
    let mut session = model.session();
    let prompt = prompt(&model, 1, 900);
    let mut times = Vec::new();
    for delay in [1, 20, 40, 60, 150] {
        session.truncate(0).unwrap();
        let mut generation = session.generate(prompt.clone(), &greedy(8)).unwrap();
        std::thread::sleep(Duration::from_millis(delay));
        let start = Instant::now();
        generation.cancel();
        assert!(generation.all(|event| event.is_ok()));
        times.push(start.elapsed());
    }
    println!("cancelled within {times:?}");
    // The median, since other programs may occupy the CPU for a while.
    times.sort_unstable();
    assert!(times[times.len() / 2] < Duration::from_millis(250), "{times:?}");
}
