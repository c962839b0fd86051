//! Tables of a layer's experts in device memory, read by kernels.

use std::sync::Arc;

use bytemuck::Pod;
use nestling_core::EngineError;
use nestling_core::backend::{Backend, FeedForward, HeldExpert, Linear};

use crate::allocation::Allocation;
use crate::expert_form::ExpertForm;
use crate::slot_slabs::SlotSlabs;
use crate::storage::Storage;

/// The experts of a new table.
pub enum TableExperts<'a, D: Storage + Backend> {
    /// Experts that stay loaded.
    Resident(&'a [Arc<FeedForward<D>>]),
    /// Experts in slots, initially all missing.
    Streamed {
        /// Number of experts.
        count: usize,
        /// Memory of the slots.
        slabs: &'a SlotSlabs<D::Memory>,
    },
}

/// A layer's expert entries as kernels read them. Each backend has its own format.
pub trait TableEntries<D: Storage + Backend>: Sized {
    /// Entry of one expert.
    type Entry: Pod;

    /// Returns whether kernels support experts of this form.
    fn takes(form: &ExpertForm) -> bool;

    /// Creates the entries. Returns `None` if kernels cannot address the experts as one table.
    ///
    /// # Errors
    /// Returns an error if the device is lost or out of memory.
    fn new(device: &mut D, experts: TableExperts<'_, D>) -> Result<Option<Self>, EngineError>;

    /// Returns the entry of an expert in a slot, or of a missing expert if `held` is `None`.
    ///
    /// # Errors
    /// Returns an error if a level is not resident.
    fn entry(held: Option<HeldExpert<'_, D>>) -> Result<Self::Entry, EngineError>;

    /// Returns the entries, `[experts]`, followed by the minimum weights of levels, `[experts]`.
    fn binding(&self) -> D::Binding;
}

/// Returns gate, up and down. Without a gate, up takes its place, so that kernels need no other form.
pub fn linears<B: Backend>(expert: &FeedForward<B>) -> [&Linear<B>; 3] {
    [expert.gate_or_up(), &expert.up, &expert.down]
}

/// The experts of one layer, all with the same shape and form.
pub struct GpuExpertTable<D: Storage + Backend> {
    /// Common form of the experts.
    pub form: ExpertForm,
    /// Number of experts of the layer.
    pub experts: usize,
    /// Entries of the experts as kernels read them.
    pub entries: D::TableEntries,
    /// True if the level of a use depends on its expert weight.
    pub by_weight: bool,
    /// Biases of all gates, then of all ups, then of all downs.
    pub(crate) biases: Option<D::Memory>,
    /// Experts that stay loaded. `None` if experts are streamed.
    pub(crate) resident: Option<Vec<Arc<FeedForward<D>>>>,
}

impl<D: Storage + Backend> GpuExpertTable<D> {
    /// Creates a table of `experts` experts in slots, all missing.
    ///
    /// # Errors
    /// Fails like [`Storage::allocate`].
    pub fn streamed(
        storage: &mut D,
        form: ExpertForm,
        experts: usize,
        entries: D::TableEntries,
        biases: Option<&[f32]>,
    ) -> Result<Self, EngineError> {
        let upload = |values| storage.upload("biases of experts", bytemuck::cast_slice(values));
        let biases = biases.map(upload).transpose()?;
        Ok(Self { form, experts, entries, by_weight: false, biases, resident: None })
    }

    /// Returns whether an expert may be missing.
    pub fn may_miss(&self) -> bool {
        self.resident.is_none()
    }

    /// Returns the biases, if the experts have any.
    pub fn biases(&self) -> Option<D::Binding> {
        self.biases.as_ref().map(Allocation::binding)
    }
}
