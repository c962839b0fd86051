//! Stores of random weights in the shape of a published model, for measuring speed, memory and reads. Their
//! output text is meaningless.
//!
//! Codes are random bits with plausible scales, so a store is written at disk speed. Two measures keep the
//! random model from routing all tokens to the same few experts. The gains of the norms are small, so that
//! the residual stream stays close to the token's embedding. Router biases, which a Qwen3-MoE router lacks,
//! are carried by 32 dimensions in which all embeddings are equal.

mod shapes;
mod text;
mod values;

use std::path::Path;

use nestling_formats::Invariant;
use nestling_formats::nested::{Layout, PlaneForm};
use nestling_formats::store::{
    Encoding, FloatTensor, Group, GroupId, Index, Matrix, PartItem, StorePlan, StoreWriter,
    levels_with_offset,
};
use nestling_formats::{DType, ExpertId, Level, MatrixKind, Plane};
use nestling_import::{MatrixShape, ModelConfig, ModelShape};

use nestling_core::cancel::CancelToken;
use nestling_core::error::EngineError;
use values::Values;

pub use shapes::SyntheticShape;

/// Settings of a synthetic store.
#[derive(Clone, Debug, PartialEq)]
pub struct SyntheticOptions {
    /// Shape of the model.
    pub shape: SyntheticShape,
    /// Level of all matrices except the head, which has at least level 6.
    pub top_level: Level,
    /// Standard deviation of the routers' fixed biases, relative to a token-dependent part of about 1. With
    /// 0, all experts are equally likely.
    pub router_skew: f64,
    /// Random seed of the weights.
    pub seed: u64,
}

/// Sizes and expert use of a written store.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SyntheticReport {
    /// Size of the store in bytes.
    pub store_bytes: u64,
    /// Bytes of expert weights.
    pub expert_bytes: u64,
    /// Bytes of weights that one token reads: dense matrices, head, routers and its experts.
    pub token_bytes: u64,
    /// Part of `token_bytes` that each token reads, without experts.
    pub dense_bytes: u64,
    /// Bytes of one expert.
    pub bytes_per_expert: u64,
    /// Share of routes taken by the busiest 12.5, 25 and 50 % of the experts, averaged over layers. Assumes
    /// that the token-dependent part of each logit is Gaussian.
    pub busiest_shares: [f64; 3],
}

/// Writes a store, replacing an existing file of that name. Memory use is bounded by one plane of the largest
/// matrix.
///
/// `progress` receives the bytes written and the total bytes. `cancel` is checked before each extent.
///
/// ```no_run
/// use std::path::Path;
/// use nestling_core::CancelToken;
/// use nestling_formats::Level;
/// use nestling_plan::synthetic::{SyntheticOptions, SyntheticShape, write_synthetic_store};
///
/// let shape = SyntheticShape::QWEN3_30B_A3B.with_layers(4);
/// let options = SyntheticOptions { shape, top_level: Level::L4, router_skew: 0.5, seed: 1 };
/// let cancel = CancelToken::new();
/// let path = Path::new("random.nest");
/// let report = write_synthetic_store(path, &options, &cancel, &mut |_done, _total| ())?;
/// println!("{} bytes per token", report.token_bytes);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// [`EngineError::Cancelled`], or [`EngineError::Store`] if the disk is full or fails. The partial file is
/// removed.
pub fn write_synthetic_store(
    destination: &Path,
    options: &SyntheticOptions,
    cancel: &CancelToken,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<SyntheticReport, EngineError> {
    let assets = text::assets(&options.shape)?;
    let config = text::config(&assets)?;
    let plan = plan(options, &config, &assets);
    let writer = StoreWriter::create(destination, &plan)?;
    let values = Values::new(options, &config);
    match fill(&writer, values, &assets, cancel, progress) {
        Ok(busiest_shares) => {
            let report = report(&writer, &config, busiest_shares);
            writer.finish()?;
            Ok(report)
        }
        Err(error) => {
            writer.abandon()?;
            Err(error)
        }
    }
}

/// Returns the size in bytes of the store that [`write_synthetic_store`] would write.
///
/// ```
/// use nestling_formats::Level;
/// use nestling_plan::synthetic::{SyntheticOptions, SyntheticShape, synthetic_store_bytes};
///
/// let shape = SyntheticShape::TINY;
/// let mut options = SyntheticOptions { shape, top_level: Level::L8, router_skew: 0.0, seed: 1 };
/// let whole = synthetic_store_bytes(&options)?;
/// options.top_level = Level::L2;
/// assert!(synthetic_store_bytes(&options)? < whole);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// [`EngineError::Store`] if no store can hold such a model.
pub fn synthetic_store_bytes(options: &SyntheticOptions) -> Result<u64, EngineError> {
    Ok(synthetic_index(options)?.0.length())
}

/// Returns the index of the store that [`write_synthetic_store`] would write, and its configuration.
///
/// # Errors
/// [`EngineError::Store`] if no store can hold such a model.
pub fn synthetic_index(options: &SyntheticOptions) -> Result<(Index, ModelConfig), EngineError> {
    let assets = text::assets(&options.shape)?;
    let config = text::config(&assets)?;
    let index = plan(options, &config, &assets).index()?;
    Ok((index, config))
}

/// A file embedded in the store.
struct Asset {
    name: &'static str,
    bytes: Vec<u8>,
}

fn plan(options: &SyntheticOptions, config: &ModelConfig, assets: &[Asset]) -> StorePlan {
    let SyntheticOptions { shape, top_level, router_skew, seed } = options;
    let parameters = serde_json::json!({
        "synthetic": shape.name,
        "layers": shape.num_hidden_layers,
        "level": top_level.bits(),
        "router_skew": router_skew,
        "seed": seed,
    });
    let parameters = parameters.to_string();
    let mut plan = StorePlan::new(parameters.as_bytes(), parameters.as_str());
    for asset in assets {
        plan.add_asset(asset.name, asset.bytes.len() as u64);
    }
    let codec = plan.add_codec(1);
    let shape = ModelShape::new(config);
    let layers = (0u32..).take(config.num_hidden_layers).map(Some);
    for layer in std::iter::once(None).chain(layers) {
        let floats = shape.floats.iter().filter(|float| float.id.layer == layer);
        let tensors = floats.map(|float| FloatTensor {
            kind: float.id.kind,
            dtype: DType::F32,
            shape: float.dimensions(),
        });
        plan.add_group(GroupId::Floats { layer }, Vec::new(), tensors.collect());
    }
    let mut groups: Vec<(GroupId, Vec<Matrix>)> = Vec::new();
    for matrix in &shape.matrices {
        let (id, planned) = (group_of(matrix), planned(matrix, codec, *top_level));
        match groups.last_mut() {
            Some((last, matrices)) if *last == id => matrices.push(planned),
            _ => groups.push((id, vec![planned])),
        }
    }
    // Dense matrices of all layers precede the experts.
    groups.sort_by_key(|(id, _)| id.expert().is_some());
    for (id, matrices) in groups {
        plan.add_group(id, matrices, Vec::new());
    }
    plan
}

fn planned(matrix: &MatrixShape, codec: u32, top_level: Level) -> Matrix {
    let MatrixShape { id, rows, cols } = *matrix;
    let layout = match id.kind {
        MatrixKind::Embedding => Layout::RowMajor,
        _ => Layout::Tile16,
    };
    let top = match id.kind {
        MatrixKind::Head => top_level.max(Level::L6),
        _ => top_level,
    };
    let encoding = Encoding::Nested { layout, codec, form: PlaneForm::Nested };
    Matrix { kind: id.kind, rows, cols, encoding, levels: levels_with_offset(0, top) }
}

fn group_of(matrix: &MatrixShape) -> GroupId {
    let id = matrix.id;
    match (id.kind, id.layer, id.expert) {
        (MatrixKind::Embedding, ..) => GroupId::Embedding,
        (_, Some(layer), Some(expert)) => GroupId::Expert(ExpertId { layer, expert }),
        (_, Some(layer), None) => GroupId::Dense { layer },
        (_, None, _) => GroupId::Head,
    }
}

/// Writes all extents and returns the shares of the busiest experts.
fn fill(
    writer: &StoreWriter,
    mut values: Values<'_>,
    assets: &[Asset],
    cancel: &CancelToken,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<[f64; 3], EngineError> {
    writer.set_codec(0, &values::codec())?;
    for asset in assets {
        writer.write_asset(asset.name, &asset.bytes)?;
    }
    let index = writer.index();
    let total = index.extents().iter().map(|extent| extent.length).sum();
    let (mut bytes, mut done) = (Vec::new(), 0);
    for extent in index.extents() {
        let group = index.group_of(extent);
        let group = group.invariant("every extent belongs to a group of its index")?;
        if cancel.is_cancelled() {
            return Err(EngineError::Cancelled);
        }
        done += extent.length;
        if matches!(group.id, GroupId::Asset { .. }) {
            continue;
        }
        bytes.clear();
        let length = usize::try_from(extent.length);
        bytes.resize(length.invariant("an extent fits in memory")?, 0);
        fill_extent(&mut values, group, extent.plane, &mut bytes)?;
        writer.write_extent(&group.id, extent.plane, &bytes)?;
        progress(done, total);
    }
    Ok(values.busiest_shares())
}

fn fill_extent(
    values: &mut Values,
    group: &Group,
    plane: Plane,
    bytes: &mut [u8],
) -> Result<(), EngineError> {
    let wrong = || EngineError::mismatch(group.id.to_string(), "parts within its extent", "more");
    for part in group.parts(plane).ok_or_else(wrong)? {
        let out = bytes.get_mut(part.range).ok_or_else(wrong)?;
        match part.item {
            PartItem::Plane { matrix, plane } => {
                let matrix = group.matrices.get(matrix).ok_or_else(wrong)?;
                values.fill_plane(matrix, plane, out).ok_or_else(wrong)?;
            }
            PartItem::Tensor { tensor } => {
                let tensor = group.tensors.get(tensor).ok_or_else(wrong)?;
                values.fill_tensor(tensor.kind, out);
            }
            PartItem::Floats { .. } | PartItem::Merged { .. } => return Err(wrong()),
        }
    }
    Ok(())
}

fn report(writer: &StoreWriter, config: &ModelConfig, busiest_shares: [f64; 3]) -> SyntheticReport {
    let index = writer.index();
    let bytes_of = |wanted: &dyn Fn(&GroupId) -> bool| -> u64 {
        let of = |extent: &nestling_formats::store::Extent| {
            index.group_of(extent).is_some_and(|group| wanted(&group.id))
        };
        index.extents().iter().filter(|extent| of(extent)).map(|extent| extent.length).sum()
    };
    let expert_bytes = bytes_of(&|id| id.expert().is_some());
    let dense_bytes = bytes_of(&|id| {
        matches!(id, GroupId::Dense { .. } | GroupId::Head | GroupId::Floats { .. })
    });
    let (mut experts, mut used) = (0, 0);
    for layer in &config.layers {
        if let nestling_import::FeedForward::Moe { num_experts, num_experts_per_tok, .. } =
            layer.feed_forward
        {
            experts += num_experts as u64;
            used += num_experts_per_tok as u64;
        }
    }
    let bytes_per_expert = expert_bytes / experts.max(1);
    // Biases of all experts are stored with the floats of their layers.
    let floats = index.groups().iter().flat_map(|group| &group.tensors);
    let biases: usize = floats.filter(|tensor| tensor.kind.is_of_experts()).map(tensor_bytes).sum();
    let unused_biases = biases as u64 * (experts - used) / experts.max(1);
    SyntheticReport {
        store_bytes: index.length(),
        expert_bytes,
        dense_bytes,
        token_bytes: dense_bytes - unused_biases + bytes_per_expert * used,
        bytes_per_expert,
        busiest_shares,
    }
}

fn tensor_bytes(tensor: &FloatTensor) -> usize {
    tensor.dtype.bytes() * tensor.shape.iter().product::<usize>()
}

#[cfg(test)]
mod tests;
