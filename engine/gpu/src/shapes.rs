//! Shapes of device data, for the checks of operations.

use nestling_core::backend::{HasShape, KvPages, RecurrentStates, Shape};
use nestling_core::kv_cache::KvShape;
use nestling_core::recurrent::StateShape;

use crate::memory::{GpuBuffer, GpuFloats, GpuRouting};
use crate::pages::GpuPages;
use crate::states::GpuStates;
use crate::storage::Storage;

impl<S: Storage> HasShape for GpuBuffer<S> {
    fn shape(&self) -> Shape {
        Shape { rows: self.rows, cols: self.cols }
    }
}

impl<S: Storage> HasShape for GpuFloats<S> {
    fn shape(&self) -> Shape {
        Shape { rows: 1, cols: self.count }
    }
}

impl<S: Storage> HasShape for GpuRouting<S> {
    fn shape(&self) -> Shape {
        Shape { rows: self.rows, cols: self.per_token }
    }
}

impl<S: Storage> KvPages for GpuPages<S> {
    fn kv_shape(&self) -> &KvShape {
        &self.shape
    }
}

impl<S: Storage> RecurrentStates for GpuStates<S> {
    fn state_shape(&self) -> &StateShape {
        &self.shape
    }
}
