//! What kernels read of the experts of one layer.

use std::sync::Arc;

use nestling_core::EngineError;
use nestling_core::backend::{FeedForward, HeldExpert, LevelWeights};
use nestling_formats::Level;
use nestling_gpu::{ExpertForm, ProductForm, ProductKind, SlotSlabs, TableEntries, linears};

use crate::backend::CudaBackend;
use crate::driver::{Address, DeviceMemory};
use crate::params::ExpertEntry;
use crate::slabs::Place;

/// Entries of the experts of a layer.
pub struct CudaEntries {
    /// `[experts]`.
    entries: Place,
    /// Least weights of levels, `[experts, 4]`, as bits.
    least: Option<Place>,
}

/// What kernels read of an expert of which the planes of so many levels are there.
fn entry(expert: &FeedForward<CudaBackend>, levels: usize) -> ExpertEntry {
    let matrices = linears(expert).map(|linear| linear.matrix.address());
    ExpertEntry { matrices, levels: levels as u32, padding: 0 }
}

impl CudaEntries {
    /// Where the entries are.
    pub(crate) fn address(&self) -> Address {
        self.entries.address()
    }

    /// Where the least weights of levels are; 0 for none.
    pub(crate) fn least(&self) -> Address {
        self.least.as_ref().map_or(0, Place::address)
    }
}

impl TableEntries<CudaBackend> for CudaEntries {
    fn takes(form: &ExpertForm) -> bool {
        let is_taken = |form: ProductForm| form.kind == ProductKind::Float || form.is_tiled;
        is_taken(form.gate) && is_taken(form.down)
    }

    fn streamed(
        backend: &mut CudaBackend,
        experts: usize,
        _slabs: &SlotSlabs<DeviceMemory>,
    ) -> Result<Self, EngineError> {
        let entries = vec![ExpertEntry::default(); experts];
        let entries = backend.recorder.upload(bytemuck::cast_slice(&entries))?;
        Ok(Self { entries, least: None })
    }

    fn resident(
        backend: &mut CudaBackend,
        experts: &[Arc<FeedForward<CudaBackend>>],
    ) -> Result<Option<Self>, EngineError> {
        // A level that is not held is refused before a kernel looks here.
        let all = Level::ALL.len();
        let entries: Vec<ExpertEntry> = experts.iter().map(|expert| entry(expert, all)).collect();
        let entries = backend.recorder.upload(bytemuck::cast_slice(&entries))?;
        Ok(Some(Self { entries, least: None }))
    }

    fn set(
        &mut self,
        backend: &mut CudaBackend,
        expert: usize,
        held: Option<HeldExpert<'_, CudaBackend>>,
    ) -> Result<(), EngineError> {
        let entry = held.map_or_else(ExpertEntry::default, |HeldExpert { weights, level }| {
            entry(weights, level.index() + 1)
        });
        let to = self.entries.address() + (size_of::<ExpertEntry>() * expert) as u64;
        Ok(backend.recorder.overwrite(bytemuck::bytes_of(&entry), to)?)
    }

    fn set_level_weights(
        &mut self,
        backend: &mut CudaBackend,
        least: &[LevelWeights],
    ) -> Result<(), EngineError> {
        let (recorder, bytes) = (&mut backend.recorder, bytemuck::cast_slice(least));
        match &self.least {
            Some(place) => recorder.overwrite(bytes, place.address())?,
            None => self.least = Some(recorder.upload(bytes)?),
        }
        Ok(())
    }
}
