//! Weight matrices in memory of the device.

use nestling_engine::EngineError;
use nestling_engine::weights::{ActivationMode, MatrixWeights};
use nestling_formats::Level;

use crate::device::Gpu;

/// Weights with the way to multiply them.
pub struct WgpuMatrix {
    weights: MatrixWeights,
}

impl WgpuMatrix {
    pub(crate) fn new(
        _gpu: &Gpu,
        weights: &MatrixWeights,
        _activations: ActivationMode,
    ) -> Result<Self, EngineError> {
        Ok(Self { weights: weights.clone() })
    }

    pub(crate) fn rows(&self) -> usize {
        self.weights.rows()
    }

    pub(crate) fn read_bytes(&self, level: Level) -> u64 {
        self.weights.read_bytes(level)
    }

    pub(crate) fn prefix_bytes(&self, level: Level) -> u64 {
        self.weights.prefix_bytes(level)
    }
}
