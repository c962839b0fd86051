//! Slots of streamed experts as the engine sees them.

use nestling_core::EngineError;
use nestling_core::backend::Checked;
use nestling_core::backend::{
    ExpertBiases, FeedForward, HostPlane, PlanePart, SlotMemory, SlotPlace,
};
use nestling_core::weights::{ActivationMode, MatrixWeights};
use nestling_formats::Plane;
use nestling_gpu::{ExpertForm, GpuEncoder, GpuExpertTable};

use crate::backend::WgpuBackend;
use crate::expert_table::WgpuEntries;
use crate::matrix::WgpuMatrix;
use crate::slots::WgpuSlots;

impl SlotMemory<WgpuBackend> for WgpuSlots {
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
        encoder: &mut Checked<GpuEncoder<'_, WgpuBackend>>,
        bytes: u64,
    ) -> Result<(), EngineError> {
        encoder.inner().device.recorder.submit()?;
        Ok(self.resize(bytes)?)
    }

    fn expert_table(
        &self,
        backend: &mut WgpuBackend,
        layer: usize,
        num_experts: usize,
        biases: Option<&ExpertBiases>,
    ) -> Result<Option<GpuExpertTable<WgpuBackend>>, EngineError> {
        let Some((shape, slabs)) = self.layer(layer) else { return Ok(None) };
        let Some(form) = ExpertForm::of_shape(shape) else { return Ok(None) };
        let (biases, entries) =
            (biases.map(ExpertBiases::joined), WgpuEntries::streamed(backend, num_experts, slabs)?);
        GpuExpertTable::streamed(backend, form, num_experts, entries, biases.as_deref()).map(Some)
    }

    fn place_matrix(
        &mut self,
        encoder: &mut Checked<GpuEncoder<'_, WgpuBackend>>,
        place: SlotPlace,
        weights: &MatrixWeights,
        activations: ActivationMode,
    ) -> Result<WgpuMatrix, EngineError> {
        let room = self.room(place)?;
        WgpuMatrix::in_slot(&mut encoder.inner().device.recorder, room, weights, activations)
    }

    fn add_plane(
        &mut self,
        encoder: &mut Checked<GpuEncoder<'_, WgpuBackend>>,
        matrix: &mut WgpuMatrix,
        plane: Plane,
        bytes: &[u8],
    ) -> Result<(), EngineError> {
        matrix.add_plane(&mut encoder.inner().device.recorder, plane, bytes)
    }

    fn fetch_plane(
        &mut self,
        _encoder: &mut Checked<GpuEncoder<'_, WgpuBackend>>,
        _weights: &FeedForward<WgpuBackend>,
        _parts: &[PlanePart],
        _bytes: u64,
    ) -> Result<Option<HostPlane>, EngineError> {
        // A device copies from no host memory by itself.
        Ok(None)
    }
}
