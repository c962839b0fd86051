//! Scales of the groups of a row: how far apart their steps lie, and what a value is worth.

use half::f16;

use super::{FRACTIONS, ZERO_STEP};
use crate::Level;

/// What a group's 5-bit step multiplies its row scale with: 2^(-k/8) for k < 31, and 0 for 31.
///
/// Each entry is one of eight fixed f32 constants times an exact power of two.
pub(super) const STEPS: [f32; 32] = eighths();

static EIGHTHS: [f32; 32] = eighths();

static OCTAVES: [f32; 32] = octaves();

/// How far apart the steps of a scale lie.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ScaleSteps {
    /// Eighths of an octave: scales are searched for.
    #[default]
    Eighths,
    /// Whole octaves: what microscaling formats have. Everything is a power of two then, so that
    /// their weights are exact; there are no levels above 4.
    Octaves,
}

impl ScaleSteps {
    /// The byte that stands for it in a codec.
    pub const fn to_byte(self) -> u8 {
        match self {
            Self::Eighths => 0,
            Self::Octaves => 1,
        }
    }

    /// The steps that a byte stands for.
    pub const fn from_byte(byte: u8) -> Option<Self> {
        match byte {
            0 => Some(Self::Eighths),
            1 => Some(Self::Octaves),
            _ => None,
        }
    }

    /// What a group's 5-bit step multiplies its row scale with: 2^(-k/8) or 2^-k for k < 31, and
    /// 0 for 31.
    ///
    /// The factor of `k` is always that of `k % 8` times the power of two that
    /// [`Self::eight_steps`] gives, `k / 8` times.
    pub const fn factors(self) -> &'static [f32; 32] {
        match self {
            Self::Eighths => &EIGHTHS,
            Self::Octaves => &OCTAVES,
        }
    }

    /// The logarithm to base 2 of how many octaves eight steps are: 0 or 3.
    pub const fn eight_steps(self) -> u32 {
        match self {
            Self::Eighths => 0,
            Self::Octaves => 3,
        }
    }

    /// Size of one unit of a decoded value: 1/127 at levels 2, 3 and 4 (1/16 with octaves), 1/8192
    /// at 6 and 8.
    pub const fn unit(self, level: Level) -> f32 {
        match (level, self) {
            (Level::L2 | Level::L3 | Level::L4, Self::Eighths) => 1.0 / 127.0,
            (Level::L2 | Level::L3 | Level::L4, Self::Octaves) => 1.0 / 16.0,
            (Level::L6 | Level::L8, _) => 1.0 / 8192.0,
        }
    }

    /// The factor from a decoded value to a weight: `(row_scale * unit) * factors[step]`.
    ///
    /// Only the five low bits of `step` count. The order of the two multiplications is part of the
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
