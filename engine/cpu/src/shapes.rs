//! Shapes of buffers and weights of the CPU and the reference, for the checks of operations.

use nestling_formats::Level;

use super::matrix::{CpuBuffer, CpuMatrix};
use super::pages::CpuPool;
use super::reference::{ReferenceBuffer, ReferenceMatrix, ReferencePool};
use super::states::CpuStates;
use nestling_core::backend::{HasShape, HoldsLevels, KvPages, RecurrentStates, Shape};
use nestling_core::error::EngineError;
use nestling_core::kv_cache::KvShape;
use nestling_core::recurrent::StateShape;
use nestling_core::weights::MatrixWeights;

impl HasShape for CpuBuffer {
    fn shape(&self) -> Shape {
        Shape { rows: self.row_count(), cols: self.cols() }
    }
}

impl HasShape for ReferenceBuffer {
    fn shape(&self) -> Shape {
        Shape { rows: self.row_count(), cols: self.cols() }
    }
}

impl HasShape for CpuMatrix {
    fn shape(&self) -> Shape {
        Shape { rows: self.rows(), cols: self.cols() }
    }
}

impl HasShape for ReferenceMatrix {
    fn shape(&self) -> Shape {
        Shape { rows: self.rows(), cols: self.cols() }
    }
}

fn check_level(weights: &MatrixWeights, level: Level) -> Result<(), EngineError> {
    match weights {
        MatrixWeights::Nested(matrix) => matrix.prefix(level).map(drop),
        MatrixWeights::Float(_) => Ok(()),
    }
}

impl HoldsLevels for CpuMatrix {
    fn check_level(&self, level: Level) -> Result<(), EngineError> {
        check_level(&self.weights, level)
    }
}

impl HoldsLevels for ReferenceMatrix {
    fn check_level(&self, level: Level) -> Result<(), EngineError> {
        check_level(self.weights(), level)
    }
}

impl KvPages for CpuPool {
    fn kv_shape(&self) -> &KvShape {
        self.shape()
    }
}

impl KvPages for ReferencePool {
    fn kv_shape(&self) -> &KvShape {
        self.shape()
    }
}

impl RecurrentStates for CpuStates {
    fn state_shape(&self) -> &StateShape {
        self.shape()
    }
}
