//! Search for the scale step and codes of one group with a given table.

use half::f16;

use super::{GROUP, NestedCodec, STEPS, ZERO_STEP};
use crate::Level;

/// Range of steps to try, relative to the finest step without clipping.
const COARSER_STEPS: u8 = 2;
const FINER_STEPS: u8 = 1;

/// Number of codes to try on each side of the nearest one.
const NEIGHBOURS: u8 = 4;

/// Number of samples of the error curve, and the largest magnitude it covers, in units of the scale.
const CURVE: usize = 4096;
const CURVE_REACH: f32 = 1.25;

/// Curve samples per histogram bin.
const SAMPLES_PER_BIN: usize = 4;

/// A codec with one of its tables, prepared for encoding.
///
/// The joint error of a weight `u` (in units of its scale) with code `q` is the sum over levels of
/// `factor * (u - value)^2`. With `d = u - value8` it is `total * d^2 + 2 * linear * d + constant`.
#[derive(Clone, Debug)]
pub(super) struct Coder {
    a: f32,
    b: f32,
    total: f32,
    codes: Vec<CodeError>, // [256]
    /// Best code for each sampled `u`, with the same sampling as `curve`.
    best: Vec<u8>, // [4096]
    /// Joint error for each sampled `u`, evenly spaced over ±1.25; the scale search minimizes it.
    curve: Vec<f32>, // [4096]
}

#[derive(Clone, Copy, Debug, Default)]
struct CodeError {
    value8: f32,
    linear: f32,
    constant: f32,
}

/// Weights of a group with their error factors, padded with weights of factor 0.
#[derive(Clone, Debug)]
pub(super) struct GroupWeights {
    weights: [f32; GROUP],
    factors: [f32; GROUP],
    peak: f32,
    energy: f32,
}

impl GroupWeights {
    /// Creates a group of up to 32 weights; `importance` has the same length.
    pub fn new(weights: &[f32], importance: Option<&[f32]>) -> Self {
        let mut padded = [0.0; GROUP];
        padded[..weights.len()].copy_from_slice(weights);
        let mut factors = [0.0; GROUP];
        match importance {
            Some(importance) => factors[..weights.len()].copy_from_slice(importance),
            None => factors[..weights.len()].fill(1.0),
        }
        let energy = padded.iter().zip(&factors).map(|(w, f)| f * w * w).sum();
        Self { weights: padded, factors, peak: largest(weights), energy }
    }

    /// Returns the largest magnitude in the group.
    pub fn peak(&self) -> f32 {
        self.peak
    }
}

impl Coder {
    pub fn new(codec: &NestedCodec, table: u8, level_weights: &[f32; 5]) -> Self {
        // The squared error of a level is typically a quarter of that with one bit less.
        let factor = |level: Level| {
            level_weights[level.index()] * (1u32 << (2 * u32::from(level.bits()))) as f32
        };
        let value =
            |level, code| f32::from(codec.value(level, table, code)) * codec.steps.unit(level);
        let mut codes = vec![CodeError::default(); 256];
        for (code, error) in (0u8..=255).zip(&mut codes) {
            error.value8 = value(Level::L8, code);
            for level in Level::ALL {
                let distance = error.value8 - value(level, code);
                error.linear += factor(level) * distance;
                error.constant += factor(level) * distance * distance;
            }
        }
        let mut coder = Self {
            a: codec.alpha(),
            b: 1.0 - codec.alpha(),
            total: Level::ALL.into_iter().map(factor).sum(),
            codes,
            best: Vec::new(),
            curve: Vec::new(),
        };
        let place = |index| index as f32 * (2.0 * CURVE_REACH / CURVE as f32) - CURVE_REACH;
        coder.best = (0..CURVE).map(|index| coder.choose(place(index))).collect();
        coder.curve = (0..CURVE)
            .zip(&coder.best)
            .map(|(index, code)| coder.error(place(index), *code))
            .collect();
        coder
    }

    /// Returns one coder for each table of a codec.
    pub fn all(codec: &NestedCodec, level_weights: &[f32; 5]) -> Vec<Self> {
        let tables = (0u8..).zip(&codec.tables);
        tables.map(|(table, _)| Self::new(codec, table, level_weights)).collect()
    }

    /// Bins of the histogram of weights relative to their scale.
    pub const BINS: usize = CURVE / SAMPLES_PER_BIN;

    /// Returns the bin of a weight in units of its scale.
    pub fn bin(u: f32) -> usize {
        let bin = (u + CURVE_REACH) * (Self::BINS as f32 / (2.0 * CURVE_REACH));
        (bin as usize).min(Self::BINS - 1)
    }

    /// Returns the joint error of a weight in the middle of each bin.
    pub fn bin_errors(&self) -> impl Iterator<Item = f32> {
        self.curve.iter().copied().skip(SAMPLES_PER_BIN / 2).step_by(SAMPLES_PER_BIN)
    }

    /// Returns the best code of a weight in the middle of each bin, and that middle.
    pub fn bin_codes(&self) -> impl Iterator<Item = (u8, f32)> {
        let middle =
            |bin: usize| (bin as f32 + 0.5) * (2.0 * CURVE_REACH / Self::BINS as f32) - CURVE_REACH;
        let codes = self.best.iter().skip(SAMPLES_PER_BIN / 2).step_by(SAMPLES_PER_BIN);
        codes.enumerate().map(move |(bin, code)| (*code, middle(bin)))
    }

    /// Returns the joint error of a group at a given scale with the best codes.
    pub fn scaled_error(&self, scale: f32, group: &GroupWeights) -> f32 {
        match self.curve.first_chunk::<CURVE>() {
            Some(curve) if scale > 0.0 => curve_sum(curve, scale, group) * scale * scale,
            _ => self.total * group.energy,
        }
    }

    /// Returns the best step for a group of a row with the given scale, and its joint error.
    pub fn search_step(&self, row_scale: f32, group: &GroupWeights) -> (u8, f32) {
        let mut best = (ZERO_STEP, self.total * group.energy);
        if group.peak == 0.0 {
            return best;
        }
        let fits = |step: &u8| row_scale * STEPS[usize::from(*step)] >= group.peak;
        // Default: the coarsest step, which clips, if no step is coarse enough.
        let finest = (0..ZERO_STEP).rev().find(fits).unwrap_or(0);
        let Some(curve) = self.curve.first_chunk::<CURVE>() else { return best };
        for step in finest.saturating_sub(COARSER_STEPS)..=(finest + FINER_STEPS).min(30) {
            let scale = row_scale * STEPS[usize::from(step)];
            let cost = curve_sum(curve, scale, group) * scale * scale;
            if cost < best.1 {
                best = (step, cost);
            }
        }
        best
    }

    /// Encodes a group with a scale found by [`Self::search_step`].
    pub fn encode(&self, scale: f32, group: &GroupWeights) -> [u8; GROUP] {
        let inverse = if scale > 0.0 { 1.0 / scale } else { 0.0 };
        let mut codes = [0; GROUP];
        for (code, weight) in codes.iter_mut().zip(&group.weights) {
            let u = weight * inverse;
            // Cells are wider than the sample distance, so one of the two adjacent samples has the best code.
            let index = ((u + CURVE_REACH) * (CURVE as f32 / (2.0 * CURVE_REACH))) as usize;
            let sampled = |index: usize| self.best.get(index).copied().unwrap_or(128);
            let (below, above) = (sampled(index), sampled(index + 1));
            let nearer = below == above || self.error(u, below) <= self.error(u, above);
            *code = if nearer { below } else { above };
        }
        codes
    }

    fn error(&self, u: f32, code: u8) -> f32 {
        let error = &self.codes[usize::from(code)];
        let d = u - error.value8;
        d * (self.total * d + 2.0 * error.linear) + error.constant
    }

    /// Returns the code near `u` with the smallest joint error.
    ///
    /// Near a cell border of a low level, a neighbouring code costs level 8 little and can save the low level
    /// much.
    fn choose(&self, u: f32) -> u8 {
        let nearest = self.round(u);
        let around = nearest.saturating_sub(NEIGHBOURS)..=nearest.saturating_add(NEIGHBOURS);
        let mut best = (self.error(u, nearest), nearest);
        for code in around {
            let error = self.error(u, code);
            if error < best.0 {
                best = (error, code);
            }
        }
        best.1
    }

    /// Returns the code whose cell contains `u`. Inverts `u = v * (a + b * |v|)` and divides the range of `v`
    /// into 256 cells.
    fn round(&self, u: f32) -> u8 {
        let v = 2.0 * u / (self.a + (self.a * self.a + 4.0 * self.b * u.abs()).sqrt());
        (v * 128.0 + 128.0).clamp(0.0, 255.0) as u8
    }
}

/// Returns the group's error at one scale, in units of the squared scale.
///
/// All indices are within the curve, since no weight exceeds 1.15 times a scale that is tried.
fn curve_sum(curve: &[f32; CURVE], scale: f32, group: &GroupWeights) -> f32 {
    // Adding 2^23 leaves the nearest integer in the low bits of a float.
    const INTEGER: f32 = 8_388_608.0;
    let position = CURVE as f32 / (2.0 * CURVE_REACH * scale);
    let offset = INTEGER + CURVE as f32 / 2.0;
    // Loops rather than maps, because closures over arrays are not inlined here.
    let mut indices = [0; GROUP];
    for (index, weight) in indices.iter_mut().zip(&group.weights) {
        *index = (weight * position + offset).to_bits();
    }
    let mut sums = [0.0; 4];
    for at in 0..GROUP {
        sums[at % 4] += group.factors[at] * curve[indices[at] as usize % CURVE];
    }
    sums[0] + sums[1] + sums[2] + sums[3]
}

/// Returns the smallest f16 not below a finite, non-negative number up to 65504.
pub(super) fn ceil_f16(value: f32) -> f16 {
    let near = f16::from_f32(value);
    if near.to_f32() >= value { near } else { f16::from_bits(near.to_bits() + 1) }
}

fn largest(weights: &[f32]) -> f32 {
    weights.iter().fold(0.0, |largest: f32, weight| largest.max(weight.abs()))
}
