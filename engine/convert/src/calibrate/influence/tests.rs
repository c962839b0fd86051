//! Divergences of noisy copies against the forward pass.

use super::super::changed::ChangedSource;
use super::super::tests::{checkpoint, forward_logits};
use super::*;

fn text(checkpoint: &Checkpoint) -> CalibrationTokens {
    let vocab_size = checkpoint.config().vocab_size as u32;
    let tokens = (0..600u32).map(|at| at.wrapping_mul(2_654_435_761) % vocab_size);
    CalibrationTokens::with_length(tokens.collect(), 200).unwrap()
}

fn logits(name: &str, noisy: Option<(u32, MatrixClass)>, sequence: &[u32]) -> Vec<f32> {
    // A runner's source lives as long as the process.
    let checkpoint = Box::leak(Box::new(checkpoint(name)));
    let change = noisy.map(|(layer, class)| WeightChange::Noise { layer, class });
    forward_logits(Arc::new(ChangedSource::new(checkpoint, change)), sequence)
}

/// Returns the mean divergence of two models' logits, with sums in `f64`.
fn reference(expected: &[f32], found: &[f32], vocab_size: usize) -> f64 {
    let log_softmax = |row: &[f32]| -> Vec<f64> {
        let sum: f64 = row.iter().map(|x| f64::from(*x).exp()).sum();
        row.iter().map(|x| f64::from(*x) - sum.ln()).collect()
    };
    let rows = expected.chunks_exact(vocab_size).zip(found.chunks_exact(vocab_size));
    let sums = rows.map(|(p, q)| {
        let terms = log_softmax(p).into_iter().zip(log_softmax(q));
        terms.map(|(p, q)| p.exp() * (p - q)).sum::<f64>()
    });
    sums.sum::<f64>() / (expected.len() / vocab_size) as f64
}

#[test]
fn divergences_are_those_of_the_forward_pass() {
    for name in ["tiny-qwen3-moe", "tiny-tied", "families/gemma4"] {
        let known = checkpoint(name);
        let (config, tokens) = (known.config().clone(), text(&known));
        let go = CancelToken::new();
        let pool = Arc::new(ThreadPool::new(2));
        let copies = noisy_copies(&known, &tokens, &pool, &go, &mut |_| ()).unwrap();
        let matrices = known.shape().matrices.iter().map(|matrix| matrix.id);
        let all = matrices.filter_map(|id| Some((id.layer?, id.kind, id.expert.is_some())));
        assert_eq!(copies.len(), all.collect::<BTreeSet<_>>().len(), "{name}");
        let sequences = sample(&tokens, SEQUENCE_LENGTH, &classes(&known));
        assert_eq!(sequences.len(), 3);
        let exact: Vec<f32> = sequences.iter().flat_map(|s| logits(name, None, s)).collect();
        for copy in &copies {
            let noisy = Some((copy.layer, copy.class));
            let found: Vec<f32> = sequences.iter().flat_map(|s| logits(name, noisy, s)).collect();
            let expected = reference(&exact, &found, config.vocab_size);
            // Sums of at most 1,000 terms in f64, whose logits are the same bits; terms of both signs cancel to about a
            // thousandth.
            let is_close = (copy.divergence - expected).abs() <= 1e-9 + 1e-6 * expected;
            assert!(is_close, "{name}, {:?}: {}, {expected}", noisy, copy.divergence);
            assert!(copy.divergence > 0.0 && copy.square > 0.0, "{name}, {noisy:?}");
        }
    }
}

#[test]
fn influences_do_not_depend_on_threads() {
    let known = checkpoint("tiny-qwen3-moe");
    let (tokens, go) = (text(&known), CancelToken::new());
    let measure = |threads| {
        let pool = Arc::new(ThreadPool::new(threads));
        Influences::measure(&known, &tokens, &pool, &go, &mut |_| ()).unwrap()
    };
    assert_eq!(measure(1), measure(3));
}

#[test]
fn the_sample_keeps_to_its_limits() {
    let class = |kind| MatrixClass { kind, is_expert: true };
    let classes = BTreeSet::from([class(MatrixKind::Gate), class(MatrixKind::Down)]);
    let tokens = |count: usize| CalibrationTokens::new((0..count as u32).collect()).unwrap();
    let few = sample(&tokens(512 * 40), SEQUENCE_LENGTH, &vec![classes.clone(); 4]);
    assert_eq!(few.len(), SEQUENCES_MAX);
    assert_eq!((few[0][0], few[15][0], few[15].len()), (0, 37 * 512, SEQUENCE_LENGTH));
    // 2 classes in 45 layers: 2070 passes of 128 tokens, of which 3 fit.
    assert_eq!(sample(&tokens(512 * 40), SEQUENCE_LENGTH, &vec![classes.clone(); 45]).len(), 3);
    assert_eq!(sample(&tokens(512 * 40), SEQUENCE_LENGTH, &vec![classes.clone(); 500]).len(), 1);
    assert_eq!(sample(&tokens(300), SEQUENCE_LENGTH, &vec![classes; 4]).len(), 1);
}
