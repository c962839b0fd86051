//! The operations of a step: each records its kernels.

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

use crate::backend::CudaBackend;
use crate::driver::Address;
use crate::matrix::CudaMatrix;
use crate::memory::{CudaBuffer, CudaFloats, CudaRouting};
use crate::pages::CudaPages;
use crate::recorder::Recorder;
use crate::scratch::Scratch;
use crate::states::CudaStates;

pub(crate) use experts::GATE_UP_BYTES_MAX;
pub(crate) use routed::Notes;

/// Largest size of a head.
pub(crate) const HEAD_DIM_MAX: usize = 1024;
/// Most experts of a layer.
pub(crate) const NUM_EXPERTS_MAX: usize = 1024;
/// Most experts of a token.
pub(crate) const PER_TOKEN_MAX: usize = 64;

/// Records the operations of one step. What was not given to the device when it is dropped is
/// forgotten.
pub struct CudaEncoder<'a> {
    pub(crate) backend: &'a mut CudaBackend,
}

/// What operations record with.
struct Tools<'a> {
    recorder: &'a mut Recorder,
    scratch: &'a mut Scratch,
}

impl<'a> CudaEncoder<'a> {
    pub(crate) fn new(backend: &'a mut CudaBackend) -> Self {
        if backend.notes.uses.begin() {
            // A device that is lost says so when something is read.
            let _ = backend.recorder.resume();
        }
        Self { backend }
    }

    /// What the next operation records with.
    ///
    /// # Errors
    /// As [`Recorder::begin_operation`].
    fn tools(&mut self) -> Result<Tools<'_>, EngineError> {
        let CudaBackend { recorder, scratch, .. } = &mut *self.backend;
        recorder.begin_operation()?;
        Ok(Tools { recorder, scratch })
    }
}

impl Drop for CudaEncoder<'_> {
    fn drop(&mut self) {
        self.backend.recorder.discard();
    }
}

impl Encoder<CudaBackend> for CudaEncoder<'_> {
    fn embed(
        &mut self,
        table: &CudaMatrix,
        rows: &StepRows,
        out: &mut CudaBuffer,
    ) -> Result<(), EngineError> {
        embed::embed(&mut self.tools()?, table, rows, out)
    }

    fn write(&mut self, values: &[f32], out: &mut CudaBuffer) -> Result<(), EngineError> {
        let cols = out.cols.max(1);
        expect("part of a row", 0, values.len() % cols)?;
        let recorder = &mut self.backend.recorder;
        recorder.begin(values.len() / cols);
        out.resize(recorder, values.len() / cols)?;
        Ok(recorder.write(bytemuck::cast_slice(values), out.address())?)
    }

    fn write_rows(
        &mut self,
        values: &[f32],
        rows: &[u32],
        out: &mut CudaBuffer,
    ) -> Result<(), EngineError> {
        expect("values of rows", rows.len() * out.cols, values.len())?;
        out.changed();
        let recorder = &mut self.backend.recorder;
        let row_bytes = 4 * out.cols;
        let mut rest = bytemuck::cast_slice(values);
        for run in rows.chunk_by(|one, next| one + 1 == *next) {
            let first = run.first().map_or(0, |row| *row as usize);
            expect("rows beyond a buffer", 0, (first + run.len()).saturating_sub(out.rows))?;
            let (bytes, more) = rest.split_at(run.len() * row_bytes);
            recorder.write(bytes, out.address() + (first * row_bytes) as u64)?;
            rest = more;
        }
        Ok(())
    }

    fn rms_norm(
        &mut self,
        x: &CudaBuffer,
        weight: &CudaFloats,
        eps: f32,
        write: Write,
        out: &mut CudaBuffer,
    ) -> Result<(), EngineError> {
        out.changed();
        norms::rms_norm(&mut self.tools()?, (x, weight, eps), write, out)
    }

    fn matmul(
        &mut self,
        weights: &[Linear<CudaBackend>],
        levels: &[Level],
        x: &CudaBuffer,
        write: Write,
        out: &mut CudaBuffer,
    ) -> Result<(), EngineError> {
        out.changed();
        products::matmul(&mut self.tools()?, (weights, levels), x, write, out)
    }

    fn matmul_heads(
        &mut self,
        weights: &HeadMatrices<CudaBackend>,
        levels: &[Level],
        x: &CudaBuffer,
        out: &mut CudaBuffer,
    ) -> Result<(), EngineError> {
        products::matmul_heads(&mut self.tools()?, (weights, levels), x, out)
    }

    fn rope(
        &mut self,
        heads: &AttentionHeads<CudaBackend>,
        rows: &StepRows,
        angles: &CudaBuffer,
        qkv: &mut CudaBuffer,
        kv: Option<&mut CudaPages>,
    ) -> Result<(), EngineError> {
        qkv.changed();
        let tools = &mut self.tools()?;
        match kv {
            Some(kv) => attention::rope_store(tools, (heads, rows), angles, qkv, kv),
            None => attention::rope_queries(tools, (heads, rows), angles, qkv),
        }
    }

    fn attend(
        &mut self,
        heads: &AttentionHeads<CudaBackend>,
        rows: &StepRows,
        queries: &CudaBuffer,
        kv: &CudaPages,
        out: &mut CudaBuffer,
    ) -> Result<(), EngineError> {
        attention::attend(&mut self.tools()?, (heads, rows), queries, kv, out)
    }

    fn delta_net(
        &mut self,
        net: &DeltaNet<CudaBackend>,
        rows: &StepRows,
        projected: &CudaBuffer,
        states: &mut CudaStates,
        out: &mut CudaBuffer,
    ) -> Result<(), EngineError> {
        delta_net::delta_net(&mut self.tools()?, (net, rows), projected, states, out)
    }

    fn gate(&mut self, gate: &CudaBuffer, out: &mut CudaBuffer) -> Result<(), EngineError> {
        out.changed();
        elementwise::gate(&mut self.tools()?, gate, out)
    }

    fn route(
        &mut self,
        router: &Router<CudaBackend>,
        x: &CudaBuffer,
        out: &mut CudaRouting,
    ) -> Result<(), EngineError> {
        route::route(&mut self.tools()?, router, x, out)
    }

    async fn read_routing_into(
        &mut self,
        routing: &CudaRouting,
        out: &mut Routing,
    ) -> Result<(), EngineError> {
        let bytes = 4 * routing.rows * routing.per_token;
        out.num_experts_per_tok = routing.per_token;
        let parts = [(routing.ids(), bytes), (routing.weights(), bytes)];
        self.backend.recorder.read(&parts, |bytes| {
            let (ids, weights) = bytes.split_at(bytes.len() / 2);
            fill(&mut out.expert_ids, ids, u32::from_le_bytes);
            fill(&mut out.expert_weights, weights, f32::from_le_bytes);
        })?;
        Ok(())
    }

    fn write_routing(
        &mut self,
        routing: &Routing,
        out: &mut CudaRouting,
    ) -> Result<(), EngineError> {
        route::write(&mut self.backend.recorder, routing, out)
    }

    fn flush(&mut self) -> Result<(), EngineError> {
        Ok(self.backend.recorder.submit()?)
    }

    fn scale(&mut self, factor: f32, x: &mut CudaBuffer) -> Result<(), EngineError> {
        x.changed();
        elementwise::scale(&mut self.tools()?, factor, x)
    }

    fn softcap(&mut self, cap: f32, x: &mut CudaBuffer) -> Result<(), EngineError> {
        x.changed();
        elementwise::softcap(&mut self.tools()?, cap, x)
    }

    fn clear(&mut self, rows: usize, out: &mut CudaBuffer) -> Result<(), EngineError> {
        elementwise::clear(&mut self.tools()?, rows, out)
    }

    fn ffn(
        &mut self,
        weights: &FeedForward<CudaBackend>,
        levels: &[Level],
        x: &CudaBuffer,
        write: Write,
        out: &mut CudaBuffer,
    ) -> Result<(), EngineError> {
        out.changed();
        experts::ffn(&mut self.tools()?, (weights, levels), x, write, out)
    }

    fn add_gated(
        &mut self,
        gate: &CudaBuffer,
        x: &CudaBuffer,
        out: &mut CudaBuffer,
    ) -> Result<(), EngineError> {
        out.changed();
        elementwise::add_gated(&mut self.tools()?, gate, x, out)
    }

    fn experts(
        &mut self,
        experts: &[PinnedExpert<'_, CudaBackend>],
        routing: &CudaRouting,
        x: &CudaBuffer,
        out: &mut CudaBuffer,
    ) -> Result<(), EngineError> {
        experts::experts(&mut self.tools()?, (experts, routing), x, out)
    }

    fn experts_sum(
        &mut self,
        routing: &CudaRouting,
        expert_rows: &CudaBuffer,
        out: &mut CudaBuffer,
    ) -> Result<(), EngineError> {
        out.changed();
        elementwise::experts_sum(&mut self.tools()?, routing, expert_rows, out)
    }

    fn gather_rows(
        &mut self,
        x: &CudaBuffer,
        indices: &[u32],
        out: &mut CudaBuffer,
    ) -> Result<(), EngineError> {
        elementwise::gather_rows(&mut self.tools()?, x, indices, out)
    }

    async fn finish(&mut self) -> Result<(), EngineError> {
        match self.backend.notes.part() {
            Some(_) => self.read_back(None, |_| {}),
            None => Ok(self.backend.recorder.finish()?),
        }
    }

    async fn argmax_into(
        &mut self,
        x: &CudaBuffer,
        among: usize,
        out: &mut Vec<Option<u32>>,
    ) -> Result<(), EngineError> {
        let columns = elementwise::argmax(&mut self.tools()?, x, among)?;
        let column = |bytes| Some(u32::from_le_bytes(bytes)).filter(|column| *column != u32::MAX);
        self.read_back(Some((columns, 4 * x.rows)), |bytes| fill(out, bytes, column))
    }

    async fn read_into(
        &mut self,
        buffer: &CudaBuffer,
        out: &mut Vec<f32>,
    ) -> Result<(), EngineError> {
        let part = (buffer.address(), 4 * buffer.len());
        self.read_back(Some(part), |bytes| fill(out, bytes, f32::from_le_bytes))
    }
}

impl CudaEncoder<'_> {
    /// Reads part of memory, and along with it what kernels noted.
    fn read_back(
        &mut self,
        part: Option<(Address, usize)>,
        take: impl FnOnce(&[u8]),
    ) -> Result<(), EngineError> {
        let bytes = part.map_or(0, |(_, bytes)| bytes);
        let mut parts: Vec<_> = part.into_iter().collect();
        let CudaBackend { recorder, notes, .. } = &mut *self.backend;
        parts.extend(notes.uses.is_open().then(|| (recorder.halt(), 4)));
        parts.extend(notes.part());
        recorder.read(&parts, |all| {
            let (own, noted) = all.split_at(bytes.min(all.len()));
            take(own);
            notes.uses.read_back(noted);
        })?;
        Ok(())
    }
}

impl BindWeights<CudaBackend> for CudaEncoder<'_> {
    fn bind_matrix(
        &mut self,
        weights: &MatrixWeights,
        activations: ActivationMode,
    ) -> Result<CudaMatrix, EngineError> {
        CudaMatrix::new(&mut self.backend.recorder, weights, activations)
    }

    fn bind_floats(&mut self, values: &[f32]) -> Result<CudaFloats, EngineError> {
        Ok(CudaFloats::new(&mut self.backend.recorder, values)?)
    }
}
