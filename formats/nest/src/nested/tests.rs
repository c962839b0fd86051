use half::f16;
use proptest::prelude::*;

use super::*;
use crate::{Level, Plane};

const LAYOUTS: [Layout; 2] = [Layout::Tile16, Layout::RowMajor];

struct PackedMatrix {
    layout: Layout,
    rows: usize,
    cols: usize,
    planes: Vec<Vec<u8>>,
    merged: Vec<u8>,
}

impl PackedMatrix {
    fn new(matrix: &QuantizedMatrix, layout: Layout) -> Self {
        let (rows, cols) = (matrix.rows, matrix.cols);
        let pack = |plane| {
            // Filled with a nonzero byte, so that unwritten bytes are detected.
            let mut out = vec![0xa5; plane_bytes(layout, rows, cols, plane).unwrap()];
            pack_plane(matrix, layout, plane, &mut out).unwrap();
            out
        };
        let planes: Vec<Vec<u8>> = Plane::ALL.into_iter().map(pack).collect();
        let mut merged = vec![0xa5; merged_bytes(layout, rows, cols).unwrap()];
        merge_p3_p4(layout, &planes[1], &planes[2], &mut merged).unwrap();
        Self { layout, rows, cols, planes, merged }
    }

    fn prefix(&self, level: Level) -> NestedPlanes<'_> {
        let get = |index: usize| (index <= level.index()).then(|| self.planes[index].as_slice());
        NestedPlanes {
            p2: &self.planes[0],
            p3: get(1),
            p4: get(2),
            p34: None,
            p6: get(3),
            p8: get(4),
        }
    }

    fn merged(&self, level: Level) -> NestedPlanes<'_> {
        let planes = self.prefix(level);
        NestedPlanes { p3: None, p4: None, p34: Some(&self.merged), ..planes }
    }

    fn view<'a>(&'a self, codec: &'a NestedCodec, planes: NestedPlanes<'a>) -> NestedView<'a> {
        let view = NestedView::new(self.rows, self.cols, self.layout, codec, planes).unwrap();
        view.check().unwrap();
        view
    }
}

/// Decodes all weights at a level, `[rows, cols]`.
fn weights_of(view: &NestedView<'_>, level: Level) -> Vec<f32> {
    let mut weights = vec![0.0; view.rows() * view.cols()];
    for (row, out) in weights.chunks_exact_mut(view.cols()).enumerate() {
        view.dequantize_row(level, row, out).unwrap();
    }
    weights
}

fn codec_of(weights: &[f32], rows: usize, cols: usize) -> NestedCodec {
    let mut fitter = CodecFitter::new(&QuantizeOptions::default());
    fitter.add(weights, rows, cols, None).unwrap();
    fitter.finish().unwrap()
}

fn quantized(weights: &[f32], rows: usize, cols: usize, codec: &NestedCodec) -> QuantizedMatrix {
    quantize_matrix(weights, rows, cols, codec, None, &QuantizeOptions::default()).unwrap()
}

/// Returns pseudo-random numbers, each a sum of six uniform ones: close to Gaussian, and the same on all
/// machines.
fn bell(seed: u64, count: usize) -> Vec<f32> {
    let mut state = seed;
    let mut uniform = || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1u64 << 24) as f32 - 0.5
    };
    (0..count).map(|_| (0..6).map(|_| uniform()).sum()).collect()
}

fn squared_error(a: &[f32], b: &[f32]) -> f64 {
    a.iter().zip(b).map(|(a, b)| (f64::from(*a) - f64::from(*b)).powi(2)).sum()
}

/// Generates arbitrary codes and scales, with a codec of several tables.
fn any_matrix() -> impl Strategy<Value = (QuantizedMatrix, NestedCodec)> {
    let shape = (1usize..40, 1usize..100, 1usize..=16);
    shape.prop_flat_map(|(rows, cols, tables)| {
        let (tiles, groups) = (rows.div_ceil(TILE_ROWS), cols.div_ceil(GROUP));
        let padded = tiles * TILE_ROWS;
        let bytes = prop::collection::vec(any::<u8>(), padded * groups * GROUP);
        let steps = prop::collection::vec(0u8..32, padded * groups);
        let scales = prop::collection::vec(0u16..0x7c00, padded);
        let names = prop::collection::vec(0..u8::try_from(tables).unwrap(), tiles);
        let entries = prop::collection::vec(any_tables(), tables);
        let codec = (1u16..=16384, 16u8..=32, entries, any::<bool>());
        (bytes, steps, scales, names, codec).prop_map(
            move |(codes, steps, mut scales, tile_tables, (alpha_a, beta_q, tables, rotated))| {
                let spacing = if rotated { ScaleSteps::Octaves } else { ScaleSteps::Eighths };
                let inputs = if rotated { InputTransform::Hadamard } else { InputTransform::None };
                scales[rows..].fill(0);
                let row_scales = scales.into_iter().map(f16::from_bits).collect();
                let alpha_b = 32768 - 2 * alpha_a;
                (
                    QuantizedMatrix { rows, cols, codes, row_scales, steps, tile_tables },
                    NestedCodec { alpha_a, alpha_b, beta_q, tables, inputs, steps: spacing },
                )
            },
        )
    })
}

fn any_tables() -> impl Strategy<Value = NestedTables> {
    (
        prop::array::uniform4(-127i8..=127),
        prop::array::uniform8(-127i8..=127),
        prop::array::uniform16(-127i8..=127),
    )
        .prop_map(|(t2, t3, t4)| NestedTables { t2, t3, t4 })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Codes, scales, steps and tables are recovered from either layout. Each level decodes from its own
    /// planes, with P3 and P4 apart or merged, row by row or tile by tile.
    #[test]
    fn every_prefix_decodes_from_its_own_planes((matrix, codec) in any_matrix()) {
        let groups = matrix.cols.div_ceil(GROUP);
        for layout in LAYOUTS {
            let packed = PackedMatrix::new(&matrix, layout);
            for level in Level::ALL {
                let mut choices = vec![packed.prefix(level)];
                if level >= Level::L4 {
                    choices.push(packed.merged(level));
                }
                for planes in choices {
                    let view = packed.view(&codec, planes);
                    prop_assert_eq!(view.level(), level);
                    let mut codes = vec![0; matrix.cols];
                    let mut weights = vec![0.0; matrix.cols];
                    for row in 0..matrix.rows {
                        view.unpack_row_codes(level, row, &mut codes).unwrap();
                        view.dequantize_row(level, row, &mut weights).unwrap();
                        let table = matrix.tile_tables[row / TILE_ROWS];
                        for col in 0..matrix.cols {
                            let cell = row * groups + col / GROUP;
                            let code = matrix.codes[cell * GROUP + col % GROUP];
                            prop_assert_eq!(codes[col], code & !0 << (8 - level.bits()));
                            let k = usize::from(matrix.steps[cell]);
                            let (step, low) = match codec.steps {
                                ScaleSteps::Eighths => (STEPS[k], 1.0 / 127.0),
                                ScaleSteps::Octaves if k == 31 => (0.0, 1.0 / 16.0),
                                ScaleSteps::Octaves => (0.5f32.powi(k as i32), 1.0 / 16.0),
                            };
                            let unit = if level <= Level::L4 { low } else { 1.0 / 8192.0 };
                            let scale = matrix.row_scales[row].to_f32() * unit * step;
                            let value = f32::from(codec.value(level, table, code));
                            prop_assert_eq!(weights[col].to_bits(), (scale * value).to_bits());
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn tiles_and_rows_agree((matrix, codec) in any_matrix()) {
        for layout in LAYOUTS {
            let packed = PackedMatrix::new(&matrix, layout);
            let view = packed.view(&codec, packed.prefix(Level::L8));
            for level in Level::ALL {
                let weights = weights_of(&view, level);
                for tile in 0..view.tiles() {
                    for group in 0..view.groups() {
                        let mut values = [0; TILE_ROWS * GROUP];
                        view.decode_group_values(level, tile, group, &mut values).unwrap();
                        let scales = view.group_scales(level, tile, group).scales[0];
                        for (index, value) in values.into_iter().enumerate() {
                            let row = tile * TILE_ROWS + index / GROUP;
                            let col = group * GROUP + index % GROUP;
                            let weight = scales[index / GROUP] * f32::from(value);
                            if row < matrix.rows && col < matrix.cols {
                                let expected = weights[row * matrix.cols + col];
                                prop_assert_eq!(weight.to_bits(), expected.to_bits());
                            } else if row >= matrix.rows {
                                prop_assert_eq!(weight, 0.0);
                            }
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn values_split_into_two_digits(
        alpha_a in 1u16..=16384,
        beta_q in 16u8..=32,
        tables in any_tables(),
    ) {
        let tables = vec![tables];
        let codec = NestedCodec { alpha_a, alpha_b: 32768 - 2 * alpha_a, beta_q, tables, inputs: InputTransform::None, steps: ScaleSteps::Eighths };
        codec.check().unwrap();
        for level in Level::ALL {
            for code in 0..=255 {
                let value = codec.value(level, 0, code);
                prop_assert!(value.abs() <= VALUE_LIMIT);
                let high = (value + 64) >> 7;
                let low = value - 128 * high;
                prop_assert!(i8::try_from(high).is_ok() && i8::try_from(low).is_ok());
            }
        }
    }

    #[test]
    fn codecs_come_back_from_bytes((_, codec) in any_matrix()) {
        let bytes = codec.to_bytes();
        prop_assert_eq!(bytes.len(), NestedCodec::encoded_bytes(codec.tables.len()));
        prop_assert_eq!(NestedCodec::from_bytes(&bytes).unwrap(), codec);
        for cut in 0..bytes.len() {
            prop_assert!(NestedCodec::from_bytes(&bytes[..cut]).is_err());
        }
    }

    /// Arbitrary bytes decode to a codec or a typed error; the codec encodes to the same bytes.
    #[test]
    fn any_bytes_are_a_codec_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
        if let Ok(codec) = NestedCodec::from_bytes(&bytes) {
            prop_assert_eq!(codec.to_bytes(), bytes);
        }
    }

    /// Reading planes of arbitrary bytes does not panic, whether they are checked or not.
    #[test]
    fn any_planes_read_without_panic(
        rows in 1usize..20,
        cols in 1usize..40,
        seed in any::<u64>(),
    ) {
        let codec = codec_of(&bell(1, 64 * 16), 16, 64);
        for layout in LAYOUTS {
            let mut byte = seed;
            let planes: Vec<Vec<u8>> = Plane::ALL
                .into_iter()
                .map(|plane| {
                    let mut bytes = vec![0; plane_bytes(layout, rows, cols, plane).unwrap()];
                    for out in &mut bytes {
                        byte = byte.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                        *out = byte.to_le_bytes()[7];
                    }
                    bytes
                })
                .collect();
            let planes = NestedPlanes {
                p2: &planes[0],
                p3: Some(&planes[1]),
                p4: Some(&planes[2]),
                p34: None,
                p6: Some(&planes[3]),
                p8: Some(&planes[4]),
            };
            let view = NestedView::new(rows, cols, layout, &codec, planes).unwrap();
            let _ = view.check();
            for level in Level::ALL {
                prop_assert_eq!(weights_of(&view, level).len(), rows * cols);
            }
        }
    }

    /// The error falls with each plane, on matrices of any size and scale, and is bounded by the widest cell.
    #[test]
    fn error_falls_with_each_plane(
        rows in 16usize..50,
        cols in 24usize..150,
        exponent in -8i32..8,
        seed in any::<u64>(),
    ) {
        let scale = 2.0f32.powi(exponent);
        let weights: Vec<f32> = bell(seed, rows * cols).iter().map(|w| w * scale).collect();
        let codec = codec_of(&weights, rows, cols);
        let matrix = quantized(&weights, rows, cols, &codec);
        let packed = PackedMatrix::new(&matrix, Layout::Tile16);
        let energy = squared_error(&weights, &vec![0.0; weights.len()]);
        let mut last = energy;
        for level in Level::ALL {
            let view = packed.view(&codec, packed.prefix(level));
            let error = squared_error(&weights, &weights_of(&view, level));
            prop_assert!(error < last, "level {}: {} after {}", level, error, last);
            last = error;
        }
        // Bound: uniform rounding of a group's range to 128 cells per side with peak over rms at most 6 gives
        // 36 / (3 * 256^2) of the energy. The code's cells are less than twice as wide.
        prop_assert!(last < energy * 4.0 * 36.0 / (3.0 * 65536.0));
    }

    #[test]
    fn zero_rows_and_groups_stay_zero(
        rows in 1usize..40,
        groups in 1usize..4,
        zero_row in 0usize..40,
        zero_group in 0usize..4,
        seed in any::<u64>(),
    ) {
        let cols = groups * GROUP;
        let codec = codec_of(&bell(3, 64 * 64), 64, 64);
        let mut weights = bell(seed, rows * cols);
        let full = quantized(&weights, rows, cols, &codec);
        let (zero_row, zero_group) = (zero_row % rows, zero_group % groups);
        weights[zero_row * cols..][..cols].fill(0.0);
        let matrix = quantized(&weights, rows, cols, &codec);
        prop_assert_eq!(matrix.row_scales[zero_row], f16::ZERO);
        for row in (0..rows).filter(|row| *row != zero_row) {
            prop_assert_eq!(matrix.row_scales[row], full.row_scales[row]);
            prop_assert_eq!(&matrix.codes[row * cols..][..cols], &full.codes[row * cols..][..cols]);
        }
        for row in weights.chunks_exact_mut(cols) {
            row[zero_group * GROUP..][..GROUP].fill(0.0);
        }
        let matrix = quantized(&weights, rows, cols, &codec);
        let packed = PackedMatrix::new(&matrix, Layout::Tile16);
        let view = packed.view(&codec, packed.prefix(Level::L8));
        for level in Level::ALL {
            for (index, decoded) in weights_of(&view, level).into_iter().enumerate() {
                if weights[index] == 0.0 && index / cols == zero_row
                    || index % cols / GROUP == zero_group
                {
                    prop_assert_eq!(decoded, 0.0);
                }
            }
        }
    }

    #[test]
    fn weights_that_are_not_finite_are_named(
        rows in 1usize..20,
        cols in 1usize..50,
        at in any::<prop::sample::Index>(),
        value in prop::sample::select(vec![f32::NAN, f32::INFINITY, f32::NEG_INFINITY]),
    ) {
        let mut weights = bell(5, rows * cols);
        let at = at.index(weights.len());
        weights[at..].fill(value);
        let codec = fit::initial_codec(9830);
        let options = QuantizeOptions::default();
        let found = quantize_matrix(&weights, rows, cols, &codec, None, &options);
        let Err(NestedError::NotFinite { row, col, .. }) = found else {
            return Err(TestCaseError::fail(format!("{found:?}")));
        };
        prop_assert_eq!((row, col), (at / cols, at % cols));
        prop_assert!(CodecFitter::new(&options).add(&weights, rows, cols, None).is_err());
    }
}

/// Expected values were computed by an independent implementation of the formula in FORMAT.md.
#[test]
fn formula_values() {
    for (code, level, alpha_a, beta_q, expected) in [
        (255, Level::L8, 9830, 16, 8147),
        (0, Level::L8, 9830, 16, -8147),
        (128, Level::L8, 9830, 16, 19),
        (128, Level::L6, 9830, 16, 78),
        (0xb6, Level::L8, 9830, 16, 2687),
        (0xb6, Level::L6, 9830, 16, 2657),
        (0x31, Level::L8, 16384, 16, -5024),
        (255, Level::L8, 1, 32, 9113),
        (0x4d, Level::L8, 12000, 24, -2543),
    ] {
        let codec = NestedCodec { beta_q, ..fit::initial_codec(alpha_a) };
        assert_eq!(codec.value(level, 0, code), expected, "code {code} level {level}");
    }
}

/// The position of each bit matches FORMAT.md, for one weight of a matrix of 2 tiles and 2 groups.
#[test]
fn bits_lie_where_the_format_says() {
    let (rows, cols) = (32, 64);
    let mut matrix = QuantizedMatrix {
        rows,
        cols,
        codes: vec![0; rows * cols],
        row_scales: vec![f16::ONE; rows],
        steps: vec![0; rows * 2],
        tile_tables: vec![0, 1],
    };
    // Row 19 is row 3 of tile 1; column 57 is k = 25 of group 1: chunk 6, column 1 of 4.
    // P2 = 10, P3 = 1, P4 = 1, P6 = 01, P8 = 11.
    matrix.codes[19 * cols + 57] = 0b1011_0111;
    matrix.steps[19 * 2 + 1] = 0b1_0110;
    let bytes = |layout, plane| {
        let mut out = vec![0; plane_bytes(layout, rows, cols, plane).unwrap()];
        pack_plane(&matrix, layout, plane, &mut out).unwrap();
        out
    };
    let only = |bytes: &[u8]| -> Vec<(usize, u8)> {
        bytes.iter().copied().enumerate().filter(|(_, byte)| *byte != 0).collect()
    };
    let cell = 3; // tile 1, group 1
    let lane = 3 * 4 + 1;
    let p2 = bytes(Layout::Tile16, Plane::P2);
    // Scales start at 0 (64 bytes), tables at 64, steps at 128 (32 bytes), high bits at 192, codes at 256.
    assert_eq!(p2.len(), 256 + 4 * 128);
    assert_eq!(only(&p2[64..128]), [(1, 1)]);
    assert_eq!(only(&p2[128..192]), [(cell * 8 + 3, 0b0110)]);
    assert_eq!(only(&p2[192..256]), [(cell * 2, 1 << 3)]);
    assert_eq!(only(&p2[256..]), [((cell * 2 + 1) * 64 + lane, 0b10 << 4)]);
    assert_eq!(only(&bytes(Layout::Tile16, Plane::P3)), [(cell * 64 + lane, 1 << 6)]);
    assert_eq!(only(&bytes(Layout::Tile16, Plane::P4)), [(cell * 64 + lane, 1 << 6)]);
    assert_eq!(only(&bytes(Layout::Tile16, Plane::P6)), [((cell * 2 + 1) * 64 + lane, 1 << 4)]);
    assert_eq!(only(&bytes(Layout::Tile16, Plane::P8)), [((cell * 2 + 1) * 64 + lane, 3 << 4)]);
    let p2 = bytes(Layout::RowMajor, Plane::P2);
    assert_eq!(p2.len(), 192 + rows * cols / 4);
    assert_eq!(only(&p2[64..128]), [(1, 1)]);
    assert_eq!(only(&p2[128..192]), [(19 * 2 + 1, 0b1_0110)]);
    assert_eq!(only(&p2[192..]), [((19 * cols + 57) / 4, 0b10 << 2)]);
    assert_eq!(only(&bytes(Layout::RowMajor, Plane::P3)), [((19 * cols + 57) / 8, 1 << 1)]);
    assert_eq!(only(&bytes(Layout::RowMajor, Plane::P6)), [((19 * cols + 57) / 4, 1 << 2)]);
}

#[test]
fn steps_are_eighths_of_octaves() {
    for (k, step) in STEPS.into_iter().enumerate().take(31) {
        let exact = (-(k as f64) / 8.0).exp2();
        assert!((f64::from(step) - exact).abs() <= exact * f64::from(f32::EPSILON) / 2.0, "{k}");
        assert_eq!(step, STEPS[k % 8] * 0.5f32.powi(i32::try_from(k / 8).unwrap()));
    }
    assert_eq!(STEPS[31], 0.0);
}

/// Wrong sizes and contents give errors that state the expected value.
#[test]
fn wrong_sizes_are_errors() {
    let codec = fit::initial_codec(9830);
    let options = QuantizeOptions::default();
    let weights = bell(9, 20 * 40);
    let quantize = |rows, cols, importance| {
        quantize_matrix(&weights, rows, cols, &codec, importance, &options)
    };
    assert!(matches!(quantize(20, 41, None), Err(NestedError::Length { expected: 820, .. })));
    assert!(matches!(quantize(0, 40, None), Err(NestedError::Shape { .. })));
    assert!(matches!(quantize(usize::MAX, 2, None), Err(NestedError::Shape { .. })));
    let short = [1.0; 39];
    assert!(matches!(quantize(20, 40, Some(&short)), Err(NestedError::Length { .. })));
    let mut importance = [1.0; 40];
    importance[7] = -1.0;
    let found = quantize(20, 40, Some(&importance));
    assert_eq!(found, Err(NestedError::Importance { col: 7, value: -1.0 }));
    for level_weights in [[0.0; 5], [1.0, -1.0, 1.0, 1.0, 1.0], [f32::NAN; 5]] {
        let options = QuantizeOptions { level_weights, ..QuantizeOptions::default() };
        let found = quantize_matrix(&weights, 20, 40, &codec, None, &options);
        assert!(matches!(found, Err(NestedError::LevelWeights { .. })));
    }
    let matrix = quantize(20, 40, None).unwrap();
    let mut out = vec![0; 1];
    let found = pack_plane(&matrix, Layout::Tile16, Plane::P3, &mut out);
    assert_eq!(found, Err(NestedError::PlaneLength { plane: Plane::P3, expected: 256, found: 1 }));
    let packed = PackedMatrix::new(&matrix, Layout::Tile16);
    let planes = NestedPlanes { p6: Some(&[0; 3]), ..packed.prefix(Level::L4) };
    let found = NestedView::new(20, 40, Layout::Tile16, &codec, planes);
    assert!(matches!(found, Err(NestedError::PlaneLength { plane: Plane::P6, .. })));
    let view = packed.view(&codec, packed.prefix(Level::L4));
    let missing = NestedError::LevelMissing { wanted: Level::L6, present: Level::L4 };
    assert_eq!(view.dequantize_row(Level::L6, 0, &mut [0.0; 40]), Err(missing));
    assert!(view.dequantize_row(Level::L4, 20, &mut [0.0; 40]).is_err());
    assert!(view.dequantize_row(Level::L4, 0, &mut [0.0; 41]).is_err());
    assert!(plane_bytes(Layout::Tile16, usize::MAX, 32, Plane::P2).is_none());
    assert!(plane_bytes(Layout::RowMajor, usize::MAX / 32, 32, Plane::P2).is_none());
}

#[test]
fn bad_contents_are_errors() {
    let codec = fit::initial_codec(9830);
    let matrix = quantized(&bell(9, 20 * 40), 20, 40, &codec);
    let broken = |layout, at: usize, byte: u8| {
        let mut packed = PackedMatrix::new(&matrix, layout);
        packed.planes[0][at] = byte;
        let planes = packed.prefix(Level::L2);
        NestedView::new(20, 40, layout, &codec, planes).unwrap().check()
    };
    let tables = base_parts(Layout::Tile16, 20, 40).unwrap().tile_tables;
    let found = broken(Layout::Tile16, tables.start + 1, 1);
    assert_eq!(found, Err(NestedError::TableIndex { tile: 1, table: 1, tables: 1 }));
    assert!(matches!(broken(Layout::Tile16, 5, 0xff), Err(NestedError::RowScale { row: 2, .. })));
    let steps = base_parts(Layout::RowMajor, 20, 40).unwrap().steps;
    let found = broken(Layout::RowMajor, steps.start + 7, 32);
    assert_eq!(found, Err(NestedError::Step { row: 3, group: 1, step: 32 }));
}

#[test]
fn extreme_rows() {
    let codec = codec_of(&bell(3, 64 * 64), 64, 64);
    let shape = bell(4, 32);
    let peak = shape.iter().fold(0.0f32, |peak, w| peak.max(w.abs()));
    for target in [65504.0f32, 1.0, 1e-4, 6e-7] {
        let weights: Vec<f32> = shape.iter().map(|w| w / peak * target).collect();
        let matrix = quantized(&weights, 1, 32, &codec);
        let packed = PackedMatrix::new(&matrix, Layout::RowMajor);
        let view = packed.view(&codec, packed.prefix(Level::L8));
        let error = squared_error(&weights, &weights_of(&view, Level::L8));
        assert!(error < squared_error(&weights, &[0.0; 32]) * 1e-3, "{target}");
    }
    let options = QuantizeOptions::default();
    let found = quantize_matrix(&[65536.0; 32], 1, 32, &codec, None, &options);
    assert_eq!(found, Err(NestedError::RowTooLarge { row: 0, magnitude: 65536.0 }));
}

#[test]
fn importance_moves_the_error() {
    let (rows, cols) = (64, 64);
    let weights = bell(11, rows * cols);
    let importance: Vec<f32> = (0..cols).map(|col| if col % 4 == 0 { 50.0 } else { 1.0 }).collect();
    let options =
        QuantizeOptions { level_weights: [1.0, 0.0, 0.0, 0.0, 0.0], ..QuantizeOptions::default() };
    let error = |given: Option<&[f32]>| {
        let mut fitter = CodecFitter::new(&options);
        fitter.add(&weights, rows, cols, given).unwrap();
        let codec = fitter.finish().unwrap();
        let matrix = quantize_matrix(&weights, rows, cols, &codec, given, &options).unwrap();
        let packed = PackedMatrix::new(&matrix, Layout::Tile16);
        let view = packed.view(&codec, packed.prefix(Level::L2));
        let decoded = weights_of(&view, Level::L2);
        let pairs = weights.iter().zip(&decoded).enumerate();
        pairs.map(|(at, (w, d))| f64::from(importance[at % cols] * (w - d) * (w - d))).sum::<f64>()
    };
    assert!(error(Some(&importance)) < error(None));
}

#[test]
fn fitters_join() {
    let options = QuantizeOptions::default();
    let (first, second) = (bell(1, 64 * 64), bell(2, 64 * 64));
    let mut whole = CodecFitter::new(&options);
    whole.add(&first, 64, 64, None).unwrap();
    whole.add(&second, 64, 64, None).unwrap();
    let mut left = CodecFitter::new(&options);
    left.add(&first, 64, 64, None).unwrap();
    let mut right = CodecFitter::new(&options);
    right.add(&second, 64, 64, None).unwrap();
    left.absorb(right);
    assert_eq!(left.finish(), whole.finish());
    assert_eq!(CodecFitter::new(&options).finish().unwrap().tables.len(), 1);
}
