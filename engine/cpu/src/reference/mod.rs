//! Reference implementation of all operations: single-threaded plain loops without vectors.
//!
//! Other encoders of the CPU give the same bits; other devices are within a tolerance. The float arithmetic
//! is that of [`super::math`], and integers are exact.

mod attention;
mod delta_net;
mod experts;
mod mamba2;
mod multiply;
mod pages;
mod short_conv;
#[cfg(test)]
mod tests;

use nestling_formats::Level;
use nestling_import::GateFunction;

use super::math;
use super::states::CpuStates;
use nestling_core::backend::{
    AttentionHeads, Backend, BackendLimits, BindWeights, CheckedEncoder, DeltaNet, Encoder,
    FeedForward, HeadMatrices, Linear, Mamba2, NoSlots, NoTable, PinnedExpert, Router, Routing,
    ShortConv, Write, argmax,
};
use nestling_core::batch::StepRows;
use nestling_core::error::EngineError;
use nestling_core::kv_cache::{KvShape, PageId};
use nestling_core::recurrent::{StateId, StateShape};
use nestling_core::weights::{ActivationMode, MatrixWeights};

pub use multiply::ReferenceMatrix;
pub use pages::ReferencePool;

/// The reference backend.
#[derive(Clone, Copy, Debug, Default)]
pub struct Reference;

/// Encoder that runs each operation immediately. It is only used behind [`CheckedEncoder`], which has checked the
/// operands.
#[derive(Clone, Copy, Debug)]
pub struct ReferenceEncoder;

/// Activations, `[rows, cols]`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ReferenceBuffer {
    cols: usize,
    values: Vec<f32>,
}

impl ReferenceBuffer {
    fn new(rows: usize, cols: usize) -> Self {
        Self { cols, values: vec![0.0; rows * cols] }
    }

    pub(super) fn cols(&self) -> usize {
        self.cols
    }

    pub(super) fn row_count(&self) -> usize {
        self.values.len() / self.cols.max(1)
    }

    fn rows(&self) -> std::slice::ChunksExact<'_, f32> {
        self.values.chunks_exact(self.cols.max(1))
    }

    fn rows_mut(&mut self) -> std::slice::ChunksExactMut<'_, f32> {
        self.values.chunks_exact_mut(self.cols.max(1))
    }

    fn resize(&mut self, rows: usize) {
        self.values.clear();
        self.values.resize(rows * self.cols, 0.0);
    }
}

impl Backend for Reference {
    type Buffer = ReferenceBuffer;
    type Routing = Routing;
    type Floats = Vec<f32>;
    type Matrix = ReferenceMatrix;
    type KvPool = ReferencePool;
    type StatePool = CpuStates;
    type ExpertTable = NoTable;
    type ExpertSlots = NoSlots;
    type Encoder<'a> = CheckedEncoder<ReferenceEncoder>;

    const PAGE_KIND: u8 = 1;
    const WEIGHTS_IN_PLACE: bool = false;

    fn name(&self) -> String {
        "scalar reference".into()
    }

    fn limits(&self) -> BackendLimits {
        BackendLimits {
            num_experts_max: usize::MAX,
            num_experts_per_tok_max: usize::MAX,
            head_dim_max: usize::MAX,
            rows_max: usize::MAX,
            conv_taps_max: usize::MAX,
        }
    }

    fn buffer(&mut self, _rows_max: usize, cols: usize) -> Result<ReferenceBuffer, EngineError> {
        Ok(ReferenceBuffer::new(0, cols))
    }

    fn routing(&mut self, _rows: usize, per_token: usize) -> Result<Routing, EngineError> {
        Ok(Routing { num_experts_per_tok: per_token, ..Routing::default() })
    }

    fn upload_floats(&mut self, values: &[f32]) -> Result<Vec<f32>, EngineError> {
        Ok(values.to_vec())
    }

    fn upload_matrix(
        &mut self,
        weights: &MatrixWeights,
        activations: ActivationMode,
    ) -> Result<ReferenceMatrix, EngineError> {
        Ok(ReferenceMatrix::new(weights.clone(), activations))
    }

    fn matrix_bytes(matrix: &ReferenceMatrix, level: Level) -> u64 {
        matrix.weights().read_bytes(level)
    }

    fn matrix_prefix_bytes(matrix: &ReferenceMatrix, level: Level) -> u64 {
        matrix.weights().prefix_bytes(level)
    }

    fn kv_pool(&mut self, shape: &KvShape) -> Result<ReferencePool, EngineError> {
        Ok(ReferencePool::new(*shape))
    }

    fn copy_page(
        &mut self,
        pool: &mut ReferencePool,
        source: PageId,
        destination: PageId,
    ) -> Result<(), EngineError> {
        let page = pool.page(source)?.to_vec();
        pool.page_mut(destination)?.clone_from_slice(&page);
        Ok(())
    }

    fn read_page(
        &mut self,
        pool: &ReferencePool,
        page: PageId,
        out: &mut Vec<u8>,
    ) -> Result<(), EngineError> {
        pool.read(page, out)
    }

    fn write_page(
        &mut self,
        pool: &mut ReferencePool,
        page: PageId,
        bytes: &[u8],
    ) -> Result<(), EngineError> {
        pool.write(page, bytes)
    }

    fn state_pool(&mut self, shape: &StateShape) -> Result<CpuStates, EngineError> {
        Ok(CpuStates::new(*shape))
    }

    fn read_state(
        &mut self,
        pool: &CpuStates,
        state: StateId,
        out: &mut Vec<u8>,
    ) -> Result<(), EngineError> {
        pool.read(state, out)
    }

    fn write_state(
        &mut self,
        pool: &mut CpuStates,
        state: StateId,
        bytes: &[u8],
    ) -> Result<(), EngineError> {
        pool.write(state, bytes)
    }

    fn encoder(&mut self) -> CheckedEncoder<ReferenceEncoder> {
        CheckedEncoder::new(ReferenceEncoder)
    }
}

/// Computes `out[t] = W x[t]` for all rows, each at its level.
fn products(
    matrix: &ReferenceMatrix,
    levels: &[Level],
    x: &ReferenceBuffer,
) -> Result<ReferenceBuffer, EngineError> {
    let mut out = ReferenceBuffer::new(x.row_count(), matrix.rows());
    for level in Level::ALL {
        let rows: Vec<usize> = (0..levels.len()).filter(|&row| levels[row] == level).collect();
        if !rows.is_empty() {
            matrix.multiply(level, &rows, x, &mut out)?;
        }
    }
    Ok(out)
}

/// Computes `out[t] = W x[t] + b` for all rows, each at its level.
fn linear(
    weights: &Linear<Reference>,
    levels: &[Level],
    x: &ReferenceBuffer,
) -> Result<ReferenceBuffer, EngineError> {
    let mut out = products(&weights.matrix, levels, x)?;
    if let Some(bias) = &weights.bias {
        out.rows_mut().for_each(|row| math::add(row, bias));
    }
    Ok(out)
}

/// Computes `down(activation(gate(x), up(x)))`; without a gate, up takes its place.
fn feed_forward(
    weights: &FeedForward<Reference>,
    levels: &[Level],
    x: &ReferenceBuffer,
) -> Result<ReferenceBuffer, EngineError> {
    let mut inner = linear(weights.gate_or_up(), levels, x)?;
    let up = linear(&weights.up, levels, x)?;
    math::gated(weights.activation, &mut inner.values, &up.values);
    if weights.down.matrix.is_rotated() {
        inner.rows_mut().for_each(math::hadamard);
    }
    linear(&weights.down, levels, &inner)
}

impl Encoder<Reference> for ReferenceEncoder {
    fn embed(
        &mut self,
        table: &Linear<Reference>,
        rows: &StepRows,
        out: &mut ReferenceBuffer,
    ) -> Result<(), EngineError> {
        out.resize(rows.len());
        for ((row, &token), &level) in out.rows_mut().zip(&rows.tokens).zip(&rows.dense_levels) {
            match (token as usize).checked_sub(table.outputs.first) {
                Some(held) if held < table.matrix.rows() => {
                    table.matrix.read_row(level, held, row)?;
                }
                _ => row.fill(0.0),
            }
        }
        Ok(())
    }

    fn write(&mut self, values: &[f32], out: &mut ReferenceBuffer) -> Result<(), EngineError> {
        out.values = values.to_vec();
        Ok(())
    }

    fn write_rows(
        &mut self,
        values: &[f32],
        rows: &[u32],
        out: &mut ReferenceBuffer,
    ) -> Result<(), EngineError> {
        let cols = out.cols;
        for (values, &row) in values.chunks_exact(cols.max(1)).zip(rows) {
            out.values[row as usize * cols..][..cols].copy_from_slice(values);
        }
        Ok(())
    }

    fn rms_norm(
        &mut self,
        x: &ReferenceBuffer,
        weight: &Vec<f32>,
        eps: f32,
        write: Write,
        out: &mut ReferenceBuffer,
    ) -> Result<(), EngineError> {
        if write == Write::Set {
            out.resize(x.row_count());
        }
        for (row, out) in x.rows().zip(out.rows_mut()) {
            match write {
                Write::Set => math::rms_norm(row, weight, eps, out),
                Write::Add => math::rms_norm_add(row, weight, eps, out),
            }
        }
        Ok(())
    }

    fn matmul(
        &mut self,
        weights: &[Linear<Reference>],
        levels: &[Level],
        x: &ReferenceBuffer,
        write: Write,
        out: &mut ReferenceBuffer,
    ) -> Result<(), EngineError> {
        if write == Write::Set {
            out.resize(x.row_count());
        }
        let mut start = 0;
        for weights in weights {
            let part = linear(weights, levels, x)?;
            for (row, part) in out.rows_mut().zip(part.rows()) {
                let row = &mut row[start..start + part.len()];
                match write {
                    Write::Set => row.copy_from_slice(part),
                    Write::Add => math::add(row, part),
                }
            }
            start += part.cols;
        }
        Ok(())
    }

    fn matmul_heads(
        &mut self,
        weights: &HeadMatrices<Reference>,
        levels: &[Level],
        x: &ReferenceBuffer,
        out: &mut ReferenceBuffer,
    ) -> Result<(), EngineError> {
        let (matrix, heads) = (&weights.matrix, weights.heads.max(1));
        let (k, n, width) = (matrix.cols(), matrix.rows() / heads, x.cols / heads);
        out.resize(x.row_count());
        for head in 0..heads {
            let parts = x.rows().flat_map(|row| row[head * width..][..k].iter().copied());
            let inputs = ReferenceBuffer { cols: k, values: parts.collect() };
            let products = products(matrix, levels, &inputs)?;
            for ((x, products), out) in x.rows().zip(products.rows()).zip(out.rows_mut()) {
                let out = &mut out[head * (n + width - k)..][..n + width - k];
                out[..n].copy_from_slice(&products[head * n..][..n]);
                out[n..].copy_from_slice(&x[head * width + k..][..width - k]);
            }
        }
        Ok(())
    }

    fn rope(
        &mut self,
        heads: &AttentionHeads<Reference>,
        rows: &StepRows,
        angles: &ReferenceBuffer,
        qkv: &mut ReferenceBuffer,
        kv: Option<&mut ReferencePool>,
    ) -> Result<(), EngineError> {
        match kv {
            Some(kv) => attention::rope_store(heads, rows, angles, qkv, kv),
            None => {
                attention::rope_queries(heads, angles, qkv);
                Ok(())
            }
        }
    }

    fn attend(
        &mut self,
        heads: &AttentionHeads<Reference>,
        rows: &StepRows,
        qkv: &ReferenceBuffer,
        kv: &ReferencePool,
        out: &mut ReferenceBuffer,
    ) -> Result<(), EngineError> {
        attention::attend(heads, rows, qkv, kv, out)
    }

    fn delta_net(
        &mut self,
        net: &DeltaNet<Reference>,
        rows: &StepRows,
        projected: &ReferenceBuffer,
        states: &mut CpuStates,
        out: &mut ReferenceBuffer,
    ) -> Result<(), EngineError> {
        delta_net::delta_net(net, rows, projected, states, out)
    }

    fn short_conv(
        &mut self,
        conv: &ShortConv<Reference>,
        rows: &StepRows,
        projected: &ReferenceBuffer,
        states: &mut CpuStates,
        out: &mut ReferenceBuffer,
    ) -> Result<(), EngineError> {
        short_conv::short_conv(conv, rows, projected, states, out)
    }

    fn mamba2(
        &mut self,
        mamba2: &Mamba2<Reference>,
        rows: &StepRows,
        projected: &ReferenceBuffer,
        states: &mut CpuStates,
        out: &mut ReferenceBuffer,
    ) -> Result<(), EngineError> {
        mamba2::mamba2(mamba2, rows, projected, states, out)
    }

    fn gate(
        &mut self,
        function: GateFunction,
        gate: &ReferenceBuffer,
        out: &mut ReferenceBuffer,
    ) -> Result<(), EngineError> {
        math::gate(function, &mut out.values, &gate.values);
        Ok(())
    }

    fn route(
        &mut self,
        router: &Router<Reference>,
        x: &ReferenceBuffer,
        out: &mut Routing,
    ) -> Result<(), EngineError> {
        let (per_token, experts) = (router.num_experts_per_tok, router.weights.rows());
        let mut logits = ReferenceBuffer::new(x.row_count(), router.weights.rows());
        let rows: Vec<usize> = (0..x.row_count()).collect();
        router.weights.multiply(Level::L8, &rows, x, &mut logits)?;
        *out = Routing { num_experts_per_tok: per_token, ..Routing::default() };
        for logits in logits.rows_mut() {
            if let Some(bias) = &router.logit_bias {
                math::add(logits, bias);
            }
            let (mut ids, mut weights) = (vec![0; per_token], vec![0.0; per_token]);
            // Default: an absent bias adds nothing to scores.
            let selection_bias = router.selection_bias.as_deref().unwrap_or_default();
            let mut choice = vec![0.0; experts];
            // Default: an absent scale is 1.
            let expert_scale = router.expert_scale.as_deref().unwrap_or_default();
            let choice = &mut choice;
            let scores = math::RouterScores { logits, choice, selection_bias, expert_scale };
            math::route(&router.rule, scores, &mut ids, &mut weights);
            let mut chosen: Vec<(u32, f32)> = ids.into_iter().zip(weights).collect();
            chosen.sort_by_key(|&(id, _)| id);
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

    fn scale(&mut self, factor: f32, x: &mut ReferenceBuffer) -> Result<(), EngineError> {
        math::scale(&mut x.values, factor);
        Ok(())
    }

    fn softcap(&mut self, cap: f32, x: &mut ReferenceBuffer) -> Result<(), EngineError> {
        math::softcap(&mut x.values, cap);
        Ok(())
    }

    fn clear(&mut self, rows: usize, out: &mut ReferenceBuffer) -> Result<(), EngineError> {
        out.resize(rows);
        Ok(())
    }

    fn ffn(
        &mut self,
        weights: &FeedForward<Reference>,
        levels: &[Level],
        x: &ReferenceBuffer,
        write: Write,
        out: &mut ReferenceBuffer,
    ) -> Result<(), EngineError> {
        let product = feed_forward(weights, levels, x)?;
        match write {
            Write::Set => *out = product,
            Write::Add => math::add(&mut out.values, &product.values),
        }
        Ok(())
    }

    fn add_gated(
        &mut self,
        gate: &ReferenceBuffer,
        x: &ReferenceBuffer,
        out: &mut ReferenceBuffer,
    ) -> Result<(), EngineError> {
        for ((out, x), gate) in out.rows_mut().zip(x.rows()).zip(&gate.values) {
            math::add_scaled(out, math::sigmoid(*gate), x);
        }
        Ok(())
    }

    fn experts(
        &mut self,
        experts: &[PinnedExpert<'_, Reference>],
        routing: &Routing,
        x: &ReferenceBuffer,
        out: &mut ReferenceBuffer,
    ) -> Result<(), EngineError> {
        experts::experts(self, experts, routing, x, out)
    }

    fn experts_sum(
        &mut self,
        routing: &Routing,
        expert_rows: &mut ReferenceBuffer,
        out: &mut ReferenceBuffer,
    ) -> Result<(), EngineError> {
        experts::experts_sum(routing, expert_rows, out)
    }

    fn gather_rows(
        &mut self,
        x: &ReferenceBuffer,
        indices: &[u32],
        out: &mut ReferenceBuffer,
    ) -> Result<(), EngineError> {
        out.resize(indices.len());
        for (out, &index) in out.rows_mut().zip(indices) {
            out.copy_from_slice(&x.values[index as usize * x.cols..][..x.cols]);
        }
        Ok(())
    }

    async fn read_into(
        &mut self,
        buffer: &ReferenceBuffer,
        out: &mut Vec<f32>,
    ) -> Result<(), EngineError> {
        out.clone_from(&buffer.values);
        Ok(())
    }

    async fn finish(&mut self) -> Result<(), EngineError> {
        Ok(())
    }

    async fn argmax_into(
        &mut self,
        x: &ReferenceBuffer,
        among: usize,
        out: &mut Vec<Option<u32>>,
    ) -> Result<(), EngineError> {
        out.clear();
        out.extend(x.rows().map(|row| argmax(row, among)));
        Ok(())
    }
}

impl BindWeights<Reference> for ReferenceEncoder {
    fn bind_matrix(
        &mut self,
        weights: &MatrixWeights,
        activations: ActivationMode,
    ) -> Result<ReferenceMatrix, EngineError> {
        Ok(ReferenceMatrix::new(weights.clone(), activations))
    }

    fn bind_floats(&mut self, values: &[f32]) -> Result<Vec<f32>, EngineError> {
        Ok(values.to_vec())
    }
}
