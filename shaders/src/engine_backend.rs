//! Implements the engine's `Backend` trait.

use nestling_core::EngineError;
use nestling_core::backend::{Backend, ModelNeeds};

use crate::backend::WgpuBackend;
use crate::needs;

impl Backend for WgpuBackend {
    nestling_gpu::backend_items!();

    const PAGE_KIND: u8 = 2;
    const WEIGHTS_IN_PLACE: bool = false;

    fn name(&self) -> String {
        self.gpu.name.clone()
    }

    fn prepare(&mut self, needs: &ModelNeeds<'_>) -> Result<(), EngineError> {
        // The reservation of the previous model is released first.
        self.reservation = None;
        let requested = std::mem::take(&mut self.state.requested);
        let reserved = needs::reserve(&self.gpu.budget, &requested, needs)?;
        self.reservation = Some(reserved.reservation);
        self.recorder.slabs.expect(reserved.weight_bytes);
        self.recorder.late_slabs.expect(reserved.bias_bytes);
        Ok(())
    }
}
