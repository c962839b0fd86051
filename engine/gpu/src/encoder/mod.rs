//! The encoder of both GPU backends. It sizes and splits operations that were already checked; the device
//! records them.

mod attention;
mod delta_net;
mod elementwise;
mod embed;
mod experts;
mod gather;
mod mamba2;
mod norms;
mod products;
mod quantize;
mod rank;
mod route;
mod routed;
mod short_conv;
mod state_runs;

use std::ops::Range;

use nestling_core::EngineError;
use nestling_core::backend::{
    AttentionHeads, BackendLimits, BindWeights, CompleteInner, DeltaNet, Encoder, FeedForward,
    HeadMatrices, Linear, Mamba2, PinnedExpert, Router, Routing, ShortConv, Write,
};
use nestling_core::batch::StepRows;
use nestling_core::group::{Group, RankShare};
use nestling_core::weights::{ActivationMode, MatrixWeights};
use nestling_formats::Level;
use nestling_import::GateFunction;

use crate::command_recorder::CommandRecorder;
use crate::device::Device;
use crate::device_budget::Purpose;
use crate::expert_table::GpuExpertTable;
use crate::fill;
use crate::memory::{GpuBuffer, GpuFloats, GpuRouting};
use crate::operation::ScalarKind;
use crate::pages::GpuPages;
use crate::router::check_limit;
use crate::states::GpuStates;
use attention::HeadRows;

/// Maximum number of elements of a head.
pub const HEAD_DIM_MAX: usize = 1024;
const NUM_EXPERTS_MAX: usize = 1024;
/// Maximum number of rows of a convolution, which a thread holds in registers.
const CONV_TAPS_MAX: usize = 16;
const PER_TOKEN_MAX: usize = 64;

/// Limits of the kernels of both backends.
pub const LIMITS: BackendLimits = BackendLimits {
    num_experts_max: NUM_EXPERTS_MAX,
    num_experts_per_tok_max: PER_TOKEN_MAX,
    head_dim_max: HEAD_DIM_MAX,
    rows_max: 4096,
    conv_taps_max: CONV_TAPS_MAX,
};

/// Encoder of one step's operations. Dropping it discards operations that were not submitted.
pub struct GpuEncoder<'a, D: Device> {
    /// The recording device.
    pub device: &'a mut D,
}

impl<'a, D: Device> GpuEncoder<'a, D> {
    /// Starts a step.
    pub fn new(device: &'a mut D) -> Self {
        if device.state().notes.uses.begin() {
            // Nothing is recorded yet, so the miss flag is cleared before any kernel runs. The error can be
            // ignored: a lost device also fails the next read.
            let _ = device.recorder().resume();
        }
        Self { device }
    }

    /// Starts an operation and returns the device that records it.
    fn operation(&mut self) -> Result<&mut D, EngineError> {
        self.device.recorder().begin_operation()?;
        Ok(self.device)
    }

    /// Records the experts that a routing selects from a table.
    ///
    /// # Errors
    /// Fails like [`DeviceRouting::routed_experts`](nestling_core::backend::DeviceRouting::routed_experts).
    pub fn routed_experts(
        &mut self,
        table: &GpuExpertTable<D>,
        levels: &[Level],
        routing: &GpuRouting<D>,
        x: &GpuBuffer<D>,
        out: &mut GpuBuffer<D>,
    ) -> Result<(), EngineError> {
        routed::experts(self.operation()?, table, levels, routing, x, out)
    }

    /// Copies the expert uses that were read back, and returns the index of the call that missed an expert.
    pub fn take_readback(&mut self, uses: &mut Vec<u32>) -> Option<usize> {
        let notes = &mut self.device.state().notes;
        let missed = notes.uses.take_missed();
        uses.clone_from(notes.uses.ids());
        if missed.is_some() {
            // The error can be ignored: a lost device also fails the next read.
            let _ = self.device.recorder().resume();
        }
        missed
    }

    /// Reads a part of device memory, the miss flag and the expert uses that kernels noted.
    fn read_back(
        &mut self,
        part: Option<(D::Binding, u64)>,
        take: impl FnOnce(&[u8]),
    ) -> Result<(), EngineError> {
        let bytes = part.as_ref().map_or(0, |(_, bytes)| *bytes as usize);
        let mut parts: Vec<_> = part.into_iter().collect();
        let flag = self.device.recorder().miss_flag();
        let notes = &mut self.device.state().notes;
        parts.extend(notes.uses.is_open().then_some((flag, 4)));
        parts.extend(notes.part());
        let mut uses = std::mem::take(&mut notes.uses);
        let done = self.device.recorder().read(&parts, |all| {
            let (own, noted) = all.split_at(bytes.min(all.len()));
            take(own);
            uses.read_back(noted);
        });
        self.device.state().notes.uses = uses;
        Ok(done?)
    }
}

impl<D: Device> Drop for GpuEncoder<'_, D> {
    fn drop(&mut self) {
        self.device.recorder().discard();
    }
}

impl<D: Device> Encoder<D> for GpuEncoder<'_, D> {
    fn embed(
        &mut self,
        table: &Linear<D>,
        rows: &StepRows,
        out: &mut GpuBuffer<D>,
    ) -> Result<(), EngineError> {
        embed::embed(self.operation()?, table, rows, out)
    }

    fn write(&mut self, values: &[f32], out: &mut GpuBuffer<D>) -> Result<(), EngineError> {
        let cols = out.cols.max(1);
        self.device.recorder().begin_step(values.len() / cols);
        out.resize(self.device, values.len() / cols)?;
        let recorder = self.device.recorder();
        Ok(recorder.write(bytemuck::cast_slice(values), &out.binding(), 0)?)
    }

    fn write_rows(
        &mut self,
        values: &[f32],
        rows: &[u32],
        out: &mut GpuBuffer<D>,
    ) -> Result<(), EngineError> {
        out.mark_changed();
        let mut rest = values;
        for run in rows.chunk_by(|one, next| one + 1 == *next) {
            let first = run.first().map_or(0, |row| *row as usize);
            let (values, more) = rest.split_at(run.len() * out.cols);
            let offset = 4 * (first * out.cols) as u64;
            let recorder = self.device.recorder();
            recorder.write(bytemuck::cast_slice(values), &out.binding(), offset)?;
            rest = more;
        }
        Ok(())
    }

    fn rms_norm(
        &mut self,
        x: &GpuBuffer<D>,
        weight: &GpuFloats<D>,
        eps: f32,
        write: Write,
        out: &mut GpuBuffer<D>,
    ) -> Result<(), EngineError> {
        out.mark_changed();
        norms::rms_norm(self.operation()?, x, weight, eps, write, out)
    }

    fn matmul(
        &mut self,
        weights: &[Linear<D>],
        levels: &[Level],
        x: &GpuBuffer<D>,
        write: Write,
        out: &mut GpuBuffer<D>,
    ) -> Result<(), EngineError> {
        out.mark_changed();
        products::matmul(self.operation()?, weights, levels, x, write, out)
    }

    fn matmul_heads(
        &mut self,
        weights: &HeadMatrices<D>,
        levels: &[Level],
        x: &GpuBuffer<D>,
        out: &mut GpuBuffer<D>,
    ) -> Result<(), EngineError> {
        products::matmul_heads(self.operation()?, weights, levels, x, out)
    }

    fn rope(
        &mut self,
        heads: &AttentionHeads<D>,
        rows: &StepRows,
        angles: &GpuBuffer<D>,
        qkv: &mut GpuBuffer<D>,
        kv: Option<&mut GpuPages<D>>,
    ) -> Result<(), EngineError> {
        qkv.mark_changed();
        HeadRows { heads, rows }.rope(self.operation()?, angles, qkv, kv)
    }

    fn attend(
        &mut self,
        heads: &AttentionHeads<D>,
        rows: &StepRows,
        queries: &GpuBuffer<D>,
        kv: &GpuPages<D>,
        out: &mut GpuBuffer<D>,
    ) -> Result<(), EngineError> {
        HeadRows { heads, rows }.attend(self.operation()?, queries, kv, out)
    }

    fn delta_net(
        &mut self,
        net: &DeltaNet<D>,
        rows: &StepRows,
        projected: &GpuBuffer<D>,
        states: &mut GpuStates<D>,
        out: &mut GpuBuffer<D>,
    ) -> Result<(), EngineError> {
        delta_net::delta_net(self.operation()?, net, rows, projected, states, out)
    }

    fn short_conv(
        &mut self,
        conv: &ShortConv<D>,
        rows: &StepRows,
        projected: &GpuBuffer<D>,
        states: &mut GpuStates<D>,
        out: &mut GpuBuffer<D>,
    ) -> Result<(), EngineError> {
        check_limit("taps of short_conv", LIMITS.conv_taps_max, conv.shape.taps)?;
        short_conv::short_conv(self.operation()?, conv, rows, projected, states, out)
    }

    fn mamba2(
        &mut self,
        mamba2: &Mamba2<D>,
        rows: &StepRows,
        projected: &GpuBuffer<D>,
        states: &mut GpuStates<D>,
        out: &mut GpuBuffer<D>,
    ) -> Result<(), EngineError> {
        check_limit("taps of mamba2", LIMITS.conv_taps_max, mamba2.shape.conv_kernel)?;
        check_limit("rows of a state", HEAD_DIM_MAX, mamba2.shape.state_size)?;
        mamba2::mamba2(self.operation()?, mamba2, rows, projected, states, out)
    }

    fn gate(
        &mut self,
        function: GateFunction,
        gate: &GpuBuffer<D>,
        out: &mut GpuBuffer<D>,
    ) -> Result<(), EngineError> {
        out.mark_changed();
        elementwise::gate(self.operation()?, function, gate, out)
    }

    fn route(
        &mut self,
        router: &Router<D>,
        x: &GpuBuffer<D>,
        out: &mut GpuRouting<D>,
    ) -> Result<(), EngineError> {
        route::route(self.operation()?, router, x, out)
    }

    async fn read_routing_into(
        &mut self,
        routing: &GpuRouting<D>,
        out: &mut Routing,
    ) -> Result<(), EngineError> {
        let bytes = 4 * (routing.rows * routing.per_token) as u64;
        out.num_experts_per_tok = routing.per_token;
        let parts = [(routing.ids(), bytes), (routing.weights(), bytes)];
        Ok(self.device.recorder().read(&parts, |bytes| {
            let (ids, weights) = bytes.split_at(bytes.len() / 2);
            fill(&mut out.expert_ids, ids, u32::from_le_bytes);
            fill(&mut out.expert_weights, weights, f32::from_le_bytes);
        })?)
    }

    fn write_routing(
        &mut self,
        routing: &Routing,
        out: &mut GpuRouting<D>,
    ) -> Result<(), EngineError> {
        route::write(self.device, routing, out)
    }

    fn flush(&mut self) -> Result<(), EngineError> {
        Ok(self.device.recorder().submit()?)
    }

    fn scale(&mut self, factor: f32, x: &mut GpuBuffer<D>) -> Result<(), EngineError> {
        x.mark_changed();
        elementwise::scalar(self.operation()?, ScalarKind::Scale(factor), x)
    }

    fn softcap(&mut self, cap: f32, x: &mut GpuBuffer<D>) -> Result<(), EngineError> {
        x.mark_changed();
        elementwise::scalar(self.operation()?, ScalarKind::Softcap(cap), x)
    }

    fn clear(&mut self, rows: usize, out: &mut GpuBuffer<D>) -> Result<(), EngineError> {
        elementwise::clear(self.operation()?, rows, out)
    }

    fn ffn(
        &mut self,
        weights: &FeedForward<D>,
        levels: &[Level],
        x: &GpuBuffer<D>,
        write: Write,
        out: &mut GpuBuffer<D>,
    ) -> Result<(), EngineError> {
        out.mark_changed();
        experts::ffn(self.operation()?, weights, levels, x, write, out)
    }

    fn ffn_of_rank(
        &mut self,
        weights: &FeedForward<D>,
        levels: &[Level],
        x: &GpuBuffer<D>,
        write: Write,
        complete: CompleteInner<'_>,
        out: &mut GpuBuffer<D>,
    ) -> Result<(), EngineError> {
        out.mark_changed();
        rank::ffn(self.operation()?, weights, levels, x, write, complete, out)
    }

    fn add_gated(
        &mut self,
        gate: &GpuBuffer<D>,
        x: &GpuBuffer<D>,
        out: &mut GpuBuffer<D>,
    ) -> Result<(), EngineError> {
        out.mark_changed();
        elementwise::add_gated(self.operation()?, gate, x, out)
    }

    fn experts(
        &mut self,
        experts: &[PinnedExpert<'_, D>],
        routing: &GpuRouting<D>,
        x: &GpuBuffer<D>,
        out: &mut GpuBuffer<D>,
    ) -> Result<(), EngineError> {
        experts::experts(self.operation()?, experts, routing, x, out)
    }

    fn experts_of_rank(
        &mut self,
        experts: &[PinnedExpert<'_, D>],
        routing: &GpuRouting<D>,
        x: &GpuBuffer<D>,
        complete: CompleteInner<'_>,
        out: &mut GpuBuffer<D>,
    ) -> Result<(), EngineError> {
        rank::experts(self.operation()?, experts, routing, x, complete, out)
    }

    async fn finish(&mut self) -> Result<(), EngineError> {
        let notes = &self.device.state().notes;
        if notes.uses.is_open() || notes.part().is_some() {
            return self.read_back(None, |_| {});
        }
        Ok(self.device.recorder().finish()?)
    }

    fn experts_sum(
        &mut self,
        routing: &GpuRouting<D>,
        expert_rows: &mut GpuBuffer<D>,
        out: &mut GpuBuffer<D>,
    ) -> Result<(), EngineError> {
        out.mark_changed();
        elementwise::experts_sum(self.operation()?, routing, expert_rows, out)
    }

    fn gather_columns(
        &mut self,
        group: &dyn Group,
        columns: &dyn Fn(RankShare) -> Vec<Range<usize>>,
        out: &mut GpuBuffer<D>,
    ) -> Result<bool, EngineError> {
        gather::columns(self.device, group, columns, out)
    }

    fn gather_rows(
        &mut self,
        x: &GpuBuffer<D>,
        indices: &[u32],
        out: &mut GpuBuffer<D>,
    ) -> Result<(), EngineError> {
        elementwise::gather_rows(self.operation()?, x, indices, out)
    }

    async fn argmax_into(
        &mut self,
        x: &GpuBuffer<D>,
        among: usize,
        out: &mut Vec<Option<u32>>,
    ) -> Result<(), EngineError> {
        let columns = elementwise::argmax(self.operation()?, x, among)?;
        let column = |bytes| Some(u32::from_le_bytes(bytes)).filter(|column| *column != u32::MAX);
        let part = (columns, 4 * x.rows as u64);
        self.read_back(Some(part), |bytes| fill(out, bytes, column))
    }

    async fn read_into(
        &mut self,
        buffer: &GpuBuffer<D>,
        out: &mut Vec<f32>,
    ) -> Result<(), EngineError> {
        let part = (buffer.binding(), 4 * buffer.elements() as u64);
        self.read_back(Some(part), |bytes| fill(out, bytes, f32::from_le_bytes))
    }
}

impl<D: Device> BindWeights<D> for GpuEncoder<'_, D> {
    fn bind_matrix(
        &mut self,
        weights: &MatrixWeights,
        activations: ActivationMode,
    ) -> Result<D::Matrix, EngineError> {
        self.device.upload_matrix(weights, activations)
    }

    fn bind_floats(&mut self, values: &[f32]) -> Result<GpuFloats<D>, EngineError> {
        GpuFloats::upload(self.device, Purpose::Work, values)
    }
}
