//! Where there is room for all experts, those that nobody has wanted yet are read in the background, so that
//! a model computes before all of it is there.

use nestling_formats::{ExpertId, InternalError, Plane};

use super::{Prefetch, StreamedExperts};
use crate::reads::ReadClass;
use crate::residency::{Admission, PlaneId, PlaneState};
use nestling_core::backend::Backend;

impl<B: Backend> StreamedExperts<B> {
    /// Begins to read all planes of all experts, layer by layer, if that was asked for and none of them
    /// will have to leave for another. What a layer wants overtakes them.
    ///
    /// # Errors
    /// [`InternalError`] for a plane that the store does not have.
    pub(super) fn read_all(&mut self) -> Result<(), InternalError> {
        let table = self.residency.table();
        let has_room = self.residency.budget_bytes() >= table.total_bytes();
        if self.prefetch != Prefetch::All || !has_room || self.device.slot_count().is_some() {
            return Ok(());
        }
        let experts: Vec<usize> = self.fetcher.extents().experts_of_layers().collect();
        for (layer, experts) in (0..).zip(experts) {
            for id in (0..experts as u32).map(|expert| ExpertId { layer, expert }) {
                let admit = |id: &PlaneId| {
                    self.residency.admit(*id, Admission::Optional, &mut self.evicted)
                };
                for id in PlaneId::first(id, Plane::ALL.len()).take_while(admit) {
                    self.fetcher.plan(id);
                    self.background.push(id);
                }
            }
        }
        self.fetcher.submit(ReadClass::Idle, |_| Ok(false))?;
        self.drop_evicted()
    }

    /// Takes back the reads of [`StreamedExperts::read_all`] that have not begun: there is no room for all
    /// planes any more.
    pub(super) fn stop_reading_all(&mut self) {
        for id in self.background.drain(..) {
            if self.residency.state(id) == PlaneState::Reading && self.fetcher.withdraw(id) {
                self.residency.failed(id);
            }
        }
    }
}
