//! Planes that left memory of a device and lie in memory of the host: nearer than the disk, and in one of
//! both places only. How many there are is up to the device's own memory of the host.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use nestling_formats::ExpertId;

use super::extents::ExtentTable;
use super::source::ExpertSource;
use crate::backend::{Backend, Encoder, FeedForward, HostPlane};
use crate::error::EngineError;
use crate::residency::PlaneId;

/// The planes, and those that leave the device.
pub(super) struct HostTier<B: Backend> {
    planes: HashMap<PlaneId, HostPlane>,
    /// Those that came first in front; some are not there any more.
    order: VecDeque<PlaneId>,
    /// Planes whose slots nothing has overwritten yet.
    leaving: Vec<(PlaneId, Arc<FeedForward<B>>)>,
}

impl<B: Backend> HostTier<B> {
    pub fn new() -> Self {
        Self { planes: HashMap::new(), order: VecDeque::new(), leaving: Vec::new() }
    }

    /// A plane leaves the device.
    pub fn leave(&mut self, id: PlaneId, weights: &Arc<FeedForward<B>>) {
        self.leaving.push((id, Arc::clone(weights)));
    }

    /// Takes a plane out.
    pub fn take(&mut self, id: PlaneId) -> Option<HostPlane> {
        self.planes.remove(&id)
    }

    /// Lets go of planes, the oldest first, until they were so many bytes; says how many they were.
    pub fn shed(&mut self, bytes: u64) -> u64 {
        let mut gone = 0;
        while gone < bytes
            && let Some(plane) = self.drop_oldest()
        {
            gone += (*plane).as_ref().len() as u64;
        }
        gone
    }

    fn drop_oldest(&mut self) -> Option<HostPlane> {
        loop {
            let id = self.order.pop_front()?;
            if let Some(plane) = self.planes.remove(&id) {
                return Some(plane);
            }
        }
    }

    /// Copies what leaves the device, before anything else takes its place. `is_absent` says what is
    /// nowhere else and on no way.
    ///
    /// # Errors
    /// A failed device.
    pub fn move_out(
        &mut self,
        (source, extents): (&dyn ExpertSource, &ExtentTable),
        is_absent: &dyn Fn(PlaneId) -> bool,
        encoder: &mut B::Encoder<'_>,
    ) -> Result<(), EngineError> {
        for (id, weights) in std::mem::take(&mut self.leaving) {
            if !is_absent(id) || self.planes.contains_key(&id) {
                continue;
            }
            let expert = ExpertId { layer: id.layer, expert: id.expert };
            let parts = source.plane_parts(expert, id.plane);
            let fetched = loop {
                let fetched = encoder.fetch_plane(&weights, &parts, extents.bytes(id))?;
                // Nothing that went before it is missed more.
                if fetched.is_some() || self.drop_oldest().is_none() {
                    break fetched;
                }
            };
            if let Some(plane) = fetched {
                self.planes.insert(id, plane);
                self.order.push_back(id);
            }
        }
        // What was taken out leaves its number behind.
        if self.order.len() > 2 * self.planes.len() + 16 {
            let Self { planes, order, .. } = self;
            order.retain(|id| planes.contains_key(id));
        }
        Ok(())
    }
}
