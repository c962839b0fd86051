//! Invariance of outputs under chunks, batches, encoders, threads and snapshots.

use std::sync::Arc;

use nestling_core::batch::{Batch, LevelPolicy, Row, SequenceRef};
use nestling_core::cancel::CancelToken;
use nestling_core::error::EngineError;
use nestling_core::kv_cache::{KvDtype, PageAllocator, PageId};
use nestling_core::runner::ModelRunner;
use nestling_core::weights::{FloatMatrix, MatrixWeights};
use nestling_cpu::Cpu;
use nestling_experts::expert::{ExpertSource, Matrices, StoreSource};
use nestling_formats::store::GroupId;
use nestling_formats::{FloatKind, Level, MatrixKind};
use nestling_import::ModelConfig;
use nestling_runtime::model::RunnerOptions;

use nestling_testkit::runners::{
    Sequence, all_logits, checkpoint, data, runner, runners, some_tokens, step,
};

/// Returns the sources used by all tests of this file.
fn sources() -> Vec<(&'static str, Arc<dyn ExpertSource>)> {
    ["tiny-qwen3-moe", "tiny-tied"].map(|name| (name, checkpoint(&data(name)))).into()
}

fn bits(logits: &[f32]) -> Vec<u32> {
    logits.iter().map(|logit| logit.to_bits()).collect()
}

fn options(kv_dtype: KvDtype) -> RunnerOptions {
    RunnerOptions { kv_dtype, rows_max: 200, ..RunnerOptions::default() }
}

#[test]
fn every_encoder_and_every_chunking_gives_the_same_bits() {
    for (name, source) in sources() {
        let tokens = some_tokens(75, source.config().vocab_size, 1);
        for kv_dtype in [KvDtype::F32, KvDtype::F16, KvDtype::Int8] {
            let mut expected = None;
            for (encoder, mut runner) in runners(&source, &options(kv_dtype)) {
                for chunk in [75, 1, 7, 64] {
                    let found = bits(&all_logits(&mut *runner, &tokens, Level::L4, chunk));
                    let expected = expected.get_or_insert_with(|| found.clone());
                    assert!(found == *expected, "{name} {kv_dtype:?} {encoder} chunk {chunk}");
                }
            }
        }
    }
}

#[test]
fn long_contexts_give_the_same_bits_in_every_chunking() {
    let source = checkpoint(&data("tiny-qwen3-moe"));
    let tokens = some_tokens(300, source.config().vocab_size, 9);
    for kv_dtype in [KvDtype::F32, KvDtype::F16, KvDtype::Int8] {
        let mut expected = None;
        let context_max = Some(320);
        let options =
            RunnerOptions { kv_dtype, rows_max: 300, context_max, ..RunnerOptions::default() };
        for threads in [1, 3] {
            let mut runner = runner(Cpu::new(threads), &source, &options);
            // At, before and after page boundaries, and token by token.
            for chunk in [300, 64, 63, 65, 129, 1] {
                let found = bits(&all_logits(&mut runner, &tokens, Level::L4, chunk));
                let expected = expected.get_or_insert_with(|| found.clone());
                assert!(found == *expected, "{kv_dtype:?} {threads} threads, chunk {chunk}");
            }
        }
    }
}

#[test]
fn a_row_has_the_same_bits_alone_and_among_other_sessions() {
    for (name, source) in sources() {
        let vocab_size = source.config().vocab_size;
        let prompts = [70, 3, 33].map(|count| some_tokens(count, vocab_size, count as u64));
        let levels = [Level::L2, Level::L8, Level::L4];
        for (encoder, mut runner) in runners(&source, &options(KvDtype::F32)) {
            let alone: Vec<Vec<f32>> = prompts
                .iter()
                .zip(levels)
                .map(|(tokens, level)| all_logits(&mut *runner, tokens, level, 200))
                .collect();
            let mut allocator = PageAllocator::new(runner.limits().pages as u32);
            let mut sequences = levels.map(Sequence::new);
            // Prompt chunks of different lengths, so that prefill and decode rows mix.
            for range in [0..2, 2..3, 3..20, 20..33, 33..70] {
                let mut batch = Batch::default();
                let mut wanted = Vec::new();
                for (index, tokens) in prompts.iter().enumerate() {
                    let piece = tokens.get(range.start..range.end.min(tokens.len()));
                    let piece = piece.unwrap_or_default();
                    if piece.is_empty() {
                        continue;
                    }
                    let last = piece.len() - 1;
                    let wants = |at: usize| at == 0 || at == last;
                    sequences[index].push(piece, wants, &mut batch, &mut allocator);
                    let places = (0..piece.len()).filter(|&at| wants(at));
                    wanted.extend(places.map(|at| (index, range.start + at)));
                }
                let output = step(&mut *runner, &batch);
                assert_eq!(output.stats.logit_rows, wanted.len());
                for (at, (index, position)) in wanted.into_iter().enumerate() {
                    let expected = &alone[index][position * vocab_size..][..vocab_size];
                    let found = bits(output.row(at).unwrap());
                    assert!(found == bits(expected), "{name} {encoder} {index} {position}");
                }
            }
        }
    }
}

#[test]
fn a_step_without_logits_still_fills_the_pages() {
    let (_, source) = &sources()[0];
    let tokens = some_tokens(20, source.config().vocab_size, 5);
    for (_, mut runner) in runners(source, &options(KvDtype::F32)) {
        let expected = all_logits(&mut *runner, &tokens, Level::L8, 200);
        let mut allocator = PageAllocator::new(4);
        let mut sequence = Sequence::new(Level::L8);
        let mut batch = Batch::default();
        sequence.push(&tokens[..19], |_| false, &mut batch, &mut allocator);
        let output = step(&mut *runner, &batch);
        assert!(output.logits.is_empty());
        assert_eq!((output.stats.rows, output.stats.logit_rows), (19, 0));
        let mut batch = Batch::default();
        sequence.push(&tokens[19..], |_| true, &mut batch, &mut allocator);
        let found = step(&mut *runner, &batch).logits;
        assert_eq!(bits(&found), bits(&expected[expected.len() - found.len()..]));
    }
}

#[test]
fn a_forked_or_restored_page_continues_with_the_same_bits() {
    let (_, source) = &sources()[0];
    let tokens = some_tokens(40, source.config().vocab_size, 6);
    for kv_dtype in [KvDtype::F32, KvDtype::F16, KvDtype::Int8] {
        for (_, mut runner) in runners(source, &options(kv_dtype)) {
            let expected = all_logits(&mut *runner, &tokens, Level::L8, 39);
            let expected = bits(&expected[expected.len() - source.config().vocab_size..]);
            runner.copy_page(PageId(0), PageId(1)).unwrap();
            let saved = runner.read_page(PageId(0)).unwrap();
            assert_eq!(saved.len(), runner.limits().page_bytes);
            runner.write_page(PageId(2), &saved).unwrap();
            assert!(runner.write_page(PageId(2), &saved[1..]).is_err());
            for page in [1, 2] {
                let row = Row {
                    token: tokens[39],
                    position: 39,
                    sequence: 0,
                    wants_logits: true,
                    levels: LevelPolicy::Fixed(Level::L8),
                };
                let sequences = vec![SequenceRef::of_pages(vec![PageId(page)])];
                let found = step(&mut *runner, &Batch::new(vec![row], sequences));
                assert_eq!(bits(&found.logits), expected);
            }
        }
    }
}

/// A source with a single NaN, in the embedding of one token.
struct NanSource {
    inner: Arc<dyn ExpertSource>,
    token: usize,
}

impl ExpertSource for NanSource {
    fn config(&self) -> &ModelConfig {
        self.inner.config()
    }

    fn level_max(&self) -> Option<Level> {
        self.inner.level_max()
    }

    fn matrices(&self, group: &GroupId) -> Result<Matrices, EngineError> {
        let mut matrices = self.inner.matrices(group)?;
        if *group == GroupId::Embedding {
            let (kind, MatrixWeights::Float(matrix)) = &matrices.list[0] else { panic!() };
            assert_eq!(*kind, MatrixKind::Embedding);
            let (rows, cols) = (matrix.rows(), matrix.cols());
            let mut values = vec![0.0; rows * cols];
            for (row, out) in values.chunks_exact_mut(cols).enumerate() {
                matrix.read_row(row, out);
            }
            values[self.token * cols + 5] = f32::NAN;
            let matrix = FloatMatrix::from_f32(rows, cols, &values)?;
            matrices.list[0].1 = MatrixWeights::Float(matrix);
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

#[test]
fn a_nan_fails_its_own_sequence_and_no_other() {
    let inner = checkpoint(&data("tiny-qwen3-moe"));
    let source: Arc<dyn ExpertSource> = Arc::new(NanSource { inner, token: 7 });
    for (_, mut runner) in runners(&source, &options(KvDtype::F32)) {
        let healthy = all_logits(&mut *runner, &[1, 2, 3], Level::L8, 200);
        let mut allocator = PageAllocator::new(4);
        let mut sequences = [(); 2].map(|()| Sequence::new(Level::L8));
        // The NaN is in a row without requested logits, but must reach later rows.
        let mut batch = Batch::default();
        sequences[0].push(&[7, 4], |_| false, &mut batch, &mut allocator);
        sequences[1].push(&[1, 2], |_| false, &mut batch, &mut allocator);
        step(&mut *runner, &batch);
        let mut batch = Batch::default();
        sequences[0].push(&[9], |_| true, &mut batch, &mut allocator);
        sequences[1].push(&[3], |_| true, &mut batch, &mut allocator);
        let output = runner.step_blocking(&batch, &CancelToken::new()).unwrap();
        let [failure] = output.failures.as_slice() else { panic!("{:?}", output.failures) };
        assert_eq!(failure.sequence, 0);
        assert!(matches!(failure.error, EngineError::NotFinite { sequence: 0, position: 2 }));
        let found = output.row(1).unwrap();
        assert_eq!(bits(found), bits(&healthy[healthy.len() - found.len()..]));
    }
}

#[test]
fn a_cancelled_step_is_an_error_and_the_runner_goes_on() {
    let source = checkpoint(&data("tiny-tied"));
    for (_, mut runner) in runners(&source, &options(KvDtype::F32)) {
        let expected = all_logits(&mut *runner, &[1, 2, 3], Level::L8, 200);
        let mut batch = Batch::default();
        let mut allocator = PageAllocator::new(1);
        Sequence::new(Level::L8).push(&[4, 5], |_| true, &mut batch, &mut allocator);
        let cancel = CancelToken::new();
        cancel.cancel();
        let error = runner.step_blocking(&batch, &cancel).unwrap_err();
        assert!(matches!(error, EngineError::Cancelled));
        let found = all_logits(&mut *runner, &[1, 2, 3], Level::L8, 200);
        assert_eq!(bits(&found), bits(&expected));
    }
}

#[test]
fn a_batch_that_breaks_the_rules_is_refused() {
    let source = checkpoint(&data("tiny-tied"));
    let options = RunnerOptions { rows_max: 3, context_max: Some(70), ..options(KvDtype::F32) };
    let mut runner = runner(nestling_cpu::reference::Reference, &source, &options);
    let row = |token, position, sequence| Row {
        token,
        position,
        sequence,
        wants_logits: true,
        levels: LevelPolicy::Fixed(Level::L8),
    };
    let mut refuse = |rows: &[Row], pages: usize| {
        let pages = (0..pages as u32).map(PageId).collect();
        let batch = Batch::new(rows.to_vec(), vec![SequenceRef::of_pages(pages)]);
        runner.step_blocking(&batch, &CancelToken::new()).unwrap_err()
    };
    let error = refuse(&[row(512, 0, 0)], 1);
    assert!(matches!(error, EngineError::TokenOutOfRange { token: 512, vocab_size: 512 }));
    let error = refuse(&[row(0, 0, 0); 4], 1);
    assert!(matches!(error, EngineError::Limit { limit: 3, found: 4, .. }));
    let error = refuse(&[row(0, 70, 0)], 2);
    assert!(matches!(error, EngineError::ContextFull { limit: 70, wanted: 71 }));
    for rows in [[row(0, 0, 0), row(0, 2, 0)], [row(0, 1, 0), row(0, 1, 0)]] {
        assert!(refuse(&rows, 1).to_string().contains("row 1: expected position"));
    }
    assert!(refuse(&[row(0, 0, 1)], 1).to_string().contains("a sequence below 1"));
    assert!(refuse(&[row(0, 64, 0)], 1).to_string().contains("a page for position 64"));
    assert!(refuse(&[row(0, 0, 0)], 0).to_string().contains("a page for position 0"));
}
