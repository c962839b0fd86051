//! Transfers between device and host memory: evicted planes, promoted experts, and resizing of both tiers.

use nestling_formats::{ExpertId, InternalError, Invariant, Plane, invariant};

use super::device_tier::PromotedExpert;
use super::{StreamedExperts, spare_bytes};
use crate::residency::{Admission, PlaneId, PlaneState};
use nestling_core::backend::{Backend, CopyFence, ExpertUse, FeedForward};
use nestling_core::error::EngineError;
use nestling_cpu::Cpu;

impl<B: Backend> StreamedExperts<B> {
    /// Moves experts to slots in device memory, if the device supports them.
    ///
    /// # Errors
    /// Returns an error if device memory does not fit one slot, or no slot fits the experts.
    pub fn enable_device_slots(
        &mut self,
        backend: &mut B,
    ) -> Result<Vec<Option<B::ExpertTable>>, EngineError> {
        let tables = self.device.enable_slots(backend, self.residency.budget_bytes())?;
        let Some(slots) = self.device.slot_count() else {
            self.read_all()?;
            return Ok(tables);
        };
        self.residency.set_slot_capacity(slots, &mut self.evicted);
        if self.host.may_compute()
            && let Some(link) = self.device.host_link(backend)?
        {
            self.host.enable_cpu(link)?;
        }
        Ok(tables)
    }

    /// Computes the CPU's experts while the device computes its own, and writes the results to their rows of
    /// `out`. Frequently used experts are promoted to the device. `each` is called for each expert.
    ///
    /// # Errors
    /// Returns an error if the device fails.
    pub fn compute_on_host(
        &mut self,
        uses: &[ExpertUse],
        per_token: usize,
        out: &mut B::Buffer, // [T * K, hidden_size]
        encoder: &mut B::Encoder<'_>,
        each: &mut dyn FnMut(&FeedForward<Cpu>, &[ExpertUse]),
    ) -> Result<(), EngineError> {
        if !self.host.has_work() {
            return Ok(());
        }
        self.host.compute(uses, per_token, out, encoder, &mut self.stats, each)?;
        let mut computed = self.host.take_work();
        // Copies earlier evictions first, because a promotion may reuse their slots.
        let mut promoted = self.demote_evicted(encoder);
        for one in computed.drain(..) {
            promoted = promoted.and_then(|()| self.promote(one.id, one.planes, encoder));
        }
        self.host.recycle(computed);
        self.host.end();
        promoted
    }

    /// Promotes an expert in place of a resident one that is used much less. It becomes visible when its
    /// copies are done ([`StreamedExperts::land_promotions`]).
    ///
    /// # Errors
    /// Returns an error if the device fails.
    fn promote(
        &mut self,
        id: ExpertId,
        planes: usize,
        encoder: &mut B::Encoder<'_>,
    ) -> Result<(), EngineError> {
        let Self { residency, evicted, .. } = self;
        let mut admit = |id: &PlaneId| residency.admit(*id, Admission::Promotion, evicted);
        let planes = PlaneId::first(id, planes).take_while(&mut admit).count();
        let leaves_one =
            self.evicted.windows(2).all(|pair| pair[0].expert_id() == pair[1].expert_id());
        self.drop_evicted()?;
        if planes == 0 {
            return Ok(());
        }
        if !leaves_one {
            // Copies evicted planes before their slots can be reused.
            self.demote_evicted(encoder)?;
        }
        let Self { fetcher, device, host, residency, .. } = self;
        let held = host.prefix(id, planes);
        invariant!(held.len() == planes, "what the CPU computed of stays in host memory");
        let is_moving = device.promote(id, &held, encoder, |device, encoder| {
            host.demote_evicted(residency, fetcher.extents(), device, encoder)
        })?;
        if is_moving {
            host.set_moving(id);
        } else {
            PlaneId::first(id, planes).for_each(|id| residency.failed(id));
        }
        Ok(())
    }

    /// Makes subsequently recorded work wait for promotions of experts that the device will compute for this
    /// request.
    pub(super) fn await_promotions(
        &mut self,
        encoder: &mut B::Encoder<'_>,
    ) -> Result<(), EngineError> {
        if !self.device.has_promotions() {
            return Ok(());
        }
        let layer = self.request.layer();
        let ids = self.request.of_device().map(|expert| ExpertId { layer, expert });
        let awaited = ids.filter_map(|id| self.device.promotion_of(id)).max();
        awaited.map_or(Ok(()), |fence| self.land_promotions(fence, encoder))
    }

    /// Completes promotions whose copies are done, and promotions up to the fence `awaited`. Subsequently
    /// recorded work waits for the latter.
    pub(super) fn land_promotions(
        &mut self,
        awaited: CopyFence,
        encoder: &mut B::Encoder<'_>,
    ) -> Result<(), EngineError> {
        if !self.device.has_promotions() {
            return Ok(());
        }
        let completed = self.device.completed_copies(awaited, encoder)?;
        while let Some(PromotedExpert { id, planes }) = self.device.land_promotion(completed)? {
            self.host.set_moved(id);
            for id in PlaneId::first(id, planes) {
                let left = self.host.take(id);
                self.stats.recalled_bytes += left.map_or(0, |plane| (*plane).as_ref().len() as u64);
                self.residency.arrived(id);
            }
            self.stats.promoted_experts += 1;
        }
        Ok(())
    }

    /// Copies arrived planes to slots and updates the device's tables.
    ///
    /// # Errors
    /// Returns an error if the device fails.
    pub fn publish(
        &mut self,
        tables: &mut [Option<B::ExpertTable>],
        encoder: &mut B::Encoder<'_>,
    ) -> Result<(), EngineError> {
        self.demote_evicted(encoder)?;
        self.land_promotions(CopyFence::default(), encoder)?;
        self.take_in_unwanted()?;
        self.device.place_arrived(encoder)?;
        self.device.publish(tables, self.fetcher.extents(), encoder)
    }

    /// Applies the limits requested through [`ExpertMemory`].
    ///
    /// # Errors
    /// Returns an error if the budget does not fit one token's experts of one layer; the old budget then
    /// stays.
    pub fn change_memory(&mut self, encoder: &mut B::Encoder<'_>) -> Result<(), EngineError> {
        let mut result = Ok(());
        let (wanted, shed) = (self.memory.take_wanted(), self.memory.take_shed());
        if wanted.is_some() || shed > 0 {
            self.stop_reading_all();
            // Planes of a promotion in progress cannot be evicted.
            self.land_promotions(CopyFence::ALL, encoder)?;
        }
        if let Some(wanted) = wanted {
            let spare = spare_bytes(wanted, self.residency.table(), self.spare_max);
            result = self.residency.set_budget(wanted - spare, &mut self.evicted);
            if result.is_ok() {
                self.fetcher.set_memory_bytes(wanted, spare);
                result = self.resize_slots(wanted - spare, encoder);
            }
        }
        if shed > 0 {
            let shed = shed.saturating_sub(self.host.shed(shed));
            self.residency.shed(shed, &mut self.evicted);
        }
        self.drop_evicted()?;
        result
    }

    fn resize_slots(
        &mut self,
        bytes: u64,
        encoder: &mut B::Encoder<'_>,
    ) -> Result<(), EngineError> {
        if self.device.slot_count().is_none() {
            return Ok(());
        }
        for id in self.device.lost_at(bytes) {
            // Planes being read are dropped when they arrive.
            for id in PlaneId::first(id, Plane::ALL.len()) {
                if self.residency.state(id) == PlaneState::Reading {
                    self.residency.failed(id);
                }
            }
            self.residency.discard(id.layer, id.expert, &mut self.evicted);
        }
        self.drop_evicted()?;
        self.demote_evicted(encoder)?;
        let resized = self.device.resize(bytes, encoder);
        let slots = self.device.slot_count().invariant("the device has slots")?;
        self.residency.set_slot_capacity(slots, &mut self.evicted);
        self.drop_evicted()?;
        resized
    }

    /// Copies evicted planes to host memory where there is space. Must run before their slots are
    /// overwritten.
    pub(super) fn demote_evicted(
        &mut self,
        encoder: &mut B::Encoder<'_>,
    ) -> Result<(), EngineError> {
        let Self { fetcher, device, host, residency, .. } = self;
        host.demote_evicted(residency, fetcher.extents(), device, encoder)
    }

    /// Drops planes that residency has evicted.
    pub(super) fn drop_evicted(&mut self) -> Result<(), InternalError> {
        let Self { device, host, evicted, .. } = self;
        for id in evicted.drain(..) {
            if let Some(weights) = device.evict(id)? {
                host.note_evicted(id, weights);
            }
        }
        let held = self.device.taken_bytes().unwrap_or_else(|| self.residency.used_bytes());
        self.memory.set_used(held);
        Ok(())
    }
}
