//! The operations of a step on the CPU, with threads and kernels. Results have the same bits as
//! [`super::reference`].

mod attention;
mod delta_net;
#[cfg(test)]
mod delta_tests;
#[cfg(test)]
mod divided_heads_tests;
mod expert_uses;
mod feed_forward;
mod head_shape;
mod heads;
pub(super) mod inner;
#[cfg(test)]
mod latent_tests;
mod mamba2;
#[cfg(test)]
mod mamba2_tests;
pub(super) mod products;
pub(super) mod scratch;
mod short_conv;
#[cfg(test)]
mod short_conv_tests;
mod state_heads;
#[cfg(test)]
mod tests;
mod tiles;
#[cfg(test)]
mod ungated_tests;

use std::sync::Mutex;

use nestling_formats::Level;
use nestling_formats::memory::try_reserve;
use nestling_import::GateFunction;

use super::aligned::STEP;
use super::columns::{Cut, for_each_block};
use super::device::{Cpu, FeedForwardScratch, Scratch};
use super::math::{self, RouterScores};
use super::matrix::{CpuBuffer, CpuMatrix};
use super::pages::CpuPool;
use super::states::CpuStates;
use super::team::ROW_COST;
use expert_uses::{dense_uses, expert_uses};
use feed_forward::{RowLevels, count_to, feed_forward, feed_forward_of_rank, linear_rows};
use nestling_core::backend::{
    AttentionHeads, Backend, BindWeights, CompleteInner, DeltaNet, Encoder, FeedForward,
    HeadMatrices, Linear, Mamba2, Outputs, PinnedExpert, Router, Routing, ShortConv, Write, argmax,
};
use nestling_core::batch::StepRows;
use nestling_core::error::EngineError;
use nestling_core::sync::whole;
use nestling_core::weights::{ActivationMode, MatrixWeights};
use products::{
    FloatProduct, Int8Product, Output, RowMap, StoreMode, multiply_float, multiply_int8, of_level,
};
use tiles::Tiles;

/// Encoder that runs each operation immediately. It is only used behind [`CheckedEncoder`], which has checked the
/// operands.
///
/// [`CheckedEncoder`]: nestling_core::backend::CheckedEncoder
#[derive(Debug)]
pub struct CpuEncoder<'a> {
    pub(super) cpu: &'a mut Cpu,
}

/// Number of columns of a weighted sum that are gathered together.
const SUM_COLS: usize = 512;

impl Scratch {
    /// Calls `job` with the numbers from 0 to before `count`.
    fn with_all<T>(
        &mut self,
        count: usize,
        job: impl FnOnce(&mut FeedForwardScratch, &[u32]) -> T,
    ) -> T {
        count_to(count, &mut self.work.all);
        let all = std::mem::take(&mut self.work.all);
        let result = job(&mut self.work, &all[..count]);
        self.work.all = all;
        result
    }
}

impl CpuEncoder<'_> {
    /// Computes all int8 products with one fork and join per level.
    fn int8_products(
        &mut self,
        weights: &[Linear<Cpu>],
        levels: &[Level],
        x: &CpuBuffer,
        mut output: Output<'_>,
    ) -> Result<(), EngineError> {
        let Cpu { team, scratch, .. } = &mut *self.cpu;
        let FeedForwardScratch {
            x: quantized, products: memory, level_rows: [level_rows, _], ..
        } = &mut scratch.work;
        team.quantize(&x.values, x.cols, quantized)?;
        for level in Level::ALL {
            level_rows.clear();
            level_rows.extend(of_level(levels, level));
            if level_rows.is_empty() {
                continue;
            }
            let (map, mut first) = (RowMap::same(level_rows), 0);
            let mut products = memory.list();
            for linear in weights {
                let (bias, rows) = (linear.bias.as_deref(), linear.matrix.rows());
                let tiles = Tiles::new(&linear.matrix, level)?;
                let Outputs { first: within, whole } = linear.outputs;
                products.push((Int8Product { tiles, bias, first: first + within, rows }, map));
                first += whole;
            }
            multiply_int8(team, memory, &products, quantized, output.reborrow())?;
            memory.put_back(products);
        }
        Ok(())
    }
}

impl Encoder<Cpu> for CpuEncoder<'_> {
    fn embed(
        &mut self,
        table: &Linear<Cpu>,
        rows: &StepRows,
        out: &mut CpuBuffer,
    ) -> Result<(), EngineError> {
        out.resize(rows.len())?;
        let Cpu { team, .. } = &*self.cpu;
        let failed = Mutex::new(None);
        let (cols, first) = (out.cols, table.outputs.first);
        let held = first..first + table.matrix.rows();
        team.for_each_row(&mut out.values, cols, ROW_COST * cols, |row, out| {
            let (level, token) = (rows.dense_levels[row], rows.tokens[row] as usize);
            if table.is_divided() && !held.contains(&token) {
                // The row is gathered from the rank that holds it.
                return out.fill(0.0);
            }
            if let Err(error) = table.matrix.read_row(level, token - first, out) {
                *whole(failed.lock()) = Some(error);
            }
        });
        let failed = whole(failed.into_inner());
        failed.map_or(Ok(()), Err)
    }

    fn write(&mut self, values: &[f32], out: &mut CpuBuffer) -> Result<(), EngineError> {
        out.values.clear();
        out.values.try_reserve(values.len())?;
        out.values.extend_from_slice(values);
        Ok(())
    }

    fn write_rows(
        &mut self,
        values: &[f32],
        rows: &[u32],
        out: &mut CpuBuffer,
    ) -> Result<(), EngineError> {
        let cols = out.cols;
        for (values, row) in values.chunks_exact(cols.max(1)).zip(rows) {
            out.values[*row as usize * cols..][..cols].copy_from_slice(values);
        }
        Ok(())
    }

    fn rms_norm(
        &mut self,
        x: &CpuBuffer,
        weight: &Vec<f32>,
        eps: f32,
        write: Write,
        out: &mut CpuBuffer,
    ) -> Result<(), EngineError> {
        if write == Write::Set {
            out.resize(x.row_count())?;
        }
        let Cpu { team, .. } = &*self.cpu;
        let cols = x.cols;
        team.for_each_row(&mut out.values, cols, ROW_COST * cols, |row, out| {
            let x = &x.values[row * cols..][..cols];
            match write {
                Write::Set => team.kernels.rms_norm(x, weight, eps, out),
                Write::Add => team.kernels.rms_norm_add(x, weight, eps, out),
            }
        });
        Ok(())
    }

    fn matmul(
        &mut self,
        weights: &[Linear<Cpu>],
        levels: &[Level],
        x: &CpuBuffer,
        write: Write,
        out: &mut CpuBuffer,
    ) -> Result<(), EngineError> {
        let mut output = Output::of(out, x.row_count(), write)?;
        if weights.iter().all(|linear| linear.matrix.takes_int8()) {
            return self.int8_products(weights, levels, x, output);
        }
        let Cpu { team, scratch, .. } = &mut *self.cpu;
        scratch.with_all(levels.len(), |work, all| {
            let mut first = 0;
            for linear in weights {
                let (rows, output) = (RowMap::same(all), output.reborrow());
                let rows = RowLevels { rows, levels };
                let Outputs { first: within, whole } = linear.outputs;
                linear_rows(team, work, linear, rows, x, first + within, output)?;
                first += whole;
            }
            Ok(())
        })
    }

    fn matmul_heads(
        &mut self,
        weights: &HeadMatrices<Cpu>,
        levels: &[Level],
        x: &CpuBuffer,
        out: &mut CpuBuffer,
    ) -> Result<(), EngineError> {
        let Cpu { team, scratch, .. } = &mut *self.cpu;
        heads::multiply_heads(team, &mut scratch.work, weights, levels, x, out)
    }

    fn rope(
        &mut self,
        heads: &AttentionHeads<Cpu>,
        rows: &StepRows,
        angles: &CpuBuffer,
        qkv: &mut CpuBuffer,
        kv: Option<&mut CpuPool>,
    ) -> Result<(), EngineError> {
        let Cpu { team, scratch, .. } = &mut *self.cpu;
        let Some(kv) = kv else {
            attention::rope_queries(team, heads, angles, qkv);
            return Ok(());
        };
        attention::rope_store(team, &mut scratch.attention, heads, rows, angles, qkv, kv)
    }

    fn attend(
        &mut self,
        heads: &AttentionHeads<Cpu>,
        rows: &StepRows,
        qkv: &CpuBuffer,
        kv: &CpuPool,
        out: &mut CpuBuffer,
    ) -> Result<(), EngineError> {
        let Cpu { team, scratch, .. } = &mut *self.cpu;
        attention::attend(team, &mut scratch.attention, heads, rows, qkv, kv, out)
    }

    fn delta_net(
        &mut self,
        net: &DeltaNet<Cpu>,
        rows: &StepRows,
        projected: &CpuBuffer,
        states: &mut CpuStates,
        out: &mut CpuBuffer,
    ) -> Result<(), EngineError> {
        let Cpu { team, scratch, .. } = &mut *self.cpu;
        let scratch = &mut scratch.delta_net;
        delta_net::delta_net(team, scratch, net, rows, projected, states, out)
    }

    fn short_conv(
        &mut self,
        conv: &ShortConv<Cpu>,
        rows: &StepRows,
        projected: &CpuBuffer,
        states: &mut CpuStates,
        out: &mut CpuBuffer,
    ) -> Result<(), EngineError> {
        let Cpu { team, scratch, .. } = &mut *self.cpu;
        short_conv::short_conv(team, &mut scratch.delta_net, conv, rows, projected, states, out)
    }

    fn mamba2(
        &mut self,
        mamba2: &Mamba2<Cpu>,
        rows: &StepRows,
        projected: &CpuBuffer,
        states: &mut CpuStates,
        out: &mut CpuBuffer,
    ) -> Result<(), EngineError> {
        let Cpu { team, scratch, .. } = &mut *self.cpu;
        mamba2::mamba2(team, &mut scratch.delta_net, mamba2, rows, projected, states, out)
    }

    fn gate(
        &mut self,
        function: GateFunction,
        gate: &CpuBuffer,
        out: &mut CpuBuffer,
    ) -> Result<(), EngineError> {
        let (team, cols) = (&self.cpu.team, out.cols);
        team.for_each_row(&mut out.values, cols, 2 * ROW_COST * cols, |row, out| {
            team.kernels.gate(function, out, &gate.values[row * gate.cols..][..gate.cols]);
        });
        Ok(())
    }

    fn route(
        &mut self,
        router: &Router<Cpu>,
        x: &CpuBuffer,
        out: &mut Routing,
    ) -> Result<(), EngineError> {
        let (per_token, rows) = (router.num_experts_per_tok, x.row_count());
        let experts = router.weights.rows();
        let Cpu { team, scratch, .. } = &mut *self.cpu;
        let Scratch { work, logits, chosen, ids, weights, choice, .. } = scratch;
        choice.resize(experts, 0.0);
        logits.cols = experts;
        logits.resize(rows)?;
        count_to(rows, &mut work.all);
        let (values, store) = (&mut logits.values[..], StoreMode::Set);
        let output = Output { values, cols: experts, store };
        let map = RowMap::same(&work.all[..rows]);
        let matrix = &router.weights;
        let product = FloatProduct { matrix, bias: None, level: Level::L8, first: 0 };
        multiply_float(team, &product, map, &x.values, output)?;
        out.num_experts_per_tok = per_token;
        out.expert_ids.clear();
        out.expert_weights.clear();
        try_reserve(&mut out.expert_ids, STEP, rows * per_token)?;
        try_reserve(&mut out.expert_weights, STEP, rows * per_token)?;
        ids.resize(per_token, 0);
        weights.resize(per_token, 0.0);
        for logits in logits.values.chunks_mut(experts.max(1)) {
            if let Some(bias) = &router.logit_bias {
                team.kernels.add(logits, bias);
            }
            // Default: an absent bias adds nothing to scores.
            let selection_bias = router.selection_bias.as_deref().unwrap_or_default();
            // Default: an absent scale is 1.
            let expert_scale = router.expert_scale.as_deref().unwrap_or_default();
            let scores = RouterScores { logits, choice, selection_bias, expert_scale };
            team.kernels.route(&router.rule, scores, ids, weights);
            chosen.clear();
            chosen.extend(ids.iter().copied().zip(weights.iter().copied()));
            chosen.sort_unstable_by_key(|&(id, _)| id);
            out.expert_ids.extend(chosen.iter().map(|&(id, _)| id));
            out.expert_weights.extend(chosen.iter().map(|&(_, weight)| weight));
        }
        Ok(())
    }

    async fn read_routing_into(
        &mut self,
        routing: &Routing,
        out: &mut Routing,
    ) -> Result<(), EngineError> {
        out.num_experts_per_tok = routing.num_experts_per_tok;
        out.expert_ids.clone_from(&routing.expert_ids);
        out.expert_weights.clone_from(&routing.expert_weights);
        Ok(())
    }

    fn write_routing(&mut self, routing: &Routing, out: &mut Routing) -> Result<(), EngineError> {
        out.clone_from(routing);
        Ok(())
    }

    fn flush(&mut self) -> Result<(), EngineError> {
        Ok(())
    }

    fn scale(&mut self, factor: f32, x: &mut CpuBuffer) -> Result<(), EngineError> {
        let Cpu { team, .. } = &*self.cpu;
        let cols = x.cols;
        team.for_each_row(&mut x.values, cols, cols, |_, row| team.kernels.scale(row, factor));
        Ok(())
    }

    fn softcap(&mut self, cap: f32, x: &mut CpuBuffer) -> Result<(), EngineError> {
        let Cpu { team, .. } = &*self.cpu;
        let cols = x.cols;
        team.for_each_row(&mut x.values, cols, ROW_COST * cols, |_, row| {
            team.kernels.softcap(row, cap);
        });
        Ok(())
    }

    fn clear(&mut self, rows: usize, out: &mut CpuBuffer) -> Result<(), EngineError> {
        out.resize(rows)?;
        out.values.fill(0.0);
        Ok(())
    }

    fn ffn(
        &mut self,
        weights: &FeedForward<Cpu>,
        levels: &[Level],
        x: &CpuBuffer,
        write: Write,
        out: &mut CpuBuffer,
    ) -> Result<(), EngineError> {
        let output = Output::of(out, x.row_count(), write)?;
        dense_uses(self.cpu, weights, levels, |team, work, uses| {
            feed_forward(team, work, uses, x, output)
        })
    }

    fn ffn_of_rank(
        &mut self,
        weights: &FeedForward<Cpu>,
        levels: &[Level],
        x: &CpuBuffer,
        write: Write,
        complete: CompleteInner<'_>,
        out: &mut CpuBuffer,
    ) -> Result<(), EngineError> {
        let output = Output::of(out, x.row_count(), write)?;
        dense_uses(self.cpu, weights, levels, |team, work, uses| {
            feed_forward_of_rank(team, work, uses, x, complete, output)
        })
    }

    fn add_gated(
        &mut self,
        gate: &CpuBuffer,
        x: &CpuBuffer,
        out: &mut CpuBuffer,
    ) -> Result<(), EngineError> {
        let Cpu { team, .. } = &*self.cpu;
        let cols = out.cols;
        team.for_each_row(&mut out.values, cols, cols, |row, out| {
            let factor = math::sigmoid(gate.values[row]);
            team.kernels.add_scaled(out, factor, &x.values[row * cols..][..cols]);
        });
        Ok(())
    }

    fn experts(
        &mut self,
        experts: &[PinnedExpert<'_, Cpu>],
        routing: &Routing,
        x: &CpuBuffer,
        out: &mut CpuBuffer,
    ) -> Result<(), EngineError> {
        expert_uses(self.cpu, experts, routing, out, |team, work, uses, output| {
            feed_forward(team, work, uses, x, output)
        })
    }

    fn experts_of_rank(
        &mut self,
        experts: &[PinnedExpert<'_, Cpu>],
        routing: &Routing,
        x: &CpuBuffer,
        complete: CompleteInner<'_>,
        out: &mut CpuBuffer,
    ) -> Result<(), EngineError> {
        expert_uses(self.cpu, experts, routing, out, |team, work, uses, output| {
            feed_forward_of_rank(team, work, uses, x, complete, output)
        })
    }

    fn experts_sum(
        &mut self,
        routing: &Routing,
        expert_rows: &mut CpuBuffer,
        out: &mut CpuBuffer,
    ) -> Result<(), EngineError> {
        let per_token = routing.num_experts_per_tok;
        let Cpu { team, .. } = &*self.cpu;
        let (rows, cols) = (out.row_count(), out.cols);
        let multiplications = rows * cols * per_token;
        // Prompts are split by rows, single tokens by columns.
        let chunk = rows.div_ceil(team.parts(rows, multiplications)).max(1);
        for_each_block(
            &team.pool,
            team.forks(multiplications),
            &mut out.values,
            cols,
            Cut::Every(chunk),
            Cut::Every(SUM_COLS),
            &|_, block| {
                let (range, first) = (block.range(), block.rows().start);
                let mut sum = [0.0; SUM_COLS];
                let sum = &mut sum[..range.len()];
                for row in 0..block.rows().len() {
                    sum.fill(0.0);
                    for slot in (first + row) * per_token..(first + row + 1) * per_token {
                        let product = &expert_rows.values[slot * cols..][range.clone()];
                        team.kernels.add_scaled(sum, routing.expert_weights[slot], product);
                    }
                    team.kernels.add(block.row(row), sum);
                }
            },
        );
        Ok(())
    }

    fn gather_rows(
        &mut self,
        x: &CpuBuffer,
        indices: &[u32],
        out: &mut CpuBuffer,
    ) -> Result<(), EngineError> {
        let cols = x.cols;
        out.resize(indices.len())?;
        for (out, index) in out.values.chunks_mut(cols.max(1)).zip(indices) {
            out.copy_from_slice(&x.values[*index as usize * cols..][..cols]);
        }
        Ok(())
    }

    async fn read_into(
        &mut self,
        buffer: &CpuBuffer,
        out: &mut Vec<f32>,
    ) -> Result<(), EngineError> {
        out.clear();
        try_reserve(out, STEP, buffer.values.len())?;
        out.extend_from_slice(&buffer.values);
        Ok(())
    }

    async fn finish(&mut self) -> Result<(), EngineError> {
        Ok(())
    }

    async fn argmax_into(
        &mut self,
        x: &CpuBuffer,
        among: usize,
        out: &mut Vec<Option<u32>>,
    ) -> Result<(), EngineError> {
        out.clear();
        out.extend(x.values.chunks_exact(x.cols.max(1)).map(|row| argmax(row, among)));
        Ok(())
    }
}

impl BindWeights<Cpu> for CpuEncoder<'_> {
    fn bind_matrix(
        &mut self,
        weights: &MatrixWeights,
        activations: ActivationMode,
    ) -> Result<CpuMatrix, EngineError> {
        self.cpu.upload_matrix(weights, activations)
    }

    fn bind_floats(&mut self, values: &[f32]) -> Result<Vec<f32>, EngineError> {
        Ok(values.to_vec())
    }
}
