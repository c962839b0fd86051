//! Small stores, built from a checkpoint with one codec and without threads.

use std::path::{Path, PathBuf};

use nestling_formats::nested::{
    CodecFitter, Layout, NestedCodec, PlaneForm, QuantizeOptions, QuantizedMatrix, ScaledRows,
    quantize_matrix,
};
use nestling_formats::store::{
    Encoding, FloatTensor, Group, GroupId, Matrix, MatrixData, StorePlan, StoreWriter,
    levels_with_offset, pack_extent,
};
use nestling_formats::{DType, Level, MatrixId, MatrixKind, Plane};
use nestling_import::checkpoint::Checkpoint;

use super::scaled;

/// Build options of a store.
#[derive(Clone, Copy, Debug)]
pub struct Recipe {
    /// Number of planes by which `down` of an expert is ahead of gate and up.
    pub down_offset: usize,
    /// Top level of all matrices.
    pub top: Level,
    /// Form of an embedding that is the head as well.
    pub tied: Tied,
    /// Maximum bytes of one file.
    pub shard_bytes_max: Option<u64>,
    /// Codec of the matrices.
    pub codes: Codes,
}

/// Form of tied weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tied {
    /// An embedding laid out for products.
    Tiled,
    /// An embedding laid out for gathers.
    RowMajor,
    /// An embedding laid out for gathers, and a head.
    Twice,
    /// A head without an embedding.
    HeadAlone,
    /// Neither.
    Missing,
}

/// Codec of the matrices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Codes {
    Nested,
    /// Scaled integers, in a different form for each kind of matrix.
    Scaled,
    /// Scaled integers of 8 bits.
    Q8,
}

impl Default for Recipe {
    fn default() -> Self {
        let (top, codes) = (Level::L8, Codes::Nested);
        Self { down_offset: 0, top, tied: Tied::Tiled, shard_bytes_max: None, codes }
    }
}

struct Content {
    id: GroupId,
    matrices: Vec<(MatrixKind, MatrixId, usize, usize)>,
}

fn contents(checkpoint: &Checkpoint, recipe: &Recipe) -> Vec<Content> {
    let mut contents: Vec<Content> = Vec::new();
    for matrix in &checkpoint.shape().matrices {
        let id = match (matrix.id.kind, matrix.id.layer, matrix.id.expert) {
            (MatrixKind::Embedding, ..) => GroupId::Embedding,
            (MatrixKind::Head, ..) => GroupId::Head,
            (_, Some(layer), Some(expert)) => GroupId::expert_of(layer, expert),
            (_, layer, _) => GroupId::Dense { layer: layer.unwrap() },
        };
        let item = (matrix.id.kind, matrix.id, matrix.rows, matrix.cols);
        match contents.iter_mut().find(|content| content.id == id) {
            Some(content) => content.matrices.push(item),
            None => contents.push(Content { id, matrices: vec![item] }),
        }
    }
    if checkpoint.config().tie_word_embeddings {
        let (_, id, rows, cols) = contents[0].matrices[0];
        let matrices = vec![(MatrixKind::Head, id, rows, cols)];
        let head = Content { id: GroupId::Head, matrices };
        match recipe.tied {
            Tied::Tiled | Tied::RowMajor => {}
            Tied::Twice => contents.insert(1, head),
            Tied::HeadAlone => contents[0] = head,
            Tied::Missing => drop(contents.remove(0)),
        }
    }
    // Experts last, as the default sections expect.
    contents.sort_by_key(|content| content.id.expert().is_some());
    contents
}

fn plan_matrix(
    id: &GroupId,
    &(kind, _, rows, cols): &(MatrixKind, MatrixId, usize, usize),
    recipe: &Recipe,
    codecs: &[u32; 5],
    embedding: Layout,
) -> Matrix {
    let layout = if kind == MatrixKind::Embedding { embedding } else { Layout::Tile16 };
    let ahead = kind == MatrixKind::Down && id.expert().is_some();
    let offset = if ahead { recipe.down_offset } else { 0 };
    let (codec, form, top) = match recipe.codes {
        Codes::Nested => (codecs[0], PlaneForm::Nested, recipe.top),
        codes => {
            let form = scaled::form(kind, codes);
            let codec = codecs[1 + scaled::FORMS.iter().position(|known| *known == form).unwrap()];
            (codec, PlaneForm::Scaled(form), form.top())
        }
    };
    let levels = levels_with_offset(offset, top);
    Matrix { kind, rows, cols, encoding: Encoding::Nested { layout, codec, form }, levels }
}

/// Builds the store of a checkpoint and returns its path.
pub fn build_store(directory: &Path, destination: &Path, recipe: &Recipe) -> PathBuf {
    let config = std::fs::read(directory.join("config.json")).unwrap();
    build_store_with(directory, destination, recipe, &config)
}

/// Builds the store of a checkpoint with another configuration.
pub fn build_store_with(
    directory: &Path,
    destination: &Path,
    recipe: &Recipe,
    config: &[u8],
) -> PathBuf {
    let checkpoint = Checkpoint::open(directory).unwrap();
    let contents = contents(&checkpoint, recipe);
    let options = QuantizeOptions::default();
    let mut fitter = CodecFitter::new(&options);
    for matrix in &checkpoint.shape().matrices {
        let weights = checkpoint.read_matrix(matrix.id).unwrap();
        fitter.add(&weights, matrix.rows, matrix.cols, None).unwrap();
    }
    let fitted = fitter.finish().unwrap();

    let mut plan = StorePlan::new("tiny", "{}");
    plan.shard_bytes_max = recipe.shard_bytes_max;
    let codecs = add_codecs(&mut plan, recipe, fitted.tables.len());
    plan.add_asset("config.json", config.len() as u64);
    let layers = (0..checkpoint.config().num_hidden_layers as u32).map(Some);
    let layers: Vec<Option<u32>> = layers.chain([None]).collect();
    for &layer in &layers {
        let floats = checkpoint.shape().floats.iter().filter(|float| float.id.layer == layer);
        let tensors = floats.map(|float| FloatTensor {
            kind: float.id.kind,
            dtype: DType::F32,
            shape: vec![float.rows, float.cols],
        });
        plan.add_group(GroupId::Floats { layer }, Vec::new(), tensors.collect());
    }
    let has_head = contents.iter().any(|content| content.id == GroupId::Head);
    let is_tiled = !has_head && recipe.tied == Tied::Tiled;
    let embedding = if is_tiled { Layout::Tile16 } else { Layout::RowMajor };
    for Content { id, matrices } in &contents {
        let planned = |matrix| plan_matrix(id, matrix, recipe, &codecs, embedding);
        plan.add_group(id.clone(), matrices.iter().map(planned).collect(), Vec::new());
    }

    let writer = StoreWriter::create(destination, &plan).unwrap();
    if recipe.codes == Codes::Nested {
        writer.set_codec(codecs[0], &fitted).unwrap();
    }
    writer.write_extent(&GroupId::asset("config.json"), Plane::P2, config).unwrap();
    for layer in layers {
        let floats = checkpoint.shape().floats.iter().filter(|float| float.id.layer == layer);
        let bytes: Vec<Vec<u8>> = floats
            .map(|float| {
                let values = checkpoint.read_float(float.id).unwrap();
                values.iter().flat_map(|value| value.to_le_bytes()).collect()
            })
            .collect();
        let data: Vec<_> = bytes.iter().map(|bytes| MatrixData::Floats(bytes)).collect();
        write_group(&writer, &GroupId::Floats { layer }, &data);
    }
    for Content { id, matrices } in &contents {
        write_matrices(
            &writer,
            id,
            matrices,
            &Coding { checkpoint: &checkpoint, codes: recipe.codes, fitted: &fitted },
        );
    }
    let path = writer.final_path().to_owned();
    writer.finish().unwrap();
    path
}

/// Adds the codecs of a store: one for nested codes, or one per form of scaled integers.
fn add_codecs(plan: &mut StorePlan, recipe: &Recipe, tables: usize) -> [u32; 5] {
    let mut codecs = [0; 5];
    match recipe.codes {
        Codes::Nested => codecs[0] = plan.add_codec(tables),
        Codes::Scaled | Codes::Q8 => {
            for (number, form) in codecs[1..].iter_mut().zip(scaled::FORMS) {
                *number = plan.add_scaled_codec(scaled::codec(form));
            }
        }
    }
    codecs
}

/// Sources of a group's matrices.
struct Coding<'a> {
    checkpoint: &'a Checkpoint,
    codes: Codes,
    fitted: &'a NestedCodec,
}

fn write_matrices(
    writer: &StoreWriter,
    id: &GroupId,
    matrices: &[(MatrixKind, MatrixId, usize, usize)],
    coding: &Coding<'_>,
) {
    let options = QuantizeOptions::default();
    let weights = |id| coding.checkpoint.read_matrix(id).unwrap();
    let nested: Vec<QuantizedMatrix>;
    let scaled: Vec<ScaledRows>;
    let data: Vec<_> = match coding.codes {
        Codes::Nested => {
            let matrices = matrices.iter().map(|&(_, id, rows, cols)| {
                quantize_matrix(&weights(id), rows, cols, coding.fitted, None, &options).unwrap()
            });
            nested = matrices.collect();
            nested.iter().map(MatrixData::Nested).collect()
        }
        codes => {
            let matrices = matrices.iter().map(|&(kind, id, rows, cols)| {
                scaled::quantize(&weights(id), rows, cols, &scaled::form(kind, codes))
            });
            scaled = matrices.collect();
            scaled.iter().map(MatrixData::Scaled).collect()
        }
    };
    write_group(writer, id, &data);
}

fn write_group(writer: &StoreWriter, id: &GroupId, data: &[MatrixData<'_>]) {
    let group: &Group = writer.index().group(id).unwrap();
    for plane in Plane::ALL {
        if group.extents[plane.index()].is_some() {
            let mut bytes = Vec::new();
            pack_extent(group, plane, data, &mut bytes).unwrap();
            writer.write_extent(id, plane, &bytes).unwrap();
        }
    }
}
