//! Dual routing on a whole model: levels depend only on the token and the expert.

use std::path::Path;
use std::sync::Arc;

use nestling_core::batch::{Batch, LevelPolicy};
use nestling_core::cancel::CancelToken;
use nestling_core::kv_cache::PageAllocator;
use nestling_core::runner::ModelRunner;
use nestling_cpu::Cpu;
use nestling_experts::expert::{ExpertSource, HostOptions, Prefetch, StoreSource, StreamOptions};
use nestling_experts::reads::ReadOptions;
use nestling_experts::residency::ExpertTable;
use nestling_formats::Level;
use nestling_formats::store::Store;
use nestling_levels::dual::{
    DualOptions, DualPolicy, DualRouting, ExpertSensitivities, LevelMode, LevelRouter, PlaneScores,
    RouteSample, RoutedToken, Threshold, ThresholdRule,
};
use nestling_runtime::model::{Runner, RunnerOptions};
use nestling_runtime::sample_tokens::sample_tokens;

use crate::build::{Recipe, build_store};
use nestling_testkit::runners::{Sequence, data, runner, runners, some_tokens};

struct BuiltStore {
    _directory: tempfile::TempDir,
    store: Arc<Store>,
}

fn built() -> BuiltStore {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("tiny.nest");
    build_store(&data("tiny-qwen3-moe"), &path, &Recipe::default());
    BuiltStore { store: Arc::new(Store::open(&path).unwrap()), _directory: directory }
}

fn owned(store: &Arc<Store>) -> Arc<dyn ExpertSource> {
    Arc::new(StoreSource::owned(Arc::clone(store), None).unwrap())
}

/// Returns the logits of all positions, computed in chunks of `chunk` rows, and the mean level used.
fn logits(
    runner: &mut dyn ModelRunner,
    tokens: &[u32],
    levels: LevelPolicy,
    chunk: usize,
) -> (Vec<f32>, f64) {
    let mut allocator = PageAllocator::new(runner.limits().pages as u32);
    let mut sequence = Sequence { levels, ..Sequence::new(Level::L8) };
    let (mut logits, mut uses) = (Vec::new(), [0; 5]);
    for piece in tokens.chunks(chunk) {
        let mut batch = Batch::default();
        sequence.push(piece, |_| true, &mut batch, &mut allocator);
        let output = runner.step_blocking(&batch, &CancelToken::new()).unwrap();
        uses.iter_mut().zip(output.stats.expert_uses).for_each(|(sum, uses)| *sum += uses);
        logits.extend(output.logits);
    }
    let bits = Level::ALL.iter().zip(uses).map(|(level, uses)| u64::from(level.bits()) * uses);
    (logits, bits.sum::<u64>() as f64 / uses.iter().sum::<u64>() as f64)
}

fn mixed(runner: &mut dyn ModelRunner, store: &Store, mean_level: f32) -> DualPolicy {
    let sensitivities = ExpertSensitivities::of_index(store.index());
    let router = ThresholdRule::new(Arc::new(sensitivities));
    let asked = DualOptions { mean_level: Some(mean_level), ..DualOptions::default() };
    let tokens = some_tokens(128, runner.limits().vocab_size, 3);
    let cancel = CancelToken::new();
    DualRouting::open(runner, &router, asked, Level::L8, &tokens, &cancel).unwrap().policy()
}

fn options() -> RunnerOptions {
    RunnerOptions { rows_max: 64, kv_pages: Some(8), ..RunnerOptions::default() }
}

#[test]
fn a_mix_is_the_same_in_any_pieces_with_any_threads_and_instructions() {
    let built = built();
    let source = owned(&built.store);
    let mut expected: Option<(DualPolicy, Vec<f32>)> = None;
    for (name, mut runner) in runners(&source, &options()) {
        if name == "reference" {
            continue;
        }
        let policy = mixed(&mut *runner, &built.store, 3.2);
        let tokens = some_tokens(40, runner.limits().vocab_size, 5);
        for chunk in [40, 7, 1] {
            let (found, mean) = logits(&mut *runner, &tokens, LevelPolicy::Dual(policy), chunk);
            assert!((mean - 3.2).abs() < 0.3, "{name}: {mean} served");
            let (first, all) = expected.get_or_insert_with(|| (policy, found.clone()));
            assert_eq!(*first, policy, "{name}: the threshold is a function of the model");
            assert!(*all == found, "{name}: pieces of {chunk}");
        }
    }
}

#[test]
fn batch_mates_change_no_level_and_levels_no_batch_mate() {
    let built = built();
    let source = owned(&built.store);
    let (_, mut runner) = runners(&source, &options()).pop().unwrap();
    let policy = LevelPolicy::Dual(mixed(&mut *runner, &built.store, 3.0));
    let tokens = some_tokens(12, runner.limits().vocab_size, 5);
    let (mix, _) = logits(&mut *runner, &tokens, policy, 12);
    let (coarse, _) = logits(&mut *runner, &tokens, LevelPolicy::Fixed(Level::L2), 12);
    let mut allocator = PageAllocator::new(8);
    let mut batch = Batch::default();
    for levels in [LevelPolicy::Fixed(Level::L2), policy] {
        let mut sequence = Sequence { levels, ..Sequence::new(Level::L8) };
        sequence.push(&tokens, |_| true, &mut batch, &mut allocator);
    }
    let output = runner.step_blocking(&batch, &CancelToken::new()).unwrap();
    assert!(output.logits == [coarse, mix].concat());
}

#[test]
fn threshold_zero_is_the_level_itself() {
    let built = built();
    let (_, mut runner) = runners(&owned(&built.store), &options()).pop().unwrap();
    let tokens = some_tokens(20, runner.limits().vocab_size, 5);
    let all = LevelPolicy::Dual(DualPolicy::up_to(Level::L4, Threshold::ZERO));
    let (every, mean) = logits(&mut *runner, &tokens, all, 20);
    let (four, _) = logits(&mut *runner, &tokens, LevelPolicy::Fixed(Level::L4), 20);
    assert!(every == four && mean == 4.0);
}

/// Returns the bundled model, resident or with a budget for one part in `share` of its experts.
fn bundled(share: Option<u64>) -> Runner<Cpu> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/nestling-storyteller.nest");
    let store = Arc::new(Store::open(path).unwrap());
    let table = ExpertTable::of_store(&store, Level::L4).unwrap();
    let source: Arc<dyn ExpertSource> =
        Arc::new(StoreSource::owned(store, Some(Level::L4)).unwrap());
    let streaming = share.map(|share| StreamOptions {
        budget_bytes: (table.total_bytes() / share).max(table.least_bytes()),
        reads: ReadOptions::default(),
        prefetch: Prefetch::Off,
        host: HostOptions::default(),
    });
    runner(Cpu::new(1), &source, &RunnerOptions { streaming, ..options() })
}

#[test]
fn a_streamed_mix_gives_the_bits_of_a_resident_one() {
    let (mut resident, mut streamed) = (bundled(None), bundled(Some(4)));
    let policies = [&mut resident, &mut streamed].map(|runner| {
        let (router, asked) = (
            runner.level_router(),
            DualOptions { mean_level: Some(3.2), ..DualOptions::default() },
        );
        let tokens = sample_tokens(None, runner.limits().vocab_size).unwrap();
        let go = CancelToken::new();
        DualRouting::open(runner, &*router, asked, Level::L4, &tokens, &go).unwrap().policy()
    });
    assert_eq!(policies[0], policies[1], "how a model is held does not change its threshold");
    let tokens = some_tokens(24, resident.limits().vocab_size, 5);
    let levels = LevelPolicy::Dual(policies[0]);
    let (expected, mean) = logits(&mut resident, &tokens, levels, 8);
    assert!(logits(&mut streamed, &tokens, levels, 8) == (expected.clone(), mean));
    assert!(logits(&mut streamed, &tokens, levels, 1) == (expected, mean));
    assert!(mean > 2.0 && mean < 4.0, "{mean}");
}

#[test]
fn elastic_leaves_out_what_is_late_and_says_so() {
    let elastic =
        DualPolicy { mode: LevelMode::Elastic, ..DualPolicy::up_to(Level::L4, Threshold::ZERO) };
    let mut resident = bundled(None);
    let tokens = some_tokens(48, resident.limits().vocab_size, 5);
    let (expected, mean) = logits(&mut resident, &tokens, LevelPolicy::Dual(elastic), 1);
    assert_eq!(mean, 4.0, "nothing is late where everything is resident");
    let mut streamed = bundled(Some(4));
    let (found, mean) = logits(&mut streamed, &tokens, LevelPolicy::Dual(elastic), 1);
    // The cache is empty at the first token, so only the first planes of its experts are available.
    assert!((2.0..4.0).contains(&mean), "{mean}");
    assert!(found.iter().all(|logit| logit.is_finite()) && found != expected);
    let strict = DualPolicy { mode: LevelMode::Strict, ..elastic };
    let (after, mean) = logits(&mut streamed, &tokens, LevelPolicy::Dual(strict), 1);
    assert!(after == expected && mean == 4.0, "what was left out is read when it is waited for");
}

/// Stands for a trained router: levels follow from the signs of the experts' router inputs.
struct Signs;

impl LevelRouter for Signs {
    fn reads_hidden(&self) -> bool {
        true
    }

    fn plane_scores(&self, token: RoutedToken<'_>, highest: Level, scores: &mut [PlaneScores]) {
        for (planes, expert) in scores.iter_mut().zip(token.experts) {
            let is_rich = token.hidden[*expert as usize] > 0.0;
            let most = if is_rich { highest } else { Level::L2 };
            *planes = Level::ALL.map(|level| if level <= most { 2.0 } else { -1.0 });
        }
    }

    fn identity(&self) -> u128 {
        1
    }
}

#[test]
fn a_router_of_ones_own_sees_the_hidden_state_and_gives_the_same_bits_however_rows_are_batched() {
    let policy = DualPolicy::up_to(Level::L4, Threshold::new(1.0));
    let levels = LevelPolicy::Dual(policy);
    let (mut plugged, mut streamed) = (bundled(None), bundled(Some(4)));
    let tokens = some_tokens(16, plugged.limits().vocab_size, 5);
    let (_, rule) = logits(&mut plugged, &tokens, levels, 16);
    assert_eq!(rule, 2.0, "nothing is worth that much");
    plugged.set_level_router(Arc::new(Signs));
    streamed.set_level_router(Arc::new(Signs));
    let (expected, mean) = logits(&mut plugged, &tokens, levels, 16);
    assert!(mean > 2.5 && mean < 3.5, "{mean}");
    for chunk in [5, 1] {
        assert!(logits(&mut plugged, &tokens, levels, chunk) == (expected.clone(), mean));
    }
    assert!(logits(&mut streamed, &tokens, levels, 4) == (expected, mean));
}

#[test]
fn a_sample_of_a_router_that_reads_hidden_states_expects_what_is_served() {
    let mut runner = bundled(None);
    runner.set_level_router(Arc::new(Signs));
    let (tokens, cancel) = (some_tokens(64, runner.limits().vocab_size, 9), CancelToken::new());
    let sample = RouteSample::record(&mut runner, &Signs, &tokens, &cancel).unwrap();
    let policy = DualPolicy::up_to(Level::L4, Threshold::ZERO);
    let expected = sample.mean_level(policy).unwrap();
    let (_, served) = logits(&mut runner, &tokens, LevelPolicy::Dual(policy), 64);
    // The sample was taken at level 4 throughout, so hidden states differ slightly.
    assert!((expected - served).abs() < 0.1, "{expected} {served}");
}

#[test]
fn a_sample_of_nothing_or_nonsense_gives_a_policy_or_an_error() {
    let router = ThresholdRule::default();
    let policy = DualPolicy::up_to(Level::L4, Threshold::ZERO);
    let empty = RouteSample::default();
    assert_eq!(empty.calibrate(3.0, policy).unwrap(), policy);
    for mean_level in [f32::NAN, 1.9, -3.0, f32::NEG_INFINITY] {
        assert!(empty.calibrate(mean_level, policy).is_err(), "{mean_level}");
    }
    let weights = [f32::NAN, 0.0, -1.0, f32::INFINITY];
    let token = RoutedToken { layer: 0, experts: &[0; 4], weights: &weights, hidden: &[] };
    let odd = RouteSample::new(std::iter::once(token), &router);
    // All planes of an unmeasured expert are used, whatever the threshold.
    let found = odd.calibrate(3.0, policy).unwrap();
    assert_eq!(odd.mean_level(found), Some(4.0));
}
