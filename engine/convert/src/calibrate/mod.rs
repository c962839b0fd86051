//! The calibration pass: collects statistics of the inputs of all matrices in the unquantized model.
//!
//! All tokens pass one layer before the next, so that the weights of only one layer are read at a time.
//! Memory holds two rows of `hidden_size` per token (three in families with norms after parts), the sums of
//! one layer, and one expert's weights. The sums take about 2 · n² bytes for `n` inputs; for each expert only
//! those of `down` are held.

mod changed;
mod dense;
mod experts;
mod influence;
mod mixer;
mod moments;
mod sample;
mod tokens;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;

use nestling_formats::memory::try_with_capacity;
use nestling_formats::nested::SecondMoments;
use nestling_formats::store::GroupId;
use nestling_formats::{FloatKind, Level, MatrixId, MatrixKind};
use nestling_import::Checkpoint;

use nestling_core::backend::{Backend, Encoder, EncoderExt, Linear};
use nestling_core::batch::{Batch, LevelPolicy, Row, SequenceRef, StepRows};
use nestling_core::cancel::CancelToken;
use nestling_core::driver::block_on;
use nestling_core::error::EngineError;
use nestling_core::kv_cache::{PageId, pages_for};
use nestling_core::weights::ActivationMode;
use nestling_cpu::Cpu;
use nestling_cpu::kernels::Kernels;
use nestling_cpu::threads::ThreadPool;
use nestling_experts::expert::ExpertSource;
use nestling_runtime::model::weights::Loader;
use nestling_runtime::model::{RopeAngles, rope_kinds};

pub use experts::ExpertStatistics;
pub(crate) use influence::Influences;
pub use moments::MomentSum;
pub use sample::RoutedSample;
pub use tokens::{CALIBRATION_TOKENS_MIN, CalibrationTokens};

use changed::{ChangedSource, MatrixClass};
use dense::MixerSample;
use experts::{FeedForwardMoments, PartInputs};
use mixer::MixerMoments;

/// Maximum number of rows computed together. A longer sequence still forms one step.
const STEP_ROWS: usize = 1024;

/// Number of routed tokens per input dimension at which an expert's own moments count as much as those of all
/// tokens. With fewer tokens, the expert's own moments are too noisy.
const ROUTED_INPUTS: usize = 6;

/// Number of tokens that all experts are sampled on, whether routed to them or not.
const SAMPLE_TOKENS: usize = 4096;

/// Callback that receives the number of weight bytes that all tokens have passed.
pub type ByteProgress<'a> = &'a mut dyn FnMut(u64);

/// The unquantized model with the activations of the calibration tokens before one layer.
pub struct Calibrator<'a> {
    source: ChangedSource<'a>,
    cpu: Cpu,
    pool: Arc<ThreadPool>,
    kernels: &'static Kernels,
    sequences: Vec<Vec<u32>>,
    angles: Vec<RopeAngles>,
    /// Input of the layer. The mixer's output is added while the layer is active.
    hidden: Vec<f32>, // [T, hidden_size]
    /// Number of completed layers.
    layers: u32,
    current: Current,
    influences: Influences,
}

/// Requested results of a layer: moments, or only its outputs.
#[derive(Clone, Copy, PartialEq, Eq)]
enum PassOutput {
    Moments,
    Outputs,
}

struct Pass<'a> {
    wanted: PassOutput,
    cancel: &'a CancelToken,
}

/// State of the part of the model that was calibrated last.
enum Current {
    Nothing,
    Layer(Box<LayerMoments>),
    Head(MomentSum),
}

struct LayerMoments {
    layer: u32,
    /// Inputs of the mixer's products, keyed by the first of the kinds that share the inputs.
    inputs: BTreeMap<MatrixKind, MomentSum>,
    feed_forward: FeedForwardMoments,
    /// Factors of a shared expert's outputs; empty means 1.
    gates: Vec<f32>, // [T]
    mixer_sample: MixerSample,
}

impl std::fmt::Debug for Calibrator<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let sequences = self.sequences.len();
        f.debug_struct("Calibrator").field("sequences", &sequences).finish_non_exhaustive()
    }
}

impl<'a> Calibrator<'a> {
    /// Computes the activations of `tokens` before the first layer.
    ///
    /// # Errors
    /// Fails with [`EngineError::TokenOutOfRange`], or if weights cannot be read.
    pub fn new(
        checkpoint: &'a Checkpoint,
        tokens: &CalibrationTokens,
        pool: Arc<ThreadPool>,
    ) -> Result<Self, EngineError> {
        let length = tokens.sequence_length().min(checkpoint.config().max_position_embeddings);
        let sequences = tokens.tokens().chunks(length.max(1)).map(<[u32]>::to_vec).collect();
        Self::of_sequences(checkpoint, sequences, length.max(1), pool)
    }

    /// Computes the activations of sequences before the first layer. All but the last have the given length.
    fn of_sequences(
        checkpoint: &'a Checkpoint,
        sequences: Vec<Vec<u32>>,
        length: usize,
        pool: Arc<ThreadPool>,
    ) -> Result<Self, EngineError> {
        let source = ChangedSource::new(checkpoint, None);
        let config = source.config();
        let kernels = Kernels::detect();
        let mut cpu = Cpu::with(Arc::clone(&pool), kernels);
        let angles = rope_kinds(config).iter().map(|rope| RopeAngles::new(rope, length)).collect();
        let hidden_size = config.hidden_size;
        let table = source.matrices(&GroupId::Embedding)?.take(
            MatrixKind::Embedding,
            config.vocab_size,
            hidden_size,
        )?;
        let table = Linear::new(cpu.upload_matrix(&table, ActivationMode::Float)?, None);
        let tokens: usize = sequences.iter().map(Vec::len).sum();
        let values = tokens.saturating_mul(hidden_size);
        let mut hidden = try_with_capacity("activations of the calibration text", values)?;
        let mut rows = cpu.buffer(STEP_ROWS, hidden_size)?;
        for step in steps(&sequences) {
            let mut encoder = cpu.encoder();
            encoder.embed(&table, &step_rows(step), &mut rows)?;
            encoder.scale(config.multipliers.embedding, &mut rows)?;
            hidden.extend(block_on(encoder.read(&rows))?);
        }
        Ok(Self {
            source,
            cpu,
            pool,
            kernels,
            sequences,
            angles,
            hidden,
            layers: 0,
            current: Current::Nothing,
            influences: Influences::default(),
        })
    }

    /// Sets the influences that errors are weighted with.
    pub(crate) fn set_influences(&mut self, influences: Influences) {
        self.influences = influences;
    }

    /// Returns the divergence in nats that an error of 1 in the output of a group's matrices of one kind causes: squares
    /// summed over the width, mean over tokens. If norms follow the sum of experts, the error is that before them.
    ///
    /// # Errors
    /// Fails with [`EngineError::Mismatch`] if the matrix is not of the current layer, or was not measured.
    pub(crate) fn influence(&self, group: &GroupId, kind: MatrixKind) -> Result<f64, EngineError> {
        let class = MatrixClass::of(group, kind);
        let missing =
            || EngineError::mismatch(format!("influence of {kind:?} of {group}"), "one", "none");
        let layer = match &self.current {
            Current::Layer(layer) if group.layer() == Some(layer.layer) => layer,
            _ => return Err(missing()),
        };
        let gain = if class.is_feed_forward() { layer.feed_forward.gain } else { 1.0 };
        Ok(gain * self.influences.of(layer.layer, class).ok_or_else(missing)?)
    }

    /// Returns the number of calibration tokens.
    pub fn token_count(&self) -> usize {
        self.sequences.iter().map(Vec::len).sum()
    }

    /// Returns the number of completed layers, which is the index of the next one to calibrate.
    pub fn next_layer(&self) -> u32 {
        self.layers
    }

    /// Returns the activations before [`Self::next_layer`], `[tokens, hidden_size]`. They are not valid
    /// between [`Self::begin_layer`] and [`Self::end_layer`].
    pub fn hidden(&self) -> &[f32] {
        &self.hidden
    }

    /// Resumes from activations before a layer that [`Self::hidden`] returned earlier.
    ///
    /// # Errors
    /// Fails with [`EngineError::Mismatch`] if they belong to another model or to other tokens.
    pub fn resume(&mut self, layer: u32, hidden: Vec<f32>) -> Result<(), EngineError> {
        let layers = self.source.config().num_hidden_layers;
        if layer as usize > layers {
            let expected = format!("at most {layers}");
            return Err(EngineError::mismatch("layers of a calibration", expected, layer));
        }
        if hidden.len() != self.hidden.len() {
            let expected = self.hidden.len();
            return Err(EngineError::mismatch("hidden states", expected, hidden.len()));
        }
        (self.layers, self.hidden, self.current) = (layer, hidden, Current::Nothing);
        Ok(())
    }

    /// Passes all tokens through the next layer without collecting moments.
    ///
    /// # Errors
    /// Fails like [`Self::begin_layer`].
    pub fn skip_layer(
        &mut self,
        cancel: &CancelToken,
        passed: ByteProgress<'_>,
    ) -> Result<(), EngineError> {
        self.pass_layer(PassOutput::Outputs, cancel, passed)?;
        self.end_layer();
        Ok(())
    }

    /// Passes all tokens through the next layer. The moments of its matrices are available until
    /// [`Self::end_layer`]. `cancel` is checked every thousand tokens and for each expert.
    ///
    /// # Errors
    /// Fails with [`EngineError::Cancelled`], or if weights cannot be read. The calibrator cannot be used
    /// afterwards.
    pub fn begin_layer(
        &mut self,
        cancel: &CancelToken,
        passed: ByteProgress<'_>,
    ) -> Result<(), EngineError> {
        self.pass_layer(PassOutput::Moments, cancel, passed)
    }

    fn pass_layer(
        &mut self,
        wanted: PassOutput,
        cancel: &CancelToken,
        passed: ByteProgress<'_>,
    ) -> Result<(), EngineError> {
        self.current = Current::Nothing;
        let layer = self.layers;
        let config = self.source.config().clone();
        let mut loader = Loader::new(&mut self.cpu, &self.source, ActivationMode::Float, 1);
        let weights = loader.layer(&config, layer, cancel)?;
        let pass = Pass { wanted, cancel };
        let mixer_sample = match wanted {
            PassOutput::Moments => {
                MixerSample::new(&self.sequences, &self.hidden, config.hidden_size)
            }
            PassOutput::Outputs => MixerSample::default(),
        };
        let (moments, passed_on) = self.mixer(&weights, &pass, passed)?;
        let MixerMoments { inputs, normed, expert_inputs } = moments;
        // Default: a layer that is a mixer alone has no inputs of a feed-forward part.
        let norm = weights.feed_forward_norm.clone().unwrap_or_default();
        let dense = PartInputs { norm, sum: normed };
        let own = weights.norm_before_experts().cloned().zip(expert_inputs);
        let own = own.map(|(norm, sum)| PartInputs { norm, sum });
        let mut feed_forward = FeedForwardMoments::new(dense, own, self.hidden.len());
        self.feed_forward(&weights, &passed_on, &mut feed_forward, &pass, passed)?;
        let gates = passed_on.gates;
        let moments = LayerMoments { layer, inputs, feed_forward, gates, mixer_sample };
        self.current = Current::Layer(Box::new(moments));
        Ok(())
    }

    /// Ends the current layer and adds its output to the hidden states.
    pub fn end_layer(&mut self) {
        if let Current::Layer(layer) = std::mem::replace(&mut self.current, Current::Nothing) {
            self.kernels.add(&mut self.hidden, &layer.feed_forward.output);
            if layer.feed_forward.layer_scalar != 1.0 {
                self.kernels.scale(&mut self.hidden, layer.feed_forward.layer_scalar);
            }
            self.layers += 1;
        }
    }

    /// Collects the inputs of the head, after all layers.
    ///
    /// # Errors
    /// Fails if weights cannot be read.
    pub fn begin_head(&mut self) -> Result<(), EngineError> {
        let config = self.source.config();
        let (hidden, eps) = (config.hidden_size, config.rms_norm_eps);
        let norm = self.final_norm()?;
        let mut sum = MomentSum::new(hidden);
        let (mut panels, mut normed) = (moments::Panels::default(), Vec::new());
        for rows in self.hidden.chunks(STEP_ROWS * hidden) {
            normed.resize(rows.len(), 0.0);
            for (x, out) in rows.chunks(hidden).zip(normed.chunks_mut(hidden)) {
                self.kernels.rms_norm(x, &norm, eps, out);
            }
            let rows = normed.chunks_exact(hidden).map(|row| (row, 1.0));
            sum.add(&self.pool, self.kernels, panels.pack(hidden, rows));
        }
        self.current = Current::Head(sum);
        Ok(())
    }

    /// Reads the weights of the norm before the head, `[hidden_size]`.
    fn final_norm(&self) -> Result<Vec<f32>, EngineError> {
        let hidden = self.source.config().hidden_size;
        let floats = self.source.floats(None)?;
        let norm = floats.into_iter().find(|(kind, _)| *kind == FloatKind::FinalNorm);
        let missing = || EngineError::mismatch("final norm", hidden, "none");
        let (_, norm) = norm.ok_or_else(missing)?;
        if norm.len() != hidden {
            return Err(EngineError::mismatch("final norm", hidden, norm.len()));
        }
        Ok(norm)
    }

    /// Returns the mean of `x xᵀ` over the inputs of a matrix of the current layer or head, blended for
    /// experts. Matrices with the same inputs have the same moments.
    ///
    /// # Errors
    /// Fails with [`EngineError::Mismatch`] for any other matrix, and with [`EngineError::Nested`] if
    /// activations overflowed.
    pub fn moments(&self, id: MatrixId) -> Result<SecondMoments, EngineError> {
        let layer = match &self.current {
            Current::Head(sum) if is_head(id) => return Ok(sum.mean()?),
            Current::Layer(layer) if id.layer == Some(layer.layer) => layer,
            _ => return Err(not_calibrated(id)),
        };
        match id.kind {
            MatrixKind::Gate | MatrixKind::Up => {
                let sum = self.feed_forward_input(&layer.feed_forward, id.expert);
                Ok(sum.ok_or_else(|| not_calibrated(id))?.mean()?)
            }
            MatrixKind::Down => {
                let sum = layer.feed_forward.inner(id.expert);
                Ok(sum.ok_or_else(|| not_calibrated(id))?.mean()?)
            }
            kind => {
                let sum = layer.inputs.get(&first_with_inputs_of(kind));
                Ok(sum.ok_or_else(|| not_calibrated(id))?.mean()?)
            }
        }
    }

    /// Returns the diagonal of [`Self::moments`], the mean square of each input, without computing the rest.
    ///
    /// # Errors
    /// Fails like [`Self::moments`].
    pub fn diagonal(&self, id: MatrixId) -> Result<Vec<f32>, EngineError> {
        let layer = match &self.current {
            Current::Head(sum) if is_head(id) => return Ok(sum.diagonal()),
            Current::Layer(layer) if id.layer == Some(layer.layer) => layer,
            _ => return Err(not_calibrated(id)),
        };
        let feed_forward = &layer.feed_forward;
        let diagonal = match id.kind {
            MatrixKind::Gate | MatrixKind::Up => feed_forward.input_diagonal(id.expert),
            MatrixKind::Down => feed_forward.inner(id.expert).map(MomentSum::diagonal),
            kind => layer.inputs.get(&first_with_inputs_of(kind)).map(MomentSum::diagonal),
        };
        diagonal.ok_or_else(|| not_calibrated(id))
    }

    /// Returns the size in bytes of a layer's dense matrices or of one expert in the checkpoint.
    fn bytes(&self, layer: u32, expert: Option<u32>) -> u64 {
        let checkpoint = self.source.checkpoint();
        let ids = checkpoint.shape().matrices.iter().map(|matrix| matrix.id);
        let ids = ids.filter(|id| (id.layer, id.expert) == (Some(layer), expert));
        ids.filter_map(|id| checkpoint.matrix(id).ok()).map(|place| place.length()).sum()
    }

    /// Returns the statistics of the current layer's experts; empty in a dense layer.
    pub fn expert_statistics(&self) -> Vec<ExpertStatistics> {
        match &self.current {
            Current::Layer(layer) => layer.feed_forward.statistics(self.token_count()),
            _ => Vec::new(),
        }
    }
}

/// Returns the first of the matrix kinds that share the inputs of `kind`.
pub(crate) fn first_with_inputs_of(kind: MatrixKind) -> MatrixKind {
    match kind {
        MatrixKind::Query
        | MatrixKind::Key
        | MatrixKind::Value
        | MatrixKind::QueryGate
        | MatrixKind::QueryDown
        | MatrixKind::LatentDown => MatrixKind::Query,
        MatrixKind::DeltaIn | MatrixKind::DeltaGate | MatrixKind::DeltaBetaDecay => {
            MatrixKind::DeltaIn
        }
        MatrixKind::Gate | MatrixKind::Up => MatrixKind::Gate,
        kind => kind,
    }
}

/// Returns whether a matrix is a head. An embedding that is coded after the layers is one as well.
fn is_head(id: MatrixId) -> bool {
    matches!(id.kind, MatrixKind::Head | MatrixKind::Embedding)
}

fn not_calibrated(id: MatrixId) -> EngineError {
    EngineError::mismatch("moments", "a matrix of the layer that is calibrated", format!("{id:?}"))
}

/// Returns the number of sequences of a length that form one step.
fn sequences_per_step(length: usize) -> usize {
    (STEP_ROWS / length.max(1)).max(1)
}

/// Returns the number of KV pages that the sequences of one step need.
fn pages_max(sequences: &[Vec<u32>]) -> usize {
    let length = sequences.first().map_or(1, Vec::len);
    sequences_per_step(length) * pages_for(length)
}

/// Splits the sequences into steps of whole sequences; all but the last have the same length.
fn steps(sequences: &[Vec<u32>]) -> impl Iterator<Item = &[Vec<u32>]> {
    sequences.chunks(sequences_per_step(sequences.first().map_or(1, Vec::len)))
}

/// Returns the rows of some sequences, whose KV pages are consecutive.
fn step_rows(sequences: &[Vec<u32>]) -> StepRows {
    let mut batch = Batch::default();
    let mut first = 0;
    for (number, tokens) in (0u32..).zip(sequences) {
        let pages = u32::try_from(pages_for(tokens.len())).unwrap_or(u32::MAX);
        batch.sequences.push(SequenceRef::of_pages((first..first + pages).map(PageId).collect()));
        first += pages;
        batch.rows.extend((0u32..).zip(tokens).map(|(position, &token)| Row {
            token,
            position,
            sequence: number,
            wants_logits: false,
            levels: LevelPolicy::Fixed(Level::L8),
        }));
    }
    batch.own_states();
    StepRows::of_batch(&batch)
}
