//! Connection of a backend to the other ranks, which completes the results of operations.

use std::ops::Range;
use std::slice;
use std::sync::{Arc, Mutex};

use nestling_formats::Level;

use super::{Backend, Encoder, FeedForward, HasShape, Linear, Outputs, PinnedExpert, Write};
use crate::driver::block_on;
use crate::error::EngineError;
use crate::group::{Group, RankError, RankShare};
use crate::sync::whole;

/// Connection of a backend to the other ranks of a model, with the memory of its messages.
#[derive(Debug)]
pub struct RankLink {
    pub(super) group: Arc<dyn Group>,
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
    /// Outputs of down of the sliced experts that were computed since the last sum.
    sliced: Option<SlicedSums>,
    /// Expert rows that arrived.
    arrived: Vec<bool>, // [T * K]
}

/// Columns that ranks sum of sliced experts.
#[derive(Clone, Copy, Debug)]
struct SlicedSums {
    /// Number of outputs of down, of all ranks together.
    whole: usize,
    /// False if every rank computes all of them.
    is_divided: bool,
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

    /// Replaces the columns of other ranks in the outputs of matrices.
    pub(super) fn gather_outputs<B: Backend>(
        &self,
        encoder: &mut impl Encoder<B>,
        weights: &[Linear<B>],
        out: &mut B::Buffer,
    ) -> Result<(), EngineError> {
        self.gather_columns(encoder, |share| columns_of(weights, share), out)
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

    /// Sets `out` to the attended heads of all ranks, of `key_heads` key heads together.
    pub(super) fn gather_heads<B: Backend>(
        &self,
        encoder: &mut impl Encoder<B>,
        own: &B::Buffer, // [T, own query heads * head_dim]
        key_heads: usize,
        out: &mut B::Buffer, // [T, H * head_dim]
    ) -> Result<(), EngineError> {
        let (share, width) = (self.share(), out.shape().cols);
        let of_key = width.checked_div(key_heads);
        let columns = |share: RankShare| {
            let (heads, of_key) = (share.heads(key_heads)?, of_key?);
            Some(heads.start * of_key..heads.end * of_key)
        };
        let found = own.shape();
        let expected = columns(share).map(|columns| columns.len());
        if expected != Some(found.cols) || found.cols == 0 {
            // Default: heads that are not divided have no columns.
            let expected = expected.unwrap_or(0);
            return Err(EngineError::mismatch("columns of a rank's heads", expected, found.cols));
        }
        let mut memory = whole(self.memory.lock());
        let Messages { values, gather: GatherMemory { part, incoming }, .. } = &mut *memory;
        block_on(encoder.read_into(own, values))?;
        part.clear();
        part.extend_from_slice(bytemuck::cast_slice(values));
        self.group.all_gather(part, incoming)?;
        values.clear();
        values.resize(found.rows * width, 0.0);
        for (other, part) in share.all().zip(&*incoming) {
            // Default: as above.
            let columns = columns(other).unwrap_or(0..0);
            check_length(other.rank, 4 * found.rows * columns.len(), part.len())?;
            let rows = values.chunks_exact_mut(width).zip(part.chunks_exact(4 * columns.len()));
            rows.for_each(|(row, bytes)| copy_floats(bytes, &mut row[columns.clone()]));
        }
        encoder.write(values, out)
    }

    /// Replaces the rows of tokens whose embeddings other ranks hold.
    pub(super) fn gather_embeddings<B: Backend>(
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
    pub(super) fn divided_ffn<B: Backend>(
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
            let complete = &mut |inner: &mut [f32]| self.complete_inner(up, inner);
            encoder.ffn_of_rank(weights, levels, x, write, complete, out)?;
        } else {
            encoder.ffn(weights, levels, x, write, out)?;
        }
        if !down.is_divided() {
            return Ok(());
        }
        self.gather_outputs(encoder, slice::from_ref(down), out)
    }

    /// Replaces the inner activations that other ranks computed. Those of a matrix that all ranks hold are whole.
    fn complete_inner<B: Backend>(
        &self,
        up: &Linear<B>,
        inner: &mut [f32], // [rows, I]
    ) -> Result<(), EngineError> {
        if !up.is_divided() {
            return Ok(());
        }
        let gather = &mut whole(self.memory.lock()).gather;
        let columns = |share| columns_of(slice::from_ref(up), share);
        self.complete_columns(gather, up.outputs.whole, columns, inner)
    }

    /// Computes this rank's experts, or its rows of all experts if they are sliced. Sliced experts must be those that
    /// all ranks compute in this call.
    pub(super) fn compute_experts<B: Backend>(
        &self,
        encoder: &mut impl Encoder<B>,
        experts: &[PinnedExpert<'_, B>],
        routing: &B::Routing,
        x: &B::Buffer,
        out: &mut B::Buffer,
    ) -> Result<(), EngineError> {
        let sliced = experts.iter().map(|expert| &*expert.weights).find(|part| part.is_divided());
        let Some(FeedForward { up, down, .. }) = sliced else {
            encoder.experts(experts, routing, x, out)?;
            let per_token = routing.shape().cols as u32;
            let uses = experts.iter().flat_map(|expert| expert.uses);
            self.note_expert_rows(uses.map(|used| used.row * per_token + used.rank));
            return Ok(());
        };
        let complete = &mut |inner: &mut [f32]| self.complete_inner(up, inner);
        encoder.experts_of_rank(experts, routing, x, complete, out)?;
        let (Outputs { whole: outputs, .. }, is_divided) = (down.outputs, down.is_divided());
        whole(self.memory.lock()).sliced = Some(SlicedSums { whole: outputs, is_divided });
        Ok(())
    }

    /// Notes expert rows that this rank has computed.
    pub(super) fn note_expert_rows(&self, rows: impl Iterator<Item = u32>) {
        whole(self.memory.lock()).computed.extend(rows);
    }

    /// Forgets the expert rows that a failed step leaves behind.
    pub(super) fn forget_experts(&self) {
        let mut memory = whole(self.memory.lock());
        memory.computed.clear();
        memory.sliced = None;
    }

    /// Adds the sums of all expert rows to `out`, in the router's order.
    pub(super) fn sum_experts<B: Backend>(
        &self,
        encoder: &mut impl Encoder<B>,
        routing: &B::Routing,
        expert_rows: &mut B::Buffer,
        out: &mut B::Buffer,
    ) -> Result<(), EngineError> {
        // Bound here, so that the memory is free for the exchanges.
        let sliced = whole(self.memory.lock()).sliced.take();
        let routed = routing.shape();
        if sliced.is_none() {
            self.collect_expert_rows(encoder, routed.rows * routed.cols, expert_rows)?;
        }
        // The columns of other ranks are sums of whatever rows hold there, and are replaced.
        encoder.experts_sum(routing, expert_rows, out)?;
        let width = out.shape().cols;
        match sliced {
            None => self.gather_columns(encoder, |share| vec![share.columns(width)], out),
            Some(SlicedSums { is_divided: false, .. }) => Ok(()),
            Some(SlicedSums { whole, .. }) => {
                self.gather_columns(encoder, |share| share.rows(whole).into_iter().collect(), out)
            }
        }
    }

    /// Replaces this rank's columns of all expert rows by those that their ranks computed.
    fn collect_expert_rows<B: Backend>(
        &self,
        encoder: &mut impl Encoder<B>,
        count: usize,
        out: &mut B::Buffer, // [count, D]
    ) -> Result<(), EngineError> {
        let mut memory = whole(self.memory.lock());
        let Messages { values, parts, gather, computed, arrived, .. } = &mut *memory;
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
