//! What a device computes: the operations of one step.

use std::ops::Range;

use nestling_formats::{Level, MatrixKind, Plane};

use super::{
    AttentionHeads, Backend, DeltaNet, FeedForward, HeadMatrices, HeldExpert, HostPlane,
    LevelWeights, Linear, PinnedExpert, Router, Routing, SlotPlace,
};
use crate::batch::StepRows;
use crate::error::EngineError;
use crate::weights::{ActivationMode, MatrixWeights};

fn no_slots() -> EngineError {
    EngineError::mismatch("slots of streamed experts", "a device that has them", "a host")
}

/// Records, or runs, the operations of one step. T = rows, D = hidden size.
pub trait Encoder<B: Backend>: Send {
    /// `out[t] = table[tokens[t]]`, at the row's dense level.
    ///
    /// # Errors
    /// A token outside the table; a failed device.
    fn embed(
        &mut self,
        table: &B::Matrix,
        rows: &StepRows,
        out: &mut B::Buffer, // [T, D]
    ) -> Result<(), EngineError>;

    /// Copies values of the host, a whole number of rows of `out`.
    ///
    /// # Errors
    /// Values that do not fill rows; a failed device.
    fn write(&mut self, values: &[f32], out: &mut B::Buffer) -> Result<(), EngineError>;

    /// Copies values of the host to some rows of `out`, in the order of `rows`; other rows stay as they
    /// are.
    ///
    /// # Errors
    /// Values of other sizes; a row that `out` does not have; a failed device, or one that keeps no planes
    /// in memory of the host.
    fn write_rows(
        &mut self,
        values: &[f32], // [N, D]
        rows: &[u32],   // [N], ascending
        out: &mut B::Buffer,
    ) -> Result<(), EngineError> {
        let _ = (values, rows, out);
        Err(EngineError::mismatch("rows of the host", "a device that takes them", "another"))
    }

    /// `out = x / sqrt(mean(x²) + eps) * weight`, row by row.
    ///
    /// # Errors
    /// Sizes that differ; a failed device.
    fn rms_norm(
        &mut self,
        x: &B::Buffer,      // [T, D]
        weight: &B::Floats, // [D]
        eps: f32,
        out: &mut B::Buffer, // [T, D]
    ) -> Result<(), EngineError>;

    /// `out = W x + b`, the outputs of several matrices side by side; `levels` per row.
    ///
    /// # Errors
    /// Sizes that differ; a failed device.
    fn matmul(
        &mut self,
        weights: &[Linear<B>], // N in all
        levels: &[Level],      // [T]
        x: &B::Buffer,         // [T, D]
        out: &mut B::Buffer,   // [T, N]
    ) -> Result<(), EngineError>;

    /// `out += W x + b`.
    ///
    /// # Errors
    /// Sizes that differ; a failed device.
    fn matmul_add(
        &mut self,
        weights: &Linear<B>,
        levels: &[Level],    // [T]
        x: &B::Buffer,       // [T, D]
        out: &mut B::Buffer, // [T, N]
    ) -> Result<(), EngineError>;

    /// Multiplies the first K elements of every head with the head's own matrix; what follows them
    /// follows the products: `out[t, h] = [W_h x[t, h, ..K], x[t, h, K..]]`.
    ///
    /// # Errors
    /// Sizes that differ; a failed device.
    fn matmul_heads(
        &mut self,
        weights: &HeadMatrices<B>, // [H * N, K]
        levels: &[Level],          // [T]
        x: &B::Buffer,             // [T, H * (K + R)]
        out: &mut B::Buffer,       // [T, H * (N + R)]
    ) -> Result<(), EngineError>;

    /// Norms and rotates queries and keys and norms values in place, then stores keys and values in
    /// their pages. The R elements of a head from `rope_first` on are rotated in pairs; the first R/2 columns
    /// of `rope` are the cosines and the others the sines of each row's position. There are no
    /// values where a key's first elements are its value ([`KvValues::KeyPrefix`]).
    ///
    /// [`KvValues::KeyPrefix`]: crate::kv_cache::KvValues::KeyPrefix
    ///
    /// # Errors
    /// Sizes that differ; a page that the pool does not have; a failed device.
    fn rope_store(
        &mut self,
        heads: &AttentionHeads<B>,
        rows: &StepRows,
        rope: &B::Buffer,    // [T, R]
        qkv: &mut B::Buffer, // [T, (H + 2 G) * head_dim], or without the queries or the values
        kv: &mut B::KvPool,
    ) -> Result<(), EngineError>;

    /// Norms and rotates queries in place, as [`Encoder::rope_store`] does.
    ///
    /// # Errors
    /// Sizes that differ; a failed device.
    fn rope_queries(
        &mut self,
        heads: &AttentionHeads<B>,
        rows: &StepRows,
        rope: &B::Buffer,        // [T, R]
        queries: &mut B::Buffer, // [T, H * head_dim]
    ) -> Result<(), EngineError>;

    /// Causal attention of every row over its window of positions, its own the last, read from the
    /// pages.
    ///
    /// # Errors
    /// Sizes that differ; a page that the pool does not have; a failed device.
    fn attend(
        &mut self,
        heads: &AttentionHeads<B>,
        rows: &StepRows,
        qkv: &B::Buffer, // [T, H * head_dim or more], only queries are read
        kv: &B::KvPool,
        out: &mut B::Buffer, // [T, H * elements of a value]
    ) -> Result<(), EngineError>;

    /// A gated DeltaNet layer: rows of a sequence, which lie together, pass the convolution and the
    /// heads' states in order; what they give is normed and multiplied with `silu(gate)`. A row of
    /// `projected` holds queries, keys and values, gates, beta and alpha. States are read and written
    /// as `rows` says.
    ///
    /// # Errors
    /// Sizes that differ; states that do not fit the rows; a failed device.
    fn delta_net(
        &mut self,
        net: &DeltaNet<B>,
        rows: &StepRows,
        projected: &B::Buffer, // [T, channels + value_dim + 2 * num_value_heads]
        states: &mut B::StatePool,
        out: &mut B::Buffer, // [T, value_dim]
    ) -> Result<(), EngineError>;

    /// `out *= sigmoid(gate)`, element by element.
    ///
    /// # Errors
    /// Sizes that differ; a failed device.
    fn gate(
        &mut self,
        gate: &B::Buffer,    // [T, N]
        out: &mut B::Buffer, // [T, N]
    ) -> Result<(), EngineError>;

    /// The K experts of every row and their weights, by the router's rule; of equal scores the lower
    /// expert wins.
    ///
    /// # Errors
    /// Sizes that differ; a failed device.
    fn route(
        &mut self,
        router: &Router<B>,
        x: &B::Buffer,        // [T, D]
        out: &mut B::Routing, // [T, K]
    ) -> Result<(), EngineError>;

    /// The routing in host memory, in place of what `out` was: waits for the device.
    ///
    /// # Errors
    /// A failed device.
    fn read_routing_into(
        &mut self,
        routing: &B::Routing,
        out: &mut Routing,
    ) -> impl Future<Output = Result<(), EngineError>> + Send;

    /// [`Encoder::read_routing_into`] a new one.
    ///
    /// # Errors
    /// A failed device.
    fn read_routing(
        &mut self,
        routing: &B::Routing,
    ) -> impl Future<Output = Result<Routing, EngineError>> + Send {
        async {
            let mut out = Routing::default();
            self.read_routing_into(routing, &mut out).await?;
            Ok(out)
        }
    }

    /// Makes the routing what the host says, in place of what a router chose.
    ///
    /// # Errors
    /// A routing of other sizes; a failed device.
    fn write_routing(
        &mut self,
        routing: &Routing,
        out: &mut B::Routing, // [T, K]
    ) -> Result<(), EngineError> {
        let _ = (routing, out);
        Err(EngineError::mismatch("routing of the host", "a device that takes it", "another"))
    }

    /// Makes a matrix available that arrived during the step; a CPU uses the bytes where they lie.
    ///
    /// # Errors
    /// As [`Backend::upload_matrix`].
    fn bind_matrix(
        &mut self,
        weights: &MatrixWeights,
        activations: ActivationMode,
    ) -> Result<B::Matrix, EngineError>;

    /// Makes floats available during a step, as [`Backend::upload_floats`].
    ///
    /// # Errors
    /// As [`Backend::upload_floats`].
    fn bind_floats(&mut self, values: &[f32]) -> Result<B::Floats, EngineError>;

    /// Puts a matrix of a streamed expert into its slot, with the planes that `weights` has; others
    /// can be added. Computed with at most the planes that are there.
    ///
    /// # Errors
    /// A slot or a size that there is not; a failed device.
    fn place_matrix(
        &mut self,
        slots: &mut B::ExpertSlots,
        place: SlotPlace,
        weights: &MatrixWeights,
        activations: ActivationMode,
    ) -> Result<B::Matrix, EngineError> {
        let _ = (slots, place, weights, activations);
        Err(no_slots())
    }

    /// Puts one plane more of a matrix into its slot.
    ///
    /// # Errors
    /// A matrix that is in no slot or lacks the plane before; a plane of another size; a failed
    /// device.
    fn add_plane(
        &mut self,
        matrix: &mut B::Matrix,
        plane: Plane,
        bytes: &[u8],
    ) -> Result<(), EngineError> {
        let _ = (matrix, plane, bytes);
        Err(no_slots())
    }

    /// Copies parts of matrices of an expert in a slot, each a plane, to where they are in one plane of a
    /// store with so many bytes, which lies in memory of the host from then on. None where there is no
    /// room for it, or a device keeps no planes there.
    ///
    /// # Errors
    /// Parts that the matrices do not have; a failed device.
    fn fetch_plane(
        &mut self,
        weights: &FeedForward<B>,
        parts: &[(MatrixKind, Plane, Range<usize>)],
        bytes: u64,
    ) -> Result<Option<HostPlane>, EngineError> {
        let _ = (weights, parts, bytes);
        Ok(None)
    }

    /// What [`Encoder::place_matrix`], [`Encoder::add_plane`] and [`Encoder::fetch_plane`] copy from now on
    /// comes behind all that was recorded, and nothing that is recorded later waits for it. What is placed
    /// so must not be used before [`Encoder::ended_behind`] says that it is there.
    ///
    /// # Errors
    /// A failed device.
    fn begin_behind(&mut self) -> Result<(), EngineError> {
        Ok(())
    }

    /// What is copied from now on is waited for again. Gives the number of the copies that are not, larger
    /// than those before it; 0 where a device has no such copies.
    ///
    /// # Errors
    /// A failed device.
    fn end_behind(&mut self) -> Result<u64, EngineError> {
        Ok(0)
    }

    /// The largest number whose copies, and all before them, are there for what is recorded from now on.
    /// That waits for those up to `awaited`, the host does not.
    ///
    /// # Errors
    /// A failed device.
    fn ended_behind(&mut self, awaited: u64) -> Result<u64, EngineError> {
        Ok(awaited)
    }

    /// Makes the slots as many as `bytes` are enough for, or fewer where memory is full. What lies in
    /// those that are not [`Backend::kept_slots`] is gone.
    ///
    /// # Errors
    /// A device whose memory has no room for one expert, and no slot is left.
    fn resize_slots(&mut self, slots: &mut B::ExpertSlots, bytes: u64) -> Result<(), EngineError> {
        let _ = (slots, bytes);
        Err(no_slots())
    }

    /// Has [`Encoder::routed_experts`] decide the level of every use by its weight from now on, or by
    /// its row again; what it notes is then `expert | (level.index() + 1) << 16`. False where a device
    /// cannot.
    ///
    /// # Errors
    /// Weights of other experts than those of the table; a failed device.
    fn set_level_weights(
        &mut self,
        table: &mut B::ExpertTable,
        least: Option<&[LevelWeights]>, // [experts]
    ) -> Result<bool, EngineError> {
        let _ = table;
        Ok(least.is_none())
    }

    /// Tells a table of streamed experts what there is of one of them; none for nothing.
    ///
    /// # Errors
    /// An expert that the table does not have; a failed device.
    fn set_expert(
        &mut self,
        table: &mut B::ExpertTable,
        expert: u32,
        held: Option<HeldExpert<'_, B>>,
    ) -> Result<(), EngineError> {
        let _ = (table, expert, held);
        Err(no_slots())
    }

    /// Starts the device on what was recorded, before the host waits for something else.
    ///
    /// # Errors
    /// A failed device.
    fn flush(&mut self) -> Result<(), EngineError>;

    /// `x *= factor`, element by element.
    ///
    /// # Errors
    /// A failed device.
    fn scale(&mut self, factor: f32, x: &mut B::Buffer) -> Result<(), EngineError>;

    /// `x = cap * tanh(x / cap)`, element by element.
    ///
    /// # Errors
    /// A failed device.
    fn softcap(&mut self, cap: f32, x: &mut B::Buffer) -> Result<(), EngineError>;

    /// `out` becomes so many rows of zeros.
    ///
    /// # Errors
    /// A failed device.
    fn clear(&mut self, rows: usize, out: &mut B::Buffer) -> Result<(), EngineError>;

    /// `out += x / sqrt(mean(x²) + eps) * weight`, row by row.
    ///
    /// # Errors
    /// Sizes that differ; a failed device.
    fn rms_norm_add(
        &mut self,
        x: &B::Buffer,      // [T, D]
        weight: &B::Floats, // [D]
        eps: f32,
        out: &mut B::Buffer, // [T, D]
    ) -> Result<(), EngineError>;

    /// `out = down(activation(gate(x), up(x)))`.
    ///
    /// # Errors
    /// Sizes that differ; a failed device.
    fn ffn(
        &mut self,
        weights: &FeedForward<B>,
        levels: &[Level],    // [T]
        x: &B::Buffer,       // [T, D]
        out: &mut B::Buffer, // [T, D]
    ) -> Result<(), EngineError>;

    /// `out[t] += sigmoid(gate[t]) * x[t]`.
    ///
    /// # Errors
    /// Sizes that differ; a failed device.
    fn add_gated(
        &mut self,
        gate: &B::Buffer,    // [T, 1]
        x: &B::Buffer,       // [T, D]
        out: &mut B::Buffer, // [T, D]
    ) -> Result<(), EngineError>;

    /// `out += down(activation(gate(x), up(x)))`.
    ///
    /// # Errors
    /// Sizes that differ; a failed device.
    fn ffn_add(
        &mut self,
        weights: &FeedForward<B>,
        levels: &[Level],    // [T]
        x: &B::Buffer,       // [T, D]
        out: &mut B::Buffer, // [T, D]
    ) -> Result<(), EngineError>;

    /// `out[t * K + rank] = expert(x[t])` for every use of the experts given; other rows of `out`
    /// stay as they are. A layer's experts may come in several calls, in any order.
    ///
    /// # Errors
    /// Sizes that differ; a failed device.
    fn experts(
        &mut self,
        experts: &[PinnedExpert<'_, B>],
        routing: &B::Routing, // [T, K]
        x: &B::Buffer,        // [T, D]
        out: &mut B::Buffer,  // [T * K, D]
    ) -> Result<(), EngineError>;

    /// [`Encoder::experts`] with those that the routing names, all of one layer: nobody waits for the
    /// routing. The next [`Encoder::read_into`] or [`Encoder::finish`] brings it along, for
    /// [`Encoder::take_routed`].
    ///
    /// Where the table lacks an expert, or a plane of one, neither this call nor anything that is
    /// recorded after it takes place, until [`Encoder::take_missed`] was asked.
    ///
    /// # Errors
    /// Sizes that differ; a level that an expert of the table does not hold; a failed device.
    fn routed_experts(
        &mut self,
        table: &B::ExpertTable,
        levels: &[Level],                        // [T]
        (routing, x): (&B::Routing, &B::Buffer), // [T, K], [T, D]
        out: &mut B::Buffer,                     // [T * K, D]
    ) -> Result<(), EngineError> {
        let _ = (table, levels, routing, x, out);
        Err(EngineError::mismatch("experts of the routing", "a device that finds them", "a host"))
    }

    /// The experts that [`Encoder::routed_experts`] found, call after call, in place of what `out`
    /// held; once a buffer was read.
    fn take_routed(&mut self, out: &mut Vec<u32>) {
        out.clear();
    }

    /// Which call of [`Encoder::routed_experts`] of this step lacked an expert, counted from 0; once a
    /// buffer was read or the step finished. Nothing after it took place, and what it would have found
    /// is the last of [`Encoder::take_routed`]; the next such call takes its number. From here on
    /// everything takes place again.
    fn take_missed(&mut self) -> Option<usize> {
        None
    }

    /// Everything recorded is run.
    ///
    /// # Errors
    /// A failed device.
    fn finish(&mut self) -> impl Future<Output = Result<(), EngineError>> + Send {
        async { Ok(()) }
    }

    /// `out[t] += Σ expert_weight · expert_rows[t * K + rank]`: for each row, a sum that starts at
    /// zero and gains `fma(weight, value, sum)` in ascending rank is added to `out`.
    ///
    /// # Errors
    /// Sizes that differ; a failed device.
    fn experts_sum(
        &mut self,
        routing: &B::Routing,    // [T, K]
        expert_rows: &B::Buffer, // [T * K, D]
        out: &mut B::Buffer,     // [T, D]
    ) -> Result<(), EngineError>;

    /// `out[i] = x[indices[i]]`.
    ///
    /// # Errors
    /// An index outside `x`; a failed device.
    fn gather_rows(
        &mut self,
        x: &B::Buffer,
        indices: &[u32],
        out: &mut B::Buffer,
    ) -> Result<(), EngineError>;

    /// Everything recorded is run, and the buffer's rows are copied to the host, in place of what
    /// `out` held.
    ///
    /// # Errors
    /// A failed device.
    fn read_into(
        &mut self,
        buffer: &B::Buffer,
        out: &mut Vec<f32>,
    ) -> impl Future<Output = Result<(), EngineError>> + Send;

    /// Everything recorded is run, and of each row of `cols` values the column of the largest among the
    /// first so many, at least one, comes to the host, of equal ones the first, in place of what `out` held;
    /// none of a row that has a value, of all `cols`, that is not finite. `values` is memory to work in.
    ///
    /// # Errors
    /// A failed device.
    fn argmax_into(
        &mut self,
        x: &B::Buffer,
        (cols, among): (usize, usize),
        (values, out): (&mut Vec<f32>, &mut Vec<Option<u32>>),
    ) -> impl Future<Output = Result<(), EngineError>> + Send {
        async move {
            self.read_into(x, values).await?;
            out.clear();
            out.extend(values.chunks_exact(cols.max(1)).map(|row| first_largest(row, among)));
            values.clear();
            Ok(())
        }
    }

    /// [`Encoder::read_into`] new memory.
    ///
    /// # Errors
    /// A failed device.
    fn read(
        &mut self,
        buffer: &B::Buffer,
    ) -> impl Future<Output = Result<Vec<f32>, EngineError>> + Send {
        async {
            let mut out = Vec::new();
            self.read_into(buffer, &mut out).await?;
            Ok(out)
        }
    }
}

/// The column of the largest of the first so many values, of equal ones the first; none where one of all
/// is not finite.
fn first_largest(row: &[f32], among: usize) -> Option<u32> {
    let mut best = 0;
    for (column, value) in row.iter().enumerate().take(among) {
        if *value > row[best] {
            best = column;
        }
    }
    row.iter().all(|value| value.is_finite()).then_some(best as u32)
}
