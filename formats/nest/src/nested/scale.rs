//! Scale steps within a row, and the unit of decoded values.

use half::f16;

use super::{FRACTIONS, ZERO_STEP};
use crate::Level;

/// Factors of the row scale for each 5-bit step: 2^(-k/8) for k < 31, and 0 for 31.
///
/// All entries are one of eight fixed f32 constants times an exact power of two.
pub(super) const STEPS: [f32; 32] = eighths();

static EIGHTHS: [f32; 32] = eighths();

static OCTAVES: [f32; 32] = octaves();

/// Spacing of scale steps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ScaleSteps {
    /// Eighths of an octave, for scales found by search.
    #[default]
    Eighths,
    /// Whole octaves, as in microscaling formats. All factors are powers of two, so weights are exact. Levels
    /// above 4 do not exist.
    Octaves,
}

impl ScaleSteps {
    /// Encodes the spacing as a byte of a codec.
    pub const fn to_byte(self) -> u8 {
        match self {
            Self::Eighths => 0,
            Self::Octaves => 1,
        }
    }

    /// Decodes a byte of a codec, or returns `None` if it is invalid.
    pub const fn from_byte(byte: u8) -> Option<Self> {
        match byte {
            0 => Some(Self::Eighths),
            1 => Some(Self::Octaves),
            _ => None,
        }
    }

    /// Returns the row scale factors of each 5-bit step: 2^(-k/8) or 2^-k for k < 31, and 0 for 31.
    ///
    /// The factor of step `k` equals the factor of `k % 8` times `2^(-n * (k / 8))`. The exponent `n` is the
    /// number of octaves in eight steps; its base-2 logarithm is [`Self::eight_steps`].
    pub const fn factors(self) -> &'static [f32; 32] {
        match self {
            Self::Eighths => &EIGHTHS,
            Self::Octaves => &OCTAVES,
        }
    }

    /// Returns log2 of the number of octaves that eight steps span: 0 or 3.
    pub const fn eight_steps(self) -> u32 {
        match self {
            Self::Eighths => 0,
            Self::Octaves => 3,
        }
    }

    /// Returns the unit of decoded values: 1/127 at levels 2, 3 and 4 (1/16 with octaves), 1/8192 at 6 and 8.
    pub const fn unit(self, level: Level) -> f32 {
        match (level, self) {
            (Level::L2 | Level::L3 | Level::L4, Self::Eighths) => 1.0 / 127.0,
            (Level::L2 | Level::L3 | Level::L4, Self::Octaves) => 1.0 / 16.0,
            (Level::L6 | Level::L8, _) => 1.0 / 8192.0,
        }
    }

    /// Returns the factor from a decoded value to a weight: `(row_scale * unit) * factors[step]`.
    ///
    /// The upper three bits of `step` are ignored. The order of the two multiplications is part of the
    /// format.
    pub fn weight_scale(self, row_scale: f16, level: Level, step: u8) -> f32 {
        (row_scale.to_f32() * self.unit(level)) * self.factors()[usize::from(step & 31)]
    }
}

const fn eighths() -> [f32; 32] {
    let mut steps = [0.0; 32];
    let mut k = 0;
    while k < ZERO_STEP as usize {
        let octave = 1u32 << (k / 8);
        steps[k] = f32::from_bits(FRACTIONS[k % 8]) / octave as f32;
        k += 1;
    }
    steps
}

const fn octaves() -> [f32; 32] {
    let mut steps = [0.0; 32];
    let mut k = 0;
    while k < ZERO_STEP as usize {
        steps[k] = 1.0 / (1u32 << k) as f32;
        k += 1;
    }
    steps
}
