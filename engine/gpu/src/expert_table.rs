//! The experts of one layer in memory of a device, where kernels find them.

use std::sync::Arc;

use bytemuck::Pod;
use nestling_core::EngineError;
use nestling_core::backend::{Backend, FeedForward, HeldExpert, Linear};

use crate::allocation::Allocation;
use crate::expert_form::ExpertForm;
use crate::slot_slabs::SlotSlabs;
use crate::storage::Storage;

/// The experts of a table that is made.
pub enum TableExperts<'a, D: Storage + Backend> {
    /// Experts that stay.
    Resident(&'a [Arc<FeedForward<D>>]),
    /// Experts in slots, none of which is there yet.
    Streamed {
        /// How many.
        count: usize,
        /// Where slots are.
        slabs: &'a SlotSlabs<D::Memory>,
    },
}

/// What kernels read of the experts of a layer, written by the backend that they belong to.
pub trait TableEntries<D: Storage + Backend>: Sized {
    /// What kernels read of one expert.
    type Entry: Pod;

    /// Whether kernels find experts of this form.
    fn takes(form: &ExpertForm) -> bool;

    /// Entries of experts; none where kernels cannot find them together.
    ///
    /// # Errors
    /// A device that is lost or whose memory is full.
    fn new(device: &mut D, experts: TableExperts<'_, D>) -> Result<Option<Self>, EngineError>;

    /// The entry of what there is of an expert in a slot.
    ///
    /// # Errors
    /// A level that is not held.
    fn entry(held: Option<HeldExpert<'_, D>>) -> Result<Self::Entry, EngineError>;

    /// Where the entries lie, `[experts]`, and behind them the least weights of levels, `[experts]`.
    fn binding(&self) -> D::Binding;
}

/// Gate, up and down.
pub fn linears<B: Backend>(expert: &FeedForward<B>) -> [&Linear<B>; 3] {
    [&expert.gate, &expert.up, &expert.down]
}

/// The experts of one layer, all alike in shape and form.
pub struct GpuExpertTable<D: Storage + Backend> {
    /// What all experts have in common.
    pub form: ExpertForm,
    /// How many experts the layer has.
    pub experts: usize,
    /// What kernels read of each.
    pub entries: D::TableEntries,
    /// Whether the levels of uses go by their weights.
    pub by_weight: bool,
    /// Biases of all gates, then of all ups, then of all downs.
    pub(crate) biases: Option<D::Memory>,
    /// Experts that stay; none where experts are streamed.
    pub(crate) resident: Option<Vec<Arc<FeedForward<D>>>>,
}

impl<D: Storage + Backend> GpuExpertTable<D> {
    /// A table of so many experts in slots, none of which is there yet.
    ///
    /// # Errors
    /// As [`Storage::allocate`].
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

    /// Whether an expert may be missing.
    pub fn may_miss(&self) -> bool {
        self.resident.is_none()
    }

    /// Where the biases are.
    pub fn biases(&self) -> Option<D::Binding> {
        self.biases.as_ref().map(Allocation::binding)
    }
}
