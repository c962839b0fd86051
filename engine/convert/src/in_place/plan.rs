//! Plan of the virtual store of a GGUF file.

use std::collections::BTreeMap;

use nestling_formats::nested::{Layout, PlaneForm};
use nestling_formats::store::{
    Digits, Encoding, FloatTensor, GroupId, Matrix, SectionPlan, StorePlan,
};
use nestling_formats::{Level, Plane};
use nestling_import::checkpoint::{Asset, MatrixPlace};
use nestling_import::gguf::ScaledBlocks;
use nestling_import::{Checkpoint, MatrixShape, file_state};

use xxhash_rust::xxh3::xxh3_128;

use crate::convert::{ConvertError, assets, group_of, layout};

/// Version of the conversion from blocks to extents. Checksums of extents from one process are compared in
/// another one only if both use the same version.
const BYTES_VERSION: u32 = 1;

/// A store plan with assets and level.
pub struct InPlacePlan {
    pub plan: StorePlan,
    pub assets: Vec<Asset>,
    /// Level of the model: that of the experts' complete codes.
    pub level: Level,
}

/// Plans one extent for each group.
pub fn plan(checkpoint: &Checkpoint, digits: Digits) -> Result<InPlacePlan, ConvertError> {
    let assets = assets(checkpoint)?;
    // The digits are part of the store's id, because they change the bytes of extents.
    let digits = match digits {
        Digits::Apart => "apart",
        Digits::Merged => "merged",
    };
    let parameters = serde_json::json!({ "in_place": BYTES_VERSION, "digits": digits }).to_string();
    let mut plan = StorePlan::new(identity(checkpoint, &assets), parameters);
    let mut sections = Vec::new();
    for asset in &assets {
        plan.add_asset(asset.name.clone(), asset.bytes.len() as u64);
        sections.push(GroupId::asset(&asset.name));
    }
    for (layer, tensors) in tensors(checkpoint)? {
        let id = GroupId::Floats { layer };
        sections.push(id.clone());
        plan.add_group(id, Vec::new(), tensors);
    }
    let mut codecs = Codecs::default();
    let mut level = None;
    for (id, matrices) in groups(checkpoint) {
        let mut planned = Vec::with_capacity(matrices.len());
        for matrix in &matrices {
            let place = checkpoint.matrix(matrix.id)?;
            let layout = layout(checkpoint.config(), matrix.id.kind);
            let matrix = codecs.matrix(&mut plan, matrix, layout, &place);
            if id.expert().is_some() {
                level = level.max(matrix.levels[0]);
            }
            planned.push(matrix);
        }
        sections.push(id.clone());
        plan.add_group(id, planned, Vec::new());
    }
    let extents = sections.into_iter().map(|id| (id, Plane::P2)).collect();
    plan.sections = vec![SectionPlan { name: "all".into(), extents }];
    // Default: without experts, each level means the whole file.
    Ok(InPlacePlan { plan, assets, level: level.unwrap_or(Level::L8) })
}

/// Returns the identity of the files and of their current state. Hashing all of their content would take as
/// long as running the model.
fn identity(checkpoint: &Checkpoint, assets: &[Asset]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for path in checkpoint.files() {
        // Default: a file without readable metadata is identified by its path and header.
        let path = path.canonicalize().unwrap_or_else(|_| path.to_owned());
        let name = path.as_os_str().as_encoded_bytes();
        bytes.extend((name.len() as u64).to_le_bytes());
        bytes.extend(name);
        let state = path.metadata().map(|metadata| file_state(&metadata));
        bytes.extend(state.into_iter().flatten().flat_map(i128::to_le_bytes));
    }
    bytes.extend(checkpoint.headers_hash().into_iter().flat_map(u128::to_le_bytes));
    // Assets are derived from the header by rules that may differ in another version of the program.
    bytes.extend(assets.iter().flat_map(|asset| xxh3_128(&asset.bytes).to_le_bytes()));
    bytes
}

/// Returns the float tensors of each layer and of the model.
fn tensors(
    checkpoint: &Checkpoint,
) -> Result<BTreeMap<Option<u32>, Vec<FloatTensor>>, ConvertError> {
    let mut tensors: BTreeMap<Option<u32>, Vec<FloatTensor>> = BTreeMap::new();
    for float in &checkpoint.shape().floats {
        let dtype = checkpoint.float(float.id)?.dtype();
        let tensor = FloatTensor { kind: float.id.kind, dtype, shape: float.dimensions() };
        tensors.entry(float.id.layer).or_default().push(tensor);
    }
    Ok(tensors)
}

/// Returns the matrices by group, experts last.
fn groups(checkpoint: &Checkpoint) -> Vec<(GroupId, Vec<MatrixShape>)> {
    let mut groups: Vec<(GroupId, Vec<MatrixShape>)> = Vec::new();
    for matrix in &checkpoint.shape().matrices {
        let id = group_of(matrix.id);
        match groups.last_mut() {
            Some((last, matrices)) if *last == id => matrices.push(*matrix),
            _ => groups.push((id, vec![*matrix])),
        }
    }
    groups.sort_by_key(|(id, _)| id.expert().is_some());
    groups
}

/// Codecs keyed by block type, span and presence of a scale tensor.
#[derive(Default)]
struct Codecs(BTreeMap<(u32, u8, bool), u32>);

impl Codecs {
    fn matrix(
        &mut self,
        plan: &mut StorePlan,
        shape: &MatrixShape,
        layout: Layout,
        place: &MatrixPlace<'_>,
    ) -> Matrix {
        let MatrixShape { id, rows, cols } = *shape;
        let Some(blocks) = place.blocks() else {
            let encoding = Encoding::Float(place.dtype());
            let levels = [Some(Level::L8); Plane::ALL.len()];
            return Matrix { kind: id.kind, rows, cols, encoding, levels };
        };
        let ScaledBlocks { kind, span, companion } = blocks;
        let codec = blocks.codec();
        let add = || plan.add_scaled_codec(codec);
        let number = *self.0.entry((kind.number(), span, companion)).or_insert_with(add);
        let form = PlaneForm::Scaled(codec.form);
        let encoding = Encoding::Nested { layout, codec: number, form };
        let levels = [Some(codec.form.top()); Plane::ALL.len()];
        Matrix { kind: id.kind, rows, cols, encoding, levels }
    }
}
