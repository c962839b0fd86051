use nestling_formats::Plane;
use nestling_formats::nested::{
    Layout, NestedCodec, NestedPlanes, NestedTables, QuantizedMatrix, merge_p3_p4, merged_bytes,
    pack_plane, plane_bytes,
};
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng, SeedableRng};

use super::*;
use crate::kernels::Kernels;
use crate::rows::PackedRows;

struct Planes {
    codec: NestedCodec,
    rows: usize,
    cols: usize,
    planes: Vec<Vec<u8>>,
    merged: Vec<u8>,
}

/// A matrix of random codes, scales, steps and tables.
fn random_matrix(rows: usize, cols: usize, seed: u64) -> Planes {
    let mut random = Xoshiro256PlusPlus::seed_from_u64(seed);
    let mut below = move |n: u64| random.next_u64() % n;
    // Half of the tables have multiples of a stride.
    let mut value = |table: i16| match table % 2 {
        0 => (16 / (1 << (table / 2).min(2)) * below(16) as i16 - 126) as i8,
        _ => (below(255) as i16 - 127) as i8,
    };
    let tables = (0..16)
        .map(|table| NestedTables {
            t2: std::array::from_fn(|_| value(table)),
            t3: std::array::from_fn(|_| value(table)),
            t4: std::array::from_fn(|_| value(table)),
        })
        .collect();
    let alpha_a = 1 + below(16384) as u16;
    let alpha_b = (32768 - 2 * u32::from(alpha_a)) as u16;
    let codec = NestedCodec {
        alpha_a,
        alpha_b,
        // With 16, values of opposite codes are opposite.
        beta_q: if seed % 4 == 1 { 16 } else { 16 + below(17) as u8 },
        tables,
        inputs: Default::default(),
        steps: if seed.is_multiple_of(2) { ScaleSteps::Octaves } else { ScaleSteps::Eighths },
    };
    codec.check().unwrap();
    let (tiles, groups) = (rows.div_ceil(TILE_ROWS), cols.div_ceil(GROUP));
    let padded = tiles * TILE_ROWS;
    let scale = |row| if row < rows { f16::from_f32(0.01 + below(1000) as f32) } else { f16::ZERO };
    let row_scales = (0..padded).map(scale).collect();
    let matrix = QuantizedMatrix {
        rows,
        cols,
        codes: (0..padded * groups * GROUP).map(|_| below(256) as u8).collect(),
        row_scales,
        steps: (0..padded * groups).map(|_| below(32) as u8).collect(),
        tile_tables: (0..tiles).map(|_| below(16) as u8).collect(),
    };
    let pack = |plane| {
        let mut out = vec![0; plane_bytes(Layout::Tile16, rows, cols, plane).unwrap()];
        pack_plane(&matrix, Layout::Tile16, plane, &mut out).unwrap();
        out
    };
    let planes: Vec<Vec<u8>> = Plane::ALL.into_iter().map(pack).collect();
    let mut merged = vec![0; merged_bytes(Layout::Tile16, rows, cols).unwrap()];
    merge_p3_p4(Layout::Tile16, &planes[1], &planes[2], &mut merged).unwrap();
    Planes { codec, rows, cols, planes, merged }
}

impl Planes {
    fn view(&self, merged: bool) -> NestedView<'_> {
        let [p2, p3, p4, p6, p8] = [0, 1, 2, 3, 4].map(|i| &*self.planes[i]);
        let (p3, p4, p34) =
            if merged { (None, None, Some(&*self.merged)) } else { (Some(p3), Some(p4), None) };
        let planes = NestedPlanes { p2, p3, p4, p34, p6: Some(p6), p8: Some(p8) };
        NestedView::new(self.rows, self.cols, Layout::Tile16, &self.codec, planes).unwrap()
    }
}

fn random_rows(kernels: &Kernels, rows: usize, cols: usize, seed: u64) -> QuantizedRows {
    let mut random = Xoshiro256PlusPlus::seed_from_u64(seed);
    let mut out = QuantizedRows::default();
    out.resize(rows, cols);
    for row in 0..rows {
        let mut x: Vec<f32> =
            (0..cols).map(|_| (random.next_u32() >> 8) as f32 / 1e6 - 8.0).collect();
        // A group of zeros, and one with only the two largest magnitudes.
        x.iter_mut().take(GROUP).for_each(|x| *x *= (row % 2) as f32);
        x.iter_mut().skip(GROUP).take(GROUP).for_each(|x| *x = x.signum() * 3.0);
        kernels.quantize(&x, out.row_mut(row));
    }
    out
}

/// Reference implementation, directly from the view's values and scales.
fn reference(view: &NestedView, level: Level, x: &QuantizedRows) -> Vec<f32> {
    let mut out = vec![0.0f32; x.rows() * view.rows()];
    let mut values = [0i16; TILE_ROWS * GROUP];
    for t in 0..x.rows() {
        for row in 0..view.rows() {
            let mut acc = 0.0f32;
            for (group, x) in x.row(t).iter().enumerate() {
                let tile = row / TILE_ROWS;
                view.decode_group_values(level, tile, group, &mut values).unwrap();
                let weights = &values[row % TILE_ROWS * GROUP..][..GROUP];
                let products = weights.iter().zip(&x.values);
                let sum: i64 = products.map(|(w, x)| i64::from(*w) * i64::from(*x)).sum();
                let scale = view.group_scales(level, tile, group).scales[0][row % TILE_ROWS];
                acc = (i32::try_from(sum).unwrap() as f32).mul_add(x.scale * scale, acc);
            }
            out[t * view.rows() + row] = acc;
        }
    }
    out
}

#[test]
fn every_kernel_gives_the_bits_of_the_definition() {
    let sets = Kernels::available();
    for (rows, cols, tokens) in [
        (1, 1, 1),
        (16, 32, 2),
        (17, 33, 3),
        (50, 100, 7),
        (33, 200, 19),
        (18, 40, 4),
        (5, 1100, 37),
    ] {
        let planes = random_matrix(rows, cols, rows as u64);
        let tables = CodecTables::new(&planes.codec);
        let x = random_rows(Kernels::portable(), tokens, cols, 7);
        for (merged, level) in [false, true].into_iter().flat_map(|m| Level::ALL.map(|l| (m, l))) {
            let view = planes.view(merged);
            let wanted = reference(&view, level, &x);
            let weights = NestedWeights::new(&view, level, &tables).unwrap();
            for kernels in &sets {
                // Rows in another order and one of them twice, as experts use them.
                let order: Vec<u32> = (0..tokens as u32).rev().chain([0]).collect();
                let packed = packed(&x, &order);
                let (apart, one) = (RowList::new(&x, &order), RowList::new(&x, &order[..1]));
                for list in [apart, apart.with_packed(&packed, 1), one] {
                    let what = format!(
                        "{} level {level} merged {merged} packed {} of {} rows",
                        kernels.name(),
                        !list.packed().is_empty(),
                        list.rows().len(),
                    );
                    compare(kernels, &weights, list, &wanted, &what);
                }
            }
        }
    }
}

fn packed(x: &QuantizedRows, order: &[u32]) -> PackedRows {
    let mut packed = PackedRows::default();
    packed.clear(x.groups());
    // A preceding block, so that the rows do not start at block 0.
    packed.push(&[0]);
    packed.push(order);
    let (cells, blocks) = packed.cells_mut();
    for (block, cells) in cells.chunks_mut(x.groups()).enumerate() {
        blocks.fill(block, x, cells);
    }
    packed
}

/// Compares all tiles with `wanted`, `[rows of x, rows]`, bit by bit.
fn compare(kernels: &Kernels, weights: &NestedWeights, list: RowList, wanted: &[f32], what: &str) {
    let rows = weights.rows();
    let mut out = vec![[f32::NAN; TILE_ROWS]; list.rows().len()];
    for tile in 0..weights.tiles() {
        kernels.nested_tile(weights, tile, list, &mut out);
        for (out, t) in out.iter().zip(list.rows()) {
            let live = TILE_ROWS.min(rows - tile * TILE_ROWS);
            let start = *t as usize * rows + tile * TILE_ROWS;
            for (found, wanted) in out[..live].iter().zip(&wanted[start..]) {
                let (found_bits, wanted_bits) = (found.to_bits(), wanted.to_bits());
                assert_eq!(found_bits, wanted_bits, "{what} tile {tile} row {t}: {found} {wanted}");
            }
        }
    }
}

#[test]
fn the_largest_sums_do_not_overflow() {
    let largest = NestedTables { t2: [127; 4], t3: [-127; 8], t4: [127; 16] };
    // Bytes above the lowest value at both ends, and 1 beside them, so that the stride is 1.
    let strided = |largest: i8| {
        let entry = |index: usize, last: usize| match index {
            1 => -31,
            _ if index.is_multiple_of(last) => largest - 32,
            _ => -32,
        };
        NestedTables {
            t2: std::array::from_fn(|i| entry(i, 3)),
            t3: std::array::from_fn(|i| entry(i, 7)),
            t4: std::array::from_fn(|i| entry(i, 15)),
        }
    };
    let strided = [15, 31, 64].map(strided);
    // All codes at one end and all activations at +-127 give the largest products.
    let ends = |values, beta_q| [(0u8, values, beta_q), (255, values, beta_q)];
    let cases = strided.iter().map(|strided| ends(strided, 16));
    for (code, values, beta_q) in cases.chain([ends(&largest, 32)]).flatten() {
        let mut planes = random_matrix(16, 64, 3);
        let alphas = (9830, 32768 - 2 * 9830);
        (planes.codec.beta_q, (planes.codec.alpha_a, planes.codec.alpha_b)) = (beta_q, alphas);
        planes.codec.tables.fill(*values);
        let codes = planes.view(false).base_parts().unwrap().codes.clone();
        planes.planes[0][codes].fill(code);
        planes.planes[1..].iter_mut().for_each(|plane| plane.fill(code));
        planes.merged.fill(code);
        let mut x = QuantizedRows::default();
        x.resize(2, 64);
        Kernels::portable().quantize(&[-1.0; 64], x.row_mut(0));
        Kernels::portable().quantize(&[1.0; 64], x.row_mut(1));
        let (view, tables) = (planes.view(true), CodecTables::new(&planes.codec));
        let packed = packed(&x, &[0, 1]);
        for level in Level::ALL {
            let wanted = reference(&view, level, &x);
            let weights = NestedWeights::new(&view, level, &tables).unwrap();
            for kernels in Kernels::available() {
                let list = RowList::new(&x, &[0, 1]);
                for list in [list, list.with_packed(&packed, 1)] {
                    let mut out = [[0.0; TILE_ROWS]; 2];
                    kernels.nested_tile(&weights, 0, list, &mut out);
                    let is_packed = !list.packed().is_empty();
                    let what = format!("{} level {level} packed {is_packed}", kernels.name());
                    assert_eq!(out.as_flattened(), wanted, "{what}");
                }
                for (row, wanted) in [0, 1].into_iter().zip(wanted.chunks(TILE_ROWS)) {
                    let mut one = [[0.0; TILE_ROWS]];
                    kernels.nested_tile(&weights, 0, RowList::new(&x, &[row]), &mut one);
                    assert_eq!(one[0], wanted, "{} level {level}, one row", kernels.name());
                }
            }
        }
    }
}

#[test]
fn tables_without_signs_have_the_same_values() {
    let mut found = 0;
    for seed in 0..8 {
        let tables = CodecTables::new(&random_matrix(16, 32, seed).codec);
        for (level, decode) in tables.levels.iter().enumerate().take(3) {
            for (values, strided) in decode.nibble.iter().zip(&decode.strided) {
                let Some(StridedTable { bytes, stride, zero }) = *strided else { continue };
                found += 1;
                let indices = if level == 0 { 4 } else { 16 };
                for (value, byte) in values.iter().zip(bytes).take(indices) {
                    assert!(byte <= 64, "{bytes:?}");
                    let expected = i32::from(*value);
                    assert_eq!(i32::from(stride) * i32::from(byte) - zero, expected, "{level}");
                }
            }
        }
    }
    assert!(found >= 8 * 3 * 8, "{found}");
    let even = |values: [i8; 4]| StridedTable::new(&values).map(|table| table.bytes[..4].to_vec());
    assert_eq!(even([-126, 126, -122, 2]), Some(vec![0, 63, 1, 32]));
    assert_eq!(even([-128, 127, -128, -128]), Some(vec![0, 1, 0, 0]));
    assert_eq!(even([-126, 126, -123, 2]), None);
    assert_eq!(even([5; 4]), Some(vec![0; 4]));
}

#[test]
fn a_sign_and_a_magnitude_give_the_values_of_level_6() {
    let codec = |alpha_a: u16, beta_q| NestedCodec {
        alpha_a,
        alpha_b: (32768 - 2 * u32::from(alpha_a)) as u16,
        beta_q,
        ..random_matrix(16, 32, 1).codec
    };
    let mut missing = 0;
    for alpha_a in (1..=16384).step_by(129) {
        let codec = codec(alpha_a, 16);
        let tables = CodecTables::new(&codec);
        let Some(table) = tables.levels[Level::L6.index()].magnitudes else {
            missing += 1;
            continue;
        };
        for code in (0..=255u8).step_by(4) {
            let p4 = usize::from(code >> 4);
            let place = table.place[p4] ^ (code >> 2 & 3);
            let (half, entry) = (usize::from(place >> 7), usize::from(place & 15));
            let (high, low) = (table.high[half][entry], table.low[half][entry]);
            assert!(high <= 127 && low <= 63, "{high} {low}");
            let value = i16::from(table.sign[p4]) * (64 * i16::from(high) + i16::from(low));
            assert_eq!(value, codec.value(Level::L6, 0, code), "alpha {alpha_a} code {code}");
        }
    }
    // A fifth of all codecs rounds the values of a pair of codes apart.
    assert!(missing < 128 / 3, "{missing} of 128");
    // Cells that overlap at zero have values of either sign.
    assert_eq!(CodecTables::new(&codec(8192, 24)).levels[Level::L6.index()].magnitudes, None);
}

#[test]
fn a_level_without_its_planes_is_an_error() {
    let planes = random_matrix(16, 32, 1);
    let tables = CodecTables::new(&planes.codec);
    let only = NestedPlanes { p2: &planes.planes[0], ..NestedPlanes::default() };
    let view = NestedView::new(16, 32, Layout::Tile16, &planes.codec, only).unwrap();
    assert!(NestedWeights::new(&view, Level::L2, &tables).is_ok());
    assert!(matches!(
        NestedWeights::new(&view, Level::L3, &tables),
        Err(NestedError::LevelMissing { wanted: Level::L3, present: Level::L2 })
    ));
}

#[test]
fn a_dequantized_tile_is_that_of_the_definition() {
    let planes = random_matrix(19, 45, 5);
    let (view, tables) = (planes.view(true), CodecTables::new(&planes.codec));
    for level in Level::ALL {
        let weights = NestedWeights::new(&view, level, &tables).unwrap();
        let mut row = vec![0.0; 45];
        let mut out = vec![f32::NAN; TILE_ROWS * 64];
        for r in 0..19 {
            dequantize_tile(&weights, r / TILE_ROWS, &mut out);
            view.dequantize_row(level, r, &mut row).unwrap();
            assert_eq!(&out[r % TILE_ROWS * 64..][..45], row, "level {level} row {r}");
        }
    }
}

#[cfg(target_arch = "aarch64")]
#[test]
fn the_sets_of_aarch64_are_found() {
    let names: Vec<_> = Kernels::available().iter().map(|set| set.name()).collect();
    assert!(names.contains(&"NEON"), "{names:?}");
    let dotprod = std::arch::is_aarch64_feature_detected!("dotprod");
    assert_eq!(names.contains(&"NEON with dot products"), dotprod, "{names:?}");
}
