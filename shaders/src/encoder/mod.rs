//! The operations of a step: each records its dispatches.

mod attention;
mod delta_net;
mod device_routing;
mod elementwise;
mod embed;
mod experts;
mod norms;
mod products;
mod quantize;
mod route;
mod routed;
mod slot_memory;

use nestling_core::EngineError;
use nestling_core::backend::{
    AttentionHeads, BindWeights, DeltaNet, Encoder, FeedForward, HeadMatrices, Linear,
    PinnedExpert, Router, Routing, Write,
};
use nestling_core::batch::StepRows;
use nestling_core::weights::{ActivationMode, MatrixWeights};
use nestling_formats::Level;
use nestling_gpu::{expect, fill};

use crate::backend::{Int8Dot, WgpuBackend};
use crate::device::Gpu;
use crate::matrix::WgpuMatrix;
use crate::memory::{WgpuBuffer, WgpuFloats, WgpuRouting};
use crate::pages::WgpuPages;
use crate::pipelines::Pipelines;
use crate::recorder::Recorder;
use crate::scratch::Scratch;
use crate::states::WgpuStates;

pub(crate) use attention::parts_bytes_max;
pub(crate) use elementwise::argmax_parts;
pub(crate) use experts::GATE_UP_BYTES_MAX;
pub(crate) use routed::{NOTES_BYTES, Notes};

/// Largest size of a head.
pub(crate) const HEAD_DIM_MAX: usize = 1024;
/// Most experts of a layer.
pub(crate) const NUM_EXPERTS_MAX: usize = 1024;
/// Most experts of a token.
pub(crate) const PER_TOKEN_MAX: usize = 64;

/// Records the operations of one step. What was not submitted when it is dropped is forgotten.
pub struct WgpuEncoder<'a> {
    pub(crate) backend: &'a mut WgpuBackend,
}

/// What operations record with.
pub(crate) struct Tools<'a> {
    pub gpu: &'a Gpu,
    pub pipelines: &'a Pipelines,
    pub recorder: &'a mut Recorder,
    pub scratch: &'a mut Scratch,
    pub dot: Int8Dot,
}

impl<'a> WgpuEncoder<'a> {
    pub(crate) fn new(backend: &'a mut WgpuBackend) -> Self {
        if backend.notes.uses.begin() {
            // Nothing is recorded yet: this comes before whatever is.
            let _ = backend.recorder.resume();
        }
        Self { backend }
    }

    pub(crate) fn tools(&mut self) -> Tools<'_> {
        let WgpuBackend { gpu, pipelines, recorder, scratch, dot, .. } = &mut *self.backend;
        Tools { gpu, pipelines, recorder, scratch, dot: *dot }
    }
}

impl Drop for WgpuEncoder<'_> {
    fn drop(&mut self) {
        self.backend.recorder.discard();
    }
}

impl Encoder<WgpuBackend> for WgpuEncoder<'_> {
    fn embed(
        &mut self,
        table: &WgpuMatrix,
        rows: &StepRows,
        out: &mut WgpuBuffer,
    ) -> Result<(), EngineError> {
        embed::embed(&mut self.tools(), table, rows, out)
    }

    fn write(&mut self, values: &[f32], out: &mut WgpuBuffer) -> Result<(), EngineError> {
        let cols = out.cols.max(1);
        expect("part of a row", 0, values.len() % cols)?;
        let Tools { gpu, recorder, .. } = self.tools();
        out.resize(gpu, values.len() / cols)?;
        Ok(recorder.write(bytemuck::cast_slice(values), (out.raw(), 0))?)
    }

    fn write_rows(
        &mut self,
        values: &[f32],
        rows: &[u32],
        out: &mut WgpuBuffer,
    ) -> Result<(), EngineError> {
        expect("values of rows", rows.len() * out.cols, values.len())?;
        let recorder = self.tools().recorder;
        let mut rest = values;
        for run in rows.chunk_by(|one, next| one + 1 == *next) {
            let first = run.first().map_or(0, |row| *row as usize);
            expect("rows beyond a buffer", 0, (first + run.len()).saturating_sub(out.rows))?;
            let (values, more) = rest.split_at(run.len() * out.cols);
            let place = (out.raw(), 4 * (first * out.cols) as u64);
            recorder.write(bytemuck::cast_slice(values), place)?;
            rest = more;
        }
        Ok(())
    }

    fn rms_norm(
        &mut self,
        x: &WgpuBuffer,
        weight: &WgpuFloats,
        eps: f32,
        write: Write,
        out: &mut WgpuBuffer,
    ) -> Result<(), EngineError> {
        norms::rms_norm(&mut self.tools(), (x, weight, eps), write, out)
    }

    fn matmul(
        &mut self,
        weights: &[Linear<WgpuBackend>],
        levels: &[Level],
        x: &WgpuBuffer,
        write: Write,
        out: &mut WgpuBuffer,
    ) -> Result<(), EngineError> {
        products::matmul(&mut self.tools(), (weights, levels), x, write, out)
    }

    fn matmul_heads(
        &mut self,
        weights: &HeadMatrices<WgpuBackend>,
        levels: &[Level],
        x: &WgpuBuffer,
        out: &mut WgpuBuffer,
    ) -> Result<(), EngineError> {
        products::matmul_heads(&mut self.tools(), (weights, levels), x, out)
    }

    fn rope(
        &mut self,
        heads: &AttentionHeads<WgpuBackend>,
        rows: &StepRows,
        angles: &WgpuBuffer,
        qkv: &mut WgpuBuffer,
        kv: Option<&mut WgpuPages>,
    ) -> Result<(), EngineError> {
        let tools = &mut self.tools();
        match kv {
            Some(kv) => attention::rope_store(tools, (heads, rows), angles, qkv, kv),
            None => attention::rope_queries(tools, (heads, rows), angles, qkv),
        }
    }

    fn attend(
        &mut self,
        heads: &AttentionHeads<WgpuBackend>,
        rows: &StepRows,
        queries: &WgpuBuffer,
        kv: &WgpuPages,
        out: &mut WgpuBuffer,
    ) -> Result<(), EngineError> {
        attention::attend(&mut self.tools(), (heads, rows), queries, kv, out)
    }

    fn delta_net(
        &mut self,
        net: &DeltaNet<WgpuBackend>,
        rows: &StepRows,
        projected: &WgpuBuffer,
        states: &mut WgpuStates,
        out: &mut WgpuBuffer,
    ) -> Result<(), EngineError> {
        delta_net::delta_net(&mut self.tools(), (net, rows), projected, states, out)
    }

    fn gate(&mut self, gate: &WgpuBuffer, out: &mut WgpuBuffer) -> Result<(), EngineError> {
        elementwise::gate(&mut self.tools(), gate, out)
    }

    fn route(
        &mut self,
        router: &Router<WgpuBackend>,
        x: &WgpuBuffer,
        out: &mut WgpuRouting,
    ) -> Result<(), EngineError> {
        let WgpuBackend { gpu, pipelines, recorder, router_logits, scratch, dot, .. } =
            &mut *self.backend;
        let tools = &mut Tools { gpu, pipelines, recorder, scratch, dot: *dot };
        route::route(tools, router, x, router_logits, out)
    }

    async fn read_routing_into(
        &mut self,
        routing: &WgpuRouting,
        out: &mut Routing,
    ) -> Result<(), EngineError> {
        let count = routing.rows * routing.per_token;
        let bytes = 4 * count as u64;
        out.num_experts_per_tok = routing.per_token;
        let parts = [(&routing.ids.raw, 0, bytes), (&routing.weights.raw, 0, bytes)];
        self.tools().recorder.read(&parts, |bytes| {
            let (ids, weights) = bytes.split_at(bytes.len() / 2);
            fill(&mut out.expert_ids, ids, u32::from_le_bytes);
            fill(&mut out.expert_weights, weights, f32::from_le_bytes);
        })?;
        Ok(())
    }

    fn write_routing(
        &mut self,
        routing: &Routing,
        out: &mut WgpuRouting,
    ) -> Result<(), EngineError> {
        route::write(self.tools().recorder, routing, out)
    }

    fn flush(&mut self) -> Result<(), EngineError> {
        Ok(self.tools().recorder.submit()?)
    }

    fn scale(&mut self, factor: f32, x: &mut WgpuBuffer) -> Result<(), EngineError> {
        elementwise::scale(&mut self.tools(), factor, x)
    }

    fn softcap(&mut self, cap: f32, x: &mut WgpuBuffer) -> Result<(), EngineError> {
        elementwise::softcap(&mut self.tools(), cap, x)
    }

    fn clear(&mut self, rows: usize, out: &mut WgpuBuffer) -> Result<(), EngineError> {
        elementwise::clear(&mut self.tools(), rows, out)
    }

    fn ffn(
        &mut self,
        weights: &FeedForward<WgpuBackend>,
        levels: &[Level],
        x: &WgpuBuffer,
        write: Write,
        out: &mut WgpuBuffer,
    ) -> Result<(), EngineError> {
        experts::ffn(&mut self.tools(), (weights, levels), x, write, out)
    }

    fn add_gated(
        &mut self,
        gate: &WgpuBuffer,
        x: &WgpuBuffer,
        out: &mut WgpuBuffer,
    ) -> Result<(), EngineError> {
        elementwise::add_gated(&mut self.tools(), gate, x, out)
    }

    fn experts(
        &mut self,
        experts: &[PinnedExpert<'_, WgpuBackend>],
        routing: &WgpuRouting,
        x: &WgpuBuffer,
        out: &mut WgpuBuffer,
    ) -> Result<(), EngineError> {
        experts::experts(&mut self.tools(), (experts, routing), x, out)
    }

    async fn finish(&mut self) -> Result<(), EngineError> {
        self.read_back(None, |_| {})
    }

    fn experts_sum(
        &mut self,
        routing: &WgpuRouting,
        expert_rows: &WgpuBuffer,
        out: &mut WgpuBuffer,
    ) -> Result<(), EngineError> {
        elementwise::experts_sum(&mut self.tools(), routing, expert_rows, out)
    }

    fn gather_rows(
        &mut self,
        x: &WgpuBuffer,
        indices: &[u32],
        out: &mut WgpuBuffer,
    ) -> Result<(), EngineError> {
        elementwise::gather_rows(&mut self.tools(), x, indices, out)
    }

    async fn argmax_into(
        &mut self,
        x: &WgpuBuffer,
        among: usize,
        out: &mut Vec<Option<u32>>,
    ) -> Result<(), EngineError> {
        let columns = elementwise::argmax(&mut self.tools(), x, among)?;
        let part = (&columns.buffer, columns.offset, 4 * x.rows as u64);
        let column = |bytes| Some(u32::from_le_bytes(bytes)).filter(|column| *column != u32::MAX);
        self.read_back(Some(part), |bytes| fill(out, bytes, column))
    }

    async fn read_into(
        &mut self,
        buffer: &WgpuBuffer,
        out: &mut Vec<f32>,
    ) -> Result<(), EngineError> {
        let part = (buffer.raw(), 0, 4 * buffer.len() as u64);
        self.read_back(Some(part), |bytes| fill(out, bytes, f32::from_le_bytes))
    }
}

impl WgpuEncoder<'_> {
    /// Reads part of a buffer, and along with it what shaders noted.
    fn read_back(
        &mut self,
        part: Option<(&wgpu::Buffer, u64, u64)>,
        take: impl FnOnce(&[u8]),
    ) -> Result<(), EngineError> {
        let bytes = part.map_or(0, |(_, _, bytes)| bytes as usize);
        let mut parts: Vec<_> = part.into_iter().collect();
        let WgpuBackend { recorder, notes, .. } = &mut *self.backend;
        let halt = notes.uses.is_open().then(|| recorder.halt.clone());
        parts.extend(halt.as_ref().map(|halt| (&halt.raw, 0, 4)));
        let mut uses = std::mem::take(&mut notes.uses);
        parts.extend(notes.part(&uses));
        let done = recorder.read(&parts, |all| {
            let (own, noted) = all.split_at(bytes.min(all.len()));
            take(own);
            uses.read_back(noted);
        });
        notes.uses = uses;
        Ok(done?)
    }
}

impl BindWeights<WgpuBackend> for WgpuEncoder<'_> {
    fn bind_matrix(
        &mut self,
        weights: &MatrixWeights,
        activations: ActivationMode,
    ) -> Result<WgpuMatrix, EngineError> {
        let Tools { gpu, recorder, .. } = self.tools();
        WgpuMatrix::new((gpu, &recorder.slabs), weights, activations)
    }

    fn bind_floats(&mut self, values: &[f32]) -> Result<WgpuFloats, EngineError> {
        let Tools { gpu, recorder, .. } = self.tools();
        Ok(WgpuFloats::new((gpu, &recorder.late_slabs), values)?)
    }
}
