//! The operations of a step: each records its kernels.

use nestling_engine::EngineError;
use nestling_engine::backend::{
    AttentionHeads, DeltaNet, Encoder, FeedForward, HeadMatrices, Linear, PinnedExpert, Router,
    Routing,
};
use nestling_engine::batch::StepRows;
use nestling_engine::weights::{ActivationMode, MatrixWeights};
use nestling_formats::Level;

use crate::backend::CudaBackend;
use crate::matrix::CudaMatrix;
use crate::memory::{CudaBuffer, CudaFloats, CudaRouting, expect};
use crate::pages::CudaPages;
use crate::states::CudaStates;

/// Records the operations of one step. What was not given to the device when it is dropped is
/// forgotten.
pub struct CudaEncoder<'a> {
    pub(crate) backend: &'a mut CudaBackend,
}

impl Drop for CudaEncoder<'_> {
    fn drop(&mut self) {
        self.backend.recorder.discard();
    }
}

fn not_there(what: &str) -> EngineError {
    EngineError::mismatch(what, "an operation of this device", "none")
}

/// Values of the device, in place of what was there.
fn fill<T>(out: &mut Vec<T>, bytes: &[u8], value: impl Fn([u8; 4]) -> T) {
    out.clear();
    out.extend(bytes.as_chunks().0.iter().map(|bytes| value(*bytes)));
}

impl Encoder<CudaBackend> for CudaEncoder<'_> {
    fn embed(
        &mut self,
        _table: &CudaMatrix,
        _rows: &StepRows,
        _out: &mut CudaBuffer,
    ) -> Result<(), EngineError> {
        Err(not_there("embed"))
    }

    fn write(&mut self, values: &[f32], out: &mut CudaBuffer) -> Result<(), EngineError> {
        let cols = out.cols.max(1);
        expect("part of a row", 0, values.len() % cols)?;
        let recorder = &mut self.backend.recorder;
        recorder.begin(values.len() / cols);
        out.resize(recorder, values.len() / cols)?;
        Ok(recorder.write(bytemuck::cast_slice(values), out.address())?)
    }

    fn rms_norm(
        &mut self,
        _x: &CudaBuffer,
        _weight: &CudaFloats,
        _eps: f32,
        _out: &mut CudaBuffer,
    ) -> Result<(), EngineError> {
        Err(not_there("rms_norm"))
    }

    fn matmul(
        &mut self,
        _weights: &[Linear<CudaBackend>],
        _levels: &[Level],
        _x: &CudaBuffer,
        _out: &mut CudaBuffer,
    ) -> Result<(), EngineError> {
        Err(not_there("matmul"))
    }

    fn matmul_add(
        &mut self,
        _weights: &Linear<CudaBackend>,
        _levels: &[Level],
        _x: &CudaBuffer,
        _out: &mut CudaBuffer,
    ) -> Result<(), EngineError> {
        Err(not_there("matmul_add"))
    }

    fn matmul_heads(
        &mut self,
        _weights: &HeadMatrices<CudaBackend>,
        _levels: &[Level],
        _x: &CudaBuffer,
        _out: &mut CudaBuffer,
    ) -> Result<(), EngineError> {
        Err(not_there("matmul_heads"))
    }

    fn rope_store(
        &mut self,
        _heads: &AttentionHeads<CudaBackend>,
        _rows: &StepRows,
        _rope: &CudaBuffer,
        _qkv: &mut CudaBuffer,
        _kv: &mut CudaPages,
    ) -> Result<(), EngineError> {
        Err(not_there("rope_store"))
    }

    fn rope_queries(
        &mut self,
        _heads: &AttentionHeads<CudaBackend>,
        _rows: &StepRows,
        _rope: &CudaBuffer,
        _queries: &mut CudaBuffer,
    ) -> Result<(), EngineError> {
        Err(not_there("rope_queries"))
    }

    fn attend(
        &mut self,
        _heads: &AttentionHeads<CudaBackend>,
        _rows: &StepRows,
        _queries: &CudaBuffer,
        _kv: &CudaPages,
        _out: &mut CudaBuffer,
    ) -> Result<(), EngineError> {
        Err(not_there("attend"))
    }

    fn delta_net(
        &mut self,
        __net: &DeltaNet<CudaBackend>,
        __rows: &StepRows,
        __projected: &CudaBuffer,
        __states: &mut CudaStates,
        __out: &mut CudaBuffer,
    ) -> Result<(), EngineError> {
        Err(not_there("delta_net"))
    }

    fn gate(&mut self, _gate: &CudaBuffer, _out: &mut CudaBuffer) -> Result<(), EngineError> {
        Err(not_there("gate"))
    }

    fn route(
        &mut self,
        _router: &Router<CudaBackend>,
        _x: &CudaBuffer,
        _out: &mut CudaRouting,
    ) -> Result<(), EngineError> {
        Err(not_there("route"))
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

    fn flush(&mut self) -> Result<(), EngineError> {
        Ok(self.backend.recorder.submit()?)
    }

    fn scale(&mut self, _factor: f32, _x: &mut CudaBuffer) -> Result<(), EngineError> {
        Err(not_there("scale"))
    }

    fn softcap(&mut self, _cap: f32, _x: &mut CudaBuffer) -> Result<(), EngineError> {
        Err(not_there("softcap"))
    }

    fn clear(&mut self, rows: usize, out: &mut CudaBuffer) -> Result<(), EngineError> {
        let recorder = &mut self.backend.recorder;
        out.resize(recorder, rows)?;
        Ok(recorder.clear(out.address(), 4 * out.len() as u64)?)
    }

    fn rms_norm_add(
        &mut self,
        _x: &CudaBuffer,
        _weight: &CudaFloats,
        _eps: f32,
        _out: &mut CudaBuffer,
    ) -> Result<(), EngineError> {
        Err(not_there("rms_norm_add"))
    }

    fn ffn(
        &mut self,
        _weights: &FeedForward<CudaBackend>,
        _levels: &[Level],
        _x: &CudaBuffer,
        _out: &mut CudaBuffer,
    ) -> Result<(), EngineError> {
        Err(not_there("ffn"))
    }

    fn add_gated(
        &mut self,
        _gate: &CudaBuffer,
        _x: &CudaBuffer,
        _out: &mut CudaBuffer,
    ) -> Result<(), EngineError> {
        Err(not_there("add_gated"))
    }

    fn ffn_add(
        &mut self,
        _weights: &FeedForward<CudaBackend>,
        _levels: &[Level],
        _x: &CudaBuffer,
        _out: &mut CudaBuffer,
    ) -> Result<(), EngineError> {
        Err(not_there("ffn_add"))
    }

    fn experts(
        &mut self,
        _experts: &[PinnedExpert<'_, CudaBackend>],
        _routing: &CudaRouting,
        _x: &CudaBuffer,
        _out: &mut CudaBuffer,
    ) -> Result<(), EngineError> {
        Err(not_there("experts"))
    }

    fn experts_sum(
        &mut self,
        _routing: &CudaRouting,
        _expert_rows: &CudaBuffer,
        _out: &mut CudaBuffer,
    ) -> Result<(), EngineError> {
        Err(not_there("experts_sum"))
    }

    fn gather_rows(
        &mut self,
        _x: &CudaBuffer,
        _indices: &[u32],
        _out: &mut CudaBuffer,
    ) -> Result<(), EngineError> {
        Err(not_there("gather_rows"))
    }

    async fn read_into(
        &mut self,
        buffer: &CudaBuffer,
        out: &mut Vec<f32>,
    ) -> Result<(), EngineError> {
        let part = (buffer.address(), 4 * buffer.len());
        self.backend.recorder.read(&[part], |bytes| fill(out, bytes, f32::from_le_bytes))?;
        Ok(())
    }
}
