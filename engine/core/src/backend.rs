//! Interfaces of a device. [`Backend`] holds weights and pages, and [`Encoder`] computes. Two are optional:
//! [`SlotMemory`] keeps streamed experts in device memory, and [`DeviceRouting`] finds experts from a routing
//! that the host has not read.
//!
//! Operations are coarse, so that a backend can fuse work inside them and can record instead of run.
//! `cpu/reference.rs` defines the exact result of each. Operations that fill a buffer set its row count to
//! the row count of their input.

mod checked;
mod checks;
mod device_routing;
mod encoder;
mod expert_biases;
mod needs;
mod parts;
mod rank_link;
mod ranked;
mod shape;
mod slot_memory;

use std::ops::AddAssign;
use std::sync::Arc;

use nestling_formats::Level;
use serde::{Deserialize, Serialize};

use crate::error::EngineError;
use crate::group::RankShare;
use crate::kv_cache::{KvShape, PageId};
use crate::recurrent::{StateId, StateShape};
use crate::weights::{ActivationMode, MatrixWeights};

pub use checked::CheckedEncoder;
pub use device_routing::{DeviceRouting, NoTable};
pub use encoder::{BindWeights, CompleteInner, Encoder, EncoderExt, Write, argmax};
pub use expert_biases::ExpertBiases;
pub use needs::ModelNeeds;

/// Bytes of a plane in pinned host memory, which a device accesses directly.
pub type HostPlane = Arc<dyn AsRef<[u8]> + Send + Sync>;

pub use parts::{
    AttentionHeads, DeltaNet, ExpertShape, ExpertUse, FeedForward, HeadMatrices, HeadNorm,
    HeldExpert, HostLink, LevelWeights, Linear, Mamba2, MatrixForm, MatrixShape, Outputs,
    PinnedExpert, Router, Routing, ShortConv, SlotPlace,
};
pub use rank_link::RankLink;
pub use ranked::RankEncoder;
pub use shape::{HasShape, HoldsLevels, KvPages, RecurrentStates, Shape};
pub use slot_memory::{CopyFence, NoSlots, PlanePart, SlotMemory};

/// Limits of a backend, checked when a model is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BackendLimits {
    /// Maximum number of experts per layer.
    pub num_experts_max: usize,
    /// Maximum number of experts per token.
    pub num_experts_per_tok_max: usize,
    /// Maximum head dimension.
    pub head_dim_max: usize,
    /// Maximum number of rows per step.
    pub rows_max: usize,
    /// Maximum number of positions that the convolution of a recurrent layer sees.
    pub conv_taps_max: usize,
}

/// Counters of work submitted to a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BackendCounters {
    /// Number of launched shaders or kernels.
    pub dispatches: u64,
    /// Number of submissions to the device's queue.
    pub submissions: u64,
    /// Bytes of weights copied to the device.
    pub upload_bytes: u64,
    /// Bytes of `upload_bytes` that passed through a staging buffer.
    pub staged_bytes: u64,
    /// Number of times the host waited for the device.
    pub waits: u64,
}

impl AddAssign for BackendCounters {
    fn add_assign(&mut self, other: Self) {
        self.dispatches += other.dispatches;
        self.submissions += other.submissions;
        self.upload_bytes += other.upload_bytes;
        self.staged_bytes += other.staged_bytes;
        self.waits += other.waits;
    }
}

/// A device with its memory: allocates, uploads weights, copies pages. It remains usable after an error.
pub trait Backend: Send + Sized + 'static {
    /// Activations, `[rows, cols]` of f32; the number of rows varies from step to step.
    type Buffer: HasShape + Send + Sync;
    /// Routing of all rows, `[T, K]`; may stay on the device.
    type Routing: HasShape + Send + Sync;
    /// A vector of floats, such as norm weights or biases.
    type Floats: HasShape + Send + Sync;
    /// A weight matrix at all levels that its planes allow.
    type Matrix: HasShape + HoldsLevels + Send + Sync;
    /// KV cache pages of one layer.
    type KvPool: KvPages + Send + Sync;
    /// Recurrent states of one layer.
    type StatePool: RecurrentStates + Send + Sync;
    /// Expert table of one layer, for a device that finds experts itself; [`NoTable`] for others.
    type ExpertTable: DeviceRouting<Self>;
    /// Device memory for streamed experts, in slots of equal size; [`NoSlots`] if planes are used in host
    /// memory.
    type ExpertSlots: SlotMemory<Self>;
    /// Encoder of one step.
    type Encoder<'a>: Encoder<Self> + BindWeights<Self>
    where
        Self: 'a;

    /// Identifier of the layout of pages and states. As part of a model's identity, it prevents reading
    /// snapshots of an incompatible backend.
    const PAGE_KIND: u8;

    /// True if weights are used in place in host memory; binding them then reads only their scales.
    const WEIGHTS_IN_PLACE: bool;

    /// Returns a human-readable name of the device.
    fn name(&self) -> String;

    /// Returns the limits of the backend.
    fn limits(&self) -> BackendLimits;

    /// Returns the share of the model that this backend holds; everything unless it was connected to a group.
    fn share(&self) -> RankShare {
        RankShare::default()
    }

    /// Allocates a buffer for activations of up to `rows_max` rows.
    ///
    /// # Errors
    /// Returns an error if the backend's memory is full.
    fn buffer(&mut self, rows_max: usize, cols: usize) -> Result<Self::Buffer, EngineError>;

    /// Allocates the routing of up to `rows_max` rows.
    ///
    /// # Errors
    /// Returns an error if the backend's memory is full.
    fn routing(
        &mut self,
        rows_max: usize,
        num_experts_per_tok: usize,
    ) -> Result<Self::Routing, EngineError>;

    /// Reserves working memory for a model's steps before its weights are loaded. An impossible reservation
    /// fails here.
    ///
    /// # Errors
    /// Returns an error if the model exceeds a memory limit; it states the minimum limit required.
    fn prepare(&mut self, needs: &ModelNeeds<'_>) -> Result<(), EngineError> {
        let _ = needs;
        Ok(())
    }

    /// Uploads a vector.
    ///
    /// # Errors
    /// Returns an error if the backend's memory is full.
    fn upload_floats(&mut self, values: &[f32]) -> Result<Self::Floats, EngineError>;

    /// Uploads a matrix; a CPU uses the bytes in place.
    ///
    /// # Errors
    /// Returns an error if the backend's memory is full or it does not support the form of the weights.
    fn upload_matrix(
        &mut self,
        weights: &MatrixWeights,
        activations: ActivationMode,
    ) -> Result<Self::Matrix, EngineError>;

    /// Returns the bytes of the matrix that a product reads at a level.
    fn matrix_bytes(matrix: &Self::Matrix, level: Level) -> u64;

    /// Returns the size in bytes of the planes that a level uses, as stored in a store.
    fn matrix_prefix_bytes(matrix: &Self::Matrix, level: Level) -> u64;

    /// Creates the expert table of a layer whose experts are all resident, for a device that finds experts
    /// itself. Returns `None` if the host must know the routing: if the host computes, or the experts are in
    /// a form for the host.
    ///
    /// # Errors
    /// Returns an error if the backend's memory is full.
    fn expert_table(
        &mut self,
        experts: &[Arc<FeedForward<Self>>],
    ) -> Result<Option<Self::ExpertTable>, EngineError> {
        let _ = experts;
        Ok(None)
    }

    /// Allocates slots for the streamed experts of these layers: as many as fit in `bytes`, or fewer if
    /// memory is full. Returns `None` if planes are used in host memory.
    ///
    /// # Errors
    /// Returns an error if the memory cannot hold one expert.
    fn expert_slots(
        &mut self,
        layers: &[Option<ExpertShape>],
        bytes: u64,
    ) -> Result<Option<Self::ExpertSlots>, EngineError> {
        let _ = (layers, bytes);
        Ok(None)
    }

    /// Allocates the KV cache of one layer. Pages may be allocated on first write.
    ///
    /// # Errors
    /// Returns an error if the backend's memory is full.
    fn kv_pool(&mut self, shape: &KvShape) -> Result<Self::KvPool, EngineError>;

    /// Copies a page of one layer.
    ///
    /// # Errors
    /// Returns an error if the pool does not have one of the pages.
    fn copy_page(
        &mut self,
        pool: &mut Self::KvPool,
        source: PageId,
        destination: PageId,
    ) -> Result<(), EngineError>;

    /// Appends the contents of a page to `out` for a snapshot: [`KvShape::page_bytes`] bytes in the backend's
    /// own layout.
    ///
    /// # Errors
    /// Returns an error if the pool does not have the page.
    fn read_page(
        &mut self,
        pool: &Self::KvPool,
        page: PageId,
        out: &mut Vec<u8>,
    ) -> Result<(), EngineError>;

    /// Restores a page from the output of [`Backend::read_page`].
    ///
    /// # Errors
    /// Returns an error if the pool does not have the page or the length is wrong.
    fn write_page(
        &mut self,
        pool: &mut Self::KvPool,
        page: PageId,
        bytes: &[u8],
    ) -> Result<(), EngineError>;

    /// Allocates the recurrent states of one layer. States may be allocated on first write.
    ///
    /// # Errors
    /// Returns an error if the backend's memory is full.
    fn state_pool(&mut self, shape: &StateShape) -> Result<Self::StatePool, EngineError>;

    /// Appends the contents of a state to `out` for a snapshot: [`StateShape::state_bytes`] bytes in the
    /// backend's own layout.
    ///
    /// # Errors
    /// Returns an error if the state was never written.
    fn read_state(
        &mut self,
        pool: &Self::StatePool,
        state: StateId,
        out: &mut Vec<u8>,
    ) -> Result<(), EngineError>;

    /// Restores a state from the output of [`Backend::read_state`].
    ///
    /// # Errors
    /// Returns an error if the pool does not have the state or the length is wrong.
    fn write_state(
        &mut self,
        pool: &mut Self::StatePool,
        state: StateId,
        bytes: &[u8],
    ) -> Result<(), EngineError>;

    /// Starts a step and returns its encoder.
    fn encoder(&mut self) -> Self::Encoder<'_>;

    /// Returns the counters since the previous call and resets them; all zero if the host computes.
    fn take_counters(&mut self) -> BackendCounters {
        BackendCounters::default()
    }
}
