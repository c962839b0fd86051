//! Choice of the best codes for the rows of a tile, given a separate target for each level.
#![expect(clippy::needless_range_loop, reason = "one lane of several arrays")]

use super::{NestedCodec, TILE_ROWS};
use crate::Level;

/// One number per row of a tile.
pub(super) type Lanes = [f32; TILE_ROWS];

/// One number per level and row.
pub(super) type Levels = [Lanes; 5];

/// Number of codes that share a prefix of four bits.
const BELOW: usize = 16;

/// Number of codes that have the same value at level 6.
const SAME: usize = 4;

/// Decoded values of one table of a codec, with the weights of the levels' errors.
#[derive(Clone, Debug)]
pub(super) struct Chooser {
    weights: [f32; 5],
    /// Square roots of `weights`.
    roots: [f32; 5],
    /// Decoded values by code, in units of the scale.
    values: Vec<[f32; 5]>, // [256]
    /// `values` times `roots`.
    weighted: Vec<[f32; 5]>, // [256]
}

impl Chooser {
    /// Prepares a table. `level_weights` are relative to each level's typical squared error, which falls to a
    /// quarter with each additional bit.
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

    /// Returns the values of codes at each level, in units of their scales.
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

    /// Returns the weights of the levels' squared errors.
    pub fn weights(&self) -> &[f32; 5] {
        &self.weights
    }

    /// Returns the codes with the smallest weighted squared distance from the targets. Targets are in units
    /// of the scale. Costs that differ by less than 2^-18 count as equal.
    #[inline(always)]
    pub fn choose(&self, targets: &Levels) -> [u8; TILE_ROWS] {
        let mut targets = *targets;
        for level in 0..5 {
            for lane in 0..TILE_ROWS {
                targets[level][lane] *= self.roots[level];
            }
        }
        // The code's position within its prefix is stored in the last four bits of the cost. Costs are
        // compared as floats, which prevents the compiler from reordering the search.
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

#[inline(always)]
fn add_square(sums: &mut Lanes, targets: &Lanes, value: f32) {
    for lane in 0..TILE_ROWS {
        let distance = targets[lane] - value;
        sums[lane] = distance.mul_add(distance, sums[lane]);
    }
}

/// Returns the absolute weights of the levels' squared errors: `level_weights` times 4^bits.
pub(super) fn absolute_weights(level_weights: &[f32; 5]) -> [f32; 5] {
    let factor = |level: Level| (1u32 << (2 * u32::from(level.bits()))) as f32;
    Level::ALL.map(|level| level_weights[level.index()] * factor(level))
}
