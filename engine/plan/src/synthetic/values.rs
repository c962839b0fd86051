//! Random weights: codes, scales, norms and routers.

use half::f16;
use nestling_formats::nested::{
    GROUP, InputTransform, Layout, NestedCodec, NestedTables, PlaneForm, ScaleSteps, base_parts,
};
use nestling_formats::store::{Encoding, Matrix};
use nestling_formats::{FloatKind, Plane};
use nestling_import::ModelConfig;
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng, SeedableRng};

use super::SyntheticOptions;

/// Size of the pool of random bytes, from which codes are copied at random offsets.
const POOL_BYTES: usize = 32 << 20;

/// Row scale of all matrices except the embedding. Codes and the 16 steps are uniform, so weights have a
/// standard deviation of 0.32 times the row scale: 0.02.
const ROW_SCALE: f32 = 0.0632;

/// Gain of the norm before attention: small, so that attention barely mixes the tokens.
const ATTENTION_GAIN: f32 = 0.02;

/// Gain of the norm before the experts.
const FEED_FORWARD_GAIN: f32 = 0.25;

/// Value of the first 32 dimensions of all embeddings: the row scale with the largest code. These dimensions
/// carry the routers' biases.
const CONSTANT: f32 = 4.0;

/// Step of all other groups of an embedding: half the row scale, which makes their standard deviation 1.
const EMBEDDING_STEP: u8 = 8;

/// Root mean square of an embedding, which the norm divides by.
const EMBEDDING_RMS: f32 = 1.13;

/// Value of all taps of a convolution over four positions.
const CONVOLUTION_TAP: f32 = 0.25;

/// Decay rate of a DeltaNet head. With a time step of softplus(0), a state halves in two tokens.
const DECAY_RATE: f32 = -0.5;

/// Number of tokens sampled to estimate [`Values::busiest_shares`].
const SAMPLED_TOKENS: usize = 1000;

/// Returns the codec of all matrices: companding with alpha 0.6, and tables computed from the formula, in strides of 4
/// as a conversion makes them.
pub(super) fn codec() -> NestedCodec {
    let value = |prefix: usize, count: usize| {
        let position = (2.0 * prefix as f64 + 1.0) / count as f64 - 1.0;
        let strides = (127.0 * position * (0.6 + 0.4 * position.abs()) + 126.0) / 4.0;
        (4 * strides.round() as i16 - 126) as i8
    };
    let mut tables = NestedTables {
        t2: std::array::from_fn(|prefix| value(prefix, 4)),
        t3: std::array::from_fn(|prefix| value(prefix, 8)),
        t4: std::array::from_fn(|prefix| value(prefix, 16)),
    };
    // Makes the constant of the embeddings equal at these levels.
    (tables.t2[3], tables.t3[7], tables.t4[15]) = (126, 126, 126);
    let inputs = InputTransform::None;
    NestedCodec {
        alpha_a: 9830,
        alpha_b: 32768 - 2 * 9830,
        beta_q: 16,
        inputs,
        steps: ScaleSteps::Eighths,
        tables: vec![tables],
    }
}

/// Generator of all weights, in store order.
pub(super) struct Values<'a> {
    options: &'a SyntheticOptions,
    config: &'a ModelConfig,
    random: Xoshiro256PlusPlus,
    pool: Vec<u8>,
    /// Sums of the busiest shares over the routers so far, and the number of routers.
    shares: ([f64; 3], usize),
}

impl<'a> Values<'a> {
    pub(super) fn new(options: &'a SyntheticOptions, config: &'a ModelConfig) -> Self {
        let mut random = Xoshiro256PlusPlus::seed_from_u64(options.seed);
        let mut pool = vec![0; POOL_BYTES];
        random.fill_bytes(&mut pool);
        Self { options, config, random, pool, shares: ([0.0; 3], 0) }
    }

    /// Fills one plane of a matrix. Returns `None` if it is not planned as nested.
    pub(super) fn fill_plane(
        &mut self,
        matrix: &Matrix,
        plane: Plane,
        out: &mut [u8],
    ) -> Option<()> {
        let Encoding::Nested { layout, form: PlaneForm::Nested, .. } = matrix.encoding else {
            return None;
        };
        let mut codes = out;
        if plane == Plane::P2 {
            let parts = base_parts(layout, matrix.rows, matrix.cols)?;
            let (base, rest) = codes.split_at_mut_checked(parts.codes.start)?;
            let scale = if layout == Layout::RowMajor { CONSTANT } else { ROW_SCALE };
            for bytes in base.get_mut(parts.row_scales)?.as_chunks_mut::<2>().0 {
                *bytes = f16::from_f32(scale).to_le_bytes();
            }
            let steps = base.get_mut(parts.steps)?;
            if layout == Layout::RowMajor {
                steps.fill(EMBEDDING_STEP);
                steps.chunks_mut(matrix.cols.div_ceil(GROUP)).for_each(|row| row[0] = 0);
            } else {
                self.random_bytes(steps);
            }
            codes = rest;
        }
        self.random_bytes(codes);
        if layout == Layout::RowMajor {
            let group_bytes = GROUP * usize::from(plane.bits()) / 8;
            let row_bytes = matrix.cols.div_ceil(GROUP) * group_bytes;
            codes.chunks_mut(row_bytes).for_each(|row| row[..group_bytes].fill(0xff));
        }
        Some(())
    }

    /// Fills a float tensor with f32 values.
    pub(super) fn fill_tensor(&mut self, kind: FloatKind, out: &mut [u8]) {
        let constant = match kind {
            FloatKind::Router => return self.fill_router(out),
            FloatKind::AttentionNorm => ATTENTION_GAIN,
            FloatKind::FeedForwardNorm => FEED_FORWARD_GAIN,
            FloatKind::DeltaConv | FloatKind::ShortConvTaps | FloatKind::Mamba2Conv => {
                CONVOLUTION_TAP
            }
            FloatKind::DeltaDecay | FloatKind::Mamba2Decay => DECAY_RATE,
            FloatKind::QueryBias
            | FloatKind::KeyBias
            | FloatKind::ValueBias
            | FloatKind::OutputBias
            | FloatKind::SharedGate
            | FloatKind::RouterBias
            | FloatKind::RouterLogitBias
            | FloatKind::Sinks
            | FloatKind::ExpertGateBias
            | FloatKind::ExpertUpBias
            | FloatKind::ExpertDownBias
            | FloatKind::DeltaTimeBias
            | FloatKind::ShortConvBias
            | FloatKind::ShortConvInBias
            | FloatKind::ShortConvOutBias
            | FloatKind::Mamba2ConvBias
            | FloatKind::Mamba2InBias
            | FloatKind::Mamba2OutBias
            | FloatKind::Mamba2TimeBias => 0.0,
            _ => 1.0,
        };
        out.as_chunks_mut::<4>().0.iter_mut().for_each(|out| *out = constant.to_le_bytes());
    }

    /// Fills a router, `[E, D]`: a random direction for each expert, of length 1 after the norm's gain, with
    /// the expert's bias spread over the constant dimensions.
    fn fill_router(&mut self, out: &mut [u8]) {
        let hidden = self.config.hidden_size;
        let experts = out.len() / (4 * hidden.max(1));
        let biases: Vec<f32> =
            (0..experts).map(|_| self.normal() * self.options.router_skew as f32).collect();
        let per_dimension = EMBEDDING_RMS / (GROUP as f32 * CONSTANT);
        for (row, bias) in out.chunks_mut(4 * hidden).zip(&biases) {
            for (dimension, out) in row.as_chunks_mut::<4>().0.iter_mut().enumerate() {
                let weight = match dimension < GROUP {
                    true => bias * per_dimension,
                    false => self.normal() / (hidden as f32).sqrt(),
                };
                *out = (weight / FEED_FORWARD_GAIN).to_le_bytes();
            }
        }
        self.sample_routes(&biases);
    }

    fn sample_routes(&mut self, biases: &[f32]) {
        let chosen = self.config.experts_per_token_max();
        let mut counts = vec![0u32; biases.len()];
        let mut logits: Vec<(f32, usize)> = Vec::with_capacity(biases.len());
        for _ in 0..SAMPLED_TOKENS {
            logits.clear();
            for (expert, bias) in biases.iter().enumerate() {
                logits.push((0.9 * self.normal() + bias, expert));
            }
            logits.sort_unstable_by(|a, b| b.0.total_cmp(&a.0));
            logits.iter().take(chosen).for_each(|(_, expert)| counts[*expert] += 1);
        }
        counts.sort_unstable_by(|a, b| b.cmp(a));
        let total: u32 = counts.iter().sum();
        for (share, part) in self.shares.0.iter_mut().zip([8, 4, 2]) {
            let busiest: u32 = counts.iter().take(counts.len() / part).sum();
            *share += f64::from(busiest) / f64::from(total.max(1));
        }
        self.shares.1 += 1;
    }

    pub(super) fn busiest_shares(&self) -> [f64; 3] {
        self.shares.0.map(|sum| sum / self.shares.1.max(1) as f64)
    }

    fn random_bytes(&mut self, mut out: &mut [u8]) {
        while !out.is_empty() {
            let start = self.random.next_u32() as usize % (POOL_BYTES / 2);
            let length = out.len().min(POOL_BYTES - start);
            let (now, rest) = out.split_at_mut(length);
            now.copy_from_slice(&self.pool[start..start + length]);
            out = rest;
        }
    }

    /// Returns a standard normal number, by the Box-Muller method.
    fn normal(&mut self) -> f32 {
        let mut uniform = || (self.random.next_u64() >> 11) as f64 / (1u64 << 53) as f64;
        let (radius, angle) = (1.0 - uniform(), uniform());
        let radius = libm::sqrt(-2.0 * libm::log(radius));
        (radius * libm::cos(std::f64::consts::TAU * angle)) as f32
    }
}
