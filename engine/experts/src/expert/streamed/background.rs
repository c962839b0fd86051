//! Background reads of all experts, if the budget holds all of them. The model can compute before its weights
//! are completely loaded.

use nestling_formats::{ExpertId, InternalError, Plane};

use super::{Prefetch, StreamedExperts};
use crate::reads::{Background, ReadClass};
use crate::residency::{Admission, PlaneId, PlaneState};
use nestling_core::backend::Backend;

impl<B: Backend> StreamedExperts<B> {
    /// Starts reading all planes of all experts of this rank, layer by layer. Does nothing unless [`Prefetch::All`] is set
    /// and the budget holds all planes without evictions. Requests of a layer overtake these reads.
    ///
    /// # Errors
    /// [`InternalError`] for a plane that the store does not have.
    pub(super) fn read_all(&mut self) -> Result<(), InternalError> {
        let table = self.residency.table();
        let has_room = self.residency.budget_bytes() >= table.held_bytes(&self.placement);
        let is_possible = has_room && self.fetcher.has_threads();
        if self.prefetch != Prefetch::All || !is_possible || self.device.slot_count().is_some() {
            return Ok(());
        }
        let experts: Vec<usize> = self.fetcher.extents().experts_of_layers().collect();
        for (layer, experts) in (0..).zip(experts) {
            let held = (0..experts as u32).filter(|id| self.placement.holds(layer, *id));
            for id in held.map(|expert| ExpertId { layer, expert }) {
                let admit = |id: &PlaneId| {
                    self.residency.admit(*id, Admission::Optional, &mut self.evicted)
                };
                for id in PlaneId::first(id, Plane::ALL.len()).take_while(admit) {
                    self.fetcher.plan(id);
                    self.background.push(id);
                }
            }
        }
        self.fetcher.submit(ReadClass::Background, |_| Ok(false))?;
        self.drop_evicted()
    }

    /// Suspends background reads at the start of a step, if the previous step had to wait. They would compete
    /// with urgent reads for cores and disk.
    pub(super) fn hold_background(&self) {
        if self.has_waited {
            self.fetcher.set_background(Background::Waits);
        }
    }

    /// Resumes background reads at the end of a step with this number of misses.
    pub(super) fn release_background(&mut self, misses: u64) {
        self.has_waited = misses > 0;
        self.fetcher.set_background(Background::Runs);
    }

    /// Withdraws reads of [`StreamedExperts::read_all`] that have not started, after the budget became too
    /// small for all planes.
    pub(super) fn stop_reading_all(&mut self) {
        for id in self.background.drain(..) {
            if self.residency.state(id) == PlaneState::Reading && self.fetcher.withdraw(id) {
                self.residency.failed(id);
            }
        }
    }
}
