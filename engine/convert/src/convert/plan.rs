//! Plan of a store: the contents that a checkpoint's store will have.

use std::collections::BTreeMap;

use nestling_formats::nested::{Layout, PlaneForm, TILE_ROWS};
use nestling_formats::store::{
    Encoding, FloatTensor, GroupId, Index, Matrix, Measures, StorePlan, levels_with_offset,
};
use nestling_formats::{DType, ExpertId, FloatId, Level, MatrixId, MatrixKind, Plane};
use nestling_import::checkpoint::Asset;
use nestling_import::gguf::{BlockType, ScaledBlocks};
use nestling_import::{
    Checkpoint, ElementType, ExpertFormat, FeedForward, FloatShape, MatrixPlace, MatrixShape,
    ModelConfig, ModelShape,
};

use super::{Calibration, ConvertError, ConvertOptions, SourceBits, SourceBlocks};
use nestling_levels::allocation::DIVERGENCE_MEASURES;

/// Version of the quantizer. It is raised when the same checkpoint would be coded differently, so that the
/// store's id changes.
pub const QUANTIZER_VERSION: u32 = 10;

/// Name of the file that is required for a conversion.
const TOKENIZER: &str = "tokenizer.json";

/// Space in bytes that an estimate reserves for tokenizer and configuration.
const ESTIMATED_ASSET_BYTES: u64 = 16 << 20;

/// Plans the store that [`super::convert`] makes of a checkpoint. `source` is the checkpoint's hash.
///
/// # Errors
/// Fails with [`ConvertError`] if the checkpoint lacks a tokenizer or cannot be read.
pub fn plan_store(
    checkpoint: &Checkpoint,
    source: Vec<u8>,
    options: &ConvertOptions,
) -> Result<StorePlan, ConvertError> {
    let mut plan = begin(source, options);
    for asset in assets(checkpoint)? {
        plan.add_asset(asset.name, asset.bytes.len() as u64);
    }
    let matrix = |id| Ok(MatrixSource::of(&checkpoint.matrix(id)?));
    let float = |id| Ok(checkpoint.float(id)?.dtype());
    Weights::new(checkpoint.config(), options, &matrix, &float).add_to(&mut plan)?;
    Ok(plan)
}

/// Estimates the size in bytes of a model's store from its configuration alone.
///
/// ```
/// use nestling_convert::convert::{ConvertOptions, estimate_store_bytes};
/// use nestling_formats::Level;
/// use nestling_import::Checkpoint;
///
/// # let data = concat!(env!("CARGO_MANIFEST_DIR"), "/../runtime/tests/data");
/// let checkpoint = Checkpoint::open(format!("{data}/tiny-qwen3-moe"))?;
/// let mut options = ConvertOptions::default();
/// let whole = estimate_store_bytes(checkpoint.config(), &options)?;
/// options.level = Level::L2;
/// assert!(estimate_store_bytes(checkpoint.config(), &options)? < whole);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// Fails with [`ConvertError::Store`] if no store can hold such a model.
pub fn estimate_store_bytes(
    config: &ModelConfig,
    options: &ConvertOptions,
) -> Result<u64, ConvertError> {
    let mut plan = begin(Vec::new(), options);
    plan.add_asset(TOKENIZER, ESTIMATED_ASSET_BYTES);
    let matrix = |id: MatrixId| match (id.expert, config.expert_format) {
        (Some(_), ExpertFormat::Mxfp4) => {
            Ok(MatrixSource::coded(ElementType::Block(BlockType::Mxfp4)))
        }
        _ => Ok(MatrixSource::coded(ElementType::Float(DType::Bf16))),
    };
    let float = |_| Ok(DType::F32);
    Weights::new(config, options, &matrix, &float).add_to(&mut plan)?;
    Ok(plan.index()?.length())
}

/// Estimates the index of the store that [`super::convert`] would make of a checkpoint. No weights are read,
/// so that the headers of the files suffice. A missing tokenizer is replaced by more space than any tokenizer
/// needs, so that the size is an upper bound.
///
/// ```
/// use nestling_convert::convert::{ConvertOptions, estimate_store};
/// use nestling_formats::store::GroupId;
/// use nestling_import::Checkpoint;
///
/// # let data = concat!(env!("CARGO_MANIFEST_DIR"), "/../runtime/tests/data");
/// let checkpoint = Checkpoint::open(format!("{data}/tiny-qwen3-moe"))?;
/// let index = estimate_store(&checkpoint, &ConvertOptions::default())?;
/// assert!(index.group(&GroupId::expert_of(0, 4)).is_some());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// Fails with [`ConvertError`] if no store can hold such a model, or if a small file cannot be read.
pub fn estimate_store(
    checkpoint: &Checkpoint,
    options: &ConvertOptions,
) -> Result<Index, ConvertError> {
    let mut plan = begin(Vec::new(), options);
    let mut has_tokenizer = false;
    for asset in checkpoint.assets()?.into_iter().filter(|asset| !asset.bytes.is_empty()) {
        has_tokenizer |= asset.name == TOKENIZER;
        plan.add_asset(asset.name, asset.bytes.len() as u64);
    }
    if !has_tokenizer {
        plan.add_asset(TOKENIZER, ESTIMATED_ASSET_BYTES);
    }
    let matrix = |id| Ok(MatrixSource::of(&checkpoint.matrix(id)?));
    let float = |id| Ok(checkpoint.float(id)?.dtype());
    Weights::new(checkpoint.config(), options, &matrix, &float).add_to(&mut plan)?;
    Ok(plan.index()?)
}

/// Returns the small files that the store contains. Fails if the tokenizer is missing.
pub(crate) fn assets(checkpoint: &Checkpoint) -> Result<Vec<Asset>, ConvertError> {
    let mut assets = checkpoint.assets()?;
    assets.retain(|asset| !asset.bytes.is_empty());
    if assets.iter().any(|asset| asset.name == TOKENIZER) {
        return Ok(assets);
    }
    Err(ConvertError::Refused {
        what: checkpoint.directory().display().to_string(),
        reason: "it has no `tokenizer.json`; save it beside the weights".into(),
    })
}

fn begin(source: Vec<u8>, options: &ConvertOptions) -> StorePlan {
    let mut parameters = serde_json::json!({
        "quantizer": QUANTIZER_VERSION,
        "level": options.level.bits(),
        "level_weights": options.quantize.level_weights,
        "tables": options.quantize.tables,
        "order": options.order.name(),
        "rotation": options.rotation.to_byte(),
        "calibration": calibration(options),
    });
    if options.calibration != Calibration::None {
        parameters["measures"] = DIVERGENCE_MEASURES.into();
    }
    if let Some(weights) = options.expert_level_weights {
        parameters["expert_level_weights"] = weights.to_vec().into();
    }
    if let Some(weights) = options.shared_level_weights {
        parameters["shared_level_weights"] = weights.to_vec().into();
    }
    if options.source_blocks == SourceBlocks::Exact {
        parameters["source_blocks"] = "exact".into();
    }
    if options.source_bits == SourceBits::Any {
        parameters["source_bits"] = "any".into();
    }
    let mut plan = StorePlan::new(source, parameters.to_string());
    plan.alignment = options.alignment;
    plan.measures = Measures::PerMatrix;
    plan.shard_bytes_max = options.shard_bytes_max;
    plan
}

fn calibration(options: &ConvertOptions) -> serde_json::Value {
    // Default: no calibration was requested.
    let Calibration::Tokens(tokens) = &options.calibration else { return serde_json::Value::Null };
    let rounding = &options.quantize.calibrated;
    serde_json::json!({
        "level_weights": rounding.level_weights,
        "feedback": rounding.feedback,
        "sweeps": [rounding.sweeps, rounding.step_sweeps],
        "tokens": tokens.tokens().len(),
        "sequence_length": tokens.sequence_length(),
        "hash": format!("{:032x}", tokens.hash()),
        "damping": [options.damping.dense, options.damping.gate_up, options.damping.down],
    })
}

#[derive(Clone, Copy)]
struct MatrixSource {
    element: ElementType,
    /// Blocks of its rows, if they can be stored exactly.
    blocks: Option<ScaledBlocks>,
}

impl MatrixSource {
    fn of(place: &MatrixPlace<'_>) -> Self {
        Self { element: place.element(), blocks: place.blocks() }
    }

    /// Creates a source that cannot be stored exactly.
    fn coded(element: ElementType) -> Self {
        Self { element, blocks: None }
    }
}

type TypeOf<'a, Id, Type> = &'a dyn Fn(Id) -> Result<Type, ConvertError>;

struct Weights<'a> {
    config: &'a ModelConfig,
    options: &'a ConvertOptions,
    matrix_source: TypeOf<'a, MatrixId, MatrixSource>,
    float_dtype: TypeOf<'a, FloatId, DType>,
    /// Highest level of matrices that all tokens use.
    dense_top: Level,
    /// Codec of each layer's matrix kind; experts of a layer share it.
    codecs: BTreeMap<(Option<u32>, u8, [bool; 2]), u32>,
    /// Codec of exactly stored blocks, by type number, span and presence of a scale tensor.
    exact_codecs: BTreeMap<(u32, u8, bool), u32>,
}

impl<'a> Weights<'a> {
    fn new(
        config: &'a ModelConfig,
        options: &'a ConvertOptions,
        matrix_source: TypeOf<'a, MatrixId, MatrixSource>,
        float_dtype: TypeOf<'a, FloatId, DType>,
    ) -> Self {
        Self {
            config,
            options,
            matrix_source,
            float_dtype,
            dense_top: Level::L8,
            codecs: BTreeMap::new(),
            exact_codecs: BTreeMap::new(),
        }
    }

    /// Returns the highest level of a matrix with this source.
    fn top(&self, element: ElementType) -> Level {
        match self.options.source_bits {
            SourceBits::AtMost => self.options.level.min(element.level_max()),
            SourceBits::Any => self.options.level,
        }
    }

    /// Limits dense matrices to level 6 if the experts end below level 8, since no model of the store would
    /// use more.
    fn find_dense_top(&mut self, shape: &ModelShape) -> Result<(), ConvertError> {
        let mut experts = None;
        for matrix in shape.matrices.iter().filter(|matrix| matrix.id.expert.is_some()) {
            let MatrixSource { element, blocks } = (self.matrix_source)(matrix.id)?;
            // Exact experts may end at level 4, but they are complete, so dense matrices are stored in full.
            let is_whole = self.options.keeps(element) || self.options.exact(blocks).is_some();
            let top = if is_whole { Level::L8 } else { self.top(element) };
            experts = experts.max(Some(top));
        }
        if experts.is_some_and(|top| top < Level::L8) && self.options.level == Level::L8 {
            self.dense_top = Level::L6;
        }
        Ok(())
    }

    fn add_to(mut self, plan: &mut StorePlan) -> Result<(), ConvertError> {
        let shape = ModelShape::new(self.config);
        self.find_dense_top(&shape)?;
        let mut floats: BTreeMap<Option<u32>, Vec<FloatTensor>> = BTreeMap::new();
        for float in &shape.floats {
            floats.entry(float.id.layer).or_default().push(self.tensor(float)?);
        }
        for (layer, tensors) in floats {
            plan.add_group(GroupId::Floats { layer }, Vec::new(), tensors);
        }
        let mut groups: Vec<(GroupId, Vec<Matrix>)> = Vec::new();
        for matrix in &shape.matrices {
            let id = group_of(matrix.id);
            let planned = self.matrix(plan, matrix)?;
            match groups.last_mut() {
                Some((last, matrices)) if *last == id => matrices.push(planned),
                _ => groups.push((id, vec![planned])),
            }
        }
        // Dense matrices of all layers precede the experts.
        let (experts, dense): (Vec<_>, Vec<_>) =
            groups.into_iter().partition(|(id, _)| id.expert().is_some());
        for (id, matrices) in dense.into_iter().chain(experts) {
            plan.add_group(id, matrices, Vec::new());
        }
        Ok(())
    }

    fn tensor(&self, float: &FloatShape) -> Result<FloatTensor, ConvertError> {
        let dtype = (self.float_dtype)(float.id)?;
        Ok(FloatTensor { kind: float.id.kind, dtype, shape: float.dimensions() })
    }

    fn matrix(
        &mut self,
        plan: &mut StorePlan,
        matrix: &MatrixShape,
    ) -> Result<Matrix, ConvertError> {
        let MatrixShape { id, rows, cols } = *matrix;
        let MatrixSource { element, blocks } = (self.matrix_source)(id)?;
        if let Some(blocks) = self.options.exact(blocks).filter(|_| rows >= TILE_ROWS) {
            return Ok(self.exact_matrix(plan, matrix, blocks));
        }
        let level = match id.expert {
            Some(_) => self.top(element),
            None => self.top(element).min(self.dense_top),
        };
        let mut levels = levels_with_offset(0, level);
        let encoding = if rows < TILE_ROWS {
            levels = [Some(Level::L8); Plane::ALL.len()];
            Encoding::Float(element.float())
        } else {
            let layout = layout(self.config, id.kind);
            let key = (id.layer, id.kind as u8, [id.expert.is_some(), self.options.keeps(element)]);
            let tiles = rows.div_ceil(TILE_ROWS).saturating_mul(self.sharing(id));
            let tables = self.options.quantize.tables.min(tiles);
            let codec = *self.codecs.entry(key).or_insert_with(|| plan.add_codec(tables));
            Encoding::Nested { layout, codec, form: PlaneForm::Nested }
        };
        Ok(Matrix { kind: id.kind, rows, cols, encoding, levels })
    }
}

impl Weights<'_> {
    /// Adds a matrix whose blocks are stored exactly, up to the level of their codes.
    fn exact_matrix(
        &mut self,
        plan: &mut StorePlan,
        matrix: &MatrixShape,
        blocks: ScaledBlocks,
    ) -> Matrix {
        let MatrixShape { id, rows, cols } = *matrix;
        let scaled = blocks.codec();
        let add = || plan.add_scaled_codec(scaled);
        let key = (blocks.kind.number(), blocks.span, blocks.companion);
        let codec = *self.exact_codecs.entry(key).or_insert_with(add);
        let form = PlaneForm::Scaled(scaled.form);
        let encoding = Encoding::Nested { layout: layout(self.config, id.kind), codec, form };
        let levels = levels_with_offset(0, self.options.level.min(scaled.form.top()));
        Matrix { kind: id.kind, rows, cols, encoding, levels }
    }

    /// Returns the number of matrices that share the codec of this one.
    fn sharing(&self, id: MatrixId) -> usize {
        let layer = id.layer.and_then(|layer| usize::try_from(layer).ok());
        let layer = layer.and_then(|layer| self.config.layers.get(layer));
        match (id.expert, layer.map(|layer| layer.feed_forward)) {
            (Some(_), Some(FeedForward::Moe { num_experts, .. })) => num_experts,
            _ => 1,
        }
    }
}

/// Returns the layout of a matrix. An embedding is read row by row unless it is also the head. Other matrices
/// are read 16 rows at a time.
pub(crate) fn layout(config: &ModelConfig, kind: MatrixKind) -> Layout {
    match kind {
        MatrixKind::Embedding if !config.tie_word_embeddings => Layout::RowMajor,
        _ => Layout::Tile16,
    }
}

pub(crate) fn group_of(id: MatrixId) -> GroupId {
    match (id.kind, id.layer, id.expert) {
        (MatrixKind::Embedding, ..) => GroupId::Embedding,
        (_, Some(layer), Some(expert)) => GroupId::Expert(ExpertId { layer, expert }),
        (_, Some(layer), None) => GroupId::Dense { layer },
        (_, None, _) => GroupId::Head,
    }
}
