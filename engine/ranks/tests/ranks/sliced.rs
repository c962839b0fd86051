//! Sliced experts have the bits of one rank, in all families with experts.
#![expect(unsafe_code, reason = "maps the bundled store, which nobody writes")]

use std::sync::Arc;

use nestling_convert::convert::ConvertOptions;
use nestling_core::batch::Batch;
use nestling_core::cancel::CancelToken;
use nestling_core::error::EngineError;
use nestling_core::group::{ExpertDivision, RankShare};
use nestling_core::kv_cache::PageAllocator;
use nestling_core::runner::{ModelRunner, StepOutput};
use nestling_cpu::Cpu;
use nestling_experts::expert::{ExpertSource, HostOptions, Prefetch, StreamOptions};
use nestling_experts::reads::ReadOptions;
use nestling_experts::residency::Placement;
use nestling_formats::nested::InputTransform;
use nestling_formats::store::{Group, GroupId, MappedStore};
use nestling_formats::{Level, Plane};
use nestling_plan::synthetic::{SyntheticOptions, SyntheticShape, synthetic_index};
use nestling_ranks::{RankOptions, open_on_threads};
use nestling_runtime::model::{Runner, RunnerOptions};
use nestling_runtime::{MemoryPlan, Model, ModelOptions, ModelSource, Residence};
use nestling_testkit::runners::{Sequence, checkpoint, data, runner, some_tokens, step};

use crate::bits::{assert_same, families};
use crate::harness::{Ranks, TIMEOUT, converted, cpu, source, store, watched};
use crate::opened::{alone, bundled, engine, open, text};

fn sliced() -> RunnerOptions {
    RunnerOptions { expert_division: ExpertDivision::Sliced, ..RunnerOptions::default() }
}

/// Returns how many layers are sliced.
fn layers_sliced(source: &dyn ExpertSource, ranks: usize) -> usize {
    let (config, share) = (source.config(), RankShare { rank: 0, ranks });
    let placement = source.placement(share).divided(ExpertDivision::Sliced, config);
    (0..config.layers.len() as u32).filter(|layer| placement.is_sliced(*layer)).count()
}

#[test]
fn checkpoints_and_stores_of_all_families_with_experts() {
    let (mut tested, mut divided) = (0, 0);
    for (index, family) in families().iter().enumerate() {
        let (name, checkpoint) = (family.display().to_string(), checkpoint(family));
        if !checkpoint.config().has_experts() {
            continue;
        }
        tested += 1;
        let ranks = [2, 3, 4, 8][index % 4];
        let folder = tempfile::tempdir().unwrap();
        let source = match index % 8 < 4 {
            true => checkpoint,
            false => source(&store(family, folder.path())),
        };
        divided += layers_sliced(&*source, ranks);
        let mut one = runner(Cpu::new(1), &source, &RunnerOptions::default());
        assert_same(&mut one, &source, &sliced(), ranks, &name);
    }
    println!("{tested} families, {divided} layers");
    assert!(tested > 15 && divided >= tested, "{tested} families, {divided} layers");
}

#[test]
fn every_number_of_ranks_and_rotated_inputs_of_down() {
    for family in ["tiny-qwen3-moe", "families/gpt-oss", "families/deepseek-v3"] {
        let folder = tempfile::tempdir().unwrap();
        let mut options = ConvertOptions::default();
        options.rotation = InputTransform::Hadamard;
        let stored = source(&converted(&data(family), folder.path(), &options));
        let mut one = runner(Cpu::new(1), &stored, &RunnerOptions::default());
        for ranks in [2, 3, 4] {
            assert_same(&mut one, &stored, &sliced(), ranks, family);
        }
    }
}

/// Runs a step of several sequences with levels of their own: a prompt, and then one row of each.
pub fn mixed_batches(runner: &mut dyn ModelRunner, vocabulary: usize) -> Vec<StepOutput> {
    let mut allocator = PageAllocator::new(runner.limits().pages as u32);
    let mut sequences = [Level::L2, Level::L4, Level::L3, Level::L4].map(Sequence::new);
    let mut outputs = Vec::new();
    for length in [7, 1, 1] {
        let mut batch = Batch::default();
        for (seed, sequence) in (0..).zip(&mut sequences) {
            let tokens = some_tokens(length, vocabulary, seed);
            sequence.push(&tokens, |_| true, &mut batch, &mut allocator);
        }
        outputs.push(step(runner, &batch));
    }
    outputs
}

#[test]
fn batches_of_several_levels_and_their_statistics() {
    let folder = tempfile::tempdir().unwrap();
    let stored = source(&store(&data("tiny-qwen3-moe"), folder.path()));
    let vocabulary = stored.config().vocab_size;
    let mut one = runner(Cpu::new(1), &stored, &RunnerOptions::default());
    let expected = mixed_batches(&mut one, vocabulary);
    for ranks in [2, 3, 4] {
        let mut group = Ranks::new(&stored, &sliced(), ranks);
        for (expected, found) in expected.iter().zip(mixed_batches(group.lead(), vocabulary)) {
            let bits = |of: &StepOutput| of.logits.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
            assert!(bits(expected) == bits(&found), "{ranks} ranks");
            // Each use counts once, although all ranks compute a part of it.
            assert_eq!(found.stats.expert_uses, expected.stats.expert_uses);
        }
        assert!(group.close().iter().all(Result::is_ok));
    }
}

fn options(residence: Residence) -> ModelOptions {
    let (context_length, expert_division) = (Some(64), ExpertDivision::Sliced);
    ModelOptions { context_length, residence, expert_division, ..ModelOptions::default() }
}

#[test]
fn the_bundled_model_says_the_same_with_slices() {
    watched(|| {
        let options = options(Residence::Auto);
        let alone = alone(&options);
        let expected = text(&alone);
        for ranks in [2, 3, 4, 8] {
            let model = open(&engine(None), &options, ranks).unwrap();
            assert_eq!(text(&model), expected, "{ranks} ranks");
            let (held, whole) = (model.weight_bytes(), alone.weight_bytes());
            assert!(held >= whole && held < whole * 3 / 2, "{ranks} ranks hold {held} of {whole}");
        }
        // A mapped store is verified before its rows are copied, and the copies count.
        let model = open_mapped(&options, 2);
        assert_eq!(text(&model), expected);
        assert!(model.weight_bytes() >= alone.weight_bytes());
        // Replicas stay in the mapped file.
        let replicated =
            ModelOptions { expert_division: ExpertDivision::Whole, expert_replicas: 4, ..options };
        assert_eq!(text(&open_mapped(&replicated, 3)), expected);
    });
}

fn open_mapped(options: &ModelOptions, ranks: usize) -> Model {
    let (engine, cancel) = (engine(None), CancelToken::new());
    // SAFETY: nobody writes to the bundled store.
    let mapped = ModelSource::Mapped(unsafe { MappedStore::new(bundled()) }.unwrap());
    let ranks = RankOptions::new(ranks);
    open_on_threads(&engine, mapped, options, ranks, &mut |_| {}, &cancel).unwrap()
}

#[test]
fn streamed_slices_are_refused() {
    watched(|| {
        let refused =
            |error: &EngineError| matches!(error, EngineError::SlicesStreamed { layers: 4 });
        for residence in [Residence::Streamed, Residence::Lazy] {
            let error = open(&engine(Some(64 << 20)), &options(residence), 2).unwrap_err();
            assert!(refused(&error), "{residence:?}: {error}");
        }
        // Two ranks whose experts do not fit.
        let error = open(&engine(Some(48_000_000)), &options(Residence::Auto), 2).unwrap_err();
        assert!(refused(&error) && error.to_string().contains("whole experts"), "{error}");
        // One rank holds whole experts, and may stream them.
        let model = open(&engine(Some(64 << 20)), &options(Residence::Streamed), 1).unwrap();
        assert!(model.expert_bytes().is_some());
    });
    let (reads, host) = (ReadOptions::default(), HostOptions::default());
    let streaming =
        Some(StreamOptions { budget_bytes: 1 << 30, reads, prefetch: Prefetch::All, host });
    let options = RunnerOptions { streaming, ..sliced() };
    let group = nestling_ranks::QueueGroup::of_threads(2, TIMEOUT).into_iter().next().unwrap();
    let stored = source(&bundled());
    let rank: Arc<dyn nestling_core::group::Group> = Arc::new(group);
    let (backend, cancel) = (cpu(&rank), CancelToken::new());
    let error = Runner::load(backend, stored, &options, &cancel, &mut |_, _| {}).err().unwrap();
    assert!(matches!(error, EngineError::SlicesStreamed { .. }), "{error}");
}

#[test]
fn a_rank_of_four_holds_a_quarter_of_each_expert_of_a_published_shape() {
    let shape = SyntheticShape::QWEN3_30B_A3B;
    let synthetic = SyntheticOptions { shape, top_level: Level::L4, router_skew: 0.0, seed: 1 };
    let (index, config) = synthetic_index(&synthetic).unwrap();
    let options = options(Residence::Owned);
    let held = |share| {
        let plan = MemoryPlan::of_index(&index, &config, Level::L4, &options, None, None, share);
        plan.unwrap().weight_bytes
    };
    let whole = held(RankShare::default());
    let of_all_ranks = |group: &&Group| matches!(group.id, GroupId::Floats { .. });
    let extents =
        index.groups().iter().filter(of_all_ranks).flat_map(|group| {
            Plane::ALL.into_iter().filter_map(|plane| index.extent(group, plane))
        });
    let replicated: u64 = extents.map(|extent| extent.length).sum();
    let each: Vec<u64> = RankShare { rank: 0, ranks: 4 }.all().map(held).collect();
    println!("ranks hold {each:?} bytes of {whole}, of which {replicated} on each");
    for rank in &each {
        assert!(*rank as f64 <= 0.27 * whole as f64 + replicated as f64, "{rank} of {whole}");
        assert!(rank.abs_diff(replicated + (whole - replicated) / 4) < whole / 100, "{rank}");
    }
    assert!(each.iter().sum::<u64>() >= whole);
}

#[test]
fn layers_without_a_tile_for_each_rank_keep_whole_experts() {
    let config = checkpoint(&data("tiny-qwen3-moe")).config().clone();
    for ranks in [2, 4, 64] {
        let share = RankShare { rank: 1, ranks };
        let placement = Placement::in_turn(share).divided(ExpertDivision::Sliced, &config);
        let in_turn = Placement::in_turn(share);
        for (layer, expert) in [(0, 0), (0, 1), (0, 3)] {
            let holds = ranks < 64 || in_turn.holds(layer, expert);
            assert_eq!(placement.holds(layer, expert), holds, "{layer} {expert} of {ranks}");
        }
        assert_eq!(placement.is_sliced(0), ranks < 64);
    }
    assert!(
        !Placement::in_turn(RankShare::default())
            .divided(ExpertDivision::Sliced, &config)
            .is_sliced(0)
    );
}
