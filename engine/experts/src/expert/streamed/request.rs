//! What one layer wants of streamed experts: a state machine without reads and without a device.
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
//! *Waiting*: there is no room for its planes yet. *Pinned*: it has room, its planes are there or on
//! their way. *Given*: the device computes it. *OnCpu*: the CPU computes it where its planes lie.
//! Experts that are pinned or given keep their planes from leaving; whoever releases them or ends the
//! request unpins them.

use std::ops::Range;

use nestling_formats::{InternalError, Invariant, Level, invariant};

use crate::residency::{PlaneId, RetentionGoal};
use nestling_core::batch::LevelPolicy;

/// Experts that are given at once while others wait for the memory of those that were computed.
const GIVEN_AT_ONCE: usize = 8;

/// What is done about planes that have not arrived when there is nothing else to compute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::expert) enum LatePlanes {
    /// They are waited for.
    WaitFor,
    /// They are left out, P2 never.
    LeaveOut,
}

impl LatePlanes {
    /// What planes are kept for.
    pub fn goal(self) -> RetentionGoal {
        match self {
            Self::WaitFor => RetentionGoal::Bytes,
            Self::LeaveOut => RetentionGoal::Error,
        }
    }

    /// How many of the planes that are asked for are waited for.
    pub fn awaited(self, planes: usize) -> usize {
        match self {
            Self::WaitFor => planes,
            Self::LeaveOut => planes.min(1),
        }
    }

    /// Planes are left out where every row of a step allows it.
    pub fn of(policies: &[LevelPolicy]) -> Self {
        if policies.iter().all(|levels| levels.leaves_out_late()) {
            Self::LeaveOut
        } else {
            Self::WaitFor
        }
    }
}

/// How far an expert of a request is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ExpertState {
    /// There is no room for its planes yet.
    Waiting,
    /// Its planes are there or on their way, and none may leave.
    Pinned,
    /// Pinned, and computed by the device.
    Given,
    /// Computed by the CPU where its planes lie in host memory.
    OnCpu,
}

/// An expert that a layer wants.
#[derive(Clone, Debug)]
pub(super) struct RequestedExpert {
    expert: u32,
    planes: usize,
    uses: Range<usize>,
    cut: Option<Level>,
    state: ExpertState,
}

impl RequestedExpert {
    /// Its number within the layer.
    pub fn expert(&self) -> u32 {
        self.expert
    }

    /// Planes that its rows need, from the first, without late ones that were left out.
    pub fn planes(&self) -> usize {
        self.planes
    }

    /// Its rows in the request's uses.
    pub fn uses(&self) -> Range<usize> {
        self.uses.clone()
    }

    /// The highest level that its planes make, where late ones were left out.
    pub fn cut(&self) -> Option<Level> {
        self.cut
    }

    fn is_pinned(&self) -> bool {
        matches!(self.state, ExpertState::Pinned | ExpertState::Given)
    }
}

/// The experts that one layer wants, from its request to the last expert computed.
#[derive(Debug)]
pub(super) struct LayerRequest {
    layer: u32,
    late: LatePlanes,
    /// Ascending.
    experts: Vec<RequestedExpert>,
}

impl LayerRequest {
    /// Nothing is wanted yet.
    pub fn none() -> Self {
        Self { layer: 0, late: LatePlanes::WaitFor, experts: Vec::new() }
    }

    /// A layer begins to want experts.
    ///
    /// # Errors
    /// [`InternalError`] while the request before has not ended.
    pub fn begin(&mut self, layer: u32, late: LatePlanes) -> Result<(), InternalError> {
        invariant!(self.experts.is_empty(), "the request before has ended");
        (self.layer, self.late) = (layer, late);
        Ok(())
    }

    /// The layer wants the first planes of an expert; experts ascend.
    ///
    /// # Errors
    /// [`InternalError`] for an expert that does not follow the one before.
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

    /// The layer.
    pub fn layer(&self) -> u32 {
        self.layer
    }

    /// What is done about late planes.
    pub fn late(&self) -> LatePlanes {
        self.late
    }

    /// Whether nothing is wanted any more.
    pub fn is_done(&self) -> bool {
        self.experts.is_empty()
    }

    /// Whether no expert has room.
    pub fn all_wait(&self) -> bool {
        self.experts.iter().all(|one| one.state == ExpertState::Waiting)
    }

    /// The first expert in a state, from a place in the request on.
    pub fn find(&self, state: ExpertState, from: usize) -> Option<usize> {
        let mut later = self.experts.iter().enumerate().skip(from);
        later.find(|(_, one)| one.state == state).map(|(at, _)| at)
    }

    /// An expert by its place in the request.
    ///
    /// # Errors
    /// [`InternalError`] where there is none.
    pub fn at(&self, at: usize) -> Result<&RequestedExpert, InternalError> {
        self.experts.get(at).invariant("the place is one of the request")
    }

    /// An expert by its number.
    pub fn expert(&self, expert: u32) -> Option<&RequestedExpert> {
        self.experts.iter().find(|one| one.expert == expert)
    }

    /// Experts that the device computes, or will.
    pub fn of_device(&self) -> impl Iterator<Item = u32> + '_ {
        let of_device = self.experts.iter().filter(|one| one.state != ExpertState::OnCpu);
        of_device.map(|one| one.expert)
    }

    /// Whether a plane is wanted.
    pub fn wants(&self, id: PlaneId) -> bool {
        let wants =
            |one: &RequestedExpert| one.expert == id.expert && one.planes > id.plane.index();
        id.layer == self.layer && self.experts.iter().any(wants)
    }

    /// Most experts that are given at once.
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

    /// An expert that waited has room, and its planes are pinned.
    ///
    /// # Errors
    /// [`InternalError`] for one that did not wait.
    pub fn pin(&mut self, at: usize) -> Result<(), InternalError> {
        self.take_from(at, ExpertState::Waiting)?.state = ExpertState::Pinned;
        Ok(())
    }

    /// The CPU computes an expert that waited.
    ///
    /// # Errors
    /// [`InternalError`] for one that did not wait.
    pub fn leave_to_cpu(&mut self, at: usize) -> Result<(), InternalError> {
        self.take_from(at, ExpertState::Waiting)?.state = ExpertState::OnCpu;
        Ok(())
    }

    /// A pinned expert does without its late planes: only its first ones are there.
    ///
    /// # Errors
    /// [`InternalError`] for one that is not pinned, for rows that wait for every plane, and without
    /// a plane that is there.
    pub fn leave_out_late(&mut self, at: usize, there: usize) -> Result<(), InternalError> {
        invariant!(self.late == LatePlanes::LeaveOut, "every row of the step is elastic");
        let one = self.take_from(at, ExpertState::Pinned)?;
        invariant!((1..one.planes).contains(&there), "some planes are there and some are late");
        one.cut = Level::ALL.get(there - 1).copied();
        one.planes = there;
        Ok(())
    }

    /// The device computes a pinned expert of which so many planes are there.
    ///
    /// # Errors
    /// [`InternalError`] for one that is not pinned or lacks planes.
    pub fn give(&mut self, at: usize, there: usize) -> Result<(), InternalError> {
        let one = self.take_from(at, ExpertState::Pinned)?;
        invariant!(there >= one.planes, "all planes are there that are waited for");
        one.state = ExpertState::Given;
        Ok(())
    }

    /// What was given has been computed, and what the CPU was given if it `cpu_is_done`. Each that was
    /// pinned is unpinned.
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

    /// The request ends, whatever its experts wait for. Each that was pinned is unpinned.
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

    /// Whether a step of the machine is refused, loudly.
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
