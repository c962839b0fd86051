//! What one layer wants of streamed experts, from its request to the last expert given.

use std::ops::Range;
use std::sync::Arc;

use nestling_formats::store::GroupId;
use nestling_formats::{ExpertId, Level, Plane};

use super::streamed::StreamedExperts;
use super::tag::{plane_of, tag_of};
use super::wanted::{LatePlanes, Progress, Wanted};
use crate::reads::{ReadClass, ReadDone};
use crate::residency::{Admission, PlaneId, PlaneState};
use nestling_core::backend::{Backend, CopyFence, Encoder, ExpertUse, FeedForward, PinnedExpert};
use nestling_core::clock::Moment;
use nestling_core::error::EngineError;

/// Experts that are given at once while others wait for the memory of those that were computed.
const GIVEN_AT_ONCE: usize = 8;

impl<B: Backend> StreamedExperts<B> {
    /// Starts one layer's request: counts its uses, pins what is there, reads what is missing.
    /// `experts` ascend, each with its rows' range in the uses.
    ///
    /// # Errors
    /// An expert that the layer does not have; as [`StreamedExperts::change_memory`].
    pub fn begin(
        &mut self,
        layer: u32,
        experts: impl Iterator<Item = (u32, Range<usize>)>,
        uses: &[ExpertUse],
        late: LatePlanes,
        encoder: &mut B::Encoder<'_>,
    ) -> Result<(), EngineError> {
        self.late = late;
        self.residency.set_worth(late.worth());
        self.jobs.later.clear();
        self.change_memory(encoder)?;
        self.end_promotions(CopyFence::default(), encoder)?;
        while let Some(done) = self.reads.try_next() {
            // Nobody waits for it any more: whoever wants it later asks again.
            let _ = self.arrive(done);
        }
        let count = self.extents.experts_of(layer);
        for (expert, range) in experts {
            if expert as usize >= count {
                let expected = format!("an expert below {count}");
                let what = format!("routing of layer {layer}");
                return Err(EngineError::mismatch(what, expected, expert));
            }
            let rows = &uses[range.clone()];
            let planes = self.count_use(ExpertId { layer, expert }, rows);
            let progress = Progress::Unplaced;
            self.wanted.push(Wanted { expert, planes, uses: range, cut: None, progress });
        }
        self.judge_ahead(layer);
        self.leave_to_host(layer);
        self.await_promotions(layer, encoder)?;
        self.place(layer);
        Ok(())
    }

    /// Counts that rows use an expert, before anything is done about planes that are missing; gives how
    /// many planes they need.
    fn count_use(&mut self, id: ExpertId, rows: &[ExpertUse]) -> usize {
        let ExpertId { layer, expert } = id;
        let planes = self.extents.planes_wanted(id, rows);
        self.residency.used(layer, expert, planes, rows.len() as u32);
        let bits: u64 = rows.iter().map(|used| u64::from(used.level.bits())).sum();
        self.stats.asked_bits += bits;
        let resident = self.residency.resident(layer, expert);
        let mut is_hit = true;
        for plane in Plane::ALL.into_iter().take(planes) {
            let id = PlaneId { layer, expert, plane };
            let bytes = self.extents.bytes(id);
            self.stats.wanted_bytes += bytes;
            if plane.index() >= resident {
                self.stats.missing_bytes[plane.index()] += bytes;
                is_hit = false;
            } else if self.ahead.planes.contains(&id) {
                self.stats.ahead_bytes += bytes;
                is_hit = false;
            }
        }
        self.stats.expert_hits += u64::from(is_hit);
        self.stats.expert_misses += u64::from(!is_hit);
        planes
    }

    /// Counts the uses of an expert that a device found by itself, and gives it.
    pub fn count_found(&mut self, id: ExpertId, rows: &[ExpertUse]) -> Option<Arc<FeedForward<B>>> {
        self.count_use(id, rows);
        self.stats.served_bits += rows.iter().map(|used| u64::from(used.level.bits())).sum::<u64>();
        let slots = self.slots.get(id.layer as usize)?;
        Some(Arc::clone(slots.get(id.expert as usize)?.bound()?.0))
    }

    /// Pins what can be, and reads what is missing of it. An expert gets room for all its planes
    /// or waits until others were computed; those behind it wait too, so that it has its turn.
    fn place(&mut self, layer: u32) {
        let unplaced = |wanted: &Wanted| wanted.progress == Progress::Unplaced;
        if !self.wanted.iter().any(unplaced) {
            return;
        }
        let mut wanted = std::mem::take(&mut self.wanted);
        for one in wanted.iter_mut().filter(|one| unplaced(one)) {
            if self.residency.resident(layer, one.expert) >= one.planes {
                self.residency.pin(layer, one.expert);
                one.progress = Progress::Placed;
            }
        }
        for one in wanted.iter_mut().filter(|one| unplaced(one)) {
            self.residency.pin(layer, one.expert);
            if !self.admit(layer, one.expert, self.late.awaited(one.planes)) {
                self.residency.unpin(layer, one.expert);
                break;
            }
            one.progress = Progress::Placed;
            self.jobs.read_later(layer, one.expert, self.late.awaited(one.planes)..one.planes);
        }
        self.jobs.later.make_contiguous().sort_by_key(|id| id.plane);
        self.wanted = wanted;
        self.drop_evicted();
        self.order_jobs();
        self.submit_jobs(ReadClass::Urgent);
    }

    /// Room for the planes of an expert that are missing; false if there is none for one of them.
    fn admit(&mut self, layer: u32, expert: u32, planes: usize) -> bool {
        for plane in Plane::ALL.into_iter().take(planes) {
            let id = PlaneId { layer, expert, plane };
            match self.residency.state(id) {
                PlaneState::Resident => {}
                PlaneState::Reading => self.reads.promote(tag_of(id)),
                PlaneState::Absent => {
                    if !self.residency.admit(id, Admission::Needed, &mut self.evicted) {
                        return false;
                    }
                    self.jobs.planes.push(id);
                }
            }
        }
        true
    }

    /// Experts whose planes are all there, bound to them; none once all have been given, and none where
    /// the processor has experts to compute before anything is waited for.
    ///
    /// # Errors
    /// A read that failed; planes that do not make an expert.
    pub async fn next<'a>(
        &mut self,
        layer: u32,
        uses: &'a [ExpertUse],
        encoder: &mut B::Encoder<'_>,
        ready: &mut Vec<PinnedExpert<'a, B>>,
    ) -> Result<(), EngineError> {
        loop {
            self.release_given(layer);
            self.place(layer);
            while let Some(done) = self.reads.try_next() {
                self.arrive_for(layer, done)?;
            }
            self.read_late();
            self.give(layer, uses, encoder, ready)?;
            if ready.is_empty() && self.late == LatePlanes::LeaveOut {
                self.leave_out(layer);
                self.give(layer, uses, encoder, ready)?;
            }
            if !ready.is_empty() || self.wanted.is_empty() || self.has_host_work() {
                return Ok(());
            }
            if self.wanted.iter().all(|one| one.progress == Progress::Unplaced)
                && self.reads.outstanding() == 0
            {
                if self.has_promotions() {
                    // What is on its way takes the room, and may leave once it is there.
                    self.end_promotions(CopyFence::ALL, encoder)?;
                    continue;
                }
                return Err(self.no_room(layer));
            }
            encoder.flush()?;
            let started = Moment::now();
            let done = std::future::poll_fn(|context| self.reads.poll_next(context)).await;
            self.stats.wait_ns += (Moment::now().seconds_since(started) * 1e9) as u64;
            self.arrive_for(layer, done)?;
        }
    }

    /// Takes in a read; one that failed matters if this layer wants it.
    fn arrive_for(&mut self, layer: u32, done: ReadDone) -> Result<(), EngineError> {
        let id = plane_of(done.tag);
        let wants = |one: &Wanted| one.expert == id.expert && one.planes > id.plane.index();
        let wanted = id.layer == layer && self.wanted.iter().any(wants);
        match self.arrive(done) {
            Err(error) if wanted => Err(error),
            Err(error) => {
                tracing::debug!(%error, "a read that nobody waits for failed");
                Ok(())
            }
            Ok(()) => Ok(()),
        }
    }

    /// Cuts experts down to the planes that are there, those that have their first.
    fn leave_out(&mut self, layer: u32) {
        let placed = |one: &&mut Wanted| one.progress == Progress::Placed;
        for one in self.wanted.iter_mut().filter(placed) {
            let there = self.residency.resident(layer, one.expert);
            if there == 0 || there >= one.planes {
                continue;
            }
            one.planes = there;
            one.cut = Level::ALL.get(there - 1).copied();
        }
    }

    /// The highest level that an expert was given at, where planes were left out.
    pub fn cut(&self, expert: u32) -> Option<Level> {
        self.wanted.iter().find(|one| one.expert == expert).and_then(|one| one.cut)
    }

    fn no_room(&self, layer: u32) -> EngineError {
        let expected = "memory for one of them";
        let found = format!("a budget of {} bytes", self.residency.budget_bytes());
        EngineError::mismatch(format!("experts of layer {layer}"), expected, found)
    }

    fn give<'a>(
        &mut self,
        layer: u32,
        uses: &'a [ExpertUse],
        encoder: &mut B::Encoder<'_>,
        ready: &mut Vec<PinnedExpert<'a, B>>,
    ) -> Result<(), EngineError> {
        self.move_out(encoder)?;
        let crowded = self.wanted.iter().any(|one| one.progress == Progress::Unplaced);
        let most = if crowded { GIVEN_AT_ONCE } else { usize::MAX };
        let mut wanted = std::mem::take(&mut self.wanted);
        let mut result = Ok(());
        for one in wanted.iter_mut().filter(|one| one.progress == Progress::Placed) {
            if ready.len() >= most {
                break;
            }
            if self.residency.resident(layer, one.expert) < one.planes {
                continue;
            }
            let id = ExpertId { layer, expert: one.expert };
            let slot = self.slots.get_mut(layer as usize);
            let slot = slot.and_then(|slots| slots.get_mut(one.expert as usize));
            let missing =
                || EngineError::mismatch(GroupId::Expert(id).to_string(), "a slot", "none");
            let slot = slot.ok_or_else(missing);
            let bound = slot.and_then(|slot| match &mut self.device {
                None => slot.bind(id, one.planes, &self.maker, encoder),
                Some(device) => {
                    device.changed(id);
                    slot.put_in_place(id, &self.maker, device, encoder)
                }
            });
            match bound {
                Ok(weights) => {
                    one.progress = Progress::Given;
                    let uses = &uses[one.uses.clone()];
                    let most = one.cut.unwrap_or(Level::L8);
                    let bits = uses.iter().map(|used| u64::from(used.level.min(most).bits()));
                    self.stats.served_bits += bits.sum::<u64>();
                    ready.push(PinnedExpert { expert: one.expert, weights, uses });
                }
                Err(error) => {
                    result = Err(error);
                    break;
                }
            }
        }
        self.wanted = wanted;
        result
    }

    /// Unpins what was given: it has been computed. So has what the processor was given, if it has nothing
    /// to compute any more.
    fn release_given(&mut self, layer: u32) {
        let has_host_work = self.has_host_work();
        let residency = &mut self.residency;
        self.wanted.retain(|one| {
            if one.progress == Progress::OnHost {
                return has_host_work;
            }
            let given = one.progress == Progress::Given;
            if given {
                residency.unpin(layer, one.expert);
            }
            !given
        });
    }

    /// Ends a request, whether or not all was given.
    pub fn end(&mut self, layer: u32) {
        for one in self.wanted.drain(..) {
            if matches!(one.progress, Progress::Placed | Progress::Given) {
                self.residency.unpin(layer, one.expert);
            }
        }
        self.end_on_host();
    }
}
