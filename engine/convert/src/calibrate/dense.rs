//! Effect of errors in a layer's dense matrices on the residual stream.

use std::sync::Arc;

use nestling_formats::MatrixKind;

use super::changed::{ChangedSource, WeightChange};
use super::mixer::{MixerStep, pass_mixer};
use super::sample::spread;
use super::{Calibrator, Current, RoutedSample, step_rows};
use nestling_core::backend::Backend;
use nestling_core::cancel::CancelToken;
use nestling_core::driver::block_on;
use nestling_core::error::EngineError;
use nestling_core::kv_cache::{KvDtype, pages_for};
use nestling_core::kv_heads::KvDivision;
use nestling_core::weights::ActivationMode;
use nestling_cpu::Cpu;
use nestling_experts::expert::ExpertSource;
use nestling_runtime::model::Activations;
use nestling_runtime::model::memory::{LayerMemory, MemoryShape};
use nestling_runtime::model::mixer::NoopObserver;
use nestling_runtime::model::weights::Loader;

/// Number of sequences, spread over the text, that a mixer's errors are measured on, and tokens of each.
const SEQUENCES: usize = 4;
const TOKENS: usize = 128;

/// Inputs of a layer for the sequences that its mixer is measured on.
#[derive(Default)]
pub(super) struct MixerSample {
    sequences: Vec<Vec<u32>>,
    hidden: Vec<f32>, // [T, hidden_size]
}

impl MixerSample {
    /// Creates a sample of the starts of some sequences, with their rows of `all`, `[tokens, hidden_size]`.
    pub fn new(sequences: &[Vec<u32>], all: &[f32], hidden_size: usize) -> Self {
        let starts = sequences.iter().scan(0, |next, sequence| {
            let start = *next;
            *next += sequence.len();
            Some((start, sequence))
        });
        let mut sample = Self::default();
        let step = sequences.len().div_ceil(SEQUENCES).max(1);
        for (start, sequence) in starts.step_by(step) {
            let tokens = &sequence[..sequence.len().min(TOKENS)];
            sample.sequences.push(tokens.to_vec());
            let rows = start * hidden_size..(start + tokens.len()) * hidden_size;
            sample.hidden.extend(&all[rows]);
        }
        sample
    }
}

impl Calibrator<'_> {
    /// Returns the current layer's hidden states after its mixer, `[T, hidden_size]`, for the tokens that
    /// mixers are measured on. `other` replaces the checkpoint's weights of one matrix. The result is empty
    /// if no layer is active.
    ///
    /// # Errors
    /// Fails if weights cannot be read or have another size.
    pub(crate) fn mixer_output(
        &self,
        other: Option<(MatrixKind, &[f32])>,
    ) -> Result<Vec<f32>, EngineError> {
        // Default: there is no sample outside a layer.
        let Current::Layer(layer) = &self.current else { return Ok(Vec::new()) };
        let (sample, number) = (&layer.mixer_sample, layer.layer);
        let config = self.source.config();
        // Default: there is no sample after the last layer.
        let Some(shape) = config.layers.get(number as usize) else { return Ok(Vec::new()) };
        let mut cpu = Cpu::with(Arc::clone(&self.pool), self.kernels);
        let change = other.map(|(kind, weights)| WeightChange::Replaced { kind, weights });
        let source = ChangedSource::new(self.source.checkpoint(), change);
        let mut loader = Loader::new(&mut cpu, &source, ActivationMode::Float, 1);
        let weights = loader.layer(config, number, &CancelToken::new())?;
        let pages = sample.sequences.iter().map(|tokens| pages_for(tokens.len())).sum();
        let (kv_dtype, states) = (KvDtype::F32, sample.sequences.len());
        let kv_division = KvDivision::default();
        let memory = MemoryShape { kv_dtype, kv_division, pages, states };
        let mut memory = LayerMemory::new(&mut cpu, shape, memory)?;
        let mut rows = step_rows(&sample.sequences);
        let mut act = Activations::new(&mut cpu, config, kv_division, rows.len().max(1))?;
        let mut encoder = cpu.encoder();
        let step = MixerStep {
            config,
            weights: &weights,
            angles: &self.angles,
            rows: &mut rows,
            memory: &mut memory,
            act: &mut act,
        };
        pass_mixer(&mut encoder, &sample.hidden, step, &mut NoopObserver)?;
        block_on(nestling_core::backend::EncoderExt::read(&mut encoder, &act.x))
    }

    /// Returns evenly spaced tokens as a sample for the dense feed-forward part. Returns `None` if no layer
    /// is active, or the layer is a mixer alone.
    pub(crate) fn dense_sample(&self) -> Option<RoutedSample> {
        // Default: nothing is sampled outside a layer.
        let Current::Layer(layer) = &self.current else { return None };
        if layer.feed_forward.inputs(None).norm.is_empty() {
            return None;
        }
        let rows: Vec<usize> = spread(self.token_count()).collect();
        let weights = rows.iter().map(|row| layer.gates.get(*row).copied().unwrap_or(1.0));
        let weights = weights.collect();
        let rows: Vec<u32> = rows.iter().filter_map(|row| u32::try_from(*row).ok()).collect();
        let inputs = self.normed(rows.into_iter(), &layer.feed_forward.inputs(None).norm);
        Some(RoutedSample { inputs, weights })
    }
}
