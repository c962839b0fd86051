//! Slots of streamed experts as the engine sees them.

use nestling_core::EngineError;
use nestling_core::backend::Checked;
use nestling_core::backend::{
    CopyFence, ExpertBiases, FeedForward, HostLink, HostPlane, PlanePart, SlotMemory, SlotPlace,
};
use nestling_core::weights::{ActivationMode, MatrixWeights};
use nestling_formats::{MatrixKind, Plane};
use nestling_gpu::{ExpertForm, GpuEncoder, GpuExpertTable, TableEntries, expect};

use crate::backend::CudaBackend;
use crate::expert_table::CudaEntries;
use crate::link;
use crate::matrix::CudaMatrix;
use crate::slots::CudaSlots;

impl SlotMemory<CudaBackend> for CudaSlots {
    fn count(&self) -> usize {
        self.count()
    }

    fn slot_bytes(&self) -> u64 {
        self.slot_bytes()
    }

    fn kept(&self, bytes: u64) -> usize {
        self.kept(bytes)
    }

    fn resize(
        &mut self,
        encoder: &mut Checked<GpuEncoder<'_, CudaBackend>>,
        bytes: u64,
    ) -> Result<(), EngineError> {
        Ok(self.resize(&mut encoder.inner().device.recorder, bytes)?)
    }

    fn expert_table(
        &self,
        backend: &mut CudaBackend,
        layer: usize,
        num_experts: usize,
        biases: Option<&ExpertBiases>,
    ) -> Result<Option<GpuExpertTable<CudaBackend>>, EngineError> {
        let form = self.shape(layer).and_then(ExpertForm::of_shape).filter(CudaEntries::takes);
        let Some(form) = form else { return Ok(None) };
        let biases = biases.map(ExpertBiases::joined);
        let entries = CudaEntries::streamed(&mut backend.recorder, num_experts)?;
        GpuExpertTable::streamed(backend, form, num_experts, entries, biases.as_deref()).map(Some)
    }

    fn place_matrix(
        &mut self,
        encoder: &mut Checked<GpuEncoder<'_, CudaBackend>>,
        place: SlotPlace,
        weights: &MatrixWeights,
        activations: ActivationMode,
    ) -> Result<CudaMatrix, EngineError> {
        let room = self.room(place)?;
        CudaMatrix::in_slot(&mut encoder.inner().device.recorder, room, weights, activations)
    }

    fn add_plane(
        &mut self,
        encoder: &mut Checked<GpuEncoder<'_, CudaBackend>>,
        matrix: &mut CudaMatrix,
        plane: Plane,
        bytes: &[u8],
    ) -> Result<(), EngineError> {
        matrix.add_plane(&mut encoder.inner().device.recorder, plane, bytes)
    }

    fn fetch_plane(
        &mut self,
        encoder: &mut Checked<GpuEncoder<'_, CudaBackend>>,
        weights: &FeedForward<CudaBackend>,
        parts: &[PlanePart],
        bytes: u64,
    ) -> Result<Option<HostPlane>, EngineError> {
        let mut places = Vec::with_capacity(parts.len());
        for PlanePart { matrix, plane, range } in parts {
            let linear = match matrix {
                MatrixKind::Gate => &weights.gate,
                MatrixKind::Up => &weights.up,
                _ => &weights.down,
            };
            let (address, bytes) = linear.matrix.plane(*plane)?;
            expect("bytes of a plane", bytes, range.len())?;
            places.push((address, range.clone()));
        }
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        let block = encoder.inner().device.recorder.fetch(&places, bytes)?;
        Ok(block.map(|block| block as HostPlane))
    }

    fn begin_async_copies(
        &mut self,
        encoder: &mut Checked<GpuEncoder<'_, CudaBackend>>,
    ) -> Result<(), EngineError> {
        Ok(encoder.inner().device.recorder.begin_async_copies()?)
    }

    fn end_async_copies(
        &mut self,
        encoder: &mut Checked<GpuEncoder<'_, CudaBackend>>,
    ) -> Result<CopyFence, EngineError> {
        Ok(CopyFence(encoder.inner().device.recorder.end_async_copies()?))
    }

    fn completed_copies(
        &mut self,
        encoder: &mut Checked<GpuEncoder<'_, CudaBackend>>,
        awaited: CopyFence,
    ) -> Result<CopyFence, EngineError> {
        Ok(CopyFence(encoder.inner().device.recorder.completed_copies(awaited.0)?))
    }

    fn host_link(&mut self, backend: &mut CudaBackend) -> Result<Option<HostLink>, EngineError> {
        if backend.host_bytes() == 0 {
            return Ok(None);
        }
        let Some(place) = self.room_for_copies() else { return Ok(None) };
        Ok(Some(link::measure(&backend.driver, place)?))
    }
}
