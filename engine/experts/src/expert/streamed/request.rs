//! State machine of one layer's request for streamed experts, independent of reads and devices.
//!
//! ```text
//!          want            pin            give            release
//!  begin ──────► Waiting ──────► Pinned ──────► Given ───────────────► gone
//!                   │            │    ▲                                  ▲
//!                   │            └────┘ leave_out_late                   │
//!                   │                                                    │
//!                   │ leave_to_cpu                    release            │
//!                   └──────────────► OnCpu ──────────────────────────────┘
//!
//!  end: from every state to gone
//! ```
//!
//! *Waiting*: there is no space for its planes yet. *Pinned*: it has space, and its planes are resident or
//! being read. *Given*: the device computes it. *OnCpu*: the CPU computes it from planes in host memory.
//! Planes of pinned and given experts cannot be evicted. Releasing them or ending the request unpins them.

use std::ops::Range;

use nestling_formats::{InternalError, Invariant, Level, invariant};

use crate::residency::{PlaneId, RetentionGoal};
use nestling_core::batch::LevelPolicy;

/// Maximum number of experts given at once while others wait for their memory.
const GIVEN_AT_ONCE: usize = 8;

/// Treatment of planes that are late: not arrived when there is nothing else to compute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::expert) enum LatePlanes {
    /// Wait for them.
    WaitFor,
    /// Leave them out, except P2.
    LeaveOut,
}

impl LatePlanes {
    /// Returns the goal that resident planes are scored for.
    pub fn goal(self) -> RetentionGoal {
        match self {
            Self::WaitFor => RetentionGoal::Bytes,
            Self::LeaveOut => RetentionGoal::Error,
        }
    }

    /// Returns the number of requested planes to wait for.
    pub fn awaited(self, planes: usize) -> usize {
        match self {
            Self::WaitFor => planes,
            Self::LeaveOut => planes.min(1),
        }
    }

    /// Leaves planes out if all rows of a step allow it.
    pub fn of(policies: &[LevelPolicy]) -> Self {
        if policies.iter().all(|levels| levels.leaves_out_late()) {
            Self::LeaveOut
        } else {
            Self::WaitFor
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ExpertState {
    /// Waiting for space for its planes.
    Waiting,
    /// Resident or being read, and protected from eviction.
    Pinned,
    /// Pinned, and computed by the device.
    Given,
    /// Computed by the CPU from planes in host memory.
    OnCpu,
}

#[derive(Clone, Debug)]
pub(super) struct RequestedExpert {
    expert: u32,
    planes: usize,
    uses: Range<usize>,
    cut: Option<Level>,
    state: ExpertState,
}

impl RequestedExpert {
    /// Returns the index of the expert in its layer.
    pub fn expert(&self) -> u32 {
        self.expert
    }

    /// Returns the number of planes its rows need, from the first, without late planes that were left out.
    pub fn planes(&self) -> usize {
        self.planes
    }

    /// Returns the range of its rows in the request's uses.
    pub fn uses(&self) -> Range<usize> {
        self.uses.clone()
    }

    /// Returns the highest level of its planes, if late ones were left out.
    pub fn cut(&self) -> Option<Level> {
        self.cut
    }

    fn is_pinned(&self) -> bool {
        matches!(self.state, ExpertState::Pinned | ExpertState::Given)
    }
}

/// The experts requested by one layer, until the last one is computed.
#[derive(Debug)]
pub(super) struct LayerRequest {
    layer: u32,
    late: LatePlanes,
    /// Sorted by expert.
    experts: Vec<RequestedExpert>,
}

impl LayerRequest {
    pub fn none() -> Self {
        Self { layer: 0, late: LatePlanes::WaitFor, experts: Vec::new() }
    }

    /// Starts the request of a layer.
    ///
    /// # Errors
    /// [`InternalError`] if the previous request has not ended.
    pub fn begin(&mut self, layer: u32, late: LatePlanes) -> Result<(), InternalError> {
        invariant!(self.experts.is_empty(), "the request before has ended");
        (self.layer, self.late) = (layer, late);
        Ok(())
    }

    /// Adds the first planes of an expert to the request. Experts must ascend.
    ///
    /// # Errors
    /// [`InternalError`] if the expert does not follow the previous one.
    pub fn want(
        &mut self,
        expert: u32,
        planes: usize,
        uses: Range<usize>,
    ) -> Result<(), InternalError> {
        let follows = self.experts.last().is_none_or(|last| last.expert < expert);
        invariant!(follows, "the experts of a request ascend");
        let state = ExpertState::Waiting;
        self.experts.push(RequestedExpert { expert, planes, uses, cut: None, state });
        Ok(())
    }

    pub fn layer(&self) -> u32 {
        self.layer
    }

    pub fn late(&self) -> LatePlanes {
        self.late
    }

    pub fn is_done(&self) -> bool {
        self.experts.is_empty()
    }

    pub fn all_wait(&self) -> bool {
        self.experts.iter().all(|one| one.state == ExpertState::Waiting)
    }

    /// Returns the position of the first expert in a state, starting at position `from`.
    pub fn find(&self, state: ExpertState, from: usize) -> Option<usize> {
        let mut later = self.experts.iter().enumerate().skip(from);
        later.find(|(_, one)| one.state == state).map(|(at, _)| at)
    }

    /// Returns an expert by its position in the request.
    ///
    /// # Errors
    /// [`InternalError`] if the position is out of range.
    pub fn at(&self, at: usize) -> Result<&RequestedExpert, InternalError> {
        self.experts.get(at).invariant("the place is one of the request")
    }

    pub fn expert(&self, expert: u32) -> Option<&RequestedExpert> {
        self.experts.iter().find(|one| one.expert == expert)
    }

    /// Returns the experts that the device computes, or will compute.
    pub fn of_device(&self) -> impl Iterator<Item = u32> + '_ {
        let of_device = self.experts.iter().filter(|one| one.state != ExpertState::OnCpu);
        of_device.map(|one| one.expert)
    }

    pub fn wants(&self, id: PlaneId) -> bool {
        let wants =
            |one: &RequestedExpert| one.expert == id.expert && one.planes > id.plane.index();
        id.layer == self.layer && self.experts.iter().any(wants)
    }

    /// Returns the maximum number of experts given at once.
    pub fn given_at_once(&self) -> usize {
        let is_crowded = self.find(ExpertState::Waiting, 0).is_some();
        if is_crowded { GIVEN_AT_ONCE } else { usize::MAX }
    }

    fn take_from(
        &mut self,
        at: usize,
        from: ExpertState,
    ) -> Result<&mut RequestedExpert, InternalError> {
        let one = self.experts.get_mut(at).invariant("the place is one of the request")?;
        invariant!(one.state == from, "an expert changes its state as the diagram says");
        Ok(one)
    }

    /// Moves a waiting expert to *Pinned*. Its planes must have space and be pinned.
    ///
    /// # Errors
    /// [`InternalError`] if the expert is not waiting.
    pub fn pin(&mut self, at: usize) -> Result<(), InternalError> {
        self.take_from(at, ExpertState::Waiting)?.state = ExpertState::Pinned;
        Ok(())
    }

    /// Moves a waiting expert to *OnCpu*.
    ///
    /// # Errors
    /// [`InternalError`] if the expert is not waiting.
    pub fn leave_to_cpu(&mut self, at: usize) -> Result<(), InternalError> {
        self.take_from(at, ExpertState::Waiting)?.state = ExpertState::OnCpu;
        Ok(())
    }

    /// Limits a pinned expert to its first `there` planes, leaving out late ones.
    ///
    /// # Errors
    /// [`InternalError`] if the expert is not pinned, rows wait for all planes, or no plane is resident.
    pub fn leave_out_late(&mut self, at: usize, there: usize) -> Result<(), InternalError> {
        invariant!(self.late == LatePlanes::LeaveOut, "every row of the step is elastic");
        let one = self.take_from(at, ExpertState::Pinned)?;
        invariant!((1..one.planes).contains(&there), "some planes are there and some are late");
        one.cut = Level::ALL.get(there - 1).copied();
        one.planes = there;
        Ok(())
    }

    /// Moves a pinned expert with `there` resident planes to *Given*.
    ///
    /// # Errors
    /// [`InternalError`] if the expert is not pinned or lacks planes.
    pub fn give(&mut self, at: usize, there: usize) -> Result<(), InternalError> {
        let one = self.take_from(at, ExpertState::Pinned)?;
        invariant!(there >= one.planes, "all planes are there that are waited for");
        one.state = ExpertState::Given;
        Ok(())
    }

    /// Removes computed experts: the given ones, and the CPU's if `cpu_is_done`. Calls `unpin` for each
    /// pinned one.
    pub fn release(&mut self, cpu_is_done: bool, mut unpin: impl FnMut(u32)) {
        self.experts.retain(|one| match one.state {
            ExpertState::Waiting | ExpertState::Pinned => true,
            ExpertState::OnCpu => !cpu_is_done,
            ExpertState::Given => {
                unpin(one.expert);
                false
            }
        });
    }

    /// Ends the request in any state. Calls `unpin` for each pinned expert.
    pub fn end(&mut self, mut unpin: impl FnMut(u32)) {
        for one in self.experts.drain(..).filter(RequestedExpert::is_pinned) {
            unpin(one.expert);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(late: LatePlanes) -> LayerRequest {
        let mut request = LayerRequest::none();
        request.begin(3, late).unwrap();
        for (expert, planes) in [(1, 2), (4, 3), (9, 1)] {
            request.want(expert, planes, 0..1).unwrap();
        }
        request
    }

    fn unpinned(end: impl FnOnce(&mut dyn FnMut(u32))) -> Vec<u32> {
        let mut unpinned = Vec::new();
        end(&mut |expert| unpinned.push(expert));
        unpinned
    }

    #[test]
    fn every_pin_is_taken_back_once() {
        let mut request = request(LatePlanes::WaitFor);
        request.pin(0).unwrap();
        request.leave_to_cpu(1).unwrap();
        request.give(0, 5).unwrap();
        assert!(!request.all_wait());
        assert_eq!(request.of_device().collect::<Vec<_>>(), [1, 9]);
        assert_eq!(unpinned(|unpin| request.release(false, unpin)), [1]);
        assert_eq!(request.find(ExpertState::OnCpu, 0), Some(0));
        assert!(unpinned(|unpin| request.release(true, unpin)).is_empty());
        assert!(request.all_wait() && !request.is_done());
        request.pin(0).unwrap();
        assert_eq!(unpinned(|unpin| request.end(unpin)), [9]);
        assert!(request.is_done());
        request.begin(4, LatePlanes::LeaveOut).unwrap();
    }

    #[test]
    fn late_planes_lower_what_is_waited_for_and_the_level() {
        let mut request = request(LatePlanes::LeaveOut);
        request.pin(1).unwrap();
        request.leave_out_late(1, 2).unwrap();
        let one = request.expert(4).unwrap();
        assert_eq!((one.planes(), one.cut()), (2, Some(Level::L3)));
        request.give(1, 2).unwrap();
    }

    #[test]
    fn experts_give_way_to_each_other_only_while_some_wait() {
        let mut request = request(LatePlanes::WaitFor);
        assert_eq!(request.given_at_once(), GIVEN_AT_ONCE);
        (0..3).for_each(|at| request.pin(at).unwrap());
        assert_eq!(request.given_at_once(), usize::MAX);
    }

    /// Returns whether a transition is rejected with an error or a panic.
    fn is_refused(
        late: LatePlanes,
        step: impl Fn(&mut LayerRequest) -> Result<(), InternalError>,
    ) -> bool {
        let step = std::panic::AssertUnwindSafe(|| step(&mut request(late)));
        !matches!(std::panic::catch_unwind(step), Ok(Ok(())))
    }

    #[test]
    fn what_the_diagram_lacks_is_an_internal_error() {
        use LatePlanes::{LeaveOut, WaitFor};
        assert!(!is_refused(WaitFor, |request| request.pin(0)));
        assert!(is_refused(WaitFor, |request| request.give(0, 5)), "it waits");
        assert!(is_refused(WaitFor, |request| request.begin(4, WaitFor)), "one is under way");
        assert!(is_refused(WaitFor, |request| request.want(9, 1, 0..1)), "there twice");
        assert!(is_refused(WaitFor, |request| request.pin(3)), "there are three");
        let pinned = |then: fn(&mut LayerRequest) -> Result<(), InternalError>| {
            move |request: &mut LayerRequest| request.pin(1).and_then(|()| then(request))
        };
        assert!(!is_refused(LeaveOut, pinned(|request| request.leave_out_late(1, 1))));
        assert!(is_refused(LeaveOut, pinned(|request| request.leave_out_late(1, 3))));
        assert!(is_refused(LeaveOut, pinned(|request| request.leave_out_late(1, 0))));
        assert!(is_refused(WaitFor, pinned(|request| request.leave_out_late(1, 1))));
        assert!(is_refused(WaitFor, pinned(|request| request.give(1, 2))), "a plane is missing");
        assert!(is_refused(WaitFor, pinned(|request| request.pin(1))), "it is");
        assert!(is_refused(WaitFor, pinned(|request| request.leave_to_cpu(1))));
        assert!(!is_refused(WaitFor, pinned(|request| request.give(1, 3))));
    }
}
