//! Matrices of GGUF files as scaled integers, bit-exact with the weights of the file.

use std::fs;

use nestling_formats::nested::{
    Layout, NestedPlanes, NestedView, PlaneForm, ScaledCodec, ScaledRows, TILE_ROWS,
    pack_scaled_plane,
};
use nestling_formats::{MatrixId, MatrixKind, Plane};
use nestling_import::checkpoint::{FetchedRuns, ScaledScratch, ScaledTile};
use nestling_import::gguf::{BlockType, ScaledBlocks};
use nestling_import::{Checkpoint, ElementType, ImportError};

use super::checkpoint::MODELS;
use super::data;

/// Decodes scaled integers through planes.
fn weights(codec: &ScaledCodec, rows: &ScaledRows) -> Vec<f32> {
    let planes = Plane::ALL.map(|plane| {
        let form = PlaneForm::Scaled(codec.form);
        let bytes = form.plane_bytes(Layout::Tile16, rows.rows, rows.cols, plane).unwrap();
        let mut out = vec![0; bytes];
        pack_scaled_plane(rows, &codec.form, Layout::Tile16, plane, &mut out).unwrap();
        out
    });
    let [p2, p3, p4, p6, p8] = &planes;
    let [p3, p4, p6, p8] = [p3, p4, p6, p8].map(|plane| Some(plane.as_slice()));
    let planes = NestedPlanes { p2, p3, p4, p34: None, p6, p8 };
    let view = NestedView::new(rows.rows, rows.cols, Layout::Tile16, codec, planes).unwrap();
    view.check().unwrap();
    let mut out = vec![f32::NAN; rows.rows * rows.cols];
    for (row, out) in out.chunks_mut(rows.cols).enumerate() {
        view.dequantize_row(codec.form.top(), row, out).unwrap();
    }
    out
}

fn bits(weights: &[f32]) -> Vec<u32> {
    weights.iter().map(|weight| weight.to_bits()).collect()
}

#[test]
fn every_matrix_of_whole_blocks_is_exact() {
    let mut kinds = Vec::new();
    for name in MODELS {
        let checkpoint = Checkpoint::open(data(&format!("{name}.gguf"))).unwrap();
        for shape in &checkpoint.shape().matrices {
            let place = checkpoint.matrix(shape.id).unwrap();
            let ElementType::Block(element) = place.element() else {
                assert_eq!(place.blocks(), None, "{name} {:?}", shape.id);
                continue;
            };
            if *name == "qwen3-5-moe" && shape.id.kind == MatrixKind::DeltaOut {
                // The value heads of 16 columns are permuted.
                assert_eq!(place.blocks(), None, "{name} {:?}", shape.id);
                continue;
            }
            // Only a file with scale tensors has NVFP4 blocks.
            let companion = element == BlockType::Nvfp4;
            let blocks = ScaledBlocks { companion, ..ScaledBlocks::whole(element) };
            assert_eq!(place.blocks(), Some(blocks), "{name} {:?}", shape.id);
            kinds.push(element);
            let expected = checkpoint.read_matrix(shape.id).unwrap();
            let rows = checkpoint.read_scaled_rows(&place, 0, shape.rows).unwrap();
            let found = weights(&blocks.codec(), &rows);
            assert!(bits(&found) == bits(&expected), "{name} {:?}", shape.id);
            // A range of rows equals the same rows of the whole matrix.
            let (first, count) = (shape.rows / 3, shape.rows / 2);
            let part = checkpoint.read_scaled_rows(&place, first, count).unwrap();
            let codes = first * shape.cols..(first + count) * shape.cols;
            assert!(part.codes == rows.codes[codes], "{name} {:?}", shape.id);
            let of_row = rows.scales.len() / shape.rows;
            assert!(part.scales == rows.scales[first * of_row..(first + count) * of_row]);
            assert!(checkpoint.read_scaled_rows(&place, first, shape.rows).is_err());
        }
    }
    kinds.sort_by_key(|kind| kind.number());
    kinds.dedup();
    let names: Vec<&str> = kinds.iter().map(|kind| kind.name()).collect();
    assert_eq!(
        names,
        [
            "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K",
            "IQ4_XS", "MXFP4", "NVFP4"
        ]
    );
}

fn codes_of_pairs(pairs: &[u8]) -> Vec<u8> {
    let halves = |pair: &[u8; 32]| [pair.map(|byte| byte << 4), pair.map(|byte| byte & 0xf0)];
    pairs.as_chunks().0.iter().flat_map(halves).flatten().collect()
}

/// Tiles equal the rows of the whole matrix, for any first row and any previous contents of the buffers, with
/// blocks that were read before and without.
#[test]
fn tiles_are_the_rows_of_the_whole() {
    let mut scratch = ScaledScratch::default();
    let (mut fetched_matrices, mut tiles_of_pairs) = (0, 0);
    for name in MODELS {
        let checkpoint = Checkpoint::open(data(&format!("{name}.gguf"))).unwrap();
        for shape in &checkpoint.shape().matrices {
            let place = checkpoint.matrix(shape.id).unwrap();
            let Some(blocks) = place.blocks() else { continue };
            checkpoint.pass_page_cache(false);
            assert_eq!(checkpoint.source_runs(&place), None);
            checkpoint.pass_page_cache(true);
            // Default: without direct reads, or with permuted rows, nothing is read before.
            let runs = checkpoint.source_runs(&place).unwrap_or_default();
            let bytes = runs.iter().map(|run| run.buffer_bytes().unwrap()).sum();
            let mut buffer = vec![0; bytes];
            checkpoint.fetch_runs(&runs, &mut buffer).unwrap();
            fetched_matrices += usize::from(!runs.is_empty());
            let short = checkpoint.fetch_runs(&runs, &mut buffer[..bytes.saturating_sub(1)]);
            assert_eq!(short.is_err(), !runs.is_empty());
            let fetched = FetchedRuns::new(&runs, &buffer);
            for (first, last) in [(0, shape.rows), (shape.rows / 3, shape.rows - 1), (0, 0)] {
                let expected = checkpoint.read_scaled_rows(&place, first, last - first).unwrap();
                let mut found = ScaledRows { cols: shape.cols, ..ScaledRows::default() };
                let read = |at: usize, tile: ScaledTile<'_>| {
                    let tile = match tile {
                        ScaledTile::Codes(rows) => rows.clone(),
                        ScaledTile::Pairs(rows) => {
                            tiles_of_pairs += 1;
                            let codes = codes_of_pairs(&rows.codes);
                            ScaledRows { codes, ..rows.clone() }
                        }
                    };
                    assert_eq!((at, tile.cols), (found.rows, shape.cols));
                    assert_eq!(tile.rows, TILE_ROWS.min(last - first - at));
                    found.rows += tile.rows;
                    found.codes.extend(&tile.codes);
                    found.scales.extend(&tile.scales);
                    found.minima.extend(&tile.minima);
                    found.sub_scales.extend(&tile.sub_scales);
                    found.sub_minima.extend(&tile.sub_minima);
                    Ok::<_, ImportError>(())
                };
                let rows = first..last;
                checkpoint.read_scaled_tiles(&place, rows, fetched, &mut scratch, read).unwrap();
                assert!(found == expected, "{name} {:?} {blocks:?}", shape.id);
            }
            let beyond = 1..shape.rows + 1;
            let read = |_: usize, _: ScaledTile<'_>| Ok::<_, ImportError>(());
            let found = checkpoint.read_scaled_tiles(&place, beyond, fetched, &mut scratch, read);
            assert!(matches!(found, Err(ImportError::Limit { .. })), "{found:?}");
        }
    }
    assert!(tiles_of_pairs > 0, "a model has Q4_K");
    if fetched_matrices == 0 {
        eprintln!("SKIPPED: this file system has no direct reads");
    }
}

/// Block 7 of a Q4_0 tensor has an infinite scale.
#[test]
fn a_scale_that_is_not_finite_is_refused_by_tensor_and_block() {
    let whole = Checkpoint::open(data("qwen3-moe.gguf")).unwrap();
    let tensor = whole.tensor("blk.1.attn_v.weight").unwrap();
    assert_eq!(tensor.element, ElementType::Block(BlockType::Q4_0));
    let mut bytes = fs::read(data("qwen3-moe.gguf")).unwrap();
    let at = tensor.offset as usize + 7 * BlockType::Q4_0.bytes();
    bytes[at..at + 2].copy_from_slice(&0x7c00u16.to_le_bytes());
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("m.gguf");
    fs::write(&path, bytes).unwrap();
    let checkpoint = Checkpoint::open(&path).unwrap();
    let id = MatrixId { kind: MatrixKind::Value, layer: Some(1), expert: None };
    let place = checkpoint.matrix(id).unwrap();
    let of_blocks = checkpoint.read_scaled_rows(&place, 0, place.rows()).unwrap_err();
    // A row has 2 blocks: row 3 starts with block 6.
    let of_row = checkpoint.read_scaled_rows(&place, 3, 1).unwrap_err();
    let of_weights = checkpoint.read_matrix(id).unwrap_err();
    let mut scratch = ScaledScratch::default();
    let read = |_: usize, _: ScaledTile<'_>| Ok::<_, ImportError>(());
    let rows = 1..place.rows();
    let of_tiles = checkpoint
        .read_scaled_tiles(&place, rows, FetchedRuns::default(), &mut scratch, read)
        .unwrap_err();
    for error in [of_blocks, of_row, of_weights, of_tiles] {
        let ImportError::BlockScale { tensor, block, offset, found, .. } = &error else {
            panic!("{error}")
        };
        assert_eq!((tensor.as_str(), *block, *offset), ("blk.1.attn_v.weight", 7, at as u64));
        assert!(!found.is_finite() && error.to_string().contains("block 7"), "{error}");
    }
    assert!(checkpoint.read_scaled_rows(&place, 4, 1).is_ok());
}
