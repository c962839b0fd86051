//! What a device must be able to do: hold weights and pages ([`Backend`]), compute ([`Encoder`]); and what it
//! may be able to do: hold streamed experts in its own memory ([`SlotMemory`]), find experts from a routing
//! that the host has not seen ([`DeviceRouting`]).
//!
//! Operations are coarse, so that a backend is free to fuse inside them and to record instead of
//! run. `cpu/reference.rs` defines the exact result of each. Operations that fill a buffer set
//! its row count to that of their input.

mod checked;
mod checks;
mod device_routing;
mod encoder;
mod expert_biases;
mod needs;
mod parts;
mod shape;
mod slot_memory;

use std::ops::AddAssign;
use std::sync::Arc;

use nestling_formats::Level;

use crate::error::EngineError;
use crate::kv_cache::{KvShape, PageId};
use crate::recurrent::{StateId, StateShape};
use crate::weights::{ActivationMode, MatrixWeights};

pub use checked::Checked;
pub use device_routing::{DeviceRouting, NoTable};
pub use encoder::{BindWeights, Encoder, EncoderExt, Write, argmax};
pub use expert_biases::ExpertBiases;
pub use needs::ModelNeeds;

/// Bytes of a plane in memory of the host that a device copies to and from by itself.
pub type HostPlane = Arc<dyn AsRef<[u8]> + Send + Sync>;

pub use parts::{
    AttentionHeads, DeltaNet, ExpertShape, ExpertUse, FeedForward, HeadMatrices, HeadNorm,
    HeldExpert, HostLink, LevelWeights, Linear, MatrixForm, MatrixShape, PinnedExpert, Router,
    Routing, SlotPlace,
};
pub use shape::{HoldsLevels, KvPages, RecurrentStates, Shape, Shaped};
pub use slot_memory::{CopyFence, NoSlots, PlanePart, SlotMemory};

/// What a backend can hold; checked when a model is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BackendLimits {
    /// Most experts of one layer.
    pub num_experts_max: usize,
    /// Most experts that one token may use.
    pub num_experts_per_tok_max: usize,
    /// Largest size of a head.
    pub head_dim_max: usize,
    /// Most rows of one step.
    pub rows_max: usize,
}

/// What was given to a device to do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BackendCounters {
    /// Shaders or kernels that were started.
    pub dispatches: u64,
    /// Submissions of work to the device's queue.
    pub submissions: u64,
    /// Bytes of weights that were copied to the device.
    pub upload_bytes: u64,
    /// Those of them that were written somewhere else first, and not straight into their places.
    pub staged_bytes: u64,
    /// Times that the host waited for the device.
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

/// A device: allocates, uploads, moves pages. An error leaves it usable.
pub trait Backend: Send + Sized + 'static {
    /// Activations, `[rows, cols]` of f32; the row count varies from step to step.
    type Buffer: Shaped + Send + Sync;
    /// The router's choice for every row, `[T, K]`; may stay on the device.
    type Routing: Shaped + Send + Sync;
    /// A float vector: norm weights, biases.
    type Floats: Shaped + Send + Sync;
    /// A weight matrix, at all levels that its planes allow.
    type Matrix: Shaped + HoldsLevels + Send + Sync;
    /// Pages of keys and values of one layer.
    type KvPool: KvPages + Send + Sync;
    /// Recurrent states of one layer.
    type StatePool: RecurrentStates + Send + Sync;
    /// The experts of one layer, for a device that finds them by itself; [`NoTable`] for others.
    type ExpertTable: DeviceRouting<Self>;
    /// Device memory for streamed experts, in slots of one size; [`NoSlots`] where planes are used where
    /// they arrive.
    type ExpertSlots: SlotMemory<Self>;
    /// Computes one step.
    type Encoder<'a>: Encoder<Self> + BindWeights<Self>
    where
        Self: 'a;

    /// Tells the contents of its pages and states from those of other kinds of backends: part of a
    /// model's identity, so that snapshots are only read where they mean the same.
    const PAGE_KIND: u8;

    /// Whether weights are used where they lie in host memory, and nothing but their scales is read when they are
    /// bound.
    const WEIGHTS_IN_PLACE: bool;

    /// What the device is, for people.
    fn name(&self) -> String;

    /// What it can hold.
    fn limits(&self) -> BackendLimits;

    /// Room for activations of up to `rows_max` rows.
    ///
    /// # Errors
    /// A backend whose memory is full.
    fn buffer(&mut self, rows_max: usize, cols: usize) -> Result<Self::Buffer, EngineError>;

    /// Room for the routing of up to `rows_max` rows.
    ///
    /// # Errors
    /// A backend whose memory is full.
    fn routing(
        &mut self,
        rows_max: usize,
        num_experts_per_tok: usize,
    ) -> Result<Self::Routing, EngineError>;

    /// Keeps memory for what the steps of a model work with, before its weights are loaded. What it
    /// cannot have is refused here.
    ///
    /// # Errors
    /// A model that is larger than a limit on memory allows, which names the least that would do.
    fn prepare(&mut self, needs: &ModelNeeds<'_>) -> Result<(), EngineError> {
        let _ = needs;
        Ok(())
    }

    /// Makes a vector available.
    ///
    /// # Errors
    /// A backend whose memory is full.
    fn upload_floats(&mut self, values: &[f32]) -> Result<Self::Floats, EngineError>;

    /// Makes a matrix available; a CPU uses the bytes where they lie.
    ///
    /// # Errors
    /// A backend whose memory is full, or weights in a form that it does not take.
    fn upload_matrix(
        &mut self,
        weights: &MatrixWeights,
        activations: ActivationMode,
    ) -> Result<Self::Matrix, EngineError>;

    /// Bytes that a product with the matrix reads of it at a level.
    fn matrix_bytes(matrix: &Self::Matrix, level: Level) -> u64;

    /// Bytes of the planes that a level uses, as a store holds them.
    fn matrix_prefix_bytes(matrix: &Self::Matrix, level: Level) -> u64;

    /// The experts of a layer, all of them, for a device that finds them by itself. None where the host has
    /// to know the routing: it is the host that computes, or the experts are in a form for it.
    ///
    /// # Errors
    /// A backend whose memory is full.
    fn expert_table(
        &mut self,
        experts: &[Arc<FeedForward<Self>>],
    ) -> Result<Option<Self::ExpertTable>, EngineError> {
        let _ = experts;
        Ok(None)
    }

    /// Slots for the streamed experts of these layers, as many as `bytes` are enough for, or fewer
    /// where memory is full. None where planes are used where they arrive, in memory of the host.
    ///
    /// # Errors
    /// A backend whose memory has no room for one expert.
    fn expert_slots(
        &mut self,
        layers: &[Option<ExpertShape>],
        bytes: u64,
    ) -> Result<Option<Self::ExpertSlots>, EngineError> {
        let _ = (layers, bytes);
        Ok(None)
    }

    /// Room for the keys and values of one layer. Pages may be allocated when first written.
    ///
    /// # Errors
    /// A backend whose memory is full.
    fn kv_pool(&mut self, shape: &KvShape) -> Result<Self::KvPool, EngineError>;

    /// Copies a page of one layer.
    ///
    /// # Errors
    /// Pages that the pool does not have.
    fn copy_page(
        &mut self,
        pool: &mut Self::KvPool,
        source: PageId,
        destination: PageId,
    ) -> Result<(), EngineError>;

    /// Appends the contents of a page to `out`, [`KvShape::page_bytes`] bytes in the backend's
    /// own layout: for snapshots.
    ///
    /// # Errors
    /// A page that the pool does not have.
    fn read_page(
        &mut self,
        pool: &Self::KvPool,
        page: PageId,
        out: &mut Vec<u8>,
    ) -> Result<(), EngineError>;

    /// Writes what [`Backend::read_page`] gave.
    ///
    /// # Errors
    /// A page that the pool does not have, or bytes of another length.
    fn write_page(
        &mut self,
        pool: &mut Self::KvPool,
        page: PageId,
        bytes: &[u8],
    ) -> Result<(), EngineError>;

    /// Room for the recurrent states of one layer. States may be allocated when first written.
    ///
    /// # Errors
    /// A backend whose memory is full.
    fn state_pool(&mut self, shape: &StateShape) -> Result<Self::StatePool, EngineError>;

    /// Appends the contents of a state to `out`, [`StateShape::state_bytes`] bytes in the backend's
    /// own layout: for snapshots.
    ///
    /// # Errors
    /// A state that was not written.
    fn read_state(
        &mut self,
        pool: &Self::StatePool,
        state: StateId,
        out: &mut Vec<u8>,
    ) -> Result<(), EngineError>;

    /// Writes what [`Backend::read_state`] gave.
    ///
    /// # Errors
    /// A state that the pool does not have, or bytes of another length.
    fn write_state(
        &mut self,
        pool: &mut Self::StatePool,
        state: StateId,
        bytes: &[u8],
    ) -> Result<(), EngineError>;

    /// Starts a step.
    fn encoder(&mut self) -> Self::Encoder<'_>;

    /// What was given to a device since this was asked last; nothing where the host computes.
    fn take_counters(&mut self) -> BackendCounters {
        BackendCounters::default()
    }
}
