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
    /// The least and the largest of `fine` at level 6 and at level 8, by prefix.
    ends: [[f32; PREFIXES]; 4],
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
        let fine: [[[f32; BELOW]; PREFIXES]; 2] = [Level::L6, Level::L8].map(|level| {
            std::array::from_fn(|prefix| {
                std::array::from_fn(|below| value(level, prefix * BELOW + below))
            })
        });
        let [six, eight] = &fine;
        let ends = [
            six.map(|cell: [f32; BELOW]| cell[0]),
            six.map(|cell| cell[BELOW - 1]),
            eight.map(|cell| cell[0]),
            eight.map(|cell| cell[BELOW - 1]),
        ];
        Self { weights: absolute_weights(level_weights), coarse, fine, ends }
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
    /// the scale; costs that differ by less than 2^-18 count as equal.
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
            let [low6, high6] = [self.ends[0][prefix], self.ends[1][prefix]];
            let [low8, high8] = [self.ends[2][prefix], self.ends[3][prefix]];
            let d6 = larger(larger(low6 - targets[3], targets[3] - high6), 0.0);
            let d8 = larger(larger(low8 - targets[4], targets[4] - high8), 0.0);
            bound[prefix] = coarse[prefix] + w6 * d6 * d6 + w8 * d8 * d8;
        }
        let mut best = (f32::MAX, 0);
        for _ in 0..PREFIXES {
            let (least, prefix) = smallest(&bound);
            if least.is_nan() || least >= best.0 {
                break;
            }
            let (below, at) = self.below(prefix, targets);
            if coarse[prefix] + below < best.0 {
                best = (coarse[prefix] + below, u8::try_from(prefix * BELOW + at).unwrap_or(0));
            }
            bound[prefix] = f32::MAX;
        }
        best.1
    }

    /// The best code of one prefix for levels 6 and 8: its cost and its last four bits.
    #[inline(always)]
    fn below(&self, prefix: usize, targets: &[f32; 5]) -> (f32, usize) {
        let (values6, values8) = (&self.fine[0][prefix], &self.fine[1][prefix]);
        let costs: [f32; BELOW] = std::array::from_fn(|at| {
            let (d6, d8) = (targets[3] - values6[at], targets[4] - values8[at]);
            self.weights[3] * d6 * d6 + self.weights[4] * d8 * d8
        });
        smallest(&costs)
    }
}

/// The least of sixteen numbers that are not negative, less its last four bits, and its place.
///
/// The place rides in those bits, so that the search is a tree of minima without branches.
#[inline(always)]
fn smallest(numbers: &[f32; 16]) -> (f32, usize) {
    const PLACE: u32 = 15;
    let mut keys: [f32; 16] =
        std::array::from_fn(|at| f32::from_bits(numbers[at].to_bits() & !PLACE | at as u32));
    for half in [8, 4, 2, 1] {
        for at in 0..half {
            keys[at] = if keys[at] < keys[at + half] { keys[at] } else { keys[at + half] };
        }
    }
    let bits = keys[0].to_bits();
    (f32::from_bits(bits & !PLACE), (bits & PLACE) as usize)
}

/// The larger number, as one instruction.
#[inline(always)]
fn larger(left: f32, right: f32) -> f32 {
    if left > right { left } else { right }
}

/// What the squared error of each level counts: `level_weights` times 4^bits.
pub(super) fn absolute_weights(level_weights: &[f32; 5]) -> [f32; 5] {
    let factor = |level: Level| (1u32 << (2 * u32::from(level.bits()))) as f32;
    Level::ALL.map(|level| level_weights[level.index()] * factor(level))
}
