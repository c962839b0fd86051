//! MXFP4 weights in the nested code: exact at level 4, and the best of their prefixes below.
#![expect(clippy::unwrap_used, reason = "tests")]

use nestling_formats::nested::{
    GROUP, Layout, MXFP4_VALUES, Mxfp4Fitter, Mxfp4Rows, NestedCodec, NestedError, NestedPlanes,
    NestedView, QuantizeOptions, QuantizedMatrix, ScaleSteps, pack_plane, plane_bytes,
    quantize_matrix, quantize_mxfp4,
};
use nestling_formats::{Level, Plane};

/// Elements and exponents that repeat after a long while; `exponents` are what a block may have.
fn sample(rows: usize, cols: usize, exponents: &[u8]) -> (Vec<u8>, Vec<u8>) {
    let mut state = 7u64;
    let mut next = move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963);
        (state >> 33) as usize
    };
    let elements = (0..rows * cols).map(|_| (next() % 16) as u8).collect();
    let blocks = rows * cols / GROUP;
    (elements, (0..blocks).map(|_| exponents[next() % exponents.len()]).collect())
}

fn fit(weights: &Mxfp4Rows<'_>, tables: usize) -> NestedCodec {
    let mut options = QuantizeOptions::default();
    options.tables = tables;
    let mut fitter = Mxfp4Fitter::new(&options);
    fitter.add(weights, None).unwrap();
    let codec = fitter.finish().unwrap();
    codec.check().unwrap();
    assert_eq!(NestedCodec::from_bytes(&codec.to_bytes()).unwrap(), codec);
    codec
}

/// The weights as a reader of the planes up to P4 sees them.
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

fn quantize(weights: &Mxfp4Rows<'_>, codec: &NestedCodec) -> Result<QuantizedMatrix, NestedError> {
    quantize_mxfp4(weights, codec, &QuantizeOptions::default())
}

/// Bits, with one zero.
fn bits(weights: &[f32]) -> Vec<u32> {
    weights.iter().map(|weight| (weight + 0.0).to_bits()).collect()
}

#[test]
fn level_4_is_the_mxfp4_weight_to_the_bit() {
    for (rows, cols, exponents) in [
        (16, 32, (112..=142).collect::<Vec<u8>>()), // the most octaves and the largest scale
        (17, 96, (73..=103).collect()),             // the least scale
        (40, 2880, (110..=126).collect()),
        (1, 64, vec![127]),
    ] {
        let (elements, exponents) = sample(rows, cols, &exponents);
        let weights = Mxfp4Rows { elements: &elements, exponents: &exponents, rows, cols };
        let mut truth = vec![0.0; rows * cols];
        weights.dequantize(&mut truth).unwrap();
        for tables in [1, 5] {
            let codec = fit(&weights, tables);
            assert_eq!((codec.tables.len(), codec.steps), (tables, ScaleSteps::Octaves));
            let matrix = quantize(&weights, &codec).unwrap();
            assert_eq!(bits(&decode(&matrix, &codec, Level::L4)), bits(&truth), "{rows} x {cols}");
        }
    }
}

#[test]
fn dequantized_blocks_are_values_times_powers_of_two() {
    let elements: Vec<u8> = (0..64).map(|at| at % 16).collect();
    for exponent in [0u8, 1, 100, 127, 200, 252] {
        let exponents = [exponent; 2];
        let weights = Mxfp4Rows { elements: &elements, exponents: &exponents, rows: 2, cols: 32 };
        let mut out = [0.0f32; 64];
        weights.dequantize(&mut out).unwrap();
        for (weight, element) in out.iter().zip(&elements) {
            let value = f64::from(MXFP4_VALUES[usize::from(*element)]);
            let expected = value * 2f64.powi(i32::from(exponent) - 127);
            assert_eq!(f64::from(*weight), expected, "element {element} exponent {exponent}");
        }
    }
}

#[test]
fn shorter_prefixes_have_their_centroids_and_more_bits_less_error() {
    let (rows, cols) = (64, 320);
    let (elements, exponents) = sample(rows, cols, &[118, 119, 120]);
    let weights = Mxfp4Rows { elements: &elements, exponents: &exponents, rows, cols };
    let mut truth = vec![0.0; rows * cols];
    weights.dequantize(&mut truth).unwrap();
    let energy: f64 = truth.iter().map(|weight| f64::from(*weight).powi(2)).sum();
    let error = |tables| {
        let codec = fit(&weights, tables);
        let matrix = quantize(&weights, &codec).unwrap();
        [Level::L2, Level::L3].map(|level| {
            let decoded = decode(&matrix, &codec, level);
            let errors = decoded.iter().zip(&truth).map(|(a, b)| f64::from(a - b).powi(2));
            errors.sum::<f64>() / energy
        })
    };
    let (one, four) = (error(1), error(4));
    assert!(one[0] < 0.15 && one[1] < 0.04 && one[1] < one[0], "{one:?}");
    assert!(four[0] <= one[0] && four[1] <= one[1] * 1.01, "{four:?} {one:?}");
}

#[test]
fn blocks_far_below_their_row_become_zero() {
    let elements = [7u8; 96];
    let exponents = [120, 90, 89];
    let weights = Mxfp4Rows { elements: &elements, exponents: &exponents, rows: 1, cols: 96 };
    let codec = fit(&weights, 1);
    let matrix = quantize(&weights, &codec).unwrap();
    let decoded = decode(&matrix, &codec, Level::L4);
    assert_eq!(decoded[32], 6.0 * 2f32.powi(90 - 127));
    assert_eq!(decoded[64..], [0.0; 32]);
}

#[test]
fn what_is_no_mxfp4_matrix_is_refused() {
    let (elements, exponents) = ([1u8; 64], [127u8; 2]);
    let good = Mxfp4Rows { elements: &elements, exponents: &exponents, rows: 1, cols: 64 };
    let codec = fit(&good, 1);
    let shape = Mxfp4Rows { rows: 4, cols: 16, ..good };
    assert_eq!(quantize(&shape, &codec), Err(NestedError::Shape { rows: 4, cols: 16 }));
    let short = Mxfp4Rows { exponents: &exponents[..1], ..good };
    assert!(matches!(quantize(&short, &codec), Err(NestedError::Length { .. })));
    let nan = Mxfp4Rows { exponents: &[127, 255], ..good };
    assert!(matches!(quantize(&nan, &codec), Err(NestedError::NotFinite { col: 32, .. })));
    let large = Mxfp4Rows { exponents: &[143, 1], ..good };
    assert!(matches!(quantize(&large, &codec), Err(NestedError::RowTooLarge { row: 0, .. })));
    let eighths = NestedCodec { steps: ScaleSteps::Eighths, ..codec.clone() };
    assert!(matches!(quantize(&good, &eighths), Err(NestedError::Codec { .. })));
    let searched = quantize_matrix(&[1.0; 64], 1, 64, &codec, None, &QuantizeOptions::default());
    assert!(matches!(searched, Err(NestedError::Codec { .. })));
}
