//! Which planes are read for a layer, and in what order: those that it misses, and those that the
//! next one is predicted to want.

use std::ops::Range;

use nestling_formats::{ExpertId, Plane};

use super::jobs::Jobs;
use super::streamed::StreamedExperts;
use super::tag::tag_of;
use super::wanted::{LatePlanes, Wanted};
use crate::reads::{ReadClass, ReadRequest};
use crate::residency::order::{Job, OrderRule};
use crate::residency::{Admission, PlaneId, PlaneState};
use nestling_core::backend::{Backend, ExpertUse};

/// How much faster an expert is computed with than read, about: only orders of reads depend on it.
const READ_SHARE: u64 = 10;

/// Reads for each of the depth of which fewer keep a disk busy for less than a layer takes, about.
const DRY_READS: usize = 2;

/// Rows that are computed in the time of one or two.
const ROWS_TOGETHER: u64 = 4;

impl<B: Backend> StreamedExperts<B> {
    /// Whether a prediction of what the layer so many layers behind this one wants is worth its making.
    /// Beyond the next one it is only where predictions are good and the disk would have nothing to do.
    pub fn reads_ahead(&self, distance: usize) -> bool {
        if distance <= 1 {
            return self.ahead.is_wanted();
        }
        let is_dry = || self.reads.outstanding() < DRY_READS * self.depth;
        self.ahead.is_wanted_further() && self.late == LatePlanes::WaitFor && is_dry()
    }

    /// Reads what a layer is predicted to want, as far as there is room that is worth less.
    pub fn read_ahead(
        &mut self,
        layer: u32,
        experts: impl Iterator<Item = (u32, Range<usize>)>,
        uses: &[ExpertUse],
    ) {
        let of_this_layer = self.jobs.later.len();
        for (expert, range) in experts {
            let rows = &uses[range];
            let planes = self.extents.planes_wanted(ExpertId { layer, expert }, rows);
            self.residency.expect(layer, expert);
            let awaited = self.late.awaited(planes);
            for plane in Plane::ALL.into_iter().take(awaited) {
                let id = PlaneId { layer, expert, plane };
                if self.residency.state(id) == PlaneState::Absent {
                    if !self.residency.admit(id, Admission::Prefetch, &mut self.evicted) {
                        break;
                    }
                    self.jobs.planes.push(id);
                    self.ahead.planes.push(id);
                }
            }
            self.jobs.read_later(layer, expert, awaited..planes);
        }
        // In time for the next layer, which this layer's are not any more.
        self.jobs.later.rotate_left(of_this_layer);
        let ahead = self.jobs.later.len() - of_this_layer;
        self.jobs.later.make_contiguous()[..ahead].sort_by_key(|id| id.plane);
        self.drop_evicted();
        self.submit_jobs(ReadClass::Idle);
        self.read_late();
    }

    /// Begins reads that nobody waits for, as many as the disk has time for. Room is made when a read
    /// begins and not before, and of nothing that is worth as much, or planes would leave for others
    /// that never come.
    pub(super) fn read_late(&mut self) {
        while self.reads.outstanding() < self.depth {
            let Some(id) = self.jobs.later.pop_front() else { break };
            if self.residency.state(id) == PlaneState::Absent
                && self.residency.admit(id, Admission::Worthwhile, &mut self.evicted)
            {
                self.jobs.planes.push(id);
                self.drop_evicted();
                self.submit_jobs(ReadClass::Idle);
            }
        }
    }

    /// What was read ahead and is not wanted is not read any more, if it has not been begun.
    pub(super) fn judge_ahead(&mut self, layer: u32) {
        let (mut read, mut used) = (0, 0);
        let mut planes = std::mem::take(&mut self.ahead.planes);
        for id in planes.extract_if(.., |id| id.layer <= layer) {
            let bytes = self.extents.bytes(id);
            let wants = |one: &Wanted| one.expert == id.expert && one.planes > id.plane.index();
            if id.layer == layer && self.wanted.iter().any(wants) {
                (read, used) = (read + bytes, used + bytes);
            } else if self.residency.state(id) == PlaneState::Reading
                && self.reads.withdraw(tag_of(id))
            {
                self.residency.failed(id);
            } else {
                read += bytes;
            }
        }
        // Those of layers behind this one are judged when these ask.
        self.ahead.planes = planes;
        self.ahead.judge(read, used, &mut self.stats);
        self.reads.set_idle_depth(self.ahead.depth());
    }

    /// The order in which all is read and computed the soonest. An expert is computed when the last
    /// of its planes is there; times are in bytes read.
    pub(super) fn order_jobs(&mut self) {
        let Self { jobs: Jobs { planes, timed, order, .. }, wanted, extents, late, .. } = self;
        timed.clear();
        timed.extend(planes.iter().map(|id| {
            let of = ExpertId { layer: id.layer, expert: id.expert };
            let one = wanted.iter().find(|one| one.expert == id.expert);
            let (planes, rows) =
                one.map_or((0, 1), |one| (late.awaited(one.planes), one.uses.len()));
            let compute = extents.prefix_bytes(of, planes) / READ_SHARE;
            let compute = compute * (rows as u64).div_ceil(ROWS_TOGETHER);
            let compute_ns = if id.plane.index() + 1 == planes { compute } else { 0 };
            let (expert, plane, rows) = (id.expert, id.plane, rows as u32);
            Job { expert, plane, rows, read_ns: extents.bytes(*id), compute_ns }
        }));
        order.sort(timed, OrderRule::Johnson);
        for (id, job) in planes.iter_mut().zip(timed) {
            (id.expert, id.plane) = (job.expert, job.plane);
        }
    }

    pub(super) fn submit_jobs(&mut self, class: ReadClass) {
        let mut planes = std::mem::take(&mut self.jobs.planes);
        for id in planes.drain(..) {
            if self.recall(id) {
                continue;
            }
            match self.extents.extent(id) {
                Some(extent) => {
                    let (tag, extent) = (tag_of(id), extent.clone());
                    self.reads.submit(ReadRequest { tag, extent, class });
                }
                None => self.residency.failed(id),
            }
        }
        self.jobs.planes = planes;
    }
}
