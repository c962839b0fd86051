//! Converts a checkpoint to a store, one layer at a time. Conversion is resumable, and its output does not
//! depend on the number of threads.
//!
//! Memory is bounded by the samples of one layer and one matrix group per thread, plus that of
//! [`crate::calibrate`] if calibration is enabled. Large matrices are read and coded in blocks of rows.
//! Written data is retained: after an interruption, the same call resumes, and the finished store has the
//! same bytes.

mod block;
mod cut;
mod error;
mod exact;
mod fitter;
mod hidden;
mod inputs;
mod measure;
mod order;
mod plan;
mod progress;
mod quantize;
mod refit;
mod sensitivity;
mod source_error;
#[cfg(test)]
mod tests;
mod trial;
mod work;

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use nestling_formats::nested::{InputTransform, NeuronOrder, QuantizeOptions};
use nestling_formats::store::{GroupId, StoreId, StoreWriter};
use nestling_formats::{Level, MatrixId};
use nestling_import::config::ModelConfig;
use nestling_import::gguf::{BlockType, ScaledBlocks};
use nestling_import::{Checkpoint, ElementType, ImportError};

use crate::calibrate::{CalibrationTokens, Calibrator, Influences};
use nestling_core::CancelToken;
use nestling_cpu::threads::ThreadPool;

pub use cut::cut_store;
pub use error::ConvertError;
pub use plan::{QUANTIZER_VERSION, estimate_store, estimate_store_bytes, plan_store};
pub use progress::{ConvertPhase, ConvertProgress};
pub use source_error::SourceErrors;
pub use trial::{RotationTrial, convert_with_best_rotation};

pub(crate) use block::matrix_id;
pub(crate) use plan::{assets, group_of, layout};

use order::Orders;
use progress::Meter;

/// Basis on which codes are chosen.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub enum Calibration {
    /// The weights alone.
    #[default]
    None,
    /// The activations of the model on a text.
    Tokens(CalibrationTokens),
}

/// Damping that is added to the diagonal of second moments, relative to its mean. A higher value means that
/// the error of one column is compensated less by other columns.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Damping {
    /// Damping of attention matrices, dense feed-forward parts and the head, which all tokens use.
    pub dense: f32,
    /// Damping of gate and up of experts.
    pub gate_up: f32,
    /// Damping of down of experts.
    pub down: f32,
}

impl Default for Damping {
    fn default() -> Self {
        Self { dense: 0.02, gate_up: 0.05, down: 0.05 }
    }
}

/// Limit of a matrix's level by the bits of its source.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SourceBits {
    /// At most the highest level with no more bits than the source's codes: level 4 for sources of 4 and 5
    /// bits.
    #[default]
    AtMost,
    /// The requested level, regardless of the source.
    Any,
}

/// Treatment of matrices whose source consists of quantized blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SourceBlocks {
    /// Dequantized and coded like other matrices.
    #[default]
    Coded,
    /// Stored with the integers and scales of the source: no weight is rounded, and calibration does not
    /// change them. Experts keep the order of their neurons. Matrices whose blocks cannot stay whole are
    /// coded like other matrices.
    Exact,
}

/// Options of a conversion.
///
/// ```
/// use nestling_convert::convert::ConvertOptions;
/// use nestling_formats::Level;
///
/// let mut options = ConvertOptions::default();
/// options.level = Level::L4; // omit planes P6 and P8
/// options.threads = 2;
/// assert!(options.resume && !options.overwrite);
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ConvertOptions {
    /// Highest level of the store.
    pub level: Level,
    /// Limit of the level for matrices whose source is quantized.
    pub source_bits: SourceBits,
    /// Treatment of matrices whose source consists of quantized blocks.
    pub source_blocks: SourceBlocks,
    /// Number of quantization threads; 0 means one per processor. The result does not depend on it.
    pub threads: usize,
    /// Alignment of extents in bytes. `None` means 512 for stores below 256 MiB, or else 16 KiB.
    pub alignment: Option<u64>,
    /// Maximum size of one file in bytes; `None` means a single file.
    pub shard_bytes_max: Option<u64>,
    /// True to replace an existing file at the destination.
    pub overwrite: bool,
    /// True to resume an interrupted conversion of the same checkpoint.
    pub resume: bool,
    /// Order of the hidden neurons of experts.
    pub order: NeuronOrder,
    /// Transform of the experts' hidden activations before `down`.
    pub rotation: InputTransform,
    /// Options of codec fitting and of the choice of codes.
    pub quantize: QuantizeOptions,
    /// Weight of each level's error in the matrices of experts, with and without calibration. `None` means
    /// [`EXPERT_LEVEL_WEIGHTS`] with calibration, and the weights in `quantize` without it.
    pub expert_level_weights: Option<[f32; 5]>,
    /// The same for all other matrices. `None` means [`SHARED_LEVEL_WEIGHTS`] in a model with experts, and the
    /// weights in `quantize` in one without.
    pub shared_level_weights: Option<[f32; 5]>,
    /// Basis on which codes are chosen. The embedding is always coded by its weights alone.
    pub calibration: Calibration,
    /// Damping of the second moments of calibration.
    pub damping: Damping,
}

/// Weights of the levels' errors in calibrated experts. Levels 6 and 8 count less than in other matrices: experts are
/// mostly used below them, and gain there what they hardly lose above (docs/perf/051, 057).
pub const EXPERT_LEVEL_WEIGHTS: [f32; 5] = [6.0, 5.0, 4.0, 0.2, 0.2];

/// Weights of the levels' errors in matrices that all tokens of a model with experts use: no level of its store has
/// less than six bits of them (docs/perf/058).
pub const SHARED_LEVEL_WEIGHTS: [f32; 5] = [0.02, 0.02, 0.02, 1.0, 1.0];

impl ConvertOptions {
    /// Returns whether weights of this source type are stored exactly instead of being rounded.
    pub(crate) fn keeps(&self, element: ElementType) -> bool {
        let is_mxfp4 = element == ElementType::Block(BlockType::Mxfp4);
        is_mxfp4 && self.source_bits == SourceBits::AtMost
    }

    /// Returns the blocks of a source that are stored exactly, if any.
    pub(crate) fn exact(&self, blocks: Option<ScaledBlocks>) -> Option<ScaledBlocks> {
        blocks.filter(|_| self.source_blocks == SourceBlocks::Exact)
    }

    /// Returns the quantization options of a matrix of a model.
    pub(crate) fn quantize_of(&self, made: MatrixId, model: &ModelConfig) -> QuantizeOptions {
        let mut options = self.quantize.clone();
        let default = model.has_experts().then_some(SHARED_LEVEL_WEIGHTS);
        let both = match made.expert {
            Some(_) => self.expert_level_weights,
            None => self.shared_level_weights.or(default),
        };
        match both {
            Some(weights) => {
                (options.level_weights, options.calibrated.level_weights) = (weights, weights);
            }
            None if made.expert.is_some() => {
                options.calibrated.level_weights = EXPERT_LEVEL_WEIGHTS;
            }
            None => (),
        }
        options
    }
}

impl Default for ConvertOptions {
    fn default() -> Self {
        Self {
            level: Level::L8,
            source_bits: SourceBits::default(),
            source_blocks: SourceBlocks::default(),
            threads: 0,
            alignment: None,
            shard_bytes_max: None,
            overwrite: false,
            resume: true,
            order: NeuronOrder::default(),
            rotation: InputTransform::None,
            quantize: QuantizeOptions::default(),
            expert_level_weights: None,
            shared_level_weights: None,
            calibration: Calibration::None,
            damping: Damping::default(),
        }
    }
}

/// Result of a conversion.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct ConvertReport {
    /// Path of the store, or of the first of its files.
    pub path: PathBuf,
    /// Id of the store.
    pub id: StoreId,
    /// Size of all files in bytes.
    pub store_bytes: u64,
    /// Bytes of extents that an earlier, interrupted conversion had already written.
    pub resumed_bytes: u64,
    /// Errors of the store's weights relative to the source.
    pub errors: SourceErrors,
}

/// Converts a checkpoint into a store at `destination`.
///
/// `progress` is called on this thread after each unit of work. `cancel` is checked before each unit, which
/// has at most one million weights. Written data stays for the next attempt.
///
/// # Errors
/// Fails with [`ConvertError`]. A checkpoint without a tokenizer, and a destination that exists and may not
/// be replaced, are detected before any work is done.
pub fn convert(
    checkpoint: &Checkpoint,
    destination: &Path,
    options: &ConvertOptions,
    cancel: &CancelToken,
    progress: &mut dyn FnMut(ConvertProgress),
) -> Result<ConvertReport, ConvertError> {
    check_destination(destination, options)?;
    let assets = assets(checkpoint)?;
    let mut meter = Meter::new(progress);
    let source = source_hash(checkpoint, cancel, &mut meter)?;
    let plan = plan_store(checkpoint, source.to_vec(), options)?;
    let writer = match options.resume {
        true => StoreWriter::resume(destination, &plan)?,
        false => StoreWriter::create(destination, &plan)?,
    };
    let (resumed_bytes, _) = writer.progress_bytes();
    let mut report = ConvertReport {
        path: writer.final_path().to_owned(),
        id: writer.index().id(),
        store_bytes: writer.index().length(),
        resumed_bytes,
        errors: SourceErrors::default(),
    };
    for asset in assets.iter().filter(|a| !writer.is_group_written(&GroupId::asset(&a.name))) {
        writer.write_asset(&asset.name, &asset.bytes)?;
    }
    let orders = Orders::new(checkpoint, options);
    let conversion =
        Conversion { destination, checkpoint, writer: &writer, options, cancel, orders };
    // Pages that the page cache evicted since hashing would be evicted again, so the reads bypass it.
    checkpoint.pass_page_cache(true);
    let run = conversion.run(&mut meter);
    checkpoint.pass_page_cache(false);
    run?;
    let hidden = conversion.hidden_path();
    for group in writer.index().groups() {
        report.errors.add_group(group, writer.note(&group.id).as_deref());
    }
    checkpoint.check_unchanged()?;
    meter.begin(ConvertPhase::Finishing, 0);
    writer.finish()?;
    hidden::remove(&hidden);
    Ok(report)
}

/// Returns the hash that identifies a checkpoint as the source of a store.
fn source_hash(
    checkpoint: &Checkpoint,
    cancel: &CancelToken,
    meter: &mut Meter<'_>,
) -> Result<[u8; 16], ConvertError> {
    meter.begin(ConvertPhase::Hashing, checkpoint.weight_bytes());
    let hashed = checkpoint.source_hash(&mut |bytes| {
        meter.advance(bytes, None);
        if cancel.is_cancelled() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    match hashed {
        Err(ImportError::Cancelled) => Err(ConvertError::Cancelled),
        hashed => Ok(hashed?.to_le_bytes()),
    }
}

struct Conversion<'a> {
    checkpoint: &'a Checkpoint,
    writer: &'a StoreWriter,
    options: &'a ConvertOptions,
    cancel: &'a CancelToken,
    orders: Orders<'a>,
    destination: &'a Path,
}

impl Conversion<'_> {
    /// Returns the quantization options of a matrix.
    fn quantize_of(&self, made: MatrixId) -> QuantizeOptions {
        self.options.quantize_of(made, self.checkpoint.config())
    }

    fn run(&self, meter: &mut Meter<'_>) -> Result<(), ConvertError> {
        let groups = self.writer.index().groups();
        let bytes = |id: &GroupId| self.group_bytes(id);
        let written = |id: &&GroupId| self.writer.is_group_written(id);
        let ids = || groups.iter().map(|group| &group.id);
        // A partially written layer is calibrated again.
        let layers = (0u32..).take(self.checkpoint.config().num_hidden_layers);
        let passes = layers.filter(|layer| self.is_calibrated() && !self.is_done(*layer));
        let passes: BTreeSet<u32> = passes.collect();
        let halves = |id: &GroupId| match id.layer() {
            Some(layer) if passes.contains(&layer) => bytes(id),
            _ => 2 * bytes(id),
        };
        let done = ids().filter(written).map(halves).sum();
        meter.resume(ConvertPhase::Quantizing, ids().map(bytes).sum(), done);
        // A tied embedding is coded as the head, after the layers, for the inputs of the head.
        let is_tied = self.checkpoint.config().tie_word_embeddings;
        let head = if is_tied { GroupId::Embedding } else { GroupId::Head };
        if !is_tied {
            self.group(&GroupId::Embedding, None, meter)?;
        }
        self.floats(None)?;
        let mut calibrator = self.calibrator(meter)?;
        for layer in (0u32..).take(self.checkpoint.config().num_hidden_layers) {
            self.floats(Some(layer))?;
            if self.is_done(layer) {
                // The calibration has already passed this layer.
                continue;
            }
            if let Some(calibrator) = &mut calibrator {
                meter.enter(ConvertPhase::Calibrating, Some(layer));
                calibrator.begin_layer(self.cancel, &mut |bytes| {
                    meter.advance_half(bytes, Some(layer))
                })?;
                self.statistics(layer, calibrator)?;
            }
            meter.enter(ConvertPhase::Quantizing, Some(layer));
            self.layer(layer, calibrator.as_ref(), meter)?;
            if let Some(calibrator) = &mut calibrator {
                calibrator.end_layer();
                hidden::save(&self.hidden_path(), self.writer.index().id(), calibrator)?;
            }
            self.orders.forget();
            self.checkpoint.check_unchanged()?;
        }
        calibrator.as_mut().map_or(Ok(()), Calibrator::begin_head)?;
        self.group(&head, calibrator.as_ref(), meter)
    }

    /// Returns a calibrator at the first layer that is not written yet. Returns `None` if everything is
    /// written or no calibration was requested.
    fn calibrator(&self, meter: &mut Meter<'_>) -> Result<Option<Calibrator<'_>>, ConvertError> {
        // Default: no calibration was requested.
        let Calibration::Tokens(tokens) = &self.options.calibration else { return Ok(None) };
        let groups = self.writer.index().groups();
        if groups.iter().all(|group| self.writer.is_group_written(&group.id)) {
            return Ok(None);
        }
        let layers = 0..self.checkpoint.config().num_hidden_layers as u32;
        let first = layers.clone().find(|layer| !self.is_done(*layer)).unwrap_or(layers.end);
        let pool = Arc::new(ThreadPool::new(self.threads()));
        let mut calibrator = Calibrator::new(self.checkpoint, tokens, Arc::clone(&pool))?;
        calibrator.set_influences(self.influences(tokens, &pool, meter)?);
        hidden::load(&self.hidden_path(), self.writer.index().id(), first, &mut calibrator)?;
        while calibrator.next_layer() < first {
            let layer = Some(calibrator.next_layer());
            meter.enter(ConvertPhase::Calibrating, layer);
            // Work of an earlier attempt is already counted.
            calibrator.skip_layer(self.cancel, &mut |_| meter.advance(0, layer))?;
        }
        Ok(Some(calibrator))
    }

    /// Measures the influence of each layer's matrices before any is coded.
    fn influences(
        &self,
        tokens: &CalibrationTokens,
        pool: &Arc<ThreadPool>,
        meter: &mut Meter<'_>,
    ) -> Result<Influences, ConvertError> {
        let measured =
            Influences::measure(self.checkpoint, tokens, pool, self.cancel, &mut |layer| {
                meter.enter(ConvertPhase::Calibrating, Some(layer));
            });
        Ok(measured?)
    }

    fn is_done(&self, layer: u32) -> bool {
        let groups = self.writer.index().groups().iter();
        let mut of_layer = groups.filter(|group| group.id.layer() == Some(layer));
        of_layer.all(|group| self.writer.is_group_written(&group.id))
    }

    fn is_calibrated(&self) -> bool {
        matches!(self.options.calibration, Calibration::Tokens(_))
    }

    /// Returns the path of the file that holds the activations after the last completed layer.
    fn hidden_path(&self) -> PathBuf {
        let mut path = self.destination.as_os_str().to_owned();
        path.push(".hidden");
        path.into()
    }

    /// Stores the frequency and mean squared weight of each expert.
    fn statistics(&self, layer: u32, calibrator: &Calibrator<'_>) -> Result<(), ConvertError> {
        for (expert, statistics) in (0u32..).zip(calibrator.expert_statistics()) {
            let id = GroupId::expert_of(layer, expert);
            self.writer.set_frequency(&id, statistics.frequency)?;
            self.writer.set_weight_square(&id, statistics.mean_squared_weight)?;
        }
        Ok(())
    }

    fn check_cancelled(&self) -> Result<(), ConvertError> {
        if self.cancel.is_cancelled() { Err(ConvertError::Cancelled) } else { Ok(()) }
    }

    fn threads(&self) -> usize {
        work::threads(self.options.threads)
    }
}

fn check_destination(destination: &Path, options: &ConvertOptions) -> Result<(), ConvertError> {
    let refuse = |reason: &str| {
        let path = destination.display().to_string();
        Err(ConvertError::Destination { path, reason: reason.into() })
    };
    if destination.is_dir() {
        return refuse("it is a directory; give the name of the file to make");
    }
    if destination.exists() && !options.overwrite {
        let path = destination.display().to_string();
        return Err(ConvertError::DestinationExists { path });
    }
    match destination.parent() {
        Some(parent) if !parent.as_os_str().is_empty() && !parent.is_dir() => {
            refuse("its directory does not exist; make it first")
        }
        _ => Ok(()),
    }
}
