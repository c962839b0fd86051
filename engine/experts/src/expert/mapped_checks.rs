//! Checksum verification of mapped experts: each plane is verified before its first use.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use nestling_formats::store::{GroupId, MappedStore};
use nestling_formats::{Invariant, Level, Plane};

use super::store::StoreSource;
use nestling_core::error::EngineError;

/// Verified levels of the experts of a mapped store.
pub(super) struct MappedChecks {
    source: Arc<StoreSource>,
    /// Number of levels whose planes were verified.
    checked: Vec<Vec<AtomicU8>>, // [layers][experts]
}

impl MappedChecks {
    /// Creates the state with no expert verified. Returns `None` if the source is not mapped.
    pub fn new(
        source: Arc<StoreSource>,
        experts_of_layers: impl Iterator<Item = usize>,
    ) -> Option<Self> {
        source.mapped.as_ref()?;
        let unchecked = |count: usize| (0..count).map(|_| AtomicU8::new(0)).collect();
        Some(Self { source, checked: experts_of_layers.map(unchecked).collect() })
    }

    fn mapped(&self) -> Result<&MappedStore, EngineError> {
        Ok(self.source.mapped.as_ref().invariant("checks are of a mapped store")?)
    }

    /// Verifies the planes that an expert needs at a level and that are not verified yet.
    ///
    /// # Errors
    /// Returns an error if a plane is damaged.
    pub fn check(&self, layer: u32, expert: u32, level: Level) -> Result<(), EngineError> {
        let checked = self.checked.get(layer as usize).and_then(|layer| layer.get(expert as usize));
        let checked = checked.invariant("experts that are used have an account")?;
        let before = usize::from(checked.load(Ordering::Acquire));
        if level.index() < before {
            return Ok(());
        }
        let group = self.source.group(&GroupId::expert_of(layer, expert))?;
        let planes_at = |level| self.source.store.index().planes_at(group, level);
        // Default: below the first level there are no planes; an unavailable level counts as all planes.
        let first = before.checked_sub(1).and_then(|last| planes_at(Level::ALL[last])).unwrap_or(0);
        let last = planes_at(level).unwrap_or(Plane::ALL.len()).min(self.source.planes(group));
        for plane in Plane::ALL.into_iter().take(last).skip(first) {
            // An expert may lack an extent for a plane.
            if let Some(extent) = self.source.store.index().extent(group, plane) {
                self.mapped()?.checked_extent(extent)?;
            }
        }
        checked.fetch_max(level.index() as u8 + 1, Ordering::Release);
        Ok(())
    }

    /// Verifies all experts, for devices that copy weights.
    ///
    /// # Errors
    /// Same errors as [`MappedChecks::check`].
    pub fn check_all(&self) -> Result<(), EngineError> {
        for (layer, experts) in (0..).zip(&self.checked) {
            for (expert, _) in (0..).zip(experts) {
                self.check(layer, expert, Level::L8)?;
            }
        }
        Ok(())
    }

    /// Checks that the mapped files are unchanged.
    ///
    /// # Errors
    /// Returns an error if a file was written to, truncated or replaced.
    pub fn check_unchanged(&self) -> Result<(), EngineError> {
        Ok(self.mapped()?.check_unchanged()?)
    }
}
