//! What a layer keeps of all sequences.

use nestling_import::{LayerConfig, ModelConfig};

use nestling_core::backend::Backend;
use nestling_core::error::EngineError;
use nestling_core::kv_cache::{KvDtype, KvShape};
use nestling_core::recurrent::StateShape;

/// What one layer keeps: pages, which grow with a sequence, or states, which do not.
pub enum LayerMemory<B: Backend> {
    /// Keys and values.
    Pages(B::KvPool),
    /// Recurrent states.
    States(B::StatePool),
}

/// How much of it there may be.
#[derive(Clone, Copy, Debug)]
pub struct MemoryShape {
    /// Element type of keys and values.
    pub kv_dtype: KvDtype,
    /// Pages.
    pub pages: usize,
    /// States.
    pub states: usize,
}

impl<B: Backend> LayerMemory<B> {
    /// Room for what a layer keeps.
    ///
    /// # Errors
    /// A backend whose memory is full.
    pub fn new(
        backend: &mut B,
        layer: &LayerConfig,
        shape: MemoryShape,
    ) -> Result<Self, EngineError> {
        match KvShape::of_layer(layer, shape.kv_dtype, shape.pages) {
            Some(shape) => Ok(Self::Pages(backend.kv_pool(&shape)?)),
            None => {
                let none = StateShape { floats: 0, states: 0 };
                let shape = StateShape::of_layer(layer, shape.states).unwrap_or(none);
                Ok(Self::States(backend.state_pool(&shape)?))
            }
        }
    }

    /// Room for what every layer keeps.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn of_model(
        backend: &mut B,
        config: &ModelConfig,
        shape: MemoryShape,
    ) -> Result<Vec<Self>, EngineError> {
        config.layers.iter().map(|layer| Self::new(backend, layer, shape)).collect()
    }

    /// The layer's pages.
    ///
    /// # Errors
    /// A layer that keeps states.
    pub fn pages(&mut self) -> Result<&mut B::KvPool, EngineError> {
        match self {
            Self::Pages(pages) => Ok(pages),
            Self::States(_) => Err(EngineError::mismatch("what a layer keeps", "pages", "states")),
        }
    }

    /// The layer's states.
    ///
    /// # Errors
    /// A layer that keeps pages.
    pub fn states(&mut self) -> Result<&mut B::StatePool, EngineError> {
        match self {
            Self::States(states) => Ok(states),
            Self::Pages(_) => Err(EngineError::mismatch("what a layer keeps", "states", "pages")),
        }
    }
}
