//! The codec of each block type, and the values of its lower levels.

use nestling_formats::Level;
use nestling_formats::nested::{
    LinearValues, Minima, NestedTables, ScaleType, ScaledCodec, ScaledForm, SubScale,
};

use crate::gguf::BlockType;
use crate::gguf::block::IQ4_VALUES;
use crate::gguf::i_quants::{IQ3_S_MAGNITUDES, IQ3_XXS_MAGNITUDES};

/// Values of IQ2, ascending. The smallest magnitude, the most frequent one, occurs twice, so that the 2-bit
/// prefixes keep it.
pub(super) const IQ2_VALUES: [i8; 8] = [-43, -25, -8, -8, 8, 8, 25, 43];

/// Values of IQ1 in eighths, ascending; two of them occur twice.
pub(super) const IQ1_VALUES: [i8; 8] = [-9, -7, -1, -1, 1, 1, 7, 9];

/// Doubled values of FP4, ascending.
const FP4_ASCENDING: [i8; 16] = [-12, -8, -6, -4, -3, -2, -1, 0, 0, 1, 2, 3, 4, 6, 8, 12];

/// Maximum number of binary places by which the unit of a lower level is finer.
const FINER_MAX: u8 = 3;

/// Values of the complete codes of a type, in ascending order.
struct Values {
    of_codes: Vec<i16>,
    /// Exponent of the power of two that is the unit of the values.
    unit: i8,
}

impl Values {
    /// Returns the codes minus `zero` as values.
    fn linear(bits: u8, zero: i16) -> Self {
        Self { of_codes: (0..1 << bits).map(|code: i16| code - zero).collect(), unit: 0 }
    }

    fn table(values: impl IntoIterator<Item = i8>, unit: i8) -> Self {
        Self { of_codes: values.into_iter().map(i16::from).collect(), unit }
    }

    fn signed(magnitudes: [i8; 8], unit: i8) -> Self {
        let negative = magnitudes.into_iter().rev().map(|magnitude| -magnitude);
        Self::table(negative.chain(magnitudes), unit)
    }

    /// Returns the mean of the values of each prefix, and the exponent of their unit. The unit is the
    /// coarsest in which all means are integers that fit a byte. If there is none, it is the finest in which
    /// they are at most 127, and the means are rounded.
    fn prefixes<const N: usize>(&self) -> ([i8; N], i8) {
        let count = self.of_codes.len() / N;
        if count == 0 {
            return ([0; N], 0);
        }
        let means = |finer: u8| -> [f32; N] {
            std::array::from_fn(|prefix| {
                let sum: i16 = self.of_codes[prefix * count..][..count].iter().sum();
                f32::from(sum) * f32::from(1u8 << finer) / count as f32
            })
        };
        let fits = |finer: &u8| means(*finer).iter().all(|mean| mean.abs() <= 127.0);
        let exact = |finer: &u8| means(*finer).iter().all(|mean| mean.fract() == 0.0);
        let candidates = (0..=FINER_MAX).filter(fits);
        // Default: means of bytes fit into bytes.
        let finer = candidates.clone().find(exact).or(candidates.max()).unwrap_or(0);
        (means(finer).map(|mean| mean.round() as i8), self.unit - finer as i8)
    }
}

/// Returns the codec that represents the weights of a type exactly.
pub(super) fn codec(kind: BlockType) -> ScaledCodec {
    let (form, values) = (form(kind), values(kind));
    let (t2, unit2) = values.prefixes();
    let (t3, unit3) = values.prefixes();
    let (t4, unit4) = values.prefixes();
    let mut units = [unit2, unit3, unit4, values.unit, values.unit];
    for (level, unit) in Level::ALL.into_iter().zip(&mut units) {
        if level > form.top() {
            *unit = 0;
        }
    }
    let mut linear = [LinearValues::default(); 2];
    let zero = -values.of_codes[0];
    if form.bits == 8 {
        // The mean of four values lies between two integers. The one nearer to zero is used on both sides.
        linear = [LinearValues { stride: 4, zero: zero - 2 }, LinearValues { stride: 1, zero }];
    } else if form.bits > 4 {
        linear[0] = LinearValues { stride: 1, zero };
    }
    ScaledCodec { form, units, tables: NestedTables { t2, t3, t4 }, linear }
}

fn values(kind: BlockType) -> Values {
    use BlockType as T;
    match kind {
        T::Q4_0 => Values::linear(4, 8),
        T::Q4_1 | T::Q4K => Values::linear(4, 0),
        T::Q5_0 => Values::linear(5, 16),
        T::Q5_1 | T::Q5K => Values::linear(5, 0),
        T::Q8_0 => Values::linear(8, 128),
        T::Q2K => Values::linear(2, 0),
        T::Q3K => Values::linear(3, 4),
        T::Q6K => Values::linear(6, 32),
        T::Iq4Nl | T::Iq4Xs => Values::table(IQ4_VALUES, 0),
        T::Mxfp4 | T::Nvfp4 => Values::table(FP4_ASCENDING, -1),
        T::Iq2Xxs | T::Iq2Xs | T::Iq2S => Values::table(IQ2_VALUES, -3),
        T::Iq3Xxs => Values::signed(IQ3_XXS_MAGNITUDES, -2),
        T::Iq3S => Values::signed(IQ3_S_MAGNITUDES, 0),
        T::Iq1S | T::Iq1M => Values::table(IQ1_VALUES, -3),
        T::Tq1_0 | T::Tq2_0 | T::Q2_0 => Values::linear(2, 1),
        T::Q1_0 => Values::table([-1, -1, 1, 1], 0),
    }
}

pub(super) const fn form(kind: BlockType) -> ScaledForm {
    use BlockType as T;
    let (sub_block, sub_scale) = match kind {
        T::Q2K => (16, SubScale::Nibbles),
        T::Q3K | T::Q6K => (16, SubScale::I8),
        T::Iq4Xs => (32, SubScale::I8),
        T::Q4K | T::Q5K | T::Iq2Xxs | T::Iq3Xxs | T::Iq3S | T::Iq1S => (32, SubScale::U8),
        T::Iq2Xs | T::Iq2S | T::Iq1M => (16, SubScale::U8),
        T::Mxfp4 => (32, SubScale::E8m0),
        T::Nvfp4 => (16, SubScale::E4m3),
        T::Q4_0 | T::Q4_1 | T::Q5_0 | T::Q5_1 | T::Q8_0 | T::Iq4Nl => (32, SubScale::None),
        T::Tq1_0 | T::Tq2_0 | T::Q1_0 | T::Q2_0 => (32, SubScale::None),
    };
    let minima = match kind {
        T::Q4_1 | T::Q5_1 => Minima::Spans,
        T::Q2K | T::Q4K | T::Q5K => Minima::SubBlocks,
        _ => Minima::None,
    };
    let (scale, span) = match kind {
        T::Mxfp4 | T::Nvfp4 => (ScaleType::None, 8),
        _ => (ScaleType::F16, (kind.elements() / 32) as u8),
    };
    ScaledForm { bits: kind.code_bits() as u8, sub_block, span, scale, sub_scale, minima }
}
