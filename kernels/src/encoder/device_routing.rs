//! Experts that a device finds by itself, as the engine sees them.

use nestling_core::EngineError;
use nestling_core::backend::{DeviceRouting, HeldExpert, LevelWeights};
use nestling_formats::Level;

use super::{CudaEncoder, routed};
use crate::backend::CudaBackend;
use crate::expert_table::CudaExpertTable;
use crate::memory::{CudaBuffer, CudaRouting};

impl DeviceRouting<CudaBackend> for CudaExpertTable {
    fn set_expert(
        &mut self,
        encoder: &mut CudaEncoder<'_>,
        expert: u32,
        held: Option<HeldExpert<'_, CudaBackend>>,
    ) -> Result<(), EngineError> {
        self.set(&mut encoder.backend.recorder, expert, held)
    }

    fn set_level_weights(
        &mut self,
        encoder: &mut CudaEncoder<'_>,
        least: Option<&[LevelWeights]>,
    ) -> Result<(), EngineError> {
        self.set_level_weights(&mut encoder.backend.recorder, least)
    }

    fn routed_experts(
        &self,
        encoder: &mut CudaEncoder<'_>,
        levels: &[Level],
        routing: &CudaRouting,
        x: &CudaBuffer,
        out: &mut CudaBuffer,
    ) -> Result<(), EngineError> {
        let mut notes = std::mem::take(&mut encoder.backend.notes);
        let recorded = encoder.tools().and_then(|mut tools| {
            routed::experts(&mut tools, (self, &mut notes), (levels, routing), x, out)
        });
        encoder.backend.notes = notes;
        recorded
    }

    fn take_readback(encoder: &mut CudaEncoder<'_>, uses: &mut Vec<u32>) -> Option<usize> {
        let CudaBackend { recorder, notes, .. } = &mut *encoder.backend;
        let missed = notes.uses.take_missed();
        uses.clone_from(notes.uses.ids());
        if missed.is_some() {
            // A device that is lost says so when something is read.
            let _ = recorder.resume();
        }
        missed
    }
}
