//! Map of the planes of streamed experts, readable while a model runs.

use std::sync::atomic::{AtomicU64, Ordering};

use nestling_formats::memory::{OutOfMemory, try_with_capacity};

/// Name of the map's memory in error messages.
const WHAT: &str = "the map of streamed experts";

/// Bits of a cell below the step of the last use: resident planes, then planes being read.
const STEP_SHIFT: u32 = 16;

/// Planes of one streamed expert. In the masks, bit i stands for plane i of `Plane::ALL`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExpertPlanes {
    /// Mask of the planes in memory.
    pub resident: u8,
    /// Mask of the planes being read.
    pub arriving: u8,
    /// Step of the last use, counted from 1; 0 if the expert was never used.
    pub last_used: u64,
}

impl ExpertPlanes {
    /// Packs the planes into one word, so that a reader sees all fields of one moment.
    fn pack(self) -> u64 {
        self.last_used << STEP_SHIFT | u64::from(self.arriving) << 8 | u64::from(self.resident)
    }

    fn unpack(cell: u64) -> Self {
        let [resident, arriving, ..] = cell.to_le_bytes();
        Self { resident, arriving, last_used: cell >> STEP_SHIFT }
    }
}

/// Planes of all streamed experts of a model.
///
/// Each expert is of one moment. Two experts may be of different moments if a step is running.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ExpertMap {
    /// Experts of each layer; empty for layers without experts.
    pub layers: Vec<Vec<ExpertPlanes>>,
    /// Number of the running step, or of the last one.
    pub step: u64,
}

/// Source of [`ExpertMap`]: written by the expert cache, read by any thread without a lock.
#[derive(Debug, Default)]
pub struct SharedExpertMap {
    layers: Vec<Vec<AtomicU64>>,
    step: AtomicU64,
}

impl SharedExpertMap {
    /// Creates the map of a model with these numbers of experts per layer, with no plane in memory.
    ///
    /// # Errors
    /// [`OutOfMemory`].
    pub fn new(experts: impl ExactSizeIterator<Item = usize>) -> Result<Self, OutOfMemory> {
        let mut layers = try_with_capacity(WHAT, experts.len())?;
        for count in experts {
            let mut layer = try_with_capacity(WHAT, count)?;
            layer.resize_with(count, AtomicU64::default);
            layers.push(layer);
        }
        Ok(Self { layers, step: AtomicU64::new(0) })
    }

    /// Sets the number of the running step.
    pub fn begin_step(&self, step: u64) {
        self.step.store(step, Ordering::Relaxed);
    }

    /// Sets the planes of an expert. Experts outside the map are ignored.
    pub fn set(&self, layer: u32, expert: u32, planes: ExpertPlanes) {
        let layer = self.layers.get(layer as usize);
        if let Some(cell) = layer.and_then(|layer| layer.get(expert as usize)) {
            cell.store(planes.pack(), Ordering::Relaxed);
        }
    }

    /// Returns a copy of the map.
    pub fn read(&self) -> ExpertMap {
        let planes = |cell: &AtomicU64| ExpertPlanes::unpack(cell.load(Ordering::Relaxed));
        let layers = self.layers.iter().map(|layer| layer.iter().map(planes).collect());
        ExpertMap { layers: layers.collect(), step: self.step.load(Ordering::Relaxed) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_map_has_the_planes_that_were_set() {
        let shared = SharedExpertMap::new([2, 0, 1].into_iter()).unwrap();
        let planes = ExpertPlanes { resident: 0b00111, arriving: 0b11000, last_used: 1 << 40 };
        shared.set(0, 1, planes);
        shared.set(1, 0, planes);
        shared.set(7, 0, planes);
        shared.begin_step(9);
        let map = shared.read();
        assert_eq!(map.step, 9);
        assert_eq!(map.layers[0], [ExpertPlanes::default(), planes]);
        assert!(map.layers[1].is_empty());
        assert_eq!(map.layers[2], [ExpertPlanes::default()]);
    }
}
