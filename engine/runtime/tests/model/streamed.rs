//! Streamed experts: the same bits as resident ones at any budget.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use nestling_core::batch::{Batch, LevelPolicy};
use nestling_core::error::EngineError;
use nestling_core::kv_cache::PageAllocator;
use nestling_core::runner::ModelRunner;
use nestling_cpu::Cpu;
use nestling_experts::expert::source::ExpertSource;
use nestling_experts::expert::{
    HostOptions, Prefetch, StoreSource, StreamOptions, StreamStats, rows_that_stay,
};
use nestling_experts::reads::{ReadClass, ReadMethod, ReadOptions};
use nestling_experts::record::{Activity, ActivityKind, RecordOptions, Recorder};
use nestling_experts::residency::{ExpertTable, ResidencyOptions};
use nestling_formats::Level;
use nestling_formats::store::Store;
use nestling_plan::simulate::{Machine, RoutingTrace, SimulationOptions, simulate};
use nestling_runtime::model::{Runner, RunnerOptions};

use super::build::{Recipe, Tied, build_store};
use nestling_testkit::runners::{Sequence, data, runner, some_tokens, step};

fn bundled() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/nestling-storyteller.nest")
}

fn source(level: Level) -> Arc<dyn ExpertSource> {
    let store = Arc::new(Store::open(bundled()).unwrap());
    Arc::new(StoreSource::owned(store, Some(level)).unwrap())
}

/// Returns the bytes of all experts at a level, and the minimum for a step.
fn expert_bytes(level: Level) -> (u64, u64) {
    let table = ExpertTable::of_store(&Store::open(bundled()).unwrap(), level).unwrap();
    (table.total_bytes(), table.least_bytes())
}

fn streamed(level: Level, budget_bytes: u64, threads: usize, reads: ReadOptions) -> Runner<Cpu> {
    let prefetch = if threads == 1 { Prefetch::Off } else { Prefetch::Always };
    let streaming =
        Some(StreamOptions { budget_bytes, reads, prefetch, host: HostOptions::default() });
    let options = RunnerOptions { streaming, ..RunnerOptions::default() };
    runner(Cpu::new(threads), &source(level), &options)
}

/// Returns the logits of a prompt's last row and of the decoded rows, with the streaming statistics.
fn run(
    runner: &mut dyn ModelRunner,
    tokens: &[u32],
    prompt: usize,
    each: &mut dyn FnMut(usize, &mut dyn ModelRunner),
) -> (Vec<u32>, StreamStats) {
    let mut allocator = PageAllocator::new(runner.limits().pages as u32);
    let level = runner.limits().level_max.unwrap();
    let mut sequence = Sequence { levels: LevelPolicy::Fixed(level), ..Sequence::new(level) };
    let (mut bits, mut stats) = (Vec::new(), StreamStats::default());
    let (prompt, rest) = tokens.split_at(prompt);
    let pieces = std::iter::once(prompt).chain(rest.chunks(1));
    for (number, piece) in pieces.enumerate() {
        each(number, runner);
        let mut batch = Batch::default();
        sequence.push(piece, |at| at + 1 == piece.len(), &mut batch, &mut allocator);
        let output = step(runner, &batch);
        bits.extend(output.logits.iter().map(|logit| logit.to_bits()));
        stats.add(&output.stats.streaming);
    }
    (bits, stats)
}

#[test]
fn streamed_gives_the_bits_of_resident_at_every_budget_and_level() {
    for level in [Level::L2, Level::L4, Level::L8] {
        let source = source(level);
        let tokens = some_tokens(64, source.config().vocab_size, 5);
        let mut resident = runner(Cpu::new(2), &source, &RunnerOptions::default());
        let (expected, none) = run(&mut resident, &tokens, 40, &mut |_, _| {});
        assert_eq!(none, StreamStats::default());
        let (all, least) = expert_bytes(level);
        for (budget, threads) in [(least, 2), (all / 4, 1), (all / 2, 2), (all, 2)] {
            for method in [ReadMethod::Auto, ReadMethod::Threads] {
                let reads = ReadOptions { method, ..ReadOptions::default() };
                let mut small = streamed(level, budget, threads, reads);
                let (found, stats) = run(&mut small, &tokens, 40, &mut |_, _| {});
                assert!(found == expected, "level {level}, {budget} bytes, {method:?}");
                let memory = small.expert_memory().unwrap();
                assert!(memory.used_bytes() <= budget, "{} of {budget}", memory.used_bytes());
                assert!(stats.read_total() > 0 && stats.expert_misses > 0, "{stats:?}");
                assert_eq!(stats.asked_bits, stats.served_bits);
            }
        }
    }
}

/// A tied matrix is resident as the head, so its rows are not read from the store.
#[test]
fn tied_weights_give_the_bits_of_resident_when_experts_are_streamed() {
    let level = Level::L6;
    for tied in [Tied::Tiled, Tied::RowMajor, Tied::Twice] {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("tied.nest");
        build_store(&data("tiny-tied"), &path, &Recipe { tied, ..Recipe::default() });
        let store = Arc::new(Store::open(&path).unwrap());
        let rows = (tied == Tied::Twice).then_some(512);
        assert_eq!(rows_that_stay(store.index()), rows, "{tied:?}");
        let budget_bytes = ExpertTable::of_store(&store, level).unwrap().least_bytes();
        let source: Arc<dyn ExpertSource> =
            Arc::new(StoreSource::owned(store, Some(level)).unwrap());
        let tokens = some_tokens(40, source.config().vocab_size, 5);
        let mut resident = runner(Cpu::new(2), &source, &RunnerOptions::default());
        let (expected, _) = run(&mut resident, &tokens, 20, &mut |_, _| {});
        let (prefetch, host) = (Prefetch::Off, HostOptions::default());
        let reads = ReadOptions::default();
        let streaming = Some(StreamOptions { budget_bytes, reads, prefetch, host });
        let options = RunnerOptions { streaming, ..RunnerOptions::default() };
        let mut small = runner(Cpu::new(2), &source, &options);
        let (found, stats) = run(&mut small, &tokens, 20, &mut |_, _| {});
        assert!(found == expected && stats.read_total() > 0, "{tied:?}");
    }
}

#[test]
fn a_budget_that_changes_while_running_changes_no_bit() {
    let level = Level::L4;
    let (all, least) = expert_bytes(level);
    let source = source(level);
    let tokens = some_tokens(60, source.config().vocab_size, 6);
    let mut resident = runner(Cpu::new(1), &source, &RunnerOptions::default());
    let (expected, _) = run(&mut resident, &tokens, 20, &mut |_, _| {});
    let mut small = streamed(level, all / 2, 2, ReadOptions::default());
    let memory = small.expert_memory().unwrap();
    let budgets = [all / 2, least, all, all / 3, least, all / 5];
    let (found, _) = run(&mut small, &tokens, 20, &mut |number, runner| {
        memory.set_budget(budgets[number % budgets.len()]);
        if number % 7 == 3 {
            memory.shed(all / 4);
        }
        if number % 2 == 0 {
            runner.change_expert_memory().unwrap();
            assert!(memory.used_bytes() <= budgets[number % budgets.len()]);
        }
    });
    assert!(found == expected);
}

#[test]
fn shedding_gives_bytes_back_at_once_and_a_budget_below_the_least_is_refused() {
    let level = Level::L4;
    let (all, least) = expert_bytes(level);
    let tokens = some_tokens(30, source(level).config().vocab_size, 7);
    let mut small = streamed(level, all, 2, ReadOptions::default());
    run(&mut small, &tokens, 20, &mut |_, _| {});
    let memory = small.expert_memory().unwrap();
    let before = memory.used_bytes();
    memory.shed(before / 2);
    small.change_expert_memory().unwrap();
    assert!(memory.used_bytes() <= before - before / 2, "{} of {before}", memory.used_bytes());
    memory.set_budget(least - 1);
    let error = small.change_expert_memory().unwrap_err();
    assert!(matches!(error, EngineError::ExpertBudget { .. }), "{error}");
    run(&mut small, &tokens, 20, &mut |_, _| {});
}

#[test]
fn a_recorded_run_replayed_in_the_simulator_hits_as_often() {
    let level = Level::L4;
    let tokens = some_tokens(160, source(level).config().vocab_size, 8);
    let (all, _) = expert_bytes(level);
    let mut small = streamed(level, all / 3, 1, ReadOptions::default());
    let recorder = small.routing_recorder().unwrap();
    recorder.start(120);
    let (_, stats) = run(&mut small, &tokens, 40, &mut |_, _| {});
    let trace = recorder.stop();
    // The prompt and 119 tokens. The last token came after the recording was full.
    assert_eq!((trace.steps.len(), trace.rows()), (120, 159));
    let levels = trace.steps.iter().flat_map(|step| &step.layers).flat_map(|layer| &layer.levels);
    assert!(levels.clone().count() > 0 && levels.clone().all(|bits| *bits == level.bits()));
    let mut file = Vec::new();
    trace.write(&mut file).unwrap();
    assert_eq!(RoutingTrace::read("recording", file.as_slice()).unwrap(), trace);

    let table = ExpertTable::of_store(&Store::open(bundled()).unwrap(), level).unwrap();
    let table = Arc::new(table);
    let machine = Machine {
        read_bytes_per_second: 1e9,
        read_latency_ns: 100_000,
        read_depth: 2,
        expert_ns_min: 0,
        expert_bytes_per_second: 1e10,
        further_row_share: 0.3,
        dense_layer_ns: 10_000,
        step_ns: 100_000,
    };
    let residency = ResidencyOptions::new(&table, all / 3).unwrap();
    let replayed = simulate(&trace, &table, residency, SimulationOptions::new(machine)).unwrap();
    let (ran, simulated) = (stats.hit_rate().unwrap(), replayed.counters.byte_hit_rate());
    assert!((ran - simulated).abs() < 0.02, "{ran:.3} {simulated:.3}");
    assert!(ran > 0.2, "{ran:.3}");

    // Recording is off unless requested.
    run(&mut small, &tokens, 40, &mut |_, _| {});
    assert!(recorder.stop().steps.is_empty());
}

#[test]
fn alone_and_batched_give_the_same_bits() {
    let level = Level::L4;
    let (all, _) = expert_bytes(level);
    let source = source(level);
    let vocab_size = source.config().vocab_size;
    let texts: Vec<_> = (0..3).map(|seed| some_tokens(24, vocab_size, 20 + seed)).collect();
    let mut resident = runner(Cpu::new(2), &source, &RunnerOptions::default());
    let alone: Vec<_> =
        texts.iter().map(|tokens| run(&mut resident, tokens, 12, &mut |_, _| {}).0).collect();
    let mut small = streamed(level, all / 4, 2, ReadOptions::default());
    let mut allocator = PageAllocator::new(small.limits().pages as u32);
    let mut sequences: Vec<_> = texts.iter().map(|_| Sequence::new(level)).collect();
    let mut together = vec![Vec::new(); texts.len()];
    for step_number in 0..=12 {
        let mut batch = Batch::default();
        for (sequence, tokens) in sequences.iter_mut().zip(&texts) {
            let piece = if step_number == 0 { 0..12 } else { 11 + step_number..12 + step_number };
            let last = piece.len() - 1;
            sequence.push(&tokens[piece], |at| at == last, &mut batch, &mut allocator);
        }
        let output = step(&mut small, &batch);
        for (index, found) in together.iter_mut().enumerate() {
            found.extend(output.row(index).unwrap().iter().map(|logit| logit.to_bits()));
        }
    }
    assert!(together == alone);
}

#[test]
fn a_store_of_several_files_is_streamed_from_all_of_them() {
    let directory = tempfile::tempdir().unwrap();
    let of = |shard_bytes_max, name| {
        let recipe = Recipe { shard_bytes_max, ..Recipe::default() };
        let path = build_store(&data("tiny-qwen3-moe"), &directory.path().join(name), &recipe);
        Arc::new(Store::open(path).unwrap())
    };
    let (whole, cut) = (of(None, "whole.nest"), of(Some(48 << 10), "cut.nest"));
    assert_eq!(whole.storage().files().len(), 1);
    assert!(cut.storage().files().len() > 3, "{} files", cut.storage().files().len());
    let source = |store: &Arc<Store>| -> Arc<dyn ExpertSource> {
        Arc::new(StoreSource::owned(Arc::clone(store), None).unwrap())
    };
    let tokens = some_tokens(40, source(&whole).config().vocab_size, 11);
    let mut resident = runner(Cpu::new(1), &source(&whole), &RunnerOptions::default());
    let (expected, _) = run(&mut resident, &tokens, 20, &mut |_, _| {});
    let table = ExpertTable::of_store(&cut, cut.level()).unwrap();
    for method in [ReadMethod::Auto, ReadMethod::Threads, ReadMethod::Inline] {
        let reads = ReadOptions { method, ..ReadOptions::default() };
        let budget_bytes = (table.total_bytes() / 3).max(table.least_bytes());
        let streaming = Some(StreamOptions {
            budget_bytes,
            reads,
            prefetch: Prefetch::Always,
            host: HostOptions::default(),
        });
        let options = RunnerOptions { streaming, ..RunnerOptions::default() };
        let mut small = runner(Cpu::new(1), &source(&cut), &options);
        let (found, stats) = run(&mut small, &tokens, 20, &mut |_, _| {});
        assert!(found == expected, "{method:?}");
        assert!(stats.read_total() > budget_bytes, "{stats:?}");
    }
}

#[test]
fn what_was_read_ahead_is_no_hit() {
    let level = Level::L4;
    let (all, _) = expert_bytes(level);
    let tokens = some_tokens(80, source(level).config().vocab_size, 12);
    let of = |threads| {
        let mut small = streamed(level, all / 3, threads, ReadOptions::default());
        run(&mut small, &tokens, 20, &mut |_, _| {}).1
    };
    let (plain, ahead) = (of(1), of(2));
    assert_eq!((plain.ahead_bytes, plain.prefetched_bytes), (0, 0));
    assert!(ahead.ahead_bytes > 0 && ahead.ahead_bytes <= ahead.prefetch_used_bytes, "{ahead:?}");
    let rates = [plain, ahead].map(|stats| stats.hit_rate().unwrap());
    assert!((rates[0] - rates[1]).abs() < 0.06, "as many bytes had to be read: {rates:?}");
}

/// Returns, for each read, the number of layers that it was ahead: 1 for the next layer.
fn distances(recorder: &Recorder) -> Vec<u32> {
    let recording = recorder.take();
    let mut distances = Vec::new();
    for step in &recording.steps {
        let within = |one: &&Activity| one.start_ns >= step.start_ns && one.end_ns <= step.end_ns;
        let activities: Vec<_> = recording.activities.iter().filter(within).collect();
        let asked = |at_ns: u64| {
            let dense = activities.iter().filter(|one| one.what == ActivityKind::Dense);
            dense.filter(|one| one.end_ns <= at_ns).map(|one| one.layer).max()
        };
        for one in &activities {
            let ActivityKind::Read { plane, queued_ns, class: ReadClass::Idle, .. } = one.what
            else {
                continue;
            };
            let last = asked(one.start_ns.saturating_sub(queued_ns));
            distances.extend(last.map(|last| plane.layer - last));
        }
    }
    distances
}

#[test]
fn two_layers_are_read_ahead_where_the_disk_has_nothing_else_to_do() {
    let level = Level::L4;
    let (all, _) = expert_bytes(level);
    let recorder =
        Arc::new(Recorder::new(RecordOptions { activities_max: 100_000, steps_max: 99 }));
    let reads = ReadOptions::default();
    let streaming = StreamOptions {
        budget_bytes: all * 4 / 5,
        reads,
        prefetch: Prefetch::Always,
        host: HostOptions::default(),
    };
    let recorded = Some(Arc::clone(&recorder));
    let options = RunnerOptions {
        streaming: Some(streaming),
        recorder: recorded,
        ..RunnerOptions::default()
    };
    let mut runner = runner(Cpu::new(2), &source(level), &options);
    let tokens = some_tokens(80, source(level).config().vocab_size, 13);
    let stats = run(&mut runner, &tokens, 20, &mut |_, _| {}).1;
    let distances = distances(&recorder);
    let of = |distance: u32| distances.iter().filter(|one| **one == distance).count();
    assert!(of(1) > 0 && of(2) > 0, "{distances:?}");
    assert_eq!(of(1) + of(2), distances.len(), "{distances:?}");
    assert!(stats.prefetch_used_bytes > 0, "{stats:?}");
}
