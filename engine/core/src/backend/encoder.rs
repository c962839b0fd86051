//! Operations of one step on a device.

use std::ops::Range;

use nestling_formats::Level;
use nestling_import::GateFunction;

use super::{
    AttentionHeads, Backend, DeltaNet, FeedForward, HasShape, HeadMatrices, Linear, Mamba2,
    PinnedExpert, Router, Routing, ShortConv,
};
use crate::batch::StepRows;
use crate::error::EngineError;
use crate::group::{Group, RankShare};
use crate::weights::{ActivationMode, MatrixWeights};

/// Combination of an operation's result with the previous contents of the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Write {
    /// The result replaces the contents, and the output gets the rows of the result.
    Set,
    /// The result is added to the contents; the output must have the rows of the result.
    Add,
}

/// Callback that receives inner values of a feed-forward part in host memory, and replaces the columns that other
/// ranks computed. They are rows of I values: activations, `[T, I]`, or gates and ups, `[T, 2, I]`; the same on all
/// ranks.
pub type CompleteInner<'a> = &'a mut dyn FnMut(&mut [f32]) -> Result<(), EngineError>;

/// Returns the error of a backend that needs whole matrices.
fn needs_whole<B: Backend>(weights: &FeedForward<B>) -> EngineError {
    let (whole, held) = (weights.up.outputs.whole, weights.up.matrix.shape().rows);
    EngineError::mismatch("rows of a feed-forward part", whole, held)
}

/// Records or runs the operations of one step. T = rows, D = hidden size.
///
/// The trait contains only the operations of model graphs. Related traits: [`SlotMemory`](super::SlotMemory)
/// for slots of streamed experts, [`DeviceRouting`](super::DeviceRouting) for experts that a device finds
/// itself, [`BindWeights`] for weights that arrive during a step.
pub trait Encoder<B: Backend>: Send {
    /// Computes `out[t] = table[tokens[t]]` at each row's dense level. On a rank of several, rows of tokens that
    /// another rank holds are unspecified.
    ///
    /// # Errors
    /// Returns an error if a token is outside the whole table, the backend needs a whole one, or the device failed.
    fn embed(
        &mut self,
        table: &Linear<B>, // [vocabulary, D], without bias
        rows: &StepRows,
        out: &mut B::Buffer, // [T, D]
    ) -> Result<(), EngineError>;

    /// Copies values from the host, a whole number of rows of `out`.
    ///
    /// # Errors
    /// Returns an error if the values do not fill whole rows or the device failed.
    fn write(&mut self, values: &[f32], out: &mut B::Buffer) -> Result<(), EngineError>;

    /// Copies `out[rows[i]] = values[i]` from the host; other rows are unchanged. On a rank of several, these are rows of
    /// its experts that the host computed.
    ///
    /// # Errors
    /// Returns an error if sizes differ, `out` does not have a row, or the device failed.
    fn write_rows(
        &mut self,
        values: &[f32], // [N, D]
        rows: &[u32],   // [N], ascending
        out: &mut B::Buffer,
    ) -> Result<(), EngineError>;

    /// Computes `x / sqrt(mean(x²) + eps) * weight` row by row and sets or adds it to `out`.
    ///
    /// # Errors
    /// Returns an error if sizes differ or the device failed.
    fn rms_norm(
        &mut self,
        x: &B::Buffer,      // [T, D]
        weight: &B::Floats, // [D]
        eps: f32,
        write: Write,
        out: &mut B::Buffer, // [T, D]
    ) -> Result<(), EngineError>;

    /// Computes `W x + b` for several matrices, concatenates the outputs and sets or adds them to `out`;
    /// `levels` are per row.
    ///
    /// # Errors
    /// Returns an error if sizes differ or the device failed.
    fn matmul(
        &mut self,
        weights: &[Linear<B>], // N in all
        levels: &[Level],      // [T]
        x: &B::Buffer,         // [T, D]
        write: Write,
        out: &mut B::Buffer, // [T, N]
    ) -> Result<(), EngineError>;

    /// Multiplies the first K elements of each head with the head's own matrix. The remaining elements are
    /// copied after the products: `out[t, h] = [W_h x[t, h, ..K], x[t, h, K..]]`.
    ///
    /// # Errors
    /// Returns an error if sizes differ or the device failed.
    fn matmul_heads(
        &mut self,
        weights: &HeadMatrices<B>, // [H * N, K]
        levels: &[Level],          // [T]
        x: &B::Buffer,             // [T, H * (K + R)]
        out: &mut B::Buffer,       // [T, H * (N + R)]
    ) -> Result<(), EngineError>;

    /// Norms and rotates queries in place, in the order of [`HeadNorm`](super::HeadNorm). If there is a pool, it also
    /// norms and rotates keys, norms values, and stores both in their pages. The R elements of a head starting at `rope_first` are rotated in
    /// pairs. The first R/2 columns of `angles` are the cosines, the others the sines of each row's position.
    /// If the first elements of a key are its value ([`KvValues::KeyPrefix`]), there are no separate values.
    ///
    /// [`KvValues::KeyPrefix`]: crate::kv_cache::KvValues::KeyPrefix
    ///
    /// # Errors
    /// Returns an error if sizes differ, the pool does not have a page, or the device failed.
    fn rope(
        &mut self,
        heads: &AttentionHeads<B>,
        rows: &StepRows,
        angles: &B::Buffer,  // [T, R]
        qkv: &mut B::Buffer, // [T, (H + 2 G) * head_dim], with a pool also without the queries or the values
        kv: Option<&mut B::KvPool>,
    ) -> Result<(), EngineError>;

    /// Computes causal attention of each row over a window of positions that ends with the row's own. Keys
    /// and values are read from the pages.
    ///
    /// # Errors
    /// Returns an error if sizes differ, the pool does not have a page, or the device failed.
    fn attend(
        &mut self,
        heads: &AttentionHeads<B>,
        rows: &StepRows,
        qkv: &B::Buffer, // [T, H * head_dim or more], only queries are read
        kv: &B::KvPool,
        out: &mut B::Buffer, // [T, H * elements of a value]
    ) -> Result<(), EngineError>;

    /// Sets `out` to the attended heads of all ranks, each of which computed those of a run of key heads
    /// ([`RankShare::heads`](crate::group::RankShare::heads)).
    ///
    /// # Errors
    /// Returns an error if sizes differ, a rank or the device failed, or there are no other ranks.
    fn gather_heads(
        &mut self,
        own: &B::Buffer, // [T, own query heads * head_dim]
        key_heads: usize,
        out: &mut B::Buffer, // [T, H * head_dim]
    ) -> Result<(), EngineError> {
        let (whole, found) = (out.shape().cols, own.shape().cols);
        let heads = format!("columns of {key_heads} key heads");
        Err(EngineError::mismatch(heads, whole, found))
    }

    /// Computes a gated DeltaNet layer. The rows of a sequence, which are contiguous, pass through the
    /// convolution and the heads' states in order. The outputs are normed and multiplied with `silu(gate)`. A
    /// row of `projected` holds queries, keys and values, gates, beta and alpha. States are read and written
    /// as `rows` specifies.
    ///
    /// # Errors
    /// Returns an error if sizes differ, states do not match the rows, or the device failed.
    fn delta_net(
        &mut self,
        net: &DeltaNet<B>,
        rows: &StepRows,
        projected: &B::Buffer, // [T, channels + value_dim + 2 * num_value_heads]
        states: &mut B::StatePool,
        out: &mut B::Buffer, // [T, value_dim]
    ) -> Result<(), EngineError>;

    /// Computes a gated short convolution. A row of `projected` holds input gates b, output gates c and inputs
    /// x. With u = b · x, the output is c times the causal convolution of u with the row and the rows before
    /// it, plus the bias. The rows of a sequence are contiguous. A state holds the last rows of u, and states
    /// are read and written as `rows` specifies.
    ///
    /// # Errors
    /// Returns an error if sizes differ, states do not match the rows, or the device failed.
    /// [`EngineError::Limit`] if the backend lacks the operation or convolves fewer rows.
    fn short_conv(
        &mut self,
        conv: &ShortConv<B>,
        rows: &StepRows,
        projected: &B::Buffer, // [T, 3 * channels]
        states: &mut B::StatePool,
        out: &mut B::Buffer, // [T, channels]
    ) -> Result<(), EngineError>;

    /// Computes a Mamba-2 layer. A row of `projected` holds output gates, the channels of the convolution
    /// (inputs x of the heads, B and C of each group) and a time step for each head. The rows of a sequence,
    /// which are contiguous, pass through the convolution, SiLU and the heads' states in order. The outputs
    /// plus D · x are multiplied with `silu(gate)` and normed. States are read and written as `rows`
    /// specifies.
    ///
    /// # Errors
    /// Returns an error if sizes differ, states do not match the rows, or the device failed.
    /// [`EngineError::Limit`] if the backend convolves fewer rows.
    fn mamba2(
        &mut self,
        mamba2: &Mamba2<B>,
        rows: &StepRows,
        projected: &B::Buffer, // [T, inner + channels + num_heads]
        states: &mut B::StatePool,
        out: &mut B::Buffer, // [T, inner]
    ) -> Result<(), EngineError>;

    /// Computes `out[t, g, i] *= function(gate[t, g])`: each of G gates multiplies N adjacent elements.
    ///
    /// # Errors
    /// Returns an error if sizes differ or the device failed.
    fn gate(
        &mut self,
        function: GateFunction,
        gate: &B::Buffer,    // [T, G]
        out: &mut B::Buffer, // [T, G * N]
    ) -> Result<(), EngineError>;

    /// Selects the K experts of each row and their weights by the router's rule. If scores are equal, the
    /// lower expert wins.
    ///
    /// # Errors
    /// Returns an error if sizes differ or the device failed.
    fn route(
        &mut self,
        router: &Router<B>,
        x: &B::Buffer,        // [T, D]
        out: &mut B::Routing, // [T, K]
    ) -> Result<(), EngineError>;

    /// Copies the routing to host memory, replacing `out`; waits for the device.
    ///
    /// # Errors
    /// Returns an error if the device failed.
    fn read_routing_into(
        &mut self,
        routing: &B::Routing,
        out: &mut Routing,
    ) -> impl Future<Output = Result<(), EngineError>> + Send;

    /// Replaces the router's choice with a routing from the host.
    ///
    /// # Errors
    /// Returns an error if the sizes differ or the device failed.
    fn write_routing(
        &mut self,
        routing: &Routing,
        out: &mut B::Routing, // [T, K]
    ) -> Result<(), EngineError>;

    /// Submits the recorded operations to the device, before the host waits for something else.
    ///
    /// # Errors
    /// Returns an error if the device failed.
    fn flush(&mut self) -> Result<(), EngineError>;

    /// Computes `x *= factor`, element by element.
    ///
    /// # Errors
    /// Returns an error if the device failed.
    fn scale(&mut self, factor: f32, x: &mut B::Buffer) -> Result<(), EngineError>;

    /// Computes `x = cap * tanh(x / cap)`, element by element.
    ///
    /// # Errors
    /// Returns an error if the device failed.
    fn softcap(&mut self, cap: f32, x: &mut B::Buffer) -> Result<(), EngineError>;

    /// Sets `out` to `rows` rows of zeros.
    ///
    /// # Errors
    /// Returns an error if the device failed.
    fn clear(&mut self, rows: usize, out: &mut B::Buffer) -> Result<(), EngineError>;

    /// Computes `down(activation(gate(x), up(x)))` and sets or adds it to `out`.
    ///
    /// # Errors
    /// Returns an error if sizes differ or the device failed.
    fn ffn(
        &mut self,
        weights: &FeedForward<B>,
        levels: &[Level], // [T]
        x: &B::Buffer,    // [T, D]
        write: Write,
        out: &mut B::Buffer, // [T, D]
    ) -> Result<(), EngineError>;

    /// Computes [`Encoder::ffn`] of matrices of which this rank holds some rows. `complete` is called once, before
    /// the product with down, of which only the rank's columns of `out` are computed.
    ///
    /// # Errors
    /// Returns an error if sizes differ, `complete` or the device failed, or the backend needs whole matrices.
    fn ffn_of_rank(
        &mut self,
        weights: &FeedForward<B>,
        levels: &[Level], // [T]
        x: &B::Buffer,    // [T, D]
        write: Write,
        complete: CompleteInner<'_>,
        out: &mut B::Buffer, // [T, D]
    ) -> Result<(), EngineError> {
        let _ = (levels, x, write, complete, out);
        Err(needs_whole(weights))
    }

    /// Computes `out[t] += sigmoid(gate[t]) * x[t]`.
    ///
    /// # Errors
    /// Returns an error if sizes differ or the device failed.
    fn add_gated(
        &mut self,
        gate: &B::Buffer,    // [T, 1]
        x: &B::Buffer,       // [T, D]
        out: &mut B::Buffer, // [T, D]
    ) -> Result<(), EngineError>;

    /// Computes `out[t * K + rank] = expert(x[t])` for all uses of the given experts; other rows of `out` are
    /// unchanged. The experts of a layer may be divided over several calls in any order.
    ///
    /// # Errors
    /// Returns an error if sizes differ or the device failed.
    fn experts(
        &mut self,
        experts: &[PinnedExpert<'_, B>],
        routing: &B::Routing, // [T, K]
        x: &B::Buffer,        // [T, D]
        out: &mut B::Buffer,  // [T * K, D]
    ) -> Result<(), EngineError>;

    /// Computes [`Encoder::experts`] of experts of which this rank holds some rows. `complete` is called once, with the
    /// inner values of all uses, expert by expert and with ascending levels. Only the rank's columns of the uses' rows
    /// of `out` are computed.
    ///
    /// # Errors
    /// Returns an error if sizes differ, `complete` or the device failed, or the backend needs whole matrices.
    fn experts_of_rank(
        &mut self,
        experts: &[PinnedExpert<'_, B>],
        routing: &B::Routing, // [T, K]
        x: &B::Buffer,        // [T, D]
        complete: CompleteInner<'_>,
        out: &mut B::Buffer, // [T * K, D]
    ) -> Result<(), EngineError> {
        let _ = (routing, x, complete, out);
        let divided = experts.iter().find(|expert| expert.weights.is_divided());
        divided.map_or(Ok(()), |expert| Err(needs_whole(&expert.weights)))
    }

    /// Waits until all recorded operations have run.
    ///
    /// # Errors
    /// Returns an error if the device failed.
    fn finish(&mut self) -> impl Future<Output = Result<(), EngineError>> + Send;

    /// Computes `out[t] += Σ expert_weight · expert_rows[t * K + rank]`. For each row, a sum that starts at
    /// zero and accumulates `fma(weight, value, sum)` in ascending rank is added to `out`. The contents of `expert_rows`
    /// are unspecified afterwards.
    ///
    /// # Errors
    /// Returns an error if sizes differ or the device failed.
    fn experts_sum(
        &mut self,
        routing: &B::Routing,        // [T, K]
        expert_rows: &mut B::Buffer, // [T * K, D]
        out: &mut B::Buffer,         // [T, D]
    ) -> Result<(), EngineError>;

    /// Replaces the columns of other ranks in `out`, `[T, cols]`, through a connection among the devices of the ranks,
    /// without the host. `columns` returns the columns of a rank. Returns false, with `out` unchanged, if there is no
    /// such connection; the caller then moves the columns through `group`. All ranks of `group` call it, and get the
    /// same answer.
    ///
    /// # Errors
    /// Fails if this rank or another one failed. [`Group`] says how the ranks agree on that.
    fn gather_columns(
        &mut self,
        group: &dyn Group,
        columns: &dyn Fn(RankShare) -> Vec<Range<usize>>,
        out: &mut B::Buffer,
    ) -> Result<bool, EngineError> {
        let _ = (group, columns, out);
        Ok(false)
    }

    /// Computes `out[i] = x[indices[i]]`.
    ///
    /// # Errors
    /// Returns an error if an index is outside `x` or the device failed.
    fn gather_rows(
        &mut self,
        x: &B::Buffer,
        indices: &[u32],
        out: &mut B::Buffer,
    ) -> Result<(), EngineError>;

    /// Runs all recorded operations and copies the buffer's rows to the host, replacing `out`.
    ///
    /// # Errors
    /// Returns an error if the device failed.
    fn read_into(
        &mut self,
        buffer: &B::Buffer,
        out: &mut Vec<f32>,
    ) -> impl Future<Output = Result<(), EngineError>> + Send;

    /// Runs all recorded operations and returns each row's argmax over its first `among` columns (at least
    /// one) in `out`. The lowest column wins ties. The result of a row with a non-finite value is `None`.
    ///
    /// # Errors
    /// Returns an error if the device failed.
    fn argmax_into(
        &mut self,
        x: &B::Buffer,
        among: usize,
        out: &mut Vec<Option<u32>>,
    ) -> impl Future<Output = Result<(), EngineError>> + Send;
}

/// Binding of weights that arrive during a step.
pub trait BindWeights<B: Backend>: Send {
    /// Binds a matrix; a CPU uses the bytes in place.
    ///
    /// # Errors
    /// The errors of [`Backend::upload_matrix`].
    fn bind_matrix(
        &mut self,
        weights: &MatrixWeights,
        activations: ActivationMode,
    ) -> Result<B::Matrix, EngineError>;

    /// Binds floats, as [`Backend::upload_floats`] does.
    ///
    /// # Errors
    /// The errors of [`Backend::upload_floats`].
    fn bind_floats(&mut self, values: &[f32]) -> Result<B::Floats, EngineError>;
}

/// Variants of [`Encoder`]'s read operations that return new memory.
pub trait EncoderExt<B: Backend>: Encoder<B> {
    /// Runs [`Encoder::read_into`] with a new vector.
    ///
    /// # Errors
    /// Returns an error if the device failed.
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

    /// Runs [`Encoder::read_routing_into`] with a new routing.
    ///
    /// # Errors
    /// Returns an error if the device failed.
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

/// Returns the column of the largest of a row's first `among` values, the lowest if equal. Returns `None` if
/// any value of the row is not finite.
pub fn argmax(row: &[f32], among: usize) -> Option<u32> {
    let mut best = 0;
    for (column, value) in row.iter().enumerate().take(among) {
        if *value > row[best] {
            best = column;
        }
    }
    row.iter().all(|value| value.is_finite()).then_some(best as u32)
}
