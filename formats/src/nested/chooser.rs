//! The best code for one weight when every level has a target of its own.

use super::{NestedCodec, value_unit};
use crate::Level;

/// Prefixes of four bits, and codes that share one.
const PREFIXES: usize = 16;
const BELOW: usize = 16;

/// The values of one table of a codec, and what the error of each level counts.
#[derive(Clone, Debug)]
pub(super) struct Chooser {
    /// Weights of the levels' squared errors.
    weights: [f32; 5],
    /// Values of levels 2, 3 and 4 by the prefix of four bits.
    coarse: [[f32; PREFIXES]; 3],
    /// Values of levels 6 and 8 by code.
    fine: [[[f32; BELOW]; PREFIXES]; 2],
}

impl Chooser {
    /// `level_weights` count relative to each level's usual error, a quarter of that of one bit
    /// less.
    pub fn new(codec: &NestedCodec, table: u8, level_weights: &[f32; 5]) -> Self {
        let value = |level, code: usize| {
            let code = u8::try_from(code).unwrap_or(u8::MAX);
            f32::from(codec.value(level, table, code)) * value_unit(level)
        };
        let coarse = [Level::L2, Level::L3, Level::L4]
            .map(|level| std::array::from_fn(|prefix| value(level, prefix * BELOW)));
        let fine = [Level::L6, Level::L8].map(|level| {
            std::array::from_fn(|prefix| {
                std::array::from_fn(|below| value(level, prefix * BELOW + below))
            })
        });
        Self { weights: absolute_weights(level_weights), coarse, fine }
    }

    /// The values of a code at every level, in units of its scale.
    #[inline(always)]
    pub fn values(&self, code: u8) -> [f32; 5] {
        let (prefix, below) = (usize::from(code >> 4), usize::from(code & 15));
        [
            self.coarse[0][prefix],
            self.coarse[1][prefix],
            self.coarse[2][prefix],
            self.fine[0][prefix][below],
            self.fine[1][prefix][below],
        ]
    }

    /// Weights of the levels' squared errors.
    pub fn weights(&self) -> &[f32; 5] {
        &self.weights
    }

    /// The code with the least weighted squared distance from the targets, which are in units of
    /// the scale.
    #[inline(always)]
    pub fn choose(&self, targets: &[f32; 5]) -> u8 {
        let [w2, w3, w4, w6, w8] = self.weights;
        let mut coarse = [0.0f32; PREFIXES];
        let mut bound = [0.0f32; PREFIXES];
        for prefix in 0..PREFIXES {
            let d2 = targets[0] - self.coarse[0][prefix];
            let d3 = targets[1] - self.coarse[1][prefix];
            let d4 = targets[2] - self.coarse[2][prefix];
            coarse[prefix] = w2 * d2 * d2 + w3 * d3 * d3 + w4 * d4 * d4;
            // No value of the cell is nearer than its nearest end.
            let (d6, d8) =
                (self.outside(0, prefix, targets[3]), self.outside(1, prefix, targets[4]));
            bound[prefix] = coarse[prefix] + w6 * d6 * d6 + w8 * d8 * d8;
        }
        let mut first = 0;
        for prefix in 1..PREFIXES {
            if bound[prefix] < bound[first] {
                first = prefix;
            }
        }
        let (mut best, mut code) = self.below(first, coarse[first], targets);
        for prefix in 0..PREFIXES {
            if prefix != first && bound[prefix] < best {
                let found = self.below(prefix, coarse[prefix], targets);
                if found.0 < best {
                    (best, code) = found;
                }
            }
        }
        code
    }

    #[inline(always)]
    fn outside(&self, fine: usize, prefix: usize, target: f32) -> f32 {
        let cell = &self.fine[fine][prefix];
        (cell[0] - target).max(target - cell[BELOW - 1]).max(0.0)
    }

    /// The best code of one prefix, and its cost with that of the prefix.
    #[inline(always)]
    fn below(&self, prefix: usize, coarse: f32, targets: &[f32; 5]) -> (f32, u8) {
        let mut costs = [0.0f32; BELOW];
        for (at, cost) in costs.iter_mut().enumerate() {
            let d6 = targets[3] - self.fine[0][prefix][at];
            let d8 = targets[4] - self.fine[1][prefix][at];
            *cost = self.weights[3] * d6 * d6 + self.weights[4] * d8 * d8;
        }
        let mut best = 0;
        for at in 1..BELOW {
            if costs[at] < costs[best] {
                best = at;
            }
        }
        (coarse + costs[best], u8::try_from(prefix * BELOW + best).unwrap_or(u8::MAX))
    }
}

/// What the squared error of each level counts: `level_weights` times 4^bits.
pub(super) fn absolute_weights(level_weights: &[f32; 5]) -> [f32; 5] {
    let factor = |level: Level| (1u32 << (2 * u32::from(level.bits()))) as f32;
    Level::ALL.map(|level| level_weights[level.index()] * factor(level))
}
