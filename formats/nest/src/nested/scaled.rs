//! The codec of integers with scales: what GGUF's block types, NVFP4 and int4 files are, exactly.
//!
//! A weight is an integer or an entry of a small table, times a scale of its row and span, times a
//! sub-scale of its sub-block, plus a minimum where the type has one. The integers are cut into
//! planes like any code, so that their leading bits are coarse codes. `FORMAT.md` has the exact
//! arithmetic.

use half::{bf16, f16};

use super::{GROUP, NestedError, NestedTables, TABLE_BYTES};
use crate::{Level, Plane};

/// Bytes of an encoded [`ScaledCodec`].
pub const SCALED_CODEC_BYTES: usize = 24 + TABLE_BYTES;

/// Largest magnitude of an exponent in [`ScaledCodec::units`].
const UNIT_MAX: i8 = 16;

/// Element type of the scales of spans.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum ScaleType {
    /// There are none: they count as 1.
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

    /// Bytes of one scale.
    pub const fn bytes(self) -> usize {
        match self {
            Self::None => 0,
            Self::F16 | Self::Bf16 => 2,
            Self::F32 => 4,
        }
    }

    /// The scale with that number in a run of them.
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

/// What the byte of a sub-block multiplies its span's scale with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum SubScale {
    /// There are none: they count as 1.
    None = 0,
    /// An unsigned integer.
    U8 = 1,
    /// A signed integer.
    I8 = 2,
    /// FP8 with four bits of exponent, of bias 7, and three of mantissa, without sign; 0 to 0x7e.
    E4m3 = 3,
    /// A power of two of bias 127; 0 to 254.
    E8m0 = 4,
    /// The low four bits are an unsigned integer; the high four are the minimum's.
    Nibbles = 5,
}

impl SubScale {
    const ALL: [Self; 6] = [Self::None, Self::U8, Self::I8, Self::E4m3, Self::E8m0, Self::Nibbles];

    /// Bytes of a sub-block.
    pub const fn bytes(self) -> usize {
        match self {
            Self::None => 0,
            _ => 1,
        }
    }

    /// The largest byte that is a number.
    pub(super) const fn largest(self) -> u8 {
        match self {
            Self::E4m3 => 0x7e,
            Self::E8m0 => 0xfe,
            _ => 0xff,
        }
    }

    /// The factor that a byte stands for; of [`Self::Nibbles`] that of the low four bits.
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

/// What is added to the weights of a sub-block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Minima {
    /// Nothing.
    None = 0,
    /// A minimum of each row and span, of the scales' type.
    Spans = 1,
    /// A number of each row and span, of the scales' type, times an unsigned integer of each
    /// sub-block, subtracted.
    SubBlocks = 2,
}

impl Minima {
    const ALL: [Self; 3] = [Self::None, Self::Spans, Self::SubBlocks];
}

/// What decides how the planes of a matrix of this codec are laid out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ScaledForm {
    /// Bits of a complete code: 2, 3, 4, 5, 6 or 8.
    pub bits: u8,
    /// Columns that share a sub-scale: 16 or 32.
    pub sub_block: u8,
    /// Groups of 32 columns that share a scale: 1, 2, 4 or 8.
    pub span: u8,
    /// Scales of spans.
    pub scale: ScaleType,
    /// Sub-scales of sub-blocks.
    pub sub_scale: SubScale,
    /// Minima.
    pub minima: Minima,
}

impl ScaledForm {
    /// Sub-blocks of a group: 1 or 2.
    pub const fn sub_blocks(&self) -> usize {
        GROUP / self.sub_block as usize
    }

    /// Whether sub-blocks have minima in bytes of their own.
    pub const fn has_sub_minima(&self) -> bool {
        matches!(self.minima, Minima::SubBlocks) && !matches!(self.sub_scale, SubScale::Nibbles)
    }

    /// Bits that a plane holds of each code; 0 for a plane that there is not.
    pub const fn plane_bits(&self, plane: Plane) -> u8 {
        match (plane, self.bits) {
            (Plane::P2, _) | (Plane::P6, 6 | 8) | (Plane::P8, 8) => 2,
            (Plane::P3, 3..) | (Plane::P4, 4..) | (Plane::P6, 5) => 1,
            _ => 0,
        }
    }

    /// The level of complete codes.
    pub const fn top(&self) -> Level {
        match self.bits {
            ..=2 => Level::L2,
            3 => Level::L3,
            4 => Level::L4,
            5 | 6 => Level::L6,
            7.. => Level::L8,
        }
    }

    /// Checks that every field is one that the format has.
    ///
    /// # Errors
    /// [`NestedError::Codec`].
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

/// Values of the prefixes of level 6 or 8: `prefix * stride - zero`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinearValues {
    /// How far apart the values of neighbouring prefixes lie; 0 at a level that there is not.
    pub stride: u8,
    /// What is subtracted.
    pub zero: i16,
}

/// The parameters of a matrix of scaled integers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScaledCodec {
    /// What decides the layout.
    pub form: ScaledForm,
    /// Exponents of the powers of two that values of levels 2, 3, 4, 6 and 8 are counted in.
    pub units: [i8; 5],
    /// Values of the prefixes of levels 2, 3 and 4.
    pub tables: NestedTables,
    /// Values of the prefixes of levels 6 and 8.
    pub linear: [LinearValues; 2],
}

impl ScaledCodec {
    /// The codec as stored, little-endian.
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

    /// Reads and checks what [`Self::to_bytes`] wrote; `bytes` must end with the codec.
    ///
    /// # Errors
    /// [`NestedError::Length`], [`NestedError::Codec`].
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

    /// Checks every parameter, so that all values are int8.
    ///
    /// # Errors
    /// [`NestedError::Codec`].
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

    /// Bits of the code that a level reads: those of the level, where the code has them.
    pub(super) fn prefix_bits(&self, level: Level) -> u8 {
        level.bits().min(self.form.bits)
    }

    /// The value of a code, of which only the leading bits of `level` count: an int8.
    ///
    /// A level above [`ScaledForm::top`] counts as that.
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

    /// The power of two that values of a level are counted in.
    pub fn unit(&self, level: Level) -> f32 {
        let exponent = i32::from(self.units[level.min(self.form.top()).index()]);
        f32::from_bits(u32::try_from(127 + exponent).map_or(0, |biased| biased << 23))
    }
}

/// The member of a list that a byte numbers.
fn choose<T: Copy>(
    what: &'static str,
    byte: u8,
    all: &[T],
    expected: &'static str,
) -> Result<T, NestedError> {
    let found = all.get(usize::from(byte)).copied();
    found.ok_or(NestedError::Codec { what, found: byte.into(), expected })
}
