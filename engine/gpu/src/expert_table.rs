//! The experts of one layer in memory of a device, where kernels find them.

use std::sync::Arc;

use nestling_core::EngineError;
use nestling_core::backend::{Backend, FeedForward, HeldExpert, LevelWeights, Linear};
use nestling_formats::Level;

use crate::device_matrix::DeviceMatrix;
use crate::expert_form::ExpertForm;
use crate::slot_slabs::SlotSlabs;
use crate::storage::Storage;

/// What kernels read of the experts of a layer, written by the backend that they belong to.
pub trait TableEntries<D: Storage + Backend>: Sized {
    /// Whether kernels find experts of this form.
    fn takes(form: &ExpertForm) -> bool;

    /// Entries of experts that stay; none where kernels cannot find them together.
    ///
    /// # Errors
    /// A device that is lost or whose memory is full.
    fn resident(
        device: &mut D,
        experts: &[Arc<FeedForward<D>>],
    ) -> Result<Option<Self>, EngineError>;

    /// Entries of so many experts in slots, none of which is there yet.
    ///
    /// # Errors
    /// A device that is lost or whose memory is full.
    fn streamed(
        device: &mut D,
        experts: usize,
        slabs: &SlotSlabs<D::Memory>,
    ) -> Result<Self, EngineError>;

    /// Writes what there is of an expert in a slot, behind all that was recorded.
    ///
    /// # Errors
    /// A device that is lost.
    fn set(
        &mut self,
        device: &mut D,
        expert: usize,
        held: Option<HeldExpert<'_, D>>,
    ) -> Result<(), EngineError>;

    /// Writes the least weights of levels, behind all that was recorded.
    ///
    /// # Errors
    /// A device that is lost or whose memory is full.
    fn set_level_weights(
        &mut self,
        device: &mut D,
        least: &[LevelWeights], // [experts]
    ) -> Result<(), EngineError>;
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
        self.biases.as_ref().map(D::binding)
    }
}

impl<D: Storage + Backend<Matrix: DeviceMatrix>> GpuExpertTable<D> {
    /// # Errors
    /// [`EngineError::LevelMissing`] for a level that a resident expert does not hold.
    pub(crate) fn check(&self, level: Level) -> Result<(), EngineError> {
        let Some(experts) = &self.resident else { return Ok(()) };
        let mut all = experts.iter().flat_map(|expert| linears(expert));
        all.try_for_each(|linear| linear.matrix.check(level))
    }
}
