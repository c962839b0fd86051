//! MXFP4 weights in the nested code: exact at level 4, with optimal prefixes below.
#![expect(clippy::unwrap_used, reason = "tests")]

use nestling_formats::nested::{
    GROUP, Layout, Mxfp4Fitter, NestedCodec, NestedError, NestedPlanes, NestedView,
    QuantizeOptions, QuantizedMatrix, ScaleSteps, decode_mxfp4, pack_plane, plane_bytes,
    quantize_matrix, quantize_mxfp4,
};
use nestling_formats::{Level, Plane};

/// Values of the sixteen E2M1 elements.
const VALUES: [f32; 16] =
    [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0];

/// Returns blocks of random elements with scales drawn from `scales`.
fn sample(rows: usize, cols: usize, scales: &[u8]) -> Vec<f32> {
    let mut state = 7u64;
    let mut next = move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963);
        (state >> 33) as usize
    };
    let mut weights = vec![0.0; rows * cols];
    for out in weights.as_chunks_mut::<GROUP>().0 {
        let block = std::array::from_fn(|_| (next() % 256) as u8);
        decode_mxfp4(&block, scales[next() % scales.len()], out);
    }
    weights
}

fn fit(weights: &[f32], rows: usize, cols: usize, tables: usize) -> NestedCodec {
    let mut options = QuantizeOptions::default();
    options.tables = tables;
    let mut fitter = Mxfp4Fitter::new(&options);
    fitter.add(weights, rows, cols, None).unwrap();
    let codec = fitter.finish().unwrap();
    codec.check().unwrap();
    assert_eq!(NestedCodec::from_bytes(&codec.to_bytes()).unwrap(), codec);
    codec
}

/// Decodes the weights from the planes up to P4.
fn decode(matrix: &QuantizedMatrix, codec: &NestedCodec, level: Level) -> Vec<f32> {
    let (rows, cols) = (matrix.rows, matrix.cols);
    let plane = |plane| {
        let mut out = vec![0; plane_bytes(Layout::Tile16, rows, cols, plane).unwrap()];
        pack_plane(matrix, Layout::Tile16, plane, &mut out).unwrap();
        out
    };
    let [p2, p3, p4] = [Plane::P2, Plane::P3, Plane::P4].map(plane);
    let planes = NestedPlanes { p2: &p2, p3: Some(&p3), p4: Some(&p4), ..Default::default() };
    let view = NestedView::new(rows, cols, Layout::Tile16, codec, planes).unwrap();
    view.check().unwrap();
    let mut out = vec![0.0; rows * cols];
    for (row, out) in out.chunks_exact_mut(cols).enumerate() {
        view.dequantize_row(level, row, out).unwrap();
    }
    out
}

fn quantize(
    weights: &[f32],
    (rows, cols): (usize, usize),
    codec: &NestedCodec,
) -> Result<QuantizedMatrix, NestedError> {
    quantize_mxfp4(weights, rows, cols, codec, &QuantizeOptions::default())
}

/// Returns the bit patterns, with negative zero normalized.
fn bits(weights: &[f32]) -> Vec<u32> {
    weights.iter().map(|weight| (weight + 0.0).to_bits()).collect()
}

#[test]
fn level_4_is_the_mxfp4_weight_to_the_bit() {
    for (rows, cols, scales) in [
        (16, 32, (112..=140).collect::<Vec<u8>>()), // maximum octaves, large scales
        (17, 96, (76..=103).collect()),             // smallest scales
        (40, 2880, (110..=126).collect()),
        (1, 64, vec![127]),
    ] {
        let weights = sample(rows, cols, &scales);
        for tables in [1, 5] {
            let codec = fit(&weights, rows, cols, tables);
            assert_eq!((codec.tables.len(), codec.steps), (tables, ScaleSteps::Octaves));
            let matrix = quantize(&weights, (rows, cols), &codec).unwrap();
            let decoded = decode(&matrix, &codec, Level::L4);
            assert_eq!(bits(&decoded), bits(&weights), "{rows} x {cols}");
        }
    }
}

#[test]
fn every_set_of_elements_has_an_exponent() {
    // Blocks limited to each magnitude; the source's exponent is then not the smallest.
    for largest in VALUES[..8].iter().copied() {
        let weights: Vec<f32> = (0..GROUP).map(|at| VALUES[at % 16]).collect();
        let within = |weight: &f32| weight.abs() <= largest;
        let weights: Vec<f32> = weights.iter().map(|w| if within(w) { *w } else { 0.0 }).collect();
        let codec = fit(&weights, 1, GROUP, 1);
        let matrix = quantize(&weights, (1, GROUP), &codec).unwrap();
        assert_eq!(bits(&decode(&matrix, &codec, Level::L4)), bits(&weights), "{largest}");
    }
}

#[test]
fn blocks_are_values_times_powers_of_two() {
    let block = std::array::from_fn(|at| (2 * (at % 8) + 16 * (2 * (at % 8) + 1)) as u8);
    for scale in [0u8, 1, 100, 127, 200, 252] {
        let mut out = [0.0f32; GROUP];
        decode_mxfp4(&block, scale, &mut out);
        for (at, weight) in out.iter().enumerate() {
            let expected = f64::from(VALUES[at % 16]) * 2f64.powi(i32::from(scale) - 127);
            assert_eq!(f64::from(*weight), expected, "element {at} scale {scale}");
        }
    }
    let mut out = [0.0f32; GROUP];
    decode_mxfp4(&block, 255, &mut out);
    assert!(out.iter().all(|weight| weight.is_nan()));
}

#[test]
fn shorter_prefixes_have_their_centroids_and_more_bits_less_error() {
    let (rows, cols) = (64, 320);
    let weights = sample(rows, cols, &[118, 119, 120]);
    let energy: f64 = weights.iter().map(|weight| f64::from(*weight).powi(2)).sum();
    let error = |tables| {
        let codec = fit(&weights, rows, cols, tables);
        let matrix = quantize(&weights, (rows, cols), &codec).unwrap();
        [Level::L2, Level::L3].map(|level| {
            let decoded = decode(&matrix, &codec, level);
            let errors = decoded.iter().zip(&weights).map(|(a, b)| f64::from(a - b).powi(2));
            errors.sum::<f64>() / energy
        })
    };
    let (one, four) = (error(1), error(4));
    assert!(one[0] < 0.15 && one[1] < 0.04 && one[1] < one[0], "{one:?}");
    assert!(four[0] <= one[0] && four[1] <= one[1] * 1.01, "{four:?} {one:?}");
}

#[test]
fn blocks_far_below_their_row_become_zero() {
    let mut weights = [0.0f32; 96];
    for (out, scale) in weights.as_chunks_mut::<GROUP>().0.iter_mut().zip([120, 90, 89]) {
        decode_mxfp4(&[0x77; 16], scale, out);
    }
    let codec = fit(&weights, 1, 96, 1);
    let matrix = quantize(&weights, (1, 96), &codec).unwrap();
    let decoded = decode(&matrix, &codec, Level::L4);
    assert_eq!(decoded[32], 6.0 * 2f32.powi(90 - 127));
    assert_eq!(decoded[64..], [0.0; 32]);
}

#[test]
fn what_is_no_mxfp4_matrix_is_refused() {
    let good = sample(2, 64, &[127]);
    let codec = fit(&good, 2, 64, 1);
    assert_eq!(quantize(&good, (8, 16), &codec), Err(NestedError::Shape { rows: 8, cols: 16 }));
    let mut other = good.clone();
    other[100] = 0.75;
    let refused = Err(NestedError::NotMxfp4 { row: 1, col: 32 });
    assert_eq!(quantize(&other, (2, 64), &codec), refused);
    let nan = [f32::NAN; 64];
    assert!(matches!(quantize(&nan, (1, 64), &codec), Err(NestedError::NotFinite { .. })));
    let large = [2f32.powi(18); 64];
    assert!(matches!(quantize(&large, (1, 64), &codec), Err(NestedError::RowTooLarge { .. })));
    let eighths = NestedCodec { steps: ScaleSteps::Eighths, ..codec.clone() };
    assert!(matches!(quantize(&good, (2, 64), &eighths), Err(NestedError::Codec { .. })));
    let searched = quantize_matrix(&good, 2, 64, &codec, None, &QuantizeOptions::default());
    assert!(matches!(searched, Err(NestedError::Codec { .. })));
}
