//! Mixed levels: the same output for all kinds of sources, equal to float weights of the same levels.
#![expect(unsafe_code, reason = "maps files that the test alone knows")]

use std::path::Path;
use std::sync::Arc;

use nestling_convert::convert::{ConvertError, ConvertOptions, cut_store};
use nestling_core::CancelToken;
use nestling_core::error::EngineError;
use nestling_core::weights::{ActivationMode, FloatMatrix, MatrixWeights};
use nestling_cpu::reference::Reference;
use nestling_experts::expert::{ExpertSource, Matrices, StoreSource};
use nestling_formats::store::{GroupId, MappedStore, Store};
use nestling_formats::{FloatKind, Level};
use nestling_import::ModelConfig;
use nestling_levels::allocation::{Allocation, ChooseOptions, Counting, choose, weight_bytes};
use nestling_runtime::model::RunnerOptions;
use nestling_runtime::{Engine, EngineOptions, Model, ModelOptions, SnapshotContents};

use super::build::{Recipe, Tied, build_store};
use nestling_testkit::runners::{all_logits, data, runner, some_tokens};

fn open(path: &Path) -> Arc<Store> {
    Arc::new(Store::open(path).unwrap())
}

/// Returns an allocation whose levels differ between experts and between gate, up and down.
fn mixed(store: &Store) -> Allocation {
    Allocation::new(store.index(), Level::L8, |group, place| {
        let number = group.id.expert().map_or(3, |expert| expert as usize) + place;
        Level::ALL[(number + group.id.layer().unwrap_or(0) as usize) % 5]
    })
}

/// Source of all matrices decoded to floats at their levels.
struct DecodedSource {
    inner: StoreSource,
    allocation: Allocation,
}

impl ExpertSource for DecodedSource {
    fn config(&self) -> &ModelConfig {
        self.inner.config()
    }

    fn level_max(&self) -> Option<Level> {
        self.inner.level_max()
    }

    fn matrices(&self, group: &GroupId) -> Result<Matrices, EngineError> {
        let mut matrices = self.inner.matrices(group)?;
        let levels = self.allocation.levels(group).to_vec();
        for ((_, matrix), level) in matrices.list.iter_mut().zip(levels) {
            let MatrixWeights::Nested(nested) = &*matrix else { continue };
            let mut values = vec![0.0; nested.rows() * nested.cols()];
            for (row, out) in values.chunks_exact_mut(nested.cols()).enumerate() {
                nested.view().dequantize_row(level, row, out)?;
            }
            let floats = FloatMatrix::from_f32(nested.rows(), nested.cols(), &values)?;
            *matrix = MatrixWeights::Float(floats);
        }
        Ok(matrices)
    }

    fn store_source(self: Arc<Self>) -> Option<Arc<StoreSource>> {
        None
    }

    fn floats(&self, layer: Option<u32>) -> Result<Vec<(FloatKind, Vec<f32>)>, EngineError> {
        self.inner.floats(layer)
    }
}

fn logits(source: Arc<dyn ExpertSource>, activations: ActivationMode) -> Vec<f32> {
    let tokens = some_tokens(24, source.config().vocab_size, 5);
    let options = RunnerOptions { activations, ..RunnerOptions::default() };
    let level = source.level_max().unwrap_or(Level::L8);
    all_logits(&mut runner(Reference, &source, &options), &tokens, level, 24)
}

fn same(a: &[f32], b: &[f32]) -> bool {
    a.iter().map(|a| a.to_bits()).eq(b.iter().map(|b| b.to_bits()))
}

#[test]
fn mixed_levels_are_those_of_every_matrix() {
    for down_offset in [0, 1] {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("whole.nest");
        let recipe = Recipe { down_offset, tied: Tied::Twice, ..Recipe::default() };
        build_store(&data("tiny-qwen3-moe"), &path, &recipe);
        let allocation = mixed(&open(&path));
        let source = || StoreSource::owned(open(&path), None).unwrap();
        let allocated = || source().allocated(Arc::new(allocation.clone())).unwrap();
        let decoded = DecodedSource { inner: source(), allocation: allocation.clone() };
        let expected = logits(Arc::new(decoded), ActivationMode::Float);
        let found = logits(Arc::new(allocated()), ActivationMode::Float);
        let largest = expected.iter().fold(0f32, |a, b| a.max(b.abs()));
        let difference = expected.iter().zip(&found).fold(0f32, |a, (x, y)| a.max((x - y).abs()));
        // The same products, summed in another order.
        assert!(difference <= 1e-4 * largest, "{difference} of {largest}");
        assert!(!same(&logits(Arc::new(source()), ActivationMode::Float), &found));

        // SAFETY: no other process knows the file, and this test no longer writes it.
        let mapped = unsafe { MappedStore::new(open(&path)) }.unwrap();
        let mapped = StoreSource::mapped(mapped, None).unwrap();
        let mapped = mapped.allocated(Arc::new(allocation.clone())).unwrap();
        let shipped = logits(Arc::new(allocated()), ActivationMode::Int8);
        assert!(same(&logits(Arc::new(mapped), ActivationMode::Int8), &shipped));
    }
}

#[test]
fn a_cut_store_is_the_whole_one_with_its_allocation() {
    let directory = tempfile::tempdir().unwrap();
    let (whole, small) = (directory.path().join("whole.nest"), directory.path().join("small.nest"));
    build_store(&data("tiny-qwen3-moe"), &whole, &Recipe { down_offset: 1, ..Recipe::default() });
    let (store, go) = (open(&whole), CancelToken::new());
    let length = std::fs::metadata(&whole).unwrap().len();
    let options = ConvertOptions::default();
    let cut = |budget| cut_store(&store, &small, budget, &options, &go, &mut |_| {});
    let Err(ConvertError::Budget { asked: 1, least }) = cut(1) else { panic!() };
    assert!(cut(least).is_ok());
    let mut before = 0;
    for budget in [least, (least + length) / 2, length] {
        std::fs::remove_file(&small).unwrap();
        let (report, allocation) = cut(budget).unwrap();
        let made = open(&small);
        assert_eq!((report.store_bytes, made.id()), (made.lengths().1, report.id));
        assert!(report.store_bytes <= budget && report.store_bytes >= before);
        before = report.store_bytes;
        let bytes = weight_bytes(store.index(), &allocation, Counting::File);
        let all = Allocation::of_level(made.index(), Level::L8);
        assert_eq!(weight_bytes(made.index(), &all, Counting::File), bytes);
        let source = StoreSource::owned(Arc::clone(&store), None).unwrap();
        let allocated = source.allocated(Arc::new(allocation)).unwrap();
        let cut = StoreSource::owned(made, None).unwrap();
        let expected = logits(Arc::new(allocated), ActivationMode::Int8);
        assert!(same(&logits(Arc::new(cut), ActivationMode::Int8), &expected), "{budget}");
    }
    assert!(matches!(cut(length), Err(ConvertError::DestinationExists { .. })));
}

#[test]
fn a_budget_is_part_of_a_models_identity() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("whole.nest");
    build_store(&data("tiny-qwen3-moe"), &path, &Recipe::default());
    let store = open(&path);
    let all = Allocation::of_level(store.index(), Level::L8);
    let all = weight_bytes(store.index(), &all, Counting::Memory);
    let engine = Engine::new(EngineOptions::default()).unwrap();
    let open = |weight_budget| {
        let options = ModelOptions { weight_budget, ..ModelOptions::default() };
        Model::open(&engine, &path, &options, &mut |_| {}, &CancelToken::new())
    };
    let budget = all * 2 / 3;
    let (plain, small) = (open(None).unwrap(), open(Some(budget)).unwrap());
    assert!(plain.allocation().is_none());
    assert!(small.weight_bytes() <= budget && plain.weight_bytes() > budget);
    let options = ChooseOptions { top: Level::L8, budget, counting: Counting::Memory, dense: None };
    assert_eq!(small.allocation(), Some(&choose(store.index(), &options).unwrap()));
    let error = open(Some(10)).unwrap_err();
    assert!(matches!(error, EngineError::WeightBudget { asked: 10, .. }), "{error}");

    let snapshot = |model: &Model| model.session().snapshot(SnapshotContents::Tokens).unwrap();
    assert!(matches!(small.restore(&snapshot(&plain)), Err(EngineError::Snapshot { .. })));
    small.restore(&snapshot(&small)).unwrap();
}
