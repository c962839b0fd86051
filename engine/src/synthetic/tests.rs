use std::sync::Arc;

use nestling_formats::store::Store;
use nestling_formats::{Level, MatrixKind};

use super::*;
use crate::batch::{Batch, LevelPolicy, Row, SequenceRef};
use crate::cpu::Cpu;
use crate::expert::{ExpertSource, StoreSource};
use crate::kv_cache::PageId;
use crate::model::{Runner, RunnerOptions};
use crate::runner::{ModelRunner, StepStats};

fn options() -> SyntheticOptions {
    let shape = SyntheticShape::TINY;
    SyntheticOptions { shape, top_level: Level::L4, router_skew: 0.5, seed: 1 }
}

fn write(options: &SyntheticOptions) -> (Arc<Store>, SyntheticReport) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tiny.nest");
    let report = write_synthetic_store(&path, options, &CancelToken::new(), &mut |_, _| {});
    // The file stays readable after its folder is gone.
    (Arc::new(Store::open(&path).unwrap()), report.unwrap())
}

/// One step over tokens of one sequence from position 0 on.
fn step(store: &Arc<Store>, tokens: impl Iterator<Item = u32>) -> StepStats {
    let source: Arc<dyn ExpertSource> =
        Arc::new(StoreSource::owned(Arc::clone(store), None).unwrap());
    let options = RunnerOptions { kv_pages: Some(2), ..RunnerOptions::default() };
    let cancel = CancelToken::new();
    let mut runner = Runner::load(Cpu::new(1), source, &options, &cancel, &mut |_, _| {}).unwrap();
    let row = |(position, token)| Row {
        token,
        position,
        sequence: 0,
        wants_logits: true,
        levels: LevelPolicy::Fixed(store.level()),
    };
    let sequences = vec![SequenceRef::of_pages(vec![PageId(0), PageId(1)])];
    let batch = Batch { rows: (0..).zip(tokens).map(row).collect(), sequences };
    let output = runner.step_blocking(&batch, &cancel).unwrap();
    assert!(output.failures.is_empty() && output.logits.iter().all(|logit| logit.is_finite()));
    output.stats
}

#[test]
fn a_store_is_whole_and_the_same_for_the_same_seed() {
    let (store, report) = write(&options());
    let damage = store.verify(&mut |_| std::ops::ControlFlow::Continue(())).unwrap().damage;
    assert!(damage.is_empty(), "{damage:?}");
    assert_eq!(store.lengths().0, report.store_bytes);
    assert_eq!(write(&options()).0.id(), store.id());
    assert_ne!(write(&SyntheticOptions { seed: 2, ..options() }).0.id(), store.id());
}

#[test]
fn every_matrix_has_the_top_level_and_the_head_six() {
    for (top, head) in [(Level::L2, Level::L6), (Level::L4, Level::L6), (Level::L8, Level::L8)] {
        let (store, _) = write(&SyntheticOptions { top_level: top, ..options() });
        assert_eq!(store.level(), top);
        let matrices = store.groups().iter().flat_map(|group| &group.matrices);
        for matrix in matrices {
            let expected = if matrix.kind == MatrixKind::Head { head } else { top };
            assert_eq!(matrix.levels.iter().flatten().max(), Some(&expected), "{:?}", matrix.kind);
        }
    }
}

/// What a token reads, as the plan has it and as a step counts it; and 64 tokens must not all
/// choose the same experts.
#[test]
fn tokens_read_what_the_report_says_and_choose_different_experts() {
    let (store, report) = write(&options());
    let one = step(&store, std::iter::once(7)).weight_bytes as f64;
    let expected = report.token_bytes as f64;
    assert!((one / expected - 1.0).abs() < 0.02, "{one} of {expected}");
    let many = step(&store, (0..64).map(|token| token * 13)).weight_bytes as f64;
    let (all, four) = (32.0, 8.0); // of both layers
    let per_expert = report.bytes_per_expert as f64;
    let used = four + (many - one) / per_expert;
    assert!(used > 0.7 * all, "64 tokens use only {used} of {all} experts");
}

#[test]
fn skew_makes_some_experts_busier() {
    let share =
        |router_skew| write(&SyntheticOptions { router_skew, ..options() }).1.busiest_shares[1];
    let (even, half, one) = (share(0.0), share(0.5), share(1.0));
    assert!((0.25..0.3).contains(&even), "{even}");
    assert!(even + 0.1 < half && half + 0.1 < one, "{even} {half} {one}");
}

#[test]
fn a_cancelled_store_leaves_nothing_behind() {
    let folder = tempfile::tempdir().unwrap();
    let cancel = CancelToken::new();
    cancel.cancel();
    let path = folder.path().join("tiny.nest");
    let result = write_synthetic_store(&path, &options(), &cancel, &mut |_, _| {});
    assert!(matches!(result, Err(EngineError::Cancelled)));
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}
