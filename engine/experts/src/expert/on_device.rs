//! Streamed experts in memory of a device: which slot each has, and what the device is told of them.

use std::collections::HashSet;

use nestling_formats::{ExpertId, Plane};

use super::device_slots::DeviceSlots;
use super::slot::Slot;
use super::streamed::StreamedExperts;
use crate::reads::ArrivedPlane;
use crate::residency::{PlaneId, PlaneState};
use nestling_core::backend::{Backend, CopyFence, DeviceRouting, HeldExpert, SlotMemory};
use nestling_core::error::EngineError;

impl<B: Backend> StreamedExperts<B> {
    /// Experts lie in memory of the device from now on, if it has such memory.
    ///
    /// # Errors
    /// A device whose memory has no room for one; experts that no slot fits.
    pub fn leave_to_device(
        &mut self,
        backend: &mut B,
    ) -> Result<Vec<Option<B::ExpertTable>>, EngineError> {
        let activations = self.maker.activations;
        let count = self.maker.config.layers.len();
        let shape = |layer| self.maker.source.expert_shape(layer, activations);
        let Ok(shapes) = (0..count).map(shape).collect::<Result<Vec<_>, _>>() else {
            return Ok(Vec::new());
        };
        let Some(slots) = backend.expert_slots(&shapes, self.residency.budget_bytes())? else {
            return Ok(Vec::new());
        };
        let layers = self.extents.experts_of_layers().zip(&self.maker.biases).enumerate();
        let tables = layers.map(|(layer, (experts, biases))| match experts {
            0 => Ok(None),
            _ => slots.expert_table(backend, layer, experts, biases.as_ref()),
        });
        let tables = tables.collect::<Result<_, _>>()?;
        self.residency.set_slot_capacity(slots.count(), &mut self.evicted);
        let mut device = DeviceSlots::new(slots);
        device.share_with_host(backend, self.host, &self.maker)?;
        self.device = Some(device);
        Ok(tables)
    }

    /// Makes the slots what a budget has room for.
    ///
    /// # Errors
    /// A device whose memory has no room for one expert.
    pub(super) fn resize_slots(
        &mut self,
        bytes: u64,
        encoder: &mut B::Encoder<'_>,
    ) -> Result<(), EngineError> {
        let Some(device) = &self.device else { return Ok(()) };
        let kept = device.slots.kept(bytes);
        let lost = |layer: u32, slots: &[Slot<B>]| -> Vec<ExpertId> {
            let lost = (0..).zip(slots).filter(|(_, slot)| slot.place() >= Some(kept));
            lost.map(|(expert, _)| ExpertId { layer, expert }).collect()
        };
        let layers = (0..).zip(&self.slots);
        let lost: Vec<ExpertId> = layers.flat_map(|(layer, slots)| lost(layer, slots)).collect();
        for ExpertId { layer, expert } in lost {
            // Planes on their way are not taken in when they come.
            for plane in Plane::ALL {
                let id = PlaneId { layer, expert, plane };
                if self.residency.state(id) == PlaneState::Reading {
                    self.residency.failed(id);
                }
            }
            self.residency.discard(layer, expert, &mut self.evicted);
        }
        self.drop_evicted();
        self.move_out(encoder)?;
        let Some(device) = &mut self.device else { return Ok(()) };
        let resized = device.slots.resize(encoder, bytes);
        let count = device.slots.count();
        let taken = self.slots.iter().flatten().filter_map(Slot::place);
        let taken: HashSet<usize> = taken.collect();
        device.free = (0..count).rev().filter(|slot| !taken.contains(slot)).collect();
        self.residency.set_slot_capacity(count, &mut self.evicted);
        self.drop_evicted();
        resized
    }

    /// Copies planes that leave the device to memory of the host, where there is room: before anything
    /// is put into their slots.
    ///
    /// # Errors
    /// A failed device.
    pub(super) fn move_out(&mut self, encoder: &mut B::Encoder<'_>) -> Result<(), EngineError> {
        let Self { device, maker, extents, residency, .. } = self;
        let Some(device) = device else { return Ok(()) };
        let is_absent = |id| residency.state(id) == PlaneState::Absent;
        let DeviceSlots { tier, slots, .. } = device;
        tier.move_out(&*maker.source, extents, &is_absent, slots, encoder)
    }

    /// Takes in a plane that lies in memory of the host; false if it does not.
    pub(super) fn recall(&mut self, id: PlaneId) -> bool {
        let Some(device) = &mut self.device else { return false };
        let slots = self.slots.get_mut(id.layer as usize);
        let slot = slots.and_then(|slots| slots.get_mut(id.expert as usize));
        let (Some(slot), Some(bytes)) = (slot, device.tier.take(id)) else { return false };
        self.stats.recalled_bytes += (*bytes).as_ref().len() as u64;
        slot.put(id.plane.index(), ArrivedPlane::held(bytes));
        self.residency.arrived(id);
        device.arrived(ExpertId { layer: id.layer, expert: id.expert });
        true
    }

    /// Puts planes that arrived ahead of their use into their slots.
    fn put_arrived(&mut self, encoder: &mut B::Encoder<'_>) -> Result<(), EngineError> {
        self.move_out(encoder)?;
        self.end_promotions(CopyFence::default(), encoder)?;
        while let Some(done) = self.reads.try_next() {
            // Nobody waits for it: whoever wants it asks again.
            let _ = self.arrive(done);
        }
        let Some(device) = &mut self.device else { return Ok(()) };
        for id in std::mem::take(&mut device.arrived) {
            let slots = self.slots.get_mut(id.layer as usize);
            let slot = slots.and_then(|slots| slots.get_mut(id.expert as usize));
            let Some(slot) = slot.filter(|slot| slot.has_arrived()) else { continue };
            // What is wrong with it is said where it is asked for.
            if slot.put_in_place(id, &self.maker, device, encoder).is_ok() {
                device.changed(id);
            }
        }
        Ok(())
    }

    /// Tells the tables what has changed.
    ///
    /// # Errors
    /// A failed device.
    pub fn publish(
        &mut self,
        tables: &mut [Option<B::ExpertTable>],
        encoder: &mut B::Encoder<'_>,
    ) -> Result<(), EngineError> {
        self.put_arrived(encoder)?;
        let Some(device) = &mut self.device else { return Ok(()) };
        while let Some(id) = device.changed.last().copied() {
            let slots = self.slots.get(id.layer as usize);
            let slot = slots.and_then(|slots| slots.get(id.expert as usize));
            let bound = slot.and_then(|slot| slot.bound());
            let held = bound.and_then(|(weights, planes)| {
                let level = self.extents.level_of(id, planes)?;
                Some(HeldExpert { weights, level })
            });
            if let Some(Some(table)) = tables.get_mut(id.layer as usize) {
                table.set_expert(encoder, id.expert, held)?;
            }
            device.changed.pop();
        }
        Ok(())
    }
}
