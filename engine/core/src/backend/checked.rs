//! Operand validation shared by all encoders; an encoder behind [`CheckedEncoder`] only computes.

use std::ops::Range;

use nestling_formats::Level;
use nestling_import::GateFunction;

use super::checks::Operation;
use super::{
    AttentionHeads, Backend, BindWeights, CompleteInner, DeltaNet, Encoder, FeedForward, HasShape,
    HeadMatrices, KvPages, Linear, Mamba2, Outputs, PinnedExpert, Router, Routing, Shape,
    ShortConv, Write,
};
use crate::batch::StepRows;
use crate::error::EngineError;
use crate::group::{Group, RankShare};
use crate::weights::{ActivationMode, MatrixWeights};

/// An encoder that receives only validated operands.
///
/// Shapes, rows, columns and levels of all operations are checked here. All encoders therefore reject the
/// same operands with the same errors ([`EngineError::Shape`], which names operation and operand), and the
/// reference encoder does not repeat the checks. An encoder itself checks only what depends on its memory,
/// such as pages and states that were never written, and its own limits.
#[derive(Debug)]
pub struct CheckedEncoder<E>(E);

impl<E> CheckedEncoder<E> {
    /// Wraps an encoder with validation.
    pub fn new(encoder: E) -> Self {
        Self(encoder)
    }

    /// Returns the wrapped encoder.
    pub fn inner(&mut self) -> &mut E {
        &mut self.0
    }
}

impl<B: Backend, E: Encoder<B>> Encoder<B> for CheckedEncoder<E> {
    fn embed(
        &mut self,
        table: &Linear<B>,
        rows: &StepRows,
        out: &mut B::Buffer,
    ) -> Result<(), EngineError> {
        let (op, Shape { rows: held, cols }) = (Operation("embed"), table.matrix.shape());
        let Outputs { first, whole: vocab_size } = table.outputs;
        op.at_most("last row of the table", vocab_size, first.saturating_add(held))?;
        if let Some(&token) = rows.tokens.iter().find(|token| **token as usize >= vocab_size) {
            return Err(EngineError::TokenOutOfRange { token, vocab_size });
        }
        op.output(Shape { rows: rows.len(), cols }, Write::Set, out.shape())?;
        op.levels(&table.matrix, &rows.dense_levels)?;
        self.0.embed(table, rows, out)
    }

    fn write(&mut self, values: &[f32], out: &mut B::Buffer) -> Result<(), EngineError> {
        Operation("write").multiple("values", out.shape().cols, values.len())?;
        self.0.write(values, out)
    }

    fn write_rows(
        &mut self,
        values: &[f32],
        rows: &[u32],
        out: &mut B::Buffer,
    ) -> Result<(), EngineError> {
        let (op, shape) = (Operation("write_rows"), out.shape());
        op.size("values", rows.len() * shape.cols, values.len())?;
        op.indices("rows", shape.rows, rows)?;
        self.0.write_rows(values, rows, out)
    }

    fn rms_norm(
        &mut self,
        x: &B::Buffer,
        weight: &B::Floats,
        eps: f32,
        write: Write,
        out: &mut B::Buffer,
    ) -> Result<(), EngineError> {
        let (op, shape) = (Operation("rms_norm"), x.shape());
        op.size("weight", shape.cols, weight.shape().cols)?;
        op.output(shape, write, out.shape())?;
        self.0.rms_norm(x, weight, eps, write, out)
    }

    fn matmul(
        &mut self,
        weights: &[Linear<B>],
        levels: &[Level],
        x: &B::Buffer,
        write: Write,
        out: &mut B::Buffer,
    ) -> Result<(), EngineError> {
        let op = Operation("matmul");
        let result = op.linears(weights, levels, x.shape())?;
        op.output(result, write, out.shape())?;
        self.0.matmul(weights, levels, x, write, out)
    }

    fn matmul_heads(
        &mut self,
        weights: &HeadMatrices<B>,
        levels: &[Level],
        x: &B::Buffer,
        out: &mut B::Buffer,
    ) -> Result<(), EngineError> {
        let op = Operation("matmul_heads");
        let result = op.heads(weights, levels, x.shape())?;
        op.output(result, Write::Set, out.shape())?;
        self.0.matmul_heads(weights, levels, x, out)
    }

    fn rope(
        &mut self,
        heads: &AttentionHeads<B>,
        rows: &StepRows,
        angles: &B::Buffer,
        qkv: &mut B::Buffer,
        kv: Option<&mut B::KvPool>,
    ) -> Result<(), EngineError> {
        let pages = kv.as_deref().map(KvPages::kv_shape);
        Operation("rope").rope(heads, rows, angles.shape(), qkv.shape(), pages)?;
        self.0.rope(heads, rows, angles, qkv, kv)
    }

    fn attend(
        &mut self,
        heads: &AttentionHeads<B>,
        rows: &StepRows,
        qkv: &B::Buffer,
        kv: &B::KvPool,
        out: &mut B::Buffer,
    ) -> Result<(), EngineError> {
        let op = Operation("attend");
        let result = op.attend(heads, rows, qkv.shape(), kv.kv_shape())?;
        op.output(result, Write::Set, out.shape())?;
        self.0.attend(heads, rows, qkv, kv, out)
    }

    fn delta_net(
        &mut self,
        net: &DeltaNet<B>,
        rows: &StepRows,
        projected: &B::Buffer,
        states: &mut B::StatePool,
        out: &mut B::Buffer,
    ) -> Result<(), EngineError> {
        let op = Operation("delta_net");
        let result = op.delta_net(net, rows, projected.shape(), states)?;
        op.output(result, Write::Set, out.shape())?;
        self.0.delta_net(net, rows, projected, states, out)
    }

    fn short_conv(
        &mut self,
        conv: &ShortConv<B>,
        rows: &StepRows,
        projected: &B::Buffer,
        states: &mut B::StatePool,
        out: &mut B::Buffer,
    ) -> Result<(), EngineError> {
        let op = Operation("short_conv");
        let result = op.short_conv(conv, rows, projected.shape(), states)?;
        op.output(result, Write::Set, out.shape())?;
        self.0.short_conv(conv, rows, projected, states, out)
    }

    fn mamba2(
        &mut self,
        mamba2: &Mamba2<B>,
        rows: &StepRows,
        projected: &B::Buffer,
        states: &mut B::StatePool,
        out: &mut B::Buffer,
    ) -> Result<(), EngineError> {
        let op = Operation("mamba2");
        let result = op.mamba2(mamba2, rows, projected.shape(), states)?;
        op.output(result, Write::Set, out.shape())?;
        self.0.mamba2(mamba2, rows, projected, states, out)
    }

    fn gate(
        &mut self,
        function: GateFunction,
        gate: &B::Buffer,
        out: &mut B::Buffer,
    ) -> Result<(), EngineError> {
        let (op, gates, gated) = (Operation("gate"), gate.shape(), out.shape());
        op.size("rows of out", gates.rows, gated.rows)?;
        op.multiple("columns of out", gates.cols, gated.cols)?;
        self.0.gate(function, gate, out)
    }

    fn route(
        &mut self,
        router: &Router<B>,
        x: &B::Buffer,
        out: &mut B::Routing,
    ) -> Result<(), EngineError> {
        Operation("route").router(router, x.shape().cols)?;
        self.0.route(router, x, out)
    }

    async fn read_routing_into(
        &mut self,
        routing: &B::Routing,
        out: &mut Routing,
    ) -> Result<(), EngineError> {
        self.0.read_routing_into(routing, out).await
    }

    fn write_routing(
        &mut self,
        routing: &Routing,
        out: &mut B::Routing,
    ) -> Result<(), EngineError> {
        let (op, shape) = (Operation("write_routing"), out.shape());
        op.size("experts of a token", shape.cols, routing.num_experts_per_tok)?;
        op.size("experts", shape.rows * shape.cols, routing.expert_ids.len())?;
        op.size("expert weights", shape.rows * shape.cols, routing.expert_weights.len())?;
        self.0.write_routing(routing, out)
    }

    fn flush(&mut self) -> Result<(), EngineError> {
        self.0.flush()
    }

    fn scale(&mut self, factor: f32, x: &mut B::Buffer) -> Result<(), EngineError> {
        self.0.scale(factor, x)
    }

    fn softcap(&mut self, cap: f32, x: &mut B::Buffer) -> Result<(), EngineError> {
        self.0.softcap(cap, x)
    }

    fn clear(&mut self, rows: usize, out: &mut B::Buffer) -> Result<(), EngineError> {
        self.0.clear(rows, out)
    }

    fn ffn(
        &mut self,
        weights: &FeedForward<B>,
        levels: &[Level],
        x: &B::Buffer,
        write: Write,
        out: &mut B::Buffer,
    ) -> Result<(), EngineError> {
        let (op, Shape { rows, cols }) = (Operation("ffn"), x.shape());
        op.size("levels", rows, levels.len())?;
        let cols = op.feed_forward(weights, levels, cols)?;
        op.output(Shape { rows, cols }, write, out.shape())?;
        self.0.ffn(weights, levels, x, write, out)
    }

    fn ffn_of_rank(
        &mut self,
        weights: &FeedForward<B>,
        levels: &[Level],
        x: &B::Buffer,
        write: Write,
        complete: CompleteInner<'_>,
        out: &mut B::Buffer,
    ) -> Result<(), EngineError> {
        let (op, Shape { rows, cols }) = (Operation("ffn of a rank"), x.shape());
        op.size("levels", rows, levels.len())?;
        let cols = op.part_of_rank(weights, levels, cols)?;
        op.output(Shape { rows, cols }, write, out.shape())?;
        self.0.ffn_of_rank(weights, levels, x, write, complete, out)
    }

    fn add_gated(
        &mut self,
        gate: &B::Buffer,
        x: &B::Buffer,
        out: &mut B::Buffer,
    ) -> Result<(), EngineError> {
        let (op, shape) = (Operation("add_gated"), x.shape());
        op.shape("gate", Shape { cols: 1, ..shape }, gate.shape())?;
        op.output(shape, Write::Add, out.shape())?;
        self.0.add_gated(gate, x, out)
    }

    fn experts(
        &mut self,
        experts: &[PinnedExpert<'_, B>],
        routing: &B::Routing,
        x: &B::Buffer,
        out: &mut B::Buffer,
    ) -> Result<(), EngineError> {
        let (op, x_shape, routed) = (Operation("experts"), x.shape(), routing.shape());
        let cols = out.shape().cols;
        op.size("rows of the routing", x_shape.rows, routed.rows)?;
        experts.iter().try_for_each(|expert| op.expert(expert, routed, x_shape.cols, cols))?;
        experts.iter().try_for_each(|expert| op.whole(&expert.weights))?;
        self.0.experts(experts, routing, x, out)
    }

    fn experts_of_rank(
        &mut self,
        experts: &[PinnedExpert<'_, B>],
        routing: &B::Routing,
        x: &B::Buffer,
        complete: CompleteInner<'_>,
        out: &mut B::Buffer,
    ) -> Result<(), EngineError> {
        let (op, x_shape) = (Operation("experts of a rank"), x.shape());
        let (routed, cols) = (routing.shape(), out.shape().cols);
        op.size("rows of the routing", x_shape.rows, routed.rows)?;
        experts.iter().try_for_each(|expert| op.expert(expert, routed, x_shape.cols, cols))?;
        self.0.experts_of_rank(experts, routing, x, complete, out)
    }

    async fn finish(&mut self) -> Result<(), EngineError> {
        self.0.finish().await
    }

    fn experts_sum(
        &mut self,
        routing: &B::Routing,
        expert_rows: &mut B::Buffer,
        out: &mut B::Buffer,
    ) -> Result<(), EngineError> {
        let (op, routed, shape) = (Operation("experts_sum"), routing.shape(), out.shape());
        op.size("rows of the routing", shape.rows, routed.rows)?;
        let expected = Shape { rows: shape.rows * routed.cols, ..shape };
        op.shape("expert_rows", expected, expert_rows.shape())?;
        self.0.experts_sum(routing, expert_rows, out)
    }

    fn gather_columns(
        &mut self,
        group: &dyn Group,
        columns: &dyn Fn(RankShare) -> Vec<Range<usize>>,
        out: &mut B::Buffer,
    ) -> Result<bool, EngineError> {
        self.0.gather_columns(group, columns, out)
    }

    fn gather_rows(
        &mut self,
        x: &B::Buffer,
        indices: &[u32],
        out: &mut B::Buffer,
    ) -> Result<(), EngineError> {
        let (op, Shape { rows, cols }) = (Operation("gather_rows"), x.shape());
        op.indices("indices", rows, indices)?;
        op.output(Shape { rows: indices.len(), cols }, Write::Set, out.shape())?;
        self.0.gather_rows(x, indices, out)
    }

    async fn read_into(
        &mut self,
        buffer: &B::Buffer,
        out: &mut Vec<f32>,
    ) -> Result<(), EngineError> {
        self.0.read_into(buffer, out).await
    }

    async fn argmax_into(
        &mut self,
        x: &B::Buffer,
        among: usize,
        out: &mut Vec<Option<u32>>,
    ) -> Result<(), EngineError> {
        let op = Operation("argmax");
        op.at_least("columns to choose among", 1, among)?;
        op.at_most("columns to choose among", x.shape().cols, among)?;
        self.0.argmax_into(x, among, out).await
    }
}

impl<B: Backend, E: BindWeights<B>> BindWeights<B> for CheckedEncoder<E> {
    fn bind_matrix(
        &mut self,
        weights: &MatrixWeights,
        activations: ActivationMode,
    ) -> Result<B::Matrix, EngineError> {
        self.0.bind_matrix(weights, activations)
    }

    fn bind_floats(&mut self, values: &[f32]) -> Result<B::Floats, EngineError> {
        self.0.bind_floats(values)
    }
}
