//! The best codes for the weights of a tile's rows when every level has a target of its own.
#![expect(clippy::needless_range_loop, reason = "one lane of several arrays")]

use super::{NestedCodec, TILE_ROWS};
use crate::Level;

/// One number of every row of a tile.
pub(super) type Lanes = [f32; TILE_ROWS];

/// A number of every row at every level.
pub(super) type Levels = [Lanes; 5];

/// Codes that share a prefix of four bits.
const BELOW: usize = 16;

/// Codes that have the same value at level 6.
const SAME: usize = 4;

/// The values of one table of a codec, and what the error of each level counts.
#[derive(Clone, Debug)]
pub(super) struct Chooser {
    /// Weights of the levels' squared errors.
    weights: [f32; 5],
    /// Their roots.
    roots: [f32; 5],
    /// Values by code, in units of the scale.
    values: Vec<[f32; 5]>, // [256]
    /// The same times the roots of the weights.
    weighted: Vec<[f32; 5]>, // [256]
}

impl Chooser {
    /// `level_weights` count relative to each level's usual error, a quarter of that of one bit
    /// less.
    pub fn new(codec: &NestedCodec, table: u8, level_weights: &[f32; 5]) -> Self {
        let weights = absolute_weights(level_weights);
        let roots = weights.map(f32::sqrt);
        let value =
            |level, code| f32::from(codec.value(level, table, code)) * codec.steps.unit(level);
        let values: Vec<[f32; 5]> =
            (0..=u8::MAX).map(|code| Level::ALL.map(|level| value(level, code))).collect();
        let weigh = |values: &[f32; 5]| std::array::from_fn(|level| values[level] * roots[level]);
        let weighted = values.iter().map(weigh).collect();
        Self { weights, roots, values, weighted }
    }

    /// The values of codes at every level, in units of their scales.
    #[inline(always)]
    pub fn values(&self, codes: &[u8; TILE_ROWS]) -> Levels {
        let mut values = [[0.0; TILE_ROWS]; 5];
        let Some(table) = self.values.first_chunk::<256>() else { return values };
        for lane in 0..TILE_ROWS {
            let of_code = &table[usize::from(codes[lane])];
            for level in 0..5 {
                values[level][lane] = of_code[level];
            }
        }
        values
    }

    /// Weights of the levels' squared errors.
    pub fn weights(&self) -> &[f32; 5] {
        &self.weights
    }

    /// The codes with the least weighted squared distances from the targets, which are in units of
    /// the scale; costs that differ by less than 2^-18 count as equal.
    #[inline(always)]
    pub fn choose(&self, targets: &Levels) -> [u8; TILE_ROWS] {
        let mut targets = *targets;
        for level in 0..5 {
            for lane in 0..TILE_ROWS {
                targets[level][lane] *= self.roots[level];
            }
        }
        // The place within the prefix rides in the last four bits of costs. They are compared as
        // floats, so that no compiler takes the search for one that may be reordered.
        let mut best = [f32::INFINITY; TILE_ROWS];
        let mut codes = [0u32; TILE_ROWS];
        for (prefix, values) in (0u32..).zip(self.weighted.as_chunks::<BELOW>().0) {
            let mut coarse = [0.0; TILE_ROWS];
            for level in 0..3 {
                add_square(&mut coarse, &targets[level], values[0][level]);
            }
            let mut least = [f32::INFINITY; TILE_ROWS];
            for cell in 0..BELOW / SAME {
                let mut six = coarse;
                add_square(&mut six, &targets[3], values[cell * SAME][3]);
                for place in cell * SAME..(cell + 1) * SAME {
                    let mut cost = six;
                    add_square(&mut cost, &targets[4], values[place][4]);
                    for lane in 0..TILE_ROWS {
                        let key = f32::from_bits(cost[lane].to_bits() & !15 | place as u32);
                        least[lane] = if key < least[lane] { key } else { least[lane] };
                    }
                }
            }
            for lane in 0..TILE_ROWS {
                let better = least[lane] < best[lane];
                let code = (prefix * BELOW as u32) | (least[lane].to_bits() & 15);
                codes[lane] = if better { code } else { codes[lane] };
                best[lane] = if better { least[lane] } else { best[lane] };
            }
        }
        codes.map(|code| code as u8)
    }
}

/// `sums += (targets - value)²`, fused.
#[inline(always)]
fn add_square(sums: &mut Lanes, targets: &Lanes, value: f32) {
    for lane in 0..TILE_ROWS {
        let distance = targets[lane] - value;
        sums[lane] = distance.mul_add(distance, sums[lane]);
    }
}

/// What the squared error of each level counts: `level_weights` times 4^bits.
pub(super) fn absolute_weights(level_weights: &[f32; 5]) -> [f32; 5] {
    let factor = |level: Level| (1u32 << (2 * u32::from(level.bits()))) as f32;
    Level::ALL.map(|level| level_weights[level.index()] * factor(level))
}
