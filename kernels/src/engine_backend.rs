//! Implements the engine's `Backend` trait.

use nestling_core::EngineError;
use nestling_core::backend::{Backend, ModelNeeds};

use crate::backend::CudaBackend;
use crate::needs;

impl Backend for CudaBackend {
    nestling_gpu::backend_items!();

    const PAGE_KIND: u8 = 3;
    const WEIGHTS_IN_PLACE: bool = false;

    fn name(&self) -> String {
        self.driver.name().to_owned()
    }

    fn prepare(&mut self, needs: &ModelNeeds<'_>) -> Result<(), EngineError> {
        let requested = std::mem::take(&mut self.state.requested);
        needs::reserve(&self.driver, &requested, needs, self.state.peers.is_some())
    }
}
