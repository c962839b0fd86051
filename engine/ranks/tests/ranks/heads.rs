//! Attention and pages that are divided by heads have the bits of one rank.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use nestling_core::batch::Batch;
use nestling_core::error::EngineError;
use nestling_core::group::{Group, RankShare};
use nestling_core::kv_cache::{KvDtype, PageAllocator, PageId};
use nestling_core::kv_heads::{DividedLayers, KvDivision};
use nestling_core::runner::ModelRunner;
use nestling_cpu::Cpu;
use nestling_experts::expert::ExpertSource;
use nestling_formats::Level;
use nestling_formats::store::Store;
use nestling_plan::synthetic::{SyntheticOptions, SyntheticShape, synthetic_index};
use nestling_ranks::{QueueGroup, RankOptions, open_on_processes, open_on_threads};
use nestling_runtime::model::RunnerOptions;
use nestling_runtime::{
    GenerateOptions, MemoryPlan, Model, ModelOptions, ModelSource, Residence, Session,
    SnapshotContents,
};
use nestling_testkit::runners::{Sequence, checkpoint, runner, some_tokens, step};

use crate::bits::{assert_same, families};
use crate::harness::{Ranks, source, store, watched};
use crate::opened::engine;
use crate::wide::wide;

pub fn by_heads() -> RunnerOptions {
    RunnerOptions { kv_division: KvDivision::ByHeads, ..RunnerOptions::default() }
}

/// Returns how many layers of a model are divided over ranks.
pub fn layers(source: &dyn ExpertSource, ranks: usize) -> DividedLayers {
    KvDivision::ByHeads.layers(source.config(), RankShare { rank: 0, ranks })
}

/// Sinks, biases and windows; gates of elements beside recurrent layers; gates of heads; norms after parts.
const WIDE: [&str; 4] = ["gpt-oss", "qwen3-next", "laguna", "gemma3"];

#[test]
fn families_whose_heads_two_ranks_can_divide() {
    let mut tested = 0;
    for (index, family) in families().iter().enumerate() {
        let name = family.display().to_string();
        let mut source_of = checkpoint(family);
        let found = layers(&*source_of, 2);
        // One model without divided layers is enough.
        if found.divided == 0 && !name.ends_with("deepseek-v3") {
            continue;
        }
        tested += 1;
        let folder = tempfile::tempdir().unwrap();
        if index % 2 > 0 {
            source_of = source(&store(family, folder.path()));
        }
        let mut one = runner(Cpu::new(1), &source_of, &RunnerOptions::default());
        assert_same(&mut one, &source_of, &by_heads(), 2, &name);
    }
    assert!(tested > 8, "{tested} families");
}

#[test]
fn more_ranks_and_uneven_numbers_of_heads() {
    for (family, ranks) in WIDE.into_iter().zip([&[3, 8][..], &[4], &[3], &[8]]) {
        let folder = tempfile::tempdir().unwrap();
        let stored = source(&store(&wide(family, folder.path()), folder.path()));
        let mut one = runner(Cpu::new(1), &stored, &RunnerOptions::default());
        for &ranks in ranks {
            let found = layers(&*stored, ranks);
            assert!(found.divided > 0 && found.replicated == 0, "{family}, {ranks} ranks");
            assert_same(&mut one, &stored, &by_heads(), ranks, family);
        }
        // Sixteen ranks have fewer heads than ranks.
        assert_eq!(layers(&*stored, 16).divided, 0);
    }
}

/// Runs a prompt in pieces that cross pages, and then rows of it and of another sequence together. Pages of the first are
/// read, restored at other places and copied on the way.
fn pages_and_logits(runner: &mut dyn ModelRunner) -> (Vec<Vec<u8>>, Vec<u32>) {
    let mut allocator = PageAllocator::new(runner.limits().pages as u32);
    let mut sequences = [Level::L4, Level::L3].map(Sequence::new);
    let vocabulary = runner.limits().vocab_size;
    let (mut pages, mut bits) = (Vec::new(), Vec::new());
    for length in [33, 33, 1, 1] {
        let mut batch = Batch::default();
        for (seed, sequence) in (0..).zip(&mut sequences) {
            let tokens = some_tokens(length, vocabulary, seed);
            sequence.push(&tokens, |at| at + 1 == length, &mut batch, &mut allocator);
        }
        bits.extend(step(runner, &batch).logits.iter().map(|logit| logit.to_bits()));
        let spare = PageId(runner.limits().pages as u32 - 1);
        for page in sequences.iter().flat_map(|sequence| sequence.pages.pages()) {
            let bytes = runner.read_page(*page).unwrap();
            assert_eq!(bytes.len(), runner.limits().page_bytes);
            runner.write_page(spare, &bytes).unwrap();
            runner.write_page(*page, &vec![7; bytes.len()]).unwrap();
            runner.copy_page(spare, *page).unwrap();
            pages.push(bytes);
        }
    }
    (pages, bits)
}

#[test]
fn pages_hold_all_heads() {
    let folder = tempfile::tempdir().unwrap();
    let stored = source(&store(&wide("gpt-oss", folder.path()), folder.path()));
    for (kv_dtype, ranks) in [(KvDtype::F32, 2), (KvDtype::F16, 4), (KvDtype::Int8, 3)] {
        let options = RunnerOptions { kv_dtype, ..by_heads() };
        let mut one = runner(Cpu::new(1), &stored, &options);
        let expected = pages_and_logits(&mut one);
        let mut group = Ranks::new(&stored, &options, ranks);
        assert!(pages_and_logits(group.lead()) == expected, "{kv_dtype:?}, {ranks} ranks");
        // Bytes of another size, and pages that nobody wrote, are refused by all ranks.
        let lead = group.lead();
        let error = lead.write_page(PageId(0), &[0; 9]).unwrap_err();
        assert!(matches!(error, EngineError::Mismatch { .. }), "{error}");
        assert!(lead.read_page(PageId(u32::MAX)).is_err());
        assert!(lead.read_page(PageId(0)).is_ok());
        assert!(group.close().iter().all(Result::is_ok));
    }
}

fn open(store: &Arc<Store>, options: &ModelOptions, ranks: usize) -> Model {
    let (source, cancel) = (ModelSource::Store(Arc::clone(store)), Default::default());
    let ranks = RankOptions::new(ranks);
    open_on_threads(&engine(None), source, options, ranks, &mut |_| {}, &cancel).unwrap()
}

#[test]
fn a_session_moves_between_numbers_of_ranks() {
    watched(|| {
        let folder = tempfile::tempdir().unwrap();
        let store = store(&wide("gpt-oss", folder.path()), folder.path());
        let options = ModelOptions {
            context_length: Some(128),
            kv_division: KvDivision::ByHeads,
            ..ModelOptions::default()
        };
        let ask =
            GenerateOptions { max_tokens: Some(24), ignore_end: true, ..GenerateOptions::greedy() };
        let more = |session: &mut Session| {
            session.generate("the captain", &ask).unwrap().into_text().unwrap()
        };
        let one = open(&store, &options, 1);
        let mut alone = one.session();
        let expected = [more(&mut alone), more(&mut alone), more(&mut alone)];
        let mut session = one.session();
        assert_eq!(more(&mut session), expected[0]);
        for (ranks, expected) in [(3, &expected[1]), (1, &expected[2])] {
            let snapshot = session.snapshot(SnapshotContents::TokensAndPages).unwrap();
            let model = open(&store, &options, ranks);
            session = model.restore(&snapshot).unwrap();
            assert_eq!(&more(&mut session), expected, "{ranks} ranks");
        }
    });
}

#[test]
fn processes_have_the_division_of_rank_0() {
    watched(|| {
        let folder = tempfile::tempdir().unwrap();
        let store = store(&wide("gemma3", folder.path()), folder.path());
        let text = |model: Model| {
            let ask = GenerateOptions { max_tokens: Some(8), ..GenerateOptions::greedy() };
            let mut session = model.session();
            let text = session.generate("the captain", &ask).unwrap().into_text().unwrap();
            (text, session.snapshot(SnapshotContents::TokensAndPages).unwrap())
        };
        let by_heads = ModelOptions { kv_division: KvDivision::ByHeads, ..ModelOptions::default() };
        let expected = text(open(&store, &by_heads, 1));
        let group = QueueGroup::of_threads(3, Duration::from_secs(60)).into_iter();
        let processes: Vec<_> = group
            .map(|member| {
                let (store, rank) = (Arc::clone(&store), member.share().rank);
                let of_lead = by_heads.clone();
                thread::spawn(move || {
                    let options = if rank == 0 { of_lead } else { ModelOptions::default() };
                    let source = ModelSource::Store(store);
                    let (group, cancel) = (Arc::new(member), Default::default());
                    let (engine, none) = (engine(None), &mut |_| {});
                    let model =
                        open_on_processes(&engine, source, &options, group, none, &cancel).unwrap();
                    let plan = model.as_ref().map(|model| model.memory_plan().unwrap().kv_bytes);
                    (model.map(text), plan)
                })
            })
            .collect();
        let mut of_ranks = processes.into_iter().map(|process| process.join().unwrap());
        let (found, kv_bytes) = of_ranks.next().unwrap();
        assert!(found.unwrap() == expected);
        // Two of eight heads.
        let whole = open(&store, &by_heads, 1).memory_plan().unwrap().kv_bytes;
        assert_eq!(kv_bytes, Some(whole / 4));
        assert!(of_ranks.all(|(model, _)| model.is_none()));
    });
}

#[test]
fn each_rank_plans_the_pages_of_its_heads() {
    let shape = SyntheticShape::QWEN3_30B_A3B;
    let synthetic = SyntheticOptions { shape, top_level: Level::L4, router_skew: 0.0, seed: 1 };
    let (index, config) = synthetic_index(&synthetic).unwrap();
    let plan = |kv_division, share, budget| {
        let residence = Residence::Auto;
        let options = ModelOptions { kv_division, residence, ..ModelOptions::default() };
        MemoryPlan::of_index(&index, &config, Level::L4, &options, None, budget, share).unwrap()
    };
    let whole = plan(KvDivision::ByHeads, RankShare::default(), None);
    let each = |ranks, budget| -> Vec<MemoryPlan> {
        let shares = RankShare { rank: 0, ranks }.all();
        shares.map(|share| plan(KvDivision::ByHeads, share, budget)).collect()
    };
    // Four key heads.
    for (ranks, most) in [(2, 2), (3, 2), (4, 1)] {
        for budget in [None, Some(4 << 30)] {
            let plans = each(ranks, budget);
            let same = |plan: &MemoryPlan| (plan.context_length, plan.kv_pages, plan.rows_max);
            assert!(plans.iter().all(|plan| same(plan) == same(&plans[0])), "{plans:?}");
            let largest = plans.iter().map(|plan| plan.kv_bytes).max().unwrap();
            let sum = plans.iter().map(|plan| plan.kv_bytes).sum::<u64>();
            assert_eq!(largest * 4, sum * most, "{ranks} ranks");
            if budget.is_none() {
                assert_eq!(sum, whole.kv_bytes);
                // The rows of queries, keys and values are those of the heads.
                let weights = plans.iter().map(|plan| plan.weight_bytes).sum::<u64>();
                assert!(weights >= whole.weight_bytes);
            }
        }
    }
    let eight = plan(KvDivision::ByHeads, RankShare { rank: 7, ranks: 8 }, None);
    assert_eq!(eight.kv_bytes, whole.kv_bytes, "fewer heads than ranks");
    let replicated = plan(KvDivision::Replicated, RankShare { rank: 0, ranks: 4 }, None);
    assert_eq!(replicated.kv_bytes, whole.kv_bytes);
}
