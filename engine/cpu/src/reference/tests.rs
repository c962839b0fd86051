//! The reference against the mathematical definition in f64. Tolerances follow from the arithmetic.

use std::sync::Arc;

use nestling_formats::nested::{
    CodecFitter, Layout, NestedCodec, QuantizeOptions, pack_plane, plane_bytes, quantize_matrix,
};
use nestling_formats::{Level, Plane};
use nestling_import::{RopePairs, RouterConfig};

use super::*;
use nestling_core::backend::{EncoderExt, HeadNorm};
use nestling_core::batch::{Batch, LevelPolicy, Row, SequenceRef};
use nestling_core::driver::block_on;
use nestling_core::kv_cache::{KvDtype, KvValues};
use nestling_core::weights::{ByteRegion, FloatMatrix, NestedMatrix, PlaneRegions};

/// Deterministic values in -1..1.
fn noise(count: usize, seed: u32) -> Vec<f32> {
    let mut state = u64::from(seed) * 2 + 1;
    let mut next = || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..count).map(|_| next()).collect()
}

fn nested(rows: usize, cols: usize, layout: Layout) -> NestedMatrix {
    let weights = noise(rows * cols, 7);
    let options = QuantizeOptions::default();
    let mut fitter = CodecFitter::new(&options);
    fitter.add(&weights, rows, cols, None).unwrap();
    let codec: NestedCodec = fitter.finish().unwrap();
    let matrix = quantize_matrix(&weights, rows, cols, &codec, None, &options).unwrap();
    let region = |plane| {
        let mut bytes = vec![0; plane_bytes(layout, rows, cols, plane).unwrap()];
        pack_plane(&matrix, layout, plane, &mut bytes).unwrap();
        ByteRegion::from_vec(bytes)
    };
    let regions = PlaneRegions {
        p2: region(Plane::P2),
        p3: Some(region(Plane::P3)),
        p4: Some(region(Plane::P4)),
        p34: None,
        p6: Some(region(Plane::P6)),
        p8: Some(region(Plane::P8)),
    };
    NestedMatrix::new(rows, cols, layout, Arc::new(codec), regions, Level::ALL).unwrap()
}

fn buffer(rows: usize, cols: usize, seed: u32) -> ReferenceBuffer {
    ReferenceBuffer { cols, values: noise(rows * cols, seed) }
}

fn product(matrix: &ReferenceMatrix, level: Level, x: &ReferenceBuffer) -> Vec<f32> {
    let mut out = ReferenceBuffer::new(x.row_count(), matrix.rows());
    let rows: Vec<usize> = (0..x.row_count()).collect();
    matrix.multiply(level, &rows, x, &mut out).unwrap();
    out.values
}

#[test]
fn int8_products_are_within_the_rounding_of_the_activations() {
    let (rows, cols, tokens) = (37, 70, 3);
    for layout in [Layout::Tile16, Layout::RowMajor] {
        let weights = MatrixWeights::Nested(nested(rows, cols, layout));
        let int8 = ReferenceMatrix::new(weights.clone(), ActivationMode::Int8);
        let float = ReferenceMatrix::new(weights, ActivationMode::Float);
        let x = buffer(tokens, cols, 1);
        for level in Level::ALL {
            let (rounded, exact) = (product(&int8, level, &x), product(&float, level, &x));
            let mut row = vec![0.0; cols];
            for (index, (rounded, exact)) in rounded.iter().zip(&exact).enumerate() {
                float.read_row(level, index % rows, &mut row).unwrap();
                // Each activation is off by at most half a step of its group, which is below 1/254.
                let bound: f32 = row.iter().map(|weight| weight.abs() / 254.0).sum();
                let float_error = 1e-6 * row.iter().map(|weight| weight.abs()).sum::<f32>();
                assert!((rounded - exact).abs() <= bound * 1.001 + float_error, "{level}");
            }
        }
    }
}

#[test]
fn a_row_does_not_depend_on_its_neighbours_or_their_levels() {
    let (rows, cols) = (33, 65);
    let matrix = MatrixWeights::Nested(nested(rows, cols, Layout::Tile16));
    let matrix = ReferenceMatrix::new(matrix, ActivationMode::Int8);
    let weights = Linear::<Reference>::new(matrix, None);
    let x = buffer(3, cols, 2);
    let mixed = linear(&weights, &[Level::L2, Level::L8, Level::L2], &x).unwrap();
    for (row, level) in [Level::L2, Level::L8, Level::L2].into_iter().enumerate() {
        let one = ReferenceBuffer { cols, values: x.values[row * cols..][..cols].to_vec() };
        let alone = linear(&weights, &[level], &one).unwrap();
        assert_eq!(mixed.values[row * rows..][..rows], alone.values);
    }
}

fn heads(h: usize, g: usize, d: usize) -> AttentionHeads<Reference> {
    AttentionHeads {
        num_attention_heads: h,
        num_key_value_heads: g,
        head_dim: d,
        scale: 1.0 / (d as f32).sqrt(),
        rope_first: 0,
        rope_pairs: RopePairs::Halves,
        eps: 1e-6,
        query_norm: HeadNorm::Absent,
        key_norm: HeadNorm::Absent,
        value_norm: None,
        sliding_window: None,
        sinks: None,
    }
}

/// Attention of one head in f64 over all positions at once.
fn attention(query: &[f32], keys: &[&[f32]], values: &[&[f32]], scale: f32) -> Vec<f64> {
    let dot = |key: &&[f32]| -> f64 {
        query.iter().zip(*key).map(|(&q, &k)| f64::from(q) * f64::from(k)).sum()
    };
    let weights: Vec<f64> = keys.iter().map(|key| (dot(key) * f64::from(scale)).exp()).collect();
    let sum: f64 = weights.iter().sum();
    (0..query.len())
        .map(|i| {
            let products = weights.iter().zip(values).map(|(weight, v)| weight * f64::from(v[i]));
            products.sum::<f64>() / sum
        })
        .collect()
}

#[test]
fn attention_over_several_pages_is_a_softmax() {
    let (h, g, d, positions) = (6, 2, 10, 150);
    let qkv = buffer(positions, (h + 2 * g) * d, 3);
    let shape = KvShape {
        num_key_value_heads: g,
        head_dim: d,
        values: KvValues::Beside,
        dtype: KvDtype::F32,
        pages: 5,
    };
    let rows = (0..positions as u32).map(|position| Row {
        token: 0,
        position,
        sequence: 0,
        wants_logits: false,
        levels: LevelPolicy::Fixed(Level::L8),
    });
    let pages = vec![PageId(4), PageId(0), PageId(2)];
    let batch = Batch::new(rows.collect(), vec![SequenceRef::of_pages(pages)]);
    let rows = StepRows::of_batch(&batch);
    let mut angles = ReferenceBuffer::new(positions, d);
    for row in angles.rows_mut() {
        row[..d / 2].fill(1.0);
    }
    let mut pool = ReferencePool::new(shape);
    let (mut stored, mut out) = (qkv.clone(), ReferenceBuffer::new(0, h * d));
    let mut encoder = Reference.encoder();
    encoder.rope(&heads(h, g, d), &rows, &angles, &mut stored, Some(&mut pool)).unwrap();
    assert_eq!(stored, qkv, "an angle of zero rotates nothing");
    encoder.attend(&heads(h, g, d), &rows, &qkv, &pool, &mut out).unwrap();
    for position in [0, 1, 62, 63, 64, 127, 128, 149] {
        for head in 0..h {
            let part = |row: usize, head: usize| &qkv.values[(row * (h + 2 * g) + head) * d..][..d];
            let kv_head = head / (h / g);
            let keys: Vec<_> = (0..=position).map(|row| part(row, h + kv_head)).collect();
            let values: Vec<_> = (0..=position).map(|row| part(row, h + g + kv_head)).collect();
            let scale = heads(h, g, d).scale;
            let expected = attention(part(position, head), &keys, &values, scale);
            let found = &out.values[(position * h + head) * d..][..d];
            for (found, expected) in found.iter().zip(expected) {
                assert!((f64::from(*found) - expected).abs() < 2e-6, "{found} {expected}");
            }
        }
    }
}

#[test]
fn pages_survive_a_snapshot_in_every_element_type() {
    for dtype in [KvDtype::F32, KvDtype::F16, KvDtype::Int8] {
        let shape = KvShape {
            num_key_value_heads: 3,
            head_dim: 6,
            values: KvValues::Beside,
            dtype,
            pages: 2,
        };
        let mut pool = ReferencePool::new(shape);
        pool.store(PageId(0), 63, &noise(18, 4), &noise(18, 5)).unwrap();
        let mut bytes = Vec::new();
        Reference.read_page(&pool, PageId(0), &mut bytes).unwrap();
        assert_eq!(bytes.len(), shape.page_bytes());
        Reference.write_page(&mut pool, PageId(1), &bytes).unwrap();
        assert_eq!(pool.page(PageId(0)).unwrap(), pool.page(PageId(1)).unwrap());
        assert!(Reference.write_page(&mut pool, PageId(1), &bytes[1..]).is_err());
        assert!(Reference.write_page(&mut pool, PageId(2), &bytes).is_err());
    }
}

#[test]
fn routing_is_ascending_and_ties_go_to_the_lower_expert() {
    // Expert e has logit x[0] * e for e < 3; experts 3 and 4 equal expert 2.
    let weights = FloatMatrix::from_f32(5, 1, &[0.0, 1.0, 2.0, 2.0, 2.0]).unwrap();
    let weights = MatrixWeights::Float(weights);
    let weights = ReferenceMatrix::new(weights, ActivationMode::Float);
    let router = Router {
        weights,
        num_experts_per_tok: 2,
        rule: RouterConfig::softmax(true),
        logit_bias: None,
        selection_bias: None,
        expert_scale: None,
    };
    let x = ReferenceBuffer { cols: 1, values: vec![1.0, -1.0] };
    let mut out = Routing::default();
    Reference.encoder().route(&router, &x, &mut out).unwrap();
    assert_eq!(out.expert_ids, [2, 3, 0, 1]);
    assert_eq!(out.expert_weights[..2], [0.5, 0.5]);
    assert!((out.expert_weights[2] - 1.0 / (1.0 + (-1f32).exp())).abs() < 1e-6);
    assert_eq!(block_on(Reference.encoder().read_routing(&out)).unwrap(), out);
}

#[test]
fn sizes_that_differ_are_errors() {
    let mut encoder = Reference.encoder();
    let x = buffer(2, 8, 6);
    let mut out = ReferenceBuffer::new(0, 8);
    assert!(encoder.rms_norm(&x, &vec![1.0; 7], 1e-6, Write::Set, &mut out).is_err());
    assert!(encoder.gather_rows(&x, &[2], &mut out).is_err());
    assert!(encoder.write(&[0.0; 9], &mut out).is_err());
    let matrix = MatrixWeights::Float(FloatMatrix::from_f32(3, 7, &[0.0; 21]).unwrap());
    let matrix = ReferenceMatrix::new(matrix, ActivationMode::Float);
    let weights = Linear::<Reference>::new(matrix, None);
    assert!(
        encoder
            .matmul(std::slice::from_ref(&weights), &[Level::L8; 2], &x, Write::Add, &mut out)
            .is_err()
    );
}
