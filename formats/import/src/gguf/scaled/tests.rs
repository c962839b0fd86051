//! Transcoded blocks compared with decoded blocks.

use super::*;
use nestling_formats::nested::{
    Layout, Minima, NestedPlanes, NestedView, PlaneForm, ScaleType, pack_scaled_plane,
};
use nestling_formats::{Level, Plane};

/// A simple generator: the tests need variety, not quality.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        let mixed = (self.0 >> 32 ^ self.0).wrapping_mul(0xd6e8_feb8_6659_fd93);
        mixed ^ mixed >> 32
    }

    /// Returns the bits of a finite half-precision number, either random or a corner case.
    fn half(&mut self) -> u16 {
        const CORNERS: [u16; 10] =
            [0, 0x8000, 1, 0x8001, 0x3ff, 0x83ff, 0x400, 0x7bff, 0xfbff, 0x3c00];
        let bits = self.next() as u16;
        match self.next() % 3 {
            0 => CORNERS[usize::from(bits) % CORNERS.len()],
            _ if bits & 0x7c00 == 0x7c00 => bits ^ 0x4000,
            _ => bits,
        }
    }
}

/// Returns the byte offsets of the half-precision numbers in a block.
fn halves(kind: BlockType) -> &'static [usize] {
    use BlockType as T;
    match kind {
        T::Q4_1 | T::Q5_1 | T::Q4K | T::Q5K => &[0, 2],
        T::Q2K => &[80, 82],
        T::Q3K => &[108],
        T::Q6K => &[208],
        T::Tq1_0 => &[52],
        T::Tq2_0 => &[64],
        T::Mxfp4 | T::Nvfp4 | T::Iq1M => &[],
        _ => &[0],
    }
}

/// Returns random blocks with various finite scales.
fn blocks(kind: BlockType, count: usize, random: &mut Random) -> Vec<u8> {
    let mut out = Vec::new();
    for _ in 0..count {
        let mut block: Vec<u8> = (0..kind.bytes()).map(|_| random.next() as u8).collect();
        for at in halves(kind) {
            block[*at..at + 2].copy_from_slice(&random.half().to_le_bytes());
        }
        match kind {
            BlockType::Mxfp4 => block[0] %= 248,
            BlockType::Nvfp4 => {
                block[..4].iter_mut().for_each(|byte| *byte -= u8::from(*byte == 255))
            }
            BlockType::Iq1M => {
                let bits = random.half();
                for index in 0..4 {
                    let high = &mut block[49 + 2 * index];
                    *high = *high & 15 | ((bits >> (4 * index) & 15) as u8) << 4;
                }
            }
            _ => {}
        }
        out.extend(block);
    }
    out
}

fn transcoded(kind: BlockType, blocks: &[u8], cols: usize) -> ScaledRows {
    let count = blocks.len() / kind.bytes() * kind.elements();
    let mut rows = ScaledBlocks::whole(kind).rows(count / cols, cols).unwrap();
    kind.transcode(blocks, &mut ScaledRun::from_row(&mut rows, 0)).unwrap();
    rows
}

/// Returns a scale as a float, or 1 if the codec has none.
fn scale(codec: &ScaledCodec, bytes: &[u8], index: usize) -> f32 {
    match codec.form.scale {
        ScaleType::None => 1.0,
        ScaleType::F16 => half::f16::from_le_bytes([bytes[2 * index], bytes[2 * index + 1]]).into(),
        other => panic!("{other:?}"),
    }
}

/// Computes a weight with the formula of the format.
fn weight(codec: &ScaledCodec, rows: &ScaledRows, at: usize, level: Level) -> f32 {
    let form = &codec.form;
    let span = at / (32 * usize::from(form.span));
    let sub = at / usize::from(form.sub_block);
    let sub_scale = rows.sub_scales.get(sub).copied().unwrap_or(0);
    let unit = 2f32.powi(codec.units[level.min(form.top()).index()].into());
    let scale_of_weight =
        (scale(codec, &rows.scales, span) * form.sub_scale.factor(sub_scale)) * unit;
    let product = scale_of_weight * f32::from(codec.value(level, rows.codes[at]));
    match form.minima {
        Minima::None => product,
        Minima::Spans => product + scale(codec, &rows.minima, span),
        Minima::SubBlocks => {
            let least = match form.has_sub_minima() {
                true => rows.sub_minima[sub],
                false => sub_scale >> 4,
            };
            product + -(scale(codec, &rows.minima, span) * f32::from(least))
        }
    }
}

#[test]
fn codecs_are_valid_and_lower_levels_are_monotone() {
    for kind in BlockType::ALL {
        let codec = ScaledBlocks::whole(kind).codec();
        codec.check().unwrap();
        for level in Level::ALL.into_iter().filter(|level| *level <= codec.form.top()) {
            let values: Vec<i8> = (0..=255).map(|code| codec.value(level, code)).collect();
            assert!(values.is_sorted(), "{} at level {level:?}: {values:?}", kind.name());
        }
    }
}

#[test]
fn transcoded_weights_are_those_of_the_blocks_bit_for_bit() {
    let mut random = Random(7);
    for kind in BlockType::ALL {
        let cols = 3 * kind.elements().max(128);
        let bytes = blocks(kind, 40 * cols / kind.elements(), &mut random);
        let rows = transcoded(kind, &bytes, cols);
        let codec = ScaledBlocks::whole(kind).codec();
        let mut expected = vec![f32::NAN; 40 * cols];
        kind.decode(&bytes, &mut expected);
        for (at, expected) in expected.iter().enumerate() {
            let found = weight(&codec, &rows, at, codec.form.top());
            let name = kind.name();
            assert_eq!(found.to_bits(), expected.to_bits(), "{name}: {at}: {found} {expected}");
        }
    }
}

/// The reference of each byte is the version without wide vectors, and that of its weights the test above.
#[test]
fn all_vectors_transcode_to_the_same_bytes() {
    let mut random = Random(11);
    for kind in BlockType::ALL {
        for count in [0, 1, 2, 7, 64] {
            let bytes: Vec<u8> = (0..count * kind.bytes()).map(|_| random.next() as u8).collect();
            // More output than blocks, or less.
            for columns in [count + 1, count.max(2) - 1] {
                let mut of_versions = wide::versions().into_iter().map(|(name, write)| {
                    let whole = ScaledBlocks::whole(kind);
                    let mut rows = whole.rows(1, columns * kind.elements()).unwrap();
                    rows.codes.fill(0xa5);
                    write(kind, &bytes, &mut ScaledRun::from_row(&mut rows, 0));
                    (name, rows)
                });
                let (_, expected) = of_versions.next().unwrap();
                for (name, found) in of_versions {
                    assert!(found == expected, "{}: {name}, {count} blocks", kind.name());
                }
            }
        }
    }
}

#[test]
fn planes_hold_the_weights_of_the_blocks_bit_for_bit() {
    let mut random = Random(9);
    for kind in BlockType::ALL {
        let (count, cols) = (19, 2 * kind.elements().max(64));
        let bytes = blocks(kind, count * cols / kind.elements(), &mut random);
        let rows = transcoded(kind, &bytes, cols);
        let codec = ScaledBlocks::whole(kind).codec();
        let mut expected = vec![f32::NAN; count * cols];
        kind.decode(&bytes, &mut expected);
        for layout in [Layout::Tile16, Layout::RowMajor] {
            let planes = Plane::ALL.map(|plane| {
                let form = PlaneForm::Scaled(codec.form);
                let mut out = vec![0; form.plane_bytes(layout, count, cols, plane).unwrap()];
                pack_scaled_plane(&rows, &codec.form, layout, plane, &mut out).unwrap();
                out
            });
            let [p2, p3, p4, p6, p8] = &planes;
            let [p3, p4, p6, p8] = [p3, p4, p6, p8].map(|plane| Some(plane.as_slice()));
            let planes = NestedPlanes { p2, p3, p4, p34: None, p6, p8 };
            let view = NestedView::new(count, cols, layout, &codec, planes).unwrap();
            view.check().unwrap();
            let mut found = vec![f32::NAN; cols];
            for (row, expected) in expected.chunks(cols).enumerate() {
                view.dequantize_row(codec.form.top(), row, &mut found).unwrap();
                let bits = |row: &[f32]| row.iter().map(|w| w.to_bits()).collect::<Vec<_>>();
                assert!(bits(&found) == bits(expected), "{} {layout:?} {row}", kind.name());
            }
        }
    }
}

#[test]
fn columns_in_another_order_keep_their_weights() {
    let mut random = Random(11);
    for kind in BlockType::ALL {
        let (count, cols) = (3, 768);
        let bytes = blocks(kind, count * cols / kind.elements(), &mut random);
        let rows = transcoded(kind, &bytes, cols);
        let mut expected = vec![f32::NAN; count * cols];
        kind.decode(&bytes, &mut expected);
        let whole = ScaledBlocks::whole(kind);
        for span in [1u8, 2, 4, 8].into_iter().filter(|span| *span <= whole.codec().form.span) {
            let columns = 32 * usize::from(span);
            // The units are in reverse order, without the first.
            let units: Vec<usize> = (1..cols / columns).rev().collect();
            let blocks = ScaledBlocks { span, ..whole };
            let mut taken = blocks.rows(count, units.len() * columns).unwrap();
            let mut run = ScaledRun::from_row(&mut taken, 0);
            take_units(&rows, &whole.codec().form, span, &units, &mut run);
            let codec = blocks.codec();
            let places = (0..count).flat_map(|row| {
                let of_unit = move |unit: &usize| {
                    let first = row * cols + unit * columns;
                    first..first + columns
                };
                units.iter().flat_map(of_unit).collect::<Vec<_>>()
            });
            for (at, place) in places.enumerate() {
                let found = weight(&codec, &taken, at, codec.form.top());
                assert_eq!(found.to_bits(), expected[place].to_bits(), "{} {span}", kind.name());
            }
        }
    }
}

/// Returns a standard normal number, the sum of twelve uniform ones.
fn normal(random: &mut Random) -> f32 {
    let uniform = || (random.next() >> 40) as f32 / (1u32 << 24) as f32;
    std::iter::repeat_with(uniform).take(12).sum::<f32>() - 6.0
}

/// Quantizes weights with a type's codec by simple rounding. Each sub-block covers its own range, with scale
/// and minimum rounded to the codec's precision.
fn quantized(kind: BlockType, weights: &[f32], cols: usize) -> ScaledRows {
    let codec = ScaledBlocks::whole(kind).codec();
    let form = codec.form;
    let mut out = ScaledBlocks::whole(kind).rows(weights.len() / cols, cols).unwrap();
    let codes = (1u32 << form.bits) - 1;
    let zero = -f32::from(codec.value(form.top(), 0));
    let (sub, span) = (usize::from(form.sub_block), 32 * usize::from(form.span));
    let half = |value: f32| half::f16::from_f32(value);
    for (at, weights) in weights.chunks(span).enumerate() {
        // Scale (of either sign) and subtracted minimum of each sub-block.
        let wanted: Vec<[f32; 2]> = weights
            .chunks(sub)
            .map(|weights| {
                let extreme = |a: f32, b: &f32| if b.abs() > a.abs() { *b } else { a };
                let extreme = weights.iter().fold(0.0, extreme);
                let least = weights.iter().fold(0.0f32, |a, b| a.min(*b));
                let most = weights.iter().fold(0.0f32, |a, b| a.max(*b));
                match (form.minima, form.bits) {
                    (Minima::None, 8) => [extreme.abs() / 127.0, 0.0],
                    (Minima::None, _) => [extreme / -zero, 0.0],
                    _ => [(most - least) / codes as f32, -least],
                }
            })
            .collect();
        let peak = |which: usize| {
            wanted.iter().fold(0.0f32, |a, b| if b[which].abs() > a.abs() { b[which] } else { a })
        };
        let factor = match form.sub_scale {
            SubScale::None => 1.0,
            SubScale::I8 => 127.0,
            _ => 63.0,
        };
        let (scale, least) = (half(peak(0) / factor), half(peak(1) / 63.0));
        out.scales[2 * at..2 * at + 2].copy_from_slice(&scale.to_le_bytes());
        if form.minima != Minima::None {
            out.minima[2 * at..2 * at + 2].copy_from_slice(&least.to_le_bytes());
        }
        for (index, (weights, wanted)) in weights.chunks(sub).zip(&wanted).enumerate() {
            let place = at * span / sub + index;
            let rounded = |wanted: f32, unit: half::f16| (wanted / unit.to_f32()).round();
            let sub_scale = match form.sub_scale {
                SubScale::None => 1.0,
                _ => rounded(wanted[0], scale),
            };
            if form.sub_scale != SubScale::None {
                out.sub_scales[place] = sub_scale as i32 as u8;
            }
            let sub_least = rounded(wanted[1], least);
            if form.has_sub_minima() {
                out.sub_minima[place] = sub_least as u8;
            }
            let (step, least) = (scale.to_f32() * sub_scale, least.to_f32() * sub_least);
            let least = if form.minima == Minima::None { 0.0 } else { least };
            for (k, weight) in weights.iter().enumerate() {
                let code = ((weight + least) / step + zero).round().clamp(0.0, codes as f32);
                out.codes[at * span + index * sub + k] = (code as u8) << (8 - form.bits);
            }
        }
    }
    out
}

/// The expected figures come from other quantizers, with slightly better or worse codes. That of Q8_0 at
/// level 6 was measured with this test.
#[test]
fn lower_levels_of_normal_weights_have_the_errors_of_their_bits() {
    use BlockType as T;
    let mut random = Random(10);
    let cols = 2048;
    let weights: Vec<f32> = (0..256 * cols).map(|_| normal(&mut random)).collect();
    for (kind, expected) in [
        (T::Q4_0, vec![9.4, 15.3, 21.3]),
        (T::Q8_0, vec![9.2, 15.1, 21.2, 32.7, 45.4]),
        (T::Q4K, vec![9.9, 16.2, 22.8]),
        (T::Q5K, vec![9.9, 16.1, 22.2, 28.8]),
        (T::Q6K, vec![10.0, 16.1, 22.1, 35.5]),
    ] {
        let rows = quantized(kind, &weights, cols);
        let codec = ScaledBlocks::whole(kind).codec();
        for (level, expected) in Level::ALL.into_iter().zip(expected) {
            let mut sums = [0.0f64; 2];
            for (at, weight_wanted) in weights.iter().enumerate() {
                let error = weight(&codec, &rows, at, level) - weight_wanted;
                sums[0] += f64::from(*weight_wanted).powi(2);
                sums[1] += f64::from(error).powi(2);
            }
            let found = 10.0 * (sums[0] / sums[1]).log10();
            println!("{} level {}: {found:.2} dB, {expected}", kind.name(), level.bits());
            assert!((found - expected).abs() < 0.9, "{} {level:?} {found}", kind.name());
        }
    }
}

#[test]
fn scales_that_are_not_finite_are_refused_by_their_block() {
    let mut random = Random(8);
    for kind in BlockType::ALL {
        let good = blocks(kind, 6, &mut random);
        let wrong = |change: &dyn Fn(&mut [u8])| {
            let mut bytes = good.clone();
            change(&mut bytes[4 * kind.bytes()..]);
            let mut rows = ScaledBlocks::whole(kind).rows(1, 6 * kind.elements()).unwrap();
            kind.transcode(&bytes, &mut ScaledRun::from_row(&mut rows, 0)).unwrap_err()
        };
        for bits in [0x7c00u16, 0xfc00, 0x7e01] {
            for at in halves(kind) {
                let found = wrong(&|block| block[*at..at + 2].copy_from_slice(&bits.to_le_bytes()));
                assert!(found.block == 4 && !found.scale.is_finite(), "{} {found:?}", kind.name());
            }
        }
        match kind {
            BlockType::Iq1M => {
                let found = wrong(&|block| {
                    block[55] |= 0x70;
                    block[53] |= 0xc0;
                });
                assert_eq!(found.block, 4);
            }
            BlockType::Nvfp4 => assert_eq!(wrong(&|block| block[2] = 255).block, 4),
            BlockType::Mxfp4 => {
                assert!(wrong(&|block| block[0] = 255).scale.is_nan());
                let large = wrong(&|block| block[0] = 248);
                assert_eq!((large.block, large.scale), (4, 2f32.powi(121)));
            }
            _ => {}
        }
    }
}
