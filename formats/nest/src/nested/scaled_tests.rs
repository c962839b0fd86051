use proptest::prelude::*;

use super::*;
use crate::{Level, Plane};

struct Random(u64);

impl Random {
    fn byte(&mut self) -> u8 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963);
        (self.0 >> 56) as u8
    }

    fn bytes(&mut self, count: usize) -> Vec<u8> {
        (0..count).map(|_| self.byte()).collect()
    }

    /// Returns small scales of the form's type.
    fn scales(&mut self, form: &ScaledForm, count: usize) -> Vec<u8> {
        let value = |byte: u8| f32::from(i8::from_le_bytes([byte])) * 0.037;
        let mut out = Vec::new();
        for _ in 0..count {
            let value = value(self.byte());
            match form.scale {
                ScaleType::None => {}
                ScaleType::F16 => out.extend(half::f16::from_f32(value).to_le_bytes()),
                ScaleType::Bf16 => out.extend(half::bf16::from_f32(value).to_le_bytes()),
                ScaleType::F32 => out.extend(value.to_le_bytes()),
            }
        }
        out
    }
}

/// The form of Q4_K.
const K_QUANT: ScaledForm = ScaledForm {
    bits: 4,
    sub_block: 32,
    span: 8,
    scale: ScaleType::F16,
    sub_scale: SubScale::U8,
    minima: Minima::SubBlocks,
};

fn forms() -> impl Strategy<Value = ScaledForm> {
    let bits = prop::sample::select(vec![2u8, 3, 4, 5, 6, 8]);
    let sub_block = prop::sample::select(vec![16u8, 32]);
    let span = prop::sample::select(vec![1u8, 2, 4, 8]);
    let scale = prop::sample::select(vec![
        ScaleType::None,
        ScaleType::F16,
        ScaleType::Bf16,
        ScaleType::F32,
    ]);
    let sub_scale = prop::sample::select(vec![
        SubScale::None,
        SubScale::U8,
        SubScale::I8,
        SubScale::E4m3,
        SubScale::E8m0,
        SubScale::Nibbles,
    ]);
    let minima = prop::sample::select(vec![Minima::None, Minima::Spans, Minima::SubBlocks]);
    (bits, sub_block, span, scale, sub_scale, minima)
        .prop_map(|(bits, sub_block, span, scale, sub_scale, minima)| ScaledForm {
            bits,
            sub_block,
            span,
            scale,
            sub_scale,
            minima,
        })
        .prop_filter("a form of the format", |form| form.check().is_ok())
}

/// Returns a codec whose complete codes are integers offset by `-zero`.
fn codec(form: ScaledForm) -> ScaledCodec {
    let zero = 1i16 << (form.bits - 1);
    let value = |prefix: usize, bits: u8| {
        let below = form.bits.saturating_sub(bits);
        let middle = (prefix << below) as i16 + ((1 << below) >> 1) - zero;
        middle.clamp(-127, 127) as i8
    };
    let top = form.top();
    let linear = [Level::L6, Level::L8].map(|level| {
        let below = form.bits.saturating_sub(level.bits());
        match level <= top {
            true => LinearValues { stride: 1 << below, zero: zero - ((1 << below) >> 1) },
            false => LinearValues::default(),
        }
    });
    let tables = NestedTables {
        t2: std::array::from_fn(|prefix| value(prefix, 2)),
        t3: std::array::from_fn(|prefix| value(prefix, 3)),
        t4: std::array::from_fn(|prefix| value(prefix, 4)),
    };
    let units = Level::ALL.map(|level| if level <= top { -(level as i8) / 2 } else { 0 });
    ScaledCodec { form, units, tables, linear }
}

fn random_rows(form: &ScaledForm, rows: usize, cols: usize, random: &mut Random) -> ScaledRows {
    let groups = cols.div_ceil(GROUP);
    let spans = groups.div_ceil(usize::from(form.span));
    let subs = rows * groups * form.sub_blocks();
    let mut matrix = ScaledRows { rows, cols, ..ScaledRows::default() };
    matrix.codes = random.bytes(rows * cols);
    matrix.codes.iter_mut().for_each(|code| *code &= !0u8 << (8 - form.bits));
    matrix.scales = random.scales(form, rows * spans);
    if form.minima != Minima::None {
        matrix.minima = random.scales(form, rows * spans);
    }
    if form.sub_scale != SubScale::None {
        matrix.sub_scales = random.bytes(subs);
        let largest = form.sub_scale.largest();
        // Powers of two are limited to a range without overflow.
        let limit = |byte: &mut u8| match form.sub_scale {
            SubScale::E8m0 => *byte = *byte % 64 + 80,
            _ => *byte = (*byte).min(largest),
        };
        matrix.sub_scales.iter_mut().for_each(limit);
    }
    if form.has_sub_minima() {
        matrix.sub_minima = random.bytes(subs);
    }
    matrix
}

/// Packs codes of 4 bits two to a byte, those of two adjacent groups.
fn pairs(codes: &[u8]) -> Vec<u8> {
    let of_groups = codes.as_chunks::<GROUP>().0.chunks_exact(2);
    let pair = |groups: &[[u8; GROUP]]| std::array::from_fn(|k| groups[0][k] >> 4 | groups[1][k]);
    of_groups.flat_map(|groups| -> [u8; GROUP] { pair(groups) }).collect()
}

/// Computes one weight as `FORMAT.md` describes, from rows before they are divided into planes.
fn weight(codec: &ScaledCodec, matrix: &ScaledRows, level: Level, row: usize, col: usize) -> f32 {
    let form = codec.form;
    let groups = matrix.cols.div_ceil(GROUP);
    let spans = groups.div_ceil(usize::from(form.span));
    let span = row * spans + col / GROUP / usize::from(form.span);
    let sub = row * groups * form.sub_blocks() + col / usize::from(form.sub_block);
    let mut scale = form.scale.get(&matrix.scales, span);
    if form.sub_scale != SubScale::None {
        scale *= form.sub_scale.factor(matrix.sub_scales[sub]);
    }
    let code = matrix.codes[row * matrix.cols + col];
    let weight = scale * codec.unit(level) * f32::from(codec.value(level, code));
    match form.minima {
        Minima::None => weight,
        Minima::Spans => weight + form.scale.get(&matrix.minima, span),
        Minima::SubBlocks => {
            let integer = match form.sub_scale {
                SubScale::Nibbles => matrix.sub_scales[sub] >> 4,
                _ => matrix.sub_minima[sub],
            };
            weight - form.scale.get(&matrix.minima, span) * f32::from(integer)
        }
    }
}

/// Packs the planes of a matrix; planes that the codec does not have are empty.
fn pack(codec: &ScaledCodec, matrix: &ScaledRows, layout: Layout) -> Vec<Vec<u8>> {
    let form = PlaneForm::Scaled(codec.form);
    let pack = |plane| {
        let bytes = form.plane_bytes(layout, matrix.rows, matrix.cols, plane).unwrap();
        // Filled with a nonzero byte, so that unwritten bytes are detected.
        let mut out = vec![0xa5; bytes];
        pack_scaled_plane(matrix, &codec.form, layout, plane, &mut out).unwrap();
        out
    };
    Plane::ALL.into_iter().map(pack).collect()
}

fn prefix(planes: &[Vec<u8>], level: Level) -> NestedPlanes<'_> {
    let get = |index: usize| (index <= level.index()).then(|| planes[index].as_slice());
    NestedPlanes { p2: &planes[0], p3: get(1), p4: get(2), p34: None, p6: get(3), p8: get(4) }
}

proptest! {
    #[test]
    fn planes_hold_the_weights_of_every_level(
        form in forms(),
        rows in 1usize..40,
        cols in 1usize..330,
        seed: u64,
    ) {
        let codec = codec(form);
        codec.check().unwrap();
        let matrix = random_rows(&form, rows, cols, &mut Random(seed));
        for layout in [Layout::Tile16, Layout::RowMajor] {
            let planes = pack(&codec, &matrix, layout);
            for level in Level::ALL.into_iter().filter(|level| *level <= form.top()) {
                let planes = prefix(&planes, level);
                let view = NestedView::new(rows, cols, layout, &codec, planes).unwrap();
                view.check().unwrap();
                prop_assert_eq!(view.level(), level);
                if level == form.top() {
                    prop_assert_eq!(&view.scaled_rows().unwrap(), &matrix);
                }
                let mut out = vec![f32::NAN; cols];
                for row in 0..rows {
                    view.dequantize_row(level, row, &mut out).unwrap();
                    for (col, found) in out.iter().enumerate() {
                        let expected = weight(&codec, &matrix, level, row, col);
                        prop_assert_eq!(found.to_bits(), expected.to_bits(), "{} {}", row, col);
                    }
                }
            }
        }
    }

    #[test]
    fn codes_in_pairs_make_the_same_planes(
        form in forms(),
        tiles in 1usize..3,
        later in 0usize..2,
        spans in 1usize..12,
        seed: u64,
    ) {
        let form = ScaledForm { bits: 4, ..form };
        prop_assume!(form.check().is_ok());
        let (rows, cols) = (tiles * TILE_ROWS, spans * 2 * GROUP);
        let matrix = random_rows(&form, rows, cols, &mut Random(seed));
        let paired = ScaledRows { codes: pairs(&matrix.codes), ..matrix.clone() };
        let first = later * TILE_ROWS;
        for layout in [Layout::Tile16, Layout::RowMajor] {
            let written = |write: fn(&mut ScaledPlanes<'_>, usize, &ScaledRows), of: &ScaledRows| {
                let bytes = |plane: Plane| {
                    let form = PlaneForm::Scaled(form);
                    form.plane_bytes(layout, first + rows, cols, plane).unwrap()
                };
                let mut outputs = Plane::ALL.map(|plane| vec![0xa5; bytes(plane)]);
                let mut merged = vec![0xa5; merged_bytes(layout, first + rows, cols).unwrap()];
                let mut planes = ScaledPlanes::new(&form, layout, first + rows, cols).unwrap();
                for (plane, out) in Plane::ALL.into_iter().zip(&mut outputs) {
                    planes.add(plane, out).unwrap();
                }
                planes.add_merged(&mut merged).unwrap();
                write(&mut planes, first, of);
                (outputs, merged)
            };
            let expected = written(|planes, at, rows| planes.write(at, rows).unwrap(), &matrix);
            let found = written(|planes, at, rows| planes.write_pairs(at, rows).unwrap(), &paired);
            prop_assert!(found == expected);
        }
    }

    #[test]
    fn a_merged_plane_is_what_merging_makes_of_two(
        form in forms(),
        rows in 1usize..40,
        cols in 1usize..330,
        seed: u64,
    ) {
        let codec = codec(form);
        let matrix = random_rows(&form, rows, cols, &mut Random(seed));
        for layout in [Layout::Tile16, Layout::RowMajor] {
            let mut found = vec![0xa5; merged_bytes(layout, rows, cols).unwrap()];
            let packed = pack_scaled_merged(&matrix, &form, layout, &mut found);
            if form.bits < 4 {
                let refused = matches!(packed, Err(NestedError::Codec { .. }));
                prop_assert!(refused);
                continue;
            }
            packed.unwrap();
            let planes = pack(&codec, &matrix, layout);
            let mut expected = vec![0x5a; found.len()];
            merge_p3_p4(layout, &planes[1], &planes[2], &mut expected).unwrap();
            prop_assert_eq!(&found, &expected);
            let short = &mut found[1..];
            let refused = pack_scaled_merged(&matrix, &form, layout, short);
            let refused = matches!(refused, Err(NestedError::Length { .. }));
            prop_assert!(refused);
        }
    }

    #[test]
    fn group_scales_are_those_of_rows(form in forms(), rows in 1usize..40, cols in 1usize..330, seed: u64) {
        let codec = codec(form);
        let matrix = random_rows(&form, rows, cols, &mut Random(seed));
        let planes = pack(&codec, &matrix, Layout::Tile16);
        let level = form.top();
        let view =
            NestedView::new(rows, cols, Layout::Tile16, &codec, prefix(&planes, level)).unwrap();
        let mut values = [0; TILE_ROWS * GROUP];
        for tile in 0..view.tiles() {
            for group in 0..view.groups() {
                let scales = view.group_scales(level, tile, group);
                prop_assert_eq!(scales.sub_blocks, form.sub_blocks());
                view.decode_group_values(level, tile, group, &mut values).unwrap();
                for (at, value) in values.iter().enumerate() {
                    let (lane, k) = (at / GROUP, at % GROUP);
                    let (row, col) = (tile * TILE_ROWS + lane, group * GROUP + k);
                    let sub = k / usize::from(form.sub_block);
                    if row >= rows {
                        prop_assert_eq!(scales.scales[sub][lane], 0.0);
                    } else if col < cols {
                        let mut found = scales.scales[sub][lane] * f32::from(*value);
                        if let Some(minima) = &scales.minima {
                            found += minima[sub][lane];
                        }
                        prop_assert_eq!(found, weight(&codec, &matrix, level, row, col));
                    }
                }
            }
        }
    }

    #[test]
    fn codecs_are_read_as_they_were_written(form in forms()) {
        let codec = codec(form);
        let bytes = codec.to_bytes();
        prop_assert_eq!(bytes.len(), SCALED_CODEC_BYTES);
        prop_assert_eq!(ScaledCodec::from_bytes(&bytes).unwrap(), codec);
    }

    #[test]
    fn any_bytes_are_a_codec_of_int8_values_or_refused(
        form in forms(),
        changes in prop::collection::vec((0..SCALED_CODEC_BYTES, any::<u8>()), 0..4),
    ) {
        let mut bytes = codec(form).to_bytes();
        for (at, byte) in changes {
            bytes[at] = byte;
        }
        let Ok(found) = ScaledCodec::from_bytes(&bytes) else { return Ok(()) };
        prop_assert_eq!(found.to_bytes(), bytes);
        for level in Level::ALL {
            for code in 0..=u8::MAX {
                found.value(level, code);
            }
            prop_assert!(found.unit(level) > 0.0);
        }
    }
}

#[test]
fn pairs_of_codes_that_do_not_fit_are_refused() {
    let refusal = |bits: u8, rows: usize, cols: usize, codes: usize| {
        let form = ScaledForm { bits, ..K_QUANT };
        let matrix = random_rows(&form, rows, cols, &mut Random(1));
        let matrix = ScaledRows { codes: vec![0; codes], ..matrix };
        let mut planes = ScaledPlanes::new(&form, Layout::Tile16, rows, cols).unwrap();
        planes.write_pairs(0, &matrix).err()
    };
    assert_eq!(refusal(4, 32, 256, 32 * 128), None);
    for (bits, rows, cols) in [(5, 32, 256), (4, 17, 256), (4, 32, 224)] {
        assert!(refusal(bits, rows, cols, rows * cols / 2).is_some(), "{bits} {rows} {cols}");
    }
    let expected = NestedError::Length { what: "codes", expected: 4096, found: 4095 };
    assert_eq!(refusal(4, 32, 256, 4095), Some(expected));
}

#[test]
fn a_view_of_another_length_is_refused() {
    let codec = codec(K_QUANT);
    let matrix = random_rows(&K_QUANT, 17, 256, &mut Random(1));
    let mut planes = pack(&codec, &matrix, Layout::Tile16);
    planes[0].pop();
    let found = NestedView::new(17, 256, Layout::Tile16, &codec, prefix(&planes, Level::L4));
    assert!(matches!(found, Err(NestedError::PlaneLength { plane: Plane::P2, .. })));
}

#[test]
fn scales_that_are_no_numbers_are_refused_by_row_and_group() {
    let codec = codec(K_QUANT);
    for bits in [0x7c00u16, 0xfc00, 0x7e00] {
        for minimum in [false, true] {
            let mut matrix = random_rows(&K_QUANT, 3, 512, &mut Random(2));
            let into = if minimum { &mut matrix.minima } else { &mut matrix.scales };
            into[2 * 3..2 * 4].copy_from_slice(&bits.to_le_bytes());
            matrix.sub_minima.fill(1);
            matrix.sub_scales.fill(1);
            let planes = pack(&codec, &matrix, Layout::RowMajor);
            let planes = prefix(&planes, Level::L4);
            let view = NestedView::new(3, 512, Layout::RowMajor, &codec, planes).unwrap();
            let found = view.check();
            let expected = matches!(found, Err(NestedError::GroupScale { row: 1, group: 8, .. }));
            assert!(expected, "{bits:04x}: {found:?}");
        }
    }
}

#[test]
fn sub_scales_are_the_floats_that_their_types_say() {
    for byte in 0..=SubScale::E4m3.largest() {
        let (exponent, mantissa) = (i32::from(byte >> 3), f64::from(byte & 7));
        let expected = match exponent {
            0 => mantissa / 8.0 * 2f64.powi(-6),
            _ => (1.0 + mantissa / 8.0) * 2f64.powi(exponent - 7),
        };
        assert_eq!(f64::from(SubScale::E4m3.factor(byte)), expected, "{byte}");
    }
    for byte in 0..=SubScale::E8m0.largest() {
        let expected = 2f64.powi(i32::from(byte) - 127);
        assert_eq!(f64::from(SubScale::E8m0.factor(byte)), expected, "{byte}");
    }
    assert_eq!(SubScale::Nibbles.factor(0xa3), 3.0);
    assert_eq!(SubScale::I8.factor(0x80), -128.0);
}
