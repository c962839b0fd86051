//! The search for one group's step and codes with one table.

use half::f16;

use super::{GROUP, NestedCodec, STEPS, ZERO_STEP, value_unit};
use crate::Level;

/// Steps around the finest one without clipping that are tried: coarser and finer.
const COARSER_STEPS: u8 = 2;
const FINER_STEPS: u8 = 3;

/// A codec with one of its tables, prepared for encoding.
///
/// The joint error of a weight `u` (in units of its scale) with code `q` is the sum over levels of
/// `weight * (u - value)^2`. With `d = u - value8` it is `total * d^2 + 2 * linear * d + constant`.
#[derive(Clone, Debug)]
pub(super) struct Coder {
    a: f32,
    b: f32,
    total: f32,
    codes: [CodeError; 256],
}

#[derive(Clone, Copy, Debug, Default)]
struct CodeError {
    value8: f32,
    linear: f32,
    constant: f32,
}

/// The best codes found for one group.
#[derive(Clone, Debug)]
pub(super) struct GroupCodes {
    pub cost: f32,
    pub step: u8,
    pub codes: [u8; GROUP],
}

impl Coder {
    pub fn new(codec: &NestedCodec, table: u8, level_weights: &[f32; 5]) -> Self {
        // The error of a level is usually a quarter of that of one bit less.
        let factor = |level: Level| {
            level_weights[level.index()] * (1u32 << (2 * u32::from(level.bits()))) as f32
        };
        let value = |level, code| f32::from(codec.value(level, table, code)) * value_unit(level);
        let mut codes = [CodeError::default(); 256];
        for (code, error) in (0u8..=255).zip(&mut codes) {
            error.value8 = value(Level::L8, code);
            for level in Level::ALL {
                let distance = error.value8 - value(level, code);
                error.linear += factor(level) * distance;
                error.constant += factor(level) * distance * distance;
            }
        }
        Self {
            a: codec.alpha(),
            b: 1.0 - codec.alpha(),
            total: Level::ALL.into_iter().map(factor).sum(),
            codes,
        }
    }

    /// The best codes of up to 32 weights whose row has a scale; `importance` is as long.
    pub fn quantize_group(
        &self,
        row_scale: f32,
        weights: &[f32],
        importance: Option<&[f32]>,
    ) -> GroupCodes {
        let mut padded = [0.0; GROUP];
        padded[..weights.len()].copy_from_slice(weights);
        // Padding has no importance: its activations are zero.
        let mut factors = [0.0; GROUP];
        match importance {
            Some(importance) => factors[..weights.len()].copy_from_slice(importance),
            None => factors[..weights.len()].fill(1.0),
        }
        let energy: f32 = padded.iter().zip(&factors).map(|(w, f)| f * w * w).sum();
        let mut best =
            GroupCodes { cost: self.total * energy, step: ZERO_STEP, codes: [128; GROUP] };
        let peak = largest(&padded);
        if peak == 0.0 {
            return best;
        }
        let fits = |step: &u8| row_scale * STEPS[usize::from(*step)] >= peak;
        let finest = (0..ZERO_STEP).rev().find(fits).unwrap_or(0);
        let steps = finest.saturating_sub(COARSER_STEPS)..=(finest + FINER_STEPS).min(30);
        for step in steps {
            let scale = row_scale * STEPS[usize::from(step)];
            let (cost, codes) = self.encode(scale, &padded, &factors);
            if cost < best.cost {
                best = GroupCodes { cost, step, codes };
            }
        }
        best
    }

    /// Codes at one scale, and their error in units of the weights.
    fn encode(
        &self,
        scale: f32,
        weights: &[f32; GROUP],
        factors: &[f32; GROUP],
    ) -> (f32, [u8; GROUP]) {
        let inverse = 1.0 / scale;
        let units = weights.map(|weight| weight * inverse);
        let codes = units.map(|u| self.round(u));
        let mut cost = 0.0;
        for ((u, code), factor) in units.iter().zip(&codes).zip(factors) {
            let error = &self.codes[usize::from(*code)];
            let d = u - error.value8;
            cost += factor * (d * (self.total * d + 2.0 * error.linear) + error.constant);
        }
        (cost * scale * scale, codes)
    }

    /// The code whose cell holds `u`: the inverse of `u = v * (a + b * |v|)`, cut into 256 cells.
    fn round(&self, u: f32) -> u8 {
        let v = 2.0 * u / (self.a + (self.a * self.a + 4.0 * self.b * u.abs()).sqrt());
        (v * 128.0 + 128.0).clamp(0.0, 255.0) as u8
    }
}

/// The smallest f16 that is not below a finite, non-negative number up to 65504.
pub(super) fn ceil_f16(value: f32) -> f16 {
    let near = f16::from_f32(value);
    if near.to_f32() >= value { near } else { f16::from_bits(near.to_bits() + 1) }
}

/// The largest magnitude.
pub(super) fn largest(weights: &[f32]) -> f32 {
    weights.iter().fold(0.0, |largest: f32, weight| largest.max(weight.abs()))
}
