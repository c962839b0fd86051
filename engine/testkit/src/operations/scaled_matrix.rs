//! Matrices of scaled integers in all forms of GGUF files.

use half::f16;
use nestling_core::weights::{ByteRegion, NestedMatrix, PlaneRegions};
use nestling_formats::nested::{
    Layout, Minima, PlaneForm, ScaleType, ScaledCodec, ScaledRows, SubScale, merge_p3_p4,
    merged_bytes, pack_scaled_plane,
};
use nestling_formats::{Level, Plane};
use nestling_import::gguf::{BlockType, ScaledBlocks};

use crate::values::noise;

/// Storage layout of a matrix of scaled integers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScaledPlanes {
    /// Tiles, with P3 and P4 separate.
    Tiled,
    /// Tiles, with P3 and P4 merged.
    Merged,
    RowMajor,
}

/// Precision of the scales of spans.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScaleBits {
    /// Full precision of half floats: 11 bits.
    All,
    /// Three bits: products with sums of [`exact_activations`] fit into a float.
    Few,
}

/// Returns scales as half floats, of both signs, one of seven subnormal and one zero. Weights are at most
/// about 1.
fn halves(count: usize, seed: u32, (largest, bits): (f32, ScaleBits)) -> Vec<u8> {
    let scales = noise(count, seed).into_iter().enumerate().flat_map(|(at, number)| {
        let size = match at % 7 {
            3 => 3e-7,
            5 => 0.0,
            _ => 1.0,
        };
        let kept = if bits == ScaleBits::Few { !0xff } else { !0 };
        (f16::from_f32(number * size / largest).to_bits() & kept).to_le_bytes()
    });
    scales.collect()
}

/// Returns the byte of a sub-scale.
fn sub_byte(sub_scale: SubScale, number: u8) -> u8 {
    match sub_scale {
        SubScale::None | SubScale::Nibbles => number,
        SubScale::U8 => number % 64,
        SubScale::I8 => (number % 64).wrapping_sub(32),
        SubScale::E4m3 => number % 0x31,
        SubScale::E8m0 => 117 + number % 7,
    }
}

fn bytes(count: usize, seed: u32) -> Vec<u8> {
    noise(count, seed).into_iter().map(|number| (number * 127.0 + 127.5) as u8).collect()
}

/// Returns random codes and scales of a form.
fn random_rows(
    codec: &ScaledCodec,
    (rows, cols): (usize, usize),
    seed: u32,
    bits: ScaleBits,
) -> ScaledRows {
    let form = codec.form;
    let groups = cols.div_ceil(32);
    let (spans, subs) =
        (rows * groups.div_ceil(form.span.into()), rows * groups * form.sub_blocks());
    let has = |there: bool, count: usize| if there { count } else { 0 };
    let largest_sub = match form.sub_scale {
        SubScale::U8 | SubScale::I8 => 63.0,
        SubScale::Nibbles => 15.0,
        _ => 1.0,
    };
    let codes = bytes(rows * cols, seed).into_iter().map(|byte| byte & (!0 << (8 - form.bits)));
    let values = (0..=255).map(|code| f32::from(codec.value(form.top(), code)).abs());
    let largest = values.fold(0.0, f32::max) * codec.unit(form.top()) * largest_sub;
    let scales = has(form.scale == ScaleType::F16, spans);
    let subs_of = |seed, there| {
        let numbers = bytes(has(there, subs), seed).into_iter();
        numbers.map(|number| sub_byte(form.sub_scale, number)).collect()
    };
    ScaledRows {
        rows,
        cols,
        codes: codes.collect(),
        scales: halves(scales, seed + 1, (largest, bits)),
        minima: halves(has(form.minima != Minima::None, scales), seed + 2, (largest_sub, bits)),
        sub_scales: subs_of(seed + 3, form.sub_scale != SubScale::None),
        sub_minima: subs_of(seed + 4, form.has_sub_minima()),
    }
}

/// Returns a matrix of a block type. Levels above the complete codes use the complete codes.
pub fn scaled(
    (kind, lie): (BlockType, ScaledPlanes),
    (count, cols): (usize, usize),
    seed: u32,
    bits: ScaleBits,
) -> NestedMatrix {
    let codec = ScaledBlocks::whole(kind).codec();
    let matrix = random_rows(&codec, (count, cols), seed, bits);
    let layout = if lie == ScaledPlanes::RowMajor { Layout::RowMajor } else { Layout::Tile16 };
    let form = PlaneForm::Scaled(codec.form);
    let region = |plane: Plane| {
        let mut bytes = vec![0; form.plane_bytes(layout, count, cols, plane).unwrap()];
        pack_scaled_plane(&matrix, &codec.form, layout, plane, &mut bytes).unwrap();
        (form.plane_bits(plane) > 0).then(|| ByteRegion::from_vec(bytes))
    };
    let mut regions = PlaneRegions {
        p2: region(Plane::P2).unwrap(),
        p3: region(Plane::P3),
        p4: region(Plane::P4),
        p34: None,
        p6: region(Plane::P6),
        p8: region(Plane::P8),
    };
    if let (ScaledPlanes::Merged, Some(p3), Some(p4)) = (lie, &regions.p3, &regions.p4) {
        let mut merged = vec![0; merged_bytes(layout, count, cols).unwrap()];
        merge_p3_p4(layout, p3.bytes(), p4.bytes(), &mut merged).unwrap();
        (regions.p3, regions.p4) = (None, None);
        regions.p34 = Some(ByteRegion::from_vec(merged));
    }
    let matrix = NestedMatrix::new(count, cols, layout, codec, regions, Level::ALL);
    matrix.unwrap().at_most_held()
}

/// Returns activations that int8 represents exactly: groups of small integers and one 127, times a power of
/// two.
pub fn exact_activations(rows: usize, cols: usize, seed: u32) -> Vec<f32> {
    let mut out = noise(rows * cols, seed);
    for (index, x) in out.chunks_mut(cols).flat_map(|row| row.chunks_mut(32)).enumerate() {
        let unit = [0.015_625, 2.0, 0.25][index % 3];
        x.iter_mut().for_each(|x| *x = (*x * 3.0).round() * unit);
        x[index % x.len()] = if index % 2 == 0 { 127.0 } else { -127.0 } * unit;
    }
    out
}
