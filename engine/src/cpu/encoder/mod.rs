//! The operations of a step on the CPU: threads and kernels, with the bits of
//! [`super::reference`].

pub(super) mod attention;
mod feed_forward;
mod products;
#[cfg(test)]
mod tests;

use nestling_formats::Level;

use super::device::{Cpu, CpuBuffer, CpuMatrix};
use super::pages::CpuPool;
use crate::backend::{AttentionHeads, Encoder, FeedForward, Linear, PinnedExpert, Router, Routing};
use crate::batch::StepRows;
use crate::error::EngineError;
use feed_forward::{Use, feed_forward, linear_rows};
use products::{
    Int8Product, Output, RowMap, Tiles, Write, by_level, multiply_float, multiply_int8,
};

/// Runs each operation when it is called.
#[derive(Debug)]
pub struct CpuEncoder<'a> {
    pub(super) cpu: &'a mut Cpu,
}

fn expect(what: &str, expected: usize, found: usize) -> Result<(), EngineError> {
    if expected == found { Ok(()) } else { Err(EngineError::mismatch(what, expected, found)) }
}

fn check_bias(linear: &Linear<Cpu>) -> Result<(), EngineError> {
    match &linear.bias {
        Some(bias) => expect("bias", linear.matrix.rows(), bias.len()),
        None => Ok(()),
    }
}

impl CpuEncoder<'_> {
    /// The uses of a feed-forward part by rows of several levels.
    fn feed_forward(
        &mut self,
        uses: &[Use],
        x: &CpuBuffer,
        out: &mut CpuBuffer,
        write: Write,
    ) -> Result<(), EngineError> {
        let output = Output { values: &mut out.values, cols: out.cols, write };
        feed_forward(&self.cpu.team, &mut self.cpu.scratch, uses, x, output)
    }

    /// All matrices that are multiplied in int8 with one fork and join for each level.
    fn int8_products(
        &mut self,
        weights: &[Linear<Cpu>],
        levels: &[Level],
        x: &CpuBuffer,
        out: &mut CpuBuffer,
    ) -> Result<(), EngineError> {
        let Cpu { team, scratch, .. } = &mut *self.cpu;
        team.quantize(&x.values, x.cols, &mut scratch.x);
        for (level, rows) in by_level(levels) {
            let (map, mut first) = (RowMap::same(rows), 0);
            let mut products = Vec::with_capacity(weights.len());
            for linear in weights {
                let (bias, rows) = (linear.bias.as_deref(), linear.matrix.rows());
                let tiles = Tiles::new(&linear.matrix, level)?;
                products.push((Int8Product { tiles, bias, first, rows }, &map));
                first += rows;
            }
            let output = Output { values: &mut out.values, cols: out.cols, write: Write::Set };
            multiply_int8(team, &products, &scratch.x, output);
        }
        Ok(())
    }
}

impl Encoder<Cpu> for CpuEncoder<'_> {
    fn embed(
        &mut self,
        table: &CpuMatrix,
        rows: &StepRows,
        out: &mut CpuBuffer,
    ) -> Result<(), EngineError> {
        expect("embedding", out.cols, table.cols())?;
        if let Some(&token) = rows.tokens.iter().find(|token| **token as usize >= table.rows()) {
            return Err(EngineError::TokenOutOfRange { token, vocab_size: table.rows() });
        }
        out.resize(rows.len());
        let Cpu { team, .. } = &*self.cpu;
        let (cols, chunk) = (out.cols.max(1), team.rows_per_part(rows.len(), out.cols));
        let inputs = rows.tokens.chunks(chunk).zip(rows.dense_levels.chunks(chunk));
        let outputs = out.values.chunks_mut(chunk * cols);
        let mut parts: Vec<_> =
            inputs.zip(outputs).map(|(input, out)| (input, out, Ok(()))).collect();
        team.pool.for_each_mut(&mut parts, &|_, ((tokens, levels), out, result)| {
            let rows = tokens.iter().zip(*levels).zip(out.chunks_mut(cols));
            *result = rows
                .into_iter()
                .try_for_each(|((token, level), out)| table.read_row(*level, *token as usize, out));
        });
        parts.into_iter().try_for_each(|(_, _, result)| result)
    }

    fn write(&mut self, values: &[f32], out: &mut CpuBuffer) -> Result<(), EngineError> {
        expect("part of a row", 0, values.len() % out.cols.max(1))?;
        out.values.clear();
        out.values.extend_from_slice(values);
        Ok(())
    }

    fn rms_norm(
        &mut self,
        x: &CpuBuffer,
        weight: &Vec<f32>,
        eps: f32,
        out: &mut CpuBuffer,
    ) -> Result<(), EngineError> {
        expect("norm weight", x.cols, weight.len())?;
        expect("norm output", x.cols, out.cols)?;
        out.resize(x.row_count());
        let Cpu { team, .. } = &*self.cpu;
        let cols = x.cols.max(1);
        let chunk = team.rows_per_part(x.row_count(), cols) * cols;
        let parts = x.values.chunks(chunk).zip(out.values.chunks_mut(chunk));
        let mut parts: Vec<_> = parts.collect();
        team.pool.for_each_mut(&mut parts, &|_, (x, out)| {
            for (x, out) in x.chunks(cols).zip(out.chunks_mut(cols)) {
                team.kernels.rms_norm(x, weight, eps, out);
            }
        });
        Ok(())
    }

    fn matmul(
        &mut self,
        weights: &[Linear<Cpu>],
        levels: &[Level],
        x: &CpuBuffer,
        out: &mut CpuBuffer,
    ) -> Result<(), EngineError> {
        expect("outputs", out.cols, weights.iter().map(|w| w.matrix.rows()).sum())?;
        expect("rows of levels", x.row_count(), levels.len())?;
        for linear in weights {
            expect("inputs of a matrix", linear.matrix.cols(), x.cols)?;
            check_bias(linear)?;
        }
        out.resize(x.row_count());
        if weights.iter().all(|linear| linear.matrix.takes_int8()) {
            return self.int8_products(weights, levels, x, out);
        }
        let Cpu { team, scratch, .. } = &mut *self.cpu;
        let (map, mut first) = (RowMap::same((0..levels.len() as u32).collect()), 0);
        for linear in weights {
            let output = Output { values: &mut out.values, cols: out.cols, write: Write::Set };
            linear_rows(team, scratch, (linear, levels), &map, (x, first), output)?;
            first += linear.matrix.rows();
        }
        Ok(())
    }

    fn matmul_add(
        &mut self,
        weights: &Linear<Cpu>,
        levels: &[Level],
        x: &CpuBuffer,
        out: &mut CpuBuffer,
    ) -> Result<(), EngineError> {
        expect("inputs of a matrix", weights.matrix.cols(), x.cols)?;
        expect("outputs of a matrix", weights.matrix.rows(), out.cols)?;
        expect("rows of levels", x.row_count(), levels.len())?;
        expect("rows of a sum", out.row_count(), levels.len())?;
        let Cpu { team, scratch, .. } = &mut *self.cpu;
        let map = RowMap::same((0..levels.len() as u32).collect());
        let output = Output { values: &mut out.values, cols: out.cols, write: Write::Add };
        linear_rows(team, scratch, (weights, levels), &map, (x, 0), output)
    }

    fn rope_store(
        &mut self,
        heads: &AttentionHeads<Cpu>,
        rows: &StepRows,
        rope: &CpuBuffer,
        qkv: &mut CpuBuffer,
        kv: &mut CpuPool,
    ) -> Result<(), EngineError> {
        let Cpu { team, scratch, .. } = &mut *self.cpu;
        attention::rope_store((team, &mut scratch.attention), (heads, rows), rope, qkv, kv)
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
        attention::attend((team, &mut scratch.attention), (heads, rows), qkv, kv, out)
    }

    fn route(
        &mut self,
        router: &Router<Cpu>,
        x: &CpuBuffer,
        out: &mut Routing,
    ) -> Result<(), EngineError> {
        expect("inputs of the router", router.weights.cols(), x.cols)?;
        let (per_token, rows) = (router.num_experts_per_tok, x.row_count());
        let experts = router.weights.rows();
        let Cpu { team, .. } = &*self.cpu;
        let mut logits = CpuBuffer::new(rows, experts);
        let map = RowMap::same((0..rows as u32).collect());
        let output = Output { values: &mut logits.values, cols: experts, write: Write::Set };
        multiply_float(team, (&router.weights, None, Level::L8), &map, &x.values, 0, output)?;
        out.num_experts_per_tok = per_token;
        out.expert_ids.clear();
        out.expert_weights.clear();
        let (mut ids, mut weights) = (vec![0; per_token], vec![0.0; per_token]);
        for logits in logits.values.chunks_mut(experts.max(1)) {
            team.kernels.route(logits, router.norm_topk_prob, &mut ids, &mut weights);
            let mut chosen: Vec<(u32, f32)> = ids.iter().copied().zip(weights.clone()).collect();
            chosen.sort_by_key(|&(id, _)| id);
            out.expert_ids.extend(chosen.iter().map(|&(id, _)| id));
            out.expert_weights.extend(chosen.iter().map(|&(_, weight)| weight));
        }
        Ok(())
    }

    async fn read_routing(&mut self, routing: &Routing) -> Result<Routing, EngineError> {
        Ok(routing.clone())
    }

    fn flush(&mut self) -> Result<(), EngineError> {
        Ok(())
    }

    fn ffn_add(
        &mut self,
        weights: &FeedForward<Cpu>,
        levels: &[Level],
        x: &CpuBuffer,
        out: &mut CpuBuffer,
    ) -> Result<(), EngineError> {
        expect("rows of levels", x.row_count(), levels.len())?;
        expect("rows of a sum", out.row_count(), levels.len())?;
        let levels = by_level(levels).into_iter();
        let uses: Vec<Use> =
            levels.map(|(level, rows)| Use { weights, level, rows: RowMap::same(rows) }).collect();
        self.feed_forward(&uses, x, out, Write::Add)
    }

    fn experts(
        &mut self,
        experts: &[PinnedExpert<'_, Cpu>],
        routing: &Routing,
        x: &CpuBuffer,
        out: &mut CpuBuffer,
    ) -> Result<(), EngineError> {
        let per_token = routing.num_experts_per_tok;
        expect("rows of the routing", x.row_count() * per_token, routing.expert_weights.len())?;
        expect("outputs of an expert", x.cols, out.cols)?;
        out.resize(routing.expert_weights.len());
        let mut uses = Vec::with_capacity(experts.len());
        for expert in experts {
            let levels: Vec<Level> = expert.uses.iter().map(|used| used.level).collect();
            for (level, indices) in by_level(&levels) {
                let mut rows = RowMap::default();
                for used in indices.iter().map(|index| &expert.uses[*index as usize]) {
                    expect("row of an expert", 0, usize::from(used.row as usize >= x.row_count()))?;
                    expect("rank of an expert", 0, usize::from(used.rank as usize >= per_token))?;
                    rows.x.push(used.row);
                    rows.out.push(used.row * per_token as u32 + used.rank);
                }
                uses.push(Use { weights: expert.weights, level, rows });
            }
        }
        self.feed_forward(&uses, x, out, Write::Set)
    }

    fn experts_sum(
        &mut self,
        routing: &Routing,
        expert_rows: &CpuBuffer,
        out: &mut CpuBuffer,
    ) -> Result<(), EngineError> {
        let per_token = routing.num_experts_per_tok;
        expect("rows of experts", out.row_count() * per_token, expert_rows.row_count())?;
        expect("weights of experts", expert_rows.row_count(), routing.expert_weights.len())?;
        expect("outputs of an expert", out.cols, expert_rows.cols)?;
        let Cpu { team, .. } = &*self.cpu;
        let cols = out.cols.max(1);
        let chunk = team.rows_per_part(out.row_count(), cols * per_token.max(1));
        let mut parts: Vec<_> = out.values.chunks_mut(chunk * cols).collect();
        team.pool.for_each_mut(&mut parts, &|part, rows| {
            let mut sum = vec![0.0; cols];
            for (row, out) in (part * chunk..).zip(rows.chunks_mut(cols)) {
                sum.fill(0.0);
                for slot in row * per_token..(row + 1) * per_token {
                    let product = &expert_rows.values[slot * cols..][..cols];
                    team.kernels.add_scaled(&mut sum, routing.expert_weights[slot], product);
                }
                team.kernels.add(out, &sum);
            }
        });
        Ok(())
    }

    fn gather_rows(
        &mut self,
        x: &CpuBuffer,
        indices: &[u32],
        out: &mut CpuBuffer,
    ) -> Result<(), EngineError> {
        expect("gathered columns", x.cols, out.cols)?;
        let (rows, cols) = (x.row_count(), x.cols);
        if let Some(index) = indices.iter().find(|index| **index as usize >= rows) {
            return Err(EngineError::mismatch("gathered row", rows, index));
        }
        out.resize(indices.len());
        for (out, index) in out.values.chunks_mut(cols.max(1)).zip(indices) {
            out.copy_from_slice(&x.values[*index as usize * cols..][..cols]);
        }
        Ok(())
    }

    async fn read(&mut self, buffer: &CpuBuffer) -> Result<Vec<f32>, EngineError> {
        Ok(buffer.values.clone())
    }
}
