//! The first half of a layer, up to its feed-forward part, for all tokens.

use std::collections::BTreeMap;
use std::sync::Arc;

use nestling_formats::{Level, MatrixKind};
use nestling_import::ModelConfig;

use super::moments::{MomentSum, Panels};
use super::{
    ByteProgress, Calibrator, Pass, PassOutput, STEP_ROWS, pages_max, sequences_per_step,
    step_rows, steps,
};
use nestling_core::backend::{Backend, Encoder, EncoderExt, HeadMatrices, Routing, Write};
use nestling_core::batch::StepRows;
use nestling_core::driver::block_on;
use nestling_core::error::EngineError;
use nestling_core::kv_cache::KvDtype;
use nestling_core::kv_heads::KvDivision;
use nestling_cpu::kernels::Kernels;
use nestling_cpu::threads::ThreadPool;
use nestling_cpu::{Cpu, CpuBuffer, math};
use nestling_experts::expert::ExpertSource;
use nestling_runtime::model::memory::{LayerMemory, MemoryShape};
use nestling_runtime::model::mixer::{ActivationObserver, MixerArgs, ResidualAdd, mix};
use nestling_runtime::model::{Activations, LayerWeights, RopeAngles, layer};

pub(super) struct MixerMoments {
    /// Inputs of the mixer's products, keyed by the first of the kinds that share the inputs.
    pub inputs: BTreeMap<MatrixKind, MomentSum>,
    /// Inputs of the feed-forward part.
    pub normed: MomentSum,
    /// Inputs of the experts, if they differ from `normed`.
    pub expert_inputs: Option<MomentSum>,
}

/// Routing results that the feed-forward part needs.
#[derive(Default)]
pub(super) struct PassedOn {
    /// Routed experts of all tokens; empty in a dense layer.
    pub routing: Routing, // [T, K]
    /// Factors of a shared expert's outputs; empty means 1.
    pub gates: Vec<f32>, // [T]
}

/// A step of some sequences in a layer's mixer.
pub(super) struct MixerStep<'a> {
    pub config: &'a ModelConfig,
    pub weights: &'a LayerWeights<Cpu>,
    pub angles: &'a [RopeAngles],
    pub rows: &'a mut StepRows,
    pub memory: &'a mut LayerMemory<Cpu>,
    pub act: &'a mut Activations<Cpu>,
}

/// Copies `hidden`, `[T, hidden_size]`, to `act.x` and adds the mixer's output to it.
pub(super) fn pass_mixer(
    enc: &mut <Cpu as Backend>::Encoder<'_>,
    hidden: &[f32],
    step: MixerStep<'_>,
    observer: &mut impl ActivationObserver<Cpu>,
) -> Result<(), EngineError> {
    let MixerStep { config, weights, angles, rows, memory, act } = step;
    let eps = config.rms_norm_eps;
    enc.write(hidden, &mut act.x)?;
    let mut values = Vec::new();
    for (kind, rope) in angles.iter().zip(&mut act.ropes) {
        kind.fill(&rows.positions, &mut values);
        enc.write(&values, rope)?;
    }
    enc.rms_norm(&act.x, &weights.attention_norm, eps, Write::Set, &mut act.normed)?;
    let multiplier = config.multipliers.residual;
    let norm = weights.norms_after.as_ref().map(|norms| (&norms.attention, eps));
    let residual = ResidualAdd { multiplier, norm };
    mix(enc, &weights.mixer, MixerArgs { rows, tail: None, act, memory, residual }, observer)
}

/// Observer that sums the inputs of the mixer's matrices.
struct Sums<'a> {
    wanted: PassOutput,
    pool: &'a Arc<ThreadPool>,
    kernels: &'static Kernels,
    panels: Panels,
    inputs: BTreeMap<MatrixKind, MomentSum>,
}

impl Sums<'_> {
    fn add(&mut self, sum: &mut MomentSum, values: &[f32], cols: usize) {
        let rows = values.chunks_exact(cols.max(1)).map(|row| (row, 1.0));
        sum.add(self.pool, self.kernels, self.panels.pack(cols, rows));
    }

    fn add_inputs<'x>(
        &mut self,
        kind: MatrixKind,
        rows: impl Iterator<Item = &'x [f32]>,
        cols: usize,
    ) {
        let sum = self.inputs.entry(kind).or_insert_with(|| MomentSum::new(cols));
        let rows: Vec<_> = rows.map(|row| (row, 1.0)).collect();
        sum.add(self.pool, self.kernels, self.panels.pack(cols, rows.into_iter()));
    }
}

impl ActivationObserver<Cpu> for Sums<'_> {
    fn inputs(
        &mut self,
        encoder: &mut <Cpu as Backend>::Encoder<'_>,
        kind: MatrixKind,
        x: &CpuBuffer,
    ) -> Result<(), EngineError> {
        if self.wanted == PassOutput::Outputs {
            return Ok(());
        }
        let (values, cols) = (block_on(encoder.read(x))?, x.cols());
        self.add_inputs(kind, values.chunks_exact(cols.max(1)), cols);
        Ok(())
    }

    fn head_inputs(
        &mut self,
        encoder: &mut <Cpu as Backend>::Encoder<'_>,
        kind: MatrixKind,
        x: &CpuBuffer,
        weights: &HeadMatrices<Cpu>,
    ) -> Result<(), EngineError> {
        if self.wanted == PassOutput::Outputs {
            return Ok(());
        }
        let (values, cols) = (block_on(encoder.read(x))?, weights.matrix.cols());
        let heads = values.chunks_exact((x.cols() / weights.heads.max(1)).max(1));
        self.add_inputs(kind, heads.filter_map(|head| head.get(..cols)), cols);
        Ok(())
    }
}

impl Calibrator<'_> {
    /// Adds the mixer's output to the hidden states, which is the first half of a layer.
    pub(super) fn mixer(
        &mut self,
        weights: &LayerWeights<Cpu>,
        how: &Pass<'_>,
        passed: ByteProgress<'_>,
    ) -> Result<(MixerMoments, PassedOn), EngineError> {
        let config = self.source.config().clone();
        let (hidden, eps) = (config.hidden_size, config.rms_norm_eps);
        let Some(layer) = config.layers.get(self.layers as usize) else {
            return Err(EngineError::mismatch("layer", config.layers.len(), self.layers));
        };
        let bytes = self.bytes(self.layers, None);
        let cpu = &mut self.cpu;
        let pages = pages_max(&self.sequences);
        let states = sequences_per_step(self.sequences.first().map_or(1, Vec::len));
        let kv_division = KvDivision::default();
        let shape = MemoryShape { kv_dtype: KvDtype::F32, kv_division, pages, states };
        let mut memory = LayerMemory::new(cpu, layer, shape)?;
        let mut act = Activations::new(cpu, &config, kv_division, STEP_ROWS)?;
        let (pool, kernels, wanted) = (&self.pool, self.kernels, how.wanted);
        let panels = Panels::default();
        let mut sums = Sums { wanted, pool, kernels, panels, inputs: BTreeMap::new() };
        let (mut normed, mut passed_on) = (MomentSum::new(hidden), PassedOn::default());
        let mut expert_inputs = weights.norm_before_experts().map(|_| MomentSum::new(hidden));
        let (mut done, mut reported) = (0, 0);
        let total = self.hidden.len();
        for step in steps(&self.sequences) {
            if how.cancel.is_cancelled() {
                return Err(EngineError::Cancelled);
            }
            let mut rows = step_rows(step);
            let part = done..done + rows.len() * hidden;
            let mut enc = cpu.encoder();
            let step = MixerStep {
                config: &config,
                weights,
                angles: &self.angles,
                rows: &mut rows,
                memory: &mut memory,
                act: &mut act,
            };
            pass_mixer(&mut enc, &self.hidden[part.clone()], step, &mut sums)?;
            if let Some(norm) = &weights.feed_forward_norm {
                enc.rms_norm(&act.x, norm, eps, Write::Set, &mut act.normed)?;
                if wanted == PassOutput::Moments {
                    sums.add(&mut normed, &block_on(enc.read(&act.normed))?, hidden);
                }
            }
            passed_on.add(&mut enc, weights, &rows.dense_levels, eps, &mut act)?;
            if let (Some(sum), PassOutput::Moments) = (&mut expert_inputs, wanted) {
                sums.add(sum, &block_on(enc.read(&act.normed))?, hidden);
            }
            self.hidden[part.clone()].copy_from_slice(&block_on(enc.read(&act.x))?);
            done = part.end;
            let now = (u128::from(bytes) * done as u128 / total.max(1) as u128) as u64;
            passed(now - reported);
            reported = now;
        }
        Ok((MixerMoments { inputs: sums.inputs, normed, expert_inputs }, passed_on))
    }
}

impl PassedOn {
    /// Adds the routing of a step's rows, and leaves the inputs of experts in `act.normed`.
    fn add(
        &mut self,
        enc: &mut <Cpu as Backend>::Encoder<'_>,
        weights: &LayerWeights<Cpu>,
        levels: &[Level],
        eps: f32,
        act: &mut Activations<Cpu>,
    ) -> Result<(), EngineError> {
        if let Some(gate) = weights.shared.as_ref().and_then(|shared| shared.gate.as_ref()) {
            enc.matmul(std::slice::from_ref(gate), levels, &act.normed, Write::Set, &mut act.gate)?;
            self.gates.extend(block_on(enc.read(&act.gate))?.into_iter().map(math::sigmoid));
        }
        if let Some(router) = &weights.router {
            layer::route(enc, weights, router, eps, act)?;
            let chosen = block_on(enc.read_routing(&act.routing))?;
            self.routing.num_experts_per_tok = chosen.num_experts_per_tok;
            self.routing.expert_ids.extend(chosen.expert_ids);
            self.routing.expert_weights.extend(chosen.expert_weights);
        }
        Ok(())
    }
}
