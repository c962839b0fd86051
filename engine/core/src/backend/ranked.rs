//! Encoder of a rank: computes the rank's part of an operation, and completes the result from the other ranks.
//!
//! Activations are the same on all ranks. These operations have divided results:
//!
//! - Products with matrices whose rows are divided ([`Linear::outputs`]): each rank computes its columns of the
//!   output, and columns are gathered.
//! - Feed-forward parts: the inner activations are gathered like that, as floats, before they are rotated and
//!   quantized as on one rank, and then the outputs.
//! - The embedding, whose rows are gathered from the ranks that hold them.
//! - Experts, each of which one rank holds. Rank `r` receives columns `r` of all expert rows, sums them in the
//!   router's order, and the sums are gathered. This moves D · K / N + D values per row and rank, where gathering
//!   all expert rows would move D · K.

use std::ops::Range;
use std::slice;
use std::sync::{Arc, Mutex};

use nestling_formats::Level;
use nestling_import::GateFunction;

use super::{
    AttentionHeads, Backend, BindWeights, DeltaNet, Encoder, FeedForward, HasShape, HeadMatrices,
    Linear, Mamba2, PinnedExpert, Router, Routing, ShortConv, Write,
};
use crate::batch::StepRows;
use crate::driver::block_on;
use crate::error::EngineError;
use crate::group::{Group, RankError, RankShare};
use crate::sync::whole;
use crate::weights::{ActivationMode, MatrixWeights};

/// Connection of a backend to the other ranks of a model, with the memory of its messages.
#[derive(Debug)]
pub struct RankLink {
    group: Arc<dyn Group>,
    memory: Mutex<Messages>,
}

/// Memory of messages, reused by operations.
#[derive(Debug, Default)]
struct Messages {
    /// Contents of the buffer that is completed.
    values: Vec<f32>,
    gather: GatherMemory,
    parts: Vec<Vec<u8>>, // [ranks]
    /// Expert rows that this rank computed since the last sum.
    computed: Vec<u32>,
    /// Expert rows that arrived.
    arrived: Vec<bool>, // [T * K]
}

/// Memory of the messages of a gather.
#[derive(Debug, Default)]
struct GatherMemory {
    part: Vec<u8>,
    incoming: Vec<Vec<u8>>, // [ranks]
}

impl RankLink {
    /// Connects a backend to a group.
    pub fn new(group: Arc<dyn Group>) -> Self {
        Self { group, memory: Mutex::default() }
    }

    /// Returns the share of this rank.
    pub fn share(&self) -> RankShare {
        self.group.share()
    }

    /// Replaces the columns of other ranks in `out`. `columns` returns those of a rank.
    fn gather_columns<B: Backend>(
        &self,
        encoder: &mut impl Encoder<B>,
        columns: impl Fn(RankShare) -> Vec<Range<usize>>,
        out: &mut B::Buffer,
    ) -> Result<(), EngineError> {
        if encoder.gather_columns(&*self.group, &columns, out)? {
            return Ok(());
        }
        let mut memory = whole(self.memory.lock());
        let Messages { values, gather, .. } = &mut *memory;
        block_on(encoder.read_into(out, values))?;
        self.complete_columns(gather, out.shape().cols, columns, values)?;
        encoder.write(values, out)
    }

    /// Replaces the rows of tokens whose embeddings other ranks hold.
    fn gather_embeddings<B: Backend>(
        &self,
        encoder: &mut impl Encoder<B>,
        vocab_size: usize,
        tokens: &[u32], // [T]
        out: &mut B::Buffer,
    ) -> Result<(), EngineError> {
        let mut memory = whole(self.memory.lock());
        let Messages { values, gather: GatherMemory { part, incoming }, .. } = &mut *memory;
        let (own, width) = (self.share(), out.shape().cols.max(1));
        let holds = |share: RankShare, token: &u32| {
            let held = share.rows(vocab_size);
            held.is_some_and(|held| held.contains(&(*token as usize)))
        };
        block_on(encoder.read_into(out, values))?;
        part.clear();
        for (row, token) in values.chunks_exact(width).zip(tokens) {
            if holds(own, token) {
                part.extend_from_slice(bytemuck::cast_slice(row));
            }
        }
        self.group.all_gather(part, incoming)?;
        for (share, part) in own.all().zip(&*incoming).filter(|(share, _)| *share != own) {
            let of_rank = |token: &&u32| holds(share, token);
            let expected = 4 * width * tokens.iter().filter(of_rank).count();
            check_length(share.rank, expected, part.len())?;
            let rows = values.chunks_exact_mut(width).zip(tokens);
            let rows = rows.filter(|(_, token)| holds(share, token));
            rows.zip(part.chunks_exact(4 * width))
                .for_each(|((row, _), bytes)| copy_floats(bytes, row));
        }
        encoder.write(values, out)
    }

    /// Replaces the columns of other ranks in rows of `width` values.
    fn complete_columns(
        &self,
        memory: &mut GatherMemory,
        width: usize,
        columns: impl Fn(RankShare) -> Vec<Range<usize>>,
        values: &mut [f32], // [T, width]
    ) -> Result<(), EngineError> {
        let GatherMemory { part, incoming } = memory;
        let (own, width) = (self.share(), width.max(1));
        part.clear();
        let held = columns(own);
        for row in values.chunks_exact(width) {
            held.iter().for_each(|range| part.extend(bytemuck::cast_slice(&row[range.clone()])));
        }
        self.group.all_gather(part, incoming)?;
        for (share, part) in own.all().zip(&*incoming).filter(|(share, _)| *share != own) {
            let held = columns(share);
            let of_row = 4 * held.iter().map(ExactSizeIterator::len).sum::<usize>();
            check_length(share.rank, values.len() / width * of_row, part.len())?;
            let mut rest = &part[..];
            for row in values.chunks_exact_mut(width) {
                for range in &held {
                    let (bytes, after) = rest.split_at(4 * range.len());
                    copy_floats(bytes, &mut row[range.clone()]);
                    rest = after;
                }
            }
        }
        Ok(())
    }

    /// Computes a feed-forward part of whose matrices each rank holds rows.
    fn divided_ffn<B: Backend>(
        &self,
        encoder: &mut impl Encoder<B>,
        weights: &FeedForward<B>,
        levels: &[Level],
        x: &B::Buffer,
        write: Write,
        out: &mut B::Buffer,
    ) -> Result<(), EngineError> {
        let FeedForward { up, down, .. } = weights;
        if up.is_divided() {
            let complete = &mut |inner: &mut [f32]| {
                let gather = &mut whole(self.memory.lock()).gather;
                let columns = |share| columns_of(slice::from_ref(up), share);
                self.complete_columns(gather, up.outputs.whole, columns, inner)
            };
            encoder.ffn_of_rank(weights, levels, x, write, complete, out)?;
        } else {
            encoder.ffn(weights, levels, x, write, out)?;
        }
        if !down.is_divided() {
            return Ok(());
        }
        self.gather_columns(encoder, |share| columns_of(slice::from_ref(down), share), out)
    }

    /// Replaces this rank's columns of all expert rows by those that their ranks computed.
    fn collect_expert_rows<B: Backend>(
        &self,
        encoder: &mut impl Encoder<B>,
        count: usize,
        out: &mut B::Buffer, // [count, D]
    ) -> Result<(), EngineError> {
        let mut memory = whole(self.memory.lock());
        let Messages { values, parts, gather, computed, arrived } = &mut *memory;
        let incoming = &mut gather.incoming;
        let (own, width) = (self.share(), out.shape().cols);
        values.clear();
        // A rank without one of the experts has not written any row.
        if !computed.is_empty() {
            block_on(encoder.read_into(out, values))?;
        }
        values.resize(count * width, 0.0);
        parts.resize_with(own.ranks, Vec::new);
        for (share, part) in own.all().zip(&mut *parts) {
            part.clear();
            for row in &*computed {
                let columns = &values[*row as usize * width..][share.columns(width)];
                part.extend(row.to_le_bytes());
                part.extend_from_slice(bytemuck::cast_slice(columns));
            }
        }
        self.group.exchange(parts, incoming)?;
        computed.clear();
        arrived.clear();
        arrived.resize(count, false);
        let columns = own.columns(width);
        for (rank, part) in incoming.iter().enumerate() {
            for message in part.chunks_exact(4 + 4 * columns.len()) {
                let (row, bytes) = message.split_at(4);
                let row = u32::from_le_bytes([row[0], row[1], row[2], row[3]]) as usize;
                if arrived.get(row) != Some(&false) {
                    return Err(mismatch(rank, "an expert row that no rank has sent", row));
                }
                arrived[row] = true;
                copy_floats(bytes, &mut values[row * width..][columns.clone()]);
            }
        }
        match arrived.iter().position(|arrived| !arrived) {
            Some(row) => Err(mismatch(own.rank, "all expert rows", format!("none of {row}"))),
            None => encoder.write(values, out),
        }
    }
}

/// Copies floats in the byte order of the ranks, which are the same program.
fn copy_floats(bytes: &[u8], out: &mut [f32]) {
    let out: &mut [u8] = bytemuck::cast_slice_mut(out);
    out.iter_mut().zip(bytes).for_each(|(out, byte)| *out = *byte);
}

fn check_length(rank: usize, expected: usize, found: usize) -> Result<(), EngineError> {
    if expected == found {
        return Ok(());
    }
    Err(mismatch(rank, &format!("{expected} bytes"), found))
}

fn mismatch(rank: usize, expected: &str, found: impl ToString) -> EngineError {
    let (expected, found) = (expected.to_owned(), found.to_string());
    RankError::Mismatch { rank, expected, found }.into()
}

/// Returns the columns of concatenated outputs that a rank computes. Matrices that all ranks hold have none.
fn columns_of<B: Backend>(weights: &[Linear<B>], share: RankShare) -> Vec<Range<usize>> {
    let mut first = 0;
    let mut columns = Vec::new();
    for linear in weights {
        let whole = linear.outputs.whole;
        if let Some(rows) = share.rows(whole).filter(|_| linear.is_divided()) {
            columns.push(first + rows.start..first + rows.end);
        }
        first += whole;
    }
    columns
}

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
            // A failed step leaves rows behind.
            whole(link.memory.lock()).computed.clear();
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
        link.gather_columns(encoder, |share| columns_of(weights, share), out)
    }

    fn experts(
        &mut self,
        experts: &[PinnedExpert<'_, B>],
        routing: &B::Routing,
        x: &B::Buffer,
        out: &mut B::Buffer,
    ) -> Result<(), EngineError> {
        self.encoder.experts(experts, routing, x, out)?;
        // Default: a single rank holds all experts.
        let Some(link) = &self.link else { return Ok(()) };
        link.group.beat();
        let per_token = routing.shape().cols as u32;
        let uses = experts.iter().flat_map(|expert| expert.uses);
        let rows = uses.map(|used| used.row * per_token + used.rank);
        whole(link.memory.lock()).computed.extend(rows);
        Ok(())
    }

    fn experts_sum(
        &mut self,
        routing: &B::Routing,
        expert_rows: &mut B::Buffer,
        out: &mut B::Buffer,
    ) -> Result<(), EngineError> {
        let Self { encoder, link } = self;
        let Some(link) = link else { return encoder.experts_sum(routing, expert_rows, out) };
        let routed = routing.shape();
        link.collect_expert_rows(encoder, routed.rows * routed.cols, expert_rows)?;
        // The columns of other ranks are sums of whatever rows hold there, and are replaced.
        encoder.experts_sum(routing, expert_rows, out)?;
        let width = out.shape().cols;
        link.gather_columns(encoder, |share| vec![share.columns(width)], out)
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
            whole(link.memory.lock()).computed.extend_from_slice(rows);
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
