//! Models that are opened over ranks through the engine.

use std::sync::Arc;

use nestling_core::cancel::CancelToken;
use nestling_core::error::EngineError;
use nestling_core::group::RankShare;
use nestling_experts::residency::Placement;
use nestling_formats::store::{Group, GroupId, Store};
use nestling_formats::{Level, Plane};
use nestling_plan::synthetic::{SyntheticOptions, SyntheticShape, synthetic_index};
use nestling_ranks::{RankOptions, open_on_threads};
use nestling_runtime::{
    Engine, EngineOptions, GenerateOptions, MemoryPlan, Model, ModelOptions, ModelSource,
    Residence, SnapshotContents,
};
use nestling_testkit::models::common::store_path;
use nestling_testkit::runners::data;

use crate::harness::{store, watched};

pub const PROMPT: &str = "The captain said";

pub fn engine(memory_budget: Option<u64>) -> Engine {
    let options = EngineOptions { threads: Some(2), memory_budget, ..EngineOptions::default() };
    Engine::new(options).unwrap()
}

pub fn bundled() -> Arc<Store> {
    Arc::new(Store::open(store_path()).unwrap())
}

pub fn open(engine: &Engine, options: &ModelOptions, ranks: usize) -> Result<Model, EngineError> {
    let (source, cancel) = (ModelSource::Store(bundled()), CancelToken::new());
    open_on_threads(engine, source, options, RankOptions::new(ranks), &mut |_| {}, &cancel)
}

pub fn text(model: &Model) -> String {
    let options = GenerateOptions { max_tokens: Some(8), ..GenerateOptions::greedy() };
    model.session().generate(PROMPT, &options).unwrap().into_text().unwrap()
}

pub fn alone(options: &ModelOptions) -> Model {
    let source = ModelSource::Store(bundled());
    Model::open_source(&engine(None), source, options, &mut |_| {}, &CancelToken::new()).unwrap()
}

#[test]
fn the_bundled_model_says_the_same_over_ranks() {
    watched(|| {
        let options = ModelOptions { context_length: Some(64), ..ModelOptions::default() };
        let alone = alone(&options);
        let expected = text(&alone);
        for ranks in [1, 2, 4] {
            let engine = engine(None);
            let model = open(&engine, &options, ranks).unwrap();
            assert_eq!(text(&model), expected, "{ranks} ranks");
            // A rank holds its experts and rows, and all norms, routers and embedding rows.
            let (held, whole) = (model.weight_bytes(), alone.weight_bytes());
            assert!(held >= whole && held < whole * 3 / 2, "{ranks} ranks hold {held} of {whole}");
        }
    });
}

#[test]
fn streamed_ranks_share_one_budget_and_give_it_back() {
    watched(|| {
        let residence = Residence::Streamed;
        let options =
            ModelOptions { context_length: Some(64), residence, ..ModelOptions::default() };
        let expected = text(&alone(&options));
        let budget = 64 << 20;
        let engine = engine(Some(budget));
        let model = open(&engine, &options, 2).unwrap();
        assert_eq!(text(&model), expected);
        let plan = *model.memory_plan().unwrap();
        assert!(plan.total_bytes() <= budget, "{plan:?}");
        let held = model.expert_bytes().unwrap();
        assert!(held > 0 && held <= plan.expert_bytes, "{held} of {}", plan.expert_bytes);
        let less = plan.expert_bytes / 2;
        model.set_expert_budget(less).unwrap();
        assert_eq!(text(&model), expected);
        assert!(model.expert_bytes().unwrap() <= less);
        drop(model);
        engine.shutdown();
        assert_eq!(engine.budget().used_bytes(), 0);
    });
}

#[test]
fn a_session_moves_from_one_rank_to_several() {
    watched(|| {
        let options = ModelOptions { context_length: Some(64), ..ModelOptions::default() };
        let alone = alone(&options);
        let two = GenerateOptions { max_tokens: Some(8), ..GenerateOptions::greedy() };
        let mut session = alone.session();
        session.generate(PROMPT, &two).unwrap().into_text().unwrap();
        let snapshot = session.snapshot(SnapshotContents::TokensAndPages).unwrap();
        let expected = session.generate(" and then", &two).unwrap().into_text().unwrap();
        let engine = engine(None);
        let model = open(&engine, &options, 3).unwrap();
        let mut moved = model.restore(&snapshot).unwrap();
        assert_eq!(moved.generate(" and then", &two).unwrap().into_text().unwrap(), expected);
    });
}

#[test]
fn an_impossible_number_of_ranks_or_budget_is_refused() {
    watched(|| {
        let options = ModelOptions::default();
        for ranks in [0, 65] {
            let error = open(&engine(None), &options, ranks).unwrap_err();
            assert!(matches!(error, EngineError::Limit { limit: 64, .. }), "{error}");
        }
        let error = open(&engine(Some(4 << 20)), &options, 2).unwrap_err();
        assert!(matches!(error, EngineError::MemoryTooSmall(_)), "{error}");
    });
}

#[test]
fn a_rank_of_four_holds_a_quarter_of_a_published_shape() {
    let shape = SyntheticShape::QWEN3_30B_A3B;
    let synthetic = SyntheticOptions { shape, top_level: Level::L4, router_skew: 0.0, seed: 1 };
    let (index, config) = synthetic_index(&synthetic).unwrap();
    let options = ModelOptions { residence: Residence::Owned, ..ModelOptions::default() };
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
    for share in (RankShare { rank: 0, ranks: 4 }).all() {
        let (rank, divided) = (held(share), (whole - replicated) / 4);
        println!("rank {}: {rank} bytes of {whole}, of which {replicated} on each", share.rank);
        assert!(rank as f64 <= 0.27 * whole as f64 + replicated as f64, "{rank} of {whole}");
        assert!(rank.abs_diff(replicated + divided) < whole / 100, "{rank} of {whole}");
    }
}

#[test]
fn ranks_divide_a_dense_model() {
    let folder = tempfile::tempdir().unwrap();
    let store = store(&data("families/llama"), folder.path());
    let config = ModelSource::Store(Arc::clone(&store)).config().unwrap();
    let options = ModelOptions { residence: Residence::Owned, ..ModelOptions::default() };
    let held = |share| {
        let plan = MemoryPlan::of_rank(&store, &config, &options, None, None, share);
        plan.unwrap().weight_bytes
    };
    let whole = held(RankShare::default());
    // 60 rows are four tiles, so that one rank of three holds half of them. Keys and values of 20 rows are two tiles, which
    // each of four ranks holds; all ranks hold the norms and the tables of codecs.
    for (ranks, most) in [(2, 0.55), (3, 0.55), (4, 0.4)] {
        let each: Vec<u64> = RankShare { rank: 0, ranks }.all().map(held).collect();
        println!("{ranks} ranks hold {each:?} bytes of {whole}");
        assert!(each.iter().sum::<u64>() >= whole, "{each:?} of {whole}");
        let least = whole as f64 / (2 * ranks) as f64;
        let bounds = least..most * whole as f64;
        assert!(each.iter().all(|held| bounds.contains(&(*held as f64))), "{each:?} of {whole}");
    }
}

/// Returns the load of the busiest rank over the mean, averaged over the layers of the bundled model.
fn busiest(store: &Store, ranks: usize, rank_of: impl Fn(u32, u32) -> usize) -> f32 {
    let layers = 4;
    let of_layer = |layer: u32| {
        let mut loads = vec![0.0; ranks];
        for expert in 0..32 {
            let group = store.group(&GroupId::expert_of(layer, expert)).unwrap();
            loads[rank_of(layer, expert)] += group.frequency.unwrap();
        }
        let (sum, most) = (loads.iter().sum::<f32>(), loads.iter().copied().fold(0.0, f32::max));
        most * ranks as f32 / sum
    };
    (0..layers).map(of_layer).sum::<f32>() / layers as f32
}

#[test]
fn the_bundled_model_is_placed_by_measured_frequency() {
    let store = bundled();
    let config = ModelSource::Store(Arc::clone(&store)).config().unwrap();
    for ranks in [2, 4, 8] {
        let share = RankShare { rank: 0, ranks };
        let (measured, in_turn) =
            (Placement::of_index(store.index(), &config, share), Placement::in_turn(share));
        let measured = busiest(&store, ranks, |layer, expert| measured.rank_of(layer, expert));
        let in_turn = busiest(&store, ranks, |layer, expert| in_turn.rank_of(layer, expert));
        println!("{ranks} ranks: the busiest has {measured:.3} of the mean, in turn {in_turn:.3}");
        assert!(measured <= in_turn && measured < 1.05, "{measured}, {in_turn}");
    }
}
