//! KV pages and recurrent states of a layer, for all sequences.

use nestling_import::{LayerConfig, ModelConfig};

use nestling_core::backend::Backend;
use nestling_core::error::EngineError;
use nestling_core::kv_cache::KvDtype;
use nestling_core::kv_heads::KvDivision;
use nestling_core::recurrent::StateShape;

/// Sequence memory of one layer: pages, which grow with a sequence, or states of fixed size.
pub enum LayerMemory<B: Backend> {
    /// KV pages.
    Pages(B::KvPool),
    /// Recurrent states.
    States(B::StatePool),
}

/// Capacity of the sequence memory.
#[derive(Clone, Copy, Debug)]
pub struct MemoryShape {
    /// Element type of the KV cache.
    pub kv_dtype: KvDtype,
    /// Division of the pages if the backend is a rank of several.
    pub kv_division: KvDivision,
    /// Number of pages.
    pub pages: usize,
    /// Number of states.
    pub states: usize,
}

impl<B: Backend> LayerMemory<B> {
    /// Allocates the memory of one layer.
    ///
    /// # Errors
    /// Returns an error if the backend is out of memory.
    pub fn new(
        backend: &mut B,
        layer: &LayerConfig,
        shape: MemoryShape,
    ) -> Result<Self, EngineError> {
        let MemoryShape { kv_dtype, kv_division, pages, .. } = shape;
        match kv_division.kv_shape(layer, kv_dtype, pages, backend.share()) {
            Some(shape) => Ok(Self::Pages(backend.kv_pool(&shape)?)),
            None => {
                let none = StateShape { floats: 0, states: 0 };
                let shape = StateShape::of_layer(layer, shape.states).unwrap_or(none);
                Ok(Self::States(backend.state_pool(&shape)?))
            }
        }
    }

    /// Allocates the memory of all layers.
    ///
    /// # Errors
    /// Fails as [`Self::new`] does.
    pub fn of_model(
        backend: &mut B,
        config: &ModelConfig,
        shape: MemoryShape,
    ) -> Result<Vec<Self>, EngineError> {
        config.layers.iter().map(|layer| Self::new(backend, layer, shape)).collect()
    }

    /// Returns the layer's pages.
    ///
    /// # Errors
    /// Returns an error if the layer has states.
    pub fn pages(&mut self) -> Result<&mut B::KvPool, EngineError> {
        match self {
            Self::Pages(pages) => Ok(pages),
            Self::States(_) => Err(EngineError::mismatch("what a layer keeps", "pages", "states")),
        }
    }

    /// Returns the layer's states.
    ///
    /// # Errors
    /// Returns an error if the layer has pages.
    pub fn states(&mut self) -> Result<&mut B::StatePool, EngineError> {
        match self {
            Self::States(states) => Ok(states),
            Self::Pages(_) => Err(EngineError::mismatch("what a layer keeps", "states", "pages")),
        }
    }
}
