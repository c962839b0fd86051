//! Experts that move from memory of the host to a slot of the device because they are used often: copied
//! beside the steps, and computed where they lie until they have come.

use std::sync::Arc;

use nestling_formats::{ExpertId, Plane};

use super::device_slots::{DeviceSlots, Promoted};
use super::slot::{Maker, Upload};
use super::source::Scan;
use super::streamed::StreamedExperts;
use crate::reads::ArrivedPlane;
use crate::residency::{Admission, PlaneId};
use nestling_core::backend::{Backend, CopyFence, FeedForward, SlotMemory};
use nestling_core::error::EngineError;

/// An expert's first planes.
fn planes_of(id: ExpertId, planes: usize) -> impl Iterator<Item = PlaneId> {
    let ExpertId { layer, expert } = id;
    Plane::ALL.into_iter().take(planes).map(move |plane| PlaneId { layer, expert, plane })
}

impl<B: Backend> DeviceSlots<B> {
    /// The end of the copies that bring an expert, if it is on its way.
    fn promotion_of(&self, id: ExpertId) -> Option<CopyFence> {
        let found = self.promoted.iter().find(|promoted| promoted.id == id);
        found.map(|promoted| promoted.fence)
    }

    /// Starts copies of an expert's planes to a slot.
    fn start_promotion(
        &mut self,
        id: ExpertId,
        planes: usize,
        maker: &Maker,
        encoder: &mut B::Encoder<'_>,
    ) -> Result<(usize, FeedForward<B>), EngineError> {
        let held = self.tier.prefix(id, planes).into_iter();
        let held: Vec<_> = held.map(|plane| Arc::new(ArrivedPlane::held(plane))).collect();
        // The processor has computed with them.
        let matrices = maker.source.bind_expert(id, &held, Scan::Known)?;
        let place = self.take()?;
        let placed = Upload { maker, id, encoder, slot: Some((self, place)) }.expert(matrices);
        if placed.is_err() {
            self.give(place);
        }
        placed.map(|weights| (place, weights))
    }
}

impl<B: Backend> StreamedExperts<B> {
    /// Has an expert that is wanted much more often than one in a slot take its place. It is there for
    /// whoever looks when its copies are done ([`StreamedExperts::end_promotions`]).
    ///
    /// # Errors
    /// A failed device.
    pub(super) fn promote(
        &mut self,
        id: ExpertId,
        planes: usize,
        encoder: &mut B::Encoder<'_>,
    ) -> Result<(), EngineError> {
        let Self { residency, evicted, .. } = self;
        let mut admit = |id: &PlaneId| residency.admit(*id, Admission::Promotion, evicted);
        let planes = planes_of(id, planes).take_while(&mut admit).count();
        let leaves_one = self
            .evicted
            .windows(2)
            .all(|pair| (pair[0].layer, pair[0].expert) == (pair[1].layer, pair[1].expert));
        self.drop_evicted();
        if planes == 0 {
            return Ok(());
        }
        if !leaves_one {
            // Slots that others may have next are left before.
            self.move_out(encoder)?;
        }
        let Some(device) = &mut self.device else { return Ok(()) };
        device.slots.begin_async_copies(encoder)?;
        let moved = self.move_out(encoder);
        let Some(device) = &mut self.device else { return Ok(()) };
        let started = moved.and_then(|()| device.start_promotion(id, planes, &self.maker, encoder));
        let fence = device.slots.end_async_copies(encoder)?;
        match started {
            Ok((place, weights)) => {
                device.tier.set_moving(id);
                device.promoted.push_back(Promoted { id, planes, place, weights, fence });
            }
            Err(error) => {
                tracing::debug!(%error, "an expert stays in memory of the host");
                // Whatever was copied, the next one in that slot comes after it.
                device.slots.completed_copies(encoder, fence)?;
                planes_of(id, planes).for_each(|id| self.residency.failed(id));
            }
        }
        Ok(())
    }

    /// Experts of a layer that are on their way and that the device is to compute: what is recorded from
    /// now on waits for them.
    ///
    /// # Errors
    /// A failed device.
    pub(super) fn await_promotions(
        &mut self,
        layer: u32,
        encoder: &mut B::Encoder<'_>,
    ) -> Result<(), EngineError> {
        let Some(device) = &self.device else { return Ok(()) };
        let of_device = self.wanted.iter().filter(|one| !one.is_on_host());
        let id = |expert| ExpertId { layer, expert };
        let awaited = of_device.filter_map(|one| device.promotion_of(id(one.expert))).max();
        awaited.map_or(Ok(()), |fence| self.end_promotions(fence, encoder))
    }

    /// Whether experts are on their way.
    pub(super) fn has_promotions(&self) -> bool {
        self.device.as_ref().is_some_and(|device| !device.promoted.is_empty())
    }

    /// Takes in experts whose copies are done, and those up to a fence, which what is recorded from now on
    /// waits for.
    ///
    /// # Errors
    /// A failed device.
    pub(super) fn end_promotions(
        &mut self,
        awaited: CopyFence,
        encoder: &mut B::Encoder<'_>,
    ) -> Result<(), EngineError> {
        let Some(device) = self.device.as_mut().filter(|device| !device.promoted.is_empty()) else {
            return Ok(());
        };
        let completed = device.slots.completed_copies(encoder, awaited)?;
        while let Some(promoted) = device.promoted.pop_front_if(|first| first.fence <= completed) {
            let Promoted { id, planes, place, weights, .. } = promoted;
            device.tier.set_moved(id);
            for id in planes_of(id, planes) {
                let left = device.tier.take(id);
                self.stats.recalled_bytes += left.map_or(0, |plane| (*plane).as_ref().len() as u64);
                self.residency.arrived(id);
            }
            let slots = self.slots.get_mut(id.layer as usize);
            if let Some(slot) = slots.and_then(|slots| slots.get_mut(id.expert as usize)) {
                slot.moved_in(place, weights, planes);
            }
            // Planes above them may have come meanwhile.
            device.arrived(id);
            device.changed(id);
            self.stats.promoted_experts += 1;
        }
        Ok(())
    }
}
