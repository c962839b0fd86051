//! Encoder of a rank: computes the rank's part of an operation, and completes the result from the other ranks.
//!
//! Activations are the same on all ranks. These operations have divided results:
//!
//! - Products with matrices whose rows are divided ([`Linear::outputs`]): each rank computes its columns of the
//!   output, and columns are gathered.
//! - Feed-forward parts: the inner activations are gathered like that, as floats, before they are rotated and
//!   quantized as on one rank, and then the outputs.
//! - Attention of which each rank computes some heads: the attended heads are gathered before the output projection.
//! - The embedding, whose rows are gathered from the ranks that hold them.
//! - Whole experts, each of which one rank holds. Rank `r` receives columns `r` of all expert rows, sums them in the
//!   router's order, and the sums are gathered. This moves D · K / N + D values per row and rank, where gathering
//!   all expert rows would move D · K.
//! - Sliced experts, of each of which every rank holds rows: the inner activations of all expert rows are gathered
//!   like those of feed-forward parts. Each rank sums its columns in the router's order, and the sums are gathered.

use std::sync::Arc;

use nestling_formats::Level;
use nestling_import::GateFunction;

use super::rank_link::RankLink;
use super::{
    AttentionHeads, Backend, BindWeights, DeltaNet, Encoder, FeedForward, HeadMatrices, Linear,
    Mamba2, PinnedExpert, Router, Routing, ShortConv, Write,
};
use crate::batch::StepRows;
use crate::error::EngineError;
use crate::weights::{ActivationMode, MatrixWeights};

/// An encoder that completes divided results from the other ranks, if there are any.
#[derive(Debug)]
pub struct RankEncoder<E> {
    encoder: E,
    link: Option<Arc<RankLink>>,
}

impl<E> RankEncoder<E> {
    /// Wraps the encoder of a step.
    pub fn new(encoder: E, link: Option<Arc<RankLink>>) -> Self {
        if let Some(link) = &link {
            link.forget_experts();
        }
        Self { encoder, link }
    }

    /// Returns the wrapped encoder.
    pub fn inner(&mut self) -> &mut E {
        &mut self.encoder
    }

    fn beat(&self) {
        if let Some(link) = &self.link {
            link.group.beat();
        }
    }
}

impl<B: Backend, E: Encoder<B>> Encoder<B> for RankEncoder<E> {
    fn matmul(
        &mut self,
        weights: &[Linear<B>],
        levels: &[Level],
        x: &B::Buffer,
        write: Write,
        out: &mut B::Buffer,
    ) -> Result<(), EngineError> {
        self.encoder.matmul(weights, levels, x, write, out)?;
        let Self { encoder, link } = self;
        // Default: a single rank holds whole matrices.
        let Some(link) = link else { return Ok(()) };
        link.group.beat();
        if !weights.iter().any(Linear::is_divided) {
            return Ok(());
        }
        link.gather_outputs(encoder, weights, out)
    }

    fn experts(
        &mut self,
        experts: &[PinnedExpert<'_, B>],
        routing: &B::Routing,
        x: &B::Buffer,
        out: &mut B::Buffer,
    ) -> Result<(), EngineError> {
        let Self { encoder, link } = self;
        let Some(link) = link else { return encoder.experts(experts, routing, x, out) };
        link.group.beat();
        link.compute_experts(encoder, experts, routing, x, out)
    }

    fn experts_sum(
        &mut self,
        routing: &B::Routing,
        expert_rows: &mut B::Buffer,
        out: &mut B::Buffer,
    ) -> Result<(), EngineError> {
        let Self { encoder, link } = self;
        let Some(link) = link else { return encoder.experts_sum(routing, expert_rows, out) };
        link.sum_experts(encoder, routing, expert_rows, out)
    }

    async fn read_routing_into(
        &mut self,
        routing: &B::Routing,
        out: &mut Routing,
    ) -> Result<(), EngineError> {
        self.beat();
        self.encoder.read_routing_into(routing, out).await
    }

    fn ffn(
        &mut self,
        weights: &FeedForward<B>,
        levels: &[Level],
        x: &B::Buffer,
        write: Write,
        out: &mut B::Buffer,
    ) -> Result<(), EngineError> {
        let Self { encoder, link } = self;
        let Some(link) = link else { return encoder.ffn(weights, levels, x, write, out) };
        link.group.beat();
        if !weights.is_divided() {
            return encoder.ffn(weights, levels, x, write, out);
        }
        link.divided_ffn(encoder, weights, levels, x, write, out)
    }

    fn attend(
        &mut self,
        heads: &AttentionHeads<B>,
        rows: &StepRows,
        qkv: &B::Buffer,
        kv: &B::KvPool,
        out: &mut B::Buffer,
    ) -> Result<(), EngineError> {
        self.beat();
        self.encoder.attend(heads, rows, qkv, kv, out)
    }

    fn gather_heads(
        &mut self,
        own: &B::Buffer,
        key_heads: usize,
        out: &mut B::Buffer,
    ) -> Result<(), EngineError> {
        let Self { encoder, link } = self;
        let Some(link) = link else { return encoder.gather_heads(own, key_heads, out) };
        link.group.beat();
        link.gather_heads(encoder, own, key_heads, out)
    }

    fn delta_net(
        &mut self,
        net: &DeltaNet<B>,
        rows: &StepRows,
        projected: &B::Buffer,
        states: &mut B::StatePool,
        out: &mut B::Buffer,
    ) -> Result<(), EngineError> {
        self.beat();
        self.encoder.delta_net(net, rows, projected, states, out)
    }

    fn short_conv(
        &mut self,
        conv: &ShortConv<B>,
        rows: &StepRows,
        projected: &B::Buffer,
        states: &mut B::StatePool,
        out: &mut B::Buffer,
    ) -> Result<(), EngineError> {
        self.beat();
        self.encoder.short_conv(conv, rows, projected, states, out)
    }

    fn mamba2(
        &mut self,
        mamba2: &Mamba2<B>,
        rows: &StepRows,
        projected: &B::Buffer,
        states: &mut B::StatePool,
        out: &mut B::Buffer,
    ) -> Result<(), EngineError> {
        self.beat();
        self.encoder.mamba2(mamba2, rows, projected, states, out)
    }

    fn embed(
        &mut self,
        table: &Linear<B>,
        rows: &StepRows,
        out: &mut B::Buffer,
    ) -> Result<(), EngineError> {
        let Self { encoder, link } = self;
        encoder.embed(table, rows, out)?;
        match link {
            Some(link) if table.is_divided() => {
                link.gather_embeddings(encoder, table.outputs.whole, &rows.tokens, out)
            }
            _ => Ok(()),
        }
    }

    /// Expert rows that the host computed: no other operation of a step writes single rows.
    fn write_rows(
        &mut self,
        values: &[f32],
        rows: &[u32],
        out: &mut B::Buffer,
    ) -> Result<(), EngineError> {
        self.encoder.write_rows(values, rows, out)?;
        if let Some(link) = &self.link {
            link.note_expert_rows(rows.iter().copied());
        }
        Ok(())
    }

    // The results of all other operations are the same on all ranks.

    fn write(&mut self, values: &[f32], out: &mut B::Buffer) -> Result<(), EngineError> {
        self.encoder.write(values, out)
    }

    fn rms_norm(
        &mut self,
        x: &B::Buffer,
        weight: &B::Floats,
        eps: f32,
        write: Write,
        out: &mut B::Buffer,
    ) -> Result<(), EngineError> {
        self.encoder.rms_norm(x, weight, eps, write, out)
    }

    fn matmul_heads(
        &mut self,
        weights: &HeadMatrices<B>,
        levels: &[Level],
        x: &B::Buffer,
        out: &mut B::Buffer,
    ) -> Result<(), EngineError> {
        self.encoder.matmul_heads(weights, levels, x, out)
    }

    fn rope(
        &mut self,
        heads: &AttentionHeads<B>,
        rows: &StepRows,
        angles: &B::Buffer,
        qkv: &mut B::Buffer,
        kv: Option<&mut B::KvPool>,
    ) -> Result<(), EngineError> {
        self.encoder.rope(heads, rows, angles, qkv, kv)
    }

    fn gate(
        &mut self,
        function: GateFunction,
        gate: &B::Buffer,
        out: &mut B::Buffer,
    ) -> Result<(), EngineError> {
        self.encoder.gate(function, gate, out)
    }

    fn route(
        &mut self,
        router: &Router<B>,
        x: &B::Buffer,
        out: &mut B::Routing,
    ) -> Result<(), EngineError> {
        self.encoder.route(router, x, out)
    }

    fn write_routing(
        &mut self,
        routing: &Routing,
        out: &mut B::Routing,
    ) -> Result<(), EngineError> {
        self.encoder.write_routing(routing, out)
    }

    fn flush(&mut self) -> Result<(), EngineError> {
        self.encoder.flush()
    }

    fn scale(&mut self, factor: f32, x: &mut B::Buffer) -> Result<(), EngineError> {
        self.encoder.scale(factor, x)
    }

    fn softcap(&mut self, cap: f32, x: &mut B::Buffer) -> Result<(), EngineError> {
        self.encoder.softcap(cap, x)
    }

    fn clear(&mut self, rows: usize, out: &mut B::Buffer) -> Result<(), EngineError> {
        self.encoder.clear(rows, out)
    }

    fn add_gated(
        &mut self,
        gate: &B::Buffer,
        x: &B::Buffer,
        out: &mut B::Buffer,
    ) -> Result<(), EngineError> {
        self.encoder.add_gated(gate, x, out)
    }

    async fn finish(&mut self) -> Result<(), EngineError> {
        self.encoder.finish().await
    }

    fn gather_rows(
        &mut self,
        x: &B::Buffer,
        indices: &[u32],
        out: &mut B::Buffer,
    ) -> Result<(), EngineError> {
        self.encoder.gather_rows(x, indices, out)
    }

    async fn read_into(
        &mut self,
        buffer: &B::Buffer,
        out: &mut Vec<f32>,
    ) -> Result<(), EngineError> {
        self.encoder.read_into(buffer, out).await
    }

    async fn argmax_into(
        &mut self,
        x: &B::Buffer,
        among: usize,
        out: &mut Vec<Option<u32>>,
    ) -> Result<(), EngineError> {
        self.encoder.argmax_into(x, among, out).await
    }
}

impl<B: Backend, E: BindWeights<B>> BindWeights<B> for RankEncoder<E> {
    fn bind_matrix(
        &mut self,
        weights: &MatrixWeights,
        activations: ActivationMode,
    ) -> Result<B::Matrix, EngineError> {
        self.encoder.bind_matrix(weights, activations)
    }

    fn bind_floats(&mut self, values: &[f32]) -> Result<B::Floats, EngineError> {
        self.encoder.bind_floats(values)
    }
}
