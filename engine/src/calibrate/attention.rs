//! A layer up to its feed-forward part, for all tokens.

use super::moments::{MomentSum, Panels};
use super::{Calibrator, Pass, Passed, STEP_ROWS, Wanted, step_rows, steps};
use crate::backend::{Backend, Encoder, Routing};
use crate::cpu::Cpu;
use crate::driver::block_on;
use crate::error::EngineError;
use crate::expert::ExpertSource;
use crate::model::LayerWeights;

/// What the tokens left behind on their way.
pub(super) struct AttentionPass {
    /// Inputs of queries, keys and values.
    pub input: MomentSum,
    /// Inputs of the output projection.
    pub attended: MomentSum,
    /// Inputs of the feed-forward part.
    pub normed: MomentSum,
    /// The experts of all tokens; empty in a dense layer.
    pub routing: Routing, // [T, K]
}

impl Calibrator<'_> {
    /// Adds attention to the hidden states: the first half of a layer as `model/forward.rs` has it.
    pub(super) fn attention(
        &mut self,
        weights: &LayerWeights<Cpu>,
        how: &Pass<'_>,
        passed: Passed<'_>,
    ) -> Result<AttentionPass, EngineError> {
        let config = self.source.config().clone();
        let (hidden, heads) = (config.hidden_size, &weights.heads);
        let queries = heads.num_attention_heads * heads.head_dim;
        let keys = heads.num_key_value_heads * heads.head_dim;
        let mut pass = AttentionPass {
            input: MomentSum::new(hidden),
            attended: MomentSum::new(queries),
            normed: MomentSum::new(hidden),
            routing: Routing::default(),
        };
        let bytes = self.bytes(self.layers, None);
        let cpu = &mut self.cpu;
        let mut x = cpu.buffer(STEP_ROWS, hidden)?;
        let mut normed = cpu.buffer(STEP_ROWS, hidden)?;
        let mut qkv = cpu.buffer(STEP_ROWS, queries + 2 * keys)?;
        let mut attended = cpu.buffer(STEP_ROWS, queries)?;
        let mut rope = cpu.buffer(STEP_ROWS, heads.head_dim)?;
        let mut routing = cpu.routing(STEP_ROWS, 0)?;
        let mut panels = Panels::default();
        let mut sum = |sum: &mut MomentSum, values: &[f32], cols: usize| {
            if how.wanted == Wanted::Outputs {
                return;
            }
            let rows = values.chunks_exact(cols).map(|row| (row, 1.0));
            sum.add(&self.pool, self.kernels, panels.pack(cols, rows));
        };
        let (mut done, mut reported) = (0, 0);
        let total = self.hidden.len();
        for step in steps(&self.sequences) {
            if how.cancel.is_cancelled() {
                return Err(EngineError::Cancelled);
            }
            let rows = step_rows(step);
            let part = done..done + rows.len() * hidden;
            let levels = &rows.dense_levels;
            let mut enc = cpu.encoder();
            enc.write(&self.hidden[part.clone()], &mut x)?;
            enc.write(&self.angles.of_rows(&rows), &mut rope)?;
            enc.rms_norm(&x, &weights.attention_norm, config.rms_norm_eps, &mut normed)?;
            sum(&mut pass.input, &block_on(enc.read(&normed))?, hidden);
            enc.matmul(&weights.qkv, levels, &normed, &mut qkv)?;
            enc.rope_store(heads, &rows, &rope, &mut qkv, &mut self.kv)?;
            enc.attend(heads, &rows, &qkv, &self.kv, &mut attended)?;
            sum(&mut pass.attended, &block_on(enc.read(&attended))?, queries);
            enc.matmul_add(&weights.attention_out, levels, &attended, &mut x)?;
            enc.rms_norm(&x, &weights.feed_forward_norm, config.rms_norm_eps, &mut normed)?;
            sum(&mut pass.normed, &block_on(enc.read(&normed))?, hidden);
            if let Some(router) = &weights.router {
                enc.route(router, &normed, &mut routing)?;
                let chosen = block_on(enc.read_routing(&routing))?;
                pass.routing.num_experts_per_tok = chosen.num_experts_per_tok;
                pass.routing.expert_ids.extend(chosen.expert_ids);
                pass.routing.expert_weights.extend(chosen.expert_weights);
            }
            self.hidden[part.clone()].copy_from_slice(&block_on(enc.read(&x))?);
            done = part.end;
            let now = (u128::from(bytes) * done as u128 / total.max(1) as u128) as u64;
            passed(now - reported);
            reported = now;
        }
        Ok(pass)
    }
}
