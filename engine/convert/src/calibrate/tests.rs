//! Moments against naive sums, and the hidden states against the forward pass.

use std::path::Path;

use nestling_experts::expert::CheckpointSource;

use super::influence::ModelHead;
use super::*;
use nestling_core::kv_cache::KvDtype;
use nestling_core::runner::ModelRunner;
use nestling_runtime::model::{Runner, RunnerOptions};

pub(super) fn checkpoint(name: &str) -> Checkpoint {
    Checkpoint::open(Path::new(env!("CARGO_MANIFEST_DIR")).join("../runtime/tests/data").join(name))
        .unwrap()
}

fn tokens(count: usize, vocab_size: usize) -> Vec<u32> {
    let mut state = 1u32;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) % vocab_size as u32
    };
    (0..count).map(|_| next()).collect()
}

fn calibrator(checkpoint: &Checkpoint, threads: usize) -> Calibrator<'_> {
    let tokens = tokens(300, checkpoint.config().vocab_size);
    let tokens = CalibrationTokens::with_length(tokens, 70).unwrap();
    Calibrator::new(checkpoint, &tokens, Arc::new(ThreadPool::new(threads))).unwrap()
}

fn pass(calibrator: &mut Calibrator<'_>) {
    calibrator.begin_layer(&CancelToken::new(), &mut |_| {}).unwrap();
}

/// All moments of a layer's matrices.
fn collect(calibrator: &Calibrator<'_>, checkpoint: &Checkpoint, layer: u32) -> Vec<SecondMoments> {
    let ids = checkpoint.shape().matrices.iter().map(|matrix| matrix.id);
    let ids = ids.filter(|id| id.layer == Some(layer));
    ids.map(|id| calibrator.moments(id).unwrap()).collect()
}

/// Naive mean, `Σ w² x xᵀ / Σ w²`.
fn naive_mean(rows: &[(Vec<f32>, f32)], dim: usize) -> Vec<f64> {
    let mut sum = vec![0.0; dim * dim];
    let mut weights = 0.0;
    for (row, weight) in rows {
        let square = f64::from(*weight).powi(2);
        weights += square;
        for i in 0..dim {
            for j in 0..dim {
                sum[i * dim + j] += square * f64::from(row[i]) * f64::from(row[j]);
            }
        }
    }
    sum.iter().map(|value| value / weights).collect()
}

fn noise(count: usize) -> Vec<f32> {
    tokens(count, 2001).iter().map(|value| *value as f32 / 1000.0 - 1.0).collect()
}

fn assert_close(found: &SecondMoments, expected: &[f64], count: usize) {
    // A chain of `count` fused operations on values of about 1. Each rounds by at most 2^-24 of the sum of
    // magnitudes, which the mean diagonal bounds. Four more are for factors.
    let dim = found.dim();
    let scale: f64 = (0..dim).map(|i| expected[i * dim + i]).fold(0.0, f64::max);
    let bound = scale * (count + 4) as f64 / f64::from(1 << 24);
    for (at, (found, expected)) in found.values().iter().zip(expected).enumerate() {
        let error = (f64::from(*found) - expected).abs();
        assert!(error <= bound, "({}, {}): {found}, not {expected}", at / dim, at % dim);
    }
}

#[test]
fn sums_are_those_of_a_naive_loop() {
    for (dim, count) in [(1, 1), (31, 5), (32, 64), (33, 300), (70, 129)] {
        let values = noise(dim * count);
        let rows: Vec<(Vec<f32>, f32)> = values
            .chunks(dim)
            .enumerate()
            .map(|(index, row)| (row.to_vec(), 0.25 + (index % 3) as f32))
            .collect();
        let expected = naive_mean(&rows, dim);
        let mut reference: Option<SecondMoments> = None;
        for kernels in Kernels::available() {
            for (threads, block) in [(1, count), (3, 7)] {
                let pool = ThreadPool::new(threads);
                let mut sum = MomentSum::new(dim);
                let mut panels = moments::Panels::default();
                for rows in rows.chunks(block) {
                    let rows = rows.iter().map(|(row, weight)| (row.as_slice(), *weight));
                    sum.add(&pool, kernels, panels.pack(dim, rows));
                }
                let mean = sum.mean().unwrap();
                assert_close(&mean, &expected, count);
                assert_eq!(mean.count(), count as u64);
                let same = reference.get_or_insert_with(|| mean.clone());
                assert_eq!(*same, mean, "{} with {threads} threads", kernels.name());
            }
        }
    }
}

#[test]
fn threads_change_no_bit() {
    for name in ["tiny-qwen3-moe", "tiny-tied"] {
        let checkpoint = checkpoint(name);
        let (mut one, mut three) = (calibrator(&checkpoint, 1), calibrator(&checkpoint, 3));
        for layer in 0..checkpoint.config().num_hidden_layers {
            pass(&mut one);
            pass(&mut three);
            let moments = collect(&one, &checkpoint, layer as u32);
            assert!(moments == collect(&three, &checkpoint, layer as u32), "{name}, layer {layer}");
            assert_eq!(one.expert_statistics(), three.expert_statistics());
            one.end_layer();
            three.end_layer();
        }
        assert!(one.hidden == three.hidden);
    }
}

/// Checks that the head's logits of the hidden states equal the forward pass's bit for bit, so that the
/// moments are summed over the model's real activations.
#[test]
fn hidden_states_are_those_of_the_model() {
    for name in ["tiny-qwen3-moe", "tiny-tied", "families/gemma4"] {
        let checkpoint = checkpoint(name);
        let mut calibrated = calibrator(&checkpoint, 2);
        for _ in 0..checkpoint.config().num_hidden_layers {
            pass(&mut calibrated);
            calibrated.end_layer();
        }
        let sequence = calibrated.sequences[1].clone();
        let config = checkpoint.config().clone();
        let start = calibrated.sequences[0].len() * config.hidden_size;
        let hidden = &calibrated.hidden[start..start + sequence.len() * config.hidden_size];
        let found = ModelHead::load(&calibrated).unwrap().logits(hidden).unwrap();
        let source = Arc::new(CheckpointSource::new(self::checkpoint(name)));
        assert!(forward_logits(source, &sequence) == found, "{name}");
    }
}

/// Computes the logits of a sequence by the forward pass, `[T, vocab_size]`.
pub(super) fn forward_logits(source: Arc<dyn ExpertSource>, sequence: &[u32]) -> Vec<f32> {
    let options = RunnerOptions { kv_dtype: KvDtype::F32, ..RunnerOptions::default() };
    let go = CancelToken::new();
    let mut runner = Runner::load(Cpu::new(1), source, &options, &go, &mut |_, _| {}).unwrap();
    let pages = (0..pages_for(sequence.len()) as u32).map(PageId).collect();
    let row = |(position, &token)| Row {
        token,
        position,
        sequence: 0,
        wants_logits: true,
        levels: LevelPolicy::Fixed(Level::L8),
    };
    let rows = (0u32..).zip(sequence).map(row).collect();
    let batch = Batch::new(rows, vec![SequenceRef::of_pages(pages)]);
    block_on(runner.step(&batch, &go)).unwrap().logits.clone()
}

/// Recomputes the sampled layer after its mixer from the inputs of the first layer.
#[test]
fn a_mixers_outputs_depend_on_the_weights_that_are_given() {
    let checkpoint = checkpoint("tiny-qwen3-moe");
    let config = checkpoint.config().clone();
    let mut calibrator = calibrator(&checkpoint, 2);
    let tokens: Vec<u32> = calibrator.sequences.iter().flatten().copied().collect();
    let before = calibrator.hidden().to_vec();
    pass(&mut calibrator);
    let after = calibrator.hidden().to_vec();
    let exact = calibrator.mixer_output(None).unwrap();
    // The sample takes all 70 tokens of every second of five sequences, so that the bits are equal.
    let hidden = config.hidden_size;
    let sampled: Vec<usize> = (0..tokens.len()).filter(|token| (token / 70) % 2 == 0).collect();
    let rows = |all: &[f32]| -> Vec<f32> {
        sampled.iter().flat_map(|row| all[row * hidden..][..hidden].to_vec()).collect()
    };
    assert_eq!(exact, rows(&after));
    for matrix in &checkpoint.shape().matrices {
        if matrix.id.layer != Some(0) || matrix.id.expert.is_some() {
            continue;
        }
        let own = checkpoint.read_matrix(matrix.id).unwrap();
        let same = calibrator.mixer_output(Some((matrix.id.kind, &own))).unwrap();
        assert_eq!(same, exact, "{:?}", matrix.id);
        let nothing = vec![0.0; own.len()];
        let other = calibrator.mixer_output(Some((matrix.id.kind, &nothing))).unwrap();
        assert_ne!(other, exact, "{:?}", matrix.id);
        if matrix.id.kind == MatrixKind::Output {
            assert_eq!(other, rows(&before));
        }
    }
    assert!(calibrator.mixer_output(Some((MatrixKind::Output, &[0.0]))).is_err());
}
