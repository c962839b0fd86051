//! Planes that are to be read.

use std::collections::VecDeque;
use std::ops::Range;

use nestling_formats::Plane;

use crate::residency::PlaneId;
use crate::residency::order::{Job, ReadOrder};

/// Planes that are to be read, before they are.
#[derive(Debug, Default)]
pub(super) struct Jobs {
    pub planes: Vec<PlaneId>,
    /// The same with their times, while they are ordered.
    pub timed: Vec<Job>,
    pub order: ReadOrder,
    /// Planes that nobody waits for, to be read while the disk has nothing else to do.
    pub later: VecDeque<PlaneId>,
}

impl Jobs {
    /// Notes planes of an expert that are read when there is time.
    pub fn read_later(&mut self, layer: u32, expert: u32, planes: Range<usize>) {
        let planes = &Plane::ALL[planes];
        self.later.extend(planes.iter().map(|plane| PlaneId { layer, expert, plane: *plane }));
    }
}
