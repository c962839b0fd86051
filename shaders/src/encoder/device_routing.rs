//! Experts that a device finds by itself, as the engine sees them.

use nestling_core::EngineError;
use nestling_core::backend::{DeviceRouting, HeldExpert, LevelWeights};
use nestling_formats::Level;

use super::{WgpuEncoder, routed};
use crate::backend::WgpuBackend;
use crate::expert_table::WgpuExpertTable;
use crate::memory::{WgpuBuffer, WgpuRouting};

impl DeviceRouting<WgpuBackend> for WgpuExpertTable {
    fn set_expert(
        &mut self,
        encoder: &mut WgpuEncoder<'_>,
        expert: u32,
        held: Option<HeldExpert<'_, WgpuBackend>>,
    ) -> Result<(), EngineError> {
        self.set(&mut encoder.backend.recorder, expert, held)
    }

    fn set_level_weights(
        &mut self,
        encoder: &mut WgpuEncoder<'_>,
        least: Option<&[LevelWeights]>,
    ) -> Result<(), EngineError> {
        self.set_level_weights(&mut encoder.backend.recorder, least)
    }

    fn routed_experts(
        &self,
        encoder: &mut WgpuEncoder<'_>,
        levels: &[Level],
        routing: &WgpuRouting,
        x: &WgpuBuffer,
        out: &mut WgpuBuffer,
    ) -> Result<(), EngineError> {
        let mut notes = std::mem::take(&mut encoder.backend.notes);
        let choice = (levels, routing);
        let recorded = routed::experts(&mut encoder.tools(), (self, &mut notes), choice, x, out);
        encoder.backend.notes = notes;
        recorded
    }

    fn take_readback(encoder: &mut WgpuEncoder<'_>, uses: &mut Vec<u32>) -> Option<usize> {
        let WgpuBackend { recorder, notes, .. } = &mut *encoder.backend;
        let missed = notes.uses.take_missed();
        uses.clone_from(notes.uses.ids());
        if missed.is_some() {
            // A device that is lost says so when something is read.
            let _ = recorder.resume();
        }
        missed
    }
}
