//! Parameters of the nested code and decoding of single values.

use super::{InputTransform, MAX_TABLES, NestedError, ScaleSteps};
use crate::Level;

/// Bytes of one [`NestedTables`].
pub const TABLE_BYTES: usize = 28;

/// Maximum magnitude of a decoded value, so that each value splits into two int8 digits in base 128.
pub const VALUE_LIMIT: i16 = 127 * 128 + 63;

/// Bytes before the tables in a codec's encoding.
const CODEC_HEADER_BYTES: usize = 8;

/// Maximum |x| in the integer formula: level 8, `beta_q` 32, the outermost code.
const X_LIMIT: i32 = 4 * (256 * 15 + 32 * 15);

/// Values of levels 2, 3 and 4 in units of 1/127, indexed by the code's prefix; each in -127..=127.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NestedTables {
    /// Values of the 2-bit prefixes.
    pub t2: [i8; 4],
    /// Values of the 3-bit prefixes.
    pub t3: [i8; 8],
    /// Values of the 4-bit prefixes.
    pub t4: [i8; 16],
}

impl NestedTables {
    /// Encodes the tables as stored: `t2`, `t3`, `t4`.
    pub fn to_bytes(&self) -> [u8; TABLE_BYTES] {
        let mut bytes = [0; TABLE_BYTES];
        let values = self.t2.iter().chain(&self.t3).chain(&self.t4);
        for (byte, value) in bytes.iter_mut().zip(values) {
            *byte = value.to_le_bytes()[0];
        }
        bytes
    }

    /// Decodes the output of [`Self::to_bytes`]; returns an error if an entry is -128.
    pub fn from_bytes(bytes: &[u8; TABLE_BYTES]) -> Result<Self, NestedError> {
        let mut tables = Self { t2: [0; 4], t3: [0; 8], t4: [0; 16] };
        let values = tables.t2.iter_mut().chain(&mut tables.t3).chain(&mut tables.t4);
        for (value, byte) in values.zip(bytes) {
            *value = i8::from_le_bytes([*byte]);
        }
        tables.check()?;
        Ok(tables)
    }

    pub(super) fn check(&self) -> Result<(), NestedError> {
        match self.t2.iter().chain(&self.t3).chain(&self.t4).find(|value| **value == i8::MIN) {
            None => Ok(()),
            Some(_) => {
                Err(NestedError::Codec { what: "table value", found: -128, expected: "-127..=127" })
            }
        }
    }
}

/// Parameters shared by the matrices of one layer and kind.
///
/// ```
/// use nestling_formats::Level;
/// use nestling_formats::nested::{InputTransform, NestedCodec, NestedTables, ScaleSteps};
///
/// let codec = NestedCodec {
///     alpha_a: 16384, // no companding
///     alpha_b: 0,
///     beta_q: 16,
///     tables: vec![NestedTables { t2: [-96, -32, 32, 96], t3: [0; 8], t4: [0; 16] }],
///     inputs: InputTransform::None,
///     steps: ScaleSteps::default(),
/// };
/// codec.check()?;
/// assert_eq!(codec.value(Level::L2, 0, 0b11_000000), 96); // the leading bits alone
/// assert_eq!(NestedCodec::from_bytes(&codec.to_bytes())?, codec);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NestedCodec {
    /// Slope of the companding at zero, alpha * 2^14; 1..=16384.
    pub alpha_a: u16,
    /// Growth of the slope, (1 - alpha) * 2^15; at most 32766.
    pub alpha_b: u16,
    /// Stretch of the cells of levels 6 and 8 in 1/16; 16 nests exactly, 16..=32.
    pub beta_q: u8,
    /// Tables, 1 to 16. Each tile of a matrix selects one by its index.
    pub tables: Vec<NestedTables>,
    /// Transform applied to the inputs; the weights are coded to match it.
    pub inputs: InputTransform,
    /// Spacing of the scale steps.
    pub steps: ScaleSteps,
}

impl NestedCodec {
    /// Returns the encoded size in bytes of a codec with a given number of tables.
    pub const fn encoded_bytes(tables: usize) -> usize {
        CODEC_HEADER_BYTES + TABLE_BYTES * tables
    }

    /// Encodes the codec as stored, little-endian: `alpha_a` u16, `alpha_b` u16, `beta_q` u8, number of
    /// tables u8, input transform u8, scale steps u8, the tables.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(Self::encoded_bytes(self.tables.len()));
        bytes.extend_from_slice(&self.alpha_a.to_le_bytes());
        bytes.extend_from_slice(&self.alpha_b.to_le_bytes());
        bytes.push(self.beta_q);
        bytes.push(u8::try_from(self.tables.len()).unwrap_or(u8::MAX));
        bytes.extend_from_slice(&[self.inputs.to_byte(), self.steps.to_byte()]);
        for tables in &self.tables {
            bytes.extend_from_slice(&tables.to_bytes());
        }
        bytes
    }

    /// Decodes and checks the output of [`Self::to_bytes`]; `bytes` must end with the codec.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, NestedError> {
        let Some((header, rest)) = bytes.split_first_chunk::<CODEC_HEADER_BYTES>() else {
            return Err(length("codec header", CODEC_HEADER_BYTES, bytes.len()));
        };
        let [a0, a1, b0, b1, beta_q, count, inputs, steps] = *header;
        let Some(steps) = ScaleSteps::from_byte(steps) else {
            let found = i64::from(steps);
            return Err(NestedError::Codec { what: "scale steps", found, expected: "0 or 1" });
        };
        let Some(inputs) = InputTransform::from_byte(inputs) else {
            let found = i64::from(inputs);
            return Err(NestedError::Codec { what: "input transform", found, expected: "0 or 1" });
        };
        let expected = Self::encoded_bytes(usize::from(count));
        if bytes.len() != expected {
            return Err(length("codec", expected, bytes.len()));
        }
        let (chunks, _) = rest.as_chunks::<TABLE_BYTES>();
        let tables = chunks.iter().map(NestedTables::from_bytes).collect::<Result<_, _>>()?;
        let alpha_a = u16::from_le_bytes([a0, a1]);
        let alpha_b = u16::from_le_bytes([b0, b1]);
        let codec = Self { alpha_a, alpha_b, beta_q, tables, inputs, steps };
        codec.check()?;
        Ok(codec)
    }

    /// Checks the range of each parameter, so that no decoded value exceeds [`VALUE_LIMIT`].
    pub fn check(&self) -> Result<(), NestedError> {
        let error = |what, found: i64, expected| NestedError::Codec { what, found, expected };
        if !(1..=16384).contains(&self.alpha_a) {
            return Err(error("alpha_a", self.alpha_a.into(), "1..=16384"));
        }
        if i32::from(self.alpha_b) != 32768 - 2 * i32::from(self.alpha_a) {
            return Err(error("alpha_b", self.alpha_b.into(), "32768 - 2 * alpha_a"));
        }
        if !(16..=32).contains(&self.beta_q) {
            return Err(error("beta_q", self.beta_q.into(), "16..=32"));
        }
        if !(1..=MAX_TABLES).contains(&self.tables.len()) {
            let found = i64::try_from(self.tables.len()).unwrap_or(i64::MAX);
            return Err(error("number of tables", found, "1..=16"));
        }
        self.tables.iter().try_for_each(NestedTables::check)
    }

    /// Returns the companding parameter, in 0..=1.
    pub fn alpha(&self) -> f32 {
        f32::from(self.alpha_a) / 16384.0
    }

    /// Decodes a code, of which only the leading bits of `level` count.
    ///
    /// The value is in units of [`ScaleSteps::unit`]. A table index out of range counts as 0.
    pub fn value(&self, level: Level, table: u8, code: u8) -> i16 {
        let prefix = usize::from(code >> (8 - level.bits()));
        let Some(tables) = self.tables.get(usize::from(table)).or(self.tables.first()) else {
            return 0;
        };
        let entry = match level {
            Level::L2 => tables.t2.get(prefix),
            Level::L3 => tables.t3.get(prefix),
            Level::L4 => tables.t4.get(prefix),
            Level::L6 | Level::L8 => return self.formula(level, code),
        };
        entry.map_or(0, |value| i16::from(*value))
    }

    /// Evaluates the integer formula of levels 6 and 8; any other level counts as 8.
    fn formula(&self, level: Level, code: u8) -> i16 {
        let (p4, d6, d8) = (i32::from(code >> 4), i32::from(code >> 2 & 3), i32::from(code & 3));
        let fine = if level == Level::L6 { 0 } else { 2 * d8 - 3 };
        let offset = 4 * (2 * d6 - 3) + fine;
        let middle = 256 * (2 * p4 - 15) + i32::from(self.beta_q) * offset;
        let x = 4 * middle;
        let slope = i32::from(self.alpha_a) + multiply_round(x.abs(), self.alpha_b.into());
        let value = multiply_round(x, slope);
        debug_assert!(x.abs() <= X_LIMIT && slope < 1 << 15);
        i16::try_from(value).unwrap_or(if value < 0 { -VALUE_LIMIT } else { VALUE_LIMIT })
    }
}

/// Emulates `pmulhrsw`: the product of two 16-bit numbers over 2^15, rounded half up.
const fn multiply_round(a: i32, b: i32) -> i32 {
    (a * b + (1 << 14)) >> 15
}

fn length(what: &'static str, expected: usize, found: usize) -> NestedError {
    NestedError::Length { what, expected, found }
}
