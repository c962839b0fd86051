//! The feed-forward part of a layer for all tokens: expert by expert, or one dense part.

use std::sync::Arc;

use nestling_formats::Level;
use nestling_formats::store::GroupId;
use nestling_import::{Activation, FeedForward as FeedForwardConfig};

use super::mixer::PassedOn;
use super::moments::{Blend, MomentSum, Panels};
use super::{ByteProgress, Calibrator, Pass, PassOutput, ROUTED_INPUTS, SAMPLE_TOKENS, STEP_ROWS};
use nestling_core::backend::{Backend, Encoder, EncoderExt, FeedForward, Linear, Routing, Write};
use nestling_core::driver::block_on;
use nestling_core::error::EngineError;
use nestling_core::weights::ActivationMode;
use nestling_cpu::Cpu;
use nestling_cpu::kernels::Kernels;
use nestling_cpu::threads::ThreadPool;
use nestling_experts::expert::{ExpertSource, expert_biases};
use nestling_runtime::model::LayerWeights;
use nestling_runtime::model::weights::Loader;

/// Number of rows whose moments are summed at once for an expert.
const BLOCK_ROWS: usize = 256;

/// Frequency of an expert, and the mean weight of its output.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ExpertStatistics {
    /// Fraction of the tokens that are routed to the expert.
    pub frequency: f32,
    /// Mean square of the router's weight over those tokens; 0 if there are none.
    pub mean_squared_weight: f32,
}

#[derive(Clone, Copy)]
pub(super) struct RowWeight {
    pub row: u32,
    pub weight: f32,
}

struct ExpertMoments {
    uses: Vec<RowWeight>,
    /// Mean square of the expert's own inputs, each token weighted by the square of its router weight.
    input_diagonal: Vec<f32>, // [hidden_size]
    /// Moments of the inputs of `down`, blended.
    inner: MomentSum,
}

/// Inputs of a feed-forward part: normalized hidden states of all tokens.
pub(super) struct PartInputs {
    /// Weights of the norm; empty if the layer is a mixer alone.
    pub norm: Vec<f32>, // [hidden_size]
    /// Moments of the inputs of all tokens.
    pub sum: MomentSum,
}

/// Moments of a layer's feed-forward part.
pub(super) struct FeedForwardMoments {
    inputs: PartInputs,
    /// Inputs of the experts, if they differ from `inputs`.
    expert_inputs: Option<PartInputs>,
    /// Moments of the inputs of a dense part's `down`.
    dense: Option<MomentSum>,
    experts: Vec<ExpertMoments>,
    /// Output of the part, which is added to the hidden states.
    pub output: Vec<f32>, // [T, hidden_size]
    /// Factor of the hidden states after the part.
    pub layer_scalar: f32,
    /// Squared factor by which norms enlarge the sum of experts before it is added to the hidden states.
    pub gain: f64,
}

impl FeedForwardMoments {
    /// Returns the tokens of an expert in ascending order.
    pub fn uses_of(&self, expert: u32) -> Option<&[RowWeight]> {
        Some(&self.experts.get(expert as usize)?.uses)
    }

    /// Returns the inputs of an expert, or of the dense part.
    pub fn inputs(&self, expert: Option<u32>) -> &PartInputs {
        match (expert, &self.expert_inputs) {
            (Some(_), Some(own)) => own,
            _ => &self.inputs,
        }
    }

    /// Creates moments for the inputs of the part, and those of the experts if they differ. `outputs` is the
    /// length of the output.
    pub fn new(inputs: PartInputs, expert_inputs: Option<PartInputs>, outputs: usize) -> Self {
        Self {
            inputs,
            expert_inputs,
            dense: None,
            experts: Vec::new(),
            output: vec![0.0; outputs],
            layer_scalar: 1.0,
            gain: 1.0,
        }
    }

    /// Returns the moments of the inputs of `down`.
    pub fn inner(&self, expert: Option<u32>) -> Option<&MomentSum> {
        match expert {
            None => self.dense.as_ref(),
            Some(expert) => Some(&self.experts.get(expert as usize)?.inner),
        }
    }

    /// Returns the mean squares of the inputs of `gate` and `up`.
    pub fn input_diagonal(&self, expert: Option<u32>) -> Option<Vec<f32>> {
        let uniform = self.inputs(expert).sum.diagonal();
        // Default: a dense layer has a single mean.
        let Some(expert) = expert else { return Some(uniform) };
        let expert = self.experts.get(expert as usize)?;
        let routed = &expert.input_diagonal;
        let share = routed_share(expert.uses.len(), uniform.len());
        let blend = Blend::new(routed, &uniform, share);
        let both = routed.iter().zip(&uniform);
        Some(both.map(|(routed, all)| blend.routed * routed + blend.uniform * all).collect())
    }

    pub fn statistics(&self, tokens: usize) -> Vec<ExpertStatistics> {
        let of = |expert: &ExpertMoments| {
            let squares = expert.uses.iter().map(|used| f64::from(used.weight).powi(2));
            let count = expert.uses.len();
            ExpertStatistics {
                frequency: count as f32 / tokens.max(1) as f32,
                mean_squared_weight: (squares.fold(0.0, |sum, square| sum + square)
                    / count.max(1) as f64) as f32,
            }
        };
        self.experts.iter().map(of).collect()
    }
}

/// Intermediate values of rows in a feed-forward part.
struct Inner {
    joined: Vec<f32>, // [rows, intermediate], gate and up together
    output: Vec<f32>, // [rows, hidden_size], empty unless requested
}

impl Calibrator<'_> {
    /// Computes the feed-forward part, which is the second half of a layer.
    pub(super) fn feed_forward(
        &mut self,
        weights: &LayerWeights<Cpu>,
        passed_on: &PassedOn,
        moments: &mut FeedForwardMoments,
        how: &Pass<'_>,
        passed: ByteProgress<'_>,
    ) -> Result<(), EngineError> {
        if let Some(shared) = &weights.shared {
            let weight = |row: usize| passed_on.gates.get(row).copied().unwrap_or(1.0);
            let rows = (0u32..).zip(0..self.token_count());
            let uses: Vec<RowWeight> =
                rows.map(|(row, index)| RowWeight { row, weight: weight(index) }).collect();
            let mut sum = MomentSum::new(shared.ffn.down.matrix.cols());
            self.routed(None, &shared.ffn, moments, &uses, &mut sum, how)?;
            moments.dense = Some(sum);
        }
        let mut branch = Vec::new();
        if let Some(norms) = &weights.norms_after {
            branch = vec![0.0; moments.output.len()];
            self.add_normed(norms.shared.as_ref(), moments, &mut branch);
        }
        if let Some(router) = &weights.router {
            for (expert, uses) in (0u32..).zip(uses(&passed_on.routing, router.weights.rows())) {
                self.expert(expert, uses, moments, how)?;
                passed(self.bytes(self.layers, Some(expert)));
            }
        }
        if let Some(norms) = &weights.norms_after {
            let of_experts = self.add_normed(norms.experts.as_ref(), moments, &mut branch);
            moments.output = branch;
            let mut sum = vec![0.0; moments.output.len()];
            let of_all = self.add_normed(Some(&norms.feed_forward), moments, &mut sum);
            (moments.output, moments.layer_scalar) = (sum, norms.layer_scalar);
            moments.gain = of_experts * of_all;
        }
        Ok(())
    }

    /// Adds the output so far to `sum`, after the norm if there is one. Returns the factor by which the norm
    /// enlarges the squares.
    fn add_normed(
        &self,
        norm: Option<&Vec<f32>>,
        moments: &mut FeedForwardMoments,
        sum: &mut [f32],
    ) -> f64 {
        let config = self.source.config();
        let (hidden, eps) = (config.hidden_size, config.rms_norm_eps);
        let (mut before, mut after) = (0.0, 0.0);
        let mut normed = vec![0.0; hidden];
        let squares = |row: &[f32]| row.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>();
        for (x, sum) in moments.output.chunks_exact_mut(hidden).zip(sum.chunks_exact_mut(hidden)) {
            match norm {
                Some(norm) => self.kernels.rms_norm(x, norm, eps, &mut normed),
                None => normed.copy_from_slice(x),
            }
            before += squares(x);
            after += squares(&normed);
            self.kernels.add(sum, &normed);
            x.fill(0.0);
        }
        if before > 0.0 { after / before } else { 1.0 }
    }

    fn expert(
        &mut self,
        expert: u32,
        uses: Vec<RowWeight>,
        moments: &mut FeedForwardMoments,
        how: &Pass<'_>,
    ) -> Result<(), EngineError> {
        if uses.is_empty() && how.wanted == PassOutput::Outputs {
            return Ok(());
        }
        let weights = self.expert_weights(expert)?;
        let intermediate = weights.down.matrix.cols();
        let mut routed = MomentSum::new(intermediate);
        let input_diagonal =
            self.routed(Some(expert), &weights, moments, &uses, &mut routed, how)?;
        if how.wanted == PassOutput::Outputs {
            return Ok(());
        }
        let mut uniform = MomentSum::new(intermediate);
        let tokens = self.token_count();
        let sample = tokens.min(SAMPLE_TOKENS);
        let rows: Vec<u32> = (0..sample).map(|at| (at * tokens / sample) as u32).collect();
        let mut panels = Panels::default();
        for rows in rows.chunks(STEP_ROWS) {
            let normed = self.normed(rows.iter().copied(), &moments.inputs(Some(expert)).norm);
            let inner = self.inner(&weights, &normed, PassOutput::Moments)?;
            let rows = inner.joined.chunks_exact(intermediate).map(|row| (row, 1.0));
            uniform.add(&self.pool, self.kernels, panels.pack(intermediate, rows));
        }
        let inner = MomentSum::blend(routed, &uniform, routed_share(uses.len(), intermediate));
        moments.experts.push(ExpertMoments { uses, input_diagonal, inner });
        Ok(())
    }

    fn expert_weights(&mut self, expert: u32) -> Result<FeedForward<Cpu>, EngineError> {
        let config = self.source.config();
        let layer = config.layers.get(self.layers as usize).map(|layer| layer.feed_forward);
        let intermediate = match layer {
            Some(FeedForwardConfig::Moe { moe_intermediate_size, .. }) => moe_intermediate_size,
            _ => 0,
        };
        let hidden = config.hidden_size;
        let group = self.source.matrices(&GroupId::expert_of(self.layers, expert))?;
        let biases = expert_biases(&self.source, self.layers)?;
        let biases = biases.as_ref().map(|biases| biases.of(expert));
        let mut loader = Loader::new(&mut self.cpu, &self.source, ActivationMode::Float, 1);
        loader.feed_forward(group, hidden, intermediate, biases)
    }

    /// Computes a part on its tokens and adds its outputs. Returns the mean squares of its inputs.
    fn routed(
        &mut self,
        expert: Option<u32>,
        weights: &FeedForward<Cpu>,
        moments: &mut FeedForwardMoments,
        uses: &[RowWeight],
        sum: &mut MomentSum,
        how: &Pass<'_>,
    ) -> Result<Vec<f32>, EngineError> {
        let hidden = self.source.config().hidden_size;
        let mut squares = vec![0.0f32; hidden];
        let mut panels = Panels::default();
        let width = weights.down.matrix.cols();
        for uses in uses.chunks(STEP_ROWS) {
            if how.cancel.is_cancelled() {
                return Err(EngineError::Cancelled);
            }
            let norm = &moments.inputs(expert).norm;
            let normed = self.normed(uses.iter().map(|used| used.row), norm);
            let inner = self.inner(weights, &normed, PassOutput::Outputs)?;
            for (out, used) in inner.output.chunks_exact(hidden).zip(uses) {
                let output = &mut moments.output[used.row as usize * hidden..][..hidden];
                self.kernels.add_scaled(output, used.weight, out);
            }
            if how.wanted == PassOutput::Moments {
                let rows = inner.joined.chunks_exact(width).zip(uses);
                let rows = rows.map(|(row, used)| (row, used.weight));
                sum.add(&self.pool, self.kernels, panels.pack(width, rows));
                for (x, used) in normed.chunks_exact(hidden).zip(uses) {
                    for (square, x) in squares.iter_mut().zip(x) {
                        *square += (used.weight * x) * (used.weight * x);
                    }
                }
            }
        }
        let weight: f64 = uses.iter().map(|used| f64::from(used.weight).powi(2)).sum();
        if weight > 0.0 {
            let factor = (1.0 / weight) as f32;
            squares.iter_mut().for_each(|square| *square *= factor);
        }
        Ok(squares)
    }

    /// Returns the feed-forward inputs of some tokens, `[rows, hidden_size]`.
    pub(super) fn normed(
        &self,
        rows: impl ExactSizeIterator<Item = u32>,
        norm: &[f32],
    ) -> Vec<f32> {
        let config = self.source.config();
        let hidden = config.hidden_size;
        let mut normed = vec![0.0; rows.len() * hidden];
        for (row, out) in rows.zip(normed.chunks_exact_mut(hidden)) {
            let x = &self.hidden[row as usize * hidden..][..hidden];
            self.kernels.rms_norm(x, norm, config.rms_norm_eps, out);
        }
        normed
    }

    /// Computes `activation(gate(x), up(x))`, and `down` of it if outputs are requested.
    fn inner(
        &mut self,
        weights: &FeedForward<Cpu>,
        normed: &[f32],
        wanted: PassOutput,
    ) -> Result<Inner, EngineError> {
        let hidden = self.source.config().hidden_size;
        let rows = normed.len() / hidden.max(1);
        let mut x = self.cpu.buffer(rows, hidden)?;
        self.cpu.encoder().write(normed, &mut x)?;
        let up = self.product(&weights.up, &x)?;
        let mut joined = match &weights.gate {
            Some(gate) => self.product(gate, &x)?,
            None => up.clone(),
        };
        gated(&self.pool, self.kernels, weights.activation, &mut joined, &up);
        let mut output = Vec::new();
        if wanted == PassOutput::Outputs {
            let mut x = self.cpu.buffer(rows, weights.down.matrix.cols())?;
            self.cpu.encoder().write(&joined, &mut x)?;
            output = self.product(&weights.down, &x)?;
        }
        Ok(Inner { joined, output })
    }

    fn product(
        &mut self,
        linear: &Linear<Cpu>,
        x: &<Cpu as Backend>::Buffer,
    ) -> Result<Vec<f32>, EngineError> {
        let levels = vec![Level::L8; x.row_count()];
        let mut out = self.cpu.buffer(levels.len(), linear.matrix.rows())?;
        let mut encoder = self.cpu.encoder();
        encoder.matmul(std::slice::from_ref(linear), &levels, x, Write::Set, &mut out)?;
        block_on(encoder.read(&out))
    }

    /// Returns the moments of the inputs of `gate` and `up`, blended from the expert's own tokens and all
    /// tokens.
    pub(super) fn feed_forward_input(
        &self,
        moments: &FeedForwardMoments,
        expert: Option<u32>,
    ) -> Option<MomentSum> {
        let inputs = moments.inputs(expert);
        // Default: a dense layer has a single sum.
        let Some(expert) = expert else { return Some(inputs.sum.clone()) };
        let uses = &moments.experts.get(expert as usize)?.uses;
        let hidden = self.source.config().hidden_size;
        let share = routed_share(uses.len(), hidden);
        let mut routed = MomentSum::new(hidden);
        // Callers request several experts in parallel, each on a separate thread.
        let pool = ThreadPool::new(1);
        let mut panels = Panels::default();
        for uses in uses.chunks(BLOCK_ROWS) {
            let normed = self.normed(uses.iter().map(|used| used.row), &inputs.norm);
            let rows = normed.chunks_exact(hidden).zip(uses).map(|(row, used)| (row, used.weight));
            routed.add(&pool, self.kernels, panels.pack(hidden, rows));
        }
        Some(MomentSum::blend(routed, &inputs.sum, share))
    }
}

/// Returns the share of an expert's own inputs in its moments. The rest comes from the inputs of all tokens.
fn routed_share(routed: usize, inputs: usize) -> f32 {
    routed as f32 / (routed + ROUTED_INPUTS * inputs) as f32
}

/// Returns the tokens of each expert in ascending order.
fn uses(routing: &Routing, experts: usize) -> Vec<Vec<RowWeight>> {
    let mut uses = vec![Vec::new(); experts];
    let chosen = routing.num_experts_per_tok.max(1);
    let rows =
        routing.expert_ids.chunks_exact(chosen).zip(routing.expert_weights.chunks_exact(chosen));
    for (row, (ids, weights)) in (0u32..).zip(rows) {
        for (&expert, &weight) in ids.iter().zip(weights) {
            if let Some(uses) = uses.get_mut(expert as usize) {
                uses.push(RowWeight { row, weight });
            }
        }
    }
    uses
}

fn gated(
    pool: &Arc<ThreadPool>,
    kernels: &'static Kernels,
    activation: Activation,
    gate: &mut [f32],
    up: &[f32],
) {
    let chunk = gate.len().div_ceil(4 * pool.threads()).max(1);
    let mut parts: Vec<_> = gate.chunks_mut(chunk).zip(up.chunks(chunk)).collect();
    pool.for_each_mut(&mut parts, &|_, (gate, up)| kernels.gated(activation, gate, up));
}
