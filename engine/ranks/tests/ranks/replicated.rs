//! Replicas of experts on all ranks: the bits of one rank, while the replicas stay and while they move.

use nestling_core::error::EngineError;
use nestling_core::group::RankShare;
use nestling_core::replicas::Replicas;
use nestling_core::runner::{ModelRunner, StepOutput};
use nestling_cpu::Cpu;
use nestling_experts::expert::{HostOptions, Prefetch, StreamOptions};
use nestling_experts::reads::ReadOptions;
use nestling_formats::store::GroupId;
use nestling_formats::{Level, Plane};
use nestling_import::FeedForward;
use nestling_plan::synthetic::{SyntheticOptions, SyntheticShape, synthetic_index};
use nestling_runtime::model::RunnerOptions;
use nestling_runtime::{MemoryPlan, ModelOptions, Residence};
use nestling_testkit::runners::{all_logits, data, greedy, runner, some_tokens};

use crate::bits::{assert_same, families};
use crate::harness::{Ranks, source, store, watched};
use crate::opened::{alone, bundled, engine, open, text};
use crate::sliced::mixed_batches;

fn replicated(expert_replicas: usize) -> RunnerOptions {
    RunnerOptions { expert_replicas, ..RunnerOptions::default() }
}

fn bits(output: &StepOutput) -> Vec<u32> {
    output.logits.iter().map(|logit| logit.to_bits()).collect()
}

/// Returns the experts that a choice replicates, all of which exist.
fn chosen(runner: &dyn ModelRunner, is_chosen: impl Fn(usize) -> bool) -> Replicas {
    let of_layer = |feed_forward| match feed_forward {
        FeedForward::Moe { num_experts, .. } => num_experts,
        FeedForward::Absent | FeedForward::Dense { .. } => 0,
    };
    let layers = runner.config().layers.iter().map(|layer| of_layer(layer.feed_forward));
    let of_count = |experts| (0..experts).filter(|at| is_chosen(*at)).map(|at| at as u32);
    Replicas::new(layers.map(|experts| of_count(experts).collect()).collect())
}

#[test]
fn families_with_experts() {
    for (index, family) in families().iter().enumerate() {
        let folder = tempfile::tempdir().unwrap();
        let store = store(family, folder.path());
        let stored = source(&store);
        if !stored.config().has_experts() {
            continue;
        }
        let mut alone = runner(Cpu::new(1), &stored, &RunnerOptions::default());
        // Stores without frequencies have no replicas until they move, and all experts fit.
        let ranks = [2, 3, 4][index % 3];
        let mut group = Ranks::new(&stored, &replicated(4), ranks);
        let tokens = some_tokens(40, stored.config().vocab_size, 5);
        let expected = all_logits(&mut alone, &tokens, Level::L4, 32);
        for replicas in [0, 3, 1, 4].map(|count| chosen(&alone, |expert| expert % 5 < count)) {
            let layers = replicas.layers().iter().map(|of| of.iter().copied().take(4).collect());
            group.own().move_replicas(&Replicas::new(layers.collect())).unwrap();
            let found = all_logits(group.lead(), &tokens, Level::L4, 32);
            assert!(expected == found, "{} over {ranks} ranks", family.display());
        }
        assert!(group.close().iter().all(Result::is_ok));
    }
}

#[test]
fn calibrated_experts_are_replicated_from_the_start() {
    let stored = source(&bundled());
    let mut alone = runner(Cpu::new(1), &stored, &RunnerOptions::default());
    for (ranks, replicas) in [(2, 3), (3, 8), (4, 32)] {
        let mut group = Ranks::new(&stored, &replicated(replicas), ranks);
        let lead = group.own();
        let current = lead.current_replicas().unwrap().clone();
        assert!(current.layers().iter().all(|layer| layer.len() == replicas), "{current:?}");
        assert!(group.close().iter().all(Result::is_ok));
        let name = format!("{replicas} replicas");
        assert_same(&mut alone, &stored, &replicated(replicas), ranks, &name);
    }
}

#[test]
fn batches_whose_rows_of_one_expert_are_divided() {
    let folder = tempfile::tempdir().unwrap();
    let stored = source(&store(&data("tiny-qwen3-moe"), folder.path()));
    let vocabulary = stored.config().vocab_size;
    let mut one = runner(Cpu::new(1), &stored, &RunnerOptions::default());
    let expected = mixed_batches(&mut one, vocabulary);
    let many = some_tokens(64, vocabulary, 9);
    let logits = all_logits(&mut one, &many, Level::L4, 64);
    for ranks in [2, 3, 4] {
        let mut group = Ranks::new(&stored, &replicated(64), ranks);
        group.own().move_replicas(&chosen(&one, |_| true)).unwrap();
        for (expected, found) in expected.iter().zip(mixed_batches(group.lead(), vocabulary)) {
            assert!(bits(expected) == bits(&found), "{ranks} ranks");
            // One rank counts each use.
            assert_eq!(found.stats.expert_uses, expected.stats.expert_uses);
        }
        assert!(logits == all_logits(group.lead(), &many, Level::L4, 64), "{ranks} ranks");
        assert!(group.close().iter().all(Result::is_ok));
    }
}

#[test]
fn replicas_follow_the_use_of_experts() {
    let folder = tempfile::tempdir().unwrap();
    // The store has no frequencies.
    let stored = source(&store(&data("tiny-qwen3-moe"), folder.path()));
    let mut one = runner(Cpu::new(1), &stored, &RunnerOptions::default());
    let prompt = some_tokens(5, stored.config().vocab_size, 3);
    let expected = greedy(&mut one, &prompt, Level::L4, 200);
    let mut group = Ranks::new(&stored, &replicated(1), 3);
    let held = |group: &mut Ranks| group.own().current_replicas().unwrap().clone();
    assert_eq!(held(&mut group).layers().concat().len(), 0);
    assert_eq!(greedy(group.lead(), &prompt, Level::L4, 200), expected);
    assert!(!held(&mut group).layers().concat().is_empty(), "no replica has moved");
    assert!(group.close().iter().all(Result::is_ok));
}

#[test]
fn impossible_sets_are_refused_by_all_ranks() {
    let stored = source(&bundled());
    let mut one = runner(Cpu::new(1), &stored, &RunnerOptions::default());
    let prompt = some_tokens(5, stored.config().vocab_size, 3);
    let expected = greedy(&mut one, &prompt, Level::L4, 4);
    let mut group = Ranks::new(&stored, &replicated(2), 2);
    let sets = [vec![vec![0, 1, 2]], vec![vec![1, 32]], vec![vec![]; 64], vec![vec![1]; 64]];
    for (set, is_refused) in sets.into_iter().zip([true, true, false, true]) {
        let moved = group.own().move_replicas(&Replicas::new(set));
        assert_eq!(moved.is_err(), is_refused, "{moved:?}");
        assert_eq!(greedy(group.lead(), &prompt, Level::L4, 4), expected);
    }
    assert!(group.close().iter().all(Result::is_ok));
    let mut group = Ranks::new(&stored, &replicated(0), 2);
    let error = group.own().move_replicas(&Replicas::new(vec![vec![1]])).unwrap_err();
    assert!(matches!(error, EngineError::Mismatch { .. }), "{error}");
}

fn options(residence: Residence, expert_replicas: usize) -> ModelOptions {
    let context_length = Some(64);
    ModelOptions { context_length, residence, expert_replicas, ..ModelOptions::default() }
}

#[test]
fn the_bundled_model_says_the_same_with_replicas() {
    watched(|| {
        let plain = options(Residence::Auto, 0);
        let expected = text(&alone(&plain));
        let without = open(&engine(None), &plain, 2).unwrap().weight_bytes();
        let engine = engine(None);
        let model = open(&engine, &options(Residence::Auto, 4), 2).unwrap();
        assert_eq!(text(&model), expected);
        // Each rank has memory for four more experts of each of four layers.
        let (experts, bytes) = (2 * 4 * 4, model.weight_bytes() - without);
        let planes = (0..4).flat_map(|layer| (0..32).map(move |expert| (layer, expert)));
        let store = bundled();
        let size = |(layer, expert)| {
            let group = store.group(&GroupId::expert_of(layer, expert)).unwrap();
            Plane::ALL
                .iter()
                .filter_map(|plane| store.extent(group, *plane))
                .map(|extent| extent.length)
                .sum::<u64>()
        };
        let most = planes.map(size).max().unwrap();
        assert!(bytes > experts * most / 2 && bytes <= experts * most, "{bytes} of {most}");
        drop(model);
        engine.shutdown();
        assert_eq!(engine.budget().used_bytes(), 0);
    });
}

#[test]
fn streamed_replicas_are_refused() {
    watched(|| {
        for residence in [Residence::Streamed, Residence::Lazy] {
            let error = open(&engine(Some(64 << 20)), &options(residence, 3), 2).unwrap_err();
            let is_refused = matches!(error, EngineError::ReplicasStreamed { replicas: 3 });
            assert!(is_refused, "{residence:?}: {error}");
        }
        // One rank has all experts, and may stream them.
        assert!(open(&engine(Some(64 << 20)), &options(Residence::Streamed, 3), 1).is_ok());
    });
    let (reads, host) = (ReadOptions::default(), HostOptions::default());
    let streaming =
        Some(StreamOptions { budget_bytes: 1 << 30, reads, prefetch: Prefetch::All, host });
    let alone = RunnerOptions { streaming, ..replicated(3) };
    assert!(runner(Cpu::new(1), &source(&bundled()), &alone).replicas().is_none());
}

#[test]
fn memory_of_replicas_of_a_published_shape() {
    let shape = SyntheticShape::QWEN3_30B_A3B;
    let synthetic = SyntheticOptions { shape, top_level: Level::L4, router_skew: 0.0, seed: 1 };
    let (index, config) = synthetic_index(&synthetic).unwrap();
    let held = |share, replicas| {
        let options = options(Residence::Owned, replicas);
        let plan = MemoryPlan::of_index(&index, &config, Level::L4, &options, None, None, share);
        plan.unwrap().expert_bytes_total
    };
    let (whole, share) = (held(RankShare::default(), 0), RankShare { rank: 1, ranks: 4 });
    let more = held(share, 8) - held(share, 0);
    assert!(more.abs_diff(whole / 16) < whole / 500, "{more} of {whole}");
    // Experts that a rank has already are no replicas.
    assert_eq!(held(share, 128), whole);
    assert_eq!(held(RankShare::default(), 8), whole);
}
