use half::f16;
use nestling_formats::Plane;
use nestling_formats::nested::{
    Layout, LinearValues, NestedPlanes, NestedTables, PlaneForm, ScaledRows, merge_p3_p4,
    merged_bytes, pack_scaled_plane,
};
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng, SeedableRng};

use super::*;
use crate::kernels::Kernels;
use crate::rows::PackedRows;

struct Random(Xoshiro256PlusPlus);

impl Random {
    fn new(seed: u64) -> Self {
        Self(Xoshiro256PlusPlus::seed_from_u64(seed))
    }

    fn below(&mut self, n: u64) -> u64 {
        self.0.next_u64() % n
    }

    fn one_of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len() as u64) as usize]
    }

    fn bytes(&mut self, count: usize, mask: u8) -> Vec<u8> {
        (0..count).map(|_| self.0.next_u32() as u8 & mask).collect()
    }

    /// Random scales of a type, with both signs, some of them zero or subnormal.
    fn scales(&mut self, scale: ScaleType, count: usize) -> Vec<u8> {
        let mut out = Vec::new();
        for _ in 0..count {
            let size = [0.0, 3e-7, 0.01, 0.7, 12.0][self.below(5) as usize];
            let value = size * (self.below(2001) as f32 / 1000.0 - 1.0);
            match scale {
                ScaleType::None => {}
                ScaleType::F16 => out.extend(f16::from_f32(value).to_le_bytes()),
                ScaleType::Bf16 => out.extend(bf16::from_f32(value).to_le_bytes()),
                ScaleType::F32 => out.extend(value.to_le_bytes()),
            }
        }
        out
    }

    /// A random form of the format.
    fn form(&mut self) -> ScaledForm {
        loop {
            let form = ScaledForm {
                bits: self.one_of(&[2, 3, 4, 5, 6, 8]),
                sub_block: self.one_of(&[16, 32]),
                span: self.one_of(&[1, 2, 4, 8]),
                scale: self.one_of(&[
                    ScaleType::None,
                    ScaleType::F16,
                    ScaleType::Bf16,
                    ScaleType::F32,
                ]),
                sub_scale: self.one_of(&[
                    SubScale::None,
                    SubScale::U8,
                    SubScale::I8,
                    SubScale::E4m3,
                    SubScale::E8m0,
                    SubScale::Nibbles,
                ]),
                minima: self.one_of(&[Minima::None, Minima::Spans, Minima::SubBlocks]),
            };
            if form.check().is_ok() {
                return form;
            }
        }
    }

    /// A random codec of a form: int8 tables, and strides and zeros that give int8 values. Tables have small
    /// values, any values or consecutive ones.
    fn codec(&mut self, form: ScaledForm) -> ScaledCodec {
        let (kind, first) = (self.below(3), self.below(240) as i16 - 127);
        let mut value = |index: usize| match kind {
            0 => self.below(16) as i8,
            1 => (self.below(255) as i16 - 127) as i8,
            _ => (first + index as i16) as i8,
        };
        let tables = NestedTables {
            t2: std::array::from_fn(&mut value),
            t3: std::array::from_fn(&mut value),
            t4: std::array::from_fn(&mut value),
        };
        let top = form.top();
        let linear = [Level::L6, Level::L8].map(|level| {
            if level > top {
                return LinearValues::default();
            }
            let last = (1i64 << level.bits().min(form.bits)) - 1;
            let stride = 1 + self.below((255 / last).min(4) as u64) as i64;
            let zero = 128 - self.below((256 - last * stride) as u64) as i64;
            LinearValues { stride: stride as u8, zero: zero as i16 }
        });
        let units = Level::ALL.map(|level| if level <= top { self.below(7) as i8 - 3 } else { 0 });
        let codec = ScaledCodec { form, units, tables, linear };
        codec.check().unwrap();
        codec
    }
}

/// A matrix of random codes and scales in its planes.
struct Matrix {
    codec: ScaledCodec,
    rows: usize,
    cols: usize,
    planes: Vec<Vec<u8>>,
    merged: Option<Vec<u8>>,
}

impl Matrix {
    fn random(codec: ScaledCodec, rows: usize, cols: usize, random: &mut Random) -> Self {
        let form = codec.form;
        let groups = cols.div_ceil(GROUP);
        let spans = rows * groups.div_ceil(usize::from(form.span));
        let subs = rows * groups * form.sub_blocks();
        let has = |there: bool, count: usize| if there { count } else { 0 };
        let mut matrix = ScaledRows {
            rows,
            cols,
            codes: random.bytes(rows * cols, !0 << (8 - form.bits)),
            scales: random.scales(form.scale, spans),
            minima: random.scales(form.scale, has(form.minima != Minima::None, spans)),
            sub_scales: random.bytes(subs * form.sub_scale.bytes(), !0),
            sub_minima: random.bytes(has(form.has_sub_minima(), subs), !0),
        };
        for byte in &mut matrix.sub_scales {
            match form.sub_scale {
                SubScale::E4m3 => *byte = (*byte).min(0x7f) % 0x7f,
                // Powers of two that do not overflow, including the smallest.
                SubScale::E8m0 => *byte %= 140,
                _ => {}
            }
        }
        let planes: Vec<Vec<u8>> = Plane::ALL.map(|plane| pack(&matrix, &form, plane)).into();
        let merged = (form.bits >= 4).then(|| {
            let mut merged = vec![0; merged_bytes(Layout::Tile16, rows, cols).unwrap()];
            merge_p3_p4(Layout::Tile16, &planes[1], &planes[2], &mut merged).unwrap();
            merged
        });
        let matrix = Self { codec, rows, cols, planes, merged };
        matrix.view(false).check().unwrap();
        matrix
    }

    fn view(&self, merged: bool) -> NestedView<'_> {
        let [p2, p3, p4, p6, p8] = [0, 1, 2, 3, 4].map(|i| &*self.planes[i]);
        let p34 = self.merged.as_deref().filter(|_| merged);
        let held = |plane: Plane| self.codec.form.plane_bits(plane) > 0;
        let planes = NestedPlanes {
            p2,
            p3: (p34.is_none() && held(Plane::P3)).then_some(p3),
            p4: (p34.is_none() && held(Plane::P4)).then_some(p4),
            p34,
            p6: held(Plane::P6).then_some(p6),
            p8: held(Plane::P8).then_some(p8),
        };
        NestedView::new(self.rows, self.cols, Layout::Tile16, &self.codec, planes).unwrap()
    }
}

fn pack(matrix: &ScaledRows, form: &ScaledForm, plane: Plane) -> Vec<u8> {
    let planes = PlaneForm::Scaled(*form);
    let bytes = planes.plane_bytes(Layout::Tile16, matrix.rows, matrix.cols, plane).unwrap();
    let mut out = vec![0; bytes];
    pack_scaled_plane(matrix, form, Layout::Tile16, plane, &mut out).unwrap();
    out
}

fn random_x(rows: usize, cols: usize, seed: u64) -> QuantizedRows {
    let mut random = Random::new(seed);
    let mut out = QuantizedRows::default();
    out.resize(rows, cols);
    for row in 0..rows {
        let mut x: Vec<f32> = (0..cols).map(|_| random.below(1 << 24) as f32 / 1e6 - 8.0).collect();
        // A group of zeros, and one with only the largest magnitude, in some rows with one sign.
        x.iter_mut().take(GROUP).for_each(|x| *x *= (row % 2) as f32);
        let sign = |x: f32| if row % 3 == 0 { 1.0 } else { x.signum() };
        x.iter_mut().skip(GROUP).take(GROUP).for_each(|x| *x = sign(*x) * 3.0);
        Kernels::portable().quantize(&x, out.row_mut(row));
    }
    out
}

/// Reference implementation, `[rows of x, rows]`, directly from the view's values and scales.
fn reference(view: &NestedView, level: Level, x: &QuantizedRows) -> Vec<f32> {
    let mut out = vec![0.0f32; x.rows() * view.rows()];
    let mut values = [0i16; TILE_ROWS * GROUP];
    for (tile, group) in (0..view.tiles()).flat_map(|t| (0..view.groups()).map(move |g| (t, g))) {
        view.decode_group_values(level, tile, group, &mut values).unwrap();
        let scales = view.group_scales(level, tile, group);
        for lane in 0..TILE_ROWS.min(view.rows() - tile * TILE_ROWS) {
            for t in 0..x.rows() {
                let acc = &mut out[t * view.rows() + tile * TILE_ROWS + lane];
                let x = &x.row(t)[group];
                let columns = GROUP / scales.sub_blocks;
                let subs = || x.values.chunks(columns).enumerate();
                for (sub, x_values) in subs() {
                    let weights = &values[lane * GROUP + sub * columns..][..columns];
                    let products = weights.iter().zip(x_values);
                    let sum: i32 = products.map(|(w, x)| i32::from(*w) * i32::from(*x)).sum();
                    *acc = (sum as f32).mul_add(x.scale * scales.scales[sub][lane], *acc);
                }
                for (sub, x_values) in subs() {
                    let Some(minima) = &scales.minima else { break };
                    let sum: i32 = x_values.iter().map(|x| i32::from(*x)).sum();
                    *acc = (x.scale * sum as f32).mul_add(minima[sub][lane], *acc);
                }
            }
        }
    }
    out
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

/// Compares all kernels at all levels, with P3 and P4 separate and merged, and with rows packed and not
/// packed.
fn compare_all(matrix: &Matrix, tokens: usize) {
    let tables = ScaledTables::new(&matrix.codec).unwrap();
    let x = random_x(tokens, matrix.cols, 7);
    // Rows in another order and one of them twice, as experts use them.
    let order: Vec<u32> = (0..tokens as u32).rev().chain([0]).collect();
    let packed = packed(&x, &order);
    let apart = RowList::new(&x, &order);
    for level in Level::ALL.into_iter().filter(|level| *level <= matrix.codec.form.top()) {
        let wanted = reference(&matrix.view(false), level, &x);
        for merged in [false, true] {
            let view = matrix.view(merged);
            let weights = ScaledWeights::new(&view, level, &tables).unwrap();
            for kernels in Kernels::available() {
                let one = RowList::new(&x, &order[..1]);
                for list in [apart, apart.with_packed(&packed, 1), one.with_packed(&packed, 1)] {
                    let what = format!(
                        "{} level {level} merged {merged} packed {} {:?} of {} x {}",
                        kernels.name(),
                        !list.packed().is_empty(),
                        matrix.codec.form,
                        matrix.rows,
                        matrix.cols,
                    );
                    compare(kernels, &weights, list, &wanted, &what);
                }
            }
        }
    }
}

/// Compares all tiles with `wanted`, `[rows of x, rows]`, bit by bit.
fn compare(kernels: &Kernels, weights: &ScaledWeights, list: RowList, wanted: &[f32], what: &str) {
    let rows = weights.rows();
    let mut out = vec![[f32::NAN; TILE_ROWS]; list.rows().len()];
    for tile in 0..weights.tiles() {
        kernels.scaled_tile(weights, tile, list, &mut out);
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

/// Forms that occur in files.
fn known_forms() -> Vec<(&'static str, ScaledForm)> {
    let form = |bits, sub_block, span, scale, sub_scale, minima| ScaledForm {
        bits,
        sub_block,
        span,
        scale,
        sub_scale,
        minima,
    };
    use Minima::{Spans, SubBlocks};
    use ScaleType::{F16, F32};
    use SubScale::{E4m3, E8m0, I8, Nibbles, U8};
    let (none, alone) = (SubScale::None, ScaleType::None);
    vec![
        ("Q4_0", form(4, 32, 1, F16, none, Minima::None)),
        ("Q4_1", form(4, 32, 1, F16, none, Spans)),
        ("Q5_0", form(5, 32, 1, F16, none, Minima::None)),
        ("Q5_1", form(5, 32, 1, F16, none, Spans)),
        ("Q8_0", form(8, 32, 1, F16, none, Minima::None)),
        ("Q2_K", form(2, 16, 8, F16, Nibbles, SubBlocks)),
        ("Q3_K", form(3, 16, 8, F16, I8, Minima::None)),
        ("Q4_K", form(4, 32, 8, F16, U8, SubBlocks)),
        ("Q5_K", form(5, 32, 8, F16, U8, SubBlocks)),
        ("Q6_K", form(6, 16, 8, F16, I8, Minima::None)),
        ("IQ4_XS", form(4, 32, 8, F16, I8, Minima::None)),
        ("NVFP4", form(4, 16, 8, F32, E4m3, Minima::None)),
        ("MXFP4", form(4, 32, 1, alone, E8m0, Minima::None)),
    ]
}

#[test]
fn every_kernel_gives_the_bits_of_the_definition() {
    let shapes = [(1, 1, 1), (17, 33, 3), (33, 300, 10), (16, 1100, 21), (50, 256, 2)];
    let mut random = Random::new(11);
    for (index, (name, form)) in known_forms().into_iter().enumerate() {
        assert!(form.check().is_ok(), "{name}");
        for shift in 0..2 {
            let (rows, cols, tokens) = shapes[(index + 3 * shift) % shapes.len()];
            let codec = random.codec(form);
            compare_all(&Matrix::random(codec, rows, cols, &mut random), tokens);
        }
    }
}

/// Spans that are whole runs with a unit of 1 have functions of their own.
#[test]
fn whole_spans_of_k_quants_give_the_bits_of_the_definition() {
    let mut random = Random::new(17);
    let k_quants = ["Q4_K", "Q5_K", "Q6_K"];
    let forms = known_forms().into_iter().filter(|(name, _)| k_quants.contains(name));
    for (_, form) in forms {
        for (rows, cols, tokens) in [(16, 256, 1), (33, 768, 3), (17, 512, 10), (50, 256, 21)] {
            let any = ScaledCodec { units: [0; 5], ..random.codec(form) };
            // Nibbles that are their values, as in Q4_K itself.
            let t4 = std::array::from_fn(|index| index as i8);
            let plain = ScaledCodec { tables: NestedTables { t4, ..any.tables }, ..any };
            for codec in [any, plain] {
                compare_all(&Matrix::random(codec, rows, cols, &mut random), tokens);
            }
        }
    }
}

#[test]
fn every_kernel_takes_every_form() {
    let mut random = Random::new(5);
    for _ in 0..60 {
        let form = random.form();
        let codec = random.codec(form);
        let (rows, cols) = (1 + random.below(40) as usize, 1 + random.below(700) as usize);
        let tokens = 1 + random.below(12) as usize;
        compare_all(&Matrix::random(codec, rows, cols, &mut random), tokens);
    }
}

#[test]
fn the_largest_sums_do_not_overflow() {
    // All codes at one end and all activations at +-127 give the largest products.
    let mut random = Random::new(3);
    for (name, form) in known_forms() {
        for (code, consecutive) in [(0u8, false), (255, false), (255, true)] {
            let mut codec = random.codec(form);
            for (index, value) in codec.tables.t4.iter_mut().enumerate() {
                let far = if index < 8 { -127 } else { 127 };
                *value = if consecutive { index as i8 } else { far };
            }
            codec.tables.t2 = [-127, -127, 127, 127];
            codec.tables.t3 = [-127, -127, -127, -127, 127, 127, 127, 127];
            let mut matrix = Matrix::random(codec, 16, 64, &mut random);
            let codes = matrix.view(false).scaled_parts().unwrap().codes.clone();
            matrix.planes[0][codes].fill(code);
            matrix.planes[1..].iter_mut().for_each(|plane| plane.fill(code));
            matrix.merged.iter_mut().for_each(|plane| plane.fill(code));
            let mut x = QuantizedRows::default();
            x.resize(2, 64);
            Kernels::portable().quantize(&[-1.0; 64], x.row_mut(0));
            Kernels::portable().quantize(&[1.0; 64], x.row_mut(1));
            let (view, tables) = (matrix.view(true), ScaledTables::new(&codec).unwrap());
            for level in Level::ALL.into_iter().filter(|level| *level <= form.top()) {
                let wanted = reference(&view, level, &x);
                let weights = ScaledWeights::new(&view, level, &tables).unwrap();
                for kernels in Kernels::available() {
                    let mut out = [[0.0; TILE_ROWS]; 2];
                    kernels.scaled_tile(&weights, 0, RowList::new(&x, &[0, 1]), &mut out);
                    let what = format!("{name} {} level {level}", kernels.name());
                    assert_eq!(out.as_flattened(), wanted, "{what}");
                    for (row, wanted) in [0, 1].into_iter().zip(wanted.chunks(TILE_ROWS)) {
                        let one = &mut out[..1];
                        kernels.scaled_tile(&weights, 0, RowList::new(&x, &[row]), one);
                        assert_eq!(one[0], wanted, "{what}, one row");
                    }
                }
            }
        }
    }
}

#[test]
fn a_level_without_its_planes_is_an_error() {
    let mut random = Random::new(1);
    let codec = random.codec(known_forms()[0].1);
    let matrix = Matrix::random(codec, 16, 32, &mut random);
    let tables = ScaledTables::new(&codec).unwrap();
    let only = NestedPlanes { p2: &matrix.planes[0], ..NestedPlanes::default() };
    let view = NestedView::new(16, 32, Layout::Tile16, &codec, only).unwrap();
    assert!(ScaledWeights::new(&view, Level::L2, &tables).is_ok());
    assert!(matches!(
        ScaledWeights::new(&view, Level::L3, &tables),
        Err(NestedError::LevelMissing { wanted: Level::L3, present: Level::L2 })
    ));
}

#[test]
fn a_codec_that_there_is_not_has_no_tables() {
    let mut codec = Random::new(1).codec(known_forms()[0].1);
    codec.form.span = 3;
    assert!(matches!(ScaledTables::new(&codec), Err(NestedError::Codec { .. })));
}

#[test]
fn a_dequantized_tile_is_that_of_the_definition() {
    let mut random = Random::new(8);
    let forms = known_forms().into_iter().map(|(_, form)| form);
    let mut forms: Vec<_> = forms.collect();
    forms.extend((0..20).map(|_| random.form()));
    for form in forms {
        let matrix = Matrix::random(random.codec(form), 19, 300, &mut random);
        let (view, tables) = (matrix.view(true), ScaledTables::new(&matrix.codec).unwrap());
        for level in Level::ALL.into_iter().filter(|level| *level <= form.top()) {
            let weights = ScaledWeights::new(&view, level, &tables).unwrap();
            let mut row = vec![0.0; 300];
            let mut out = vec![f32::NAN; TILE_ROWS * 320];
            for r in 0..19 {
                if r % TILE_ROWS == 0 {
                    dequantize_tile(&weights, r / TILE_ROWS, &mut out);
                }
                view.dequantize_row(level, r, &mut row).unwrap();
                assert_eq!(&out[r % TILE_ROWS * 320..][..300], row, "{form:?} level {level} {r}");
            }
        }
    }
}
