//! What a device computes: the operations of one step.

use nestling_formats::Level;

use super::{
    AttentionHeads, Backend, DeltaNet, FeedForward, HeadMatrices, Linear, PinnedExpert, Router,
    Routing,
};
use crate::batch::StepRows;
use crate::error::EngineError;
use crate::weights::{ActivationMode, MatrixWeights};

/// How an operation combines its result with what the output holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Write {
    /// The result replaces it, and the output gets the rows of the result.
    Set,
    /// The result is added to it; the output must have the rows of the result.
    Add,
}

/// Records, or runs, the operations of one step. T = rows, D = hidden size.
///
/// These are the operations of graphs and nothing else. Slots of streamed experts are behind
/// [`SlotMemory`](super::SlotMemory), experts that a device finds by itself behind
/// [`DeviceRouting`](super::DeviceRouting), weights that arrive during a step behind [`BindWeights`].
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

    /// `out[rows[i]] = values[i]`, from the host; other rows stay as they are.
    ///
    /// # Errors
    /// Values of other sizes; a row that `out` does not have; a failed device.
    fn write_rows(
        &mut self,
        values: &[f32], // [N, D]
        rows: &[u32],   // [N], ascending
        out: &mut B::Buffer,
    ) -> Result<(), EngineError>;

    /// `out = x / sqrt(mean(x²) + eps) * weight`, row by row, or that is added.
    ///
    /// # Errors
    /// Sizes that differ; a failed device.
    fn rms_norm(
        &mut self,
        x: &B::Buffer,      // [T, D]
        weight: &B::Floats, // [D]
        eps: f32,
        write: Write,
        out: &mut B::Buffer, // [T, D]
    ) -> Result<(), EngineError>;

    /// `out = W x + b`, the outputs of several matrices side by side, or that is added; `levels` per row.
    ///
    /// # Errors
    /// Sizes that differ; a failed device.
    fn matmul(
        &mut self,
        weights: &[Linear<B>], // N in all
        levels: &[Level],      // [T]
        x: &B::Buffer,         // [T, D]
        write: Write,
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

    /// Norms and rotates queries in place; with a pool also norms and rotates keys, norms values, and stores
    /// keys and values in their pages. The R elements of a head from `rope_first` on are rotated in pairs; the
    /// first R/2 columns of `angles` are the cosines and the others the sines of each row's position. There
    /// are no values where a key's first elements are its value ([`KvValues::KeyPrefix`]).
    ///
    /// [`KvValues::KeyPrefix`]: crate::kv_cache::KvValues::KeyPrefix
    ///
    /// # Errors
    /// Sizes that differ; a page that the pool does not have; a failed device.
    fn rope(
        &mut self,
        heads: &AttentionHeads<B>,
        rows: &StepRows,
        angles: &B::Buffer,  // [T, R]
        qkv: &mut B::Buffer, // [T, (H + 2 G) * head_dim], with a pool also without the queries or the values
        kv: Option<&mut B::KvPool>,
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

    /// Makes the routing what the host says, in place of what a router chose.
    ///
    /// # Errors
    /// A routing of other sizes; a failed device.
    fn write_routing(
        &mut self,
        routing: &Routing,
        out: &mut B::Routing, // [T, K]
    ) -> Result<(), EngineError>;

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

    /// `out = down(activation(gate(x), up(x)))`, or that is added.
    ///
    /// # Errors
    /// Sizes that differ; a failed device.
    fn ffn(
        &mut self,
        weights: &FeedForward<B>,
        levels: &[Level], // [T]
        x: &B::Buffer,    // [T, D]
        write: Write,
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

    /// Everything recorded is run.
    ///
    /// # Errors
    /// A failed device.
    fn finish(&mut self) -> impl Future<Output = Result<(), EngineError>> + Send;

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

    /// Runs everything recorded and gives, for each row, the argmax over its first `among` columns, at least
    /// one; the lowest column wins ties. None for a row of which any value is not finite. Replaces what
    /// `out` held.
    ///
    /// # Errors
    /// A failed device.
    fn argmax_into(
        &mut self,
        x: &B::Buffer,
        among: usize,
        out: &mut Vec<Option<u32>>,
    ) -> impl Future<Output = Result<(), EngineError>> + Send;
}

/// Makes weights available that arrive during a step.
pub trait BindWeights<B: Backend>: Send {
    /// Makes a matrix available; a CPU uses the bytes where they lie.
    ///
    /// # Errors
    /// As [`Backend::upload_matrix`].
    fn bind_matrix(
        &mut self,
        weights: &MatrixWeights,
        activations: ActivationMode,
    ) -> Result<B::Matrix, EngineError>;

    /// Makes floats available, as [`Backend::upload_floats`].
    ///
    /// # Errors
    /// As [`Backend::upload_floats`].
    fn bind_floats(&mut self, values: &[f32]) -> Result<B::Floats, EngineError>;
}

/// What [`Encoder`]'s readings give in new memory.
pub trait EncoderExt<B: Backend>: Encoder<B> {
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
}

impl<B: Backend, E: Encoder<B>> EncoderExt<B> for E {}

/// The column of the largest of a row's first `among` values, the lowest of equal ones; none where any
/// value of the row is not finite.
pub fn argmax(row: &[f32], among: usize) -> Option<u32> {
    let mut best = 0;
    for (column, value) in row.iter().enumerate().take(among) {
        if *value > row[best] {
            best = column;
        }
    }
    row.iter().all(|value| value.is_finite()).then_some(best as u32)
}
