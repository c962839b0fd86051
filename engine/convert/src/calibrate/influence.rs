//! Influence of errors on predictions: the divergence of the model's output that an error of a layer causes.
//!
//! Errors of different matrices cannot be compared by their size. Layers that follow enlarge some of them: the norm before
//! the next part divides by a small residual stream, or a token changes its experts. So each class of a layer's matrices gets
//! noise, and a copy of the hidden states passes the rest of the unquantized model. The influence is the mean
//! Kullback–Leibler divergence of its predictions, divided by the mean squared error that the noise adds to the residual
//! stream (docs/perf/060).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use nestling_core::backend::{Backend, Encoder, EncoderExt, Linear, Write};
use nestling_core::cancel::CancelToken;
use nestling_core::driver::block_on;
use nestling_core::error::EngineError;
use nestling_core::weights::ActivationMode;
use nestling_cpu::Cpu;
use nestling_cpu::threads::ThreadPool;
use nestling_experts::expert::ExpertSource;
use nestling_formats::memory::try_reserve;
use nestling_formats::store::GroupId;
use nestling_formats::{Level, MatrixKind};
use nestling_import::Checkpoint;

use super::changed::{MatrixClass, WeightChange};
use super::{CalibrationTokens, Calibrator, Current, PassOutput};
use crate::judge::{Predictions, log_sum_exp};

/// Number of tokens of a sequence.
const SEQUENCE_LENGTH: usize = 128;

/// Maximum number of sequences. Four times as many change the divergence of allocations by about 1 % (docs/perf/060).
const SEQUENCES_MAX: usize = 16;

/// Maximum number of tokens that pass a layer, copies and layers counted.
const TOKEN_LAYERS_MAX: usize = 1 << 20;

/// Number of rows whose logits are compared at once.
const ROWS: usize = 64;

/// Influence of each class of matrices in each layer.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Influences {
    by_class: BTreeMap<(u32, MatrixClass), f64>,
}

/// A copy of the hidden states that has passed a layer with noise in one class.
struct NoisyCopy {
    layer: u32,
    class: MatrixClass,
    /// Error of the layer's mixer or feed-forward part: squares summed over the width, mean over tokens.
    square: f64,
    /// Mean divergence of the predictions, in nats.
    divergence: f64,
}

impl Influences {
    /// Returns the divergence per token in nats for an error whose squares have a sum of 1 over the width of the residual
    /// stream. Returns `None` for a class that the model does not have.
    pub fn of(&self, layer: u32, class: MatrixClass) -> Option<f64> {
        self.by_class.get(&(layer, class)).copied()
    }

    /// Measures a model on a sample of a text. `begin_layer` receives each layer before its pass.
    ///
    /// # Errors
    /// Fails like [`Calibrator::begin_layer`].
    pub fn measure(
        checkpoint: &Checkpoint,
        tokens: &CalibrationTokens,
        pool: &Arc<ThreadPool>,
        cancel: &CancelToken,
        begin_layer: &mut dyn FnMut(u32),
    ) -> Result<Self, EngineError> {
        let copies = noisy_copies(checkpoint, tokens, pool, cancel, begin_layer)?;
        let influences = copies.iter().map(|copy| {
            // Noise that changes nothing has no influence.
            let influence = if copy.square > 0.0 { copy.divergence / copy.square } else { 0.0 };
            if !influence.is_finite() {
                let what = format!("influence of {:?} of layer {}", copy.class.kind, copy.layer);
                return Err(EngineError::mismatch(what, "a finite number", influence));
            }
            Ok(((copy.layer, copy.class), influence))
        });
        Ok(Self { by_class: influences.collect::<Result<_, _>>()? })
    }
}

/// Passes a copy of the sample's hidden states with noise in each class of each layer.
fn noisy_copies(
    checkpoint: &Checkpoint,
    tokens: &CalibrationTokens,
    pool: &Arc<ThreadPool>,
    cancel: &CancelToken,
    begin_layer: &mut dyn FnMut(u32),
) -> Result<Vec<NoisyCopy>, EngineError> {
    let classes = classes(checkpoint);
    let length = SEQUENCE_LENGTH.min(checkpoint.config().max_position_embeddings).max(1);
    let sample = sample(tokens, length, &classes);
    let begin =
        |sequences| Calibrator::of_sequences(checkpoint, sequences, length, Arc::clone(pool));
    let (mut exact, mut noisy) = (begin(sample)?, begin(Vec::new())?);
    let count: usize = classes.iter().map(BTreeSet::len).sum();
    let values = count.saturating_mul(exact.hidden.len());
    try_reserve(&mut noisy.hidden, "copies of activations", values)?;
    let mut copies = Vec::with_capacity(count);
    for (layer, classes) in (0u32..).zip(&classes) {
        begin_layer(layer);
        noisy.skip_layer(cancel, &mut |_| ())?;
        let before = exact.hidden.clone();
        let states = exact.states_of_layer(None, cancel)?;
        let after = exact.hidden.clone();
        for class in classes {
            exact.resume(layer, before.clone())?;
            let other = exact.states_of_layer(Some(*class), cancel)?;
            let square = states.distance(&other, *class) / exact.token_count().max(1) as f64;
            copies.push(NoisyCopy { layer, class: *class, square, divergence: 0.0 });
            noisy.sequences.extend_from_slice(&exact.sequences);
            noisy.hidden.extend_from_slice(&exact.hidden);
        }
        exact.resume(layer + 1, after)?;
    }
    let divergences = divergences(&mut exact, &noisy.hidden, copies.len(), cancel)?;
    for (copy, divergence) in copies.iter_mut().zip(divergences) {
        copy.divergence = divergence;
    }
    Ok(copies)
}

/// Returns the classes of each layer.
fn classes(checkpoint: &Checkpoint) -> Vec<BTreeSet<MatrixClass>> {
    let mut classes = vec![BTreeSet::new(); checkpoint.config().num_hidden_layers];
    for id in checkpoint.shape().matrices.iter().map(|matrix| matrix.id) {
        if let Some(classes) = id.layer.and_then(|layer| classes.get_mut(layer as usize)) {
            classes.insert(MatrixClass { kind: id.kind, is_expert: id.expert.is_some() });
        }
    }
    classes
}

/// Returns the starts of evenly spaced sequences, as many as the limits allow and at least one.
fn sample(
    tokens: &CalibrationTokens,
    length: usize,
    classes: &[BTreeSet<MatrixClass>],
) -> Vec<Vec<u32>> {
    let layers_left = (1..=classes.len()).rev();
    let passes: usize = classes.iter().zip(layers_left).map(|(all, left)| all.len() * left).sum();
    let count = TOKEN_LAYERS_MAX / (passes * length).max(1);
    let all: Vec<_> = tokens.tokens().chunks(tokens.sequence_length().max(1)).collect();
    let whole = all.iter().filter(|sequence| sequence.len() >= length).count();
    let count = count.clamp(1, SEQUENCES_MAX).min(whole).max(1);
    let starts = (0..count).map(|at| all[at * whole / count]);
    starts.map(|sequence| sequence[..sequence.len().min(length)].to_vec()).collect()
}

/// Hidden states after a layer's mixer, and the output of its feed-forward part.
struct LayerStates {
    mixed: Vec<f32>,        // [T, hidden_size]
    feed_forward: Vec<f32>, // [T, hidden_size]
}

impl LayerStates {
    /// Returns the squared distance in the part that the class belongs to.
    fn distance(&self, other: &Self, class: MatrixClass) -> f64 {
        let (a, b) = match class.is_feed_forward() {
            true => (&self.feed_forward, &other.feed_forward),
            false => (&self.mixed, &other.mixed),
        };
        a.iter().zip(b).map(|(a, b)| f64::from(a - b).powi(2)).sum()
    }
}

impl Calibrator<'_> {
    /// Passes the next layer with noise in one class.
    fn states_of_layer(
        &mut self,
        class: Option<MatrixClass>,
        cancel: &CancelToken,
    ) -> Result<LayerStates, EngineError> {
        let layer = self.layers;
        self.source.change = class.map(|class| WeightChange::Noise { layer, class });
        let passed = self.pass_layer(PassOutput::Outputs, cancel, &mut |_| ());
        self.source.change = None;
        passed?;
        let Current::Layer(layer) = &self.current else {
            return Err(EngineError::mismatch("state of a calibration", "a layer", "none"));
        };
        let feed_forward = layer.feed_forward.output.clone();
        let states = LayerStates { mixed: self.hidden.clone(), feed_forward };
        self.end_layer();
        Ok(states)
    }
}

/// Computes the mean divergence of the predictions of each copy, `[copies, T, hidden_size]`, from the exact ones.
fn divergences(
    exact: &mut Calibrator<'_>,
    noisy: &[f32],
    copies: usize,
    cancel: &CancelToken,
) -> Result<Vec<f64>, EngineError> {
    let hidden = exact.source.config().hidden_size;
    let pool = Arc::clone(&exact.pool);
    let mut head = ModelHead::load(exact)?;
    let states = std::mem::take(&mut exact.hidden);
    let mut sums = vec![0.0; copies];
    for (number, rows) in states.chunks(ROWS * hidden).enumerate() {
        let mut expected = Predictions::with_capacity(ROWS, head.vocab_size)?;
        for logits in head.logits(rows)?.chunks_exact(head.vocab_size) {
            expected.push(logits);
        }
        for (copy, sum) in sums.iter_mut().enumerate() {
            if cancel.is_cancelled() {
                return Err(EngineError::Cancelled);
            }
            let start = copy * states.len() + number * ROWS * hidden;
            let found = head.logits(&noisy[start..start + rows.len()])?;
            let found = found.chunks_exact(head.vocab_size).map(|logits| (logits, 0.0));
            let mut found: Vec<_> = found.collect();
            pool.for_each_mut(&mut found, &|row, (logits, divergence)| {
                *divergence = expected.divergence(row, logits, log_sum_exp(logits));
            });
            *sum += found.iter().map(|(_, divergence)| divergence).sum::<f64>();
        }
    }
    let tokens = (states.len() / hidden.max(1)).max(1) as f64;
    Ok(sums.into_iter().map(|sum| sum / tokens).collect())
}

/// Final norm and head of the unquantized model.
pub(super) struct ModelHead {
    cpu: Cpu,
    norm: Vec<f32>, // [hidden_size]
    head: Linear<Cpu>,
    vocab_size: usize,
    eps: f32,
    multiplier: f32,
    softcap: Option<f32>,
}

impl ModelHead {
    pub fn load(calibrator: &Calibrator<'_>) -> Result<Self, EngineError> {
        let source = &calibrator.source;
        let config = source.config();
        let (vocab_size, hidden_size) = (config.vocab_size, config.hidden_size);
        let norm = calibrator.final_norm()?;
        let mut cpu = Cpu::with(Arc::clone(&calibrator.pool), calibrator.kernels);
        let matrix =
            source.matrices(&GroupId::Head)?.take(MatrixKind::Head, vocab_size, hidden_size)?;
        let head = Linear::new(cpu.upload_matrix(&matrix, ActivationMode::Float)?, None);
        Ok(Self {
            cpu,
            norm,
            head,
            vocab_size,
            eps: config.rms_norm_eps,
            multiplier: config.multipliers.logits,
            softcap: config.final_logit_softcapping,
        })
    }

    /// Computes the logits, `[rows, vocab_size]`, of hidden states, `[rows, hidden_size]`.
    pub fn logits(&mut self, states: &[f32]) -> Result<Vec<f32>, EngineError> {
        let hidden = self.norm.len();
        let rows = states.len() / hidden.max(1);
        let mut x = self.cpu.buffer(rows, hidden)?;
        let mut normed = self.cpu.buffer(rows, hidden)?;
        let mut logits = self.cpu.buffer(rows, self.vocab_size)?;
        let levels = vec![Level::L8; rows];
        let mut enc = self.cpu.encoder();
        enc.write(states, &mut x)?;
        enc.rms_norm(&x, &self.norm, self.eps, Write::Set, &mut normed)?;
        let head = std::slice::from_ref(&self.head);
        enc.matmul(head, &levels, &normed, Write::Set, &mut logits)?;
        enc.scale(self.multiplier, &mut logits)?;
        if let Some(cap) = self.softcap {
            enc.softcap(cap, &mut logits)?;
        }
        block_on(enc.read(&logits))
    }
}

#[cfg(test)]
mod tests;
