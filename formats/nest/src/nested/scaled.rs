//! The codec of integers with scales, an exact representation of GGUF block types, NVFP4 and int4 files.
//!
//! A weight is an integer or an entry of a small table, times a scale of its row and span, times a sub-scale
//! of its sub-block, plus a minimum if the type has one. The integers are divided into planes like any code,
//! so that their leading bits are coarse codes. `FORMAT.md` specifies the exact arithmetic.

use half::{bf16, f16};

use super::{GROUP, NestedError, NestedTables, TABLE_BYTES};
use crate::{Level, Plane};

/// Encoded size of a [`ScaledCodec`] in bytes.
pub const SCALED_CODEC_BYTES: usize = 24 + TABLE_BYTES;

/// Maximum magnitude of an exponent in [`ScaledCodec::units`].
const UNIT_MAX: i8 = 16;

/// Element type of the scales of spans.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum ScaleType {
    /// Absent scales, which count as 1.
    None = 0,
    /// IEEE binary16.
    F16 = 1,
    /// bfloat16.
    Bf16 = 2,
    /// IEEE binary32.
    F32 = 3,
}

impl ScaleType {
    const ALL: [Self; 4] = [Self::None, Self::F16, Self::Bf16, Self::F32];

    /// Returns the bytes of one scale.
    pub const fn bytes(self) -> usize {
        match self {
            Self::None => 0,
            Self::F16 | Self::Bf16 => 2,
            Self::F32 => 4,
        }
    }

    /// Reads scale number `index` from a run of scales.
    pub(super) fn get(self, scales: &[u8], index: usize) -> f32 {
        let at = index * self.bytes();
        match self {
            Self::None => 1.0,
            Self::F16 => f16::from_le_bytes([scales[at], scales[at + 1]]).to_f32(),
            Self::Bf16 => bf16::from_le_bytes([scales[at], scales[at + 1]]).to_f32(),
            Self::F32 => {
                f32::from_le_bytes([scales[at], scales[at + 1], scales[at + 2], scales[at + 3]])
            }
        }
    }
}

/// Type of a sub-block's byte, which multiplies the scale of the span.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum SubScale {
    /// Absent sub-scales, which count as 1.
    None = 0,
    /// An unsigned integer.
    U8 = 1,
    /// A signed integer.
    I8 = 2,
    /// FP8 without sign: four exponent bits with bias 7 and three mantissa bits; 0 to 0x7e.
    E4m3 = 3,
    /// Power of two with bias 127; 0 to 254.
    E8m0 = 4,
    /// Low four bits: unsigned integer. High four bits: the minimum.
    Nibbles = 5,
}

impl SubScale {
    const ALL: [Self; 6] = [Self::None, Self::U8, Self::I8, Self::E4m3, Self::E8m0, Self::Nibbles];

    /// Returns the bytes per sub-block.
    pub const fn bytes(self) -> usize {
        match self {
            Self::None => 0,
            _ => 1,
        }
    }

    /// Returns the largest byte that is a valid number.
    pub(super) const fn largest(self) -> u8 {
        match self {
            Self::E4m3 => 0x7e,
            Self::E8m0 => 0xfe,
            _ => 0xff,
        }
    }

    /// Decodes a byte to a factor; [`Self::Nibbles`] uses the low four bits.
    pub fn factor(self, byte: u8) -> f32 {
        match self {
            Self::None => 1.0,
            Self::U8 => f32::from(byte),
            Self::I8 => f32::from(i8::from_le_bytes([byte])),
            Self::Nibbles => f32::from(byte & 15),
            Self::E4m3 => {
                let (exponent, mantissa) = (u32::from(byte >> 3 & 15), f32::from(byte & 7));
                if exponent == 0 {
                    return mantissa * f32::from_bits((127 - 9) << 23);
                }
                (1.0 + mantissa * 0.125) * f32::from_bits((exponent + 127 - 7) << 23)
            }
            Self::E8m0 => match byte {
                0 => f32::from_bits(1 << 22),
                _ => f32::from_bits(u32::from(byte) << 23),
            },
        }
    }
}

/// Type of the minima that are added to the weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Minima {
    /// Absent minima.
    None = 0,
    /// One minimum per row and span, in the type of the scales.
    Spans = 1,
    /// One factor per row and span, in the type of the scales, times an unsigned integer per sub-block. The
    /// product is subtracted.
    SubBlocks = 2,
}

impl Minima {
    const ALL: [Self; 3] = [Self::None, Self::Spans, Self::SubBlocks];
}

/// Parameters that determine the layout of a matrix's planes with this codec.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ScaledForm {
    /// Bits of a complete code: 2, 3, 4, 5, 6 or 8.
    pub bits: u8,
    /// Number of columns that share a sub-scale: 16 or 32.
    pub sub_block: u8,
    /// Number of groups of 32 columns that share a scale: 1, 2, 4 or 8.
    pub span: u8,
    /// Type of the spans' scales.
    pub scale: ScaleType,
    /// Type of the sub-blocks' sub-scales.
    pub sub_scale: SubScale,
    /// Type of the minima.
    pub minima: Minima,
}

impl ScaledForm {
    /// Returns the number of sub-blocks per group: 1 or 2.
    pub const fn sub_blocks(&self) -> usize {
        GROUP / self.sub_block as usize
    }

    /// Returns true if the minima of sub-blocks are stored in separate bytes.
    pub const fn has_sub_minima(&self) -> bool {
        matches!(self.minima, Minima::SubBlocks) && !matches!(self.sub_scale, SubScale::Nibbles)
    }

    /// Returns the bits that a plane holds per code; 0 if the plane does not exist.
    pub const fn plane_bits(&self, plane: Plane) -> u8 {
        match (plane, self.bits) {
            (Plane::P2, _) | (Plane::P6, 6 | 8) | (Plane::P8, 8) => 2,
            (Plane::P3, 3..) | (Plane::P4, 4..) | (Plane::P6, 5) => 1,
            _ => 0,
        }
    }

    /// Returns the level of complete codes.
    pub const fn top(&self) -> Level {
        match self.bits {
            ..=2 => Level::L2,
            3 => Level::L3,
            4 => Level::L4,
            5 | 6 => Level::L6,
            7.. => Level::L8,
        }
    }

    /// Checks that the format supports the value of each field.
    ///
    /// # Errors
    /// [`NestedError::Codec`] if it does not.
    pub fn check(&self) -> Result<(), NestedError> {
        let error = |what, found: u8, expected| {
            Err(NestedError::Codec { what, found: found.into(), expected })
        };
        if !matches!(self.bits, 2 | 3 | 4 | 5 | 6 | 8) {
            return error("bits of a code", self.bits, "2, 3, 4, 5, 6 or 8");
        }
        if !matches!(self.sub_block, 16 | 32) {
            return error("columns of a sub-block", self.sub_block, "16 or 32");
        }
        if !matches!(self.span, 1 | 2 | 4 | 8) {
            return error("groups of a span", self.span, "1, 2, 4 or 8");
        }
        let nibbles = self.sub_scale == SubScale::Nibbles;
        if nibbles && self.minima != Minima::SubBlocks {
            return error("minima", self.minima as u8, "2 where sub-scales are nibbles");
        }
        if self.minima != Minima::None && self.scale == ScaleType::None {
            return error("minima", self.minima as u8, "0 without scales");
        }
        let none = self.scale == ScaleType::None && self.sub_scale == SubScale::None;
        if none || (self.sub_scale == SubScale::None && self.sub_block != 32) {
            return error("sub-scale", self.sub_scale as u8, "one, where scales do not suffice");
        }
        Ok(())
    }
}

/// Linear values of the prefixes of level 6 or 8: `prefix * stride - zero`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinearValues {
    /// Difference between the values of neighbouring prefixes; 0 if the level does not exist.
    pub stride: u8,
    /// Offset to subtract.
    pub zero: i16,
}

/// Parameters of a matrix of scaled integers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScaledCodec {
    /// Parameters that determine the layout.
    pub form: ScaledForm,
    /// Exponents of the power-of-two units of values at levels 2, 3, 4, 6 and 8.
    pub units: [i8; 5],
    /// Values of the prefixes of levels 2, 3 and 4.
    pub tables: NestedTables,
    /// Values of the prefixes of levels 6 and 8.
    pub linear: [LinearValues; 2],
}

impl ScaledCodec {
    /// Encodes the codec as stored, little-endian.
    pub fn to_bytes(&self) -> Vec<u8> {
        let ScaledForm { bits, sub_block, span, scale, sub_scale, minima } = self.form;
        let mut bytes = vec![bits, sub_block, span, scale as u8, sub_scale as u8, minima as u8];
        bytes.extend(self.units.iter().map(|unit| unit.to_le_bytes()[0]));
        bytes.extend([0; 5]);
        for values in &self.linear {
            bytes.extend([values.stride, 0]);
            bytes.extend(values.zero.to_le_bytes());
        }
        bytes.extend(self.tables.to_bytes());
        bytes
    }

    /// Decodes and checks the output of [`Self::to_bytes`]; `bytes` must end with the codec.
    ///
    /// # Errors
    /// [`NestedError::Length`] or [`NestedError::Codec`] if the bytes are invalid.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, NestedError> {
        let Ok(bytes) = <&[u8; SCALED_CODEC_BYTES]>::try_from(bytes) else {
            let (what, expected, found) = ("codec", SCALED_CODEC_BYTES, bytes.len());
            return Err(NestedError::Length { what, expected, found });
        };
        let reserved = bytes[11..16].iter().chain([&bytes[17], &bytes[21]]);
        if let Some(byte) = reserved.into_iter().find(|byte| **byte != 0) {
            let (what, found) = ("reserved byte", i64::from(*byte));
            return Err(NestedError::Codec { what, found, expected: "0" });
        }
        let form = ScaledForm {
            bits: bytes[0],
            sub_block: bytes[1],
            span: bytes[2],
            scale: choose("type of scales", bytes[3], &ScaleType::ALL, "0..=3")?,
            sub_scale: choose("type of sub-scales", bytes[4], &SubScale::ALL, "0..=5")?,
            minima: choose("minima", bytes[5], &Minima::ALL, "0..=2")?,
        };
        let units = std::array::from_fn(|level| i8::from_le_bytes([bytes[6 + level]]));
        let linear = [16, 20].map(|at| LinearValues {
            stride: bytes[at],
            zero: i16::from_le_bytes([bytes[at + 2], bytes[at + 3]]),
        });
        let mut tables = [0; TABLE_BYTES];
        tables.copy_from_slice(&bytes[SCALED_CODEC_BYTES - TABLE_BYTES..]);
        let tables = NestedTables::from_bytes(&tables)?;
        let codec = Self { form, units, tables, linear };
        codec.check()?;
        Ok(codec)
    }

    /// Checks each parameter, so that all values fit in int8.
    ///
    /// # Errors
    /// [`NestedError::Codec`] if a parameter is invalid.
    pub fn check(&self) -> Result<(), NestedError> {
        self.form.check()?;
        let error = |what, found: i64, expected| Err(NestedError::Codec { what, found, expected });
        for (level, unit) in Level::ALL.into_iter().zip(self.units) {
            if !(-UNIT_MAX..=UNIT_MAX).contains(&unit) {
                return error("unit of a level", unit.into(), "-16..=16");
            }
            if level > self.form.top() && unit != 0 {
                return error("unit of a level above the codes", unit.into(), "0");
            }
        }
        for (level, values) in [Level::L6, Level::L8].into_iter().zip(&self.linear) {
            let there = level <= self.form.top();
            if there != (values.stride != 0) || (!there && values.zero != 0) {
                return error("stride", values.stride.into(), "0 exactly above the codes' level");
            }
            let last = (1i64 << self.prefix_bits(level)) - 1;
            let ends =
                [0, last].map(|prefix| prefix * i64::from(values.stride) - i64::from(values.zero));
            if let Some(end) = ends.into_iter().find(|end| i8::try_from(*end).is_err()) {
                return error("value of a code", end, "-128..=127");
            }
        }
        self.tables.check()
    }

    /// Returns the number of leading code bits that a level reads, at most the bits of a complete code.
    pub(super) fn prefix_bits(&self, level: Level) -> u8 {
        level.bits().min(self.form.bits)
    }

    /// Decodes a code to an int8; only the leading bits of `level` count.
    ///
    /// A level above [`ScaledForm::top`] is treated as that level.
    pub fn value(&self, level: Level, code: u8) -> i8 {
        let level = level.min(self.form.top());
        let prefix = code >> (8 - self.prefix_bits(level));
        let linear = |values: LinearValues| {
            let value = i32::from(prefix) * i32::from(values.stride) - i32::from(values.zero);
            debug_assert!(i8::try_from(value).is_ok(), "the codec was checked");
            value as i8
        };
        match level {
            Level::L2 => self.tables.t2[usize::from(prefix)],
            Level::L3 => self.tables.t3[usize::from(prefix)],
            Level::L4 => self.tables.t4[usize::from(prefix)],
            Level::L6 => linear(self.linear[0]),
            Level::L8 => linear(self.linear[1]),
        }
    }

    /// Returns the power-of-two unit of values at a level.
    pub fn unit(&self, level: Level) -> f32 {
        let exponent = i32::from(self.units[level.min(self.form.top()).index()]);
        f32::from_bits(u32::try_from(127 + exponent).map_or(0, |biased| biased << 23))
    }
}

/// Returns the list member with the index given by a byte.
fn choose<T: Copy>(
    what: &'static str,
    byte: u8,
    all: &[T],
    expected: &'static str,
) -> Result<T, NestedError> {
    let found = all.get(usize::from(byte)).copied();
    found.ok_or(NestedError::Codec { what, found: byte.into(), expected })
}
